"""What runs on the executors.

The function that Spark gets is pickled by value, since it is made inside another function: an executor that has no
mqstore on its path can still run it, and it makes the shipped copy importable before it asks for the package. It may
therefore name nothing of this module, and imports all that it needs itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

FAILED = "mqstore task failed: "
"""Marks the reason in the text of an error that comes back from an executor."""


def compaction_tasks(
    steps: Sequence[tuple[str, str]], width: int, version: str, archive: str, mark: str
) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """The function for ``mapInArrow`` over ``spark.range(0, width, 1, width)``.

    Args:
        steps: each the folder of its job, in which each attempt makes one of its own, and what to do, as JSON.
        width: how many partitions there are; partition n runs the steps n, n + width, ...
        version: the driver's version of mqstore.
        archive: the name under which :func:`mqstore.spark.ship` sends the package.
        mark: what the text of an error starts with.
    """

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
        results = []
        for batch in batches:
            for partition in batch.column(0).to_pylist():
                for at in range(partition, len(steps), width):
                    job_dir, step = steps[at]
                    # No two attempts ever share a name, whoever starts them.
                    attempt = f"{context.stageId()}-{context.attemptNumber()}-{context.taskAttemptId()}"
                    staging = os.path.join(job_dir, f"task-{at}-{attempt}-{secrets.token_hex(8)}")  # noqa: PTH118
                    try:
                        results.append((at, _native.compaction_run_step(step, staging)))
                    except MQStoreError as error:
                        msg = f"{mark}{type(error).__name__}: {error}"
                        raise RuntimeError(msg) from None
        numbers, answers = [at for at, _ in results], [answer for _, answer in results]
        yield pa.RecordBatch.from_pydict(
            {"number": pa.array(numbers, pa.int64()), "answer": pa.array(answers, pa.string())}
        )

    return run
