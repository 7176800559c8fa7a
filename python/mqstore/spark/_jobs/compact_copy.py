"""The task that makes a compacted copy of a store and uploads it: see `mqstore.spark._jobs.copy_to_url`."""

from __future__ import annotations

import json
import os
import secrets
from typing import TYPE_CHECKING, Any

from mqstore import _native
from mqstore._admin.files import scratch
from mqstore._publish.target import UPLOADS, result_target
from mqstore._remote.pinned import unpacked
from mqstore.spark._jobs.copy_files import download

if TYPE_CHECKING:
    from pathlib import Path

    from mqstore.spark._jobs.progress import Tell

ACTION = "write the copy to it"
"""The verb in errors about the target."""


def compact_copy(
    _attempt: str | None,
    tell: Tell | None,
    source: tuple[str, dict[str, Any], bytes, list[int]],
    compaction: tuple[list[str] | None, str],
    target: tuple[str, dict[str, Any], str],
) -> bytes:
    """Copies, compacts and uploads a store; runs in a task. Returns the report, the files and the empty folders."""
    url, options, attempt = target
    with scratch() as folder:
        home = folder / "store"
        _copy(home, *source, tell)
        topics, request = compaction
        report = _native.compaction_run(str(home), topics, request, _threads(), 0, None)
        prefix = f"{attempt}/{secrets.token_hex(8)}-"
        files, folders = result_target(url, options, ACTION).upload_directory(prefix, home, UPLOADS)
    done = {"report": report, "files": files, "folders": folders}
    return json.dumps(done).encode()


def _copy(
    home: Path, place: str, storage: dict[str, Any], listing: bytes, chosen: list[int], tell: Tell | None
) -> None:
    """Copies a directory, or these files of the listing of a URL."""
    if not listing:
        _native.copy_store(place, str(home), None)
        return
    rows = unpacked(listing)
    paths = {number: home / rows[number][0] for number in chosen}
    for parent in {path.parent for path in paths.values()}:
        parent.mkdir(parents=True, exist_ok=True)
    download(place, storage, listing, paths, tell)


def _threads() -> int:
    """Returns the number of processors that Spark has given to this task (`spark.task.cpus`)."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return 1 if context is None else min(context.cpus(), os.cpu_count() or 1)
