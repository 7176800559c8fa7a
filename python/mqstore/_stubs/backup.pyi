"""Stubs of the native module for backups; a part of `_mqstore.pyi`."""

from collections.abc import Callable
from os import PathLike
from typing import Any, Self, final

from mqstore._mqstore import NativeStore

@final
class BackupTarget:
    """The objects of a backup. Threads can share it."""

    def __new__(cls, transport: object | None, shown: str, root: str) -> Self: ...
    def session(self, store: NativeStore) -> BackupSession:
        """Begins to back up a store. Makes no request."""

    def states(self) -> list[tuple[Any, ...]]:
        """Returns the states, the oldest first.

        Each with its number, epoch milliseconds of its creation, generation, completeness, first log offset and end of
        the log, segments, pieces, and the log offset up to which the store has an archive.
        """

    def verify(self, progress: Callable[[int, int], object] | None) -> dict[str, Any]:
        """Reads all pieces. Returns the numbers and texts of the report."""

    def restore(self, *, at_ms: int | None = None, at_offset: int | None = None) -> BackupRestore:
        """Chooses the states of a restore: the newest one, or that of a time in epoch milliseconds or a log offset."""

    def clean(self, keep_ms: int, unused_ms: int, dry_run: bool) -> tuple[list[tuple[str, int, int]], int]:
        """Removes old states and unused objects; with `dry_run`, only finds them.

        Args:
            keep_ms: age up to which states are kept.
            unused_ms: minimum age of an unused object.
            dry_run: whether to find them only.

        Returns them, each with its path, bytes, and last change in epoch milliseconds; and the number of younger ones.
        """

@final
class BackupSession:
    """The backup of a store by this process; created by `BackupTarget.session`. A second thread waits."""

    def round(
        self,
        store: NativeStore,
        staging: str | PathLike[str],
        timeout_ms: int | None,
        progress: Callable[[int, int], object] | None,
    ) -> dict[str, Any]:
        """Backs up what is new. Returns the numbers of the report.

        Args:
            store: the store of the session.
            staging: a folder that the round makes and removes.
            timeout_ms: as for `keep_segments`.
            progress: callback with bytes of the log.
        """

    def keep_segments(self, store: NativeStore, timeout_ms: int | None) -> None:
        """Tells the writer to keep what the backup lacks for so many milliseconds from now; None does not change it."""

def log_end(store: NativeStore) -> int:
    """Returns the end of the log of a store."""

@final
class BackupRestore:
    """A restore whose states are chosen; created by `BackupTarget.restore`."""

    def run(
        self,
        partial: str | PathLike[str],
        home: str | PathLike[str],
        progress: Callable[[int, int], object] | None,
    ) -> dict[str, Any]:
        """Restores the store. Returns the numbers and texts of the report.

        Args:
            partial: the directory until it is complete; it exists.
            home: its final path.
            progress: callback with bytes of the log.
        """
