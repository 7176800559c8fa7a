"""The objects that Spark sends to the executors.

Their classes are pickled by value (see :mod:`mqstore.spark._source`), so that an executor without mqstore on its path
can unpickle them. :func:`_enter` then makes the shipped copy importable. For this reason, the top of this module
imports nothing of mqstore, and the objects contain only plain values. A reader that defines ``pushFilters`` has its
own class, because Spark raises an error for it if filter pushdown is off.
"""

from __future__ import annotations

import os
import sys
from contextlib import ContextDecorator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import (
    DataSourceArrowWriter,
    DataSourceReader,
    DataSourceStreamArrowWriter,
    DataSourceStreamReader,
    InputPartition,
    WriterCommitMessage,
)

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ImportError:
    # PySpark 4.1 always asks a stream for all available data.
    ReadAllAvailable = ReadMaxBytes = ReadMaxRows = SupportsTriggerAvailableNow = object  # type: ignore[assignment,misc]

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from types import TracebackType

    import pyarrow as pa


CAPS = SupportsTriggerAvailableNow is not object
"""Whether Spark can ask a stream for a limited batch."""


class HiddenTraceback(ContextDecorator):
    """Makes Spark show the sentence of an error of mqstore or of the system, and not a traceback that ends with it.

    All workers of Spark (for a plan, a task, a commit, a stream) report an exception with
    ``pyspark.util.handle_worker_exception``, and end. So the variable concerns only this error. The setting
    ``spark.sql.execution.pyspark.udf.hideTraceback.enabled`` would also hide the tracebacks of the user's functions.
    """

    def __enter__(self) -> None:
        """Does nothing."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Hides the traceback of an expected error. An unexpected one keeps it."""
        if isinstance(error, OSError) or (kind is not None and kind.__module__.partition(".")[0] == "mqstore"):
            _hide_traceback()


def _hide_traceback() -> None:
    spec = getattr(sys.modules["__main__"], "__spec__", None)
    # A call outside a worker, as in tests, does not change its process.
    if spec is not None and spec.name.startswith("pyspark."):
        os.environ["SPARK_HIDE_TRACEBACK"] = "1"


def _enter(home: tuple[str, str], mark: str = "", use: str = "the first use") -> None:
    """Makes the shipped mqstore importable, and checks that its version is that of the driver.

    Errors begin with `mark`, and name the `use` of the package that fails.
    """
    import socket

    from pyspark import SparkFiles

    archive, version = home
    shipped = os.path.join(SparkFiles.getRootDirectory() or "", archive)  # noqa: PTH118
    if os.path.isdir(shipped) and shipped not in sys.path:  # noqa: PTH112
        sys.path.insert(0, shipped)
    here = f"{socket.gethostname()} ({sys.executable})"
    try:
        import mqstore
    except ImportError as error:
        _hide_traceback()
        advice = f"install it there, or call mqstore.spark.ship(spark) before {use}"
        raise RuntimeError(f"{mark}mqstore cannot be imported on {here}: {error}; {advice}") from None
    if mqstore.__version__ != version:
        _hide_traceback()
        msg = f"{mark}mqstore is {mqstore.__version__} on {here} and {version} on the driver; use one version"
        raise RuntimeError(msg)


@dataclass(eq=False)
class RemoteStore:
    """A store at a URL, for the tasks. Its ``repr`` shows nothing, because URL and options can contain credentials.

    ``listing`` has the files and their versions; None until the driver lists them.
    """

    url: str
    options: dict[str, Any]
    listing: bytes | None = None

    def __repr__(self) -> str:
        return "<store at a URL>"


