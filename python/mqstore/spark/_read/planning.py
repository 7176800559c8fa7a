"""Planning of a read: its queues, their ranges, and the parts for the tasks.

It runs on the driver's side, in Spark's planning processes. A part consists of plain values: the store, ranges of
queues, the range of the log with their records, and rows in a batch. If the wanted queues cover much of the log, parts
are ranges of the log, which tasks walk. If they cover little of it, parts are ranges of queue offsets, whose units
tasks follow. In both cases a record belongs to exactly one part. Compacted queues are read like ``Store.read`` does:
before the end of the compaction, their messages come from the compaction files, not from the log.
"""

from __future__ import annotations

import re
import warnings
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

import mqstore
from mqstore import _native
from mqstore._admin.nearest import nearest
from mqstore._read.on_error import FAILURES, error_text
from mqstore._remote.failure import RequestFailure
from mqstore._remote.place import pinned
from mqstore._store import opened
from mqstore.errors import CorruptionError, MQStoreError, OffsetOutOfRangeError, TopicNotFoundError
from mqstore.spark._locks import SAME_PATH
from mqstore.spark._options import _EARLIEST, _LATEST, refuse
from mqstore.spark._read.older import files, split
from mqstore.spark._stores import each

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from mqstore.spark._remote import RemoteStore

# Bytes of the log that a task can walk in the time that it needs to follow one unit to its record.
_BYTES_PER_ENTRY = 16 << 10

# Units that a part follows, unless the options set another number.
_ENTRIES = 1 << 16

# Number of parts of a log, within these limits of bytes for each part, unless the options set another size.
_PARTS = 8
_LEAST_SPLIT_BYTES = 128 << 20
_MOST_SPLIT_BYTES = 512 << 20

# Prefix of light queues.
LIGHT = "%LMQ%"

# Work of a task for each part, in bytes of the log that it could walk meanwhile: it opens the store.
_OPEN_BYTES = 4 << 20

_SEGMENT_DIGITS = 20

# Maximum number of topics in an error.
_SHOWN = 10

# Assumed size of a damaged record.
_DAMAGED_BYTES = 1024

Bounds = dict[tuple[str, int], tuple[int, int]]
"""Smallest offset and next offset of each queue."""


class Range(NamedTuple):
    """A range of a queue."""

    topic: str
    queue_id: int
    start: int
    end: int


class Part(NamedTuple):
    """The work of one task."""

    path: str
    ranges: tuple[Range, ...]
    begin: int
    """Log offset of the first record."""
    to: int
    """Log offset before which all its records start."""
    way: str
    """``log`` walks the log; ``cheapest`` walks it or follows units; ``messages`` reads like ``Store.read``;
    ``archive`` reads a file of the archive."""
    batch_rows: int
    error: str = ""
    """Why the store cannot be read; then the way is ``failed`` and there are no ranges."""

    def plain(self) -> tuple[Any, ...]:
        """Returns the part without classes of this package, which an executor may not have yet."""
        return (self.path, tuple(tuple(part) for part in self.ranges), *self[2:])


def bounds(store: mqstore.Store, topics: dict[str, Any]) -> Bounds:
    """Returns the bounds of the wanted queues.

    Raises:
        TopicNotFoundError: a named topic or queue does not exist.
    """
    found: Bounds = {}
    there = store.topics()
    if "names" in topics:
        wanted: Iterable[str] = topics["names"]
    elif "assign" in topics:
        wanted = topics["assign"]
    elif "pattern" in topics:
        pattern = re.compile(topics["pattern"])
        # A pattern selects light queues only if it names their prefix: each record of a light queue is in a topic, too.
        named = LIGHT in topics["pattern"]
        wanted = [topic for topic in there if pattern.fullmatch(topic) and (named or not topic.startswith(LIGHT))]
    else:
        wanted = [topic for topic in there if not topic.startswith(LIGHT)]
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
    """Returns the offset of a queue for ``asked``, not yet compared with the bounds."""
    topic, queue_id = queue
    if isinstance(asked, dict) and "timestamp" in asked:
        return store.offset_for_time(topic, queue_id, asked["timestamp"])
    if isinstance(asked, dict):
        asked = asked["offsets"].get(topic, {}).get(str(queue_id), default)
    if asked is None:
        asked = default
    return limits[0] if asked == _EARLIEST else limits[1] if asked == _LATEST else int(asked)


