"""Which queues a read wants, from where to where, and into which parts it is cut.

Runs on the driver's side, in Spark's planning processes. A part says, in plain values: the store, parts of queues,
the stretch of the log in which their records lie, and rows in a batch. Where the wanted queues hold much of the log,
parts are stretches of the log, which tasks walk; where they hold little of it, parts are offsets of queues, whose
entries tasks follow. A record belongs to exactly one part either way. Queues that were compacted
are read as ``Store.read`` does: below the end of the compaction their messages are not those of the log.
"""

from __future__ import annotations

import re
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import mqstore
from mqstore import _native
from mqstore.errors import MQStoreError, OffsetOutOfRangeError, TopicNotFoundError
from mqstore.spark._locks import SAME_PATH
from mqstore.spark._options import _EARLIEST, _LATEST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

# Reading one record that an entry leads to takes as long as walking so many bytes of the log.
_BYTES_PER_ENTRY = 16 << 10

# Entries that a part follows, unless the options say otherwise.
_ENTRIES = 1 << 16

# Into so many parts a log is cut, unless the options say otherwise, as long as they have between so many bytes.
_PARTS = 8
_LEAST_SPLIT_BYTES = 128 << 20
_MOST_SPLIT_BYTES = 512 << 20

Bounds = dict[tuple[str, int], tuple[int, int]]
"""Smallest and next offset of each queue."""


class Range(NamedTuple):
    """A part of a queue."""

    topic: str
    queue_id: int
    start: int
    end: int


class Part(NamedTuple):
    """What one task reads."""

    path: str
    ranges: tuple[Range, ...]
    begin: int
    """The log offset of the first record."""
    to: int
    """No record starts at this log offset or behind it."""
    way: str
    """``log``: walks it; ``cheapest``: that, or follows entries; ``messages``: as ``Store.read`` does."""
    batch_rows: int

    def plain(self) -> tuple[Any, ...]:
        """The same without a class of this package, which an executor may not know before it was sent one."""
        return (self.path, tuple(tuple(part) for part in self.ranges), *self[2:])


def bounds(store: mqstore.Store, topics: dict[str, Any]) -> Bounds:
    """The bounds of the queues that are wanted.

    Raises:
        TopicNotFoundError: a topic or queue that was named is not there.
    """
    found: Bounds = {}
    there = store.topics()
    if "names" in topics:
        wanted: Iterable[str] = topics["names"]
    elif "assign" in topics:
        wanted = topics["assign"]
    elif "pattern" in topics:
        pattern = re.compile(topics["pattern"])
        wanted = [topic for topic in there if pattern.fullmatch(topic)]
    else:
        wanted = there
    for topic in wanted:
        queues = {queue.queue_id: (queue.min_offset, queue.max_offset) for queue in store.queues(topic)}
        for queue_id in topics.get("assign", {}).get(topic, queues):
            if queue_id not in queues:
                raise TopicNotFoundError(topic, queue_id)
            found[topic, queue_id] = queues[queue_id]
    return found


def position(
    store: mqstore.Store, queue: tuple[str, int], limits: tuple[int, int], asked: Any, default: int = _EARLIEST
) -> int:
    """The offset that ``asked`` stands for in a queue; not yet held against what is there."""
    topic, queue_id = queue
    if isinstance(asked, dict) and "timestamp" in asked:
        return store.offset_for_time(topic, queue_id, asked["timestamp"])
    if isinstance(asked, dict):
        asked = asked["offsets"].get(topic, {}).get(str(queue_id), default)
    if asked is None:
        asked = default
    return limits[0] if asked == _EARLIEST else limits[1] if asked == _LATEST else int(asked)


def batch_ranges(store: mqstore.Store, options: dict[str, Any], lost: Callable[[str], None]) -> list[Range]:
    """The parts of queues that a batch read wants; ``lost`` hears of offsets that are gone."""
    found = []
    queues = bounds(store, options["topics"])
    for queue, limits in sorted(queues.items()):
        start = position(store, queue, limits, options["start"])
        end = position(store, queue, limits, options["end"], _LATEST)
        if start < limits[0]:
            lost(gone(queue, start, limits))
            start = limits[0]
        if isinstance(options["start"], dict) and start > limits[1]:
            raise OffsetOutOfRangeError(*queue, start, *limits)
        found.append(Range(*queue, start, min(end, limits[1])))
    return [part for part in found if part.start < part.end]


def gone(queue: tuple[str, int], offset: int, limits: tuple[int, int]) -> str:
    """Says that an offset is not there."""
    return f"queue {queue[1]} of topic {queue[0]!r} holds offsets {limits[0]} to {limits[1]} and not {offset}"


def lost(options: dict[str, Any], goes_on: str) -> Callable[[str], None]:
    """What hears of offsets that are gone: an error, or where that was asked for, a warning."""

    def hear(text: str) -> None:
        if options["fail_on_data_loss"]:
            msg = f"{text}; with the option failOnDataLoss=false {goes_on} behind what is gone"
            raise MQStoreError(msg)
        warnings.warn(text, mqstore.StoreWarning, stacklevel=2)

    return hear


