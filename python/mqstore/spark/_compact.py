"""Compaction on Spark: planned and published by the driver, done by the executors."""

from __future__ import annotations

import json
import os
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, get_args, overload

from mqstore import _native
from mqstore._compaction import options_json, topic_list
from mqstore._paths import home_of
from mqstore._reports import CompactionReport, Progress
from mqstore.errors import InvalidOptionError, MQStoreError
from mqstore.spark._session import require, run
from mqstore.spark._ship import archive_name
from mqstore.spark._tasks import FAILED, compaction_tasks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import SparkSession

    from mqstore._compaction import Keyless
    from mqstore.types import Duration, StorePath


Strategy: TypeAlias = Literal["auto", "partition", "ranged"]
"""How many tasks work on one queue."""

_CONNECT_PARALLELISM = 8
"""How many tasks are to work on a queue where the session does not say how many there can be at a time."""


@overload
def compact(  # type: ignore[overload-overlap]  # a str is no iterable of paths
    spark: SparkSession,
    path: StorePath,
    topics: Iterable[str] | None = ...,
    *,
    job_id: str | None = ...,
    force: bool = ...,
    max_tasks: int | None = ...,
    strategy: Strategy = ...,
    dry_run: bool = ...,
    tombstone_retention: Duration = ...,
    keyless: Keyless = ...,
    confirm_keys: bool = ...,
    memory_size: int = ...,
    log_file_size: int | None = ...,
    queue_file_size: int | None = ...,
    progress: Callable[[Progress], object] | None = ...,
) -> CompactionReport: ...
@overload
def compact(
    spark: SparkSession,
    path: Iterable[StorePath],
    topics: Iterable[str] | None = ...,
    *,
    job_id: str | None = ...,
    force: bool = ...,
    max_tasks: int | None = ...,
    strategy: Strategy = ...,
    dry_run: bool = ...,
    tombstone_retention: Duration = ...,
    keyless: Keyless = ...,
    confirm_keys: bool = ...,
    memory_size: int = ...,
    log_file_size: int | None = ...,
    queue_file_size: int | None = ...,
    progress: Callable[[Progress], object] | None = ...,
) -> dict[str, CompactionReport]: ...
def compact(
    spark: SparkSession,
    path: StorePath | Iterable[StorePath],
    topics: Iterable[str] | None = None,
    *,
    job_id: str | None = None,
    force: bool = False,
    max_tasks: int | None = None,
    strategy: Strategy = "auto",
    dry_run: bool = False,
    tombstone_retention: Duration = 86_400.0,
    keyless: Keyless = "drop",
    confirm_keys: bool = True,
    memory_size: int = 100 << 20,
    log_file_size: int | None = None,
    queue_file_size: int | None = None,
    progress: Callable[[Progress], object] | None = None,
) -> CompactionReport | dict[str, CompactionReport]:
    """Compacts topics: of every key the newest message stays, unless its body is empty.

    The result goes into RocketMQ's own compaction folders, where a broker serves it and goes on. The commit log stays
    as it is. Messages without a key are not in the compacted view, as in RocketMQ, unless ``keyless`` says so; the
    whole ``KEYS`` text of a message is its key.

    One task a queue, run by native code on the executors, which read and write the directory themselves; several tasks
    work on one huge queue. They only write into folders of their own; the driver checks what they wrote, takes the
    store's lock and makes all new files the current ones in one step. Queues whose files changed meanwhile are left as
    they are and named in ``skipped``; messages that were appended meanwhile are found by the next compaction. A job
    that fails or is killed at any moment leaves every queue as it was, or as it is to be.

    Args:
        spark: the session, classic or Spark Connect.
        path: the store's directory, or an iterable of directories, which are compacted in one job; the same paths on
            the driver and on every executor. Nobody may have a store open for writing while the job begins and while
            it is published.
        topics: which topics, of each store; all compaction topics when None.
        job_id: a name for the job. A job that was published under it before does nothing but return its report, so
            that a driver can be started again. Made up when None.
        force: also compact queues that have not changed since the last time, and topics whose attribute
            ``cleanup.policy`` is not ``COMPACTION``. A broker keeps such files, and serves these topics from the commit
            log as before.
        max_tasks: at most so many Spark tasks at a time; as many as there are queues, or parts of them, when None.
        strategy: ``"partition"`` lets one task compact a queue, with more rounds where its keys do not fit in
            ``memory_size``. ``"ranged"`` lets several do it: each reads a stretch of the queue and writes its keys to
            files by ranges of their hashes, each decides about one range, each writes some of the new files.
            ``"auto"`` does so with a queue whose keys may not fit, or that has more than 4 GiB.
        dry_run: everything is done and checked, but for the publication; then it is thrown away.
        tombstone_retention: how long a message without a body, which deletes its key, is kept after the compaction
            that removed the last older value; seconds, or a ``timedelta``. 0 does as RocketMQ: not at all.
        keyless: what becomes of messages without a key: ``"drop"``, as in RocketMQ; ``"keep"``; or ``"refuse"``, which
            leaves their queue as it is and names it in ``skipped``.
        confirm_keys: whether keys are compared in full; otherwise by their MD5, as in RocketMQ.
        memory_size: bytes that the keys of one queue may take in memory; with less of it a queue takes more rounds.
        log_file_size: wished bytes of a log file in a store that has none yet; RocketMQ's 104,857,600 when None.
        queue_file_size: wished bytes of a queue file, likewise; RocketMQ's 10,485,760 when None.
        progress: called now and then, with tasks instead of bytes, and more of them in all when a huge queue goes on
            with its next round; an exception that it raises cancels the tasks, and nothing is published. On Spark
            Connect it is called at the beginning and at the end.

    Returns:
        What was done; of several directories by directory. ``skipped`` says which queues were left out, and why.

    Raises:
        ImportError: PySpark, pyarrow or pandas is missing.
        TopicNotFoundError: there is no such topic.
        InvalidOptionError: a topic is no compaction topic, or an option is out of its bounds.
        StoreLockedError: a process has the store open for writing.
        StoreBusyError: another driver runs a job with this ``job_id``.
        UnsupportedFormatError: the file system cannot publish in one step.
        MQStoreError: a task failed for good; the text says where and why. Of several stores, those before one that
            could not be published are compacted, and a job with the same ``job_id`` does the rest.
    """
    require(spark)
    one = isinstance(path, str | bytes | os.PathLike)
    paths = cast("list[StorePath]", [path] if one else list(cast("Iterable[StorePath]", path)))
    # Symbolic links stay as they are on the executors too.
    homes = list(dict.fromkeys(os.path.abspath(home_of(each)) for each in paths))  # noqa: PTH100
    chosen = topic_list(topics)
    if max_tasks is not None and max_tasks < 1:
        msg = f"max_tasks must be at least 1, not {max_tasks}"
        raise ValueError(msg)
    if strategy not in get_args(Strategy):
        raise InvalidOptionError("strategy", f"must be one of {', '.join(get_args(Strategy))}, not {strategy!r}")
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
    jobs: list[_Job] = []
    try:
        for home in homes:
            jobs.append(_Job(home, _native.compaction_plan(home, chosen, options)))  # noqa: PERF401 - so far it got
        _run(spark, jobs, strategy, max_tasks, progress)
        reports = {job.home: _published(job, dry_run) for job in jobs}
    except BaseException:
        for job in jobs:
            _native.compaction_abandon(job.home, job.id)
        raise
    return reports[homes[0]] if one else reports


