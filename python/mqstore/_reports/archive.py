"""Results of the verbs on archives."""

from __future__ import annotations

from dataclasses import dataclass

from mqstore._reports.base import _Report


@dataclass(frozen=True, slots=True)
class ArchiveReport(_Report):
    """Result of `StoreArchive.run`."""

    target: str
    """Folder or URL of the archive."""
    segments: int
    """Segments that the run archived."""
    records: int
    """Records in them, of the chosen topics."""
    record_bytes: int
    """Bytes of these records, and of other bytes that were archived."""
    files: int
    """New files."""
    bytes: int
    """Bytes of the new files."""
    archived_to: int
    """Log offset up to which the archive contains the log."""
    missing_bytes: int
    """Bytes of the log before the first of these segments that were deleted before they were archived."""
    young_segments: int
    """Segments that are full and younger than `older_than`."""
    bloom_filters: bool
    """Whether the new files have Bloom filters on keys and unique ids: always, in this version."""
    seconds: float
    """Duration in seconds."""


@dataclass(frozen=True, slots=True)
class ArchiveFile(_Report):
    """A file of an archive."""

    path: str
    """Path or URL."""
    topic: str | None
    """Topic; None for bytes of the log that are no records of a topic, such as damaged ones."""
    first_log_offset: int
    """Log offset at which the range of the log begins."""
    end_log_offset: int
    """Log offset at which the range ends, exclusive."""
    rows: int
    """Records."""
    bytes: int
    """Length of the file."""
    sha256: str
    """Digest of the file."""
    record_bytes: int
    """Bytes of the records in the log."""
    first_timestamp: int | None
    """Smallest store time in epoch milliseconds."""
    last_timestamp: int | None
    """Largest store time in epoch milliseconds."""
    queues: tuple[ArchiveQueue, ...]
    """The records by queue."""


@dataclass(frozen=True, slots=True)
class ArchiveQueue(_Report):
    """The records of one queue in a file of an archive."""

    queue_id: int
    """Queue id."""
    first: int
    """Smallest queue offset."""
    last: int
    """Largest queue offset."""
    rows: int
    """Records."""


@dataclass(frozen=True, slots=True)
class ArchiveVerifyReport(_Report):
    """Result of `Archive.verify`."""

    target: str
    """Folder or URL of the archive."""
    ok: bool
    """Whether there are no problems."""
    files: int
    """Files that were checked."""
    records: int
    """Records that were decoded and encoded again."""
    bytes: int
    """Bytes of the files."""
    problems: tuple[str, ...]
    """Each problem, with the file and the remedy."""
    rebuilt: bool
    """Whether the call made a new manifest from the files."""
    seconds: float
    """Duration in seconds."""


@dataclass(frozen=True, slots=True)
class ArchiveRestoreReport(_Report):
    """Result of `Archive.restore`."""

    target: str
    """Folder or URL of the archive."""
    path: str
    """The new directory."""
    segments: int
    """Segments of its log."""
    first_log_offset: int
    """Log offset at which its log begins."""
    end_log_offset: int
    """Log offset at which its log ends, exclusive."""
    records: int
    """Records that were restored."""
    identical: bool
    """Whether each segment has the bytes of the archived one; else placeholders replace records of other topics."""
    seconds: float
    """Duration in seconds."""
