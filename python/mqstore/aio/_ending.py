"""Calls in threads that end when the task that waits for them is cancelled."""

from __future__ import annotations

import asyncio
import contextvars
import inspect
import threading
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

T = TypeVar("T")


class EndedError(Exception):
    """Ends a call from inside its `progress`; nobody waits for that call any more."""


class Ending:
    """One call, and whether it is to end."""

    def __init__(self) -> None:
        self._over = threading.Event()

    def end(self) -> None:
        """Has the call end at the next progress that it makes."""
        self._over.set()

    @property
    def over(self) -> bool:
        """Whether it is to end."""
        return self._over.is_set()

    def watching(self, progress: Callable[[Any], object] | None) -> Callable[[Any], None]:
        """What the call is given as `progress`: it asks whether to go on, and tells the caller's own."""

        def tell(step: Any) -> None:
            if self.over:
                raise EndedError
            if progress is not None:
                progress(step)

        return tell

    async def run(self, pool: Executor | None, call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Runs `call` in a thread of `pool`, or of the loop's."""
        if "progress" in inspect.signature(call).parameters:
            kwargs["progress"] = self.watching(kwargs.get("progress"))
        context = contextvars.copy_context()
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(pool, lambda: context.run(call, *args, **kwargs))
        except asyncio.CancelledError:
            self.end()
            raise
