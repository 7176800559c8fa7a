"""Brings the tables of docs/options.md and the texts of `help` up to date with `StoreOptions` and `BrokerOptions`.

    .venv/bin/python tools/options_page.py

Names, types, units, defaults, bounds and RocketMQ's names come from the installed package. The effect of an option
comes from the page itself, and so do bounds and names of RocketMQ that the package does not have. Write these cells by
hand: the next run keeps them. A new option gets the effect "(describe the effect)". The docstring of
`StoreOptionsDict`, from which `help` gets its texts, has the rows of the page.
tests/python/test_api_pages.py compares the page with the code.
"""

from __future__ import annotations

import dataclasses
import re
import tempfile
import textwrap
import typing
from datetime import timedelta
from pathlib import Path
from typing import Any

import mqstore
from mqstore import _broker_conf, types

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "options.md"
HELP = ROOT / "python" / "mqstore" / "types.py"
KINDS = (mqstore.StoreOptions, mqstore.BrokerOptions)
UNDESCRIBED = "(describe the effect)"
HEAD = "| Option | Type, unit | Default | Bounds | Effect | RocketMQ setting |\n|---|---|---|---|---|---|"
NOTHING = "\N{EN DASH}"

# The unit, by the last word of an option's name.
_UNITS = {
    "bytes": "bytes",
    "entries": "entries",
    "files": "files",
    "over": "bytes",
    "pages": "pages of 4 KiB",
    "queues": "queues",
    "ratio": "share",
    "size": "bytes",
    "slots": "slots",
    "threads": "threads",
}
# Values outside some bounds. The error of an open names the bounds.
_PROBES = (-1, 0, (1 << 31) - 1, (1 << 32) - 1, 1 << 40, 1 << 53)
# Above this, an upper bound only says that the number has 64 bits.
_NO_BOUND = 1 << 53


def updated(page: str) -> str:
    """Returns the text of the page with new tables."""
    for kind in KINDS:
        name = kind.__name__
        page = re.sub(
            rf"(<!-- {name} -->\n).*?(\n<!-- end of {name} -->)",
            lambda found, kind=kind: found[1] + table(kind, found[0]) + found[2],
            page,
            flags=re.DOTALL,
        )
    return page


def table(kind: type[Any], written: str) -> str:
    """Returns the table of one class. `written` is the old table, whose cells without a source are kept."""
    old = rows(written)
    lines = [HEAD]
    for option in dataclasses.fields(kind):
        before = old.get(option.name, ["", "", "", NOTHING, UNDESCRIBED, NOTHING])
        cells = [
            f"`{option.name}`",
            ", ".join(filter(None, [_type(str(option.type)), unit(option)])),
            default(option),
            bounds(kind, option) or before[3],
            before[4],
            ", ".join(f"`{name}`" for name in _broker_conf.names_of(option.name)) or before[5],
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def with_help(source: str, page: str) -> str:
    """Returns the source of `StoreOptionsDict` with the description of each option on the page."""
    head, name, rest = source.partition("class StoreOptionsDict(")
    intro, section, rest = rest.partition("    Args:\n")
    described = rows(page)
    lines = [_help(*described[option.name]) for option in dataclasses.fields(mqstore.StoreOptions)]
    return "".join([head, name, intro, section, *lines, rest[rest.index('    """') :]])


def _help(name: str, kind: str, default: str, bounds: str, effect: str, _setting: str) -> str:
    effect = re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", effect)
    unit = kind.partition(", ")[2] if "Callable" not in kind else ""
    facts = [("Unit", unit), ("Default", default), ("Bounds", bounds if bounds != NOTHING else "")]
    text = " ".join([effect[0].lower() + effect[1:], *(f"{fact}: {value}." for fact, value in facts if value)])
    margin = " " * 8
    return (
        textwrap.fill(
            f"{name.strip('`')}: {text}",
            width=120,
            initial_indent=margin,
            subsequent_indent=margin + " " * 4,
            break_long_words=False,
            break_on_hyphens=False,
        )
        + "\n"
    )


def rows(text: str) -> dict[str, list[str]]:
    """Returns the cells of each row of a table, by the option's name."""
    found = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]
        if cells and re.fullmatch(r"`\w+`", cells[0]):
            found[cells[0].strip("`")] = cells
    return found


