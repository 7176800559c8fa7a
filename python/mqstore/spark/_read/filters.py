"""Conversion of Spark's filters to smaller ranges of queues and of time."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from mqstore._times import milliseconds_of
from mqstore.spark._options import STORE

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
    """Applies a filter. Returns whether Spark can omit it."""
    if name == "store_timestamp" and isinstance(value, datetime):
        _narrow_time(options, kind, milliseconds_of("store_timestamp", value))
        return False
    # A row for a store that cannot be read is wanted too.
    if name == STORE and kind in ("=", "in") and options["mode"] != "PERMISSIVE":
        chosen = list(value) if kind == "in" else [value]
        for path in [path for path in ranges if path not in chosen]:
            del ranges[path]
        return True
    if name in ("topic", "queue_id") and kind in ("=", "in"):
        wanted = list(value) if kind == "in" else [value]
        at = 0 if name == "topic" else 1
        for path, parts in ranges.items():
            ranges[path] = [part for part in parts if part[at] in wanted]
        return True
    # A row for damaged bytes has no offset, so Spark must apply this filter itself.
    if name == "queue_offset" and kind != "in" and options["mode"] != "PERMISSIVE":
        least = {"=": value, ">": value + 1, ">=": value}.get(kind)
        most = {"=": value + 1, "<": value, "<=": value + 1}.get(kind)
        for path, parts in ranges.items():
            first, behind = -1 if least is None else least, 1 << 63 if most is None else most
            cut = [(part[0], part[1], max(part[2], first), min(part[3], behind)) for part in parts]
            ranges[path] = [part for part in cut if part[2] < part[3]]
        return True
    return False


def _narrow_time(options: dict[str, Any], kind: str, at: int) -> None:
    """Excludes messages that are too early or too late, to the millisecond; Spark applies the exact filter."""
    if kind in ("=", ">", ">="):
        options["start_time"] = max(at, options.get("start_time") or at)
    if kind in ("=", "<", "<="):
        options["end_time"] = min(at + 1, options.get("end_time") or at + 1)
