"""The batch read of the data source."""

from __future__ import annotations

import json
import os
import pickle
import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import compaction_rows
import mqstore
import mqstore.spark
from compaction_rows import QUEUES, SIZES, TOPIC, make
from mqstore._times import time_of
from mqstore.spark import _options, _source
from mqstore.spark._read import planning
from mqstore.spark._read import rows as _rows
from mqstore.spark._remote import HiddenTraceback

MESSAGES = 600


def fill(path: Path, count: int = MESSAGES, **options: Any) -> Path:
    """Two topics, the first one with three queues. Bodies, keys and tags contain the number."""
    with mqstore.open(path, "create", segment_size=1 << 16, **options) as store:
        if "orders" not in store.topics():
            store.create_topic("orders", queues=3)
        for number in range(count):
            body = f"{number}:".encode() + b"x" * (number % 300)
            topic, queue = ("orders", number % 3) if number % 5 else ("events", 0)
            tag = ("paid", "shipped")[number % 2]
            properties = {"region": "eu"} if number % 7 == 0 else None
            keys = [f"k{number % 50}", "all"]
            store.append(topic, body, keys=keys, tags=tag, properties=properties, queue_id=queue)
    return path


@pytest.fixture
def made(tmp_path: Path) -> Path:
    return fill(tmp_path / "store")


def read(spark: Any, path: Path, **options: Any) -> Any:
    return spark.read.format("mqstore").options(**options).load(str(path))


def expected(path: Path, columns: list[str] | None = None, **request: Any) -> list[tuple[Any, ...]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        table = mqstore.scan(path, columns=columns, **request).to_arrow()
    return sorted(tuple(row.values()) for row in table.to_pylist())


def direct(path: Path, **options: Any) -> list[dict[str, Any]]:
    """The result of the tasks of a read, without Spark. Each task has its own copy of all objects."""
    given = {"path": str(path), **{name: str(value) for name, value in options.items()}}
    reader = pickle.loads(pickle.dumps(_source.reader(given, _source.schema(given))))
    found: list[dict[str, Any]] = []
    for part in planning.plan(reader.options, reader.ranges):
        value = pickle.loads(pickle.dumps(part.plain()))
        for batch in _rows.rows(reader.options, value):
            found += batch.to_pylist()
    return found


def test_all_columns_and_rows(spark: Any, made: Path) -> None:
    frame = read(spark, made, topic="orders")
    assert [(field.name, field.dataType.simpleString()) for field in frame.schema] == list(_options.COLUMNS.items())
    assert all(field.nullable for field in frame.schema)
    columns = [name for name in frame.columns if "timestamp" not in name]
    found = sorted(
        tuple(bytes(value) if isinstance(value, bytearray) else value for value in row)
        for row in frame.select(columns).toArrow().to_pandas().itertuples(index=False)
    )
    wanted = expected(made, columns, topics="orders")
    assert len(found) == len(wanted) == MESSAGES * 4 // 5
    at = {name: columns.index(name) for name in columns}
    for row, other in zip(found, wanted, strict=True):
        for name, place in at.items():
            mine = row[place]
            assert (list(mine) if name in ("keys", "properties") else mine) == other[place], name
    first = frame.orderBy("commit_log_offset").first()
    assert first.store_timestamp.timestamp() > 1_600_000_000


def test_narrow_reads(spark: Any, made: Path) -> None:
    assert read(spark, made).count() == MESSAGES
    assert read(spark, made, columns="queue_offset,tags").columns == ["queue_offset", "tags"]
    frame = read(spark, made, includeBody=False, includeProperties="false")
    assert not {"body", "properties"} & set(frame.columns)
    own = spark.read.format("mqstore").schema("tags string, queue_offset bigint").load(str(made))
    wanted = expected(made, ["tags", "queue_offset"])
    assert sorted((row.tags, row.queue_offset) for row in own.collect()) == wanted
    assert read(spark, made, tags="paid", topic="orders", bodyFormat="text").filter("body like '%:%'").count() == len(
        expected(made, ["body"], topics="orders", filter="paid")
    )
    condition = "TAGS = 'paid' AND KEYS IN ('k3 all', 'k4 all')"
    assert read(spark, made, sql=condition).count() == len(expected(made, ["topic"], filter="paid", keys=["k3", "k4"]))
    assert read(spark, made, keys="k3,k4").count() == len(expected(made, ["topic"], keys=["k3", "k4"]))


def test_sql(spark: Any, made: Path) -> None:
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW orders USING mqstore OPTIONS (path '{made}', subscribe 'orders')")
    rows = spark.sql(
        "SELECT queue_id, count(*) AS n, max(queue_offset) AS last FROM orders GROUP BY queue_id"
    ).collect()
    assert {(row.queue_id, row.n, row.last) for row in rows} == {(queue, 160, 159) for queue in range(3)}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"splitBytes": 4096},
        {"minPartitions": 7},
        {"maxRecordsPerPartition": 13},
        {"topic": "events", "maxRecordsPerPartition": 1},
        {"subscribe": "events, orders", "splitBytes": 10_000},
        {"topics": "events, orders"},
        {"topics": "orders"},
        {"subscribePattern": "or.*", "batchBytes": 1},
        {"mode": "PERMISSIVE", "splitBytes": 5000},
    ],
)
def test_every_row_is_in_one_part(made: Path, options: dict[str, Any]) -> None:
    found = direct(made, columns="topic,queue_id,queue_offset,body", **options)
    given = next((str(options[name]) for name in ("topic", "topics", "subscribePattern") if name in options), None)
    only = {"events": "events", "orders": "orders", "or.*": "orders"}.get(given or "")
    wanted = expected(made, ["topic", "queue_id", "queue_offset", "body"], topics=only)
    assert sorted((row["topic"], row["queue_id"], row["queue_offset"], row["body"]) for row in found) == wanted


