"""A transport that follows the manifest of a published store: its files have the names of the store.

The version of a file names its object, the length of the object, and the version of the object. So several processes
can read a list that one of them made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mqstore._remote.failure import RequestFailure
from mqstore._remote.manifest import FOLDER, Manifest, manifest_in, missing

if TYPE_CHECKING:
    from mqstore._remote.failure import Part, Range, Row

_MARK = "\n"


class Followed:
    """The files below a URL. Without a manifest, these are the objects themselves."""

    def __init__(self, source: Any) -> None:
        self._source = source

    def files(self) -> list[Row]:
        """Returns all files."""
        rows: list[Row] = self._source.files()
        manifest = manifest_in(self._source, rows)
        return rows if manifest is None else _files(manifest, rows)

    def entries(self, folder: str) -> tuple[list[str], list[str]]:
        """Returns the names of the folders and of the files in a folder; "" is the root. Follows no manifest."""
        found: tuple[list[str], list[str]] = self._source.entries(folder)
        return found

    def read(self, ranges: list[Range]) -> list[Part]:
        """Returns the bytes of each range."""
        wanted: list[Range] = []
        parts: list[tuple[int | None, int]] = []
        for path, version, start, length in ranges:
            if _MARK not in version:
                parts.append((len(wanted), 0))
                wanted.append((path, version, start, length))
                continue
            name, size, own = version.split(_MARK)
            stored = max(0, min(length, int(size) - start))
            parts.append((len(wanted) if stored else None, length - stored))
            if stored:
                wanted.append((f"{FOLDER}/{name}", own, start, stored))
        found: list[Part] = self._source.read(wanted) if wanted else []
        filled = []
        for number, zeros in parts:
            part = b"" if number is None else found[number]
            filled.append(b"".join((part, bytes(zeros))) if zeros else part)
        return filled


def _files(manifest: Manifest, rows: list[Row]) -> list[Row]:
    if manifest.format != "store":
        reason = f"the result at this URL has the format {manifest.format}: mqstore.published lists its files"
        raise RequestFailure("no-bucket", "", reason)
    sizes = {row[0]: row[1] for row in rows}
    for entry in manifest.files:
        if failure := missing(entry, sizes):
            raise failure
    versions = {row[0]: row for row in rows}
    found = []
    for entry in manifest.files:
        _, _, changed_ms, version = versions[f"{FOLDER}/{entry.object}"]
        found.append((entry.path, entry.length, changed_ms, _MARK.join((entry.object, str(entry.bytes), version))))
    return found
