"""Work queues: the default group, and the name of the visibility timeout."""

from __future__ import annotations

from pathlib import Path

import pytest

import mqstore
from conftest import SMALL


# The default group.


def test_each_topic_has_its_own_default_group(store: mqstore.Store) -> None:
    jobs, mails = store.work_queue("jobs", max_attempts=1), store.work_queue("mails", max_attempts=1)
    assert (jobs.group, jobs.dead_letters) == ("workers-jobs", "%DLQ%workers-jobs")
    for queue in (jobs, mails):
        queue.put(queue.topic.encode())
        queue.nack(queue.get(timeout=5))
    # A redrive does not touch the dead letters of another queue.
    assert (jobs.redrive(), jobs.redrive()) == (1, 0)
    assert [queue.counts().ready for queue in (jobs, mails)] == [1, 0]
    assert [letter.text() for letter in store.read(mails.dead_letters, 0)] == ["mails"]


def test_a_topic_with_the_former_default_group_keeps_it(home: Path) -> None:
    with mqstore.open(home, "create", options=SMALL) as store:
        former = store.work_queue("jobs", "workers")
        former.put_many([b"done", b"to do"])
        former.ack(former.get(timeout=5))
        with store.consumer("workers", "orders") as consumer:
            store.append("orders", b"order")
            assert consumer.poll(timeout=5)
            consumer.commit()
    with mqstore.open(home, "rw", options=SMALL) as store:
        queue = store.work_queue("jobs")
        assert (queue.group, queue.get(timeout=5).text()) == ("workers", "to do")
        assert store.work_queue("orders").group == "workers"
        assert store.work_queue("new").group == "workers-new"
        store.delete_topic("orders")
        store.append("orders", b"order")
        assert store.work_queue("orders").group == "workers-orders"


def test_a_topic_without_a_default_group_asks_for_one(store: mqstore.Store) -> None:
    topic = "t" * 113
    with pytest.raises(mqstore.InvalidOptionError, match=r"give group="):
        store.work_queue(topic)
    assert store.work_queue(topic, "g").group == "g"
    assert store.work_queue(topic[1:]).group == f"workers-{topic[1:]}"


def test_the_former_name_of_the_visibility_timeout_still_works(store: mqstore.Store) -> None:
    with pytest.warns(DeprecationWarning, match="visibility_timeout") as warned:
        queue = store.work_queue("jobs", invisible_duration=7)
    assert Path(warned[0].filename) == Path(__file__)
    assert (queue.visibility_timeout, queue.invisible_duration) == (7, 7)
    with pytest.raises(mqstore.InvalidOptionError, match="visibility_timeout"):
        store.work_queue("jobs", visibility_timeout=0)
