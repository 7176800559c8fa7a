"""`WorkQueue` for asyncio: a task takes, acknowledges and returns messages in the loop's thread, in its own step.

A thread reads ahead from the disk, moves dead letters and syncs. It takes no message. `Line` describes how tasks wait.
"""

from __future__ import annotations

import asyncio
import weakref
from collections import deque
from collections.abc import Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeVar

import mqstore
from mqstore import _native
from mqstore._times import seconds_of
from mqstore.aio._delivery import Handle, Line, Making
from mqstore.aio._twins import at_length, bound_arguments, in_thread, like
from mqstore.errors import QuotaFull

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Iterable

    from mqstore._native import AppendResult, AppendResults, LeasedMessage
    from mqstore.aio._bridge import Bridge
    from mqstore.types import Duration

T = TypeVar("T")

# Number of messages that one call acknowledges in the loop's thread.
_AT_ONCE = 256

# Number of messages that a task keeps for `task_done` before it removes those that are already acknowledged.
_KEPT = 64

# Interval at which a put that waits for a quota tries again; an expiry that frees space sends no signal.
_QUOTA_LOOK = 0.05


class WorkQueue(Handle):
    """A topic from which tasks lease single messages, from `mqstore.aio.Store.work_queue`.

    Works like `mqstore.WorkQueue`, with coroutines. A cancelled `get` has taken no message. A `put` that is cancelled
    while it waits for space has put no message. Waiting tasks need no thread, in any number; those that have waited
    longest are served first. A handle belongs to the loop of its store; another loop needs its own handle.
    """

    _own: mqstore.WorkQueue

    def __init__(self, owner: object, bridge: Bridge, queue: mqstore.WorkQueue) -> None:
        """Wraps `queue`. Programs call `Store.work_queue` instead."""
        super().__init__(owner, bridge)
        self._own = queue
        self._native = _native.LoopWorkQueue(queue, bridge.link)
        around = self._native.look_around
        self._ready, self._room, self._done = (Line(bridge, around) for _ in range(3))
        # Held by the first put that waits for a quota.
        self._quota = asyncio.Lock()
        # A message must not keep its queue alive.
        self._weak = weakref.ref(self)
        self._got: weakref.WeakKeyDictionary[asyncio.Task[object], _Got] = weakref.WeakKeyDictionary()

    @property
    def topic(self) -> str:
        """Topic of its messages."""
        return self._own.topic

    @property
    def group(self) -> str:
        """Group whose workers process the messages."""
        return self._own.group

    @property
    def dead_letters(self) -> str:
        """Dead-letter topic of the group: `%DLQ%` and the group name."""
        return self._own.dead_letters

    @property
    def visibility_timeout(self) -> float:
        """Visibility timeout of a lease, in seconds."""
        return self._own.visibility_timeout

    @property
    def max_attempts(self) -> int | None:
        """Number of deliveries after which a message becomes a dead letter; None is no limit."""
        return self._own.max_attempts

    @property
    def maxsize(self) -> int:
        """Number of messages without a lease at which `put` waits; 0 is no limit."""
        return self._own.maxsize

    @like(mqstore.WorkQueue.put)
    async def put(
        self, /, *args: Any, block: bool = True, timeout: Duration | None = None, **kwargs: Any
    ) -> AppendResult:
        """Puts one message, in the loop's thread or in the append thread: see `mqstore.aio.Store.append`.

        Do not change the body before the call returns. A used-up quota raises `QuotaFull`. With `dedup_id`, a thread
        looks for an earlier put and appends.
        """
        seconds = _patience(block, timeout)
        if kwargs.get("dedup_id") is not None or self._bridge.is_away:
            put = partial(self._own.put_nowait, *args, **kwargs)
            return await self._put_again(lambda _: self._bridge.run(put), mqstore.Full, seconds)
        kwargs.pop("dedup_id", None)
        try:
            make = partial(_native.LoopPut.one, self._own, *args, **kwargs)
            done = await self._put_again(partial(self._put, make), QuotaFull, seconds)
        except TypeError:
            bound_arguments(mqstore.WorkQueue.put, args, kwargs)
            raise
        return done[0] if isinstance(done, list) else done

    @like(mqstore.WorkQueue.put_nowait)
    async def put_nowait(self, /, *args: Any, **kwargs: Any) -> AppendResult:
        """Calls `put` with `block=False`."""
        try:
            return await self.put(*args, block=False, timeout=None, **kwargs)
        except TypeError:
            bound_arguments(mqstore.WorkQueue.put_nowait, args, kwargs)
            raise

    @like(mqstore.WorkQueue.put_many)
    async def put_many(
        self, /, messages: Iterable[Any], *, block: bool = True, timeout: Duration | None = None, **kwargs: Any
    ) -> list[AppendResult]:
        """Puts messages under one lock, with at most one sync, and returns the results in the same order."""
        messages = list(messages)
        if self._bridge.is_away:
            put = partial(self._own.put_many, messages, block=False, **kwargs)
            return await self._put_again(lambda _: self._bridge.run(put), mqstore.Full, _patience(block, timeout))
        make = partial(_native.LoopPut.many, self._own, messages, **kwargs)
        try:
            done = await self._put_again(partial(self._put, make), QuotaFull, _patience(block, timeout))
        except TypeError:
            bound_arguments(mqstore.WorkQueue.put_many, (messages,), kwargs)
            raise
        return done if isinstance(done, list) else [done]

    async def _put_again(
        self, put: Callable[[float | None], Awaitable[T]], error: type[mqstore.Full], seconds: float | None
    ) -> T:
        """Calls `put` again and again while it raises `error`. The puts that do so wait for each other."""
        loop = self._bridge.loop
        end = None if seconds is None else loop.time() + seconds
        try:
            return await put(seconds)
        except error as raised:
            full = raised
        try:
            async with asyncio.timeout_at(end):
                await self._quota.acquire()
        except TimeoutError:
            raise full from None
        try:
            while (left := None if end is None else end - loop.time()) is None or left > 0:
                try:
                    return await put(left)
                except error as raised:
                    full = raised
                await asyncio.sleep(_QUOTA_LOOK if left is None else min(left, _QUOTA_LOOK))
        finally:
            self._quota.release()
        raise full

    async def _put(
        self, make: Callable[[], _native.LoopPut], seconds: float | None
    ) -> AppendResult | list[AppendResult]:
        """Waits until `maxsize` allows the put of the messages from `make`, then appends them."""
        number = self._bridge.number()
        look = partial(self._native.put, make(), number)
        done: list[AppendResult] | Literal[False] = await self._room.result(look, self._own.qsize, seconds)
        if done is not False:
            return done
        results: AppendResult | AppendResults = await self._bridge.appended(number, None)
        return results if isinstance(results, mqstore.AppendResult) else list(results)

    @like(mqstore.WorkQueue.get)
    def get(self, block: bool = True, timeout: Duration | None = None) -> Getting:
        """Leases a message for `visibility_timeout`, by `await` or `async with`.

        The end of an `async with` block acknowledges the message; an exception returns it, and continues. Due
        redeliveries and new messages take turns.
        """
        _native.check_block(block)
        return Getting(self._get(block, timeout))

    async def _get(self, block: bool, timeout: Duration | None) -> LeasedMessage:
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

    # A warning about a forgotten `await` shows it.
    _get.__qualname__ = "WorkQueue.get"

    def get_nowait(self) -> Getting:
        """Calls `get` with `block=False`."""
        return self.get(block=False)

    @like(mqstore.WorkQueue.get_many)
    async def get_many(self, count: int, timeout: Duration | None = None) -> list[LeasedMessage]:
        """Leases up to `count` messages. Returns an empty list if `timeout` ends before the first message."""
        return await self._take(count, _patience(True, timeout))

    async def _take(self, count: int, seconds: float | None) -> list[LeasedMessage]:
        native = self._native
        found = await self._ready.result(partial(native.get, count), partial(native.prepare, count), seconds)
        for message in found:
            message._bind(self._weak)
        return found

    async def _enter(self, message: LeasedMessage) -> LeasedMessage:
        """Begins the `async with` block of a message."""
        self._bridge.check()
        return message

    async def _leave(self, message: LeasedMessage, error: BaseException | None) -> None:
        """Settles a message at the end of its `async with` block."""
        if _native.is_settled(message):
            return
        if error is None:
            await self.ack(message)
            return
        try:
            await self.nack(message, reason=_native.reason_of(error))
        except Exception as failed:  # noqa: BLE001 - the exception of the block matters more
            error.add_note(f"mqstore could not return the message to its queue: {failed}")

    @like(mqstore.WorkQueue.ack)
    async def ack(self, message: LeasedMessage, *, durable: bool = False) -> None:
        """Acknowledges a message: it is not delivered again. A second `ack` changes nothing.

        With `durable`, all waiting tasks share one sync. A task that is cancelled during the sync has acknowledged the
        message.
        """
        bridge = self._bridge
        bridge.check()
        await bridge.breathe()
        if bridge.is_away:
            await bridge.run(partial(self._own.ack, message, durable=durable))
            return
        self._own.ack(message)
        if durable:
            await bridge.synced()

    @like(mqstore.WorkQueue.ack_many)
    async def ack_many(self, messages: Iterable[LeasedMessage], *, durable: bool = False) -> None:
        """Acknowledges messages; `durable` needs one sync for all of them."""
        bridge = self._bridge
        bridge.check()
        await bridge.breathe()
        all_of_them = list(messages)
        if bridge.is_away:
            await bridge.run(partial(self._own.ack_many, all_of_them, durable=durable))
            return
        if len(all_of_them) <= _AT_ONCE:
            self._own.ack_many(all_of_them)
        else:
            await bridge.run(partial(self._own.ack_many, all_of_them))
        if durable:
            await bridge.synced()

    @like(mqstore.WorkQueue.nack)
    async def nack(self, message: LeasedMessage, delay: Duration | None = None, *, reason: str | None = None) -> None:
        """Returns a message to the queue for a later delivery.

        A dead letter is written and synced in a thread.
        """
        bridge = self._bridge
        bridge.check()
        await bridge.breathe()
        if not self._native.nack(message, delay, reason):
            await bridge.run(partial(self._own.nack, message, delay, reason=reason))

    @like(mqstore.WorkQueue.extend)
    async def extend(self, message: LeasedMessage, duration: Duration | None = None) -> None:
        """Sets the end of the lease to `duration` from now."""
        bridge = self._bridge
        bridge.check()
        await bridge.breathe()
        if bridge.is_away:
            await bridge.run(partial(self._own.extend, message, duration))
        else:
            self._own.extend(message, duration)

    async def task_done(self, message: LeasedMessage | None = None) -> None:
        """Acknowledges `message`, or without one the message that this task has held longest of those from `get`.

        Args:
            message: message from `get`.

        Raises:
            ValueError: this task holds no message.
            LeaseLostError: as for `ack`.
        """
        if message is None:
            self._bridge.check()
            task = asyncio.current_task()
            got = None if task is None else self._got.get(task)
            if got is None or (message := got.pop()) is None:
                raise ValueError("task_done() called too many times")
        await self.ack(message)

    @like(mqstore.WorkQueue.join)
    async def join(self, timeout: Duration | None = None) -> bool:
        """Waits until every message is acknowledged or a dead letter."""
        native = self._native
        return await self._done.result(native.join, partial(native.prepare, 0), _patience(True, timeout))

    redrive = at_length(mqstore.WorkQueue.redrive)
    qsize = in_thread(mqstore.WorkQueue.qsize)
    empty = in_thread(mqstore.WorkQueue.empty)
    full = in_thread(mqstore.WorkQueue.full)
    counts = in_thread(mqstore.WorkQueue.counts)
    leased = in_thread(mqstore.WorkQueue.leased)
    delayed = in_thread(mqstore.WorkQueue.delayed)
    cancel = in_thread(mqstore.WorkQueue.cancel)
    delete_dead_letters = in_thread(mqstore.WorkQueue.delete_dead_letters)
    peek = in_thread(mqstore.WorkQueue.peek)
    purge = in_thread(mqstore.WorkQueue.purge)
    shutdown = in_thread(mqstore.WorkQueue.shutdown)


