"""`WorkQueue` for asyncio: messages are taken, finished and given back in the loop's thread, in the task's own step.

A thread reads ahead what is on the disk, moves dead letters and syncs; it takes no message. See `_lines` for how
tasks wait.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, NoReturn

import mqstore
from mqstore import _native
from mqstore._times import seconds_of
from mqstore.aio._delivery import Handle, in_thread
from mqstore.aio._lines import Line
from mqstore.aio._twins import like
from mqstore.errors import QuotaFull

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mqstore._message import Message
    from mqstore._native import AppendResult, LeasedMessage, QueuedAppend
    from mqstore.aio._bridge import Bridge
    from mqstore.types import BytesLike, Duration, Keys, Properties

# Messages that are finished by one call in the loop's thread.
_AT_ONCE = 256

# Messages that a task got and that are kept for `task_done` before those that it finished by name are looked for.
_KEPT = 64

# How often a put that waits for a quota tries again: what an expiry frees nobody is told of, in threads neither.
_QUOTA_LOOK = 0.05


class WorkQueue(Handle):
    """Messages that are finished one by one; made by `mqstore.aio.Store.work_queue`.

    As `mqstore.WorkQueue`, with verbs that are awaited. A `get` that is cancelled has taken no message, a `put` that is
    cancelled while it waits for room has put none in. Waiting costs no thread, however many wait; those who wait
    longest come first. Belongs to the loop of its store; others use the same queue by handles of their own.
    """

    _own: mqstore.WorkQueue

    def __init__(self, owner: object, bridge: Bridge, queue: mqstore.WorkQueue) -> None:
        """Wraps `queue`; programs call `Store.work_queue`."""
        super().__init__(owner, bridge)
        self._own = queue
        self._native = _native.LoopWorkQueue(queue, bridge.link)
        around = self._native.look_around
        self._ready, self._room, self._done = (Line(bridge, around) for _ in range(3))
        # Who waits for a quota; the first of them tries again.
        self._quota = asyncio.Lock()
        self._got: weakref.WeakKeyDictionary[asyncio.Task[object], _Got] = weakref.WeakKeyDictionary()

    @property
    def topic(self) -> str:
        """The topic whose messages it hands out."""
        return self._own.topic

    @property
    def group(self) -> str:
        """The group that finishes them."""
        return self._own.group

    @property
    def dead_letters(self) -> str:
        """The topic of the group's dead letters: `%DLQ%` and the group's name."""
        return self._own.dead_letters

    @property
    def invisible_duration(self) -> float:
        """How long a message that was got stays out of sight of others, in seconds."""
        return self._own.invisible_duration

    @property
    def max_attempts(self) -> int | None:
        """After so many deliveries a message goes to the dead letters; None is never."""
        return self._own.max_attempts

    @property
    def maxsize(self) -> int:
        """How many messages that nobody has the queue may hold before a put waits; 0 is no limit."""
        return self._own.maxsize

    @like(mqstore.WorkQueue.put)
    async def put(
        self,
        body: BytesLike,
        *,
        keys: Keys = (),
        tags: str | None = None,
        properties: Properties | None = None,
        delay: Duration | None = None,
        durable: bool = False,
        block: bool = True,
        timeout: Duration | None = None,
    ) -> AppendResult:
        """Puts a message in, in the loop's thread or in the append thread: see `mqstore.aio.Store.append`.

        The body is not to be changed before the answer. `QuotaFull` says that it is a quota that is used up.
        """
        put = partial(_native.LoopPut.one, body, keys, tags, properties, delay, durable)
        done = await self._put(put, _patience(block, timeout))
        return done[0] if isinstance(done, list) else done

    async def put_nowait(
        self,
        body: BytesLike,
        *,
        keys: Keys = (),
        tags: str | None = None,
        properties: Properties | None = None,
        delay: Duration | None = None,
        durable: bool = False,
    ) -> AppendResult:
        """As `put` with `block=False`."""
        return await self.put(
            body, keys=keys, tags=tags, properties=properties, delay=delay, durable=durable, block=False
        )

    @like(mqstore.WorkQueue.put_many)
    async def put_many(
        self,
        messages: Iterable[BytesLike | Message],
        *,
        delay: Duration | None = None,
        durable: bool = False,
        block: bool = True,
        timeout: Duration | None = None,
    ) -> list[AppendResult]:
        """Puts messages in together, under one lock and with one sync; results in the order given.

        Waits until there is room for all of them. After a crash a prefix of them may be there.
        """
        put = partial(_native.LoopPut.many, list(messages), delay, durable)
        done = await self._put(put, _patience(block, timeout))
        return done if isinstance(done, list) else [done]

    async def _put(
        self, make: Callable[[], _native.LoopPut], seconds: float | None
    ) -> AppendResult | list[AppendResult]:
        """Puts what `make` makes; those who meet a quota that is used up wait one behind the other."""
        loop = self._bridge.loop
        end = None if seconds is None else loop.time() + seconds
        put = make()
        try:
            return await self._put_once(put, seconds)
        except QuotaFull as error:
            full = error
        try:
            async with asyncio.timeout_at(end):
                await self._quota.acquire()
        except TimeoutError:
            raise full from None
        try:
            while (left := None if end is None else end - loop.time()) is None or left > 0:
                try:
                    return await self._put_once(make(), left)
                except QuotaFull as error:
                    full = error
                await asyncio.sleep(_QUOTA_LOOK if left is None else min(left, _QUOTA_LOOK))
        finally:
            self._quota.release()
        raise full

    async def _put_once(self, put: _native.LoopPut, seconds: float | None) -> AppendResult | list[AppendResult]:
        """Waits for room as `maxsize` has it, and appends."""
        native, appends = self._native, self._bridge.appends

        def look(patience: bool, number: int | None) -> list[AppendResult] | QueuedAppend | _native.LoopWait | None:
            return native.put(put, appends.at_once, patience, number)

        done: list[AppendResult] | QueuedAppend = await self._look(self._room, look, self._own.qsize, seconds)
        if isinstance(done, list):
            return done
        try:
            results: AppendResult | list[AppendResult] = await appends.queued(done)
        except BaseException:
            # One that was not handed over keeps no room.
            done.release()
            raise
        return results

    @like(mqstore.WorkQueue.get)
    async def get(self, block: bool = True, timeout: Duration | None = None) -> LeasedMessage:
        """Gets a message and has it alone for `invisible_duration`; one that is due again and a new one in turn."""
        found = await self._take(1, _patience(block, timeout))
        if not found:
            self._native.empty()
        message = found[0]
        task = asyncio.current_task()
        if task is not None:
            if (got := self._got.get(task)) is None:
                got = self._got[task] = _Got()
            got.push(message)
        return message

    async def get_nowait(self) -> LeasedMessage:
        """As `get` with `block=False`."""
        return await self.get(block=False)

    @like(mqstore.WorkQueue.get_many)
    async def get_many(self, count: int, timeout: Duration | None = None) -> list[LeasedMessage]:
        """Gets up to `count` messages, at least one unless `timeout` passes first; none is an empty list."""
        return await self._take(count, _patience(True, timeout))

    async def _take(self, count: int, seconds: float | None) -> list[LeasedMessage]:
        native = self._native
        return await self._look(
            self._ready,
            lambda patience, number: native.get(count, patience, number),
            partial(native.prepare, count),
            seconds,
        )

    @like(mqstore.WorkQueue.ack)
    async def ack(self, message: LeasedMessage, *, durable: bool = False) -> None:
        """Finishes a message: it is not delivered again. To finish one again changes nothing.

        With `durable` all who wait for that share one sync. Who is cancelled while it waits has finished the message.
        """
        bridge = self._bridge
        bridge.check()
        await bridge.breathe()
        self._own.ack(message)
        if durable:
            await bridge.syncs.synced()

    @like(mqstore.WorkQueue.ack_many)
    async def ack_many(self, messages: Iterable[LeasedMessage], *, durable: bool = False) -> None:
        """Finishes messages; with `durable` one sync serves all of them."""
        bridge = self._bridge
        bridge.check()
        await bridge.breathe()
        all_of_them = list(messages)
        if len(all_of_them) <= _AT_ONCE:
            self._own.ack_many(all_of_them)
        else:
            await bridge.run(partial(self._own.ack_many, all_of_them))
        if durable:
            await bridge.syncs.synced()

    @like(mqstore.WorkQueue.nack)
    async def nack(self, message: LeasedMessage, delay: Duration | None = None) -> None:
        """Gives a message back, to be delivered again later.

        One that was delivered `max_attempts` times goes to the dead letters, in a thread that syncs.
        """
        bridge = self._bridge
        bridge.check()
        await bridge.breathe()
        if not self._native.nack(message, delay):
            await bridge.run(partial(self._own.nack, message, delay))

    @like(mqstore.WorkQueue.extend)
    async def extend(self, message: LeasedMessage, duration: Duration) -> None:
        """Keeps a message for `duration` from now, whatever was left of its time."""
        self._bridge.check()
        await self._bridge.breathe()
        self._own.extend(message, duration)

    async def task_done(self, message: LeasedMessage | None = None) -> None:
        """Finishes `message`; without one the message that this task got first, by `get`, of those that it still has.

        Args:
            message: what `get` returned.

        Raises:
            ValueError: this task has none.
            LeaseLostError: as for `ack`.
        """
        if message is None:
            self._bridge.check()
            task = asyncio.current_task()
            got = None if task is None else self._got.get(task)
            if got is None or (message := got.pop()) is None:
                msg = "task_done() called too many times"
                raise ValueError(msg)
        await self.ack(message)

    @like(mqstore.WorkQueue.join)
    async def join(self, timeout: Duration | None = None) -> bool:
        """Waits until every message that was put in is finished, or a dead letter.

        After a shutdown at once it waits for what somebody has only.
        """
        native = self._native
        return await self._look(self._done, native.join, partial(native.prepare, 0), _patience(True, timeout))

    @like(mqstore.WorkQueue.redrive)
    async def redrive(self, limit: int | None = None) -> int:
        """Puts dead letters of the group back into the topics that they came from, the oldest first.

        It goes on when it is cancelled.
        """
        return await self._bridge.run_at_length(lambda: self._own.redrive(limit))

    qsize = in_thread(mqstore.WorkQueue.qsize)
    empty = in_thread(mqstore.WorkQueue.empty)
    full = in_thread(mqstore.WorkQueue.full)
    counts = in_thread(mqstore.WorkQueue.counts)
    shutdown = in_thread(mqstore.WorkQueue.shutdown)

    def __repr__(self) -> str:
        return repr(self._own).replace("<mqstore.", "<mqstore.aio.", 1)

    def __reduce__(self) -> NoReturn:
        self._own.__reduce__()
        raise AssertionError


class _Got:
    """What one task got and has not finished by `task_done`, the oldest first."""

    def __init__(self) -> None:
        self._messages: deque[LeasedMessage] = deque()
        self._room = _KEPT

    def push(self, message: LeasedMessage) -> None:
        if len(self._messages) >= self._room:
            self._messages = deque(filter(_native.is_held, self._messages))
            # Twice as many, so that a look costs no more than the calls before it.
            self._room = max(_KEPT, 2 * len(self._messages))
        self._messages.append(message)

    def pop(self) -> LeasedMessage | None:
        while self._messages:
            message = self._messages.popleft()
            # Some were finished or given back by name.
            if _native.is_held(message):
                return message
        return None


def _patience(block: bool, timeout: Duration | None) -> float | None:
    """How many seconds a call may wait, by the rules of `queue.Queue`; None is for ever."""
    if not block:
        return 0.0
    if timeout is None:
        return None
    if isinstance(timeout, int | float) and timeout < 0:
        msg = "'timeout' must be a non-negative number"
        raise ValueError(msg)
    return seconds_of("timeout", timeout)


WorkQueue.__module__ = "mqstore.aio"
