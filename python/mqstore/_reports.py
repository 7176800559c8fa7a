"""What the verbs on whole directories answer: frozen dataclasses whose `to_dict` is the JSON form."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class _Report:
    """Conversion to and from the JSON form, whose names are the fields' names."""

    __slots__ = ()

    @classmethod
    def _from_json(cls, text: str) -> Self:
        return cls._from_dict(json.loads(text))

    def to_dict(self) -> dict[str, Any]:
        """The report as JSON would have it: plain dicts, lists, strings and numbers."""
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}  # type: ignore[arg-type]

    @classmethod
    def _from_dict(cls, values: Mapping[str, Any]) -> Self:
        return cls(**values)


def _plain(value: Any) -> Any:
    if isinstance(value, _Report):
        return value.to_dict()
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return value


@dataclass(frozen=True, slots=True)
class Progress(_Report):
    """How far a long call has come; what `progress=` callbacks get."""

    done: int
    """Bytes done."""
    total: int
    """Bytes in all."""


@dataclass(frozen=True, slots=True)
class QueueInfo(_Report):
    """One queue: offsets that can be read, and when its first and last messages were stored."""

    queue_id: int
    min_offset: int
    """The first offset that can be read."""
    max_offset: int
    """One past the last offset that can be read."""
    min_store_timestamp: int | None = None
    """When the first message was stored, in epoch milliseconds; None for an empty queue."""
    max_store_timestamp: int | None = None
    """When the last message was stored, in epoch milliseconds; None for an empty queue."""

    @property
    def count(self) -> int:
        """Offsets between the two ends; fewer messages where the queue has gaps."""
        return self.max_offset - self.min_offset


@dataclass(frozen=True, slots=True)
class NamespaceInfo(_Report):
    """How much of a namespace there is."""

    topics: int = 0
    """Topics, those of retries and dead letters included."""
    groups: int = 0
    """Consumer groups."""


@dataclass(frozen=True, slots=True)
class TopicQuota(_Report):
    """What a topic may hold, and what it does."""

    max_messages: int
    """Messages that it may hold."""
    messages: int
    """Messages that it holds in the commit log."""


@dataclass(frozen=True, slots=True)
class Problem(_Report):
    """Something wrong in a store."""

    kind: str
    """A stable word for it."""
    path: str
    """The file or folder."""
    offset: int | None
    """The byte in the file, where there is one."""
    detail: str
    """What is wrong."""
    consequence: str
    """What it means for a user of the store."""
    repair: str
    """What to do about it."""


@dataclass(frozen=True, slots=True)
class VerifyReport(_Report):
    """What `mqstore.verify` found."""

    ok: bool
    """Whether there is no problem."""
    messages: int
    """Messages in the log that hold together."""
    bytes: int
    """Bytes that were checked."""
    problems: tuple[Problem, ...] = ()
    """What is wrong, in the order in which it was found."""

    @classmethod
    def _from_dict(cls, values: Mapping[str, Any]) -> Self:
        problems = [Problem(**problem) for problem in values["problems"]]
        if values["more"]:
            problems.append(
                Problem(
                    kind="more",
                    path="",
                    offset=None,
                    detail=f"{values['more']} further problems were found and not listed",
                    consequence="as of those above",
                    repair="repair what is listed, then verify again",
                )
            )
        return cls(values["ok"], values["messages"], values["bytes"], tuple(problems))


@dataclass(frozen=True, slots=True)
class LostRange(_Report):
    """A stretch of the log that no message can be read from any more."""

    path: str
    """The segment."""
    offset: int
    """The first byte in it."""
    log_offset: int
    """The first byte in the log."""
    bytes: int
    """How many bytes."""
    reason: str
    """What was wrong with them."""
    kept_as: str | None
    """The copy of them; None where nothing but zeros was there, and in a dry run."""


@dataclass(frozen=True, slots=True)
class LostOffsets(_Report):
    """Offsets of a queue that no record has: `from_offset` to before `to_offset`."""

    topic: str
    queue_id: int
    from_offset: int
    to_offset: int


@dataclass(frozen=True, slots=True)
class RepairReport(_Report):
    """What `mqstore.repair` found and did."""

    path: str
    """The directory."""
    output: str | None
    """The repaired copy; None for a repair in place."""
    dry_run: bool
    """Whether nothing was changed."""
    changed: bool
    """Whether something was changed; in a dry run, whether something would be."""
    ok: bool
    """Whether `verify` finds nothing: of the result, in a dry run of the store as it is."""
    messages: int
    """Messages in the log that hold together."""
    lost: tuple[LostRange, ...] = ()
    """Stretches of the log that were replaced, in log order."""
    queue_offsets: tuple[LostOffsets, ...] = ()
    """Queue offsets that no record has, as far as no repair has told them before."""
    actions: tuple[str, ...] = ()
    """What was done, or would be, in words."""
    problems: tuple[Problem, ...] = ()
    """What `verify` finds: of the result, in a dry run of the store as it is."""

    @classmethod
    def _of(cls, path: str, output: str | None, dry_run: bool, values: Mapping[str, Any]) -> Self:
        found = VerifyReport._from_dict({**values, "bytes": 0})
        return cls(
            path=path,
            output=output,
            dry_run=dry_run,
            changed=values["changed"],
            ok=values["ok"],
            messages=values["messages"],
            lost=tuple(LostRange(**one) for one in values["lost"]),
            queue_offsets=tuple(LostOffsets(*one) for one in values["queue_offsets"]),
            actions=tuple(values["actions"]),
            problems=found.problems,
        )


