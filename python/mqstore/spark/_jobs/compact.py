"""Compaction on Spark: the driver plans and publishes it, the executors do the work."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, get_args, overload

from mqstore import _native
from mqstore._admin.compaction import check_names, options_json, topic_list
from mqstore._paths import is_url, shown_url, target_url, text_of
from mqstore._read.on_error import check_on_error
from mqstore._reports import CompactionReport
from mqstore.errors import InvalidOptionError, MQStoreError, RemoteStoreError
from mqstore.spark._jobs.copies import Source, staged
from mqstore.spark._jobs.copy_to_url import published_copy
from mqstore.spark._jobs.folders import Stores, absolute, homes, is_one, texts_of
from mqstore.spark._jobs.reports import Reports
from mqstore.spark._jobs.rounds import Call, Rounds, error_of, parallelism
from mqstore.spark._session import require
from mqstore.spark._stores import each
from mqstore.types import CompactionOptions

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Unpack

    from pyspark.sql import DataFrame, SparkSession

    from mqstore.types import OnError, StorePath


Strategy: TypeAlias = Literal["auto", "partition", "ranged"]
"""Number of tasks for one queue."""


def check_tasks(strategy: str, max_tasks: int | None) -> None:
    """Checks two arguments of a job.

    Raises:
        ValueError: `max_tasks` is less than 1.
        InvalidOptionError: no such strategy.
    """
    if max_tasks is not None and max_tasks < 1:
        raise ValueError(f"max_tasks must be at least 1, not {max_tasks}")
    if strategy not in get_args(Strategy):
        raise InvalidOptionError("strategy", f"must be one of {', '.join(get_args(Strategy))}, not {strategy!r}")


@overload
def compact(  # type: ignore[overload-overlap]  # a str is no iterable of paths
    spark: SparkSession,
    path: StorePath,
    topics: Iterable[str] | None = ...,
    *,
    output: StorePath | None = ...,
    job_id: str | None = ...,
    max_tasks: int | None = ...,
    strategy: Strategy = ...,
    storage_options: Mapping[str, Any] | None = ...,
    target_options: Mapping[str, Any] | None = ...,
    **options: Unpack[CompactionOptions],
) -> CompactionReport: ...
@overload
def compact(
    spark: SparkSession,
    path: Iterable[StorePath] | DataFrame,
    topics: Iterable[str] | None = ...,
    *,
    output: None = ...,
    job_id: str | None = ...,
    max_tasks: int | None = ...,
    strategy: Strategy = ...,
    on_error: OnError = ...,
    **options: Unpack[CompactionOptions],
) -> Reports[CompactionReport]: ...
def compact(
    spark: SparkSession,
    path: Stores,
    topics: Iterable[str] | None = None,
    *,
    output: StorePath | None = None,
    job_id: str | None = None,
    max_tasks: int | None = None,
    strategy: Strategy = "auto",
    on_error: OnError = "raise",
    storage_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
    **options: Unpack[CompactionOptions],
) -> CompactionReport | Reports[CompactionReport]:
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
        path: directory of the store, the same path on the driver and on every executor. An iterable of directories, a
            pattern with ``*``, or a DataFrame with them in its first column is several stores, which one job compacts.
            With ``output``, one directory or URL. No process may have a store open for writing when the job begins and
            when it is published.
        topics: topics in each store; None is all compaction topics.
        output: new folder for a compacted copy of the store, under the same path on the driver and on every executor.
            It gets its name when the copy is complete and compacted. The tasks copy a store at a URL, in the versions
            of the files that the driver listed; the driver copies a directory. `path` stays unchanged. None compacts
            `path` itself. With a URL at which there is no result yet, driver and executors need no shared folder: one
            task copies the store to a temporary folder (`TMPDIR`), which needs the space of the store, compacts it with
            the processors of the task (`spark.task.cpus`), and uploads it. The driver publishes it, as for
            `mqstore.export`.
        job_id: name of the job; None generates one. If a job with this name was published, the call only returns its
            report. So a driver can be restarted.
        max_tasks: maximum number of Spark tasks at a time; None is the number of queues or of their parts.
        strategy: ``"partition"`` uses one task for each queue, with more rounds if its keys do not fit in
            ``memory_size``. ``"ranged"`` uses several: each reads a range of the queue and writes its keys to files by
            ranges of their hashes, each decides about one range, and each writes some of the new files. ``"auto"`` uses
            several for a queue whose keys may not fit, or that has more than 4 GiB.
        on_error: only for several stores: behaviour if one of them cannot be compacted. ``"raise"`` raises the error.
            ``"skip"`` compacts the other stores; `Reports.failures` names those that failed, which are unchanged.
        storage_options: only for a URL: credentials and settings of the transport, see `mqstore.open`. No error shows
            them.
        target_options: only if `output` is a URL: credentials and settings of its transport.
        options: see :class:`mqstore.types.CompactionOptions`.

    Returns:
        The report; for several directories, the reports by directory. ``skipped`` names the queues that were skipped,
        with the reason.

    Raises:
        MissingPackageError: PySpark, pyarrow or pandas is missing.
        FileExistsError: ``output`` exists.
        ResultExistsError: the URL ``output`` has another result or other objects.
        RemoteStoreError: ``path`` is a URL, and there is no ``output``; or results cannot be written to this kind of
            URL.
        NotAStoreError: a pattern matches no store, or `path` contains none.
        TopicNotFoundError: no such topic.
        InvalidOptionError: a topic is not a compaction topic, or an option is out of bounds.
        StoreLockedError: another process has the store open for writing.
        StoreBusyError: another driver runs a job with this ``job_id``.
        UnsupportedFormatError: the file system cannot publish in one step.
        MQStoreError: a task failed after all its attempts; the text says where and why. With several stores, others
            may be compacted; a job with the same ``job_id`` does the rest.
    """
    require(spark)
    one = is_one(path)
    check_on_error(on_error, are_several=not one)
    chosen = topic_list(topics)
    check_tasks(strategy, max_tasks)
    given: dict[str, Any] = dict(options)
    check_names(given, CompactionOptions)
    dry_run, progress = given.pop("dry_run", False), given.pop("progress", None)
    request = options_json(job_id=job_id, **given)
    rounds = Rounds(spark, progress, None, max_tasks, keeps=on_error == "skip")
    job = _Compaction(rounds, chosen, request, strategy, max_tasks or parallelism(spark), dry_run, on_error)
    url = target_url(output, target_options)
    if output is None:
        if storage_options is not None:
            raise InvalidOptionError("storage_options", "only for a store at a URL with output=; omit it")
        found = Reports.of(job.run([_writable(text_of(cast("StorePath", path)))] if one else homes(_checked(path))))
        return next(iter(found.values())) if one else found
    if not one:
        raise InvalidOptionError("output", "only for one store; compact the stores separately")
    if dry_run:
        raise InvalidOptionError("dry_run", "writes no copy; omit output")
    place = text_of(cast("StorePath", path))
    if not is_url(place) and storage_options is not None:
        raise InvalidOptionError("storage_options", f"only for a store at a URL, and {place!r} is a directory")

    def source() -> Source:
        return Source(place if is_url(place) else absolute(place), dict(storage_options or {}), chosen or [])

    if url is not None:
        if strategy == "ranged":
            raise InvalidOptionError("strategy", "one task writes a copy to a URL; omit it")
        return published_copy(rounds, source, (chosen, request), url, target_options, job_id)
    target = absolute(output)
    if job_id is not None and (published := _published_before(target, job_id)) is not None:
        return published
    with staged(target, job_id) as staging:
        copied = source()
        rounds.expect(copied.size)
        home = copied.copy(staging, rounds, max_tasks or parallelism(spark))
        report = job.run([home])[home]
    # With "raise", there is no other result.
    return cast("CompactionReport", report)


