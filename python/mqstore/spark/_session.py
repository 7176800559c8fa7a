"""Access to a Spark session, without an import of PySpark before it is needed."""

from __future__ import annotations

import logging
import os
import re
import secrets
import shutil
import subprocess
import sys
from concurrent.futures import Future, wait
from importlib.util import find_spec
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING, Any

from mqstore.errors import MissingPackageError, MQStoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyspark import SparkContext
    from pyspark.sql import DataFrame, Row, SparkSession

_log = logging.getLogger("mqstore")

FAILED = "mqstore task failed: "
"""Mark before the reason in the text of an executor's error."""

_POLL_SECONDS = 0.1

# Names under which a user chooses the interpreter of the workers: a variable of the environment, and Spark's settings.
_VARIABLE = "PYSPARK_PYTHON"
_SETTINGS = ("spark.pyspark.python", "spark.sql.execution.pyspark.python")

_OLDEST_JAVA = 17
_PROBE_SECONDS = 60

_EXTRA = "mqstore[spark]"


def require(spark: SparkSession) -> None:
    """Checks that the libraries are installed and that ``spark`` is a session; selects the workers' interpreter.

    Raises:
        MissingPackageError: PySpark, pyarrow or pandas is missing.
        TypeError: ``spark`` is not a session.
    """
    # Spark's mapInArrow needs pandas on the driver.
    for name in ("pyspark", "pyarrow", "pandas"):
        if find_spec(name) is None:
            raise MissingPackageError(name, _EXTRA)
    if not callable(getattr(spark, "range", None)):
        raise TypeError(f"spark must be a SparkSession, not {type(spark).__name__}")
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
        MissingPackageError: PySpark is missing.
        MQStoreError: the Java or the workers' interpreter cannot run Spark.
    """
    try:
        from pyspark.sql import SparkSession
    except ModuleNotFoundError:
        raise MissingPackageError("pyspark", _EXTRA) from None
    _check_java()
    if is_local(master):
        if chosen := os.environ.get(_VARIABLE):
            _check_interpreter(chosen)
        else:
            # Before the JVM starts: it reads the variable once, and lists data sources with this interpreter.
            os.environ[_VARIABLE] = sys.executable
            _tell_interpreter()
    builder = SparkSession.builder.master(master).appName("mqstore").config("spark.ui.showConsoleProgress", "false")
    return builder.getOrCreate()


def _check_java() -> None:
    """Raises an error if the Java that Spark is going to start is missing or too old."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    remedy = f"set JAVA_HOME to the folder of a Java {_OLDEST_JAVA} or newer"
    if java is None:
        msg = f"Spark needs Java, and there is none on the PATH: install Java {_OLDEST_JAVA} or newer, or {remedy}"
        raise MQStoreError(msg)
    printed = _output(java, "-XshowSettings:properties", "-version")
    if printed is None:
        raise MQStoreError(f"Spark cannot start {java}: {remedy}")
    # Java 8 has the version 1.8.
    version = re.search(r"java\.specification\.version = (?:1\.)?(\d+)", printed)
    if version and int(version[1]) < _OLDEST_JAVA:
        raise MQStoreError(f"{java} is Java {version[1]}, which is too old for Spark: {remedy}")


def _check_interpreter(chosen: str) -> None:
    """Raises an error if the interpreter that the user chose for local workers cannot run the tasks."""
    remedy = f"set {_VARIABLE} to {sys.executable}, or unset it"
    code = "import sys; print('%d.%d' % sys.version_info[:2]); import mqstore, pyarrow, pandas; print('complete')"
    printed = _output(chosen, "-c", code) or ""
    own = "{}.{}".format(*sys.version_info)
    version = re.search(r"^\d+\.\d+$", printed, re.MULTILINE)
    if version is None:
        msg = f"Spark's workers cannot start {chosen} ({_VARIABLE}): {remedy}"
    elif version[0] != own:
        msg = f"Spark's workers would run {chosen} ({_VARIABLE}), which is Python {version[0]}, not {own}: {remedy}"
    elif "complete" not in printed:
        msg = f"Spark's workers would run {chosen} ({_VARIABLE}), which lacks mqstore[spark]: {remedy}"
    else:
        return
    raise MQStoreError(msg)


def _output(*command: str) -> str | None:
    """Returns everything that a program prints, or None if it does not start."""
    try:
        done = subprocess.run(  # noqa: S603 - the program that Spark is going to start
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, timeout=_PROBE_SECONDS
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout


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
    text = str(error)
    lines = [line.partition(FAILED)[2].strip() for line in text.splitlines() if FAILED in line]
    return lines[-1] if lines else _unsuitable_python(text) or _lost_task(text)


def _unsuitable_python(text: str) -> str | None:
    """Returns the reason if the interpreter of the workers cannot run a task at all."""
    if missing := re.search(r"No module named '(mqstore|pyarrow|pandas)\b", text):
        what = f"the Python of Spark's workers has no module {missing[1]}"
    elif "PYTHON_VERSION_MISMATCH" in text:
        what = "the Python of Spark's workers has another version than this one, {}.{}".format(*sys.version_info)
    elif program := re.search(r'Cannot run program "([^"]+)"', text):
        what = f"Spark's workers cannot start {program[1]}"
    else:
        return None
    return f"{what}: set {_VARIABLE} to an interpreter that has mqstore[spark], before Spark starts"


def _lost_task(text: str) -> str | None:
    """Returns the reason if Spark gave up a task whose worker or executor ended."""
    found = re.search(r"Job aborted due to stage failure: (.+)", text)
    if found is None:
        return None
    return f"Spark gave up a task: {found[1].strip()}; the log of the executor has the cause, such as too little memory"
