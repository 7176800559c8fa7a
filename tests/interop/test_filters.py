"""SQL92 filters: the same expressions compile and the same messages match as in RocketMQ's own filter library."""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING

import pytest

import mqstore

from .expressions import VALUES, Generator, Properties

if TYPE_CHECKING:
    from .shop import Shop
    from .tally import Tally

pytestmark = [pytest.mark.interop, pytest.mark.filterwarnings("ignore:the filter ends before:mqstore.StoreWarning")]

SEED = int(os.environ.get("MQSTORE_SEED", "1992"))
EXPRESSIONS = 100_000 if os.environ.get("MQSTORE_SOAK") else 20_000

Case = tuple[str, list[Properties]]

SPECIFIED = [
    ("a > 5", [{"a": "6"}, {"a": "x"}, {}], "TEN"),
    ("a = 5", [{"a": "5.0"}, {"a": "5"}, {}], "ETN"),
    ("NOT (a > 5)", [{}], "N"),
    ("a <> 5", [{}, {"a": "4"}], "NT"),
    ("a NOT IN ('x')", [{}, {"a": "y"}], "NT"),
    ("a NOT CONTAINS 'zz'", [{}, {"a": "y"}], "FT"),
    ("a IS NULL", [{}, {"a": "y"}], "TF"),
    ("a > b", [{"a": "10", "b": "9"}], "T"),
    ("a = TRUE", [{"a": "true"}, {"a": "yes"}], "TF"),
    ("a AND b", [{"a": "true", "b": "true"}], "F"),
    ("a > 5 OR b = 1", [{"b": "1"}], "T"),
    ("5 = a", [{}, {"a": "5"}], "FT"),
    ("a = b", [{}, {"a": "1"}, {"b": "1"}], "TFN"),
    ("TRUE = a", [{}, {"a": "true"}], "FE"),
    ("NOT a", [{}, {"a": "true"}], "NT"),
    ("-a IS NULL", [{"a": "5"}], "T"),
    ("a LIKE 'x%'", [{"a": "xy"}, {}], "FN"),
]
"""Statements of the documentation, checked on both sides."""

ROUGH: list[Case] = [
    (" OR ".join(f"a = '{number}'" for number in range(2000)), [{"a": "1999"}, {"a": "2000"}, {}]),
    ("a IN (" + ", ".join(f"'{number}'" for number in range(5000)) + ")", [{"a": "4999"}, {"a": "5000"}]),
    ("(" * 500 + "a" + ")" * 500 + " > 5", [{"a": "6"}]),
    ("NOT " * 200 + "a = '1'", [{"a": "1"}, {"a": "2"}, {}]),
    ("NOT (" * 200 + "a = '1'" + ")" * 200, [{"a": "1"}, {"a": "2"}, {}]),
    ("a" + " IS NULL" * 200, [{"a": "1"}, {}]),
    ("a" + " = TRUE" * 200, [{"a": "true"}, {"a": "1"}, {}]),
    ("- " * 200 + "5 = a", [{"a": "5"}]),
    ("a = '" + "x''" * 20_000 + "'", [{"a": "x'" * 20_000}, {"a": "x"}]),
    ("a > 5 -- no line end", [{"a": "6"}]),
    ("-" * 2000 + "\n a > 5", [{"a": "6"}]),
    ("/*" + "*" * 2000 + "/a > 5", [{"a": "6"}]),
    ("a_b$c" * 1000 + " > 5", [{"a_b$c" * 1000: "6"}]),
    (" OR ".join(f"p{number} = '1'" for number in range(40)), [{"p39": "1"}, {"p7": "1", "p8": "2"}, {}]),
]


@cache
def generated() -> list[Case]:
    """Return the compared expressions, with properties for each."""
    make = Generator(SEED)
    found = [(make.expression(), [make.properties() for _ in range(6)]) for _ in range(EXPRESSIONS)]
    # Two properties are compared as doubles. The comparisons with other values show the double of each.
    pairs = [make.neighbours() for _ in range(EXPRESSIONS // 2)]
    found += [(expression, pairs) for expression in ("a > b", "a >= b", "a < 1e0", "a = 0.5")]
    values = [{"a": value} for value in VALUES]
    for literal in ("5", "-5", "0", "5000000000", "5.0", "0.5", "-1e3", "TRUE", "'5'"):
        found.extend((expression, values) for expression in (f"a = {literal}", f"{literal} = a", f"a <> {literal}"))
        if literal[0] not in "T'":
            found.extend((f"a {order} {literal}", values) for order in ("<", "<=", ">", ">="))
    # Which characters are digits.
    found.append(("a >= 0", [{"a": chr(code)} for code in range(1, 0x10000) if not 0xD800 <= code < 0xE000]))
    found.append(("a >= 0", [{"a": chr(code)} for code in range(0x1D7C0, 0x1D800)]))
    return found + ROUGH


def test_what_the_documentation_says(shop: Shop, version: str, tally: Tally) -> None:
    cases = [(expression, properties) for expression, properties, _ in SPECIFIED]
    theirs = shop.session(version).filters(cases)
    for (expression, properties, expected), their in zip(SPECIFIED, theirs, strict=True):
        assert their == expected, expression
        assert mine(expression, properties) == expected, expression
        tally.messages += len(properties)


def test_the_same_compiles_and_the_same_matches(shop: Shop, version: str, tally: Tally) -> None:
    theirs = shop.session(version).filters(generated())
    compiled = 0
    for (expression, properties), their in zip(generated(), theirs, strict=True):
        our = mine(expression, properties)
        if our != their:
            pairs = zip(properties, our or "", their or "", strict=False)
            first = next((given for given, one, other in pairs if one != other), None)
            pytest.fail(f"{expression!r} with {first!r}: RocketMQ {their!r}, mqstore {our!r}")
        compiled += their is not None
        tally.messages += len(properties)
    # The generator makes enough of both, and of every outcome.
    assert EXPRESSIONS * 0.5 < compiled < EXPRESSIONS * 0.9, compiled
    outcomes = "".join(filter(None, theirs))
    assert all(outcomes.count(outcome) > 1000 for outcome in "TFNE"), {each: outcomes.count(each) for each in "TFNE"}


def mine(expression: str, properties: list[Properties]) -> str | None:
    """Return mqstore's result for the expression."""
    try:
        condition = mqstore.sql(expression)
    except mqstore.InvalidFilterError as error:
        assert 0 <= error.position <= len(expression), error
        return None
    found = "".join(outcome(condition, each) for each in properties)
    matched = "".join("T" if condition.matches(each) else "." for each in properties)
    assert matched == "".join("T" if each == "T" else "." for each in found), expression
    assert condition.explain()
    return found


def outcome(condition: mqstore.SqlFilter, properties: Properties) -> str:
    """Return T, F, N for unknown, or E for an exception."""
    try:
        return {True: "T", False: "F", None: "N"}[condition.evaluate(properties)]
    except ValueError:
        return "E"
