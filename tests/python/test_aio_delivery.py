"""`mqstore.aio`: work queues for event loops, and the names of consumers."""

from __future__ import annotations

import asyncio
import inspect
import pickle
import random
import re
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import mqstore
import mqstore.aio
from conftest import SMALL
from loops import LONG, cancelled_soon, in_loop, tasks_of_process, threads_named, until, waits_of_process

# Names and parameters.


def verbs(kind: type) -> list[str]:
    return [name for name in dir(kind) if not name.startswith("_")]


@pytest.mark.parametrize(
    ("kind", "name"), [(kind, name) for kind in ("Consumer", "WorkQueue") for name in verbs(getattr(mqstore, kind))]
)
def test_every_verb_has_its_twin(kind: str, name: str) -> None:
    own = inspect.getattr_static(getattr(mqstore, kind), name)
    twin = inspect.getattr_static(getattr(mqstore.aio, kind), name)
    assert inspect.getdoc(getattr(getattr(mqstore.aio, kind), name))
    if not callable(own):
        assert isinstance(twin, property)
        return

    def parameters(thing: Any) -> list[tuple[str, Any, object]]:
        found = inspect.signature(thing).parameters.values()
        return [(each.name, each.kind, each.default) for each in found if each.name != "self"]

    assert parameters(twin) == parameters(own)
    # These two return an object for `await` and `async with`.
    assert inspect.iscoroutinefunction(twin) == (name not in ("get", "get_nowait"))


# Work queues.


async def take(queue: mqstore.aio.WorkQueue, timeout: float = LONG) -> str:
    message = await queue.get(timeout=timeout)
    await queue.ack(message)
    return message.text()


@in_loop
async def test_put_get_ack(home: Path) -> None:
    async with mqstore.aio.open(home, "create", options=SMALL) as store:
        queue = await store.work_queue("jobs", maxsize=9, max_attempts=3)
        assert (queue.topic, queue.group, queue.dead_letters) == ("jobs", "workers-jobs", "%DLQ%workers-jobs")
        assert (queue.maxsize, queue.max_attempts, queue.visibility_timeout, queue.closed) == (9, 3, 30.0, False)
        assert repr(queue) == "<mqstore.aio.WorkQueue topic='jobs' group='workers-jobs'>"
        with pytest.raises(TypeError, match="cannot pickle"):
            pickle.dumps(queue)
        one = await queue.put(b"one", keys=["k"], tags="t", properties={"p": "v"})
        assert (one.topic, one.queue_id, one.queue_offset) == ("jobs", 0, 0)
        durable = await queue.put(b"two", durable=True)
        assert (durable.queue_offset, durable.durable) == (1, True)
        many = await queue.put_many([b"three", mqstore.Message(b"four", keys="k")], durable=True)
        assert [result.queue_offset for result in many] == [2, 3]
        assert await queue.put_many([]) == []
        assert (await queue.qsize(), await queue.empty(), await queue.full()) == (4, False, False)
        message = await queue.get()
        assert isinstance(message, mqstore.LeasedMessage)
        assert (message.body, message.keys, message.tags, message.attempt) == (b"one", ("k",), "t", 1)
        assert await queue.counts() == mqstore.WorkQueueCounts(ready=3, delayed=0, leased=1, dying=0)
        await queue.extend(message, 3600)
        assert message.invisible_until - time.time() * 1000 > 1_800_000
        await queue.ack(message, durable=True)
        await queue.ack(message)
        rest = await queue.get_many(10)
        assert [message.body for message in rest] == [b"two", b"three", b"four"]
        await queue.ack_many(rest, durable=True)
        assert await queue.join(0)
        assert await queue.get_many(0) == []
        await queue.put(b"five")
        await queue.get()
        await queue.task_done()
        with pytest.raises(ValueError, match="too many times"):
            await queue.task_done()
        await queue.put(b"much later", delay=3600)
        with pytest.raises(mqstore.Empty):
            await queue.get_nowait()
        held = await queue.put(b"later", delay=0.05)
        assert (await queue.get(timeout=LONG)).queue_offset == held.queue_offset
    assert queue.closed
    with mqstore.open(home, "rw", options=SMALL) as again:
        assert again.work_queue("jobs", maxsize=9, max_attempts=3).counts().leased == 1


