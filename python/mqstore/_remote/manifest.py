"""The manifest of a result at a URL: the list of its objects. `rust/mqstore-results` draws the layout."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqstore import _native
from mqstore._remote.failure import RequestFailure

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mqstore._remote.cache import Source
    from mqstore._remote.failure import Row

FOLDER = "_mqstore"
"""The folder of everything that belongs to a result, below its URL."""

NAME = f"{FOLDER}/manifest.json"

_MOST_BYTES = 256 << 20


def manifest_in(source: Source, rows: Iterable[Row]) -> _native.ResultManifest | None:
    """Returns the manifest of a URL, whose objects are `rows`; None if it has none.

    Raises:
        RequestFailure: the manifest is damaged (cause `damaged`), or a request failed.
    """
    row = next((row for row in rows if row[0] == NAME), None)
    if row is None:
        return None
    _, size, _, version = row
    if size > _MOST_BYTES:
        raise RequestFailure("damaged", NAME, f"the manifest cannot be used: it has {size:,} bytes")
    content = source.read([(NAME, version, 0, size)])[0] if size else b""
    try:
        return _native.ResultManifest(bytes(content))
    except ValueError as error:
        reason = f"the manifest cannot be used: {error}; write the result to another URL"
        raise RequestFailure("damaged", NAME, reason) from None
