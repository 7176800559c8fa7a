"""The Parquet files of an archive: columns, order, encodings, and the check of a file.

The columns have the names and types of `scan` where both have the same values. Names, types and field ids never change,
so that tables of Iceberg and Delta can use the files.
"""

from __future__ import annotations

import inspect
from functools import cache
from typing import TYPE_CHECKING, Any

from mqstore import _extras, _native

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pyarrow as pa

# Rows of a row group, and bytes of its columns. A read of one message fetches all short columns of its row group,
# which are neighbours, and one page of each long column.
_GROUP_ROWS = 8192
_GROUP_BYTES = 32 << 20

# Bytes of a page. It ends at a multiple of so many rows, or of fewer if the records are large.
_PAGE_BYTES = 64 << 10
_PAGE_STEP_ROWS = 32

LONG = ("properties_raw", "body")
"""Columns that a read fetches page by page."""

DERIVED = ("unique_id", "keys", "tags")
"""Columns for queries. A record is encoded without them, so they are after all others."""

_FALSE_POSITIVES = 0.01
_UNIQUE_IDS = "unique_id"
_KEYS = "keys.list.element"

_DICTIONARY = [
    "topic", "queue_id", "tags", "flag", "sys_flag", "reconsume_times", "prepared_transaction_offset", "born_host",
    "store_host", "magic",
]  # fmt: skip
_DELTA = ("queue_offset", "commit_log_offset", "size", "store_timestamp", "born_timestamp")

# Bounds of bodies and of raw bytes help no query.
_STATISTICS = [*_DICTIONARY, *_DELTA, _UNIQUE_IDS, _KEYS]


@cache
def schema() -> pa.Schema:
    """Returns the columns of a file of records, in the order of their places in a row group."""
    pa = _extras.pyarrow()
    time = pa.timestamp("us", "UTC")

    def field(number: int, name: str, kind: Any) -> Any:
        return pa.field(name, kind, metadata={"PARQUET:field_id": str(number)})

    columns = [
        field(1, "topic", pa.string()),
        field(2, "queue_id", pa.int32()),
        field(3, "queue_offset", pa.int64()),
        field(4, "commit_log_offset", pa.int64()),
        field(5, "size", pa.int32()),
        field(6, "store_timestamp", time),
        field(7, "born_timestamp", time),
        field(11, "flag", pa.int32()),
        field(12, "sys_flag", pa.int32()),
        field(13, "reconsume_times", pa.int32()),
        field(14, "prepared_transaction_offset", pa.int64()),
        field(15, "born_host", pa.string()),
        field(16, "store_host", pa.string()),
        field(17, "body_crc", pa.int32()),
        field(18, "magic", pa.int32()),
        field(21, "raw", pa.binary()),
        field(19, "properties_raw", pa.binary()),
        field(20, "body", pa.binary()),
        field(8, "unique_id", pa.string()),
        field(9, "keys", pa.list_(pa.field("element", pa.string(), metadata={"PARQUET:field_id": "100"}))),
        field(10, "tags", pa.string()),
    ]
    return pa.schema(columns)


@cache
def has_bloom_filters() -> bool:
    """Returns whether the installed pyarrow can write Bloom filters."""
    writer = _extras.module("pyarrow.parquet", "arrow").ParquetWriter
    return "bloom_filter_options" in inspect.signature(writer.__init__).parameters


