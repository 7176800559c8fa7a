"""Delayed messages."""

from __future__ import annotations

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

import mqstore
from conftest import until
from mqstore import aio, testing

if TYPE_CHECKING:
    from pathlib import Path


def test_a_message_comes_when_the_clock_says_so(tmp_path: Path) -> None:
    clock = testing.ManualClock()
    with testing.open(tmp_path / "s", clock=clock) as store:
        first = store.append("t", b"later", keys="k", delay=5)
        assert first.topic == "rmq_sys_wheel_timer"
        store.append("t", b"second", deliver_at=clock.now + timedelta(seconds=7))
        assert store.append("t", b"at once", deliver_at=clock.timestamp).topic == "t"
        assert store.delays().pending == 2
        clock.advance(4.999)
        assert not store.wait("t", 0, 1, timeout=0.1)
        clock.advance(0.001)
        assert store.wait("t", 0, 1, timeout=20)
        # The delivery is counted shortly after its append has returned.
        until(lambda: store.delays().delivered == 1)
        clock.advance(2)
        assert store.wait("t", 0, 2, timeout=20)
        until(lambda: store.delays().delivered == 2)
        assert [message.body for message in store.read("t")] == [b"at once", b"later", b"second"]
        found = next(store.lookup("t", "k"))
        assert found.store_timestamp >= clock.timestamp - 2_000
        assert found.properties["TIMER_DELIVER_MS"] == str(clock.timestamp - 2_000)
        assert found.unique_id == first.unique_id
        stats = store.delays()
        assert (stats.pending, stats.next_due, stats.delivered) == (0, None, 2)
        assert stats.late_max == 0.0
        assert stats.to_dict()["delivered"] == 2


def test_a_reader_does_not_count_what_was_delivered_in_this_second(tmp_path: Path) -> None:
    home, clock = tmp_path / "s", testing.ManualClock()
    with testing.open(home, clock=clock) as store:
        for delay in (1.2, 1.3, 1.8, 5):
            store.append("orders", b"later", delay=delay, queue_id=0)
        clock.advance(1.5)
        assert len(list(store.read("orders", end=2, queue_id=0, follow=True, timeout=10))) == 2
        assert store.delays().pending == 2
    with testing.open(home, "r", clock=clock) as reader:
        assert reader.delays().pending == 2


def test_a_delay_level_waits_as_long_as_rocketmqs(tmp_path: Path) -> None:
    clock = testing.ManualClock()
    with testing.open(tmp_path / "s", clock=clock) as store:
        store.append("t", b"ten seconds", delay_level=3)
        clock.advance(9.999)
        assert not store.wait("t", 0, 0, timeout=0.1)
        clock.advance(0.001)
        assert store.wait("t", 0, 0, timeout=20)


def queue_files(home: Path) -> dict[str, bytes]:
    folder = home / "consumequeue"
    return {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()}


def test_delay_levels_of_ones_own_are_remembered(tmp_path: Path) -> None:
    home, clock = tmp_path / "s", testing.ManualClock()
    with testing.open(home, clock=clock, delay_levels="3s  1m") as store:
        for level, queue_id in ((1, 0), (2, 1), (9, 1)):
            assert store.append("t", str(level).encode(), delay_level=level).queue_id == queue_id
        assert [queue.queue_id for queue in store.queues("SCHEDULE_TOPIC_XXXX")] == [0, 1]
        clock.advance(2.999)
        assert not store.wait("t", 0, 0, timeout=0.1)
        clock.advance(0.001)
        assert store.wait("t", 0, 0, timeout=20)
    assert mqstore.verify(home).problems == ()
    assert mqstore.info(home).delayed[0].messages == 2
    # From here on, no open names delay levels.
    with testing.open(home, "rw", clock=clock) as store:
        store.append("t", b"again", delay_level=1)
        clock.advance(3)
        assert store.wait("t", 0, 1, timeout=20)
        clock.advance(54)
        assert store.wait("t", 0, 3, timeout=20)
        assert [message.text() for message in store.read("t")] == ["1", "again", "2", "9"]
    files = queue_files(home)
    mqstore.rebuild(home)
    assert queue_files(home) == files
    assert mqstore.verify(home).problems == ()


