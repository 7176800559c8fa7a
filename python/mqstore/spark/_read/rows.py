"""The rows of one part of a read, as Arrow batches from native code; runs in the tasks."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

from mqstore import _native
from mqstore._read.on_error import FAILURES, can_be_skipped, error_text
from mqstore._read.schema import schema_of
from mqstore._remote.place import pinned
from mqstore._store import opened
from mqstore.errors import CorruptionError, MQStoreError, NotAStoreError, StoreWarning, TopicNotFoundError
from mqstore.spark._locks import SAME_PATH
from mqstore.spark._options import COLUMNS, STORE

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator, Mapping

    import pyarrow as pa

    from mqstore.spark._remote import RemoteStore

_PLACE = "commit_log_offset"


def rows(
    options: dict[str, Any],
    value: tuple[Any, ...] | None,
    tell: Callable[[int, int], object] | None = None,
    remote: RemoteStore | None = None,
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a part; none without a part. If the log is walked, `tell` gets the bytes done and in total.

    `remote` is set if the store of the part is at a URL.
    """
    # Spark uses only the first batch to find the type of the rows.
    yield _empty(options)
    if value is None:
        return
    with warnings.catch_warnings():
        # Skipped records are reported below, as the options require.
        warnings.simplefilter("ignore", StoreWarning)
        yield from _read(options, value, tell, remote)


