"""Waits for the lock of a store, and advice if a store is locked or not found."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from mqstore import _native
from mqstore._store import lock_pauses
from mqstore.errors import StoreLockedError

if TYPE_CHECKING:
    from collections.abc import Callable

SAME_PATH = "the driver and every executor must reach the store under the same path"

_BY_DRIVER = (
    "this is the program that started the Spark job, and the job waits for its own program. Close the store before the "
    'job (leave the with block of mqstore.open), or open it there with mode "r"'
)
_BY_ANOTHER = "a Spark job that changes the store needs its lock. Close the store there, then start the job again"

T = TypeVar("T")


def once_unlocked(call: Callable[[], T], seconds: float) -> T:
    """Returns the result of `call`. Repeats the call while another process has the lock.

    Raises:
        StoreLockedError: the lock was not free for `seconds`, or the driver's own program has it.
    """
    pauses = lock_pauses(seconds)
    while True:
        try:
            return call()
        except StoreLockedError as error:
            if _is_driver(error.pid):
                raise StoreLockedError(error.path, error.pid, _BY_DRIVER) from None
            if (pause := next(pauses, None)) is None:
                raise StoreLockedError(error.path, error.pid, _BY_ANOTHER) from None
        time.sleep(pause)


def refuse_driver(path: str) -> None:
    """Raises `StoreLockedError` if the driver's own program has the store open for writing."""
    pid = _native.writer_pid(path)
    if _is_driver(pid):
        raise StoreLockedError(path, pid, _BY_DRIVER)


def _is_driver(pid: int | None) -> bool:
    """Whether `pid` is the driver's program: it started the JVM of this worker, or this JVM started it."""
    if pid is None or pid == os.getpid():
        return False
    own = _ancestors(os.getpid())
    if pid in own:
        return True
    # Other workers of the JVM hold the lock only for a moment.
    by_the_jvm = any(each in own and _read(each, "comm") == "java" for each in _ancestors(pid))
    return by_the_jvm and "pyspark" not in _read(pid, "cmdline")


def _ancestors(pid: int) -> list[int]:
    """Returns the processes above `pid`, without the first one of the system; empty if the system has no `/proc`."""
    found: list[int] = []
    while True:
        # The name before the last parenthesis can contain anything.
        fields = _read(pid, "stat").rpartition(")")[2].split()
        pid = int(fields[1]) if len(fields) > 1 else 0
        if pid <= 1 or pid in found:
            return found
        found.append(pid)


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_text(errors="replace").strip()
    except OSError:
        return ""
