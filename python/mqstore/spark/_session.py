"""Access to a Spark session, without an import of PySpark before it is needed."""

from __future__ import annotations

import logging
import os
import secrets
import sys
from concurrent.futures import Future, wait
from importlib.util import find_spec
from threading import Thread
from typing import TYPE_CHECKING, Any

from mqstore.errors import MQStoreError
from mqstore.spark._jobs.tasks import FAILED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyspark import SparkContext
    from pyspark.sql import DataFrame, Row, SparkSession

_log = logging.getLogger("mqstore")

_POLL_SECONDS = 0.1

# Names under which a user chooses the interpreter of the workers: a variable of the environment, and Spark's settings.
_VARIABLE = "PYSPARK_PYTHON"
_SETTINGS = ("spark.pyspark.python", "spark.sql.execution.pyspark.python")

_MISSING = 'mqstore.spark needs PySpark 4.1 or newer, pyarrow and pandas: pip install "mqstore[spark]"'


def require(spark: SparkSession) -> None:
    """Checks that the libraries are installed and that ``spark`` is a session; selects the workers' interpreter.

    Raises:
        ImportError: PySpark, pyarrow or pandas is missing.
        TypeError: ``spark`` is not a session.
    """
    # Spark's mapInArrow needs pandas on the driver.
    for name in ("pyspark", "pyarrow", "pandas"):
        if find_spec(name) is None:
            raise ImportError(_MISSING, name=name)
    if not callable(getattr(spark, "range", None)):
        msg = f"spark must be a SparkSession, not {type(spark).__name__}"
        raise TypeError(msg)
    select_interpreter(spark)


def select_interpreter(spark: SparkSession) -> None:
    """Makes local workers of a classic session run this interpreter, unless the user chose another one.

    Spark's default is the first ``python3`` on the path, which has no mqstore if it is not that of this environment.
    Workers on other machines may have no interpreter with this path, so their sessions stay unchanged.
    """
    context = getattr(spark, "sparkContext", None)
    if context is None or not is_local(context.master) or context.pythonExec == sys.executable:
        return
    if os.environ.get(_VARIABLE) or any(spark.conf.get(name, None) for name in _SETTINGS):
        return
    context.pythonExec = sys.executable
    _tell_interpreter()


def is_local(master: str) -> bool:
    """Returns whether the workers of this master run on this machine, below the driver."""
    return master.startswith("local")


def _tell_interpreter() -> None:
    _log.info("Spark workers run %s; set %s for another interpreter", sys.executable, _VARIABLE)


def begin(master: str) -> SparkSession:
    """Returns a session for the command line, whose local workers run this interpreter unless the user chose another.

    Raises:
        MQStoreError: PySpark is missing.
    """
    try:
        from pyspark.sql import SparkSession
    except ModuleNotFoundError:
        raise MQStoreError(_MISSING) from None
    if is_local(master) and not os.environ.get(_VARIABLE):
        # Before the JVM starts: it reads the variable once, and lists data sources with this interpreter.
        os.environ[_VARIABLE] = sys.executable
        _tell_interpreter()
    builder = SparkSession.builder.master(master).appName("mqstore").config("spark.ui.showConsoleProgress", "false")
    return builder.getOrCreate()


def run(
    spark: SparkSession,
    function: Callable[[Iterable[Any]], Iterator[Any]],
    count: int,
    schema: str,
    look: Callable[[int | None], object] | None = None,
) -> list[Row]:
    """Runs a function for ``mapInArrow`` in ``count`` tasks and returns their rows.

    Args:
        spark: the session.
        function: work of each task.
        count: number of tasks.
        schema: columns of the rows.
        look: callback in the caller's thread during the job, with the number of finished tasks, or None if Spark does
            not report it. An exception in it cancels the tasks.

    Raises:
        MQStoreError: a task failed after all its attempts; the text has the reason.
    """
    frame = spark.range(0, count, 1, count).mapInArrow(function, schema)
    context = getattr(spark, "sparkContext", None)
    try:
        if look is None:
            return frame.collect()
        job = _Remote(spark) if context is None else _Classic(context)
        return _watched(job, frame, look)
    except Exception as error:
        reason = _last_line(error)
        if reason is None:
            raise
        raise MQStoreError(reason) from error


class _Classic:
    """A job in the driver's process."""

    def __init__(self, context: SparkContext) -> None:
        from pyspark import InheritableThread

        self.thread = InheritableThread
        self._context = context
        self._tracker = context.statusTracker()
        self._own = f"mqstore-{secrets.token_hex(8)}"
        # If the caller has set a job group, the jobs stay in it.
        self._theirs = context.getLocalProperty("spark.jobGroup.id")
        self._group = self._theirs or self._own
        self._before = set(self._tracker.getJobIdsForGroup(self._group))

    def begin(self) -> None:
        """Tags the job, in its own thread."""
        if self._theirs is None:
            self._context.setJobGroup(self._own, "mqstore")
        self._context.addJobTag(self._own)

    def done(self) -> int:
        """Returns the number of finished tasks."""
        jobs = (
            self._tracker.getJobInfo(job) for job in set(self._tracker.getJobIdsForGroup(self._group)) - self._before
        )
        stages = (self._tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds)
        return sum(stage.numCompletedTasks for stage in stages if stage is not None)

    def cancel(self) -> None:
        """Cancels its tasks."""
        self._context.cancelJobsWithTag(self._own)


class _Remote:
    """A job of a Spark Connect client, which gets no information about single tasks."""

    thread = Thread

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        self._own = f"mqstore-{secrets.token_hex(8)}"

    def begin(self) -> None:
        """Tags the job, in its own thread."""
        self._spark.addTag(self._own)

    def done(self) -> None:
        """Returns None: the number of finished tasks is unknown."""

    def cancel(self) -> None:
        """Cancels its tasks."""
        self._spark.interruptTag(self._own)


def _watched(job: _Classic | _Remote, frame: DataFrame, look: Callable[[int | None], object]) -> list[Row]:
    """Collects in a thread and calls `look` in this one. If `look` raises an exception, it cancels the tasks."""
    answer: Future[list[Row]] = Future()

    def collect() -> None:
        try:
            job.begin()
            answer.set_result(frame.collect())
        except BaseException as error:  # noqa: BLE001 - the waiting thread raises it
            answer.set_exception(error)

    job.thread(target=collect).start()
    try:
        while not answer.done():
            look(job.done())
            wait([answer], _POLL_SECONDS)
    except BaseException:
        # A job that has not begun cannot be cancelled yet.
        while not answer.done():
            job.cancel()
            wait([answer], _POLL_SECONDS)
        raise
    return answer.result()


def _last_line(error: BaseException) -> str | None:
    """Returns the reason from an executor's error: the text after the mark, up to the end of its line."""
    lines = [line.partition(FAILED)[2].strip() for line in str(error).splitlines() if FAILED in line]
    return lines[-1] if lines else None
