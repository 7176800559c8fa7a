"""Stubs of the native module for archives; a part of `_mqstore.pyi`."""

from collections.abc import Callable, Iterator
from os import PathLike
from typing import Any, Self, final

from mqstore._mqstore import NativeStore, ScanRows
from mqstore.types import OnDamage

@final
class ArchiveStream(Iterator[ScanRows]):
    """One pass over the records of a range of the log; created by `scan_archive`."""

    def __iter__(self) -> Self: ...
    def __next__(self) -> ScanRows: ...
    def close(self) -> None:
        """Ends the pass. Its threads have stopped when this returns."""

@final
class ArchiveTarget:
    """The objects of an archive. Threads can share it."""

    def __new__(cls, transport: object | None, shown: str, root: str) -> Self: ...
    def files(self) -> list[tuple[Any, ...]]:
        """Returns the files of the newest manifest.

        Each with its path or URL, topic, first log offset and end of the range of the log, rows, bytes, digest, sum of
        the lengths of the records, smallest and largest store time in epoch milliseconds, and the queues: number, first
        and last offset, rows.
        """
    def run(
        self,
        store: NativeStore,
        settings: tuple[int, list[str] | None, int],
        recorded: tuple[int, str] | None,
        advances: bool,
        sizes: dict[str, int],
        progress: Callable[[int, int], object] | None,
    ) -> dict[str, int]:
        """Archives all segments of a store that are due. Returns the numbers of the report.

        Args:
            store: the store.
            settings: minimum age of the last record of a segment in milliseconds, the topics, sorted, and the
                compression level.
            recorded: what the store recorded about this archive: log offset and settings.
            advances: whether to move this log offset.
            sizes: sizes by name that replace the default ones.
            progress: callback with bytes of the log.
        """
    def configure(self, store: NativeStore, settings: str, topics: list[str] | None) -> int:
        """Sets the archive of a store. Returns the log offset at which the archive begins.

        `settings` are JSON with the target, and `topics` those in it.
        """
    def look(self, settings: str, archived_to: int, log_start: int) -> str | None:
        """Returns why the archive does not have what a store recorded, or None.

        The arguments are the settings and the log offset that the store recorded, and the start of its log.
        """
    def restore(self, topics: list[str] | None, since_ms: int | None, until_ms: int | None) -> ArchiveRestore:
        """Chooses the segments of a restore."""
    def verify(self, rebuild: bool, progress: Callable[[int, int], object] | None) -> dict[str, Any]:
        """Reads all files. Returns the numbers and texts of the report.

        With `rebuild`, makes a new manifest first if the newest one does not name complete files.
        """
    def clean(self, older_than_ms: int, dry_run: bool) -> tuple[list[tuple[str, int, int]], int]:
        """Removes unused objects of a minimum age in milliseconds; with `dry_run`, only finds them.

        Returns them, each with its path, bytes, and last change in epoch milliseconds; and the number of younger ones.
        """

@final
class ArchiveRestore:
    """A restore whose segments are chosen; created by `ArchiveTarget.restore`."""

    def run(
        self,
        partial: PathLike[str],
        home: PathLike[str],
        target: str,
        options: dict[str, Any],
        progress: Callable[[int, int], object] | None,
    ) -> dict[str, Any]:
        """Restores the store. Returns the numbers of the report.

        Args:
            partial: the directory until it is complete; it exists.
            home: its final path.
            target: the archive as the settings of a store name it.
            options: the dict of `mqstore._options.native_form`.
            progress: callback with bytes of the files.
        """

def create_segment(folder: PathLike[str], base_offset: int, length: int) -> None: ...
def scan_archive(store: NativeStore, start: int, end: int, threads: int) -> ArchiveStream: ...
def read_log(store: NativeStore, offset: int, length: int) -> bytes: ...
def is_reclaimed_at(store: NativeStore, offset: int) -> bool: ...
def archive_state(store: NativeStore) -> tuple[int, str] | None: ...
def set_archive(store: NativeStore, archive: tuple[int, str] | None) -> None: ...
def link_archive(store: NativeStore, target: ArchiveTarget, begin: int, bloom_bytes: int) -> None: ...
def unlink_archive(store: NativeStore) -> None: ...
def link_unknown_archive(store: NativeStore) -> None: ...
def has_archive(store: NativeStore) -> bool: ...
def archived_files(
    store: NativeStore, ranges: list[tuple[str, int, int, int]], on_damage: OnDamage
) -> list[tuple[str, int, int, int, list[int]]]: ...
def read_archive_footers(store: NativeStore) -> None: ...
def forget_archive_columns(store: NativeStore) -> None: ...
def floor_offset(store: NativeStore, topic: str, queue_id: int) -> int: ...
