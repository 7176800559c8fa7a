"""What is asked of a Spark session, without importing PySpark before it is needed."""

from __future__ import annotations

import secrets
from concurrent.futures import Future, wait
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from mqstore._reports import Progress
from mqstore.errors import MQStoreError
from mqstore.spark._tasks import FAILED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyspark import SparkContext
    from pyspark.sql import DataFrame, Row, SparkSession

_POLL_SECONDS = 0.1

_MISSING = 'mqstore.spark needs PySpark 4.1 or newer, pyarrow and pandas: pip install "mqstore[spark]"'


def require(spark: SparkSession) -> None:
    """Makes sure that the libraries are there and that ``spark`` is a session.

    Raises:
        ImportError: PySpark, pyarrow or pandas is missing.
        TypeError: ``spark`` is something else.
    """
    # Spark's mapInArrow asks for pandas on the driver.
    for name in ("pyspark", "pyarrow", "pandas"):
        if find_spec(name) is None:
            raise ImportError(_MISSING, name=name)
    if not callable(getattr(spark, "range", None)):
        msg = f"spark must be a SparkSession, not {type(spark).__name__}"
        raise TypeError(msg)


def begin(master: str) -> SparkSession:
    """A session for the command line.

    Raises:
        MQStoreError: PySpark is missing.
    """
    try:
        from pyspark.sql import SparkSession
    except ModuleNotFoundError:
        raise MQStoreError(_MISSING) from None
    builder = SparkSession.builder.master(master).appName("mqstore").config("spark.ui.showConsoleProgress", "false")
    return builder.getOrCreate()


def run(
    spark: SparkSession,
    function: Callable[[Iterable[Any]], Iterator[Any]],
    count: int,
    schema: str,
    progress: Callable[[Progress], object] | None,
) -> list[Row]:
    """Runs a function for ``mapInArrow`` in so many tasks; the rows that they gave.

    Raises:
        MQStoreError: a task failed for good, and said why.
    """
    frame = spark.range(0, count, 1, count).mapInArrow(function, schema)
    context = None if progress is None else getattr(spark, "sparkContext", None)
    try:
        if progress is None:
            return frame.collect()
        if context is not None:
            return _watched(context, frame, count, progress)
        # A client of Spark Connect is not told of tasks by name.
        progress(Progress(0, count))
        rows = frame.collect()
        progress(Progress(count, count))
        return rows
    except Exception as error:
        reason = _last_line(error)
        if reason is None:
            raise
        raise MQStoreError(reason) from error


def _watched(context: SparkContext, frame: DataFrame, count: int, progress: Callable[[Progress], object]) -> list[Row]:
    """Collects in a thread; tells of tasks that are done in this one, and ends them when that raises something."""
    from pyspark import InheritableThread

    tracker, own = context.statusTracker(), f"mqstore-{secrets.token_hex(8)}"
    theirs = context.getLocalProperty("spark.jobGroup.id")
    group = theirs or own
    before = set(tracker.getJobIdsForGroup(group))
    answer: Future[list[Row]] = Future()

    def collect() -> None:
        try:
            if theirs is None:
                context.setJobGroup(own, "mqstore")
            context.addJobTag(own)
            answer.set_result(frame.collect())
        except BaseException as error:  # noqa: BLE001 - it is raised in the thread that waits
            answer.set_exception(error)

    def done() -> int:
        jobs = (tracker.getJobInfo(job) for job in set(tracker.getJobIdsForGroup(group)) - before)
        stages = (tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds)
        return min(count, sum(stage.numCompletedTasks for stage in stages if stage is not None))

    InheritableThread(target=collect).start()
    told = -1
    try:
        while not answer.done():
            if (now := done()) > told:
                progress(Progress(now, count))
                told = now
            wait([answer], _POLL_SECONDS)
    except BaseException:
        # What has not begun yet cannot be cancelled yet.
        while not answer.done():
            context.cancelJobsWithTag(own)
            wait([answer], _POLL_SECONDS)
        raise
    rows = answer.result()
    if told < count:
        progress(Progress(count, count))
    return rows


def _last_line(error: BaseException) -> str | None:
    """The reason in the text of an error that came back from an executor: what follows the mark, to the line's end."""
    lines = [line.partition(FAILED)[2].strip() for line in str(error).splitlines() if FAILED in line]
    return lines[-1] if lines else None


def register(spark: SparkSession) -> None:
    """Makes the format ``mqstore`` known to a session.

    Only needed where Spark does not find it by itself: it looks for modules called ``pyspark_*`` on the driver's path.

    Args:
        spark: the session.
    """
    from pyspark_mqstore import DefaultSource

    require(spark)
    spark.dataSource.register(DefaultSource)


register.__module__ = "mqstore.spark"
