"""The options of the data source, with Kafka's names where they mean the same.

Spark passes every option as text and accepts any name. Here an unknown name is an error.
"""

from __future__ import annotations

import json
import os
import re
from typing import TYPE_CHECKING, Any

from mqstore._admin.nearest import nearest
from mqstore._native import scan_schema
from mqstore._paths import home_of, is_url
from mqstore._read.filter import sql
from mqstore._read.on_error import check_on_error
from mqstore._remote.glob import is_pattern
from mqstore._times import milliseconds_of
from mqstore.errors import InvalidFilterError, InvalidOptionError

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from mqstore._native import SqlFilter

COLUMNS = {
    "topic": "string",
    "queue_id": "int",
    "queue_offset": "bigint",
    "commit_log_offset": "bigint",
    "size": "int",
    "message_id": "string",
    "unique_id": "string",
    "keys": "array<string>",
    "tags": "string",
    "properties": "map<string,string>",
    "flag": "int",
    "sys_flag": "int",
    "born_timestamp": "timestamp",
    "born_host": "string",
    "store_timestamp": "timestamp",
    "store_host": "string",
    "reconsume_times": "int",
    "prepared_transaction_offset": "bigint",
    "body_crc": "int",
    "body_size": "int",
    "body": "binary",
}
"""Columns of a scan and their Spark types."""

STORE = "store"
"""The column with the directory or URL of each row, if a read has several stores."""

_READ = [
    "path", "paths", "storageOptions", "topic", "topics", "subscribe", "subscribePattern", "assign", "startingOffsets",
    "endingOffsets", "startingTimestamp", "endingTimestamp", "failOnDataLoss", "archive", "includeBody",
    "includeProperties", "columns", "bodyFormat", "tags", "sql", "keys", "mode", "onDamage", "onError",
    "columnNameOfCorruptRecord", "minPartitions", "maxRecordsPerPartition", "splitBytes", "batchBytes", "pushdown",
]  # fmt: skip
_STREAM = ["maxOffsetsPerTrigger", "maxBytesPerTrigger"]
_WRITE = ["path", "topic", "queues", "jobId", "maxMessageSize", "compression", "compressOver", "mode", "reportPath"]

# Spark's own options, which it also passes to the sink.
_SPARKS = ("checkpointlocation", "queryname")

_MODES = ("FAILFAST", "DROPMALFORMED", "PERMISSIVE")
_WRITE_MODES = _MODES[:2]
_COMPRESSIONS = ("zstd", "lz4", "zlib", "none")
_ON_DAMAGE = {"raise": "FAILFAST", "skip": "DROPMALFORMED"}
_EARLIEST, _LATEST = -2, -1


def refuse(option: str, reason: str) -> InvalidOptionError:
    """Returns the error for an option."""
    return InvalidOptionError(option, reason)


def known(given: Mapping[str, str], names: list[str]) -> dict[str, str]:
    """Returns the options under their proper names.

    Raises:
        InvalidOptionError: an unknown name.
    """
    proper = {name.lower(): name for name in names}
    found: dict[str, str] = {}
    for name, value in given.items():
        if name.lower() not in proper:
            near = nearest(name, names)
            hint = f"did you mean {near}?" if near else f"the options are {', '.join(names)}"
            raise refuse(name, f"no such option; {hint}")
        found[proper[name.lower()]] = value
    return found


def read_options(given: Mapping[str, str]) -> dict[str, Any]:
    """Returns the options of a read as plain values.

    Raises:
        InvalidOptionError: an option is unknown, or its value is invalid.
    """
    options = known(given, _READ + _STREAM)
    mode = _read_mode(options)
    start, end = _offsets(options, "starting", None), _offsets(options, "ending", _LATEST)
    paths = _paths(options)
    several = "paths" in options or is_pattern(paths[0])
    on_error = options.get("onError", "raise").lower()
    check_on_error(on_error, several, "onError")
    form = options.get("bodyFormat", "binary")
    found = {
        "paths": paths,
        "several": several,
        "on_error": on_error,
        "storage": _storage(options, paths),
        "archive": _archive(options, several),
        "topics": _topics(options),
        "start": start,
        "end": end,
        "fail_on_data_loss": _truth(options, "failOnDataLoss", True),
        "columns": _columns(options, several),
        "body": form,
        "filter": _filter(options),
        "keys": _names(options["keys"]) if "keys" in options else None,
        "mode": mode,
        "corrupt": _corrupt(options),
        "min_partitions": _number(options, "minPartitions", 1),
        "max_records": _number(options, "maxRecordsPerPartition", None),
        "split_bytes": _number(options, "splitBytes", None),
        "batch_bytes": _number(options, "batchBytes", 2 << 20),
        "pushdown": _truth(options, "pushdown", False),
        "max_offsets": _number(options, "maxOffsetsPerTrigger", None),
        "max_bytes": _number(options, "maxBytesPerTrigger", None),
    }
    scan_schema({"columns": native_columns(found["columns"], several), "body": form})
    return found