class Getting(Making["LeasedMessage"], Coroutine[Any, Any, "LeasedMessage"]):
    """A message that `await` or `async with` gets; a coroutine, for `asyncio.create_task`."""

    def __init__(self, get: Coroutine[Any, Any, LeasedMessage]) -> None:
        """Wraps the coroutine that gets the message."""
        super().__init__(lambda: get, "queue.get(...)")
        self._get = get

    def send(self, value: Any, /) -> Any:
        """Continues the coroutine."""
        return self._get.send(value)

    def throw(self, *error: Any) -> Any:
        """Raises an error in the coroutine."""
        return self._get.throw(*error)

    def close(self) -> None:
        """Ends the coroutine."""
        self._get.close()

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> object:
            # For debuggers: `cr_frame` and the like.
            return getattr(self._get, name) if name.startswith("cr_") else super().__getattr__(name)


class _Got:
    """Messages from `get` that one task has not finished by `task_done`, oldest first."""

    def __init__(self) -> None:
        self._messages: deque[LeasedMessage] = deque()
        self._room = _KEPT

    def push(self, message: LeasedMessage) -> None:
        if len(self._messages) >= self._room:
            self._messages = deque(filter(_native.is_held, self._messages))
            # Doubled, so that the cost of removals stays constant for each message.
            self._room = max(_KEPT, 2 * len(self._messages))
        self._messages.append(message)

    def pop(self) -> LeasedMessage | None:
        while self._messages:
            message = self._messages.popleft()
            # Skips messages that were acknowledged or returned by `ack` or `nack`.
            if _native.is_held(message):
                return message
        return None


def _patience(block: bool, timeout: Duration | None) -> float | None:
    """Returns the seconds that a call can wait, by the rules of `queue.Queue`; None is no limit."""
    if not block:
        return 0.0
    if timeout is None:
        return None
    if isinstance(timeout, int | float) and timeout < 0:
        raise ValueError("'timeout' must be a non-negative number")
    return seconds_of("timeout", timeout)


WorkQueue.__module__ = "mqstore.aio"
