"""What the consumers and work queues of a loop have in common: how a task looks and waits."""

from __future__ import annotations

import asyncio
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, Self, TypeVar

from mqstore._native import LoopWait
from mqstore.aio._twins import named

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Generator
    from types import TracebackType

    import mqstore
    from mqstore.aio._bridge import Bridge
    from mqstore.aio._lines import Line
    from mqstore.aio._twins import Bridged

P = ParamSpec("P")
T = TypeVar("T")

# Looks that may come to nothing, because another thread was there first, before one waits for that thread.
_TRIES = 3


class Closable(Protocol):
    """What is closed at the end of its `async with`."""

    async def close(self) -> None:
        """Lets go of it."""


C = TypeVar("C", bound=Closable)


class Making(Generic[C]):
    """A store, consumer or work queue that is being made: `await` it, or use it by `async with`."""

    def __init__(self, make: Callable[[], Coroutine[Any, Any, C]]) -> None:
        """Keeps what makes it until it is awaited."""
        self._make = make
        self._made: C | None = None

    def __await__(self) -> Generator[Any, None, C]:
        return self._make().__await__()

    async def __aenter__(self) -> C:
        self._made = await self._make()
        return self._made

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._made is not None:
            await self._made.close()


class Handle:
    """A consumer or a work queue for one event loop."""

    _own: Any

    def __init__(self, owner: object, bridge: Bridge) -> None:
        """Belongs to `bridge`, and keeps `owner`, its store, from being forgotten."""
        self._owner = owner
        self._bridge = bridge
        self._preparing: asyncio.Future[object] | None = None
        bridge.handles.add(self)

    @property
    def closed(self) -> bool:
        """Whether it was closed, or its store."""
        return bool(self._bridge.closing or self._own.closed)

    async def close(self) -> None:
        """Lets go of it, and ends what waits in it; a second call does nothing. See the blocking twin."""
        # With its store the bridge closes it.
        if not self.closed:
            await self._bridge.run(self._own.close)

    async def __aenter__(self) -> Self:
        self._bridge.check()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    async def _look(
        self,
        line: Line,
        look: Callable[[bool, int | None], T | LoopWait | None],
        prepare: Callable[[], object],
        seconds: float | None,
    ) -> T:
        """What `look` finds as soon as it finds something; what it says without a number once `seconds` have passed.

        Nothing is awaited between the look that finds something and the return.
        """
        bridge = self._bridge
        bridge.check()
        await bridge.breathe()
        end = None if seconds is None else bridge.loop.time() + seconds
        tries, woken = 0, False
        try:
            while True:
                bridge.check()
                left = None if end is None else end - bridge.loop.time()
                may_wait = left is None or left > 0
                found = look(tries >= _TRIES, line.number if may_wait else None)
                if found is None:
                    tries += 1
                    await self._prepared(prepare)
                elif isinstance(found, LoopWait):
                    tries, again, woken = 0, woken, False
                    woken = await line.wait(found, left, again=again)
                else:
                    return found
        finally:
            if woken:
                # There may be something for the next one too.
                line.wake()

    async def _prepared(self, prepare: Callable[[], object]) -> None:
        """Has a thread prepare; who wants the same meanwhile waits for that, and looks again."""
        preparing = self._preparing
        if preparing is None or preparing.done():
            preparing = self._preparing = self._bridge.submit(prepare)
            # A task that is cancelled leaves it to the others.
            await asyncio.shield(preparing)
        else:
            # Its error is for who asked: a put does not fail because a get met a damaged message.
            await asyncio.wait([preparing])


def making(
    method: Callable[Concatenate[mqstore.Store, P], T], kind: Callable[[object, Bridge, T], C]
) -> Callable[Concatenate[Bridged, P], Making[C]]:
    """The twin of a method that makes a consumer or work queue: it makes one of `kind`."""

    @wraps(method)
    def twin(self: Bridged, /, *args: P.args, **kwargs: P.kwargs) -> Making[C]:
        bridge = self._bridge

        async def make() -> C:
            own = await bridge.run(lambda: method(bridge.store, *args, **kwargs))
            # Closed with the store, if that was closed meanwhile.
            made = kind(self, bridge, own)
            bridge.check()
            return made

        return Making(make)

    return named(twin, method.__name__)


def in_thread(
    method: Callable[Concatenate[Any, P], T],
) -> Callable[Concatenate[Any, P], Coroutine[Any, Any, T]]:
    """The twin of a method that may wait for the disk, or for who else is at the same handle."""

    @wraps(method)
    async def twin(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> T:
        own = self._own
        bridge: Bridge = self._bridge
        return await bridge.run(lambda: method(own, *args, **kwargs))

    twin.__module__ = "mqstore.aio"
    return twin
