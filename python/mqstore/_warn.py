"""Warnings that name the line of the program, however many functions of mqstore and threads are between."""

from __future__ import annotations

import sys
import warnings
from contextvars import Context, ContextVar, copy_context
from typing import TYPE_CHECKING, Any

from mqstore.errors import StoreWarning

if TYPE_CHECKING:
    from types import FrameType

# Functions of these modules can be between two functions of mqstore, or start a thread.
_INTERNAL = ("mqstore", "contextlib", "functools", "asyncio", "concurrent", "threading")

# A file, a line in it, and the names of its module.
_Line = tuple[str, int, dict[str, Any]]

# The line that gave a call to a thread.
_CALLER: ContextVar[_Line | None] = ContextVar("mqstore_caller", default=None)


def warn(text: str) -> None:
    """Gives a `StoreWarning` for the line that called mqstore. The native module calls it, too."""
    file, line, names = _caller() or _CALLER.get() or (__file__, 1, globals())
    registry = names.setdefault("__warningregistry__", {})
    warnings.warn_explicit(text, StoreWarning, file, line, names.get("__name__"), registry)


def context_for_thread() -> Context:
    """Copies the context for a call in a thread, whose warnings then name the line that calls mqstore now."""
    context = copy_context()
    context.run(_CALLER.set, _caller() or _CALLER.get())
    return context


def _caller() -> _Line | None:
    """Returns the innermost line of the program in this thread."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] in _INTERNAL:
        frame = frame.f_back
    return None if frame is None else (frame.f_code.co_filename, frame.f_lineno, frame.f_globals)
