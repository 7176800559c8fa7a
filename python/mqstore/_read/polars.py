"""A scan as a source for lazy frames of Polars."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

    import polars as pl

    from mqstore._read.scan import Scan


_INTS = {"Int8", "Int16", "Int32", "Int64"}


def lazy_frame(scan: Scan) -> pl.LazyFrame:
    """Returns the frame of `Scan.to_polars_lazy`."""
    from mqstore import _extras

    polars, pyarrow = _extras.module("polars", "polars"), _extras.pyarrow()
    from polars.io.plugins import register_io_source

    def rows(
        with_columns: list[str] | None, predicate: pl.Expr | None, n_rows: int | None, _batch_size: int | None
    ) -> Iterator[pl.DataFrame]:
        narrowed = _narrowed(scan, predicate)
        if with_columns is not None:
            wanted = list(with_columns)
            # The predicate is applied here, so its columns are needed even if the query does not return them.
            wanted += [name for name in _names(predicate) if name not in wanted]
            narrowed = narrowed._narrowed(columns=wanted)
        left = n_rows
        for batch in narrowed:
            frame = polars.from_arrow(batch)
            if predicate is not None:
                frame = frame.filter(predicate)
            if with_columns is not None:
                frame = frame.select(with_columns)
            if left is not None:
                frame = frame.head(left)
                left -= frame.height
            yield frame
            if left == 0:
                return

    empty = polars.from_arrow(pyarrow.Table.from_batches([], scan.schema))
    return register_io_source(rows, schema=empty.schema)


def _names(predicate: pl.Expr | None) -> list[str]:
    return [] if predicate is None else predicate.meta.root_names()


def _narrowed(scan: Scan, predicate: pl.Expr | None) -> Scan:
    """Returns a scan that reads less if the predicate allows it. The predicate is applied to its rows again."""
    # A limit counts rows before the predicate.
    if predicate is None or scan._limit is not None:
        return scan
    try:
        tree = json.loads(predicate.meta.serialize(format="json"))
    except Exception:  # noqa: BLE001 - this form of an expression is not promised to last; without it more is read
        return scan
    request, store = dict(scan._request), None
    for column, operator, value in _comparisons(tree):
        if column == "topic" and operator == "Eq" and isinstance(value, str):
            _only_topic(request, value)
        elif column == "queue_id" and operator == "Eq" and _is_int(value):
            # Two different ids select no row; the predicate removes the rows.
            request["queue_id"] = request["queue_id"] if request["queue_id"] is not None else value
        elif column == "store" and operator == "Eq" and isinstance(value, str):
            # As for two different ids.
            store = store if store is not None else value
        elif column == "queue_offset" and _is_int(value):
            _within(request, "start", "end", operator, value, value + 1)
        elif column == "store_timestamp" and _is_int(value):
            _within(request, "start_time", "end_time", operator, value // 1000, -(-(value + 1) // 1000))
    return scan._narrowed(store, **request)


def _only_topic(request: dict[str, Any], topic: str) -> None:
    if request["topics"] is None:
        # Also selects records of the topic that are in no queue.
        request.setdefault("record_topic", topic)
    else:
        request["topics"] = [name for name in request["topics"] if name == topic]


def _within(request: dict[str, Any], start: str, end: str, operator: str, first: int, behind: int) -> None:
    """Narrows a range: `first` is the value, rounded down; `behind` is the next value, rounded up."""
    if not (first >= -(1 << 62) and behind <= 1 << 62):
        return
    if operator in ("Eq", "Gt", "GtEq"):
        request[start] = first if request[start] is None else max(first, request[start])
    if operator in ("Eq", "Lt", "LtEq"):
        request[end] = behind if request[end] is None else min(behind, request[end])


def _comparisons(tree: Any) -> Iterator[tuple[str, str, Any]]:
    """Yields column, operator and constant of each comparison that every row must fulfil."""
    match tree:
        case {"BinaryExpr": {"left": left, "op": "And", "right": right}}:
            yield from _comparisons(left)
            yield from _comparisons(right)
        case {"BinaryExpr": {"left": {"Column": str(name)}, "op": str(operator), "right": {"Literal": literal}}}:
            yield name, operator, _constant(literal)
        case {"BinaryExpr": {"left": {"Literal": literal}, "op": str(operator), "right": {"Column": str(name)}}}:
            turned = {"Lt": "Gt", "LtEq": "GtEq", "Gt": "Lt", "GtEq": "LtEq"}
            yield name, turned.get(operator, operator), _constant(literal)


def _constant(literal: Any) -> object:
    """Returns a text or a number; for a time the microseconds since 1970; None for other literals."""
    match literal:
        case {"Scalar": {"Datetime": [int(number), "Microseconds", {"inner": str()}]}}:
            return number
        case {"Scalar": {"String": str(text)}}:
            return text
        case {"Dyn": {"Int": int(number)}}:
            return number
        case {"Scalar": dict(scalar)} if len(scalar) == 1 and set(scalar) <= _INTS:
            return next(iter(scalar.values()))
    return None


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
