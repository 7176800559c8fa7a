"""`scan`: reads many messages as Arrow columns."""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import closing
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

from mqstore import _extras, _native
from mqstore._read.lasting import Lasting
from mqstore._read.schema import schema_of
from mqstore._read.stores import RowSource, Stores, batches_of, open_stream, stores_of
from mqstore._remote.place import CACHE_BYTES, place_of
from mqstore._times import milliseconds_of
from mqstore.errors import InvalidOptionError

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping, Sequence

    import duckdb
    import pandas as pd
    import polars as pl
    import pyarrow as pa

    from mqstore._native import NativeStore
    from mqstore.types import Filter, Keys, OnDamage, OnError, StorePath, Time

BodyForm: TypeAlias = Literal["binary", "text", "json"]
"""Form of the column `body`."""

_MOST_THREADS = 8
BATCH_ROWS = 65_536
_MOST_ROWS = 1 << 24


def scan(
    path: StorePath | Sequence[StorePath],
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
    limit: int | None = None,
    on_error: OnError = "raise",
    storage_options: Mapping[str, Any] | None = None,
    cache: StorePath | None = None,
    cache_size: int = CACHE_BYTES,
) -> Scan:
    """Returns the messages of one store or several as Arrow columns, in log order.

    Nothing is read before the first use. Each use reads again from the start, and includes the messages that exist at
    that time. A scan takes no lock and changes no byte, so a writer can be active. For an open store use `Store.scan`.

    For a list or a pattern, the rows of all stores follow each other in the order of the list, and the first column is
    `store`, the directory or URL of the row without secrets, as a dictionary. Stores are opened one at a time. This
    needs pyarrow.

    Args:
        path: the directory, or a URL; a list or tuple of them; or a pattern with `*`, such as `"backups/*"` or
            `"s3://bucket/backups/*"`, which stands for the stores that it matches, sorted. In a directory, `?` and
            `[a-z]` are patterns too. A path that exists is no pattern.
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
            For several stores, the column `store` comes first if it is not named.
        batch_size: maximum rows of a batch, 1 to 16,777,216. A batch has fewer rows if its messages are large (32 MiB,
            unless a single message is larger) or if few neighbouring messages are selected.
        body: `"binary"`: bytes. `"text"`: text; null for a body that is not UTF-8. `"json"`: text of one JSON document;
            null for any other body. A compressed body that cannot be decompressed is null in all forms.
        threads: maximum number of decoding threads, 1 to 64; None is the number of processors, at most 8. With 1, the
            thread of the caller does all the work. Rows and their order do not depend on it.
        on_damage: behaviour at a damaged record of the topics. `"raise"` raises `CorruptionError`. `"skip"` continues
            after the record, warns with a `StoreWarning`, and counts it in `StoreStats.skipped_damage`.
        limit: maximum number of rows, of all stores together; needs pyarrow. None is no limit.
        on_error: only for several stores: behaviour if one of them cannot be read. `"raise"` raises the error.
            `"skip"` warns with a `StoreWarning`, adds the store to `Scan.failures`, and continues with the next store.
            Rows that were returned before the error stay.
        storage_options: only for a URL: credentials and settings of the transport, see `mqstore.open`.
        cache: only for a URL: a local folder that keeps blocks of the files; None keeps nothing.
        cache_size: maximum bytes in `cache`, at least 1 MiB.

    Raises:
        InvalidOptionError: an unknown column, or arguments that exclude each other.
        TypeError: an argument of the wrong type.
        ValueError: a number is out of bounds, or a time has no time zone.

    A use of the scan raises `NotAStoreError`, `TopicNotFoundError` and `CorruptionError`.
    """
    stores = stores_of(path, storage_options, cache, cache_size, on_error=on_error)
    return Scan(
        stores or place_of(cast("StorePath", path), storage_options, cache, cache_size),
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
        limit,
    )


