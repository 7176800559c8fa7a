"""`backup`: a backup that continues in a thread, as long as its program runs."""

from __future__ import annotations

import logging
import math
import threading
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from mqstore import _native
from mqstore._backup.backup import Backup, store_or_home
from mqstore._reports import BackupReport, BackupStatus
from mqstore._running import Running
from mqstore._store import Store
from mqstore._store import open as open_store
from mqstore._times import duration_of
from mqstore.errors import (
    ForkedProcessError,
    InvalidOptionError,
    MQStoreError,
    ResultExistsError,
    StoreBusyError,
    StoreClosedError,
    StorePoisonedError,
    UnsupportedFormatError,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mqstore.types import Duration, StorePath

_log = logging.getLogger("mqstore")


@dataclass(frozen=True, slots=True)
class _Progress:
    """What the rounds have reached: the last one without an error, and the errors since."""

    saved_at: float
    report: BackupReport | None = None
    rounds: int = 0
    failures: int = 0
    error: Exception | None = None
    logged: frozenset[type] = frozenset()


_CLEAN_INTERVAL = 3600.0
"""Seconds between two cleans."""

_FINAL = (
    ForkedProcessError,
    InvalidOptionError,
    ResultExistsError,
    StoreClosedError,
    StorePoisonedError,
    UnsupportedFormatError,
)
"""Errors after which a next round would fail, too."""


def backup(
    store: Store | StorePath,
    target: StorePath,
    *,
    interval: Duration | None = None,
    keep: Duration | None = "7d",
    replica_timeout: Duration = "1d",
    target_options: Mapping[str, Any] | None = None,
) -> RunningBackup:
    """Backs up a store to a folder or a URL, again and again, in a thread.

    Each round uploads what is new in the log, and the metadata, and creates a state to which `Backup.restore` can go.
    If nothing has changed, it uploads nothing. An error of the target ends no program and loses nothing in the store:
    it is logged once, `RunningBackup.status` has it, and the next round catches up.

    Args:
        store: the open store, or its directory, which is then read next to any writer, also a broker.
        target: the folder, or a URL (`s3://`, `gs://`, `az://`, `hdfs://`, `file://`).
        interval: seconds between the begins of two rounds, at least 0.1; 1 for a folder and 10 for a URL by default. It
            is what a loss of the machine can cost, with the time of a round.
        keep: age up to which old states are kept, see `Backup.clean`, which runs each hour; None removes nothing.
        replica_timeout: how long the retention by age keeps the segments that the backup does not have, from the last
            round without an error; a day by default. `retention_bytes` and a full disk still remove them, and a warning
            says so. A broker keeps nothing.
        target_options: only for a URL: credentials and settings of the transport, as `storage_options` of
            `mqstore.open`. They are never stored.

    Returns:
        The backup. Use it in a `with` block, inside that of the store: the end of the block runs a last round.

    Raises:
        InvalidOptionError: an option is out of bounds, or the target is in the directory of the store.
        RemoteStoreError: backups cannot be written to this kind of URL.
        MissingPackageError: the package for this kind of URL is not installed.
    """
    place = Backup(target, target_options=target_options)
    pause = (10.0 if place._place.folder is None else 1.0) if interval is None else duration_of("interval", interval)
    if pause < 0.1:
        raise InvalidOptionError("interval", f"must be at least 0.1 seconds, not {interval!r}")
    if keep is not None:
        duration_of("keep", keep)
    timeout_ms = math.ceil(duration_of("replica_timeout", replica_timeout) * 1000)
    return RunningBackup(store, place, pause, keep, timeout_ms)


class RunningBackup(Running):
    """A backup that continues in a thread, from `mqstore.backup`."""

    def __init__(
        self, store: Store | StorePath, place: Backup, interval: float, keep: Duration | None, timeout_ms: int
    ) -> None:
        """Starts the thread. Programs call `mqstore.backup` instead."""
        self._place, self._interval, self._keep, self._timeout_ms = place, interval, keep, timeout_ms
        given = store_or_home(store)
        place._place.check_outside(given.path if isinstance(given, Store) else str(given))
        self._store = given if isinstance(given, Store) else open_store(given)
        self._opened_here = not isinstance(given, Store)
        self._session = place._native.session(self._store)
        self._session.keep_segments(self._store, timeout_ms)
        # One round at a time. The status does not wait for it.
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._now = _Progress(saved_at=time.monotonic())
        self._cleaned_at: float | None = None
        self._thread = threading.Thread(target=self._work, name="mqstore-backup", daemon=True)
        self._thread.start()

    def __repr__(self) -> str:
        return f"<mqstore.RunningBackup of {self._store.path!r} to {self.target!r}>"

    @property
    def target(self) -> str:
        """The folder, or the URL without secrets."""
        return self._place.target

    def run(self) -> BackupReport:
        """Runs a round now, and returns its report.

        Raises:
            MQStoreError, OSError: as for `Backup.run`.
        """
        with self._lock:
            return self._round()

    def status(self) -> BackupStatus:
        """Returns how far the backup is. It does not wait for a round."""
        now = self._now
        log_end = 0 if now.report is None else now.report.log_end
        return BackupStatus(
            target=self.target,
            number=None if now.report is None else now.report.number,
            log_end=log_end,
            lag_bytes=0 if self._store.closed else max(0, _native.log_end(self._store) - log_end),
            lag_seconds=round(time.monotonic() - now.saved_at, 3),
            rounds=now.rounds,
            failures=now.failures,
            error=None if now.error is None else str(now.error),
            running=self.running,
        )

    def close(self) -> None:
        """Runs a last round, and ends the thread. A second call does nothing.

        Raises:
            MQStoreError, OSError: the error of the last round, or the one that ended the backup before.
        """
        if self._ended.is_set():
            return
        was_running = self.running
        self._ended.set()
        self._thread.join()
        try:
            if was_running:
                self.run()
            elif self._now.error is not None:
                raise self._now.error
        finally:
            if self._opened_here:
                self._store.close()

    def _work(self) -> None:
        pause = 0.0
        while not self._ended.wait(pause):
            started = time.monotonic()
            with self._lock:
                try:
                    self._round()
                    self._clean()
                except _FINAL:
                    return
                except (MQStoreError, OSError) as error:
                    # A session that is not alone fails again. A folder that has just changed does not.
                    if isinstance(error, StoreBusyError) and self._now.failures > 1:
                        return
            pause = max(0.0, self._interval - (time.monotonic() - started))

    def _round(self) -> BackupReport:
        started = time.monotonic()
        try:
            report = self._place._round(self._session, self._store, self._timeout_ms, None)
        except (MQStoreError, OSError) as error:
            self._fail(error)
            raise
        if self._now.error is not None:
            _log.info("backup of %s to %s: continues", self._store.path, self.target)
        self._now = _Progress(saved_at=started, report=report, rounds=self._now.rounds + 1)
        if report.missing_bytes:
            text = "backup of %s to %s: %d bytes of the log were deleted before they were backed up"
            _log.warning(text, self._store.path, self.target, report.missing_bytes)
        return report

    def _clean(self) -> None:
        now = time.monotonic()
        if self._keep is None or (self._cleaned_at is not None and now - self._cleaned_at < _CLEAN_INTERVAL):
            return
        self._cleaned_at = now
        try:
            self._place.clean(keep=self._keep)
        except (MQStoreError, OSError) as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        # Once for each kind: the names of objects differ from round to round.
        if type(error) not in self._now.logged:
            _log.warning("backup of %s to %s: %s", self._store.path, self.target, error)
        logged = self._now.logged | {type(error)}
        self._now = replace(self._now, failures=self._now.failures + 1, error=error, logged=logged)


for _public in (backup, RunningBackup):
    _public.__module__ = "mqstore"
del _public