def unit(option: dataclasses.Field[Any]) -> str:
    """Returns the unit of an option; an empty text if it has none."""
    if str(option.type).startswith("Duration"):
        return "seconds"
    is_number = str(option.type).startswith(("int", "float"))
    return _UNITS[option.name.rpartition("_")[2]] if is_number else ""


def default(option: dataclasses.Field[Any]) -> str:
    """Returns the default of an option."""
    if option.default is dataclasses.MISSING:
        return f"`{option.default_factory.__name__}()`"
    value = option.default
    if str(option.type).startswith("Duration") and value is not None:
        return span(round(value * 1000))
    if unit(option) == "bytes" and value is not None:
        return size(value)
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    return _code(repr(value).replace("'", '"'))


def bounds(kind: type[Any], option: dataclasses.Field[Any]) -> str | None:
    """Returns the values that an option can have; None if the package has no list and no range."""
    type_name = str(option.type)
    if typing.get_origin(alias := getattr(types, type_name, None)) is typing.Literal:
        return ", ".join(f'`"{value}"`' for value in typing.get_args(alias))
    if not type_name.startswith(("int", "float", "Duration")):
        return None
    found = _range(kind, option.name)
    if found is None:
        return None
    show = span if type_name.startswith("Duration") else size if unit(option) == "bytes" else "{:,}".format
    low, high = found
    return f"{show(low)} or more" if high >= _NO_BOUND else f"{show(low)} to {show(high)}"


def _range(kind: type[Any], name: str) -> tuple[int, int] | None:
    missing = Path(tempfile.gettempdir()) / "mqstore-no-such-store"
    for value in _PROBES:
        try:
            options = kind(**{name: value})
            if kind is mqstore.BrokerOptions:
                options = mqstore.StoreOptions(advanced=options)
            mqstore.open(missing, options=options)
        except mqstore.NotAStoreError:
            continue
        except mqstore.InvalidOptionError as error:
            if found := re.search(r"between (\d+) and (\d+)", error.reason):
                return int(found[1]), int(found[2])
    return None


def span(milliseconds: int) -> str:
    """Returns a span of time in the largest unit in which it is a whole number."""
    if milliseconds == 0:
        return "0"
    for length, name in ((timedelta(days=365), "365 d"), (timedelta(hours=1), "h"), (timedelta(seconds=1), "s")):
        number, rest = divmod(milliseconds, length // timedelta(milliseconds=1))
        if number and not rest:
            return name if name == "365 d" else f"{number} {name}"
    return f"{milliseconds} ms" if milliseconds < 100 else f"{milliseconds / 1000:g} s"


def size(number: int) -> str:
    """Returns a number of bytes in the largest binary unit in which it is a whole number."""
    if number == (1 << 31) - 1:
        return "2 GiB - 1"
    for shift, name in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if number >> shift and not number % (1 << shift):
            return f"{number >> shift} {name}"
    return f"{number:,}"


def _type(annotation: str) -> str:
    """Returns a type with a code span for each alternative: GitHub and MkDocs escape `|` in a code span differently."""
    alternatives = re.split(r" \| (?![^\[]*\])", annotation)
    return " or ".join(_code(one) for one in alternatives)


def _code(text: str) -> str:
    return f"<code>{text.replace('|', '&#124;')}</code>" if "|" in text else f"`{text}`"


if __name__ == "__main__":
    page = updated(PAGE.read_text(encoding="utf-8"))
    PAGE.write_text(page, encoding="utf-8")
    HELP.write_text(with_help(HELP.read_text(encoding="utf-8"), page), encoding="utf-8")
