"""Appends: at once where that waits for nobody, else by one thread that appends and syncs for all who wait.

```
tasks     append append append   | the loop turns | append append ...
thread                           | all three, one sync             | all that came meanwhile, one sync
```

What comes within one turn of the loop is handed over together, so that tasks that were woken together share the next
sync too. How much may be under way is bounded; who comes then waits for room, in the order of coming.
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
    """The appends of one store that were not answered yet; all methods belong to the loop's thread."""

    def __init__(self, bridge: Bridge, most: int, most_bytes: int) -> None:
        self._bridge = bridge
        self._most = most
        self._most_bytes = most_bytes
        # What has room: so many, of so many bytes.
        self._count = 0
        self._bytes = 0
        self._queue: deque[tuple[asyncio.Future[None], int]] = deque()
        # Of each that waits for its answer: where that goes, and its bytes.
        self._under_way: dict[int, tuple[asyncio.Future[Any], int]] = {}
        # Those of them that the loop has not handed over yet, in their order.
        self._turn: dict[int, QueuedAppend] = {}
        self._unsynced = 0
        self._idle: asyncio.Future[None] | None = None
        self._thread: threading.Thread | None = None

    @property
    def at_once(self) -> bool:
        """Whether an append may be made now: none of those that wait is one that did not ask for a sync either."""
        return not self._unsynced

    async def queued(self, append: QueuedAppend) -> Any:
        """Has `append` made, and returns its answer."""
        plain = not append.durable
        self._unsynced += plain
        try:
            await self._take_room(append.size)
            return await self._made(append)
        finally:
            self._unsynced -= plain

    def answered(self, number: int, outcome: Any) -> None:
        """What became of the append with this number."""
        future = self._release(number)
        if future is None or future.done():
            return
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    async def end(self) -> None:
        """Returns once all that is under way was answered, and ends the thread; who waits for room gets an error."""
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
        # One that is larger than all that may be under way goes alone.
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
                # Cancelled between the call and its turn.
                self._give_back(size)
            raise

    def _give_back(self, size: int) -> None:
        self._count -= 1
        self._bytes -= size
        self._call_next()

    def _call_next(self) -> None:
        """Gives room to those who have waited longest."""
        while self._queue:
            waiter, size = self._queue[0]
            if waiter.done():
                # Cancelled; it takes itself out.
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
            # What the thread has not taken yet is not appended; what it has is, and nobody hears of it.
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
        """The thread that appends, started; it ends with the link."""
        loop, link, broke = self._bridge.loop, self._bridge.link, self._broke

        def serve() -> None:
            try:
                link.serve()
            except BaseException as error:  # noqa: BLE001 - who waits for an answer is to get one
                loop.call_soon_threadsafe(broke, error)

        # A program that ends without a close does not wait for it: what was not answered need not be there.
        thread = threading.Thread(target=serve, name="mqstore-append", daemon=True)
        thread.start()
        return thread

    def _broke(self, error: BaseException) -> None:
        for number in list(self._under_way):
            self.answered(number, error)
