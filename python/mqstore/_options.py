"""How a store behaves: every option with its default, its bounds and RocketMQ's name of it.

The bounds themselves are checked in one place, the core; here durations and sizes get their types.
`from_broker_conf` reads the file a RocketMQ broker is started with, whose silence on an option means
RocketMQ's default and not ours.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from mqstore._times import seconds_from
from mqstore.errors import InvalidOptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mqstore._reports import ExpiredFile, StoreEvent
    from mqstore.types import Durability, Duration, Recovery, StorePath, Visibility

_INTEGERS = (
    "segment_size",
    "queue_file_entries",
    "index_slots",
    "index_entries",
    "flush_least_pages",
    "max_message_size",
    "default_queues",
    "pool_size",
    "compaction_memory_size",
    "compaction_log_file_size",
    "compaction_queue_file_size",
)
_DURATIONS = (
    "flush_interval",
    "flush_thorough_interval",
    "meta_interval",
    "commit_interval",
    "busy_after",
    "queue_wait_limit",
    "delete_interval",
    "held_limit",
)
_OPTIONAL_INTEGERS = ("dispatch_threads", "retention_bytes", "max_bytes")
_OPTIONAL_DURATIONS = ("retention", "compaction_interval")
_RATIOS = ("disk_clean_ratio", "disk_force_ratio", "disk_refuse_ratio", "compaction_dirty_ratio")
_PATHS = ("commit_log_paths", "read_only_commit_log_paths")
_CALLS = ("on_event", "before_delete")
_SWITCHES = (
    "record_crc",
    "index_tags",
    "auto_create_topics",
    "flush_timed",
    "prewarm",
    "lock_memory",
    "secure_wipe",
    "expire_uncompacted",
    "compaction_feed",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """Options of one `mqstore.open`.

    A directory's own geometry always wins over the sizes given here; they count for new files only.
    Durations are seconds as `float`, or `timedelta`, and are kept as seconds. Out of bounds is
    `InvalidOptionError`, when the store is opened.
    """

    recovery: Recovery = "strict"
    """What an open for writing does about damage that is no torn tail. `"strict"`: refuses the store
    (`CorruptionError`) and changes nothing. `"salvage"`: goes on behind it; what is damaged is passed
    over, said as a `StoreWarning`, and stays where it is. `"read-only"`: opens the store for reading
    instead; `Store.mode` is `"r"` then. RocketMQ has no such choice: it cuts the log there."""

    segment_size: int = 1 << 30
    """Bytes of a commit-log segment: 4 KiB to 2 GiB - 1. RocketMQ: `mappedFileSizeCommitLog`."""

    queue_file_entries: int = 300_000
    """Entries of a consume-queue file: 1 to 50,000,000. RocketMQ: `mappedFileSizeConsumeQueue` / 20."""

    index_slots: int = 5_000_000
    """Hash slots of a key index file: 1 to 400,000,000. RocketMQ: `maxHashSlotNum`."""

    index_entries: int = 20_000_000
    """Entries of a key index file: 2 to 80,000,000. RocketMQ: `maxIndexNum`."""

    durability: Durability = "async"
    """When an append returns. `"sync"`: after a sync that covers it, one sync for all who wait.
    `"async"`: once copied into the mapping, which a kill of the process survives; synced every
    `flush_interval`. `"manual"`: as async, but synced by `flush()` and `close()` only. `"pooled"`: once
    copied into a pool of memory, which is written to the file in the background and then synced; a kill
    of the process loses what was not written yet, at most `commit_interval` of it.
    RocketMQ: `flushDiskType`, `transientStorePoolEnable`."""

    visibility: Visibility = "appended"
    """What readers may see, in this process and in others. `"appended"`: each append that returned.
    `"durable"`: only what a loss of power cannot take back; always so with `durability="sync"`."""

    flush_interval: Duration = 0.5
    """Time between background syncs: 1 ms to 1 h. RocketMQ: `flushIntervalCommitLog` (ms)."""

    flush_least_pages: int = 4
    """Dirty pages of 4 KiB that make a background sync worth while: 0 to 1,048,576.
    RocketMQ: `flushCommitLogLeastPages`."""

    flush_thorough_interval: Duration = 10.0
    """Time after which everything dirty is synced: 1 ms to 24 h.
    RocketMQ: `flushCommitLogThoroughInterval` (ms)."""

    flush_timed: bool = True
    """Whether the background syncs at fixed times only. False: also as soon as `flush_least_pages` are
    dirty. RocketMQ: `flushCommitLogTimed`."""

    meta_interval: Duration = 0.1
    """Time between background syncs of what is known of topics, groups and their offsets: 1 ms to 1 h. RocketMQ
    writes offsets every `flushConsumerOffsetInterval` (5 s)."""

    commit_interval: Duration = 0.2
    """With `durability="pooled"`: time after which pooled records are written to the file, 1 ms to 1 h;
    sooner when an eighth of the pool is full. RocketMQ: `commitIntervalCommitLog` (ms)."""

    pool_size: int = 16 << 20
    """Bytes of memory that records pass through with `durability="sync"` and `"pooled"`: 64 KiB to
    16 GiB. RocketMQ: `transientStorePoolSize` times the size of a segment."""

    busy_after: Duration = 1.0
    """Time that one append may hold the lock before others fail with `StoreBusyError`: 1 ms to 1 h.
    RocketMQ: `osPageCacheBusyTimeOutMills`."""

    queue_wait_limit: Duration = 0.2
    """Time that an append waits for its turn before it fails with `StoreBusyError`: 1 ms to 1 h.
    RocketMQ: `waitTimeMillsInSendQueue`."""

    prewarm: bool = True
    """Whether the next segment and the pages ahead of the writer are made ready in the background, so
    that appends wait for neither. RocketMQ: `warmMapedFileEnable`."""

    lock_memory: bool = False
    """Whether the pages ahead of the writer are locked in memory (needs `prewarm`). Where the system's
    limit on locked memory forbids it, the open fails and says so. RocketMQ locks what it warms."""

    dispatch_threads: int | None = None
    """Threads that build queues and index: 0 to 8; 0 builds them in the appending thread. `None`, the
    default: as many as there are processors, at most 8. All but one of them sleep while less than a
    mebibyte of the log waits."""

    record_crc: bool = True
    """Whether new records carry RocketMQ's checksum of the whole record.
    RocketMQ: `enabledAppendPropCRC` (there off by default)."""

    index_tags: bool = False
    """Whether tags get entries in the key index, as RocketMQ 5.5.0 writes them. They do anyway in a directory whose
    last writer added them."""

    max_message_size: int = 4 << 20
    """Largest body in bytes: 10 to 1 GiB. RocketMQ: `maxMessageSize`."""

    default_queues: int = 1
    """Queues of a topic that an append makes: 1 to 65,536.
    RocketMQ: `defaultTopicQueueNums` (there 8 by default)."""

    auto_create_topics: bool = True
    """Whether an append to an unknown topic makes it. RocketMQ: `autoCreateTopicEnable`."""

    retention: Duration | None = None
    """Age at which a commit-log segment is deleted, counted from its last message's store time: 1 ms on.
    None, the default, keeps everything. RocketMQ: `fileReservedTime` (hours, 72 there by default)."""

    retention_bytes: int | None = None
    """Bytes of commit-log segments, the active one included, above which the oldest are deleted: 1 on.
    None, the default, for no limit. RocketMQ has none."""

    max_bytes: int | None = None
    """Bytes of commit-log segments, the active one and a prepared one included, that there may be: appends that need
    another segment fail with `Full`. No less than a segment; None, the default, for no limit. RocketMQ has none."""

    delete_when: str = "04"
    """Hours of the local day in which segments are deleted by age: `"04"`, `"04;16"`, `"*"` for all.
    RocketMQ: `deleteWhen`."""

    delete_interval: Duration = 0.1
    """Pause between two deletions: 0 to 1 h. RocketMQ: `deleteCommitLogFilesInterval` (ms)."""

    held_limit: Duration = 120.0
    """Time after which a segment is deleted although readers of this process use it, who keep its bytes:
    0 to 24 h. RocketMQ: `destroyMapedFileIntervalForcibly` (ms)."""

    disk_clean_ratio: float = 0.75
    """Used part of a disk above which segments are deleted by age at any hour: 0 to 1. Only where a
    retention is set. RocketMQ: `diskMaxUsedSpaceRatio` (percent)."""

    disk_force_ratio: float = 0.85
    """Used part of a disk above which the oldest segments are deleted whatever their age: 0 to 1. Only
    where a retention is set. RocketMQ: `diskSpaceCleanForciblyRatio` (percent)."""

    disk_refuse_ratio: float = 0.90
    """Used part of a disk above which appends fail with `DiskFullError` until there is room again: 0 to
    1, where 1 never refuses. RocketMQ: `diskSpaceWarningLevelRatio` (percent)."""

    secure_wipe: bool = False
    """Whether a segment is overwritten with zeros before its room is given back."""

    expire_uncompacted: bool = False
    """Whether a segment is deleted although it holds keyed messages of a compaction topic that are in
    no compaction file yet; they are lost then. By default such a segment stays, and `Store.expire`
    says so."""

    compaction_interval: Duration | None = None
    """Seconds, or a `timedelta`, between two looks of the background at compaction topics; a topic that has
    changed enough is compacted then, as by `Store.compact` with its defaults. 0.001 to 31,536,000 (a year); None
    leaves it to whoever calls `compact`. RocketMQ: `compactionScheduleInternal`."""

    compaction_dirty_ratio: float = 0.5
    """The part of a queue's messages that has to be newer than its last compaction before the background
    compacts its topic: 0 to 1; with 0 one message is enough. RocketMQ goes by closed files instead."""

    compaction_memory_size: int = 100 << 20
    """Bytes that the keys of a queue may take in memory when the background compacts it.
    RocketMQ: `maxOffsetMapSize` / `compactionThreadNum`."""

    compaction_feed: bool = True
    """Whether what is appended to compaction topics is copied to their compaction files too, in the background and at
    the close: a broker looks for it there, and segments of the commit log may go once it is there. Without it only a
    compaction puts it there. RocketMQ: `enableCompaction`."""

    compaction_log_file_size: int = 104_857_600
    """Wished bytes of a compaction log file, in a store that has none yet; the length is a multiple of a queue file's.
    A broker has to have the same setting. RocketMQ: `compactionMappedFileSize`."""

    compaction_queue_file_size: int = 10_485_760
    """Wished bytes of a compaction queue file, in a store that has none yet; cut to entries of 46 bytes, 92 or more.
    RocketMQ: `compactionCqMappedFileSize`."""

    delay_levels: str | Iterable[Duration] | None = None
    """What the delay levels mean from this open on: a text such as `"1s 5s 1m 2h"`, or whole seconds and `timedelta`s,
    level 1 first; 1 to 256 levels of 0 to 36,500 days. A store remembers them: None, the default, stands for what it
    remembers, else for RocketMQ's 18 levels. An open for reading and `rebuild` take what is given only where nothing
    is remembered. RocketMQ: `messageDelayLevel`."""

    commit_log_paths: StorePath | Iterable[StorePath] = ()
    """Folders that new segments go to in turn, one path or several; a relative one counts from the
    store's directory. A store remembers them: empty, the default, stands for what it remembers, else for
    its `commitlog`. RocketMQ: `storePathCommitLog` (separated by commas)."""

    read_only_commit_log_paths: StorePath | Iterable[StorePath] = ()
    """Folders with older segments, to which none is added; needs `commit_log_paths`.
    RocketMQ: `readOnlyCommitLogStorePaths`."""

    on_event: Callable[[StoreEvent], object] | None = None
    """Called with each `StoreEvent`: files deleted, appends refused and taken again. From a thread of the
    store's; what it raises goes to `sys.unraisablehook`."""

    before_delete: Callable[[ExpiredFile], bool | Duration | None] | None = None
    """Called before a segment is deleted, to archive it, say. None or True lets it go, False keeps it
    until the next pass, a span of time puts it off that long; the segments behind it wait too. What it
    raises goes to `sys.unraisablehook` and keeps the segment."""

    store_host: str = "127.0.0.1:10911"
    """The address written into records as store and born host: `ip:port` or `[v6]:port`.
    RocketMQ: `brokerIP1` and `listenPort`."""

    def __post_init__(self) -> None:
        for name in _INTEGERS:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int):
                raise InvalidOptionError(name, f"must be an int, not {type(value).__name__}")
        for name in _SWITCHES:
            if not isinstance(getattr(self, name), bool):
                raise InvalidOptionError(name, f"must be a bool, not {type(getattr(self, name)).__name__}")
        for name in ("durability", "visibility", "recovery", "store_host"):
            if not isinstance(getattr(self, name), str):
                raise InvalidOptionError(name, f"must be a str, not {type(getattr(self, name)).__name__}")
        for name in _DURATIONS:
            object.__setattr__(self, name, _duration(name, getattr(self, name)))
        self._settle_retention()

    def _settle_retention(self) -> None:
        for name in _OPTIONAL_INTEGERS:
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
                raise InvalidOptionError(name, f"must be an int or None, not {type(value).__name__}")
        for name in _OPTIONAL_DURATIONS:
            if getattr(self, name) is not None:
                object.__setattr__(self, name, _duration(name, getattr(self, name)))
        for name in _RATIOS:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise InvalidOptionError(name, f"must be a number from 0 to 1, not {type(value).__name__}")
            object.__setattr__(self, name, float(value))
        for name in _PATHS:
            object.__setattr__(self, name, _paths(name, getattr(self, name)))
        object.__setattr__(self, "delay_levels", _delay_levels(self.delay_levels))
        for name in _CALLS:
            if getattr(self, name) is not None and not callable(getattr(self, name)):
                raise InvalidOptionError(name, f"must be callable or None, not {type(getattr(self, name)).__name__}")
        if not isinstance(self.delete_when, str):
            raise InvalidOptionError("delete_when", f"must be a str, not {type(self.delete_when).__name__}")

    @classmethod
    def from_broker_conf(cls, path: StorePath) -> StoreOptions:
        """Reads a RocketMQ broker's properties file (`broker.conf`).

        Args:
            path: the file, in Java's properties syntax.

        Returns:
            Options under which this store writes as that broker would. An option that the file does not
            name has RocketMQ's default (8 queues, no record checksum); settings without a meaning for a
            store are passed over.

        Raises:
            OSError: the file cannot be read.
            InvalidOptionError: a value is not what RocketMQ would take.
        """
        from mqstore import _broker_conf

        return cls(**{one.option: one.value for one in _broker_conf.read(_broker_conf.parse_file(path))})


