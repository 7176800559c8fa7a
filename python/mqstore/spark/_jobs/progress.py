"""Progress of the tasks of a job: attempts write it to files, the driver reads them.

An attempt with progress has a file ``progress`` in its own folder ``task-<round>-<number>-...`` in the folder of the
job. The file has 42 bytes, which are overwritten about three times a second, and once at the end::

    00000000000000004711 00000000000000008150       bytes done, bytes in total

Nothing depends on these files: one that cannot be written or read is ignored. If a task has several attempts, the one
with the most progress counts, so that a speculative copy or an abandoned attempt never reduces the progress.
"""

from __future__ import annotations

import os
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from mqstore._reports import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

_FILE = "progress"
_FORM = re.compile(rb"(\d{20}) (\d{20})\n")
_ATTEMPT = re.compile(r"task-(\d+)-(\d+)-")
_WRITE_SECONDS = 0.3
_LOOK_SECONDS = 0.25

Tell: TypeAlias = "Callable[[int, int], object]"
"""A callback with the bytes done and the bytes in total."""


class Teller:
    """Writes the progress of an attempt."""

    def __init__(self, attempt: str) -> None:
        self._path = Path(attempt, _FILE)
        self._due = time.monotonic() + _WRITE_SECONDS

    def __call__(self, done: int, total: int) -> None:
        """Writes the progress, unless it was written very recently."""
        now = time.monotonic()
        if now >= self._due:
            self._due = now + _WRITE_SECONDS
            self._write(min(done, total), total)

    def finish(self) -> None:
        """Writes that everything is done."""
        self._write(1, 1)

    def _write(self, done: int, total: int) -> None:
        try:
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT, 0o644)
            try:
                os.pwrite(file, b"%020d %020d\n" % (done, total), 0)
            finally:
                os.close(file)
        except OSError:
            return


class Meter:
    """Sums up the progress of a job over its rounds and calls the callback."""

    def __init__(self, call: Callable[[Progress], object], total: int | None) -> None:
        """Creates the meter of a job with `total` bytes; None counts tasks, because the bytes are unknown."""
        self._call = call
        self._total = total or None
        self._before = 0
        self._shown = -1
        self._round = 0
        self._weights: list[int] = []
        self._best: list[float] = []
        self._jobs: set[str] = set()
        self._width = 0
        self._next_look = 0.0

    def expect(self, size: int) -> None:
        """Adds bytes of the next rounds to the total."""
        self._total = (self._total or 0) + size or None

    def begin(self, number: int, width: int, weights: Sequence[int], jobs: Sequence[str | None]) -> None:
        """Begins a round with its number, its tasks, the weight of each call, and the folders of their jobs."""
        self._round, self._width = number, width
        self._weights = list(weights)
        self._best = [0.0] * len(weights)
        self._jobs = {job for job in jobs if job is not None}
        self._next_look = 0.0
        if self._total is not None:
            self._total = max(self._total, self._before + sum(weights))
        self.look(0)

    def look(self, tasks: int | None) -> None:
        """Reports the progress of the round; `tasks` is the number of finished tasks, if known."""
        if self._total is None:
            self._tell(self._before + (tasks or 0), self._before + self._width)
        elif time.monotonic() >= self._next_look:
            self._next_look = time.monotonic() + _LOOK_SECONDS
            self._read()
            shares = zip(self._weights, self._best, strict=True)
            self._tell(self._before + int(sum(weight * best for weight, best in shares)), self._total)

    def end(self) -> None:
        """Ends the round: all its tasks are finished."""
        self._before += self._width if self._total is None else sum(self._weights)
        self._tell(self._before, self._before if self._total is None else self._total)

    def finish(self) -> None:
        """Reports that the last round is finished."""
        if self._total is not None:
            self._tell(self._total, self._total)

    def _tell(self, done: int, total: int) -> None:
        if done > self._shown:
            self._shown = done
            self._call(Progress(done, total))

    def _read(self) -> None:
        for job in self._jobs:
            try:
                attempts = list(Path(job).iterdir())
            except OSError:
                continue
            for attempt in attempts:
                named = _ATTEMPT.match(attempt.name)
                if named is not None and int(named[1]) == self._round and int(named[2]) < len(self._best):
                    at = int(named[2])
                    if self._best[at] < 1:
                        self._best[at] = max(self._best[at], _share(attempt / _FILE))


def _share(path: Path) -> float:
    """Returns the share of its work that an attempt has done."""
    try:
        with path.open("rb") as file:
            found = _FORM.fullmatch(file.read(64))
    except OSError:
        return 0.0
    if found is None:
        return 0.0
    done, total = int(found[1]), int(found[2])
    return min(1.0, done / total) if total else 0.0
