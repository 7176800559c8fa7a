"""`mqstore.aio`: the verbs for event loops, waits and reads."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import pickle
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import mqstore
import mqstore.aio
from conftest import SMALL, python
from loops import LONG, count_wakes, in_loop, tasks_of_process, threads_named, waits_of_process

# Names and parameters.


def parameters(thing: Any) -> list[tuple[str, Any, object]]:
    """Names, kinds and defaults without `self`, which is positional-only in native methods."""
    found = list(inspect.signature(thing).parameters.values())
    return [(each.name, each.kind, each.default) for each in found if each.name != "self"]


METHODS = [name for name in dir(mqstore.Store) if not name.startswith("_")]
# Methods that return an iterator, an object that reads when used, or one for `async with`.
NO_COROUTINES = {"read", "lookup", "scan", "consumer", "work_queue", "transaction"}


@pytest.mark.parametrize("name", METHODS)
def test_every_verb_of_a_store_has_its_twin(name: str) -> None:
    own, twin = inspect.getattr_static(mqstore.Store, name), inspect.getattr_static(mqstore.aio.Store, name)
    assert inspect.getdoc(getattr(mqstore.aio.Store, name))
    if not callable(own):
        assert isinstance(twin, property)
        return
    assert parameters(twin) == parameters(own)
    assert inspect.iscoroutinefunction(twin) == (name not in NO_COROUTINES)
    assert getattr(twin, "__module__", None) == "mqstore.aio._store" or twin.__module__ == "mqstore.aio"


@pytest.mark.parametrize("name", METHODS)
def test_arguments_and_errors_are_those_of_the_verb(name: str) -> None:
    own, twin = (inspect.getdoc(getattr(kind, name)) or "" for kind in (mqstore.Store, mqstore.aio.Store))
    assert twin.partition("\n\nArgs:")[2] == own.partition("\n\nArgs:")[2]


CLASSES = [
    *("Consumer", "LogicMessages", "LogicQueues", "Messages", "Scan", "Store", "StoreArchive", "Table"),
    *("Transaction", "WorkQueue"),
]
VERBS = [
    *("open", "info", "verify", "repair", "rebuild", "compact", "export", "import_", "restore_compaction", "scan"),
    *("fetch", "published", "clean", "copy_topic", "open_logic_queues"),
]


@pytest.mark.parametrize("name", VERBS)
def test_every_function_has_its_twin(name: str) -> None:
    twin = getattr(mqstore.aio, name)
    more = {"max_appends", "max_append_bytes"} if name == "open" else set()
    assert [each for each in parameters(twin) if each[0] not in more] == parameters(getattr(mqstore, name))
    assert inspect.iscoroutinefunction(twin) == (name not in ("open", "open_logic_queues", "scan"))
    assert inspect.getdoc(twin)


def test_public_names() -> None:
    assert set(mqstore.aio.__all__) == {*VERBS, *CLASSES, "wrap"}
    for name in mqstore.aio.__all__:
        assert getattr(mqstore.aio, name).__module__ == "mqstore.aio", name
    functions = {name for name in mqstore.__all__ if inspect.isfunction(getattr(mqstore, name))}
    # `sql` makes a filter, `promote` and `demote` change one file, and the others start a thread.
    assert functions == {*VERBS, "backup", "demote", "follow", "promote", "sql"}


def test_importing_it_starts_nothing() -> None:
    done = python(
        "import asyncio, threading, mqstore.aio\n"
        "assert threading.active_count() == 1\n"
        "assert asyncio.events._get_running_loop() is None"
    )
    assert done.returncode == 0, done.stderr


# Verbs.


@in_loop
async def test_the_verbs_answer_as_those_of_a_store(home: Path) -> None:
    async with mqstore.aio.open(home, "create", options=SMALL) as store:
        assert (store.path, store.mode, store.closed) == (str(home), "create", False)
        await store.create_topic("orders", queues=2)
        one = await store.append("orders", b"one", keys=["A-1"], tags="paid", properties={"n": "1"}, queue_id=0)
        many = await store.append_many("orders", [b"two", mqstore.Message(b"three", keys="A-1")], queue_id=1)
        durable = await store.append("orders", bytearray(b"four"), queue_id=0, flag=7, durable=True)
        assert (one.queue_offset, [r.queue_offset for r in many], durable.queue_offset) == (0, [0, 1], 1)
        assert durable.durable
        await store.flush()
        assert await store.topics() == ["orders"]
        assert [(q.min_offset, q.max_offset) for q in await store.queues("orders")] == [(0, 2), (0, 2)]
        assert [m.body async for m in store.read("orders", 0)] == [b"one", b"four"]
        assert [m.body async for m in store.read("orders", 0, filter="paid")] == [b"one"]
        assert [m.body async for m in store.read("orders", 0, filter=mqstore.sql("n = '1'"))] == [b"one"]
        assert [m.body async for m in store.read("orders", 1, 1)] == [b"three"]
        assert [m.body async for m in store.lookup("orders", "A-1")] == [b"one", b"three"]
        assert [m.body async for m in store.lookup("orders", "A-1", newest_first=True, limit=1)] == [b"three"]
        found = await store.get(one.message_id)
        assert found is not None
        assert found.properties["n"] == "1"
        assert (await store.get_at(durable.commit_log_offset)).flag == 7
        assert await store.message_at("orders", 0, 0) == found
        assert await store.messages_at("orders", 0, [0]) == [found]
        assert await store.offset_for_time("orders", 0, one.store_timestamp) == 0
        assert (await store.stats()).appends == 4
        assert store.confirm_offset is None
        assert (await store.rebuild()).messages == 4
        assert (await store.expire()).segments == 0
        assert (await store.verify()).ok
        report = await store.snapshot(home.with_name("copy"))
        assert report.messages == 4
        assert store.sync.topics() == ["orders"]
    assert store.closed
    await store.close()
    assert (await mqstore.aio.info(home)).messages == 4
    assert (await mqstore.aio.verify(home.with_name("copy"))).ok
    for call in (store.topics, store.stats, store.delays):
        with pytest.raises(mqstore.StoreClosedError):
            await call()


@in_loop
async def test_errors_are_those_of_a_store(home: Path) -> None:
    with pytest.raises(mqstore.NotAStoreError):
        await mqstore.aio.open(home)
    with pytest.raises(mqstore.InvalidOptionError, match="max_appends"):
        await mqstore.aio.open(home, "create", max_appends=0)
    with pytest.raises(TypeError, match="max_append_bytes"):
        await mqstore.aio.open(home, "create", max_append_bytes=1.5)
    store = await mqstore.aio.open(home, "create", options=SMALL)
    async with store:
        for durable in (False, True):
            with pytest.raises(TypeError, match="encode"):
                await store.append("orders", "text", durable=durable)  # type: ignore[arg-type]
            with pytest.raises(mqstore.InvalidMessageError):
                await store.append("orders", b"", keys="a b", durable=durable)
            with pytest.raises(mqstore.InvalidMessageError):
                await store.append("no topic", b"", durable=durable)
            with pytest.raises(mqstore.MessageTooLargeError):
                await store.append("orders", bytes(70_000), durable=durable)
        await store.append("orders", b"")
        for messages in (store.read("nowhere"), store.read("nowhere", follow=True)):
            for _ in range(2):
                with pytest.raises(mqstore.TopicNotFoundError):
                    await anext(messages)
        with pytest.raises(mqstore.OffsetOutOfRangeError):
            await anext(store.read("orders", 0, 7))
        with pytest.raises(TypeError, match="timeout"):
            await store.wait("orders", 0, 0, b"soon")  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="cannot pickle"):
            pickle.dumps(store)
        with pytest.raises(mqstore.StoreLockedError):
            async with mqstore.aio.open(home, "rw"):
                pass
        async with mqstore.aio.open(home) as reader:
            with pytest.raises(mqstore.StoreReadOnlyError):
                await reader.append("orders", b"")


def failing_messages() -> Iterator[bytes]:
    """Raises the TypeError of a mistake of the program, with its cause."""
    yield b""
    raise TypeError("mistake") from ValueError("cause")


@in_loop
async def test_errors_of_wrong_calls_name_the_verb(home: Path) -> None:
    async with mqstore.aio.open(home, "create", options=SMALL) as store, store.work_queue("jobs") as queue:
        wrong: list[tuple[str, Callable[..., Any], tuple[Any, ...]]] = [
            ("append", store.append, ("orders", b"")),
            ("append_many", store.append_many, ("orders", [b""])),
            ("append_batch", store.append_batch, ("orders", [b""])),
            ("read", store.read, ("orders",)),
            ("lookup", store.lookup, ("orders", "key")),
            ("put", queue.put, (b"",)),
            ("put_nowait", queue.put_nowait, (b"",)),
            ("put_many", queue.put_many, ([b""],)),
        ]
        for name, verb, args in wrong:
            with pytest.raises(TypeError, match=rf"^{name}\(\): got an unexpected keyword argument 'no'"):
                await verb(*args, no=True)
        with pytest.raises(TypeError, match=r"^put_nowait\(\): got an unexpected keyword argument 'block'"):
            await queue.put_nowait(b"", block=True)  # type: ignore[call-arg]
        for call in (store.append_many("orders", failing_messages()), queue.put_many(failing_messages())):
            with pytest.raises(TypeError, match=r"^mistake$") as caught:
                await call
            assert isinstance(caught.value.__cause__, ValueError)


@in_loop
async def test_an_open_store_can_be_wrapped(home: Path) -> None:
    made = mqstore.open(home, "create", options=SMALL)
    async with mqstore.aio.wrap(made) as store:
        await store.append("orders", b"one", durable=True)
        waiting = asyncio.ensure_future(store.wait("orders", 0, 1))
        await asyncio.sleep(0.01)
    with pytest.raises(mqstore.StoreClosedError):
        await waiting
    assert (store.closed, made.closed) == (True, False)
    made.append("orders", b"two")
    # A dropped wrapper gives no warning, because it does not own the store.
    store = mqstore.aio.wrap(made)
    assert [m.body async for m in store.read("orders")] == [b"one", b"two"]
    waiting = asyncio.ensure_future(store.wait("orders", 0, 2))
    await asyncio.sleep(0.01)
    await asyncio.to_thread(made.close)
    with pytest.raises(mqstore.StoreClosedError):
        await waiting


@in_loop
async def test_scans_and_tables(home: Path) -> None:
    pytest.importorskip("pyarrow")
    async with mqstore.aio.open(home, "create", options=SMALL) as store:
        await store.create_topic("prices", queues=2, attributes={"cleanup.policy": "COMPACTION"})
        for number in range(20):
            await store.append("prices", b"%d" % number, keys=f"k{number % 5}")
        scan = store.scan(columns=["queue_offset", "body"], batch_size=7)
        assert list(scan.schema.names) == ["queue_offset", "body"]
        rows = [len(batch) async for batch in scan]
        assert (len(rows) > 2, sum(rows), (await scan.to_arrow()).num_rows) == (True, 20, 20)
        async for _ in scan:
            break
        table = await store.table("prices")
        assert sorted(await table.keys()) == [f"k{n}" for n in range(5)]
        assert (await table["k3"]).body == b"18"
        assert await table.get("no", None) is None
        with pytest.raises(KeyError):
            await table["no"]
        assert (await table.count(), await table.contains("k1"), len(await table.items())) == (5, True, 5)
        changes = aiter(table.changes(timeout=5))
        first = asyncio.ensure_future(anext(changes))
        await asyncio.sleep(0.05)
        result = await store.append("prices", b"", keys="k3")
        change = await first
        assert (change.key, change.message, change.queue_offset) == ("k3", None, result.queue_offset)
        assert await table.wait_until(result.queue_offset, queue_id=result.queue_id)
        assert not await table.contains("k3")
        assert [change.key async for change in table.changes(timeout=0.05)] == []
        report = await store.compact()
        assert report.keys == 5


# Waiting.


@in_loop
async def test_a_wait_ends_by_the_message_or_by_its_time(home: Path) -> None:
    async with mqstore.aio.open(home, "create", options=SMALL) as store:
        await store.create_topic("orders", queues=2)
        assert not await store.wait("orders", 0, 0, timeout=0)
        assert not await store.wait("orders", 0, 0, timeout=0.02)
        later = asyncio.ensure_future(store.wait("orders", 0, 1))
        unmade = asyncio.ensure_future(store.wait("unmade", 3, 0))
        await asyncio.sleep(0.01)
        await store.append("orders", b"", queue_id=0)
        await store.append("orders", b"", queue_id=1)
        await asyncio.sleep(0.01)
        assert not later.done()
        # Appended by another thread, so that only a sync makes it readable.
        await asyncio.to_thread(store.sync.append, "orders", b"", queue_id=0)
        assert await later
        await store.append("unmade", b"", queue_id=3, durable=True)
        assert await unmade
        assert await store.wait("orders", 0, 1)


@in_loop
async def test_a_wait_for_what_becomes_visible_by_a_sync(home: Path) -> None:
    async with mqstore.aio.open(home, "create", options=SMALL, visibility="durable", flush_interval=3600) as store:
        await store.create_topic("orders")
        waiting = asyncio.ensure_future(store.wait("orders", 0, 0))
        await asyncio.sleep(0.01)
        await store.append("orders", b"")
        assert not await store.wait("orders", 0, 0, timeout=0.01)
        await store.flush()
        assert await waiting


@pytest.mark.soak
@in_loop
async def test_ten_thousand_waits_cost_no_thread(home: Path) -> None:
    async with mqstore.aio.open(home, "create", options=SMALL) as store:
        await store.create_topic("orders", queues=10)
        await store.topics()
        empty = waits_of_process()
        before, named = tasks_of_process(), set(threads_named("mqstore"))
        waits = [asyncio.ensure_future(store.wait("orders", n % 10, n // 1000, timeout=LONG)) for n in range(10_000)]
        # Each turn of the loop starts some of them.
        await asyncio.sleep(0.1)
        assert not any(wait.done() for wait in waits)
        # Other threads may start and end meanwhile, but not thousands.
        assert tasks_of_process() < before + 100
        assert set(threads_named("mqstore")) <= named
        for n in range(10):
            for queue_id in range(10):
                await store.append("orders", b"", queue_id=queue_id)
            done = await asyncio.gather(*waits[n * 1000 : (n + 1) * 1000])
            assert all(done)
            assert not any(wait.done() for wait in waits[(n + 1) * 1000 :])
        waits.clear()
        done.clear()
        await asyncio.sleep(0.1)
        assert waits_of_process() < empty + 100


@in_loop
async def test_a_wait_that_is_cancelled_leaves_nothing(home: Path) -> None:
    wakes = count_wakes(asyncio.get_running_loop())
    async with mqstore.aio.open(home, "create", options=SMALL) as store:
        # The later append needs no thread.
        await store.append("orders", b"")
        async with mqstore.aio.open(home) as reader:
            empty = waits_of_process()
            waits = [(store, "orders"), (store, "no"), (reader, "orders")] * 20
            for one, topic in waits:
                task = asyncio.ensure_future(one.wait(topic, 0, 1))
                await asyncio.sleep(0.01)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
            await asyncio.sleep(0.1)
            assert waits_of_process() < empty + 10
        # No message wakes the loop for a cancelled wait.
        wakes.clear()
        await store.append("orders", b"")
        await store.stats()
        assert not wakes
        later = asyncio.ensure_future(store.wait("orders", 0, 2))
        await asyncio.sleep(0.01)
        await store.append("orders", b"")
        assert await later
        assert wakes


@in_loop
async def test_a_close_ends_waits_with_an_error(home: Path) -> None:
    store = await mqstore.aio.open(home, "create", options=SMALL)
    await store.create_topic("orders")
    reader = await mqstore.aio.open(home)
    waits: list[Awaitable[object]] = [
        store.wait("orders", 0, 0),
        store.wait("no", 0, 0, timeout=30),
        anext(store.read("orders", follow=True)),
        reader.wait("orders", 0, 0),
        anext(reader.read("orders", follow=True)),
    ]
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    await asyncio.sleep(0.05)
    closing = [asyncio.ensure_future(reader.close()), *(asyncio.ensure_future(store.close()) for _ in range(2))]
    outcomes = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [mqstore.StoreClosedError] * 5
    await asyncio.gather(*closing)
    with pytest.raises(mqstore.StoreClosedError):
        await store.wait("orders", 0, 0)


@pytest.mark.slow
@in_loop
async def test_beside_a_writer_waits_are_looked_at_together(home: Path) -> None:
    writer = mqstore.open(home, "create", options=SMALL)
    writer.create_topic("orders", queues=2)
    async with mqstore.aio.open(home) as reader:
        waits = [asyncio.ensure_future(reader.wait("orders", n % 2, n // 2, timeout=LONG)) for n in range(2000)]
        late = asyncio.ensure_future(reader.wait("orders", 0, 5000, timeout=0.3))
        await asyncio.sleep(0.1)
        assert len(threads_named("mqstore_")) <= 4
        await asyncio.to_thread(
            lambda: [writer.append_many("orders", [b""] * 1000, queue_id=queue_id) for queue_id in (0, 1)]
        )
        assert all(await asyncio.gather(*waits))
        assert not await late
        assert await reader.wait("orders", 0, 3, timeout=0)
        assert not await reader.wait("orders", 0, 3000, timeout=0)
        assert len([m async for m in reader.read("orders", 1)]) == 1000
    writer.close()


# Reading.


@pytest.mark.parametrize("mode", ["rw", "r"])
def test_a_follower_gets_all_in_order(home: Path, mode: str) -> None:
    @in_loop
    async def follow() -> None:
        writer = await mqstore.aio.open(home, "create", options=SMALL)
        await writer.append_many("orders", [b"%d" % n for n in range(300)])
        store = writer if mode == "rw" else await mqstore.aio.open(home)

        async def append() -> None:
            for number in range(300, 600):
                await writer.append("orders", b"%d" % number, tags="even" if number % 2 == 0 else "odd")
                await asyncio.sleep(0 if number % 50 else 0.01)

        appending = asyncio.ensure_future(append())
        seen = [m.body async for m in store.read("orders", 0, follow=True, timeout=1, end=600)]
        assert seen == [b"%d" % n for n in range(600)]
        await appending
        even = [int(m.body) async for m in store.read("orders", 0, 300, follow=True, timeout=0.05, filter="even")]
        assert even == list(range(300, 600, 2))
        began = time.monotonic()
        assert [m async for m in store.read("orders", 0, 600, follow=True, timeout=0.1)] == []
        assert time.monotonic() - began > 0.09
        await store.close()
        await writer.close()

    follow()


@in_loop
async def test_a_filter_may_pass_over_many(home: Path) -> None:
    async with mqstore.aio.open(home, "create", segment_size=1 << 20) as store:
        await store.append_many("orders", [mqstore.Message(b"%d" % n, properties={"n": str(n)}) for n in range(4000)])
        last = mqstore.sql("n >= 3999")
        async with mqstore.aio.open(home) as reader:
            for one in (store, reader):
                assert [m.body async for m in one.read("orders", filter=last)] == [b"3999"]
                assert [m.body async for m in one.read("orders", filter=last, follow=True, timeout=0.05)] == [b"3999"]


@in_loop
async def test_who_is_cancelled_while_reading_loses_no_message(home: Path) -> None:
    writer = mqstore.open(home, "create", options=SMALL)
    writer.create_topic("orders")

    def append(bodies: list[bytes]) -> None:
        for body in bodies:
            writer.append("orders", body)

    async with (
        mqstore.aio.wrap(writer) as store,
        mqstore.aio.open(home) as reader,
        contextlib.AsyncExitStack() as stack,
    ):
        stack.callback(writer.close)
        for one in (store, reader):
            messages = one.read("orders", 0, writer.queues("orders")[0].max_offset, follow=True)
            seen: list[bytes] = []
            wanted = [b"%d" % n for n in range(200)]
            appending = asyncio.create_task(asyncio.to_thread(append, wanted))
            while len(seen) < len(wanted):
                try:
                    seen.append((await asyncio.wait_for(anext(messages), 0.0005)).body)
                except TimeoutError:
                    continue
            await appending
            assert seen == wanted


@pytest.mark.slow
@in_loop
async def test_tasks_that_share_an_iterator_get_each_message_once(home: Path) -> None:
    async with mqstore.aio.open(home, "create", options=SMALL) as store:
        await store.create_topic("orders")
        messages = store.read("orders", follow=True, timeout=2)

        async def take() -> list[bytes]:
            return [m.body async for m in messages]

        takers = [asyncio.ensure_future(take()) for _ in range(5)]
        for number in range(500):
            await store.append("orders", b"%d" % number)
            if number % 100 == 0:
                await asyncio.sleep(0.01)
        taken = await asyncio.gather(*takers)
        assert sorted(int(body) for bodies in taken for body in bodies) == list(range(500))
        await messages.aclose()
        with pytest.raises(StopAsyncIteration):
            await anext(messages)


@in_loop
async def test_who_never_waits_lets_others_have_the_loop(home: Path) -> None:
    async with mqstore.aio.open(home, "create", segment_size=16 << 20) as store:
        await store.append("orders", b"")
        turns = 0

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                await asyncio.sleep(0)

        task = asyncio.create_task(others())
        for _ in range(5000):
            await store.append("orders", b"x")
        appended = turns
        for _ in range(5000):
            await store.wait("orders", 0, 0)
        waited = turns - appended
        read = len([m async for m in store.read("orders")])
        task.cancel()
        assert read == 5001
        assert min(appended, waited) > 50
