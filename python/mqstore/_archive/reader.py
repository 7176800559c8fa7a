"""Reads records of an archive by ranges of its files.

A message needs the manifest, the footer and page index of one file, which are kept in memory, and at most three
ranges: the short columns of its row group, one page of properties, and one page of bodies. Longer reads fetch whole
row groups, without the columns that only queries need.
"""

from __future__ import annotations

import struct
import threading
from bisect import bisect_left
from collections import OrderedDict
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from mqstore import _extras, _native
from mqstore._archive.columns import DERIVED, LONG, schema
from mqstore._archive.pages import (
    TAIL_BYTES,
    Footer,
    Group,
    WrongBytesError,
    footer_length,
    footer_of,
    hash_of,
    may_contain,
    pages_of,
    table_of,
    values_of,
)
from mqstore.errors import CorruptionError, InvalidMessageError, MQStoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import pyarrow as pa

    from mqstore._archive.manifest import ArchivedFile, ArchiveManifest
    from mqstore._archive.place import ArchivePlace
    from mqstore._native import NativeStore, StoredMessage
    from mqstore._remote.failure import Part
    from mqstore._reports import ArchiveQueue

T = TypeVar("T")

# The first request for a footer; it contains the page index of most files.
_TAIL_BYTES = 256 << 10

# Ranges with less than this between them are one request.
_GAP_BYTES = 16 << 10

# Memory for footers and page indexes, and for short columns of row groups.
_FOOTER_BYTES = 64 << 20
_COLUMN_BYTES = 16 << 20

# Memory for Bloom filters. Each look-up needs those of all files, in the same order. If they are more, the first ones
# stay: if the last ones stayed, no look-up would find the filters that it needs next.
_BLOOM_BYTES = 64 << 20

# A read of less than this part of a row group fetches pages.
_PAGED_PART = 4

_UNIQUE_ID = "unique_id"
_KEYS = "keys.list.element"

# Bit of `sys_flag` that a batch of messages in one record has, the bits of its type of transaction, and the types of
# records that are in no queue: half messages, and marks of rolled back transactions.
_BATCH = 0x80
_TRANSACTION = 0xC
_NO_MESSAGE = (0x4, 0xC)


@cache
def _needed() -> list[str]:
    """The columns from which a record is encoded."""
    return [name for name in schema().names if name not in DERIVED]


@cache
def _short() -> list[str]:
    """Those of them that are read as a whole."""
    return [name for name in _needed() if name not in LONG]


