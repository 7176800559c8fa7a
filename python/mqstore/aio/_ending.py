"""Calls in threads that end when their task is cancelled."""

from __future__ import annotations

import asyncio
import inspect
import threading
from typing import TYPE_CHECKING, Any, TypeVar

from mqstore._warn import context_for_thread

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

T = TypeVar("T")


class EndedError(Exception):
    """Ends a call from inside its `progress`, after its task was cancelled."""


class Ending:
    """One call, and whether it must end."""

    def __init__(self) -> None:
        self._over = threading.Event()

    def end(self) -> None:
        """Makes the call end at its next progress."""
        self._over.set()

    def watching(self, progress: Callable[[Any], object] | None) -> Callable[[Any], None]:
        """Returns the `progress` for the call: it ends the call if needed, else calls the given `progress`."""

        def tell(step: Any) -> None:
            if self._over.is_set():
                raise EndedError
            if progress is not None:
                progress(step)

        return tell

    async def run(self, pool: Executor | None, call: Callable[..., T], *args: Any, **kwargs: Any) -> T:
        """Runs `call` in a thread of `pool`, or of the loop if `pool` is None."""
        if "progress" in inspect.signature(call).parameters:
            kwargs["progress"] = self.watching(kwargs.get("progress"))
        context = context_for_thread()
        loop = asyncio.get_running_loop()
        try:
            return await loop.run_in_executor(pool, lambda: context.run(call, *args, **kwargs))
        except asyncio.CancelledError:
            self.end()
            raise