@in_loop
async def test_a_get_is_a_block(home: Path) -> None:
    """Its end acknowledges the message, an exception returns it. An awaited `get` leaves that to the caller."""
    async with mqstore.aio.open(home, "create", options=SMALL) as store:
        queue = await store.work_queue("jobs", backoff=lambda attempt: 0.01 * attempt)
        await queue.put(b"one")
        with pytest.raises(KeyError, match="no such image"):
            async with queue.get(timeout=LONG) as job:
                raise KeyError("no such image")
        assert (job.attempt, (await queue.counts()).leased) == (1, 0)
        async with queue.get(timeout=LONG) as again:
            assert (again.queue_offset, again.attempt) == (job.queue_offset, 2)
        assert await queue.join(0)
        with pytest.raises(mqstore.Empty):
            async with queue.get_nowait():
                raise AssertionError
        await queue.put(b"two")
        async with queue.get() as own:
            await queue.nack(own, 0)
        async with await queue.get(timeout=LONG) as awaited:
            assert awaited.attempt == 2
        assert await queue.join(0)


@in_loop
async def test_a_get_is_a_coroutine(home: Path) -> None:
    async with mqstore.aio.open(home, "create", options=SMALL) as store:
        queue = await store.work_queue("jobs")
        await queue.put_many([b"one", b"two", b"three"])
        got = await asyncio.create_task(queue.get())
        got_too, last = await asyncio.gather(queue.get_nowait(), asyncio.wait_for(queue.get(), LONG))
        assert [message.text() for message in (got, got_too, last)] == ["one", "two", "three"]
        waiting = asyncio.create_task(queue.get())
        await asyncio.sleep(0)
        assert waiting.get_stack()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        forgotten: Any = queue.get()
        with pytest.raises(AttributeError, match="must be awaited first"):
            forgotten.ack()
        with pytest.raises(TypeError, match=re.escape("async with queue.get(...) as")), forgotten:
            raise AssertionError
        forgotten.close()
        with pytest.raises(TypeError, match=re.escape("call get(timeout=5)")):
            queue.get(5)


@in_loop
async def test_errors_are_those_of_the_blocking_one(home: Path) -> None:
    async with mqstore.aio.open(home, "create", options=SMALL) as store:
        queue = await store.work_queue("jobs", maxsize=2)
        for calls in (queue.get_nowait, lambda: queue.get(False), lambda: queue.get(timeout=0.01)):
            with pytest.raises(mqstore.Empty, match="work queue jobs of group workers-jobs"):
                await calls()
        assert await queue.get_many(5, timeout=0) == []
        with pytest.raises(ValueError, match="non-negative"):
            await queue.get(timeout=-1)
        with pytest.raises(TypeError, match="timeout"):
            await queue.get(timeout=b"soon")  # type: ignore[arg-type]
        await queue.put_many([b"one", b"two"])
        with pytest.raises(mqstore.Full, match="maxsize"):
            await queue.put_nowait(b"three")
        with pytest.raises(mqstore.Full):
            await queue.put(b"three", timeout=0.01)
        with pytest.raises(mqstore.InvalidMessageError):
            await queue.put(b"", keys="a b")
        with pytest.raises(mqstore.InvalidOptionError, match="maxsize"):
            await store.work_queue("jobs", maxsize=3)
        message = await queue.get()
        await queue.nack(message, 0)
        for verb in (queue.ack, queue.nack, queue.task_done):
            with pytest.raises(mqstore.LeaseLostError):
                await verb(message)
        with pytest.raises(mqstore.LeaseLostError):
            await queue.extend(message, 5)
        with pytest.raises(mqstore.InvalidOptionError, match="visibility_timeout"):
            await queue.extend(message, 0)
        await queue.close()
        await queue.close()
        for verb in (queue.get, lambda: queue.put(b"four"), queue.join):
            with pytest.raises(mqstore.ShutDown):
                await verb()
        async with mqstore.aio.open(home) as reader:
            with pytest.raises(mqstore.StoreReadOnlyError):
                await reader.work_queue("jobs")


