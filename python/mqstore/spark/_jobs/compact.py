"""Compaction on Spark: the driver plans and publishes it, the executors do the work."""

from __future__ import annotations

import json
import os
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, get_args, overload

from mqstore import _native
from mqstore._admin.compaction import check_names, options_json, topic_list
from mqstore._reports import CompactionReport, Progress
from mqstore.errors import InvalidOptionError, MQStoreError
from mqstore.spark._jobs.folders import absolute
from mqstore.spark._jobs.rounds import Call, Rounds, parallelism
from mqstore.spark._session import require
from mqstore.types import CompactionOptions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Unpack

    from pyspark.sql import SparkSession

    from mqstore.types import StorePath


Strategy: TypeAlias = Literal["auto", "partition", "ranged"]
"""Number of tasks for one queue."""


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
    """Compacts topics: keeps the newest message of each key, unless its body is empty.

    The result is in RocketMQ's own compaction folders, which a broker serves and continues. The commit log is not
    changed. The key of a message is its complete ``KEYS`` text. Messages without a key are dropped, as in RocketMQ,
    unless ``keyless`` says otherwise.

    Executors run native code, which reads and writes the directory itself: one task for each queue, several for a large
    queue. Tasks write only to their own folders. The driver checks the results, takes the lock of the store, and
    publishes all new files in one step. Queues whose files changed meanwhile stay unchanged and are named in
    ``skipped``. The next compaction finds messages that were appended meanwhile. After a failure or a kill, each queue
    is either untouched or fully compacted.

    Args:
        spark: the session, classic or Spark Connect.
        path: directory of the store, or an iterable of directories, which one job compacts; the same paths on the
            driver and on every executor. No process may have a store open for writing when the job begins and when it
            is published.
        topics: topics in each store; None is all compaction topics.
        job_id: name of the job; None generates one. If a job with this name was published, the call only returns its
            report. So a driver can be restarted.
        max_tasks: maximum number of Spark tasks at a time; None is the number of queues or of their parts.
        strategy: ``"partition"`` uses one task for each queue, with more rounds if its keys do not fit in
            ``memory_size``. ``"ranged"`` uses several: each reads a range of the queue and writes its keys to files by
            ranges of their hashes, each decides about one range, and each writes some of the new files. ``"auto"`` uses
            several for a queue whose keys may not fit, or that has more than 4 GiB.
        options: see :class:`mqstore.types.CompactionOptions`.

    Returns:
        The report; for several directories, the reports by directory. ``skipped`` names the queues that were skipped,
        with the reason.

    Raises:
        ImportError: PySpark, pyarrow or pandas is missing.
        TopicNotFoundError: no such topic.
        InvalidOptionError: a topic is not a compaction topic, or an option is out of bounds.
        StoreLockedError: another process has the store open for writing.
        StoreBusyError: another driver runs a job with this ``job_id``.
        UnsupportedFormatError: the file system cannot publish in one step.
        MQStoreError: a task failed after all its attempts; the text says where and why. With several stores, those
            before the one that could not be published are compacted; a job with the same ``job_id`` does the rest.
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
    check_names(given, CompactionOptions)
    dry_run, progress = given.pop("dry_run", False), given.pop("progress", None)
    request = options_json(job_id=job_id, **given)
    jobs: list[_native.CompactionJob] = []
    try:
        for home in homes:
            jobs.append(_native.CompactionJob(home, chosen, request))  # noqa: PERF401 - keeps the jobs before an error
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
    """Returns what a published job did in each queue: counts, and process, host and library file of the code.

    Returns:
        The record of the job as plain values; None if no job with this name was published.
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
    """Runs the steps of all jobs on the executors, in as many rounds as needed."""
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