def _corrupt(options: dict[str, str]) -> str:
    """Returns the name of the column with the reasons for damaged records. Spark's names ignore the case."""
    name = options.get("columnNameOfCorruptRecord", "_corrupt_record")
    if not name.strip():
        raise refuse("columnNameOfCorruptRecord", "must not be empty")
    if name.lower() in (*COLUMNS, STORE):
        raise refuse("columnNameOfCorruptRecord", f"there is a column {name.lower()!r}; choose another name")
    return name


def native_columns(names: list[str], several: bool) -> list[str]:
    """Returns the columns of each single store: without `store`. The other ones can be none."""
    return [name for name in names if name != STORE or not several]


def _read_mode(options: dict[str, str]) -> str:
    """Returns the behaviour at damaged records: the option `mode`, or its form `onDamage` with the names of `read`."""
    mode = _mode(options, _MODES)
    if "onDamage" not in options:
        return mode
    if "mode" in options:
        raise refuse("onDamage", "cannot be combined with mode")
    return _ON_DAMAGE[_chosen("onDamage", options["onDamage"].lower(), _ON_DAMAGE)]


def write_options(given: Mapping[str, str]) -> dict[str, Any]:
    """Returns the options of a write as plain values.

    Raises:
        InvalidOptionError: an option is unknown, or its value is invalid.
    """
    # Spark's own options are not ours to check.
    options = known({name: value for name, value in given.items() if name.lower() not in _SPARKS}, _WRITE)
    return {
        "path": _absolute(_one(options)),
        "topic": options.get("topic"),
        "queues": _number(options, "queues", None),
        "job_id": _job_id(options),
        "max_message_size": _number(options, "maxMessageSize", 4 << 20),
        "compression": _chosen("compression", options.get("compression", "none").lower(), _COMPRESSIONS),
        "compress_over": _number(options, "compressOver", 4096),
        "mode": _mode(options, _WRITE_MODES),
        "report": _absolute(options["reportPath"]) if "reportPath" in options else None,
    }


def _mode(options: dict[str, str], modes: tuple[str, ...]) -> str:
    return _chosen("mode", options.get("mode", modes[0]).upper(), modes)


def _chosen(option: str, value: str, choices: Collection[str]) -> str:
    if value not in choices:
        raise refuse(option, f"{value!r} is not one of {', '.join(choices)}")
    return value


def _job_id(options: dict[str, str]) -> str | None:
    name = options.get("jobId")
    if name is not None and not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}", name):
        raise refuse("jobId", f"{name!r} must be 1 to 100 letters, digits, '_', '-' and '.'")
    return name


def _absolute(path: str) -> str:
    path = path.removeprefix("file://") if path.startswith("file:///") else path.removeprefix("file:")
    path = home_of(path, "use it with Spark")
    return os.path.abspath(path)  # noqa: PTH100 - symbolic links must stay unresolved on the executors too


def _one(options: dict[str, str]) -> str:
    if not options.get("path"):
        raise refuse("path", "give the directory of the store: load(path), save(path) or the option path")
    return options["path"]


def _paths(options: dict[str, str]) -> list[str]:
    if "paths" not in options:
        return [_place(_one(options))]
    paths = _json(options, "paths")
    if not isinstance(paths, list) or not paths or not all(isinstance(path, str) and path for path in paths):
        raise refuse("paths", "must be a JSON list of directories and URLs")
    return [_place(path) for path in paths]


def _place(path: str) -> str:
    """Returns a URL unchanged, and a directory as an absolute path. Spark's ``file:`` is a directory."""
    return path if is_url(path) and not path.startswith("file:") else _absolute(path)


def _archive(options: dict[str, str], several: bool) -> bool | str | None:
    """Returns the archive of a batch read: None is that of each store, False is none."""
    value = options.get("archive", "true")
    if value.lower() in ("true", "false"):
        return None if value.lower() == "true" else False
    if several:
        raise refuse("archive", "must be true or false for several stores, because each has its own archive")
    return value if is_url(value) else _absolute(value)


def _storage(options: dict[str, str], paths: list[str]) -> dict[str, Any]:
    """Returns credentials and settings for URLs. No error shows the text of the option."""
    if "storageOptions" not in options:
        return {}
    if not any(is_url(path) for path in paths):
        raise refuse("storageOptions", "only for stores at URLs; omit this option")
    try:
        found = json.loads(options["storageOptions"])
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise refuse("storageOptions", 'must be a JSON object, as {"region": "eu-central-1"}')
    return found


