"""Stubs of the native module for archives; a part of `_mqstore.pyi`."""

from collections.abc import Iterator
from os import PathLike
from typing import Any, Self, TypeAlias, final

from mqstore._mqstore import NativeStore, ScanRows
from mqstore.types import OnDamage

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
def link_archive(store: NativeStore, target: ArchiveTarget, begin: int, bloom_bytes: int) -> None: ...
def unlink_archive(store: NativeStore) -> None: ...
def link_unknown_archive(store: NativeStore) -> None: ...
def has_archive(store: NativeStore) -> bool: ...
def archived_files(
    store: NativeStore, ranges: list[tuple[str, int, int, int]], on_damage: OnDamage
) -> list[tuple[str, int, int, int, list[int]]]: ...
def archived_records(store: NativeStore, topics: list[str], start: int, end: int) -> ArchivedRecordStream: ...
def read_archive_footers(store: NativeStore) -> None: ...
def forget_archive_columns(store: NativeStore) -> None: ...
def floor_of_topic(store: NativeStore, topic: str) -> int: ...
def floor_offset(store: NativeStore, topic: str, queue_id: int) -> int: ...