def test_delay_levels_as_spans_of_time(tmp_path: Path) -> None:
    levels = (2, timedelta(minutes=1), 3.0)
    assert mqstore.StoreOptions(delay_levels=levels).delay_levels == "2s 60s 3s"
    with testing.open(tmp_path / "s", delay_levels=levels) as store:
        due = store.append("t", b"x", delay_level=2).store_timestamp + 60_000
        store.append("t", b"x", delay_level=3)
        assert store.delays().pending == 2
    assert mqstore.info(tmp_path / "s").delayed[0].first_due < due


def test_other_delay_levels_count_for_what_comes(tmp_path: Path) -> None:
    home, clock = tmp_path / "s", testing.ManualClock()
    with testing.open(home, clock=clock, delay_levels="1h 2s") as store:
        store.append("t", b"an hour", delay_level=1)
        store.append("t", b"two seconds", delay_level=2)
    before = queue_files(home)
    with testing.open(home, "rw", clock=clock, delay_levels="10s 1h") as store:
        store.append("t", b"ten seconds", delay_level=1)
        store.append("t", b"also an hour", delay_level=2)
        clock.advance(2)
        assert store.wait("t", 0, 0, timeout=20)
        clock.advance(8)
        assert store.wait("t", 0, 2, timeout=20)
        clock.advance(3589)
        assert not store.wait("t", 0, 3, timeout=0.1)
        clock.advance(1)
        assert store.wait("t", 0, 3, timeout=20)
        bodies = [message.text() for message in store.read("t")]
        assert bodies == ["two seconds", "an hour", "ten seconds", "also an hour"]
    files = queue_files(home)
    for name, data in before.items():
        # The earlier entries stay.
        assert files[name].startswith(data.rstrip(b"\0"))
    assert mqstore.verify(home).problems == ()
    mqstore.rebuild(home)
    assert queue_files(home) == files


def test_delay_levels_that_nobody_told_are_no_damage(tmp_path: Path) -> None:
    home, clock = tmp_path / "s", testing.ManualClock()
    with testing.open(home, clock=clock, delay_levels="7s 4h") as store:
        store.append("t", b"x", delay_level=2)
    remembered = home / "mqstore/delay-levels"
    good = remembered.read_bytes()
    files = queue_files(home)
    remembered.unlink()
    assert mqstore.verify(home).problems == ()
    # If the store remembers no levels, those of the options count, and then it remembers them.
    mqstore.rebuild(home, options=mqstore.StoreOptions(delay_levels="7s 4h"))
    assert queue_files(home) == files
    assert remembered.read_bytes() == good
    remembered.write_bytes(good[:-1])
    assert [problem.kind for problem in mqstore.verify(home).problems] == ["delay_levels_damaged"]
    with pytest.raises(mqstore.CorruptionError, match="delay_levels"):
        testing.open(home, "rw", clock=clock)
    with pytest.warns(mqstore.StoreWarning, match="delay levels"), mqstore.open(home) as store:
        assert len(list(store.read("SCHEDULE_TOPIC_XXXX", 1))) == 1
    report = mqstore.repair(home, in_place=True)
    assert report.ok
    assert not remembered.exists()
    with testing.open(home, "rw", clock=clock) as store:
        clock.advance(4 * 3600 - 1)
        assert not store.wait("t", 0, 0, timeout=0.1)
        clock.advance(1)
        assert store.wait("t", 0, 0, timeout=20)


def test_a_snapshot_knows_the_delay_levels(tmp_path: Path) -> None:
    with testing.open(tmp_path / "s", delay_levels="7s 4h") as store:
        store.append("t", b"x", delay_level=2)
        store.snapshot(tmp_path / "copy")
    assert queue_files(tmp_path / "copy") == queue_files(tmp_path / "s")
    mqstore.rebuild(tmp_path / "copy")
    assert queue_files(tmp_path / "copy") == queue_files(tmp_path / "s")


def test_retries_of_work_queues_wait_by_the_delay_levels(tmp_path: Path) -> None:
    clock = testing.ManualClock()
    with testing.open(tmp_path / "s", clock=clock, delay_levels="1s 1s 7s") as store:
        queue = store.work_queue("jobs", "workers")
        queue.put(b"job")
        for _ in range(2):
            queue.nack(queue.get(timeout=20))
            clock.advance(6.999)
            with pytest.raises(mqstore.Empty):
                queue.get(timeout=0.05)
            clock.advance(0.001)
        assert queue.get(timeout=20).attempt == 3


