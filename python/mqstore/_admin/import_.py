"""`import_`: appends messages from files of JSON lines, Parquet or Arrow to a store; the inverse of `export`."""

from __future__ import annotations

import base64
import binascii
import errno
import json
import time
from collections.abc import Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqstore import _extras, _native
from mqstore._admin.export.formats import ENDINGS, MOST_BODY, format_of
from mqstore._admin.export.partitions import values_of
from mqstore._admin.export.settings import Settings, is_settings, settings_of
from mqstore._admin.files import without_options
from mqstore._paths import home_of
from mqstore._times import milliseconds_of, seconds_since
from mqstore.errors import InvalidMessageError, MessageTooLargeError, MQStoreError, RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mqstore._admin.export.formats import ExportFormat
    from mqstore._reports import ImportReport, Progress
    from mqstore._store import Store
    from mqstore.types import Compression, StorePath

    # Place of the row for messages, the row, bytes of the file up to the row, total bytes.
    Place = tuple[str, dict[str, Any], int, int]

# Rows and body bytes of one append.
_ROWS = 1000
_BYTES = 4 << 20

# Columns that an import uses. It ignores positions in the old store.
_NAMES = ("topic", "logic_queue_id", "queue_id", "unique_id", "keys", "tags", "properties", "flag", "sys_flag",
          "born_timestamp", "born_host", "reconsume_times",
          "body", "body_base64", "body_text", "body_error")  # fmt: skip

# Bits of `sys_flag`: a batch of messages, the kind of transaction, and the kinds that are in no queue.
_BATCH, _TRANSACTION, _NOT_SENT = 0x80, 0xC, (0x4, 0xC)


def import_(
    path: StorePath,
    source: StorePath,
    *,
    format: ExportFormat | None = None,
    topic: str | None = None,
    compression: Compression | None = None,
    compress_over: int = 4096,
    dry_run: bool = False,
    progress: Callable[[Progress], object] | None = None,
) -> ImportReport:
    """Appends the messages of a file to the store at `path`, which is created if missing.

    An import keeps topic, queue, body, keys, tags, properties, unique id, flag, born time, born host, and the number of
    deliveries. Offsets, store time and store host are new. Bodies are compressed only as you say here, however they
    were stored before the export. A row with the property `mqstore.deliver_at` waits and is delivered at that time, in
    epoch milliseconds. Missing topics and queues are created, with the settings of topics and groups that a file of
    JSON lines begins with. All rows are checked before the first one is appended.

    Args:
        path: the directory.
        source: a file from `export`, or a folder of its `parts`. A row needs `topic` and a body (`body`, `body_base64`
            or `body_text`); all other columns are optional. `logic_queue_id`, the queue of a static topic, replaces
            `queue_id`.
        format: `"jsonl"`, `"parquet"` or `"arrow"`; None selects it by the ending.
        topic: topic of all messages; None keeps their topics. With a topic, the settings in the file are not used.
        compression: compression of the bodies: `"zstd"`, `"lz4"` or `"zlib"`; None and `"none"` compress none of them.
        compress_over: bytes that a body needs to be compressed: 0 to 1 GiB.
        dry_run: whether to check all rows and report only.
        progress: callback during the import. An exception in it ends the import; messages appended so far stay.

    Returns:
        The report.

    Raises:
        InvalidMessageError: a row cannot become a message, or belongs to a system topic; names file and line. If the
            check finds it, nothing was appended. Some errors are found only during the appends, such as a topic with
            batch queues or a record that does not fit in a segment; the message then says how many were appended.
        FileNotFoundError: the file is missing, or the folder contains no part.
        MissingPackageError: Parquet and Arrow need pyarrow.
        StoreLockedError: another process has the store open for writing, and does not share it. An import joins
            processes that share it.
        RefusedError: a topic of the store accepts no messages, or the owner of a shared store ended during the import;
            the message says how many were appended.
        InvalidOptionError: the compression is unknown, or `compress_over` is out of bounds.
    """
    from mqstore._options import StoreOptions, native_form
    from mqstore._reports import ImportReport

    file = Path(home_of(source))
    files = _files(file)
    kind = format_of(files[0], format)
    if kind == "store":
        raise ValueError("an import reads a file; to copy the messages of a store, export it with format='store'")
    if topic is not None and not isinstance(topic, str):
        raise TypeError(f"topic must be a str or None, not {type(topic).__name__}")
    _native.check_options(native_form(StoreOptions(compression=compression, compress_over=compress_over)))
    rule = (compression or "none", compress_over)
    started = time.monotonic()
    settings = settings_of(files[0]) if kind == "jsonl" and topic is None else Settings({}, {})
    topics: dict[str, int] = {}
    skipped = 0
    for places, messages, refused, _ in _batches(files, kind, topic):
        skipped += refused
        for name, *_rest in messages:
            topics[name] = topics.get(name, 0) + 1
        _check(places, messages)
    if not dry_run:
        with without_options(), _opened(home_of(path)) as store:
            with settings.given_to(store):
                _append(store, files, (kind, topic), rule, progress)
            store.flush()
    return ImportReport(
        path=home_of(path),
        source=str(file),
        format=kind,
        messages=sum(topics.values()),
        skipped=skipped,
        topics=dict(sorted(topics.items())),
        dry_run=dry_run,
        seconds=seconds_since(started),
    )


