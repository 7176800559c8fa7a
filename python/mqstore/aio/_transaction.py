"""`Transaction` for asyncio: each verb of the one that threads have, in a thread of the store's."""

from __future__ import annotations

import asyncio
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, Literal, NoReturn, ParamSpec, Self, TypeVar

import mqstore

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator
    from types import TracebackType

    from mqstore.aio._bridge import Bridge
    from mqstore.aio._store import Store
    from mqstore.types import Check

P = ParamSpec("P")
T = TypeVar("T")


def _in_thread(
    method: Callable[Concatenate[mqstore.Transaction, P], T],
) -> Callable[Concatenate[Transaction, P], Coroutine[Any, Any, T]]:
    """The twin of a verb. A body is not to be changed before the answer."""

    @wraps(method)
    async def twin(self: Transaction, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self._bridge.run(partial(method, self._begun, *args, **kwargs))

    twin.__module__ = "mqstore.aio"
    twin.__qualname__ = f"Transaction.{method.__name__}"
    return twin


class Transaction:
    """Messages that appear together or never; made by `Store.transaction`, for `async with` or `await`.

    As `mqstore.Transaction`. A verb whose task is cancelled goes on without it: a block that is cancelled while it
    commits is committed, one that is cancelled before is rolled back.
    """

    __slots__ = ("__weakref__", "_arguments", "_beginning", "_bridge", "_store", "_transaction")

    def __init__(self, store: Store, bridge: Bridge, group: str, check: Check | None, durable: bool) -> None:
        """Keeps the arguments of `Store.transaction` until it is entered or awaited."""
        # The store is closed with its last user.
        self._store = store
        self._bridge = bridge
        self._arguments = (group, check, durable)
        self._transaction: mqstore.Transaction | None = None
        # Tasks that await it together share one transaction.
        self._beginning = asyncio.Lock()

    async def _begin(self) -> Self:
        bridge = self._bridge
        bridge.check()
        async with self._beginning:
            if self._transaction is None:
                group, check, durable = self._arguments
                begin = partial(bridge.store.transaction, group, check=check, durable=durable)
                self._transaction = await bridge.run(begin)
        return self

    @property
    def _begun(self) -> mqstore.Transaction:
        if self._transaction is None:
            msg = "the transaction has not begun: use it by async with, or await it"
            raise RuntimeError(msg)
        return self._transaction

    def __await__(self) -> Generator[None, None, Self]:
        return self._begin().__await__()

    async def __aenter__(self) -> Self:
        return await self._begin()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self.outcome is None:
            await (self.commit() if kind is None else self.rollback())

    @property
    def id(self) -> str:
        """Its id, by which a check knows it: the unique id of its first message, unless that was given another one."""
        return self._begun.id

    @property
    def group(self) -> str:
        """Its producer group."""
        return self._arguments[0]

    @property
    def outcome(self) -> Literal["committed", "rolled back"] | None:
        """How it ended; None while it is open."""
        return self._begun.outcome

    @property
    def results(self) -> list[mqstore.AppendResult]:
        """Where its messages went, in the order in which they were appended; empty until it is committed."""
        return self._begun.results

    append = _in_thread(mqstore.Transaction.append)
    commit = _in_thread(mqstore.Transaction.commit)
    rollback = _in_thread(mqstore.Transaction.rollback)

    def __repr__(self) -> str:
        begun = self._transaction
        return repr(begun).replace("<mqstore.", "<mqstore.aio.", 1) if begun else "<mqstore.aio.Transaction, not begun>"

    def __reduce__(self) -> NoReturn:
        msg = "cannot pickle a transaction: it belongs to this process; send its id, and have a check decide"
        raise TypeError(msg)


Transaction.__module__ = "mqstore.aio"
