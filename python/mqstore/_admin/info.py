"""Results of `info`: frozen dataclasses whose `to_dict` is their JSON form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from mqstore._reports import SegmentHolder, _Report

if TYPE_CHECKING:
    from collections.abc import Mapping


__all__ = [
    "DelayedInfo", "DledgerInfo", "DledgerTerm", "GroupInfo", "GroupOffset", "HourRate", "PartSize", "PoppedInfo",
    "QueueRange", "StoreInfo", "TieredInfo", "TopicInfo", "UndecidedInfo", "WorkQueueInfo",
]  # fmt: skip

SYSTEM_GROUPS = "CID_RMQ_SYS_"
"""The names of the groups of a store itself begin with this."""


@dataclass(frozen=True, slots=True)
class QueueRange(_Report):
    """Offsets of one queue that can be read: from `min_offset` to `max_offset`, exclusive."""

    queue_id: int
    min_offset: int
    max_offset: int


@dataclass(frozen=True, slots=True)
class TopicInfo(_Report):
    """A topic of `StoreInfo`."""

    topic: str
    queues: tuple[QueueRange, ...]


@dataclass(frozen=True, slots=True)
class PartSize(_Report):
    """Space of one part of a store's directory."""

    part: str
    """Folder or file."""
    files: int
    """Number of files."""
    bytes: int
    """Total length of the files, holes included."""
    disk_bytes: int
    """Bytes that the files occupy on the disk."""
    link: str | None = None
    """Folder to which the part leads, if it is a symbolic link, for example to another disk; else None."""


@dataclass(frozen=True, slots=True)
class GroupOffset(_Report):
    """Progress of a consumer group in a queue."""

    queue_id: int
    offset: int
    """Offset that the group reads next."""
    lag: int | None
    """Messages from there to the end of the queue. Negative if the end of the queue was lost and the group is ahead of
    it; None if the store has no such queue."""


@dataclass(frozen=True, slots=True)
class GroupInfo(_Report):
    """Progress of a consumer group in a topic, from the files of a broker."""

    group: str
    topic: str
    queues: tuple[GroupOffset, ...]

    @property
    def lag(self) -> int:
        """Messages of all queues that the group has not read."""
        return sum(max(queue.lag or 0, 0) for queue in self.queues)


@dataclass(frozen=True, slots=True)
class PoppedInfo(_Report):
    """Messages of a queue that a broker delivered to a group by pop and that are not acknowledged."""

    group: str
    topic: str
    """Topic of the pop; can be a retry topic."""
    queue_id: int
    messages: int
    first_due: int
    """Time of the first redelivery, in epoch milliseconds."""
    last_due: int
    """Time of the last redelivery, in epoch milliseconds."""


@dataclass(frozen=True, slots=True)
class DelayedInfo(_Report):
    """Delayed messages that are not delivered yet, without cancelled messages."""

    kind: str
    """`timer` for exact times, `levels` for delay levels."""
    messages: int
    first_due: int
    """Earliest delivery time, in epoch milliseconds; for exact times accurate to a second."""
    overdue: int
    """Messages whose delivery time has passed."""
    within_minute: int
    """Messages due within a minute."""
    within_hour: int
    """Messages due later, within an hour."""
    within_day: int
    """Messages due later, within a day."""
    within_three_days: int
    """Messages due later, within three days."""
    later: int
    """Messages due after that."""


@dataclass(frozen=True, slots=True)
class UndecidedInfo(_Report):
    """Pending transactions of a producer group."""

    producer_group: str
    transactions: int
    messages: int
    """Their half messages."""
    oldest_timestamp: int
    """Store time of the oldest half message, in epoch milliseconds."""
    checks: int
    """Largest number of checks of one of these transactions."""


@dataclass(frozen=True, slots=True)
class HourRate(_Report):
    """Amount of data appended to the log in one hour."""

    start_timestamp: int
    """Start of the hour, in epoch milliseconds."""
    bytes: int
    """Bytes appended to the log in this hour."""


@dataclass(frozen=True, slots=True)
class DledgerTerm(_Report):
    """Raft entries of one term of `DledgerInfo`: from `first_index` to `last_index`, inclusive."""

    term: int
    first_index: int
    last_index: int


@dataclass(frozen=True, slots=True)
class DledgerInfo(_Report):
    """Raft entries in the directory of a broker that ran with DLedger."""

    member_id: str
    """Id of the member of the group: the folder is `dledger-<id>`."""
    data_files: int
    """Number of data files."""
    data_min_offset: int
    """Log offset of the first data file. Messages before it are from before the upgrade to DLedger."""
    first_index: int | None
    """Number of the first entry; None without entries."""
    last_index: int | None
    """Number of the last entry that is read; None without entries."""
    committed_index: int | None
    """Number of the last committed entry according to DLedger's checkpoint; None if it does not say."""
    current_term: int | None
    """Term of the member; None if it is not known."""
    terms: tuple[DledgerTerm, ...]
    """Terms of the entries, in order; empty if the Raft index does not have them."""


