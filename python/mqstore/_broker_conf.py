"""The settings of a RocketMQ broker's properties file that concern a store, in one table.

If RocketMQ's default differs from the default of mqstore, the table has RocketMQ's.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqstore.errors import InvalidOptionError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mqstore.types import StorePath

Conf = Mapping[str, str]

DELAY_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
"""RocketMQ's default delay levels."""


@dataclass(frozen=True, slots=True)
class Setting:
    """Conversion of RocketMQ's settings to one option of mqstore."""

    option: str
    """Name in mqstore."""
    names: tuple[str, ...]
    """Names in RocketMQ. The first one that the file has counts as the source of the value; the others influence it
    or are older names of the same setting."""
    value: Callable[[Conf], Any]
    """Returns the value; None if the file does not set it."""
    default: Any = None
    """RocketMQ's default, if it differs from that of mqstore."""


@dataclass(frozen=True, slots=True)
class Found:
    """Value of one option in a file."""

    option: str
    value: Any
    name: str | None
    """Setting of the value; None for RocketMQ's default."""


def read(conf: Conf) -> list[Found]:
    """Returns the options that `conf` or RocketMQ's defaults set."""
    found = []
    for setting in SETTINGS:
        value = setting.value(conf)
        if value is not None:
            found.append(Found(setting.option, value, _given(conf, setting.names)))
        elif setting.default is not None:
            found.append(Found(setting.option, setting.default, None))
    return found


def names_of(option: str) -> tuple[str, ...]:
    """Returns RocketMQ's names for one of our options; empty if there is none."""
    return next((setting.names for setting in SETTINGS if setting.option == option), ())


def misspelled(conf: Conf) -> list[str]:
    """Returns a note about each setting that is ignored but has nearly the name of a setting that is read."""
    meant = {name.lower(): name for setting in SETTINGS for name in setting.names}
    notes = []
    for name in sorted(set(conf) - set(meant.values()) - _NO_MISTAKES):
        near = difflib.get_close_matches(name.lower(), meant, 1, _NEAR)
        notes += [f"setting {name} is ignored; did you mean {meant[close]}?" for close in near]
    return notes


def as_written(error: InvalidOptionError, found: Iterable[Found]) -> InvalidOptionError:
    """Returns the error about an option as an error about the setting that set it."""
    name = next((one.name for one in found if one.option == error.option), None)
    return error if name is None else InvalidOptionError(name, f"{error.reason} (option {error.option})")


def parse_file(path: StorePath) -> dict[str, str]:
    """Reads the settings of a properties file."""
    return parse(Path(path).read_text(encoding="latin-1"))


def _number(option: str, name: str, *old_names: str, default: int | None = None) -> Setting:
    names = (name, *old_names)

    def value(conf: Conf) -> int | None:
        given = _given(conf, names)
        return None if given is None else _whole(given, conf[given])

    return Setting(option, names, value, default)


def _milliseconds(option: str, name: str) -> Setting:
    return Setting(option, (name,), lambda conf: _whole(name, conf[name]) / 1000 if name in conf else None)


def _switch(option: str, name: str, *, default: bool | None = None) -> Setting:
    return Setting(option, (name,), lambda conf: _is_true(conf[name]) if name in conf else None, default)


def _percent(conf: Conf, name: str, low: int, high: int) -> float | None:
    return min(max(_whole(name, conf[name]), low), high) / 100 if name in conf else None


def _ratio(option: str, name: str, low: int, high: int, default: float) -> Setting:
    return Setting(option, (name,), lambda conf: _percent(conf, name, low, high), default)


def _queue_file_entries(conf: Conf) -> int | None:
    name = _given(conf, _QUEUE_FILE_SIZE)
    # RocketMQ rounds the file up to whole units of 20 bytes.
    return None if name is None else -(-_whole(name, conf[name]) // 20)


def _compaction_memory(conf: Conf) -> int | None:
    if "maxOffsetMapSize" not in conf:
        return None
    # The threads of RocketMQ share this memory.
    return _whole("maxOffsetMapSize", conf["maxOffsetMapSize"]) // max(
        _whole("compactionThreadNum", conf.get("compactionThreadNum", "6")), 1
    )


