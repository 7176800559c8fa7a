"""Stubs of the native module for archives; a part of `_mqstore.pyi`."""

from collections.abc import Iterator
from os import PathLike
from typing import Any, Self, final

from mqstore._mqstore import NativeStore, ScanRows, StoredMessage
from mqstore.types import ArrowStream

__all__ = [
    "ArchiveLog", "ArchiveStream", "advance_archive", "archive_checksum", "archive_messages", "archive_scan_rows",
    "archive_state", "floor_of_topic", "is_reclaimed_at", "queue_bounds", "read_log", "scan_archive", "sealed_segments",
    "segment_inodes", "set_archive", "set_archive_of_copy", "set_older_topics",
]  # fmt: skip

@final
class ArchiveStream(Iterator[ScanRows]):
    """One pass over the records of a range of the log; created by `scan_archive`."""

    def __iter__(self) -> Self: ...
    def __next__(self) -> ScanRows: ...
    def close(self) -> None:
        """Ends the pass. Its threads have stopped when this returns."""

@final
class ArchiveLog:
    """The segments of a log that is restored from an archive."""

    def __new__(cls, folder: str) -> Self: ...
    def add(self, base_offset: int, length: int) -> None:
        """Creates the segment with this log offset and length; all its bytes are zero."""
    def write_rows(self, rows: ArrowStream) -> int:
        """Writes the records of rows of an archive.

        Leaves out those of segments that were not added. Returns the number of the records written.
        """
    def write(self, offset: int, content: bytes) -> None:
        """Writes other bytes."""
    def complete(self, start: int, end: int, placeholder_ms: int | None) -> list[tuple[int, int]]:
        """Completes the log between two log offsets.

        Writes the filler at the end of each segment, and with `placeholder_ms`, the store time of placeholders,
        replaces all other missing records. Returns the missing ranges that are left: log offset and length.
        """
    def sync(self) -> None:
        """Syncs all segments and their folder."""

def scan_archive(store: NativeStore, start: int, end: int, threads: int) -> ArchiveStream: ...
def archive_checksum(rows: ArrowStream) -> tuple[int, int, int]: ...
def sealed_segments(store: NativeStore, start: int) -> list[tuple[int, int, int | None, int, int]]: ...
def segment_inodes(store: NativeStore, start: int, end: int) -> dict[int, int]: ...
def read_log(store: NativeStore, offset: int, length: int) -> bytes: ...
def is_reclaimed_at(store: NativeStore, offset: int) -> bool: ...
def archive_state(store: NativeStore) -> tuple[int, str] | None: ...
def set_archive(store: NativeStore, archive: tuple[int, str] | None) -> None: ...
def set_archive_of_copy(path: str | PathLike[str], log_end: int, settings: str) -> None: ...
def advance_archive(store: NativeStore, known: str, archived_to: int, settings: str) -> bool: ...
def archive_messages(rows: ArrowStream, request: dict[str, Any], store: NativeStore | None) -> list[StoredMessage]: ...
def archive_scan_rows(rows: ArrowStream, request: dict[str, Any], store: NativeStore | None) -> list[ScanRows]: ...
def queue_bounds(store: NativeStore, topic: str) -> list[tuple[int, int, int]]: ...
def set_older_topics(store: NativeStore, object: object | None) -> None: ...
def floor_of_topic(store: NativeStore, topic: str) -> int: ...
