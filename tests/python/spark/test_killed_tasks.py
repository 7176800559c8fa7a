"""Exports to a URL whose tasks are killed at random: one result or none, and each row once."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

import mqstore
import mqstore.spark
from conftest import SMALL
from remote_stores import BUCKET, Bucket
from spark_kills import killing

MIB = 1 << 20
MESSAGES = 2000
COLUMNS = "queue_id,queue_offset,body"


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory, s3: Bucket) -> str:
    """The URL of a store with four segments of 2 MiB, one or more for each task."""
    home = tmp_path_factory.mktemp("source") / "store"
    with mqstore.open(home, "create", options=SMALL, segment_size=2 * MIB) as store:
        store.create_topic("orders", queues=2)
        for number in range(MESSAGES):
            store.append("orders", b"%04d" % number + bytes(4000), queue_id=number % 2)
    return s3.upload(home, "source")


@pytest.mark.parametrize("rounds", [3, pytest.param(50, marks=pytest.mark.soak)])
def test_killed_tasks_publish_one_result_or_none(
    spark: Any, source: str, s3: Bucket, tmp_path: Path, rounds: int
) -> None:
    ends: list[str] = []
    jvm = spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid()
    for number in range(rounds):
        url = f"s3://{BUCKET}/killed-{rounds}-{number}"
        # In the first round no worker lives long, so Spark gives up.
        with killing(lambda: {jvm}, random.Random(number), pause_seconds=0 if number == 0 else 2) as killed:
            found = exported(spark, source, s3, url)
        assert killed
        assert number or found is None
        if found is None:
            with pytest.raises(mqstore.ResultNotFoundError):
                mqstore.published(url, storage_options=s3.options)
            found = exported(spark, source, s3, url)
            ends.append("restarted")
        else:
            ends.append("published")
        assert found is not None
        assert found.messages == MESSAGES
        folder = tmp_path / str(number)
        mqstore.fetch(url, folder, storage_options=s3.options)
        assert rows_in(folder) == [(queue, offset) for queue in range(2) for offset in range(MESSAGES // 2)]
        # Only objects of killed attempts are garbage.
        mqstore.clean(url, older_than=0, storage_options=s3.options)
        mqstore.fetch(url, tmp_path / f"{number}-again", storage_options=s3.options)
    print(f"{ends.count('published')} published, {ends.count('restarted')} restarted")


def exported(spark: Any, source: str, s3: Bucket, url: str) -> mqstore.ExportReport | None:
    """Exports the store. Returns None if Spark gave up a task."""
    options = {"storage_options": s3.options, "target_options": s3.options}
    try:
        return mqstore.spark.export(spark, source, url, splitBytes=2 * MIB, columns=COLUMNS, **options)
    except mqstore.MQStoreError as error:
        assert "Spark gave up a task" in str(error)
        return None


def rows_in(folder: Path) -> list[tuple[int, int]]:
    """The positions of all rows in a folder of Parquet files, sorted."""
    import pyarrow.dataset

    table = pyarrow.dataset.dataset(folder).to_table(["queue_id", "queue_offset"])
    return sorted(zip(table["queue_id"].to_pylist(), table["queue_offset"].to_pylist(), strict=True))
