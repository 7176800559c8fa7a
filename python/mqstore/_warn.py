"""Warnings that name the line of the program, however many functions of mqstore are between it and the warning."""

from __future__ import annotations

import sys
import warnings

from mqstore.errors import StoreWarning

# Functions of these modules can be between two functions of mqstore.
_INTERNAL = ("mqstore", "contextlib", "functools")


def warn(text: str) -> None:
    """Gives a `StoreWarning` for the line that called mqstore. The native module calls it, too."""
    level, frame = 2, sys._getframe(1)
    while frame.f_globals.get("__name__", "").partition(".")[0] in _INTERNAL and frame.f_back is not None:
        level, frame = level + 1, frame.f_back
    warnings.warn(text, StoreWarning, stacklevel=level)
