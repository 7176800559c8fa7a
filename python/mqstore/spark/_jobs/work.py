"""The work of the tasks; runs on the executors.

Each verb takes the folder of its attempt (if the job has a folder), the function for its progress, and its own
arguments. It returns bytes: either those of the native code, which this package does not read, or a report as JSON.
"""

from __future__ import annotations

import json
import secrets
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mqstore
from mqstore import _native
from mqstore._admin.export.columns import column_file
from mqstore._paths import is_url
from mqstore._remote.place import pinned
from mqstore.errors import NotAStoreError
from mqstore.spark._jobs.compact_copy import compact_copy
from mqstore.spark._jobs.copy_files import copy_files
from mqstore.spark._jobs.progress import Tell, Teller
from mqstore.spark._jobs.results import Place, write
from mqstore.spark._locks import SAME_PATH, once_unlocked
from mqstore.spark._read.rows import rows

if TYPE_CHECKING:
    from collections.abc import Callable

    from mqstore._reports import Progress

_LOCK_WAIT_SECONDS = 60.0
_MAKES_ITS_FOLDER = ("compact", "verify_plan", "verify_step", "copy_files")


def call(name: str, arguments: tuple[Any, ...], attempt: str | None, tells: bool) -> bytes:
    """Returns the result of a verb.

    Args:
        name: name of the verb.
        arguments: its arguments.
        attempt: folder of this attempt.
        tells: whether it reports its progress.
    """
    teller = None
    if tells and attempt is not None:
        teller = Teller(attempt)
        if name not in _MAKES_ITS_FOLDER:
            with suppress(OSError):
                Path(attempt).mkdir()
    answer: bytes = _VERBS[name](attempt, teller, *arguments)
    if teller is not None:
        teller.finish()
    return answer


def hint(error: Exception) -> str:
    """Returns advice to append to an error, if its text does not have it yet."""
    is_place = isinstance(error, NotAStoreError) and not is_url(error.path) and "under the same path" not in str(error)
    return f"; {SAME_PATH}" if is_place else ""


def compact(attempt: str, tell: Tell | None, step: bytes) -> bytes:
    """Runs a step of a compaction."""
    return _native.compaction_run_step(step, attempt, tell)


def verify(
    _attempt: str | None, tell: Tell | None, path: str, place: tuple[dict[str, Any], bytes | None] | None
) -> bytes:
    """Checks a store; `place` has the storage options and the listing of a URL."""
    return _plain(_native.verify(path if place is None else pinned(path, *place)[0], tell))


def verify_plan(attempt: str, _tell: Tell | None, path: str, cut: tuple[int, int, int], job: str) -> bytes:
    """Plans the check of a store by several tasks. Returns no bytes if its log cannot be divided."""
    return _native.verify_plan(path, cut, job, attempt) or b""


def verify_step(attempt: str, tell: Tell | None, step: bytes) -> bytes:
    """Runs a step of a check."""
    return _native.verify_run_step(step, attempt, tell)


def verify_assemble(_attempt: str, tell: Tell | None, plan: bytes, answers: list[bytes]) -> bytes:
    """Combines the results of a check."""
    return _plain(_native.verify_assemble(plan, answers, tell))


def rebuild(_attempt: str | None, tell: Tell | None, path: str, dry_run: bool) -> bytes:
    """Rebuilds a store's derived files. A second attempt waits for the first, and builds the same files again."""

    def progress(now: Progress) -> None:
        if tell is not None:
            tell(now.done, now.total)

    return _plain(
        once_unlocked(lambda: mqstore.rebuild(path, dry_run=dry_run, progress=progress).to_dict(), _LOCK_WAIT_SECONDS)
    )


def export(
    _attempt: str,
    tell: Tell | None,
    options: dict[str, Any],
    part: tuple[Any, ...],
    target: Place,
    number: int,
    kind: str,
    place: tuple[str, dict[str, Any], bytes | None] | None,
) -> bytes:
    """Writes a part of a read to its own file; `place` is that of a store at a URL. Returns file, rows and bytes."""
    remote = None
    if place is not None:
        from mqstore.spark._remote import RemoteStore

        remote = RemoteStore(*place)
    batches = rows(options, part, tell, remote)
    first = next(batches)
    count = 0
    name = f"part-{number:05d}-{secrets.token_hex(8)}.{kind}"
    # The file is complete when the inner block ends.
    with write(target, name) as (path, answer), column_file(kind, path, first.schema) as add:
        for batch in batches:
            add(batch)
            count += batch.num_rows
    return _plain({**answer, "rows": count})


def _plain(report: dict[str, Any]) -> bytes:
    """Encodes a report for `mqstore.spark._jobs.rounds.plain`."""
    return json.dumps(report).encode()


_VERBS: dict[str, Callable[..., Any]] = {
    each.__name__: each
    for each in (compact, compact_copy, copy_files, verify, verify_plan, verify_step, verify_assemble, rebuild, export)
}
