"""Copies of files of a store at a URL, by tasks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from mqstore import _native
from mqstore._paths import shown_url
from mqstore._remote.failure import RequestFailure, requests
from mqstore._remote.pinned import unpacked
from mqstore._remote.place import pinned
from mqstore.errors import MQStoreError
from mqstore.spark._locks import SAME_PATH

if TYPE_CHECKING:
    from mqstore._remote.failure import Part
    from mqstore.spark._jobs.progress import Tell

_READ_BYTES = 4 << 20
"""Bytes of one request."""

_REQUESTS = 4
"""Requests at the same time."""

_ZEROS = bytes(64 << 10)


def copy_files(
    attempt: str, tell: Tell | None, url: str, storage: dict[str, Any], listing: bytes, chosen: list[int]
) -> bytes:
    """Copies files of a listing into the folder of the attempt; runs in the tasks. Returns the folder and the files."""
    folder = Path(attempt)
    try:
        folder.mkdir(exist_ok=True)
    except FileNotFoundError:
        msg = f"{folder.parent}: the driver has made this folder, and it does not exist here; {SAME_PATH}"
        raise MQStoreError(msg) from None
    download(url, storage, listing, {number: folder / str(number) for number in chosen}, tell)
    return json.dumps({"folder": str(folder), "files": chosen}).encode()


def download(url: str, storage: dict[str, Any], listing: bytes, paths: dict[int, Path], tell: Tell | None) -> None:
    """Copies files of a listing, in its versions, to new local files in existing folders, and syncs the files.

    Args:
        url: the store.
        storage: credentials and settings of the transport.
        listing: the listing.
        paths: local path by number of the file in the listing.
        tell: called with bytes done and bytes in total.

    Raises:
        StoreChangedError: a file is no longer the one of the listing.
        StoreIOError, StorePermissionError: a request failed.
    """
    rows = unpacked(listing)
    source = pinned(url, storage, listing)[1]
    total, done = sum(rows[number][1] for number in paths), 0
    for number, path in paths.items():
        name, size, _, version = rows[number]
        with path.open("xb") as file:
            for start in range(0, size, _READ_BYTES * _REQUESTS):
                end = min(start + _READ_BYTES * _REQUESTS, size)
                starts = range(start, end, _READ_BYTES)
                wanted = [(name, version, at, min(_READ_BYTES, end - at)) for at in starts]
                with requests(shown_url(url), "read"):
                    parts = source.read(wanted)
                    for (_, _, _, length), part in zip(wanted, parts, strict=True):
                        if len(part) != length:
                            raise RequestFailure("changed", name, f"the answer has {len(part)} bytes, not {length}")
                for at, part in zip(starts, parts, strict=True):
                    _write(file, at, part)
                done += end - start
                if tell is not None:
                    tell(done, total)
            file.truncate(size)
        _native.sync_part(path)


def _write(file: IO[bytes], at: int, part: Part) -> None:
    """Writes a part, without its blocks of zeros: queue and index files are mostly empty."""
    view = memoryview(part)
    for start in range(0, len(part), len(_ZEROS)):
        block = view[start : start + len(_ZEROS)]
        if block != _ZEROS[: len(block)]:
            file.seek(at + start)
            file.write(block)
