"""Files of columns: Parquet and Arrow. Their directory is at the end, so an interrupted file cannot be continued."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mqstore import _extras

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_REPEATED = [
    "store", "topic", "queue_id", "tags", "properties.key_value.key", "flag", "sys_flag", "born_host", "store_host",
    "reconsume_times",
]  # fmt: skip
"""Parquet columns with a dictionary. For columns whose values differ in each row, a dictionary only costs time."""

# Bytes of columns in a row group.
_GROUP_BYTES = 32 << 20


@contextmanager
def _writer(kind: str, path: Path, schema: Any) -> Iterator[Callable[[Any], None]]:
    """Opens a Parquet or Arrow file and yields its function for tables."""
    if kind == "parquet":
        parquet = _extras.module("pyarrow.parquet", "arrow")
        with parquet.ParquetWriter(str(path), schema, compression="zstd", use_dictionary=_REPEATED) as writer:
            yield writer.write_table
    else:
        ipc = _extras.module("pyarrow.ipc", "arrow")
        options = ipc.IpcWriteOptions(compression="zstd")
        with ipc.new_file(str(path), schema, options=options) as writer:
            yield writer.write_table


def write_part(kind: str, path: Path, table: Any) -> None:
    """Writes a table to a new file."""
    with _writer(kind, path, table.schema) as write:
        rows = max(1, _GROUP_BYTES * table.num_rows // max(table.nbytes, 1))
        for at in range(0, table.num_rows, rows):
            write(table.slice(at, rows))


@contextmanager
def column_file(kind: str, path: Path, schema: Any) -> Iterator[Callable[[Any], None]]:
    """Opens a Parquet or Arrow file and yields its function for batches, which it groups. The caller syncs the file."""
    group: list[Any] = []
    held = 0
    with _writer(kind, path, schema) as write:

        def flush() -> None:
            nonlocal held
            write(_extras.pyarrow().Table.from_batches(group))
            group.clear()
            held = 0

        def add(batch: Any) -> None:
            nonlocal held
            group.append(batch)
            held += batch.nbytes
            if held >= _GROUP_BYTES:
                flush()

        yield add
        if group:
            flush()
