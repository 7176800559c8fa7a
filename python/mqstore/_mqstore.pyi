"""The native module of mqstore. Import the package `mqstore`, not this module."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import datetime
from os import PathLike
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeAlias, TypeVar, final, overload

from typing_extensions import disjoint_base

from mqstore._stubs.archive import *
from mqstore._stubs.backup import *
from mqstore._stubs.commits import *
from mqstore._stubs.delivery import *
from mqstore._stubs.filter import *
from mqstore._stubs.follow import *
from mqstore._stubs.jobs import *
from mqstore._stubs.loop import *
from mqstore._stubs.message import *
from mqstore._stubs.results import *
from mqstore._stubs.testing import *
from mqstore._stubs.transactions import *
from mqstore.types import (
    ArrowStream,
    BytesLike,
    Compression,
    DledgerEnd,
    Duration,
    Filter,
    Keys,
    OnDamage,
    Properties,
    ReadBound,
    Time,
)

__all__ = [
    "AppendResult", "AppendResults", "ArchiveRestore", "ArchiveStream", "ArchiveTarget", "BackupRestore",
    "BackupSession", "BackupTarget", "CompactionJob", "ExportRules", "ExportStream", "FollowSession", "LeasedMessage",
    "LineStream", "LoopConsumer", "LoopLink", "LoopPut", "LoopWait", "LoopWorkQueue", "Message", "MessageIterator",
    "NativeChecks", "NativeConsumer", "NativeStore", "NativeTransaction", "NativeWorkQueue", "PartialFile",
    "PartialFolder", "QueuedAppend", "RemoteDirectory", "ResultManifest", "ResultPublication", "ResultTarget",
    "ScanRows", "ScanStream", "SqlFilter", "StageFile", "Stager", "StepWrite", "StoreCopy", "StoredMessage",
    "TableLoad", "TableRows", "TestClock", "TestFaults", "TopicCopy", "__version__", "_after_fork_in_child",
    "_restore_message", "adopt_settings", "append_rows", "archive_state", "archived_files", "begin_step",
    "cancel_delayed", "check_block", "check_division", "check_options", "check_rows", "check_settings", "check_staged",
    "compaction_end", "compaction_report", "compaction_restore", "compaction_run", "compaction_run_step", "config_json",
    "copy_store", "create_segment", "dead_letters", "decode_records", "delay_counts", "delete_namespace",
    "delete_topic", "demote_store", "expire_after_ms", "expired_to_ms", "export_settings", "floor_offset",
    "forget_archive_columns", "group_lags", "groups", "has_archive", "info", "is_held", "is_reclaimed_at",
    "is_reserved", "is_settled", "is_system_topic", "jobs", "key_hashes", "link_archive", "link_unknown_archive",
    "lock_holder", "log_end", "make_topics", "message_ids", "namespaces", "offset_history", "pending_transactions",
    "pop_record", "prepare_stage", "processes", "promote_copy", "publish_file", "publish_folder", "quotas",
    "read_archive_footers", "read_log", "reason_of", "rebuild", "reclaim", "remove_export_state", "repair",
    "replace_cached", "reschedule_delayed", "resume_step", "retention_limits", "retention_usage", "saved_offsets",
    "scan_archive", "scan_cuts", "scan_export", "scan_lines", "scan_open", "scan_schema", "set_archive",
    "set_retention", "staged_job", "sync_groups", "sync_part", "tags_codes", "unlink_archive", "update_topic", "verify",
    "verify_assemble", "verify_log_bytes", "verify_plan", "verify_run_step", "verify_steps", "waiting_record",
    "was_step_done", "work_counts", "writer_pid",
]  # fmt: skip

__version__: Final[str]

_Step = TypeVar("_Step")
_Path: TypeAlias = str | PathLike[str]
_Place: TypeAlias = str | RemoteDirectory
_PlaceToEnd: TypeAlias = tuple[_Place, DledgerEnd]
# Validity, offsets and data of an Arrow column.
_Column: TypeAlias = tuple[bytes | None, bytes, bytes]

def check_options(options: dict[str, Any]) -> None:
    """Raises the error with which an open refuses these options; needs no directory."""

@disjoint_base
class NativeStore:
    """The native part of `mqstore.Store`."""

    def __new__(
        cls,
        path: _Place,
        mode: str,
        options: dict[str, Any],
        progress: Callable[[str, int, int], object] | None = None,
        clock: TestClock | None = None,
        faults: TestFaults | None = None,
    ) -> Self: ...
    @property
    def path(self) -> str:
        """The directory, as given to `open`."""
    @property
    def _place(self) -> _Place:
        """The place of the store for other verbs: its path, or the `RemoteDirectory` of its URL."""
    @property
    def mode(self) -> str:
        """`"r"`, `"rw"`, `"create"` or `"share"`; also `"r"` if `recovery="read-only"` found damage."""
    @property
    def is_owner(self) -> bool:
        """Whether this process has the store open for writing: with mode `"share"`, whether it is the owner."""
    @property
    def _shared_options(self) -> str | None:
        """The options of a shared store as JSON; None if this process alone has it open."""
    @property
    def closed(self) -> bool:
        """Whether `close()` was called."""
    @property
    def _forked(self) -> bool: ...
    def _check(self) -> None: ...
    def _stats(self) -> dict[str, Any]: ...
    def _followers(self) -> list[dict[str, Any]]: ...
    def _replication_address(self) -> str | None: ...
    def _queue_ids(self, topic: str) -> list[int]: ...
    def _oldest_offset(self, topic: str, queue_id: int, min_offset: int) -> int:
        """Returns the smallest offset that a read of a queue can begin with; the log has those from `min_offset` on."""
    def _ends(self, topic: str) -> list[tuple[int, int]]: ...
    def _has_passed(self, topic: str, queue_id: int | None, ends: list[tuple[int, int]]) -> bool: ...
    def _queues(self, topic: str) -> list[tuple[int, int, int, int | None, int | None]]: ...
    def _rebuild(self, progress: Callable[[int, int], object] | None) -> dict[str, Any]: ...
    def _snapshot(self, output: str, progress: Callable[[int, int], object] | None) -> dict[str, int]: ...
    def _compact(
        self,
        request: tuple[list[str] | None, str, int, int, NativeStore | None],
        progress: Callable[[int, int], object] | None,
    ) -> str: ...
    def _expire(self, dry_run: bool) -> dict[str, Any]: ...
    def _scan_log(
        self, start: int | None = None, filter: Filter | None = None, on_damage: OnDamage | None = None
    ) -> MessageIterator: ...
    @property
    def confirm_offset(self) -> int | None:
        """The log offset at which reads and dispatch stop, or None; see `set_confirm_offset`."""
    def set_confirm_offset(self, offset: int | None) -> None:
        """Hides the records at and after this log offset from readers.

        For replication, in which a message counts only after its replicas have it. The limit is not stored: the next
        writer sees the whole log.

        Args:
            offset: the start of a record, or the end of the log; None removes the limit.

        Raises:
            InvalidOptionError: no record starts there, or readers may have seen later records.
            StoreReadOnlyError: the store is open for reading.
        """
    def create_topic(
        self,
        topic: str,
        queues: int | None = None,
        *,
        attributes: Properties | None = None,
        max_messages: int | None = None,
        expire_after: Duration | None = None,
    ) -> None:
        """Creates a topic, or adds queues if it has fewer than `queues`.

        Args:
            topic: name of 1 to 127 characters of `%|a-zA-Z0-9_-`; retry and dead-letter topics up to 255.
            queues: number of queues, 1 to 65,536; None uses the option `default_queues`.
            attributes: RocketMQ's topic attributes by name; only for a new topic.
            max_messages: quota of the topic; only for a new topic. See `update_topic`.
            expire_after: time after which a value of the table expires; only for a new topic. See `update_topic`.

        Raises:
            InvalidMessageError: the name is not a valid topic name.
            StoreReadOnlyError: the store is open for reading.
        """
    def append(
        self,
        topic: str,
        body: BytesLike | None = None,
        *,
        json: object = None,
        keys: Keys = (),
        tags: str | None = None,
        properties: Properties | None = None,
        queue_id: int | None = None,
        flag: int = 0,
        born_timestamp: Time | None = None,
        durable: bool = False,
        replicated: bool = False,
        delay: Duration | None = None,
        deliver_at: Time | None = None,
        delay_level: int | None = None,
        light_queues: Keys = (),
        compression: Compression | None = None,
        compress_over: int | None = None,
    ) -> AppendResult:
        """Appends one message and returns its position.

        Args:
            topic: created with `default_queues` queues if it does not exist.
            body: any bytes-like object.
            json: a value whose JSON is the body, in UTF-8 without blanks; give it instead of `body`.
            keys: one key or several, by which `lookup` finds the message. A key contains no space.
            tags: the tag that tag filters compare.
            properties: the message's own properties. Reserved names are refused, except `UNIQ_KEY`, which replaces the
                generated unique id.
            queue_id: the queue; None takes the topic's queues in turn.
            flag: a 32-bit number for the application.
            born_timestamp: time at which the message was created; None is now.
            durable: whether to wait for a sync, whatever the store's durability.
            replicated: whether to wait for the copies of other machines, as with the option `replicated`.
            delay: time before the message appears in its topic.
            deliver_at: the time of delivery, instead of `delay`. A time in the past delivers now.
            delay_level: RocketMQ's delay level, instead of `delay`, by the store's `delay_levels`; by default 18 levels
                of 1 s to 2 h.
            light_queues: names of light queues that also get the message: `"light-0"` or `"%LMQ%light-0"`. Read a light
                queue as the topic `%LMQ%light-0`. Not for delayed messages, batch queues, retry and system topics.
            compression: how the body is compressed, `"zstd"`, `"lz4"`, `"zlib"` or `"none"`; None is the store's option
                `compression`. Readers get the body as you gave it.
            compress_over: bytes that a body needs to be compressed; None is the store's option `compress_over`.

        Returns:
            The position and the ids. For a delayed message they are those of the waiting record; its ids cancel the
            message.

        Raises:
            InvalidMessageError: a text or number that the format cannot hold; nothing was written.
            MessageTooLargeError: the message exceeds `max_message_size`, or does not fit in one segment.
            StoreReadOnlyError: the store is open for reading.
            StorePoisonedError: an earlier write or sync failed.
            TopicNotFoundError: no such queue, or no such topic while `auto_create_topics` is off.
            Full: a quota is used up, `max_messages` of the topic or `max_bytes` of the log.
            StoreTimeoutError: too few copies acknowledged the message in time. It is stored: do not append it again.
            InvalidOptionError: `replicated`, and the store has no option `replication`.
        """
    def append_many(
        self,
        topic: str,
        messages: Iterable[BytesLike | Message],
        *,
        queue_id: int | None = None,
        durable: bool = False,
        replicated: bool = False,
        compression: Compression | None = None,
        compress_over: int | None = None,
    ) -> AppendResults:
        """Appends messages under one lock, with one sync if a sync is due; returns the results in the order given.

        All messages are checked before the first one is written. After a crash, a prefix of them may be in the store.
        In a topic with batch queues (attribute `queue.type` is `BatchCQ`) they become one record in one queue, which a
        crash keeps or loses as a whole: see `StoredMessage.batch`.

        Args:
            topic: as for `append`.
            messages: bodies or `Message` objects.
            queue_id: queue of all messages; None uses the queues of the topic in turn.
            durable: as for `append`.
            replicated: as for `append`.
            compression: as for `append`; the messages of a batch queue are not compressed.
            compress_over: as for `append`.

        Raises:
            InvalidMessageError: a message is not valid, or there are more than 32,767 for a batch queue.
            Full: the messages would exceed a quota; none was appended.
        """
    def append_batch(
        self,
        topic: str,
        bodies: Iterable[BytesLike],
        keys: Iterable[Keys | None] | None = None,
        tags: str | Iterable[str | None] | None = None,
        properties: Properties | Iterable[Properties | None] | None = None,
        *,
        queue_id: int | None = None,
        durable: bool = False,
        replicated: bool = False,
        compression: Compression | None = None,
        compress_over: int | None = None,
    ) -> AppendResults:
        """Appends messages like `append_many`, from one sequence for each part of a message.

        The fastest way to append many messages from Python: there is no `Message` object for each of them.

        Args:
            topic: as for `append`.
            bodies: the bodies, any bytes-like objects.
            keys: for each body one key, several keys, or None; None if no message has a key.
            tags: one tag for all messages, or for each body a tag or None.
            properties: one mapping for all messages, or for each body a mapping or None. As for `append`.
            queue_id: queue of all messages; None uses the queues of the topic in turn.
            durable: as for `append`.
            replicated: as for `append`.
            compression: as for `append_many`.
            compress_over: as for `append`.

        Returns:
            The results of `append_many`.

        Raises:
            InvalidMessageError: a message is not valid, or `keys`, `tags` or `properties` has not one entry for each
                body; nothing was written.
            Full: the messages would exceed a quota; none was appended.
        """
    def append_arrow(
        self,
        topic: str | None,
        table_or_stream: ArrowStream,
        *,
        queue_id: int | None = None,
        durable: bool = False,
        compression: Compression | None = None,
        compress_over: int | None = None,
    ) -> int:
        """Appends the rows of a table as messages, without a Python object for each of them.

        The columns are those of a scan, as far as a new message has them: `body` (or `value`), `keys` (or `key`),
        `topic`, `tags`, `properties`, `queue_id`, `flag` and `born_timestamp`. Only the body is required. Columns with
        the position of a stored message are ignored. Each unique id among the properties is kept.

        The rows of a record batch are checked before the first of them is appended: if the store would refuse one,
        none is appended. Then they are appended in groups of up to 1,000, each like a call of `append_many`. A quota,
        an error of the disk, or Ctrl-C leaves the groups before it in the store.

        Args:
            topic: topic of all rows; None takes the topic of each row from the column `topic`.
            table_or_stream: any object with `__arrow_c_stream__`: a table or a stream of record batches of pyarrow,
                Polars, DuckDB or pandas, or a `mqstore.Scan`.
            queue_id: queue of the rows that name none; None uses the queues of the topic in turn.
            durable: whether all rows are durable when the call returns, whatever the store's durability.
            compression: as for `append_many`.
            compress_over: as for `append`.

        Returns:
            The number of messages.

        Raises:
            InvalidMessageError: a column is unknown, missing or has the wrong type, or a row cannot become a message or
                is too large; the error names the row and the column.
            TopicNotFoundError: a row names a queue that its topic does not have, or a topic that is not created; a note
                of the error names the row and the column.
            RefusedError: the topic of a row takes no messages; a note names the row.
            TypeError: `table_or_stream` has no `__arrow_c_stream__`.
        """
    def flush(self) -> None:
        """Makes every message appended before the call durable."""
    def close(self) -> None:
        """Makes every message durable and releases the directory. A second call does nothing."""
    def topics(self) -> list[str]:
        """Returns the names of all topics, sorted."""
    def read(
        self,
        topic: str,
        queue_id: int | None = None,
        start: ReadBound | None = None,
        end: ReadBound | None = None,
        *,
        filter: Filter | None = None,
        follow: bool = False,
        timeout: Duration | None = None,
        on_damage: OnDamage = "raise",
    ) -> Iterator[StoredMessage]:
        """Returns the messages of a topic, or of one of its queues.

        The messages of one queue come in ascending order of their offsets. Those of different queues are merged by
        store time, then by log offset.

        Args:
            topic: the topic.
            queue_id: the queue; None is all queues.
            start: the first message: a store time, as an aware `datetime`, as ISO text or as its age (`timedelta`),
                or with `queue_id` a queue offset (int). None is the first readable message.
            end: the message to stop before, like `start`. None is the end at the time of the call.
            filter: tags such as `"paid || shipped"`, or a condition on properties, `mqstore.sql("price > 5")`.
            follow: whether to wait at the end for new messages. From then on, messages come in order of arrival.
            timeout: longest wait of `follow` for one message, after which the iterator ends; None is without a limit.
            on_damage: behaviour at a damaged record. `"raise"` raises `CorruptionError`. `"skip"` continues after the
                record, warns with a `StoreWarning`, and counts it in `StoreStats.skipped_damage`.

        Raises:
            TopicNotFoundError: no such topic or queue.
            OffsetOutOfRangeError: `start` is below the smallest or above the largest offset.
            InvalidOptionError: `start` or `end` is an int without a `queue_id`, or text that is not a time.
        """
    def tail(
        self,
        topic: str,
        n: int = 10,
        *,
        queue_id: int | None = None,
        filter: Filter | None = None,
        on_damage: OnDamage = "raise",
    ) -> list[StoredMessage]:
        """Returns the newest messages of a topic, in the order of `read`.

        Args:
            topic: the topic.
            n: maximum number of messages.
            queue_id: only this queue.
            filter: as for `read`.
            on_damage: as for `read`.

        Raises:
            TopicNotFoundError: no such topic or queue.
            InvalidOptionError: `n` is negative.
        """
    def count(self, topic: str) -> int:
        """Returns the number of messages that `read(topic)` returns, without reading them.

        It reads the queues only: 20 bytes for each message, except messages in compaction files. An archive has the
        numbers in its manifest.

        Raises:
            TopicNotFoundError: no such topic.
        """
    def get(self, id: str) -> StoredMessage | None:
        """Returns the message with this `message_id` or `unique_id`, or None.

        A `message_id` names one record. Several records can have one `unique_id`; the answer is the message that
        consumers get. While a delayed message or a message of a transaction waits, it is the record in which it waits,
        and for a message that is gone, its dead letter.
        """
    def get_at(self, commit_log_offset: int) -> StoredMessage:
        """Returns the message whose record starts at this log offset.

        Raises:
            CorruptionError: no record starts there, or the topic of the record was deleted.
        """
    def lookup(
        self,
        topic: str,
        key: str,
        *,
        start_time: Time | None = None,
        end_time: Time | None = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> Iterator[StoredMessage]:
        """Returns the messages of `topic` that have `key` as a key or as their unique id, oldest first.

        Args:
            topic: the topic.
            key: the key; an unknown one has no messages.
            start_time: only messages stored at or after this time.
            end_time: only messages stored at or before this time.
            limit: maximum number of messages.
            newest_first: whether the newest message comes first.

        Raises:
            TopicNotFoundError: no such topic.
        """
    def message_at(self, topic: str, queue_id: int, queue_offset: int) -> StoredMessage | None:
        """Returns the message at an offset of a queue; None if a compaction removed it.

        Raises:
            TopicNotFoundError: no such topic or queue.
            OffsetOutOfRangeError: the queue does not contain this offset.
        """
    def messages_at(self, topic: str, queue_id: int, queue_offsets: Iterable[int]) -> list[StoredMessage | None]:
        """Returns the messages at these offsets of a queue, in the order given.

        Each one is the result of `message_at`. One call for many offsets is much faster than many calls.
        """
    def offset_for_time(
        self, topic: str, queue_id: int, time: Time, *, boundary: Literal["lower", "upper"] = "lower"
    ) -> int:
        """Returns the offset for a store time.

        Args:
            topic: the topic.
            queue_id: the queue.
            time: the time.
            boundary: `"lower"` finds the first message stored at or after `time`, else the largest offset. `"upper"`
                finds the last one stored at or before it, else the smallest offset.
        """
    def wait(
        self, topic: str, queue_id: int | None = None, offset: int | None = None, timeout: Duration | None = None
    ) -> bool:
        """Waits for a message; returns False if `timeout` passes first.

        `wait(topic)` waits for the next message in any queue. A topic that does not exist yet is waited for, too.

        Args:
            topic: the topic.
            queue_id: only this queue.
            offset: waits until this offset of the queue can be read; needs `queue_id`. None waits for the first message
                that is appended after the call.
            timeout: longest wait; None is without a limit.

        Raises:
            InvalidOptionError: an `offset` without a `queue_id`.
            StoreClosedError: the store was closed during the wait.
        """

@disjoint_base
class StoredMessage:
    """A stored message.

    Frozen, equal by value, picklable. Integers are signed as in Java. Timestamps are epoch milliseconds.
    """

    @property
    def topic(self) -> str:
        """Topic of the record."""
    @property
    def queue_id(self) -> int:
        """Queue id of the record."""
    @property
    def queue_offset(self) -> int:
        """The offset in the queue that was read, or else the record's own."""
    @property
    def commit_log_offset(self) -> int:
        """The log offset of the record, in bytes."""
    @property
    def size(self) -> int:
        """Byte length of the record."""
    @property
    def message_id(self) -> str:
        """The offset id: store host and log offset, in upper-case hex."""
    @property
    def unique_id(self) -> str | None:
        """The `UNIQ_KEY` property, or None."""
    @property
    def body(self) -> bytes:
        """The body, decompressed if the sender compressed it.

        Raises `CorruptionError` if it does not unpack. `body_view` has the stored bytes.
        """
    @property
    def body_view(self) -> memoryview:
        """The body's bytes as stored on disk: a read-only memoryview, without a copy."""
    @property
    def keys(self) -> tuple[str, ...]:
        """The keys, in the order given."""
    @property
    def tags(self) -> str | None:
        """Tag, or None."""
    @property
    def properties(self) -> dict[str, str]:
        """All stored properties, including reserved names; a new dict each time."""
    @property
    def flag(self) -> int:
        """The application's 32-bit number."""
    @property
    def sys_flag(self) -> int:
        """RocketMQ's flag bits: compression, transaction state, address families."""
    @property
    def born_timestamp(self) -> int:
        """The time at which the message was created, in epoch milliseconds."""
    @property
    def born_host(self) -> str:
        """The host that created the message: `ip:port` or `[v6]:port`."""
    @property
    def store_timestamp(self) -> int:
        """The time at which the record was stored, in epoch milliseconds."""
    @property
    def store_host(self) -> str:
        """The host that stored the record: `ip:port` or `[v6]:port`."""
    @property
    def reconsume_times(self) -> int:
        """The number of times that a consumer group has sent the message back."""
    @property
    def prepared_transaction_offset(self) -> int:
        """The log offset of the transaction's half message; 0 outside transactions."""
    @property
    def body_crc(self) -> int:
        """CRC of the stored body."""
    @property
    def born_time(self) -> datetime:
        """`born_timestamp` as an aware UTC datetime."""
    @property
    def store_time(self) -> datetime:
        """`store_timestamp` as an aware UTC datetime."""
    def batch(self) -> list[Message]:
        """Returns the messages of an inner batch, in order, as given to `append_many`.

        Empty for any other record. A batch is one record in a topic with batch queues. Its n-th message, counted from
        0, has the queue offset `queue_offset + n`.

        Raises `CorruptionError` if the body is not a batch.
        """
    def text(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Returns the body as text."""
    def json(self) -> Any:
        """Returns the body parsed as JSON."""
    def to_dict(self) -> dict[str, Any]:
        """Returns the message as a dict for JSON, the same as `mqstore cat --format json` prints.

        Members without a value are None, and `keys` is a list. The body is decompressed: `body_text` if it is UTF-8,
        else `body_base64`. If the body cannot be decompressed, `body_base64` has the stored bytes and `body_error` the
        reason. In a record of a delay level, `system` has the time by RocketMQ's levels.
        """

@final
class AppendResult:
    """The position of an appended message: its queue, its offsets in queue and log, its ids.

    Frozen, equal by value, picklable.
    """

    def __new__(
        cls,
        topic: str,
        queue_id: int,
        queue_offset: int,
        commit_log_offset: int,
        size: int,
        message_id: str,
        unique_id: str,
        store_timestamp: int,
        durable: bool,
    ) -> Self: ...
    @property
    def topic(self) -> str:
        """Topic of the message."""
    @property
    def queue_id(self) -> int:
        """Queue id of the message."""
    @property
    def queue_offset(self) -> int:
        """Offset of the message in its queue."""
    @property
    def commit_log_offset(self) -> int:
        """The log offset of the record, in bytes."""
    @property
    def size(self) -> int:
        """Byte length of the record."""
    @property
    def message_id(self) -> str:
        """The offset id: store host and log offset, in upper-case hex."""
    @property
    def unique_id(self) -> str:
        """Unique id of the message: its `UNIQ_KEY` property."""
    @property
    def store_timestamp(self) -> int:
        """The time at which the record was stored, in epoch milliseconds."""
    @property
    def durable(self) -> bool:
        """Whether a sync already covers the record."""
    def to_dict(self) -> dict[str, Any]:
        """Returns the position and the ids as a dict for JSON, the same as `mqstore append --format json` prints."""

@final
class AppendResults(Sequence[AppendResult]):
    """The results of a call that appends several messages, in the order of the messages.

    A sequence of `AppendResult`: frozen, picklable, equal to a list of equal results. `list(results)` makes a list.
    """

    def __len__(self) -> int: ...
    @overload
    def __getitem__(self, index: int, /) -> AppendResult: ...
    @overload
    def __getitem__(self, index: slice, /) -> list[AppendResult]: ...
    def __add__(self, other: Iterable[AppendResult], /) -> list[AppendResult]: ...
    def __radd__(self, other: list[AppendResult], /) -> list[AppendResult]: ...
    def __eq__(self, other: object, /) -> bool: ...
    def count(self, value: object) -> int:
        """Returns the number of results that are equal to `value`."""
    def index(self, value: object, start: int = 0, stop: int | None = None) -> int:
        """Returns the first position of a result that is equal to `value`, between `start` and `stop`.

        Raises:
            ValueError: no result is equal.
        """

@final
class MessageIterator(Iterator[StoredMessage]):
    """Messages in order; created by `read` and `lookup`. Threads that share an iterator take turns."""

    def __iter__(self) -> Self: ...
    def __next__(self) -> StoredMessage: ...
    def _step(self, at_once: bool) -> list[StoredMessage] | tuple[tuple[int, int], ...] | None: ...
    def _visible(self, messages: list[StoredMessage]) -> list[StoredMessage] | None: ...

@final
class TableLoad:
    """The load of one queue into a table; created by `Table`."""

    def __new__(
        cls, store: NativeStore, topic: str, queue_id: int, keeps_messages: bool, on_damage: OnDamage
    ) -> Self: ...
    def step(self) -> bool:
        """Continues to read for a while; returns False when the queue is read completely."""

@final
class TableRows:
    """The keys of a table, with their newest messages."""

    def __new__(cls) -> Self: ...
    def __len__(self) -> int: ...
    def __contains__(self, key: object, /) -> bool: ...
    def __getitem__(self, key: object, /) -> tuple[int, int, StoredMessage | None]:
        """Returns queue, offset and, if it is kept, message of a key."""
    def keys(self) -> list[str]:
        """Returns the keys in the order of their newest messages."""
    def put(self, key: str, queue_id: int, message: StoredMessage, keeps: bool) -> None:
        """Applies one message of a queue, and keeps it if the table keeps messages."""
    def expire(self, to_ms: int | None) -> bool:
        """Removes the values stored up to a time in milliseconds.

        Returns False if values that were removed before have not expired.
        """
    def absorb(self, load: TableLoad) -> int:
        """Applies a queue that was loaded completely; returns the offset after the last one read."""

# What the passes over the log have in common; it does not exist at run time.
class _Pass(Iterator[_Step]):
    @property
    def start(self) -> int:
        """The log offset at which the scan began."""
    @property
    def limit(self) -> int:
        """The log offset at which the scan ends."""
    def close(self) -> None:
        """Ends the scan. Its threads have stopped when this returns."""
    def __iter__(self) -> Self: ...
    def __next__(self) -> _Step: ...

@final
class ScanStream(_Pass[ScanRows]):
    """One pass over the messages; created by `scan_open`."""

    @property
    def follows_entries(self) -> bool:
        """Whether the scan follows queue entries; otherwise it walks the log."""
    @property
    def position(self) -> int:
        """The log offset before which the scan has returned all rows."""
    def passed(self) -> list[tuple[str, str]]:
        """Returns the records skipped so far, each as a kind and a text with position and reason.

        The kind is `"damaged"`, or `"deleted"` if the record was deleted before the scan read it.
        """
    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Returns the rest of the pass as a capsule of Arrow's C stream interface."""

@final
class ScanRows:
    """Rows of a scan, for any consumer of Arrow data."""

    @property
    def end(self) -> int:
        """The log offset from which a scan returns the following rows."""
    def __len__(self) -> int: ...
    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        """Returns schema and data as capsules of Arrow's C data interface."""

@final
class LineStream(_Pass[tuple[bytes, int, list[tuple[str, int]], int]]):
    """One pass over the messages as JSON lines; created by `scan_lines`."""

@final
class StoreCopy(Iterator[tuple[int, int]]):
    """A copy of messages to another store in progress, which a later call resumes. A call at a time."""

    def __new__(cls, mapping: _Path, digest: str, topics: list[str] | None, keep_waiting: bool) -> Self: ...
    @property
    def rules(self) -> ExportRules | None:
        """The rules of the interrupted call that this one resumes; None if it resumes none."""
    @property
    def keeps(self) -> bool:
        """Whether messages keep their queue offsets."""
    @property
    def made(self) -> list[str]:
        """The topics that the copy has created in the target."""
    @property
    def messages(self) -> tuple[int, int]:
        """The number of copied messages, and of those with another queue offset than in the source."""
    @property
    def left_out(self) -> dict[str, int]:
        """The numbers of records that are left out, by reason."""
    @property
    def refused_topics(self) -> list[str]:
        """The topics whose messages are left out, because the target cannot have a topic of this name."""
    def begin(
        self,
        source: _PlaceToEnd,
        target: NativeStore,
        older: NativeStore | None,
        request: dict[str, Any],
        rules: ExportRules,
        keeps: bool,
        made: list[str],
    ) -> None:
        """Begins to copy the records that a request for the source selects.

        Args:
            source: the place of the source.
            target: the store to write.
            older: the source with its archive; None if the records before its log are left out.
            request: the request, whose `from` is the log offset at which the copy begins.
            rules: what the copy contains.
            keeps: whether messages keep their queue offsets.
            made: the topics that the copy has created in the target.
        """
    def __iter__(self) -> Self: ...
    def __next__(self) -> tuple[int, int]: ...
    def publish(self, target: NativeStore) -> int:
        """Makes the target durable, and gives the file of positions its name. Returns the length of the file."""
    def close(self) -> None:
        """Ends the scan of the source. Its threads have stopped when this returns."""

@final
class TopicCopy:
    """The state of a copy of topics in several calls, in a folder. A call at a time."""

    def __new__(cls, folder: _Path, source: str, target: str, topics: list[str]) -> Self: ...
    @property
    def position(self) -> int | None:
        """The log offset of the source up to which the topics are copied; None before the first call."""
    @property
    def mapping(self) -> Path:
        """The file of positions of the call that runs."""
    def begin(self, limit: int, first: dict[str, int] | None) -> None:
        """Begins a call that copies up to a log offset of the source.

        Args:
            limit: the log offset.
            first: the first offset that the log has in each queue, named `topic/queue`. None continues a call that was
                interrupted.
        """
    def finish(self) -> None:
        """Counts the call as complete: its messages are in the target, and its file has its name."""
    def translate(self, topic: str, queue_id: int, offset: int) -> tuple[int, bool] | None:
        """Returns the offset in the target of the first copied message at or after an offset of the source.

        And whether the copy lacks messages at or after it. None for a queue without copied messages.
        """
    def gaps(self) -> list[tuple[str, int, int, int]]:
        """Returns the messages that are not in the copy: topic, queue, and first and end of the offsets."""

@final
class ExportRules:
    """The rules of one export: which records it contains, as of one log offset."""

    def __new__(cls, path: _Place | _PlaceToEnd, topics: list[str] | None, keep_waiting: bool) -> Self: ...
    @staticmethod
    def stored(dest: _Path, topics: list[str] | None, keep_waiting: bool) -> ExportRules | None:
        """Loads the rules that an interrupted export to the path `dest` has stored; None if they are not complete."""
    def encode(self) -> bytes:
        """Returns the rules as bytes, without the topics."""
    @property
    def limit(self) -> int:
        """The log offset at which the export ends."""
    def has_late_queue(self, path: _Place | _PlaceToEnd) -> bool:
        """Returns whether a queue of the exported topics in the directory `path` begins after offset 0."""
    @property
    def topics(self) -> list[str] | None:
        """The topics whose records the export must read; None is all."""

@final
class ExportStream(_Pass[tuple[ScanRows | None, list[tuple[str, int]], int]]):
    """One pass over the messages of an export as Arrow columns; created by `scan_export`."""

@final
class Stager:
    """Stages messages from rows; one for each task that writes."""

    def __new__(
        cls,
        topic: str | None,
        most_body_bytes: int,
        process: int,
        salt: int,
        compression: str | None = None,
        compress_over: int | None = None,
    ) -> Self: ...
    def stage(
        self, rows: object, start: int
    ) -> tuple[bytes, int, int, list[tuple[str, int]], list[tuple[str | None, str, int, int, str]]]:
        """Stages the rows of a record batch, from `start` on, as one block.

        Returns the block, the row after its last one, its number of messages, the largest queue id of each topic or
        -1, and the rows that cannot become messages: topic, column, number, first row and its reason.
        """

@final
class StageFile:
    """The staged file of a task."""

    def __new__(cls, path: str, job: str, name: str) -> Self: ...
    def push(self, block: bytes) -> None:
        """Adds a block."""

    def finish(self) -> int:
        """Syncs the file and its name. Returns its length in bytes."""

@final
class StepWrite:
    """A step in progress. Each `next` appends a block and returns its number of messages.

    After the last one the step is durable. If it is left in the middle, the next `resume_step` continues it.
    """

    def __iter__(self) -> Self: ...
    def __next__(self) -> int: ...

def prepare_stage(path: str, token: str) -> str: ...
def staged_job(path: str) -> str | None: ...
def was_step_done(path: str, name: str, batch: int | None) -> bool: ...
def begin_step(
    store: NativeStore, job: str, name: str, batch: int | None, record: bool, files: list[tuple[str, int, int]]
) -> None: ...
def resume_step(store: NativeStore) -> StepWrite: ...
def check_staged(target: NativeStore, topic: str) -> None: ...
def decode_records(request: dict[str, Any], records: _Column, rows: int) -> tuple[ScanRows | None, list[int]]: ...
def tags_codes(tags: _Column, rows: int) -> bytes: ...
def key_hashes(topics: _Column, keys: _Column, rows: int) -> bytes: ...
def message_ids(hosts: _Column, offsets: tuple[bytes | None, bytes], rows: int) -> list[str | None]: ...
def scan_lines(source: _PlaceToEnd, request: dict[str, Any], rules: ExportRules) -> LineStream: ...
def scan_export(source: _PlaceToEnd, request: dict[str, Any], rules: ExportRules) -> ExportStream: ...
def export_settings(path: _Place | _PlaceToEnd, topics: list[str] | None) -> tuple[dict[str, str], dict[str, str]]: ...
def is_system_topic(topic: str) -> bool: ...
def check_settings(topics: dict[str, str], groups: dict[str, str]) -> None: ...
def make_topics(store: NativeStore, topics: dict[str, str]) -> list[str]: ...
def adopt_settings(store: NativeStore, topics: dict[str, str], groups: dict[str, str]) -> None: ...
def append_rows(
    target: NativeStore, rows: list[Any], compression: Compression | None, compress_over: int | None
) -> int: ...
def check_rows(rows: list[Any]) -> None: ...
def scan_cuts(
    store: NativeStore, topic: str, queue_id: int, range: tuple[int, int], positions: list[int]
) -> list[int]: ...
def scan_open(source: NativeStore | _Place | _PlaceToEnd, request: dict[str, Any]) -> ScanStream: ...
def scan_schema(request: dict[str, Any]) -> object: ...
def _restore_message(record: bytes, commit_log_offset: int, queue_offset: int) -> StoredMessage: ...
def _after_fork_in_child() -> None: ...
def update_topic(
    store: NativeStore,
    topic: str,
    read_queues: int | None,
    write_queues: int | None,
    perm: int | None,
    max_messages: int | None,
    expire_after: Duration | None,
) -> None: ...
def expire_after_ms(store: NativeStore, topic: str) -> int | None: ...
def expired_to_ms(store: NativeStore, topic: str) -> int | None: ...
def quotas(store: NativeStore) -> list[tuple[str, int, int]]: ...
def set_retention(
    store: NativeStore, topic: str, keep: Duration | None, max_bytes: int | None, max_messages: int | None
) -> None: ...
def retention_limits(
    source: NativeStore | _Place | _PlaceToEnd,
) -> list[tuple[str, tuple[int | None, int | None, int | None]]]: ...
def retention_usage(
    store: NativeStore,
) -> list[tuple[str, tuple[int | None, int | None, int | None], int, tuple[int, int, int]]]: ...

_ReclaimRow: TypeAlias = tuple[
    bool,
    list[tuple[str, int, int, int, int]],
    list[tuple[str, int, int, int, int, int, int]],
    list[tuple[str, int, int, int, str]],
    list[str],
]

def reclaim(store: NativeStore, dry_run: bool, erase: list[str], bytes_per_second: int) -> _ReclaimRow: ...
def delete_topic(store: NativeStore, topic: str) -> None: ...
def namespaces(store: NativeStore) -> list[tuple[str, int, int]]: ...
def delete_namespace(store: NativeStore, namespace: str) -> tuple[int, int]: ...
