"""Calls for many stores at the same time."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar, cast

from mqstore._read.on_error import FAILURES, can_be_skipped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from mqstore.types import OnError

OPENS = 16
"""Maximum number of stores that the driver opens at the same time."""

T = TypeVar("T")
R = TypeVar("R")


def each(call: Callable[[T], R], items: Iterable[T], on_error: OnError) -> list[R | Exception]:
    """Calls a function with each item, at most `OPENS` at a time. Returns the results in order.

    With "raise", the first error ends the calls that have not begun, and is raised when the others have ended. With
    "skip", the error of an item is in the place of its result.
    """
    found: list[R | Exception] = []
    given = list(items)
    with ThreadPoolExecutor(min(OPENS, max(1, len(given))), "mqstore-open") as pool:
        futures = [pool.submit(call, item) for item in given]
        try:
            for future in futures:
                try:
                    found.append(future.result())
                except FAILURES as error:
                    if not can_be_skipped(error, on_error):
                        raise
                    # The frames of the traceback would keep the store open.
                    found.append(error.with_traceback(None))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return found


def all_of(call: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Like `each` with "raise"."""
    return cast("list[R]", each(call, items, "raise"))
