"""`Scan` for asyncio: a thread reads its batches."""

from __future__ import annotations

import asyncio
import threading
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import mqstore
from mqstore._read.lasting import LastingAsync
from mqstore._warn import context_for_thread

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Callable

    import duckdb
    import pandas as pd
    import polars as pl
    import pyarrow as pa

P = ParamSpec("P")
T = TypeVar("T")


class Scan:
    """Messages as Arrow columns, from `mqstore.aio.scan` and `Store.scan`.

    `async for` yields `pyarrow.RecordBatch` objects. Libraries that read Arrow streams themselves
    (`__arrow_c_stream__`, lazy frames, DuckDB relations) read in the thread that uses them: do not use them in the
    loop's thread.
    """

    def __init__(self, scan: mqstore.Scan) -> None:
        """Wraps `scan`. Programs call `mqstore.aio.scan` or `Store.scan` instead."""
        self._scan = scan

    def __repr__(self) -> str:
        return repr(self._scan).replace("<mqstore.", "<mqstore.aio.", 1)

    @property
    def schema(self) -> pa.Schema:
        """The columns and their types, as a `pyarrow.Schema`."""
        return self._scan.schema

    @property
    def failures(self) -> list[tuple[str, Exception]]:
        """The stores that the newest use skipped because of `on_error="skip"`: directory or URL, and error."""
        return self._scan.failures

    def __arrow_c_schema__(self) -> object:
        return self._scan.__arrow_c_schema__()

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._scan.__arrow_c_stream__(requested_schema)

    def __aiter__(self) -> AsyncIterator[pa.RecordBatch]:
        return LastingAsync(self._batches())

    async def _batches(self) -> AsyncGenerator[pa.RecordBatch]:
        batches = _Batches(self._scan)
        try:
            while (batch := await _in_thread(batches.next)) is not None:
                yield batch
        finally:
            await _in_thread(batches.close)

    async def to_arrow(self) -> pa.Table:
        """Returns all rows as a `pyarrow.Table`."""
        return await _in_thread(self._scan.to_arrow)

    async def to_pandas(self, **options: Any) -> pd.DataFrame:
        """Returns all rows as a `pandas.DataFrame`; `options` are those of `pyarrow.Table.to_pandas`."""
        return await _in_thread(partial(self._scan.to_pandas, **options))

    async def to_polars(self) -> pl.DataFrame:
        """Returns all rows as a `polars.DataFrame`; `properties` become lists of `key` and `value`."""
        return await _in_thread(self._scan.to_polars)

    def to_polars_lazy(self) -> pl.LazyFrame:
        """Returns a `polars.LazyFrame` that reads when it is collected: see `mqstore.Scan.to_polars_lazy`."""
        return self._scan.to_polars_lazy()

    def to_duckdb(self, connection: duckdb.DuckDBPyConnection | None = None) -> duckdb.DuckDBPyRelation:
        """Returns a DuckDB relation that reads the store again at each query.

        Args:
            connection: connection of DuckDB; None is its default connection.
        """
        return self._scan.to_duckdb(connection)


class _Batches:
    """The batches of one use of a scan, for one thread at a time: a cancelled task can leave a thread running."""

    def __init__(self, scan: mqstore.Scan) -> None:
        self._batches = iter(scan)
        self._lock = threading.Lock()

    def next(self) -> pa.RecordBatch | None:
        with self._lock:
            return next(self._batches, None)

    def close(self) -> None:
        with self._lock:
            self._batches.close()


def _twin(function: Callable[P, mqstore.Scan]) -> Callable[P, Scan]:
    @wraps(function)
    def twin(*args: P.args, **kwargs: P.kwargs) -> Scan:
        return Scan(function(*args, **kwargs))

    twin.__module__ = "mqstore.aio"
    return twin


scan = _twin(mqstore.scan)
Scan.__module__ = "mqstore.aio"


async def _in_thread(call: Callable[[], T]) -> T:
    return await asyncio.to_thread(context_for_thread().run, call)
