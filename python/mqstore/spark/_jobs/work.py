"""What the tasks of the jobs do; runs on the executors.

Each verb takes the folder of its attempt, if the job has a folder, whom to tell how far it is, and plain values; it
answers with plain values.
"""

from __future__ import annotations

import json
import secrets
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mqstore
from mqstore import _native
from mqstore._admin.export import column_file, sync_folder
from mqstore.errors import NotAStoreError
from mqstore.spark._jobs.progress import Tell, Teller
from mqstore.spark._locks import SAME_PATH, once_unlocked
from mqstore.spark._read.rows import rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from mqstore._reports import Progress

_LOCK_WAIT_SECONDS = 60.0
_MAKES_ITS_FOLDER = ("compact", "verify_plan", "verify_step")


def call(text: str, attempt: str | None, tells: bool) -> str:
    """What a verb answers, as JSON.

    Args:
        text: the verb and its arguments, as JSON.
        attempt: the folder of this attempt.
        tells: whether it tells how far it is.
    """
    name, arguments = json.loads(text)
    teller = None
    if tells and attempt is not None:
        teller = Teller(attempt)
        if name not in _MAKES_ITS_FOLDER:
            with suppress(OSError):
                Path(attempt).mkdir()
    answer = _VERBS[name](attempt, teller, *arguments)
    if teller is not None:
        teller.finish()
    return json.dumps(answer)


def hint(error: Exception) -> str:
    """What to say behind an error, if it does not say so itself."""
    is_place = isinstance(error, NotAStoreError) and "under the same path" not in str(error)
    return f"; {SAME_PATH}" if is_place else ""


def compact(attempt: str, tell: Tell | None, step: str, total: int) -> str:
    """Does a step of a compaction, which reads so many bytes."""
    progress = None if tell is None else lambda done, _: tell(done, total)
    return _native.compaction_run_step(step, attempt, progress)


def verify(_attempt: str | None, tell: Tell | None, path: str) -> dict[str, Any]:
    """Checks a store."""
    return _native.verify(path, tell)


def verify_plan(
    attempt: str, _tell: Tell | None, path: str, cut: tuple[int, int, int], job: str
) -> dict[str, Any] | None:
    """Shares the check of a store out; None where its log cannot be cut."""
    parts, stretch, least = cut
    plan = _native.verify_plan(path, (parts, stretch, least), job, attempt)
    return None if plan is None else {"plan": plan, "steps": _native.verify_steps(plan)}


def verify_step(attempt: str, tell: Tell | None, step: str) -> str:
    """Does a step of a check."""
    return _native.verify_run_step(step, attempt, tell)


def verify_assemble(_attempt: str, tell: Tell | None, plan: str, answers: list[str]) -> dict[str, Any]:
    """Puts a check together."""
    return _native.verify_assemble(plan, answers, tell)


def rebuild(_attempt: str | None, tell: Tell | None, path: str, dry_run: bool) -> dict[str, Any]:
    """Rebuilds a store's derived files; a second attempt waits for the first, and makes the same files again."""

    def progress(now: Progress) -> None:
        if tell is not None:
            tell(now.done, now.total)

    return once_unlocked(
        lambda: mqstore.rebuild(path, dry_run=dry_run, progress=progress).to_dict(), _LOCK_WAIT_SECONDS
    )


def export(
    _attempt: str, tell: Tell | None, options: dict[str, Any], part: list[Any], folder: str, number: int, kind: str
) -> dict[str, Any]:
    """Writes a part of a read to a file of its own; its name, rows and bytes."""
    home = Path(folder)
    path = home / f"{number:05d}-{secrets.token_hex(8)}.{kind}"
    part[1] = [tuple(each) for each in part[1]]
    batches = rows(options, tuple(part), tell)
    first = next(batches)
    count = 0
    with column_file(kind, path, first.schema) as write:
        for batch in batches:
            write(batch)
            count += batch.num_rows
    sync_folder(home)
    return {"file": path.name, "rows": count, "bytes": path.stat().st_size}


_VERBS: dict[str, Callable[..., Any]] = {
    each.__name__: each for each in (compact, verify, verify_plan, verify_step, verify_assemble, rebuild, export)
}
