"""Quotas of topics and of the log: never exceeded, whole batches or none, space that becomes free, and any kind of
stop."""

from __future__ import annotations

import pickle
import queue
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

import mqstore
import mqstore.aio
from conftest import SMALL, python
from loops import in_loop

TINY: dict[str, Any] = {
    "segment_size": 4096,
    "queue_file_entries": 10,
    "index_slots": 7,
    "index_entries": 50,
}
FAST = mqstore.BrokerOptions(delete_interval=0)
BODY = b"x" * 500


def fill(store: mqstore.Store, topic: str) -> mqstore.QuotaFull:
    """Appends until a quota refuses it."""
    for _ in range(10_000):
        try:
            store.append(topic, BODY)
        except mqstore.QuotaFull as error:
            return error
    raise AssertionError("no quota")


def test_a_topic_has_a_quota(store: mqstore.Store) -> None:
    store.create_topic("orders", queues=3, max_messages=4)
    store.append_many("orders", [b"1", b"2", b"3"])
    with pytest.raises(queue.Full) as caught:
        store.append_many("orders", [b"4", b"5"])
    assert caught.value == mqstore.QuotaFull(store.path, "orders", "max_messages", 4, 3)
    assert pickle.loads(pickle.dumps(caught.value)) == caught.value
    assert "update_topic" in str(caught.value)
    assert [queue.max_offset - queue.min_offset for queue in store.queues("orders")] == [1, 1, 1]
    store.append("orders", b"4")
    for call in (store.append, mqstore.Store.append.__get__(store)):
        with pytest.raises(mqstore.Full, match="topic orders is full: it holds 4 messages"):
            call("orders", b"5")
    store.append("others", b"5")
    assert store.stats().refused_appends == 3
    assert store.quotas() == {"orders": mqstore.TopicQuota(max_messages=4, messages=4)}
    store.update_topic("orders", max_messages=5)
    store.append("orders", b"5")
    # As with attributes, the value counts only for a new topic.
    store.create_topic("orders", max_messages=99)
    assert store.quotas()["orders"].max_messages == 5
    store.update_topic("orders", max_messages=0)
    store.append_many("orders", [b"6"] * 50)
    assert store.quotas() == {}


def test_wrong_quotas(store: mqstore.Store) -> None:
    wrong: Any
    for wrong in (-1, 1 << 54, 1 << 70):
        with pytest.raises((mqstore.InvalidOptionError, OverflowError, ValueError)):
            store.create_topic("orders", max_messages=wrong)
    for wrong in ("5", 1.5):
        with pytest.raises(TypeError):
            store.create_topic("orders", max_messages=wrong)
    assert store.topics() == []
    with pytest.raises(mqstore.InvalidOptionError, match="must not get lost"):
        store.create_topic("%DLQ%g", max_messages=5)
    with pytest.raises(mqstore.TopicNotFoundError):
        store.update_topic("orders", max_messages=5)


