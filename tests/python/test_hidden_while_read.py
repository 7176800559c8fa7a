"""Messages that were read ahead and that a deletion or a retention hides before they are handed out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest

import mqstore
import mqstore.aio
from conftest import SMALL
from loops import in_loop
from mqstore.errors import OffsetOutOfRangeError, TopicNotFoundError

if TYPE_CHECKING:
    from pathlib import Path

COUNT = 200


@pytest.fixture
def jobs(store: mqstore.Store) -> mqstore.Store:
    """A store with one queue of messages in the topic jobs, each also in a light queue."""
    store.create_topic("jobs", queues=1)
    store.create_topic("pair", queues=2)
    for number in range(COUNT):
        store.append("jobs", b"%d" % number, keys="k", light_queues="one")
        store.append("pair", b"%d" % number, queue_id=number % 2)
    store.append("other", b"other", keys="k", light_queues="one")
    return store


def delete(store: mqstore.Store) -> None:
    for topic in ("jobs", "pair"):
        store.delete_topic(topic, erase=True)


def recreate(store: mqstore.Store) -> None:
    delete(store)
    for topic in ("jobs", "pair"):
        store.create_topic(topic, queues=2)
        store.append(topic, b"new", queue_id=0)


def shorten(store: mqstore.Store) -> None:
    for topic in ("jobs", "pair"):
        store.set_retention(topic, max_messages=2)
    store.expire()


HIDE = pytest.mark.parametrize("hide", [delete, recreate, shorten])
Hide = Callable[[mqstore.Store], None]
LEFT = {delete: [], recreate: [b"new"], shorten: [b"198", b"199"]}


def bodies(messages: Iterator[mqstore.StoredMessage]) -> list[bytes]:
    return [message.body for message in messages]


@HIDE
@pytest.mark.parametrize("mode", ["rw", "r"])
def test_iterators_raise(jobs: mqstore.Store, home: Path, hide: Hide, mode: str) -> None:
    reader = jobs if mode == "rw" else mqstore.open(home, "r")
    iterators = [
        reader.read(topic, queue_id, follow=follow, timeout=0 if follow else None)
        for topic, queue_id in (("jobs", None), ("jobs", 0), ("pair", None), ("pair", 0))
        for follow in (False, True)
    ]
    for messages in iterators:
        assert next(messages).body == b"0"
    hide(jobs)
    for messages in iterators:
        # After the error, the iterator stays failed.
        for _ in range(2):
            with pytest.raises(TopicNotFoundError if hide is delete else OffsetOutOfRangeError):
                next(messages)
    if reader is not jobs:
        reader.close()


@HIDE
def test_other_iterators_pass_over_hidden_messages(jobs: mqstore.Store, hide: Hide) -> None:
    light, found, log = jobs.read("%LMQ%one"), jobs.lookup("jobs", "k"), jobs._scan_log()
    for messages in (light, found, log):
        next(messages)
    hide(jobs)
    old = LEFT[hide] if hide is shorten else []
    assert bodies(light) == [*old, b"other"]
    assert bodies(found) == old
    # The topic pair has messages with the same bodies.
    assert bodies(log) == [*[body for body in old for _ in range(2)], b"other"]


@HIDE
def test_a_consumer_continues_with_visible_messages(jobs: mqstore.Store, hide: Hide) -> None:
    with jobs.consumer("g", "jobs", start="earliest") as consumer:
        messages = iter(consumer)
        assert next(messages).body == b"0"
        hide(jobs)
        if hide is delete:
            jobs.create_topic("jobs", queues=1)
        assert bodies(iter(consumer.poll(500, timeout=5 if LEFT[hide] else 0))) == LEFT[hide]


@HIDE
def test_a_work_queue_continues_with_visible_jobs(jobs: mqstore.Store, hide: Hide) -> None:
    work = jobs.work_queue("jobs", "g", maxsize=COUNT)
    work.get_many(4, timeout=5)[0].nack(3600)
    hide(jobs)
    if hide is delete:
        jobs.create_topic("jobs", queues=1)
    assert work.qsize() == len(LEFT[hide])
    assert bodies(iter(work.peek(10))) == LEFT[hide]
    for _ in range(COUNT - len(LEFT[hide])):
        work.put_nowait(b"put")
    with pytest.raises(mqstore.Full):
        work.put_nowait(b"too many")
    found = [work.get_nowait().body for _ in range(COUNT)]
    assert sorted(found) == sorted([*LEFT[hide], *[b"put"] * (COUNT - len(LEFT[hide]))])
    with pytest.raises(mqstore.Empty):
        work.get_nowait()


@HIDE
@in_loop
async def test_an_event_loop_gets_no_hidden_message(home: Path, hide: Hide) -> None:
    with mqstore.open(home, "create", options=SMALL) as store:
        store.create_topic("jobs", queues=1)
        store.create_topic("pair", queues=2)
        for number in range(COUNT):
            for topic in ("jobs", "pair"):
                store.append(topic, b"%d" % number, queue_id=0)
        aio = mqstore.aio.wrap(store)
        messages = aio.read("jobs")
        assert (await anext(messages)).body == b"0"
        consumer = await aio.consumer("g", "jobs", start="earliest")
        assert (await anext(aiter(consumer))).body == b"0"
        work = await aio.work_queue("jobs", "w")
        assert (await work.get()).body == b"0"
        hide(store)
        with pytest.raises(TopicNotFoundError if hide is delete else OffsetOutOfRangeError):
            await anext(messages)
        if hide is delete:
            store.create_topic("jobs", queues=1)
        assert [message.body for message in await consumer.poll(500, timeout=1)] == LEFT[hide]
        assert [(await work.get()).body for _ in LEFT[hide]] == LEFT[hide]
        assert await work.qsize() == 0
        await consumer.close()
