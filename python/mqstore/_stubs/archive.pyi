"""Stubs of the native module for archives; a part of `_mqstore.pyi`."""

from collections.abc import Iterator
from os import PathLike
from typing import Any, Self, TypeAlias, final
from weakref import ReferenceType

from mqstore._mqstore import NativeStore, ScanRows, StoredMessage
from mqstore.types import Filter, OnDamage

_Summary: TypeAlias = tuple[int, int, int, int | None, int | None, list[tuple[int, int, int, int]]]

@final
class ArchiveStream(Iterator[ScanRows]):
    """One pass over the records of a range of the log; created by `scan_archive`."""

    def __iter__(self) -> Self: ...
    def __next__(self) -> ScanRows: ...
    def next_range(self, range_bytes: int, topics: set[str] | None) -> ArchiveRange | None:
        """Returns the records of the next range of the log, of these topics or of all; None at the end.

        A range ends after about so many bytes of columns. Only a single one has no records.
        """
    def close(self) -> None:
        """Ends the pass. Its threads have stopped when this returns."""

@final
class ArchiveRange:
    """The records of a range of the log. Threads can share it."""

    @property
    def start(self) -> int:
        """First log offset."""
    @property
    def end(self) -> int:
        """End."""
    @property
    def topics(self) -> list[str]:
        """The topics of the records."""
    @property
    def gaps(self) -> list[tuple[int, int]]:
        """The parts of the range without wanted records: first log offset and end."""
    @property
    def last(self) -> tuple[int, int] | None:
        """Log offset and length of the last record; None without records."""
    def summary(self, topic: str) -> _Summary:
        """Returns what a manifest says of the records of a topic."""
    def file(self, topic: str, sizes: tuple[int, int, int], level: int, facts: list[tuple[str, str]]) -> bytes | None:
        """Returns a new file with the records of a topic; None if it does not give the same records.

        The file is decoded again and compared with the log.

        Args:
            topic: the topic.
            sizes: rows of a row group, bytes of a page, and the number of rows whose multiples end a page.
            level: compression level of zstd.
            facts: texts of the footer by name.
        """
    def clear(self) -> None:
        """Frees the memory of the records."""

@final
class ArchiveLog:
    """The segments of a log that is restored from an archive."""

    def __new__(cls, folder: str) -> Self: ...
    def add(self, base_offset: int, length: int) -> None:
        """Creates the segment with this log offset and length; all its bytes are zero."""
    def write_file(self, path: str | PathLike[str], shown: str, record_bytes: int | None) -> int:
        """Writes what a file of the archive has of the segments. Returns the number of the records written.

        Files come in the order of the log. `shown` names the file in errors.
        """
    def write(self, offset: int, content: bytes) -> None:
        """Writes other bytes."""
    def complete(self, start: int, end: int, placeholder_ms: int | None) -> list[tuple[int, int]]:
        """Completes the log between two log offsets.

        Writes the filler at the end of each segment, and with `placeholder_ms`, the store time of placeholders,
        replaces all other missing records. Returns the missing ranges that are left: log offset and length.
        """
    def gaps(self) -> list[tuple[str, int, int, int]]:
        """Returns the offsets of queues between two records that no record has.

        Each with topic, queue, first offset, and the offset after the last one.
        """
    def sync(self) -> None:
        """Syncs all segments and their folder."""

@final
class ArchiveTarget:
    """The objects of an archive. Threads can share it."""

    def __new__(cls, transport: object | None, shown: str, root: str) -> Self: ...

