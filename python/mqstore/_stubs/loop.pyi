"""What the native module has for event loops; a part of the stub `_mqstore.pyi`."""

from collections.abc import Iterable
from typing import NoReturn, Self, final

from mqstore._message import Message
from mqstore._mqstore import AppendResult, NativeStore, StoredMessage
from mqstore._stubs.delivery import LeasedMessage, NativeConsumer, NativeWorkQueue
from mqstore.types import BytesLike, Duration, Keys, Properties, Time

__all__ = [
    "LoopConsumer",
    "LoopLink",
    "LoopPut",
    "LoopWait",
    "LoopWorkQueue",
    "QueuedAppend",
    "is_held",
    "sync_groups",
]

@final
class LoopLink:
    """The link between a store and one event loop; made by `mqstore.aio`."""

    def __new__(cls, store: NativeStore) -> Self: ...
    def fileno(self) -> int:
        """The descriptor that is readable when there is something to take."""
    def take(self) -> list[tuple[int, AppendResult | list[AppendResult] | Exception | None]]:
        """What happened since the last call: for each its number and None for a call, else the answer or the error."""
    def wait(self, topic: str, queue_id: int, offset: int, number: int) -> LoopWait | None:
        """Has a call come under `number` once `offset` of a queue may be there; None when it is there already."""
    def look(self, topic: str, queue_id: int, offset: int) -> bool | None:
        """Whether `offset` of a queue can be read; None when to find out may take long."""
    def arrived(self, waits: list[tuple[str, int, int]]) -> list[bool]:
        """Which of these queues (topic, queue and offset) can be read at their offset; may take long."""
    def append(
        self,
        topic: str,
        body: BytesLike,
        keys: Keys,
        tags: str | None,
        properties: Properties | None,
        queue_id: int | None,
        flag: int,
        born_timestamp: Time | None,
        durable: bool,
        at_once: bool,
    ) -> AppendResult | QueuedAppend:
        """Appends as `Store.append` does if `at_once` and that waits for nobody; else the append to be queued."""
    def append_many(
        self, topic: str, messages: Iterable[BytesLike | Message], queue_id: int | None, durable: bool, at_once: bool
    ) -> list[AppendResult] | QueuedAppend:
        """As `append`, for `Store.append_many`."""
    def put(self, number: int, append: QueuedAppend) -> None:
        """Leaves an append, once, to whoever serves; what became of it comes under `number`. Numbers ascend."""
    def take_back(self, number: int) -> bool:
        """Takes an append back of which nothing was done; whether it was still there."""
    def serve(self) -> None:
        """Appends what is queued until `end`; for a thread of its own."""
    def end(self) -> None:
        """Has `serve` return once all that is queued is appended; what comes later is refused."""

@final
class LoopWait:
    """A wait of a loop; `cancel` or the end of this object takes it back."""

    @property
    def longest(self) -> float | None:
        """In how many seconds to look again in any case; None where a call is all there is to wait for."""
    def cancel(self) -> None:
        """Takes the wait back: no call comes from now on, but one may be among the news already."""

@final
class QueuedAppend:
    """An append with its arguments checked, to be left to another thread."""

    @property
    def size(self) -> int:
        """Bytes of bodies and properties."""
    @property
    def durable(self) -> bool:
        """Whether the call asked for a sync."""
    def release(self) -> None:
        """Gives up what is kept for it, if it was not left to another thread."""

@final
class LoopWorkQueue:
    """A work queue for one event loop; made by `mqstore.aio`.

    A look answers with what it found, with the wait for another look, or with None: then a thread has to prepare.
    """

    def __new__(cls, queue: NativeWorkQueue, link: LoopLink) -> Self: ...
    def get(self, count: int, patience: bool, number: int | None) -> list[LeasedMessage] | LoopWait | None:
        """Gets up to `count` messages; where there are none, a call under `number` says when to look again.

        With `patience` it waits for another thread that is at this queue; without a number nothing is found.
        """
    def prepare(self, count: int) -> None:
        """Reads ahead what up to `count` messages may come from, and moves dead letters; may take long."""
    def put(
        self, put: LoopPut, at_once: bool, patience: bool, number: int | None
    ) -> list[AppendResult] | QueuedAppend | LoopWait | None:
        """Puts messages if `at_once` and that waits for nobody, else makes the append of them that is to be queued.

        Where there is no room, a call under `number` says when to look again; without a number it is an error.
        """
    def join(self, patience: bool, number: int | None) -> bool | LoopWait | None:
        """Whether all is finished; where it is not, a call under `number` says when to look again."""
    def nack(self, message: LeasedMessage, delay: Duration | None) -> bool:
        """Gives a message back; False, and nothing was done, where that may take long."""
    def look_around(self) -> None:
        """Has those look again who wait and whom nobody calls."""
    def empty(self) -> NoReturn:
        """Raises the error for nothing to get."""

@final
class LoopPut:
    """Messages to be put into a work queue, with their arguments checked."""

    @staticmethod
    def one(
        body: BytesLike,
        keys: Keys,
        tags: str | None,
        properties: Properties | None,
        delay: Duration | None,
        durable: bool,
    ) -> LoopPut:
        """The message of the arguments of `WorkQueue.put`."""
    @staticmethod
    def many(messages: Iterable[BytesLike | Message], delay: Duration | None, durable: bool) -> LoopPut:
        """Those of the arguments of `WorkQueue.put_many`."""

@final
class LoopConsumer:
    """A consumer for one event loop; made by `mqstore.aio`. Looks answer as those of `LoopWorkQueue`."""

    def __new__(cls, consumer: NativeConsumer, link: LoopLink) -> Self: ...
    def poll(self, most: int | None, patience: bool, number: int | None) -> list[StoredMessage] | LoopWait | None:
        """Up to `most` messages, or the next one where that is None."""
    def prepare(self, most: int) -> None:
        """Takes up what changed, and reads up to `most` messages ahead; may take long."""
    def commit(self, offsets: dict[tuple[str, int], int] | None, sync: bool) -> bool | None:
        """Commits, and says whether a sync is to follow; None, and nothing was stored, where that may take long."""
    def look_around(self) -> None:
        """Has those look again who wait and whom nobody calls."""

def is_held(message: LeasedMessage) -> bool:
    """Whether a message that was got is still the caller's."""

def sync_groups(store: NativeStore) -> None:
    """Returns once all that is known of groups by now is on the disk."""
