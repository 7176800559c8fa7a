"""A step in a thread whose result goes to the next task if the task that waits for it is cancelled."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class SharedStep(Generic[T]):
    """At most one step at a time. Tasks that use it take turns."""

    def __init__(self) -> None:
        self._running: asyncio.Future[T] | None = None

    def is_running(self) -> bool:
        """Returns whether a cancelled task has left a step."""
        return self._running is not None

    async def result(self, begin: Callable[[], asyncio.Future[T]]) -> T:
        """Returns the result of the step that is running, or of one that `begin` starts."""
        if self._running is None:
            self._running = begin()
        try:
            found = await asyncio.shield(self._running)
        except asyncio.CancelledError:
            raise
        except BaseException:
            # The next step asks again, and gets a result or the error.
            self._running = None
            raise
        self._running = None
        return found