@pytest.mark.slow
@in_loop
async def test_ten_thousand_that_wait_cost_no_thread(home: Path) -> None:
    async with mqstore.aio.open(home, "create", options=SMALL) as store:
        queue = await store.work_queue("jobs")
        other = await store.work_queue("others")
        await other.put(b"")
        consumer = await store.consumer("group", "read")
        empty = waits_of_process()
        before, named = tasks_of_process(), set(threads_named("mqstore"))
        gets = [asyncio.ensure_future(queue.get(timeout=LONG)) for _ in range(4000)]
        joins = [asyncio.ensure_future(other.join(LONG)) for _ in range(3000)]
        polls = [asyncio.ensure_future(consumer.poll(1, timeout=LONG)) for _ in range(3000)]
        waits: list[asyncio.Future[Any]] = [*gets, *joins, *polls]
        # Each turn of the loop starts some of them.
        await asyncio.sleep(0.2)
        assert not any(wait.done() for wait in waits)
        assert tasks_of_process() < before + 100
        assert set(threads_named("mqstore")) - named <= {f"mqstore_{n}" for n in range(4)}
        for n in range(0, 4000, 1000):
            await queue.put_many([b"%d" % m for m in range(n, n + 1000)])
        got = await asyncio.gather(*gets)
        assert sorted(int(message.body) for message in got) == list(range(4000))
        for n in range(0, 3000, 1000):
            await store.append_many("read", [b"%d" % m for m in range(n, n + 1000)], queue_id=0)
        read = [int(message.body) for messages in await asyncio.gather(*polls) for message in messages]
        assert sorted(read) == list(range(3000))
        await other.ack(await other.get())
        assert all(await asyncio.gather(*joins))
        for each in (gets, joins, polls, waits):
            each.clear()
        await asyncio.sleep(0.1)
        assert waits_of_process() < empty + 100


@in_loop
async def test_cancelled_gets_take_nothing(home: Path) -> None:
    chance = random.Random(7)
    async with mqstore.aio.open(home, "create", options=SMALL) as store:
        # No lease ends by itself here. A message that a cancelled get took would be missing at the end.
        queue = await store.work_queue("jobs", visibility_timeout=3600)
        wanted = 1500
        done: Counter[int] = Counter()

        async def work() -> None:
            message = await queue.get()
            if message.attempt < 2 and int(message.body) % 7 == 0:
                await queue.nack(message, chance.choice((0, 0.001)))
                return
            await queue.ack(message, durable=chance.random() < 0.1)
            done[int(message.body)] += 1

        async def put() -> None:
            for number in range(wanted):
                await queue.put(b"%d" % number, durable=chance.random() < 0.02)
                if chance.random() < 0.1:
                    await asyncio.sleep(chance.random() / 500)

        async def storm() -> int:
            cancelled = 0
            while sum(done.values()) < wanted:
                gets = [asyncio.ensure_future(queue.get()) for _ in range(chance.randrange(1, 6))]
                cancelled += await cancelled_soon(gets, chance)
                for outcome in await asyncio.gather(*gets, return_exceptions=True):
                    if isinstance(outcome, mqstore.LeasedMessage):
                        await queue.ack(outcome)
                        done[int(outcome.body)] += 1
                await asyncio.sleep(0)
            return cancelled

        workers = [asyncio.ensure_future(until_cancelled(work)) for _ in range(5)]
        putting = asyncio.ensure_future(put())
        assert await storm() > 50
        await putting
        assert await queue.join(LONG)
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        assert sorted(done) == list(range(wanted))
        assert set(done.values()) == {1}
        assert await queue.counts() == mqstore.WorkQueueCounts(0, 0, 0, 0)


async def until_cancelled(work: Callable[[], Awaitable[None]]) -> None:
    while True:
        await work()


@in_loop
async def test_cancelled_puts_keep_no_room(home: Path) -> None:
    chance = random.Random(11)
    async with mqstore.aio.open(home, "create", options=SMALL, max_appends=4) as store:
        queue = await store.work_queue("jobs", maxsize=3)
        put: set[int] = set()
        got: set[int] = set()

        async def one(number: int) -> None:
            await queue.put(b"%d" % number, durable=number % 3 == 0)
            put.add(number)

        async def get() -> None:
            got.add(int(await take(queue, LONG)))

        getting = asyncio.ensure_future(until_cancelled(get))
        for round_ in range(60):
            tasks = [asyncio.ensure_future(one(round_ * 10 + n)) for n in range(10)]
            for _ in range(chance.randrange(6)):
                await asyncio.sleep(0 if chance.random() < 0.7 else 0.001)
            for task in tasks:
                if chance.random() < 0.5:
                    task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        assert await queue.join(LONG)
        getting.cancel()
        await asyncio.gather(getting, return_exceptions=True)
        # A put that was cancelled while the thread appended its message may have added it.
        assert put <= got
        await queue.put_many([b"", b"", b""], timeout=LONG)
        with pytest.raises(mqstore.Full):
            await queue.put_nowait(b"")


