"""`mqstore.integrations.taskiq` with taskiq's own receiver."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

import mqstore
from conftest import python
from loops import in_loop
from mqstore.integrations._store_handle import ShareMode

pytest.importorskip("taskiq")

from taskiq import AckableMessage, Context, TaskiqDepends
from taskiq.exceptions import SendTaskError
from taskiq.middlewares import SmartRetryMiddleware
from taskiq.receiver import Receiver

from mqstore.integrations.taskiq import MQStoreBroker


@asynccontextmanager
async def working(broker: MQStoreBroker) -> AsyncIterator[None]:
    """Runs a worker in this loop."""
    broker.is_worker_process = True
    finish = asyncio.Event()
    worker = asyncio.create_task(Receiver(broker, max_async_tasks=10, run_startup=False).listen(finish))
    try:
        yield
    finally:
        finish.set()
        await worker


@asynccontextmanager
async def started(home: Path, mode: ShareMode = "create", **options: Any) -> AsyncIterator[MQStoreBroker]:
    broker = MQStoreBroker(home, mode=mode, **options)
    await broker.startup()
    try:
        yield broker
    finally:
        await broker.shutdown()


@in_loop
async def test_tasks_run_and_are_acknowledged(home: Path, mode: ShareMode) -> None:
    done: list[int] = []
    async with started(home, mode) as broker:

        @broker.task
        async def work(number: int) -> None:
            done.append(number)

        sent = [await work.kiq(number) for number in range(20)]
        assert [message.keys for message in await broker.queue.peek(20)] == [(task.task_id,) for task in sent]
        assert (await broker.queue.counts()).ready == 20
        async with working(broker):
            assert await broker.queue.join(timeout=10)
        counts = await broker.queue.counts()
        assert (counts.ready, counts.leased, counts.dead) == (0, 0, 0)
    assert sorted(done) == list(range(20))


@in_loop
async def test_a_delayed_task_runs_when_it_is_due(home: Path) -> None:
    done: list[float] = []
    async with started(home, durable=True) as broker:

        @broker.task
        async def work() -> None:
            done.append(time.monotonic())

        begin = time.monotonic()
        await work.kicker().with_labels(delay=0.3).kiq()
        (delayed,) = await broker.queue.delayed()
        assert delayed.attempts == 0
        async with working(broker):
            await broker.queue.join(timeout=10)
    assert done[0] - begin >= 0.3


@in_loop
async def test_a_failed_task_is_retried_with_a_delay(home: Path) -> None:
    attempts: list[int] = []
    async with started(home) as broker:
        broker.add_middlewares(SmartRetryMiddleware(default_retry_count=3, default_delay=0.1))

        @broker.task(retry_on_error=True)
        async def work() -> None:
            attempts.append(len(attempts))
            if len(attempts) < 3:
                raise OSError("not yet")

        await work.kiq()
        async with working(broker):
            await broker.queue.join(timeout=10)
    assert attempts == [0, 1, 2]


@in_loop
async def test_a_task_longer_than_the_visibility_timeout_runs_once(home: Path) -> None:
    runs: list[int] = []
    async with started(home, visibility_timeout=0.15) as broker:

        @broker.task
        async def work() -> None:
            runs.append(1)
            await asyncio.sleep(0.6)

        await work.kiq()
        async with working(broker):
            await broker.queue.join(timeout=10)
    assert runs == [1]


@in_loop
async def test_a_shutdown_returns_the_tasks_that_are_not_finished(home: Path) -> None:
    async with started(home, visibility_timeout=600) as broker:

        @broker.task("held")
        async def work() -> None: ...

        await work.kiq()
        taken = await anext(broker.listen())
        assert isinstance(taken, AckableMessage)
    async with started(home) as again:
        assert (await again.queue.get(timeout=5)).body == taken.data


@in_loop
async def test_a_task_can_acknowledge_itself(home: Path) -> None:
    async with started(home) as broker:

        @broker.task(ack_type="manual")
        async def work(context: Context = TaskiqDepends()) -> None:  # noqa: B008
            await context.ack()

        await work.kiq()
        async with working(broker):
            assert await broker.queue.join(timeout=10)


@in_loop
async def test_a_broker_that_is_not_started(home: Path) -> None:
    broker = MQStoreBroker(home)

    @broker.task("early")
    async def work() -> None: ...

    with pytest.raises(SendTaskError) as caught:
        await work.kiq()
    assert "call `await broker.startup()` first" in str(caught.value.__cause__)
    assert not home.exists()


KILLED = """
import asyncio, os, sys
from mqstore.integrations.taskiq import MQStoreBroker

broker = MQStoreBroker(sys.argv[1], mode="create", visibility_timeout=0.3)

@broker.task("held")
async def work(): ...

async def main():
    await broker.startup()
    await work.kiq()
    await anext(broker.listen())
    os.kill(os.getpid(), 9)

asyncio.run(main())
"""


@pytest.mark.slow
@in_loop
async def test_the_task_of_a_killed_worker_is_delivered_again(home: Path) -> None:
    killed = await asyncio.to_thread(subprocess.run, [sys.executable, "-c", KILLED, str(home)], timeout=60)
    assert killed.returncode == -9
    async with started(home) as broker:
        message = await broker.queue.get(timeout=10)
        assert message.attempt == 2
        await broker.queue.ack(message)


SENDER = """
import asyncio, sys
from mqstore.integrations.taskiq import MQStoreBroker

broker = MQStoreBroker(sys.argv[1])

@broker.task("add")
async def add(number): ...

async def main():
    await broker.startup()
    for number in range(10):
        await add.kiq(number)
    await broker.shutdown()

asyncio.run(main())
"""


@pytest.mark.slow
@in_loop
async def test_tasks_of_another_process(home: Path) -> None:
    done: list[int] = []
    async with started(home, "share") as broker:

        @broker.task("add")
        async def add(number: int) -> None:
            done.append(number)

        async with working(broker):
            await asyncio.to_thread(python, SENDER, str(home))
            assert await broker.queue.join(timeout=10)
    assert sorted(done) == list(range(10))


def test_an_open_store_stays_open(store: mqstore.Store) -> None:
    async def main() -> None:
        broker = MQStoreBroker(store, "own")
        await broker.startup()
        await broker.queue.put(b"1")
        await broker.shutdown()

    asyncio.run(main())
    assert [message.body for message in store.read("own")] == [b"1"]
