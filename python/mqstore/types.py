"""Names for the argument types of mqstore, for annotations in your own code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias, TypedDict

if TYPE_CHECKING:
    if sys.version_info >= (3, 12):
        from collections.abc import Buffer
    else:
        from typing_extensions import Buffer

    from mqstore._delivery.transactions import PendingTransaction
    from mqstore._native import SqlFilter
    from mqstore._options import BrokerOptions, Master
    from mqstore._reports import ExpiredFile, Progress, StoreEvent

__all__ = [
    "ArrowStream", "Boundary", "BytesLike", "Check", "CompactionOptions", "Compression", "DledgerEnd", "Durability",
    "Duration", "Filter", "Keyless", "Keys", "LocalCompactionOptions", "Mode", "OnDamage", "OnError", "OnLost",
    "Properties", "ReadBound", "Recovery", "ReplicaProtocol", "RetentionPolicy", "Start", "StoreOptionsDict",
    "StorePath", "Time", "Visibility",
]  # fmt: skip

StorePath: TypeAlias = "str | os.PathLike[str]"
"""Directory of a store."""

Mode: TypeAlias = Literal["r", "rw", "create", "share"]
"""Mode of an open: `"r"` reads, `"rw"` writes to an existing store, `"create"` also creates a missing store, `"share"`
does that together with other processes."""

BytesLike: TypeAlias = "Buffer"
"""A body: `bytes`, `bytearray`, `memoryview`, an array, anything with the buffer protocol."""


class ArrowStream(Protocol):
    """Rows in Arrow's C stream interface: tables and streams of pyarrow, Polars, DuckDB and pandas, and a `Scan`."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        """Returns a capsule with the stream."""


Keys: TypeAlias = str | Iterable[str]
"""One key or several."""

Properties: TypeAlias = Mapping[str, str]
"""Properties of a message, by name."""

Time: TypeAlias = int | datetime | timedelta | str
"""A point in time: epoch milliseconds, a `datetime` with a time zone, ISO 8601 text with an offset, such as
`"2026-01-31T12:00Z"`, or a `timedelta` of at least 0, which is that long ago. A number that can only be seconds (of the
years 1973 to 2286) is an error, and `deliver_at` takes no `timedelta`."""

Duration: TypeAlias = float | timedelta | str
"""A duration: seconds, a `timedelta`, or text: a number with a unit such as `"90s"`, `"24h"` or `"7d"` (ms, s, m, h, d,
w; without a unit, seconds), or a duration of ISO 8601 such as `"PT24H"`."""

ReadBound: TypeAlias = int | datetime | timedelta | str
"""The start or the end of a read: a queue offset, or a store time as an aware `datetime`, as ISO text, or as a
`timedelta`, which is that long ago."""

Filter: TypeAlias = "str | SqlFilter"
"""A selection of messages: tags as `"a || b"`, or a condition on properties, `mqstore.sql("price > 5")`."""

Start: TypeAlias = Literal["earliest", "latest"] | Time
"""A position for a consumer: `"earliest"` is the first message, `"latest"` the end; or a store time."""

OnDamage: TypeAlias = Literal["raise", "skip"]
"""Behaviour of a read at a damaged record: `"raise"` raises `CorruptionError`. `"skip"` continues after the record with
a `StoreWarning` and counts it in `StoreStats.skipped_damage`."""

OnError: TypeAlias = Literal["raise", "skip"]
"""Behaviour of a scan of several stores if one of them cannot be read: `"raise"` raises the error. `"skip"` continues
with the next store, with a `StoreWarning`, and adds the store to `Scan.failures`."""

OnLost: TypeAlias = Literal["continue", "raise"]
"""Behaviour of a consumer if messages were deleted before its group read them: see `Store.consumer`."""

Check: TypeAlias = "Callable[[PendingTransaction], Literal['commit', 'rollback'] | None]"
"""A check function: it decides a pending transaction, or returns None. See `Store.check_transactions`."""

Boundary: TypeAlias = Literal["lower", "upper"]
"""Which of several messages with the same store time a look-up by time returns: the first or the last."""

Durability: TypeAlias = Literal["sync", "async", "manual", "pooled"]
"""When an append returns: see `StoreOptions.durability`."""

Compression: TypeAlias = Literal["zstd", "lz4", "zlib", "none"]
"""How a body is stored: compressed, or as you gave it (`"none"`). See `StoreOptions.compression`."""

Recovery: TypeAlias = Literal["strict", "salvage", "read-only"]
"""Behaviour of an open for writing if it finds damage: see `StoreOptions.recovery`."""

RetentionPolicy: TypeAlias = Literal["finished", "time"]
"""Rule for segments that are old enough: `"finished"` deletes those whose messages all groups have finished, `"time"`
ignores groups."""

