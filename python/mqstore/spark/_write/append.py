"""The append of staged rows to the log: one step, done once, on the driver's side.

Its files are in ``mqstore/spark/`` of the store::

    stage/<job>/<batch>/<attempt>.run   rows that tasks staged
    stage/token                         proves to tasks that they see the same folder
    journal.json                        the step in progress
    done/<name>.json                    the last step of a streaming query, or of a named job

The journal is written under the store's lock, before the first row is appended, while the log is durable up to its end.
It contains the end of the log and the staged files in their order. Every staged row has its own unique id.

Any later job or query that finds a journal completes its step first. It searches the log after the recorded end for
rows of the files. These are a prefix of the rows, also if another program appended messages meanwhile. It skips this
prefix and appends the rest. When all rows are durable, the name is entered in ``done``, and then the journal is
removed. So a step that has begun takes effect exactly once. A step that has not begun leaves only files that are never
read.
"""

from __future__ import annotations

import json
import logging
import os
import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mqstore
from mqstore import _native
from mqstore._admin.files import replace_file, replace_state, sync_folder
from mqstore._paths import home_of
from mqstore._publish.local import Directory
from mqstore._remote.failure import RequestFailure
from mqstore.errors import CorruptionError, InvalidMessageError
from mqstore.spark._jobs.folders import sweep
from mqstore.spark._locks import once_unlocked, refuse_driver
from mqstore.spark._write.stage import stage_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mqstore.types import StorePath

_HEAD = 16
_LOCK_WAIT_SECONDS = 30.0
_SHOWN_CAUSES = 5

_JOURNAL = frozenset({"job", "name", "batch", "record", "log", "files"})
_DONE = frozenset({"batch"})

_logger = logging.getLogger("mqstore.spark")


def _home(path: str) -> Path:
    return Path(path, "mqstore", "spark")


def prepare(options: dict[str, Any]) -> None:
    """Creates the store if missing, and the staging folder. Sets the token in the options."""
    path = options["path"]
    if not Path(path).exists():
        # Another driver may create it at the same time.
        once_unlocked(lambda: mqstore.open(path, "create"), _LOCK_WAIT_SECONDS).close()
    # Before any task runs. The store can also be opened later; then the append learns it.
    refuse_driver(path)
    mqstore.open(path).close()
    stage = stage_folder(path)
    stage.mkdir(parents=True, exist_ok=True)
    token = stage / "token"
    # A crash of the machine can leave it empty.
    if not token.exists() or not token.stat().st_size:
        _make_token(token)
    for folder in (stage, stage.parent, stage.parent.parent):
        sync_folder(folder)
    # Removes old folders of jobs that were never completed.
    journal = _read_journal(path)
    sweep(stage, *([] if journal is None else [journal["job"]]))
    options["token"] = token.read_text()


def _make_token(token: Path) -> None:
    """Creates the token. Of several drivers at the same time one does, so that the tasks of each find its token."""
    content = json.dumps({"token": secrets.token_hex(16)}).encode()
    try:
        if not Directory(str(token.parent)).put_if_absent(token.name, content) and not token.stat().st_size:
            replace_file(token, content)
    except RequestFailure:
        # A file system without hard links.
        replace_file(token, content)


def abandon(options: dict[str, Any], job: str) -> None:
    """Removes the staged rows of a job, unless their append has begun."""
    journal = _read_journal(options["path"])
    if journal is None or journal["job"] != job:
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
    if refused and options.get("mode", "FAILFAST") == "FAILFAST" and not _was_done(path, name, batch):
        raise InvalidMessageError(_refusal(refused, results))
    appended = False
    with _locked(path) as store:
        _finish(store)
        if any(each["rows"] for each in results) and not _was_done(path, name, batch):
            _make_topics(store, options, results)
            _journal(store, options, job, name, batch, results)
            _finish(store)
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
        return _finish(store)


def _locked(path: str) -> mqstore.Store:
    """Opens the store for writing; waits some time for another driver."""
    return once_unlocked(lambda: mqstore.open(path, "rw"), _LOCK_WAIT_SECONDS)


def _was_done(path: str, name: str, batch: int | None) -> bool:
    lost = (
        "it is unknown whether the last step under this name was appended; find out which rows the store has, and move "
        "the file away to append the next step"
    )
    done = _read(_home(path) / "done" / f"{name}.json", _DONE, lost)
    return done is not None and (batch is None or batch <= done["batch"])


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