class _Kept(Generic[T]):
    """Values by key, up to a number of bytes; the ones that were used last stay, or with `first` the first ones."""

    def __init__(self, most: int, *, first: bool = False) -> None:
        self._most = most
        self._first = first
        self._held = 0
        self._values: OrderedDict[Any, tuple[T, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: object) -> T | None:
        with self._lock:
            found = self._values.get(key)
            if found is None:
                return None
            self._values.move_to_end(key)
            return found[0]

    def put(self, key: object, value: T, size: int) -> T:
        with self._lock:
            if self._first and self._held + size > self._most:
                return value
            if key not in self._values:
                self._held += size
                self._values[key] = (value, size)
            while self._held > self._most and len(self._values) > 1:
                self._held -= self._values.popitem(last=False)[1][1]
        return value


@dataclass(frozen=True, slots=True)
class QueuePart:
    """The rows of one queue in one file. They are neighbours, in the order of their offsets."""

    file: ArchivedFile
    rows: ArchiveQueue
    first_row: int

    @property
    def end_row(self) -> int:
        """The row after the last one."""
        return self.first_row + self.rows.rows

    @property
    def is_dense(self) -> bool:
        """Whether each offset has a row."""
        return self.rows.last - self.rows.first + 1 == self.rows.rows


class ArchiveReader:
    """Reads the records of an archive. Threads can share it."""

    def __init__(self, place: ArchivePlace) -> None:
        _extras.module("pyarrow.parquet", "arrow")
        self.place = place
        self._manifest: ArchiveManifest | None = None
        self._topics: dict[str, list[ArchivedFile]] = {}
        self._footers: _Kept[Footer] = _Kept(_FOOTER_BYTES)
        self._columns: _Kept[pa.Table] = _Kept(_COLUMN_BYTES)
        self._blooms: _Kept[list[tuple[int, list[Part]]]] = _Kept(_BLOOM_BYTES, first=True)
        self._lock = threading.Lock()

    def manifest(self, needed_to: int = 0) -> ArchiveManifest:
        """Returns the manifest that is in memory, or the newest one if that does not reach log offset `needed_to`.

        Raises:
            ResultNotFoundError: there is no archive.
        """
        with self._lock:
            found = self._manifest
            if found is None or found.end < needed_to:
                found = self.place.must_have()
                topics: dict[str, list[ArchivedFile]] = {}
                for one in found.files:
                    if one.topic is not None:
                        topics.setdefault(one.topic, []).append(one)
                for files in topics.values():
                    files.sort(key=lambda one: one.start)
                self._topics = topics
                self._manifest = found
            return found

    def files(self, topic: str | None = None) -> list[ArchivedFile]:
        """Returns the files with records of a topic, or with records of any topic, in the order of the log."""
        manifest = self.manifest()
        if topic is not None:
            return self._topics.get(topic, [])
        return [one for one in manifest.files if one.topic is not None]

    def parts(self, topic: str, queue_id: int) -> list[QueuePart]:
        """Returns the parts of a queue, in the order of its offsets."""
        found = []
        for file in self.files(topic):
            row = 0
            for rows in sorted(file.queues, key=lambda one: one.queue_id):
                if rows.queue_id == queue_id and rows.rows:
                    found.append(QueuePart(file, rows, row))
                row += rows.rows
        return found

    def queue_ids(self, topic: str) -> list[int]:
        """Returns the queues of a topic with records in the archive."""
        return sorted({rows.queue_id for file in self.files(topic) for rows in file.queues if rows.rows})

    def covers(self, start: int, end: int) -> bool:
        """Whether the archive contains the segments between two log offsets."""
        return self.manifest().covered_from(start) >= end

    def row_of(self, part: QueuePart, offset: int) -> int:
        """Returns the row of the message at an offset of a queue, or of the next message."""
        if offset <= part.rows.first:
            return part.first_row
        if part.is_dense:
            return min(part.first_row + offset - part.rows.first, part.end_row)
        return self._search(part, "queue_offset", offset, part.first_row, takes_batch=True)

    def end_row_of(self, part: QueuePart, offset: int) -> int:
        """Returns the row after the last one with a smaller queue offset."""
        if offset > part.rows.last:
            return part.end_row
        if offset <= part.rows.first:
            return part.first_row
        if part.is_dense:
            return part.first_row + offset - part.rows.first
        return self._search(part, "queue_offset", offset, part.first_row)

    def first_row(self, part: QueuePart, log_offset: int, time_ms: int | None = None) -> int:
        """Returns the row of the first message of a queue at or after a log offset, and stored at or after a time.

        Both ascend in a queue.
        """
        zero, first = self._order(part)

        def of(name: str, wanted: int) -> int:
            if zero is not None and self._value(part, zero, name) >= wanted:
                return zero
            return self._search(part, name, wanted, first)

        row = of("commit_log_offset", log_offset)
        return row if time_ms is None else max(row, of("store_timestamp", time_ms))

    def row_before(self, part: QueuePart, row: int) -> int | None:
        """Returns the row of the message before a row; None if it is the first message of the part."""
        zero, first = self._order(part)
        if row > first:
            return row - 1
        return zero if zero is not None and zero < row else None

    def offset_of(self, part: QueuePart, row: int) -> int:
        """Returns the queue offset of a row."""
        return self._value(part, row, "queue_offset")

    def _order(self, part: QueuePart) -> tuple[int | None, int]:
        """Returns the row with offset 0 if it is among rows that are no messages, and the first row after those.

        Half messages of old brokers and marks of rolled back transactions are records of a topic that are in no queue.
        Their offset is 0, so they are the first rows.
        """
        if part.rows.first:
            return None, part.first_row
        first = self._search(part, "queue_offset", 1, part.first_row)
        found = [row for row in range(part.first_row, first) if _is_message(self._value(part, row, "sys_flag"))]
        if len(found) == first - part.first_row:
            return None, part.first_row
        return (found[0] if found else None), first

    def _value(self, part: QueuePart, row: int, name: str) -> int:
        footer = self.footer(part.file)
        group = footer.group_of(row)
        columns = self._short_columns(part.file, footer, group).slice(row - group.first_row, 1)
        return _numbers(columns, name)[0]

    def _search(self, part: QueuePart, name: str, wanted: int, low: int, *, takes_batch: bool = False) -> int:
        """Returns the first row from `low` on whose value is at least the wanted one.

        With `takes_batch`, it is the batch before that row if it can contain the value.
        """
        footer = self.footer(part.file)
        high = part.end_row
        while low < high:
            group = footer.group_of((low + high) // 2)
            first, end = max(low, group.first_row), min(high, group.first_row + group.rows)
            columns = self._short_columns(part.file, footer, group).slice(first - group.first_row, end - first)
            values = _numbers(columns, name)
            place = bisect_left(values, wanted)
            is_batch = takes_batch and place > 0 and _is_batch(columns, place - 1)
            if place == 0 and first > low:
                high = first
            elif place == len(values) and not is_batch:
                low = end
            else:
                return first + place - (is_batch and (place == len(values) or values[place] > wanted))
        return low

    def tables(self, part: QueuePart, first: int, end: int) -> Iterator[pa.Table]:
        """Yields rows of a queue. The first piece is small, unless it is known that many rows follow.

        Raises:
            CorruptionError: the file is damaged.
        """
        is_first = end - first > 1
        for table in self._pieces(part.file, first, end, is_first=is_first):
            queue_ids = table.column("queue_id")
            if queue_ids[0].as_py() != part.rows.queue_id or queue_ids[-1].as_py() != part.rows.queue_id:
                raise self._wrong(part.file, "its rows are not where the manifest says")
            yield table

    def _pieces(self, file: ArchivedFile, first: int, end: int, *, is_first: bool) -> Iterator[pa.Table]:
        footer = self.footer(file)
        while first < end:
            group = footer.group_of(first)
            low, high = first - group.first_row, min(end - group.first_row, group.rows)
            if is_first:
                high = min(high, max(group.page_end("body", low), low + 1))
                is_first = False
            if (high - low) * _PAGED_PART <= group.rows:
                table = self._paged(file, footer, group, low, high)
            else:
                table = self._whole(file, footer, group).slice(low, high - low)
            if table.num_rows != high - low:
                raise self._wrong(file, "a row group has too few rows")
            yield table
            first = group.first_row + high

    def groups(self, file: ArchivedFile, wanted: Callable[[int], bool]) -> Iterator[pa.Table]:
        """Yields all rows of the row groups that are wanted."""
        footer = self.footer(file)
        for group in footer.groups:
            if group.rows and wanted(group.number):
                yield self._whole(file, footer, group)

    def messages(
        self, file: ArchivedFile, table: pa.Table, request: dict[str, Any], store: NativeStore | None
    ) -> list[StoredMessage]:
        """Returns the messages of rows that meet the conditions of a request."""
        return self._decoded(file, lambda: _native.archive_messages(table, request, store))

    def scan_rows(
        self, file: ArchivedFile, table: pa.Table, request: dict[str, Any], store: NativeStore | None
    ) -> list[_native.ScanRows]:
        """Returns the rows of a scan for rows that meet the conditions of a request."""
        return self._decoded(file, lambda: _native.archive_scan_rows(table, request, store))

    def facts(self, file: ArchivedFile, log_range: tuple[int, int]) -> pa.Table:
        """Returns the short columns of the messages of a file whose records are in a range of the log."""
        pa, compute = _extras.pyarrow(), _extras.module("pyarrow.compute", "arrow")
        footer = self.footer(file)
        groups = [self._short_columns(file, footer, group) for group in footer.groups if group.rows]
        rows = pa.concat_tables(groups)
        offsets, flags = rows.column("commit_log_offset"), rows.column("sys_flag")
        within = compute.and_(compute.greater_equal(offsets, log_range[0]), compute.less(offsets, log_range[1]))
        kind = compute.bit_wise_and(flags, _TRANSACTION)
        return rows.filter(compute.and_(within, compute.invert(compute.is_in(kind, pa.array(_NO_MESSAGE, pa.int32())))))

    def rows_with_key(self, file: ArchivedFile, key: str) -> Iterator[pa.Table]:
        """Yields the rows of a file whose keys or unique id are `key`, and perhaps neighbours."""
        pa, compute = _extras.pyarrow(), _extras.module("pyarrow.compute", "arrow")
        footer = self.footer(file)
        numbers = self.groups_with_key(file, key)
        for number in numbers:
            group = footer.groups[number]
            columns = self._fetched(file, footer, group, [_UNIQUE_ID, _KEYS])
            lists = columns.column("keys").combine_chunks()
            flat = compute.equal(compute.list_flatten(lists), key)
            owners = compute.list_parent_indices(lists).filter(flat).to_pylist()
            ids = compute.indices_nonzero(compute.equal(columns.column(_UNIQUE_ID), pa.scalar(key)).fill_null(False))
            for row in sorted({*owners, *ids.to_pylist()}):
                yield self._paged(file, footer, group, row, row + 1)

    def row_at(self, file: ArchivedFile, log_offset: int) -> pa.Table | None:
        """Returns the row of the record at a log offset."""
        compute = _extras.module("pyarrow.compute", "arrow")
        footer = self.footer(file)
        for group in footer.groups:
            low, high = self.bounds(footer, group.number, "commit_log_offset") or (log_offset, log_offset)
            if low <= log_offset <= high:
                offsets = self._short_columns(file, footer, group).column("commit_log_offset")
                row = compute.index(offsets, log_offset).as_py()
                if row >= 0:
                    return self._paged(file, footer, group, row, row + 1)
        return None

    def bounds(self, footer: Footer, group: int, name: str) -> tuple[Any, Any] | None:
        """Returns the smallest and the largest value of a column in a row group, if the footer has them."""
        column = _column(footer, group, name)
        facts = None if column is None else column.statistics
        return (facts.min, facts.max) if facts is not None and facts.has_min_max else None

    def footer(self, file: ArchivedFile) -> Footer:
        """Returns the footer of a file, with its page index.

        Raises:
            CorruptionError: the file is damaged.
        """
        found = self._footers.get(file.path)
        if found is None:
            found = self._decoded(file, lambda: self._read_footer(file))
            size = found.bytes + sum(64 * len(pages) for group in found.groups for pages in group.pages.values())
            self._footers.put(file.path, found, size)
        return found

    def _read_footer(self, file: ArchivedFile) -> Footer:
        start = max(0, file.bytes - _TAIL_BYTES)
        [tail] = self.place.parts(file, [(start, file.bytes - start)])
        tail = bytes(tail)
        length = footer_length(tail) + TAIL_BYTES
        if length > file.bytes:
            raise WrongBytesError("its footer is longer than the file")
        footer = footer_of(
            tail if length <= len(tail) else self._more(file, file.bytes - length, start, tail), file.bytes
        )
        if sum(group.rows for group in footer.groups) != file.rows:
            raise WrongBytesError("it has another number of rows than the manifest says")
        # A footer has no checksum.
        found = footer.metadata.schema
        paths = {found.column(number).path for number in range(len(found))}
        if not found.to_arrow_schema().equals(schema()) or any(group.chunks.keys() != paths for group in footer.groups):
            raise WrongBytesError("it has other columns than a file of an archive")
        places = [
            (group, name, place)
            for group in footer.groups
            for name in LONG
            if (chunk := group.chunks.get(name)) is not None and (place := chunk.index) is not None
        ]
        if places:
            first = min(place[0] for *_, place in places)
            block = tail if first >= start else self._more(file, first, start, tail)
            base = min(start, first)
            for group, name, (at, size) in places:
                group.pages[name] = pages_of(memoryview(block)[at - base : at - base + size])
        return footer

    def _more(self, file: ArchivedFile, first: int, start: int, tail: bytes) -> bytes:
        [part] = self.place.parts(file, [(first, start - first)])
        return bytes(part) + tail

    def groups_with_key(self, file: ArchivedFile, key: str) -> list[int]:
        """Returns the row groups of a file that can have a key or a unique id, by their Bloom filters."""
        footer = self.footer(file)
        blooms = self._blooms.get(file.path)
        if blooms is None:
            places = {
                (group.number, name): chunk.bloom
                for group in footer.groups
                for name in (_UNIQUE_ID, _KEYS)
                if (chunk := group.chunks.get(name)) is not None and chunk.bloom is not None
            }
            kept = dict(zip(places, self._coalesced(file, list(places.values())), strict=True))
            blooms = []
            for group in footer.groups:
                names = (_UNIQUE_ID, _KEYS)
                filters = [kept[group.number, name] for name in names if (group.number, name) in kept]
                # A column without a filter and with values can have the key.
                is_whole = all((group.number, name) in kept or _is_null(footer, group.number, name) for name in names)
                blooms.append((group.number, filters if is_whole else []))
            size = sum(len(one) for _, filters in blooms for one in filters)
            self._blooms.put(file.path, blooms, size)
        hashed = hash_of(key.encode())

        def check() -> list[int]:
            return [
                number for number, filters in blooms if not filters or any(may_contain(one, hashed) for one in filters)
            ]

        return self._decoded(file, check)

    def _short_columns(self, file: ArchivedFile, footer: Footer, group: Group) -> pa.Table:
        key = (file.path, group.number)
        found = self._columns.get(key)
        if found is None:
            found = self._fetched(file, footer, group, _short())
            self._columns.put(key, found, found.nbytes)
        return found

    def _paged(self, file: ArchivedFile, footer: Footer, group: Group, low: int, high: int) -> pa.Table:
        """Returns some rows of a group: its short columns, and the pages of the long ones."""
        spans = self._decoded(file, lambda: [group.span(name, low, high) for name in LONG])
        if None in spans:
            return self._whole(file, footer, group).slice(low, high - low)
        known = [(start, length, row) for start, length, row in filter(None, spans)]
        ranges = [(start, length) for start, length, _ in known]
        short = self._columns.get((file.path, group.number))
        if short is None:
            # One call, so that an object store answers the requests at the same time.
            places = [group.chunks[name] for name in _chunks_of(group, _short())]
            ranges += [(chunk.start, chunk.length) for chunk in places]
        parts = self._coalesced(file, ranges)
        if short is None:
            pieces = [(ranges[n][0], parts[n]) for n in range(len(known), len(ranges))]
            short = self._decoded(file, lambda: table_of(footer, file.bytes, group, _short(), pieces))
            self._columns.put((file.path, group.number), short, short.nbytes)
        pa = _extras.pyarrow()
        table = short.slice(low, high - low)
        for name, part, (_, _, row) in zip(LONG, parts, known, strict=False):
            codec = group.chunks[name].codec
            wanted = high - row

            def split(part: Part = part, codec: int = codec, wanted: int = wanted) -> Any:
                return values_of(memoryview(part), codec, wanted)

            values = self._decoded(file, split)
            if values is None:
                return self._whole(file, footer, group).slice(low, high - low)
            array = pa.array([bytes(value) for value in values[low - row : high - row]], pa.binary())
            table = table.append_column(name, array)
        return table

    def _whole(self, file: ArchivedFile, footer: Footer, group: Group) -> pa.Table:
        return self._fetched(file, footer, group, _needed())

    def _fetched(self, file: ArchivedFile, footer: Footer, group: Group, names: list[str]) -> pa.Table:
        """Returns columns of a row group."""
        places = [group.chunks[name] for name in _chunks_of(group, names)]
        ranges = [(chunk.start, chunk.length) for chunk in places]
        parts = self._coalesced(file, ranges)
        pieces = [(start, part) for (start, _), part in zip(ranges, parts, strict=True)]
        return self._decoded(file, lambda: table_of(footer, file.bytes, group, names, pieces))

    def _coalesced(self, file: ArchivedFile, ranges: list[tuple[int, int]]) -> list[Part]:
        """Returns the bytes of ranges; neighbours are one request."""
        if not ranges:
            return []
        order = sorted(range(len(ranges)), key=lambda number: ranges[number])
        joined: list[list[int]] = []
        for number in order:
            start, end = ranges[number][0], sum(ranges[number])
            if joined and start - joined[-1][1] <= _GAP_BYTES:
                joined[-1][1] = max(joined[-1][1], end)
            else:
                joined.append([start, end])
        parts = self.place.parts(file, [(start, end - start) for start, end in joined])
        found = []
        for start, length in ranges:
            number = next(n for n, (low, high) in enumerate(joined) if low <= start and start + length <= high)
            at = start - joined[number][0]
            found.append(memoryview(parts[number])[at : at + length])
        return list(found)

    def _decoded(self, file: ArchivedFile, call: Callable[[], T]) -> T:
        pa = _extras.pyarrow()
        try:
            return call()
        except InvalidMessageError as error:
            reason = str(error)
        except MQStoreError:
            # A request failed.
            raise
        except (pa.ArrowException, ValueError, OSError, LookupError, TypeError, struct.error) as error:
            reason = str(error)
        raise self._wrong(file, reason)

    def _wrong(self, file: ArchivedFile, reason: str) -> CorruptionError:
        remedy = "verify the archive and restore the file from a copy, or read without the archive"
        return CorruptionError(self.place.full_path(file), 0, f"the file of the archive is damaged: {reason}; {remedy}")


def _chunks_of(group: Group, names: list[str]) -> list[str]:
    return [name for name in group.chunks if name.partition(".")[0] in {one.partition(".")[0] for one in names}]


def _column(footer: Footer, group: int, name: str) -> Any | None:
    columns = footer.metadata.row_group(group)
    found = (columns.column(number) for number in range(columns.num_columns))
    return next((one for one in found if one.path_in_schema == name), None)


def _is_null(footer: Footer, group: int, name: str) -> bool:
    """Whether a column of a row group has no value."""
    column = _column(footer, group, name)
    facts = None if column is None else column.statistics
    return column is None or (facts is not None and facts.has_null_count and facts.null_count >= column.num_values)


def _is_message(sys_flag: int) -> bool:
    """Whether a record of a topic is a message of its queue."""
    return sys_flag & _TRANSACTION not in _NO_MESSAGE


def _numbers(columns: pa.Table, name: str) -> list[int]:
    """Returns the values of a column; times are epoch milliseconds."""
    values: list[Any] = columns.column(name).cast("int64").to_pylist()
    if name != "store_timestamp":
        return values
    return [0 if value is None else value // 1000 for value in values]


def _is_batch(columns: pa.Table, row: int) -> bool:
    return bool(columns.column("sys_flag")[row].as_py() & _BATCH)
