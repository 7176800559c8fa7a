"""Waits for the lock of a store, and advice if a store is not found."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

from mqstore.errors import StoreLockedError

if TYPE_CHECKING:
    from collections.abc import Callable

SAME_PATH = "the driver and every executor must reach the store under the same path"

_PAUSE_SECONDS = 0.1

T = TypeVar("T")


def once_unlocked(call: Callable[[], T], seconds: float) -> T:
    """Returns the result of `call`. Repeats the call while another process has the lock.

    Raises:
        StoreLockedError: the lock was not free for `seconds`.
    """
    until = time.monotonic() + seconds
    while True:
        try:
            return call()
        except StoreLockedError:
            if time.monotonic() >= until:
                raise
            time.sleep(_PAUSE_SECONDS)
