"""`fetch` and `published`: readers of the results at URLs.

`fetch` assembles a directory under another name. Every file is compared with its digest and synced before the
directory gets its name:

::

    DIR.partial/             complete files, which a later call keeps, and one that is not
    DIR.mapping.jsonl        only for an export to a store: old and new positions
    DIR                      DIR.partial, when all files are complete and synced
"""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqstore import _native
from mqstore._admin.files import disk_of, locked_folder
from mqstore._paths import home_of, object_path, shown_url, url_of_result
from mqstore._publish.publication import digest_of
from mqstore._remote.failure import RequestFailure, requests
from mqstore._remote.manifest import FOLDER, Entry, Manifest, manifest_in, missing
from mqstore._remote.place import object_transport_of
from mqstore._reports import FetchReport, Progress, PublishedFile, PublishedResult
from mqstore.errors import ResultNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from mqstore._remote.failure import Range
    from mqstore.types import StorePath

# Requests at the same time, and bytes of each.
_REQUESTS = 8
_RANGE_BYTES = 4 << 20


def published(url: str, *, storage_options: Mapping[str, Any] | None = None) -> PublishedResult:
    """Returns the list of the objects of a result that was written to a URL.

    Other programs read these objects: `pyarrow.dataset.dataset`, `polars.read_parquet` and DuckDB's `read_parquet`
    accept a list. All other objects below the URL are of attempts that failed.

    Args:
        url: the URL that the result was written to.
        storage_options: credentials and settings of the transport, see `mqstore.open`.

    Raises:
        ResultNotFoundError: no result is published at the URL.
        CorruptionError: the manifest is damaged, or an object that it names is missing or has another length.
        StorePermissionError, StoreIOError: a request failed.
    """
    found = _Result(url, storage_options)
    files = tuple(
        PublishedFile(one.path, object_path(found.shown, f"{FOLDER}/{one.object}"), one.bytes, one.zeros, one.sha256)
        for one in found.manifest.files
    )
    return PublishedResult(
        url=found.shown,
        format=found.manifest.format,
        created_timestamp=found.manifest.created_ms,
        bytes=sum(one.bytes for one in files),
        files=files,
    )


def fetch(
    url: str,
    directory: StorePath,
    *,
    progress: Callable[[Progress], object] | None = None,
    storage_options: Mapping[str, Any] | None = None,
) -> FetchReport:
    """Assembles a local directory from a result at a URL: a store, or a folder of files.

    The length and the digest of each file are compared with the manifest. The directory gets its name when all files
    are complete and synced; a broker can open a store then. Until then it is `DIR.partial`. Call an interrupted fetch
    again to resume it: complete files are kept.

    Args:
        url: the URL that the result was written to.
        directory: the directory; it must not exist, or be empty.
        progress: callback with bytes of the objects; an exception in it interrupts the fetch.
        storage_options: credentials and settings of the transport, see `mqstore.open`.

    Returns:
        The report.

    Raises:
        FileExistsError: the directory is not empty.
        ResultNotFoundError: no result is published at the URL.
        CorruptionError: the manifest is damaged, an object is missing, or its bytes do not match the manifest.
        StoreChangedError: an object was replaced during the call.
        StorePermissionError, StoreIOError: a request failed.
        StoreBusyError: another fetch writes the same directory.
        DiskFullError: no space for the directory. The files that are complete are kept for the next call.
    """
    started = time.monotonic()
    home = Path(home_of(directory, "fetch to it"))
    if home.is_symlink() or (home.exists() and not (home.is_dir() and not any(home.iterdir()))):
        raise FileExistsError(f"{home}: exists already and is not empty; choose a new directory")
    found = _Result(url, storage_options)
    manifest = found.manifest
    mapping = Path(f"{home}.mapping.jsonl")
    if manifest.mapping is not None and mapping.exists() and not _is_complete(mapping, manifest.mapping):
        raise FileExistsError(f"{mapping}: exists already; choose another directory")
    partial = Path(f"{home}.partial")
    with locked_folder(partial), disk_of(partial, "fetching the result"):
        kept = _tidy(partial, manifest)
        done = sum(entry.bytes for entry in kept)
        total = sum(entry.bytes for entry in manifest.objects())
        for folder in (*manifest.folders, *{os.path.dirname(one.path) for one in manifest.files}):  # noqa: PTH120
            (partial / folder).mkdir(parents=True, exist_ok=True)
        wanted = [(entry, partial / entry.path) for entry in manifest.files if entry not in kept]
        new_mapping = Path(f"{home}.partial.mapping")
        if manifest.mapping is not None:
            wanted.append((manifest.mapping, new_mapping))
        for count in found.fetched(wanted):
            done += count
            if progress is not None:
                progress(Progress(done, total))
        if manifest.mapping is not None:
            _native.publish_file(new_mapping, mapping)
        _native.publish_folder(partial, home)
    return FetchReport(
        url=found.shown,
        path=str(home),
        format=manifest.format,
        files=len(manifest.files),
        bytes=total,
        kept=len(kept),
        seconds=round(time.monotonic() - started, 3),
    )


