"""One answer for things that do not exist: an unknown topic is an error, an unknown key or id has no messages."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

import mqstore
import mqstore.aio
from conftest import SMALL, Cli
from loops import in_loop


@pytest.mark.parametrize("mode", ["r", "rw"])
def test_an_unknown_topic_is_an_error(filled: Path, mode: mqstore.types.Mode) -> None:
    with mqstore.open(filled, mode, options=SMALL) as store:
        for call in (
            lambda: store.read("ordres"),
            lambda: store.read("ordres", 0),
            lambda: store.read("ordres", follow=True),
            lambda: store.tail("ordres", 3),
            lambda: store.count("ordres"),
            lambda: store.lookup("ordres", "k1"),
            lambda: store.queues("ordres"),
            lambda: store.table("ordres"),
            lambda: list(store.scan(topics="ordres")),
        ):
            with pytest.raises(mqstore.TopicNotFoundError) as caught:
                call()
            assert (caught.value.topic, caught.value.queue_id, caught.value.nearest) == ("ordres", None, "orders")
            assert str(caught.value) == "no topic ordres; did you mean orders?"
        with pytest.raises(mqstore.TopicNotFoundError) as caught:
            store.read("shipments")
        assert (str(caught.value), caught.value.nearest) == ("no topic shipments", None)
        with pytest.raises(mqstore.TopicNotFoundError) as caught:
            store.tail("orders", 3, queue_id=9)
        assert caught.value.queue_id == 9
        with pytest.raises(mqstore.TopicNotFoundError):
            list(store.scan(topics=["orders", "ordres"]))
    with pytest.raises(mqstore.TopicNotFoundError, match="did you mean orders"):
        list(mqstore.scan(filled, topics=["ordres"]))


def test_a_scan_of_a_table_and_an_unknown_topic_is_an_error(home: Path) -> None:
    with mqstore.open(home, "create", options=SMALL) as store:
        store.create_topic("prices", attributes={"cleanup.policy": "COMPACTION"})
        for number in range(200):
            store.append("prices", bytes(500), keys=f"k{number % 3}")
        store.compact()
        assert store.count("prices") == len(list(store.read("prices")))
        with pytest.raises(mqstore.TopicNotFoundError):
            list(store.scan(topics=["prices", "pices"]))


def test_an_unknown_key_or_id_is_no_error(filled: Path) -> None:
    with mqstore.open(filled) as store:
        assert list(store.lookup("orders", "unknown")) == []
        assert list(store.lookup("orders", "k1", limit=0)) == []
        assert store.get("unknown") is None
        assert store.get("7F00000100002A9F00000000000F4240") is None
        assert "unknown" not in store.table("orders")


def test_a_deleted_topic_is_unknown(filled: Path) -> None:
    with mqstore.open(filled, "rw", options=SMALL) as store:
        assert len(list(store.lookup("orders", "all"))) == 40
        store.delete_topic("orders")
        with pytest.raises(mqstore.TopicNotFoundError):
            store.lookup("orders", "all")
        with pytest.raises(mqstore.TopicNotFoundError):
            store.count("orders")


def test_consumers_and_queues_need_the_topic_only_on_request(
    store: mqstore.Store, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(mqstore.TopicNotFoundError) as caught:
        store.consumer("group", ["known", "unknown"], create=False)
    assert caught.value.topic == "known"
    with pytest.raises(mqstore.TopicNotFoundError):
        store.work_queue("jobs", create=False)
    assert store.topics() == []
    assert store.groups() == []
    store.append("known", b"1")
    with caplog.at_level(logging.WARNING, "mqstore"), store.consumer("group", ["known", "unknown"]) as consumer:
        for _ in range(3):
            consumer.poll(timeout=0)
        store.append("unknown", b"2")
        assert [message.body for message in consumer.poll(timeout=5)] == [b"2"]
    waits = [record.getMessage() for record in caplog.records if "does not exist yet" in record.getMessage()]
    assert waits == ["group group waits for topic unknown, which does not exist yet"]
    with pytest.raises(mqstore.TopicNotFoundError, match=r"no topic knwon; did you mean known\?"):
        store.consumer("group", ["known", "knwon"], create=False)
    with pytest.raises(mqstore.TopicNotFoundError, match=r"no topic knwon; did you mean known\?"):
        store.work_queue("knwon", create=False)
    with store.consumer("group", ["known", "unknown"], create=False):
        pass
    with store.work_queue("known", create=False) as queue:
        assert queue.get(timeout=0).body == b"1"


@in_loop
async def test_the_same_for_asyncio(home: Path) -> None:
    async with mqstore.aio.open(home, "create", options=SMALL) as store:
        with pytest.raises(mqstore.TopicNotFoundError):
            await store.consumer("group", "unknown", create=False)
        with pytest.raises(mqstore.TopicNotFoundError):
            await store.work_queue("unknown", create=False)
        with pytest.raises(mqstore.TopicNotFoundError):
            await anext(store.lookup("unknown", "key"))


@pytest.mark.slow
def test_the_command_line_says_so(filled: Path, cli: Cli) -> None:
    for arguments in (
        ["tail", filled, "ordres"],
        ["lookup", filled, "ordres", "k1"],
        ["cat", filled, "--topic", "ordres"],
        ["cat", filled, "--topic", "ordres", "--log"],
    ):
        done = cli(*arguments)
        assert (done.returncode, done.stdout) == (3, "")
        assert "no topic ordres; did you mean orders?" in done.stderr


@pytest.mark.parametrize(
    ("attributes", "text"),
    [
        ({"cleanup.polcy": "COMPACTION"}, "no attribute 'cleanup.polcy'; did you mean 'cleanup.policy'"),
        ({"+cleanup.policy": "COMPACTION"}, "did you mean 'cleanup.policy'"),
        ({"cleanup.policy": "COMPACT"}, "'COMPACT' is no value of 'cleanup.policy'; did you mean 'COMPACTION'"),
        ({"cleanup.policy": "compaction"}, "did you mean 'COMPACTION'"),
        ({"queue.type": "batchcq"}, "did you mean 'BatchCQ'"),
        ({"message.type": "fifo"}, "did you mean 'FIFO'"),
        ({"colour": "red"}, "no attribute 'colour'; choose one of cleanup.policy, queue.type, message.type"),
        ({"reserve.time": "3 days"}, "'3 days' is no value of 'reserve.time'; write a whole number"),
    ],
)
def test_misspelt_attributes_have_a_suggestion(store: mqstore.Store, attributes: dict[str, str], text: str) -> None:
    with pytest.raises(mqstore.InvalidOptionError) as caught:
        store.create_topic("t", attributes=attributes)
    assert text in str(caught.value)
    assert store.topics() == []


def test_all_attributes_of_rocketmq_are_accepted(store: mqstore.Store) -> None:
    known: list[dict[str, str]] = [
        {"cleanup.policy": "DELETE", "queue.type": "SimpleCQ"},
        {"cleanup.policy": "COMPACTION"},
        {"queue.type": "BatchCQ"},
        {"message.type": "FIFO", "reserve.time": "-1"},
        {"message.type": "LITE", "lite.topic.expiration": "60"},
    ]
    for number, attributes in enumerate(known):
        store.create_topic(f"t{number}", attributes=attributes)
    assert len(store.topics()) == len(known)


@pytest.mark.parametrize(
    ("expression", "position", "text"),
    [
        ("price > 5", 0, 'looks like a condition on properties; write mqstore.sql("price > 5")'),
        ("price>5", 0, "mqstore.sql"),
        ("region = 'eu'", 0, "mqstore.sql"),
        ("price >", 0, "mqstore.sql"),
        ("price BETWEEN 1 AND 5", 0, "mqstore.sql"),
        ("paid OR open", 0, "mqstore.sql"),
        ("paid || price > 5", 8, "mqstore.sql"),
        ("a |", 0, 'write "a || b"'),
        ("a | b", 0, 'write "a || b"'),
        ("a ||| b", 4, 'write "a || b"'),
        ("a && b", 0, 'write "a || b"'),
        ("a ||", 4, "a tag is missing"),
        ("|| a", 0, "a tag is missing"),
        ("größe || || a", 8, "a tag is missing"),
    ],
)
def test_filters_that_are_a_mistake(store: mqstore.Store, expression: str, position: int, text: str) -> None:
    store.append("t", b"x", tags="a")
    calls: list[Any] = [
        lambda: store.read("t", filter=expression),
        lambda: store.tail("t", 1, filter=expression),
        lambda: list(store.scan(topics="t", filter=expression)),
        lambda: store.consumer("g", "t", expression),
    ]
    for call in calls:
        with pytest.raises(mqstore.InvalidFilterError) as caught:
            call()
        assert text in caught.value.reason
        assert caught.value.position == position


@pytest.mark.parametrize(
    "tag", ["a", "a|b", "in progress", "not yet", "5", "TRUE", "null", "a.b-c", "größe", "(a)", "a,b"]
)
def test_ordinary_tags_are_no_mistake(store: mqstore.Store, tag: str) -> None:
    store.append("t", b"x", tags=tag)
    store.append("t", b"y", tags="other")
    assert [message.body for message in store.read("t", filter=tag)] == [b"x"]
    assert [message.body for message in store.read("t", filter=f"{tag}||other")] == [b"x", b"y"]
    assert len(list(store.read("t", filter="*"))) == len(list(store.read("t", filter=""))) == 2