def _checked(paths: Stores) -> list[str]:
    return [_writable(path) for path in texts_of(paths)]


def _writable(path: str) -> str:
    """Returns the absolute path of a directory."""
    if is_url(path):
        raise RemoteStoreError(shown_url(path), "compact it in place (output= writes a compacted copy)")
    return absolute(path)


def _published_before(target: str, job_id: str) -> CompactionReport | None:
    """Returns the report of a job that has published this copy, and checks its name."""
    if os.path.isfile(target):  # noqa: PTH113
        return None
    found = _native.compaction_report(target, job_id)
    return None if found is None else CompactionReport._from_dict(json.loads(found))


@dataclass(eq=False, repr=False)
class _Compaction:
    """The job on the stores in some directories."""

    rounds: Rounds
    topics: list[str] | None
    request: str
    strategy: Strategy
    parts: int
    dry_run: bool
    on_error: OnError

    def run(self, homes: list[str]) -> dict[str, CompactionReport | Exception]:
        """Compacts the stores. Returns a report or an error for each."""
        jobs: dict[str, _native.CompactionJob] = {}

        def begin(home: str) -> None:
            jobs[home] = _native.CompactionJob(home, self.topics, self.request)

        try:
            begun = each(begin, homes, self.on_error)
            found: dict[str, CompactionReport | Exception] = {
                home: error for home, error in zip(homes, begun, strict=True) if error is not None
            }
            planned = [home for home in homes if home not in found]
            own = [jobs[home] for home in planned]
            failed: dict[int, Exception] = {}
            _run(self.rounds, own, self.strategy, self.parts, failed)
            found.update((planned[at], error) for at, error in failed.items())
            done = [home for home in planned if home not in found]
            found.update(zip(done, each(lambda home: self._published(jobs[home]), done, self.on_error), strict=True))
        except BaseException:
            for job in jobs.values():
                job.abandon()
            raise
        for home, one in found.items():
            if isinstance(one, Exception) and home in jobs:
                jobs[home].abandon()
        return {home: found[home] for home in homes}

    def _published(self, job: _native.CompactionJob) -> CompactionReport:
        return CompactionReport._from_dict(json.loads(job.publish(self.dry_run)))


def job_details(path: StorePath, job_id: str) -> dict[str, Any] | None:
    """Returns what a published job did in each queue: counts, and process, host and library file of the code.

    Returns:
        The record of the job as plain values; None if no job with this name was published.
    """
    found = _native.compaction_report(absolute(path), job_id)
    return None if found is None else json.loads(found)


def _run(
    rounds: Rounds, jobs: list[_native.CompactionJob], strategy: Strategy, parts: int, failed: dict[int, Exception]
) -> None:
    """Runs the steps of all jobs on the executors, in as many rounds as needed. Adds errors to `failed`, by number."""
    steps = [job.start(strategy, parts) for job in jobs]
    rounds.expect(sum(job.total_bytes for job in jobs))
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
        for at, (job, own) in enumerate(zip(jobs, steps, strict=True)):
            steps_done = list(islice(answers, len(own)))
            if (failure := error_of(steps_done)) is not None:
                failed[at] = failure
            steps[at] = [] if at in failed else job.next(steps_done)
    rounds.finish()
