"""Reads of whole topics: all queues in one order, from a time on, the newest messages, the number of messages."""

from __future__ import annotations

import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import mqstore
import mqstore.aio
import mqstore.testing
import rocketmq_bytes as raw
from conftest import SMALL
from loops import LONG, in_loop

BEGIN = datetime(2024, 1, 1, tzinfo=UTC)
QUEUES = 4


def bodies(found: object) -> list[int]:
    return [int(message.body) for message in found]  # type: ignore[attr-defined]


@pytest.fixture
def spread(home: Path) -> Path:
    """A closed store: 120 messages in the four queues of "orders", one a minute, some queues with more than others."""
    clock = mqstore.testing.ManualClock(BEGIN)
    with mqstore.testing.open(home, "create", clock=clock, options=SMALL) as store:
        store.create_topic("orders", queues=QUEUES)
        for number in range(120):
            queue = (number * number) % QUEUES if number % 3 else number % QUEUES
            store.append("orders", b"%d" % number, queue_id=queue, tags="even" if number % 2 == 0 else "odd")
            store.append("others", b"between", keys="k")
            clock.advance(60)
    return home


@pytest.mark.parametrize("mode", ["r", "rw"])
def test_a_read_returns_the_whole_topic_in_order(spread: Path, mode: mqstore.types.Mode) -> None:
    with mqstore.open(spread, mode, options=SMALL) as store:
        assert bodies(store.read("orders")) == list(range(120))
        assert bodies(store.read("orders", filter="odd")) == list(range(1, 120, 2))
        assert bodies(store.read("orders", follow=True, timeout=0)) == list(range(120))
        # With a queue, a read is as before.
        of_queues = [list(store.read("orders", queue)) for queue in range(QUEUES)]
        assert [bodies(one) for one in of_queues] == [sorted(bodies(one)) for one in of_queues]
        assert [[message.queue_offset for message in one] for one in of_queues] == [
            list(range(len(one))) for one in of_queues
        ]
        assert sum(len(one) for one in of_queues) == 120
        assert len({len(one) for one in of_queues}) > 1


def test_the_order_is_store_time_then_log_offset(home: Path) -> None:
    """The log of another program can have store times that go back. Each queue keeps its order."""
    place = [(0, 50), (1, 30), (1, 30), (0, 20), (2, 30), (2, 10), (1, 60)]
    offsets: dict[int, int] = {}
    records: list[dict[str, object]] = []
    for number, (queue, stored) in enumerate(place):
        offset = offsets.get(queue, 0)
        offsets[queue] = offset + 1
        records.append({"queue_id": queue, "queue_offset": offset, "stored": stored, "body": b"%d" % number})
    raw.write_log(home, records)
    with pytest.warns(mqstore.StoreWarning), mqstore.open(home) as store:
        assert bodies(store.read("t")) == [1, 2, 4, 5, 0, 3, 6]


def test_start_and_end_can_be_times(spread: Path) -> None:
    with mqstore.open(spread) as store:
        tenth = BEGIN + timedelta(minutes=10)
        late = "2024-01-01T01:30:00+00:00"
        assert bodies(store.read("orders", start=tenth)) == list(range(10, 120))
        assert bodies(store.read("orders", end=tenth)) == list(range(10))
        assert bodies(store.read("orders", start=tenth, end=late)) == list(range(10, 90))
        assert bodies(store.read("orders", start="2024-01-01T02:30:00+01:00", end=late)) == []
        assert bodies(store.read("orders", start=BEGIN - timedelta(days=1))) == list(range(120))
        assert bodies(store.read("orders", start=BEGIN + timedelta(days=1))) == []
        one = [number for number in bodies(store.read("orders", 1)) if 10 <= number < 90]
        assert bodies(store.read("orders", 1, tenth, late)) == one
        assert bodies(store.read("orders", 1, 0, tenth)) == [
            number for number in bodies(store.read("orders", 1)) if number < 10
        ]
        assert bodies(store.read("orders", 1, tenth, follow=True, timeout=0))[: len(one)] == one


def test_an_offset_needs_its_queue(spread: Path) -> None:
    with mqstore.open(spread) as store:
        for name in ("start", "end"):
            with pytest.raises(mqstore.InvalidOptionError, match=rf"{name}.*5 is an offset of one queue.*queue_id"):
                store.read("orders", **{name: 5})  # type: ignore[arg-type]
            with pytest.raises(mqstore.InvalidOptionError, match=rf"{name}.*'soon' is no time"):
                store.read("orders", 0, **{name: "soon"})  # type: ignore[arg-type]
            with pytest.raises(ValueError, match="time zone"):
                store.read("orders", **{name: datetime(2024, 1, 1)})  # type: ignore[arg-type]  # noqa: DTZ001
            with pytest.raises(TypeError, match=name):
                store.read("orders", **{name: True})  # type: ignore[arg-type]
        with pytest.raises(mqstore.InvalidOptionError, match=r"offset.*queue_id"):
            store.wait("orders", offset=3, timeout=0)
        with pytest.raises(mqstore.OffsetOutOfRangeError):
            store.read("orders", 0, 10_000)


