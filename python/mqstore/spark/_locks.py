"""Coming by a store that others use as well: waiting for its lock, and what to say when it is not there."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

from mqstore.errors import StoreLockedError

if TYPE_CHECKING:
    from collections.abc import Callable

SAME_PATH = "the store has to be reached under the same path on the driver and on every executor"

_PAUSE_SECONDS = 0.1

T = TypeVar("T")


def once_unlocked(call: Callable[[], T], seconds: float) -> T:
    """What `call` answers, which is called again while somebody else has the lock.

    Raises:
        StoreLockedError: somebody had it for all of `seconds`.
    """
    until = time.monotonic() + seconds
    while True:
        try:
            return call()
        except StoreLockedError:
            if time.monotonic() >= until:
                raise
            time.sleep(_PAUSE_SECONDS)
