"""Stubs of the native module for consumers, work queues and delayed messages; a part of `_mqstore.pyi`."""

from collections.abc import Callable, Coroutine, Iterable
from types import TracebackType
from typing import Any, Self, final

from typing_extensions import disjoint_base

from mqstore._mqstore import AppendResult, NativeStore, StoredMessage
from mqstore._stubs.message import Message
from mqstore.types import BytesLike, Compression, Duration, Filter, Keys, OnDamage, Properties, Start, Time

@final
class LeasedMessage(StoredMessage):
    """A message from a work queue: a `StoredMessage` and the lease on it.

    No other worker gets the message until you finish it (`ack`), return it (`nack`), or `invisible_until` has passed.
    A `with` block does this for you: its end acknowledges the message, and an exception returns it, with the exception
    as the reason. The exception continues. It is equal to the same stored message. A pickled copy is the stored message
    without the lease.
    """

    @property
    def attempt(self) -> int:
        """The number of this delivery, counted from 1."""
    @property
    def invisible_until(self) -> int:
        """The end of the lease, in epoch milliseconds; `extend` moves it."""
    def ack(self, *, durable: bool = False) -> None:
        """Acknowledges the message: it is not delivered again. A second `ack` changes nothing.

        Args:
            durable: whether to wait until the acknowledgement is on the disk. Without it, that happens within 0.1 s.

        Raises:
            LeaseLostError: the lease ended and another worker got the message, or you returned it.
        """
    def nack(self, delay: Duration | None = None, *, reason: str | None = None) -> None:
        """Returns the message to its queue, so that it is redelivered later: see `WorkQueue.nack`.

        Args:
            delay: time before the redelivery, in seconds or as a `timedelta`, at most 30 days; None uses the queue's
                `backoff`.
            reason: text that a dead letter keeps as its property `mqstore.reason`.

        Raises:
            LeaseLostError: the lease ended and another worker got the message, or you returned it before.
        """
    def extend(self, duration: Duration | None = None) -> None:
        """Sets the end of the lease to `duration` from now, whatever time is left.

        Args:
            duration: seconds or a `timedelta`, 1 ms to 30 days; None is the `visibility_timeout` of the queue that got
                the message.

        Raises:
            LeaseLostError: the lease ended and another worker got the message, or you returned it.
            InvalidOptionError: `duration` is out of bounds.
        """
    def _bind(self, queue: Callable[[], object]) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> None: ...
    def __aenter__(self) -> Coroutine[Any, Any, Self]: ...
    def __aexit__(
        self, _kind: type[BaseException] | None, error: BaseException | None, _traceback: TracebackType | None
    ) -> Coroutine[Any, Any, None]: ...

