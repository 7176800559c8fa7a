"""The rows of one part of a read, as Arrow batches made by native code; runs in the tasks."""

from __future__ import annotations

import itertools
import json
import warnings
from typing import TYPE_CHECKING, Any

from mqstore import _native
from mqstore.errors import MQStoreError, StoreWarning
from mqstore.spark._options import COLUMNS

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

    import pyarrow as pa

    import mqstore

_PLACE = "commit_log_offset"


def rows(options: dict[str, Any], value: tuple[Any, ...] | None) -> Iterator[pa.RecordBatch]:
    """The rows of a part; of no part, none."""
    # Spark looks at the first batch alone to see which kind of rows it gets.
    yield _empty(options)
    if value is None:
        return
    with warnings.catch_warnings():
        # What is passed over is said below, as the options want it said.
        warnings.simplefilter("ignore", StoreWarning)
        yield from _read(options, value)


def _read(options: dict[str, Any], value: tuple[Any, ...]) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    path, ranges, begin, to, way, batch_rows = value
    if way == "messages":
        yield from _asked(options, path, ranges[0], batch_rows)
        return
    wanted = [name for name in options["output"] if name in COLUMNS]
    careful = "body" in wanted and options["body"] == "binary"
    columns = [*wanted, _PLACE] if careful and _PLACE not in wanted else wanted
    request = {
        "ranges": ranges,
        "from": begin,
        "to": to,
        "plan": way,
        "columns": columns,
        "body": options["body"],
        "filter": options["filter"],
        "keys": options["keys"],
        "start_time": options.get("start_time"),
        "end_time": options.get("end_time"),
        "batch_size": batch_rows,
        "threads": 1,
    }
    stream = _native.scan_open(path, request)
    try:
        if stream.start > begin and options.get("start_time") is None:
            _deleted(options, f"{path}: the log from offset {begin} to {stream.start} was deleted before it was read")
        told = 0
        for some in stream:
            told = yield from _passed(options, stream, told)
            batch = pa.record_batch(some)
            yield from _fitted(options, _sound(options, path, batch, careful))
        yield from _passed(options, stream, told)
    finally:
        stream.close()


def _asked(
    options: dict[str, Any], path: str, part: tuple[str, int, int, int], batch_rows: int
) -> Iterator[pa.RecordBatch]:
    """Messages that the store is asked for, because the log has others."""
    import pyarrow as pa

    import mqstore

    schema = _empty(options).schema
    topic, queue_id, start, end = part
    with mqstore.open(path) as store:
        there = {queue.queue_id: queue.min_offset for queue in store.queues(topic)}[queue_id]
        if there > start:
            _deleted(options, f"{path}: queue {queue_id} of topic {topic!r} begins at {there} and not at {start}")
        first = min(max(start, there), end)
        messages = filter(_wanted(options), store.read(topic, queue_id, first, end, filter=options["filter"]))
        while some := list(itertools.islice(messages, batch_rows)):
            columns = [pa.array([_value(options, each, field.name) for each in some], field.type) for field in schema]
            yield pa.RecordBatch.from_arrays(columns, schema=schema)


def _wanted(options: dict[str, Any]) -> Callable[[mqstore.StoredMessage], bool]:
    """Whether keys and times are those that are asked for."""
    keys = None if options["keys"] is None else set(options["keys"])
    first, last = options.get("start_time"), options.get("end_time")

    def wanted(message: mqstore.StoredMessage) -> bool:
        return (
            (keys is None or not keys.isdisjoint(message.keys) or message.unique_id in keys)
            and (first is None or message.store_timestamp >= first)
            and (last is None or message.store_timestamp < last)
        )

    return wanted


