"""The rows of several stores, one store after another, with the column `store`."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING, Any, ClassVar

from mqstore import _extras, _native
from mqstore._paths import is_url, text_of
from mqstore._read.on_error import FAILURES, can_be_skipped, check_on_error, error_text
from mqstore._remote.glob import expanded, is_pattern, shown
from mqstore._remote.place import CACHE_BYTES, place_of
from mqstore._warn import warn
from mqstore.errors import InvalidOptionError

if TYPE_CHECKING:
    from collections.abc import Collection, Generator, Mapping, Sequence

    import pyarrow as pa

    from mqstore.types import StorePath

COLUMN = "store"
"""Name of the column with the place of each row."""


class RowSource:
    """A source of rows that is not one pass of the native scan."""

    __slots__ = ()

    adds_columns: ClassVar[bool] = False
    """Whether the rows have columns that the native scan does not know; then `schema` adds them."""

    def native_request(self, request: dict[str, Any]) -> dict[str, Any]:
        """Returns the request without the columns that this source adds."""
        return request

    def schema(self, found: pa.Schema, request: dict[str, Any]) -> pa.Schema:
        """Returns the columns of the rows; `found` are those of the native scan."""
        raise NotImplementedError

    def batches(self, request: dict[str, Any]) -> Generator[pa.RecordBatch]:
        """Yields the rows of one pass."""
        raise NotImplementedError


class Stores(RowSource):
    """The places of several stores. Only the store that is being read is open."""

    __slots__ = ("_cache", "_cache_size", "_on_error", "_options", "_paths", "failures", "only")

    adds_columns = True

    def __init__(
        self,
        paths: list[StorePath],
        storage_options: Mapping[str, Any] | None = None,
        cache: StorePath | None = None,
        cache_size: int = CACHE_BYTES,
        *,
        on_error: str = "raise",
    ) -> None:
        texts = [text_of(path) for path in paths]
        if not texts:
            raise ValueError("path is an empty list: give at least one store")
        if not any(is_url(text) for text in texts):
            for name, value in (("storage_options", storage_options), ("cache", cache)):
                if value is not None:
                    raise InvalidOptionError(name, "only for a store at a URL, and all stores are directories")
        self._paths = paths
        self._options = storage_options
        self._cache = cache
        self._cache_size = cache_size
        self._on_error = on_error
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

    def native_request(self, request: dict[str, Any]) -> dict[str, Any]:
        """Returns the request without the column `store`."""
        return without_columns(request, (COLUMN,))

    def schema(self, found: pa.Schema, request: dict[str, Any]) -> pa.Schema:
        """Adds the column `store`."""
        return schema_with_columns(found, request, self._fields())

    def _fields(self) -> list[pa.Field]:
        pyarrow = _extras.pyarrow()
        return [pyarrow.field(COLUMN, pyarrow.dictionary(pyarrow.int32(), pyarrow.string()))]

    def narrowed(self, place: str) -> Stores:
        """Returns the same stores; a pass reads only those at one place. Failures are noted in this object."""
        found = Stores(self._paths, self._options, self._cache, self._cache_size, on_error=self._on_error)
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
                with closing(batches_of(self._place(path), self.native_request(request))) as found:
                    for rows in found:
                        indices = pyarrow.repeat(pyarrow.scalar(numbers[name], pyarrow.int32()), rows.num_rows)
                        place = pyarrow.DictionaryArray.from_arrays(indices, values)
                        yield with_columns(rows, self.schema(rows.schema, request), {COLUMN: place})
            except FAILURES as error:
                if name not in str(error):
                    error.add_note(f"while reading the store {name}")
                if not can_be_skipped(error, self._on_error):
                    raise
                # The frames of the traceback would keep the store open.
                self.failures.append((name, error.with_traceback(None)))
                text = f"the rest of a store is skipped: {error_text(name, error)}"
                warn(text)

    def _place(self, path: StorePath) -> str | _native.RemoteDirectory:
        if is_url(text_of(path)):
            return place_of(path, self._options, self._cache, self._cache_size)
        return text_of(path)


def stores_of(path: Any, *options: Any, on_error: str) -> Stores | None:
    """Returns the stores of a list or a pattern; None for one plain place. `options` are those of `Stores`.

    Raises:
        InvalidOptionError: `on_error` is unknown, or is "skip" for one plain place.
    """
    is_list = isinstance(path, list | tuple)
    are_several = is_list or is_pattern(path)
    check_on_error(on_error, are_several)
    return Stores(list(path) if is_list else [path], *options, on_error=on_error) if are_several else None


def without_columns(request: dict[str, Any], names: Collection[str]) -> dict[str, Any]:
    """Returns the request for the native scan, without the columns with these names."""
    columns = request["columns"]
    if columns is None:
        return request
    found = [name for name in columns if name not in names]
    # A batch without columns has no number of rows.
    return {**request, "columns": found or ["queue_id"]}


def with_columns(rows: pa.RecordBatch, schema: pa.Schema, added: Mapping[str, Any]) -> pa.RecordBatch:
    """Returns rows with these columns: those in `added`, and those of `rows`."""
    others = dict(zip(rows.schema.names, rows.columns, strict=True))
    found = [added[name] if name in added else others[name] for name in schema.names]
    return _extras.pyarrow().RecordBatch.from_arrays(found, schema=schema)


def schema_with_columns(schema: pa.Schema, request: dict[str, Any], added: Sequence[pa.Field]) -> pa.Schema:
    """Adds columns to the schema of a native scan: where the request names them, otherwise as the first ones."""
    columns = schema.names if request["columns"] is None else request["columns"]
    fields = {field.name: field for field in (*schema, *added)}
    first = [field.name for field in added if field.name not in columns]
    return _extras.pyarrow().schema([fields[name] for name in (*first, *columns)])


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
