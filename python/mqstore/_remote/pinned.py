"""A transport for several processes: one of them lists the files, and all read the versions of this list."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mqstore._remote.cache import Source
    from mqstore._remote.failure import Range, Row


class Pinned:
    """A transport with a list that does not change.

    Attributes:
        rows: the list of another process; None until the first use lists the files.
    """

    def __init__(self, source: Source, rows: list[Row] | None) -> None:
        self._source = source
        self.rows = rows

    def files(self) -> list[Row]:
        """Returns the listed files."""
        if self.rows is None:
            self.rows = self._source.files()
        return self.rows

    def read(self, ranges: list[Range]) -> list[bytes]:
        """Returns the bytes of each range. A file with another version than the listed one is an error."""
        return self._source.read(ranges)