def test_what_waits_can_be_cancelled_and_moved(tmp_path: Path) -> None:
    clock = testing.ManualClock()
    with testing.open(tmp_path / "s", clock=clock) as store:
        by_message_id = store.append("t", b"1", delay=60)
        by_unique_id = store.append("t", b"2", delay=3600)
        moved = store.append("t", b"3", delay=60)
        assert store.cancel(by_message_id.message_id)
        assert not store.cancel(by_message_id.message_id)
        assert store.cancel(by_unique_id.unique_id)
        assert not store.cancel("no such id")
        again = store.reschedule(moved.unique_id, delay=timedelta(seconds=90))
        assert again is not None
        assert again.unique_id == moved.unique_id
        clock.advance(89)
        assert not store.wait("t", 0, 0, timeout=0.1)
        clock.advance(1)
        assert store.wait("t", 0, 0, timeout=20)
        assert store.delays().pending == 0
        assert not store.cancel(again.unique_id)
        assert store.reschedule(again.unique_id, delay=1) is None
        assert [message.body for message in store.read("t")] == [b"3"]


def test_what_waits_is_delivered_by_whoever_opens_the_store_next(tmp_path: Path) -> None:
    clock = testing.ManualClock()
    with testing.open(tmp_path / "s", clock=clock) as store:
        for number in range(10):
            store.append("t", b"%d" % number, delay=10 + number)
    with mqstore.open(tmp_path / "s") as reader:
        assert reader.delays().pending == 10
        with pytest.raises(mqstore.StoreReadOnlyError):
            reader.cancel("x")
        with pytest.raises(mqstore.StoreReadOnlyError):
            reader.append("t", b"x", delay=1)
    clock.advance(timedelta(days=40))
    with testing.open(tmp_path / "s", "rw", clock=clock) as store:
        assert store.wait("t", 0, 9, timeout=20)
        assert [message.body for message in store.read("t")] == [b"%d" % number for number in range(10)]


def test_on_the_machines_clock_nothing_is_early(tmp_path: Path) -> None:
    with mqstore.open(tmp_path / "s", "create") as store:
        due = datetime.now(UTC) + timedelta(milliseconds=120)
        store.append("t", b"x", deliver_at=due)
        assert store.wait("t", 0, 0, timeout=20)
        message = next(store.read("t"))
        assert message.store_time >= due - timedelta(milliseconds=1)
        assert time.time() >= due.timestamp()


def test_a_child_of_the_event_loop_can_wait_too(tmp_path: Path) -> None:
    async def use() -> None:
        async with aio.open(tmp_path / "s", "create") as store:
            done = await store.append("t", b"x", delay=3600)
            assert (await store.delays()).pending == 1
            assert await store.cancel(done.unique_id)
            assert (await store.delays()).pending == 0

    asyncio.run(use())


def test_arguments_that_say_nothing_or_too_much(tmp_path: Path) -> None:
    with testing.open(tmp_path / "s") as store:
        with pytest.raises(TypeError, match="only one of"):
            store.append("t", b"x", delay=1, delay_level=1)
        with pytest.raises(TypeError, match="delay must be seconds"):
            store.append("t", b"x", delay=b"soon")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="time zone"):
            store.append("t", b"x", deliver_at=datetime(2030, 1, 1))  # noqa: DTZ001
        with pytest.raises(mqstore.InvalidOptionError):
            store.append("t", b"x", delay_level=0)
        with pytest.raises(mqstore.InvalidOptionError):
            store.append("t", b"x", deliver_at=1 << 60)
        with pytest.raises(TypeError, match="give delay"):
            store.reschedule("x")
        store.create_topic("batches", attributes={"queue.type": "BatchCQ"})
        with pytest.raises(mqstore.InvalidMessageError, match="batch queues"):
            store.append("batches", b"x", delay=1)
        with pytest.raises(mqstore.TopicNotFoundError):
            store.append("t", b"x", queue_id=7, delay=1)
        assert "rmq_sys_wheel_timer" not in store.topics()
