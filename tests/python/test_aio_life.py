"""`mqstore.aio`: appends, results of cancelled calls, loops and threads, closing of a store."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import threading
from pathlib import Path

import pytest

import mqstore
import mqstore.aio
import mqstore.testing
from conftest import SMALL, python
from loops import LONG, in_loop, threads_named, until

POOL = mqstore.BrokerOptions(pool_size=1 << 20)

# Appends.


@in_loop
async def test_durable_appends_of_many_tasks_share_one_thread(home: Path) -> None:
    async with mqstore.aio.open(home, "create", options=SMALL) as store:

        async def append(task: int) -> list[mqstore.AppendResult]:
            return [await store.append("orders", b"%d %d" % (task, n), durable=True) for n in range(20)]

        results = await asyncio.gather(*map(append, range(50)))
        assert all(result.durable for each in results for result in each)
        assert sorted(r.queue_offset for each in results for r in each) == list(range(1000))
        for each in results:
            assert [r.queue_offset for r in each] == sorted(r.queue_offset for r in each)
        assert threads_named("mqstore-append") == ["mqstore-append"]
        stats = await store.stats()
        assert stats.durable_offset == stats.log_max_offset
    assert threads_named("mqstore-append") == []


@pytest.mark.parametrize("durability", ["sync", "async", "manual", "pooled"])
def test_every_durability(home: Path, durability: str) -> None:
    @in_loop
    async def check() -> None:
        async with mqstore.aio.open(home, "create", options=SMALL, durability=durability, advanced=POOL) as store:
            plain = [await store.append("orders", b"%d" % n) for n in range(200)]
            asked = await store.append("orders", b"", durable=True)
            many = await store.append_many("orders", [b""] * 50, durable=True)
            assert asked.durable
            assert all(r.durable for r in many)
            if durability == "sync":
                assert all(r.durable for r in plain)
            assert [m.queue_offset async for m in store.read("orders")] == list(range(251))

    check()


@in_loop
async def test_appends_keep_the_order_in_which_they_were_begun(home: Path) -> None:
    async with mqstore.aio.open(home, "create", options=SMALL) as store:
        # The loop appends small messages directly. The thread appends large ones, and also prepares the next segments.
        bodies = [b"%d " % n + bytes(20_000 if n % 10 == 0 else 10) for n in range(300)]
        for durable in (False, True):
            results = await asyncio.gather(*(store.append("orders", body, durable=durable) for body in bodies))
            offsets = [result.commit_log_offset for result in results]
            assert offsets == sorted(offsets)


@in_loop
async def test_a_cancelled_append_happened_wholly_or_not_at_all(home: Path) -> None:
    faults = mqstore.testing.Faults()
    made = mqstore.testing.open(home, faults=faults, flush_interval=3600)
    async with mqstore.aio.wrap(made, max_appends=4) as store:
        await store.append("orders", b"")
        # Cancelled in the same turn: the append does not happen.
        task = asyncio.ensure_future(store.append("orders", b"no", durable=True))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await store.append("orders", b"after", durable=True)
        assert [m.body async for m in store.read("orders")] == [b"", b"after"]

        done = 0
        for round_ in range(100):
            tasks = [
                asyncio.ensure_future(store.append_many("orders", [b"%d" % round_, b"%d" % round_], durable=True))
                for _ in range(5)
            ]
            for _ in range(round_ % 7):
                await asyncio.sleep(0)
            await asyncio.sleep(0.0001 * (round_ % 5))
            for task in tasks:
                task.cancel()
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            done += sum(not isinstance(outcome, BaseException) for outcome in outcomes)
        await store.append("orders", b"last", durable=True)
        bodies = [m.body async for m in store.read("orders", 0, 2)]
        assert bodies.pop() == b"last"
        assert bodies[::2] == bodies[1::2]
        assert len(bodies) >= 2 * done
        # Again as many are in progress as may be, and no append keeps others from the thread of the loop.
        before = made.stats().appends
        faults.slow_syncs(0.3)
        tasks = [asyncio.ensure_future(store.append_many("orders", [b"end"], durable=True)) for _ in range(6)]
        await until(lambda: made.stats().appends - before >= 4)
        await asyncio.sleep(0.05)
        assert made.stats().appends - before == 4
        faults.clear()
        await asyncio.gather(*tasks)
        at_once = 0
        for _ in range(60):
            before = made.stats().appends
            now = asyncio.ensure_future(store.append("orders", b"now"))
            await asyncio.sleep(0)
            at_once += made.stats().appends - before
            await now
        # The thread makes the appends to the last part of a segment, here fewer than 30.
        assert at_once > 10
    made.close()


@pytest.mark.parametrize("bound", [{"max_appends": 3}, {"max_append_bytes": 3 * 1000}])
def test_no_more_appends_are_under_way_than_may_be(home: Path, bound: dict[str, int]) -> None:
    @in_loop
    async def check() -> None:
        faults = mqstore.testing.Faults()
        made = mqstore.testing.open(home, faults=faults, flush_interval=3600)
        made.append("orders", b"")
        # During a sync, all appends that may be in progress get into the log, before their results.
        faults.slow_syncs(0.02)
        done = 0

        def count(_: object) -> None:
            nonlocal done
            done += 1

        def appended() -> int:
            return made.stats().appends - 1

        async with mqstore.aio.wrap(made, **bound) as store:  # type: ignore[arg-type]
            tasks = [asyncio.ensure_future(store.append("orders", bytes(1000), durable=True)) for _ in range(50)]
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            for task in tasks[10:20]:
                task.cancel()
            # Larger than the limit for appends in progress: it runs alone, in its turn.
            tasks.append(asyncio.ensure_future(store.append("orders", bytes(30_000), durable=True)))
            for task in (*tasks[:10], *tasks[20:]):
                task.add_done_callback(count)
            most = 0
            while done < 41:
                now = appended()
                # The results that the loop has taken reach their tasks.
                for _ in range(4):
                    await asyncio.sleep(0)
                assert now - done <= 3
                most = max(most, now - done)
                await asyncio.sleep(0.001)
            assert most == 3
            outcomes = await asyncio.gather(*tasks, return_exceptions=True)
            assert sum(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes) == 10
            offsets = [o.queue_offset for o in outcomes if isinstance(o, mqstore.AppendResult)]
            assert offsets == list(range(1, 42))
        faults.clear()
        made.close()

    check()


@in_loop
async def test_a_close_makes_what_is_under_way_and_refuses_what_waits_for_room(home: Path) -> None:
    store = await mqstore.aio.open(home, "create", options=SMALL, max_appends=5)
    tasks = [asyncio.ensure_future(store.append("orders", b"%d" % n, durable=True)) for n in range(20)]
    await asyncio.sleep(0)
    closing = asyncio.ensure_future(store.close())
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [mqstore.AppendResult] * 5 + [mqstore.StoreClosedError] * 15
    await closing
    with mqstore.open(home) as reader:
        assert [m.body for m in reader.read("orders")] == [b"0", b"1", b"2", b"3", b"4"]


# Loops, threads, closing.


def test_a_store_belongs_to_the_loop_that_opened_it(home: Path) -> None:
    store = None

    async def opened() -> None:
        nonlocal store
        store = await mqstore.aio.open(home, "create", options=SMALL)
        await store.append("orders", b"")

    async def elsewhere() -> None:
        assert store is not None
        for use in (
            store.append("orders", b""),
            store.topics(),
            store.wait("orders", 0, 0),
            anext(store.read("orders")),
            store.close(),
        ):
            with pytest.raises(RuntimeError, match="another event loop"):
                await use

    with asyncio.Runner() as runner:
        runner.run(opened())
        thread = threading.Thread(target=asyncio.run, args=(elsewhere(),))
        thread.start()
        thread.join()
        assert store is not None
        runner.run(store.close())


def test_several_loops_in_several_threads(home: Path) -> None:
    with mqstore.open(home, "create", options=SMALL) as writer:
        writer.create_topic("orders")
        seen: dict[int, list[int]] = {}

        async def follow(number: int, wraps: bool) -> None:
            if wraps:
                store = mqstore.aio.wrap(writer)
            else:
                store = await mqstore.aio.open(home)
            async with store:
                seen[number] = [m.queue_offset async for m in store.read("orders", 0, follow=True, end=500)]

        threads = [
            threading.Thread(target=lambda n=n: asyncio.run(follow(n, n % 2 == 0)), daemon=True)  # type: ignore[misc]
            for n in range(4)
        ]
        for thread in threads:
            thread.start()
        for _ in range(500):
            writer.append("orders", b"")
        for thread in threads:
            thread.join(LONG)
        assert seen == {n: list(range(500)) for n in range(4)}


def test_two_loops_may_share_one_store(home: Path) -> None:
    """Each loop wraps the same store."""
    with mqstore.open(home, "create", options=SMALL) as store:
        store.create_topic("orders", queues=2)

        async def echo(own: int, other: int) -> None:
            wrapped = mqstore.aio.wrap(store)
            for number in range(100):
                await wrapped.append("orders", b"", queue_id=own, durable=number % 10 == 0)
                assert await wrapped.wait("orders", other, number, timeout=LONG)

        threads = [threading.Thread(target=asyncio.run, args=(echo(n, 1 - n),)) for n in (0, 1)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LONG)
        assert [q.max_offset for q in store.queues("orders")] == [100, 100]


@in_loop
async def test_an_open_that_is_cancelled_leaves_no_store_open(home: Path) -> None:
    await (await mqstore.aio.open(home, "create", options=SMALL)).close()
    for turns in (0, 1, 2, 5, 20, 100):
        task = asyncio.ensure_future(mqstore.aio.open(home, "rw")._make())
        for _ in range(turns):
            await asyncio.sleep(0.0002)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await (await task).close()
        for _ in range(1000):
            try:
                mqstore.open(home, "rw").close()
                break
            except mqstore.StoreLockedError:
                await asyncio.sleep(0.001)
        else:
            pytest.fail("the store stayed open")


@in_loop
async def test_an_open_waits_for_the_lock_and_can_be_cancelled(home: Path) -> None:
    first = mqstore.open(home, "create", options=SMALL)
    with pytest.raises(mqstore.StoreLockedError, match=f"process {os.getpid()}"):
        await mqstore.aio.open(home, "rw", lock_timeout="50ms")
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(mqstore.aio.open(home, "rw", lock_timeout=None)._make(), 0.05)
    await until(lambda: threads_named("mqstore") == [])
    waiting = asyncio.ensure_future(mqstore.aio.open(home, "rw", lock_timeout=LONG)._make())
    await asyncio.sleep(0.02)
    assert not waiting.done()
    first.close()
    await (await waiting).close()


@in_loop
async def test_a_forgotten_await_is_an_error_that_says_so(home: Path) -> None:
    opening = mqstore.aio.open(home, "create", options=SMALL)
    for call in (
        lambda: opening.append("t", b"x"),  # type: ignore[attr-defined]
        opening.__enter__,  # type: ignore[attr-defined]
        lambda: list(opening),  # type: ignore[call-overload]
    ):
        with pytest.raises((AttributeError, TypeError), match=r"`await mqstore.aio.open\(...\)`"):
            call()
    async with opening as store:
        with pytest.raises(AttributeError, match=r"`async with store.work_queue\(...\) as"):
            store.work_queue("jobs").put(b"x")  # type: ignore[attr-defined]
    assert not hasattr(opening, "missing")


@in_loop
async def test_a_long_verb_that_is_cancelled_ends(home: Path) -> None:
    with mqstore.open(home, "create") as made:
        made.append_many("orders", [bytes(1000)] * 20_000)
    async with mqstore.aio.open(home, "rw") as store:
        told: list[mqstore.Progress] = []
        entered, go_on = threading.Event(), threading.Event()

        def progress(step: mqstore.Progress) -> None:
            told.append(step)
            entered.set()
            go_on.wait(LONG)

        task = asyncio.ensure_future(store.verify(progress=progress))
        await until(entered.is_set)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        go_on.set()
        await asyncio.sleep(0.05)
        assert len(told) == 1
        assert (await store.verify()).ok


def test_a_store_that_is_forgotten_warns_and_closes(home: Path) -> None:
    @in_loop
    async def forget() -> None:
        store = await mqstore.aio.open(home, "create", options=SMALL)
        await store.append("orders", b"", durable=True)
        with pytest.warns(ResourceWarning, match="was not closed"):
            del store
            gc.collect()
        mqstore.open(home, "rw").close()

    forget()
    left = []

    async def leave() -> None:
        left.append(await mqstore.aio.open(home, "rw"))
        await left[0].append("orders", b"", durable=True)

    asyncio.run(leave())
    with pytest.warns(ResourceWarning, match="was not closed"):
        left.clear()
        gc.collect()
    with mqstore.open(home, "rw") as store:
        assert len(list(store.read("orders"))) == 2
    assert threads_named("mqstore-append") == []


def test_a_program_that_ends_without_a_close_ends(home: Path) -> None:
    code = (
        "import asyncio, sys, warnings, mqstore.aio\n"
        "warnings.simplefilter('ignore')\n"
        "async def main():\n"
        "    global store\n"
        "    store = await mqstore.aio.open(sys.argv[1], 'create')\n"
        "    await store.append('orders', b'one', durable=True)\n"
        "    global task\n"
        "    task = asyncio.ensure_future(store.wait('orders', 0, 5))\n"
        "    await asyncio.sleep(0)\n"
        "asyncio.run(main())\n"
        "print('ended')\n"
    )
    done = python(code, home)
    assert (done.returncode, done.stdout) == (0, "ended\n"), done.stderr
    with mqstore.open(home, "rw") as store:
        assert [m.body for m in store.read("orders")] == [b"one"]


@in_loop
async def test_a_close_that_is_cancelled_goes_on(home: Path) -> None:
    store = await mqstore.aio.open(home, "create", options=SMALL)
    await store.append("orders", b"one", durable=True)
    task = asyncio.ensure_future(store.close())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await store.close()
    mqstore.open(home, "rw").close()


FORKED_WAITS = """
import os, sys, threading, time, mqstore
from mqstore import _native