def _opened(path: str) -> Store:
    """Opens or creates the store for writing, or joins the processes that share it, with their options."""
    from mqstore import _store
    from mqstore._options import StoreOptions
    from mqstore._share import is_shared

    if is_shared(path):
        return _store.join_shared(path)
    return _store.open(path, "create", options=StoreOptions(max_message_size=MOST_BODY))


def _check(places: list[str], messages: list[tuple[Any, ...]]) -> None:
    """Checks messages in the core; an error names the place of the first bad one."""
    try:
        _native.check_rows(messages)
    except InvalidMessageError:
        for place, message in zip(places, messages, strict=True):
            try:
                _native.check_rows([message])
            except InvalidMessageError as error:
                raise InvalidMessageError(f"{place}: {error}") from None
        raise


def _batches(
    files: list[Path], kind: str, topic: str | None
) -> Iterator[tuple[list[str], list[tuple[Any, ...]], int, tuple[int, int] | None]]:
    """Yields places, messages, and the number of rows that become no messages; and the position, except at the end."""
    places: list[str] = []
    messages: list[tuple[Any, ...]] = []
    size = skipped = 0
    for place, row, done, total in _rows(files, kind):
        message = _message(place, row, topic)
        if message is None:
            skipped += 1
            continue
        places.append(place)
        messages.append(message)
        size += len(message[2])
        if len(messages) >= _ROWS or size >= _BYTES:
            yield places, messages, skipped, (done, total)
            places, messages, size, skipped = [], [], 0, 0
    yield places, messages, skipped, None


def _append(
    store: Store,
    files: list[Path],
    rows: tuple[str, str | None],
    rule: tuple[Compression, int],
    progress: Callable[[Progress], object] | None,
) -> None:
    """Appends the rows of files, of a format and for a topic, with the compression of `rule`."""
    from mqstore._reports import Progress

    appended = 0
    for places, messages, _, position in _batches(files, *rows):
        while messages:
            try:
                done = _native.append_rows(store, messages, *rule)
            except (InvalidMessageError, MessageTooLargeError):
                _append_each(store, places, messages, rule, appended)
                done = len(messages)
            except RefusedError as error:
                raise RefusedError(f"{error}; the {appended} messages before {places[0]} are imported") from None
            appended += done
            del places[:done], messages[:done]
        if progress is not None and position is not None:
            progress(Progress(*position))


def _append_each(
    store: Store, places: list[str], messages: list[tuple[Any, ...]], rule: tuple[Compression, int], appended: int
) -> None:
    """Appends messages one by one up to the bad one, after an append of all failed without any change."""
    for place, message in zip(places, messages, strict=True):
        try:
            appended += _native.append_rows(store, [message], *rule)
        except MQStoreError as error:
            reason = f"{place}: {error}; the {appended} messages before it are imported"
            raise InvalidMessageError(reason) from error


def _files(source: Path) -> list[Path]:
    """Returns the file, or the parts in a folder from an export."""
    if not source.is_dir():
        return [source]
    parts = sorted((part for part in source.rglob("part-*") if part.suffix in ENDINGS), key=lambda part: part.name)
    if not parts:
        raise FileNotFoundError(errno.ENOENT, "no part-00000.parquet or part-00000.arrow in the folder", str(source))
    return parts


def _rows(files: list[Path], kind: str) -> Iterator[Place]:
    sizes = [file.stat().st_size for file in files]
    total, before = sum(sizes), 0
    for file, size in zip(files, sizes, strict=True):
        rows = _lines(file) if kind == "jsonl" else _tables(file, kind)
        partition = values_of(file)
        for place, row, done, _ in rows:
            yield place, {**partition, **row} if partition else row, before + done, total
        before += size


def _lines(file: Path) -> Iterator[Place]:
    total = file.stat().st_size
    done = 0
    with file.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            done += len(line)
            if not line.strip():
                continue
            place = f"{file}, line {number}"
            try:
                row = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise InvalidMessageError(f"{place}: not JSON: {error}") from None
            if not isinstance(row, dict):
                raise InvalidMessageError(f"{place}: must be a JSON object, not {type(row).__name__}")
            if number == 1 and is_settings(row):
                continue
            yield place, row, done, total


def _tables(file: Path, kind: str) -> Iterator[Place]:
    pyarrow = _extras.module("pyarrow", "arrow")
    total = file.stat().st_size
    try:
        if kind == "parquet":
            table = _extras.module("pyarrow.parquet", "arrow").ParquetFile(str(file))
            names = [name for name in _NAMES if name in table.schema_arrow.names]
            count = table.metadata.num_rows
            batches = table.iter_batches(batch_size=_ROWS, columns=names)
        else:
            reader = _extras.module("pyarrow.ipc", "arrow").open_file(pyarrow.memory_map(str(file)))
            names = [name for name in _NAMES if name in reader.schema.names]
            each = (reader.get_batch(number).select(names) for number in range(reader.num_record_batches))
            batches = (batch.slice(at, _ROWS) for batch in each for at in range(0, batch.num_rows, _ROWS))
            count = None
        number = 0
        for batch in batches:
            columns = {name: _values(pyarrow, column) for name, column in zip(names, batch.columns, strict=True)}
            for index in range(batch.num_rows):
                number += 1
                row = {name: values[index] for name, values in columns.items()}
                yield f"{file}, row {number}", row, total * number // count if count else 0, total
    except pyarrow.ArrowException as error:
        raise InvalidMessageError(f"{file}: cannot read it as a file of {kind}: {error}") from error


