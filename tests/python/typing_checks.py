"""Expected types of the public API. ``test_typing`` runs mypy on this file, which is never executed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Unpack, assert_type

import mqstore
import mqstore.aio
from mqstore.types import StoreOptionsDict


def options(path: str, **given: Unpack[StoreOptionsDict]) -> None:
    tuned = mqstore.BrokerOptions(prewarm=False)
    mqstore.open(path, "rw", segment_size=4096, retention=timedelta(days=3), advanced=tuned)
    mqstore.open(path, options=mqstore.StoreOptions(advanced=tuned), progress=lambda step: print(step.done))
    mqstore.open(path, **given)
    mqstore.open(path, "rw", lock_timeout="90s", retention="7d", flush_interval=0.5, delay_levels=["1s", 5])
    mqstore.open(path, lock_timeout=None)
    mqstore.open(path, lock_timeout=b"1")  # type: ignore[arg-type]
    mqstore.open(path, lock_timout=1)  # type: ignore[call-arg]
    mqstore.aio.open(path, "rw", lock_timeout=timedelta(seconds=1), max_append_bytes=1)
    mqstore.aio.open(path, "rw", durability="sync", max_appends=10)
    mqstore.open(path, segment_size="4096")  # type: ignore[arg-type]
    mqstore.open(path, durability="maybe")  # type: ignore[arg-type]
    mqstore.open(path, prewarm=False)  # type: ignore[call-arg]
    mqstore.aio.open(path, segmentsize=1)  # type: ignore[call-arg]


def api(path: str | os.PathLike[str]) -> None:
    with mqstore.open(path, mode="create", segment_size=4096) as store:
        assert_type(store, mqstore.Store)
        result = store.append("t", b"x", keys=["k"], tags=None, properties={"a": "b"})
        assert_type(result, mqstore.AppendResult)
        assert_type(result.message_id, str)
        store.append("t", bytearray(b"x"), keys="k", born_timestamp=datetime.now(UTC))
        store.append("t", memoryview(b"x"), queue_id=1, flag=2, durable=True)
        results = store.append_many("t", [b"a", mqstore.Message(b"b", keys=("k",))])
        assert_type(results, mqstore.AppendResults)
        assert_type(results[0], mqstore.AppendResult)
        assert_type(results[1:] + results, list[mqstore.AppendResult])
        assert_type(store.append_batch("t", [b"a", bytearray(b"b")], ["k", None], "x"), mqstore.AppendResults)
        assert_type(store.append_arrow("t", store.scan()), int)
        table = store.table("t")
        table["k"] = b"v"
        del table["k"]
        queue = store.work_queue("jobs", visibility_timeout=timedelta(minutes=1))
        with queue.get() as job:
            assert_type(job, mqstore.LeasedMessage)
            job.nack(delay=1, reason="later")
        assert_type(queue.leased(), list[mqstore.Lease])
        found = store.read("t", 0, filter="a || b", follow=True, timeout=timedelta(seconds=1))
        assert_type(found, Iterator[mqstore.StoredMessage])
        condition = mqstore.sql("a > 5")
        assert_type(condition, mqstore.SqlFilter)
        assert_type(condition.properties, tuple[str, ...])
        assert_type(condition.matches({"a": "6"}), bool)
        assert_type(condition.evaluate(mqstore.Message(b"x")), bool | None)
        store.read("t", 0, filter=condition)
        for message in found:
            assert_type(message.body, bytes)
            assert_type(message.keys, tuple[str, ...])
            assert_type(message.tags, str | None)
            assert_type(message.properties, dict[str, str])
            assert_type(message.born_time, datetime)
            assert_type(message.unique_id, str | None)
        assert_type(store.get(result.message_id), mqstore.StoredMessage | None)
        assert_type(store.get_at(0), mqstore.StoredMessage)
        assert_type(store.wait("t", 0, 1, timeout=0.5), bool)
        assert_type(store.wait("t"), bool)
        store.read("t", start=datetime.now(UTC), end="2030-01-01T00:00:00Z")
        assert_type(store.tail("t", 5), list[mqstore.StoredMessage])
        assert_type(store.count("t"), int)
        assert_type(store.offset_for_time("t", 0, 5, boundary="upper"), int)
        assert_type(store.topics(), list[str])
        assert_type(store.queues("t"), list[mqstore.QueueInfo])
        assert_type(store.stats(), mqstore.StoreStats)
        assert_type(store.verify(), mqstore.VerifyReport)
    assert_type(mqstore.info(Path("s")), mqstore.StoreInfo)
    assert_type(mqstore.verify("s", progress=print).problems, tuple[mqstore.Problem, ...])
    assert_type(mqstore.compact("s", in_place=True), mqstore.CompactionReport)
    try:
        mqstore.open("s")
    except mqstore.StoreLockedError as error:
        assert_type(error.pid, int | None)
    except mqstore.CorruptionError as error:
        assert_type(error.offset, int)


async def awaited(path: str | os.PathLike[str]) -> None:
    assert_type(await mqstore.aio.open(path), mqstore.aio.Store)
    async with mqstore.aio.open(path, mode="create", segment_size=4096, max_appends=5) as store:
        assert_type(store, mqstore.aio.Store)
        result = await store.append("t", b"x", keys=["k"], properties={"a": "b"}, durable=True)
        assert_type(result, mqstore.AppendResult)
        assert_type(await store.append_many("t", [b"a", mqstore.Message(b"b")]), mqstore.AppendResults)
        assert_type(await store.append_batch("t", [b"a"], [["k", "l"]], ["x"]), mqstore.AppendResults)
        async for message in store.read("t", 0, follow=True, timeout=timedelta(seconds=1)):
            assert_type(message, mqstore.StoredMessage)
        assert_type([message async for message in store.lookup("t", "k")], list[mqstore.StoredMessage])
        assert_type(await store.get(result.message_id), mqstore.StoredMessage | None)
        assert_type(await store.wait("t", 0, 1, timeout=0.5), bool)
        assert_type(await store.tail("t", 5), list[mqstore.StoredMessage])
        assert_type(await store.count("t"), int)
        assert_type(await store.offset_for_time("t", 0, 5, boundary="upper"), int)
        assert_type(await store.topics(), list[str])
        assert_type(await store.queues("t"), list[mqstore.QueueInfo])
        assert_type(await store.verify(progress=print), mqstore.VerifyReport)
        assert_type(await store.compact("t", dry_run=True), mqstore.CompactionReport)
        assert_type(await (await store.table("t"))["k"], mqstore.StoredMessage)
        assert_type(await (await store.table("t")).set("k", b"v"), mqstore.AppendResult)
        assert_type(store.scan(columns=["body"]), mqstore.aio.Scan)
        await awaited_delivery(store)
    assert_type(await mqstore.aio.info(path), mqstore.StoreInfo)
    assert_type(mqstore.aio.scan(path), mqstore.aio.Scan)


async def awaited_delivery(store: mqstore.aio.Store) -> None:
    assert_type(await store.work_queue("jobs", maxsize=5, max_attempts=None), mqstore.aio.WorkQueue)
    async with store.work_queue("jobs", backoff=lambda attempt: timedelta(seconds=attempt)) as queue:
        assert_type(queue, mqstore.aio.WorkQueue)
        assert_type(await queue.put(b"x", keys="k", delay=timedelta(seconds=1)), mqstore.AppendResult)
        assert_type(await queue.put_many([b"x", mqstore.Message(b"y")]), list[mqstore.AppendResult])
        message = await queue.get(timeout=1)
        assert_type(message, mqstore.LeasedMessage)
        assert_type(await queue.get_many(5, timeout=timedelta(seconds=1)), list[mqstore.LeasedMessage])
        await queue.ack(message, durable=True)
        assert_type(await queue.join(timeout=0.5), bool)
        assert_type(await queue.counts(), mqstore.WorkQueueCounts)
        assert_type(await queue.qsize(), int)
        assert_type(await queue.put(b"x", dedup_id="a", deliver_at=datetime.now(UTC)), mqstore.AppendResult)
        async with await queue.get() as job:
            assert_type(job, mqstore.LeasedMessage)
            await queue.nack(job, reason="later")
        assert_type(await queue.peek(2), list[mqstore.StoredMessage])
        assert_type(await queue.leased(), list[mqstore.Lease])
        assert_type(await queue.purge(), int)
        assert_type(await queue.redrive(limit=3), int)
        assert_type(queue.max_attempts, int | None)
    assert_type(await store.consumer("g", "t"), mqstore.aio.Consumer)
    async with store.consumer("g", ["t"], start=5) as consumer:
        assert_type(consumer, mqstore.aio.Consumer)
        assert_type(await consumer.poll(10, timeout=1), list[mqstore.StoredMessage])
        async for stored in consumer:
            assert_type(stored, mqstore.StoredMessage)
        await consumer.commit({("t", 0): 5}, durable=True)
        assert_type(await consumer.position("t", 0), int)
        assert_type(consumer.assignment, tuple[tuple[str, int], ...])


async def awaited_mistakes(store: mqstore.aio.Store) -> None:
    queue = await store.work_queue("jobs")
    await queue.put("text")  # type: ignore[arg-type]
    await queue.ack(b"x")  # type: ignore[arg-type]
    store.work_queue("jobs").get()  # type: ignore[attr-defined]
    await (await store.consumer("g", "t")).poll("many")  # type: ignore[arg-type]
    await store.append("t", "text")  # type: ignore[arg-type]
    await store.offset_for_time("t", 0, 0, boundary="middle")  # type: ignore[arg-type]
    await store.get()  # type: ignore[call-arg]
    print((store.topics()).body)  # type: ignore[attr-defined]


def mistakes(store: mqstore.Store) -> None:
    store.append("t", "text")  # type: ignore[arg-type]
    store.append("t", b"x", "k")  # type: ignore[call-arg]
    store.append_arrow("t", [b"x"])  # type: ignore[arg-type]
    store.offset_for_time("t", 0, 0, boundary="middle")  # type: ignore[arg-type]
    mqstore.open("s", "w")  # type: ignore[arg-type]
    print(store.read("t").body)  # type: ignore[attr-defined]
