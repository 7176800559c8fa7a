"""The objects that Spark sends to the executors.

Their classes are pickled by value (see :mod:`mqstore.spark._source`): an executor that has no mqstore on its path can
unpickle them, and :func:`_enter` makes the shipped copy importable. Nothing of mqstore may therefore be imported at the
top of this module. They hold plain values alone. A reader that defines ``pushFilters`` is an error where Spark has that
turned off, and so a class of its own.
"""

from __future__ import annotations

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
    # PySpark 4.1 asks a stream for all that is there, and knows nothing else.
    ReadAllAvailable = ReadMaxBytes = ReadMaxRows = SupportsTriggerAvailableNow = object  # type: ignore[assignment,misc]

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import pyarrow as pa


CAPS = SupportsTriggerAvailableNow is not object
"""Whether a stream can be asked for less than all that is there."""


def _enter(home: tuple[str, str]) -> None:
    """Makes mqstore importable where it was sent along, and sure that it is the driver's version."""
    import os
    import socket
    import sys

    from pyspark import SparkFiles

    archive, version = home
    shipped = os.path.join(SparkFiles.getRootDirectory() or "", archive)  # noqa: PTH118
    if os.path.isdir(shipped) and shipped not in sys.path:  # noqa: PTH112
        sys.path.insert(0, shipped)
    here = f"{socket.gethostname()} ({sys.executable})"
    try:
        import mqstore
    except ImportError as error:
        msg = (
            f"mqstore cannot be imported on {here}: {error}; install it there, or call mqstore.spark.ship(spark) "
            "before the first use"
        )
        raise RuntimeError(msg) from None
    if mqstore.__version__ != version:
        msg = f"mqstore is {mqstore.__version__} on {here} and {version} on the driver; use one version"
        raise RuntimeError(msg)


class Reader(DataSourceReader):
    """Reads what was there when it was made."""

    def __init__(self, options: dict[str, Any], home: tuple[str, str], ranges: dict[str, Any]) -> None:
        self.options = options
        self.home = home
        self.ranges = ranges

    def partitions(self) -> Sequence[InputPartition]:
        """What each task reads; at least one, since Spark takes none for one without a value."""
        from mqstore.spark._read import planning

        return [InputPartition(part.plain()) for part in planning.plan(self.options, self.ranges)]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """The rows of a part."""
        _enter(self.home)
        from mqstore.spark._read.rows import rows

        return rows(self.options, None if partition is None else partition.value)


class PushingReader(Reader):
    """A reader that takes filters."""

    def pushFilters(self, filters: list[Any]) -> Iterable[Any]:  # noqa: N802 - Spark's name
        """Takes over what it can; yields what Spark still has to do."""
        from mqstore.spark._read.filters import push

        return push(self.options, self.ranges, filters)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads a store while it grows, at most so much at once."""

    def __init__(self, options: dict[str, Any], home: tuple[str, str]) -> None:
        self.options = options
        self.home = home
        self.target: dict[str, Any] | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802
        """Where the query begins, in words: numbers would be others each time Spark asks."""
        from mqstore.spark._read import stream

        return stream.initial(self.options)

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, Any]:  # noqa: N802
        """Where the next batch ends."""
        from mqstore.spark._read import stream

        free = limit is None or isinstance(limit, ReadAllAvailable)
        return stream.latest(self.options, start, self.target, not free)

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """What each task of a batch reads."""
        from mqstore.spark._read import stream

        return [InputPartition(part.plain()) for part in stream.plan(self.options, start, end)]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """The rows of a part."""
        _enter(self.home)
        from mqstore.spark._read.rows import rows

        return rows(self.options, None if partition is None else partition.value)

    def getDefaultReadLimit(self) -> Any:  # noqa: N802
        """The cap that the options set."""
        if self.options["max_offsets"] is not None:
            return ReadMaxRows(self.options["max_offsets"])
        if self.options["max_bytes"] is not None:
            return ReadMaxBytes(self.options["max_bytes"])
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        """Has the query end at what is there now."""
        from mqstore.spark._read import stream

        self.target = stream.ends(self.options)

    def reportLatestOffset(self) -> dict[str, Any]:  # noqa: N802
        """How far a query could be."""
        from mqstore.spark._read import stream

        return stream.ends(self.options)

    def commit(self, end: dict[str, Any]) -> None:
        """Nothing: what was read stays in the store."""

    def stop(self) -> None:
        """Nothing: no store stays open between calls."""


class Staged(WriterCommitMessage):
    """What a task has staged: a file in the job's folder."""

    def __init__(
        self, job: str, partition: int, file: str, rows: int, size: int, query: str | None, topics: dict[str, int]
    ) -> None:
        self.job = job
        self.topics = topics
        self.partition = partition
        self.file = file
        self.rows = rows
        self.size = size
        self.query = query


class _Staging:
    """What tasks of both kinds of write do."""

    def __init__(self, options: dict[str, Any], home: tuple[str, str], job: str) -> None:
        self.options = options
        self.home = home
        self.job = job

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Stages the rows of a task."""
        _enter(self.home)
        from mqstore.spark._write.stage import stage

        return Staged(self.job, *stage(self.options, self.job, iterator))


class Writer(_Staging, DataSourceArrowWriter):
    """Appends rows: tasks stage them, the driver's side appends them in one step."""

    def commit(self, messages: list[Any]) -> None:
        """Appends what was staged."""
        from mqstore.spark._write import append

        append.commit(self.options, self.job, self.options["job_id"] or self.job, None, _told(messages))

    def abort(self, messages: list[Any]) -> None:  # noqa: ARG002
        """Throws away what was staged and is not being appended."""
        from mqstore.spark._write import append

        append.abandon(self.options, self.job)


class StreamWriter(_Staging, DataSourceStreamArrowWriter):
    """Appends the batches of a stream, each once."""

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        """Appends what was staged, unless this batch of this query was appended before."""
        from mqstore.spark._write import append

        told = _told(messages)
        query = next((each["query"] for each in told if each["query"]), None)
        if query is not None:
            # This object was made for the commit alone; the tasks had another one.
            append.commit(self.options, told[0]["job"], query, batchId, told)

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: ARG002, N803
        """Throws away what was staged and is not being appended."""
        from mqstore.spark._write import append

        for job in {each["job"] for each in _told(messages)}:
            append.abandon(self.options, job)


def _told(messages: list[Any]) -> list[dict[str, Any]]:
    """What the tasks said, in the order of their partitions."""
    return sorted((vars(message) for message in messages if message is not None), key=lambda each: each["partition"])
