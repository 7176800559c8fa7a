"""How far a copy that follows a master is."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from mqstore._reports.base import _Report
from mqstore.types import ReplicaProtocol  # noqa: TC001 - the type of a field

FollowState: TypeAlias = Literal["connecting", "comparing", "following", "ended"]


@dataclass(frozen=True, slots=True)
class FollowerInfo(_Report):
    """A connected replica of a store, from `Store.followers`."""

    address: str
    """Host and port from which it is connected."""
    protocol: ReplicaProtocol | None
    """Its protocol; None until its first bytes are here."""
    broker_id: int | None
    """Its broker id, with the protocol `"autoswitch"`; the number of the copy, with `"mqstore"`."""
    learner: bool
    """Whether it never counts as one of the copies that an append waits for."""
    log_end: int
    """Log offset up to which it has the log, as far as it has reported it."""
    lag_bytes: int
    """Bytes of the log that it does not have."""
    lag_seconds: float
    """Seconds since it last had everything; 0 if it has everything now."""
    in_sync: bool
    """Whether it counts as in sync: it had everything within `Master.lag_limit`, and is no learner."""
    silent_seconds: float
    """Seconds since its last report. A replica that is silent for 20 seconds is disconnected."""


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
    """End of the master's log, as far as the master has told it: at least `log_end`. A store of yours always
    tells it with the protocol `"mqstore"`, and the broker at `metadata` at each look; otherwise it is known while the
    copy is behind."""
    lag_bytes: int
    """Bytes of the master's log that the copy does not have, as far as they are known."""
    lag_seconds: float
    """Seconds since the copy last had everything that the master had sent. Clocks of two machines are not compared."""
    connections: int
    """Connections so far."""
    epoch: int | None
    """The last epoch; None with the protocol `"default"`."""
    metadata_end: int | None
    """The copy has every change of topics, groups and offsets that came before the master's log had this end: from the
    broker at `metadata`, or with the protocol `"mqstore"`. None before the first ones."""
    metadata_error: str | None
    """Why the last look at the tables of the broker failed, if it did."""
    error: str | None
    """Why the last connection ended, or why the follower has ended."""
    running: bool
    """Whether the follower continues."""