def test_parts_are_as_asked(made: Path) -> None:
    given = {"path": str(made), "maxRecordsPerPartition": "50"}
    reader = _source.reader(given, _source.schema(given))
    parts = planning.plan(reader.options, reader.ranges)
    assert all(sum(part.end - part.start for part in each.ranges) <= 50 for each in parts)
    assert len(parts) >= 12
    given = {"path": str(made), "minPartitions": "5"}
    reader = _source.reader(given, _source.schema(given))
    assert len(planning.plan(reader.options, reader.ranges)) >= 5


@pytest.mark.parametrize("attributes", [{}, {"cleanup.policy": "COMPACTION"}])
def test_small_queues_share_a_task(tmp_path: Path, attributes: dict[str, str]) -> None:
    path = tmp_path / "store"
    with mqstore.open(path, "create", segment_size=1 << 16) as store:
        store.create_topic("orders", queues=60, attributes=attributes)
        for number in range(180):
            store.append("orders", b"%d" % number, keys=f"k{number}", queue_id=number % 60)
        if attributes:
            store.compact()
            store.append("orders", b"180", keys="k", queue_id=1)
    given = {"path": str(path), "maxRecordsPerPartition": "100", "columns": "body", "topics": "orders"}
    reader = _source.reader(given, _source.schema(given))
    parts = planning.plan(reader.options, reader.ranges)
    assert [sum(part.end - part.start for part in each.ranges) for each in parts][:2] == [99, 81]
    assert len(parts) <= 3
    rows = [row for part in parts for batch in _rows.rows(reader.options, part.plain()) for row in batch.to_pylist()]
    assert sorted(int(row["body"]) for row in rows) == list(range(181 if attributes else 180))


def test_offsets_and_times(made: Path) -> None:
    with mqstore.open(made) as store:
        when = next(store.read("orders", 1, 100)).store_timestamp
        behind = store.offset_for_time("orders", 1, when)
    start = {"orders": {"0": 5, "1": -1, "2": -2}}
    end = {"orders": {"0": 9, "2": 3}}
    found = direct(made, topic="orders", startingOffsets=json.dumps(start), endingOffsets=json.dumps(end))
    assert sorted((row["queue_id"], row["queue_offset"]) for row in found) == [(0, n) for n in range(5, 9)] + [
        (2, n) for n in range(3)
    ]
    for start_time in (when, time_of(when), time_of(when).isoformat()):
        found = direct(made, assign='{"orders": [1]}', startingTimestamp=start_time)
        assert sorted(row["queue_offset"] for row in found) == list(range(behind, 160))
    found = direct(made, assign='{"orders": [1]}', endingTimestamp=when)
    assert sorted(row["queue_offset"] for row in found) == list(range(behind))
    assert direct(made, topic="orders", startingOffsets="latest") == []
    with pytest.raises(mqstore.MQStoreError, match="offset 500 is outside queue orders/0"):
        direct(made, topic="orders", startingOffsets='{"orders": {"0": 500}}')