def normalise(options: StoreOptions | None, overrides: Mapping[str, Any]) -> StoreOptions:
    """Lays `overrides` over `options`; an unknown name is an error with a suggestion."""
    if options is None:
        options = StoreOptions()
    elif not isinstance(options, StoreOptions):
        msg = f"options must be a StoreOptions, not {type(options).__name__}"
        raise TypeError(msg)
    if not overrides:
        return options
    known = {field.name for field in fields(StoreOptions)}
    for name in overrides:
        if name not in known:
            raise InvalidOptionError(name, _unknown(name, known))
    return replace(options, **overrides)


def native_form(options: StoreOptions) -> dict[str, Any]:
    """The options as the core takes them: sizes in bytes, durations in milliseconds."""
    form: dict[str, Any] = {}
    for field in fields(options):
        value = getattr(options, field.name)
        if value is not None and field.name in (*_DURATIONS, *_OPTIONAL_DURATIONS):
            form[field.name] = _milliseconds(field.name, value)
        else:
            form[field.name] = value
    return form


def _unknown(name: str, known: set[str]) -> str:
    import difflib

    close = difflib.get_close_matches(name, sorted(known), n=1)
    return f"no such option; did you mean {close[0]}?" if close else "no such option"


def _duration(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | timedelta):
        raise InvalidOptionError(name, f"must be seconds or a timedelta, not {type(value).__name__}")
    seconds = seconds_from(value)
    if not math.isfinite(seconds) or seconds < 0:
        raise InvalidOptionError(name, f"{value} is not a span of time")
    return seconds