def _journal(
    store: mqstore.Store, options: dict[str, Any], job: str, name: str, batch: int | None, results: list[dict[str, Any]]
) -> None:
    """Writes the journal of the step."""
    # The log must be durable up to the recorded end before the journal is.
    store.flush()
    files = [{"file": each["file"], "rows": each["rows"], "bytes": each["size"]} for each in results]
    for each in files:
        _staged_file(store.path, job, each)
    record = options["job_id"] is not None or batch is not None
    _write(
        _home(store.path) / "journal.json",
        {
            "job": job,
            "name": name,
            "batch": batch,
            "record": record,
            "log": store.stats().log_max_offset,
            "files": files,
        },
    )


def _staged_file(path: str, job: str, each: dict[str, Any]) -> Path:
    file = stage_folder(path) / job / str(each["file"])
    try:
        size = file.stat().st_size
    except FileNotFoundError:
        size = -1
    if size != each["bytes"]:
        reason = "it is missing" if size < 0 else f"it has {size} bytes instead of the {each['bytes']} staged bytes"
        raise CorruptionError(str(file), 0, f"{reason}; none of its rows was appended")
    return file


def _finish(store: mqstore.Store) -> int:
    """Completes the step in the journal. Returns the number of rows appended."""
    path = _home(store.path) / "journal.json"
    journal = _read_journal(store.path)
    if journal is None:
        return 0
    done = _appended(store, journal)
    left = done
    appended = 0
    try:
        for each in journal["files"]:
            for block, rows in _blocks(_staged_file(store.path, journal["job"], each)):
                if left < rows:
                    appended += _native.append_staged(store, block, left)
                left = max(0, left - rows)
    except BaseException:
        if done == 0 and appended == 0:
            # Nothing was appended yet: the whole write fails.
            path.unlink()
            sync_folder(path.parent)
        raise
    store.flush()
    if journal["record"]:
        rows = sum(each["rows"] for each in journal["files"])
        record = {"batch": journal["batch"], "rows": rows, "job": journal["job"]}
        _write(path.parent / "done" / f"{journal['name']}.json", record)
    path.unlink()
    sync_folder(path.parent)
    return appended


def _appended(store: mqstore.Store, journal: dict[str, Any]) -> int:
    """Returns the number of rows of the journal that are in the log."""
    if store.stats().log_max_offset <= journal["log"]:
        return 0
    wanted = (
        each
        for file in journal["files"]
        for block, _ in _blocks(_staged_file(store.path, journal["job"], file))
        for each in _native.staged_ids(block)
    )
    found = 0
    expected = next(wanted, None)
    for message in store._scan_log(journal["log"]):
        if expected is None:
            break
        if (message.topic, message.unique_id) == expected:
            found += 1
            expected = next(wanted, None)
    return found


def _blocks(path: Path) -> Iterator[tuple[bytes, int]]:
    """Yields the blocks of a staged file, each with its number of messages."""
    with path.open("rb", buffering=0) as file:
        while head := file.read(_HEAD):
            rows, length = int.from_bytes(head[4:8], "big"), int.from_bytes(head[8:12], "big")
            file.seek(-len(head), os.SEEK_CUR)
            # Read in one piece: joining head and rest would copy a large block once more.
            yield file.read(_HEAD + length), rows


def _read_journal(path: str) -> dict[str, Any] | None:
    lost = (
        "an append of staged rows began, and its last rows may be missing in the store; find out which rows the store "
        "has, move the file away, and append the others"
    )
    return _read(_home(path) / "journal.json", _JOURNAL, lost)


def _read(path: Path, names: frozenset[str], lost: str) -> dict[str, Any] | None:
    """Returns the content of a small file; None if it is missing. `lost` says what a damaged file means."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        found = json.loads(text)
    except ValueError as error:
        raise CorruptionError(str(path), 0, f"the file is not JSON ({error}); {lost}") from None
    if not isinstance(found, dict) or not names <= found.keys():
        raise CorruptionError(str(path), 0, f"the file does not have {', '.join(sorted(names))}; {lost}")
    return found


def _write(path: Path, value: dict[str, Any]) -> None:
    """Replaces the content of a small file in one durable step."""
    if not path.parent.exists():
        path.parent.mkdir()
        sync_folder(path.parent.parent)
    replace_state(path, value)


resume.__module__ = "mqstore.spark"
