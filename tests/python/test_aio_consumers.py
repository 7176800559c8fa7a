"""`mqstore.aio`: consumers for event loops."""

from __future__ import annotations

import asyncio
import pickle
import random
from collections import Counter
from pathlib import Path

import pytest

import mqstore
import mqstore.aio
import mqstore.testing
from conftest import SMALL
from loops import LONG, cancelled_soon, in_loop, until


@in_loop
async def test_poll_and_commit(home: Path) -> None:
    async with mqstore.aio.open(home, "create", options=SMALL) as store:
        await store.create_topic("orders", queues=2)
        for number in range(6):
            await store.append("orders", b"%d" % number, queue_id=number % 2, tags="even" if number % 4 == 0 else "odd")
        consumer = await store.consumer("billing", ["orders"])
        assert (consumer.group, consumer.topics, consumer.closed) == ("billing", ("orders",), False)
        assert consumer.assignment == (("orders", 0), ("orders", 1))
        assert repr(consumer).startswith("<mqstore.aio.Consumer group='billing'")
        with pytest.raises(TypeError, match="cannot pickle"):
            pickle.dumps(consumer)
        assert len(await consumer.poll(4)) == 4
        assert await consumer.poll(0) == []
        await consumer.commit()
        assert sum((await consumer.lag()).values()) == 2
        assert len(await consumer.poll(timeout=LONG)) == 2
        assert await consumer.poll(timeout=0.01) == []
        await consumer.commit({("orders", 0): 1}, durable=True)
        await consumer.commit(durable=True)
        assert await consumer.committed("orders", 0) == 3
        assert await consumer.position("orders", 1) == 3
        await consumer.seek("orders", 0, 1)
        assert [m.body for m in await consumer.poll()] == [b"2", b"4"]
        waiting = asyncio.ensure_future(consumer.poll())
        await asyncio.sleep(0.01)
        await consumer.seek_to_time(0)
        assert len(await waiting) + len(await consumer.poll(timeout=0)) == 6
        await consumer.reset("latest", durable=True)
        with pytest.raises(mqstore.OffsetOutOfRangeError):
            await consumer.seek("orders", 0, 99)
        with pytest.raises(mqstore.QueueNotAssignedError):
            await consumer.commit({("orders", 7): 0})
        await consumer.close()
        with pytest.raises(mqstore.ConsumerClosedError):
            await consumer.poll()
        async with store.consumer("audit", "orders", "even", history=True, commit_interval=0) as audit:
            assert [m.body for m in await audit.poll()] == [b"0", b"4"]
            await audit.commit()
        assert len(await store.offset_history("audit")) == 2
        assert audit.closed


@in_loop
async def test_iteration_follows_and_commits_what_was_seen(home: Path) -> None:
    async with mqstore.aio.open(home, "create", options=SMALL) as store:
        consumer = await store.consumer("group", "orders")

        seen: list[int] = []

        async def follow() -> None:
            async for message in consumer:
                seen.append(message.queue_offset)
                if len(seen) == 50:
                    await consumer.commit()

        task = asyncio.ensure_future(follow())
        await asyncio.sleep(0.01)
        # The topic did not exist when the consumer started.
        for number in range(100):
            await store.append("orders", b"%d" % number, queue_id=0)
            if number % 30 == 0:
                await asyncio.sleep(0.005)
        await until(lambda: len(seen) == 100)
        assert await consumer.committed("orders", 0) == 50
        await consumer.close()
        await task
        assert seen == list(range(100))


@in_loop
async def test_cancelled_polls_lose_nothing(home: Path) -> None:
    chance = random.Random(3)
    async with mqstore.aio.open(home, "create", options=SMALL) as store:
        await store.create_topic("orders", queues=3)
        consumer = await store.consumer("group", "orders")
        seen: Counter[int] = Counter()

        async def append() -> None:
            for number in range(2000):
                await store.append("orders", b"%d" % number)
                if chance.random() < 0.05:
                    await asyncio.sleep(chance.random() / 500)

        appending = asyncio.ensure_future(append())
        cancelled = 0
        while sum(seen.values()) < 2000:
            polls: list[asyncio.Future[list[mqstore.StoredMessage]]] = [
                asyncio.ensure_future(consumer.poll(chance.randrange(1, 20))) for _ in range(3)
            ]
            cancelled += await cancelled_soon(polls, chance)
            for outcome in await asyncio.gather(*polls, return_exceptions=True):
                if isinstance(outcome, list):
                    seen.update(int(message.body) for message in outcome)
            # A commit never goes beyond the returned messages.
            await consumer.commit()
            assert sum((await consumer.lag()).values()) >= 0
            await asyncio.sleep(0)
        await appending
        assert cancelled > 50
        assert sorted(seen) == list(range(2000))
        assert set(seen.values()) == {1}
        await consumer.commit()
        assert set((await consumer.lag()).values()) == {0}


@in_loop
async def test_consumers_of_a_group_in_one_loop_share_its_queues(home: Path) -> None:
    async with mqstore.aio.open(home, "create", options=SMALL) as store:
        await store.create_topic("orders", queues=4)
        seen: Counter[tuple[int, int]] = Counter()

        async def consume(consumer: mqstore.aio.Consumer) -> None:
            async for message in consumer:
                seen[message.queue_id, message.queue_offset] += 1
                await consumer.commit()

        first = await store.consumer("group", "orders", ordered=True)
        tasks = [asyncio.ensure_future(consume(first))]
        for number in range(200):
            await store.append("orders", b"", queue_id=number % 4)
        others = [await store.consumer("group", "orders", ordered=True) for _ in range(2)]
        sync = store.sync.consumer("group", "orders", ordered=True)
        tasks += [asyncio.ensure_future(consume(consumer)) for consumer in others]
        await until(lambda: all(consumer.assignment for consumer in (first, *others, sync)))
        sync.close()
        await until(lambda: len(seen) == 200)
        await others[0].close()
        for number in range(200):
            await store.append("orders", b"", queue_id=number % 4)
        # If a consumer loses a queue between a message and its commit, the message is delivered again.
        await until(lambda: len(seen) == 400)
        for consumer in (first, *others):
            await consumer.close()
        await asyncio.gather(*tasks)
        assert len(store.sync.topics()) == 1


@in_loop
async def test_durable_acks_and_commits_of_many_share_syncs(home: Path) -> None:
    faults = mqstore.testing.Faults()
    with mqstore.testing.open(home, faults=faults, flush_interval=3600) as made:
        store = mqstore.aio.wrap(made)
        queue = await store.work_queue("jobs")
        await queue.put_many([b""] * 300)
        messages = await queue.get_many(300)
        # All further acks come during the first sync, so they share the second.
        faults.slow_syncs(0.05)
        before = faults.syncs
        await asyncio.gather(*(queue.ack(message, durable=True) for message in messages))
        assert 1 <= faults.syncs - before < 30
        closing = [asyncio.ensure_future(queue.ack(messages[0], durable=True)) for _ in range(3)]
        await asyncio.sleep(0)
        await store.close()
        assert await asyncio.gather(*closing) == [None] * 3
        faults.clear()
