"""How far a copy that follows a master is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from mqstore._reports.base import _Report

FollowState: TypeAlias = Literal["connecting", "comparing", "following", "ended"]


@dataclass(frozen=True, slots=True)
class FollowStatus(_Report):
    """How far a copy of a master is, from `Follower.status`."""

    master: str
    """Host and port of the master."""
    state: FollowState
    """What the follower does: it connects, or waits to connect again; it compares the copy with the master's log; it
    copies; or it has ended."""
    log_end: int
    """Log offset up to which the copy has the log: whole messages only."""
    master_end: int
    """End of the master's log, as far as the master has told it: at least `log_end`. With `metadata`, the broker tells
    it at each look; otherwise it is known while the copy is behind."""
    lag_bytes: int
    """Bytes of the master's log that the copy does not have, as far as they are known."""
    lag_seconds: float
    """Seconds since the copy last had everything that the master had sent. Clocks of two machines are not compared."""
    connections: int
    """Connections so far."""
    epoch: int | None
    """The last epoch, with the protocol `"autoswitch"`."""
    metadata_end: int | None
    """Log offset up to which the copy has topics, groups and offsets; None without `metadata`, and before the first
    look."""
    metadata_error: str | None
    """Why the last look at the tables of the broker failed, if it did."""
    error: str | None
    """Why the last connection ended, or why the follower has ended."""
    running: bool
    """Whether the follower continues."""
