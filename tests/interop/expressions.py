"""SQL92 expressions and properties for comparisons: usual ones, unusual ones, and invalid ones."""

from __future__ import annotations

import math
from random import Random

Properties = dict[str, str]

NAMES = ("a", "b", "c", "A", "_x", "$y2", "TAGS", "nota", "inx", "e5")
WHOLE = (
    "0", "1", "5", "10", "42", "5L", "5l", "0l", "00", "007", "2147483647", "2147483648", "4294967296",
    "9223372036854775807", "9223372036854775807L", "9223372036854775808", "12l3", "0x1F", "1_000",
)  # fmt: skip
REAL = (
    "5.0", "5.", ".5", "0.5", "5.5", "1e3", "1E3", "1e+3", "1.5e-3", "5.e1", "0.1", "1e308", "1e309", "4.9e-324",
    "2e-324", "0.0", "0.", ".0", "0e5", "1e", "1e+", "5.5f", "5.5.5", "007.5", "1.7976931348623157e308",
)  # fmt: skip
TEXTS = (
    "", "x", "y", "5", "5.0", "true", "TRUE", "it's", "'", "''", "--", "/*", "*/", "a b", "\u00fc", "\u4e2d\u6587",
    "\U0001f600", "\uffff", "\n", "\t", "\\", '"', "NULL", "x" * 40,
)  # fmt: skip
VALUES = (
    "5", "+5", "-5", "05", "5.0", "5.", ".5", " 5", "5 ", "5\n", "0x5", "0x1p2", "0X1.8P1", "0x.8p1f", "1e3",
    "1E+3", "5d", "5F", "5L", "NaN", "-NaN", "Infinity", "-Infinity", "+Infinity", "infinity", "nan", "-0", "-0.0",
    "0", "0.0", "+", "-", ".", "e5", "1e", "1e5e5", "1.2.3", "2147483647", "2147483648", "-2147483648",
    "-2147483649", "9223372036854775807", "9223372036854775808", "-9223372036854775808", "-9223372036854775809",
    "1e400", "-1e400", "1e-400", "1e99999999999", "0x1p99999999999", "0x1p-99999999999", "0x0p99999999999",
    "\u0665", "-\u0665\uff15", "\u0665.\u0663", "\U0001d7d3", "\u00bd", "\u2460", "\u00a05", "1_000", "\u20035",
    "\x005\x1f", *TEXTS,
)  # fmt: skip
BLANKS = (" ", " ", " ", "  ", "\t", "\n", "\r\n", "\f", "/* c */", "/***/", "/* ' */", "-- c\n", "--\r", "-- /* \r\n")
KEYWORDS = (
    "NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH",
    "LIKE",
)  # fmt: skip
SYMBOLS = ("=", "<>", "<", "<=", ">", ">=", "(", ")", ",", "+", "-")
STRANGE = (
    "!", "#", "==", "!=", "&&", "||", '"x"', "'x", "/*", "/", ".", "\u00e4", "\u017f", "\u0130", "\u212a", "--",
    ";", "\x00",
)  # fmt: skip


