"""What runs on the executors.

The function that Spark gets is pickled by value, since it is made inside another function: an executor that has no
mqstore on its path can still run it, and it makes the shipped copy importable before it asks for the package. It may
therefore name nothing of this module, and imports all that it needs itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

FAILED = "mqstore task failed: "
"""Marks the reason in the text of an error that comes back from an executor."""


class Home(NamedTuple):
    """By which tasks find the package."""

    version: str
    """The driver's version of mqstore."""
    archive: str
    """The name under which :func:`mqstore.spark.ship` sends it."""


def tasks(
    calls: Sequence[tuple[str | None, str, tuple[Any, ...]]], width: int, round_number: int, tells: bool, home: Home
) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """The function for ``mapInArrow`` over ``spark.range(0, width, 1, width)``.

    Args:
        calls: for each call the folder of its job, in which each attempt has one of its own
            (``task-<round>-<number>-...``), and the verb and arguments for :func:`mqstore.spark._work.call`.
        width: how many partitions there are; partition n makes the calls n, n + width, ...
        round_number: the round of the job.
        tells: whether attempts tell how far they are.
        home: by which tasks find the package.
    """
    version, archive, mark = home.version, home.archive, FAILED

    def run(batches: Iterable[Any]) -> Iterator[Any]:
        import os
        import secrets
        import socket
        import sys

        import pyarrow as pa
        from pyspark import SparkFiles, TaskContext

        # Spark gives the root as text only where files were sent.
        shipped = os.path.join(SparkFiles.getRootDirectory() or "", archive)  # noqa: PTH118
        if os.path.isdir(shipped) and shipped not in sys.path:  # noqa: PTH112
            sys.path.insert(0, shipped)
        here = f"{socket.gethostname()} ({sys.executable})"
        try:
            from mqstore import MQStoreError, _native
        except ImportError as error:
            advice = "install it there, or call mqstore.spark.ship(spark) before the job"
            msg = f"{mark}mqstore cannot be imported on {here}: {error}; {advice}"
            raise RuntimeError(msg) from None
        if _native.__version__ != version:
            msg = f"{mark}mqstore is {_native.__version__} on {here} and {version} on the driver; use one version"
            raise RuntimeError(msg)
        context = TaskContext.get()
        if context is None:
            msg = f"{mark}it was started outside of a Spark task"
            raise RuntimeError(msg)
        from mqstore.spark._jobs import work

        numbers, answers = [], []
        for batch in batches:
            for partition in batch.column(0).to_pylist():
                for at in range(partition, len(calls), width):
                    job, verb, arguments = calls[at]
                    # No two attempts ever share a name, whoever starts them.
                    own = f"{context.stageId()}-{context.attemptNumber()}-{context.taskAttemptId()}"
                    name = f"task-{round_number}-{at}-{own}-{secrets.token_hex(8)}"
                    attempt = None if job is None else os.path.join(job, name)  # noqa: PTH118
                    try:
                        answers.append(work.call(verb, arguments, attempt, tells))
                    except (MQStoreError, OSError) as error:
                        msg = f"{mark}{type(error).__name__}: {error}{work.hint(error)}"
                        raise RuntimeError(msg) from None
                    numbers.append(at)
        yield pa.RecordBatch.from_pydict(
            {"number": pa.array(numbers, pa.int64()), "answer": pa.array(answers, pa.binary())}
        )

    return run
