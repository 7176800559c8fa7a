"""Jobs of a work queue: the default group, `with` blocks, reasons, single puts, and the calls that need no worker."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import mqstore
import mqstore.aio
from conftest import SMALL
from loops import in_loop
from mqstore import testing

REASON = "mqstore.reason"


class BrokenPrinterError(Exception):
    """An error of a job."""


def dead_letters(store: mqstore.Store, queue: mqstore.WorkQueue) -> list[tuple[str, str | None]]:
    """The text and the reason of each dead letter."""
    if queue.dead_letters not in store.topics():
        return []
    letters = store.read(queue.dead_letters, 0)
    return [(letter.text(), letter.properties.get(REASON)) for letter in letters]


# The default group.


def test_counts_are_right_at_once_and_delays_are_listed(store: mqstore.Store) -> None:
    queue = store.work_queue("jobs", max_attempts=1)
    first = queue.put(b"later", delay=3600)
    assert queue.counts() == mqstore.WorkQueueCounts(ready=0, delayed=1, leased=0, dying=0)
    queue.put(b"now")
    second = queue.put(b"sooner", delay="30m")
    assert queue.counts() == mqstore.WorkQueueCounts(ready=1, delayed=2, leased=0, dying=0)
    assert [one.queue_offset for one in queue.delayed()] == [second.queue_offset, first.queue_offset]
    assert queue.delayed()[0].attempts == 0
    assert 1700 < queue.delayed()[0].due.timestamp() - time.time() < 1900
    assert queue.get(timeout=0).body == b"now"
    # The get has passed the delayed message before it.
    assert queue.counts() == mqstore.WorkQueueCounts(ready=0, delayed=2, leased=1, dying=0)
    assert [one.queue_offset for one in queue.delayed()] == [second.queue_offset, first.queue_offset]
    queue.put(b"bad")
    queue.get(timeout=0).nack(delay=0)
    assert queue.join(timeout=0) is False
    assert (queue.counts().dead, queue.counts().ready) == (1, 0)
    assert queue.redrive() == 1
    assert (queue.counts().dead, queue.counts().ready) == (0, 1)


def test_each_topic_has_its_own_default_group(store: mqstore.Store) -> None:
    jobs, mails = store.work_queue("jobs", max_attempts=1), store.work_queue("mails", max_attempts=1)
    assert (jobs.group, jobs.dead_letters) == ("workers-jobs", "%DLQ%workers-jobs")
    for queue in (jobs, mails):
        queue.put(queue.topic.encode())
        queue.nack(queue.get(timeout=5))
    # A redrive does not touch the dead letters of another queue.
    assert (jobs.redrive(), jobs.redrive()) == (1, 0)
    assert [queue.counts().ready for queue in (jobs, mails)] == [1, 0]
    assert dead_letters(store, mails) == [("mails", None)]


def test_a_topic_without_a_default_group_asks_for_one(store: mqstore.Store) -> None:
    topic = "t" * 113
    with pytest.raises(mqstore.InvalidOptionError, match=r"give group="):
        store.work_queue(topic)
    assert store.work_queue(topic, "g").group == "g"
    assert store.work_queue(topic[1:]).group == f"workers-{topic[1:]}"


def test_bounds_of_the_visibility_timeout(store: mqstore.Store) -> None:
    with pytest.raises(mqstore.InvalidOptionError, match="visibility_timeout"):
        store.work_queue("jobs", visibility_timeout=0)


# Blocks.


def test_the_end_of_a_block_acknowledges(store: mqstore.Store) -> None:
    queue = store.work_queue("jobs")
    queue.put_many([b"one", b"two", b"three"])
    with queue.get(timeout=5) as job:
        assert job.text() == "one"
        assert queue.counts().leased == 1
    assert queue.counts().leased == 0
    # The block leaves alone a message that it has settled itself.
    with queue.get(timeout=5) as job:
        job.ack(durable=True)
    with queue.get(timeout=5) as job:
        job.nack(60)
    assert queue.counts() == mqstore.WorkQueueCounts(ready=0, delayed=1, leased=0, dying=0)


def test_an_exception_in_a_block_returns_the_message(store: mqstore.Store) -> None:
    queue = store.work_queue("jobs", max_attempts=2, backoff=lambda _attempt: 0)
    queue.put(b"letter")
    for _ in range(2):
        with pytest.raises(BrokenPrinterError, match="no paper"), queue.get(timeout=5):
            raise BrokenPrinterError("no paper")
    assert dead_letters(store, queue) == [("letter", "BrokenPrinterError: no paper")]
    assert queue.join(0)
    # So does an exception that is no error of the job, and one without text.
    queue.put(b"letter")
    with pytest.raises(KeyboardInterrupt), queue.get(timeout=5):
        raise KeyboardInterrupt
    assert queue.counts().ready == 1


def test_a_block_does_not_hide_a_lost_lease_or_an_exception(home: Path) -> None:
    with testing.open(home, clock=(clock := testing.ManualClock())) as store:
        queue = store.work_queue("jobs", backoff=lambda _attempt: 0)
        queue.put(b"job")
        with pytest.raises(mqstore.LeaseLostError), queue.get(timeout=5):
            clock.advance(31)
            queue.get(timeout=5)
        clock.advance(31)
        with pytest.raises(BrokenPrinterError) as caught, queue.get(timeout=5):
            clock.advance(31)
            queue.get(timeout=5)
            raise BrokenPrinterError
        assert "could not return the message" in caught.value.__notes__[0]


def test_a_job_has_the_verbs_of_its_queue(home: Path) -> None:
    with testing.open(home, clock=(clock := testing.ManualClock())) as store:
        queue = store.work_queue("jobs", visibility_timeout=10, backoff=lambda attempt: 100 * attempt)
        queue.put(b"job")
        job = queue.get(timeout=5)
        clock.advance(9)
        before = job.invisible_until
        job.extend()
        assert job.invisible_until == before + 9000
        job.extend(timedelta(minutes=1))
        assert job.invisible_until == before - 1000 + 60_000
        job.nack()
        assert queue.counts().delayed == 1
        clock.advance(99)
        assert queue.get_many(1, timeout=0) == []
        clock.advance(1)
        job = queue.get(timeout=5)
        job.nack(delay=5, reason="later")
        with pytest.raises(mqstore.LeaseLostError):
            job.ack()
        clock.advance(5)
        queue.get(timeout=5).ack()
        assert queue.join(0)
        for wrong in (lambda: job.nack(reason=3), lambda: queue.nack(job, reason=b"x")):  # type: ignore[arg-type]
            with pytest.raises(TypeError, match="reason must be a str"):
                wrong()


# Reasons.


def test_a_dead_letter_keeps_the_last_reason(home: Path) -> None:
    def reopened(store: mqstore.Store) -> mqstore.Store:
        store.close()
        return testing.open(home, clock=clock)

    clock = testing.ManualClock()
    store = testing.open(home, clock=clock)
    queue = store.work_queue("jobs", max_attempts=3)
    queue.put(b"job")
    queue.nack(queue.get(timeout=5), 0, reason="first")
    queue.nack(queue.get(timeout=5), 0, reason="second\x01 try \x02")
    # The reason survives an open, and the last attempt ends without a call.
    store = reopened(store)
    queue = store.work_queue("jobs", max_attempts=3)
    assert queue.get(timeout=5).attempt == 3
    clock.advance(31)
    assert queue.join(0)
    assert dead_letters(store, queue) == [("job", "second  try")]
    # A redriven message still tells why it failed, until there is a newer reason.
    assert queue.redrive() == 1
    job = queue.get(timeout=5)
    assert (job.attempt, job.properties[REASON]) == (1, "second  try")
    for _ in range(3):
        job.nack(0)
        clock.advance(1)
        found = queue.get_many(1, timeout=0)
        job = found[0] if found else job
    assert dead_letters(store, queue)[1:] == [("job", "second  try")]
    assert queue.redrive() == 1
    for attempt in range(1, 4):
        queue.nack(queue.get(timeout=5), 0, reason=f"reason {attempt}" if attempt < 3 else "é" * 2000)
    assert dead_letters(store, queue)[2:] == [("job", "é" * 512)]
    store.close()


# Times.


def test_a_put_is_delivered_at_a_time(home: Path) -> None:
    with testing.open(home, clock=(clock := testing.ManualClock())) as store:
        queue = store.work_queue("jobs")
        queue.put(b"in an hour", deliver_at=clock.now + timedelta(hours=1))
        queue.put_many([b"in a minute"], deliver_at=clock.now + timedelta(minutes=1))
        queue.put_nowait(b"due", deliver_at=clock.now - timedelta(days=9))
        assert [message.text() for message in queue.get_many(9, timeout=0)] == ["due"]
        clock.advance(60)
        assert "in a minute" in [message.text() for message in queue.get_many(9, timeout=0)]
        clock.advance(3540)
        assert "in an hour" in [message.text() for message in queue.get_many(9, timeout=0)]
        with pytest.raises(TypeError, match="only one of delay and deliver_at"):
            queue.put(b"x", delay=1, deliver_at=clock.now)
        with pytest.raises(mqstore.InvalidOptionError, match="deliver_at"):
            queue.put(b"x", deliver_at=clock.now + timedelta(days=31))
        with pytest.raises(ValueError, match="time zone"):
            queue.put(b"x", deliver_at=datetime(2030, 1, 1))  # noqa: DTZ001


# Single puts.


def test_a_put_with_a_known_id_stores_nothing(home: Path) -> None:
    with mqstore.open(home, "create", options=SMALL) as store:
        queue = store.work_queue("jobs", maxsize=1)
        first = queue.put(b"one", keys="k", dedup_id="order 1")
        assert first.unique_id == "order 1"
        # A full queue does not matter: there is nothing to store.
        again = queue.put_nowait(b"other", dedup_id="order 1", durable=True)
        assert (again.commit_log_offset, again.queue_offset, again.message_id, again.durable) == (
            first.commit_log_offset,
            first.queue_offset,
            first.message_id,
            True,
        )
        with pytest.raises(mqstore.Full):
            queue.put_nowait(b"two", dedup_id="order 2")
        queue.ack(queue.get(timeout=5))
        # Finished messages are known too; the key of a message is not its id; other topics have other ids.
        assert queue.put(b"one", dedup_id="order 1").queue_offset == 0
        assert queue.put(b"key", dedup_id="k").queue_offset == 1
        assert store.work_queue("other").put(b"one", dedup_id="order 1").topic == "other"
        assert store.work_queue("jobs", "another-group").put(b"x", dedup_id="k").queue_offset == 1
    with mqstore.open(home, "rw", options=SMALL) as store:
        assert store.work_queue("jobs").put(b"one", dedup_id="order 1").queue_offset == 0


@pytest.mark.parametrize("options", [{"visibility": "durable"}, {"durability": "sync"}, {"durability": "pooled"}])
def test_an_id_is_known_before_it_is_visible(home: Path, options: Any) -> None:
    with mqstore.open(home, "create", options=SMALL, flush_interval=3600, **options) as store:
        queue = store.work_queue("jobs")
        first, again = (queue.put(b"one", dedup_id="a") for _ in range(2))
        assert again.commit_log_offset == first.commit_log_offset
        store.flush()
        assert queue.qsize() == 1


def test_what_is_refused_as_an_id(store: mqstore.Store) -> None:
    queue = store.work_queue("jobs")
    for wrong in ("", "a\x01b"):
        with pytest.raises(mqstore.InvalidMessageError, match="dedup_id"):
            queue.put(b"x", dedup_id=wrong)
    with pytest.raises(mqstore.InvalidMessageError, match="not both"):
        queue.put(b"x", dedup_id="a", properties={"UNIQ_KEY": "b"})
    with pytest.raises(TypeError, match="dedup_id must be a str"):
        queue.put(b"x", dedup_id=5)  # type: ignore[arg-type]
    assert queue.qsize() == 0
    queue.shutdown()
    with pytest.raises(mqstore.ShutDown):
        queue.put(b"x", dedup_id="a")


def test_threads_that_put_the_same_ids_store_each_once(store: mqstore.Store) -> None:
    store.create_topic("jobs", queues=3)
    queues = [store.work_queue("jobs"), store.work_queue("jobs"), store.work_queue("jobs", "g")]
    begin = threading.Barrier(6)
    places: list[set[tuple[str, int]]] = [set() for _ in range(6)]

    def put(worker: int) -> None:
        begin.wait()
        for number in range(40):
            result = queues[worker % 3].put(b"x", dedup_id=f"id {number}", durable=worker == 5)
            places[worker].add((result.unique_id, result.commit_log_offset))

    threads = [threading.Thread(target=put, args=(worker,)) for worker in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert places == [places[0]] * 6
    assert queues[0].qsize() == 40


CHILD = r"""
import os, sys, threading, mqstore
from conftest import SMALL