@dataclass(frozen=True, slots=True)
class TieredInfo(_Report):
    """Files of one broker in a tiered store of RocketMQ."""

    cluster: str | None
    """Name of the cluster; None if the folder above that of the broker has another name."""
    broker: str
    """Name of the broker."""
    folder: str
    """Folder of the broker."""
    files: int
    """Number of files of logs and queues."""
    bytes: int
    """Their bytes."""


@dataclass(frozen=True, slots=True)
class WorkQueueInfo(_Report):
    """Messages of a work queue, by state."""

    group: str
    """Group."""
    topic: str
    """Topic."""
    ready: int
    """Messages without a lease that are due."""
    delayed: int
    """Messages that are due later: returned, or put with a delay. `info` looks at 100,000 new ones of each queue."""
    leased: int
    """Messages with a lease."""
    dying: int
    """Messages that become dead letters."""
    dead: int
    """Dead letters of the group that were neither redriven nor deleted."""


@dataclass(frozen=True, slots=True)
class StoreInfo(_Report):
    """Result of `mqstore.info`."""

    layout: str
    """Storage of the queues: `file-queues`, `rocksdb-queues`, `tiered-files` or `log-only`."""
    written_by: str
    """Last writer, as far as the files show: `mqstore`, `rocketmq` or `rocketmq-5.5`; `unknown` for a log without a
    store."""
    clean: bool
    """Whether the last writer closed the store and no writer is active."""
    segment_size: int
    """Bytes of a commit log segment; 0 if there is none."""
    queue_file_size: int | None
    """Bytes of a consume queue file; None if there is no queue."""
    queue_entry_bytes: int
    """Bytes of readable units in consume queues; the rest of their files is empty or expired."""
    index_slots: int | None
    """Hash slots of an index file; None if there is none."""
    index_entries: int | None
    """Entries of an index file; None if there is none."""
    log_min_offset: int
    """First byte of the commit log."""
    log_max_offset: int
    """One past the last byte of the commit log."""
    min_store_timestamp: int | None
    """Store time of the first message in a queue, in epoch milliseconds; None without messages."""
    max_store_timestamp: int | None
    """Store time of the last message in a queue, in epoch milliseconds; None without messages."""
    messages: int
    """Messages that can be read from queues."""
    hours: tuple[HourRate, ...]
    """Data rates of the hours up to the last message, oldest first, at most 48."""
    topics: tuple[TopicInfo, ...]
    """Topics, sorted by name."""
    parts: tuple[str, ...]
    """Existing folders and files of the store."""
    disk: tuple[PartSize, ...]
    """Space of each part."""
    consumers: tuple[GroupInfo, ...]
    """Progress of consumer groups by topic, from the metadata log or from `config/consumerOffset.json`."""
    popped: tuple[PoppedInfo, ...]
    """Pop deliveries of a broker without acknowledgement, except those that a group of mqstore has taken over."""
    delayed: tuple[DelayedInfo, ...]
    """Delayed messages by kind, from files that the writer saves every second."""
    work_queues: tuple[WorkQueueInfo, ...]
    """Work queues, by group and topic."""
    undecided: tuple[UndecidedInfo, ...]
    """Pending transactions by producer group."""
    segments_kept_by: tuple[SegmentHolder, ...]
    """Messages that keep segments before the active one from a deletion by age, by log offset: of each group in each
    topic the first unfinished one, and the first delayed message and half message."""
    dledger: tuple[DledgerInfo, ...]
    """Raft entries: one item if a broker with DLedger wrote the directory, else none."""
    tiered: tuple[TieredInfo, ...]
    """Files of a tiered store: one item if the directory is one, else none."""
    rocksdb: bool
    """Whether RocksDB contains a part of the store."""
    rocksdb_folders: tuple[str, ...]
    """Folders of the RocksDB databases. mqstore reads none of them; `notes` says what that means for each."""
    locked: bool
    """Whether a process has the store open for writing."""
    writer_pid: int | None
    """Process id of the writer, if the system reports it."""
    writer_open_files: int | None
    """Files that the process of the writer has open; None without a writer, or if the system does not show them."""
    writer_open_files_limit: int | None
    """Maximum of `writer_open_files` (`ulimit -n`). The stores of the process keep at most half of it open."""
    notes: tuple[str, ...]
    """Notes for a person."""

    @classmethod
    def _from_dict(cls, values: Mapping[str, Any]) -> Self:
        dledger = [(*places, *rest) for places, rest in values["dledger"]]
        delayed = [(*facts, *by_due) for *facts, by_due in values["delayed"]]
        work = [(*names, *counts) for *names, counts in values["work_queues"]]
        return super(StoreInfo, cls)._from_dict({**values, "dledger": dledger, "delayed": delayed, "work_queues": work})


# Tracebacks and pickles show the public name of a class.
for _name in __all__:
    globals()[_name].__module__ = "mqstore"
del _name
