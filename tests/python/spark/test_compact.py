"""Compaction on Spark compared with a dictionary and with the local path, also when tasks and drivers fail."""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import mqstore
import mqstore.spark
import mqstore.testing
from compaction_rows import (
    QUEUES,
    SIZES,
    TOPIC,
    Contents,
    compacted,
    fill,
    hashes,
    left_in_jobs,
    make,
    same_files,
)
from mqstore import _native
from mqstore.spark import _session, _ship
from mqstore.spark._jobs import compact as _compact
from mqstore.spark._jobs import rounds as _rounds
from mqstore.spark._jobs import tasks as _tasks


@pytest.fixture
def made(tmp_path: Path) -> tuple[Path, Contents]:
    """A closed store with a compaction topic, and its expected content as a dictionary."""
    path = tmp_path / "store"
    return path, make(path)


def test_equals_a_dictionary(spark: Any, made: tuple[Path, Contents]) -> None:
    path, contents = made
    report = mqstore.spark.compact(spark, path, topics=[TOPIC], **SIZES)
    assert compacted(path) == contents
    assert report.messages_before == 3000
    assert report.messages_after - report.tombstones_kept == sum(map(len, contents.values()))
    assert 0 < report.tombstones_kept < report.tombstones
    assert report.bytes_after < report.bytes_before
    assert (report.rounds, report.skipped) == (1, ())
    assert mqstore.verify(path).ok


def test_compacts_the_last_generation_and_what_came_after(spark: Any, made: tuple[Path, Contents]) -> None:
    path, contents = made
    for seed in (2, 3):
        mqstore.spark.compact(spark, path, max_tasks=2, memory_size=1000, **SIZES)
        with mqstore.open(path, "rw") as store:
            fill(store, contents, 500, seed)
    report = mqstore.spark.compact(spark, path, max_tasks=1)
    assert compacted(path) == contents
    assert report.messages_before < 4000


@pytest.mark.parametrize("strategy", ["partition", "ranged"])
def test_gives_the_files_that_the_local_way_gives(
    spark: Any, made: tuple[Path, Contents], tmp_path: Path, strategy: mqstore.spark._jobs.compact.Strategy
) -> None:
    path, _ = made
    copy = tmp_path / "copy"
    shutil.copytree(path, copy)
    local = mqstore.compact(copy, in_place=True, **SIZES)
    report = mqstore.spark.compact(spark, path, strategy=strategy, max_tasks=4, **SIZES)
    assert hashes(path / "compaction") == hashes(copy / "compaction")
    found, expected = ({**each.to_dict(), "job_id": "", "seconds": 0} for each in (report, local))
    assert found == expected
    assert len(hashes(path / "compaction")) > 2 * QUEUES + 1


@pytest.mark.parametrize("strategy", ["partition", "ranged"])
def test_expired_values_are_dropped_as_by_the_local_way(
    spark: Any, tmp_path: Path, strategy: mqstore.spark._jobs.compact.Strategy
) -> None:
    path, copy = tmp_path / "store", tmp_path / "copy"
    with mqstore.testing.open(path, "create", clock=mqstore.testing.ManualClock()) as store:
        store.create_topic(TOPIC, queues=2, attributes={"cleanup.policy": "COMPACTION"}, expire_after="7d")
        store.append_many(TOPIC, [mqstore.Message(b"of 2024", keys=f"k{n % 60}") for n in range(200)])
    with mqstore.open(path, "rw") as store:
        store.append_many(TOPIC, [mqstore.Message(b"of now", keys=f"k{n % 30}") for n in range(50)])
    shutil.copytree(path, copy)
    local = mqstore.compact(copy, in_place=True, **SIZES)
    report = mqstore.spark.compact(spark, path, strategy=strategy, **SIZES)
    assert (report.messages_after, report.expired) == (local.messages_after, local.expired) == (30, 30)
    assert hashes(path / "compaction") == hashes(copy / "compaction")


def test_the_executors_do_it(spark: Any, made: tuple[Path, Contents], monkeypatch: pytest.MonkeyPatch) -> None:
    path, contents = made

    def never(*arguments: object) -> str:
        raise AssertionError("the driver ran a task")

    monkeypatch.setattr(_native, "compaction_run_step", never)
    monkeypatch.setattr(_native, "compaction_run", never)
    mqstore.spark.compact(spark, path, job_id="here", **SIZES)
    assert compacted(path) == contents
    details = mqstore.spark.job_details(path, "here")
    assert details is not None
    workers = [queue["worker"] for queue in details["queues"]]
    assert len(workers) == QUEUES
    for worker in workers:
        assert worker["pid"] != os.getpid()
        module = Path(worker["module"])
        assert module.is_file()
        assert module.name.startswith("_mqstore.")


