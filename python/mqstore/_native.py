"""The only module that imports the native module; the rest of the package imports from here."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Sequence

from mqstore._mqstore import *  # noqa: F403 - its own list says which
from mqstore._mqstore import AppendResults, _after_fork_in_child

# A native class cannot inherit from an abstract class.
Sequence.register(AppendResults)

_fork_hook: list[bool] = []


def watch_forks() -> None:
    """Makes stores of the parent raise an error in a forked child instead of a hang. Call before the first open."""
    if not _fork_hook and hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_after_fork_in_child)
        _fork_hook.append(True)


def warn_of_gevent() -> None:
    """Warns if gevent has replaced the threads of this program. Call at the import of the package."""
    monkey = sys.modules["gevent.monkey"]
    if monkey.is_module_patched("threading"):
        text = (
            "gevent has patched threading, but a call of mqstore that waits blocks the hub and all greenlets: make "
            "such calls in the thread pool of the hub, gevent.get_hub().threadpool.apply(queue.get)"
        )
        warnings.warn(text, RuntimeWarning, stacklevel=3)
