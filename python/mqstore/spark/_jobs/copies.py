"""A copy of a store that a job changes before the copy gets its name.

::

    <parent>/.<name>.<job>/store/                 the copy, renamed to <parent>/<name> at the end
    <parent>/.<name>.<job>/attempts/task-.../<n>  file n of the listing, written by one attempt of a task

The folder is locked while its driver lives. The next driver with this job replaces what a killed one left.

A task copies whole files in the versions of the driver's listing, and only into the folder of its attempt. The driver
moves them to the copy. So a lost attempt that still runs cannot write into the copy.
"""

from __future__ import annotations

import json
import secrets
import shutil
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from mqstore import _native
from mqstore._admin.directories import must_be_new
from mqstore._admin.files import locked_folder
from mqstore._paths import is_url, shown_url
from mqstore._remote.failure import requests
from mqstore._remote.place import pinned
from mqstore._store import opened
from mqstore.errors import MQStoreError, NotAStoreError, UnsupportedFormatError
from mqstore.spark._jobs.rounds import Call, Rounds, balanced
from mqstore.spark._locks import SAME_PATH

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mqstore._remote.failure import Row

_TASK_BYTES = 512 << 20
"""Approximate bytes of small files for one task."""

# As in a copy of a directory: `rust/mqstore-inspect/src/copy.rs`; and the folders of other Spark jobs.
_LEFT_OUT = [PurePosixPath("mqstore", name) for name in ("live", "tmp", "jobs", "restore", "spark/jobs")]


@contextmanager
def staged(output: str, job_id: str | None) -> Iterator[Path]:
    """Yields a folder for a copy. Without an error, its folder `store` gets the name `output` at the end.

    Raises:
        FileExistsError: `output` exists.
        StoreBusyError: another driver writes this copy under the same name of the job.
    """
    target = Path(output)
    must_be_new(output)
    staging = target.with_name(f".{target.name}.{job_id or secrets.token_hex(8)}")
    with locked_folder(staging):
        try:
            for left in staging.iterdir():
                shutil.rmtree(left)
            yield staging
            must_be_new(output)
            _native.publish_folder(staging / "store", target)
        finally:
            shutil.rmtree(staging, ignore_errors=True)


class Source:
    """The store that a job copies: a directory, or a URL whose files are listed when this object is created."""

    def __init__(self, place: str, storage: dict[str, Any], topics: list[str]) -> None:
        """Lists the files of a URL, and checks that its store has these topics, before anything is copied."""
        self._place = place
        self._storage = storage
        self._listing = b""
        self._files: dict[int, Row] = {}
        if is_url(place):
            self._list(topics)

    @property
    def size(self) -> int:
        """Bytes that tasks copy; the driver copies a directory."""
        return sum(row[1] for row in self._files.values())

    def for_task(self) -> tuple[str, dict[str, Any], bytes, list[int]]:
        """Returns place, storage options, listing (empty for a directory) and the numbers of the files of the copy."""
        return self._place, self._storage, self._listing, list(self._files)

    def copy(self, staging: Path, rounds: Rounds, tasks: int) -> str:
        """Copies the store into the folder `store` of `staging`, with about this number of tasks. Returns its path."""
        store, attempts = staging / "store", staging / "attempts"
        if not is_url(self._place):
            _native.copy_store(self._place, str(store), None)
            return str(store)
        store.mkdir()
        attempts.mkdir()
        calls = []
        numbers = list(self._files)
        sizes = [self._files[number][1] for number in numbers]
        width = min(len(numbers), max(tasks, -(-sum(sizes) // _TASK_BYTES)))
        for share in balanced(sizes, width):
            own = [numbers[at] for at in share]
            arguments = (self._place, self._storage, self._listing, own)
            calls.append(Call("copy_files", arguments, str(attempts), sum(sizes[at] for at in share)))
        for answer in rounds.run(calls):
            found = json.loads(answer)
            for number in found["files"]:
                path = store / self._files[number][0]
                path.parent.mkdir(parents=True, exist_ok=True)
                written = Path(found["folder"], str(number))
                if not written.exists():
                    msg = f"{written}: a task has written this file, and the driver does not find it; {SAME_PATH}"
                    raise MQStoreError(msg)
                _native.publish_file(written, path)
        return str(store)

    def _list(self, topics: list[str]) -> None:
        shown = shown_url(self._place)
        place, source = pinned(self._place, self._storage)
        with requests(shown, "list"):
            rows = source.files()
        self._listing = source.listing()
        for number, row in enumerate(rows):
            path = PurePosixPath(row[0])
            if path.is_absolute() or ".." in path.parts or "\0" in row[0]:
                raise UnsupportedFormatError(
                    f"{shown}/{row[0]}", "the name of the object leaves the folder of the store"
                )
            if not any(path == one or one in path.parents for one in _LEFT_OUT):
                self._files[number] = row
        names = {row[0] for row in self._files.values()}
        if "mqstore/paths" in names:
            raise UnsupportedFormatError(shown, "the log is in separate folders; copy them by hand")
        if not any(name.startswith(("commitlog/", "compaction/")) for name in names):
            raise NotAStoreError(shown, "it has neither a commitlog nor a compaction folder")
        with opened(place, "r", None, {}) as store:
            for topic in topics:
                store.queues(topic)