def failing(how: str) -> Callable[..., Callable[[Iterable[Any]], Iterator[Any]]]:
    """The real tasks, but each first attempt is lost after it did its work."""

    def made_of(*arguments: Any) -> Callable[[Iterable[Any]], Iterator[Any]]:
        inner = _tasks.tasks(*arguments)

        def run(batches: Iterable[Any]) -> Iterator[Any]:
            import os

            from pyspark import TaskContext

            results = list(inner(batches))
            context = TaskContext.get()
            assert context is not None
            if context.attemptNumber() == 0:
                if how == "exit":
                    os._exit(1)
                raise ConnectionError("lost")
            yield from results

        return run

    return made_of


@pytest.mark.parametrize(("how", "strategy"), [("raise", "partition"), ("exit", "partition"), ("raise", "ranged")])
def test_lost_attempts_leave_no_trace(
    spark: Any,
    made: tuple[Path, Contents],
    monkeypatch: pytest.MonkeyPatch,
    how: str,
    strategy: mqstore.spark._jobs.compact.Strategy,
) -> None:
    path, contents = made
    monkeypatch.setattr(_rounds, "tasks", failing(how))
    report = mqstore.spark.compact(spark, path, strategy=strategy, max_tasks=3, **SIZES)
    assert compacted(path) == contents
    assert report.messages_after - report.tombstones_kept == sum(map(len, contents.values()))
    assert left_in_jobs(path) == {"lock", "record.json"}


