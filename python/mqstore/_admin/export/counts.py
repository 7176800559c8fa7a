"""The counts of an export so far, and its report."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from mqstore._reports import ExportReport


class Counts:
    """Counts of an export so far."""

    def __init__(self) -> None:
        self.messages = 0
        # Messages of a store with another queue offset than in the source.
        self.renumbered = 0
        self.reasons: dict[str, int] = {}
        self.bytes = 0
        self.resumed = False

    def leave_out(self, reasons: Iterable[tuple[str, int]]) -> None:
        """Adds numbers of records that were left out."""
        for reason, records in reasons:
            self.reasons[reason] = self.reasons.get(reason, 0) + records

    def report(self, path: str, kind: str, seconds: float) -> ExportReport:
        """Returns the report of the export to `path` in the format `kind`."""
        from mqstore._reports import ExportReport

        return ExportReport(
            path=path,
            format=kind,
            messages=self.messages,
            bytes=self.bytes,
            skipped=sum(self.reasons.values()),
            reasons=dict(self.reasons),
            resumed=self.resumed,
            seconds=round(seconds, 3),
            renumbered=self.renumbered,
        )