@dataclass(frozen=True, slots=True)
class SnapshotReport(_Report):
    """What `Store.snapshot` copied."""

    path: str
    """The snapshot."""
    log_min_offset: int
    """Where its log begins."""
    log_max_offset: int
    """Where its log ends: everything before is in it, nothing behind."""
    messages: int
    """Messages in its log."""
    linked_segments: int
    """Segments that are further names of the store's own files, which neither changes any more."""
    copied_segments: int
    """Segments that are files of their own; where the file system can, they share blocks with the store's."""


@dataclass(frozen=True, slots=True)
class RebuildReport(_Report):
    """What `mqstore.rebuild` and `Store.rebuild` made from the log."""

    dry_run: bool
    """Whether nothing was changed."""
    messages: int
    """Records of the log that were looked at."""
    bytes: int
    """Bytes of the log."""
    queues: int
    """Queues that have entries."""
    index_entries: int
    """Entries of the key index."""
    seconds: float
    """How long it took."""
    skipped: tuple[str, ...] = ()
    """Damage in the log that was passed over, in words: messages there may be lost."""

    @classmethod
    def _timed(cls, work: Callable[[], Mapping[str, Any]], *, dry_run: bool = False) -> Self:
        started = time.perf_counter()
        values = dict(work())
        skipped = tuple(values.pop("skipped"))
        return cls(dry_run=dry_run, seconds=time.perf_counter() - started, skipped=skipped, **values)


@dataclass(frozen=True, slots=True)
class StoreStats(_Report):
    """Where an open store stands; offsets are bytes of the commit log."""

    appends: int
    """Messages appended since the open."""
    appended_bytes: int
    """Bytes of their records."""
    log_min_offset: int
    """The first byte of the log."""
    log_max_offset: int
    """One past the last byte that can be read."""
    durable_offset: int
    """One past the last byte that a sync covers."""
    dispatched_offset: int
    """How far queues and index are built."""
    segments: int
    """Segments of the log."""
    segment_size: int
    """Bytes of a segment."""
    expired_segments: int = 0
    """Segments deleted since the open."""
    expired_bytes: int = 0
    """Bytes of files deleted since the open, queue and index files included."""
    refused_appends: int = 0
    """Appends refused since the open: the store was busy, the disk nearly full, or a quota used up."""
    hot_reads: int = 0
    """Records that this process read near the end of the log since the open, within 40 % of the machine's memory."""
    cold_reads: int = 0
    """Records that it read from further behind, and so probably from the disk."""
    reader_lag_bytes: int = 0
    """How far behind the end the farthest of these was since the figures were asked for last; 0 when nobody is late."""
    log_bytes: int = 0
    """Bytes of the log's segments."""
    max_bytes: int | None = None
    """How many there may be: the option; None without a limit, and in a store that is open for reading."""


@dataclass(frozen=True, slots=True)
class ExpiredFile(_Report):
    """A file that was deleted because it is old, or would be."""

    path: str
    """Where it is, or was."""
    kind: str
    """`"segment"` of the commit log, `"queue"` file or `"index"` file."""
    bytes: int
    """Its length."""
    first_offset: int
    """The first offset in it: a byte of the commit log, an entry of a queue, or for an index file the log
    offset of its first message."""
    last_offset: int
    """The last one."""
    first_store_timestamp: int | None
    """When a segment's first message was stored, in epoch milliseconds; None where it cannot be read."""
    last_store_timestamp: int | None
    """When its last message was stored."""
    reason: str
    """Why it goes, in words that start with `age`, `size`, `disk` or `log` (its part of the log is gone)."""


@dataclass(frozen=True, slots=True)
class ExpireReport(_Report):
    """What `Store.expire` deleted, or would delete."""

    dry_run: bool
    """Whether nothing was changed."""
    files: tuple[ExpiredFile, ...]
    """The files: segments, then queue files, then index files, each oldest first."""
    segments: int
    """How many of them are segments."""
    bytes: int
    """Bytes of all of them."""
    log_min_offset: int
    """The first byte of the commit log afterwards."""
    kept: tuple[str, ...] = ()
    """What was due and stays for now, each with its reason."""

    @classmethod
    def _from_dict(cls, values: Mapping[str, Any]) -> Self:
        files = tuple(ExpiredFile(**file) for file in values["files"])
        return cls(**{**values, "files": files, "kept": tuple(values["kept"])})