@in_loop
async def test_a_lease_that_ends_wakes_who_waits(home: Path) -> None:
    async with mqstore.aio.open(home, "create", options=SMALL) as store:
        # The leases of `queue` do not end by themselves, however long the test takes.
        queue = await store.work_queue("jobs", visibility_timeout=3600, backoff=lambda attempt: 0.01 * attempt)
        short = await store.work_queue("jobs", visibility_timeout=0.05)
        waiting = asyncio.ensure_future(short.get(timeout=LONG))
        await asyncio.sleep(0.01)
        await queue.put(b"one")
        first = await waiting
        assert first.attempt == 1
        again = await queue.get(timeout=LONG)
        assert again.attempt == 2
        with pytest.raises(mqstore.LeaseLostError):
            await queue.ack(first)
        waiting = asyncio.ensure_future(queue.get(timeout=LONG))
        await asyncio.sleep(0.01)
        await queue.nack(again)
        last = await waiting
        assert last.attempt == 3
        waiting = asyncio.ensure_future(queue.get(timeout=LONG))
        await asyncio.sleep(0.02)
        assert not waiting.done()
        await queue.extend(last, 0.001)
        assert (await waiting).attempt == 4


@in_loop
async def test_dead_letters(home: Path) -> None:
    async with mqstore.aio.open(home, "create", options=SMALL) as store:
        asked: list[int] = []

        def backoff(attempt: int) -> float:
            asked.append(attempt)
            return 0.001

        queue = await store.work_queue("jobs", max_attempts=3, visibility_timeout=3600, backoff=backoff)
        await queue.put_many([b"given back", b"forgotten"])
        for _ in range(6):
            message = await queue.get(timeout=LONG)
            if message.body == b"given back":
                await queue.nack(message)
            else:
                await queue.extend(message, 0.001)
        # No worker calls get any more. The wait moves the forgotten messages.
        assert await queue.join(LONG)
        assert sorted([m.body async for m in store.read(queue.dead_letters)]) == [b"forgotten", b"given back"]
        assert asked[:2] == [1, 2]
        assert await queue.redrive(1) == 1
        assert await queue.redrive() == 1
        assert sorted([await take(queue), await take(queue)]) == ["forgotten", "given back"]


@in_loop
async def test_a_put_waits_for_room_and_those_who_wait_keep_their_order(home: Path) -> None:
    async with mqstore.aio.open(home, "create", options=SMALL) as store:
        queue = await store.work_queue("jobs", maxsize=2)
        puts = [asyncio.ensure_future(queue.put(b"%d" % n, durable=n % 2 == 1)) for n in range(20)]
        await until(lambda: sum(put.done() for put in puts) == 2)
        await asyncio.sleep(0.01)
        assert sum(put.done() for put in puts) == 2
        assert await queue.full()
        assert sorted([int(await take(queue)) for _ in range(20)]) == list(range(20))
        assert len(await asyncio.gather(*puts)) == 20


@in_loop
async def test_tasks_are_served_in_the_order_in_which_they_came(home: Path) -> None:
    async with mqstore.aio.open(home, "create", options=SMALL) as store:
        queue = await store.work_queue("jobs")
        gets = []
        for number in range(40):
            # Some have a time limit, which makes no difference.
            gets.append(asyncio.ensure_future(queue.get(timeout=LONG if number % 3 == 0 else None)))
            await asyncio.sleep(0)
        for number in range(0, 40, 5):
            gets[number].cancel()
        left = [get for number, get in enumerate(gets) if number % 5]
        await asyncio.sleep(0.01)
        for number in range(16):
            await queue.put(b"%d" % number)
        await asyncio.gather(*left[:16])
        assert not any(get.done() for get in left[16:])
        await queue.put_many([b"%d" % number for number in range(16, len(left))])
        assert [int((await get).body) for get in left] == list(range(len(left)))