@disjoint_base
class NativeConsumer:
    """The native part of `mqstore.Consumer`."""

    def __new__(
        cls,
        store: NativeStore,
        group: str,
        topics: list[str],
        filter: Filter | None,
        start: Start,
        ordered: bool,
        broadcast: bool,
        name: str | None,
        commit_interval: Duration | None,
        on_lost: str,
        history: bool,
        on_damage: OnDamage,
    ) -> Self: ...
    @property
    def group(self) -> str:
        """The consumer's group."""
    @property
    def topics(self) -> tuple[str, ...]:
        """The consumer's topics, sorted."""
    @property
    def closed(self) -> bool:
        """Whether the consumer or its store is closed."""
    @property
    def assignment(self) -> tuple[tuple[str, int], ...]:
        """The queues that the consumer owns now, as pairs of topic and queue id, sorted; empty once it is closed."""
    def poll(self, max_messages: int = 1000, timeout: Duration | None = None) -> list[StoredMessage]:
        """Returns the next messages: in order within a queue, and from one queue after the other.

        Args:
            max_messages: maximum number of messages to return.
            timeout: longest wait for the first message; None waits without a limit, 0 does not wait.

        Returns:
            At least one message, or an empty list if `timeout` passes first.

        Raises:
            ConsumerClosedError: the consumer was closed, before the call or during it.
            OffsetOutOfRangeError: messages were deleted before the group read them, and `on_lost` is `"raise"`.
            CorruptionError: the next message is damaged, and `on_damage` is `"raise"`.
        """
    def __iter__(self) -> Self: ...
    def __next__(self) -> StoredMessage: ...
    def commit(
        self,
        offsets: dict[tuple[str, int], int] | None = None,
        *,
        durable: bool = False,
    ) -> None:
        """Stores for each queue the offset after the last message that this consumer returned.

        After `commit` returns, the offset survives a kill of the process. It survives a loss of power after
        `commit_interval` at the latest.

        Args:
            offsets: the next offset to read, for the listed queues only, by topic and queue id: `{("orders", 0): 17}`.
            durable: whether to wait until the offsets are on the disk.

        Raises:
            QueueNotAssignedError: this consumer does not own a queue in `offsets`; nothing was stored.
            OffsetOutOfRangeError: an offset is after the end of its queue.
        """
    def seek(self, topic: str, queue_id: int, offset: int) -> None:
        """Continues at `offset` of a queue.

        The next commit stores the position reached from there, even if it is lower than the committed offset.

        Raises:
            QueueNotAssignedError: this consumer does not own the queue.
            OffsetOutOfRangeError: the offset is neither in the queue nor its end.
        """
    def seek_to_time(self, time: Time) -> None:
        """Continues, in each owned queue, at the first message stored at or after `time`."""
    def reset(self, to: Start, *, durable: bool = False) -> None:
        """Moves the group in each queue that this consumer owns, and commits the new offsets.

        Args:
            to: `"earliest"`, `"latest"`, or a time, which selects the first message stored at or after it.
            durable: whether to wait until the offsets are on the disk.
        """
    def position(self, topic: str, queue_id: int) -> int:
        """Returns the lowest offset that the consumer can return next from a queue.

        Raises:
            QueueNotAssignedError: this consumer does not own the queue.
        """
    def committed(self, topic: str, queue_id: int) -> int | None:
        """Returns the committed offset of a queue: the next one that the group reads. None if there is none.

        Raises:
            QueueNotAssignedError: this consumer does not own the queue.
        """
    def lag(self) -> dict[tuple[str, int], int]:
        """Returns, for each owned queue, the number of messages between the committed offset and the end.

        Returns:
            The numbers by topic and queue id: `{("orders", 0): 17}`.
        """
    def close(self) -> None:
        """Releases the queues to the other consumers of the group. A second call does nothing.

        Messages that were returned and not committed are delivered again.
        """

