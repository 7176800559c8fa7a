"""Results of many files: a folder of parts, and parts that are uploaded to a URL.

Each part is complete before the state counts it, so that a resumed export repeats only the last one:

::

    NAME.partial/part-00000.parquet  part-00001.parquet ...   renamed to NAME when all parts are complete
    NAME.partial.state             `bytes` is the length of all parts, `parts` their number

At a URL, the result is always parts, or the files of a store: see `mqstore._publish`. A part exists on the local disk
only until it is uploaded. An interrupted export restarts from the beginning.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqstore import _native
from mqstore._admin.export.columns import write_part
from mqstore._admin.export.partial import remove_state
from mqstore._admin.files import only_one, replace_state

if TYPE_CHECKING:
    from mqstore._admin.export.counts import Counts
    from mqstore._admin.export.rules import Rules


class Parts:
    """A folder of complete files, and its state file."""

    def __init__(self, dest: Path, kind: str, digest: str, rules: Rules) -> None:
        self._dest = dest
        self._kind = kind
        self._rules = rules
        self._folder = Path(f"{dest}.partial")
        self._state_path = Path(f"{dest}.partial.state")
        self._digest = digest
        self._lock: int | None = None
        self.count = 0

    def __enter__(self) -> None:
        self._folder.mkdir(exist_ok=True)
        self._lock = os.open(self._folder, os.O_RDONLY)
        try:
            only_one(self._lock, self._folder)
        except BaseException:
            os.close(self._lock)
            raise

    def __exit__(self, *_error: object) -> None:
        if self._lock is not None:
            os.close(self._lock)

    def resume(self, counts: Counts) -> int | None:
        """Returns the position to resume at, and removes files that the state does not count."""
        state: Any = None
        with suppress(OSError, ValueError):
            state = json.loads(self._state_path.read_bytes())
        position: int | None = None
        if isinstance(state, dict) and state.get("digest") == self._digest:
            counted = [self._folder / self._name(number) for number in range(state["parts"])]
            if all(path.is_file() for path in counted) and self._rules.load():
                self.count, position = state["parts"], state["position"]
                counts.messages, counts.bytes, counts.resumed = state["messages"], state["bytes"], True
                counts.reasons = state["reasons"]
        kept = {self._name(number) for number in range(self.count)}
        for path in self._folder.iterdir():
            if path.name not in kept:
                path.unlink()
        return position

    def _name(self, number: int) -> str:
        return f"part-{number:05}.{self._kind}"

    def add(self, schema: Any, batches: list[Any], position: int | None, counts: Counts) -> None:
        """Writes and syncs one part, then records the state."""
        path = self._folder / self._name(self.count)
        write_part(self._kind, path, schema, batches)
        _native.sync_part(path)
        counts.bytes += path.stat().st_size
        self.count += 1
        self._rules.store()
        state = {
            "digest": self._digest,
            "position": position,
            "bytes": counts.bytes,
            "messages": counts.messages,
            "reasons": counts.reasons,
            "parts": self.count,
        }
        replace_state(self._state_path, state)

    def publish(self) -> None:
        """Gives the folder its final name."""
        _native.publish_folder(self._folder, self._dest)
        remove_state(self._dest)


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

    def add(self, schema: Any, batches: list[Any], _position: int | None, counts: Counts) -> None:
        """Writes one part of columns and uploads it."""
        write_part(self._kind, self.path(), schema, batches)
        self.upload(counts)

    def upload(self, counts: Counts) -> None:
        """Uploads the next part, which is complete."""
        path = self.path()
        counts.bytes += path.stat().st_size
        self._publication.add(path.name, path)
        path.unlink()
        self.count += 1