def test_what_came_later_is_not_in_it(made: Path) -> None:
    given = {"path": str(made), "topic": "orders"}
    reader = _source.reader(given, _source.schema(given))
    fill(made)
    parts = planning.plan(reader.options, reader.ranges)
    rows = [row for part in parts for batch in _rows.rows(reader.options, tuple(part)) for row in batch.to_pylist()]
    assert len(rows) == 480


def test_beside_a_writer(spark: Any, made: Path) -> None:
    with mqstore.open(made, "rw") as store:
        for _ in range(100):
            store.append("events", b"new", queue_id=0)
        assert read(spark, made, topic="events", columns="topic").count() == 220


def test_several_stores_and_empty_ones(spark: Any, made: Path, tmp_path: Path) -> None:
    other = fill(tmp_path / "other", 10)
    frame = spark.read.format("mqstore").option("includeBody", "false").load([str(made), str(other)])
    assert frame.count() == MESSAGES + 10
    mqstore.open(tmp_path / "empty", "create").close()
    assert read(spark, tmp_path / "empty").count() == 0
    assert read(spark, tmp_path / "empty").columns == list(_options.COLUMNS)


def damage(path: Path, offset: int) -> int:
    """Changes a byte in the body of a message of queue 1. Returns the number of the message."""
    with mqstore.open(path) as store:
        message = next(store.read("orders", 1, offset))
    segments = sorted((path / "commitlog").iterdir())
    segment = next(each for each in reversed(segments) if int(each.name) <= message.commit_log_offset)
    data = bytearray(segment.read_bytes())
    at = data.index(message.body, message.commit_log_offset - int(segment.name))
    data[at] ^= 0xFF
    segment.write_bytes(data)
    return int(message.body.split(b":")[0])


# The first message, one in the middle, and the last one of the queue: the plan looks at the first and the last one.
@pytest.mark.parametrize("offset", [0, 70, -1])
def test_damage_by_mode(spark: Any, made: Path, offset: int) -> None:
    with mqstore.open(made) as store:
        queue = store.queues("orders")[1]
    lost = damage(made, queue.max_offset - 1 if offset < 0 else queue.min_offset + offset)
    with pytest.raises(Exception, match=r"commitlog/0.* at offset \d+: .*DROPMALFORMED"):
        read(spark, made).count()
    frame = read(spark, made, mode="DROPMALFORMED", bodyFormat="text", splitBytes=20_000)
    numbers = sorted(int(row.body.split(":")[0]) for row in frame.select("body").collect())
    assert numbers == [number for number in range(MESSAGES) if number != lost]
    frame = read(spark, made, mode="PERMISSIVE", topic="orders", splitBytes=20_000)
    bad = frame.filter("_corrupt_record is not null").collect()
    assert len(bad) == 1
    assert "commitlog" in bad[0]._corrupt_record
    assert (bad[0].topic, bad[0].body) == (None, None)
    assert frame.count() == 480
    few = read(spark, made, mode="DROPMALFORMED", topic="orders", maxRecordsPerPartition=60)
    assert few.count() == 479


