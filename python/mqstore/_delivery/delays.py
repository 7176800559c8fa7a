"""`DelayStats`: where the delayed messages of a store stand."""

from __future__ import annotations

from dataclasses import dataclass

from mqstore._reports import _Report


@dataclass(frozen=True, slots=True)
class DelayStats(_Report):
    """Messages that were appended to be delivered later."""

    pending: int
    """Messages that wait."""
    next_due: int | None
    """When the first of them with a time of its own is due, in epoch milliseconds; rounded up to a second where that is
    not near. None where none waits."""
    delivered: int = 0
    """Messages delivered since the open."""
    cancelled: int = 0
    """Messages cancelled since the open."""
    dropped: int = 0
    """Messages that could not be delivered since the open: their records were deleted, or say not where they belong."""
    late_p99: float = 0.0
    """By how many seconds 99 of 100 deliveries since the open were late at most."""
    late_max: float = 0.0
    """By how many seconds the latest of them was."""


DelayStats.__module__ = "mqstore"