class _Job:
    """The job of one store."""

    def __init__(self, home: str, plan: str) -> None:
        values = json.loads(plan)
        self.home = home
        self.plan = plan
        self.id: str = values["job_id"]
        self.tasks = [json.dumps(task) for task in values["tasks"]]
        self.dir = os.path.join(home, "mqstore", "jobs", self.id)  # noqa: PTH118
        self.results: list[str] = []


def _published(job: _Job, dry_run: bool) -> CompactionReport:
    report = _native.compaction_publish(job.home, job.plan, f"[{','.join(job.results)}]", dry_run)
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
    jobs: list[_Job],
    strategy: Strategy,
    max_tasks: int | None,
    progress: Callable[[Progress], object] | None,
) -> None:
    """Runs the tasks of all jobs on the executors, in as many rounds as they take; their results go to their jobs."""
    parts = max_tasks or _parallelism(spark)
    queues = [(job, _native.compaction_split(task, strategy, parts)) for job in jobs for task in job.tasks]
    done = 0
    while queues:
        steps = [(job.dir, step) for job, own in queues for step in own]
        width = min(len(steps), max_tasks or len(steps))
        try:
            answers = _round(spark, steps, width, progress and _behind(done, progress))
        except MQStoreError as error:
            msg = f"compaction job {', '.join(dict.fromkeys(job.id for job in jobs))} was not published: {error}"
            raise MQStoreError(msg) from error
        done += width
        waiting = iter(answers)
        following = []
        for job, own in queues:
            result, further = _native.compaction_next(own, list(islice(waiting, len(own))))
            if result is None:
                following.append((job, further))
            else:
                job.results.append(result)
        queues = following


def _round(
    spark: SparkSession,
    steps: list[tuple[str, str]],
    width: int,
    progress: Callable[[Progress], object] | None,
) -> list[str]:
    """Runs steps on the executors, in so many tasks; what they answer, in order."""
    function = compaction_tasks(steps, width, _native.__version__, archive_name(), FAILED)
    rows = run(spark, function, width, "number bigint, answer string", progress)
    by_number = {row.number: row.answer for row in rows}
    return [by_number[number] for number in range(len(steps))]


def _behind(done: int, progress: Callable[[Progress], object]) -> Callable[[Progress], object]:
    """Tells of a round behind others, which had so many tasks."""
    return lambda now: progress(Progress(done + now.done, done + now.total))


def _parallelism(spark: SparkSession) -> int:
    context = getattr(spark, "sparkContext", None)
    return _CONNECT_PARALLELISM if context is None else context.defaultParallelism
