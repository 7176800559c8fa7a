"""The rows of logic queues as Arrow columns, with the columns `logic_queue_id` and `logic_offset`."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

from mqstore import _extras
from mqstore._read.stores import RowSource, batches_of, schema_with_columns, with_columns, without_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    import pyarrow as pa

    from mqstore._store import Store

QUEUE, OFFSET = "logic_queue_id", "logic_offset"
"""The added columns."""


class LogicPiece(NamedTuple):
    """A range of a physical queue that belongs to a logic queue."""

    store: Store
    broker: str
    logic_queue_id: int
    queue_id: int
    """The physical queue."""
    start: int
    """First offset in the physical queue."""
    end: int
    """Offset after the last one."""
    delta: int
    """Difference from a physical offset to the logic offset."""


class LogicRows(RowSource):
    """The rows of logic queues, range by range."""

    __slots__ = ("_pieces", "_topic")

    adds_columns = True

    def __init__(self, topic: str, pieces: Callable[[], Iterator[LogicPiece]]) -> None:
        self._topic = topic
        self._pieces = pieces

    def __repr__(self) -> str:
        return f"the logic queues of {self._topic!r}"

    def native_request(self, request: dict[str, Any]) -> dict[str, Any]:
        """Returns the request without the columns that this source adds."""
        return without_columns(request, (QUEUE, OFFSET))

    def schema(self, found: pa.Schema, request: dict[str, Any]) -> pa.Schema:
        """Adds the columns of logic queues."""
        pyarrow = _extras.pyarrow()
        added = [pyarrow.field(QUEUE, pyarrow.int32()), pyarrow.field(OFFSET, pyarrow.int64())]
        return schema_with_columns(found, request, added)

    def batches(self, request: dict[str, Any]) -> Generator[pa.RecordBatch]:
        """Yields the rows of one pass."""
        pyarrow = _extras.pyarrow()
        from pyarrow import compute

        native = self.native_request(request)
        if native["columns"] is not None and "queue_offset" not in native["columns"]:
            native["columns"] = [*native["columns"], "queue_offset"]
        if self._topic not in native["topics"]:
            return
        for piece in self._pieces():
            # A condition of a lazy frame on the physical queue is applied to the rows again.
            own = {"queue_id": piece.queue_id, "start": piece.start, "end": piece.end}
            with closing(batches_of(piece.store, {**native, **own})) as found:
                for rows in found:
                    number = pyarrow.scalar(piece.logic_queue_id, pyarrow.int32())
                    offsets = rows.column("queue_offset")
                    added = {
                        QUEUE: pyarrow.repeat(number, rows.num_rows),
                        OFFSET: compute.add(offsets, pyarrow.scalar(piece.delta, pyarrow.int64())),
                    }
                    yield with_columns(rows, self.schema(rows.schema, request), added)