def test_bodies_that_do_not_unpack(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with mqstore.open(path, "create") as store:
        store.append("t", b"good")
        row = ("t", 0, b"no zlib", [], 0, None, None, 0, 1 | (3 << 8))
        mqstore._native.append_rows(store, [row], None, None)
    with pytest.raises(mqstore.MQStoreError, match="cannot decompress"):
        direct(path)
    assert [row["body"] for row in direct(path, mode="DROPMALFORMED")] == [b"good"]
    rows = direct(path, mode="PERMISSIVE", columnNameOfCorruptRecord="why")
    assert [(row["body"], row["why"] is None) for row in rows] == [(b"good", True), (None, False)]


def test_messages_that_expired(made: Path) -> None:
    with mqstore.open(made) as store:
        first = next(store.read("orders", 0)).queue_offset
    given = {"path": str(made), "topic": "orders", "splitBytes": "1000000"}
    reader = _source.reader(given, _source.schema(given))
    parts = planning.plan(reader.options, reader.ranges)
    min((made / "commitlog").iterdir()).unlink()
    with pytest.raises(mqstore.MQStoreError, match="failOnDataLoss"):
        [list(_rows.rows(reader.options, tuple(part))) for part in parts]
    options = {**reader.options, "fail_on_data_loss": False, "mode": "DROPMALFORMED"}
    left = sum(batch.num_rows for part in parts for batch in _rows.rows(options, part.plain()))
    assert 0 < left < 480
    asked = json.dumps({"orders": {"0": first}})
    with pytest.raises(mqstore.MQStoreError, match="failOnDataLoss"):
        direct(made, topic="orders", startingOffsets=asked)
    assert len(direct(made, topic="orders", startingOffsets=asked, failOnDataLoss=False)) == left


def test_filters_are_pushed_down(spark: Any, made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spark.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    try:
        frame = read(spark, made, pushdown=True)
        few = frame.filter("topic = 'orders' and queue_id in (1, 2) and queue_offset >= 10 and queue_offset < 20")
        assert few.count() == 20
        plan = few._jdf.queryExecution().executedPlan().toString()
        assert "queue_id" not in plan.partition("Filter")[2].partition("\n")[0]
        with mqstore.open(made) as store:
            time = next(store.read("orders", 0, 100)).store_time
        wanted = len([row for row in expected(made, ["store_timestamp"]) if row[0] >= time])
        assert frame.filter(frame.store_timestamp >= time).count() == wanted
        assert frame.filter("tags = 'paid' or queue_id = 0").count() > 0
    finally:
        spark.conf.set("spark.sql.python.filterPushdown.enabled", "false")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"startingOffset": "earliest"}, "did you mean startingOffsets"),
        ({"topic": "a", "subscribe": "b"}, "cannot be combined"),
        ({"startingOffsets": "first"}, "is not JSON"),
        ({"startingOffsets": "[]"}, "earliest, latest or JSON"),
        ({"endingOffsets": "earliest"}, "cannot end"),
        ({"mode": "IGNORE"}, "not one of FAILFAST"),
        ({"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "tags"}, "there is a column 'tags'"),
        ({"mode": "PERMISSIVE", "columnNameOfCorruptRecord": "Body"}, "there is a column 'body'"),
        ({"columnNameOfCorruptRecord": "STORE"}, "there is a column 'store'"),
        ({"mode": "PERMISSIVE", "columnNameOfCorruptRecord": " "}, "must not be empty"),
        ({"columns": ""}, "has no column"),
        ({"columns": " , "}, "has no column"),
        ({"columns": "tags,body,tags"}, "tags"),
        ({"columns": "nothing"}, "there is no column"),
        ({"splitBytes": "0"}, "is not from 1 to"),
        ({"startingTimestamp": "soon"}, "option startingTimestamp: 'soon' is no time"),
        ({"startingTimestamp": "2024-01-01"}, "has no time zone"),
        ({"endingTimestamp": "1704103200"}, "probably in seconds"),
        ({"includeBody": "perhaps"}, "neither true nor false"),
        ({"topic": "nobody"}, "nobody"),
        ({"assign": '{"orders": [7]}'}, "no queue 7"),
    ],
)
def test_options_that_cannot_be(made: Path, options: dict[str, str], error: str) -> None:
    with pytest.raises(mqstore.MQStoreError, match=error):
        direct(made, **options)


