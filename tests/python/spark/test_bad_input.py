"""Bad input and bad disks in tasks: the driver names the file and the offset, publishes nothing, and removes the
staging."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mqstore
import mqstore.spark
from compaction_rows import QUEUES, SIZES, TOPIC, hashes, left_in_jobs, make, same_files
from loop_device import Disk, obstacle
from mqstore.spark._jobs import compact as _compact


@pytest.fixture
def made(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    make(path)
    return path


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Disk]:
    """A small file system in memory."""
    if reason := obstacle("tmpfs"):
        pytest.skip(reason)
    disk = Disk(tmp_path, "tmpfs", 24 << 20)
    yield disk
    disk.remove()


FULL = "(?i:no space left)"


def segments(path: Path) -> list[Path]:
    return sorted((path / "commitlog").iterdir())


def damage(path: Path) -> int:
    """Changes a byte of a message's body in the middle of the log. Returns the log offset of the record."""
    with mqstore.open(path) as store:
        message = next(each for each in store.read(TOPIC, 1, 200) if len(each.body) > 20)
    at = message.commit_log_offset
    file = segments(path)[0]
    data = bytearray(file.read_bytes())
    place = data.index(message.body, at)
    data[place + 3] ^= 0xFF
    file.write_bytes(data)
    return at


def test_a_damaged_record(spark: Any, made: Path) -> None:
    at = damage(made)
    fed = hashes(made / "compaction")
    copy = made.with_name("copy")
    shutil.copytree(made, copy)
    local = mqstore.compact(copy, in_place=True, **SIZES)
    report = mqstore.spark.compact(spark, made, **SIZES)
    # The damaged queue does not change. The others are published, as without Spark.
    (reason,) = report.skipped
    assert reason.startswith(f"{TOPIC}/1: {segments(made)[0]} at offset {at}: body CRC")
    assert local.skipped == (reason.replace(str(made), str(copy)),)
    assert hashes(made / "compaction") == hashes(copy / "compaction")
    now = hashes(made / "compaction")
    assert [same_files(fed, now, queue) for queue in range(QUEUES)] == [False, True, False]
    assert left_in_jobs(made) == {"lock", "record.json"}
    with pytest.raises(Exception, match=rf"{segments(made)[0]} at offset {at}: "):
        spark.read.format("mqstore").load(str(made)).count()
    # Damage of one topic does not end a read of another.
    assert spark.read.format("mqstore").option("topic", "other").load(str(made)).count() > 0


def test_a_file_that_is_gone_when_a_task_begins(spark: Any, made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, away = _compact._run, made.with_name("away")
    fed = hashes(made / "compaction")

    def run(*arguments: Any) -> None:
        segments(made)[0].rename(away)
        real(*arguments)

    monkeypatch.setattr(_compact, "_run", run)
    report = mqstore.spark.compact(spark, made, **SIZES)
    assert len(report.skipped) == QUEUES
    for reason in report.skipped:
        assert f"{made / 'commitlog'} at offset 0: the log ends here" in reason
    assert report.messages_before == 0
    assert hashes(made / "compaction") == fed
    monkeypatch.undo()
    away.rename(made / "commitlog" / f"{0:020}")
    assert mqstore.spark.compact(spark, made, **SIZES).messages_before == 3000


@pytest.mark.soak
def test_a_disk_without_room(spark: Any, small_disk: Disk) -> None:
    path = small_disk.path / "store"
    make(path, index_slots=64, index_entries=128)
    fed = hashes(path / "compaction")
    filler = small_disk.fill()
    with pytest.raises((mqstore.MQStoreError, OSError), match=FULL):
        mqstore.spark.compact(spark, path, **SIZES)
    with pytest.raises(Exception, match=FULL):
        write(spark, path)
    with pytest.raises((mqstore.MQStoreError, OSError), match=FULL):
        mqstore.spark.export(spark, path, small_disk.path / "out")
    # The next job sweeps the files of a job that could not start.
    assert hashes(path / "compaction") == fed
    assert not (small_disk.path / "out").exists()
    filler.unlink()
    # Free space for the driver's few files, and for a part of the task output.
    write(spark, path)
    mqstore.spark.compact(spark, path, topics=["other"], force=True, job_id="other", **SIZES)
    rows = tree(path)
    filler = small_disk.fill()
    os.truncate(filler, filler.stat().st_size - (64 << 10))
    with pytest.raises(mqstore.MQStoreError, match=rf"not published: .*mqstore/jobs/.*{FULL}"):
        mqstore.spark.compact(spark, path, **SIZES)
    # One task only. A second one, still running after the job failed, could leave files for the next job to sweep.
    with pytest.raises(Exception, match=FULL):
        write(spark, path, 1000, tasks=1)
    with pytest.raises(mqstore.MQStoreError, match=FULL):
        mqstore.spark.export(spark, path, small_disk.path / "out")
    assert tree(path) == rows
    filler.unlink()
    mqstore.spark.compact(spark, path, **SIZES)
    write(spark, path, 1000)
    assert mqstore.verify(path).ok
    assert [each.name for each in (path / "mqstore/spark/stage").iterdir()] == ["token"]


def write(spark: Any, path: Path, count: int = 5, tasks: int = 2) -> None:
    rows = spark.range(0, count, 1, tasks).selectExpr("repeat('x', 1000) AS body")
    rows.write.format("mqstore").option("topic", "t").mode("append").save(str(path))


def tree(path: Path) -> list[str]:
    return sorted(str(each.relative_to(path)) for each in path.rglob("*"))
