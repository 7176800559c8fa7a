"""What the tasks of the jobs do; runs on the executors.

Each takes plain values and answers with plain values.
"""

from __future__ import annotations

import os
import secrets
import time
from pathlib import Path
from typing import Any

import mqstore
from mqstore._export import sync_folder
from mqstore.errors import StoreLockedError
from mqstore.spark._rows import rows

_LOCK_WAIT_SECONDS = 60.0


def verify(path: str) -> dict[str, Any]:
    """Checks a store."""
    return mqstore.verify(path).to_dict()


def rebuild(path: str, dry_run: bool) -> dict[str, Any]:
    """Rebuilds a store's derived files; a second attempt waits for the first, and makes the same files again."""
    until = time.monotonic() + _LOCK_WAIT_SECONDS
    while True:
        try:
            return mqstore.rebuild(path, dry_run=dry_run).to_dict()
        except StoreLockedError:
            if time.monotonic() >= until:
                raise
            time.sleep(0.1)


def export(options: dict[str, Any], part: list[Any], folder: str, number: int, kind: str) -> dict[str, Any]:
    """Writes a part of a read to a file of its own; its name, rows and bytes."""
    import pyarrow as pa

    from mqstore._export import _GROUP_BYTES, _writer

    home = Path(folder)
    path = home / f"{number:05d}-{secrets.token_hex(8)}.{kind}"
    part[1] = [tuple(each) for each in part[1]]
    batches = rows(options, tuple(part))
    first = next(batches)
    count = 0
    with _writer(kind, path, first.schema) as write:
        group: list[pa.RecordBatch] = []
        for batch in batches:
            group.append(batch)
            count += batch.num_rows
            if sum(each.nbytes for each in group) >= _GROUP_BYTES:
                write(pa.Table.from_batches(group))
                group.clear()
        if group:
            write(pa.Table.from_batches(group))
    with path.open("rb") as file:
        os.fsync(file.fileno())
    sync_folder(home)
    return {"file": path.name, "rows": count, "bytes": path.stat().st_size}
