"""`Table` for asyncio: an access may have to read new messages first, so every access is a coroutine."""

from __future__ import annotations

from functools import partial
from operator import index
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

import mqstore
from mqstore._read.lasting import LastingAsync
from mqstore._times import seconds_of
from mqstore.aio._reads import Messages
from mqstore.aio._twins import in_thread, like

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable
    from datetime import timedelta

    from mqstore._native import StoredMessage
    from mqstore._read.table import Change
    from mqstore.aio._bridge import Bridge
    from mqstore.types import Duration

T = TypeVar("T")

# Longest wait for the known queues before new queues are looked for.
_NAP = 1.0


class Table:
    """A topic as a live mapping from key to newest message, from `Store.table`.

    Works like `mqstore.Table`, with coroutines: `await table["key"]`, `await table.get("key")`. An assignment cannot be
    awaited: call `set` and `delete`.
    """

    def __init__(self, owner: object, bridge: Bridge, table: mqstore.Table) -> None:
        """Wraps `table`. Programs call `Store.table` instead."""
        self._owner = owner
        self._bridge = bridge
        self._own = table

    @property
    def topic(self) -> str:
        """Name of the topic."""
        return self._own.topic

    async def expire_after(self) -> timedelta | None:
        """Returns the time after which a value expires, counted from its store time; None if values do not expire."""
        return await self._bridge.run(lambda: self._own.expire_after)

    async def set_expire_after(self, value: Duration | None) -> None:
        """Sets the time after which a value expires, for all processes; None turns the expiry off.

        See `mqstore.Table.expire_after`. The change is durable when this returns.

        Raises:
            InvalidOptionError: less than a millisecond.
            StoreReadOnlyError: the store is open for reading.
        """
        await self._bridge.run(partial(setattr, self._own, "expire_after", value))

    async def refresh(self) -> None:
        """Applies everything appended so far; every other method does so too.

        Raises:
            StoreClosedError: the store was closed.
        """
        await self._bridge.run(self._own.refresh)

    def offset(self, queue_id: int = 0) -> int:
        """Returns one past the last offset of a queue that the table has applied."""
        return self._own.offset(queue_id)

    async def get(self, key: str, default: T | None = None) -> StoredMessage | T | None:
        """Returns the newest message of `key`, or `default`."""
        return await self._bridge.run(partial(self._own.get, key, default))

    async def __getitem__(self, key: str) -> StoredMessage:
        """Returns the newest message of `key`: `await table["key"]`. Raises KeyError if there is none."""
        return await self._bridge.run(partial(self._own.__getitem__, key))

    set = in_thread(mqstore.Table.set)
    delete = in_thread(mqstore.Table.delete)

    async def contains(self, key: str) -> bool:
        """Returns whether there is a message with this key."""
        return await self._bridge.run(partial(self._own.__contains__, key))

    async def count(self) -> int:
        """Returns the number of keys."""
        return await self._bridge.run(self._own.__len__)

    async def keys(self) -> list[str]:
        """Returns the keys of one moment, in the order of their newest messages."""
        return await self._bridge.run(partial(list, cast("Any", self._own)))

    async def values(self) -> list[StoredMessage]:
        """Returns the newest message of each key."""
        return await self._bridge.run(lambda: list(self._own.values()))

    async def items(self) -> list[tuple[str, StoredMessage]]:
        """Returns each key with its newest message."""
        return await self._bridge.run(lambda: list(self._own.items()))

    @like(mqstore.Table.wait_until)
    async def wait_until(self, offset: int, *, queue_id: int = 0, timeout: Duration | None = None) -> bool:
        """Waits until the table includes the message at `offset` of a queue, such as an append's `queue_offset`."""
        seconds = None if timeout is None else seconds_of("timeout", timeout)
        if not await self._bridge.wait(self.topic, queue_id, index(offset), seconds):
            return False
        await self.refresh()
        return True

    @like(mqstore.Table.changes)
    def changes(self, *, timeout: Duration | None = None) -> AsyncIterator[Change]:
        """Yields the changes of the table from now on, in offset order of each queue. Iterators are independent.

        "Now" is the request for the first change.
        """
        return LastingAsync(self._changes(None if timeout is None else seconds_of("timeout", timeout)))

    async def _changes(self, limit: float | None) -> AsyncGenerator[Change]:
        table, bridge = self._own, self._bridge
        places = await bridge.run(table._places)
        last = bridge.loop.time()
        while True:
            due = await bridge.run(partial(table._due, places))
            ends = await bridge.run(table._ends) if due else {}
            for queue in due:
                opening: Callable[[], Any] = partial(table._messages, queue, places.get(queue))
                async for message in Messages(self._owner, bridge, opening):
                    places[queue] = message.queue_offset + 1
                    if (change := table._change(message, queue)) is not None:
                        yield change
                        last = bridge.loop.time()
                places[queue] = max(places.get(queue, 0), ends.get(queue, 0))
            if due:
                continue
            left = None if limit is None else last + limit - bridge.loop.time()
            if left is not None and left <= 0:
                return
            waits = [(self.topic, queue, start) for queue, start in places.items()]
            # The topic can get more queues meanwhile, which send no signal.
            await bridge.arrival(waits, _NAP if left is None else min(left, _NAP))

    def __repr__(self) -> str:
        return repr(self._own).replace("<mqstore.", "<mqstore.aio.", 1)

    def __reduce__(self) -> NoReturn:
        self._own.__reduce__()
        raise AssertionError


Table.__module__ = "mqstore.aio"
