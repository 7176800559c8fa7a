"""Compaction on Spark: planned and published by the driver, done by the executors."""

from __future__ import annotations

import json
import os
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, get_args, overload

from mqstore import _native
from mqstore._admin.compaction import options_json, topic_list
from mqstore._reports import CompactionReport, Progress
from mqstore.errors import InvalidOptionError, MQStoreError
from mqstore.spark._jobs.folders import absolute
from mqstore.spark._jobs.rounds import Call, Rounds, parallelism
from mqstore.spark._session import require

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Unpack

    from pyspark.sql import SparkSession

    from mqstore.types import CompactionOptions, StorePath


Strategy: TypeAlias = Literal["auto", "partition", "ranged"]
"""How many tasks work on one queue."""

_SHARES = {"scan": 0.45, "decide": 0.1, "copy": 0.45}
"""What each round of a queue that several tasks work on is worth of the whole."""


@overload
def compact(  # type: ignore[overload-overlap]  # a str is no iterable of paths
    spark: SparkSession,
    path: StorePath,
    topics: Iterable[str] | None = ...,
    *,
    job_id: str | None = ...,
    max_tasks: int | None = ...,
    strategy: Strategy = ...,
    **options: Unpack[CompactionOptions],
) -> CompactionReport: ...
@overload
def compact(
    spark: SparkSession,
    path: Iterable[StorePath],
    topics: Iterable[str] | None = ...,
    *,
    job_id: str | None = ...,
    max_tasks: int | None = ...,
    strategy: Strategy = ...,
    **options: Unpack[CompactionOptions],
) -> dict[str, CompactionReport]: ...
def compact(
    spark: SparkSession,
    path: StorePath | Iterable[StorePath],
    topics: Iterable[str] | None = None,
    *,
    job_id: str | None = None,
    max_tasks: int | None = None,
    strategy: Strategy = "auto",
    **options: Unpack[CompactionOptions],
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
        max_tasks: at most so many Spark tasks at a time; as many as there are queues, or parts of them, when None.
        strategy: ``"partition"`` lets one task compact a queue, with more rounds where its keys do not fit in
            ``memory_size``. ``"ranged"`` lets several do it: each reads a stretch of the queue and writes its keys to
            files by ranges of their hashes, each decides about one range, each writes some of the new files.
            ``"auto"`` does so with a queue whose keys may not fit, or that has more than 4 GiB.
        options: see :class:`mqstore.types.CompactionOptions`.

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
    homes = list(dict.fromkeys(absolute(each) for each in paths))
    chosen = topic_list(topics)
    if max_tasks is not None and max_tasks < 1:
        msg = f"max_tasks must be at least 1, not {max_tasks}"
        raise ValueError(msg)
    if strategy not in get_args(Strategy):
        raise InvalidOptionError("strategy", f"must be one of {', '.join(get_args(Strategy))}, not {strategy!r}")
    dry_run, progress = options.pop("dry_run", False), options.pop("progress", None)
    request = options_json(job_id=job_id, **options)
    jobs: list[_Job] = []
    try:
        for home in homes:
            jobs.append(_Job(home, _native.compaction_plan(home, chosen, request)))  # noqa: PERF401 - so far it got
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
    found = _native.compaction_report(absolute(path), job_id)
    return None if found is None else json.loads(found)


def _run(
    spark: SparkSession,
    jobs: list[_Job],
    strategy: Strategy,
    max_tasks: int | None,
    progress: Callable[[Progress], object] | None,
) -> None:
    """Runs the tasks of all jobs on the executors, in as many rounds as they take; their results go to their jobs."""
    parts = max_tasks or parallelism(spark)
    queues = []
    for job in jobs:
        for task in job.tasks:
            steps, size = _native.compaction_split(task, strategy, parts)
            # Each record is read twice.
            queues.append((job, steps, 2 * size))
    rounds = Rounds(spark, progress, sum(size for _, _, size in queues), max_tasks)
    while queues:
        calls = [call for job, steps, size in queues for call in _calls(job, steps, size)]
        try:
            answers = iter(rounds.run(calls))
        except MQStoreError as error:
            msg = f"compaction job {', '.join(dict.fromkeys(job.id for job in jobs))} was not published: {error}"
            raise MQStoreError(msg) from error
        following = []
        for job, own, size in queues:
            result, further = _native.compaction_next(own, list(islice(answers, len(own))))
            if result is None:
                following.append((job, further, size))
            else:
                job.results.append(result)
        queues = following
    rounds.finish()


def _calls(job: _Job, steps: list[str], size: int) -> Iterator[Call]:
    """The steps of a round for a queue, for which so many bytes are read in all."""
    for step in steps:
        share = _SHARES.get(json.loads(step).get("step"), 1.0)
        weight = int(size * share / len(steps))
        # A task for the whole queue reads all, the round of a scan or a copy each record once.
        yield Call("compact", [step, weight if share == 1.0 else size // 2 // len(steps)], job.dir, weight)
