"""The parts of a read that are in the archive of a store: one for each of its files.

A file has the records of one topic in one range of the log, so a record belongs to exactly one part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from mqstore import _native

if TYPE_CHECKING:
    import mqstore

Ranges = list[tuple[str, int, int, int]]
"""Ranges of queues: topic, queue, first offset, and offset to stop at."""


class File(NamedTuple):
    """The part of a read that is in one file."""

    ranges: Ranges
    begin: int
    """Log offset at which the range of the file begins."""
    to: int
    """Log offset at which it ends."""
    record_bytes: int
    """Mean size of a record."""


def split(store: mqstore.Store, ranges: Ranges) -> tuple[Ranges, Ranges]:
    """Divides ranges of queues: those in the archive of the store, and those in its log."""
    if not _native.has_archive(store):
        return [], ranges
    older, logged = [], []
    lows: dict[tuple[str, int], int] = {}
    for topic in {one[0] for one in ranges}:
        lows |= {(topic, queue.queue_id): queue.min_offset for queue in store.queues(topic)}
    for topic, queue_id, start, end in ranges:
        low = lows[topic, queue_id]
        oldest = store._oldest_offset(topic, queue_id, low) if start < low else low
        cut = max(start, min(low, end)) if oldest < low else start
        if start < cut:
            older.append((topic, queue_id, start, cut))
        if cut < end:
            logged.append((topic, queue_id, cut, end))
    return older, logged


def files(store: mqstore.Store, ranges: Ranges, *, skips: bool) -> list[File]:
    """Returns the files with ranges of queues, in the order of the log.

    Raises:
        CorruptionError: segments were deleted before they were archived, and `skips` is false.
    """
    if not ranges:
        return []
    found = _native.archived_files(store, ranges, "skip" if skips else "raise")
    return [File([ranges[one] for one in own], start, end, mean) for _, start, end, mean, own in found]
