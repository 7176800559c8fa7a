"""What the native module has for event loops; a part of the stub `_mqstore.pyi`."""

from collections.abc import Iterable
from typing import Self, final

from mqstore._message import Message
from mqstore._mqstore import AppendResult, NativeStore
from mqstore.types import BytesLike, Keys, Properties, Time

__all__ = ["LoopLink", "LoopWait", "QueuedAppend"]

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
