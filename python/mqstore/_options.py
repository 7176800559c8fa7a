"""How a store behaves: every option with its default, its bounds and RocketMQ's name of it.

`StoreOptions` has what programs set, `BrokerOptions` a broker's tuning values. The core checks the bounds; here
each field is checked and converted by its annotation. `from_broker_conf` reads the file that a RocketMQ broker is
started with. A setting that the file omits has RocketMQ's default there, not ours.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from mqstore._times import seconds_from
from mqstore.errors import InvalidOptionError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mqstore._broker_conf import Found
    from mqstore._reports import ExpiredFile, StoreEvent
    from mqstore.types import Durability, Duration, Recovery, StorePath, Visibility


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerOptions:
    """Tuning values, most of them a RocketMQ broker's; the defaults suit almost every store.

    `StoreOptions.from_broker_conf` fills them. `mqstore.open` takes them as `advanced=`.
    """

    flush_least_pages: int = 4
    """Number of dirty pages of 4 KiB from which the background syncs: 0 to 1,048,576.
    RocketMQ: `flushCommitLogLeastPages`."""

    flush_thorough_interval: Duration = 10.0
    """Time after which everything dirty is synced: 1 ms to 24 h.
    RocketMQ: `flushCommitLogThoroughInterval` (ms)."""

    commit_interval: Duration = 0.2
    """With `durability="pooled"`: time after which pooled records are written to the file, 1 ms to 1 h;
    sooner when an eighth of the pool is full. RocketMQ: `commitIntervalCommitLog` (ms)."""

    pool_size: int = 16 << 20
    """Bytes of the memory pool for records with `durability="sync"` and `"pooled"`: 64 KiB to 16 GiB.
    RocketMQ: `transientStorePoolSize` times the size of a segment."""

    busy_after: Duration = 1.0
    """Time that one append may hold the put lock before others fail with `StoreBusyError`: 1 ms to 1 h.
    RocketMQ: `osPageCacheBusyTimeOutMills`."""

    queue_wait_limit: Duration = 0.2
    """Time that an append waits for the put lock before it fails with `StoreBusyError`: 1 ms to 1 h.
    RocketMQ: `waitTimeMillsInSendQueue`."""

    prewarm: bool = True
    """Whether the background prepares the next segment and the pages after the tail, so that appends wait
    for neither. RocketMQ: `warmMapedFileEnable`."""

    lock_memory: bool = False
    """Whether the pages after the tail are locked in memory (needs `prewarm`). The open fails if the
    system's limit on locked memory forbids it. RocketMQ locks what it warms."""

    dispatch_threads: int | None = None
    """Threads that build queues and index: 0 to 8; 0 builds them in the appending thread. `None`, the
    default: as many as there are processors, at most 8. All but one of them sleep while less than a
    mebibyte of the log waits."""

    index_tags: bool = False
    """Whether tags get entries in the key index, as RocketMQ 5.5.0 writes them. Tags always get entries in a
    directory whose last writer added them."""

    delete_interval: Duration = 0.1
    """Pause between two deletions: 0 to 1 h. RocketMQ: `deleteCommitLogFilesInterval` (ms)."""

    held_limit: Duration = 120.0
    """Time after which a segment is deleted although readers of this process use it: 0 to 24 h. The readers
    keep its bytes. RocketMQ: `destroyMapedFileIntervalForcibly` (ms)."""

    compaction_dirty_ratio: float = 0.5
    """Share of a queue's messages that must be newer than its last compaction before the background compacts
    its topic: 0 to 1; with 0 one message is enough. RocketMQ counts closed files instead."""

    compaction_memory_size: int = 100 << 20
    """Bytes of memory for the keys of a queue while the background compacts it.
    RocketMQ: `maxOffsetMapSize` / `compactionThreadNum`."""

    compaction_log_file_size: int = 104_857_600
    """Bytes of a compaction log file in a store that has none yet, rounded to a multiple of a queue file's length.
    A broker needs the same setting. RocketMQ: `compactionMappedFileSize`."""

    compaction_queue_file_size: int = 10_485_760
    """Bytes of a compaction queue file in a store that has none yet, rounded down to entries of 46 bytes; 92 or more.
    RocketMQ: `compactionCqMappedFileSize`."""

    read_only_commit_log_paths: StorePath | Iterable[StorePath] = ()
    """Folders with older segments, which get no new segment; needs `commit_log_paths`.
    RocketMQ: `readOnlyCommitLogStorePaths`."""

    def __post_init__(self) -> None:
        _convert_fields(self)


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
    of the process loses what was not written yet, at most `BrokerOptions.commit_interval` of it.
    RocketMQ: `flushDiskType`, `transientStorePoolEnable`."""

    visibility: Visibility = "appended"
    """What readers may see, in this process and in others. `"appended"`: each append that returned.
    `"durable"`: only what a loss of power cannot take back; always so with `durability="sync"`."""

    flush_interval: Duration = 0.5
    """Time between background syncs: 1 ms to 1 h. RocketMQ: `flushIntervalCommitLog` (ms)."""

    record_crc: bool = True
    """Whether new records carry RocketMQ's checksum of the whole record.
    RocketMQ: `enabledAppendPropCRC` (there off by default)."""

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

    compaction_feed: bool = True
    """Whether what is appended to compaction topics is copied to their compaction files too, in the background and at
    the close: a broker looks for it there, and segments of the commit log may go once it is there. Without it only a
    compaction puts it there. RocketMQ: `enableCompaction`."""

    delay_levels: str | Iterable[Duration] | None = None
    """What the delay levels mean from this open on: a text such as `"1s 5s 1m 2h"`, or whole seconds and `timedelta`s,
    level 1 first; 1 to 256 levels of 0 to 36,500 days. A store remembers them: None, the default, stands for what it
    remembers, else for RocketMQ's 18 levels. An open for reading and `rebuild` take what is given only where nothing
    is remembered. RocketMQ: `messageDelayLevel`."""

    commit_log_paths: StorePath | Iterable[StorePath] = ()
    """Folders that new segments go to in turn, one path or several; a relative one counts from the
    store's directory. A store remembers them: empty, the default, stands for what it remembers, else for
    its `commitlog`. RocketMQ: `storePathCommitLog` (separated by commas)."""

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

    advanced: BrokerOptions = field(default_factory=BrokerOptions)
    """Tuning values. `mqstore.open(..., advanced=...)` replaces all of them."""

    def __post_init__(self) -> None:
        _convert_fields(self)

    @classmethod
    def from_broker_conf(cls, path: StorePath) -> StoreOptions:
        """Reads a RocketMQ broker's properties file (`broker.conf`).

        Args:
            path: the file, in Java's properties syntax.

        Returns:
            Options under which this store writes as that broker would; `advanced` has the broker's tuning
            values. An option that the file does not name has RocketMQ's default (8 queues, no record
            checksum). Settings without a meaning for a store are passed over. So are four that mqstore
            accepts and does not use: `useReentrantLockWhenPutMessage` and `useABSLock` (one put lock covers
            both cases: it spins briefly, then sleeps), `flushCommitLogTimed` and `flushConsumerOffsetInterval`.

        Raises:
            OSError: the file cannot be read.
            InvalidOptionError: a value is not what RocketMQ would take.
        """
        from mqstore import _broker_conf

        return cls._from_settings(_broker_conf.read(_broker_conf.parse_file(path)))

    @classmethod
    def _from_settings(cls, settings: Iterable[Found]) -> StoreOptions:
        values = {one.option: one.value for one in settings}
        tuning = {name: values.pop(name) for name in _names(BrokerOptions) if name in values}
        return cls(**values, advanced=BrokerOptions(**tuning))


def normalise(options: StoreOptions | None, overrides: Mapping[str, Any]) -> StoreOptions:
    """Lays `overrides` over `options`; an unknown name is an error with a suggestion."""
    if options is None:
        options = StoreOptions()
    elif not isinstance(options, StoreOptions):
        msg = f"options must be a StoreOptions, not {type(options).__name__}"
        raise TypeError(msg)
    if not overrides:
        return options
    known = _names(StoreOptions)
    for name in overrides:
        if name not in known:
            raise InvalidOptionError(name, _unknown(name, known))
    return replace(options, **overrides)


def native_form(options: StoreOptions | BrokerOptions) -> dict[str, Any]:
    """The options as the core takes them, in one dict: sizes in bytes, durations in milliseconds."""
    form: dict[str, Any] = {}
    for one in fields(options):
        value = getattr(options, one.name)
        if isinstance(value, BrokerOptions):
            form |= native_form(value)
        elif value is not None and str(one.type).startswith("Duration"):
            form[one.name] = _milliseconds(one.name, value)
        else:
            form[one.name] = value
    return form


def _names(kind: type[StoreOptions | BrokerOptions]) -> list[str]:
    return [one.name for one in fields(kind)]


def _unknown(name: str, known: list[str]) -> str:
    import difflib

    if name in _names(BrokerOptions):
        return f"a field of BrokerOptions; pass advanced=mqstore.BrokerOptions({name}=...)"
    close = difflib.get_close_matches(name, sorted(known), n=1)
    return f"no such option; did you mean {close[0]}?" if close else "no such option"


def _convert_fields(options: StoreOptions | BrokerOptions) -> None:
    for one in fields(options):
        convert = _CONVERSIONS[str(one.type)]
        object.__setattr__(options, one.name, convert(one.name, getattr(options, one.name)))


def _mismatch(name: str, wanted: str, value: object) -> InvalidOptionError:
    return InvalidOptionError(name, f"must be {wanted}, not {type(value).__name__}")


def _integer(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _mismatch(name, "an int", value)
    return value


def _switch(name: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise _mismatch(name, "a bool", value)
    return value


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise _mismatch(name, "a str", value)
    return value


def _ratio(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _mismatch(name, "a number from 0 to 1", value)
    return float(value)


def _call(name: str, value: object) -> object:
    if not callable(value):
        raise _mismatch(name, "callable or None", value)
    return value


def _broker_options(name: str, value: object) -> BrokerOptions:
    if not isinstance(value, BrokerOptions):
        raise _mismatch(name, "a BrokerOptions", value)
    return value


def _duration(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float | timedelta):
        raise InvalidOptionError(name, f"must be seconds or a timedelta, not {type(value).__name__}")
    seconds = seconds_from(value)
    if not math.isfinite(seconds) or seconds < 0:
        raise InvalidOptionError(name, f"{value} is not a span of time")
    return seconds


def _delay_levels(name: str, value: object) -> str:
    if isinstance(value, str):
        return " ".join(value.split())
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


def _or_none(convert: Callable[[str, object], object]) -> Callable[[str, object], object]:
    return lambda name, value: None if value is None else convert(name, value)


_CONVERSIONS: dict[str, Callable[[str, object], object]] = {
    "int": _integer,
    "int | None": _or_none(_integer),
    "float": _ratio,
    "bool": _switch,
    "str": _text,
    "Recovery": _text,
    "Durability": _text,
    "Visibility": _text,
    "Duration": _duration,
    "Duration | None": _or_none(_duration),
    "str | Iterable[Duration] | None": _or_none(_delay_levels),
    "StorePath | Iterable[StorePath]": _paths,
    "Callable[[StoreEvent], object] | None": _or_none(_call),
    "Callable[[ExpiredFile], bool | Duration | None] | None": _or_none(_call),
    "BrokerOptions": _broker_options,
}
"""How a field of each annotation is checked and converted."""

BrokerOptions.__module__ = "mqstore"
StoreOptions.__module__ = "mqstore"
