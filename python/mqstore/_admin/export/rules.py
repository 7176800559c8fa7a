"""The rules of an export, in `NAME.partial.rules`.

The native `ExportRules` decide for each record whether and how an export contains it, as of the end of the log at the
start of the export. A resumed export uses the stored rules, so that it does not contain a message twice that was
delivered meanwhile.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqstore import _native

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class Rules:
    """The rules of an export, stored before the first state that depends on them."""

    def __init__(
        self, dest: Path, topics: list[str] | None, keep_waiting: bool, make: Callable[[], _native.ExportRules]
    ) -> None:
        """Creates the rules of an export to `dest`. `make` makes them, as of now."""
        self._stored_at = (dest, topics, keep_waiting)
        self._make = make
        self._stored = False
        self._rules: _native.ExportRules | None = None

    def load(self) -> bool:
        """Loads the rules of an interrupted export. Returns whether they are complete."""
        self._rules = _native.ExportRules.stored(*self._stored_at)
        self._stored = self._rules is not None
        return self._stored

    def get(self) -> _native.ExportRules:
        """Returns the rules; the first call makes them unless they were loaded."""
        if self._rules is None:
            self._rules = self._make()
        return self._rules

    def unstored(self) -> bytes | None:
        """Returns the rules for the first state of the call; None for a later one."""
        if self._stored:
            return None
        self._stored = True
        return self.get().encode()
