"""The options of a store, each with default, bounds and RocketMQ's name.

`StoreOptions` has the options that programs set, `BrokerOptions` the tuning values of a broker. Here each field is
converted by its annotation; the core checks the bounds. `StoreOptions.from_broker_conf` reads the configuration file
of a RocketMQ broker. A setting that the file omits gets RocketMQ's default, not the default of mqstore.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields, replace
from functools import wraps
from typing import TYPE_CHECKING, Any

from mqstore._admin.nearest import nearest
from mqstore._help import describes_options
from mqstore._times import duration_of
from mqstore.errors import InvalidOptionError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mqstore._broker_conf import Found
    from mqstore._reports import ExpiredFile, StoreEvent
    from mqstore.types import (
        Compression,
        DledgerEnd,
        Durability,
        Duration,
        Recovery,
        RetentionPolicy,
        StorePath,
        Visibility,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerOptions:
    """Tuning values, most of them from RocketMQ brokers. The defaults suit almost every store.

    `StoreOptions.from_broker_conf` sets them. Pass them to `mqstore.open` as `advanced=`.
    """

    flush_least_pages: int = 4
    """Number of dirty pages of 4 KiB that start a background sync: 0 to 1,048,576.
    RocketMQ: `flushCommitLogLeastPages`."""

    flush_thorough_interval: Duration = 10.0
    """Interval at which all dirty pages are synced: 1 ms to 24 h.
    RocketMQ: `flushCommitLogThoroughInterval` (ms)."""

    commit_interval: Duration = 0.2
    """Only for `durability="pooled"`: interval at which pooled records are written to the file, 1 ms to 1 h. They are
    written earlier if an eighth of the pool is full. RocketMQ: `commitIntervalCommitLog` (ms)."""

    pool_size: int = 16 << 20
    """Bytes of the pool for new records with `durability="sync"` and `"pooled"`: 64 KiB to 16 GiB.
    RocketMQ: `transientStorePoolSize` times the segment size."""

    busy_after: Duration = 1.0
    """Time that one append can hold the put lock before other appends raise `StoreBusyError`: 1 ms to 1 h.
    RocketMQ: `osPageCacheBusyTimeOutMills`."""

    queue_wait_limit: Duration = 0.2
    """Time that an append waits for the put lock before it raises `StoreBusyError`: 1 ms to 1 h.
    RocketMQ: `waitTimeMillsInSendQueue`."""

    prewarm: bool = True
    """Whether a background thread prepares the next segment and the pages after the tail, so that appends do not
    wait for them. RocketMQ: `warmMapedFileEnable`."""

    lock_memory: bool = False
    """Whether to lock the pages after the tail in memory; needs `prewarm`. The open fails if this exceeds the system's
    limit of locked memory. RocketMQ locks the pages that it warms."""

    dispatch_threads: int | None = None
    """Threads that build queues and index: 0 to 8. With 0 the appending thread builds them. None, the default, is the
    number of processors, at most 8. If less than 1 MiB of the log waits for dispatch, all but one of them sleep."""

    max_open_files: int | None = None
    """Maximum number of queue and index files that stay open between two uses: 2 to 1,048,576. None, the default, is a
    share of the process's limit of open files (`ulimit -n`): 128 of 256, 512 of 1,024, at most 4,096. All stores of a
    process together never keep more than half of the limit open. RocketMQ keeps every file open."""

    index_tags: bool = False
    """Whether to add index entries for tags, as RocketMQ 5.5.0 does. If the last writer of the directory added them,
    mqstore always adds them."""

    delete_interval: Duration = 0.1
    """Pause between two deletions of files: 0 to 1 h. RocketMQ: `deleteCommitLogFilesInterval` (ms)."""

    held_limit: Duration = 120.0
    """Time after which a segment is deleted although readers of this process still use it: 0 to 24 h. These readers can
    still read its bytes. RocketMQ: `destroyMapedFileIntervalForcibly` (ms)."""

    compaction_dirty_ratio: float = 0.5
    """Share of a queue's messages, 0 to 1, that must be newer than its last compaction before the background compacts
    its topic. With 0, one new message is enough. RocketMQ counts closed files instead."""

    compaction_memory_size: int = 100 << 20
    """Memory in bytes for the keys of one queue during a background compaction.
    RocketMQ: `maxOffsetMapSize` / `compactionThreadNum`."""

    compaction_log_file_size: int = 104_857_600
    """Bytes of a compaction log file, for a store that has none yet; rounded to a multiple of the queue file length.
    A broker needs the same setting. RocketMQ: `compactionMappedFileSize`."""

    compaction_queue_file_size: int = 10_485_760
    """Bytes of a compaction queue file, for a store that has none yet; at least 92, rounded down to units of 46 bytes.
    RocketMQ: `compactionCqMappedFileSize`."""

    read_only_commit_log_paths: StorePath | Iterable[StorePath] = ()
    """Folders with older segments, to which no new segment is added; needs `commit_log_paths`.
    RocketMQ: `readOnlyCommitLogStorePaths`."""

    def __post_init__(self) -> None:
        _convert_fields(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Master:
    """How a store serves its replicas: slaves of RocketMQ, and copies of `mqstore.follow`.

    Pass it to `mqstore.open` as `replication=`. The store listens until it is closed, and serves both protocols of
    RocketMQ and that of a standby at one port. Nothing there is encrypted, and no password is asked for: use a private
    network.
    """

    listen: str
    """Host and port, such as `"10.0.0.5:10912"`; port 0 lets the system choose, see
    `Store.replication_address`. RocketMQ: `brokerIP2`, `haListenPort`."""

    in_sync_replicas: int = 2
    """Copies that an append with `replicated` waits for, this store included, while so many are in sync: 1 to 64.
    RocketMQ: `inSyncReplicas`."""

    min_in_sync: int | None = None
    """Copies that it waits for at least, this store included: 1 to `in_sync_replicas`. None, the default, is as many.
    RocketMQ: `minInSyncReplicas`, with `enableAutoInSyncReplicas`."""

    epoch: int | None = None
    """Number of the epoch that begins with this open, larger than all numbers that the log has: 1 to 2,147,483,647. A
    lock service or an operator gives each new master a number of its own; an open with a number that is too small
    raises `RefusedError`. None, the default, takes the next number, which is enough if the master is always the same
    store. RocketMQ: the controller gives it."""

    ack_timeout: Duration = 3.0
    """Longest wait of an append for its copies: 1 ms to 1 h. RocketMQ: `slaveTimeout` (ms)."""

    lag_limit: Duration = 15.0
    """Time after which a replica that has not caught up is not in sync any more: 0.1 s to 1 h. It is again when it has
    caught up. RocketMQ: `haMaxTimeSlaveNotCatchup` (ms)."""

    durable_acks: bool = False
    """Whether a standby (`mqstore.follow` with the protocol `"mqstore"`) acknowledges only what is on its disk, and not
    what is in its page cache. Slaves of RocketMQ cannot be asked."""

    metadata_interval: Duration = 1.0
    """Time between two copies of the metadata for standbys: 0.1 s to 1 h. A copy that takes long makes it longer."""

    replica_timeout: Duration = 86_400.0
    """How long the retention by age keeps the segments that a replica does not have, since it last got further: a day
    by default; 0 keeps none. `retention_bytes` and a full disk still delete them, and a warning says so. RocketMQ has
    no such setting."""

    def __post_init__(self) -> None:
        _convert_fields(self)
        check_address("listen", self.listen, lowest_port=0)
        if self.min_in_sync is None:
            object.__setattr__(self, "min_in_sync", self.in_sync_replicas)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreOptions:
    """Options for `mqstore.open`.

    The sizes apply only to new files: the file lengths that a directory already has always win. A store without a file
    of a kind keeps the size of its last open, unless you give another one than the default. Durations are seconds,
    `timedelta`, or text such as `"90s"`; they are stored as seconds. An option out of bounds raises
    `InvalidOptionError` when the store is opened, and an unknown name raises it at once, with the nearest name.
    """

    recovery: Recovery = "strict"
    """What an open for writing does if it finds damage other than a torn tail.
    `"strict"` raises `CorruptionError` and changes nothing. `"salvage"` continues after the damage: it leaves the
    damaged bytes in place, skips them, and reports them as a `StoreWarning`. `"read-only"` opens the store for reading
    instead; `Store.mode` is then `"r"`. RocketMQ has no such choice: it truncates the log at the damage."""

    segment_size: int = 1 << 30
    """Bytes of a commit log segment: 4 KiB to 2 GiB - 1. RocketMQ: `mappedFileSizeCommitLog`."""

    queue_file_entries: int = 300_000
    """Units of a consume queue file: 1 to 50,000,000. RocketMQ: `mappedFileSizeConsumeQueue` / 20."""

    index_slots: int = 5_000_000
    """Hash slots of an index file: 1 to 400,000,000. RocketMQ: `maxHashSlotNum`."""

    index_entries: int = 20_000_000
    """Entries of an index file: 2 to 80,000,000. RocketMQ: `maxIndexNum`."""

    durability: Durability = "async"
    """When an append returns.
    `"sync"`: after a sync that covers it; waiting threads share one sync (group commit). `"async"`: when the record is
    copied to the mapped file, where it survives a kill of the process; a sync follows every `flush_interval`.
    `"manual"`: as `"async"`, but only `flush()` and `close()` sync. `"pooled"`: when the record is copied to the pool;
    the background writes the pool to the file and syncs it. A kill of the process loses the records that are only in
    the pool, at most those of the last `BrokerOptions.commit_interval`.
    RocketMQ: `flushDiskType`, `transientStorePoolEnable`."""

    visibility: Visibility = "appended"
    """What readers can see, in this process and in others. `"appended"`: every append that returned. `"durable"`: only
    records that survive a power loss; always so with `durability="sync"`. `"confirmed"`: only records that as many
    copies have as an append with `replicated` waits for; needs `replication`. After an open, everything in the log
    counts."""

    flush_interval: Duration = 0.5
    """Time between background syncs: 1 ms to 1 h. RocketMQ: `flushIntervalCommitLog` (ms)."""

    record_crc: bool = True
    """Whether new records get RocketMQ's checksum of the whole record.
    RocketMQ: `enabledAppendPropCRC` (off by default)."""

    max_message_size: int = 4 << 20
    """Largest body in bytes, before a compression: 10 to 1 GiB. RocketMQ: `maxMessageSize`."""

    compression: Compression | None = None
    """How appends compress the bodies that your program gives: `"zstd"`, `"lz4"` or `"zlib"`. Readers get the bodies as
    you gave them. Clients of RocketMQ before 5.0 can decompress `"zlib"` only. None, the default, and `"none"` store
    bodies uncompressed. Each call that appends a body can choose another compression.
    RocketMQ: `compressType` of its clients (`ZLIB` by default); a broker has no such setting."""

    compress_over: int = 4096
    """Bytes that a body needs to be compressed: 0 to 1 GiB. A body that does not get smaller stays uncompressed.
    RocketMQ: `compressMsgBodyOverHowmuch` of its clients."""

    default_queues: int = 1
    """Number of queues of a topic that an append creates: 1 to 65,536.
    RocketMQ: `defaultTopicQueueNums` (8 by default)."""

    auto_create_topics: bool = True
    """Whether an append to an unknown topic creates it. RocketMQ: `autoCreateTopicEnable`."""

    retention: Duration | None = None
    """Age at which a segment is deleted, since the store time of its last message: at least 1 ms. `retention_policy`
    says which segments of this age stay. None, the default, keeps all segments.
    RocketMQ: `fileReservedTime` (hours, 72 by default)."""

    retention_policy: RetentionPolicy = "finished"
    """Which segments `retention` deletes. `"finished"`: those whose messages are finished by all groups of their
    topics; a topic without groups needs the age only. `"time"`: groups do not count. With both, a segment stays while a
    delayed message or an undecided transaction in it waits. RocketMQ has no such setting; its rule is the time."""

    group_timeout: Duration | None = None
    """Time after which a group no longer keeps segments that are due by age, if it finishes nothing meanwhile: at least
    1 ms. None, the default, is never. RocketMQ has no such setting."""

    retention_bytes: int | None = None
    """Total bytes of all segments, the active one included, above which the oldest segments are deleted, even with
    unfinished messages: at least 1. None, the default, is no limit. RocketMQ has no such setting."""

    max_bytes: int | None = None
    """Maximum total bytes of all segments, the active and a prepared one included: at least one segment. An append that
    needs another segment raises `Full`. None, the default, is no limit. RocketMQ has no such setting."""

    delete_when: str = "*"
    """Hours of the local day in which segments are deleted by age: `"04"`, `"04;16"`, or `"*"`, the default, for all
    hours. RocketMQ: `deleteWhen` (`04` by default)."""

    disk_clean_ratio: float | None = None
    """Used share of a disk above which segments are deleted by age at any hour: 0 to 1. Needs a retention option. None,
    the default, is never. RocketMQ: `diskMaxUsedSpaceRatio` (percent, 75 by default)."""

    disk_force_ratio: float | None = None
    """Used share of a disk above which the oldest segments are deleted at any age, even with unfinished messages: 0 to
    1. Needs a retention option. None, the default, is never.
    RocketMQ: `diskSpaceCleanForciblyRatio` (percent, 85 by default)."""

    disk_refuse_ratio: float | None = None
    """Used share of a disk above which appends raise `DiskFullError`, until space is free again: 0 to 1. None, the
    default, refuses appends only while less than 1 % of the disk, at most 16 MiB, is free.
    RocketMQ: `diskSpaceWarningLevelRatio` (percent, 90 by default)."""

    secure_wipe: bool = False
    """Whether to overwrite a segment with zeros before it is deleted."""

    expire_uncompacted: bool = False
    """Whether to delete a segment that contains keyed messages of a compaction topic which are not in its compaction
    files yet. These messages are then lost. By default such a segment stays, and `Store.expire` reports it."""

    compaction_interval: Duration | None = None
    """Interval at which the background checks compaction topics: 1 ms to a year. It compacts a topic that has changed
    enough, as `Store.compact` does with its defaults. None, the default, compacts only on a call of `compact`.
    RocketMQ: `compactionScheduleInternal`."""

    compaction_feed: bool = True
    """Whether new messages of compaction topics are also copied to the compaction files, in the background and at the
    close. A broker reads these files, and segments of the commit log can be deleted after the copy. If False, only a
    compaction copies them. RocketMQ: `enableCompaction`."""

    delay_levels: str | Iterable[Duration] | None = None
    """Delays of the delay levels, level 1 first: a text such as `"1s 5s 1m 2h"`, or durations of whole seconds;
    1 to 256 levels of 0 to 36,500 days. The store remembers them. None, the default, uses the remembered levels, or
    RocketMQ's 18 levels if there are none. An open for reading and `rebuild` use this option only if no levels are
    remembered. RocketMQ: `messageDelayLevel`."""

    commit_log_paths: StorePath | Iterable[StorePath] = ()
    """Folders for new segments, used in turn: one path or several; a relative path starts at the directory of the
    store. The store remembers them. Empty, the default, uses the remembered folders, or `commitlog` if there are none.
    RocketMQ: `storePathCommitLog` (separated by commas)."""

    derived_path: StorePath | None = None
    """Folder on another disk for the queues and the key index, in modes `"rw"` and `"create"`: `consumequeue` and
    `index` of the directory become symbolic links into it, which brokers follow. A relative path starts at the
    directory of the store. The links remain, so later opens need not name it. The open refuses folders that have files
    already and says how to move them. None, the default, changes nothing."""

    replication: Master | None = None
    """How other machines get live copies of the store: see `Master`. None, the default, serves no replicas.
    RocketMQ: `brokerRole`."""

    replicated: bool = False
    """Whether each append returns only when enough copies have the message; needs `replication`. An append that waits
    too long raises `StoreTimeoutError`; its message is stored. Deliveries of the store itself, imports and copies from
    other stores do not wait. RocketMQ: `SYNC_MASTER`."""

    dledger_end: DledgerEnd = "queues"
    """Only for a directory of a broker that ran with DLedger: the last entry that is read. `"queues"`, the default, is
    the last entry that a consume queue names: it was committed. `"committed"` is the last entry that the checkpoint of
    DLedger calls committed, which can lack those of the last three seconds. `"all"` is the last written entry: the log
    may then contain messages that were never acknowledged. RocketMQ has no such option: the group knows the entry."""

    on_event: Callable[[StoreEvent], object] | None = None
    """Hook for each `StoreEvent`, such as deleted files, or refused and resumed appends. A thread of the store calls
    it; an exception from it goes to `sys.unraisablehook`."""

    before_delete: Callable[[ExpiredFile], bool | Duration | None] | None = None
    """Hook before a segment is deleted, for example to archive it. If it returns None or True, the segment is deleted.
    False keeps the segment until the next pass, a duration keeps it for that time; later segments wait too. An
    exception goes to `sys.unraisablehook` and keeps the segment."""

    store_host: str = "127.0.0.1:10911"
    """Address for the store host and born host of new records: `ip:port` or `[v6]:port`.
    RocketMQ: `brokerIP1` and `listenPort`."""

    advanced: BrokerOptions = field(default_factory=BrokerOptions)
    """Tuning values. `mqstore.open(..., advanced=...)` replaces all of them."""

    def __post_init__(self) -> None:
        _convert_fields(self)

    @classmethod
    def from_broker_conf(cls, path: StorePath) -> StoreOptions:
        """Reads the properties file of a RocketMQ broker (`broker.conf`).

        Args:
            path: the file, in Java's properties syntax.

        Returns:
            Options with which mqstore writes like that broker; `advanced` has its tuning values. A setting that the
            file omits gets RocketMQ's default (8 queues, no record checksum). Settings that do not concern a store are
            ignored. mqstore also ignores these four: `useReentrantLockWhenPutMessage` and `useABSLock` (one put lock
            replaces both: it spins briefly, then sleeps), `flushCommitLogTimed` and `flushConsumerOffsetInterval`. A
            setting whose name is nearly that of one that is read is a `StoreWarning`. The names of RocketMQ before
            4.5.2 (`mapedFileSizeCommitLog`) are read too; the newer name wins.

        Raises:
            OSError: the file cannot be read.
            InvalidOptionError: an open would refuse a value; or `fileReservedTime` is less than 1 h, with which a
                broker deletes every full segment.
        """
        from mqstore import _broker_conf
        from mqstore._warn import warn

        conf = _broker_conf.parse_file(path)
        for note in _broker_conf.misspelled(conf):
            warn(f"{os.fspath(path)}: {note}")
        return cls._from_settings(_broker_conf.read(conf))

    @classmethod
    def _from_settings(cls, settings: list[Found]) -> StoreOptions:
        """Returns the options; raises an error that names the setting if an open would refuse a value."""
        from mqstore import _broker_conf, _native

        values = {one.option: one.value for one in settings}
        tuning = {name: values.pop(name) for name in _names(BrokerOptions) if name in values}
        try:
            options = cls(**values, advanced=BrokerOptions(**tuning))
            _native.check_options(native_form(options))
        except InvalidOptionError as error:
            raise _broker_conf.as_written(error, settings) from None
        return options


def normalise(options: StoreOptions | None, overrides: Mapping[str, Any]) -> StoreOptions:
    """Applies `overrides` to `options`; an unknown name raises an error with a suggestion."""
    if options is None:
        options = StoreOptions()
    elif not isinstance(options, StoreOptions):
        raise TypeError(f"options must be a StoreOptions, not {type(options).__name__}")
    if not overrides:
        return options
    _check_names(overrides, _names(StoreOptions), also=("mode", "options", "progress", "lock_timeout"))
    return replace(options, **overrides)


def native_form(options: StoreOptions | BrokerOptions | Master) -> dict[str, Any]:
    """Returns the options for the core in one dict: sizes in bytes, durations in milliseconds."""
    form: dict[str, Any] = {}
    for one in fields(options):
        value = getattr(options, one.name)
        if isinstance(value, BrokerOptions):
            form |= native_form(value)
        elif isinstance(value, Master):
            form[one.name] = native_form(value)
        elif value is not None and str(one.type).startswith("Duration"):
            form[one.name] = _milliseconds(one.name, value)
        else:
            form[one.name] = value
    return form


def shown(name: str, value: object) -> str:
    """Returns a value of `native_form` for a text: a duration in seconds, as programs give it."""
    types = {one.name: str(one.type) for kind in (StoreOptions, BrokerOptions) for one in fields(kind)}
    if isinstance(value, int) and types.get(name, "").startswith("Duration"):
        return f"{value / 1000:g} s"
    return repr(value)


def check_address(name: str, address: str, *, lowest_port: int = 1) -> None:
    """Checks that a text has the form of a host and a port."""
    host, colon, port = address.rpartition(":")
    if not (host and colon and port.isdecimal() and lowest_port <= int(port) < 65536):
        raise InvalidOptionError(name, f'must be a host and a port like "10.0.0.5:10912", not {address!r}')


def _names(kind: type[StoreOptions | BrokerOptions]) -> list[str]:
    return [one.name for one in fields(kind)]


def _check_names(given: Iterable[str], known: Iterable[str], also: tuple[str, ...] = ()) -> None:
    """Refuses a name that is not in `known`; names in `also` are suggestions too."""
    for name in given:
        if name in known:
            continue
        if name in _names(BrokerOptions):
            raise InvalidOptionError(name, f"a field of BrokerOptions; pass advanced=mqstore.BrokerOptions({name}=...)")
        raise InvalidOptionError(name, unknown(name, (*known, *also)))


def unknown(name: str, known: Iterable[str]) -> str:
    """Returns the reason why the option `name` is refused, with the nearest of the known names."""
    near = nearest(name, known)
    return f"no such option; did you mean {near}?" if near else "no such option"


def _suggest_names(kind: type[Any]) -> None:
    """Makes the constructor of `kind` refuse an unknown name with a suggestion; Python's own error has none."""
    init = kind.__init__
    known = _names(kind)

    @wraps(init)
    def checked(self: object, *args: Any, **given: Any) -> None:
        _check_names(given, known)
        init(self, *args, **given)

    kind.__init__ = checked