def write_rows(path: Path, rows: pa.Table, order: Any, level: int, facts: dict[str, str]) -> None:
    """Writes records of one topic to a new file.

    Args:
        path: the file.
        rows: records with the columns of the native scan.
        order: the numbers of the rows of the file, in its order; None is all rows in their order.
        level: compression level of zstd.
        facts: texts for the footer, by name.
    """
    parquet = _extras.module("pyarrow.parquet", "arrow")
    wanted = schema()
    count = rows.num_rows if order is None else len(order)
    step = max(1, min(_GROUP_ROWS, _GROUP_BYTES * rows.num_rows // max(rows.nbytes, 1)))
    with parquet.ParquetWriter(str(path), wanted, **_options(rows, level, min(step, count))) as writer:
        for at in range(0, count, step):
            group = rows.slice(at, step) if order is None else rows.take(order.slice(at, step))
            columns = [group.column(name) for name in wanted.names]
            writer.write_table(_extras.pyarrow().Table.from_arrays(columns, schema=wanted), row_group_size=step)
        writer.add_key_value_metadata(facts)


def _options(rows: pa.Table, level: int, group_rows: int) -> dict[str, Any]:
    parquet = _extras.module("pyarrow.parquet", "arrow")
    found: dict[str, Any] = {
        "compression": "zstd",
        "compression_level": level,
        "use_dictionary": _DICTIONARY,
        "column_encoding": dict.fromkeys(_DELTA, "DELTA_BINARY_PACKED"),
        "write_statistics": _STATISTICS,
        "data_page_size": _PAGE_BYTES,
        "write_batch_size": max(1, min(_PAGE_STEP_ROWS, _PAGE_BYTES * rows.num_rows // max(rows.nbytes, 1))),
        "write_page_index": True,
        "write_page_checksum": True,
        "sorting_columns": [parquet.SortingColumn(1), parquet.SortingColumn(2)],
        "store_schema": False,
    }
    if has_bloom_filters():
        compute = _extras.module("pyarrow.compute", "arrow")
        counts = {
            _UNIQUE_IDS: rows.num_rows - rows.column("unique_id").null_count,
            _KEYS: compute.sum(compute.list_value_length(rows.column("keys"))).as_py() or 0,
        }
        filters = {
            name: {"ndv": max(1, group_rows * count // max(rows.num_rows, 1)), "fpp": _FALSE_POSITIVES}
            for name, count in counts.items()
            if count
        }
        if filters:
            found["bloom_filter_options"] = filters
    return found


def write_bytes(path: Path, pieces: list[tuple[int, int, bytes]], level: int, facts: dict[str, str]) -> None:
    """Writes bytes of the log that are no records of a topic: log offset, length, and the bytes without final zeros."""
    pa, parquet = _extras.pyarrow(), _extras.module("pyarrow.parquet", "arrow")
    offsets, lengths, contents = zip(*pieces, strict=True)
    columns = {
        "commit_log_offset": pa.array(offsets, pa.int64()),
        "size": pa.array(lengths, pa.int64()),
        "raw": pa.array(contents, pa.binary()),
    }
    table = pa.table(columns).replace_schema_metadata(facts)
    parquet.write_table(table, str(path), compression="zstd", compression_level=level, use_dictionary=False)


def read_bytes(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yields the log offset and the bytes of each piece of `write_bytes`."""
    parquet = _extras.module("pyarrow.parquet", "arrow")
    with parquet.ParquetFile(str(path)) as file:
        for batch in file.iter_batches(batch_size=16):
            for row in batch.to_pylist():
                yield row["commit_log_offset"], row["raw"] + bytes(row["size"] - len(row["raw"]))


class RecordFile:
    """The rows of a file, for the native functions."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def reader(self, file: Any) -> Any:
        """Returns a stream of the rows."""
        pa = _extras.pyarrow()
        batches = file.iter_batches(batch_size=8192, columns=schema().names)
        return pa.RecordBatchReader.from_batches(file.schema_arrow, batches)

    def checksum(self) -> tuple[int, int, int]:
        """Encodes all records. Returns their number, the sum of the CRC-32 of each, and the sum of their lengths."""
        parquet = _extras.module("pyarrow.parquet", "arrow")
        with parquet.ParquetFile(str(self._path)) as file:
            return _native.archive_checksum(self.reader(file))

    def write_to(self, log: _native.ArchiveLog) -> int:
        """Writes the records to segments. Returns their number."""
        parquet = _extras.module("pyarrow.parquet", "arrow")
        with parquet.ParquetFile(str(self._path)) as file:
            return log.write_rows(self.reader(file))