def test_a_follower_gets_messages_as_they_arrive(home: Path) -> None:
    with mqstore.open(home, "create", options=SMALL) as store:
        store.create_topic("t", queues=3)
        for number in range(30):
            store.append("t", b"%d" % number, queue_id=number % 3)
        follower = store.read("t", follow=True, timeout=LONG)
        assert [int(next(follower).body) for _ in range(30)] == list(range(30))
        for number in range(30, 600):
            store.append("t", b"%d" % number, queue_id=(number * 7) % 3)
            if number == 300:
                # Queues that the topic gets later belong to it.
                store.create_topic("t", queues=5)
            if number > 300 and number % 10 == 0:
                store.append("t", b"-1", queue_id=4)
        seen = [int(next(follower).body) for _ in range(570 + 29)]
        assert [number for number in seen if number >= 0] == list(range(30, 600))
        assert seen[-1] == 599
        threading.Timer(0.05, lambda: store.append("t", b"600", queue_id=4)).start()
        assert int(next(follower).body) == 600


def test_appends_of_many_threads_arrive_in_log_order(home: Path) -> None:
    with mqstore.open(home, "create", options=SMALL) as store:
        store.create_topic("t", queues=8)
        store.append("t", b"first")
    with mqstore.open(home, "rw", options=SMALL) as store, mqstore.open(home) as reader:
        followers = [one.read("t", follow=True, timeout=LONG) for one in (store, reader)]

        def append(queue: int) -> None:
            for number in range(200):
                store.append("t", b"%d" % number, queue_id=queue)

        threads = [threading.Thread(target=append, args=(queue,)) for queue in range(8)]
        for thread in threads:
            thread.start()
        for follower in followers:
            places = [next(follower).commit_log_offset for _ in range(1 + 8 * 200)]
            assert places == sorted(places)
        for thread in threads:
            thread.join()


def test_a_followed_read_ends_at_its_time(home: Path) -> None:
    clock = mqstore.testing.ManualClock(BEGIN)
    with mqstore.testing.open(home, "create", clock=clock, options=SMALL) as store:
        store.create_topic("t", queues=2)
        follower = store.read("t", end=BEGIN + timedelta(minutes=1), follow=True)
        store.append("t", b"1", queue_id=0)
        assert int(next(follower).body) == 1
        clock.advance(59)
        store.append("t", b"2", queue_id=1)
        clock.advance(1)
        store.append("t", b"3", queue_id=0)
        assert bodies(follower) == [2]
        # Without a later message, the time of the clock ends it.
        assert bodies(store.read("t", 1, 0, BEGIN + timedelta(minutes=1), follow=True)) == [2]


def test_a_followed_read_can_start_in_the_future(home: Path) -> None:
    clock = mqstore.testing.ManualClock(BEGIN)
    with mqstore.testing.open(home, "create", clock=clock, options=SMALL) as store:
        store.create_topic("t", queues=2)
        followers = [store.read("t", q, BEGIN + timedelta(minutes=1), follow=True, timeout=0.1) for q in (None, 0)]
        for number in range(4):
            store.append("t", b"%d" % number, queue_id=number % 2)
            clock.advance(30)
        assert [bodies(follower) for follower in followers] == [[2, 3], [2]]


def test_tail_is_the_end_of_a_read(spread: Path) -> None:
    for mode in ("r", "rw"):
        with mqstore.open(spread, mode, options=SMALL) as store:  # type: ignore[arg-type]
            everything = list(store.read("orders"))
            for n in (0, 1, 3, 10, 50, 119, 120, 500):
                assert store.tail("orders", n) == everything[len(everything) - min(n, 120) :]
            assert store.tail("orders") == everything[-10:]
            assert store.tail("orders", 3, queue_id=2) == list(store.read("orders", 2))[-3:]
            assert bodies(store.tail("orders", 4, filter="even")) == [112, 114, 116, 118]
            assert store.tail("orders", 5, filter="none") == []
            with pytest.raises(mqstore.InvalidOptionError, match=r"n.*negative"):
                store.tail("orders", -1)


