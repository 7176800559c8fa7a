"""Functions that the cluster tests run in drivers and in tasks, sent by value.

They contain no `assert`: the asserts that pytest rewrites need pytest where they run.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

PATIENCE = 240.0
"""Seconds, far more than any step takes."""


def job(spark: Any, verb: str, *arguments: Any, **named: Any) -> Any:
    import mqstore.spark

    return getattr(mqstore.spark, verb)(spark, *arguments, **named)


def job_with_tasks(spark: Any, around: Callable[..., Iterator[Any]], path: Path, **named: Any) -> Any:
    """A compaction whose tasks run through `around(run, batches, folder of the job)`."""
    import mqstore.spark
    from mqstore.spark._jobs import rounds as _rounds

    real = _rounds.tasks

    def made_of(*arguments: Any) -> Callable[[Iterable[Any]], Iterator[Any]]:
        inner, job_dir = real(*arguments), arguments[0][0][0]
        return lambda batches: around(inner, batches, job_dir)

    _rounds.tasks = made_of
    try:
        return mqstore.spark.compact(spark, path, **named)
    finally:
        _rounds.tasks = real


def held_job(spark: Any, gate: Path, name: str, path: Path, **named: Any) -> Any:
    """A compaction that waits for the gate after all tasks are done and before anything is published."""
    import mqstore.spark
    from mqstore.spark._jobs import compact as _compact

    real = _compact._run

    def run(*arguments: Any) -> Any:
        results = real(*arguments)
        hold(gate, name)
        return results

    _compact._run = run
    try:
        return mqstore.spark.compact(spark, path, **named)
    finally:
        _compact._run = real


def attempt() -> tuple[int, int]:
    """The partition of this task and the number of this attempt."""
    from pyspark import TaskContext

    context: Any = TaskContext.get()
    return context.partitionId(), context.attemptNumber()


def kill_executor_once(condition: Callable[[], bool], note: Path) -> None:
    """Kills this executor's JVM from a thread when the condition becomes true. Notes its command line first."""

    def kill() -> None:
        while not condition():
            time.sleep(0.001)
        # PySpark's daemon started this process, and the executor started the daemon.
        executor = int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])
        note.write_text(Path(f"/proc/{executor}/cmdline").read_text())
        os.kill(executor, signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()


def hold(gate: Path, name: str) -> None:
    """Reports that this point is reached, and waits until the gate opens."""
    (gate / f"{name}.new").write_text(str(os.getpid()))
    (gate / f"{name}.new").rename(gate / name)
    await_file(gate / "open")


def await_file(path: Path) -> None:
    end = time.monotonic() + PATIENCE
    while not path.exists():
        if time.monotonic() > end:
            raise TimeoutError(f"waited in vain for {path}")
        time.sleep(0.02)


def read_count(spark: Any, path: str) -> int:
    return int(spark.read.format("mqstore").load(path).count())


def write_rows(spark: Any, path: str, count: int = 5, form: str = "mqstore", **options: Any) -> None:
    rows = spark.range(0, count, 1, 2).selectExpr("string(id) AS body")
    rows.write.format(form).options(topic="t", **options).mode("append").save(path)


def session_is_ready(spark: Any) -> bool:
    return bool(spark.range(1).count())


def stream_into_folders(spark: Any, path: str, work: str, options: dict[str, Any]) -> None:
    """Runs a query up to the current end. Writes each batch to a folder of its own."""

    def write(frame: Any, batch: int) -> None:
        frame.write.mode("overwrite").parquet(f"{work}/out/{batch}")

    frame = spark.readStream.format("mqstore").options(**options).load(path)
    query = frame.writeStream.foreachBatch(write).option("checkpointLocation", f"{work}/checkpoint")
    query.trigger(availableNow=True).start().awaitTermination()


def in_threads(spark: Any, *calls: Callable[[], Any]) -> None:
    """Makes calls at the same time."""

    def run(call: Callable[[], Any]) -> None:
        # Spark looks up sources in the active session of the thread.
        spark._jvm.SparkSession.setActiveSession(spark._jsparkSession)
        call()

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def held_source(gate: Path, name: str, appended: int) -> type:
    """A source whose write stops at its commit: before anything, or after this many appended blocks."""
    from pyspark_mqstore import DefaultSource

    class Held(DefaultSource):
        @classmethod
        def name(cls) -> str:
            return name

        def writer(self, schema: Any, overwrite: bool) -> Any:
            from mqstore.spark._remote import Writer

            class HeldWriter(Writer):
                def commit(self, messages: list[Any]) -> None:
                    from mqstore import _native

                    if appended == 0:
                        hold(gate, name)
                    left, real = appended, _native.resume_step

                    def resume(store: Any) -> Any:
                        nonlocal left
                        for rows in real(store):
                            left -= 1
                            yield rows
                            if left == 0:
                                hold(gate, name)

                    _native.resume_step = resume  # type: ignore[assignment]
                    super().commit(messages)

            made: Any = super().writer(schema, overwrite)
            return HeldWriter(made.options, made.home, made.job)

    return Held
