"""A transport for several processes: one of them lists the files, and all read the versions of this list."""

from __future__ import annotations

import json
import zlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mqstore._remote.cache import Source
    from mqstore._remote.failure import Part, Range, Row


class Pinned:
    """A transport with a list that does not change.

    Attributes:
        rows: the list; None until the first use, if no other process has made it.
    """

    def __init__(self, source: Source, listing: bytes | None) -> None:
        """Creates the transport. `listing` is that of the first process; None in this process."""
        self._source = source
        self.rows = None if listing is None else unpacked(listing)

    def files(self) -> list[Row]:
        """Returns the listed files."""
        if self.rows is None:
            self.rows = self._source.files()
        return self.rows

    def read(self, ranges: list[Range]) -> list[Part]:
        """Returns the bytes of each range. A file with another version than the listed one is an error."""
        return self._source.read(ranges)

    def listing(self) -> bytes:
        """Returns the list for other processes: about 30 bytes for each file, because a plan can have many of them."""
        return zlib.compress(json.dumps(self.files()).encode())


def unpacked(listing: bytes) -> list[Row]:
    """Returns the files of a listing, in their order."""
    return [(path, size, modified, version) for path, size, modified, version in json.loads(zlib.decompress(listing))]