def _convert_fields(options: StoreOptions | BrokerOptions | Master) -> None:
    for one in fields(options):
        kind, value = str(one.type), getattr(options, one.name)
        if value is None and kind.endswith(" | None"):
            continue
        convert = _CONVERSIONS[kind.removesuffix(" | None")]
        object.__setattr__(options, one.name, convert(one.name, value))


def _mismatch(name: str, wanted: str, value: object) -> InvalidOptionError:
    return InvalidOptionError(name, f"must be {wanted}, not {type(value).__name__}")


def _instance(kind: type, wanted: str) -> Callable[[str, object], object]:
    """Returns the check of a field whose values have a type; a bool is no int."""

    def check(name: str, value: object) -> object:
        if not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool):
            raise _mismatch(name, wanted, value)
        return value

    return check


def _ratio(name: str, value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise _mismatch(name, "a number from 0 to 1", value)
    return float(value)


def _call(name: str, value: object) -> object:
    if not callable(value):
        raise _mismatch(name, "callable or None", value)
    return value


def _duration(name: str, value: object) -> float:
    try:
        seconds = duration_of(name, value)  # type: ignore[arg-type]
    except TypeError:
        raise _mismatch(name, 'seconds, a timedelta, or text such as "90s"', value) from None
    if not math.isfinite(seconds):
        raise InvalidOptionError(name, f"{value} is not a duration: it must be finite")
    return seconds


def _delay_levels(name: str, value: object) -> str:
    if isinstance(value, str):
        return " ".join(value.split())
    if isinstance(value, bytes) or not isinstance(value, Iterable):
        raise InvalidOptionError(name, f"must be a str or an iterable of durations, not {type(value).__name__}")
    delays = [_duration(name, delay) for delay in value]
    for delay in delays:
        if not delay.is_integer():
            raise InvalidOptionError(name, f"{delay} s is not a whole number of seconds")
    return " ".join(f"{int(delay)}s" for delay in delays)


def _path(name: str, value: object) -> str:
    found = os.fspath(value) if isinstance(value, str | os.PathLike) else value
    if not isinstance(found, str) or not found:
        raise InvalidOptionError(name, f"{value!r} is not a path")
    return found


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
    # Rounded up, so that a small positive duration never becomes 0.
    milliseconds = math.ceil(round(seconds * 1000, 6))
    if milliseconds >= 1 << 63:
        raise InvalidOptionError(name, f"{seconds} s is too long")
    return milliseconds


_text = _instance(str, "a str")
_CONVERSIONS: dict[str, Callable[[str, object], object]] = {
    "int": _instance(int, "an int"),
    "float": _ratio,
    "bool": _instance(bool, "a bool"),
    "str": _text,
    "Compression": _text,
    "Recovery": _text,
    "Durability": _text,
    "Visibility": _text,
    "DledgerEnd": _text,
    "RetentionPolicy": _text,
    "Duration": _duration,
    "str | Iterable[Duration]": _delay_levels,
    "StorePath": _path,
    "StorePath | Iterable[StorePath]": _paths,
    "Callable[[StoreEvent], object]": _call,
    "Callable[[ExpiredFile], bool | Duration | None]": _call,
    "BrokerOptions": _instance(BrokerOptions, "a BrokerOptions"),
    "Master": _instance(Master, "a mqstore.Master"),
}
"""Check and conversion of a field, by its annotation without `| None`."""

_suggest_names(BrokerOptions)
_suggest_names(Master)
_suggest_names(StoreOptions)
describes_options(StoreOptions)
BrokerOptions.__module__ = "mqstore"
Master.__module__ = "mqstore"
StoreOptions.__module__ = "mqstore"