class Scan:
    """Messages as Arrow columns, from `mqstore.scan` and `Store.scan`.

    Any library that reads Arrow streams (`__arrow_c_stream__`) can read it, any number of times. Iteration yields
    `pyarrow.RecordBatch` objects. There and in the `to_*` methods, errors are those of mqstore.
    """

    __slots__ = ("_limit", "_request", "_source")

    def __init__(
        self,
        source: str | NativeStore | _native.RemoteDirectory | RowSource,
        request: dict[str, Any],
        limit: int | None = None,
    ) -> None:
        _whole("limit", limit)
        if limit is not None and limit < 0:
            raise ValueError(f"limit must be at least 0, not {limit}")
        self._source = source
        self._request = request
        self._limit = limit
        # Checks the arguments now, not at the first use.
        _native.scan_schema(self._native_request())

    def __repr__(self) -> str:
        path = self._source
        if isinstance(path, _native.RemoteDirectory):
            place = repr(path.url)
        else:
            place = repr(path if isinstance(path, str | RowSource) else path.path)
        request = {**self._request, "limit": self._limit}
        shown = "".join(f", {name}={value!r}" for name, value in request.items() if value not in (None, True))
        return f"<mqstore.Scan of {place}{shown}>"

    @property
    def schema(self) -> pa.Schema:
        """The columns and their types, as a `pyarrow.Schema`."""
        return _extras.pyarrow().schema(self)

    @property
    def failures(self) -> list[tuple[str, Exception]]:
        """The stores that the newest use skipped because of `on_error="skip"`: directory or URL, and error."""
        return list(self._source.failures) if isinstance(self._source, Stores) else []

    def __arrow_c_schema__(self) -> object:
        source = self._source
        if not isinstance(source, RowSource) or not source.adds_columns:
            return _native.scan_schema(self._native_request())
        return source.schema(schema_of(self._native_request()), self._request).__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        if self._limit is None and not isinstance(self._source, RowSource):
            return self._open().__arrow_c_stream__(requested_schema)
        reader = _extras.pyarrow().RecordBatchReader.from_batches(self.schema, iter(self))
        return reader.__arrow_c_stream__(requested_schema)

    def __iter__(self) -> Lasting[pa.RecordBatch]:
        return Lasting(self._limited())

    def _limited(self) -> Generator[pa.RecordBatch]:
        # Reports a missing pyarrow first.
        _extras.pyarrow()
        if self._limit == 0:
            return
        left = self._limit
        with closing(self._batches()) as batches:
            for batch in batches:
                if left is None:
                    yield batch
                    continue
                yield batch.slice(0, left)
                left -= batch.num_rows
                if left <= 0:
                    return

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

    def _open(self) -> _native.ScanStream:
        return open_stream(self._source, self._request)

    def _batches(self) -> Generator[pa.RecordBatch]:
        if isinstance(self._source, RowSource):
            return self._source.batches(self._request)
        return batches_of(self._source, self._request)

    def _native_request(self) -> dict[str, Any]:
        source = self._source
        return source.native_request(self._request) if isinstance(source, RowSource) else self._request

    def _narrowed(self, store: str | None = None, **more: Any) -> Scan:
        source = self._source
        if store is not None and isinstance(source, Stores):
            source = source.narrowed(store)
        return Scan(source, {**self._request, **more}, self._limit)


def request_of(**given: Any) -> dict[str, Any]:
    """Returns the request for the native scan; the first four arguments can be omitted."""
    found = {**dict.fromkeys(("topics", "queue_id", "start", "end")), **given}
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
        raise TypeError(f"filter must be {wanted}, not {type(found['filter']).__name__}")
    _within("batch_size", found["batch_size"], _MOST_ROWS)
    if found["threads"] is None:
        found["threads"] = min(os.cpu_count() or 1, _MOST_THREADS)
    _within("threads", found["threads"], 64)
    if found.get("on_damage") not in (None, "raise", "skip"):
        raise InvalidOptionError("on_damage", f'{found["on_damage"]!r} is not one of "raise", "skip"')
    if found["topics"] is None and (found["queue_id"] is not None):
        raise ValueError("queue_id needs topics")
    if (found["start"] is not None or found["end"] is not None) and len(found["topics"] or ()) != 1:
        raise ValueError("start and end are offsets of a queue: give exactly one topic")
    return found


def _texts(name: str, value: object) -> list[str] | None:
    if value is None:
        return None
    if isinstance(value, str) and name == "keys":
        return [value]
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise TypeError(f"{name} must be an iterable of str, not {type(value).__name__}")
    found = list(value)
    for text in found:
        if not isinstance(text, str):
            raise TypeError(f"{name} must be str, not {type(text).__name__}")
    return found


def _whole(name: str, value: object) -> None:
    if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")


def _within(name: str, value: Any, most: int) -> None:
    _whole(name, value)
    if value is None or not 1 <= value <= most:
        raise ValueError(f"{name} must be between 1 and {most}, not {value}")


scan.__module__ = "mqstore"
Scan.__module__ = "mqstore"