def test_a_job_that_always_fails_changes_nothing(
    spark: Any, made: tuple[Path, Contents], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = made
    fed = hashes(path / "compaction")
    real = _compact._run

    def without_token(session: Any, jobs: list[_native.CompactionJob], *others: Any) -> None:
        Path(jobs[0].dir, "nonce").unlink()
        real(session, jobs, *others)

    monkeypatch.setattr(_compact, "_run", without_token)
    with pytest.raises(mqstore.MQStoreError, match="the same path"):
        mqstore.spark.compact(spark, path, job_id="lost")
    assert hashes(path / "compaction") == fed
    assert not (path / "mqstore" / "jobs" / "lost").exists()


def test_a_queue_whose_keys_do_not_fit_is_shared_out(spark: Any, made: tuple[Path, Contents]) -> None:
    path, contents = made
    told: list[mqstore.Progress] = []
    # Every message may have its own key of 56 bytes, which gives three rounds.
    options = {"memory_size": 20_000, "max_tasks": 2, "progress": told.append}
    alone = mqstore.spark.compact(spark, path, dry_run=True, strategy="partition", **SIZES, **options)
    whole = told[-1].total
    assert (told[0], told[-1]) == (mqstore.Progress(0, whole), mqstore.Progress(whole, whole))
    told.clear()
    report = mqstore.spark.compact(spark, path, **SIZES, **options)
    # In both strategies, each record is read about twice.
    assert {each.total for each in told} == {whole}
    assert [each.done for each in told] == sorted({each.done for each in told})
    assert (told[0].done, told[-1].done) == (0, whole)
    assert abs(whole - 2 * report.bytes_before) < report.bytes_before / 10
    assert (alone.keys, alone.messages_after) == (report.keys, report.messages_after)
    assert compacted(path) == contents


def test_a_dry_run_changes_nothing(spark: Any, made: tuple[Path, Contents]) -> None:
    path, contents = made
    fed = hashes(path / "compaction")
    told = mqstore.spark.compact(spark, path, dry_run=True, **SIZES)
    assert hashes(path / "compaction") == fed
    assert not list((path / "mqstore" / "jobs").iterdir())
    report = mqstore.spark.compact(spark, path, **SIZES)
    assert told == dataclasses.replace(report, job_id=told.job_id, seconds=told.seconds)
    assert compacted(path) == contents


def test_several_stores_in_one_job(spark: Any, made: tuple[Path, Contents], tmp_path: Path) -> None:
    path, contents = made
    other = tmp_path / "other"
    theirs = make(other)
    reports = mqstore.spark.compact(spark, [path, other, path], job_id="fleet", strategy="ranged", **SIZES)
    assert set(reports) == {str(path), str(other)}
    assert [each.messages_before for each in reports.values()] == [3000, 3000]
    assert (compacted(path), compacted(other)) == (contents, theirs)
    # A store that cannot be planned does not change the others. Published results stay published.
    third = tmp_path / "third"
    make(third)
    fed = hashes(third / "compaction")
    with pytest.raises(mqstore.NotAStoreError):
        mqstore.spark.compact(spark, [third, tmp_path / "nothing"], job_id="fleet", **SIZES)
    assert hashes(third / "compaction") == fed
    again = mqstore.spark.compact(spark, [path, third], job_id="fleet", **SIZES)
    assert again[str(path)] == reports[str(path)]
    assert again[str(third)].messages_before == 3000
    assert mqstore.spark.compact(spark, []) == {}


def test_the_same_job_happens_once(spark: Any, made: tuple[Path, Contents]) -> None:
    path, contents = made
    first = mqstore.spark.compact(spark, path, job_id="nightly", **SIZES)
    assert compacted(path) == contents
    before, files = (path / "compaction").stat().st_ino, hashes(path / "compaction")
    with mqstore.open(path, "rw") as store:
        fill(store, {queue: {} for queue in range(QUEUES)}, 10, seed=9)
    assert mqstore.spark.compact(spark, path, job_id="nightly", **SIZES) == first
    assert (path / "compaction").stat().st_ino == before
    # New messages are in files after the compacted ones.
    assert files.items() < hashes(path / "compaction").items()


@pytest.mark.parametrize("to", ["copy", "in place"])
def test_the_same_job_twice_at_once(
    spark: Any, made: tuple[Path, Contents], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    path, contents = made
    output = None if to == "in place" else tmp_path / "copy"
    refused = []

    def again() -> None:
        monkeypatch.undo()
        with pytest.raises(mqstore.StoreBusyError) as caught:
            mqstore.spark.compact(spark, path, output=output, job_id="nightly", **SIZES)
        refused.append(caught.value)

    if output is not None:
        # A killed driver left this.
        (tmp_path / ".copy.nightly" / "store").mkdir(parents=True)
    meanwhile(monkeypatch, again)
    report = mqstore.spark.compact(spark, path, output=output, job_id="nightly", **SIZES)
    assert len(refused) == 1
    assert compacted(output or path) == contents
    assert [each.name for each in tmp_path.iterdir() if "nightly" in each.name] == []
    assert mqstore.spark.compact(spark, path, output=output, job_id="nightly", **SIZES) == report
    with pytest.raises(mqstore.InvalidOptionError, match="letters"):
        mqstore.spark.compact(spark, path, output=output, job_id="../nightly")


def meanwhile(monkeypatch: pytest.MonkeyPatch, action: Callable[[], Any]) -> None:
    """Runs ``action`` after the tasks are done and before anything is published."""
    real = _compact._run

    def run(*arguments: Any) -> None:
        real(*arguments)
        action()

    monkeypatch.setattr(_compact, "_run", run)


def test_queues_that_moved_are_skipped(
    spark: Any, made: tuple[Path, Contents], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, contents = made
    meanwhile(monkeypatch, lambda: mqstore.compact(path, in_place=True, **SIZES))
    report = mqstore.spark.compact(spark, path, **SIZES)
    assert len(report.skipped) == QUEUES
    assert "changed while it was compacted" in report.skipped[0]
    assert report.messages_after == 0
    assert compacted(path) == contents


def test_messages_that_came_meanwhile_are_kept(
    spark: Any, made: tuple[Path, Contents], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, contents = made

    def append() -> None:
        with mqstore.open(path, "rw") as store:
            fill(store, contents, 100, seed=5)

    meanwhile(monkeypatch, append)
    assert mqstore.spark.compact(spark, path, **SIZES).skipped == ()
    monkeypatch.undo()
    mqstore.spark.compact(spark, path)
    assert compacted(path) == contents


def test_a_store_that_is_open_for_writing_is_locked(
    spark: Any, made: tuple[Path, Contents], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, contents = made
    fed = hashes(path / "compaction")
    with mqstore.open(path, "rw"), pytest.raises(mqstore.StoreLockedError):
        mqstore.spark.compact(spark, path)
    opened: list[mqstore.Store] = []
    meanwhile(monkeypatch, lambda: opened.append(mqstore.open(path, "rw")))
    with pytest.raises(mqstore.StoreLockedError):
        mqstore.spark.compact(spark, path, job_id="late")
    assert hashes(path / "compaction") == fed
    opened[0].close()
    monkeypatch.undo()
    mqstore.spark.compact(spark, path, job_id="late", **SIZES)
    assert compacted(path) == contents


def test_results_that_were_tampered_with_are_refused(
    spark: Any, made: tuple[Path, Contents], monkeypatch: pytest.MonkeyPatch
) -> None:
    path, _ = made
    fed = hashes(path / "compaction")
    real = _rounds.Rounds.run

    def lying(self: _rounds.Rounds, calls: list[_rounds.Call]) -> list[bytes]:
        results = [json.loads(answer) for answer in real(self, calls)]
        results[0]["pairs"][0]["log"]["crc"] ^= 1
        results[1]["staging"] = "../../../elsewhere"
        return [json.dumps(result).encode() for result in results]

    monkeypatch.setattr(_rounds.Rounds, "run", lying)
    report = mqstore.spark.compact(spark, path, **SIZES)
    assert len(report.skipped) == 2
    now = hashes(path / "compaction")
    assert sum(1 for queue in range(QUEUES) if not same_files(fed, now, queue)) == 1


def test_what_cannot_be_compacted_is_said(spark: Any, made: tuple[Path, Contents], tmp_path: Path) -> None:
    path, _ = made
    with pytest.raises(mqstore.InvalidOptionError, match=r"cleanup\.policy=COMPACTION"):
        mqstore.spark.compact(spark, path, topics=["other"])
    with pytest.raises(mqstore.TopicNotFoundError):
        mqstore.spark.compact(spark, path, topics=["nobody"])
    with pytest.raises(mqstore.NotAStoreError):
        mqstore.spark.compact(spark, tmp_path / "nothing")
    with pytest.raises(TypeError, match="iterable of str"):
        mqstore.spark.compact(spark, path, topics=TOPIC)
    with pytest.raises(mqstore.InvalidOptionError, match="auto, partition, ranged"):
        mqstore.spark.compact(spark, path, strategy="range")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="SparkSession"):
        mqstore.spark.compact(object(), path)  # type: ignore[arg-type]
    assert not (tmp_path / "nothing").exists()
    report = mqstore.spark.compact(spark, path, topics=["other"], force=True, **SIZES)
    with mqstore.open(path) as store:
        assert report.messages_after == len({message.keys for message in store.read("other")})


def test_an_executor_without_the_package_says_what_to_do(spark: Any, tmp_path: Path) -> None:
    from pyspark import cloudpickle

    function = _tasks.tasks([("/nowhere", "compact", ())], [[0]], 0, False)
    pickled = tmp_path / "function"
    pickled.write_bytes(cloudpickle.dumps(function))
    code = (
        "import pathlib, pickle, sys\n"
        "function = pickle.loads(pathlib.Path(sys.argv[1]).read_bytes())\n"
        "assert not any(name.split('.')[0] == 'mqstore' for name in sys.modules)\n"
        "sys.modules['mqstore'] = None\n"
        "from pyspark import SparkFiles\n"
        "SparkFiles.getRootDirectory = classmethod(lambda cls: '/nowhere')\n"
        "next(function([]))\n"
    )
    run = subprocess.run([sys.executable, "-c", code, str(pickled)], capture_output=True, text=True, timeout=60)
    assert "call mqstore.spark.ship(spark)" in run.stderr


def test_ship_sends_the_package(spark: Any) -> None:
    name = mqstore.spark.ship(spark)
    assert name == _ship.archive_name()

    def look(batches: Iterable[Any]) -> Iterator[Any]:
        import pathlib

        import pyarrow as pa
        from pyspark import SparkFiles

        list(batches)
        names = sorted(path.name for path in pathlib.Path(SparkFiles.getRootDirectory(), name, "mqstore").iterdir())
        yield pa.RecordBatch.from_pydict({"names": names})

    rows = spark.range(0, 1, 1, 1).mapInArrow(look, "names string").collect()
    found = {row.names for row in rows}
    assert {"__init__.py", "_native.py", "spark"} < found
    assert any(file.startswith("_mqstore.") and not file.endswith(".pyi") for file in found)


def test_a_missing_library_is_named(spark: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_session, "find_spec", lambda name: None if name == "pandas" else object())
    with pytest.raises(ImportError, match=r"mqstore\[spark\]") as raised:
        mqstore.spark.compact(spark, "anywhere")
    assert raised.value.name == "pandas"
