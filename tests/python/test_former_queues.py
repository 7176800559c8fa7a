"""After a reduction of a topic's queues, readers drain the former queues too."""

from __future__ import annotations

from pathlib import Path

import pytest

import mqstore
from conftest import until
from mqstore.testing import ManualClock
from mqstore.testing import open as open_for_test

SMALL = {"segment_size": 1 << 20, "index_slots": 100, "index_entries": 4000, "queue_file_entries": 1000}


@pytest.fixture
def store(tmp_path: Path) -> mqstore.Store:
    with mqstore.open(tmp_path / "store", "create", **SMALL) as store:
        store.create_topic("orders", queues=4)
        for number in range(40):
            store.append("orders", b"%d" % number, keys=f"key-{number}", queue_id=number % 4)
        yield store


def reduce(store: mqstore.Store) -> None:
    store.update_topic("orders", read_queues=2, write_queues=2)


def drained(queue: mqstore.WorkQueue) -> int:
    count = 0
    while messages := queue.get_many(7, timeout=0):
        for message in messages:
            queue.ack(message)
        count += len(messages)
    return count


def test_readers_that_start_later(store: mqstore.Store) -> None:
    reduce(store)
    with store.work_queue("orders") as queue:
        assert queue.qsize() == 40
        assert drained(queue) == 40
        with pytest.raises(mqstore.Empty):
            queue.get(block=False)
        assert queue.join(timeout=0)
    with store.consumer("group", "orders") as consumer:
        found = []
        while some := consumer.poll(timeout=0):
            found += some
        assert len(found) == 40
        consumer.commit()
        assert set(consumer.lag().values()) == {0}
    assert len(store.table("orders")) == 40
    assert sum(queue.max_offset for queue in store.queues("orders")) == 40
    assert store.scan(topics="orders").to_arrow().num_rows == 40


def test_handles_that_are_open(store: mqstore.Store) -> None:
    with store.work_queue("orders") as queue, store.consumer("group", "orders") as consumer:
        queue.ack(queue.get(block=False))
        assert len(consumer.poll(3, timeout=0)) == 3
        reduce(store)
        assert drained(queue) == 39
        with pytest.raises(mqstore.Empty):
            queue.get(timeout=0.05)
        store.append("orders", b"new")
        assert drained(queue) == 1
        left = 0
        while some := consumer.poll(timeout=0):
            left += len(some)
        assert left == 38
        assert consumer.poll(timeout=0.05) == []


def test_another_process_and_a_restart(store: mqstore.Store) -> None:
    reduce(store)
    path = store.path
    with mqstore.open(path) as reader:
        assert len(reader.table("orders")) == 40
    store.close()
    with mqstore.open(path, "rw") as again:
        assert len(again.table("orders")) == 40
        assert {again.append("orders", b"x").queue_id for _ in range(4)} == {0, 1}
        with again.work_queue("orders") as queue:
            assert drained(queue) == 44


def test_a_former_queue_takes_no_messages(store: mqstore.Store) -> None:
    reduce(store)
    with pytest.raises(mqstore.TopicNotFoundError):
        store.append("orders", b"x", queue_id=3)


def test_accepted_messages_reach_a_queue_that_the_topic_no_longer_lists(tmp_path: Path) -> None:
    clock = ManualClock()
    with open_for_test(tmp_path / "store", "create", clock=clock, **SMALL) as store:
        store.create_topic("orders", queues=4)
        store.append("orders", b"delay", queue_id=3, delay=60)
        store.append("orders", b"level", queue_id=3, delay_level=2)
        transaction = store.transaction("group")
        transaction.append("orders", b"transaction", queue_id=2)
        reduce(store)
        # A message behind the level's first one waits for it.
        store.append("orders", b"later", queue_id=0, delay_level=2)
        transaction.commit()
        clock.advance(61)
        until(lambda: store.delays().pending == 0)
        with store.consumer("group", "orders") as consumer:
            bodies = sorted(message.body for message in consumer.poll(9, timeout=5))
        assert bodies == [b"delay", b"later", b"level", b"transaction"]
        assert store.delays().dropped == 0
        with pytest.raises(mqstore.TopicNotFoundError):
            store.append("orders", b"new", queue_id=3)
