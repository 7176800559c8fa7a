"""The messages of an archive as reads, look-ups and scans return them, up to a log offset or a queue offset.

Nothing is left out silently: a damaged file, and segments that the archive lacks, are errors, or warnings with
`on_damage="skip"`.
"""

from __future__ import annotations

import heapq
import re
import warnings
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from mqstore import _extras, _native
from mqstore.errors import CorruptionError, StoreWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from mqstore._archive.manifest import ArchivedFile
    from mqstore._archive.reader import ArchiveReader, QueuePart
    from mqstore._native import NativeStore, ScanRows, StoredMessage
    from mqstore.types import Filter, OnDamage

T = TypeVar("T")

# Bit of `sys_flag` of a batch of messages in one record, and its largest number of messages.
_BATCH = 0x80
_MOST_IN_BATCH = 32_767

# Largest number of records that `History.records` yields at once, and their approximate bytes.
_RECORDS = 1000
_RECORD_BYTES = 4 << 20

LIGHT = "%LMQ%"
"""Begin of the names of light queues, which have no files of their own in an archive."""

# Topics of records in which messages wait or waited. Such a record that only an archive has does not wait.
_WAITING = frozenset({"rmq_sys_wheel_timer", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"})
_WAITED = 3


def standing(topic: str) -> int:
    """Returns what a record of a topic is for a caller who knows only its unique id, the best first.

    As in the look-up of the log: 0 the message that consumers get, 1 a dead letter or retry, 2 another record of the
    system, 3 a record in which the message waits or waited.
    """
    if topic in _WAITING:
        return _WAITED
    if _native.is_system_topic(topic):
        return 2
    return 1 if topic.startswith(("%DLQ%", "%RETRY%")) else 0


def bounds_after(store: NativeStore, topic: str, log_start: int) -> list[tuple[int, int, int]]:
    """Returns the queues of a topic whose older messages can be in an archive, with their bounds in the log.

    `log_start` is the log offset at which the log begins. The list is empty if the log alone has the topic.
    """
    return [] if not log_start or topic.startswith(LIGHT) else _native.queue_bounds(store, topic)


def end_of(message: StoredMessage) -> int:
    """Returns the queue offset after a message; a batch of messages takes several."""
    if message.sys_flag & _BATCH:
        count = message.properties.get("INNER_NUM", "1")
        return message.queue_offset + max(1, int(count) if count.isdecimal() else 1)
    return message.queue_offset + 1


def end_of_rows(table: pa.Table) -> int:
    """Returns the queue offset after the last row of a queue."""
    row = table.num_rows - 1
    end = int(table.column("queue_offset")[row].as_py()) + 1
    if table.column("sys_flag")[row].as_py() & _BATCH:
        found = re.search(rb"(?:^|\x02)INNER_NUM\x01([0-9]{1,5})\x02", table.column("properties_raw")[row].as_py())
        end += max(1, int(found[1]) if found else 1) - 1
    return end


@dataclass(frozen=True)
class QueueRange:
    """The part of a queue that a read takes from an archive."""

    queue_id: int
    start: int
    end: int
    """Queue offset to stop at, exclusive."""


Gaps: TypeAlias = list[tuple[int, int]]
"""First offset and end of parts of a queue."""


@dataclass(frozen=True)
class Limits:
    """Limits of a topic; None is any."""

    since_ms: int | None
    """Smallest store time that stays, in epoch milliseconds."""
    max_bytes: int | None
    max_messages: int | None

    def are_exceeded(self, oldest: ArchivedFile, held_bytes: int, held_messages: int) -> bool:
        """Whether a message can be due, if the oldest file and this number of bytes and messages are there."""
        first = oldest.first_timestamp
        return (
            (self.since_ms is not None and (first is None or first < self.since_ms))
            or (self.max_bytes is not None and held_bytes > self.max_bytes)
            or (self.max_messages is not None and held_messages > self.max_messages)
        )

    def due_rows(self, rows: pa.Table, held_bytes: int, held_messages: int) -> int:
        """Returns the number of rows, oldest first, that are due; `held_bytes` and `held_messages` include the rows."""
        compute = _extras.module("pyarrow.compute", "arrow")
        due = 0
        if self.since_ms is not None:
            young = compute.greater_equal(rows.column("store_timestamp").cast("int64"), self.since_ms * 1000)
            due = compute.index(young, True).as_py()
            due = rows.num_rows if due < 0 else due
        for name, held, most in (("size", held_bytes, self.max_bytes), ("messages", held_messages, self.max_messages)):
            if most is not None and held > most:
                before = compute.cumulative_sum(rows.column(name).cast("int64"))
                over = compute.sum(compute.less(before, held - most)).as_py() or 0
                due = max(due, min(over + 1, rows.num_rows))
        return due


class History:
    """The records before the log of a store, or all records of an archive."""

    def __init__(self, reader: ArchiveReader, store: NativeStore | None) -> None:
        self.reader = reader
        # Its deleted topics stay deleted.
        self.store = store

    def first_offset(self, topic: str, queue_id: int, least: int = 0) -> int | None:
        """Returns the smallest offset of a queue in the archive that is not hidden; None if there is none.

        Records before log offset `least` do not count either.
        """
        parts, floor = self._shown_parts(topic, queue_id, least)
        for part in parts:
            # Records that are no messages have the offset 0.
            if part.file.start >= floor and (part.rows.first or part.is_dense):
                return part.rows.first
            row = self.reader.first_row(part, floor)
            if row < part.end_row:
                return self.reader.offset_of(part, row)
        return None

    def has(self, topic: str, queue_id: int) -> bool:
        """Whether the archive can have messages of a queue that are not hidden."""
        return bool(self._shown_parts(topic, queue_id)[0])

    def _shown_parts(self, topic: str, queue_id: int, least: int = 0) -> tuple[list[QueuePart], int]:
        """Returns the parts of a queue with messages that are not hidden, and the log offset of their floor.

        The first of these parts can have hidden messages too.
        """
        floor = max(least, self._floor(topic))
        return [one for one in self.reader.parts(topic, queue_id) if one.file.end > floor], floor

    def _floor(self, topic: str) -> int:
        return 0 if self.store is None else _native.floor_of_topic(self.store, topic)

    def due_floor(self, topic: str, log_start: int, lows: dict[int, int], limits: Limits) -> tuple[int, int] | None:
        """Returns the log offset before which the messages of a topic exceed limits, and their number; None if none do.

        The messages at and after log offset `log_start` do not count; `lows` are the offsets of their queues there.
        """
        floor = self._floor(topic)
        files = [one for one in self.reader.files(topic) if one.end > floor and one.start < log_start]
        firsts = self._firsts(topic, lows, floor)
        gaps = {queue_id: self._gaps(topic, queue_id, (low, log_start)) for queue_id, low in lows.items()}
        messages = _messages(lows, firsts, gaps)
        if not messages:
            return None
        total = 0
        if limits.max_bytes is not None:
            total = sum(self._bytes_between(one, floor, log_start) for one in files)
        found, left = log_start, messages
        if not limits.are_exceeded(files[0], total, messages):
            return None
        for file in files:
            after = self._firsts(topic, lows, file.end)
            size = self._bytes_between(file, floor, log_start) if limits.max_bytes is not None else 0
            if not self._is_all_due(file, limits, total - size, _messages(lows, after, gaps)):
                rows = self._counted(file, (floor, log_start), _ends_before(after, gaps))
                due = limits.due_rows(rows, total, left)
                if due < rows.num_rows:
                    found = rows.column("commit_log_offset")[due].as_py()
                    break
            total, left = total - size, _messages(lows, after, gaps)
        hidden = messages - _messages(lows, self._firsts(topic, lows, found), gaps)
        return (found, hidden) if hidden else None

    def _firsts(self, topic: str, lows: dict[int, int], least: int) -> dict[int, int]:
        """Returns the first offset of each queue at or after a log offset; `lows` are those after the archive."""
        found = {queue_id: self.first_offset(topic, queue_id, least) for queue_id in lows}
        return {one: low if (first := found[one]) is None else min(first, low) for one, low in lows.items()}

    def _gaps(self, topic: str, queue_id: int, end: tuple[int, int]) -> Gaps:
        """Returns the ranges of a queue whose segments neither the archive nor the log has.

        `end` is the queue offset at the start of the log, and this log offset.
        """
        low, log_start = end
        parts = self.reader.parts(topic, queue_id)
        following = [*((one.rows.first, one.file.start) for one in parts[1:]), (low, log_start)]
        return [
            (part.rows.last + 1, offset)
            for part, (offset, start) in zip(parts, following, strict=False)
            if part.rows.last + 1 < offset and not self.reader.covers(part.file.end, start)
        ]

    def _is_all_due(self, file: ArchivedFile, limits: Limits, held_bytes: int, held_messages: int) -> bool:
        """Whether all messages of a file exceed limits, if this number of bytes and messages are after it."""
        since, last = limits.since_ms, file.last_timestamp
        return (
            (since is not None and last is not None and last < since)
            or (limits.max_bytes is not None and held_bytes >= limits.max_bytes)
            or (limits.max_messages is not None and held_messages >= limits.max_messages)
        )

    def _bytes_between(self, file: ArchivedFile, start: int, end: int) -> int:
        """Returns the bytes of the records of a file between two log offsets."""
        if start <= file.start and file.end <= end:
            return file.record_bytes
        rows = self.reader.facts(file, (start, end))
        return _extras.module("pyarrow.compute", "arrow").sum(rows.column("size")).as_py() or 0

    def _counted(self, file: ArchivedFile, log_range: tuple[int, int], after: dict[int, int]) -> pa.Table:
        """Returns facts of the messages of a file in the order of the log, with the number of offsets of each.

        `after` are the offsets of the queues after the file.
        """
        pa, compute = _extras.pyarrow(), _extras.module("pyarrow.compute", "arrow")
        rows = self.reader.facts(file, log_range).sort_by([("queue_id", "ascending"), ("queue_offset", "ascending")])
        queues, offsets = (rows.column(name).combine_chunks() for name in ("queue_id", "queue_offset"))
        is_last = pa.concat_arrays([compute.not_equal(queues[1:], queues[:-1]), pa.array([True] * min(1, len(queues)))])
        ends = pa.array([after[one] for one in queues.filter(is_last).to_pylist()], pa.int64())
        following = compute.replace_with_mask(pa.concat_arrays([offsets[1:], offsets[:1]]), is_last, ends)
        counts = compute.subtract(following, offsets)
        return rows.append_column("messages", counts).sort_by("commit_log_offset")

    def queue(
        self, topic: str, wanted: QueueRange, log_start: int, filter: Filter | None, on_damage: OnDamage
    ) -> Iterator[StoredMessage]:
        """Yields the messages of a part of a queue that ends where the log begins, at log offset `log_start`."""
        for messages, _ in self.steps(topic, wanted, log_start, filter, on_damage):
            yield from messages

    def steps(
        self, topic: str, wanted: QueueRange, log_start: int, filter: Filter | None, on_damage: OnDamage
    ) -> Iterator[tuple[list[StoredMessage], int]]:
        """Yields messages as `queue`, some at once, each time with the queue offset after them.

        A step can be without messages if none matches the filter.
        """
        for part in self.parts_of(topic, wanted, log_start, on_damage):
            yield from self._of_part(topic, part, wanted, filter, on_damage)

    def topic(
        self, topic: str, wanted: list[QueueRange], log_start: int, filter: Filter | None, on_damage: OnDamage
    ) -> Iterator[StoredMessage]:
        """Yields the messages of several queues, merged by store time and log offset within each range of the log."""
        parts: dict[str, tuple[ArchivedFile, list[tuple[QueuePart, QueueRange]]]] = {}
        for one in wanted:
            for part in self.parts_of(topic, one, log_start, on_damage):
                parts.setdefault(part.file.path, (part.file, []))[1].append((part, one))
        for file, some in sorted(parts.values(), key=lambda each: each[0].start):
            queues = [
                [message for messages, _ in self._of_part(topic, part, one, filter, on_damage) for message in messages]
                for part, one in some
            ]
            yield from heapq.merge(*queues, key=lambda one: (one.store_timestamp, one.commit_log_offset))
            del queues, file

    def _of_part(
        self, topic: str, part: QueuePart, wanted: QueueRange, filter: Filter | None, on_damage: OnDamage
    ) -> Iterator[tuple[list[StoredMessage], int]]:
        request = self._request(topic, wanted, filter)

        def steps() -> Iterator[tuple[list[StoredMessage], int]]:
            first, end = self.reader.row_of(part, wanted.start), self.reader.end_row_of(part, wanted.end)
            # The last record can be a batch with the offset.
            for table in self.reader.tables(part, min(first, part.end_row - 1), end):
                yield self.reader.messages(part.file, table, request, self.store), end_of_rows(table)

        yield from self._unless_damaged(steps, on_damage)

    def _request(self, topic: str, wanted: QueueRange, filter: Filter | None) -> dict[str, Any]:
        bounds = {"queue_id": wanted.queue_id, "start": wanted.start, "end": wanted.end}
        return {"topics": [topic], "filter": filter, **bounds}

    def parts_of(self, topic: str, wanted: QueueRange, log_start: int, on_damage: OnDamage) -> list[QueuePart]:
        """Returns the parts of a queue with a range of offsets, oldest first."""
        parts = [one for one in self._shown_parts(topic, wanted.queue_id)[0] if one.rows.first < wanted.end]
        starts = [*(one.rows.first for one in parts), wanted.end]
        # A batch at the end of a part can contain later offsets than that of its record.
        kept = [
            one
            for one, following in zip(parts, starts[1:], strict=True)
            if one.rows.last >= wanted.start or following > wanted.start
        ]
        for before, following in pairwise(kept):
            if following.rows.first > before.rows.last + 1 and following.rows.first > wanted.start:
                self._check_covered(topic, before, following.file.start, following.rows.first, on_damage)
        if kept and kept[-1].rows.last + 1 < wanted.end:
            self._check_covered(topic, kept[-1], log_start, wanted.end, on_damage)
        return kept

    def _check_covered(self, topic: str, part: QueuePart, end: int, offset: int, on_damage: OnDamage) -> None:
        if self.reader.covers(part.file.end, end):
            return
        queue = f"{topic}/{part.rows.queue_id}"
        self._skip(
            f"neither the archive nor the log has the segments from log offset {part.file.end} to {end}, so messages "
            f"between offset {part.rows.last} and {offset} of queue {queue} are missing; read from offset {offset} on",
            on_damage,
        )

    def _skip(self, reason: str, on_damage: OnDamage) -> None:
        if on_damage != "skip":
            raise CorruptionError(self.reader.place.shown, 0, f'{reason}, or skip them with on_damage="skip"')
        warnings.warn(f"{self.reader.place.shown}: {reason}", StoreWarning, stacklevel=6)

    def _unless_damaged(self, parts: Callable[[], Iterator[T]], on_damage: OnDamage) -> Iterator[T]:
        """Yields parts of a file. With "skip", the rest of a damaged file is skipped with a warning."""
        try:
            yield from parts()
        except CorruptionError as error:
            if on_damage != "skip":
                raise
            warnings.warn(f"the rest of a file is skipped: {error}", StoreWarning, stacklevel=6)

    def lookup(
        self, topic: str, key: str, log_range: tuple[int, int], times: tuple[int | None, int | None], *, newest: bool
    ) -> Iterator[StoredMessage]:
        """Yields the messages with a key or unique id whose records are in a range of the log, oldest or newest first.

        Args:
            topic: the topic.
            key: the key.
            log_range: first log offset, and end.
            times: smallest store time, and its end, in epoch milliseconds.
            newest: whether the newest message comes first.
        """
        start, end = log_range
        request = {"topics": [topic], "keys": [key], "start_time": times[0], "end_time": times[1]}
        files = self.reader.files(topic)
        for file in reversed(files) if newest else files:
            if not (file.start < end and file.end > start and _has_times(file, times)):
                continue
            found = [
                message
                for table in self.reader.rows_with_key(file, key)
                for message in self.reader.messages(file, table, request, self.store)
                if start <= message.commit_log_offset < end
            ]
            yield from sorted(found, key=lambda one: one.commit_log_offset, reverse=newest)

    def by_id(self, id: str, end: int) -> StoredMessage | None:
        """Returns the message with a message id or a unique id whose record is before a log offset.

        Of several with the unique id, it is the best by `standing`; a record in which a message waited is none.
        """
        offset = _offset_in(id)
        if offset is not None and offset < end:
            found = self.at(offset)
            if found is not None and found.message_id == id.upper():
                return found
        best, least = None, _WAITED
        for file in self.reader.files():
            if file.start >= end or (file.topic is not None and standing(file.topic) >= least):
                continue
            for table in self.reader.rows_with_key(file, id):
                for found in self.reader.messages(file, table, {"keys": [id]}, self.store):
                    is_of_id = found.unique_id == id and found.commit_log_offset < end
                    if is_of_id and standing(found.topic) < least:
                        best, least = found, standing(found.topic)
        return best

    def at(self, log_offset: int) -> StoredMessage | None:
        """Returns the message whose record starts at a log offset; None if there is none."""
        for file in self.reader.files():
            if file.start <= log_offset < file.end:
                row = self.reader.row_at(file, log_offset)
                if row is not None:
                    return next(iter(self.reader.messages(file, row, {}, self.store)), None)
        return None

    def offset_for_time(self, topic: str, queue_id: int, time_ms: int) -> int | None:
        """Returns the offset of the first message of a queue that was stored at or after a time."""
        parts, floor = self._shown_parts(topic, queue_id)
        for part in parts:
            if part.file.last_timestamp is None or part.file.last_timestamp >= time_ms:
                row = self.reader.first_row(part, floor, time_ms)
                if row < part.end_row:
                    return self.reader.offset_of(part, row)
        return None

    def last_offset(self, topic: str, queue_id: int, time_ms: int, end: int) -> int | None:
        """Returns the offset of the last message of a queue before offset `end` that was stored at or before a time."""
        parts, floor = self._shown_parts(topic, queue_id)
        for part in reversed(parts):
            is_later = part.file.first_timestamp is not None and part.file.first_timestamp > time_ms
            if is_later or part.rows.first >= end:
                continue
            row = min(self.reader.first_row(part, floor, time_ms + 1), self.reader.end_row_of(part, end))
            before = self.reader.row_before(part, row)
            if before is not None and before >= self.reader.first_row(part, floor):
                return self.reader.offset_of(part, before)
        return None

    def scan(self, request: dict[str, Any], start: int, end: int) -> Iterator[ScanRows]:
        """Yields the rows of a scan whose records are between two log offsets, in the order of the log."""
        on_damage: OnDamage = request.get("on_damage") or "raise"
        topics = request.get("topics")
        if topics is not None and any(one.startswith(LIGHT) for one in topics):
            # The records of light queues are in other topics.
            topics = None
        files = [one for one in self.reader.files() if one.start < end and one.end > start]
        wanted = [one for one in files if self._is_wanted(one, topics, request)]
        self._check_segments(start, end, on_damage)
        for _, some in groupby(sorted(wanted, key=lambda one: (one.start, one.end)), key=lambda one: one.start):
            yield from self._scan_range(list(some), request, (start, end), on_damage)

    def records(self, topics: list[str], start: int, end: int) -> Iterator[tuple[pa.Table, int]]:
        """Yields the records of topics between two log offsets, in the order of the log, some at once.

        Each table comes with the log offset after its records. No record is hidden.
        """
        pyarrow, compute = _extras.pyarrow(), _extras.module("pyarrow.compute", "arrow")
        files = [one for topic in topics for one in self.reader.files(topic) if one.start < end and one.end > start]
        files.sort(key=lambda one: (one.start, one.end))
        for _, some in groupby(files, key=lambda one: one.start):
            tables = [table for file in some for table in self.reader.groups(file, lambda _: True)]
            rows = pyarrow.concat_tables(tables)
            offsets = rows.column("commit_log_offset")
            rows = rows.filter(compute.and_(compute.greater_equal(offsets, start), compute.less(offsets, end)))
            rows = rows.take(compute.sort_indices(rows.column("commit_log_offset")))
            most = max(1, min(_RECORDS, _RECORD_BYTES * rows.num_rows // max(1, rows.nbytes)))
            for at in range(0, rows.num_rows, most):
                part = rows.slice(at, most)
                yield part, part.column("commit_log_offset")[-1].as_py() + 1

    def _check_segments(self, start: int, end: int, on_damage: OnDamage) -> None:
        segments = self.reader.manifest().segments
        # Messages that were deleted before the archive began are in no answer.
        first = max(start, segments[0].base) if segments else end
        covered = self.reader.manifest().covered_from(first)
        if covered < end:
            after = min((one.base for one in segments if one.base > covered), default=end)
            self._skip(
                f"neither the archive nor the log has the segments between log offset {covered} and {min(after, end)}",
                on_damage,
            )

    def _is_wanted(self, file: ArchivedFile, topics: list[str] | None, request: dict[str, Any]) -> bool:
        record_topic = request.get("record_topic")
        if (topics is not None and file.topic not in topics) or record_topic not in (None, file.topic):
            return False
        times = request.get("start_time"), request.get("end_time")
        if not _has_times(file, times) or (topics is None and request.get("topics") is not None):
            return _has_times(file, times)
        queue_id, start, end = (request.get(name) for name in ("queue_id", "start", "end"))
        return any(
            queue_id in (None, one.queue_id)
            and (end is None or one.first < end)
            and (start is None or one.last + _MOST_IN_BATCH > start)
            for one in file.queues
            if one.rows
        )

    def _scan_range(
        self, files: list[ArchivedFile], request: dict[str, Any], log_range: tuple[int, int], on_damage: OnDamage
    ) -> Iterator[ScanRows]:
        pyarrow, compute = _extras.pyarrow(), _extras.module("pyarrow.compute", "arrow")
        tables: list[tuple[ArchivedFile, pa.Table]] = []
        for file in files:

            def groups(file: ArchivedFile = file) -> Iterator[pa.Table]:
                return self._scanned_groups(file, request)

            for table in self._unless_damaged(groups, on_damage):
                offsets = table.column("commit_log_offset")
                within = compute.and_(compute.greater_equal(offsets, log_range[0]), compute.less(offsets, log_range[1]))
                tables.append((file, table.filter(within)))
        rows = pyarrow.concat_tables([table for _, table in tables]) if tables else None
        if rows is None or not rows.num_rows:
            return
        rows = rows.take(compute.sort_indices(rows.column("commit_log_offset")))
        try:
            found = self.reader.scan_rows(files[0], rows, request, self.store)
        except CorruptionError:
            # Finds out which of the files it is. With "skip", the rows of the other ones come file by file.
            found = []
            for file, table in tables:

                def decoded(file: ArchivedFile = file, table: pa.Table = table) -> Iterator[ScanRows]:
                    yield from self.reader.scan_rows(file, table, request, self.store)

                found += self._unless_damaged(decoded, on_damage)
        yield from found

    def _scanned_groups(self, file: ArchivedFile, request: dict[str, Any]) -> Iterator[pa.Table]:
        keys = request.get("keys")
        numbers = None
        if keys:
            numbers = {number for key in keys for number in self.reader.groups_with_key(file, key)}
        footer = self.reader.footer(file)
        start, end = request.get("start_time"), request.get("end_time")

        def is_wanted(group: int) -> bool:
            if numbers is not None and group not in numbers:
                return False
            if start is None and end is None:
                return True
            bounds = self.reader.bounds(footer, group, "store_timestamp")
            if bounds is None:
                return True
            low, high = (int(one.timestamp() * 1000) for one in bounds)
            return (start is None or high + 1 >= start) and (end is None or low - 1 < end)

        return self.reader.groups(file, is_wanted)


def _messages(lows: dict[int, int], firsts: dict[int, int], gaps: dict[int, Gaps]) -> int:
    """Returns the number of messages of queues between two offsets, without those in gaps."""
    lost: int = sum(max(0, min(end, lows[one]) - max(start, firsts[one])) for one in lows for start, end in gaps[one])
    return sum(low - firsts[one] for one, low in lows.items()) - lost


def _ends_before(firsts: dict[int, int], gaps: dict[int, Gaps]) -> dict[int, int]:
    """Returns the ends of the messages before these offsets: the starts of the gaps that end there."""
    return {one: next((start for start, end in gaps[one] if end == at), at) for one, at in firsts.items()}


def _has_times(file: ArchivedFile, times: tuple[int | None, int | None]) -> bool:
    start, end = times
    first, last = file.first_timestamp, file.last_timestamp
    return (start is None or last is None or last >= start) and (end is None or first is None or first < end)


def _offset_in(id: str) -> int | None:
    """Returns the log offset in an offset id: the last eight bytes after an address of four or sixteen and a port."""
    if len(id) not in (32, 56):
        return None
    try:
        return int(id[-16:], 16)
    except ValueError:
        return None
