"""A file that an export writes, and its durable state.

The file gets its name when it is complete. Until then it is `NAME.partial`. For JSON lines, and for the mapping of a
store, `NAME.partial.state` records the durable state:

::

    {"digest": "...", "position": 4711, "bytes": 99, "messages": 3, "reasons": {}, "target": 815, "made": [],
     "renumbered": 0, "keeps": true, "waiting": false}

- `digest`: digest of the arguments.
- `position`: log offset at which the export resumes.
- `bytes`: length of the partial file for this position; a resumed export truncates the rest.
- `target`: end of the target store's log at this position. The messages after it in the target store are those that
  were appended after the state was written, in their order, and those that the target store delivered.
- `made`: topics that the export created in the target store.
- `keeps`: whether messages keep their queue offsets. Then there are two passes, because the delivery of a message that
  waits takes an offset: `waiting` says that the second one, of these messages, has begun.
- `renumbered`: number of messages so far with another queue offset than in the source.

`NAME.partial.rules` has the rules of the export: see `mqstore._admin.export.rules`.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from mqstore import _native
from mqstore._admin.files import only_one, replace_state

if TYPE_CHECKING:
    from mqstore._admin.export.counts import Counts
    from mqstore._admin.export.rules import Rules

# Bytes and seconds between two writes of the state.
_STATE_BYTES = 64 << 20
_STATE_SECONDS = 5.0


class Partial:
    """A growing file and its state file."""

    def __init__(self, dest: Path, digest: str, rules: Rules) -> None:
        self._dest = dest
        self._rules = rules
        self._path = Path(f"{dest}.partial")
        self._state_path = Path(f"{dest}.partial.state")
        self._digest = digest
        self._written = 0
        self._when = time.monotonic()
        self.state: dict[str, Any] | None = None
        # Members of the state that belong to a copy to a store.
        self.of_copy: dict[str, Any] = {}
        self.file: IO[bytes] = self._open()

    def _open(self) -> IO[bytes]:
        state: dict[str, Any] | None = None
        with suppress(OSError, ValueError):
            state = json.loads(self._state_path.read_bytes())
        file = open(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), "r+b")  # noqa: PTH123, SIM115
        try:
            only_one(file.fileno(), self._path)
            size = os.fstat(file.fileno()).st_size
            known = isinstance(state, dict) and state.get("digest") == self._digest
            if state is not None and known and state["bytes"] <= size and self._rules.load():
                self.state = state
            file.truncate(0 if self.state is None else self.state["bytes"])
            file.seek(0, os.SEEK_END)
        except BaseException:
            file.close()
            raise
        return file

    def write(self, text: bytes) -> None:
        """Appends bytes to the file; `save` makes them durable."""
        self.file.write(text)
        self._written += len(text)

    def is_due(self, bytes_done: int) -> bool:
        """Returns whether a state should be written now."""
        return bytes_done >= _STATE_BYTES or time.monotonic() - self._when >= _STATE_SECONDS

    def save(
        self, position: int | None, counts: Counts, target: int | None = None, made: list[str] | None = None
    ) -> None:
        """Syncs the file, then records its state."""
        self._sync()
        self._rules.store()
        state = {
            "digest": self._digest,
            "position": position,
            "bytes": self.file.tell(),
            "messages": counts.messages,
            "reasons": counts.reasons,
            "target": target,
            "made": made,
            "renumbered": counts.renumbered,
            **self.of_copy,
        }
        replace_state(self._state_path, state)
        self._when = time.monotonic()

    def _sync(self) -> None:
        self.file.flush()
        _native.sync_part(self._path)

    def publish(self) -> int:
        """Gives the file its final name and returns its length."""
        self.file.flush()
        size = self.file.tell()
        self.file.close()
        _native.publish_file(self._path, self._dest)
        remove_state(self._dest)
        return size


def remove_state(dest: Path) -> None:
    """Removes the state files of an export to `dest`."""
    for ending in (".partial.state", ".partial.state.new", ".partial.rules", ".partial.rules.new"):
        Path(f"{dest}{ending}").unlink(missing_ok=True)