@dataclass(eq=False, repr=False)
class Reader(DataSourceReader):
    """Reads the ranges that were fixed when it was created.

    ``remotes`` are the stores at URLs, by their path. ``failed`` are parts for the stores that are skipped. ``parts``
    are those of all other stores; None plans them again.
    """

    options: dict[str, Any]
    home: tuple[str, str]
    ranges: dict[str, Any]
    remotes: dict[str, RemoteStore]
    failed: list[Any]
    parts: list[Any] | None

    def __getstate__(self) -> dict[str, Any]:
        # Each task gets its own parts only, and may not have their class.
        return {**vars(self), "failed": [], "parts": None}

    @HiddenTraceback()
    def partitions(self) -> Sequence[InputPartition]:
        """Returns the parts of each task."""
        from mqstore.spark._read import planning

        if self.parts is None:
            self.parts = planning.plan(self.options, self.ranges, self.remotes)
        groups = planning.grouped([*self.failed, *self.parts], self.options)
        return [InputPartition(tuple(part.plain() for part in group)) for group in groups]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Yields the rows of a task."""
        with HiddenTraceback():
            _enter(self.home)
            from mqstore.spark._read.rows import rows_of_task

            # Without parts, Spark starts one task.
            parts = () if partition is None or partition.value is None else partition.value
            yield from rows_of_task(self.options, parts, self.remotes)


class PushingReader(Reader):
    """A reader that accepts filters."""

    @HiddenTraceback()
    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:  # noqa: N802 - Spark's name
        """Applies the filters that it supports; returns those that Spark must apply."""
        from mqstore.spark._read.filters import push

        return list(push(self.options, self.ranges, filters))


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a growing store in limited batches."""

    def __init__(self, options: dict[str, Any], home: tuple[str, str]) -> None:
        self.options = options
        self.home = home
        self.target: dict[str, Any] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Returns the start of the query in words, because Spark asks several times and numbers would change."""
        from mqstore.spark._read import stream

        return stream.initial(self.options)

    @HiddenTraceback()
    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:  # noqa: N802
        """Returns the end of the next batch."""
        from mqstore.spark._read import stream

        free = limit is None or isinstance(limit, ReadAllAvailable)
        return stream.latest(self.options, start, self.target, not free)

    @HiddenTraceback()
    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Returns the part of each task of a batch."""
        from mqstore.spark._read import stream

        return [InputPartition(part.plain()) for part in stream.plan(self.options, start, end)]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Yields the rows of a part."""
        with HiddenTraceback():
            _enter(self.home)
            from mqstore.spark._read.rows import rows

            yield from rows(self.options, None if partition is None else partition.value)

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        """Returns the limit of a batch from the options."""
        if self.options["max_offsets"] is not None:
            return ReadMaxRows(self.options["max_offsets"])
        if self.options["max_bytes"] is not None:
            return ReadMaxBytes(self.options["max_bytes"])
        return ReadAllAvailable()

    @HiddenTraceback()
    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Makes the query end at the current end of the store."""
        from mqstore.spark._read import stream

        self.target = stream.ends(self.options)

    @HiddenTraceback()
    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """Returns the current end of the store."""
        from mqstore.spark._read import stream

        return stream.ends(self.options)

    def commit(self, end: dict[str, Any]) -> None:
        """Does nothing: messages stay in the store after a read."""

    def stop(self) -> None:
        """Does nothing: no store stays open between calls."""


@dataclass(eq=False, repr=False)
class Staged(WriterCommitMessage):
    """The staged file of a task in the job's folder."""

    job: str
    partition: int
    file: str
    rows: int
    size: int
    query: str | None
    topics: dict[str, int]
    refused: list[tuple[str | None, str, int, int, str]]


@dataclass(eq=False, repr=False)
class _Staging:
    """Task side of batch and stream writes."""

    options: dict[str, Any]
    home: tuple[str, str]
    job: str

    @HiddenTraceback()
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stages the rows of a task."""
        _enter(self.home)
        from mqstore.spark._write.stage import stage

        return Staged(self.job, *stage(self.options, self.job, iterator))


class Writer(_Staging, DataSourceArrowWriter):
    """Appends rows: tasks stage them, the driver appends them in one step."""

    @HiddenTraceback()
    def commit(self, messages: list[Any]) -> None:
        """Appends the staged rows."""
        from mqstore.spark._write import append

        append.commit(self.options, self.job, self.options["job_id"] or self.job, None, _results(messages))

    @HiddenTraceback()
    def abort(self, messages: list[Any]) -> None:  # noqa: ARG002
        """Removes the staged rows, unless their append has begun."""
        from mqstore.spark._write import append

        append.abandon(self.options, self.job)


class StreamWriter(_Staging, DataSourceStreamArrowWriter):
    """Appends the batches of a stream, each once."""

    @HiddenTraceback()
    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        """Appends the staged rows, unless this batch of this query was appended before."""
        from mqstore.spark._write import append

        results = _results(messages)
        query = next((each["query"] for each in results if each["query"]), None)
        if query is not None:
            # Spark created this object for the commit only; the tasks had another one with another job.
            append.commit(self.options, results[0]["job"], query, batchId, results)

    @HiddenTraceback()
    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: ARG002, N803
        """Removes the staged rows, unless their append has begun."""
        from mqstore.spark._write import append

        for job in {each["job"] for each in _results(messages)}:
            append.abandon(self.options, job)


def _results(messages: list[Any]) -> list[dict[str, Any]]:
    """Returns the messages of the tasks in partition order."""
    return sorted((vars(message) for message in messages if message is not None), key=lambda each: each["partition"])
