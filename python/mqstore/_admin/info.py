"""What `info` answers, as frozen dataclasses whose `to_dict` is the JSON form."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from mqstore._reports import _Report

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class QueueRange(_Report):
    """The offsets of one queue that can be read: `min_offset` to before `max_offset`."""

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
    """The room that a part of a store's directory takes."""

    part: str
    """The folder or file."""
    files: int
    """How many files."""
    bytes: int
    """Bytes of them, holes included."""
    disk_bytes: int
    """Bytes that they occupy on the disk."""


@dataclass(frozen=True, slots=True)
class GroupOffset(_Report):
    """How far a consumer group has come in a queue."""

    queue_id: int
    offset: int
    """The offset that the group consumes next."""
    lag: int | None
    """Messages from there to the queue's end; negative where the group is ahead of a queue that lost its end; None
    where the store has no such queue."""


@dataclass(frozen=True, slots=True)
class GroupInfo(_Report):
    """How far a consumer group has come in a topic, by the files of a broker."""

    group: str
    topic: str
    queues: tuple[GroupOffset, ...]

    @property
    def lag(self) -> int:
        """Messages of all queues that the group has not consumed."""
        return sum(max(queue.lag or 0, 0) for queue in self.queues)


@dataclass(frozen=True, slots=True)
class PoppedInfo(_Report):
    """Messages of a queue that a broker handed out to a group, and that nobody acknowledged."""

    group: str
    topic: str
    """The topic that was popped from; it may be a retry topic."""
    queue_id: int
    messages: int
    first_due: int
    """When the first of them comes again, in epoch milliseconds."""
    last_due: int
    """When the last of them does."""


@dataclass(frozen=True, slots=True)
class DelayedInfo(_Report):
    """Delayed messages that wait to be delivered; what was cancelled is not among them."""

    kind: str
    """How they wait: `timer`, each until a time of its own, or `levels`, by a delay level."""
    messages: int
    first_due: int
    """When the first of them is due, in epoch milliseconds; of those with a time within a second."""
    overdue: int
    """How many are due already."""
    within_minute: int
    """How many are due within a minute."""
    within_hour: int
    """How many are due after that, within an hour."""
    within_day: int
    """How many are due after that, within a day."""
    within_three_days: int
    """How many are due after that, within three days."""
    later: int
    """How many are due later."""


@dataclass(frozen=True, slots=True)
class UndecidedInfo(_Report):
    """Transactions of a producer group that nobody committed or rolled back."""

    producer_group: str
    transactions: int
    messages: int
    """Half messages of them."""
    oldest_timestamp: int
    """When the first of these was stored, in epoch milliseconds."""
    checks: int
    """How often the group was asked about the one that it was asked about most often."""


@dataclass(frozen=True, slots=True)
class HourRate(_Report):
    """What was written to the log within an hour."""

    start_timestamp: int
    """When it begins, in epoch milliseconds."""
    bytes: int
    """Bytes of the log that were stored in it."""


@dataclass(frozen=True, slots=True)
class StoreInfo(_Report):
    """What `mqstore.info` sees."""

    layout: str
    """How queues are kept: `file-queues`, `rocksdb-queues` or `log-only`."""
    written_by: str
    """Who wrote the directory last, as far as it shows: `mqstore`, `rocketmq`, `rocketmq-5.5`; `unknown` of a log
    without a store around it."""
    clean: bool
    """Whether the last writer closed it, and nobody writes now."""
    segment_size: int
    """Bytes of a commit-log segment; 0 when there is none."""
    queue_file_size: int | None
    """Bytes of a consume-queue file; None where there is no queue."""
    queue_entry_bytes: int
    """Bytes of the entries of consume queues that can be read; the rest of their files is empty, or expired."""
    index_slots: int | None
    """Hash slots of a key index file; None where there is none."""
    index_entries: int | None
    """Entries of a key index file; None where there is none."""
    log_min_offset: int
    """The first byte of the commit log."""
    log_max_offset: int
    """One past its last byte."""
    min_store_timestamp: int | None
    """When the first message that can be read by queue was stored, in epoch milliseconds; None without messages."""
    max_store_timestamp: int | None
    """When the last one was stored."""
    messages: int
    """Messages that can be read by queue."""
    hours: tuple[HourRate, ...]
    """The hours up to the last message, at most 48 of them, oldest first."""
    topics: tuple[TopicInfo, ...]
    """The topics in order of their names."""
    parts: tuple[str, ...]
    """Folders and files of a store that are there."""
    disk: tuple[PartSize, ...]
    """The room that each of them takes."""
    consumers: tuple[GroupInfo, ...]
    """How far consumer groups have come, by topic and group: from the metadata log or `config/consumerOffset.json`."""
    popped: tuple[PoppedInfo, ...]
    """What a broker handed out one by one and nobody acknowledged, as far as no group has taken it over here."""
    delayed: tuple[DelayedInfo, ...]
    """Messages that wait to be delivered, by how they wait, as their writer saved it: a second old at most."""
    undecided: tuple[UndecidedInfo, ...]
    """Transactions that nobody decided, by producer group."""
    rocksdb: bool
    """Whether RocksDB holds a part of it."""
    locked: bool
    """Whether a process has it open for writing."""
    writer_pid: int | None
    """That process, where the system tells."""
    notes: tuple[str, ...]
    """What a person should know."""

    @classmethod
    def _from_dict(cls, values: Mapping[str, Any]) -> Self:
        topics = tuple(
            TopicInfo(topic, tuple(QueueRange(*queue) for queue in queues)) for topic, queues in values["topics"]
        )
        consumers = tuple(
            GroupInfo(group, topic, tuple(GroupOffset(*queue) for queue in queues))
            for group, topic, queues in values["consumers"]
        )
        lists = {
            "hours": tuple(HourRate(*hour) for hour in values["hours"]),
            "topics": topics,
            "parts": tuple(values["parts"]),
            "disk": tuple(PartSize(*part) for part in values["disk"]),
            "consumers": consumers,
            "popped": tuple(PoppedInfo(*queue) for queue in values["popped"]),
            "delayed": tuple(
                DelayedInfo(kind, messages, due, *by_due) for kind, messages, due, by_due in values["delayed"]
            ),
            "undecided": tuple(UndecidedInfo(*group) for group in values["undecided"]),
            "notes": tuple(values["notes"]),
        }
        return cls(**{**values, **lists})


for _class in (
    QueueRange,
    TopicInfo,
    PartSize,
    GroupOffset,
    GroupInfo,
    PoppedInfo,
    DelayedInfo,
    UndecidedInfo,
    HourRate,
    StoreInfo,
):
    _class.__module__ = "mqstore"
del _class
