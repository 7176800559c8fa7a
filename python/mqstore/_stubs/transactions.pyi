"""What the native module has for transactions; a part of the stub `_mqstore.pyi`."""

from types import TracebackType
from typing import Literal, Self, TypeAlias, final

from typing_extensions import disjoint_base

from mqstore._mqstore import AppendResult, NativeStore
from mqstore.types import BytesLike, Duration, Keys, Properties, Time

__all__ = ["NativeChecks", "NativeTransaction", "pending_transactions"]

_PendingRow: TypeAlias = tuple[str, str, list[str], int, int, int, int | None, bool, list[int]]

@disjoint_base
class NativeTransaction:
    """The native part of `mqstore.Transaction`."""

    def __new__(cls, store: NativeStore, group: str, durable: bool) -> Self: ...
    @property
    def id(self) -> str:
        """Its id, by which a check knows it: the unique id of its first message, unless that was given another one."""
    @property
    def group(self) -> str:
        """Its producer group."""
    @property
    def outcome(self) -> Literal["committed", "rolled back"] | None:
        """How it ended: `"committed"` or `"rolled back"`; None while it is open."""
    @property
    def results(self) -> list[AppendResult]:
        """Where its messages went, in the order in which they were appended; empty until it is committed."""
    def append(
        self,
        topic: str,
        body: BytesLike,
        *,
        keys: Keys = (),
        tags: str | None = None,
        properties: Properties | None = None,
        queue_id: int | None = None,
        flag: int = 0,
        born_timestamp: Time | None = None,
    ) -> str:
        """Stores a message that is in its topic once the transaction is committed; its unique id.

        It survives the process as any append to the store does. Topic and queue are checked and settled now.

        Args:
            topic: made with `default_queues` queues if it does not exist.
            body: any bytes-like object.
            keys: one key or several, as for `Store.append`.
            tags: the tag that filters go by.
            properties: the message's own, as for `Store.append`.
            queue_id: the queue; None takes the topic's queues in turn.
            flag: a number of the application's own, 32 bits.
            born_timestamp: when the message was made; None is now.

        Raises:
            RefusedError: the transaction has ended.
            InvalidMessageError: as for `Store.append`; and for topics with batch queues.
            MessageTooLargeError: as for `Store.append`; and where a segment could not hold what the commit stores.
        """
    def commit(self) -> list[AppendResult]:
        """Has its messages appear, all in one step; where they went. To commit again changes nothing.

        Raises:
            RefusedError: it was rolled back.
        """
    def rollback(self) -> None:
        """Hides its messages for ever. To roll back again changes nothing.

        Raises:
            RefusedError: it was committed.
        """
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...

@final
class NativeChecks:
    """What the thread that asks has of a store; it does not keep that from being forgotten."""

    def __new__(cls, store: NativeStore) -> Self: ...
    def set(self, group: str, check_after: Duration, check_interval: Duration, check_max: int) -> None:
        """Has `group` asked from now on."""
    def next(self) -> list[_PendingRow] | None:
        """Waits until somebody is to be asked, and says about what; None once that is over."""
    def answer(self, id: str, commit: bool) -> None:
        """Does what somebody answered."""
    def rest(self) -> None:
        """Sleeps after an error of `next`."""
    def end(self) -> None:
        """Has `next` return None, now and later."""
    @property
    def closed(self) -> bool:
        """Whether the store was closed."""

def pending_transactions(store: NativeStore) -> list[_PendingRow]: ...