def _values(pyarrow: Any, column: Any) -> list[Any]:
    if pyarrow.types.is_timestamp(column.type):
        # Times outside the years of `datetime` are valid too.
        column = column.cast(pyarrow.timestamp("us", tz=column.type.tz)).cast(pyarrow.int64())
        return [None if time is None else time // 1000 for time in column.to_pylist()]
    return column.to_pylist()  # type: ignore[no-any-return]


def _message(place: str, row: dict[str, Any], topic: str | None) -> tuple[Any, ...] | None:
    """Returns a row as a tuple for `append_rows`; None for a record that is in no queue."""
    try:
        flags = _int(row, "sys_flag", 0)
        if flags & _TRANSACTION in _NOT_SENT:
            return None
        name = row.get("topic") if topic is None else topic
        if not isinstance(name, str):
            raise InvalidMessageError(f"topic must be text, not {name!r}")
        return (
            name,
            # Different logic queues can have the same physical queue, on different brokers.
            _int(row, "logic_queue_id", _int(row, "queue_id", None)),
            _body(row),
            list(_properties(row).items()),
            _int(row, "flag", 0),
            _time(row.get("born_timestamp")),
            _text(row, "born_host"),
            _int(row, "reconsume_times", 0),
            # For a body that could not be decompressed, the row has the stored bytes.
            flags if row.get("body_error") is not None else flags & _BATCH,
        )
    except InvalidMessageError as error:
        raise InvalidMessageError(f"{place}: {error}") from None


def _body(row: dict[str, Any]) -> bytes:
    encoded = row.get("body_base64")
    if encoded is not None:
        try:
            return base64.b64decode(encoded, validate=True)
        except (binascii.Error, TypeError, ValueError) as error:
            raise InvalidMessageError(f"body_base64: {error}") from None
    body = row.get("body_text") if row.get("body") is None else row["body"]
    if isinstance(body, str):
        return body.encode("utf-8", "surrogatepass")
    if isinstance(body, bytes):
        return body
    raise InvalidMessageError("the row has no body: add body, body_base64 or body_text")


def _properties(row: dict[str, Any]) -> dict[str, str]:
    given = row.get("properties")
    pairs = given.items() if isinstance(given, Mapping) else given or ()
    try:
        found = {name: value for name, value in pairs if value is not None}
    except (TypeError, ValueError):
        raise InvalidMessageError(f"properties must map text to text, not {given!r}") from None
    keys = row.get("keys")
    if keys is not None and not isinstance(keys, list | str):
        raise InvalidMessageError(f"keys must be a list of text, not {keys!r}")
    if keys and "KEYS" not in found:
        found["KEYS"] = keys if isinstance(keys, str) else " ".join(map(str, keys))
    for name, property_ in (("tags", "TAGS"), ("unique_id", "UNIQ_KEY")):
        if (value := _text(row, name)) and property_ not in found:
            found[property_] = value
    for name, value in found.items():
        if not isinstance(name, str) or not isinstance(value, str):
            raise InvalidMessageError(f"properties must map text to text; {name!r} maps to {value!r}")
    return found


def _int(row: dict[str, Any], name: str, default: int | None) -> Any:
    value = row.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not -(1 << 31) <= value < 1 << 31:
        raise InvalidMessageError(f"{name} must be an integer of 32 bits, not {value!r}")
    return value


def _text(row: dict[str, Any], name: str) -> str | None:
    value = row.get(name)
    if value is not None and not isinstance(value, str):
        raise InvalidMessageError(f"{name} must be text, not {value!r}")
    return value


def _time(value: Any) -> int | None:
    if isinstance(value, str):
        try:
            value = datetime.fromisoformat(value)
        except ValueError:
            raise InvalidMessageError(f"born_timestamp {value!r} is not an ISO 8601 time") from None
    if value is None:
        return None
    # A file can hold every time that a store can hold, also one near 1970, which an argument cannot be.
    is_number = isinstance(value, int) and not isinstance(value, bool)
    if isinstance(value, timedelta):
        raise InvalidMessageError(f"born_timestamp {value!r} is not a time")
    try:
        found = value if is_number else milliseconds_of("born_timestamp", value)
    except (TypeError, ValueError) as error:
        raise InvalidMessageError(str(error)) from None
    if not -(1 << 63) <= found < 1 << 63:
        raise InvalidMessageError(f"born_timestamp {found} does not fit 64 bits")
    return found


import_.__module__ = "mqstore"