@dataclass(frozen=True, slots=True)
class StoreEvent(_Report):
    """Something that happened in a store; what the option `on_event` is called with."""

    kind: str
    """`segment_deleted`, `segment_kept`, `segment_wiped`, `queue_file_deleted`, `index_file_deleted`,
    `appends_refused`, `appends_resumed`, `compacted` (by the background)."""
    file: ExpiredFile | None
    """The file, where it is about one."""
    detail: str
    """In words."""

    @classmethod
    def _from_dict(cls, values: Mapping[str, Any]) -> Self:
        file = values["file"]
        return cls(values["kind"], None if file is None else ExpiredFile(**file), values["detail"])


@dataclass(frozen=True, slots=True)
class CompactionReport(_Report):
    """What `mqstore.compact` did."""

    messages_before: int
    """Messages that were read."""
    messages_after: int
    """Messages that were kept."""
    keys: int
    """Different keys that were seen."""
    rounds: int
    """Passes that the queue with the most of them needed."""
    bytes_before: int
    """Bytes of the records that were read."""
    bytes_after: int
    """Bytes of the records that were kept."""
    seconds: float
    """From the plan to the publication."""
    skipped: tuple[str, ...] = ()
    """What was left out, each as `topic/queue: reason`; the reason is `unchanged` for what was done before."""
    keyless: int = 0
    """Messages without a key; dropped, unless they were to be kept."""
    tombstones: int = 0
    """Messages without a body, which delete their key."""
    tombstones_kept: int = 0
    """Those of them that were kept, so that slow readers see them."""
    job_id: str = ""
    """The job; one that was published before does nothing."""

    @classmethod
    def _from_dict(cls, values: Mapping[str, Any]) -> Self:
        """From the report of a job as the core gives it."""
        names = ("messages_before", "messages_after", "keys", "rounds", "bytes_before", "bytes_after",
                 "keyless", "tombstones", "tombstones_kept", "job_id")  # fmt: skip
        counts = {name: values[name] for name in names}
        return cls(**counts, seconds=values["elapsed_ms"] / 1000, skipped=tuple(values["skipped"]))


@dataclass(frozen=True, slots=True)
class RestoredQueue(_Report):
    """A queue whose lost compaction files were made anew."""

    topic: str
    queue_id: int
    until: int
    """One past the last offset that was lost: the first one that the commit log here has."""
    messages: int
    """Messages that were pulled from the other store."""
    bytes: int
    """Bytes of their records."""
    resumed: int
    """Messages that a call before, which was stopped, had pulled."""


@dataclass(frozen=True, slots=True)
class RestoreReport(_Report):
    """What `restore_compaction` did, or would do."""

    source: str
    """The other store's directory."""
    dry_run: bool
    """Whether nothing was changed."""
    queues: tuple[RestoredQueue, ...]
    """The queues that were restored."""
    skipped: tuple[str, ...]
    """What was left out, each as `topic/queue: reason`; the reason is `nothing is missing` for whole queues."""
    compaction: CompactionReport | None
    """What the compaction of the restored queues did; None when there was none."""

    @classmethod
    def _from_dict(cls, values: Mapping[str, Any]) -> Self:
        queues = tuple(RestoredQueue(**queue) for queue in values["queues"])
        done = values["compaction"]
        compaction = None if done is None else CompactionReport._from_dict(done)
        return cls(**{**values, "queues": queues, "skipped": tuple(values["skipped"]), "compaction": compaction})


@dataclass(frozen=True, slots=True)
class ExportReport(_Report):
    """What `mqstore.export` wrote."""

    path: str
    """The file, or the store."""
    format: str
    """`jsonl`, `parquet`, `arrow` or `store`."""
    messages: int
    """Messages in it; of a store, those that were appended."""
    bytes: int
    """Length of the file; of a store, of the mapping."""
    left_out: int
    """Records that no queue holds, which a store does not get: half messages and rollbacks."""
    resumed: bool
    """Whether it went on where an earlier call was interrupted; the counts are of both."""
    seconds: float
    """How long it took."""


@dataclass(frozen=True, slots=True)
class ImportReport(_Report):
    """What `mqstore.import_` appended, or would append."""

    path: str
    """The store."""
    source: str
    """The file."""
    format: str
    """`jsonl`, `parquet` or `arrow`."""
    messages: int
    """Messages appended."""
    left_out: int
    """Rows that no queue holds: half messages and rollbacks."""
    topics: dict[str, int]
    """Messages by topic."""
    dry_run: bool
    """Whether nothing was appended."""
    seconds: float
    """How long it took."""


for _class in (
    ExportReport,
    ImportReport,
    Progress,
    QueueInfo,
    NamespaceInfo,
    TopicQuota,
    Problem,
    VerifyReport,
    StoreStats,
    ExpiredFile,
    ExpireReport,
    StoreEvent,
    CompactionReport,
    RestoredQueue,
    RestoreReport,
    RebuildReport,
    LostRange,
    LostOffsets,
    RepairReport,
    SnapshotReport,
):
    _class.__module__ = "mqstore"
del _class
