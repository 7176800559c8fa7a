"""Results of the verbs on stores and directories: frozen dataclasses whose `to_dict` is their JSON form."""

from __future__ import annotations

import json
import time
import warnings
from dataclasses import dataclass, fields
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Self

from mqstore.errors import StoreWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import pandas as pd
    import polars as pl


class _Report:
    """Conversion to and from the JSON form, and to tables. The JSON names are the field names."""

    __slots__ = ()

    @classmethod
    def _from_json(cls, text: str) -> Self:
        return cls._from_dict(json.loads(text))

    def to_dict(self) -> dict[str, Any]:
        """Returns the report in JSON types: dicts, lists, strings and numbers."""
        return {field.name: _plain(getattr(self, field.name)) for field in fields(self)}  # type: ignore[arg-type]

    def to_pandas(self, part: str | None = None) -> pd.DataFrame:
        """Returns the report as a `pandas.DataFrame`. The columns and values are those of `to_dict`.

        Args:
            part: name of a field that is a list, such as `"problems"`: one row for each of its elements. None is one
                row with all other fields.

        Raises:
            ImportError: pandas is not installed (`pip install "mqstore[pandas]"`).
            ValueError: `part` is no list of this report.
        """
        from mqstore._admin import tables

        return tables.pandas_frame(self.to_dict(), part)

    def to_polars(self, part: str | None = None) -> pl.DataFrame:
        """Returns the report as a `polars.DataFrame`. The columns and values are those of `to_dict`.

        Args:
            part: as for `to_pandas`.

        Raises:
            ImportError: Polars is not installed (`pip install "mqstore[polars]"`).
            ValueError: `part` is no list of this report.
        """
        from mqstore._admin import tables

        frame: pl.DataFrame = tables.polars_frame(self.to_dict(), part)
        return frame

    def _repr_html_(self) -> str:
        """Returns the report as HTML for notebooks, with units."""
        from mqstore._admin import tables

        return tables.html(self.to_dict(), type(self).__name__)

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
    """Progress of a long call, for `progress=` callbacks."""

    done: int
    """Bytes processed."""
    total: int
    """Bytes in total."""


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
    """Estimate of the dead bytes that are whole pages of the file system, in segments before the last two."""

    @property
    def keep(self) -> timedelta | None:
        """Maximum age of a message; None without this limit."""
        return None if self.keep_seconds is None else timedelta(seconds=self.keep_seconds)

    @classmethod
    def _of_row(
        cls,
        topic: str,
        limits: tuple[int | None, int | None, int | None],
        floor: int,
        measured: tuple[int, int, int],
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
    """Segment with hidden records that `Store.reclaim` did not rewrite."""

    path: str
    """File."""
    log_offset: int
    """Log offset of its first byte."""
    dead_bytes: int
    """Bytes of its hidden records."""
    estimated_bytes: int
    """Estimate of the bytes that a rewrite would free."""
    reason: str
    """Why it stays."""


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
    """Other segments with hidden records, in log order, each with the reason."""

    @property
    def reclaimed_bytes(self) -> int:
        """Bytes of disk space that were freed; 0 for a dry run."""
        return sum(segment.reclaimed_bytes for segment in self.segments)

    @classmethod
    def _of_row(
        cls,
        dry_run: bool,
        topics: Iterable[tuple[str, int, int, int, int]],
        segments: Iterable[tuple[str, int, int, int, int, int, int]],
        kept: Iterable[tuple[str, int, int, int, str]],
    ) -> Self:
        return cls(
            dry_run,
            tuple(ReclaimedTopic(*row) for row in topics),
            tuple(ReclaimedSegment(*row) for row in segments),
            tuple(KeptSegment(*row) for row in kept),
        )


@dataclass(frozen=True, slots=True)
class Problem(_Report):
    """One damage in a store."""

    kind: str
    """Stable identifier of the kind of damage."""
    path: str
    """File or folder."""
    offset: int | None
    """Offset in the file in bytes, or None."""
    detail: str
    """Description of the damage."""
    consequence: str
    """Effect on users of the store."""
    repair: str
    """How to repair it."""


@dataclass(frozen=True, slots=True)
class VerifyReport(_Report):
    """Result of `mqstore.verify`."""

    ok: bool
    """Whether there is no problem."""
    messages: int
    """Valid messages in the log."""
    bytes: int
    """Bytes checked."""
    problems: tuple[Problem, ...] = ()
    """Problems, in the order in which they were found."""

    @classmethod
    def _from_dict(cls, values: Mapping[str, Any]) -> Self:
        for note in values.get("notes", ()):
            # The frames are this one, the verb, and its caller.
            warnings.warn(note, StoreWarning, stacklevel=3)
        problems = [Problem(**problem) for problem in values["problems"]]
        if values["more"]:
            problems.append(
                Problem(
                    kind="more",
                    path="",
                    offset=None,
                    detail=f"{values['more']} further problems are not listed",
                    consequence="as for the problems above",
                    repair="repair the listed problems, then verify again",
                )
            )
        return cls(values["ok"], values["messages"], values["bytes"], tuple(problems))


@dataclass(frozen=True, slots=True)
class LostRange(_Report):
    """A range of the log from which no message can be read any more."""

    path: str
    """Segment file."""
    offset: int
    """First byte of the range in the file."""
    log_offset: int
    """First byte of the range in the log."""
    bytes: int
    """Length of the range in bytes."""
    reason: str
    """Damage in the range."""
    kept_as: str | None
    """Copy of the range; None if it contained only zeros, and in a dry run."""


@dataclass(frozen=True, slots=True)
class LostOffsets(_Report):
    """Offsets of a queue without a record: from `from_offset` to `to_offset`, exclusive."""

    topic: str
    queue_id: int
    from_offset: int
    to_offset: int


@dataclass(frozen=True, slots=True)
class RepairReport(_Report):
    """Result of `mqstore.repair`."""

    path: str
    """Directory."""
    output: str | None
    """Repaired copy; None for a repair in place."""
    dry_run: bool
    """Whether this was a dry run, which changes nothing."""
    changed: bool
    """Whether the repair changed something; in a dry run, whether it would."""
    ok: bool
    """Whether `verify` finds no problem: in the result, or for a dry run in the unchanged store."""
    messages: int
    """Valid messages in the log."""
    lost: tuple[LostRange, ...] = ()
    """Ranges of the log that were replaced, in log order."""
    queue_offsets: tuple[LostOffsets, ...] = ()
    """Queue offsets without a record, except those that an earlier repair reported."""
    actions: tuple[str, ...] = ()
    """Descriptions of the changes, made or planned."""
    problems: tuple[Problem, ...] = ()
    """Problems that `verify` finds: in the result, or for a dry run in the unchanged store."""

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
    """Result of `Store.snapshot`."""

    path: str
    """Directory of the snapshot."""
    log_min_offset: int
    """Start of its log."""
    log_max_offset: int
    """End of its log, exclusive."""
    messages: int
    """Messages in its log."""
    linked_segments: int
    """Segments that are hard links to files of the store; neither side changes them any more."""
    copied_segments: int
    """Segments that are separate files; if the file system supports it, they share blocks with the files of the
    store."""


@dataclass(frozen=True, slots=True)
class RebuildReport(_Report):
    """Result of `mqstore.rebuild` and `Store.rebuild`."""

    dry_run: bool
    """Whether this was a dry run, which changes nothing."""
    messages: int
    """Records read from the log."""
    bytes: int
    """Bytes of the log."""
    queues: int
    """Queues with at least one unit."""
    index_entries: int
    """Entries of the key index."""
    seconds: float
    """Duration in seconds."""
    skipped: tuple[str, ...] = ()
    """Descriptions of damaged ranges of the log that were skipped; messages in them may be lost."""

    @classmethod
    def _timed(cls, work: Callable[[], Mapping[str, Any]], *, dry_run: bool = False) -> Self:
        started = time.perf_counter()
        values = dict(work())
        skipped = tuple(values.pop("skipped"))
        return cls(dry_run=dry_run, seconds=time.perf_counter() - started, skipped=skipped, **values)


@dataclass(frozen=True, slots=True)
class SegmentHolder(_Report):
    """An unfinished message that keeps its segment, and all later ones, from a deletion by age."""

    kind: str
    """`"group"`: a consumer group has not finished it. `"delayed"`: it is delivered later. `"transaction"`: its
    transaction is not decided."""
    group: str | None
    """Consumer group, or producer group of a transaction; None for a delayed message."""
    topic: str
    """Topic of the message; for a delayed message and a transaction, the topic to which it goes."""
    queue_id: int
    """Queue; for a delayed message and a transaction, the queue of the system topic in which it waits."""
    offset: int
    """Offset in that queue: the first message that the group has not finished."""
    log_offset: int
    """Offset in the commit log."""


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
    segments_kept_by: tuple[SegmentHolder, ...] = ()
    """Messages that keep the oldest segment that is due by age, by log offset: of each group in each topic the first
    unfinished one, and the first delayed message and half message. Empty in a store opened for reading."""

    @classmethod
    def _from_dict(cls, values: Mapping[str, Any]) -> Self:
        kept_by = tuple(SegmentHolder(*row) for row in values["segments_kept_by"])
        return cls(**{**values, "segments_kept_by": kept_by})


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

    @classmethod
    def _from_dict(cls, values: Mapping[str, Any]) -> Self:
        files = tuple(ExpiredFile(**file) for file in values["files"])
        kept_by = tuple(SegmentHolder(*row) for row in values["kept_by"])
        topics = tuple(ExpiredTopic(*row) for row in values["topics"])
        kept = tuple(values["kept"])
        return cls(**{**values, "files": files, "kept": kept, "kept_by": kept_by, "topics": topics})


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

    @classmethod
    def _from_dict(cls, values: Mapping[str, Any]) -> Self:
        file = values["file"]
        return cls(values["kind"], None if file is None else ExpiredFile(**file), values["detail"])


@dataclass(frozen=True, slots=True)
class CompactionReport(_Report):
    """Result of `mqstore.compact`."""

    messages_before: int
    """Messages read."""
    messages_after: int
    """Messages kept."""
    keys: int
    """Distinct keys."""
    rounds: int
    """Largest number of passes that one queue needed."""
    bytes_before: int
    """Bytes of the records read."""
    bytes_after: int
    """Bytes of the records kept."""
    seconds: float
    """Seconds from the plan to the publication."""
    skipped: tuple[str, ...] = ()
    """Queues that were skipped, each as `topic/queue: reason`; the reason `unchanged` means already compacted."""
    keyless: int = 0
    """Messages without a key; they are dropped by default, see `keyless`."""
    tombstones: int = 0
    """Messages without a body, which delete their key."""
    tombstones_kept: int = 0
    """Tombstones that were kept, so that slow readers see them."""
    job_id: str = ""
    """Id of the job; a second run of a published job does nothing."""
    expired: int = 0
    """Newest messages of their keys that were removed because they have expired."""

    @classmethod
    def _from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Builds the report from the JSON of a job."""
        names = ("messages_before", "messages_after", "keys", "rounds", "bytes_before", "bytes_after",
                 "keyless", "tombstones", "tombstones_kept", "expired", "job_id")  # fmt: skip
        counts = {name: values[name] for name in names}
        return cls(**counts, seconds=values["elapsed_ms"] / 1000, skipped=tuple(values["skipped"]))


@dataclass(frozen=True, slots=True)
class RestoredQueue(_Report):
    """A queue whose lost compaction files were restored."""

    topic: str
    queue_id: int
    until: int
    """One past the last lost offset: the first offset that the commit log of this store has."""
    messages: int
    """Messages copied from the other store."""
    bytes: int
    """Bytes of these records."""
    resumed: int
    """Messages that an earlier, interrupted call had copied."""


@dataclass(frozen=True, slots=True)
class RestoreReport(_Report):
    """Result of `restore_compaction`."""

    source: str
    """Directory of the other store."""
    dry_run: bool
    """Whether this was a dry run, which changes nothing."""
    queues: tuple[RestoredQueue, ...]
    """Queues that were restored."""
    skipped: tuple[str, ...]
    """Queues that were skipped, each as `topic/queue: reason`; complete queues have the reason `nothing is missing`."""
    compaction: CompactionReport | None
    """Result of the compaction of the restored queues; None if there was none."""

    @classmethod
    def _from_dict(cls, values: Mapping[str, Any]) -> Self:
        queues = tuple(RestoredQueue(**queue) for queue in values["queues"])
        done = values["compaction"]
        compaction = None if done is None else CompactionReport._from_dict(done)
        return cls(**{**values, "queues": queues, "skipped": tuple(values["skipped"]), "compaction": compaction})


@dataclass(frozen=True, slots=True)
class ExportReport(_Report):
    """Result of `mqstore.export`."""

    path: str
    """File or store."""
    format: str
    """`jsonl`, `parquet`, `arrow` or `store`."""
    messages: int
    """Messages written; for a store, messages appended."""
    bytes: int
    """Length of the file; for a store, length of the mapping file."""
    skipped: int
    """Records that were left out."""
    reasons: dict[str, int]
    """Records that were left out, by reason. `done`: of a delayed message that was delivered or cancelled, or of a
    transaction that was decided; `waiting`: delayed messages, with `waiting="drop"`; `undecided`: messages of
    transactions without a decision; `internal`: other records of the store itself; `deleted`: of deleted topics."""
    resumed: bool
    """Whether this call resumed an interrupted export; the counts then cover both calls."""
    seconds: float
    """Duration in seconds."""
    renumbered: int = 0
    """For a store: messages with another queue offset than in the source, without delayed messages that wait."""

    @property
    def left_out(self) -> int:
        """The former name of `skipped`, deprecated."""
        warnings.warn("left_out is the former name of skipped", DeprecationWarning, stacklevel=2)
        return self.skipped


@dataclass(frozen=True, slots=True)
class MovedGroup(_Report):
    """Offset of a group that `mqstore.copy_topic` committed in the target."""

    group: str
    topic: str
    queue_id: int
    offset: int
    """Offset in the target that the group reads next."""


@dataclass(frozen=True, slots=True)
class TopicCopyReport(_Report):
    """Result of `mqstore.copy_topic`."""

    source: str
    """Directory or URL of the source."""
    target: str
    """Directory of the target."""
    mapping: str
    """Folder with the old and new positions."""
    messages: int
    """Messages that this call copied; with `resumed`, also those of the interrupted call."""
    waiting: int
    """Delayed messages of all topics that wait in the source; copied after their delivery."""
    undecided: int
    """Messages of all topics in transactions of the source without a decision; copied after the commit."""
    groups: tuple[MovedGroup, ...]
    """Queues in which a group moved."""
    resumed: bool
    """Whether this call resumed an interrupted one."""
    seconds: float
    """Duration in seconds."""


@dataclass(frozen=True, slots=True)
class ImportReport(_Report):
    """Result of `mqstore.import_`."""

    path: str
    """Directory of the store."""
    source: str
    """Imported file."""
    format: str
    """`jsonl`, `parquet` or `arrow`."""
    messages: int
    """Messages appended."""
    skipped: int
    """Rows that belong to no queue: half messages and rollbacks."""
    topics: dict[str, int]
    """Messages by topic."""
    dry_run: bool
    """Whether this was a dry run, which appends nothing."""
    seconds: float
    """Duration in seconds."""

    @property
    def left_out(self) -> int:
        """The former name of `skipped`, deprecated."""
        warnings.warn("left_out is the former name of skipped", DeprecationWarning, stacklevel=2)
        return self.skipped


@dataclass(frozen=True, slots=True)
class PublishedFile(_Report):
    """A file of a result at a URL."""

    path: str
    """Path in the directory that `mqstore.fetch` assembles."""
    url: str
    """URL of the object."""
    bytes: int
    """Length of the object."""
    zeros: int
    """Zero bytes that follow these bytes in the file; only in files of a store."""
    sha256: str
    """Digest of the object."""


@dataclass(frozen=True, slots=True)
class PublishedResult(_Report):
    """A result at a URL, as its manifest describes it; from `mqstore.published`."""

    url: str
    """URL of the result."""
    format: str
    """`jsonl`, `parquet`, `arrow` or `store`."""
    created_timestamp: int
    """Time of the manifest in epoch milliseconds."""
    bytes: int
    """Bytes of all objects."""
    files: tuple[PublishedFile, ...]
    """Files, in the order of the messages."""

    @property
    def urls(self) -> list[str]:
        """URLs of the objects, for other programs."""
        return [file.url for file in self.files]


@dataclass(frozen=True, slots=True)
class FetchReport(_Report):
    """Result of `mqstore.fetch`."""

    url: str
    """URL of the result."""
    path: str
    """Directory."""
    format: str
    """`jsonl`, `parquet`, `arrow` or `store`."""
    files: int
    """Files of the directory."""
    bytes: int
    """Bytes of all objects."""
    kept: int
    """Files that an earlier, interrupted call had fetched."""
    seconds: float
    """Duration in seconds."""


@dataclass(frozen=True, slots=True)
class UnusedObject(_Report):
    """An object of an attempt that no manifest names."""

    path: str
    """Path below the URL."""
    bytes: int
    """Length of the object."""
    changed_timestamp: int
    """Time of the upload in epoch milliseconds."""


@dataclass(frozen=True, slots=True)
class CleanReport(_Report):
    """Result of `mqstore.clean`."""

    url: str
    """URL."""
    dry_run: bool
    """Whether this was a dry run, which removes nothing."""
    bytes: int
    """Bytes of `objects`."""
    objects: tuple[UnusedObject, ...]
    """Objects that were removed; in a dry run, that would be removed."""
    kept: int
    """Objects of attempts that are too young, and may be in progress."""


for _class in (
    PublishedFile,
    PublishedResult,
    FetchReport,
    UnusedObject,
    CleanReport,
    ExportReport,
    ImportReport,
    Progress,
    QueueInfo,
    NamespaceInfo,
    TopicQuota,
    TopicRetention,
    ReclaimedTopic,
    ReclaimedSegment,
    KeptSegment,
    ReclaimReport,
    Problem,
    VerifyReport,
    SegmentHolder,
    StoreStats,
    ExpiredFile,
    ExpiredTopic,
    ExpireReport,
    StoreEvent,
    CompactionReport,
    RestoredQueue,
    RestoreReport,
    RebuildReport,
    LostRange,
    LostOffsets,
    MovedGroup,
    TopicCopyReport,
    RepairReport,
    SnapshotReport,
):
    _class.__module__ = "mqstore"
del _class