class Generator:
    """Makes expressions and properties from a seed."""

    def __init__(self, seed: int) -> None:
        self._random = Random(seed)

    def expression(self) -> str:
        """Return an expression: mostly a valid one, else a damaged one, else random tokens."""
        kind = self._random.random()
        if kind < 0.65:
            tokens = self._condition(self._random.randrange(4))
        elif kind < 0.95:
            tokens = self._spoiled(self._condition(self._random.randrange(3)))
        else:
            tokens = [self._any() for _ in range(self._random.randrange(8))]
        return self._joined(tokens)

    def properties(self) -> Properties:
        """Return the properties of a message. Most of the names in expressions are present."""
        return {name: self._random.choice(VALUES) for name in NAMES if self._random.random() < 0.7}

    def neighbours(self) -> Properties:
        """Return a number as `number` does, and its double value or a neighbouring double in few digits."""
        text = self.number()
        try:
            exact = float.fromhex(text) if "x" in text else float(text.rstrip("dF"))
        except OverflowError:
            exact = math.inf if text[0] != "-" else -math.inf
        near = self._random.choice((exact, math.nextafter(exact, math.inf), math.nextafter(exact, -math.inf)))
        return {"a": text, "b": repr(near).replace("inf", "Infinity")}

    def number(self) -> str:
        """Return a number in a form that perhaps only `Double.valueOf` reads: many digits, many places, or
        hexadecimal."""
        pick = self._random
        sign = pick.choice(("", "", "-", "+"))
        if pick.random() < 0.5:
            digits = "".join(pick.choices("0123456789", k=pick.randrange(1, 25)))
            point = pick.randrange(len(digits) + 1)
            exponent = pick.choice(("", f"e{pick.randrange(-345, 310)}"))
            return f"{sign}{digits[:point]}.{digits[point:]}{exponent}{pick.choice(('', '', 'd', 'F'))}"
        digits = pick.choice(("", "1", "1fffffffffffff", "10000000000000")) + "".join(
            pick.choices("0008fF1a", k=pick.randrange(1, 20))
        )
        point = pick.randrange(len(digits) + 1)
        near = pick.choice((0, 0, 0, -1074, -1022, 1023)) - 4 * point
        return f"{sign}0x{digits[:point]}.{digits[point:]}p{near + pick.randrange(-60, 60)}"

    def _joined(self, tokens: list[str]) -> str:
        text = ""
        for token in tokens:
            # Without a blank, two tokens may become a different one.
            text += (self._random.choice(BLANKS) if self._random.random() < 0.9 else "") + token
        return text + (self._random.choice(BLANKS) if self._random.random() < 0.1 else "")

    def _any(self) -> str:
        kinds = (NAMES, WHOLE, REAL, KEYWORDS, SYMBOLS, SYMBOLS, STRANGE)
        return self._random.choice((*self._random.choice(kinds), self._text()))

    def _spoiled(self, tokens: list[str]) -> list[str]:
        for _ in range(self._random.randrange(1, 3)):
            at = self._random.randrange(len(tokens) + 1)
            kind = self._random.random()
            if kind < 0.4:
                tokens.insert(at, self._any())
            elif kind < 0.7:
                del tokens[at : at + 1]
            else:
                tokens[at : at + 1] = [self._any()]
        return tokens

    def _case(self, word: str) -> str:
        return self._random.choice((word, word, word.lower(), word.title()))

    def _text(self) -> str:
        return "'" + self._random.choice(TEXTS).replace("'", "''") + "'"

    def _number(self) -> str:
        return self._random.choice(WHOLE[:14] if self._random.random() < 0.7 else REAL[:14])

    def _condition(self, depth: int) -> list[str]:
        pick = self._random.random()
        if depth and pick < 0.35:
            chain = self._condition(depth - 1)
            for _ in range(self._random.choice((1, 1, 2, 4))):
                chain += [self._case(self._random.choice(("AND", "OR"))), *self._condition(depth - 1)]
            return chain
        if depth and pick < 0.5:
            return ["(", *self._condition(depth - 1), ")"]
        if depth and pick < 0.65:
            return [self._case("NOT"), "(", *self._condition(depth - 1), ")"]
        return self._comparison(depth)

    def _comparison(self, depth: int) -> list[str]:
        left = self._operand(depth)
        negated = [self._case("NOT")] if self._random.random() < 0.3 else []
        kind = self._random.randrange(8)
        if kind < 3:
            return [*left, self._random.choice(("=", "<>", "<", "<=", ">", ">=")), *self._operand(depth)]
        if kind == 3:
            return [*left, self._case("IS"), *negated, self._case("NULL")]
        if kind == 4:
            bounds = [*self._operand(0), self._case("AND"), *self._operand(0)]
            return [*left, *negated, self._case("BETWEEN"), *bounds]
        if kind == 5:
            texts = [self._text() for _ in range(self._random.choice((1, 2, 3, 7)))]
            listed = [each for text in texts for each in (",", text)][1:]
            return [self._random.choice(NAMES), *negated, self._case("IN"), "(", *listed, ")"]
        if kind == 6:
            how = self._random.choice(("CONTAINS", "STARTSWITH", "ENDSWITH"))
            return [*left, *negated, self._case(how), self._text()]
        return [*negated, self._random.choice(NAMES)]

    def _operand(self, depth: int) -> list[str]:
        pick = self._random.random()
        if pick < 0.55:
            return [self._random.choice(NAMES)]
        if pick < 0.75:
            return [self._number()]
        if pick < 0.82:
            return [self._random.choice("+-"), *self._operand(depth)]
        if pick < 0.88:
            return [self._text()]
        if pick < 0.93:
            return [self._case(self._random.choice(("TRUE", "FALSE", "NULL")))]
        if depth:
            return ["(", *self._condition(depth - 1), ")"]
        return ["(", *self._operand(0), ")"]
