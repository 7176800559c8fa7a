"""Iteration for asyncio: messages that are in memory need no thread, a thread reads batches of the others."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Self, cast

from mqstore.aio._shared_step import SharedStep

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mqstore._native import MessageIterator, StoredMessage
    from mqstore.aio._bridge import Bridge

    # Messages, or the queues and offsets to wait for, or the end.
    Step = list[StoredMessage] | tuple[tuple[int, int], ...] | None


class Messages:
    """Messages in order, from `Store.read` and `Store.lookup`.

    Tasks can share one; each message goes to exactly one of them. A task that is cancelled while it waits takes none.
    """

    def __init__(
        self,
        owner: object,
        bridge: Bridge,
        opening: Callable[[], Iterator[StoredMessage]],
        topic: str | None = None,
        seconds: float | None = None,
        *,
        whole: bool = False,
        ends_by_time: bool = False,
    ) -> None:
        """Reads from `opening`. At the end of `topic` it waits, up to `seconds` for each message.

        If it reads the `whole` topic or `ends_by_time`, it looks for new queues or for its end during a wait.
        """
        # Keeps the store alive.
        self._owner = owner
        self._bridge = bridge
        self._opening = opening
        self._messages: MessageIterator | None = None
        self._topic = topic
        self._whole = whole
        self._ends_by_time = ends_by_time
        self._seconds = seconds
        # Newest first.
        self._ready: list[StoredMessage] = []
        self._step: SharedStep[Step] = SharedStep()
        self._turn = asyncio.Lock()
        self._over = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StoredMessage:
        if self._ready:
            self._bridge.check()
            self._drop_hidden()
        if not self._ready:
            async with self._turn:
                await self._fetch()
        return self._ready.pop()

    def _drop_hidden(self) -> None:
        """Drops messages that a deletion or a retention has hidden since they were fetched."""
        if (messages := self._messages) is None:
            return
        try:
            visible = messages._visible(self._ready)
        except BaseException:
            self._over = True
            self._ready.clear()
            raise
        if visible is not None:
            self._ready = visible

    async def aclose(self) -> None:
        """Ends the iteration. Calling it is optional."""
        self._over = True
        self._ready.clear()

    async def _fetch(self) -> None:
        """Returns when a message is ready. Raises StopAsyncIteration at the end."""
        bridge = self._bridge
        bridge.check()
        began = bridge.loop.time()
        waited = True
        while not self._ready:
            if self._over:
                raise StopAsyncIteration
            found = await self._next_step()
            if found is None or (isinstance(found, tuple) and not waited):
                self._over = True
            elif isinstance(found, tuple):
                left = None if self._seconds is None else max(began + self._seconds - bridge.loop.time(), 0.0)
                looks = self._whole or self._ends_by_time
                pause = bridge.pause(left, must_look=self._ends_by_time) if looks else left
                topic = cast("str", self._topic)
                waits = [(topic, queue_id, offset) for queue_id, offset in found]
                # The next step still finds a message that arrived at the last moment.
                waited = await bridge.arrival(waits, pause) or pause != left
            else:
                found.reverse()
                self._ready = found

    async def _next_step(self) -> Step:
        if not self._step.is_running():
            await self._bridge.breathe()
            if self._messages is not None and (found := self._messages._step(True)) != []:
                return found
        return await self._step.result(lambda: self._bridge.submit(self._open_and_step))

    def _open_and_step(self) -> Step:
        if self._messages is None:
            self._messages = cast("MessageIterator", self._opening())
        return self._messages._step(False)


Messages.__module__ = "mqstore.aio"
