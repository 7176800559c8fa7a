"""`Transaction` for asyncio: each verb of the blocking class, in a thread of the store."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Literal, NoReturn, Self

import mqstore
from mqstore.aio._twins import in_thread

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import TracebackType

    from mqstore.aio._bridge import Bridge
    from mqstore.aio._store import Store
    from mqstore.types import Check


class Transaction:
    """Messages that appear all together or never, from `Store.transaction`, for `async with` or `await`.

    Works like `mqstore.Transaction`. A verb continues if its task is cancelled: a block that is cancelled during the
    commit is committed, one that is cancelled before is rolled back.
    """

    __slots__ = ("__weakref__", "_arguments", "_beginning", "_bridge", "_store", "_transaction")

    def __init__(self, store: Store, bridge: Bridge, group: str, check: Check | None, durable: bool) -> None:
        """Keeps the arguments of `Store.transaction` for the begin."""
        # Keeps the store alive.
        self._store = store
        self._bridge = bridge
        self._arguments = (group, check, durable)
        self._transaction: mqstore.Transaction | None = None
        # Concurrent tasks that await it share one transaction.
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
    def _own(self) -> mqstore.Transaction:
        if self._transaction is None:
            raise RuntimeError("the transaction has not begun: use it with async with, or await it")
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
        """Id of the transaction, also for its check: the unique id of its first message, unless you set another one."""
        return self._own.id

    @property
    def group(self) -> str:
        """Producer group of the transaction."""
        return self._arguments[0]

    @property
    def outcome(self) -> Literal["committed", "rolled back"] | None:
        """`"committed"` or `"rolled back"`; None while the transaction is open."""
        return self._own.outcome

    @property
    def results(self) -> list[mqstore.AppendResult]:
        """Results of its messages in the order of the appends; empty until the commit."""
        return self._own.results

    append = in_thread(mqstore.Transaction.append)
    commit = in_thread(mqstore.Transaction.commit)
    rollback = in_thread(mqstore.Transaction.rollback)

    def __repr__(self) -> str:
        begun = self._transaction
        return repr(begun).replace("<mqstore.", "<mqstore.aio.", 1) if begun else "<mqstore.aio.Transaction, not begun>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("cannot pickle a transaction: it belongs to this process; send its id, and let a check decide")


Transaction.__module__ = "mqstore.aio"