store = mqstore.open(sys.argv[1], "rw")
link = _native.LoopLink(store, 1, 1)
# Many waits make each change of their list longer, so that most forks happen during one.
waits = [link.wait("t", 0, 1_000_000 + number, number) for number in range(20_000)]
stop = threading.Event()

def work(first):
    number = first
    while not stop.is_set():
        number += 1
        link.wait("t", 0, 1_000_000, number).cancel()

threads = [threading.Thread(target=work, args=(10**9 * part,)) for part in (1, 2, 3)]
for thread in threads:
    thread.start()
for number in range(int(sys.argv[2])):
    child = os.fork()
    if child == 0:
        waits[number].cancel()
        link.end()
        os._exit(0)
    deadline = time.monotonic() + 20
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        if time.monotonic() > deadline:
            os.kill(child, 9)
            os.waitpid(child, 0)
            stop.set()
            sys.exit(f"child {number} hangs")
        time.sleep(0.001)
stop.set()
for thread in threads:
    thread.join()
store.close()
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_forked_child_cancels_a_wait_of_its_parent(home: Path) -> None:
    with mqstore.open(home, "create", options=SMALL) as store:
        store.append("t", b"first")
    done = python(FORKED_WAITS, home, 400, PYTHONWARNINGS="ignore::DeprecationWarning")
    assert done.returncode == 0, done.stderr
