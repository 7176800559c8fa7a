"""Retention of single topics: limits, every kind of read, consumers, the command line and asyncio."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest

import mqstore
import mqstore.aio
import mqstore.testing
from conftest import SMALL, Cli
from loops import in_loop
from mqstore.errors import CorruptionError, InvalidOptionError, RefusedError
from mqstore.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

HOUR = timedelta(hours=1)


@pytest.fixture
def clock() -> ManualClock:
    """The clock of the stores of a test."""
    return ManualClock()


@pytest.fixture
def store(home: Path, clock: ManualClock) -> Iterator[mqstore.Store]:
    """An open store with 24 messages of each of two topics, one of each an hour."""
    with mqstore.testing.open(home, "create", clock=clock, options=SMALL) as opened:
        opened.create_topic("metrics", queues=2)
        opened.create_topic("audit", queues=2)
        for number in range(24):
            for topic in ("metrics", "audit"):
                opened.append(topic, b"%d" % number, keys="k", queue_id=number % 2)
            clock.advance(HOUR)
        yield opened


def seen(store: mqstore.Store, topic: str = "metrics") -> list[list[int]]:
    """The numbers of the messages in every kind of answer about a topic."""
    return [
        sorted(int(message.body) for queue in range(2) for message in store.read(topic, queue)),
        [int(message.body) for message in store.read(topic)],
        [int(message.body) for message in store.lookup(topic, "k")],
        [int(message.body) for message in store._scan_log() if message.topic == topic],
        [int(body) for body in store.scan(topics=topic, columns=["body"]).to_arrow()["body"].to_pylist()],
        [int(message.body) for message in store.tail(topic, 100)],
    ]


def expect(store: mqstore.Store, first: int, end: int = 24) -> None:
    assert seen(store) == [list(range(first, end))] * 6
    assert seen(store, "audit") == [list(range(end))] * 6
    assert store.count("metrics") == end - first


def test_each_topic_keeps_its_own_time(store: mqstore.Store, home: Path, clock: ManualClock) -> None:
    results = list(store.read("metrics", 1))
    consumer = store.consumer("g", "metrics")
    assert len(consumer.poll(max_messages=3, timeout=0)) == 3
    consumer.commit()
    consumer.close()
    store.set_retention("metrics", keep="6h")
    with mqstore.testing.open(home, "r", clock=clock) as reader:
        plan = reader.expire(dry_run=True)
        assert (plan.files, [one.messages for one in plan.topics]) == ((), [18])
        expect(reader, 0)
        done = store.expire()
        assert done.topics == plan.topics
        for view in (store, reader):
            expect(view, 18)
            assert [(queue.min_offset, queue.max_offset) for queue in view.queues("metrics")] == [(9, 12), (9, 12)]
            with pytest.raises(mqstore.OffsetOutOfRangeError) as caught:
                next(iter(view.read("metrics", 0, start=8)))
            assert (caught.value.min_offset, caught.value.max_offset) == (9, 12)
        with pytest.raises(CorruptionError, match="retention of its topic"):
            store.get_at(results[0].commit_log_offset)
    assert store.get(results[0].message_id) is None
    assert store.get(results[0].unique_id or "") is None
    # A group below the minimum continues at it, as after the deletion of a segment.
    with store.consumer("g", "metrics") as consumer:
        assert {int(message.body) for message in consumer.poll(max_messages=100, timeout=0)} == set(range(18, 24))
    assert store.append("metrics", b"24", keys="k", queue_id=0).queue_offset == 12
    store.rebuild()
    assert seen(store)[0] == list(range(18, 25))
    assert store.expire().topics == ()
    clock.advance(HOUR)
    assert store.expire().topics[0].messages == 1
    assert store.verify().ok


def test_limits_of_bytes_and_messages(store: mqstore.Store) -> None:
    store.set_retention("metrics", max_messages=5)
    store.expire()
    expect(store, 19)
    (row,) = store.retention()
    assert row == mqstore.TopicRetention("metrics", None, None, 5, row.floor, row.live_bytes, row.dead_bytes, 0)
    assert 0 < row.live_bytes < row.dead_bytes
    assert row.floor == min(message.commit_log_offset for message in store.read("metrics"))
    assert row.keep is None
    store.set_retention("metrics", keep=3 * HOUR, max_bytes=2 * row.live_bytes // 5)
    (row,) = store.retention()
    assert (row.keep, row.keep_seconds, row.max_messages) == (3 * HOUR, 10800.0, None)
    store.expire()
    expect(store, 22)
    store.set_retention("metrics")
    store.append("metrics", b"24", keys="k", queue_id=0)
    assert store.expire().topics == ()
    (row,) = store.retention()
    assert (row.keep, row.max_bytes, row.max_messages) == (None, None, None)
    assert row.dead_bytes > 0


def test_a_deleted_topic_is_listed_with_its_dead_bytes(store: mqstore.Store) -> None:
    assert store.retention() == []
    store.delete_topic("audit")
    (row,) = store.retention()
    assert (row.topic, row.live_bytes) == ("audit", 0)
    assert row.dead_bytes > 0


def test_three_of_four_topics_are_hidden(home: Path) -> None:
    """Large bodies in bursts: the estimate says that nearly all hidden bytes can be freed."""
    with mqstore.open(home, "create", options=SMALL, segment_size=1 << 20) as store:
        for burst in range(40):
            store.append_many(f"t{burst % 4}", [bytes([burst]) * 30_000] * 8)
        for topic in ("t1", "t2", "t3"):
            store.set_retention(topic, keep=0.001)
        store.set_retention("t0", keep="1d")
        while any(row.live_bytes for row in store.retention() if row.topic != "t0"):
            store.expire()
        rows = {row.topic: row for row in store.retention()}
        assert rows["t0"].dead_bytes == rows["t0"].reclaimable_bytes == 0
        dead = sum(row.dead_bytes for row in rows.values())
        assert dead > 3 * rows["t0"].live_bytes * 0.9
        assert dead * 0.8 < sum(row.reclaimable_bytes for row in rows.values()) < dead


def test_mistakes(home: Path, clock: ManualClock) -> None:
    with mqstore.testing.open(home, "create", clock=clock, retention="1d") as store:
        store.create_topic("orders")
        store.create_topic("prices", attributes={"cleanup.policy": "COMPACTION"})
        store.append("orders", b"later", delay=60)
        for topic in ("rmq_sys_wheel_timer", "prices"):
            with pytest.raises(RefusedError, match="no retention of its own"):
                store.set_retention(topic, keep="1h")
        with pytest.raises(InvalidOptionError, match=r"`retention`.*archive"):
            store.set_retention("orders", keep="2d")
        for wrong in ({"keep": 0}, {"keep": -1}, {"max_bytes": 0}, {"max_messages": 0}, {"max_messages": 2**60}):
            with pytest.raises(InvalidOptionError):
                store.set_retention("orders", **wrong)  # type: ignore[arg-type]
        with pytest.raises(mqstore.TopicNotFoundError):
            store.set_retention("order", keep="1h")
        store.set_retention("orders", keep="1d")
    with mqstore.open(home) as reader, pytest.raises(mqstore.StoreReadOnlyError):
        reader.set_retention("orders", keep="1h")


def test_the_command_line(filled: Path, cli: Cli) -> None:
    shown = cli("retention", filled, "--format", "json")
    assert (shown.returncode, json.loads(shown.stdout)) == (0, [])
    done = cli("retention", filled, "orders", "--max-messages", "10", "--keep", "30d", "--format", "json")
    (row,) = json.loads(done.stdout)
    assert (row["topic"], row["max_messages"], row["keep_seconds"]) == ("orders", 10, 30 * 86400.0)
    assert cli("expire", filled).returncode == 2, "without --yes, nothing is hidden"
    plan = json.loads(cli("expire", filled, "--dry-run", "--format", "json").stdout)
    assert [(one["topic"], one["messages"]) for one in plan["topics"]] == [("orders", 30)]
    assert "hid 30 messages of orders" in cli("expire", filled, "--yes").stderr
    table = cli("retention", filled, "orders")
    assert table.returncode == 0
    assert "30 d" in table.stdout
    with mqstore.open(filled) as store:
        assert store.count("orders") == 10
    assert cli("verify", filled).returncode == 0
    assert cli("retention", filled, "orders", "--remove").returncode == 0
    for wrong in (["--keep", "1h"], ["orders", "--keep", "1h", "--remove"], ["orders", "--keep", "soon"]):
        assert cli("retention", filled, *wrong).returncode == 2
    assert cli("retention", filled, "none").returncode == 3
    assert cli("expire", filled).returncode == 2, "no retention is left"


@in_loop
async def test_an_event_loop(home: Path) -> None:
    async with mqstore.aio.open(home, "create", options=SMALL) as store:
        for number in range(5):
            await store.append("orders", b"%d" % number)
        await store.set_retention("orders", max_messages=2)
        assert (await store.expire()).topics[0].messages == 3
        (row,) = await store.retention()
        assert (row.topic, row.max_messages) == ("orders", 2)