def batch_ranges(store: mqstore.Store, options: dict[str, Any], lost: Callable[[str], None]) -> list[Range]:
    """Returns the queue ranges of a batch read; calls ``lost`` for deleted offsets."""
    found = []
    queues = bounds(store, options["topics"])
    check_named(queues, options["start"], "startingOffsets")
    check_named(queues, options["end"], "endingOffsets")
    for queue, of_log in sorted(queues.items()):
        limits = store._oldest_offset(*queue, of_log[0]), of_log[1]
        start = position(store, queue, limits, options["start"])
        end = position(store, queue, limits, options["end"], _LATEST)
        if isinstance(options["start"], dict) and start > limits[1]:
            raise OffsetOutOfRangeError(*queue, start, *limits)
        if end > limits[1]:
            raise OffsetOutOfRangeError(*queue, end, *limits)
        # A read that begins with the oldest message loses nothing.
        if start != limits[0]:
            start = held(store, Range(*queue, start, end), limits, lost)
        found.append(Range(*queue, start, end))
    return [part for part in found if part.start < part.end]


def check_named(queues: Bounds, asked: Any, option: str) -> None:
    """Checks that the read has the topics and queues that an option names.

    Raises:
        InvalidOptionError: it does not have one of them.
    """
    offsets = asked.get("offsets", {}) if isinstance(asked, dict) else {}
    topics = sorted({topic for topic, _ in queues})
    for topic, of_topic in offsets.items():
        if topic not in topics:
            near = nearest(topic, topics)
            hint = f"did you mean {near!r}?" if near else f"its topics are {', '.join(topics[:_SHOWN]) or 'none'}"
            raise refuse(option, f"the read has no topic {topic!r}; {hint}")
        own = sorted(queue_id for name, queue_id in queues if name == topic)
        for queue_id in of_topic:
            if int(queue_id) not in own:
                reason = f"the read has no queue {queue_id} of topic {topic!r}; its queues are {own[0]} to {own[-1]}"
                raise refuse(option, reason)


def held(store: mqstore.Store, part: Range, limits: tuple[int, int], lost: Callable[[str], None]) -> int:
    """Returns the offset at which a read of a range begins; calls ``lost`` for deleted offsets.

    A compacted queue has no message at the offsets that its compaction dropped. It has lost only messages that were
    deleted from the log before a compaction read them.
    """
    queue = part.topic, part.queue_id
    compacted = _native.compaction_end(store, *queue)
    if compacted is None:
        if part.start < min(limits[0], part.end):
            lost(gone(queue, part.start, limits))
        return max(part.start, limits[0])
    start = max(part.start, compacted)
    oldest = _oldest_from(store, part._replace(start=start))
    if start < part.end and oldest > start:
        lost(gone(queue, start, (oldest, limits[1])))
    return part.start


def _oldest_from(store: mqstore.Store, part: Range) -> int:
    """Returns the offset of the first message of a range; its end if there is none."""
    try:
        first = next(store.read(part.topic, part.queue_id, part.start, part.end), None)
    except OffsetOutOfRangeError as error:
        return min(error.min_offset, part.end)
    except CorruptionError:
        # A task reports it.
        return part.start
    return part.end if first is None else first.queue_offset


def gone(queue: tuple[str, int], offset: int, limits: tuple[int, int]) -> str:
    """Returns the text for a deleted offset."""
    return (
        f"queue {queue[1]} of topic {queue[0]!r} holds offsets {limits[0]} to {limits[1]} (exclusive) and not {offset}"
    )


def lost(options: dict[str, Any], goes_on: str) -> Callable[[str], None]:
    """Returns the function for deleted offsets: it raises an error, or warns if the options ask for it."""

    def hear(text: str) -> None:
        if options["fail_on_data_loss"]:
            raise MQStoreError(f"{text}; with the option failOnDataLoss=false {goes_on} after the deleted messages")
        warnings.warn(text, mqstore.StoreWarning, stacklevel=2)

    return hear


def parts(store: mqstore.Store, ranges: list[Range], options: dict[str, Any]) -> list[Part]:
    """Divides queue ranges into the parts of the tasks."""
    asked, logged = [], []
    pieces: list[Range] = []
    sizes: list[int] = []
    older, newer = split(store, [(one.topic, one.queue_id, one.start, one.end) for one in ranges])
    for file in files(store, older, skips=not options["fail_on_data_loss"]):
        own = tuple(Range(*one) for one in file.ranges)
        asked.append(Part(store.path, own, file.begin, file.to, "archive", _batch_rows(options, [file.record_bytes])))
    for wanted in (Range(*one) for one in newer):
        compacted = _native.compaction_end(store, wanted.topic, wanted.queue_id) or 0
        cut = min(max(wanted.start, compacted), wanted.end)
        if cut < wanted.end:
            logged.append(wanted._replace(start=cut))
        part = wanted._replace(end=cut)
        first = first_place(store, part) if part.start < cut else None
        if first is not None:
            pieces.append(part)
            sizes.append(first.size)
    groups = _shared(pieces, options["max_records"] or _ENTRIES)
    asked += [Part(store.path, tuple(group), 0, 0, "messages", _batch_rows(options, sizes)) for group in groups]
    return asked + _log_parts(store, logged, options)


