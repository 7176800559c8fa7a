"""The bridge between a store and the event loop that it belongs to.

All objects of `mqstore.aio` use the bridge of their store. It runs calls in threads of the store (`run`,
`run_at_length`), waits without a thread (`arrival`), and checks that the caller is in the right loop (`check`).

A wait uses the native link: a call of the core stores a number there and signals a descriptor that the loop watches. A
store that is open for reading gets no calls, because another process writes it. One timer checks its waits, and waits
for queues that do not exist yet.
"""

from __future__ import annotations

import asyncio
import contextvars
import itertools
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

from mqstore import _native
from mqstore.aio._appends import Appends
from mqstore.aio._ending import Ending
from mqstore.aio._wait_queue import Around, Syncs
from mqstore.errors import StoreClosedError, StoreReadOnlyError, TopicNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from mqstore._store import Store
    from mqstore.aio._delivery import Handle
    from mqstore.aio._wait_queue import WaitQueue

T = TypeVar("T")
Wait = tuple[str, int, int]
"""Topic, queue and offset of the message that a task waits for."""

# Threads for calls that may wait for the disk, and threads for verbs that read the whole store.
_THREADS = 4
_LONG_THREADS = 2

# Pause between checks of waits without calls: the first, the longest, and its minimum as a multiple of a check's time.
_FIRST_NAP = 0.001
_LONGEST_NAP = 0.02
_NAP_FACTOR = 4

# Longest wait for a message in any queue of a topic before a check for new queues of another process.
_NEW_QUEUE_NAP = 0.5

# Number of calls without a wait after which the loop gets its turn.
_AT_HAND = 64