Visibility: TypeAlias = Literal["appended", "durable", "confirmed"]
"""What readers can see: see `StoreOptions.visibility`."""

ReplicaProtocol: TypeAlias = Literal["default", "autoswitch", "mqstore"]
"""Protocol between a master and its replicas: that of RocketMQ, of its controller mode, or that of a store of yours and
its standby. See `mqstore.follow`."""

DledgerEnd: TypeAlias = Literal["committed", "queues", "all"]
"""Last entry that is read of the log of a broker with DLedger: see `StoreOptions.dledger_end`."""

Keyless: TypeAlias = Literal["drop", "keep", "refuse"]
"""Treatment of messages without a key by a compaction: see `CompactionOptions`."""


class CompactionOptions(TypedDict, total=False):
    """Options of all verbs that compact, also on Spark.

    Args:
        tombstone_retention: time for which a tombstone is kept after the compaction that removed the last older value
            of its key, so that slow readers see it; 24 hours by default. With 0 tombstones are not kept, as in
            RocketMQ.
        dry_run: whether to run the compaction, return its report, and discard the result; False by default.
        force: whether to compact queues that have not changed since the last compaction, and to accept topics that are
            not compaction topics. A broker keeps such files, and serves these topics from the commit log as before.
            With `restore_compaction`: also restores queues whose compaction files reach the commit log, for example
            because `verify` finds them damaged. False by default.
        keyless: treatment of messages without a key. `"drop"`, the default, drops them as RocketMQ does; `"keep"` keeps
            them; `"refuse"` leaves their queue unchanged and names it in `skipped`.
        confirm_keys: whether to compare complete keys; True by default. False compares their MD5, as RocketMQ does.
        memory_size: memory in bytes for the keys of one queue, 104,857,600 by default; less memory needs more rounds.
            RocketMQ: `maxOffsetMapSize` / `compactionThreadNum`.
        log_file_size: requested bytes of a compaction log file, for a store that has none yet; None, the default, is
            104,857,600. RocketMQ: `compactionMappedFileSize`.
        queue_file_size: requested bytes of a compaction queue file, likewise; None, the default, is 10,485,760.
            RocketMQ: `compactionCqMappedFileSize`.
        progress: callback with the bytes read and the bytes in total; each message is read twice. An exception in it
            ends the call and leaves every queue unchanged. The next `restore_compaction` continues.
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
    """`CompactionOptions`, and options of the verbs that run in this process.

    Args:
        threads: maximum number of queues at a time; None, the default, is the number of processors.
        max_bytes_per_second: maximum bytes that all queues together read and write in a second; None, the default, is
            no limit.
    """

    threads: int | None
    max_bytes_per_second: int | None


class StoreOptionsDict(TypedDict, total=False):
    """The fields of `StoreOptions`, as keyword arguments of `mqstore.open`.

    If your own function passes them on, declare `**options: Unpack[StoreOptionsDict]`.

    Args:
        recovery: what an open for writing does about damage other than a torn tail: `"strict"` raises `CorruptionError`
            and changes nothing, `"salvage"` continues after the damage with a `StoreWarning`, `"read-only"` opens the
            store for reading. Default: `"strict"`. Bounds: `"strict"`, `"salvage"`, `"read-only"`.
        segment_size: size of a segment of the commit log. Unit: bytes. Default: 1 GiB. Bounds: 4 KiB to 2 GiB - 1.
        queue_file_entries: number of units in a file of a consume queue. Unit: entries. Default: 300,000. Bounds: 1 to
            50,000,000.
        index_slots: number of hash slots in an index file. Unit: slots. Default: 5,000,000. Bounds: 1 to 400,000,000.
        index_entries: number of entries in an index file. Unit: entries. Default: 20,000,000. Bounds: 2 to 80,000,000.
        durability: when `append` returns: after a sync (`"sync"`), after a copy to the mapped file, which a kill of the
            process does not lose (`"async"`, `"manual"`), or after a copy to memory (`"pooled"`). Default: `"async"`.
            Bounds: `"sync"`, `"async"`, `"manual"`, `"pooled"`.
        visibility: what readers see: every append that returned, only what is durable, or only what enough copies have;
            with `durability="sync"`, at most what is durable. Default: `"appended"`. Bounds: `"appended"`, `"durable"`,
            `"confirmed"`.
        flush_interval: time between two syncs by the background. Unit: seconds. Default: 0.5 s. Bounds: 1 ms to 1 h.
        record_crc: whether new records carry RocketMQ's checksum of the whole record. Default: `True`.
        max_message_size: largest body of a message, before a compression. Unit: bytes. Default: 4 MiB. Bounds: 10 to 1
            GiB.
        compression: how appends compress bodies; `None` and `"none"` store them uncompressed. Default: `None`. Bounds:
            `"zstd"`, `"lz4"`, `"zlib"`, `"none"`.
        compress_over: bytes that a body needs to be compressed. Unit: bytes. Default: 4 KiB. Bounds: 0 to 1 GiB.
        default_queues: number of queues of a topic that an append creates. Unit: queues. Default: 1. Bounds: 1 to
            65,536.
        auto_create_topics: whether an append to an unknown topic creates the topic. Default: `True`.
        retention: age of its last message at which a segment is deleted; `None` sets no limit. Unit: seconds. Default:
            `None`. Bounds: 1 ms or more.
        retention_policy: which segments of this age are deleted: those whose messages all groups have finished, or all
            of them. Default: `"finished"`. Bounds: `"finished"`, `"time"`.
        group_timeout: time after which a group that finishes nothing no longer keeps segments; `None` is never. Unit:
            seconds. Default: `None`. Bounds: 1 ms or more.
        retention_bytes: total size of all segments above which the oldest ones are deleted, even with unfinished
            messages; `None` sets no limit. Unit: bytes. Default: `None`. Bounds: 1 or more.
        max_bytes: largest total size of all segments: an append that needs another segment raises `QuotaFull`; at least
            one segment; `None` sets no limit. Unit: bytes. Default: `None`. Bounds: 1 or more.
        delete_when: hours of the local day in which segments are deleted by age. Default: `"*"`. Bounds: hours 0 to 23
            with `;` between them, or `"*"`.
        disk_clean_ratio: used share of a disk above which segments are deleted by age at any hour, if a retention is
            set; `None` turns the rule off. Unit: share. Default: `None`. Bounds: 0 to 1.
        disk_force_ratio: used share of a disk above which the oldest segments are deleted whatever their age, if a
            retention is set; `None` turns the rule off. Unit: share. Default: `None`. Bounds: 0 to 1.
        disk_refuse_ratio: used share of a disk above which appends raise `DiskFullError`; `None` refuses them only
            while less than the reserve is free. Unit: share. Default: `None`. Bounds: 0 to 1.
        secure_wipe: whether a segment is overwritten with zeros before it is removed. Default: `False`.
        expire_uncompacted: whether a segment is deleted although it holds the only copy of keyed messages of a
            compaction topic. Default: `False`.
        compaction_interval: time between two checks by the background, which then compacts topics that have changed
            enough; `None` leaves compaction to your calls. Unit: seconds. Default: `None`. Bounds: 1 ms to 365 d.
        compaction_feed: whether the background copies new messages of compaction topics to the compaction files.
            Default: `True`.
        delay_levels: the delay of each delay level, level 1 first, which the store remembers; `None` takes the
            remembered ones, or RocketMQ's 18 levels. Default: `None`. Bounds: 1 to 256 levels of 0 to 36,500 d, in
            whole seconds.
        commit_log_paths: folders that get new segments in turn, which the store remembers; empty takes the remembered
            ones, or `commitlog`. Default: `()`.
        derived_path: folder on another disk for `consumequeue` and `index`, which become symbolic links; `None` changes
            nothing. Default: `None`.
        replication: how other machines get live copies; `None` serves none. Default: `None`.
        replicated: whether each append waits for its copies; needs `replication`. Default: `False`.
        dledger_end: last entry that is read of the log of a broker with DLedger: the last one that the checkpoint of
            DLedger or a queue calls committed, or the last one that is written. Default: `"queues"`. Bounds:
            `"committed"`, `"queues"`, `"all"`.
        on_event: function that the store calls with each `StoreEvent`, in a thread of the store. Default: `None`.
        before_delete: function that the store calls before it deletes a segment: `None` or `True` allows it, `False`
            keeps the segment until the next pass, a duration keeps it that long. Default: `None`.
        store_host: address that records get as store host and born host. Default: `"127.0.0.1:10911"`. Bounds:
            `ip:port` or `[v6]:port`, port 0 to 65,535.
        advanced: the `BrokerOptions`; the argument replaces all of them. Default: `BrokerOptions()`.
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
    compression: Compression | None
    compress_over: int
    default_queues: int
    auto_create_topics: bool
    retention: Duration | None
    retention_policy: RetentionPolicy
    group_timeout: Duration | None
    retention_bytes: int | None
    max_bytes: int | None
    delete_when: str
    disk_clean_ratio: float | None
    disk_force_ratio: float | None
    disk_refuse_ratio: float | None
    secure_wipe: bool
    expire_uncompacted: bool
    compaction_interval: Duration | None
    compaction_feed: bool
    delay_levels: str | Iterable[Duration] | None
    commit_log_paths: StorePath | Iterable[StorePath]
    derived_path: StorePath | None
    replication: Master | None
    replicated: bool
    dledger_end: DledgerEnd
    on_event: Callable[[StoreEvent], object] | None
    before_delete: Callable[[ExpiredFile], bool | Duration | None] | None
    store_host: str
    advanced: BrokerOptions
