"""A transport that follows the manifest of a published store: its files have the names of the store.

The version of a file names its object, the length of the object, and the version of the object. So several processes
can read a list that one of them made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mqstore._remote.failure import RequestFailure
from mqstore._remote.manifest import manifest_in

if TYPE_CHECKING:
    from mqstore import _native
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
                wanted.append((name, own, start, stored))
        found: list[Part] = self._source.read(wanted) if wanted else []
        filled = []
        for number, zeros in parts:
            part = b"" if number is None else found[number]
            filled.append(b"".join((part, bytes(zeros))) if zeros else part)
        return filled


def _files(manifest: _native.ResultManifest, rows: list[Row]) -> list[Row]:
    if manifest.format != "store":
        reason = f"the result at this URL has the format {manifest.format}: mqstore.published lists its files"
        raise RequestFailure("no-bucket", "", reason)
    known = {row[0]: row for row in rows}
    found = []
    for path, name, size, zeros, _ in manifest.files:
        row = known.get(name)
        if row is None or row[1] != size:
            reason = "the manifest names this object, and it is missing or has another length"
            raise RequestFailure("damaged", name, reason)
        found.append((path, size + zeros, row[2], _MARK.join((name, str(size), row[3]))))
    return found
