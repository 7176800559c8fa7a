"""Counts the comparisons of a test, so that a test without any comparison does not pass."""

from __future__ import annotations

from dataclasses import dataclass, fields


@dataclass(slots=True)
class Tally:
    """Numbers of things compared, with all their fields."""

    messages: int = 0
    queues: int = 0
    keys: int = 0
    times: int = 0

    def text(self) -> str:
        """Return the counts in words."""
        return ", ".join(f"{getattr(self, each.name):,} {each.name}" for each in fields(self))

    def add(self, other: Tally) -> None:
        """Add another tally to this one."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))
