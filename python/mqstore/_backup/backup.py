"""`Backup`: one round of a backup, and its states, verification, restore and clean."""

from __future__ import annotations

import math
import os
import secrets
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mqstore
from mqstore import _native
from mqstore._admin.files import new_directory
from mqstore._paths import home_of
from mqstore._publish.place import TargetPlace
from mqstore._reports import (
    BackupReport,
    BackupRestoreReport,
    BackupState,
    BackupVerifyReport,
    CleanReport,
    Progress,
    native_progress,
)
from mqstore._store import opened_or_open
from mqstore._times import duration_of, milliseconds_of, seconds_since
from mqstore.errors import InvalidOptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mqstore._native import BackupSession
    from mqstore._store import Store
    from mqstore.types import Duration, StorePath, Time


class Backup:
    """A backup in a folder or at a URL. Only `run` needs a store.

    Args:
        target: the folder, or a URL (`s3://`, `gs://`, `az://`, `hdfs://`, `file://`).
        target_options: only for a URL: credentials and settings of the transport, as `storage_options` of
            `mqstore.open`. They are never stored.

    Raises:
        InvalidOptionError: `target_options` for a folder.
        RemoteStoreError: backups cannot be written to this kind of URL.
        MissingPackageError: the package for this kind of URL is not installed.
    """

    def __init__(self, target: StorePath, *, target_options: Mapping[str, Any] | None = None) -> None:
        self._place = TargetPlace(target, target_options, "back up to it")
        self._native = _native.BackupTarget(self._place.transport, self._place.shown, self._place.root)

    def __repr__(self) -> str:
        return f"<mqstore.Backup {self._place.shown!r}>"

    @property
    def target(self) -> str:
        """The folder, or the URL without secrets."""
        return self._place.shown

    def run(self, store: Store | StorePath, *, progress: Callable[[Progress], object] | None = None) -> BackupReport:
        """Backs up what is new in a store, once. See `mqstore.backup` for a backup that continues.

        Args:
            store: the open store, or its directory, which is then opened for reading next to any writer, also a broker.
            progress: callback with bytes of the log. An exception in it ends the call.

        Raises:
            StoreBusyError: another process backs up to this target.
            ResultExistsError: the target has the backup of another store, or of a later time of this one.
            CorruptionError: the newest state is damaged.
            UnsupportedFormatError: the directory cannot be copied while it is in use: queues in RocksDB, a log of
                DLedger, tiered files.
            InvalidOptionError: the target is in the directory of the store.
            StorePermissionError, StoreIOError: a request failed; the backup is as before.
            DiskFullError: no space in the target.
        """
        with opened_or_open(store_or_home(store)) as opened:
            # A reader changes the directory only if a running backup has done so.
            timeout_ms = None if opened.mode == "r" else 0
            return self._round(self._native.session(opened), opened, timeout_ms, progress)

    def _round(
        self,
        session: BackupSession,
        store: Store,
        timeout_ms: int | None,
        progress: Callable[[Progress], object] | None,
    ) -> BackupReport:
        started = time.monotonic()
        self._place.check_outside(store.path)
        found = session.round(store, _staging_of(store), timeout_ms, native_progress(progress))
        return BackupReport(target=self._place.shown, seconds=seconds_since(started), **found)

    def states(self) -> tuple[BackupState, ...]:
        """Returns the states of the backup, the oldest first. A restore can also go to a moment between two.

        Raises:
            ResultNotFoundError: there is no backup.
            CorruptionError: a state is damaged.
            StorePermissionError, StoreIOError: a request failed.
        """
        return tuple(BackupState(*row) for row in self._native.states())

    def verify(self, *, progress: Callable[[Progress], object] | None = None) -> BackupVerifyReport:
        """Reads all objects that the states name, and compares them with their digests.

        Args:
            progress: callback with bytes of the objects. An exception in it ends the call.

        Raises:
            ResultNotFoundError: there is no backup.
            CorruptionError: a state is damaged. Problems of other objects are in the report.
            StorePermissionError, StoreIOError: a request failed.
        """
        started = time.monotonic()
        found = self._native.verify(native_progress(progress))
        problems = tuple(found.pop("problems"))
        return BackupVerifyReport(
            target=self._place.shown, ok=not problems, problems=problems, seconds=seconds_since(started), **found
        )

    def restore(
        self,
        directory: StorePath,
        *,
        at: Time | None = None,
        offset: int | None = None,
        progress: Callable[[Progress], object] | None = None,
    ) -> BackupRestoreReport:
        """Makes a new store directory from the backup, and verifies it.

        Its log has the bytes of the log that was backed up. Queues, key index and checkpoint are built from it, so that
        mqstore and brokers can open the directory. Topics, groups, offsets, leases, delays and transactions are those
        of the newest state that is not later: up to an interval older than the last message, so the end of the log can
        be delivered again. Until it is complete, the directory is `DIR.partial`.

        Args:
            directory: the directory; it must not exist, or be empty.
            at: with all messages that were stored at or before this time; the time of the last one by default.
            offset: with all messages that end at or before this log offset.
            progress: callback with bytes of the log. An exception in it ends the call.

        Raises:
            FileExistsError: the directory is not empty.
            ResultNotFoundError: there is no backup.
            InvalidOptionError: the backup has no state so early, or both `at` and `offset` are given.
            CorruptionError: a state or another object is damaged.
            StorePermissionError, StoreIOError: a request failed.
            StoreBusyError: another call writes the same directory.
            DiskFullError: no space for the directory.
        """
        home = Path(home_of(directory, "restore to it"))
        if at is not None and offset is not None:
            raise InvalidOptionError("offset", "give at or offset, not both")
        if offset is not None and (type(offset) is not int or not 0 <= offset < 1 << 63):
            raise InvalidOptionError("offset", f"must be a log offset, not {offset!r}")
        at_ms = None if at is None else milliseconds_of("at", at)
        started = time.monotonic()
        restore = self._native.restore(at_ms=at_ms, at_offset=offset)
        with new_directory(home) as partial:
            found = restore.run(partial, home, native_progress(progress))
        problems = tuple(found.pop("problems"))
        return BackupRestoreReport(
            target=self._place.shown,
            path=str(home),
            ok=not problems,
            problems=problems,
            seconds=seconds_since(started),
            **found,
        )

    def clean(self, *, keep: Duration = "7d", older_than: Duration = "1d", dry_run: bool = False) -> CleanReport:
        """Removes old states, and objects that no other state names.

        Each state of the last ten minutes stays, one for each ten minutes of the last day, and one for each day before,
        up to an age of `keep`. The newest complete state always stays. The messages between two states are in the log
        of the later one, so only the metadata becomes coarser.

        Args:
            keep: age up to which states are kept; seven days by default.
            older_than: minimum age of an object that no state names: a run can be in progress; a day by default.
            dry_run: whether to report the objects only.

        Raises:
            ResultNotFoundError, CorruptionError, StorePermissionError, StoreIOError: as for `states`.
        """
        keep_ms, unused_ms = (
            math.ceil(duration_of(name, value) * 1000) for name, value in (("keep", keep), ("older_than", older_than))
        )
        rows, kept = self._native.clean(keep_ms, unused_ms, dry_run)
        return CleanReport._of_rows(self._place.shown, rows, kept, dry_run=dry_run)


def store_or_home(store: Store | StorePath) -> Store | StorePath:
    """Returns an open store, or its directory, which cannot be at a URL."""
    return store if isinstance(store, mqstore.Store) else home_of(store, "back it up")


def _staging_of(store: Store) -> Path:
    """Returns the folder for copied files: in a store that is open for writing, where files can share blocks."""
    name = f"mqstore-backup-{os.getpid()}-{secrets.token_hex(4)}"
    if store.mode == "r":
        return Path(tempfile.gettempdir(), name)
    return Path(store.path, "mqstore", "tmp", name)


Backup.__module__ = "mqstore"
