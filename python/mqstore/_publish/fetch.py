"""`fetch` and `published`: readers of the results at URLs. The native module assembles the directory."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqstore._admin.files import creating, locked_folder
from mqstore._paths import home_of, object_path, url_of_result
from mqstore._publish.target import result_source
from mqstore._reports import FetchReport, Progress, PublishedFile, PublishedResult
from mqstore._times import seconds_since

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mqstore.types import StorePath

# Requests at the same time.
_REQUESTS = 8


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
    source = result_source(url_of_result(url), storage_options)
    found = source.published()
    files = tuple(
        PublishedFile(path, object_path(source.shown, name), size, zeros, digest)
        for path, name, size, zeros, digest in found.files
    )
    return PublishedResult(
        url=source.shown,
        format=found.format,
        created_timestamp=found.created_ms,
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
        StoreChangedError: an object was removed during the call.
        StorePermissionError, StoreIOError: a request failed.
        StoreBusyError: another fetch writes the same directory.
        DiskFullError: no space for the directory. The files that are complete are kept for the next call.
    """
    started = time.monotonic()
    home = Path(home_of(directory, "fetch to it"))
    if home.is_symlink() or (home.exists() and not (home.is_dir() and not any(home.iterdir()))):
        raise FileExistsError(f"{home}: exists already and is not empty; choose a new directory")
    source = result_source(url_of_result(url), storage_options)
    found = source.published()
    mapping = Path(f"{home}.mapping.jsonl")
    if mapping.exists() and found.is_mapping(mapping) is False:
        raise FileExistsError(f"{mapping}: exists already; choose another directory")
    partial = Path(f"{home}.partial")
    paths = (partial, home, Path(f"{home}.partial.mapping"), mapping)
    tell = None if progress is None else lambda done, total: progress(Progress(done, total))
    with creating(home), locked_folder(partial):
        kept = source.fetch(found, paths, _REQUESTS, tell)
    return FetchReport(
        url=source.shown,
        path=str(home),
        format=found.format,
        files=len(found.files),
        bytes=found.object_bytes,
        kept=kept,
        seconds=seconds_since(started),
    )


for _function in (fetch, published):
    _function.__module__ = "mqstore"
del _function
