"""What the native module has for consumers, work queues and delayed messages; a part of the stub `_mqstore.pyi`."""

from collections.abc import Callable, Iterable
from typing import Any, Self, final

from typing_extensions import disjoint_base

from mqstore._message import Message
from mqstore._mqstore import AppendResult, NativeStore, StoredMessage
from mqstore.types import BytesLike, Duration, Filter, Keys, Properties, Start, Time

__all__ = [
    "LeasedMessage",
    "NativeConsumer",
    "NativeWorkQueue",
    "cancel_delayed",
    "delay_counts",
    "groups",
    "offset_history",
    "reschedule_delayed",
]

@final
class LeasedMessage(StoredMessage):
    """A message that was got from a work queue: a `StoredMessage`, and the lease on it.

    Whoever has it has it alone until it is finished (`ack`), given back (`nack`), or `invisible_until` has passed.
    Equal to the same stored message; a pickled copy is the stored message without the lease.
    """

    @property
    def attempt(self) -> int:
        """Which delivery of the message this is; 1 is the first."""
    @property
    def invisible_until(self) -> int:
        """Until when nobody else gets it, in epoch milliseconds; `extend` moves it."""

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
    ) -> Self: ...
    @property
    def group(self) -> str:
        """Its group."""
    @property
    def topics(self) -> tuple[str, ...]:
        """Its topics, sorted."""
    @property
    def closed(self) -> bool:
        """Whether it was closed, or its store."""
    @property
    def assignment(self) -> tuple[tuple[str, int], ...]:
        """The queues that it has now, each a topic and a queue id, sorted; none once it is closed."""
    def poll(self, max_messages: int = 1000, timeout: Duration | None = None) -> list[StoredMessage]:
        """The next messages, in the order of their queue, from one queue after the other.

        Args:
            max_messages: the most to return.
            timeout: how long to wait for the first, in seconds or as a `timedelta`; None is for ever, 0 does not wait.

        Returns:
            At least one message unless `timeout` passes first.

        Raises:
            ConsumerClosedError: it was closed, before the call or during it.
            OffsetOutOfRangeError: messages were deleted before the group read them, and `on_lost` is `"raise"`.
        """
    def __iter__(self) -> Self: ...
    def __next__(self) -> StoredMessage: ...
    def commit(self, offsets: dict[tuple[str, int], int] | None = None, *, sync: bool = False) -> None:
        """Stores how far the group has come: for each queue the offset behind the last message that was returned here.

        It survives a kill of the process when this returns, and a loss of power within `commit_interval`.

        Args:
            offsets: the next offset to be read of single queues instead, by topic and queue id: `{("orders", 0): 17}`.
            sync: whether to wait until it is on the disk.

        Raises:
            QueueNotAssignedError: a queue in `offsets` is not this consumer's; nothing was stored.
            OffsetOutOfRangeError: an offset lies behind the queue's end.
        """
    def seek(self, topic: str, queue_id: int, offset: int) -> None:
        """Goes on at `offset` of a queue.

        The next commit stores where it came to from there, also if that is further back than before.

        Raises:
            QueueNotAssignedError: the queue is not this consumer's.
            OffsetOutOfRangeError: the queue does not hold the offset, and it is not its end.
        """
    def seek_to_time(self, time: Time) -> None:
        """Goes on, in each queue that it has, at the first message stored at or after `time`."""
    def reset(self, to: Start, *, sync: bool = False) -> None:
        """Moves the group, in each queue that this consumer has, and stores that.

        Args:
            to: `"earliest"`, `"latest"`, or a time: the first message stored at or after it.
            sync: whether to wait until it is on the disk.
        """
    def position(self, topic: str, queue_id: int) -> int:
        """The offset of the next message that it returns of a queue, at least.

        Raises:
            QueueNotAssignedError: the queue is not this consumer's.
        """
    def committed(self, topic: str, queue_id: int) -> int | None:
        """The offset that is stored for a queue: the next one the group is to read; None where none is.

        Raises:
            QueueNotAssignedError: the queue is not this consumer's.
        """
    def lag(self) -> dict[tuple[str, int], int]:
        """How many messages lie between what is committed and the end, for each queue that it has.

        Returns:
            The numbers by topic and queue id: `{("orders", 0): 17}`.
        """
    def close(self) -> None:
        """Gives its queues to the others of its group; a second call does nothing.

        What was returned and not committed comes again.
        """

