"""Partitions of an export: folders with values of columns in their names, which the files then do not have.

::

    topic=orders/day=2026-11-28/part-00000.parquet
    topic=orders/day=2026-11-29/part-00001.parquet

Names and values are those of Hive: a null is `__HIVE_DEFAULT_PARTITION__`; most ASCII characters are encoded (`%20`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from mqstore import _extras
from mqstore.errors import InvalidOptionError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

# Columns of partitions, and the columns of a scan that they come from. Days and hours are in UTC.
_SOURCES = {
    "topic": "topic",
    "queue_id": "queue_id",
    "tags": "tags",
    "day": "store_timestamp",
    "hour": "store_timestamp",
}
_NULL = "__HIVE_DEFAULT_PARTITION__"
_ENCODED = re.compile(r"[^A-Za-z0-9._\-\xa0-\U0010ffff]")
_MOST_NAME = 255


class Partitions:
    """The partition columns of an export, and the columns of its files."""

    def __init__(self, partition_by: str | Iterable[str] | None, columns: Iterable[str] | None) -> None:
        """Takes arguments of `export`.

        Raises:
            InvalidOptionError: a partition column does not exist or comes twice, or no column is left for the files.
        """
        if partition_by is None:
            self.names: tuple[str, ...] = ()
        else:
            self.names = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
        for name in self.names:
            if name not in _SOURCES or self.names.count(name) > 1:
                if name in _SOURCES:
                    reason = f"the partition column {name!r} comes twice"
                else:
                    reason = f"there is no partition column {name!r}; choose from {', '.join(_SOURCES)}"
                raise InvalidOptionError("partition_by", reason)
        self.columns = columns
        """The columns of a scan; None is all."""
        self.left_out = set(self.names)
        """The columns of a scan that the files do not have."""
        if self.names and columns is not None and not isinstance(columns, str):
            wanted = list(columns)
            added = {_SOURCES[name] for name in self.names}.difference(wanted)
            self.left_out |= added
            if self.left_out.issuperset(wanted):
                raise InvalidOptionError("columns", "the files have no column; name one that is not in partition_by")
            self.columns = [*wanted, *sorted(added)]

    def split(self, table: Any) -> Iterator[tuple[str, Any]]:
        """Yields each folder and its rows, in their order; "" without partitions, and for a table without rows."""
        rows = table.drop_columns([name for name in table.column_names if name in self.left_out])
        if not self.names or not table.num_rows:
            yield "", rows
            return
        pyarrow, compute = _extras.pyarrow(), _extras.module("pyarrow.compute", "arrow")
        keys = pyarrow.table({name: _values(name, table[_SOURCES[name]]) for name in self.names})
        by = [(name, "ascending") for name in self.names]
        count = (self.names[0], "count", compute.CountOptions(mode="all"))
        folders = keys.group_by(list(self.names), use_threads=False).aggregate([count]).sort_by(by).to_pylist()
        # Rows with equal values keep their order.
        order = compute.sort_indices(keys, sort_keys=by)
        rows = rows.combine_chunks()
        start = 0
        for folder in folders:
            size = folder[f"{self.names[0]}_count"]
            yield "/".join(_folder(name, folder[name]) for name in self.names), rows.take(order.slice(start, size))
            start += size


def _values(name: str, column: Any) -> Any:
    """Returns the values of a partition column as texts."""
    pyarrow = _extras.pyarrow()
    if name in ("day", "hour"):
        compute = _extras.module("pyarrow.compute", "arrow")
        column = column.cast(pyarrow.timestamp("us"))
        if name == "hour":
            return compute.utf8_lpad(compute.hour(column).cast(pyarrow.string()), 2, "0")
        column = column.cast(pyarrow.date32())
    return column.cast(pyarrow.string())


def _folder(name: str, value: str | None) -> str:
    text = _ENCODED.sub(lambda found: f"%{ord(found[0]):02X}", value) if value else _NULL
    folder = f"{name}={text}"
    if len(folder.encode()) > _MOST_NAME:
        reason = f"{folder[:40]}... is longer than {_MOST_NAME} bytes, the most of a folder's name; leave out {name}"
        raise InvalidOptionError("partition_by", reason)
    return folder


def values_of(path: Path) -> dict[str, Any]:
    """Returns the values in the names of the folders of a file, as columns of an export."""
    found: dict[str, Any] = {}
    for folder in path.parents:
        name, mark, text = folder.name.partition("=")
        if not mark:
            break
        value = None if text == _NULL else unquote(text)
        if name in _SOURCES:
            found[name] = int(value) if name == "queue_id" and value and value.isdecimal() else value
    return found