store = mqstore.open(sys.argv[1], "create", options=SMALL)
queue = store.work_queue("jobs")

def put(first):
    for number in range(first, 10**9, 2):
        queue.put(str(number).encode(), dedup_id=f"id {number}")
        os.write(1, f"{number}\n".encode())

threading.Thread(target=put, args=(0,)).start()
put(1)
"""


def test_ids_are_known_after_a_kill(home: Path) -> None:
    done: set[int] = set()
    for _ in range(3):
        command = [sys.executable, "-W", "ignore", "-c", CHILD, str(home)]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent)
        assert child.stdout is not None
        try:
            for _number in range(30 + 2 * len(done)):
                done.add(int(child.stdout.readline()))
        finally:
            os.kill(child.pid, signal.SIGKILL)
            rest = child.communicate()[0]
        done.update(int(line) for line in rest.splitlines())
    with mqstore.open(home, "rw", options=SMALL) as store:
        queue = store.work_queue("jobs")
        for number in done:
            queue.put(b"again", dedup_id=f"id {number}")
        times = Counter(message.text() for message in store.read("jobs", 0))
    # Each put that returned is stored once. A put that was cut short may be stored, once too.
    assert set(times.values()) == {1}
    assert {str(number) for number in done} <= set(times)
    assert "again" not in times


# Calls that need no worker.


def test_a_peek_shows_what_a_get_would_return(home: Path) -> None:
    with testing.open(home, clock=(clock := testing.ManualClock())) as store:
        store.create_topic("jobs", queues=2)
        queue = store.work_queue("jobs", max_attempts=2)
        assert queue.peek() == []
        queue.put(b"0")
        queue.put(b"delayed", delay=60)
        queue.put_many([b"1", b"2", b"3"])
        assert [message.text() for message in queue.peek()] == ["0"]
        assert [message.text() for message in queue.peek(3)] == ["0", "1", "2"]
        assert not isinstance(queue.peek()[0], mqstore.LeasedMessage)
        assert queue.counts().leased == 0
        first = queue.get(timeout=0)
        assert first.text() not in [message.text() for message in queue.peek(9)]
        first.nack(30)
        assert first.text() not in [message.text() for message in queue.peek(9)]
        clock.advance(60)
        shown = [message.text() for message in queue.peek(9)]
        assert shown[0] == first.text()
        assert sorted(shown) == ["0", "1", "2", "3", "delayed"]
        got = queue.get_many(9, timeout=0)
        assert sorted(message.text() for message in got) == sorted(shown)
        assert queue.peek(9) == []
        # A lease that ended; a message without a further attempt is as good as dead.
        clock.advance(31)
        assert sorted(message.text() for message in queue.peek(9)) == sorted(set(shown) - {first.text()})


def test_a_purge_leaves_only_leased_messages(home: Path) -> None:
    clock = testing.ManualClock()
    with testing.open(home, clock=clock) as store:
        store.create_topic("jobs", queues=2)
        queue, other = store.work_queue("jobs"), store.work_queue("jobs", "other")
        queue.put_many([b"ended", b"held", b"returned", b"new"])
        queue.put(b"delayed", delay=3600)
        by_text = {message.text(): message for message in queue.get_many(4, timeout=0)}
        by_text["returned"].nack(60)
        by_text["new"].nack(0)
        by_text["held"].extend(1000)
        clock.advance(31)
        queue.put_many([b"new"] * 100)
        assert queue.purge() == 104
        assert queue.counts() == mqstore.WorkQueueCounts(ready=0, delayed=0, leased=1, dying=0)
        assert queue.get_many(9, timeout=0) == []
        by_text["ended"].ack()
        with pytest.raises(mqstore.LeaseLostError):
            by_text["returned"].nack()
        by_text["held"].ack()
        assert queue.join(0)
        assert queue.purge() == 0
        # Only its own group.
        assert other.qsize() == 105
        queue.put(b"after")
        assert [message.text() for message in queue.get_many(9, timeout=0)] == ["after"]
    with testing.open(home, clock=clock) as store:
        queue = store.work_queue("jobs")
        clock.advance(4000)
        assert [message.text() for message in queue.get_many(9, timeout=0)] == ["after"]


def test_a_purge_makes_room_and_ends_a_join(store: mqstore.Store) -> None:
    queue = store.work_queue("jobs", maxsize=1)
    queue.put(b"1")
    threads = [threading.Thread(target=queue.put, args=(b"2",)), threading.Thread(target=queue.join)]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        queue.purge()
    for thread in threads:
        thread.join()


def test_leases_are_listed(home: Path) -> None:
    with testing.open(home, clock=(clock := testing.ManualClock())) as store:
        queue = store.work_queue("jobs", visibility_timeout=60)
        assert queue.leased() == []
        queue.put_many([b"long", b"short"])
        long, short = queue.get_many(2, timeout=0)
        short.extend(5)
        now = round(clock.now.timestamp() * 1000)
        assert queue.leased() == [
            mqstore.Lease("jobs", 0, short.queue_offset, 1, now + 5000),
            mqstore.Lease("jobs", 0, long.queue_offset, 1, now + 60_000),
        ]
        lease = queue.leased()[0]
        assert lease.end == datetime.fromtimestamp(now / 1000 + 5, UTC)
        assert lease.to_dict()["attempt"] == 1
        clock.advance(6)
        assert len(queue.leased()) == queue.counts().leased == 2
        assert queue.get(timeout=0).attempt == 2
        long.ack()
        assert [lease.attempt for lease in queue.leased()] == [2]


# Event loops.


@in_loop
async def test_blocks_reasons_and_ids_in_a_loop(home: Path) -> None:
    async with mqstore.aio.open(home, "create", options=SMALL) as store:
        queue = await store.work_queue("jobs", max_attempts=2, backoff=lambda _attempt: 0)
        assert queue.group == "workers-jobs"
        await queue.put(b"good")
        async with await queue.get(timeout=5) as job:
            assert job.text() == "good"
        assert await queue.join(0)
        await queue.put(b"bad")
        for _ in range(2):
            with pytest.raises(BrokenPrinterError):
                async with await queue.get(timeout=5):
                    raise BrokenPrinterError("no paper")
        (letter,) = [letter async for letter in store.read(queue.dead_letters, 0)]
        assert letter.properties[REASON] == "BrokenPrinterError: no paper"
        await queue.put(b"own")
        async with await queue.get(timeout=5) as job:
            await queue.nack(job, 0, reason="not now")
        (job,) = await queue.get_many(1, timeout=5)
        with pytest.raises(TypeError, match="async with"), job:
            pass
        async with job:
            await queue.extend(job)
        # A cancelled task returns its message.
        await queue.put(b"cancelled")

        async def work() -> None:
            async with await queue.get(timeout=5):
                begun.set()
                await asyncio.Event().wait()

        begun, task = asyncio.Event(), asyncio.create_task(work())
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await queue.counts()).ready == 1
        assert [message.text() for message in await queue.peek(5)] == ["cancelled"]
        assert await queue.purge() == 1
        assert await queue.leased() == []
        first, second = await asyncio.gather(*(queue.put(b"x", dedup_id="a") for _ in range(2)))
        assert first.commit_log_offset == second.commit_log_offset
        assert await queue.qsize() == 1
        await queue.put(b"y", deliver_at=datetime.now(UTC) + timedelta(hours=1))
        assert (await queue.counts()).delayed + (await queue.counts()).ready == 2


@in_loop
async def test_a_put_with_an_id_waits_for_room_in_a_loop(home: Path) -> None:
    async with mqstore.aio.open(home, "create", options=SMALL) as store:
        queue = await store.work_queue("jobs", maxsize=1)
        await queue.put(b"1", dedup_id="1")
        with pytest.raises(mqstore.Full):
            await queue.put(b"2", dedup_id="2", timeout=0.01)
        put = asyncio.create_task(queue.put(b"2", dedup_id="2"))
        async with await queue.get(timeout=5):
            pass
        assert (await put).queue_offset == 1


def test_a_message_of_threads_is_not_for_async_with(store: mqstore.Store) -> None:
    queue = store.work_queue("jobs")
    queue.put(b"x")

    async def leave() -> None:
        async with queue.get(timeout=5):
            pass

    with pytest.raises(TypeError, match="use `with`"):
        asyncio.run(leave())