def _durability(conf: Conf) -> str | None:
    kind = conf["flushDiskType"].strip() if "flushDiskType" in conf else None
    kinds = {"SYNC_FLUSH": "sync", "ASYNC_FLUSH": "async"}
    if kind is not None and kind not in kinds:
        raise InvalidOptionError("flushDiskType", f"{kind!r} is neither SYNC_FLUSH nor ASYNC_FLUSH")
    # RocketMQ ignores the pool if the broker syncs each message.
    if _is_true(conf.get("transientStorePoolEnable", "")) and kind != "SYNC_FLUSH":
        return "pooled"
    return None if kind is None else kinds[kind]


def _retention(conf: Conf) -> float | None:
    name = "fileReservedTime"
    if name not in conf:
        return None
    hours = _whole(name, conf[name])
    # With 0 and less, a broker deletes every full segment. Many who write -1 want to keep all of them.
    if hours < 1:
        reason = (
            f"{hours} h would delete every full segment at once; write at least 1. To keep all segments, also pass "
            "retention=None to mqstore.open"
        )
        raise InvalidOptionError(name, reason)
    return hours * 3600.0


def _disk_force_ratio(conf: Conf) -> float | None:
    if conf.get("cleanFileForciblyEnable", "").strip().lower() == "false":
        return 1.0
    return _percent(conf, "diskSpaceCleanForciblyRatio", 30, 85)


def _delay_levels(conf: Conf) -> str | None:
    return conf.get("messageDelayLevel", "").strip() or None


def _commit_log_paths(conf: Conf) -> tuple[str, ...] | None:
    paths = _split(conf, "storePathCommitLog")
    root = conf.get("storePathRootDir", "").strip().rstrip("/")
    # The default folder is not set, because it would be wrong for a copy of the store.
    return None if [path.rstrip("/") for path in paths] == [f"{root}/commitlog"] else paths or None


def _read_only_paths(conf: Conf) -> tuple[str, ...] | None:
    several = len(_commit_log_paths(conf) or ()) > 1
    return _split(conf, "readOnlyCommitLogStorePaths") or None if several else None


def _store_host(conf: Conf) -> str | None:
    if "brokerIP1" not in conf and "listenPort" not in conf:
        return None
    address = conf.get("brokerIP1", "127.0.0.1").strip()
    port = _whole("listenPort", conf.get("listenPort", "10911"))
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _given(conf: Conf, names: tuple[str, ...]) -> str | None:
    return next((name for name in names if name in conf), None)


def _split(conf: Conf, name: str) -> tuple[str, ...]:
    return tuple(path.strip() for path in conf.get(name, "").split(",") if path.strip())


_QUEUE_FILE_SIZE = ("mappedFileSizeConsumeQueue", "mapedFileSizeConsumeQueue")

