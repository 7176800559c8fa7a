"""What the tests of a cluster have run in drivers and in tasks, where it goes by value.

Nothing here asserts: pytest's rewritten asserts ask for pytest where they run.
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
"""Far more than anything takes: who waits so long waits for ever."""


def job(spark: Any, verb: str, *arguments: Any, **named: Any) -> Any:
    import mqstore.spark

    return getattr(mqstore.spark, verb)(spark, *arguments, **named)


def job_with_tasks(spark: Any, around: Callable[..., Iterator[Any]], path: Path, **named: Any) -> Any:
    """A compaction whose tasks are run by `around(run, batches, folder of the job)`."""
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
    """A compaction that waits, with all tasks done and nothing published, for the gate to be opened."""
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
    """The number of this task's partition and of this attempt."""
    from pyspark import TaskContext

    context: Any = TaskContext.get()
    return context.partitionId(), context.attemptNumber()


def kill_executor_once(condition: Callable[[], bool], note: Path) -> None:
    """Kills this executor's JVM, from a thread, as soon as the condition is true; notes first what it kills."""

    def kill() -> None:
        while not condition():
            time.sleep(0.001)
        # This process was made by PySpark's daemon, and that by the executor.
        executor = int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])
        note.write_text(Path(f"/proc/{executor}/cmdline").read_text())
        os.kill(executor, signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()


def hold(gate: Path, name: str) -> None:
    """Tells that it has come here, and waits for the gate to be opened."""
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


def in_threads(spark: Any, *calls: Callable[[], Any]) -> None:
    """Makes calls at the same time."""

    def run(call: Callable[[], Any]) -> None:
        # Spark looks for sources in the session that is active in the thread.
        spark._jvm.SparkSession.setActiveSession(spark._jsparkSession)
        call()

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def held_source(gate: Path, name: str, appended: int) -> type:
    """A source whose write is held up at its commit: before anything, or with so many blocks appended."""
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
                    left, real = appended, _native.append_staged

                    def append(*arguments: Any) -> int:
                        nonlocal left
                        if left == 0:
                            hold(gate, name)
                        left -= 1
                        return real(*arguments)

                    _native.append_staged = append
                    super().commit(messages)

            made: Any = super().writer(schema, overwrite)
            return HeldWriter(made.options, made.home, made.job)

    return Held