def test_threads_fill_it_to_the_last_message_and_no_further(store: mqstore.Store) -> None:
    store.create_topic("orders", queues=4, max_messages=1000)
    taken: list[int] = []

    def work(count: int) -> None:
        done = 0
        for _ in range(600):
            try:
                done += len(store.append_many("orders", [b"x"] * count))
            except mqstore.Full:
                continue
        taken.append(done)

    threads = [threading.Thread(target=work, args=(count,)) for count in (1, 1, 2, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(taken) == 1000
    assert store.quotas()["orders"].messages == sum(len(list(store.read("orders", one))) for one in range(4)) == 1000


CHILD = """
import os, signal, sys
import mqstore
store = mqstore.open(sys.argv[1], "create", segment_size=4096)
store.create_topic("orders", queues=2, max_messages=30)
count = 0
try:
    while True:
        store.append("orders", b"x" * 300)
        count += 1
except mqstore.Full:
    print(count, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_kill_changes_nothing(home: Path) -> None:
    killed = python(CHILD, home)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert killed.stdout.split() == ["30"]
    for _ in range(2):
        with mqstore.open(home, "rw", **TINY) as store:
            assert store.quotas() == {"orders": mqstore.TopicQuota(30, 30)}
            assert fill(store, "orders").used == 30
    with mqstore.open(home) as reader:
        assert reader.quotas() == {"orders": mqstore.TopicQuota(30, 30)}


def test_the_background_makes_room_when_appends_meet_a_quota(home: Path) -> None:
    with mqstore.open(home, "create", **TINY, retention_bytes=4096, max_bytes=4 * 4096, advanced=FAST) as store:
        store.create_topic("orders", max_messages=20)
        assert fill(store, "orders").quota == "max_messages"
        work = store.work_queue("orders")
        # Blocks until the background services, which the refusal wakes, have deleted the expired segments.
        work.put(BODY, timeout=60)
        store.update_topic("orders", max_messages=0)
        for _ in range(100):
            work.put(BODY, timeout=60)
        assert store.stats().log_bytes <= 4 * 4096
        assert store.stats().expired_segments > 0


def test_a_work_queue_waits_for_room_and_says_what_is_full(store: mqstore.Store) -> None:
    store.create_topic("jobs", max_messages=2)
    work = store.work_queue("jobs")
    work.put_many([b"1", b"2"])
    for call in (
        lambda: work.put_nowait(b"3"),
        lambda: work.put(b"3", timeout=0.1),
        lambda: work.put_many([b"3", b"4"], block=False),
    ):
        with pytest.raises(mqstore.QuotaFull, match="topic jobs is full"):
            call()
    # Finished messages stay in the log, so consumers free no quota.
    work.ack_many(work.get_many(2))
    with pytest.raises(mqstore.QuotaFull):
        work.put_nowait(b"3")
    timer = threading.Timer(0.2, lambda: store.update_topic("jobs", max_messages=3))
    timer.start()
    assert work.put(b"3", timeout=60).queue_offset == 2
    timer.join()


def test_dead_letters_wait_for_room_and_are_not_lost(home: Path) -> None:
    with mqstore.open(home, "create", **TINY, max_bytes=2 * 4096) as store:
        work = store.work_queue("jobs", max_attempts=1)
        work.put(BODY)
        store.create_topic("others")
        error = fill(store, "others")
        assert (error.topic, error.quota, error.limit, error.used) == (None, "max_bytes", 8192, 8192)
        # The rest of the segment has no space for a dead letter.
        while store.stats().log_max_offset < 8192 - 400:
            store.append("others", b"y")
        with pytest.raises(mqstore.QuotaFull):
            work.nack(work.get(timeout=10))
        assert work.dead_letters not in store.topics() or not list(store.read(work.dead_letters))
    with mqstore.open(home, "rw", **TINY, max_bytes=4 * 4096) as store:
        work = store.work_queue("jobs", max_attempts=1)
        with pytest.raises(mqstore.Empty):
            work.get(timeout=0.5)
        (dead,) = store.read(work.dead_letters)
        assert dead.body == BODY


def test_the_log_has_a_quota(home: Path) -> None:
    with pytest.raises(mqstore.InvalidOptionError, match="less than a segment"):
        mqstore.open(home, "create", **TINY, max_bytes=4095)
    with mqstore.open(home, "create", **TINY, max_bytes=3 * 4096) as store:
        error = fill(store, "orders")
        assert (error.path, error.topic, error.quota, error.used) == (store.path, None, "max_bytes", 3 * 4096)
        stats = store.stats()
        assert (stats.log_bytes, stats.max_bytes, stats.segments) == (3 * 4096, 3 * 4096, 3)
        store.flush()
        on_disk = [path.stat().st_size for path in home.rglob("*") if path.is_file() and path.stat().st_size == 4096]
        assert len([path for path in (home / "commitlog").iterdir() if path.is_file()]) == 3
        assert not list((home / "mqstore" / "tmp").rglob("ahead-*")), on_disk
    with mqstore.open(home, "rw", **TINY, max_bytes=3 * 4096, retention_bytes=4096) as store:
        assert fill(store, "orders").quota == "max_bytes"
        assert store.expire(dry_run=False).files
        store.append("orders", BODY)


@in_loop
async def test_the_same_in_an_event_loop(home: Path) -> None:
    async with mqstore.aio.open(home, "create", options=SMALL) as store:
        await store.create_topic("orders", max_messages=2)
        await store.append("orders", b"1")
        with pytest.raises(mqstore.QuotaFull):
            await store.append_many("orders", [b"2", b"3"])
        await store.append("orders", b"2", durable=True)
        for durable in (False, True):
            with pytest.raises(mqstore.Full):
                await store.append("orders", b"3", durable=durable)
        await store.update_topic("orders", max_messages=3)
        await store.append("orders", b"3")
        assert await store.quotas() == {"orders": mqstore.TopicQuota(3, 3)}


def test_an_import_ends_where_there_is_no_room(tmp_path: Path, home: Path) -> None:
    with mqstore.open(home, "create", options=SMALL) as store:
        store.append_many("orders", [b"%d" % number for number in range(10)])
    mqstore.export(home, tmp_path / "all.jsonl")
    with mqstore.open(tmp_path / "other", "create", options=SMALL) as other:
        other.create_topic("orders", max_messages=7)
    with pytest.raises(mqstore.QuotaFull):
        mqstore.import_(tmp_path / "other", tmp_path / "all.jsonl")
    with mqstore.open(tmp_path / "other") as other:
        # Messages of one append are all present or all missing.
        assert other.quotas()["orders"].messages == 0
