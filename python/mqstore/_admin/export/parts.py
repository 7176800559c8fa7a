"""Results of many files: a folder of parts, and parts that are uploaded to a URL.

Each part is complete before the state counts it, so that a resumed export repeats only the last one:

::

    NAME.partial/part-00000.parquet  part-00001.parquet ...   renamed to NAME when all parts are complete
    NAME.partial/day=2026-11-28/part-00002.parquet            or in folders of partitions
    NAME.partial.state             `bytes` is the length of all parts, `parts` their number

At a URL, the result is one object, parts, or the files of a store. A part exists on the local disk
only until it is uploaded. An interrupted export restarts from the beginning.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from mqstore import _native
from mqstore._admin.export.columns import write_part

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from mqstore._admin.export.counts import Counts
    from mqstore._admin.export.rules import Rules


class Parts:
    """A folder of complete files, and its state. The caller has its lock."""

    def __init__(self, dest: Path, kind: str, digest: str, rules: Rules) -> None:
        self._kind = kind
        self._rules = rules
        self._folder = _native.PartialFolder(dest, digest, kind)

    @property
    def count(self) -> int:
        """The number of parts."""
        return self._folder.parts

    def resume(self, counts: Counts) -> int | None:
        """Returns the position to resume at, and removes files that the state does not count."""
        left = self._folder.left()
        if left is None or not self._rules.load():
            self._folder.resume(0)
            return None
        state = json.loads(left)
        self._folder.resume(state["parts"])
        counts.messages, counts.bytes, counts.resumed = state["messages"], state["bytes"], True
        counts.reasons = state["reasons"]
        position: int | None = state["position"]
        return position

    def add(self, tables: Iterable[tuple[str, Any]], position: int | None, counts: Counts) -> None:
        """Writes and syncs one part for each folder and its rows, then records the state."""
        for folder, table in tables:
            path = self._folder.next_path(folder)
            write_part(self._kind, path, table)
            counts.bytes += path.stat().st_size
        state = {
            "position": position,
            "bytes": counts.bytes,
            "messages": counts.messages,
            "reasons": counts.reasons,
        }
        self._folder.add(json.dumps(state), self._rules.unstored())

    def publish(self) -> None:
        """Gives the folder its final name."""
        self._folder.publish()


class UrlParts:
    """Files of a result at a URL. Each is on the local disk only until it is uploaded."""

    def __init__(self, publication: _native.ResultPublication, folder: Path, kind: str) -> None:
        self._publication = publication
        self._folder = folder
        self._kind = kind
        self.count = 0

    def path(self) -> Path:
        """Returns the local path of the next part."""
        return self._folder / f"part-{self.count:05}.{self._kind}"

    def add(self, tables: Iterable[tuple[str, Any]], _position: int | None, counts: Counts) -> None:
        """Writes and uploads one part for each folder and its rows."""
        for folder, table in tables:
            write_part(self._kind, self.path(), table)
            self.upload(counts, folder)

    def upload(self, counts: Counts, folder: str = "") -> None:
        """Uploads the next part, which is complete, to a folder of the result."""
        path = self.path()
        counts.bytes += path.stat().st_size
        self._publication.add(f"{folder}/{path.name}" if folder else path.name, path)
        path.unlink()
        self.count += 1
