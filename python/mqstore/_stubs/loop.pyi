"""Stubs of the native module for event loops; a part of `_mqstore.pyi`."""

from typing import Any, Literal, NoReturn, Self, final

from mqstore._mqstore import AppendResult, AppendResults, NativeStore, StoredMessage
from mqstore._stubs.delivery import LeasedMessage, NativeConsumer, NativeWorkQueue
from mqstore.types import Duration

@final
class LoopLink:
    """The link between a store and one event loop; created by `mqstore.aio`."""

    def __new__(cls, store: NativeStore, most: int, most_bytes: int) -> Self: ...
    def fileno(self) -> int:
        """Returns the descriptor that is readable while the inbox has events."""
    def take(self) -> list[tuple[int, AppendResult | AppendResults | Exception | None]]:
        """Takes all events: for each its number, and None for a call, else the result or the error."""
    def wait(self, topic: str, queue_id: int, offset: int, number: int) -> LoopWait | None:
        """Requests a call under `number` once `offset` of a queue may be readable; None if it is readable now."""
    def look(self, topic: str, queue_id: int, offset: int) -> bool | None:
        """Returns whether `offset` of a queue can be read; None if the answer can block."""
    def arrived(self, waits: list[tuple[str, int, int]]) -> list[bool]:
        """Returns which of these queues (topic, queue and offset) can be read at their offset; can block."""
    def append(self, number: int, /, *args: Any, **kwargs: Any) -> AppendResult | Literal[False] | None:
        """Appends like `Store.append` if that does not block; otherwise queues the append and returns None.

        The result of a queued append arrives under `number`. Numbers ascend. Returns False for a delayed message, for
        one with light queues, and in a process that is not the owner of a shared store: a thread must append it.
        """
    def append_many(self, number: int, /, *args: Any, **kwargs: Any) -> AppendResults | None:
        """Like `append`, for `Store.append_many`."""
    def append_batch(self, number: int, /, *args: Any, **kwargs: Any) -> AppendResults | None:
        """Like `append`, for `Store.append_batch`."""
    def hand_over(self) -> None:
        """Hands over the queued appends to the thread in `serve`."""
    def take_back(self, number: int) -> bool:
        """Takes back an append that was not started; returns whether it was still queued."""
    def serve(self) -> None:
        """Serves the queued appends until `end`; for a thread of its own."""
    def end(self) -> None:
        """Makes `serve` return once the appends that may be in progress are done. All others are refused."""

@final
class LoopWait:
    """A wait of a loop. `cancel`, or the drop of this object, takes it back."""

    @property
    def longest(self) -> float | None:
        """Seconds after which to try again in any case; None if only a call ends the wait."""
    def cancel(self) -> None:
        """Takes the wait back. No later event calls the loop, but the inbox may already contain one."""

@final
class LoopWorkQueue:
    """A work queue for one event loop; created by `mqstore.aio`.

    An attempt returns its result, a `LoopWait` for the next attempt, or None: then a thread must call `prepare`.
    """

    def __new__(cls, queue: NativeWorkQueue, link: LoopLink) -> Self: ...
    def get(self, count: int, patience: bool, number: int | None) -> list[LeasedMessage] | LoopWait | None:
        """Gets up to `count` messages. If there are none, a call under `number` announces the next attempt.

        With `patience` it waits for another thread that uses this queue. Without a number, an empty queue gives an
        empty list.
        """
    def prepare(self, count: int) -> None:
        """Reads ahead for up to `count` messages, and moves dead letters; can block."""
    def put(
        self, put: LoopPut, append: int, patience: bool, number: int | None
    ) -> list[AppendResult] | Literal[False] | LoopWait | None:
        """Puts messages if that does not block; otherwise queues their append under `append` and returns False.

        If the queue is full, a call under `number` announces the next attempt; without a number it is an error.
        """
    def join(self, patience: bool, number: int | None) -> bool | LoopWait | None:
        """Returns whether every message is finished. If not, a call under `number` announces the next attempt."""
    def nack(self, message: LeasedMessage, delay: Duration | None, reason: str | None) -> bool:
        """Returns a message to the queue; False, without any change, if that can block."""
    def look_around(self) -> None:
        """Wakes the waiting tasks that no event announces."""
    def empty(self) -> NoReturn:
        """Raises the error for an empty queue."""

@final
class LoopPut:
    """Messages for a work queue, with their arguments checked."""

    @staticmethod
    def one(queue: NativeWorkQueue, /, *args: Any, **kwargs: Any) -> LoopPut:
        """Converts the arguments of `WorkQueue.put`, except `dedup_id`, `block` and `timeout`."""
    @staticmethod
    def many(queue: NativeWorkQueue, /, *args: Any, **kwargs: Any) -> LoopPut:
        """Converts the arguments of `WorkQueue.put_many`, except `block` and `timeout`."""

@final
class LoopConsumer:
    """A consumer for one event loop; created by `mqstore.aio`. Attempts answer like those of `LoopWorkQueue`."""

    def __new__(cls, consumer: NativeConsumer, link: LoopLink) -> Self: ...
    def poll(self, most: int | None, patience: bool, number: int | None) -> list[StoredMessage] | LoopWait | None:
        """Returns up to `most` messages, or the next message if `most` is None."""
    def prepare(self, most: int) -> None:
        """Applies changes of the assignment, and reads up to `most` messages ahead; can block."""
    def commit(self, offsets: dict[tuple[str, int], int] | None, sync: bool) -> bool | None:
        """Commits, and returns whether a sync must follow; None, with nothing stored, if that can block."""
    def look_around(self) -> None:
        """Wakes the waiting tasks that no event announces."""

def is_held(message: LeasedMessage) -> bool:
    """Returns whether the caller still holds the lease of a message."""

def is_settled(message: LeasedMessage) -> bool:
    """Returns whether `ack` or `nack` has settled the message."""

def reason_of(error: BaseException) -> str:
    """Returns an exception as a reason: its class and its text."""

def sync_groups(store: NativeStore) -> None:
    """Returns once every change of the groups made so far is on the disk."""
