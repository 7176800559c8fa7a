"""Staged rows into the log: one step, done once, on the driver's side.

Everything of it lies in ``mqstore/spark/`` of the store::

    stage/<job>/<batch>/<attempt>.run   what tasks staged
    stage/token                         by which tasks know that they see the same folder
    journal.json                        the step that is being done
    done/<name>.json                    the last step of a streaming query, or a job that has a name

The journal is written, under the store's lock, before the first row is appended, when the log up to there is durable.
It says where the log ended and which staged files follow, in which order; every staged row has a unique id of its own.
Who finds a journal, whichever job or query it is of, goes on first: rows of the files that the log holds behind that
place, which are a first part of them whoever else has appended meanwhile, are passed over, and the rest is appended.
When all of them are durable the name is entered in ``done``, and then the journal goes. So a step that has begun is
done exactly once, and one that has not begun leaves nothing behind but files that nobody reads.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mqstore
from mqstore import _native
from mqstore._admin.export import replace_state, sync_folder
from mqstore._paths import home_of
from mqstore.errors import CorruptionError, InvalidMessageError
from mqstore.spark._jobs.folders import sweep
from mqstore.spark._locks import once_unlocked
from mqstore.spark._write.stage import stage_folder

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mqstore.types import StorePath

_HEAD = 16
_LOCK_WAIT_SECONDS = 30.0


def _home(path: str) -> Path:
    return Path(path, "mqstore", "spark")


def prepare(options: dict[str, Any]) -> None:
    """Makes the store if it is missing, and the place where tasks write; puts its token into the options."""
    path = options["path"]
    if not Path(path).exists():
        mqstore.open(path, "create").close()
    mqstore.open(path).close()
    stage = stage_folder(path)
    stage.mkdir(parents=True, exist_ok=True)
    token = stage / "token"
    if not token.exists():
        _write(token, {"token": secrets.token_hex(16)})
    for folder in (stage, stage.parent, stage.parent.parent):
        sync_folder(folder)
    # What jobs left behind that nobody ends any more.
    journal = _read(_home(path) / "journal.json")
    sweep(stage, *([] if journal is None else [journal["job"]]))
    options["token"] = token.read_text()


def abandon(options: dict[str, Any], job: str) -> None:
    """Throws away what a job staged, unless it is being appended."""
    journal = _read(_home(options["path"]) / "journal.json")
    if journal is None or journal["job"] != job:
        shutil.rmtree(stage_folder(options["path"]) / job, ignore_errors=True)


def commit(options: dict[str, Any], job: str, name: str, batch: int | None, told: list[dict[str, Any]]) -> None:
    """Appends what tasks staged, unless it was appended before.

    Args:
        options: those of the write.
        job: whose folder the files are in.
        name: the streaming query, or the job's name.
        batch: the number of the batch of a streaming query.
        told: what the tasks said, in the order in which the rows are to be.
    """
    path = options["path"]
    with _locked(path) as store:
        _finish(store)
        if any(each["rows"] for each in told) and not _was_done(path, name, batch):
            _make_topics(store, options, told)
            _journal(store, options, job, name, batch, told)
            _finish(store)
    if batch is None:
        shutil.rmtree(stage_folder(path) / job, ignore_errors=True)
    else:
        shutil.rmtree(stage_folder(path) / job / str(batch), ignore_errors=True)


def resume(path: StorePath) -> int:
    """Ends a write that was interrupted while its rows were being appended.

    The next write to the store does so as well; this is for who does not want to wait for one.

    Args:
        path: the store's directory.

    Returns:
        How many rows it appended; 0 where nothing was left to do.

    Raises:
        StoreLockedError: somebody has the store open for writing.
    """
    with _locked(home_of(path)) as store:
        return _finish(store)


def _locked(path: str) -> mqstore.Store:
    """The store, open for writing; waits a while for another driver."""
    return once_unlocked(lambda: mqstore.open(path, "rw"), _LOCK_WAIT_SECONDS)


def _was_done(path: str, name: str, batch: int | None) -> bool:
    done = _read(_home(path) / "done" / f"{name}.json")
    return done is not None and (batch is None or batch <= done["batch"])


def _make_topics(store: mqstore.Store, options: dict[str, Any], told: list[dict[str, Any]]) -> None:
    """Makes topics that are missing, and sure that there are the queues that rows name."""
    wanted: dict[str, int] = {}
    for each in told:
        for topic, queue_id in each["topics"].items():
            wanted[topic] = max(wanted.get(topic, -1), queue_id)
    there = set(store.topics())
    # What the store does not take is found out before the first row is appended: it would not take it later either.
    for topic in there.intersection(wanted):
        _native.check_staged(store, topic)
        queue_id, count = wanted[topic], len(store.queues(topic))
        if queue_id >= count:
            raise InvalidMessageError(f"a row names queue {queue_id} of topic {topic!r}, which has {count}")
    for topic, queue_id in wanted.items():
        if topic not in there:
            store.create_topic(topic, queues=max(queue_id + 1, options["queues"] or 1))


def _journal(
    store: mqstore.Store, options: dict[str, Any], job: str, name: str, batch: int | None, told: list[dict[str, Any]]
) -> None:
    """Fixes what is to be appended."""
    # What the place in the journal refers to is durable before the journal is.
    store.flush()
    files = [{"file": each["file"], "rows": each["rows"], "bytes": each["size"]} for each in told]
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
        reason = "it is missing" if size < 0 else f"it has {size} bytes, and {each['bytes']} were staged"
        raise CorruptionError(str(file), 0, f"{reason}; nothing of it was appended")
    return file


def _finish(store: mqstore.Store) -> int:
    """Does what the journal says is left to do."""
    path = _home(store.path) / "journal.json"
    journal = _read(path)
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
            # Nothing has happened yet: the write fails as a whole.
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
    """How many of the journal's rows the log holds."""
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
    """The blocks of a staged file, and how many messages each has."""
    with path.open("rb", buffering=0) as file:
        while head := file.read(_HEAD):
            rows, length = int.from_bytes(head[4:8], "big"), int.from_bytes(head[8:12], "big")
            file.seek(-len(head), os.SEEK_CUR)
            # Read whole: blocks are large, and one put together from head and rest would be copied once more.
            yield file.read(_HEAD + length), rows


def _read(path: Path) -> dict[str, Any] | None:
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        found = json.loads(text)
    except ValueError:
        raise CorruptionError(str(path), 0, "it is no JSON: it was not mqstore that wrote it") from None
    if not isinstance(found, dict):
        raise CorruptionError(str(path), 0, "it is no JSON object: it was not mqstore that wrote it")
    return found


def _write(path: Path, value: dict[str, Any]) -> None:
    """Gives a small file its content in one durable step."""
    if not path.parent.exists():
        path.parent.mkdir()
        sync_folder(path.parent.parent)
    replace_state(path, value)


resume.__module__ = "mqstore.spark"