def parts(store: mqstore.Store, ranges: list[Range], options: dict[str, Any]) -> list[Part]:
    """Cuts parts of queues into what tasks read."""
    asked, logged = [], []
    for wanted in ranges:
        compacted = _native.compaction_end(store, wanted.topic, wanted.queue_id) or 0
        cut = min(max(wanted.start, compacted), wanted.end)
        if cut < wanted.end:
            logged.append(wanted._replace(start=cut))
        part = wanted._replace(end=cut)
        first = _first(store, part) if part.start < cut else None
        if first is not None:
            rows = _batch_rows(options, [first.size])
            pieces = _pieces(part, options["max_records"] or _ENTRIES)
            asked += [Part(store.path, (piece,), 0, 0, "messages", rows) for piece in pieces]
    return asked + _log_parts(store, logged, options)


def _pieces(part: Range, most: int) -> list[Range]:
    """A part of a queue in parts of at most so many offsets."""
    starts = range(part.start, part.end, most)
    return [Range(part.topic, part.queue_id, start, min(start + most, part.end)) for start in starts]


def _log_parts(store: mqstore.Store, ranges: list[Range], options: dict[str, Any]) -> list[Part]:
    """Cuts parts of queues that are in the log."""
    found = [(part, first) for part in ranges if (first := _first(store, part)) is not None]
    if not found:
        return []
    ends = {part: _end(store, part) for part, _ in found}
    rows = _batch_rows(options, [first.size for _, first in found])
    begin, to = min(first.commit_log_offset for _, first in found), max(ends.values())
    ranges = [part for part, _ in found]
    entries = sum(part.end - part.start for part in ranges)
    few = entries * _BYTES_PER_ENTRY <= to - begin and options["mode"] != "PERMISSIVE"
    if few or options["max_records"]:
        most = options["max_records"] or max(1, min(_ENTRIES, -(-entries // options["min_partitions"])))
        return _by_offsets(store, ranges, most, (options["max_records"] is None, rows))
    count = max(options["min_partitions"], -(-(to - begin) // _split_bytes(options, to - begin)))
    cuts = sorted({begin, *_cuts(store, max(ranges, key=lambda part: part.end - part.start), begin, to, count)})
    return [
        Part(store.path, tuple(ranges), start, end, "log", rows)
        for start, end in zip(cuts, [*cuts[1:], to], strict=True)
    ]


def _split_bytes(options: dict[str, Any], size: int) -> int:
    """How much of the log a task walks: large parts of large logs, since Spark takes 50 ms for each task in Python."""
    asked: int | None = options["split_bytes"]
    return asked or min(max(size // _PARTS, _LEAST_SPLIT_BYTES), _MOST_SPLIT_BYTES)


def _batch_rows(options: dict[str, Any], sizes: list[int]) -> int:
    """How many rows of records with such sizes make a batch."""
    most: int = options["batch_bytes"]
    return max(16, min(16_384, most * len(sizes) // max(1, sum(sizes))))


def _first(store: mqstore.Store, part: Range) -> mqstore.StoredMessage | None:
    """The first message of a part, as far as the log still has it."""
    try:
        return next(store.read(part.topic, part.queue_id, part.start, part.end), None)
    except OffsetOutOfRangeError as error:
        # Expired since the bounds were asked for: what the task will find missing, it says.
        if error.min_offset >= part.end:
            return None
        return next(store.read(part.topic, part.queue_id, error.min_offset, part.end), None)


def _end(store: mqstore.Store, part: Range) -> int:
    """Where in the log a part ends."""
    last = store.message_at(part.topic, part.queue_id, part.end - 1)
    return store.stats().log_max_offset if last is None else last.commit_log_offset + last.size


def _by_offsets(store: mqstore.Store, ranges: list[Range], most: int, how: tuple[bool, int]) -> list[Part]:
    """Parts with at most so many offsets; ``how``: whether small ranges share one, and rows in a batch."""
    shares, rows = how
    groups: list[list[Range]] = []
    room = 0
    for part in ranges:
        for piece in _pieces(part, most):
            if not shares or piece.end - piece.start > room:
                groups.append([])
                room = most
            groups[-1].append(piece)
            room -= piece.end - piece.start
    found = []
    for group in groups:
        firsts = [first for piece in group if (first := _first(store, piece)) is not None]
        if firsts:
            begin = min(first.commit_log_offset for first in firsts)
            end = max(_end(store, piece) for piece in group)
            found.append(Part(store.path, tuple(group), begin, end, "cheapest", rows))
    return found


def _cuts(store: mqstore.Store, part: Range, begin: int, to: int, count: int) -> list[int]:
    """Places where records of a queue lie, about evenly over a stretch of the log."""
    positions = [begin + number * (to - begin) // count for number in range(1, count)]
    found = _native.scan_cuts(store, part.topic, part.queue_id, (part.start, part.end), positions)
    return [at for at in found if begin < at < to]


def open_store(path: str) -> mqstore.Store:
    """Opens a store for planning."""
    try:
        return mqstore.open(path)
    except MQStoreError as error:
        error.add_note(f"{path}: {SAME_PATH}")
        raise


def plan(options: dict[str, Any], ranges: dict[str, Any]) -> list[Part]:
    """What each task of a batch read does."""
    found: list[Part] = []
    for path, wanted in ranges.items():
        with open_store(path) as store:
            found += parts(store, [Range(*part) for part in wanted], options)
    return found
