"""Results of `verify`, `repair` and `rebuild`: the problems and losses of a store."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from mqstore._reports.base import _Report
from mqstore._warn import warn

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True, slots=True)
class Problem(_Report):
    """One damage in a store."""

    kind: str
    """Stable identifier of the kind of damage."""
    path: str
    """File or folder."""
    offset: int | None
    """Offset in the file in bytes, or None."""
    detail: str
    """Description of the damage."""
    consequence: str
    """Effect on users of the store."""
    repair: str
    """How to repair it."""


@dataclass(frozen=True, slots=True)
class VerifyReport(_Report):
    """Result of `mqstore.verify`."""

    ok: bool
    """Whether there is no problem."""
    messages: int
    """Valid messages in the log."""
    bytes: int
    """Bytes checked."""
    problems: tuple[Problem, ...] = ()
    """Problems, in the order in which they were found."""

    @classmethod
    def _from_dict(cls, values: Mapping[str, Any]) -> Self:
        for note in values.get("notes", ()):
            warn(note)
        problems = [Problem(**problem) for problem in values["problems"]]
        if values["more"]:
            problems.append(
                Problem(
                    kind="more",
                    path="",
                    offset=None,
                    detail=f"{values['more']} further problems are not listed",
                    consequence="as for the problems above",
                    repair="repair the listed problems, then verify again",
                )
            )
        return cls(values["ok"], values["messages"], values["bytes"], tuple(problems))


@dataclass(frozen=True, slots=True)
class LostRange(_Report):
    """A range of the log from which no message can be read any more."""

    path: str
    """Segment file."""
    offset: int
    """First byte of the range in the file."""
    log_offset: int
    """First byte of the range in the log."""
    bytes: int
    """Length of the range in bytes."""
    reason: str
    """Damage in the range."""
    kept_as: str | None
    """Copy of the range; None if it contained only zeros, and in a dry run."""


@dataclass(frozen=True, slots=True)
class LostOffsets(_Report):
    """Offsets of a queue without a record: from `from_offset` to `to_offset`, exclusive."""

    topic: str
    queue_id: int
    from_offset: int
    to_offset: int


@dataclass(frozen=True, slots=True)
class RepairReport(_Report):
    """Result of `mqstore.repair`."""

    path: str
    """Directory."""
    output: str | None
    """Repaired copy; None for a repair in place."""
    dry_run: bool
    """Whether this was a dry run, which changes nothing."""
    changed: bool
    """Whether the repair changed something; in a dry run, whether it would."""
    ok: bool
    """Whether `verify` finds no problem: in the result, or for a dry run in the unchanged store."""
    messages: int
    """Valid messages in the log."""
    lost: tuple[LostRange, ...] = ()
    """Ranges of the log that were replaced, in log order."""
    queue_offsets: tuple[LostOffsets, ...] = ()
    """Queue offsets without a record, except those that an earlier repair reported."""
    actions: tuple[str, ...] = ()
    """Descriptions of the changes, made or planned."""
    problems: tuple[Problem, ...] = ()
    """Problems that `verify` finds: in the result, or for a dry run in the unchanged store."""

    @classmethod
    def _of(cls, path: str, output: str | None, dry_run: bool, values: Mapping[str, Any]) -> Self:
        found = VerifyReport._from_dict({**values, "bytes": 0})
        return cls(
            path=path,
            output=output,
            dry_run=dry_run,
            changed=values["changed"],
            ok=values["ok"],
            messages=values["messages"],
            lost=tuple(LostRange(**one) for one in values["lost"]),
            queue_offsets=tuple(LostOffsets(*one) for one in values["queue_offsets"]),
            actions=tuple(values["actions"]),
            problems=found.problems,
        )


@dataclass(frozen=True, slots=True)
class RebuildReport(_Report):
    """Result of `mqstore.rebuild` and `Store.rebuild`."""

    dry_run: bool
    """Whether this was a dry run, which changes nothing."""
    messages: int
    """Records read from the log."""
    bytes: int
    """Bytes of the log."""
    queues: int
    """Queues with at least one unit."""
    index_entries: int
    """Entries of the key index."""
    seconds: float
    """Duration in seconds."""
    skipped: tuple[str, ...] = ()
    """Descriptions of damaged ranges of the log that were skipped; messages in them may be lost."""

    @classmethod
    def _timed(cls, work: Callable[[], Mapping[str, Any]], *, dry_run: bool = False) -> Self:
        started = time.perf_counter()
        values = dict(work())
        skipped = tuple(values.pop("skipped"))
        return cls(dry_run=dry_run, seconds=time.perf_counter() - started, skipped=skipped, **values)
