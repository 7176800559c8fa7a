"""`Transaction` for asyncio: each verb of the one that threads have, in a thread of the store's."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Literal, NoReturn, Self

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import TracebackType

    import mqstore
    from mqstore.aio._bridge import Bridge
    from mqstore.aio._store import Store
    from mqstore.types import BytesLike, Check, Keys, Properties, Time


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

    async def append(
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

        Args:
            topic: made with `default_queues` queues if it does not exist.
            body: any bytes-like object; not to be changed before the answer.
            keys: one key or several, as for `Store.append`.
            tags: the tag that filters go by.
            properties: the message's own, as for `Store.append`.
            queue_id: the queue; None takes the topic's queues in turn.
            flag: a number of the application's own, 32 bits.
            born_timestamp: when the message was made; None is now.

        Raises:
            As `mqstore.Transaction.append`.
        """
        call = partial(
            self._begun.append,
            topic,
            body,
            keys=keys,
            tags=tags,
            properties=properties,
            queue_id=queue_id,
            flag=flag,
            born_timestamp=born_timestamp,
        )
        return await self._bridge.run(call)

    async def commit(self) -> list[mqstore.AppendResult]:
        """Has its messages appear, all in one step; where they went. To commit again changes nothing.

        Raises:
            RefusedError: it was rolled back.
        """
        return await self._bridge.run(self._begun.commit)

    async def rollback(self) -> None:
        """Hides its messages for ever. To roll back again changes nothing.

        Raises:
            RefusedError: it was committed.
        """
        await self._bridge.run(self._begun.rollback)

    def __repr__(self) -> str:
        begun = self._transaction
        return repr(begun).replace("<mqstore.", "<mqstore.aio.", 1) if begun else "<mqstore.aio.Transaction, not begun>"

    def __reduce__(self) -> NoReturn:
        msg = "cannot pickle a transaction: it belongs to this process; send its id, and have a check decide"
        raise TypeError(msg)


Transaction.__module__ = "mqstore.aio"
