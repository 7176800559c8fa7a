"""Names for the types that mqstore's functions take, for use in annotations of your own."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal, TypeAlias, TypedDict

if TYPE_CHECKING:
    if sys.version_info >= (3, 12):
        from collections.abc import Buffer
    else:
        from typing_extensions import Buffer

    from mqstore._delivery.transactions import PendingTransaction
    from mqstore._native import SqlFilter
    from mqstore._options import BrokerOptions
    from mqstore._reports import ExpiredFile, Progress, StoreEvent

__all__ = [
    "Boundary",
    "BytesLike",
    "Check",
    "CompactionOptions",
    "Durability",
    "Duration",
    "Filter",
    "Keyless",
    "Keys",
    "LocalCompactionOptions",
    "Mode",
    "OnLost",
    "Properties",
    "Recovery",
    "Start",
    "StoreOptionsDict",
    "StorePath",
    "Time",
    "Visibility",
]

StorePath: TypeAlias = "str | os.PathLike[str]"
"""Where a store lies."""

Mode: TypeAlias = Literal["r", "rw", "create"]
"""How a store is opened: to read, to write what exists, to write and make what is missing."""

BytesLike: TypeAlias = "Buffer"
"""A body: `bytes`, `bytearray`, `memoryview`, an array, anything with the buffer protocol."""

Keys: TypeAlias = str | Iterable[str]
"""One key or several."""

Properties: TypeAlias = Mapping[str, str]
"""A message's own properties by name."""

Time: TypeAlias = int | datetime
"""A point in time: epoch milliseconds, or a `datetime` with a time zone."""

Duration: TypeAlias = float | timedelta
"""A span of time: seconds, or a `timedelta`."""

Filter: TypeAlias = "str | SqlFilter"
"""Which messages are wanted: tags as `"a || b"`, or a condition on properties, `mqstore.sql("price > 5")`."""

Start: TypeAlias = Literal["earliest", "latest"] | Time
"""Where a consumer begins or goes to: at the first message, behind the last one, or at a time."""

OnLost: TypeAlias = Literal["continue", "raise"]
"""What a consumer does about messages that were deleted before its group read them."""

Check: TypeAlias = "Callable[[PendingTransaction], Literal['commit', 'rollback'] | None]"
"""Who decides a transaction that nobody decided, as far as it knows: see `Store.check_transactions`."""

Boundary: TypeAlias = Literal["lower", "upper"]
"""Which of several messages stored at one time a look-up by time answers: the first or the last."""

Durability: TypeAlias = Literal["sync", "async", "manual", "pooled"]
"""When an append returns: see `StoreOptions.durability`."""

Recovery: TypeAlias = Literal["strict", "salvage", "read-only"]
"""What an open for writing does about damage: see `StoreOptions.recovery`."""

Visibility: TypeAlias = Literal["appended", "durable"]
"""What readers may see: see `StoreOptions.visibility`."""

Keyless: TypeAlias = Literal["drop", "keep", "refuse"]
"""What becomes of messages without a key in compacted files."""


class CompactionOptions(TypedDict, total=False):
    """Options of every verb that compacts, on Spark too.

    Args:
        tombstone_retention: how long a message without a body, which deletes its key, is kept after the compaction that
            removed the last older value, so that a slow reader sees it; seconds, or a `timedelta`. 86,400 by default; 0
            does as RocketMQ, which does not keep it at all.
        dry_run: does the work aside, tells what came out, and throws it away; False by default.
        force: also takes queues that have not changed since the last time, and lets the call name topics that are no
            compaction topics: a broker keeps such files, and serves these topics from the commit log as before.
            `restore_compaction`: also takes queues whose compaction files reach the commit log, for instance because
            `verify` finds them damaged. False by default.
        keyless: what becomes of messages without a key: `"drop"`, the default, as in RocketMQ; `"keep"`; or `"refuse"`,
            which leaves their queue as it is and names it in `skipped`.
        confirm_keys: whether keys are compared in full, the default; otherwise by their MD5, as in RocketMQ.
        memory_size: bytes that the keys of one queue may take in memory, 104,857,600 by default; with less of it a
            queue takes more rounds. RocketMQ: `maxOffsetMapSize` / `compactionThreadNum`.
        log_file_size: wished bytes of a log file in a store that has none yet; None, the default, is 104,857,600.
            RocketMQ: `compactionMappedFileSize`.
        queue_file_size: wished bytes of a queue file, likewise; None, the default, is 10,485,760.
            RocketMQ: `compactionCqMappedFileSize`.
        progress: called with the bytes that were read and have to be read, each message twice; an exception that it
            raises ends the call, and every queue is as it was. The next `restore_compaction` goes on.
    """

    tombstone_retention: Duration
    dry_run: bool
    force: bool
    keyless: Keyless
    confirm_keys: bool
    memory_size: int
    log_file_size: int | None
    queue_file_size: int | None
    progress: Callable[[Progress], object] | None


class LocalCompactionOptions(CompactionOptions, total=False):
    """`CompactionOptions`, and those of verbs that work in this process.

    Args:
        threads: at most so many queues at once; None, the default, is the number of processors.
        max_bytes_per_second: what all queues together may read and write; None, the default, is no limit.
    """

    threads: int | None
    max_bytes_per_second: int | None


class StoreOptionsDict(TypedDict, total=False):
    """The fields of `StoreOptions` as keywords of `mqstore.open`.

    A function of your own that passes them on declares `**options: Unpack[StoreOptionsDict]`.
    """

    recovery: Recovery
    segment_size: int
    queue_file_entries: int
    index_slots: int
    index_entries: int
    durability: Durability
    visibility: Visibility
    flush_interval: Duration
    record_crc: bool
    max_message_size: int
    default_queues: int
    auto_create_topics: bool
    retention: Duration | None
    retention_bytes: int | None
    max_bytes: int | None
    delete_when: str
    disk_clean_ratio: float
    disk_force_ratio: float
    disk_refuse_ratio: float
    secure_wipe: bool
    expire_uncompacted: bool
    compaction_interval: Duration | None
    compaction_feed: bool
    delay_levels: str | Iterable[Duration] | None
    commit_log_paths: StorePath | Iterable[StorePath]
    on_event: Callable[[StoreEvent], object] | None
    before_delete: Callable[[ExpiredFile], bool | Duration | None] | None
    store_host: str
    advanced: BrokerOptions