def _pieces(part: Range, most: int) -> list[Range]:
    """Divides a queue range into ranges of at most ``most`` offsets."""
    starts = range(part.start, part.end, most)
    return [Range(part.topic, part.queue_id, start, min(start + most, part.end)) for start in starts]


def _log_parts(store: mqstore.Store, ranges: list[Range], options: dict[str, Any]) -> list[Part]:
    """Divides queue ranges that are in the log."""
    found = [(part, first) for part in ranges if (first := first_place(store, part)) is not None]
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
        return _by_offsets(store, ranges, most, rows)
    count = max(options["min_partitions"], -(-(to - begin) // _split_bytes(options, to - begin)))
    cuts = sorted({begin, *_cuts(store, max(ranges, key=lambda part: part.end - part.start), begin, to, count)})
    return [
        Part(store.path, tuple(ranges), start, end, "log", rows)
        for start, end in zip(cuts, [*cuts[1:], to], strict=True)
    ]


def _split_bytes(options: dict[str, Any], size: int) -> int:
    """Returns the bytes of the log for one task: many for large logs, as Spark takes 50 ms for each Python task."""
    asked: int | None = options["split_bytes"]
    return asked or min(max(size // _PARTS, _LEAST_SPLIT_BYTES), _MOST_SPLIT_BYTES)


def _batch_rows(options: dict[str, Any], sizes: list[int]) -> int:
    """Returns the number of rows in a batch for records of these sizes."""
    most: int = options["batch_bytes"]
    return max(16, min(16_384, most * len(sizes) // max(1, sum(sizes))))


class _Place(NamedTuple):
    """The place of the first record of a range, or one before it."""

    commit_log_offset: int
    size: int


def first_place(store: mqstore.Store, part: Range) -> _Place | None:
    """Returns the place of the first record of a range that the log still has.

    If that record is damaged, this is the start of its segment. The task that walks over it reports the damage.
    """
    start = part.start
    while start < part.end:
        try:
            found = next(store.read(part.topic, part.queue_id, start, part.end), None)
        except OffsetOutOfRangeError as error:
            # Messages expired since the bounds were read. The task reports what is missing.
            start = max(start + 1, error.min_offset)
        except CorruptionError as error:
            return _Place(_segment_start(store, error.path), _DAMAGED_BYTES)
        else:
            return None if found is None else _Place(found.commit_log_offset, found.size)
    return None


def _segment_start(store: mqstore.Store, path: str) -> int:
    """Returns the log offset at which a segment starts; the start of the log for another file."""
    name = path.rpartition("/")[2]
    least = store.stats().log_min_offset
    return max(least, int(name)) if _is_segment(f"commitlog/{name}") else least


def _end(store: mqstore.Store, part: Range) -> int:
    """Returns the end of a range in the log."""
    try:
        last = store.message_at(part.topic, part.queue_id, part.end - 1)
    except CorruptionError:
        last = None
    return store.stats().log_max_offset if last is None else last.commit_log_offset + last.size


def _shared(ranges: list[Range], most: int) -> list[list[Range]]:
    """Divides ranges into groups of at most ``most`` offsets each. A task has a whole group, also of small queues."""
    groups: list[list[Range]] = []
    room = 0
    for part in ranges:
        for piece in _pieces(part, most):
            if piece.end - piece.start > room:
                groups.append([])
                room = most
            groups[-1].append(piece)
            room -= piece.end - piece.start
    return groups


def _by_offsets(store: mqstore.Store, ranges: list[Range], most: int, rows: int) -> list[Part]:
    """Returns parts with at most ``most`` offsets, and ``rows`` in a batch."""
    found = []
    for group in _shared(ranges, most):
        firsts = [first for piece in group if (first := first_place(store, piece)) is not None]
        if firsts:
            begin = min(first.commit_log_offset for first in firsts)
            end = max(_end(store, piece) for piece in group)
            found.append(Part(store.path, tuple(group), begin, end, "cheapest", rows))
    return found


def _cuts(store: mqstore.Store, part: Range, begin: int, to: int, count: int) -> list[int]:
    """Returns offsets of a queue's records, spaced about evenly over a range of the log."""
    positions = [begin + number * (to - begin) // count for number in range(1, count)]
    found = _native.scan_cuts(store, part.topic, part.queue_id, (part.start, part.end), positions)
    return [at for at in found if begin < at < to]


def open_store(path: str, remote: RemoteStore | None = None, archive: bool | str | None = False) -> mqstore.Store:
    """Opens a store for planning. The first open of one at a URL lists its files for all later ones.

    Without ``archive``, as for ``mqstore.open``, the read begins with the log.
    """
    if remote is not None:
        place, source = pinned(remote.url, remote.options, remote.listing)
        store = opened(place, "r", None, {})
        store._choose_archive(archive, None)
        remote.listing = remote.listing or source.listing()
        return _divisible(store)
    try:
        return _divisible(mqstore.open(path, archive=archive))
    except MQStoreError as error:
        error.add_note(f"{path}: {SAME_PATH}")
        raise


def _divisible(store: mqstore.Store) -> mqstore.Store:
    """Returns a store whose log has the same offsets in each process."""
    try:
        _native.check_division(store)
    except MQStoreError:
        store.close()
        raise
    return store


class Planned(NamedTuple):
    """The part of a read that is in one store."""

    ranges: list[Range]
    parts: list[Part]
    left_out: int
    """Number of records that the caller left out."""


def planned(
    path: str, remote: RemoteStore | None, options: dict[str, Any], is_left_out: Callable[[str], bool]
) -> Planned:
    """Plans a batch read of one store, without the topics that the caller leaves out."""
    with _named(path), open_store(path, remote, options["archive"]) as store:
        found = batch_ranges(store, options, lost(options, "the read starts"))
        kept = [part for part in found if not is_left_out(part.topic)]
        left_out = sum(part.end - part.start for part in found) - sum(part.end - part.start for part in kept)
        return Planned(kept, parts(store, kept, options), left_out)


def plan(
    options: dict[str, Any], ranges: dict[str, Any], remotes: Mapping[str, RemoteStore] = MappingProxyType({})
) -> list[Part]:
    """Returns the parts of a batch read."""

    def of_store(path: str) -> list[Part]:
        with _named(path), open_store(path, remotes.get(path), options["archive"]) as store:
            return parts(store, [Range(*part) for part in ranges[path]], options)

    found: list[Part] = []
    for path, own in zip(ranges, each(of_store, ranges, options["on_error"]), strict=True):
        found += [failed(path, own)] if isinstance(own, Exception) else own
    return found


def failed(path: str, error: Exception) -> Part:
    """Returns the part of a store that is skipped, and warns."""
    text = f"a store is skipped: {error_text(path, error)}"
    warnings.warn(text, mqstore.StoreWarning, stacklevel=2)
    return Part(path, (), 0, 0, "failed", 0, text)


@contextmanager
def _named(path: str) -> Iterator[None]:
    """Adds the store to errors that do not name it."""
    try:
        yield
    except FAILURES as error:
        if path not in str(error):
            error.add_note(f"while reading the store {path}")
        raise


def log_bytes(path: str, remote: RemoteStore | None) -> int:
    """Returns the bytes of the segments of a store; 0 for one that cannot be read. Lists the files of a URL."""
    try:
        if remote is None:
            return _native.verify_log_bytes(path)[0]
        source = pinned(remote.url, remote.options, remote.listing)[1]
        rows = source.files()
    except (*FAILURES, RequestFailure):
        # The open reports the error.
        return 0
    remote.listing = remote.listing or source.listing()
    return sum(row[1] for row in rows if _is_segment(row[0]))


def _is_segment(path: str) -> bool:
    folder, _, name = path.rpartition("/")
    return folder in ("", "commitlog") and len(name) == _SEGMENT_DIGITS and name.isdecimal()


def shared_split(options: dict[str, Any], size: int) -> dict[str, Any]:
    """Returns the options with which stores of together `size` bytes are divided into parts of about one size."""
    split = _split_bytes(options, size)
    least: int = options["min_partitions"]
    if least > 1:
        split = max(1, min(split, size // least))
    return {**options, "split_bytes": split, "min_partitions": 1}


def grouped(parts: list[Part], options: dict[str, Any]) -> list[list[Part]]:
    """Returns the parts of each task. Small parts of several stores share a task, up to the bytes of a large part."""
    if not options["several"] or options["max_records"]:
        return [[part] for part in parts]
    groups: list[list[Part]] = []
    room = 0
    for part in parts:
        size = weight(part)
        if not groups or size > room:
            groups.append([])
            room = options["split_bytes"]
        groups[-1].append(part)
        room -= size
    return groups


def weight(part: Part) -> int:
    """Returns the approximate work for a part, as bytes of the log that a task can walk in this time."""
    entries = sum(each.end - each.start for each in part.ranges) * _BYTES_PER_ENTRY
    walked = part.to - part.begin
    if part.way in ("log", "archive"):
        return walked + _OPEN_BYTES
    return (min(walked, entries) if part.way == "cheapest" else entries) + _OPEN_BYTES
