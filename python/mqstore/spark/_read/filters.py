"""Conversion of Spark's filters to smaller ranges of queues and of time."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from mqstore._times import milliseconds_of
from mqstore.spark._options import STORE
from mqstore.spark._read.planning import LIGHT

if TYPE_CHECKING:
    from collections.abc import Iterator

_KINDS = {
    "EqualTo": "=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "In": "in",
}


def push(options: dict[str, Any], ranges: dict[str, Any], filters: list[Any]) -> Iterator[Any]:
    """Reduces a read by filters; yields those that Spark must still apply."""
    for each in filters:
        kind = _KINDS.get(type(each).__name__)
        name = each.attribute[0] if kind is not None and len(each.attribute) == 1 else None
        if kind is None or not _narrow(options, ranges, name, kind, each.value):
            yield each


def _narrow(options: dict[str, Any], ranges: dict[str, Any], name: str | None, kind: str, value: Any) -> bool:
    """Applies a filter. Returns whether Spark can omit it: every row that the read can give meets it then."""
    if name == "store_timestamp" and isinstance(value, datetime):
        _narrow_time(options, kind, milliseconds_of("store_timestamp", value))
        return False
    # A row for damaged bytes has no position, and a row for a store that cannot be read has no part.
    is_exact = options["mode"] != "PERMISSIVE"
    chosen = list(value) if kind == "in" else [value]
    if name == STORE and kind in ("=", "in") and is_exact:
        for path in [path for path in ranges if path not in chosen]:
            del ranges[path]
        return True
    if name in ("topic", "queue_id") and kind in ("=", "in"):
        at = 0 if name == "topic" else 1
        for path, parts in ranges.items():
            ranges[path] = [part for part in parts if _is_light(part) or part[at] in chosen]
        return is_exact and not _has_light(ranges)
    if name == "queue_offset" and kind != "in" and is_exact and isinstance(value, int):
        least = {"=": value, ">": value + 1, ">=": value}.get(kind, -1)
        most = {"=": value + 1, "<": value, "<=": value + 1}.get(kind, 1 << 63)
        for path, parts in ranges.items():
            cut = [part if _is_light(part) else _cut(part, least, most) for part in parts]
            ranges[path] = [part for part in cut if part[2] < part[3]]
        return not _has_light(ranges)
    return False


def _cut(part: tuple[str, int, int, int], least: int, most: int) -> tuple[str, int, int, int]:
    return part[0], part[1], max(part[2], least), min(part[3], most)


def _is_light(part: tuple[str, int, int, int]) -> bool:
    """Returns whether a range is one of a light queue. Its rows have the position of their record in its topic."""
    return part[0].startswith(LIGHT)


def _has_light(ranges: dict[str, Any]) -> bool:
    return any(_is_light(part) for parts in ranges.values() for part in parts)


def _narrow_time(options: dict[str, Any], kind: str, at: int) -> None:
    """Excludes messages that are too early or too late, to the millisecond; Spark applies the exact filter."""
    if kind in ("=", ">", ">="):
        options["start_time"] = max(at, options.get("start_time") or at)
    if kind in ("=", "<", "<="):
        options["end_time"] = min(at + 1, options.get("end_time") or at + 1)
