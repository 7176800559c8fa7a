"""Stubs of the native module for transactions; a part of `_mqstore.pyi`."""

from types import TracebackType
from typing import Literal, Self, TypeAlias, final

from typing_extensions import disjoint_base

from mqstore._mqstore import AppendResult, NativeStore
from mqstore.types import BytesLike, Compression, Duration, Keys, Properties, Time

_PendingRow: TypeAlias = tuple[str, str, list[str], int, int, int, int | None, bool, list[int]]

@disjoint_base
class NativeTransaction:
    """The native part of `mqstore.Transaction`."""

    def __new__(cls, store: NativeStore, group: str, durable: bool) -> Self: ...
    @property
    def id(self) -> str:
        """The id by which a check identifies the transaction.

        It is the unique id of the first message, unless you gave another one.
        """
    @property
    def group(self) -> str:
        """The producer group."""
    @property
    def outcome(self) -> Literal["committed", "rolled back"] | None:
        """The outcome: `"committed"` or `"rolled back"`; None while the transaction is open."""
    @property
    def results(self) -> list[AppendResult]:
        """The positions of the messages, in the order of the appends; empty until the commit."""
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
        compression: Compression | None = None,
        compress_over: int | None = None,
    ) -> str:
        """Stores a message that becomes visible when the transaction is committed, and returns its unique id.

        It survives a crash like any append to the store. Topic and queue are checked and fixed now.

        Args:
            topic: created with `default_queues` queues if it does not exist.
            body: any bytes-like object.
            json: a value whose JSON is the body, as for `Store.append`.
            keys: one key or several, as for `Store.append`.
            tags: the tag that tag filters compare.
            properties: the message's own properties, as for `Store.append`.
            queue_id: the queue; None takes the topic's queues in turn.
            flag: a 32-bit number for the application.
            born_timestamp: time at which the message was created; None is now.
            compression: as for `Store.append`.
            compress_over: as for `Store.append`.

        Raises:
            RefusedError: the transaction has ended.
            InvalidMessageError: as for `Store.append`, and if the topic has batch queues.
            MessageTooLargeError: as for `Store.append`, and if the records of the commit do not fit in one segment.
        """
    def commit(self) -> list[AppendResult]:
        """Makes all messages visible in one step, and returns their positions. A second commit changes nothing.

        Raises:
            RefusedError: the transaction was rolled back.
        """
    def rollback(self) -> None:
        """Discards the messages for ever. A second rollback changes nothing.

        Raises:
            RefusedError: the transaction was committed.
        """
    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> None: ...

@final
class NativeChecks:
    """The store's state for the check thread. It does not keep the store alive."""

    def __new__(cls, store: NativeStore) -> Self: ...
    def set(self, group: str, check_after: Duration, check_interval: Duration, check_max: int) -> None:
        """Registers `group` for checks from now on."""
    def next(self) -> list[_PendingRow] | None:
        """Waits until checks are due, and returns their transactions; None once checks have ended."""
    def answer(self, id: str, commit: bool) -> None:
        """Applies the answer of a check function."""
    def rest(self) -> None:
        """Pauses after an error of `next`."""
    def end(self) -> None:
        """Makes `next` return None, now and later."""
    @property
    def closed(self) -> bool:
        """Whether the store is closed."""

def pending_transactions(store: NativeStore) -> list[_PendingRow]: ...