def _value(options: dict[str, Any], message: mqstore.StoredMessage, name: str) -> Any:
    """A column's value of a message."""
    if name == options["corrupt"]:
        return None
    if name in ("born_timestamp", "store_timestamp"):
        return getattr(message, name) * 1000
    if name == "body_size":
        return len(message.body)
    if name == "body" and options["body"] != "binary":
        return _text(message.body, options["body"])
    found = getattr(message, name)
    if name == "properties":
        return list(found.items())
    return list(found) if name == "keys" else found


def _text(body: bytes, form: str) -> str | None:
    try:
        text = body.decode()
        if form == "json":
            json.loads(text)
    except ValueError:
        return None
    return text


def _deleted(options: dict[str, Any], text: str) -> None:
    if options["fail_on_data_loss"]:
        msg = f"{text}; with the option failOnDataLoss=false the read goes on behind it"
        raise MQStoreError(msg)


def _passed(options: dict[str, Any], stream: _native.ScanStream, told: int) -> Generator[pa.RecordBatch, None, int]:
    """Deals with what the scan passed over since the last time; says how much there was in all."""
    passed = stream.passed()
    for what, text in passed[told:]:
        if what == "deleted":
            _deleted(options, text)
        elif options["mode"] == "FAILFAST":
            msg = (
                f"{text}; the option mode=DROPMALFORMED passes over it, mode=PERMISSIVE tells it in a column, "
                "and `mqstore repair` mends the store"
            )
            raise MQStoreError(msg)
        elif options["mode"] == "PERMISSIVE":
            yield _told(options, text)
    return len(passed)


def _sound(options: dict[str, Any], path: str, batch: pa.RecordBatch, careful: bool) -> pa.RecordBatch:
    """Deals with bodies that do not unpack."""
    if not careful:
        return batch
    body = batch.column("body")
    if body.null_count == 0:
        return batch
    import pyarrow as pa
    import pyarrow.compute as pc

    if options["mode"] == "DROPMALFORMED":
        return batch.filter(pc.is_valid(body))
    places = batch.column(_PLACE)
    texts = [
        None if there else f"{path}: the body of the record at log offset {place} does not unpack"
        for there, place in zip(pc.is_valid(body).to_pylist(), places.to_pylist(), strict=True)
    ]
    if options["mode"] == "FAILFAST":
        msg = next(text for text in texts if text is not None)
        raise MQStoreError(f"{msg}; the option mode=DROPMALFORMED passes over it")
    return batch.append_column(options["corrupt"], pa.array(texts, pa.string()))


def _fitted(options: dict[str, Any], batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """The batch with the columns that are wanted, and these alone."""
    import pyarrow as pa

    if options["mode"] == "PERMISSIVE" and options["corrupt"] not in batch.schema.names:
        batch = batch.append_column(options["corrupt"], pa.nulls(batch.num_rows, pa.string()))
    yield batch.select(options["output"])


def _told(options: dict[str, Any], text: str) -> pa.RecordBatch:
    """A row that says what was passed over."""
    import pyarrow as pa

    schema = _empty(options).schema
    columns = [pa.array([text if field.name == options["corrupt"] else None], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _empty(options: dict[str, Any]) -> pa.RecordBatch:
    """A batch without a row, which has the columns that are wanted."""
    import pyarrow as pa

    names = [name for name in options["output"] if name in COLUMNS]
    fields = {field.name: field for field in empty(names, options["body"]).schema}
    fields[options["corrupt"]] = pa.field(options["corrupt"], pa.string())
    schema = pa.schema([fields[name] for name in options["output"]])
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


def empty(columns: list[str], body: str) -> pa.RecordBatch:
    """A batch of a scan without a row."""
    import pyarrow as pa

    schema = pa.schema(_Schema(_native.scan_schema({"columns": columns, "body": body})))
    return pa.RecordBatch.from_arrays([pa.array([], field.type) for field in schema], schema=schema)


class _Schema:
    """A schema for pyarrow."""

    def __init__(self, capsule: object) -> None:
        self._capsule = capsule

    def __arrow_c_schema__(self) -> object:
        return self._capsule
