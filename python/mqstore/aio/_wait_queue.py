"""Queues of tasks that wait for a consumer or a work queue, and work that all of them share.

```
native      signals once when something may be ready     | it was not: signals again later
wait queue  wakes the task that has waited longest       | the task keeps its place and waits
task        looks, takes what is there, wakes the next   |
```

A task takes messages in its own step. A cancelled task has therefore taken nothing, and passes its signal on.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING, Any

from mqstore import _native
from mqstore.errors import StoreClosedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from mqstore.aio._bridge import Bridge

# Shortest interval of the timer that finds news without signals, and its minimum as a multiple of a check's time.
_LOOK = 0.1
_LOOK_FACTOR = 20


class WaitQueue:
    """The tasks that wait for one kind of news of one handle. All methods must be called in the loop's thread."""

    def __init__(self, bridge: Bridge, look_around: Callable[[], None]) -> None:
        """Creates a queue of `bridge`; `look_around` makes the native side signal news that has no signal."""
        # Number for signals of the native side.
        self.number = bridge.number()
        self.look_around = look_around
        self._bridge = bridge
        self._waiters: OrderedDict[asyncio.Future[bool], None] = OrderedDict()
        self._wait: _native.LoopWait | None = None
        self._timer: asyncio.TimerHandle | None = None
        bridge.wait_queues[self.number] = self

    def __len__(self) -> int:
        return len(self._waiters)

    async def wait(self, wait: _native.LoopWait, seconds: float | None, *, again: bool) -> bool:
        """Waits until the task should look again. Returns False if `seconds` end first.

        Args:
            wait: the native wait of the last look.
            seconds: longest wait.
            again: whether the task was woken before; it then keeps its place at the front.

        Raises:
            StoreClosedError: the store was closed during the wait.
        """
        loop = self._bridge.loop
        self._arm(wait)
        future: asyncio.Future[bool] = loop.create_future()
        self._waiters[future] = None
        if again:
            self._waiters.move_to_end(future, last=False)
        self._bridge.around.watch(self)
        timer = None if seconds is None else loop.call_later(seconds, _answer, future)
        try:
            return await future
        except asyncio.CancelledError:
            if not future.cancelled() and future.exception() is None and future.result():
                # Woken and then cancelled before it could look.
                self.wake()
            raise
        finally:
            if timer is not None:
                timer.cancel()
            self._waiters.pop(future, None)
            if not self._waiters:
                self._disarm()

    def wake(self) -> None:
        """Wakes the task that has waited longest."""
        while self._waiters:
            future, _ = self._waiters.popitem(last=False)
            if not future.done():
                future.set_result(True)
                return

    def fail(self, error: Callable[[], BaseException]) -> None:
        """Ends all waits with an error."""
        for future in self._waiters:
            if not future.done():
                future.set_exception(error())
        self._waiters.clear()
        self._disarm()

    def _arm(self, wait: _native.LoopWait) -> None:
        # The new wait includes everything that the last one had seen.
        self._disarm()
        self._wait = wait
        if wait.longest is not None:
            self._timer = self._bridge.loop.call_later(wait.longest, self.wake)

    def _disarm(self) -> None:
        if self._wait is not None:
            self._wait.cancel()
            self._wait = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


class Around:
    """One timer for all queues with waiting tasks. It finds news without signals, such as new queues.

    The blocking twins check at the same interval, for the same reason.
    """

    def __init__(self, bridge: Bridge) -> None:
        """Watches the queues of `bridge`."""
        self._bridge = bridge
        self._queues: set[WaitQueue] = set()
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, queue: WaitQueue) -> None:
        """Includes `queue` as long as a task waits in it."""
        self._queues.add(queue)
        if self._timer is None:
            self._rest(_LOOK)

    def end(self) -> None:
        """Stops the timer."""
        self._queues.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _rest(self, seconds: float) -> None:
        self._timer = self._bridge.loop.call_later(seconds, self._look)

    def _look(self) -> None:
        self._timer = None
        self._queues = {queue for queue in self._queues if len(queue)}
        if self._bridge.closing or not self._queues:
            return
        begun = self._bridge.loop.time()
        # A handle has several queues but one `look_around`.
        for look_around in {queue.look_around for queue in self._queues}:
            look_around()
        took = self._bridge.loop.time() - begun
        self._rest(max(_LOOK, _LOOK_FACTOR * took))


class Syncs:
    """Syncs of the state of groups. All requests of one turn of the loop share one sync."""

    def __init__(self, bridge: Bridge) -> None:
        """Syncs for `bridge`."""
        self._bridge = bridge
        self._waiting: list[asyncio.Future[None]] = []
        self._running = False
        self._idle: asyncio.Future[None] | None = None

    async def synced(self) -> None:
        """Returns after everything known about groups is synced to the disk."""
        loop = self._bridge.loop
        future: asyncio.Future[None] = loop.create_future()
        self._waiting.append(future)
        if not self._running:
            self._running = True
            loop.call_soon(self._begin)
        await future

    async def end(self) -> None:
        """Returns after all requests were answered."""
        while self._running:
            self._idle = self._bridge.loop.create_future()
            await self._idle

    def _begin(self) -> None:
        turn, self._waiting = self._waiting, []
        syncing = self._bridge.submit(partial(_native.sync_groups, self._bridge.store))
        syncing.add_done_callback(partial(self._ended, turn))

    def _ended(self, turn: list[asyncio.Future[None]], syncing: asyncio.Future[Any]) -> None:
        error = StoreClosedError(self._bridge.store.path) if syncing.cancelled() else syncing.exception()
        for future in turn:
            if future.done():
                continue
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(None)
        if self._waiting:
            self._begin()
            return
        self._running = False
        if self._idle is not None and not self._idle.done():
            self._idle.set_result(None)


def _answer(future: asyncio.Future[bool]) -> None:
    if not future.done():
        future.set_result(False)
