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
from typing import TYPE_CHECKING, Any, Self

from mqstore import _native
from mqstore._admin.files import only_one

if TYPE_CHECKING:
    from pathlib import Path

    from mqstore._admin.export.counts import Counts
    from mqstore._admin.export.rules import Rules

# Bytes and seconds between two writes of the state.
_STATE_BYTES = 64 << 20
_STATE_SECONDS = 5.0


class Partial:
    """A growing file and its state. Use it in a `with` block, during which no other call writes the file."""

    def __init__(self, dest: Path, digest: str, rules: Rules) -> None:
        self._rules = rules
        self._when = time.monotonic()
        self.state: dict[str, Any] | None = None
        # Members of the state that belong to a copy to a store.
        self.of_copy: dict[str, Any] = {}
        self._lock = os.open(f"{dest}.partial", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            only_one(self._lock, f"{dest}.partial")
            self._file = _native.PartialFile(dest, digest)
            left = self._file.left()
            if left is not None and rules.load():
                self.state = json.loads(left)
            self._file.resume(0 if self.state is None else self.state["bytes"])
        except BaseException:
            os.close(self._lock)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        os.close(self._lock)

    def write(self, text: bytes) -> None:
        """Appends bytes to the file; `save` makes them durable."""
        self._file.write(text)

    def is_due(self, bytes_done: int) -> bool:
        """Returns whether a state should be written now."""
        return bytes_done >= _STATE_BYTES or time.monotonic() - self._when >= _STATE_SECONDS

    def save(
        self, position: int | None, counts: Counts, target: int | None = None, made: list[str] | None = None
    ) -> None:
        """Syncs the file, then records its state."""
        state = {
            "position": position,
            "messages": counts.messages,
            "reasons": counts.reasons,
            "target": target,
            "made": made,
            "renumbered": counts.renumbered,
            **self.of_copy,
        }
        self._file.save(json.dumps(state), self._rules.unstored())
        self._when = time.monotonic()

    def publish(self) -> int:
        """Gives the file its final name and returns its length."""
        return self._file.publish()