@in_loop
async def test_a_put_waits_for_a_quota(home: Path) -> None:
    async with mqstore.aio.open(home, "create", options=SMALL) as store:
        await store.create_topic("jobs", max_messages=3)
        queue = await store.work_queue("jobs")
        await queue.put_many([b"0", b"1"])
        await queue.put(b"2", durable=True)
        for durable in (False, True):
            for calls in (partial(queue.put_nowait, b"x"), partial(queue.put, b"x", timeout=0.01)):
                with pytest.raises(mqstore.QuotaFull, match="topic jobs is full: it holds 3 messages"):
                    await calls(durable=durable)
        puts = [asyncio.ensure_future(queue.put(b"%d" % n, durable=n % 2 == 1)) for n in range(3, 8)]
        late = asyncio.ensure_future(queue.put(b"x", timeout=0.02))
        with pytest.raises(mqstore.QuotaFull):
            await late
        puts[2].cancel()
        await asyncio.gather(puts[2], return_exceptions=True)
        assert not any(put.done() for put in puts if put is not puts[2])
        await store.update_topic("jobs", max_messages=5)
        await until(lambda: sum(put.done() for put in puts) == 3)
        many = asyncio.ensure_future(queue.put_many(iter([b"8", b"9"]), timeout=LONG))
        await asyncio.sleep(0.01)
        assert sum(put.done() for put in puts) == 3
        assert not many.done()
        await store.update_topic("jobs", max_messages=9)
        await many
        await asyncio.gather(*puts, return_exceptions=True)
        assert sorted([int(await take(queue)) for _ in range(9)]) == [0, 1, 2, 3, 4, 6, 7, 8, 9]
        with pytest.raises(mqstore.QuotaFull):
            await queue.put_nowait(b"x")
        waits = [asyncio.ensure_future(queue.put(b"x")) for _ in range(50)]
        await asyncio.sleep(0.01)
        await queue.shutdown()
        outcomes = await asyncio.gather(*waits, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [mqstore.ShutDown] * 50


@in_loop
async def test_shutdown_and_close_end_waits(home: Path) -> None:
    async with mqstore.aio.open(home, "create", options=SMALL) as store:
        queue = await store.work_queue("jobs", maxsize=1)
        await queue.put(b"one")
        message = await queue.get()
        await queue.put(b"two")
        waits: list[Awaitable[object]] = [queue.put(b"three"), queue.join()]
        tasks = [asyncio.ensure_future(wait) for wait in waits]
        await asyncio.sleep(0.01)
        await queue.shutdown()
        with pytest.raises(mqstore.ShutDown):
            await tasks[0]
        assert await take(queue) == "two"
        with pytest.raises(mqstore.ShutDown):
            await queue.get()
        assert not tasks[1].done()
        await queue.ack(message)
        assert await tasks[1]

        again = await store.work_queue("jobs", maxsize=1)
        gets = [asyncio.ensure_future(again.get()) for _ in range(3)]
        await asyncio.sleep(0.01)
        await again.shutdown(immediate=True)
        outcomes = await asyncio.gather(*gets, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [mqstore.ShutDown] * 3

        async with store.work_queue("jobs", maxsize=1) as last:
            gets = [asyncio.ensure_future(last.get()) for _ in range(3)]
            await asyncio.sleep(0.01)
        outcomes = await asyncio.gather(*gets, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [mqstore.ShutDown] * 3
        assert last.closed


@in_loop
async def test_what_is_given_back_ends_a_join_behind_a_shutdown_at_once(home: Path) -> None:
    async with mqstore.aio.open(home, "create", options=SMALL) as store:
        queue = await store.work_queue("jobs", visibility_timeout=3600)
        await queue.put(b"one")
        message = await queue.get()
        await queue.shutdown(immediate=True)
        join = asyncio.ensure_future(queue.join(LONG))
        await asyncio.sleep(0.01)
        assert not join.done()
        # The message is in the queue again, and this queue object delivers no more.
        await queue.nack(message, 3600)
        assert await asyncio.wait_for(join, LONG / 4)


@in_loop
async def test_an_error_of_a_preparation_is_of_who_asked_for_it(home: Path) -> None:
    with mqstore.open(home, "create", segment_size=8 << 20) as made:
        # So many that the first of them must be read from the disk.
        made.work_queue("jobs", maxsize=500).put_many([bytes(3000)] * 400)
        first = next(made.read("jobs"))
    segment = home / "commitlog" / f"{0:020}"
    with segment.open("r+b") as file:
        file.seek(first.commit_log_offset + 500)
        file.write(b"damage")
    async with mqstore.aio.open(home, "rw", segment_size=8 << 20) as store:
        queue = await store.work_queue("jobs", maxsize=500, on_damage="raise")
        calls: list[Awaitable[object]] = [
            *(queue.get() for _ in range(4)),
            queue.put(b"x"),
            queue.put(b"y", durable=True),
            queue.join(0.1),
        ]
        tasks = [asyncio.ensure_future(call) for call in calls]
        await asyncio.sleep(0)
        tasks[3].cancel()
        outcomes = [type(outcome) for outcome in await asyncio.gather(*tasks, return_exceptions=True)]
        assert outcomes[:3] == [mqstore.CorruptionError] * 3
        assert outcomes[3:] == [asyncio.CancelledError, mqstore.AppendResult, mqstore.AppendResult, bool]


@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_close_of_the_store_ends_waits(home: Path, elsewhere: bool) -> None:
    @in_loop
    async def check() -> None:
        made = mqstore.open(home, "create", options=SMALL)
        store = mqstore.aio.wrap(made)
        queue = await store.work_queue("jobs", maxsize=1)
        consumer = await store.consumer("group", ["read", "not there"])
        await queue.put(b"one")
        message = await queue.get()
        await queue.put(b"two")
        other = await store.work_queue("others")
        waits: list[Awaitable[object]] = [
            queue.put(b"three"),
            queue.join(),
            other.get(),
            other.get_many(3, timeout=LONG),
            consumer.poll(),
            anext(consumer),
        ]
        tasks = [asyncio.ensure_future(wait) for wait in waits]
        await asyncio.sleep(0.05)
        await (asyncio.to_thread(made.close) if elsewhere else store.close())
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(outcome) for outcome in outcomes] == [mqstore.StoreClosedError] * 6
        await queue.close()
        await consumer.close()
        with pytest.raises(mqstore.StoreClosedError):
            await queue.ack(message)
        if not elsewhere:
            # The consumers of the loop have left the group.
            assert made.consumer("group", "jobs").assignment == (("jobs", 0),)
            made.close()
        await store.close()

    check()


@in_loop
async def test_beside_threads_that_use_the_same_queue(home: Path) -> None:
    async with mqstore.aio.open(home, "create", options=SMALL) as store:
        await store.create_topic("jobs", queues=3)
        queue = await store.work_queue("jobs", maxsize=50)
        sync = store.sync.work_queue("jobs", maxsize=50)
        done: Counter[int] = Counter()
        lock = threading.Lock()

        def put(first: int) -> None:
            for number in range(first, first + 300):
                sync.put(b"%d" % number)

        def work() -> None:
            while (message := sync.get()).body != b"end":
                sync.ack(message)
                with lock:
                    done[int(message.body)] += 1
            sync.ack(message)

        async def task() -> None:
            while (message := await queue.get()).body != b"end":
                await queue.ack(message)
                with lock:
                    done[int(message.body)] += 1
            await queue.ack(message)

        threads = [threading.Thread(target=work, daemon=True) for _ in range(2)]
        threads += [threading.Thread(target=put, args=(n * 300,), daemon=True) for n in range(2)]
        tasks = [asyncio.ensure_future(task()) for _ in range(3)]
        for thread in threads:
            thread.start()
        for number in range(600, 900):
            await queue.put(b"%d" % number)
        for thread in threads[2:]:
            await asyncio.to_thread(thread.join)
        assert await queue.join(LONG)
        for _ in range(5):
            await queue.put(b"end")
        await asyncio.gather(*tasks)
        for thread in threads:
            await asyncio.to_thread(thread.join)
        assert sorted(done) == list(range(900))
        assert set(done.values()) == {1}


@in_loop
async def test_what_lies_on_the_disk_is_read_by_a_thread(home: Path) -> None:
    with mqstore.open(home, "create", segment_size=8 << 20) as made:
        made.work_queue("jobs").put_many([b"%d " % n + bytes(2000) for n in range(1000)])
        made.append_many("read", [b"%d " % n + bytes(2000) for n in range(1000)])
    async with mqstore.aio.open(home, "rw", segment_size=8 << 20) as store:
        queue = await store.work_queue("jobs")
        seen = []
        while (message := (await queue.get_many(1, timeout=0) or [None])[0]) is not None:
            seen.append(int(message.body.split()[0]))
            await queue.ack(message)
        assert seen == list(range(1000))
        consumer = await store.consumer("group", "read")
        first = await consumer.poll(10, timeout=0)
        rest = []
        while found := await consumer.poll(timeout=0):
            rest += found
        assert [m.queue_offset for m in first + rest] == list(range(1000))
        assert (await consumer.lag())[("read", 0)] == 1000


@in_loop
async def test_a_queue_belongs_to_its_loop(home: Path) -> None:
    async with mqstore.aio.open(home, "create", options=SMALL) as store:
        queue = await store.work_queue("jobs")
        consumer = await store.consumer("group", "read")

        async def elsewhere() -> None:
            for use in (queue.get(), queue.put(b""), queue.close(), consumer.poll(), consumer.commit()):
                with pytest.raises(RuntimeError, match="another event loop"):
                    await use

        await asyncio.to_thread(asyncio.run, elsewhere())