def _topics(options: dict[str, str]) -> dict[str, Any]:
    """Returns the topics: names, a pattern, or names with queues."""
    given = [name for name in ("topic", "topics", "subscribe", "subscribePattern", "assign") if name in options]
    if len(given) > 1:
        raise refuse(given[1], f"cannot be combined with {given[0]}")
    if not given:
        return {"all": True}
    value = options[given[0]]
    if given[0] == "subscribePattern":
        try:
            re.compile(value)
        except re.error as error:
            raise refuse("subscribePattern", str(error)) from None
        return {"pattern": value}
    if given[0] == "assign":
        queues = _json(options, "assign")
        if not isinstance(queues, dict) or not all(_are_numbers(ids) for ids in queues.values()):
            raise refuse("assign", 'must be JSON of topics and lists of queues, as {"orders": [0, 1]}')
        return {"assign": queues}
    return {"names": [value] if given[0] == "topic" else _names(value)}


def _are_numbers(value: object) -> bool:
    return isinstance(value, list) and all(type(each) is int for each in value)


def _offsets(options: dict[str, str], which: str, default: int | None) -> Any:
    """Returns the start or end of a read: a number for all queues, a time, or numbers by topic and queue."""
    offsets, timestamp = f"{which}Offsets", f"{which}Timestamp"
    if timestamp in options:
        if offsets in options:
            raise refuse(timestamp, f"cannot be combined with {offsets}")
        return {"timestamp": milliseconds_of(timestamp, options[timestamp])}
    value = options.get(offsets)
    if value is None:
        return default
    word = {"earliest": _EARLIEST, "latest": _LATEST}.get(value.strip().lower())
    if word is not None:
        if word == _EARLIEST and which == "ending":
            raise refuse(offsets, "a read cannot end at the earliest offset")
        return word
    found = _json(options, offsets)
    is_map = isinstance(found, dict) and all(
        isinstance(queues, dict) and all(queue.isdecimal() and type(at) is int for queue, at in queues.items())
        for queues in found.values()
    )
    if not is_map:
        raise refuse(offsets, 'must be earliest, latest or JSON as {"orders": {"0": 23, "1": -2}}')
    least = _EARLIEST if which == "starting" else _LATEST
    for at in (at for queues in found.values() for at in queues.values()):
        if at < least:
            raise refuse(offsets, f"{at} is no offset of a queue; write {_meant(which)}, or a number from 0 on")
    return {"offsets": found}


def _meant(which: str) -> str:
    return f"{_EARLIEST} (the earliest) or {_LATEST} (the latest)" if which == "starting" else f"{_LATEST} (the latest)"


def _filter(options: dict[str, str]) -> str | SqlFilter | None:
    """Returns the filter: tags, or a condition on properties."""
    if "sql" not in options:
        return options.get("tags")
    if "tags" in options:
        raise refuse("sql", "cannot be combined with tags; in a condition, TAGS is the tag")
    try:
        return sql(options["sql"])
    except InvalidFilterError as error:
        raise refuse("sql", str(error)) from None


def _json(options: dict[str, str], name: str) -> Any:
    try:
        return json.loads(options[name])
    except ValueError:
        raise refuse(name, f"{options[name]!r} is not JSON") from None


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _columns(options: dict[str, str], several: bool) -> list[str]:
    """Returns the columns in their order; of several stores, `store` comes first if it is not named."""
    names = _columns_of_one(options)
    return [STORE, *names] if several and STORE not in names else names


def _columns_of_one(options: dict[str, str]) -> list[str]:
    if "columns" in options:
        names = _names(options["columns"])
        if not names:
            raise refuse("columns", "has no column; name at least one, or omit the option for all columns")
        return names
    left_out: set[str] = set()
    if not _truth(options, "includeBody", True):
        left_out.add("body")
    if not _truth(options, "includeProperties", True):
        left_out.add("properties")
    return [name for name in COLUMNS if name not in left_out]


def _truth(options: dict[str, str], name: str, default: bool) -> bool:
    text = options.get(name, str(default)).strip().lower()
    if text not in ("true", "false"):
        raise refuse(name, f"{text!r} is neither true nor false")
    return text == "true"


def _number(options: dict[str, str], name: str, default: int | None) -> int | None:
    if name not in options:
        return default
    try:
        found = int(options[name])
    except ValueError:
        raise refuse(name, f"{options[name]!r} is not a whole number") from None
    if not 1 <= found < 1 << 63:
        raise refuse(name, f"{found} is not from 1 to {(1 << 63) - 1}")
    return found
