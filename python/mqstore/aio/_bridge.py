"""The bridge between a store and the event loop that it belongs to.

All objects of `mqstore.aio` use the bridge of their store. It runs calls in threads of the store (`run`,
`run_at_length`), waits without a thread (`called`), and checks that the caller is in the right loop (`check`).

Each wait and each queued append has a number. The native link stores the numbers of those that may be over, with the
results of appends, and signals a descriptor that the loop watches. One thread appends and syncs for all tasks:

```
tasks     append append append   | the loop turns | append append ...
thread                           | all three, one sync             | all new ones, one sync
```

A store that is open for reading gets no calls, because another process writes it. One task checks its waits, and waits
for queues that do not exist yet.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from mqstore import _native
from mqstore._warn import context_for_thread
from mqstore.aio._ending import Ending
from mqstore.errors import StoreClosedError, StoreReadOnlyError, TopicNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mqstore._store import Store
    from mqstore.aio._delivery import Handle

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

# Shortest interval of the timer that finds news without signals, and its minimum as a multiple of a check's time. The
# blocking verbs check at the same interval, for the same reason.
_LOOK = 0.1
_LOOK_FACTOR = 20

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
        self.link = _native.LoopLink(store, max_appends, max_append_bytes)
        self.closing = False
        # Next number of a wait or an append.
        self.number = itertools.count(1).__next__
        self.handles: weakref.WeakSet[Handle] = weakref.WeakSet()
        self._pool = pool
        self._long_pool: ThreadPoolExecutor | None = None
        self._waits: dict[int, asyncio.Future[Any]] = {}
        self._appends: dict[int, asyncio.Future[Any]] = {}
        self._append_thread: threading.Thread | None = None
        # Numbers of the appends of this turn of the loop.
        self._turn: list[int] = []
        # Waits without calls, and the task that checks them.
        self._polled: dict[int, list[Wait]] = {}
        self._polling: asyncio.Task[None] | None = None
        self._poll_now = asyncio.Event()
        self._nap = _FIRST_NAP
        # For waiting tasks, calls that make the native side signal news that has no signal.
        self._looks: dict[int, Callable[[], None]] = {}
        self._look_timer: asyncio.TimerHandle | None = None
        # The sync that runs or ran last, and the one that no task has begun.
        self._syncing: asyncio.Task[None] | None = None
        self._next_sync: asyncio.Task[None] | None = None
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

    async def breathe(self) -> None:
        """Lets other tasks run, after many calls that did not wait."""
        self._at_hand += 1
        if self._at_hand >= _AT_HAND:
            self._at_hand = 0
            await asyncio.sleep(0)

    def submit(self, call: Callable[[], T]) -> asyncio.Future[T]:
        """Runs `call` in a thread of the store. It continues even if its task is cancelled."""
        context = context_for_thread()
        future = self.loop.run_in_executor(self._pool, context.run, call)
        # A cancelled task does not collect the error.
        future.add_done_callback(_seen)
        return future

    @property
    def is_away(self) -> bool:
        """Whether the verbs of a writer go to another process, so that a thread must wait for their answers."""
        return self.store.mode == "share" and not self.store.is_owner

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
            if there is None and (self.store.is_owner or seconds == 0):
                there = await self.submit(partial(self.store.wait, topic, queue_id, offset, 0))
            left = None if end is None else end - self.loop.time()
            if there or (left is not None and left <= 0):
                return bool(there)
            if not await self.arrival([(topic, queue_id, offset)], left):
                # At least one check was made.
                seconds = 0
            elif not self.store.is_owner:
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
        if not must_look and self.store.is_owner:
            return left
        return _NEW_QUEUE_NAP if left is None else min(left, _NEW_QUEUE_NAP)

    async def arrival(self, waits: Sequence[Wait], seconds: float | None) -> bool:
        """Waits until one of `waits` may be over. Returns False if `seconds` end first.

        Raises:
            StoreClosedError: the store was closed during the wait.
        """
        self.check()
        number = self.number()
        calls: list[_native.LoopWait] = []
        try:
            for wait in waits:
                try:
                    call = self.link.wait(*wait, number)
                except (StoreReadOnlyError, TopicNotFoundError):
                    self._polled.setdefault(number, []).append(wait)
                    continue
                if call is None:
                    return True
                calls.append(call)
            if number in self._polled:
                self._poll_soon()
            return await self.called(number, calls, seconds)
        finally:
            for call in calls:
                call.cancel()
            if self._polled.pop(number, None) and not self._polled:
                self._poll_now.set()

    async def called(
        self,
        number: int,
        calls: Sequence[_native.LoopWait],
        seconds: float | None,
        look_around: Callable[[], None] | None = None,
    ) -> bool:
        """Waits for a call of `calls` under `number`, then cancels them. Returns False if `seconds` end first."""
        future = self._waits[number] = self.loop.create_future()
        timer = None if seconds is None else self.loop.call_later(seconds, self.answer, number, False)
        if look_around is not None:
            self._looks[number] = look_around
            if self._look_timer is None:
                self._look_timer = self.loop.call_later(_LOOK, self._look_around)
        try:
            return await future is None
        finally:
            if timer is not None:
                timer.cancel()
            for call in calls:
                call.cancel()
            self._waits.pop(number, None)
            self._looks.pop(number, None)

    def answer(self, number: int, outcome: Any) -> None:
        """Ends the wait or the append with this number; None is a call."""
        future = self._waits.pop(number, None) or self._appends.pop(number, None)
        if future is None or future.done():
            return
        if isinstance(outcome, BaseException):
            future.set_exception(outcome)
        else:
            future.set_result(outcome)

    def take(self) -> None:
        """Distributes the news of the link."""
        for number, outcome in self.link.take():
            self.answer(number, outcome)

    def _look_around(self) -> None:
        self._look_timer = None
        if self._looks:
            begun = self.loop.time()
            # A handle has several waits but one call.
            for look_around in set(self._looks.values()):
                look_around()
            took = self.loop.time() - begun
            self._look_timer = self.loop.call_later(max(_LOOK, _LOOK_FACTOR * took), self._look_around)

    def _poll_soon(self) -> None:
        self._nap = _FIRST_NAP
        self._poll_now.set()
        if self._polling is None or self._polling.done():
            self._polling = self.loop.create_task(self._poll(), name="mqstore-poll")

    async def _poll(self) -> None:
        """Checks the waits without calls, in one thread at a time."""
        while self._polled and not self.closing:
            self._poll_now.clear()
            begun = self.loop.time()
            numbers = [number for number, waits in self._polled.items() for _ in waits]
            waits = list(itertools.chain.from_iterable(self._polled.values()))
            try:
                over: Sequence[Any] = await self.submit(partial(self.link.arrived, waits))
            except Exception as error:  # noqa: BLE001 - the tasks that wait get it
                over = [error] * len(numbers)
            for number, outcome in zip(numbers, over, strict=True):
                if outcome:
                    self.answer(number, None if outcome is True else outcome)
            pause = max(self._nap, _NAP_FACTOR * (self.loop.time() - begun))
            self._nap = min(2 * self._nap, _LONGEST_NAP)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._poll_now.wait()

    async def appended(self, number: int, done: T | None) -> T:
        """Returns the result of an append: `done`, or None if it was queued under `number`."""
        if done is not None:
            await self.breathe()
            return done
        future = self._appends[number] = self.loop.create_future()
        if self._append_thread is None:
            # A program that exits without a close does not wait for it: unanswered appends need not be stored.
            self._append_thread = threading.Thread(target=self._append, name="mqstore-append", daemon=True)
            self._append_thread.start()
        if not self._turn:
            # Tasks that were woken together also share the next sync.
            self.loop.call_soon(self._hand_over)
        self._turn.append(number)
        try:
            result: T = await future
        except asyncio.CancelledError:
            self._take_back(number)
            raise
        return result

    def _take_back(self, number: int) -> None:
        """Drops an append that the thread has not taken; a taken one takes place without an answer."""
        if self.link.take_back(number):
            del self._appends[number]

    def _hand_over(self) -> None:
        for number in self._turn:
            # Its task runs after this.
            if (future := self._appends.get(number)) and future.cancelled():
                self._take_back(number)
        self._turn.clear()
        self.link.hand_over()

    def _append(self) -> None:
        try:
            self.link.serve()
        except BaseException as error:  # noqa: BLE001 - every waiting task must get an answer
            self.loop.call_soon_threadsafe(self._fail_appends, error)

    def _fail_appends(self, error: BaseException) -> None:
        for number in list(self._appends):
            self.answer(number, error)

    async def synced(self) -> None:
        """Returns after everything known about groups is on the disk. The tasks of one turn share a sync."""
        if self._next_sync is None:
            self._next_sync = self.loop.create_task(self._sync(self._syncing), name="mqstore-sync")
        await asyncio.shield(self._next_sync)

    async def _sync(self, before: asyncio.Task[None] | None) -> None:
        if before is not None:
            await asyncio.wait([before])
        self._syncing, self._next_sync = self._next_sync, None
        await self.submit(partial(_native.sync_groups, self.store))

    async def close(self) -> None:
        """Closes the store once. The close continues if its task is cancelled."""
        if asyncio.get_running_loop() is not self.loop:
            self.check()
        if self._closed is None:
            self.closing = True
            self._closed = self.loop.create_task(self._close(), name="mqstore-close")
        await asyncio.shield(self._closed)

    async def _close(self) -> None:
        for number in list(self._waits):
            self.answer(number, StoreClosedError(self.store.path))
        self._poll_now.set()
        if self._look_timer is not None:
            self._look_timer.cancel()
        try:
            self.link.end()
            if self._append_thread is not None:
                await self.submit(self._append_thread.join)
                self.take()
            if sync := self._next_sync or self._syncing:
                await asyncio.wait([sync])
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


def _heard(bridge: weakref.ref[Bridge]) -> None:
    if (found := bridge()) is not None:
        found.take()


def _deafen(loop: asyncio.AbstractEventLoop, link: _native.LoopLink) -> None:
    loop.remove_reader(link.fileno())


def _seen(future: asyncio.Future[Any]) -> None:
    if not future.cancelled():
        future.exception()


def pool() -> ThreadPoolExecutor:
    """Returns the thread pool of one store."""
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="mqstore")
