"""The mark of a stream: by it, a query recognizes its store and the messages that the store has lost.

A mark is a JSON object in the offset of a stream::

    at    log offset of the newest record of the queues, in the order of the log
    sum   checksum of the head of that record
    time  its store time
    from  log offset before which the query has read all messages of its queues

A store that went back (a restored backup, a lost end of the log), or another store under the path, has another record
at ``at`` or none. ``at``, ``sum`` and ``time`` are missing if the log had no readable record. A record that a retention
or a reclaim removed proves nothing. Then the store times of the log must not be before ``time``.
"""

from __future__ import annotations

import zlib
from typing import TYPE_CHECKING, Any

from mqstore import _native
from mqstore.errors import CorruptionError, OffsetOutOfRangeError
from mqstore.spark._read import planning

if TYPE_CHECKING:
    from collections.abc import Callable

    import mqstore

MARK = "@log"
"""Key of the mark in an offset. A topic cannot have this name."""

WENT_BACK = (
    "the store went back to an earlier state, or another store is under this path; start a query with a new checkpoint"
)

Positions = dict[tuple[str, int], int]
"""An offset for each queue."""

# Every record has at least these bytes: its sizes, its checksum, its place, and its times.
_HEAD_BYTES = 80


def of(store: mqstore.Store, ends: Positions, before: dict[str, Any] | None, read_to: int | None) -> dict[str, Any]:
    """Returns the mark of a store whose queues have these ends; it is not before the mark ``before``.

    ``read_to`` is the log offset before which all messages are read; None is that of the newest record.
    """
    found = dict(before or {})
    newest = max((_newest(store, *each) for each in ends.items()), default=(-1, 0))
    if newest[0] >= found.get("at", 0):
        found |= {"at": newest[0], "sum": _sum(store, newest[0]), "time": newest[1]}
    found["from"] = found.get("at", 0) if read_to is None else read_to
    return found


def _newest(store: mqstore.Store, queue: tuple[str, int], end: int) -> tuple[int, int]:
    """Returns log offset and store time of the last message before the end of a queue; -1 if the log has none."""
    # The messages of compaction files have no places in the log.
    if end <= (_native.compaction_end(store, *queue) or 0):
        return -1, 0
    try:
        found = store.message_at(*queue, end - 1)
    except (CorruptionError, OffsetOutOfRangeError):
        return -1, 0
    if found is None or found.commit_log_offset < store.stats().log_min_offset:
        return -1, 0
    return found.commit_log_offset, found.store_timestamp


def _sum(store: mqstore.Store, at: int) -> int:
    return zlib.crc32(_native.read_log(store, at, _HEAD_BYTES))


def first(store: mqstore.Store, unread: Positions, log_end: int) -> int:
    """Returns the log offset of the first message from these offsets on; ``log_end`` if there is none."""
    places = [planning.first_place(store, planning.Range(*queue, at, at + 1)) for queue, at in unread.items()]
    return min([log_end, *(place.commit_log_offset for place in places if place is not None)])


def check(store: mqstore.Store, log: dict[str, Any] | None, lost: Callable[[str], None]) -> None:
    """Calls ``lost`` if the store does not have the record of a mark."""
    if log is None or "at" not in log:
        return
    at, stats = log["at"], store.stats()
    if log["from"] > stats.log_max_offset:
        is_there = False
    elif at >= stats.log_min_offset:
        is_there = at + _HEAD_BYTES <= stats.log_max_offset and (
            _sum(store, at) == log["sum"] or _native.is_reclaimed_at(store, at)
        )
    else:
        oldest = next(store._scan_log(None, None, "skip"), None)
        is_there = oldest is None or oldest.store_timestamp >= log["time"]
    if not is_there:
        lost(f"the log does not have the record at offset {at} any more: {WENT_BACK}")


class Hidden:
    """The messages after a mark that a deletion or a retention of their topic hides."""

    def __init__(self, store: mqstore.Store, log: dict[str, Any] | None) -> None:
        self._store = store
        self._from: int | None = None if log is None else log["from"]
        self._last: Positions | None = None

    def has(self, queue: tuple[str, int], offset: int, *, is_new: bool) -> bool:
        """Returns whether the log has had a message of a queue from this offset on that the query has not read.

        If the log cannot tell, because it begins later, the answer is yes. The first messages of a new queue do not
        count for an offset of an earlier version, which has no mark, and in light queues, whose records are in topics.
        """
        if self._from is None or queue[0].startswith(planning.LIGHT):
            return not is_new
        stats = self._store.stats()
        if self._from < stats.log_min_offset:
            return True
        if self._last is None:
            try:
                self._last = _last_offsets(self._store, self._from, stats.log_max_offset)
            except CorruptionError:
                return True
        return self._last.get(queue, -1) >= offset


def _last_offsets(store: mqstore.Store, start: int, end: int) -> Positions:
    """Returns the largest offset of each queue between two log offsets, among the records that are hidden."""
    import pyarrow as pa

    found: Positions = {}
    rows = _native.scan_archive(store, start, end, 1)
    try:
        for some in rows:
            batch = pa.record_batch(some).select(["topic", "queue_id", "queue_offset"])
            for topic, queue_id, offset in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                if offset < _native.floor_offset(store, topic, queue_id):
                    found[topic, queue_id] = max(offset, found.get((topic, queue_id), -1))
    finally:
        rows.close()
    return found