def test_messages_that_the_retention_of_a_topic_hides(spark: Any, made: Path) -> None:
    with mqstore.open(made, "rw") as store:
        store.set_retention("orders", max_messages=50)
        hidden = store.expire().topics[0].messages
    assert hidden == MESSAGES * 4 // 5 - 50
    for options, rows in (({}, 50 + MESSAGES // 5), ({"topic": "orders"}, 50)):
        assert read(spark, made, **options).count() == rows
        assert len(direct(made, **options)) == rows


def test_a_schema_that_cannot_be(spark: Any, made: Path, tmp_path: Path) -> None:
    for schema, error in (("body string", "body has the type binary"), ("price int", "there is no column 'price'")):
        with pytest.raises(Exception, match=error):
            spark.read.format("mqstore").schema(schema).load(str(made)).count()
    with pytest.raises(Exception, match="NotAStoreError"):
        read(spark, tmp_path / "nothing").count()
    assert not (tmp_path / "nothing").exists()


def test_an_error_begins_with_the_sentence(spark: Any, made: Path, tmp_path: Path) -> None:
    """After Spark's own words, and without a traceback."""
    sentence = r"(?s)^\[PYTHON_DATA_SOURCE_ERROR\] [\w ]+: mqstore\.\w+Error: (?!.*Traceback)"
    for place, options in ((tmp_path / "nothing", {}), (made, {"topics": "none"}), (made, {"splitBytes": "0"})):
        with pytest.raises(Exception, match=sentence):
            read(spark, place, **options).count()
    with pytest.raises(Exception, match=sentence):
        spark.range(1).write.format("mqstore").mode("append").save(str(tmp_path / "nothing"))


def test_the_error_of_a_task_begins_with_the_sentence(spark: Any, made: Path) -> None:
    damage(made, 70)
    with pytest.raises(Exception, match=r"(?s)^[\w :]+\nmqstore\.MQStoreError: /\S+ at offset (?!.*Traceback)"):
        read(spark, made).collect()


def test_only_an_expected_error_hides_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    # With an empty value, the name is removed again at the end.
    monkeypatch.setenv("SPARK_HIDE_TRACEBACK", "")

    def hides(error: Exception) -> bool:
        with pytest.raises(type(error)), HiddenTraceback():
            raise error
        return bool(os.environ["SPARK_HIDE_TRACEBACK"])

    assert not hides(mqstore.MQStoreError("outside a worker"))
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", SimpleNamespace(name="pyspark.daemon"))
    assert not hides(ZeroDivisionError("a bug"))
    assert hides(mqstore.MQStoreError("in a worker"))


def test_plans_on_an_empty_part(made: Path) -> None:
    given = {"path": str(made)}
    options = _source.reader(given, _source.schema(given)).options
    assert [batch.num_rows for batch in _rows.rows(options, None)] == [0]
    with planning.open_store(str(made)) as store:
        assert planning.parts(store, [], options) == []


def test_a_queue_is_read_from_its_compaction_as_far_as_that_goes(tmp_path: Path) -> None:
    path = tmp_path / "prices"
    contents = make(path)

    def ways() -> set[str]:
        given = {"path": str(path), "topic": TOPIC}
        reader = _source.reader(given, _source.schema(given))
        return {part.way for part in planning.plan(reader.options, reader.ranges)}

    def rows() -> list[tuple[int, int, bytes]]:
        with mqstore.open(path) as store:
            found = [each for queue in range(QUEUES) for each in store.read(TOPIC, queue)]
        return [(each.queue_id, each.queue_offset, each.body) for each in found]

    def read_here() -> list[tuple[int, int, bytes]]:
        return sorted((row["queue_id"], row["queue_offset"], row["body"]) for row in direct(path, topic=TOPIC))

    # Messages that were only copied to the compaction files are still in the log.
    assert (path / "compaction").is_dir()
    assert "messages" not in ways()
    assert read_here() == rows()
    mqstore.compact(path, in_place=True, **SIZES)
    assert ways() == {"messages"}
    assert read_here() == rows()
    with mqstore.open(path, "rw") as store:
        compaction_rows.fill(store, contents, 300, seed=2)
    assert "messages" in ways()
    assert len(ways()) == 2
    assert len(rows()) > 300
    assert read_here() == rows()
