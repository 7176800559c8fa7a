"""Helpers for the tests of `mqstore.aio`: an event loop for each test, counts of threads and waits, cancellation."""

from __future__ import annotations

import asyncio
import functools
import gc
import random
import threading
from collections.abc import Callable, Coroutine, Iterable
from pathlib import Path
from typing import Any

LONG = 60


def in_loop(test: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Runs a test in its own event loop in debug mode, which reports blocking calls and unawaited coroutines."""

    @functools.wraps(test)
    def run(*args: Any, **kwargs: Any) -> None:
        asyncio.run(asyncio.wait_for(test(*args, **kwargs), LONG), debug=True)

    return run


def tasks_of_process() -> int:
    """Number of threads, those of Rust included."""
    return (
        len(list(Path("/proc/self/task").iterdir())) if Path("/proc/self/task").is_dir() else threading.active_count()
    )


def threads_named(prefix: str) -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith(prefix)]


def waits_of_process() -> int:
    """Number of futures and of timers that exist, without garbage."""
    gc.collect()
    found = [thing for thing in gc.get_objects() if isinstance(thing, asyncio.Future | asyncio.TimerHandle)]
    return sum(not thing.cancelled() for thing in found)


def count_wakes(loop: asyncio.AbstractEventLoop) -> list[int]:
    """Returns a list that grows with each call of a reader that is added to the loop from now on."""
    wakes: list[int] = []
    add = loop.add_reader

    def counted(descriptor: int, call: Callable[..., object], *args: object) -> None:
        add(descriptor, lambda: (wakes.append(descriptor), call(*args)))

    loop.add_reader = counted  # type: ignore[assignment]
    return wakes


async def until(holds: Callable[[], bool]) -> None:
    while not holds():
        await asyncio.sleep(0.001)


async def cancelled_soon(tasks: Iterable[asyncio.Future[Any]], chance: random.Random) -> int:
    """Cancels the tasks at some moment of the next turns of the loop. Returns how many were not done."""
    for _ in range(chance.randrange(4)):
        await asyncio.sleep(0 if chance.random() < 0.7 else 0.001)
    return sum(task.cancel() for task in tasks if not task.done())
