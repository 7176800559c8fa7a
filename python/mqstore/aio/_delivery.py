"""The common part of consumers and work queues of a loop: how a task looks for messages and waits."""

from __future__ import annotations

import asyncio
from functools import wraps
from typing import TYPE_CHECKING, Any, Concatenate, Generic, NoReturn, ParamSpec, Protocol, Self, TypeVar

from mqstore._native import LoopWait
from mqstore.aio._twins import named

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable, Generator
    from types import TracebackType

    import mqstore
    from mqstore.aio._bridge import Bridge
    from mqstore.aio._twins import Twin

P = ParamSpec("P")
T = TypeVar("T")

# Number of looks that another thread may disturb before the task waits for that thread.
_TRIES = 3


class Block(Protocol):
    """An object that ends at the end of its `async with` block: it is closed, or a message is acknowledged."""

    def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None, /
    ) -> Awaitable[None]:
        """Ends it."""


C = TypeVar("C", bound=Block)


class Making(Generic[C]):
    """An object that `await` or `async with` creates or gets: a store, a consumer, a work queue, a message."""

    def __init__(self, make: Callable[[], Awaitable[C]], call: str) -> None:
        """Keeps the function that creates the object, and the call that the caller wrote, for errors."""
        self._make = make
        self._call = call
        self._made: C | None = None

    if not TYPE_CHECKING:
        # A forgotten `await` or `async with`. A type checker reports it better without these methods.

        def __getattr__(self, name: str) -> object:
            raise AttributeError(f"no attribute {name!r}: {self._remedy()}", name=name, obj=self)

        def __enter__(self) -> object:
            raise TypeError(self._remedy())

        def __exit__(self, *_error: object) -> None:
            """Completes the protocol of `with`, whose `__enter__` raises."""

        def __aiter__(self) -> object:
            raise TypeError(self._remedy())

        def __iter__(self) -> object:
            raise TypeError(self._remedy())

    def _remedy(self) -> str:
        return f"{self._call} must be awaited first: use `async with {self._call} as ...` or `await {self._call}`"

    def __repr__(self) -> str:
        return f"<{self._call}, not awaited yet>"

    def __await__(self) -> Generator[Any, None, C]:
        return self._make().__await__()

    async def __aenter__(self) -> C:
        self._made = await self._make()
        return self._made

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._made is not None:
            await self._made.__aexit__(kind, error, traceback)


class Handle:
    """A consumer or a work queue for one event loop."""

    _own: Any

    def __init__(self, owner: object, bridge: Bridge) -> None:
        """Belongs to `bridge`; keeps `owner`, its store, alive."""
        self._owner = owner
        self._bridge = bridge
        bridge.handles.add(self)

    @property
    def closed(self) -> bool:
        """Whether it or its store is closed."""
        return bool(self._bridge.closing or self._own.closed)

    async def close(self) -> None:
        """Closes it and ends its waits. A second call does nothing. See the method of the blocking class."""
        # A close of the store closes it through the bridge.
        if not self.closed:
            await self._bridge.run(self._own.close)

    async def __aenter__(self) -> Self:
        self._bridge.check()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return repr(self._own).replace("<mqstore.", "<mqstore.aio.", 1)

    def __reduce__(self) -> NoReturn:
        self._own.__reduce__()
        raise AssertionError


class Line:
    """The tasks that wait for one kind of news of a consumer or a work queue, in the order in which they came.

    A task that finds nothing joins the line. The first one waits for a call of the native side and looks again. When it
    leaves, the next one is the first and looks. A task takes messages in its own step, so a cancelled task has taken
    nothing.
    """

    def __init__(self, bridge: Bridge, look_around: Callable[[], None]) -> None:
        """Creates a line of `bridge`; `look_around` makes the native side signal news that has no signal."""
        self._bridge = bridge
        self._look_around = look_around
        self._number = bridge.number()
        # Held by the first task.
        self._turn = asyncio.Lock()
        self._others = 0
        self._preparing: asyncio.Future[object] | None = None

    async def result(
        self,
        look: Callable[[bool, int | None], T | LoopWait | None],
        prepare: Callable[[], object],
        seconds: float | None,
    ) -> T:
        """Returns the first result of `look`; after `seconds`, its result without a number.

        There is no `await` between a successful look and the return.
        """
        bridge = self._bridge
        bridge.check()
        await bridge.breathe()
        end = None if seconds is None else bridge.loop.time() + seconds
        tries, is_first = 0, False
        try:
            while True:
                bridge.check()
                left = None if end is None else end - bridge.loop.time()
                found = look(tries >= _TRIES, self._number if left is None or left > 0 else None)
                if found is None:
                    tries += 1
                    await self._prepared(prepare)
                elif not isinstance(found, LoopWait):
                    return found
                elif not is_first and (self._others or self._turn.locked()):
                    found.cancel()
                    is_first = await self._is_first(end)
                else:
                    # This does not wait: no other task has the turn.
                    is_first = is_first or await self._turn.acquire()
                    tries = 0
                    limits = [limit for limit in (left, found.longest) if limit is not None]
                    await bridge.called(self._number, [found], min(limits, default=None), self._look_around)
        finally:
            if is_first:
                self._turn.release()

    def wake(self) -> None:
        """Lets the first task look again."""
        self._bridge.answer(self._number, None)

    async def _is_first(self, end: float | None) -> bool:
        """Waits until this task is the first. Returns False if `end` comes before."""
        self._others += 1
        try:
            if end is None:
                return await self._turn.acquire()
            async with asyncio.timeout_at(end):
                return await self._turn.acquire()
        except TimeoutError:
            return False
        finally:
            self._others -= 1

    async def _prepared(self, prepare: Callable[[], object]) -> None:
        """Runs `prepare` in a thread, or waits for the run of a task that was cancelled."""
        if self._preparing is None or self._preparing.done():
            self._preparing = self._bridge.submit(prepare)
        await asyncio.shield(self._preparing)


def making(
    method: Callable[Concatenate[mqstore.Store, P], T], kind: Callable[[object, Bridge, T], C]
) -> Callable[Concatenate[Twin, P], Making[C]]:
    """Returns the twin of a method that creates a consumer or work queue; the twin creates a `kind`."""

    @wraps(method)
    def twin(self: Twin, /, *args: P.args, **kwargs: P.kwargs) -> Making[C]:
        bridge = self._bridge

        async def make() -> C:
            own = await bridge.run(lambda: method(bridge.store, *args, **kwargs))
            # If the store was closed meanwhile, this is closed with it.
            made = kind(self, bridge, own)
            bridge.check()
            return made

        return Making(make, f"store.{method.__name__}(...)")

    return named(twin, method)