def _delay_levels(value: object) -> str | None:
    if value is None:
        return None
    if isinstance(value, str):
        return " ".join(value.split())
    name = "delay_levels"
    if isinstance(value, bytes) or not isinstance(value, Iterable):
        raise InvalidOptionError(name, f"must be a str or an iterable of spans of time, not {type(value).__name__}")
    delays = [_duration(name, delay) for delay in value]
    for delay in delays:
        if not delay.is_integer():
            raise InvalidOptionError(name, f"{delay} s is not a whole number of seconds")
    return " ".join(f"{int(delay)}s" for delay in delays)


def _paths(name: str, value: object) -> tuple[str, ...]:
    given = (value,) if isinstance(value, str | os.PathLike) else value
    if isinstance(given, bytes) or not isinstance(given, Iterable):
        raise InvalidOptionError(name, f"must be a path or an iterable of paths, not {type(value).__name__}")
    found = tuple(os.fspath(path) if isinstance(path, str | os.PathLike) else path for path in given)
    for path in found:
        if not isinstance(path, str) or not path:
            raise InvalidOptionError(name, f"{path!r} is not a path")
    return found


def _milliseconds(name: str, seconds: float) -> int:
    # Rounded up, so that a tiny positive span never becomes "at once".
    milliseconds = math.ceil(round(seconds * 1000, 6))
    if milliseconds >= 1 << 63:
        raise InvalidOptionError(name, f"{seconds} s is too long")
    return milliseconds


StoreOptions.__module__ = "mqstore"