class Bridge:
    """The bridge of one store to one loop. All methods must be called in the loop's thread."""

    def __init__(
        self, store: Store, pool: ThreadPoolExecutor, *, max_appends: int, max_append_bytes: int, owns: bool
    ) -> None:
        self.store = store
        # Whether a close of the bridge closes the store.
        self.owns = owns
        self.loop = asyncio.get_running_loop()
        self.link = _native.LoopLink(store)
        self.closing = False
        self.appends = Appends(self, max_appends, max_append_bytes)
        self._pool = pool
        self._long_pool: ThreadPoolExecutor | None = None
        self._numbers = itertools.count(1)
        self._waits: dict[int, asyncio.Future[bool]] = {}
        self._poll = _Poll(self)
        # Queues of waiting tasks by their number for calls, and the handles of these queues.
        self.wait_queues: weakref.WeakValueDictionary[int, WaitQueue] = weakref.WeakValueDictionary()
        self.handles: weakref.WeakSet[Handle] = weakref.WeakSet()
        self.around = Around(self)
        self.syncs = Syncs(self)
        self._closed: asyncio.Task[None] | None = None
        self._at_hand = 0
        self.loop.add_reader(self.link.fileno(), _heard, weakref.ref(self))

    def check(self) -> None:
        """Raises an error in another loop than the store's, and after a close has begun."""
        if asyncio.get_running_loop() is not self.loop:
            raise RuntimeError(
                f"the store {self.store.path!r} belongs to another event loop: open it in this loop, "
                "or send the work to the other loop with asyncio.run_coroutine_threadsafe"
            )
        if self.closing:
            raise StoreClosedError(self.store.path)

    def number(self) -> int:
        """Returns a number that was not used before."""
        return next(self._numbers)

    async def breathe(self) -> None:
        """Lets other tasks run, after many calls that did not wait."""
        self._at_hand += 1
        if self._at_hand >= _AT_HAND:
            self._at_hand = 0
            await asyncio.sleep(0)

    def submit(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Runs `call` in a thread of the store. It continues even if its task is cancelled."""
        context = contextvars.copy_context()
        future = self.loop.run_in_executor(self._pool, context.run, call)
        # A cancelled task does not collect the error.
        future.add_done_callback(_seen)
        return future

    async def run(self, call: Callable[[], T]) -> T:
        """Runs `call` in a thread of the store and waits for its result."""
        self.check()
        return await self.submit(call)

    async def run_at_length(self, call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Runs a long `call` in a thread. A call with a `progress` parameter ends when its task is cancelled."""
        self.check()
        if self._long_pool is None:
            self._long_pool = ThreadPoolExecutor(_LONG_THREADS, thread_name_prefix="mqstore-long")
        return await Ending().run(self._long_pool, call, *args, **kwargs)

    async def wait(self, topic: str, queue_id: int, offset: int, seconds: float | None) -> bool:
        """Waits until `offset` of a queue can be read. Returns False if `seconds` end first."""
        self.check()
        await self.breathe()
        end = None if seconds is None else self.loop.time() + seconds
        while True:
            there = self.link.look(topic, queue_id, offset)
            if there is None and (self.store.mode != "r" or seconds == 0):
                there = await self.submit(partial(self.store.wait, topic, queue_id, offset, 0))
            left = None if end is None else end - self.loop.time()
            if there or (left is not None and left <= 0):
                return bool(there)
            if not await self.arrival([(topic, queue_id, offset)], left):
                # At least one check was made.
                seconds = 0
            elif self.store.mode == "r":
                return True

    async def wait_for_next(self, topic: str, queue_id: int | None, seconds: float | None) -> bool:
        """Waits for the next message in any queue, or only in `queue_id`. Returns False if `seconds` end first."""
        self.check()
        end = None if seconds is None else self.loop.time() + seconds
        ends = await self.submit(partial(self.store._ends, topic))
        known = dict(ends)
        while True:
            # New queues belong to the topic.
            now = await self.submit(partial(self.store._ends, topic))
            if await self.submit(partial(self.store._has_passed, topic, queue_id, ends)):
                return True
            left = None if end is None else end - self.loop.time()
            if left is not None and left <= 0:
                return False
            waits = [(topic, queue, known.get(queue, last)) for queue, last in now if queue_id in (None, queue)]
            await self.arrival(waits, self.pause(left) if waits else min(_LONGEST_NAP, left or _LONGEST_NAP))

    def pause(self, left: float | None, *, must_look: bool = False) -> float | None:
        """Returns the longest wait for a message in any queue of a topic, of the `left` seconds.

        In the process that writes, a new queue wakes all waits for its topic. Otherwise a task must look for it.
        """
        if not must_look and self.store.mode != "r":
            return left
        return _NEW_QUEUE_NAP if left is None else min(left, _NEW_QUEUE_NAP)

    async def arrival(self, waits: Sequence[Wait], seconds: float | None) -> bool:
        """Waits until one of `waits` may be over. Returns False if `seconds` end first.

        Raises:
            StoreClosedError: the store was closed during the wait.
        """
        self.check()
        future: asyncio.Future[bool] = self.loop.create_future()
        numbers = [next(self._numbers) for _ in waits]
        calls: list[_native.LoopWait] = []
        timer = None
        try:
            for number, wait in zip(numbers, waits, strict=True):
                self._waits[number] = future
                call = self._call(number, wait)
                if call is False:
                    return True
                if call is not None:
                    calls.append(call)
            if seconds is not None:
                timer = self.loop.call_later(seconds, _answer, future, False)
            return await future
        finally:
            if timer is not None:
                timer.cancel()
            for call in calls:
                call.cancel()
            for number in numbers:
                self._waits.pop(number, None)
                self._poll.discard(number)

    def _call(self, number: int, wait: Wait) -> _native.LoopWait | Literal[False] | None:
        """Registers `number` for `wait`. Returns False if it is over, None if only a timer can check it."""
        try:
            return self.link.wait(*wait, number) or False
        except (StoreReadOnlyError, TopicNotFoundError):
            self._poll.add(number, wait)
            return None

    def called(self, number: int) -> None:
        """Wakes the wait with this number, which may be over."""
        if future := self._waits.pop(number, None):
            _answer(future, True)
        elif queue := self.wait_queues.get(number):
            queue.wake()

    def failed(self, numbers: Iterable[int], error: BaseException) -> None:
        """Ends the waits with these numbers with an error."""
        for number in numbers:
            if (future := self._waits.pop(number, None)) and not future.done():
                future.set_exception(error)

    def take(self) -> None:
        """Distributes the news of the link."""
        for number, outcome in self.link.take():
            if outcome is None:
                self.called(number)
            else:
                self.appends.answered(number, outcome)

    async def close(self) -> None:
        """Closes the store once. The close continues if its task is cancelled."""
        if asyncio.get_running_loop() is not self.loop:
            self.check()
        if self._closed is None:
            self.closing = True
            self._closed = self.loop.create_task(self._close(), name="mqstore-close")
        await asyncio.shield(self._closed)

    async def _close(self) -> None:
        for future in set(self._waits.values()):
            if not future.done():
                future.set_exception(StoreClosedError(self.store.path))
        self._waits.clear()
        self._poll.end()
        self.around.end()
        for queue in list(self.wait_queues.values()):
            queue.fail(lambda: StoreClosedError(self.store.path))
        try:
            await self.appends.end()
            await self.syncs.end()
            handles = list(self.handles)
            # Handles of a store that stays open leave their groups.
            if handles and not self.store.closed:
                await self.submit(lambda: [handle._own.close() for handle in handles])
            if self.owns:
                await self.submit(self.store.close)
        finally:
            self.let_go()

    def let_go(self) -> None:
        """Releases everything at once, also the store if the bridge owns it and it is still open."""
        self.closing = True
        self.link.end()
        if self.owns and not self.store.closed:
            self.store.close()
        for pool in (self._pool, self._long_pool):
            if pool is not None:
                pool.shutdown(wait=False)
        if not self.loop.is_closed():
            # Can run in another thread, from a finalizer; the link exists until the callback ran.
            self.loop.call_soon_threadsafe(_deafen, self.loop, self.link)


class _Poll:
    """Waits without calls. One timer checks them together, in one thread at a time."""

    def __init__(self, bridge: Bridge) -> None:
        self._bridge = bridge
        self._waits: dict[int, Wait] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._looking = False
        self._nap = _FIRST_NAP

    def add(self, number: int, wait: Wait) -> None:
        self._waits[number] = wait
        self._nap = _FIRST_NAP
        if not self._looking:
            self.end_nap()
            self._rest(0.0)

    def discard(self, number: int) -> None:
        self._waits.pop(number, None)
        if not self._waits:
            self.end_nap()

    def end(self) -> None:
        self._waits.clear()
        self.end_nap()

    def end_nap(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _rest(self, seconds: float) -> None:
        self._timer = self._bridge.loop.call_later(seconds, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._bridge.closing or not self._waits:
            return
        self._looking = True
        numbers = list(self._waits)
        begun = self._bridge.loop.time()
        future = self._bridge.submit(partial(self._bridge.link.arrived, list(self._waits.values())))
        future.add_done_callback(partial(self._looked, numbers, begun))

    def _looked(self, numbers: list[int], begun: float, future: asyncio.Future[list[bool]]) -> None:
        self._looking = False
        if self._bridge.closing or future.cancelled():
            return
        if (error := future.exception()) is not None:
            self._bridge.failed(numbers, error)
            self._waits = {number: wait for number, wait in self._waits.items() if number not in set(numbers)}
        else:
            for number, over in zip(numbers, future.result(), strict=True):
                if over:
                    self._waits.pop(number, None)
                    self._bridge.called(number)
        if self._waits:
            took = self._bridge.loop.time() - begun
            self._rest(max(self._nap, _NAP_FACTOR * took))
            self._nap = min(2 * self._nap, _LONGEST_NAP)


def _heard(bridge: weakref.ref[Bridge]) -> None:
    if (found := bridge()) is not None:
        found.take()


def _deafen(loop: asyncio.AbstractEventLoop, link: _native.LoopLink) -> None:
    loop.remove_reader(link.fileno())


def _answer(future: asyncio.Future[bool], answer: bool) -> None:
    if not future.done():
        future.set_result(answer)


def _seen(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()


def pool() -> ThreadPoolExecutor:
    """Returns the thread pool of one store."""
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="mqstore")
