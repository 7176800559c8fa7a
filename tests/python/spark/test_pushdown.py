"""Filters that Spark pushes into a read."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mqstore
from mqstore.spark import _source
from mqstore.spark._read import planning
from mqstore.spark._read import rows as _rows

Filter = tuple[Any, Callable[[dict[str, Any]], bool]]
"""A filter of Spark, and its meaning for a row."""


def filters() -> list[Filter]:
    from pyspark.sql.datasource import EqualTo, GreaterThan, In, LessThanOrEqual

    return [
        (EqualTo(("topic",), "orders"), lambda row: row["topic"] == "orders"),
        (EqualTo(("topic",), "%LMQ%a"), lambda row: row["topic"] == "%LMQ%a"),
        (In(("topic",), ("orders", None)), lambda row: row["topic"] == "orders"),
        (EqualTo(("queue_id",), 1), lambda row: row["queue_id"] == 1),
        (In(("queue_id",), (0, 7)), lambda row: row["queue_id"] in (0, 7)),
        (EqualTo(("queue_offset",), 3), lambda row: row["queue_offset"] == 3),
        (GreaterThan(("queue_offset",), 3), lambda row: (row["queue_offset"] or 0) > 3),
        (
            LessThanOrEqual(("queue_offset",), 3),
            lambda row: row["queue_offset"] is not None and row["queue_offset"] <= 3,
        ),
        (EqualTo(("tags",), "paid"), lambda row: row["tags"] == "paid"),
    ]


@pytest.mark.parametrize("mode", ["DROPMALFORMED", "PERMISSIVE"])
@pytest.mark.parametrize("topics", [{"topic": "orders"}, {"topic": "%LMQ%a"}, {"subscribePattern": ".*|%LMQ%.*"}, {}])
def test_a_filter_is_taken_only_with_the_meaning_of_spark(tmp_path: Path, topics: dict[str, str], mode: str) -> None:
    path = tmp_path / "store"
    with mqstore.open(path, "create", segment_size=1 << 16) as store:
        store.create_topic("orders", queues=2)
        store.create_topic("events", queues=1)
        for number in range(40):
            topic, light = ("events", "orders")[number % 4 > 0], ["%LMQ%a"] if number % 2 else []
            store.append(topic, b"text %d" % number, tags=("paid", "open")[number % 3 > 0], light_queues=light)
    log = next((path / "commitlog").iterdir())
    log.write_bytes(log.read_bytes().replace(b"text 21", b"texX 21"))
    given = {"path": str(path), "pushdown": "true", "mode": mode, "minPartitions": "3", **topics}

    def rows(asked: list[Filter]) -> tuple[list[Any], list[Any]]:
        reader = _source.reader(given, _source.schema(given))
        left = list(reader.pushFilters([one for one, _ in asked]))
        found = [
            row
            for part in planning.plan(reader.options, reader.ranges)
            for batch in _rows.rows(reader.options, part.plain())
            for row in batch.to_pylist()
        ]
        own = [meets for one, meets in asked if one in left]
        kept = [row for row in found if all(meets(row) for meets in own)]
        return sorted((str(row["commit_log_offset"]), str(row["body"])) for row in kept), found

    everything = rows([])[1]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for one, meets in filters():
            wanted = [row for row in everything if meets(row)]
            assert rows([(one, meets)])[0] == sorted(
                (str(row["commit_log_offset"]), str(row["body"])) for row in wanted
            ), one
