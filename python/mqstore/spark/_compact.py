"""Compaction on Spark: planned and published by the driver, done by the executors."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

from mqstore import _native
from mqstore._compaction import options_json, topic_list
from mqstore._paths import home_of
from mqstore._reports import CompactionReport
from mqstore.errors import MQStoreError
from mqstore.spark._session import require, run
from mqstore.spark._ship import archive_name
from mqstore.spark._tasks import FAILED, compaction_tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import SparkSession

    from mqstore._compaction import Keyless
    from mqstore._reports import Progress
    from mqstore.types import Duration, StorePath


def compact(
    spark: SparkSession,
    path: StorePath,
    topics: Iterable[str] | None = None,
    *,
    job_id: str | None = None,
    force: bool = False,
    max_tasks: int | None = None,
    tombstone_retention: Duration = 86_400.0,
    keyless: Keyless = "drop",
    confirm_keys: bool = True,
    memory_size: int = 100 << 20,
    log_file_size: int | None = None,
    queue_file_size: int | None = None,
    progress: Callable[[Progress], object] | None = None,
) -> CompactionReport:
    """Compacts topics: of every key the newest message stays, unless its body is empty.

    The result goes into RocketMQ's own compaction folders, where a broker serves it and goes on. The commit log stays
    as it is. Messages without a key are not in the compacted view, as in RocketMQ, unless ``keyless`` says so; the
    whole ``KEYS`` text of a message is its key.

    One task a queue, run by native code on the executors, which read and write the directory themselves. They only
    write into folders of their own; the driver checks what they wrote, takes the store's lock and makes all new files
    the current ones in one step. Queues whose files changed meanwhile are left as they are and named in ``skipped``;
    messages that were appended meanwhile are found by the next compaction. A job that fails or is killed at any moment
    leaves every queue as it was, or as it is to be.

    Args:
        spark: the session, classic or Spark Connect.
        path: the store's directory; the same path on the driver and on every executor. Nobody may have it open for
            writing while the job begins and while it is published.
        topics: which topics; all compaction topics when None.
        job_id: a name for the job. A job that was published under it before does nothing but return its report, so
            that a driver can be started again. Made up when None.
        force: also compact queues that have not changed since the last time, and topics whose attribute
            ``cleanup.policy`` is not ``COMPACTION``. A broker keeps such files, and serves these topics from the commit
            log as before.
        max_tasks: at most so many Spark tasks; one a queue when None.
        tombstone_retention: how long a message without a body, which deletes its key, is kept after the compaction
            that removed the last older value; seconds, or a ``timedelta``. 0 does as RocketMQ: not at all.
        keyless: what becomes of messages without a key: ``"drop"``, as in RocketMQ; ``"keep"``; or ``"refuse"``, which
            leaves their queue as it is and names it in ``skipped``.
        confirm_keys: whether keys are compared in full; otherwise by their MD5, as in RocketMQ.
        memory_size: bytes that the keys of one queue may take in memory; with less of it a queue takes more rounds.
        log_file_size: wished bytes of a log file in a store that has none yet; RocketMQ's 104,857,600 when None.
        queue_file_size: wished bytes of a queue file, likewise; RocketMQ's 10,485,760 when None.
        progress: called now and then, with tasks instead of bytes; an exception that it raises cancels the tasks, and
            nothing is published. On Spark Connect it is called at the beginning and at the end.

    Returns:
        What was done. ``skipped`` says which queues were left out, and why.

    Raises:
        ImportError: PySpark, pyarrow or pandas is missing.
        TopicNotFoundError: there is no such topic.
        InvalidOptionError: a topic is no compaction topic, or an option is out of its bounds.
        StoreLockedError: a process has the store open for writing.
        StoreBusyError: another driver runs a job with this ``job_id``.
        UnsupportedFormatError: the file system cannot publish in one step.
        MQStoreError: a task failed for good; the text says where and why.
    """
    require(spark)
    home = os.path.abspath(home_of(path))  # noqa: PTH100 - symbolic links stay as they are on the executors too
    chosen = topic_list(topics)
    if max_tasks is not None and max_tasks < 1:
        msg = f"max_tasks must be at least 1, not {max_tasks}"
        raise ValueError(msg)
    options = options_json(
        tombstone_retention=tombstone_retention,
        memory_size=memory_size,
        job_id=job_id,
        force=force,
        keyless=keyless,
        confirm_keys=confirm_keys,
        log_file_bytes=log_file_size,
        queue_file_bytes=queue_file_size,
    )
    text = _native.compaction_plan(home, chosen, options)
    plan = json.loads(text)
    try:
        results = _run(spark, home, plan, max_tasks, progress)
        report = _native.compaction_publish(home, text, f"[{','.join(results)}]")
    except BaseException:
        _native.compaction_abandon(home, plan["job_id"])
        raise
    return CompactionReport._from_dict(json.loads(report))


def job_details(path: StorePath, job_id: str) -> dict[str, Any] | None:
    """What a published job did, queue by queue: counts, and the process, host and file of the code that did it.

    Returns:
        The job's record as plain values; None when no job of this name was published.
    """
    found = _native.compaction_report(os.path.abspath(home_of(path)), job_id)  # noqa: PTH100
    return None if found is None else json.loads(found)


def _run(
    spark: SparkSession,
    home: str,
    plan: dict[str, Any],
    max_tasks: int | None,
    progress: Callable[[Progress], object] | None,
) -> list[str]:
    """Runs the tasks of a plan on the executors; their results as JSON."""
    tasks = [json.dumps(task) for task in plan["tasks"]]
    if not tasks:
        return []
    width = min(len(tasks), max_tasks or len(tasks))
    job_dir = os.path.join(home, "mqstore", "jobs", plan["job_id"])  # noqa: PTH118
    function = compaction_tasks(tasks, job_dir, width, _native.__version__, archive_name(), FAILED)
    try:
        rows = run(spark, function, width, "result string", progress)
    except MQStoreError as error:
        msg = f"compaction job {plan['job_id']} was not published: {error}"
        raise MQStoreError(msg) from error
    return [row.result for row in rows]