def rows_of_task(
    options: dict[str, Any], parts: tuple[tuple[Any, ...], ...], remotes: Mapping[str, RemoteStore]
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of all parts of a task. With `onError=skip`, the rest of a part that fails is skipped."""
    yield _empty(options)
    for part in parts:
        path, way, error = part[0], part[4], part[6]
        if way == "failed":
            yield from _skipped(options, path, error)
            continue
        try:
            yield from rows(options, part, remote=remotes.get(path))
        except FAILURES as caught:
            if not can_be_skipped(caught, options["on_error"]):
                raise
            yield from _skipped(options, path, f"the rest of a part is skipped: {error_text(path, caught)}")


def _skipped(options: dict[str, Any], path: str, text: str) -> Iterator[pa.RecordBatch]:
    """Reports a store that cannot be read: in a row, or else in the log of the task."""
    if options["mode"] == "PERMISSIVE":
        yield _corrupt_row(options, path, text)
    else:
        _warn(text)


def _warn(text: str) -> None:
    # Replaces the filter of `rows`: the log of the task shows it.
    with warnings.catch_warnings():
        warnings.simplefilter("always", StoreWarning)
        warnings.warn(text, StoreWarning, stacklevel=3)


def _read(
    options: dict[str, Any],
    value: tuple[Any, ...],
    tell: Callable[[int, int], object] | None,
    remote: RemoteStore | None,
) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa

    path, ranges, begin, to, way, batch_rows, _ = value
    # A batch without columns has no number of rows.
    wanted = [name for name in options["output"] if name in COLUMNS] or ["queue_id"]
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
        # `_passed` applies the options to skipped records.
        "on_damage": "skip",
        "threads": 1,
    }
    place = path if remote is None else pinned(remote.url, remote.options, remote.listing)[0]
    if way == "archive":
        yield from _of_archive(options, path, place, {**request, "record_topic": ranges[0][0]}, careful)
        return
    try:
        stream = _native.scan_open(place, request)
    except (NotAStoreError, TopicNotFoundError) as error:
        if remote is not None:
            raise
        raise MQStoreError(f"{path}: {error}; {SAME_PATH}") from None
    try:
        if stream.limit < to and options.get("end_time") is None:
            raise MQStoreError(f"{path}: the log ends at offset {stream.limit} here, before {to}; {SAME_PATH}")
        if way != "messages" and stream.start > begin and options.get("start_time") is None:
            _deleted(options, f"{path}: the log from offset {begin} to {stream.start} was deleted before it was read")
        passed = 0
        for some in stream:
            passed = yield from _passed(options, path, stream, passed)
            batch = pa.record_batch(some)
            yield from _fitted(options, path, _sound(options, path, batch, careful))
            if tell is not None and way == "log":
                tell(max(0, stream.position - begin), to - begin)
        yield from _passed(options, path, stream, passed)
    finally:
        stream.close()


def _of_archive(
    options: dict[str, Any], path: str, place: str | _native.RemoteDirectory, request: dict[str, Any], careful: bool
) -> Iterator[pa.RecordBatch]:
    """Yields the rows of a part that is in the archive of the store."""
    import pyarrow as pa

    raises = options["mode"] == "FAILFAST"
    with opened(place, "r", None, {}) as store:
        store._choose_archive(options["archive"], None)
        try:
            for some in _native.scan_open(store, {**request, "plan": None, "on_damage": "raise", "older": True}):
                yield from _fitted(options, path, _sound(options, path, pa.record_batch(some), careful))
        except CorruptionError as error:
            if raises:
                raise
            yield from _skipped(options, path, f"the rest of a file is skipped: {error}")


def _deleted(options: dict[str, Any], text: str) -> None:
    if options["fail_on_data_loss"]:
        msg = f"{text}; with the option failOnDataLoss=false the read continues after the deleted messages"
        raise MQStoreError(msg)


def _passed(
    options: dict[str, Any], path: str, stream: _native.ScanStream, before: int
) -> Generator[pa.RecordBatch, None, int]:
    """Handles the records that the scan has skipped since the last call. Returns their total number."""
    passed = stream.passed()
    for what, text in passed[before:]:
        if what == "deleted":
            _deleted(options, text)
        elif options["mode"] == "FAILFAST":
            raise MQStoreError(
                f"{text}; the option onDamage=skip (mode=DROPMALFORMED) skips it, mode=PERMISSIVE returns the error in "
                "a column, and `mqstore repair` repairs the store"
            )
        elif options["mode"] == "PERMISSIVE":
            yield _corrupt_row(options, path, text)
        else:
            _warn(text)
    return len(passed)


def _sound(options: dict[str, Any], path: str, batch: pa.RecordBatch, careful: bool) -> pa.RecordBatch:
    """Handles bodies that cannot be decompressed."""
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
        None if there else f"{path}: cannot decompress the body of the record at log offset {place}"
        for there, place in zip(pc.is_valid(body).to_pylist(), places.to_pylist(), strict=True)
    ]
    if options["mode"] == "FAILFAST":
        msg = next(text for text in texts if text is not None)
        raise MQStoreError(f"{msg}; the option mode=DROPMALFORMED skips the record")
    return batch.append_column(options["corrupt"], pa.array(texts, pa.string()))


def _fitted(options: dict[str, Any], path: str, batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Yields the batch with exactly the wanted columns."""
    import pyarrow as pa

    if options["mode"] == "PERMISSIVE" and options["corrupt"] not in batch.schema.names:
        batch = batch.append_column(options["corrupt"], pa.nulls(batch.num_rows, pa.string()))
    if STORE in options["output"] and options["several"]:
        batch = batch.append_column(STORE, pa.repeat(pa.scalar(path, pa.string()), batch.num_rows))
    yield batch.select(options["output"])


def _corrupt_row(options: dict[str, Any], path: str, text: str) -> pa.RecordBatch:
    """Returns a row with the description of a skipped record or store."""
    import pyarrow as pa

    schema = _empty(options).schema
    values = {options["corrupt"]: text}
    if options["several"]:
        values[STORE] = path
    return pa.RecordBatch.from_pylist([values], schema)


def _empty(options: dict[str, Any]) -> pa.RecordBatch:
    """Returns an empty batch with the wanted columns."""
    import pyarrow as pa

    names = [name for name in options["output"] if name in COLUMNS]
    fields = {field.name: field for field in schema_of({"columns": names, "body": options["body"]})}
    for name in (options["corrupt"], STORE):
        fields[name] = pa.field(name, pa.string())
    return pa.RecordBatch.from_pylist([], pa.schema([fields[name] for name in options["output"]]))


def empty(columns: list[str], body: str) -> pa.RecordBatch:
    """Returns an empty batch of a scan."""
    import pyarrow as pa

    return pa.RecordBatch.from_pylist([], schema_of({"columns": columns, "body": body}))
