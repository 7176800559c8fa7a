"""Reports as tables: values with units for people, HTML for notebooks, data frames of pandas and Polars.

The names of the fields say the units: `bytes`, `bytes_*`, `*_bytes` and `*_size` are bytes, `*_timestamp` and `*_due`
are epoch milliseconds, `seconds` and `*_seconds` are seconds, `*_ms` are milliseconds.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from mqstore import _extras
from mqstore._times import time_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

# Rows of a list in HTML.
_SHOWN_ROWS = 100

_BYTES = ("bytes", "disk_bytes")
_BYTES_ENDINGS = ("_bytes", "_size")
_TIME_ENDINGS = ("_timestamp", "_due")


def size(number: int) -> str:
    """Returns a number of bytes for people."""
    if number < 1024:
        return f"{number} B"
    power = min((number.bit_length() - 1) // 10, 6)
    return f"{number / (1 << 10 * power):.1f} {'KMGTPE'[power - 1]}iB"


def moment(milliseconds: int) -> str:
    """Returns a time in ISO 8601, UTC."""
    try:
        return time_of(milliseconds).isoformat(timespec="milliseconds")
    except OverflowError:
        return str(milliseconds)


def duration(seconds: float) -> str:
    """Returns a duration for people."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours >= 48:
        return f"{hours // 24} d {hours % 24} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {rest} s"


def label(name: str, *, dry_run: bool = False) -> str:
    """Returns the name of a field for people, for whom the value has the unit."""
    return "would change" if dry_run and name == "changed" else name.removesuffix("_ms").replace("_", " ")


def human(name: str, value: object) -> object:
    """Returns the value of the field `name` for people: with its unit, `-` for None, "yes" or "no" for a bool."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int | float):
        if name.endswith("seconds"):
            return duration(value)
        if isinstance(value, int):
            if name in _BYTES or name.startswith("bytes_") or name.endswith(_BYTES_ENDINGS):
                return size(value)
            if name.endswith("_ms"):
                return duration(value / 1000)
            if name.endswith(_TIME_ENDINGS):
                return moment(value)
    return value


def grid(items: Iterable[Any], names: Sequence[str], titles: Mapping[str, str]) -> tuple[list[str], list[list[object]]]:
    """Returns the headings and the cells of a table: a row for each report, or JSON form of one, in `items`.

    The columns are the fields `names`; their headings are these names, except those in `titles`.
    """
    headings = [titles.get(name, label(name)) for name in names]
    return headings, [
        [human(name, one[name] if isinstance(one, dict) else getattr(one, name)) for name in names] for one in items
    ]


def html(values: dict[str, Any], title: str) -> str:
    """Returns the JSON form of a report as HTML: a table of the simple fields, and one for each list."""
    simple = {name: value for name, value in values.items() if not isinstance(value, list | dict)}
    parts = [f"<strong>{escape(title)}</strong>"]
    if simple:
        is_dry = bool(values.get("dry_run"))
        rows = [[label(name, dry_run=is_dry), human(name, value)] for name, value in simple.items()]
        parts.append(_table((), rows))
    for name, value in values.items():
        if name in simple or not value:
            continue
        # The elements of a list have one type.
        items = _rows(values, name)
        headings, rows = grid(items[:_SHOWN_ROWS], tuple(items[0]), {name: ""})
        parts.append(f"<p>{escape(label(name))}</p>")
        parts.append(_table(headings, rows))
        if len(items) > _SHOWN_ROWS:
            parts.append(f"<p>{len(items) - _SHOWN_ROWS} more</p>")
    return "\n".join(parts)


def pandas_frame(values: dict[str, Any], part: str | None) -> Any:
    """Returns a `pandas.DataFrame` of a report or of one of its lists."""
    return _extras.module("pandas", "pandas").DataFrame(_rows(values, part))


def polars_frame(values: dict[str, Any], part: str | None) -> Any:
    """Returns a `polars.DataFrame` of a report or of one of its lists."""
    # All rows decide about the type of a column, because the first ones may be None.
    return _extras.module("polars", "polars").DataFrame(_rows(values, part), infer_schema_length=None)


def _rows(values: dict[str, Any], part: str | None) -> list[dict[str, Any]]:
    if part is None:
        return [{name: value for name, value in values.items() if not isinstance(value, list | dict)}]
    lists = [name for name, value in values.items() if isinstance(value, list | dict)]
    if part not in lists:
        has = f"it has {', '.join(lists)}" if lists else "it has no lists"
        raise ValueError(f"part {part!r} is not a list of this report; {has}")
    found = values[part]
    if isinstance(found, dict):
        return [{"name": name, "value": value} for name, value in found.items()]
    return [one if isinstance(one, dict) else {part: one} for one in found]


def _table(headings: Sequence[str], rows: list[list[object]]) -> str:
    head = "".join(f"<th>{escape(heading)}</th>" for heading in headings)
    lines = ["<table>"]
    if any(headings):
        lines.append(f"<thead><tr>{head}</tr></thead>")
    lines += ["<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows]
    return "\n".join([*lines, "</table>"])
