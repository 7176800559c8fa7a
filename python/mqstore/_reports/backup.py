"""Results of the verbs on backups."""

from __future__ import annotations

from dataclasses import dataclass

from mqstore._reports.base import _Report


@dataclass(frozen=True, slots=True)
class BackupReport(_Report):
    """Result of `Backup.run`."""

    target: str
    """Folder or URL of the backup."""
    number: int
    """Number of the newest state."""
    created_timestamp: int
    """When that state was created, in epoch milliseconds."""
    is_new: bool
    """Whether this run created it. If nothing has changed, a run creates none."""
    log_start: int
    """Log offset at which the log of the state begins."""
    log_end: int
    """Log offset at which it ends."""
    segments: int
    """Segments of the log in the state."""
    objects: int
    """New objects."""
    bytes: int
    """Bytes of the new objects."""
    missing_bytes: int
    """Bytes of the log that were deleted before they were backed up."""
    is_new_generation: bool
    """Whether the log does not continue that of the state before: its end was lost, or a reclaim rewrote it."""
    seconds: float
    """Duration in seconds."""


@dataclass(frozen=True, slots=True)
class BackupState(_Report):
    """A state of a backup, to which a restore can go."""

    number: int
    """Its number."""
    created_timestamp: int
    """When it was created, in epoch milliseconds."""
    generation: int
    """Number of times that the log before did not continue the log of the state before."""
    is_complete: bool
    """Whether a restore can go there. A first run that is not done makes states that are not complete."""
    log_start: int
    """Log offset at which its log begins."""
    log_end: int
    """Log offset at which its log ends."""
    segments: int
    """Segments of the log."""
    pieces: int
    """Objects that it names itself; those of full segments are in lists."""
    archived_to: int | None
    """Log offset up to which the archive of the store had its log; None without an archive."""


@dataclass(frozen=True, slots=True)
class BackupStatus(_Report):
    """How far a backup that continues is, from `RunningBackup.status`."""

    target: str
    """Folder or URL of the backup."""
    number: int | None
    """Number of the newest state; None before the first."""
    log_end: int
    """Log offset up to which the backup has the log."""
    lag_bytes: int
    """Bytes of the log after that."""
    lag_seconds: float
    """Seconds since the begin of the last round without an error: everything older is in the backup."""
    rounds: int
    """Rounds without an error."""
    failures: int
    """Rounds with an error since the last one without."""
    error: str | None
    """The last error, if there is one since the last round without an error."""
    running: bool
    """Whether the backup continues."""


@dataclass(frozen=True, slots=True)
class BackupVerifyReport(_Report):
    """Result of `Backup.verify`."""

    target: str
    """Folder or URL of the backup."""
    ok: bool
    """Whether everything is as it was written."""
    states: int
    """States."""
    pieces: int
    """Objects that they name."""
    bytes: int
    """Bytes of these objects."""
    problems: tuple[str, ...]
    """Damaged or missing objects."""
    seconds: float
    """Duration in seconds."""


@dataclass(frozen=True, slots=True)
class BackupRestoreReport(_Report):
    """Result of `Backup.restore`."""

    target: str
    """Folder or URL of the backup."""
    path: str
    """The new directory."""
    log_start: int
    """Log offset at which its log begins."""
    log_end: int
    """Log offset at which it ends."""
    segments: int
    """Segments of the log."""
    messages: int
    """Messages in its queues."""
    metadata_timestamp: int
    """When the metadata was copied, in epoch milliseconds: offsets of groups, leases, delays."""
    archived_to: int | None
    """Log offset up to which the archive of the store has its log; None without an archive."""
    ok: bool
    """Whether a verification of the directory found no problem."""
    problems: tuple[str, ...]
    """The problems."""
    seconds: float
    """Duration in seconds."""
