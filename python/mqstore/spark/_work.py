"""What the tasks of the jobs do; runs on the executors.

Each takes plain values and answers with plain values.
"""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import mqstore
from mqstore._export import column_file, sync_folder
from mqstore.spark._locks import once_unlocked
from mqstore.spark._rows import rows

_LOCK_WAIT_SECONDS = 60.0


def verify(path: str) -> dict[str, Any]:
    """Checks a store."""
    return mqstore.verify(path).to_dict()


def rebuild(path: str, dry_run: bool) -> dict[str, Any]:
    """Rebuilds a store's derived files; a second attempt waits for the first, and makes the same files again."""
    return once_unlocked(lambda: mqstore.rebuild(path, dry_run=dry_run).to_dict(), _LOCK_WAIT_SECONDS)


def export(options: dict[str, Any], part: list[Any], folder: str, number: int, kind: str) -> dict[str, Any]:
    """Writes a part of a read to a file of its own; its name, rows and bytes."""
    home = Path(folder)
    path = home / f"{number:05d}-{secrets.token_hex(8)}.{kind}"
    part[1] = [tuple(each) for each in part[1]]
    batches = rows(options, tuple(part))
    first = next(batches)
    count = 0
    with column_file(kind, path, first.schema) as write:
        for batch in batches:
            write(batch)
            count += batch.num_rows
    sync_folder(home)
    return {"file": path.name, "rows": count, "bytes": path.stat().st_size}