class _Result:
    """A published result and its transport."""

    def __init__(self, url: str, storage_options: Mapping[str, Any] | None) -> None:
        text = url_of_result(url)
        self.shown = shown_url(text)
        self._source = object_transport_of(text, storage_options)
        with requests(self.shown, "read the result"):
            rows = self._source.files()
            manifest = manifest_in(self._source, rows)
            if manifest is None:
                raise ResultNotFoundError(self.shown)
            sizes = {row[0]: row[1] for row in rows}
            for entry in manifest.objects():
                if failure := missing(entry, sizes):
                    raise failure
        self.manifest: Manifest = manifest
        self._versions = {row[0]: row[3] for row in rows}

    def fetched(self, wanted: list[tuple[Entry, Path]]) -> Iterator[int]:
        """Writes objects to local files and compares them. Yields the bytes of each step."""
        ranges = self._ranges(wanted)
        with requests(self.shown, "fetch the result"):
            current: _File | None = None
            try:
                while group := list(islice(ranges, _REQUESTS)):
                    parts = iter(self._source.read([one for _, one in group if one[3]]))
                    for (entry, file), one in group:
                        if current is None or current.entry is not entry:
                            current = _File(entry, file)
                        current.add(next(parts) if one[3] else b"", one)
                    yield sum(one[3] for _, one in group)
            finally:
                if current is not None:
                    current.close()

    def _ranges(self, wanted: list[tuple[Entry, Path]]) -> Iterator[tuple[tuple[Entry, Path], Range]]:
        for entry, file in wanted:
            path = f"{FOLDER}/{entry.object}"
            for start in range(0, max(entry.bytes, 1), _RANGE_BYTES):
                yield (entry, file), (path, self._versions[path], start, min(_RANGE_BYTES, entry.bytes - start))


class _File:
    """A local file in progress."""

    def __init__(self, entry: Entry, path: Path) -> None:
        self.entry = entry
        self._file = path.open("wb")
        self._digest = hashlib.sha256()

    def add(self, part: bytes, wanted: Range) -> None:
        """Writes the next bytes. The last ones complete the file."""
        path, _, start, length = wanted
        if len(part) != length:
            reason = f"{length:,} bytes were requested and {len(part):,} returned: try again"
            raise RequestFailure("other", path, reason)
        self._digest.update(part)
        self._file.write(part)
        if start + length < self.entry.bytes:
            return
        if self._digest.hexdigest() != self.entry.sha256:
            raise RequestFailure("damaged", path, "the object does not match its digest in the manifest")
        self._file.truncate(self.entry.length)
        self._file.close()

    def close(self) -> None:
        self._file.close()


def _tidy(folder: Path, manifest: Manifest) -> list[Entry]:
    """Removes everything from a folder except complete files of the result. Returns these files."""
    entries = {entry.path: entry for entry in manifest.files}
    kept = []
    for inner, folders, files in os.walk(folder):
        for name in files:
            path = Path(inner, name)
            entry = entries.get(path.relative_to(folder).as_posix())
            if entry is not None and not path.is_symlink() and _is_complete(path, entry):
                kept.append(entry)
            else:
                path.unlink()
        for name in list(folders):
            path = Path(inner, name)
            if path.is_symlink() or path.relative_to(folder).as_posix() in entries:
                folders.remove(name)
                path.unlink() if path.is_symlink() else shutil.rmtree(path)
    return kept


def _is_complete(path: Path, entry: Entry) -> bool:
    """Returns whether a file of an earlier call is complete."""
    return path.stat().st_size == entry.length and digest_of(path, entry.bytes) == entry.sha256


for _function in (fetch, published):
    _function.__module__ = "mqstore"
del _function
