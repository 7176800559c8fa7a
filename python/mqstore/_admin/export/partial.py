"""A file of JSON lines that an export writes, and its durable state.

The file gets its name when it is complete. Until then it is `NAME.partial`, and `NAME.partial.state` records the
durable state:

::

    {"digest": "...", "position": 4711, "bytes": 99, "messages": 3, "reasons": {}}

- `digest`: digest of the arguments.
- `position`: log offset at which the export resumes.
- `bytes`: length of the partial file for this position; a resumed export truncates the rest.

`NAME.partial.rules` has the rules of the export: see `mqstore._admin.export.rules`. The positions of an export to a
store have the same files, which the native `StoreCopy` writes.
"""

from __future__ import annotations

import json
import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from mqstore import _native
from mqstore._admin.files import only_one

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from mqstore._admin.export.counts import Counts
    from mqstore._admin.export.rules import Rules

# Bytes and seconds between two writes of the state.
_STATE_BYTES = 64 << 20
_STATE_SECONDS = 5.0


@contextmanager
def only_writer(dest: Path) -> Iterator[None]:
    """Prevents a second call that writes the partial file of `dest`."""
    lock = os.open(f"{dest}.partial", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        only_one(lock, f"{dest}.partial")
        yield
    finally:
        os.close(lock)


class Partial:
    """A growing file and its state. Use it as the `only_writer` of the file."""

    def __init__(self, dest: Path, digest: str, rules: Rules) -> None:
        self._rules = rules
        self._when = time.monotonic()
        self.state: dict[str, Any] | None = None
        self._file = _native.PartialFile(dest, digest)
        left = self._file.left()
        if left is not None and rules.load():
            self.state = json.loads(left)
        self._file.resume(0 if self.state is None else self.state["bytes"])

    def write(self, text: bytes) -> None:
        """Appends bytes to the file; `save` makes them durable."""
        self._file.write(text)

    def is_due(self, bytes_done: int) -> bool:
        """Returns whether a state should be written now."""
        return bytes_done >= _STATE_BYTES or time.monotonic() - self._when >= _STATE_SECONDS

    def save(self, position: int | None, counts: Counts) -> None:
        """Syncs the file, then records its state."""
        state = {"position": position, "messages": counts.messages, "reasons": counts.reasons}
        self._file.save(json.dumps(state), self._rules.unstored())
        self._when = time.monotonic()

    def publish(self) -> int:
        """Gives the file its final name and returns its length."""
        return self._file.publish()
