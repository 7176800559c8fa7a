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
    from collections.abc import Callable, Iterable
    from typing import Unpack

    from pyspark.sql import SparkSession

    from mqstore.types import CompactionOptions, StorePath


Strategy: TypeAlias = Literal["auto", "partition", "ranged"]
"""How many tasks work on one queue."""


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
    given: dict[str, Any] = dict(options)
    dry_run, progress = given.pop("dry_run", False), given.pop("progress", None)
    request = options_json(job_id=job_id, **given)
    jobs: list[_native.CompactionJob] = []
    try:
        for home in homes:
            jobs.append(_native.CompactionJob(home, chosen, request))  # noqa: PERF401 - so far it got
        _run(spark, jobs, strategy, max_tasks, progress)
        reports = {home: _published(job, dry_run) for home, job in zip(homes, jobs, strict=True)}
    except BaseException:
        for job in jobs:
            job.abandon()
        raise
    return reports[homes[0]] if one else reports


def _published(job: _native.CompactionJob, dry_run: bool) -> CompactionReport:
    return CompactionReport._from_dict(json.loads(job.publish(dry_run)))


def job_details(path: StorePath, job_id: str) -> dict[str, Any] | None:
    """What a published job did, queue by queue: counts, and the process, host and file of the code that did it.

    Returns:
        The job's record as plain values; None when no job of this name was published.
    """
    found = _native.compaction_report(absolute(path), job_id)
    return None if found is None else json.loads(found)


def _run(
    spark: SparkSession,
    jobs: list[_native.CompactionJob],
    strategy: Strategy,
    max_tasks: int | None,
    progress: Callable[[Progress], object] | None,
) -> None:
    """Runs the steps of all jobs on the executors, in as many rounds as they take."""
    parts = max_tasks or parallelism(spark)
    steps = [job.start(strategy, parts) for job in jobs]
    rounds = Rounds(spark, progress, sum(job.total_bytes for job in jobs), max_tasks)
    while any(steps):
        calls = [
            Call("compact", (step,), job.dir, weight)
            for job, own in zip(jobs, steps, strict=True)
            for weight, step in own
        ]
        try:
            answers = iter(rounds.run(calls))
        except MQStoreError as error:
            msg = f"compaction job {', '.join(dict.fromkeys(job.id for job in jobs))} was not published: {error}"
            raise MQStoreError(msg) from error
        steps = [job.next(list(islice(answers, len(own)))) for job, own in zip(jobs, steps, strict=True)]
    rounds.finish()
