"""Results of the verbs that copy messages: `snapshot`, `export`, `import_` and `copy_topic`."""

from __future__ import annotations

from dataclasses import dataclass

from mqstore._reports.base import _Report


@dataclass(frozen=True, slots=True)
class SnapshotReport(_Report):
    """Result of `Store.snapshot`."""

    path: str
    """Directory of the snapshot."""
    log_min_offset: int
    """Start of its log."""
    log_max_offset: int
    """End of its log, exclusive."""
    messages: int
    """Messages in its log."""
    linked_segments: int
    """Segments that are hard links to files of the store; neither side changes them any more. 0 at a URL."""
    copied_segments: int
    """Segments that are separate files; if the file system supports it, they share blocks with the files of the
    store."""


@dataclass(frozen=True, slots=True)
class ExportReport(_Report):
    """Result of `mqstore.export`."""

    path: str
    """File or store."""
    format: str
    """`jsonl`, `parquet`, `arrow` or `store`."""
    messages: int
    """Messages written; for a store, messages appended."""
    bytes: int
    """Length of the file; for a store, length of the mapping file."""
    skipped: int
    """Records that were left out."""
    reasons: dict[str, int]
    """Records that were left out, by reason. `done`: of a delayed message that was delivered or cancelled, or of a
    transaction that was decided; `waiting`: delayed messages, with `waiting="drop"`; `undecided`: messages of
    transactions without a decision; `internal`: other records of the store itself; `deleted`: of deleted topics;
    `topic_name`: of topics whose names a store cannot have."""
    resumed: bool
    """Whether this call resumed an interrupted export; the counts then cover both calls."""
    seconds: float
    """Duration in seconds."""
    renumbered: int = 0
    """For a store: messages with another queue offset than in the source, without delayed messages that wait."""


@dataclass(frozen=True, slots=True)
class MovedGroup(_Report):
    """Offset of a group that `mqstore.copy_topic` committed in the target."""

    group: str
    topic: str
    queue_id: int
    offset: int
    """Offset in the target that the group reads next."""


@dataclass(frozen=True, slots=True)
class CopyGap(_Report):
    """Messages of a queue that `mqstore.copy_topic` could not copy, because the source did not have them any more."""

    topic: str
    queue_id: int
    first_offset: int
    """Their first offset in the source."""
    end_offset: int
    """The offset after the last one."""


@dataclass(frozen=True, slots=True)
class TopicCopyReport(_Report):
    """Result of `mqstore.copy_topic`."""

    source: str
    """Directory or URL of the source."""
    target: str
    """Directory of the target."""
    mapping: str
    """Folder with the old and new positions."""
    messages: int
    """Messages that this call copied; with `resumed`, also those of the interrupted call."""
    waiting: int
    """Delayed messages of all topics that wait in the source; copied after their delivery."""
    undecided: int
    """Messages of all topics in transactions of the source without a decision; copied after the commit."""
    groups: tuple[MovedGroup, ...]
    """Queues in which a group moved."""
    resumed: bool
    """Whether this call resumed an interrupted one."""
    seconds: float
    """Duration in seconds."""
    gaps: tuple[CopyGap, ...] = ()
    """Messages that are not in the copy, of this call and those before it."""
    held_groups: tuple[MovedGroup, ...] = ()
    """Queues in which a group did not move, because it has not read all messages of a gap; each with the offset in the
    target to which `over_gaps=True` moves the group."""


@dataclass(frozen=True, slots=True)
class ImportReport(_Report):
    """Result of `mqstore.import_`."""

    path: str
    """Directory of the store."""
    source: str
    """Imported file."""
    format: str
    """`jsonl`, `parquet` or `arrow`."""
    messages: int
    """Messages appended."""
    skipped: int
    """Rows that belong to no queue: half messages and rollbacks."""
    topics: dict[str, int]
    """Messages by topic."""
    dry_run: bool
    """Whether this was a dry run, which appends nothing."""
    seconds: float
    """Duration in seconds."""
