"""`scan`: reads many messages as Arrow columns."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from mqstore import _extras, _native
from mqstore._remote.place import CACHE_BYTES, place_of
from mqstore._times import milliseconds_of
from mqstore.errors import InvalidOptionError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    import duckdb
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    from mqstore._native import NativeStore
    from mqstore.types import Filter, Keys, OnDamage, StorePath, Time

BodyForm: TypeAlias = Literal["binary", "text", "json"]
"""Form of the column `body`."""

_MOST_THREADS = 8
BATCH_ROWS = 65_536
_MOST_ROWS = 1 << 24


def scan(
    path: StorePath,
    *,
    topics: str | Iterable[str] | None = None,
    queue_id: int | None = None,
    start: int | None = None,
    end: int | None = None,
    start_time: Time | None = None,
    end_time: Time | None = None,
    keys: Keys | None = None,
    filter: Filter | None = None,
    columns: Iterable[str] | None = None,
    batch_size: int = BATCH_ROWS,
    body: BodyForm = "binary",
    threads: int | None = None,
    on_damage: OnDamage = "raise",
    storage_options: Mapping[str, Any] | None = None,
    cache: StorePath | None = None,
    cache_size: int = CACHE_BYTES,
) -> Scan:
    """Returns the messages of the directory `path` as Arrow columns, in log order.

    Nothing is read before the first use. Each use reads again from the start, and includes the messages that exist at
    that time. A scan takes no lock and changes no byte, so a writer can be active. For an open store use `Store.scan`.

    Args:
        path: the directory, or a URL.
        topics: one topic or several: the messages that `Store.read` returns from their queues. A light queue
            (`%LMQ%name`) has the records that name it. If one of the topics is compacted, the messages of its
            compaction files come first. None is every record of the log once, also half messages of transactions,
            without the messages that are only in compaction files.
        queue_id: only this queue of each topic.
        start: first queue offset; needs one topic.
        end: queue offset to stop at, exclusive; needs one topic.
        start_time: only messages stored at or after this time.
        end_time: only messages stored before this time.
        keys: only messages with one of these keys, or with one of them as unique id.
        filter: only messages with these tags, as `"paid || shipped"`, or with properties that meet a condition,
            `mqstore.sql("price > 5")`.
        columns: names in the wanted order; None is all. Other columns cost nothing: without `body`, no body is copied.
        batch_size: maximum rows of a batch, 1 to 16,777,216. A batch has fewer rows if its messages are large (32 MiB,
            unless a single message is larger) or if few neighbouring messages are selected.
        body: `"binary"`: bytes. `"text"`: text; null for a body that is not UTF-8. `"json"`: text of one JSON document;
            null for any other body. A compressed body that cannot be decompressed is null in all forms.
        threads: maximum number of decoding threads, 1 to 64; None is the number of processors, at most 8. With 1, the
            thread of the caller does all the work. Rows and their order do not depend on it.
        on_damage: behaviour at a damaged record of the topics. `"raise"` raises `CorruptionError`. `"skip"` continues
            after the record, warns with a `StoreWarning`, and counts it in `StoreStats.skipped_damage`.
        storage_options: only for a URL: credentials and settings of the transport, see `mqstore.open`.
        cache: only for a URL: a local folder that keeps blocks of the files; None keeps nothing.
        cache_size: maximum bytes in `cache`, at least 1 MiB.

    Raises:
        InvalidOptionError: an unknown column, or arguments that exclude each other.
        TypeError: an argument of the wrong type.
        ValueError: a number is out of bounds, or a time has no time zone.

    A use of the scan raises `NotAStoreError`, `TopicNotFoundError` and `CorruptionError`.
    """
    return Scan(
        place_of(path, storage_options, cache, cache_size),
        request_of(
            topics=topics,
            queue_id=queue_id,
            start=start,
            end=end,
            start_time=start_time,
            end_time=end_time,
            keys=keys,
            filter=filter,
            columns=columns,
            batch_size=batch_size,
            body=body,
            threads=threads,
            on_damage=on_damage,
            as_reads=True,
        ),
    )


class Scan:
    """Messages as Arrow columns, from `mqstore.scan` and `Store.scan`.

    Any library that reads Arrow streams (`__arrow_c_stream__`) can read it, any number of times. Iteration yields
    `pyarrow.RecordBatch` objects. There and in the `to_*` methods, errors are those of mqstore.
    """

    __slots__ = ("_request", "_source")

    def __init__(self, source: str | NativeStore | _native.RemoteDirectory, request: dict[str, Any]) -> None:
        self._source = source
        self._request = request
        # Checks the arguments now, not at the first use.
        _native.scan_schema(request)

    def __repr__(self) -> str:
        path = self._source
        if not isinstance(path, str):
            path = path.url if isinstance(path, _native.RemoteDirectory) else path.path
        shown = "".join(f", {name}={value!r}" for name, value in self._request.items() if value not in (None, True))
        return f"<mqstore.Scan of {path!r}{shown}>"

    @property
    def schema(self) -> pa.Schema:
        """The columns and their types, as a `pyarrow.Schema`."""
        return _extras.pyarrow().schema(self)

    def __arrow_c_schema__(self) -> object:
        return _native.scan_schema(self._request)

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._open().__arrow_c_stream__(requested_schema)

    def __iter__(self) -> Iterator[pa.RecordBatch]:
        pyarrow = _extras.pyarrow()
        stream = self._open()
        try:
            for rows in stream:
                yield pyarrow.record_batch(rows)
        finally:
            stream.close()

    def to_arrow(self) -> pa.Table:
        """Returns all rows as a `pyarrow.Table`."""
        return _extras.pyarrow().Table.from_batches(self, self.schema)

    def to_pandas(self, **options: Any) -> pd.DataFrame:
        """Returns all rows as a `pandas.DataFrame`; `options` are those of `pyarrow.Table.to_pandas`."""
        _extras.module("pandas", "pandas")
        return self.to_arrow().to_pandas(**options)

    def to_polars(self) -> pl.DataFrame:
        """Returns all rows as a `polars.DataFrame`; `properties` become lists of `key` and `value`."""
        polars = _extras.module("polars", "polars")
        return cast("pl.DataFrame", polars.from_arrow(self.to_arrow()))

    def to_polars_lazy(self) -> pl.LazyFrame:
        """Returns a `polars.LazyFrame` that reads when it is collected.

        It reads only columns that the query needs. Comparisons of `topic`, `queue_id`, `queue_offset` and
        `store_timestamp` with constants reduce what is read.
        """
        from mqstore._read.polars import lazy_frame

        return lazy_frame(self)

    def to_duckdb(self, connection: duckdb.DuckDBPyConnection | None = None) -> duckdb.DuckDBPyRelation:
        """Returns a DuckDB relation that reads the store again at each query.

        Args:
            connection: connection of DuckDB; None is its default connection.
        """
        duck = connection if connection is not None else _extras.module("duckdb")
        return cast("duckdb.DuckDBPyRelation", duck.from_arrow(self))

    def _open(self, **more: Any) -> _native.ScanStream:
        _native.watch_forks()
        source = self._source
        if isinstance(source, _native.RemoteDirectory):
            # Includes the files that exist now.
            source = source.again()
        return _native.scan_open(source, {**self._request, **more} if more else self._request)

    def _narrowed(self, **more: Any) -> Scan:
        return Scan(self._source, {**self._request, **more})


def request_of(**given: Any) -> dict[str, Any]:
    """Returns the request for the native scan."""
    found = dict(given)
    if isinstance(found["topics"], str):
        found["topics"] = [found["topics"]]
    for name in ("topics", "columns", "keys"):
        found[name] = _texts(name, found[name])
    for name in ("queue_id", "start", "end"):
        _whole(name, found[name])
    for name in ("start_time", "end_time"):
        if found[name] is not None:
            found[name] = milliseconds_of(name, found[name])
    if found["filter"] is not None and not isinstance(found["filter"], str | _native.SqlFilter):
        wanted = 'a str of tags as "a || b", or mqstore.sql("price > 5")'
        msg = f"filter must be {wanted}, not {type(found['filter']).__name__}"
        raise TypeError(msg)
    _within("batch_size", found["batch_size"], _MOST_ROWS)
    if found["threads"] is None:
        found["threads"] = min(os.cpu_count() or 1, _MOST_THREADS)
    _within("threads", found["threads"], 64)
    if found.get("on_damage") not in (None, "raise", "skip"):
        raise InvalidOptionError("on_damage", f'{found["on_damage"]!r} is not one of "raise", "skip"')
    if found["topics"] is None and (found["queue_id"] is not None):
        msg = "queue_id needs topics"
        raise ValueError(msg)
    if (found["start"] is not None or found["end"] is not None) and len(found["topics"] or ()) != 1:
        msg = "start and end are offsets of a queue: give exactly one topic"
        raise ValueError(msg)
    return found


def _texts(name: str, value: object) -> list[str] | None:
    if value is None:
        return None
    if isinstance(value, str) and name == "keys":
        return [value]
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        msg = f"{name} must be an iterable of str, not {type(value).__name__}"
        raise TypeError(msg)
    found = list(value)
    for text in found:
        if not isinstance(text, str):
            msg = f"{name} must be str, not {type(text).__name__}"
            raise TypeError(msg)
    return found


def _whole(name: str, value: object) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        msg = f"{name} must be an int, not {type(value).__name__}"
        raise TypeError(msg)


def _within(name: str, value: Any, most: int) -> None:
    _whole(name, value)
    if value is None or not 1 <= value <= most:
        msg = f"{name} must be between 1 and {most}, not {value}"
        raise ValueError(msg)


scan.__module__ = "mqstore"
Scan.__module__ = "mqstore"
