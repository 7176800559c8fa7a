"""Facts about an open store: its queues, namespaces and quotas, its counters and positions."""

from __future__ import annotations

from dataclasses import dataclass

from mqstore._reports.base import _Report
from mqstore._reports.retention import SegmentHolder  # noqa: TC001 - the type of a field


@dataclass(frozen=True, slots=True)
class QueueInfo(_Report):
    """One queue: its range of offsets, and the store times of its first and last message."""

    queue_id: int
    min_offset: int
    """First offset that can be read."""
    max_offset: int
    """One past the last offset that can be read."""
    min_store_timestamp: int | None = None
    """Store time of the first message, in epoch milliseconds; None for an empty queue."""
    max_store_timestamp: int | None = None
    """Store time of the last message, in epoch milliseconds; None for an empty queue."""

    @property
    def count(self) -> int:
        """Number of offsets from `min_offset` to `max_offset`; with gaps in the queue there are fewer messages."""
        return self.max_offset - self.min_offset


@dataclass(frozen=True, slots=True)
class NamespaceInfo(_Report):
    """Number of topics and groups in a namespace."""

    topics: int = 0
    """Topics, retry and dead-letter topics included."""
    groups: int = 0
    """Consumer groups."""


@dataclass(frozen=True, slots=True)
class TopicQuota(_Report):
    """Quota and current number of messages of a topic."""

    max_messages: int
    """Maximum number of messages in the topic."""
    messages: int
    """Number of its messages in the commit log."""


@dataclass(frozen=True, slots=True)
class StoreStats(_Report):
    """Counters and positions of an open store. Offsets are log offsets, in bytes."""

    appends: int
    """Messages appended since the open."""
    appended_bytes: int
    """Bytes of these records."""
    log_min_offset: int
    """First byte of the log."""
    log_max_offset: int
    """One past the last byte that can be read."""
    durable_offset: int
    """One past the last synced byte."""
    dispatched_offset: int
    """Offset up to which queues and index are built."""
    segments: int
    """Segments of the log."""
    segment_size: int
    """Bytes of one segment."""
    expired_segments: int = 0
    """Segments deleted since the open."""
    expired_bytes: int = 0
    """Bytes of the files deleted since the open, queue and index files included."""
    held_files: tuple[str, ...] = ()
    """Paths of deleted segments whose space is not free yet: the program still has views of their bytes, or reads them.
    Their space is free within a second after the last view is gone."""
    refused_appends: int = 0
    """Appends refused since the open, because the store was busy, the disk nearly full, or a quota used up."""
    hot_reads: int = 0
    """Records that this process has read near the end of the log since the open: within 40 % of the machine's
    memory."""
    cold_reads: int = 0
    """Records that this process has read further from the end, and therefore probably from the disk."""
    reader_lag_bytes: int = 0
    """Largest distance of a cold read from the end of the log since the last call of `stats`; 0 without cold reads."""
    paced_reads: int = 0
    """Reads of the log from the disk by this process that waited for their turn since the open, because a writer of the
    store synced."""
    paced_read_ms: int = 0
    """Total time of these waits in milliseconds."""
    skipped_damage: int = 0
    """Damaged records, or damaged parts of the log, that reads of this process skipped since the open."""
    log_bytes: int = 0
    """Bytes of all segments of the log."""
    max_bytes: int | None = None
    """Maximum of `log_bytes`, from the option `max_bytes`; None without a limit and in a store opened for reading."""
    open_files: int = 0
    """Queue and index files that this store has open now."""
    max_open_files: int = 0
    """Maximum of `open_files`: the option `max_open_files`, or the store's share of the process's limit."""
    followers: int = 0
    """Connected replicas, with the option `replication`."""
    in_sync_copies: int = 1
    """Copies that are in sync, this store included."""
    needed_copies: int = 1
    """Copies that an append with `replicated` waits for now, this store included."""
    replicated_offset: int | None = None
    """Log offset up to which that many copies have the log; None without the option `replication`."""
    follower_lag_bytes: int = 0
    """Largest number of bytes of the log that a connected replica does not have."""
    segments_kept_by: tuple[SegmentHolder, ...] = ()
    """Messages that keep the oldest segment that is due by age, by log offset: of each group in each topic the first
    unfinished one, and the first delayed message and half message. Empty in a store opened for reading."""
