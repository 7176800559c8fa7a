"""The streaming read: limits, restarts, gaps, loss."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import mqstore
from mqstore.spark import _source
from mqstore.spark._read import planning
from mqstore.spark._read import rows as _rows
from mqstore.spark._read import stream as _stream


def fill(path: Path, count: int, first: int = 0, queues: int = 2) -> Path:
    with mqstore.open(path, "create", segment_size=1 << 12) as store:
        if "orders" not in store.topics():
            store.create_topic("orders", queues=queues)
        for number in range(first, first + count):
            store.append("orders", f"{number}".encode(), queue_id=number % queues)
    return path


@pytest.fixture
def made(tmp_path: Path) -> Path:
    return fill(tmp_path / "store", 100)


def drain(spark: Any, path: Path, work: Path, **options: Any) -> list[dict[str, Any]]:
    """Runs a query into Parquet, up to the current end. Returns its progress."""
    given = {"subscribe": "orders", "columns": "queue_id,queue_offset,body", "startingOffsets": "earliest", **options}
    frame = spark.readStream.format("mqstore").options(**given).load(str(path))
    query = (
        frame.writeStream.format("parquet")
        .option("checkpointLocation", str(work / "checkpoint"))
        .option("path", str(work / "out"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    progress: list[dict[str, Any]] = [json.loads(each.json) for each in query.recentProgress]
    return progress


def numbers(spark: Any, work: Path) -> Counter[int]:
    return Counter(int(bytes(row.body)) for row in spark.read.parquet(str(work / "out")).collect())


def queues(offset: dict[str, Any]) -> dict[str, Any]:
    """Returns an offset without the mark of the store."""
    return {topic: numbers for topic, numbers in offset.items() if topic != "@log"}


def test_caps_and_restarts_give_every_message_once(spark: Any, made: Path, tmp_path: Path) -> None:
    progress = drain(spark, made, tmp_path, maxOffsetsPerTrigger=30)
    assert [each["numInputRows"] for each in progress if each["numInputRows"]] == [30, 30, 30, 10]
    # More messages, and a new queue.
    fill(made, 50, first=100)
    with mqstore.open(made, "rw") as store:
        store.create_topic("orders", queues=3)
        store.append("orders", b"150", queue_id=2)
    progress = drain(spark, made, tmp_path, maxOffsetsPerTrigger=1000)
    assert sum(each["numInputRows"] for each in progress) == 51
    assert queues(progress[-1]["sources"][0]["endOffset"]) == {"orders": {"0": 75, "1": 75, "2": 1}}
    assert numbers(spark, tmp_path) == Counter(range(151))


def test_a_query_that_failed_reads_its_batch_again(spark: Any, made: Path, tmp_path: Path) -> None:
    seen: list[int] = []

    def broken(frame: Any, batch: int) -> None:
        seen.extend(int(bytes(row.body)) for row in frame.collect())
        if batch == 1:
            raise ConnectionError("lost")

    def start(action: Any) -> Any:
        frame = spark.readStream.format("mqstore").option("startingOffsets", "earliest")
        frame = frame.option("maxOffsetsPerTrigger", 40).load(str(made))
        stream = frame.writeStream.foreachBatch(action).option("checkpointLocation", str(tmp_path / "checkpoint"))
        return stream.trigger(availableNow=True).start()

    with pytest.raises(Exception, match="lost"):
        start(broken).awaitTermination()
    assert len(seen) == 80
    fill(made, 20, first=100)
    batches: dict[int, list[int]] = {}
    start(
        lambda frame, batch: batches.update({batch: [int(bytes(row.body)) for row in frame.collect()]})
    ).awaitTermination()
    assert sorted(batches[1]) == sorted(seen[40:])
    assert Counter(seen[:40]) + Counter(number for some in batches.values() for number in some) == Counter(range(120))


def options(path: Path, **given: Any) -> dict[str, Any]:
    texts = {"path": str(path), **{name: str(value) for name, value in given.items()}}
    return _source.stream_reader(texts, _source.schema(texts)).options


def rows(asked: dict[str, Any], start: dict[str, Any], end: dict[str, Any]) -> list[int]:
    return sorted(
        int(row["body"])
        for part in _stream.plan(asked, start, end)
        for batch in _rows.rows(asked, tuple(part))
        for row in batch.to_pylist()
    )


def test_latest_is_settled_once(made: Path) -> None:
    asked = options(made)
    start = _stream.initial(asked)
    first = _stream.latest(asked, start, None, True)
    assert queues(first) == {"orders": {"0": 50, "1": 50}}
    fill(made, 6, first=100)
    # Spark asks again, and the start is the same. A repeated first batch is still empty.
    assert _stream.initial(asked) == start
    assert rows(asked, start, first) == []
    second = _stream.latest(asked, first, None, True)
    assert rows(asked, first, second) == list(range(100, 106))
    assert list(second["orders"]) == ["0", "1"]


def test_starts(made: Path) -> None:
    asked = options(made, startingOffsets='{"orders": {"0": 48, "1": -1}}')
    start = _stream.initial(asked)
    end = _stream.latest(asked, start, None, True)
    assert rows(asked, start, end) == [96, 98]
    with mqstore.open(made) as store:
        when = max(next(store.read("orders", queue, 49)).store_timestamp for queue in range(2)) + 1
    asked = options(made, startingTimestamp=when)
    start = _stream.initial(asked)
    first = _stream.latest(asked, start, None, True)
    assert rows(asked, start, first) == []
    fill(made, 3, first=100)
    assert rows(asked, start, first) == []
    assert rows(asked, first, _stream.latest(asked, first, None, True)) == [100, 101, 102]


def test_shares_of_a_cap(made: Path) -> None:
    with mqstore.open(made, "rw") as store:
        for number in range(100, 400):
            store.append("orders", f"{number}".encode(), queue_id=0)
    asked = options(made, startingOffsets="earliest", maxOffsetsPerTrigger=41)
    at = _stream.initial(asked)
    found: list[int] = []
    while (end := _stream.latest(asked, at, None, True)) != at:
        some = rows(asked, at, end)
        assert len(some) <= 41
        if not found:
            assert queues(end) == {"orders": {"0": 36, "1": 5}}
        found += some
        at = end
    assert Counter(found) == Counter(range(400))
    # Without a limit, the end is the newest offset.
    assert _stream.latest(asked, _stream.initial(asked), None, False) == at


@pytest.mark.parametrize("limit", [{"maxOffsetsPerTrigger": 20}, {"maxBytesPerTrigger": 2000}])
def test_a_small_queue_advances_next_to_a_steady_backlog(made: Path, limit: dict[str, int]) -> None:
    asked = options(made, startingOffsets="earliest", **limit)
    at = _stream.latest(asked, _stream.initial(asked), None, False)
    with mqstore.open(made, "rw") as store:
        store.create_topic("small", queues=1)
        for number in range(300):
            store.append("orders", f"{number}".encode(), queue_id=0)
        for number in range(300, 303):
            store.append("small", f"{number}".encode())
    for batch in range(3):
        end = _stream.latest(asked, at, None, True)
        assert end["small"]["0"] == batch + 1
        assert end["orders"]["0"] > at["orders"]["0"]
        at = end


def test_each_queue_advances_if_there_are_more_than_messages_in_a_batch(made: Path) -> None:
    asked = options(made, topic="orders", startingOffsets="earliest", maxOffsetsPerTrigger=2)
    fill(made, 40, first=100, queues=2)
    with mqstore.open(made, "rw") as store:
        store.create_topic("orders", queues=5)
        for queue_id in (4, 3, 2):
            store.append("orders", b"1", queue_id=queue_id)
    at = _stream.initial(asked)
    while (end := _stream.latest(asked, at, None, True)) != at:
        start, at = at, end
        assert sum(end["orders"].values()) - sum(start.get("orders", {}).values()) <= 2
        if end["orders"]["2"]:
            # The oldest messages first.
            assert [end["orders"][queue] for queue in "01"] >= [69, 69]
    assert queues(at) == {"orders": {"0": 70, "1": 70, "2": 1, "3": 1, "4": 1}}


def test_the_oldest_messages_come_first(tmp_path: Path) -> None:
    home = tmp_path / "store"
    with mqstore.open(home, "create") as store:
        store.create_topic("orders", queues=5)
        for queue_id in (4, 3, 2, 1, 1, 0, 0):
            store.append("orders", b"1", queue_id=queue_id)
    asked = options(home, topic="orders", startingOffsets="earliest", maxOffsetsPerTrigger=2)
    first = _stream.latest(asked, _stream.initial(asked), None, True)
    assert queues(first) == {"orders": {"0": 0, "1": 0, "2": 0, "3": 1, "4": 1}}
    assert queues(_stream.latest(asked, first, None, True)) == {"orders": {"0": 0, "1": 1, "2": 1, "3": 1, "4": 1}}


def test_the_end_of_a_query_is_fixed_when_it_starts(made: Path) -> None:
    asked = options(made, startingOffsets="earliest", maxOffsetsPerTrigger=60)
    target = _stream.ends(asked)
    at, batches = _stream.initial(asked), 0
    while (end := _stream.latest(asked, at, target, True)) != at:
        # A new topic grows faster than the query reads.
        with mqstore.open(made, "rw") as store:
            for number in range(50):
                store.append(f"new-{batches % 2}", f"{number}".encode())
        at, batches = end, batches + 1
        assert batches < 4
    assert queues(at) == {"orders": {"0": 50, "1": 50}}
    # The next query reads it.
    assert queues(_stream.latest(asked, at, None, False))["new-1"] == {"0": 50}


def test_a_queue_that_is_created_while_a_query_starts_is_after_its_end(made: Path) -> None:
    asked = options(made, subscribePattern=".*", startingOffsets="earliest")
    target = _stream.ends(asked)
    with mqstore.open(made, "rw") as store:
        store.append("new", b"1")
    first = _stream.latest(asked, _stream.initial(asked), target, True)
    assert queues(first) == {"orders": {"0": 50, "1": 50}}


def test_bytes_of_a_trigger(made: Path) -> None:
    with mqstore.open(made) as store:
        size = store.read("orders", 0, 20).__next__().size
    asked = options(made, startingOffsets="earliest", maxBytesPerTrigger=10 * size)
    end = _stream.latest(asked, _stream.initial(asked), None, True)
    assert 8 <= sum(end["orders"].values()) <= 12
    tiny = options(made, startingOffsets="earliest", maxBytesPerTrigger=1)
    assert sum(_stream.latest(tiny, _stream.initial(tiny), None, True)["orders"].values()) == 1


def test_what_expired_under_a_query(made: Path) -> None:
    asked = options(made, startingOffsets="earliest", splitBytes=1 << 30)
    first = {"orders": {"0": 2, "1": 2}}
    segments = sorted((made / "commitlog").iterdir())
    assert len(segments) > 1
    segments[0].unlink()
    end = _stream.latest(asked, first, None, True)
    with pytest.raises(mqstore.MQStoreError, match="failOnDataLoss=false"):
        _stream.plan(asked, first, end)
    lenient = {**asked, "fail_on_data_loss": False}
    with pytest.warns(mqstore.StoreWarning, match="holds offsets"):
        left = rows(lenient, first, end)
    assert left == list(range(left[0], 100))
    # A limit counts existing messages, not removed ones.
    capped = {**lenient, "max_offsets": 4}
    end = _stream.latest(capped, first, None, True)
    with pytest.warns(mqstore.StoreWarning):
        assert len(rows(capped, first, end)) == 4
    # If a store has less than the query has read, it is a different store.
    with pytest.raises(mqstore.MQStoreError, match="and not"):
        _stream.plan(asked, {"orders": {"0": 90, "1": 90}}, {"orders": {"0": 91, "1": 90}})


def test_gaps_of_compacted_topics_are_no_loss(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with mqstore.open(path, "create", segment_size=1 << 14) as store:
        store.create_topic("orders", queues=1, attributes={"cleanup.policy": "COMPACTION"})
        for number in range(5):
            store.append("orders", f"{1000 + number}".encode(), keys=f"own{number}", tags="b")
        for number in range(300):
            store.append("orders", f"{number}".encode(), keys=f"k{number % 5}", tags="ab"[number % 2])
    mqstore.compact(path, in_place=True)
    with mqstore.open(path, "rw") as store:
        for number in range(300, 350):
            store.append("orders", f"{number}".encode(), keys=f"k{number % 5}", tags="ab"[number % 2])
    asked = options(path, startingOffsets="earliest", maxOffsetsPerTrigger=70)
    at, found = _stream.initial(asked), list[int]()
    while (end := _stream.latest(asked, at, None, True)) != at:
        assert end["orders"]["0"] - (at["orders"]["0"] if "orders" in at else 0) <= 70
        found += rows(asked, at, end)
        at = end
    # The newest message of each key, and all messages after the last compaction, as `Store.read` returns them.
    with mqstore.open(path) as store:
        assert found == [int(message.body) for message in store.read("orders")]
    assert found == [*range(1000, 1005), *range(295, 350)]
    given = {"path": str(path), "tags": "a", "keys": "k3,k4", "bodyFormat": "text", "mode": "PERMISSIVE"}
    batch = _source.reader(given, _source.schema(given))
    parts = planning.plan(batch.options, batch.ranges)
    # The compacted messages, and those after them.
    assert [part.way for part in parts] == ["messages", "log"]
    some = [row for part in parts for each in _rows.rows(batch.options, tuple(part)) for row in each.to_pylist()]
    assert [int(row["body"]) for row in some] == [n for n in found if n < 1000 and n % 2 == 0 and n % 5 in (3, 4)]
    assert all(row["keys"] == [f"k{int(row['body']) % 5}"] and dict(row["properties"])["TAGS"] == "a" for row in some)
    assert all(row["store_timestamp"].timestamp() > 1_600_000_000 for row in some)


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"startingOffsets": '{"order": {"0": 2}}'}, "no topic 'order'; did you mean 'orders'?"),
        ({"startingOffsets": '{"orders": {"2": 2}}'}, "no queue 2 of topic 'orders'; its queues are 0 to 1"),
        ({"startingOffsets": '{"orders": {"0": -3}}'}, "-3 is no offset"),
        ({"endingOffsets": '{"orders": {"0": 2}, "xy": {"0": 1}}'}, "no topic 'xy'; its topics are orders"),
        ({"endingOffsets": '{"orders": {"0": -2}}'}, "-2 is no offset"),
        ({"endingOffsets": '{"orders": {"0": 51}}'}, "offset 51 is outside queue orders/0, which holds 0 to 50"),
        ({"startingOffsets": '{"orders": {"0": 51}}'}, "offset 51 is outside queue orders/0, which holds 0 to 50"),
    ],
)
def test_offsets_that_a_read_does_not_have(made: Path, given: dict[str, str], reason: str) -> None:
    texts = {"path": str(made), **given}
    with pytest.raises(mqstore.MQStoreError) as caught:
        _source.reader(texts, _source.schema(texts))
    assert reason in str(caught.value)
    if "startingOffsets" in given:
        with pytest.raises(mqstore.MQStoreError) as caught:
            asked = options(made, **given)
            _stream.latest(asked, _stream.initial(asked), None, True)
        assert reason in str(caught.value)


@pytest.mark.parametrize("trigger", [{"availableNow": True}, {"processingTime": "0 seconds"}])
def test_the_error_of_a_query_begins_with_the_sentence(
    spark: Any, made: Path, tmp_path: Path, trigger: dict[str, Any]
) -> None:
    """After Spark's own words, and without a traceback."""
    frame = spark.readStream.format("mqstore").option("subscribe", "none").load(str(made))
    query = frame.writeStream.format("noop").option("checkpointLocation", str(tmp_path / "checkpoint"))
    with pytest.raises(Exception, match=r"(?s) data source perform \w+: mqstore\.TopicNotFoundError: ") as caught:
        query.trigger(**trigger).start().awaitTermination()
    assert "Traceback" not in str(caught.value)


def test_what_a_stream_cannot_take(made: Path) -> None:
    with pytest.raises(mqstore.InvalidOptionError, match="a stream has no end"):
        options(made, endingOffsets='{"orders": {"0": 1}}')
    with pytest.raises(mqstore.InvalidOptionError, match="maxOffsetsPerTrigger"):
        options(made, maxOffsetPerTrigger=1)
