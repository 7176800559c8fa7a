"""Spark on a real cluster: executors without the package, lost executors, speculative tasks, killed drivers.

Two drivers share a cluster for all tests of this file. Functions for a driver or a task are sent by value.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import mqstore
import mqstore.spark
from compaction_rows import QUEUES, SIZES, compacted, hashes, left_in_jobs, make
from spark_cluster import Cluster, Driver, Failed, needs_spark, until
from spark_driver_side import (
    PATIENCE,
    attempt,
    await_file,
    held_job,
    held_source,
    in_threads,
    job,
    job_with_tasks,
    kill_executor_once,
    read_count,
    write_rows,
)

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="workers need two loopback addresses and /proc"),
    pytest.mark.timeout(600),
]

SPECULATES = {
    "spark.speculation": "true",
    "spark.speculation.interval": "50ms",
    "spark.speculation.multiplier": "1",
    "spark.speculation.quantile": "0.1",
    "spark.speculation.minTaskRuntime": "50ms",
    # The losing copy of a task lives much longer than the publication takes.
    "spark.python.task.killTimeout": "120s",
}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    needs_spark()
    found = Cluster(tmp_path_factory.mktemp("cluster"))
    try:
        found.start()
        yield found
    finally:
        found.stop()


@pytest.fixture(scope="module")
def drivers(cluster: Cluster) -> tuple[Driver, Driver]:
    """Starts both drivers at the same time."""
    return cluster.driver(), cluster.driver(**SPECULATES)


@pytest.fixture
def without_package(drivers: tuple[Driver, Driver]) -> Driver:
    """A driver whose executors do not have the package yet."""
    assert not drivers[0].has_package
    return drivers[0]


@pytest.fixture
def steady(drivers: tuple[Driver, Driver]) -> Driver:
    return with_package(drivers[0])


@pytest.fixture
def rival(drivers: tuple[Driver, Driver]) -> Driver:
    """A driver that starts speculative copies of slow tasks."""
    return with_package(drivers[1])


def with_package(driver: Driver) -> Driver:
    if not driver.has_package:
        driver.call(job, "ship")
        driver.has_package = True
    return driver


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    """A folder in which processes report that they reached a point."""
    folder = tmp_path / "gate"
    folder.mkdir()
    return folder


# Files that a failed job leaves.
KEPT = {"mqstore/jobs", "mqstore/spark", "mqstore/spark/stage", "mqstore/spark/stage/token"}


def local_result(path: Path) -> dict[str, str]:
    """The files of a compaction in this process, made on a copy."""
    copy = path.with_name(f"{path.name}-local")
    shutil.copytree(path, copy)
    mqstore.compact(copy, in_place=True, **SIZES)
    return hashes(copy / "compaction")


def bodies(path: Path, topic: str = "t") -> Counter[bytes]:
    with mqstore.open(path) as store:
        return Counter(message.body for queue in store.queues(topic) for message in store.read(topic, queue.queue_id))


def tree(path: Path) -> list[str]:
    return sorted(str(each.relative_to(path)) for each in path.rglob("*"))


@pytest.mark.soak
def test_executors_without_the_package_say_what_to_do(without_package: Driver, tmp_path: Path) -> None:
    path = tmp_path / "store"
    make(path)
    before = tree(path)
    for call, arguments in (
        (job, ("compact", path)),
        (job, ("verify", [path])),
        (read_count, (str(path),)),
        (write_rows, (str(path),)),
    ):
        with pytest.raises(Failed, match=r"mqstore cannot be imported on .*call mqstore\.spark\.ship\(spark\)"):
            without_package.call(call, *arguments)
    assert set(tree(path)) - set(before) <= KEPT


def test_compaction_gives_the_files_that_the_local_way_gives(steady: Driver, cluster: Cluster, tmp_path: Path) -> None:
    path = tmp_path / "store"
    contents = make(path)
    wanted = local_result(path)
    report = steady.call(job, "compact", path, job_id="here", **SIZES)
    assert hashes(path / "compaction") == wanted
    assert compacted(path) == contents
    assert report.messages_before == 3000
    details = mqstore.spark.job_details(path, "here")
    assert details is not None
    modules = [Path(queue["worker"]["module"]) for queue in details["queues"]]
    assert len(modules) == QUEUES
    for module in modules:
        # The executed module is the shipped one, unpacked in the executor's folder.
        assert module.is_relative_to(cluster.folder), module
        assert mqstore.spark._ship.archive_name() in module.parts


@pytest.mark.parametrize("strategy", ["partition", "ranged"])
def test_an_executor_that_is_killed_in_the_middle(steady: Driver, gate: Path, tmp_path: Path, strategy: str) -> None:
    path = tmp_path / "store"
    make(path)
    wanted = local_result(path)

    def killed(inner: Any, batches: Any, job_dir: str) -> Iterator[Any]:
        if attempt() == (0, 0) and not (gate / "killed").exists():
            kill_executor_once(lambda: any(Path(job_dir).glob("task-0-0-*/**/*")), gate / "killed")
            list(inner(batches))
            # The driver never hears from it again.
            time.sleep(PATIENCE)
        yield from inner(batches)

    report = steady.call(job_with_tasks, killed, path, job_id="once", strategy=strategy, **SIZES)
    assert "CoarseGrainedExecutorBackend" in (gate / "killed").read_text()
    assert hashes(path / "compaction") == wanted
    assert report.skipped == ()
    assert left_in_jobs(path) == {"lock", "record.json"}


@pytest.mark.soak
def test_both_copies_of_a_task_finish(rival: Driver, gate: Path, tmp_path: Path) -> None:
    path = tmp_path / "store"
    make(path)
    wanted = local_result(path)

    def twice(inner: Any, batches: Any, job_dir: str) -> Iterator[Any]:
        batches, (partition, copy) = list(batches), attempt()
        if partition == 1 and copy == 1:
            # A copy that wins earlier would end the other one before it has its rows.
            await_file(gate / "held")
        rows = list(inner(batches))
        if partition == 0:
            (gate / f"done-{copy}").write_text("\n".join(map(str, Path(job_dir).glob("task-0-0-*"))))
            await_file(gate / "done-0")
            await_file(gate / "done-1")
        if partition == 1 and copy == 0:
            # The speculative copy wins. This attempt continues after the end of the job.
            (gate / "held").touch()
            await_file(gate / "ended")
            try:
                list(inner(batches))
            finally:
                # It may have noticed that the job is over.
                (gate / "late").touch()
        yield from rows

    report = rival.call(job_with_tasks, twice, path, job_id="once", **SIZES)
    (gate / "ended").touch()
    staged = {name for copy in (0, 1) for name in (gate / f"done-{copy}").read_text().split()}
    assert len(staged) == 2
    assert report.skipped == ()
    until((gate / "late").exists, "the copy that lost")
    assert hashes(path / "compaction") == wanted
    # The next job removes all files that this attempt left.
    rival.call(job, "compact", path, job_id="again", force=True)
    assert left_in_jobs(path) == {"lock", "record.json"}


@pytest.mark.parametrize("same", [False, True])
def test_two_drivers_at_once(steady: Driver, rival: Driver, gate: Path, tmp_path: Path, same: bool) -> None:
    path = tmp_path / "store"
    make(path)
    fed, wanted = hashes(path / "compaction"), local_result(path)
    steady.begin(held_job, gate, "steady", path, job_id="one", **SIZES)
    until((gate / "steady").exists, "the first driver")
    if same:
        with pytest.raises(Failed, match=r"StoreBusyError.*one"):
            rival.call(job, "compact", path, job_id="one", **SIZES)
        (gate / "open").touch()
        report = steady.end_of()
        assert rival.call(job, "compact", path, job_id="one", **SIZES) == report
    else:
        rival.begin(held_job, gate, "rival", path, job_id="other", **SIZES)
        until((gate / "rival").exists, "the second driver")
        assert hashes(path / "compaction") == fed
        (gate / "open").touch()
        told = []
        for driver in (steady, rival):
            try:
                told.append(len(driver.end_of().skipped))
            except Failed as error:
                assert "StoreLockedError" in str(error)
                told.append(QUEUES)
        assert sorted(told) == [0, QUEUES]
    assert hashes(path / "compaction") == wanted
    assert mqstore.verify(path).ok


def test_read_write_and_export(steady: Driver, cluster: Cluster, tmp_path: Path) -> None:
    path, dest = tmp_path / "store", tmp_path / "lake"

    python = cluster.python.with_name("python3")

    def round_trip(spark: Any) -> Any:
        # Python workers started under another name do not have the package yet.
        spark.conf.set("spark.sql.execution.pyspark.python", str(python))
        rows = spark.range(0, 2000, 1, 4).selectExpr("string(id) AS body", "concat('k', id) AS key", "'tag' AS tags")
        rows.write.format("mqstore").options(topic="t", queues=3).mode("append").save(str(path))
        frame = spark.read.format("mqstore").options(topic="t", splitBytes=50_000).load(str(path))
        parts = frame.rdd.getNumPartitions()
        found = frame.selectExpr("queue_id", "queue_offset", "string(body)", "keys[0]", "tags").collect()
        stream = spark.readStream.format("mqstore").option("startingOffsets", "earliest").load(str(path))
        stream = stream.select("topic", "body").writeStream.format("mqstore").option("path", f"{path}-copy")
        query = stream.option("checkpointLocation", f"{path}-cp").trigger(availableNow=True).start()
        query.awaitTermination()
        report = job(spark, "export", path, dest, columns="body", splitBytes=50_000)
        return parts, [tuple(row) for row in found], report, job(spark, "verify", [path])

    parts, found, report, checked = steady.call(round_trip)
    assert parts > 2
    with mqstore.open(path) as store:
        wanted = [
            (queue, message.queue_offset, message.text(), message.keys[0], message.tags)
            for queue in range(3)
            for message in store.read("t", queue)
        ]
    assert sorted(found) == sorted(wanted)
    assert Counter(row[2] for row in found) == Counter(str(number) for number in range(2000))
    assert bodies(tmp_path / "store-copy") == bodies(path)
    assert report.messages == 2000
    assert checked == {str(path): mqstore.verify(path)}


@pytest.mark.soak
def test_executors_that_do_not_see_the_store(steady: Driver, cluster: Cluster, tmp_path: Path) -> None:
    # A folder in the driver's working directory does not exist in that of an executor.
    here = steady.folder / "only-here"
    make(here)
    before = tree(here)
    path = "/proc/self/cwd/only-here"
    for call in (
        lambda: steady.call(job, "compact", path),
        lambda: steady.call(job, "verify", [path]),
        lambda: steady.call(job, "export", path, steady.folder / "out"),
        lambda: steady.call(read_count, path),
        lambda: steady.call(write_rows, path),
    ):
        with pytest.raises(Failed, match=r"/proc/self/cwd/only-here.*under the same path"):
            call()
    assert set(tree(here)) - set(before) <= KEPT
    # Now the executors find another store, or an older state of it, under that path.
    for folder in cluster.folder.glob("work-*/app-*/*/"):
        with mqstore.open(folder / "only-here", "create") as store:
            store.append("other", b"")
    for count in (lambda: steady.call(read_count, path), lambda: steady.call(job, "compact", path)):
        with pytest.raises(Failed, match=r"/proc/self/cwd/only-here.*under the same path"):
            count()


def test_a_driver_that_is_killed_between_staging_and_publishing(
    steady: Driver, rival: Driver, gate: Path, tmp_path: Path
) -> None:
    prices, begun, staged = (tmp_path / name for name in ("prices", "begun", "staged"))
    contents = make(prices)
    fed, wanted = hashes(prices / "compaction"), local_result(prices)

    def three(spark: Any) -> None:
        def write(path: Path, name: str, appended: int) -> None:
            spark.dataSource.register(held_source(gate, name, appended))
            write_rows(spark, str(path), 1000, name, jobId="load")

        in_threads(
            spark,
            lambda: held_job(spark, gate, "compacted", prices, job_id="n", **SIZES),
            lambda: write(begun, "begun", 1),
            lambda: write(staged, "staged", 0),
        )

    rival.begin(three)
    for name in ("compacted", "begun", "staged"):
        until((gate / name).exists, name)
    rival.kill()
    for name in ("begun", "staged"):
        # It ends by itself when it notices that its JVM is gone.
        with suppress(ProcessLookupError):
            os.kill(int((gate / name).read_text()), signal.SIGKILL)

    assert hashes(prices / "compaction") == fed
    steady.call(job, "compact", prices, job_id="n", **SIZES)
    assert hashes(prices / "compaction") == wanted
    assert compacted(prices) == contents

    rows = Counter(str(number).encode() for number in range(1000))
    assert bodies(begun).total() == 500
    assert mqstore.spark.resume(begun) == 500
    assert bodies(begun) == rows
    with mqstore.open(staged) as store:
        assert store.topics() == []
    assert mqstore.spark.resume(staged) == 0
    for path in (begun, staged):
        steady.call(write_rows, str(path), 1000, jobId="load")
        assert bodies(path) == rows
        assert mqstore.verify(path).ok
