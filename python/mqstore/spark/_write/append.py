"""The append of staged rows to the log: one step, done once, on the driver's side.

The native code owns the files of steps in ``mqstore/spark/``, drawn in ``rust/mqstore-engine/src/staged/mod.rs``. Any
later job or query that finds a step in progress completes it first. So a step that has begun takes effect exactly once,
and a step that has not begun leaves only files that are never read.
"""

from __future__ import annotations

import json
import logging
import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mqstore
from mqstore import _native
from mqstore._paths import home_of
from mqstore.errors import InvalidMessageError
from mqstore.spark._jobs.folders import sweep
from mqstore.spark._locks import once_unlocked, refuse_driver
from mqstore.spark._write.stage import stage_folder

if TYPE_CHECKING:
    from mqstore.types import StorePath

_LOCK_WAIT_SECONDS = 30.0
_SHOWN_CAUSES = 5

_logger = logging.getLogger("mqstore.spark")


def prepare(options: dict[str, Any]) -> None:
    """Creates the store if missing, and the staging folder. Sets the token in the options."""
    path = options["path"]
    if not Path(path).exists():
        # Another driver may create it at the same time.
        once_unlocked(lambda: mqstore.open(path, "create"), _LOCK_WAIT_SECONDS).close()
    # Before any task runs. The store can also be opened later; then the append learns it.
    refuse_driver(path)
    mqstore.open(path).close()
    token = _native.prepare_stage(path, json.dumps({"token": secrets.token_hex(16)}))
    # Removes old folders of jobs that were never completed.
    job = _native.staged_job(path)
    sweep(stage_folder(path), *([] if job is None else [job]))
    options["token"] = token


def abandon(options: dict[str, Any], job: str) -> None:
    """Removes the staged rows of a job, unless their append has begun."""
    if _native.staged_job(options["path"]) != job:
        shutil.rmtree(stage_folder(options["path"]) / job, ignore_errors=True)


def commit(options: dict[str, Any], job: str, name: str, batch: int | None, results: list[dict[str, Any]]) -> None:
    """Appends the staged rows, unless they were appended before.

    Args:
        options: options of the write.
        job: job of the folder with the files.
        name: streaming query, or name of the job.
        batch: batch number of a streaming query, or None.
        results: results of the tasks, in the order of the rows.

    Raises:
        InvalidMessageError: rows cannot become messages, and the option `mode` does not skip them. Nothing is appended.
    """
    path = options["path"]
    refused = causes(results)
    if refused and options.get("mode", "FAILFAST") == "FAILFAST" and not _native.was_step_done(path, name, batch):
        raise InvalidMessageError(_refusal(refused, results))
    appended = False
    with _locked(path) as store:
        _resume(store)
        if any(each["rows"] for each in results) and not _native.was_step_done(path, name, batch):
            _make_topics(store, options, results)
            _begin(store, options, job, name, batch, results)
            _resume(store)
            appended = True
    _report(options, refused, results, batch, appended)
    # Each batch of a stream has a job of its own, too.
    shutil.rmtree(stage_folder(path) / job, ignore_errors=True)


def causes(results: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the refused rows of all tasks by topic and column, each with the first row."""
    found: dict[tuple[str | None, str], dict[str, Any]] = {}
    for each in results:
        for topic, column, rows, first, reason in each.get("refused", ()):
            place = {"first_partition": each.get("partition"), "first_row": first, "reason": reason}
            one = found.setdefault((topic, column), {"topic": topic, "column": column, "rows": 0, **place})
            one["rows"] += rows
    return list(found.values())


def _refusal(refused: list[dict[str, Any]], results: list[dict[str, Any]]) -> str:
    """Returns the text of the error about refused rows."""
    bad = sum(each["rows"] for each in refused)
    lines = [_cause(each) for each in refused[:_SHOWN_CAUSES]]
    if len(refused) > len(lines):
        lines.append(f"and {len(refused) - len(lines)} more columns")
    whole = bad + sum(each["rows"] for each in results)
    return (
        f"{bad} of {whole} rows cannot become messages, and nothing was written. {'; '.join(lines)}. "
        "Correct these rows, or skip and count them with the options mode=DROPMALFORMED and reportPath"
    )


def _cause(each: dict[str, Any]) -> str:
    rows = "1 row" if each["rows"] == 1 else f"{each['rows']} rows"
    first = f"first row {each['first_row']} of partition {each['first_partition']}"
    # Rows without a topic have none to name.
    topic = "" if each["topic"] is None else f"topic {each['topic']}, "
    return f"{topic}column {each['column']}: {rows}, {first}: {each['reason']}"


def _report(
    options: dict[str, Any],
    refused: list[dict[str, Any]],
    results: list[dict[str, Any]],
    batch: int | None,
    appended: bool,
) -> None:
    """Tells how many rows were appended and skipped: in the log, and in the file of the option `reportPath`."""
    skipped = sum(each["rows"] for each in refused)
    rows = sum(each["rows"] for each in results) if appended else 0
    if skipped:
        _logger.warning("%s: %d rows skipped, %d rows appended: %s", options["path"], skipped, rows, refused)
    if options.get("report"):
        line = {"batch": batch, "appended": rows, "skipped": skipped, "causes": refused}
        with Path(options["report"]).open("a", encoding="utf-8") as out:
            out.write(json.dumps(line) + "\n")


def resume(path: StorePath) -> int:
    """Completes an interrupted append of a write.

    The next write to the store does this too; call this function if you do not want to wait for it.

    Args:
        path: directory of the store.

    Returns:
        Number of rows appended; 0 if there was no interrupted append.

    Raises:
        StoreLockedError: another process has the store open for writing.
    """
    with _locked(home_of(path)) as store:
        return _resume(store)


def _locked(path: str) -> mqstore.Store:
    """Opens the store for writing; waits some time for another driver."""
    return once_unlocked(lambda: mqstore.open(path, "rw"), _LOCK_WAIT_SECONDS)


def _make_topics(store: mqstore.Store, options: dict[str, Any], results: list[dict[str, Any]]) -> None:
    """Creates missing topics, and checks that the queues named by rows exist."""
    wanted: dict[str, int] = {}
    for each in results:
        for topic, queue_id in each["topics"].items():
            wanted[topic] = max(wanted.get(topic, -1), queue_id)
    there = set(store.topics())
    # Checked before the first row is appended, because a repetition would fail in the same way.
    for topic in there.intersection(wanted):
        _native.check_staged(store, topic)
        queue_id, count = wanted[topic], len(store.queues(topic))
        if queue_id >= count:
            raise InvalidMessageError(f"a row names queue {queue_id} of topic {topic!r}, which has {count} queues")
    for topic, queue_id in wanted.items():
        if topic not in there:
            store.create_topic(topic, queues=max(queue_id + 1, options["queues"] or 1))


def _begin(
    store: mqstore.Store, options: dict[str, Any], job: str, name: str, batch: int | None, results: list[dict[str, Any]]
) -> None:
    """Begins the step of the staged files."""
    files = [(each["file"], each["rows"], each["size"]) for each in results]
    _native.begin_step(store, job, name, batch, options["job_id"] is not None or batch is not None, files)


def _resume(store: mqstore.Store) -> int:
    """Completes the step in progress. Returns the number of rows appended."""
    return sum(_native.resume_step(store))


resume.__module__ = "mqstore.spark"