# RocketMQ up to 4.5.1 wrote "maped".
SETTINGS = (
    _number("segment_size", "mappedFileSizeCommitLog", "mapedFileSizeCommitLog"),
    Setting("queue_file_entries", _QUEUE_FILE_SIZE, _queue_file_entries),
    _number("index_slots", "maxHashSlotNum"),
    _number("index_entries", "maxIndexNum"),
    Setting("durability", ("flushDiskType", "transientStorePoolEnable"), _durability),
    _milliseconds("flush_interval", "flushIntervalCommitLog"),
    _number("flush_least_pages", "flushCommitLogLeastPages"),
    _milliseconds("flush_thorough_interval", "flushCommitLogThoroughInterval"),
    _milliseconds("commit_interval", "commitIntervalCommitLog"),
    _milliseconds("busy_after", "osPageCacheBusyTimeOutMills"),
    _milliseconds("queue_wait_limit", "waitTimeMillsInSendQueue"),
    _switch("record_crc", "enabledAppendPropCRC", default=False),
    _number("max_message_size", "maxMessageSize"),
    _number("default_queues", "defaultTopicQueueNums", default=8),
    _switch("auto_create_topics", "autoCreateTopicEnable"),
    Setting("retention", ("fileReservedTime",), _retention, 72 * 3600.0),
    # A broker deletes by time alone.
    Setting("retention_policy", (), lambda _conf: None, "time"),
    Setting(
        "delete_when", ("deleteWhen",), lambda conf: conf["deleteWhen"].strip() if "deleteWhen" in conf else None, "04"
    ),
    _milliseconds("delete_interval", "deleteCommitLogFilesInterval"),
    _milliseconds("held_limit", "destroyMapedFileIntervalForcibly"),
    _ratio("disk_clean_ratio", "diskMaxUsedSpaceRatio", 10, 95, 0.75),
    Setting("disk_force_ratio", ("diskSpaceCleanForciblyRatio", "cleanFileForciblyEnable"), _disk_force_ratio, 0.85),
    _ratio("disk_refuse_ratio", "diskSpaceWarningLevelRatio", 35, 90, 0.90),
    _milliseconds("compaction_interval", "compactionScheduleInternal"),
    Setting("compaction_memory_size", ("maxOffsetMapSize", "compactionThreadNum"), _compaction_memory),
    _switch("compaction_feed", "enableCompaction"),
    _number("compaction_log_file_size", "compactionMappedFileSize"),
    _number("compaction_queue_file_size", "compactionCqMappedFileSize"),
    Setting("delay_levels", ("messageDelayLevel",), _delay_levels, DELAY_LEVELS),
    Setting("commit_log_paths", ("storePathCommitLog", "storePathRootDir"), _commit_log_paths),
    Setting("read_only_commit_log_paths", ("readOnlyCommitLogStorePaths",), _read_only_paths),
    Setting("store_host", ("brokerIP1", "listenPort"), _store_host),
)
"""All settings of a broker that concern a store."""

UNUSED = (
    "flushCommitLogTimed",
    "flushConsumerOffsetInterval",
    "useABSLock",
    "useReentrantLockWhenPutMessage",
)
"""Settings of a broker that are accepted but not used, because mqstore has one way where RocketMQ has several."""

_NEAR = 0.9
"""Similarity of two names, as `difflib` counts it, from which one is probably a slip for the other."""

_NO_MISTAKES = frozenset({*UNUSED, "brokerIP2", "haListenPort", "mappedFileSizeConsumeQueueExt"})
"""Settings of a broker that are no mistakes, however close to a setting of a store."""


def _is_true(text: str) -> bool:
    return text.strip().lower() == "true"


def _whole(name: str, text: str) -> int:
    # Java accepts no "1_000".
    if re.fullmatch("[+-]?[0-9]{1,20}", text.strip()) is None:
        raise InvalidOptionError(name, f"{text.strip()!r} is not a whole number")
    return int(text)


def parse(text: str) -> dict[str, str]:
    """Parses Java's properties syntax: `=`, `:` or blanks between name and value, `#` and `!` comments."""
    found: dict[str, str] = {}
    pending = ""
    for raw in text.splitlines():
        line = raw.lstrip(" \t\f")
        if not pending and line[:1] in ("", "#", "!"):
            continue
        line = pending + line
        if (len(line) - len(line.rstrip("\\"))) % 2 == 1:
            pending = line[:-1]
            continue
        pending = ""
        name, value = _split_property(line)
        found[name] = value
    if pending:
        name, value = _split_property(pending)
        found[name] = value
    return found


def _split_property(line: str) -> tuple[str, str]:
    end = 0
    while end < len(line) and line[end] not in "=: \t\f":
        end += 2 if line[end] == "\\" else 1
    rest = line[end:].lstrip(" \t\f")
    if rest[:1] in ("=", ":"):
        rest = rest[1:].lstrip(" \t\f")
    return _unescape(line[:end]), _unescape(rest)


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text
    out: list[str] = []
    position = 0
    while position < len(text):
        char = text[position]
        position += 1
        if char != "\\" or position == len(text):
            out.append(char)
            continue
        char = text[position]
        position += 1
        if char == "u":
            digits = text[position : position + 4]
            if len(digits) != 4 or not set(digits) <= set("0123456789abcdefABCDEF"):
                raise InvalidOptionError("\\u" + digits, "not a character escape")
            out.append(chr(int(digits, 16)))
            position += 4
        else:
            out.append({"t": "\t", "n": "\n", "r": "\r", "f": "\f"}.get(char, char))
    return "".join(out)
