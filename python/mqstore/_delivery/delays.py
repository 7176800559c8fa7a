"""`DelayStats`: counters of delayed messages."""

from __future__ import annotations

from dataclasses import dataclass

from mqstore._reports import _Report


@dataclass(frozen=True, slots=True)
class DelayStats(_Report):
    """Counters of the delayed messages of a store."""

    pending: int
    """Messages of `append` that wait for their delivery."""
    next_due: int | None
    """Earliest delivery time of those that have an exact time, in epoch milliseconds; None if there are none. A time
    that is not near is rounded up to a second."""
    delivered: int = 0
    """Messages delivered since the open."""
    cancelled: int = 0
    """Messages cancelled since the open."""
    dropped: int = 0
    """Messages that could not be delivered since the open, because their record was deleted or names no topic."""
    late_p99: float = 0.0
    """Lateness in seconds that 99 % of the deliveries since the open did not exceed."""
    late_max: float = 0.0
    """Largest lateness of a delivery since the open, in seconds."""
    jobs: int = 0
    """Messages of work queues that are due later, of all groups. Of a work queue with more than 100,000 new messages in
    one of its queues, only the first 100,000 are looked at."""


DelayStats.__module__ = "mqstore"
