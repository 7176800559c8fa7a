"""Stubs of the native module for live copies of a master; a part of `_mqstore.pyi`."""

from os import PathLike
from typing import Any, Self, final

@final
class FollowSession:
    """A follower: the connection to a master, and the copy, which it has open. One thread calls `step`."""

    def __new__(
        cls,
        master: str,
        path: str | PathLike[str],
        *,
        protocol: str,
        metadata: str | None,
        metadata_interval_ms: int,
        begin: str,
        broker_id: int | None,
        learner: bool,
        durable_acks: bool,
        full_copy: bool,
        options: dict[str, Any],
    ) -> Self:
        """Opens the copy.

        Args:
            master: host and port of the master's HA service.
            path: directory of the copy.
            protocol: "default", "autoswitch" or "mqstore".
            metadata: host and port of the broker, for its tables.
            metadata_interval_ms: time between two looks at them.
            begin: where an empty copy begins, "oldest" or "last".
            broker_id: the id of this replica, for a master that asks for it; None takes the number of the copy.
            learner: whether no append of the master waits for this replica.
            durable_acks: whether the end is reported after a sync only.
            full_copy: whether an earlier copy is removed first.
            options: options of the store, in their native form.
        """

    def step(self, wait_ms: int) -> list[str]:
        """Works for at most about `wait_ms` milliseconds. Returns lines for the log of the program."""

    def status(self) -> dict[str, Any]:
        """Returns how far the copy is, by the names of `FollowStatus`."""

    def close(self) -> None:
        """Closes the copy. A second call does nothing."""

def demote_store(path: str | PathLike[str], master: str, protocol: str) -> None:
    """Makes the store at `path` a copy of `master`."""

def promote_copy(path: str | PathLike[str]) -> str | None:
    """Makes the copy at `path` a store of its own. Returns its former master, or None."""
