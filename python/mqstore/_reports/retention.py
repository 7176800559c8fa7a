"""Results of retention: limits of topics, deleted files, messages that keep them, and reclaimed disk space."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Self

from mqstore._reports.base import _Report


@dataclass(frozen=True, slots=True)
class TopicRetention(_Report):
    """Limits of a topic, and its bytes in the commit log, from `Store.retention`."""

    topic: str
    """Topic."""
    keep_seconds: float | None
    """Maximum age of a message in seconds; None without this limit."""
    max_bytes: int | None
    """Maximum bytes of its records; None without this limit."""
    max_messages: int | None
    """Maximum number of messages; None without this limit."""
    floor: int
    """Log offset before which its records are hidden; 0 if none are."""
    live_bytes: int
    """Bytes of its records that reads can find."""
    dead_bytes: int
    """Bytes of its hidden records that are still in the log."""
    reclaimable_bytes: int
    """Estimate of the dead bytes that are whole pages of the file system."""

    @property
    def keep(self) -> timedelta | None:
        """Maximum age of a message; None without this limit."""
        return None if self.keep_seconds is None else timedelta(seconds=self.keep_seconds)

    @classmethod
    def _of_row(
        cls, topic: str, limits: tuple[int | None, int | None, int | None], floor: int, measured: tuple[int, int, int]
    ) -> Self:
        keep_ms, max_bytes, max_messages = limits
        return cls(topic, None if keep_ms is None else keep_ms / 1000, max_bytes, max_messages, floor, *measured)


@dataclass(frozen=True, slots=True)
class ReclaimedTopic(_Report):
    """Bytes of a topic in the commit log before a `Store.reclaim`."""

    topic: str
    """Topic."""
    live_bytes: int
    """Bytes of its records that reads can find."""
    dead_bytes: int
    """Bytes of its hidden records."""
    estimated_bytes: int
    """Estimate of the bytes that rewrites of all segments could free, whether they pay or not."""
    reclaimed_bytes: int
    """Part of the estimate in the segments that were rewritten."""


@dataclass(frozen=True, slots=True)
class ReclaimedSegment(_Report):
    """Segment that `Store.reclaim` rewrote, or would rewrite."""

    path: str
    """File."""
    log_offset: int
    """Log offset of its first byte."""
    bytes: int
    """Length of the file, which does not change."""
    live_bytes: int
    """Bytes of the records that stay."""
    dead_bytes: int
    """Bytes of the hidden records that are replaced."""
    estimated_bytes: int
    """Estimate of the bytes of disk space that the rewrite frees."""
    reclaimed_bytes: int
    """Bytes of disk space that it freed; 0 for a dry run."""


@dataclass(frozen=True, slots=True)
class KeptSegment(_Report):
    """Segment that still has hidden records after `Store.reclaim`, or copies of erased messages."""

    path: str
    """File."""
    log_offset: int
    """Log offset of its first byte."""
    dead_bytes: int
    """Bytes of its hidden records."""
    estimated_bytes: int
    """Estimate of the bytes that a rewrite would free."""
    reason: str
    """Why they stay."""


@dataclass(frozen=True, slots=True)
class ReclaimReport(_Report):
    """Result of `Store.reclaim`."""

    dry_run: bool
    """Whether this was a dry run, which changes nothing."""
    topics: tuple[ReclaimedTopic, ...]
    """Topics with hidden records, by name."""
    segments: tuple[ReclaimedSegment, ...]
    """Segments that were rewritten, or would be, in log order."""
    kept: tuple[KeptSegment, ...]
    """Segments that still have hidden records, or copies of erased messages, in log order, each with the reason."""
    copies: tuple[str, ...] = ()
    """For `erase`: the known backups, and the replicas, which can still have the bytes of erased messages."""

    @property
    def reclaimed_bytes(self) -> int:
        """Bytes of disk space that were freed; 0 for a dry run."""
        return sum(segment.reclaimed_bytes for segment in self.segments)


@dataclass(frozen=True, slots=True)
class SegmentHolder(_Report):
    """An unfinished message that keeps its segment, and all later ones, from a deletion by age."""

    kind: str
    """`"group"`: a consumer group has not finished it. `"delayed"`: it is delivered later. `"transaction"`: its
    transaction is not decided. `"backup"`, `"follower"`: a backup or a replica does not have it yet."""
    group: str | None
    """Consumer group, producer group of a transaction, target of a backup, or a replica; None for a delayed message."""
    topic: str
    """Topic of the message; for a delayed message and a transaction, the topic to which it goes. Empty for a backup and
    a replica."""
    queue_id: int
    """Queue; for a delayed message and a transaction, the queue of the system topic in which it waits."""
    offset: int
    """Offset in that queue: the first message that the group has not finished."""
    log_offset: int
    """Offset in the commit log."""


@dataclass(frozen=True, slots=True)
class ExpiredFile(_Report):
    """A file that expiry deleted, or would delete."""

    path: str
    """Path of the file."""
    kind: str
    """`"segment"` of the commit log, `"queue"` file or `"index"` file."""
    bytes: int
    """Length of the file in bytes."""
    first_offset: int
    """First offset in the file: a log offset for a segment, a queue offset for a queue file. For an index file the log
    offset of its first message."""
    last_offset: int
    """Last offset in the file."""
    first_store_timestamp: int | None
    """Store time of the first message of a segment, in epoch milliseconds; None if it cannot be read."""
    last_store_timestamp: int | None
    """Store time of its last message, in epoch milliseconds."""
    reason: str
    """Reason for the deletion; starts with `age`, `size`, `disk` or `log` (its part of the log is deleted)."""
    unfinished: bool = False
    """Whether a hard limit deletes a segment with unfinished messages, which are lost; `reason` names them."""


@dataclass(frozen=True, slots=True)
class ExpiredTopic(_Report):
    """A topic whose retention hides messages; see `Store.set_retention`."""

    topic: str
    """Topic."""
    messages: int
    """Number of queue offsets that are hidden and were readable before."""
    floor: int
    """Log offset before which the records of the topic are hidden."""


@dataclass(frozen=True, slots=True)
class ExpireReport(_Report):
    """Result of `Store.expire`."""

    dry_run: bool
    """Whether this was a dry run, which changes nothing."""
    files: tuple[ExpiredFile, ...]
    """Deleted files, oldest first: segments, then queue files, then index files."""
    segments: int
    """Number of segments in `files`."""
    bytes: int
    """Total bytes of `files`."""
    log_min_offset: int
    """First byte of the commit log after the deletion."""
    kept: tuple[str, ...] = ()
    """Files that are due but stay for now, each with the reason."""
    kept_by: tuple[SegmentHolder, ...] = ()
    """Messages that keep the oldest due segment, as in `StoreStats.segments_kept_by`."""
    topics: tuple[ExpiredTopic, ...] = ()
    """Topics whose own retention hides messages, by name."""
    stays: str = ""
    """Number of bytes that the log keeps, and why its oldest segment is not due; empty if `kept` says why it stays."""


@dataclass(frozen=True, slots=True)
class StoreEvent(_Report):
    """An event in a store, for the option `on_event`."""

    kind: str
    """Kind of event: `segment_deleted`, `segment_kept`, `segment_wiped`, `queue_file_deleted`, `index_file_deleted`,
    `appends_refused`, `appends_resumed`, `compacted` (by the background), or `warning` (a note of the open, such as a
    damaged configuration file)."""
    file: ExpiredFile | None
    """File of the event, or None."""
    detail: str
    """Description."""
