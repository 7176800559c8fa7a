"""Results of `compact` and `restore_compaction`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from mqstore._reports.base import _Report

if TYPE_CHECKING:
    from collections.abc import Mapping


@dataclass(frozen=True, slots=True)
class CompactionReport(_Report):
    """Result of `mqstore.compact`."""

    messages_before: int
    """Messages read."""
    messages_after: int
    """Messages kept."""
    keys: int
    """Distinct keys."""
    rounds: int
    """Largest number of passes that one queue needed."""
    bytes_before: int
    """Bytes of the records read."""
    bytes_after: int
    """Bytes of the records kept."""
    seconds: float
    """Seconds from the plan to the publication."""
    skipped: tuple[str, ...] = ()
    """Queues that were skipped, each as `topic/queue: reason`; the reason `unchanged` means already compacted."""
    keyless: int = 0
    """Messages without a key; they are dropped by default, see `keyless`."""
    tombstones: int = 0
    """Messages without a body, which delete their key."""
    tombstones_kept: int = 0
    """Tombstones that were kept, so that slow readers see them."""
    job_id: str = ""
    """Id of the job; a second run of a published job does nothing."""
    expired: int = 0
    """Newest messages of their keys that were removed because they have expired."""

    @classmethod
    def _from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Builds the report from the JSON of a job."""
        names = ("messages_before", "messages_after", "keys", "rounds", "bytes_before", "bytes_after",
                 "keyless", "tombstones", "tombstones_kept", "expired", "job_id")  # fmt: skip
        counts = {name: values[name] for name in names}
        return cls(**counts, seconds=values["elapsed_ms"] / 1000, skipped=tuple(values["skipped"]))


@dataclass(frozen=True, slots=True)
class RestoredQueue(_Report):
    """A queue whose lost compaction files were restored."""

    topic: str
    queue_id: int
    until: int
    """One past the last lost offset: the first offset that the commit log of this store has."""
    messages: int
    """Messages copied from the other store."""
    bytes: int
    """Bytes of these records."""
    resumed: int
    """Messages that an earlier, interrupted call had copied."""


@dataclass(frozen=True, slots=True)
class RestoreReport(_Report):
    """Result of `restore_compaction`."""

    source: str
    """Directory of the other store."""
    dry_run: bool
    """Whether this was a dry run, which changes nothing."""
    queues: tuple[RestoredQueue, ...]
    """Queues that were restored."""
    skipped: tuple[str, ...]
    """Queues that were skipped, each as `topic/queue: reason`; complete queues have the reason `nothing is missing`."""
    compaction: CompactionReport | None
    """Result of the compaction of the restored queues; None if there was none."""
