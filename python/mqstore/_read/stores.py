"""The rows of several stores, one store after another, with the column `store`."""

from __future__ import annotations

import warnings
from contextlib import closing
from typing import TYPE_CHECKING, Any

from mqstore import _extras, _native
from mqstore._paths import is_url, text_of
from mqstore._remote.glob import expanded, is_pattern, shown
from mqstore._remote.place import CACHE_BYTES, place_of
from mqstore.errors import InvalidFilterError, InvalidOptionError, MQStoreError, StoreWarning

if TYPE_CHECKING:
    from collections.abc import Generator, Mapping

    import pyarrow as pa

    from mqstore.types import StorePath

COLUMN = "store"
"""Name of the column with the place of each row."""


class RowSource:
    """A source of rows that is not one pass of the native scan."""

    __slots__ = ()

    def batches(self, request: dict[str, Any]) -> Generator[pa.RecordBatch]:
        """Yields the rows of one pass."""
        raise NotImplementedError


class Stores(RowSource):
    """The places of several stores. Only the store that is being read is open."""

    __slots__ = ("_cache", "_cache_size", "_options", "_paths", "_skips", "failures", "only")

    def __init__(
        self,
        paths: list[StorePath],
        storage_options: Mapping[str, Any] | None = None,
        cache: StorePath | None = None,
        cache_size: int = CACHE_BYTES,
        *,
        skips: bool = False,
    ) -> None:
        texts = [text_of(path) for path in paths]
        if not texts:
            msg = "path is an empty list: give at least one store"
            raise ValueError(msg)
        if not any(is_url(text) for text in texts):
            for name, value in (("storage_options", storage_options), ("cache", cache)):
                if value is not None:
                    raise InvalidOptionError(name, "only for a store at a URL, and all stores are directories")
        self._paths = paths
        self._options = storage_options
        self._cache = cache
        self._cache_size = cache_size
        self._skips = skips
        for path in [path for path in paths if is_url(text_of(path)) and not is_pattern(path)][:1]:
            # Refuses wrong options now, not at the first use.
            self._place(path)
        # Places and errors of the stores that the newest pass skipped.
        self.failures: list[tuple[str, Exception]] = []
        # The only places that a pass reads; None is all.
        self.only: set[str] | None = None

    def __repr__(self) -> str:
        places = [shown(path) for path in self._paths]
        return repr(places[0]) if len(places) == 1 else f"{len(places)} places, the first is {places[0]!r}"

    def narrowed(self, place: str) -> Stores:
        """Returns the same stores; a pass reads only those at one place. Failures are noted in this object."""
        found = Stores(self._paths, self._options, self._cache, self._cache_size, skips=self._skips)
        found.failures = self.failures
        found.only = {place} if self.only is None else self.only & {place}
        return found

    def batches(self, request: dict[str, Any]) -> Generator[pa.RecordBatch]:
        """Yields the rows of all stores, each in turn, in the order of the list."""
        pyarrow = _extras.pyarrow()
        self.failures.clear()
        paths = expanded(self._paths, self._options)
        names = [shown(path) for path in paths]
        # All batches share one dictionary, which files and data frames need.
        numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
        values = pyarrow.array(list(numbers), pyarrow.string())
        for path, name in zip(paths, names, strict=True):
            if self.only is not None and name not in self.only:
                continue
            try:
                with closing(batches_of(self._place(path), native_request(request))) as found:
                    for rows in found:
                        indices = pyarrow.repeat(pyarrow.scalar(numbers[name], pyarrow.int32()), rows.num_rows)
                        yield with_column(rows, request, pyarrow.DictionaryArray.from_arrays(indices, values))
            except (MQStoreError, OSError) as error:
                if name not in str(error):
                    error.add_note(f"while reading the store {name}")
                # The same argument would fail for every store.
                if not self._skips or isinstance(error, InvalidOptionError | InvalidFilterError):
                    raise
                # The frames of the traceback would keep the store open.
                self.failures.append((name, error.with_traceback(None)))
                text = str(error) if name in str(error) else f"{name}: {error}"
                warnings.warn(f"the rest of a store is skipped: {text}", StoreWarning, stacklevel=4)

    def _place(self, path: StorePath) -> str | _native.RemoteDirectory:
        if is_url(text_of(path)):
            return place_of(path, self._options, self._cache, self._cache_size)
        return text_of(path)


def stores_of(path: Any, *options: Any, on_error: str) -> Stores | None:
    """Returns the stores of a list or a pattern; None for one plain place. `options` are those of `Stores`.

    Raises:
        InvalidOptionError: `on_error` is unknown, or is "skip" for one plain place.
    """
    if on_error not in ("raise", "skip"):
        raise InvalidOptionError("on_error", f'{on_error!r} is not one of "raise", "skip"')
    if isinstance(path, list | tuple):
        return Stores(list(path), *options, skips=on_error == "skip")
    if is_pattern(path):
        return Stores([path], *options, skips=on_error == "skip")
    if on_error == "skip":
        raise InvalidOptionError("on_error", '"skip" is for a list or a pattern of stores, and this is one store')
    return None


def native_request(request: dict[str, Any]) -> dict[str, Any]:
    """Returns the request for each single store, without the column `store`."""
    columns = request["columns"]
    if columns is None:
        return request
    found = [name for name in columns if name != COLUMN]
    # A batch without columns has no number of rows.
    return {**request, "columns": found or ["queue_id"]}


def with_column(rows: pa.RecordBatch, request: dict[str, Any], column: Any) -> pa.RecordBatch:
    """Adds the column `store` to rows: where the request names it, otherwise as the first one."""
    schema = schema_with_column(rows.schema, request)
    others = dict(zip(rows.schema.names, rows.columns, strict=True))
    return _extras.pyarrow().RecordBatch.from_arrays(
        [column if name == COLUMN else others[name] for name in schema.names], schema=schema
    )


def schema_with_column(schema: pa.Schema, request: dict[str, Any]) -> pa.Schema:
    """Adds the column `store` to the schema of a single store."""
    pyarrow = _extras.pyarrow()
    columns = request["columns"]
    field = pyarrow.field(COLUMN, pyarrow.dictionary(pyarrow.int32(), pyarrow.string()))
    if columns is not None and not set(columns) - {COLUMN}:
        return pyarrow.schema([field])
    return schema.insert(columns.index(COLUMN) if columns is not None and COLUMN in columns else 0, field)


def open_stream(source: Any, request: dict[str, Any]) -> _native.ScanStream:
    """Starts one pass over one store."""
    _native.watch_forks()
    if isinstance(source, _native.RemoteDirectory):
        # Includes the files that exist now.
        source = source.again()
    return _native.scan_open(source, request)


def batches_of(source: Any, request: dict[str, Any]) -> Generator[pa.RecordBatch]:
    """Yields the rows of one pass over one store."""
    pyarrow = _extras.pyarrow()
    stream = open_stream(source, request)
    try:
        for rows in stream:
            yield pyarrow.record_batch(rows)
    finally:
        stream.close()