@disjoint_base
class NativeWorkQueue:
    """The native part of `mqstore.WorkQueue`."""

    def __new__(
        cls,
        store: NativeStore,
        topic: str,
        group: str | None,
        visibility_timeout: Duration,
        max_attempts: int | None,
        backoff: Callable[[int], Duration] | None,
        maxsize: int,
        on_damage: OnDamage,
        follows: bool = False,
    ) -> Self: ...
    @property
    def topic(self) -> str:
        """The topic whose messages the queue delivers."""
    @property
    def group(self) -> str:
        """The group that acknowledges them."""
    @property
    def dead_letters(self) -> str:
        """The dead-letter topic of the group: `%DLQ%` and the group's name."""
    @property
    def visibility_timeout(self) -> float:
        """The visibility timeout of a leased message, in seconds."""
    @property
    def max_attempts(self) -> int | None:
        """The number of deliveries after which a message becomes a dead letter; None is without a limit."""
    @property
    def maxsize(self) -> int:
        """The number of messages without a lease at which `put` waits; 0 is no limit."""
    @property
    def closed(self) -> bool:
        """Whether this handle or its store is closed."""
    def _counts(self) -> tuple[int, int, int, int, int]: ...
    def _delays(self) -> list[tuple[str, int, int, int, int]]: ...
    def _leases(self) -> list[tuple[str, int, int, int, int]]: ...
    def _cancel(self, id: str) -> bool: ...
    def _cancel_at(self, topic: str, queue_id: int, queue_offset: int) -> bool: ...
    def put(
        self,
        body: BytesLike | None = None,
        *,
        json: object = None,
        keys: Keys = (),
        tags: str | None = None,
        properties: Properties | None = None,
        delay: Duration | None = None,
        deliver_at: Time | None = None,
        dedup_id: str | None = None,
        durable: bool = False,
        block: bool = True,
        timeout: Duration | None = None,
        compression: Compression | None = None,
        compress_over: int | None = None,
    ) -> AppendResult:
        """Appends a message to the queue.

        Args:
            body: any bytes-like object.
            json: a value whose JSON is the body, as for `Store.append`.
            keys: one key or several, as for `Store.append`.
            tags: the tag.
            properties: the message's own properties, as for `Store.append`.
            delay: time before the first delivery, at most 30 days. The message keeps its place in the log, and the
                delay holds for every group.
            deliver_at: time of the first delivery, instead of `delay`, at most 30 days from now.
            dedup_id: an id of your choice. If the topic has a message with this id, nothing is stored, and the result
                is the position of that message. The id is the message's `unique_id`, and the queue remembers it as long
                as the log has the message, finished or not.
            durable: whether to wait for a sync, whatever the store's durability.
            block: whether to wait if the queue has reached `maxsize`.
            timeout: longest wait; None is without a limit.
            compression: as for `Store.append`.
            compress_over: as for `Store.append`.

        Raises:
            Full: the queue is full, or stayed full until the timeout.
            ShutDown: the queue was shut down, or this handle is closed.
            InvalidMessageError: a text or number that the format cannot hold; nothing was written.
            InvalidOptionError: the delay is too long; nothing was written.
        """
    def put_many(
        self,
        messages: Iterable[BytesLike | Message],
        *,
        delay: Duration | None = None,
        deliver_at: Time | None = None,
        durable: bool = False,
        block: bool = True,
        timeout: Duration | None = None,
        compression: Compression | None = None,
        compress_over: int | None = None,
    ) -> list[AppendResult]:
        """Appends several messages under one lock and with one sync; returns the results in the order given.

        Waits until the queue can take all of them. After a crash, a prefix of them may be in the queue.

        Args:
            messages: bodies or `Message`s.
            delay: as for `put`, for all of them.
            deliver_at: as for `put`, for all of them.
            durable: as for `put`.
            block: as for `put`.
            timeout: as for `put`.
            compression: as for `put`.
            compress_over: as for `put`.

        Raises:
            Full: the queue cannot take all of them, or could not until the timeout; none was put.
            ShutDown: the queue was shut down, or this handle is closed.
        """
    def get(self, block: bool = True, timeout: Duration | None = None) -> LeasedMessage:
        """Gets a message and leases it for `visibility_timeout`. Redeliveries and new messages take turns.

        Args:
            block: whether to wait for a message.
            timeout: longest wait; None is without a limit.

        Raises:
            Empty: no message, or none before the timeout.
            CorruptionError: the next message is damaged, and `on_damage` is `"raise"`.
            ShutDown: the queue was shut down and has no message left, or this handle is closed.
            TypeError: `block` is a duration: write `get(timeout=5)`, not `get(5)`.
        """
    def get_many(self, count: int, timeout: Duration | None = None) -> list[LeasedMessage]:
        """Gets up to `count` messages: at least one, or an empty list if `timeout` passes first.

        Args:
            count: maximum number of messages.
            timeout: longest wait for the first message; None is without a limit, 0 does not wait.

        Raises:
            ShutDown: the queue was shut down and has no message left, or this handle is closed.
        """
    def ack(self, message: LeasedMessage, *, durable: bool = False) -> None:
        """Acknowledges a message: it is not delivered again. A second `ack` changes nothing.

        Args:
            message: the message that `get` returned.
            durable: whether to wait until the acknowledgement is on the disk. Without it, that happens within 0.1 s.

        Raises:
            LeaseLostError: the lease ended and another worker got the message, or you returned it.
        """
    def ack_many(self, messages: Iterable[LeasedMessage], *, durable: bool = False) -> None:
        """Acknowledges messages; with `durable`, one sync covers all of them.

        Raises:
            LeaseLostError: you lost the lease of one message; the messages before it are acknowledged.
        """
    def nack(self, message: LeasedMessage, delay: Duration | None = None, *, reason: str | None = None) -> None:
        """Returns a message, so that it is redelivered later.

        A message that was delivered `max_attempts` times becomes a dead letter.

        Args:
            message: the message that `get` returned.
            delay: time before the redelivery, at most 30 days; None uses the queue's `backoff`.
            reason: text that a dead letter keeps as its property `mqstore.reason`, up to 1,024 bytes of UTF-8. The
                last reason counts, also if a lease that expires ends the last attempt.

        Raises:
            LeaseLostError: the lease ended and another worker got the message, or you returned it before.
        """
    def extend(self, message: LeasedMessage, duration: Duration | None = None) -> None:
        """Sets the end of the lease to `duration` from now, whatever time is left.

        Args:
            message: the message that `get` returned.
            duration: time from now, 1 ms to 30 days; None is the `visibility_timeout` of this handle.

        Raises:
            LeaseLostError: the lease ended and another worker got the message, or you returned it.
            InvalidOptionError: `duration` is out of bounds.
        """
    def task_done(self, message: LeasedMessage | None = None) -> None:
        """Acknowledges `message`, or by default the first message that this thread got with `get` and still holds.

        Raises:
            ValueError: this thread holds no message.
            LeaseLostError: as for `ack`.
        """
    def join(self, timeout: Duration | None = None) -> bool:
        """Waits until every message of the queue is acknowledged or a dead letter.

        After an immediate shutdown it waits for the leased messages only.

        Args:
            timeout: longest wait; None is without a limit.

        Returns:
            False if `timeout` passed first.
        """
    def qsize(self) -> int:
        """Returns the number of messages without a lease, including those that are not due yet."""
    def empty(self) -> bool:
        """Returns whether `qsize()` is 0."""
    def full(self) -> bool:
        """Returns whether `qsize()` has reached `maxsize`; always False without a `maxsize`."""
    def peek(self, count: int = 1) -> list[StoredMessage]:
        """Returns up to `count` messages that `get` could return now, oldest first.

        They stay in the queue without a lease.

        Args:
            count: maximum number of messages.

        Raises:
            ShutDown: this handle is closed.
            CorruptionError: one of the messages is damaged, and `on_damage` is `"raise"`.
        """
    def purge(self) -> int:
        """Finishes every message that no worker has, for the group of this queue only.

        These are new, delayed and returned messages, and those whose lease has ended. They are never delivered to the
        group again. Messages with a lease stay with their workers, and dead letters stay in their topic. The purge is
        on the disk when the call returns.

        Returns:
            The number of messages.

        Raises:
            ShutDown: this handle is closed.
        """
    def shutdown(self, immediate: bool = False) -> None:
        """Refuses further puts on every existing handle of this queue, and gets once the queue is empty.

        No message is lost. A handle that is created later, in this process or another, delivers the messages that are
        left.

        Args:
            immediate: whether gets are refused too, even if messages are left.
        """
    def redrive(self, limit: int | None = None, *, ids: str | Iterable[str] | None = None) -> int:
        """Appends dead letters of the group to their original topics, oldest first.

        They are new messages there, with no delivery yet. After a kill during the call, up to 64 of them may be
        appended twice. Those whose topic was deleted since are passed over.

        Args:
            limit: maximum number of dead letters; None is all.
            ids: only these dead letters, each by an id of the message that was put or of the dead letter.

        Returns:
            The number of dead letters.

        Raises:
            RefusedError: the group has no dead letter with one of the ids; none was redriven.
        """
    def delete_dead_letters(self, ids: str | Iterable[str]) -> int:
        """Deletes dead letters of the group: they are not counted nor redriven any more.

        Their records stay in the topic `dead_letters` until the retention deletes them. The deletion is on the disk
        when the call returns.

        Args:
            ids: an id of each: of the message that was put, or of the dead letter.

        Returns:
            The number of dead letters.

        Raises:
            RefusedError: the group has no dead letter with one of the ids; none was deleted.
            ShutDown: this handle is closed.
        """
    def close(self) -> None:
        """Closes this handle: it gets and puts no more messages. A second call does nothing.

        The messages that it got stay leased until their time is over. You can still acknowledge them.
        """

def groups(store: NativeStore) -> list[str]: ...
def group_lags(store: NativeStore) -> list[tuple[str, str, int]]: ...
def work_counts(store: NativeStore) -> list[tuple[str, str, int, int, int, int]]: ...
def jobs(
    store: NativeStore, topic: str | None, most: int
) -> list[
    tuple[str, str, tuple[int, int, int, int, int], list[tuple[str, int, int | None, str | None, StoredMessage]]]
]: ...
def dead_letters(store: NativeStore) -> list[tuple[str, list[tuple[int, int]]]]: ...
def check_block(block: object) -> None:
    """Refuses a duration as the first argument of `get`: as a `block` that is true, it would be no limit."""

def offset_history(store: NativeStore, group: str) -> list[tuple[str, int, int, int]]: ...
def cancel_delayed(store: NativeStore, id: str) -> bool: ...
def reschedule_delayed(
    store: NativeStore, id: str, delay: Duration | None, deliver_at: Time | None
) -> AppendResult | None: ...
def delay_counts(store: NativeStore) -> dict[str, Any]: ...