@disjoint_base
class NativeWorkQueue:
    """The native part of `mqstore.WorkQueue`."""

    def __new__(
        cls,
        store: NativeStore,
        topic: str,
        group: str,
        invisible_duration: Duration,
        max_attempts: int | None,
        backoff: Callable[[int], Duration] | None,
        maxsize: int,
    ) -> Self: ...
    @property
    def topic(self) -> str:
        """The topic whose messages it hands out."""
    @property
    def group(self) -> str:
        """The group that finishes them."""
    @property
    def dead_letters(self) -> str:
        """The topic of the group's dead letters: `%DLQ%` and the group's name."""
    @property
    def invisible_duration(self) -> float:
        """How long a message that was got stays out of sight of others, in seconds."""
    @property
    def max_attempts(self) -> int | None:
        """After so many deliveries a message goes to the dead letters; None is never."""
    @property
    def maxsize(self) -> int:
        """How many messages that nobody has the queue may hold before a put waits; 0 is no limit."""
    @property
    def closed(self) -> bool:
        """Whether this handle was closed, or its store."""
    def _counts(self) -> tuple[int, int, int, int]: ...
    def put(
        self,
        body: BytesLike,
        *,
        keys: Keys = (),
        tags: str | None = None,
        properties: Properties | None = None,
        delay: Duration | None = None,
        durable: bool = False,
        block: bool = True,
        timeout: Duration | None = None,
    ) -> AppendResult:
        """Puts a message in.

        Args:
            body: any bytes-like object.
            keys: one key or several, as for `Store.append`.
            tags: the tag.
            properties: the message's own, as for `Store.append`.
            delay: how long it is held back, in seconds or as a `timedelta`, at most 30 days. It keeps its place in the
                log, and every group holds it back.
            durable: whether to wait for a sync whatever the store's durability.
            block: whether to wait for room where there is a `maxsize`.
            timeout: how long to wait; None is for ever.

        Raises:
            Full: no room, or none in time.
            ShutDown: the queue was shut down, or this handle closed.
            InvalidMessageError: text or a number that the format cannot hold; nothing was written.
        """
    def put_many(
        self,
        messages: Iterable[BytesLike | Message],
        *,
        delay: Duration | None = None,
        durable: bool = False,
        block: bool = True,
        timeout: Duration | None = None,
    ) -> list[AppendResult]:
        """Puts messages in together, under one lock and with one sync; results in the order given.

        Waits until there is room for all of them. After a crash a prefix of them may be there.

        Args:
            messages: bodies or `Message`s.
            delay: how long all of them are held back.
            durable: as for `put`.
            block: as for `put`.
            timeout: as for `put`.

        Raises:
            Full: no room, or none in time; none was put in.
            ShutDown: the queue was shut down, or this handle closed.
        """
    def get(self, block: bool = True, timeout: Duration | None = None) -> LeasedMessage:
        """Gets a message and has it alone for `invisible_duration`; a message that is due again and a new one in turn.

        Args:
            block: whether to wait for one.
            timeout: how long to wait; None is for ever.

        Raises:
            Empty: there is none, or none in time.
            ShutDown: the queue was shut down and holds nothing more, or this handle was closed.
        """
    def get_many(self, count: int, timeout: Duration | None = None) -> list[LeasedMessage]:
        """Gets up to `count` messages, at least one unless `timeout` passes first; none is an empty list.

        Args:
            count: the most to get.
            timeout: how long to wait for the first; None is for ever, 0 does not wait.

        Raises:
            ShutDown: the queue was shut down and holds nothing more, or this handle was closed.
        """
    def ack(self, message: LeasedMessage, *, durable: bool = False) -> None:
        """Finishes a message: it is not delivered again. To finish one again changes nothing.

        Args:
            message: what `get` returned.
            durable: whether to wait until that is on the disk; else it is within 0.1 s.

        Raises:
            LeaseLostError: its time was over and somebody else got it, or it was given back.
        """
    def ack_many(self, messages: Iterable[LeasedMessage], *, durable: bool = False) -> None:
        """Finishes messages; with `durable` one sync serves all of them.

        Raises:
            LeaseLostError: one of them is somebody else's now; those before it are finished.
        """
    def nack(self, message: LeasedMessage, delay: Duration | None = None) -> None:
        """Gives a message back, to be delivered again later.

        One that was delivered `max_attempts` times goes to the dead letters.

        Args:
            message: what `get` returned.
            delay: how long it waits, in seconds or as a `timedelta`, at most 30 days; None is what the queue's
                `backoff` says.

        Raises:
            LeaseLostError: its time was over and somebody else got it, or it was given back before.
        """
    def extend(self, message: LeasedMessage, duration: Duration) -> None:
        """Keeps a message for `duration` from now, whatever was left of its time.

        Args:
            message: what `get` returned.
            duration: seconds or a `timedelta`, 1 ms to 30 days.

        Raises:
            LeaseLostError: its time was over and somebody else got it, or it was given back.
            InvalidOptionError: `duration` is out of bounds.
        """
    def task_done(self, message: LeasedMessage | None = None) -> None:
        """Finishes `message`; without one the message that this thread got first, by `get`, of those that it still has.

        Raises:
            ValueError: this thread has none.
            LeaseLostError: as for `ack`.
        """
    def join(self, timeout: Duration | None = None) -> bool:
        """Waits until every message that was put in is finished, or a dead letter.

        After a shutdown at once it waits for what somebody has only.

        Args:
            timeout: how long to wait; None is for ever.

        Returns:
            False when `timeout` passed first.
        """
    def qsize(self) -> int:
        """How many messages the queue holds that nobody has, those included that are not due yet."""
    def empty(self) -> bool:
        """Whether `qsize()` is 0."""
    def full(self) -> bool:
        """Whether `qsize()` has reached `maxsize`; never without one."""
    def shutdown(self, immediate: bool = False) -> None:
        """Refuses further puts on every handle of this queue that was made up to now, and gets once nothing is left.

        Nothing is lost: what is in the queue is there for handles that are made later, in this process or another.

        Args:
            immediate: refuses gets at once.
        """
    def redrive(self, limit: int | None = None) -> int:
        """Puts dead letters of the group back into the topics that they came from, the oldest first.

        They are new messages there, that nobody got yet. A kill in the middle may put up to 64 of them back once more.

        Args:
            limit: at most so many; None is all.

        Returns:
            How many.
        """
    def close(self) -> None:
        """Lets go of the queue: this handle gets and puts nothing more. A second call does nothing.

        What was got by it stays leased until its time is over, and can still be finished.
        """

def groups(store: NativeStore) -> list[str]: ...
def offset_history(store: NativeStore, group: str) -> list[tuple[str, int, int, int]]: ...
def cancel_delayed(store: NativeStore, id: str) -> bool: ...
def reschedule_delayed(
    store: NativeStore, id: str, delay: Duration | None, deliver_at: Time | None
) -> AppendResult | None: ...
def delay_counts(store: NativeStore) -> dict[str, Any]: ...
