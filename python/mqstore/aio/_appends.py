"""Appends: in the loop's thread if no wait is needed, else in one thread that appends and syncs for all tasks.

```
tasks     append append append   | the loop turns | append append ...
thread                           | all three, one sync             | all new ones, one sync
```

All appends of one turn of the loop are handed over together, so that tasks that were woken together also share the next
sync. The number of appends in progress is limited. Further appends wait in the order of their calls.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from mqstore.errors import StoreClosedError

if TYPE_CHECKING:
    from mqstore._native import QueuedAppend
    from mqstore.aio._bridge import Bridge


class Appends:
    """The unanswered appends of one store. All methods must be called in the loop's thread."""

    def __init__(self, bridge: Bridge, most: int, most_bytes: int) -> None:
        self._bridge = bridge
        self._most = most
        self._most_bytes = most_bytes
        # Number and bytes of the appends in progress.
        self._count = 0
        self._bytes = 0
        self._queue: deque[tuple[asyncio.Future[None], int]] = deque()
        # For each unanswered append its future and its bytes.
        self._under_way: dict[int, tuple[asyncio.Future[Any], int]] = {}
        # Appends that the loop has not handed over yet, in order.
        self._turn: dict[int, QueuedAppend] = {}
        self._unsynced = 0
        self._idle: asyncio.Future[None] | None = None
        self._thread: threading.Thread | None = None

    @property
    def at_once(self) -> bool:
        """Whether the loop's thread may append now: only if no append without a request for a sync is waiting."""
        return not self._unsynced

    async def queued(self, append: QueuedAppend) -> Any:
        """Runs `append` in the thread and returns its result."""
        plain = not append.durable
        self._unsynced += plain
        try:
            await self._take_room(append.size)
            return await self._made(append)
        finally:
            self._unsynced -= plain

    def answered(self, number: int, outcome: Any) -> None:
        """Delivers the result of the append with this number."""
        future = self._release(number)
        if future is None or future.done():
            return
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    async def end(self) -> None:
        """Waits for all appends in progress and ends the thread. Appends that wait for space get an error."""
        for waiter, _ in self._queue:
            if not waiter.done():
                waiter.set_exception(StoreClosedError(self._bridge.store.path))
        self._queue.clear()
        self._hand_over()
        while self._under_way:
            self._idle = self._bridge.loop.create_future()
            await self._idle
        self._bridge.link.end()
        if self._thread is not None:
            await self._bridge.submit(self._thread.join)

    def _has_room(self, size: int) -> bool:
        # An append larger than the limit runs alone.
        return self._count == 0 or (self._count < self._most and self._bytes + size <= self._most_bytes)

    async def _take_room(self, size: int) -> None:
        if not self._queue and self._has_room(size):
            self._count += 1
            self._bytes += size
            return
        waiter: asyncio.Future[None] = self._bridge.loop.create_future()
        place = (waiter, size)
        self._queue.append(place)
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.cancelled():
                self._queue.remove(place)
                self._call_next()
            elif waiter.exception() is None:
                # Woken and then cancelled before it could continue.
                self._give_back(size)
            raise

    def _give_back(self, size: int) -> None:
        self._count -= 1
        self._bytes -= size
        self._call_next()

    def _call_next(self) -> None:
        """Admits the appends that have waited longest."""
        while self._queue:
            waiter, size = self._queue[0]
            if waiter.done():
                # Cancelled; its task removes it.
                return
            if not self._has_room(size):
                return
            self._queue.popleft()
            self._count += 1
            self._bytes += size
            waiter.set_result(None)

    async def _made(self, append: QueuedAppend) -> Any:
        bridge = self._bridge
        try:
            bridge.check()
        except BaseException:
            self._give_back(append.size)
            raise
        future: asyncio.Future[Any] = bridge.loop.create_future()
        number = bridge.number()
        self._under_way[number] = (future, append.size)
        if not self._turn:
            bridge.loop.call_soon(self._hand_over)
        self._turn[number] = append
        try:
            return await future
        except asyncio.CancelledError:
            # An append that the thread has not taken is dropped; a taken one takes place without an answer.
            if self._turn.pop(number, None) is not None or bridge.link.take_back(number):
                self._release(number)
            raise

    def _hand_over(self) -> None:
        if not self._turn:
            return
        if self._thread is None:
            self._thread = self._serving()
        turn, self._turn = self._turn, {}
        for number, append in turn.items():
            future, _ = self._under_way[number]
            if future.cancelled():
                self._release(number)
            else:
                self._bridge.link.put(number, append)

    def _release(self, number: int) -> asyncio.Future[Any] | None:
        found = self._under_way.pop(number, None)
        if found is None:
            return None
        future, size = found
        self._give_back(size)
        if not self._under_way and self._idle is not None and not self._idle.done():
            self._idle.set_result(None)
        return future

    def _serving(self) -> threading.Thread:
        """Starts the append thread and returns it; it ends with the link."""
        loop, link, broke = self._bridge.loop, self._bridge.link, self._broke

        def serve() -> None:
            try:
                link.serve()
            except BaseException as error:  # noqa: BLE001 - every waiting task must get an answer
                loop.call_soon_threadsafe(broke, error)

        # A program that exits without a close does not wait for it: unanswered appends need not be stored.
        thread = threading.Thread(target=serve, name="mqstore-append", daemon=True)
        thread.start()
        return thread

    def _broke(self, error: BaseException) -> None:
        for number in list(self._under_way):
            self.answered(number, error)
