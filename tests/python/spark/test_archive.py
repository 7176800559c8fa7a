"""Spark reads the files of an archive, without mqstore's data source and with it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import mqstore
import mqstore.spark

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


def test_a_read_begins_in_the_archive_of_the_store(spark: SparkSession, tmp_path: Path) -> None:
    home, target = tmp_path / "store", tmp_path / "archive"
    columns = ["topic", "queue_id", "queue_offset", "commit_log_offset", "body", "keys", "message_id"]
    with mqstore.open(home, "create", segment_size=1 << 16, retention_bytes=1) as store:
        store.create_topic("orders", queues=3)
        for number in range(900):
            topic, tags = ("orders", "events")[number % 5 == 0], ("paid", "open")[number % 2]
            store.append(topic, b"x" * (number % 300), keys=["all", f"k{number}"], tags=tags)
        scanned = store.scan(topics=["orders", "events"], columns=columns).to_arrow().to_pylist()
        middle = list(store.read("orders", 1))[60].store_timestamp
        since = [one for topic in ("orders", "events") for one in store.read(topic) if one.store_timestamp >= middle]
        store.archive.run_to(tmp_path / "other")
        store.archive.configure(target)
        store.archive.run()
        store.expire()
        low = store.queues("orders")[1].min_offset
        assert low > 60
        log = store.stats().log_min_offset

    def rows(**options: str) -> list[dict[str, Any]]:
        frame = spark.read.format("mqstore").options(**options).load(str(home))
        found = frame.select(*columns).toArrow().to_pylist()
        return sorted(found, key=lambda row: row["commit_log_offset"])

    for options in ({}, {"archive": str(tmp_path / "other")}, {"maxRecordsPerPartition": "40"}):
        assert rows(**options) == scanned
    assert rows(archive="false") == [row for row in scanned if row["commit_log_offset"] >= log]
    assert rows(topic="orders") == [row for row in scanned if row["topic"] == "orders"]
    assert rows(topic="orders", keys="k7,k401") == [row for row in scanned if {"k7", "k401"} & set(row["keys"])]
    assert len(rows(tags="paid")) == 450
    assert len(rows(startingTimestamp=str(middle))) == len(since)
    offsets = '{"orders": {"0": 5, "1": 7, "2": 9}}'
    found = rows(topic="orders", startingOffsets=offsets, endingOffsets='{"orders": {"0": 20, "1": 50, "2": -1}}')
    limits = {0: (5, 20), 1: (7, 50), 2: (9, 900)}
    assert found == [
        row
        for row in scanned
        if row["topic"] == "orders" and limits[row["queue_id"]][0] <= row["queue_offset"] < limits[row["queue_id"]][1]
    ]
    [path] = (target / "v1").glob("topic=orders/*.parquet")
    content = path.read_bytes()
    path.write_bytes(content[:-100] + bytes(100))
    with pytest.raises(Exception, match=path.name):
        rows(topic="orders")
    assert len(rows(topic="orders", onDamage="skip")) == sum(
        row["topic"] == "orders" and row["commit_log_offset"] >= log for row in scanned
    )
    path.write_bytes(content)
    assert mqstore.spark.export(spark, home, tmp_path / "copy").messages == len(rows(archive="false"))
