"""The jobs on whole stores, in Python and on the command line."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import mqstore
import mqstore.spark
from compaction_rows import SIZES, hashes, make
from mqstore import _native
from spark_cluster import SparkCli


@pytest.fixture
def stores(tmp_path: Path) -> list[Path]:
    paths = [tmp_path / name for name in ("one", "two")]
    for path in paths:
        with mqstore.open(path, "create", segment_size=1 << 15) as store:
            for number in range(300):
                store.append(f"t{number % 2}", b"x" * (number % 200), keys=f"k{number}")
    return paths


def test_verify(spark: Any, stores: list[Path]) -> None:
    segment = min((stores[1] / "commitlog").iterdir())
    data = bytearray(segment.read_bytes())
    data[5000] ^= 0xFF
    segment.write_bytes(data)
    found = mqstore.spark.verify(spark, stores)
    assert found == {str(path): mqstore.verify(path) for path in stores}
    assert [report.ok for report in found.values()] == [True, False]
    with pytest.raises(mqstore.MQStoreError, match=r"^/.*/nothing: not a store: .*\(NotAStoreError\)$"):
        mqstore.spark.verify(spark, [stores[0] / "nothing"])
    with pytest.raises(TypeError, match="iterable of directories"):
        mqstore.spark.verify(spark, str(stores[0]))
    assert mqstore.spark.verify(spark, []) == {}


def test_rebuild(spark: Any, stores: list[Path]) -> None:
    for path in stores:
        shutil.rmtree(path / "consumequeue")
    assert all(each.dry_run for each in mqstore.spark.rebuild(spark, stores, dry_run=True).values())
    assert not (stores[0] / "consumequeue").exists()
    found = mqstore.spark.rebuild(spark, stores)
    assert [(each.messages, each.queues) for each in found.values()] == [(300, 2)] * 2
    assert all(mqstore.verify(path).ok for path in stores)


def test_progress_and_its_end(spark: Any, stores: list[Path], tmp_path: Path) -> None:
    told: list[mqstore.Progress] = []
    mqstore.spark.verify(spark, stores, progress=told.append)
    total = sum(_native.verify_log_bytes(str(path))[0] for path in stores)
    assert [each.done for each in told] == sorted({each.done for each in told})
    assert (told[0], told[-1]) == (mqstore.Progress(0, total), mqstore.Progress(total, total))
    assert {each.total for each in told} == {total}
    # With a file in place of its folder, no job can write in one of the stores.
    (stores[0] / "mqstore" / "spark").touch()
    told.clear()
    mqstore.spark.verify(spark, stores, progress=told.append)
    assert (told[0], told[-1]) == (mqstore.Progress(0, 2), mqstore.Progress(2, 2))

    class Enough(Exception):  # noqa: N818 - it is no error
        pass

    def enough(_: mqstore.Progress) -> None:
        raise Enough

    path = tmp_path / "prices"
    make(path)
    fed = hashes(path / "compaction")
    context = spark.sparkContext
    for call in (
        lambda: mqstore.spark.compact(spark, path, progress=enough),
        lambda: mqstore.spark.rebuild(spark, stores, progress=enough),
        lambda: mqstore.spark.verify(spark, stores, progress=enough),
        lambda: mqstore.spark.export(spark, path, tmp_path / "out", progress=enough),
    ):
        with pytest.raises(Enough):
            call()
        assert context.statusTracker().getActiveJobsIds() == []
    assert hashes(path / "compaction") == fed
    assert not (tmp_path / "out").exists()
    # If the caller has set a job group, the jobs run in that group.
    context.setJobGroup("ours", "")
    try:
        told.clear()
        report = mqstore.spark.compact(spark, path, progress=told.append, **SIZES)
        assert len(context.statusTracker().getJobIdsForGroup("ours")) == 1
    finally:
        context.setLocalProperty("spark.jobGroup.id", None)
        context.setLocalProperty("spark.job.description", None)
    assert (told[-1].done, report.messages_before) == (told[-1].total, 3000)


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_export(spark: Any, stores: list[Path], tmp_path: Path, kind: str) -> None:
    import pyarrow.dataset

    dest = tmp_path / "out" / "t0"
    report = mqstore.spark.export(
        spark, stores[0], dest, format=kind, topic="t0", columns="queue_offset,body", splitBytes=8192
    )
    assert (report.messages, report.format, report.path) == (150, kind, str(dest))
    files = sorted(dest.iterdir())
    assert len(files) > 1
    assert report.bytes == sum(each.stat().st_size for each in files)
    table = pyarrow.dataset.dataset(str(dest), format=kind).to_table()
    wanted = mqstore.scan(stores[0], topics="t0", columns=["queue_offset", "body"]).to_arrow()
    assert table.sort_by("queue_offset").to_pylist() == wanted.to_pylist()
    with pytest.raises(FileExistsError):
        mqstore.spark.export(spark, stores[0], dest)
    report = mqstore.spark.export(spark, stores[0], dest, topic="t1", overwrite=True, includeBody=False)
    assert report.messages == 150
    assert [each.name for each in dest.parent.iterdir()] == ["t0"]


def test_an_export_leaves_out_system_topics(spark: Any, tmp_path: Path) -> None:
    import pyarrow.dataset

    with mqstore.open(tmp_path / "s", "create", segment_size=1 << 16) as store:
        store.append("t", b"plain")
        store.append("t", b"delivered", delay=1)
        with store.transaction("g") as transaction:
            transaction.append("t", b"committed")
        assert store.wait("t", 0, 2, timeout=20)
        store.append("t", b"waiting", delay=3600)
    report = mqstore.spark.export(spark, tmp_path / "s", tmp_path / "out")
    # Two records that wait or waited, a half message and a decision.
    assert (report.messages, report.skipped, report.reasons) == (3, 4, {"internal": 4})
    bodies = pyarrow.dataset.dataset(str(tmp_path / "out")).to_table(columns=["body"])["body"].to_pylist()
    assert sorted(bodies) == [b"committed", b"delivered", b"plain"]
    named = mqstore.spark.export(spark, tmp_path / "s", tmp_path / "named", topic="rmq_sys_wheel_timer")
    assert (named.messages, named.skipped) == (2, 0)


def test_an_export_that_fails_leaves_nothing(spark: Any, stores: list[Path], tmp_path: Path) -> None:
    segment = min((stores[0] / "commitlog").iterdir())
    data = bytearray(segment.read_bytes())
    data[5000] ^= 0xFF
    segment.write_bytes(data)
    with pytest.raises(mqstore.MQStoreError, match=r"commitlog/0.* at offset \d+"):
        mqstore.spark.export(spark, stores[0], tmp_path / "out" / "all")
    assert list((tmp_path / "out").iterdir()) == []
    with pytest.raises(mqstore.InvalidOptionError, match="did you mean topic"):
        mqstore.spark.export(spark, stores[0], tmp_path / "out" / "all", topik="t0")


def test_reports_as_rows(spark: Any, stores: list[Path], tmp_path: Path) -> None:
    segment = min((stores[1] / "commitlog").iterdir())
    data = bytearray(segment.read_bytes())
    data[5000] ^= 0xFF
    segment.write_bytes(data)
    checked = mqstore.spark.verify(spark, stores)
    frame = mqstore.spark.as_dataframe(spark, checked)
    assert {row.store: (row.ok, row.messages) for row in frame.collect()} == {
        path: (report.ok, report.messages) for path, report in checked.items()
    }
    found = frame.selectExpr("store", "explode(problems) AS problem").select("store", "problem.*").collect()
    expected = [(path, each) for path, report in checked.items() for each in report.problems]
    assert [(row.store, row.kind, row.offset, row.detail) for row in found] == [
        (path, each.kind, each.offset, each.detail) for path, each in expected
    ]
    assert expected
    (row,) = mqstore.spark.as_dataframe(spark, mqstore.rebuild(stores[0], dry_run=True)).collect()
    assert (row.messages, row.dry_run, row.skipped) == (300, True, [])
    make(tmp_path / "table")
    report = mqstore.spark.compact(spark, tmp_path / "table", dry_run=True)
    (row,) = mqstore.spark.as_dataframe(spark, report).collect()
    assert row.asDict() == report.to_dict()
    exported = mqstore.spark.export(spark, stores[0], tmp_path / "out")
    (row,) = mqstore.spark.as_dataframe(spark, exported).collect()
    assert row.asDict() == exported.to_dict()
    with pytest.raises(ValueError, match="no report"):
        mqstore.spark.as_dataframe(spark, {})
    with pytest.raises(TypeError, match="int"):
        mqstore.spark.as_dataframe(spark, {"a": 1})  # type: ignore[dict-item]


def test_the_command_line(run: SparkCli, stores: list[Path], tmp_path: Path) -> None:
    status, out, _ = run("verify", *stores, "--format", "json", "--master", "local[2]")
    assert (status, [each["ok"] for each in json.loads(out)]) == (0, [True, True])
    status, out, _ = run("rebuild", stores[0])
    assert status == 0
    assert "300" in out
    status, out, _ = run("export", stores[0], tmp_path / "out", "--option", "topic=t0", "--format", "json")
    assert (status, json.loads(out)["messages"]) == (0, 150)
    status, out, _ = run("compact", stores[0], "--topic", "t0")
    assert status == 3
    with mqstore.open(stores[0], "rw") as store:
        store.create_topic("prices", attributes={"cleanup.policy": "COMPACTION"})
        for _ in range(5):
            store.append("prices", b"x", keys="k")
    status, out, _ = run("compact", stores[0], "--topic", "prices", "--format", "json")
    assert (status, [each["messages_after"] for each in json.loads(out)]) == (0, [1])
    with mqstore.open(stores[0], "rw") as store:
        store.append("prices", b"y", keys="k")
    status, out, _ = run("compact", *stores, "--dry-run", "--strategy", "ranged", "--memory-size", 1000)
    assert status == 0
    assert (str(stores[1]) in out, " 2 " in out) == (True, True)
    status, out, _ = run("compact", stores[0])
    assert status == 0
    status, out, _ = run("compact", stores[0])
    assert status == 1
    assert run("compact", stores[0], "--strategy", "none")[0] == 3
    status, out, _ = run("verify", tmp_path / "nothing")
    assert status == 3
    assert run("export", stores[0], tmp_path / "other", "--to", "csv")[0] == 2
