"""Logic queues for asyncio: threads of the loop read them."""

from __future__ import annotations

import asyncio
from collections import deque
from functools import partial, wraps
from itertools import islice
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Self, TypeVar

import mqstore
from mqstore.aio._delivery import Making
from mqstore.aio._scan import Scan
from mqstore.aio._shared_step import SharedStep
from mqstore.aio._twins import reading

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping
    from types import TracebackType

    from mqstore.types import StorePath

P = ParamSpec("P")
T = TypeVar("T")

# Messages of one step of a thread.
_STEP = 64


class LogicMessages:
    """Messages of a logic queue in the order of their logic offsets, from `LogicQueues.read`.

    Tasks can share one; each message goes to exactly one of them. A task that is cancelled while it waits takes none.
    """

    def __init__(self, found: Iterator[mqstore.LogicMessage]) -> None:
        """Wraps the messages of `mqstore.LogicQueues.read`. Programs call `LogicQueues.read` instead."""
        self._found = found
        self._ready: deque[mqstore.LogicMessage] = deque()
        self._step = SharedStep[list[mqstore.LogicMessage]]()
        self._turn = asyncio.Lock()
        self._over = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> mqstore.LogicMessage:
        if not self._ready:
            async with self._turn:
                await self._fetch()
        return self._ready.popleft()

    async def _fetch(self) -> None:
        """Returns when a message is ready. Raises StopAsyncIteration at the end."""
        while not self._ready:
            if self._over:
                raise StopAsyncIteration
            found = await self._step.result(
                lambda: asyncio.ensure_future(asyncio.to_thread(list, islice(self._found, _STEP)))
            )
            self._over = not found
            self._ready.extend(found)


def _in_thread(
    method: Callable[Concatenate[mqstore.LogicQueues, P], T],
) -> Callable[Concatenate[LogicQueues, P], Coroutine[Any, Any, T]]:
    """Returns the twin of a method that reads from the disk."""

    @wraps(method)
    async def twin(self: LogicQueues, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await asyncio.to_thread(method, self._own, *args, **kwargs)

    twin.__module__ = "mqstore.aio"
    return twin


class LogicQueues:
    """Static topics over the directories of their brokers, from `open_logic_queues`.

    Works like `mqstore.LogicQueues`, with coroutines; threads of the loop read the directories.
    """

    def __init__(self, own: mqstore.LogicQueues) -> None:
        """Wraps logic queues. Programs call `open_logic_queues` instead."""
        self._own = own

    @property
    def problems(self) -> tuple[str, ...]:
        """Faults of the chains: see `mqstore.LogicQueues.problems`."""
        return self._own.problems

    async def __aenter__(self) -> Self:
        """Returns the object."""
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes the stores."""
        await self.close()

    close = _in_thread(mqstore.LogicQueues.close)
    topics = _in_thread(mqstore.LogicQueues.topics)
    queues = _in_thread(mqstore.LogicQueues.queues)
    groups = _in_thread(mqstore.LogicQueues.groups)
    group_offsets = _in_thread(mqstore.LogicQueues.group_offsets)
    lag = _in_thread(mqstore.LogicQueues.lag)
    read = reading(mqstore.LogicQueues.read, LogicMessages)
    scan = reading(mqstore.LogicQueues.scan, Scan)


@wraps(mqstore.open_logic_queues)
def open_logic_queues(paths: Mapping[str, StorePath] | Iterable[StorePath]) -> Making[LogicQueues]:
    """Opens the directories of brokers; the text of `mqstore.open_logic_queues` replaces this one."""
    return Making(partial(_opened, paths), "mqstore.aio.open_logic_queues(...)")


async def _opened(paths: Mapping[str, StorePath] | Iterable[StorePath]) -> LogicQueues:
    opening = asyncio.ensure_future(asyncio.to_thread(mqstore.open_logic_queues, paths))
    try:
        return LogicQueues(await asyncio.shield(opening))
    except asyncio.CancelledError:
        opening.add_done_callback(_close_late)
        raise


def _close_late(opening: asyncio.Future[mqstore.LogicQueues]) -> None:
    """Closes the stores of an open that was cancelled."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


for _thing in (LogicMessages, LogicQueues, open_logic_queues):
    _thing.__module__ = "mqstore.aio"
del _thing