@final
class ArchiveHistory:
    """The records before the log of a store, or all records of an archive. Threads can share it."""

    def __new__(cls, target: ArchiveTarget, bloom_bytes: int) -> Self: ...
    @property
    def end(self) -> int | None:
        """The log offset at which the manifest ends; None without one."""
    def refresh(self) -> None:
        """Reads the newest manifest."""
    def last_facts(self) -> tuple[tuple[int, int, str] | None, list[tuple[int, int, int | None, int]]]:
        """Returns the last record of the archive, and its last segments.

        The record has log offset, length and digest. A segment has log offset, length, and the store times of the
        first and the last record.
        """
    def forget_columns(self) -> None:
        """Removes the columns of row groups from memory. For tests."""
    def read_footers(self) -> None:
        """Reads the footers of all files. For tests."""
    def first_offset(self, store: NativeStore, topic: str, queue_id: int) -> int | None:
        """Returns the smallest offset of a queue that is not hidden; None if there is none."""
    def has(self, store: NativeStore, topic: str, queue_id: int) -> bool:
        """Whether the archive can have messages of a queue that are not hidden."""
    def offset_for_time(self, store: NativeStore, topic: str, queue_id: int, time_ms: int) -> int | None:
        """Returns the offset of the first message of a queue that was stored at or after a time."""
    def last_offset(self, store: NativeStore, topic: str, queue_id: int, time_ms: int, end: int) -> int | None:
        """Returns the offset of the last message of a queue before offset `end` that was stored at or before a time."""
    def by_id(self, store: NativeStore, id: str, end: int) -> StoredMessage | None:
        """Returns the message with a message id or a unique id whose record is before log offset `end`."""
    def at(self, store: NativeStore, log_offset: int) -> StoredMessage | None:
        """Returns the message whose record starts at a log offset; None if there is none."""
    def read(
        self,
        store: NativeStore,
        topic: str,
        ranges: list[tuple[int, int, int]],
        log_start: int,
        filter: Filter | None,
        on_damage: OnDamage,
    ) -> ArchivedMessages:
        """Returns the messages of parts of queues that end where the log begins, at log offset `log_start`.

        Several queues are merged by store time and log offset within each range of the log.
        """
    def lookup(
        self,
        store: NativeStore,
        topic: str,
        key: str,
        start: int,
        end: int,
        times_ms: tuple[int | None, int | None],
        newest_first: bool,
    ) -> ArchivedMessages:
        """Returns the messages with a key or unique id whose records are between two log offsets.

        They were stored from a time on and before another one, in epoch milliseconds.
        """
    def scan(self, store: NativeStore | None, request: dict[str, Any], start: int, end: int) -> ArchivedRows:
        """Returns the rows of a scan whose records are between two log offsets, in the order of the log."""
    def records(self, topics: list[str], start: int, end: int) -> ArchivedRecordStream:
        """Returns the records of topics between two log offsets, in the order of the log. No record is hidden."""
    def files_of(
        self, store: NativeStore, ranges: list[tuple[str, int, int, int]], log_start: int, on_damage: OnDamage
    ) -> list[tuple[str, int, int, int, list[int]]]:
        """Returns the files with ranges of queues that end where the log begins, in the order of the log.

        Each with its path, the first log offset and the end of its range of the log, the mean size of a record, and
        the numbers of the ranges.
        """

@final
class ArchivedMessages(Iterator[StoredMessage]):
    """Messages of an archive, in order. After an error, the next call tries again at the same place."""

    def __iter__(self) -> Self: ...
    def __next__(self) -> StoredMessage: ...

@final
class ArchivedRows(Iterator[ScanRows]):
    """Rows of a scan of an archive, in the order of the log."""

    def __iter__(self) -> Self: ...
    def __next__(self) -> ScanRows: ...

@final
class ArchivedRecordStream(Iterator[ArchivedRecords]):
    """Records of an archive, in the order of the log, some at once."""

    def __iter__(self) -> Self: ...
    def __next__(self) -> ArchivedRecords: ...

@final
class ArchivedRecords:
    """Some records of an archive."""

    @property
    def end(self) -> int:
        """The log offset after the first byte of the last record."""

def standing_of(topic: str) -> int: ...
def archive_file_summary(path: str | PathLike[str], shown: str, record_bytes: int | None) -> _Summary: ...
def archive_file_facts(
    path: str | PathLike[str], shown: str
) -> tuple[str | None, list[tuple[str, str]], _Summary, list[tuple[int, int]], int]: ...
def archive_bytes_file(pieces: list[tuple[int, int, bytes]], level: int, facts: list[tuple[str, str]]) -> bytes: ...
def check_archive_owner(
    store: NativeStore,
    shown: str,
    last: tuple[int, int, str] | None,
    segments: list[tuple[int, int, int | None, int]],
    extends: bool,
) -> None: ...
def manifest_problem(content: bytes) -> tuple[str, str] | None: ...
def manifest_checksum(members: str) -> str: ...
def scan_archive(store: NativeStore, start: int, end: int, threads: int) -> ArchiveStream: ...
def sealed_segments(store: NativeStore, start: int) -> list[tuple[int, int, int | None, int, int]]: ...
def segment_inodes(store: NativeStore, start: int, end: int) -> dict[int, int]: ...
def read_log(store: NativeStore, offset: int, length: int) -> bytes: ...
def is_reclaimed_at(store: NativeStore, offset: int) -> bool: ...
def archive_state(store: NativeStore) -> tuple[int, str] | None: ...
def set_archive(store: NativeStore, archive: tuple[int, str] | None) -> None: ...
def set_archive_of_copy(path: str | PathLike[str], log_end: int, settings: str) -> None: ...
def advance_archive(store: NativeStore, known: str, archived_to: int, settings: str) -> bool: ...
def queue_bounds(store: NativeStore, topic: str) -> list[tuple[int, int, int]]: ...
def set_older_topics(store: NativeStore, reference: ReferenceType[NativeStore] | None) -> None: ...
def floor_of_topic(store: NativeStore, topic: str) -> int: ...
def floor_offset(store: NativeStore, topic: str, queue_id: int) -> int: ...