def test_count_is_the_number_of_messages(spread: Path) -> None:
    for mode in ("r", "rw"):
        with mqstore.open(spread, mode, options=SMALL) as store:  # type: ignore[arg-type]
            assert (store.count("orders"), store.count("others")) == (120, 120)


def test_a_gap_is_no_message(home: Path) -> None:
    raw.write_log(home, [{"queue_offset": 0}, {"queue_offset": 5, "body": b"five"}])
    with pytest.warns(mqstore.StoreWarning), mqstore.open(home) as store:
        assert store.count("t") == 2
        assert [message.queue_offset for message in store.tail("t", 3)] == [0, 5]


@pytest.mark.soak
def test_a_topic_of_a_thousand_queues(home: Path) -> None:
    with mqstore.open(home, "create", options=SMALL) as store:
        store.create_topic("wide", queues=1000)
        for start in range(0, 5000, 500):
            for number in range(start, start + 500):
                store.append("wide", b"%d" % number, queue_id=(number * 7) % 1000)
        assert bodies(store.read("wide")) == list(range(5000))
        assert bodies(store.tail("wide", 7)) == list(range(4993, 5000))
        assert store.count("wide") == 5000


def test_wait_for_the_next_message(home: Path) -> None:
    with mqstore.open(home, "create", options=SMALL) as store:
        store.create_topic("t", queues=3)
        store.append("t", b"before", queue_id=1)
        assert store.wait("t", timeout=0.05) is False
        assert store.wait("t", 1, timeout=0.05) is False
        for queue in (0, 2):
            timer = threading.Timer(0.05, lambda queue=queue: store.append("t", b"x", queue_id=queue))
            timer.start()
            assert store.wait("t", timeout=LONG) is True
            timer.join()
        # A message in another queue does not end the wait for one.
        timer = threading.Timer(0.02, lambda: store.append("t", b"x", queue_id=0))
        timer.start()
        assert store.wait("t", 1, timeout=0.2) is False
        timer.join()
        # A topic that does not exist yet.
        timer = threading.Timer(0.05, lambda: store.append("new", b"x"))
        timer.start()
        assert store.wait("new", timeout=LONG) is True
        timer.join()
    with mqstore.open(home) as reader:
        assert reader.wait("t", timeout=0.05) is False


@in_loop
async def test_the_same_verbs_for_asyncio(home: Path) -> None:
    async with mqstore.aio.open(home, "create", options=SMALL) as store:
        await store.create_topic("t", queues=3)
        for number in range(40):
            await store.append("t", b"%d" % number, queue_id=number % 3)
        assert [int(m.body) async for m in store.read("t")] == list(range(40))
        assert bodies(await store.tail("t", 5)) == list(range(35, 40))
        assert await store.count("t") == 40
        follower = store.read("t", follow=True, timeout=LONG)
        for number in range(40, 80):
            await store.append("t", b"%d" % number, queue_id=(number * 5) % 3)
        assert [int((await anext(follower)).body) for _ in range(80)] == list(range(80))
        assert await store.wait("t", timeout=0.05) is False
        assert await store.wait("nowhere", timeout=0.05) is False
        with pytest.raises(mqstore.InvalidOptionError, match=r"offset.*queue_id"):
            await store.wait("t", offset=3)
        tomorrow = datetime.now(UTC) + timedelta(days=1)
        assert [m async for m in store.read("t", start=tomorrow, follow=True, timeout=0.05)] == []
        end = datetime.now(UTC) + timedelta(seconds=0.2)
        assert len([m async for m in store.read("t", end=end, follow=True)]) == 80


@pytest.mark.parametrize("mode", ["rw", "r"])
def test_asyncio_follows_all_queues(home: Path, mode: mqstore.types.Mode) -> None:
    import asyncio

    @in_loop
    async def follow() -> None:
        writer = await mqstore.aio.open(home, "create", options=SMALL)
        await writer.create_topic("t", queues=2)
        store = writer if mode == "rw" else await mqstore.aio.open(home)
        follower = store.read("t", follow=True, timeout=LONG)
        waiting = asyncio.ensure_future(store.wait("t", timeout=LONG))
        first = asyncio.ensure_future(anext(follower))
        await asyncio.sleep(0.05)
        assert not first.done()
        assert not waiting.done()
        await writer.append("t", b"1", queue_id=1)
        assert await waiting is True
        assert (await first).body == b"1"
        await writer.create_topic("t", queues=4)
        await writer.append("t", b"2", queue_id=3)
        assert (await anext(follower)).body == b"2"
        if mode == "r":
            await store.close()
        await writer.close()

    follow()
