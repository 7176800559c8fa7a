"""Every reading verb gives the same answer for every kind of queue."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import mqstore

SMALL = {"segment_size": 1 << 20, "index_slots": 100, "index_entries": 4000, "queue_file_entries": 1000}

Rows = list[tuple[int, int, bytes]]
"""Queue id, queue offset and body of messages, sorted."""


def filled(path: Path) -> None:
    """Makes a store with a topic of each kind."""
    with mqstore.open(path, "create", **SMALL) as store:
        store.create_topic("plain", queues=3)
        store.create_topic("batch", queues=2, attributes={"queue.type": "BatchCQ"})
        store.create_topic("compacted", attributes={"cleanup.policy": "COMPACTION"})
        for number in range(12):
            body = b"%d" % number
            lights = [f"light-{number % 2}", "%LMQ%all"]
            store.append("plain", body, queue_id=number % 3, light_queues=lights)
            store.append("compacted", body, keys=f"key-{number % 4}")
            store.append("%RETRY%group", body)
            store.append("%DLQ%group", body)
            store.append("plain", body, delay_level=18)
        store.append_many("batch", [b"a", b"b", b"c"], queue_id=0)
        store.append_many("batch", [b"d", b"e"], queue_id=0)
        store.append("batch", b"f", queue_id=1)
        store.compact("compacted")
        for number in range(12, 15):
            store.append("compacted", b"%d" % number, keys=f"key-{number % 4}")


def by_read(path: Path, topic: str) -> Rows:
    with mqstore.open(path) as store:
        queues = [queue.queue_id for queue in store.queues(topic)]
        found = [message for queue in queues for message in store.read(topic, queue)]
    return sorted((message.queue_id, message.queue_offset, message.body) for message in found)


def by_scan(path: Path, topic: str) -> Rows:
    return _rows(mqstore.scan(path, topics=[topic], batch_size=4).to_arrow().to_pylist())


def by_scan_of_open_store(path: Path, topic: str) -> Rows:
    with mqstore.open(path) as store:
        return _rows(store.scan(topics=topic, threads=1).to_arrow().to_pylist())


def by_cat(path: Path, topic: str) -> Rows:
    command = [sys.executable, "-m", "mqstore", "cat", str(path), "--topic", topic, "--body", "text"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found = [json.loads(line) for line in done.stdout.splitlines()]
    return sorted((one["queue_id"], one["queue_offset"], one["body_text"].encode()) for one in found)


def by_whole_read(path: Path, topic: str) -> Rows:
    with mqstore.open(path) as store:
        return _of_topic(store, topic, list(store.read(topic)))


def by_followed_read(path: Path, topic: str) -> Rows:
    with mqstore.open(path, "rw") as store:
        return _of_topic(store, topic, list(store.read(topic, follow=True, timeout=0)))


def by_tail(path: Path, topic: str) -> Rows:
    with mqstore.open(path) as store:
        assert store.count(topic) == len(store.tail(topic, 1000))
        assert store.tail(topic, 2) == store.tail(topic, 1000)[-2:]
        return _of_topic(store, topic, store.tail(topic, 1000))


def _of_topic(store: mqstore.Store, topic: str, found: list[mqstore.StoredMessage]) -> Rows:
    """The rows of messages that must be in the order of a read of the whole topic."""
    times = [message.store_timestamp for message in found]
    assert times == sorted(times)
    assert found == list(store.read(topic))
    return sorted((message.queue_id, message.queue_offset, message.body) for message in found)


def by_spark(path: Path, topic: str) -> Rows:
    return _rows(spark_rows(path, topic=topic))


def by_consumer(path: Path, topic: str) -> Rows:
    with mqstore.open(path, "rw") as store, store.consumer("reader", topic) as consumer:
        found: list[mqstore.StoredMessage] = []
        while some := consumer.poll(timeout=0):
            found += some
        return sorted((message.queue_id, message.queue_offset, message.body) for message in found)


def spark_rows(path: Path, **given: str) -> list[dict[str, object]]:
    """The rows of the data source, planned and read in this process without Spark."""
    from mqstore.spark._options import read_options
    from mqstore.spark._read import planning, rows

    options = read_options({"path": str(path), **given})
    options["output"] = options["columns"]
    found: list[dict[str, object]] = []
    with planning.open_store(str(path)) as store:
        parts = planning.parts(store, planning.batch_ranges(store, options, pytest.fail), options)
    for part in parts:
        for batch in rows.rows(options, part.plain()):
            found += batch.to_pylist()
    return found


def _rows(found: list[dict[str, object]]) -> Rows:
    return sorted((row["queue_id"], row["queue_offset"], row["body"]) for row in found)


VERBS: list[Callable[[Path, str], Rows]] = [
    by_scan,
    by_scan_of_open_store,
    by_cat,
    by_whole_read,
    by_followed_read,
    by_tail,
    by_spark,
    by_consumer,
]
KINDS = {
    "plain": 12,
    "batch": 3,
    "%LMQ%light-0": 6,
    "%LMQ%all": 12,
    # Four survivors, and the messages after the compaction.
    "compacted": 7,
    "%RETRY%group": 12,
    "%DLQ%group": 12,
    "SCHEDULE_TOPIC_XXXX": 12,
}


@pytest.fixture(scope="module")
def store_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("kinds") / "store"
    filled(path)
    return path


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("topic", KINDS)
def test_every_verb_gives_the_answer_of_read(store_path: Path, verb: Callable[[Path, str], Rows], topic: str) -> None:
    expected = by_read(store_path, topic)
    assert verb(store_path, topic) == expected
    if topic != "compacted":
        assert len(expected) == KINDS[topic]


def test_all_topics_are_each_record_once(store_path: Path) -> None:
    with mqstore.open(store_path) as store:
        every = [message.commit_log_offset for message in store._scan_log()]
    assert mqstore.scan(store_path).to_arrow()["commit_log_offset"].to_pylist() == every
    command = [sys.executable, "-m", "mqstore", "cat", str(store_path), "--format", "jsonl"]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    bodies = len(done.stdout.splitlines())
    with mqstore.open(store_path) as store:
        topics = [topic for topic in store.topics() if not topic.startswith("%LMQ%")]
    assert bodies == sum(len(by_read(store_path, topic)) for topic in topics)
    assert len(spark_rows(store_path)) == bodies


def test_two_named_queues_of_one_record_are_two_rows(store_path: Path) -> None:
    table = mqstore.scan(store_path, topics=["plain", "%LMQ%all"]).to_arrow()
    assert table.num_rows == 24


def test_offsets_select_in_the_light_queue(store_path: Path) -> None:
    rows = mqstore.scan(store_path, topics=["%LMQ%light-1"], start=2, end=4).to_arrow().to_pylist()
    assert [(row["queue_offset"], row["body"]) for row in rows] == [(2, b"5"), (3, b"7")]


def test_light_queues_continue_after_a_restart(tmp_path: Path) -> None:
    for start in (0, 3):
        with mqstore.open(tmp_path / "store", "create", **SMALL) as store:
            for number in range(start, start + 3):
                result = store.append("orders", b"%d" % number, light_queues="one")
                assert result.queue_offset == number
            assert [message.body for message in store.read("%LMQ%one")] == [b"%d" % n for n in range(start + 3)]
            assert store.verify().ok


def test_a_reserved_property_names_its_argument(tmp_path: Path) -> None:
    with mqstore.open(tmp_path / "store", "create", **SMALL) as store:
        for name, argument in [("INNER_MULTI_DISPATCH", "light_queues"), ("KEYS", "keys"), ("DELAY", "delay_level")]:
            with pytest.raises(mqstore.InvalidMessageError, match=f"argument {argument}"):
                store.append("orders", b"", properties={name: "x"})
        with pytest.raises(mqstore.InvalidMessageError, match="the store sets it"):
            store.append("orders", b"", properties={"INNER_MULTI_QUEUE_OFFSET": "x"})


def test_light_queues_are_refused_where_they_cannot_be(tmp_path: Path) -> None:
    with mqstore.open(tmp_path / "store", "create", **SMALL) as store:
        store.create_topic("batch", attributes={"queue.type": "BatchCQ"})
        for topic, more in [("batch", {}), ("%RETRY%g", {}), ("rmq_sys_x", {}), ("orders", {"delay": 60})]:
            with pytest.raises(mqstore.InvalidMessageError):
                store.append(topic, b"", light_queues=["one"], **more)
        for name in ["", "a/b", "a,b", "x" * 200]:
            with pytest.raises(mqstore.InvalidMessageError):
                store.append("orders", b"", light_queues=[name])
