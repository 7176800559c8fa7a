"""Spark reads the files of an archive without mqstore's data source."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import mqstore

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def test_the_files_are_a_table(spark: SparkSession, tmp_path: Path) -> None:
    with mqstore.open(tmp_path / "store", "create", segment_size=1 << 16) as store:
        for number in range(600):
            store.append(
                ("orders", "%RETRY%workers")[number % 5 == 0], b"x" * (number % 300), keys=["all", f"k{number}"]
            )
        store.archive.configure(tmp_path / "archive")
        end = store.archive.run().archived_to
        wanted = {}
        for topic in ("orders", "%RETRY%workers"):
            found = [one for one in store.read(topic) if one.commit_log_offset < end]
            wanted[topic] = (len(found), sum(len(one.body) for one in found), sum(one.queue_offset for one in found))
        paths = store.archive.paths()
    assert all(rows for rows, *_ in wanted.values())
    query = "select topic, count(*), sum(length(body)), sum(queue_offset) from rows group by topic"
    for frame in (spark.read.parquet(*paths), spark.read.parquet(f"{tmp_path}/archive/v1")):
        frame.createOrReplaceTempView("rows")
        assert {topic: tuple(rest) for topic, *rest in spark.sql(query).collect()} == wanted
        [row] = spark.sql(
            "select keys, store_timestamp, properties_raw from rows where array_contains(keys, 'k7')"
        ).collect()
        assert row.keys == ["all", "k7"]
        assert row.store_timestamp is not None
