"""Shared stores with asyncio: the owner is in another process, or in another event loop of this one."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

import mqstore
import mqstore.aio
from test_share import line, other


def run(coroutine: object) -> None:
    asyncio.run(asyncio.wait_for(coroutine, 60))  # type: ignore[arg-type]


def test_verbs_of_a_client(tmp_path: Path) -> None:
    home = tmp_path / "s"

    async def main() -> None:
        async with mqstore.aio.open(home, "share") as store:
            assert (store.mode, store.is_owner) == ("share", False)
            assert (await store.append("log", b"1")).queue_offset == 0
            many = await store.append_many("log", [b"2", b"3"])
            assert [one.queue_offset for one in many] == [1, 2]
            assert (await store.append("log", b"4", durable=True)).durable
            assert [message.body async for message in store.read("log")] == [b"1", b"2", b"3", b"4"]
            async with store.work_queue("jobs", max_attempts=2) as queue:
                await queue.put(b"a")
                await queue.put_many([b"b", b"c"])
                async with queue.get() as job:
                    assert job.body == b"a"
                two = await queue.get_many(5, timeout=5)
                await queue.extend(two[0], 60)
                await queue.ack_many(two, durable=True)
                assert await queue.join(5)
                with pytest.raises(mqstore.Empty):
                    await queue.get(timeout=0.05)
                with pytest.raises(mqstore.Empty):
                    await queue.get_nowait()
                waiting = asyncio.ensure_future(queue.get())
                await asyncio.sleep(0.1)
                await queue.put(b"d")
                await queue.nack(await waiting, 0)
                again = await queue.get(timeout=5)
                assert (again.body, again.attempt) == (b"d", 2)
                await queue.ack(again)
            async with store.consumer("g", "log") as consumer:
                assert len(await consumer.poll(10, 5)) == 4
                await consumer.commit(durable=True)
                assert await consumer.poll(10, 0.05) == []
                waiting_poll = asyncio.ensure_future(consumer.poll(10))
                await asyncio.sleep(0.1)
                await store.append("log", b"5")
                assert [message.body for message in await waiting_poll] == [b"5"]
            async with store.transaction("p") as transaction:
                await transaction.append("log", b"6")
            assert [message.body async for message in store.read("log", queue_id=0, start=5)] == [b"6"]

    with other(home, "for _ in sys.stdin: pass") as child:
        assert line(child) == "open True"
        run(main())


def test_a_cancelled_get_takes_nothing(tmp_path: Path) -> None:
    home = tmp_path / "s"

    async def main() -> None:
        async with mqstore.aio.open(home, "share") as store, store.work_queue("jobs") as queue:
            for _ in range(20):
                waiting = asyncio.ensure_future(queue.get())
                await asyncio.sleep(0.01)
                waiting.cancel()
                await asyncio.gather(waiting, return_exceptions=True)
            await asyncio.sleep(0.2)
            await queue.put(b"a")
            assert (await queue.counts()).ready == 1
            job = await queue.get(timeout=5)
            assert job.attempt == 1
            await queue.ack(job)

    with other(home, "for _ in sys.stdin: pass") as child:
        assert line(child) == "open True"
        run(main())


def test_many_waiting_tasks_need_no_threads(tmp_path: Path) -> None:
    home = tmp_path / "s"

    async def main() -> None:
        async with mqstore.aio.open(home, "share") as store, store.work_queue("jobs") as queue:
            tasks = [asyncio.ensure_future(queue.get()) for _ in range(100)]
            await asyncio.sleep(0.2)
            threads = threading.active_count()
            for number in range(100):
                await queue.put(str(number).encode())
            jobs = await asyncio.gather(*tasks)
            assert sorted(int(job.body) for job in jobs) == list(range(100))
            await queue.ack_many(jobs)
            assert threads < 10

    with other(home, "for _ in sys.stdin: pass") as child:
        assert line(child) == "open True"
        run(main())


def test_waiting_tasks_outlive_the_owner(tmp_path: Path) -> None:
    home = tmp_path / "s"

    async def main(child: object) -> None:
        async with mqstore.aio.open(home, "share") as store, store.work_queue("jobs") as queue:
            job_later = asyncio.ensure_future(queue.get())
            async with store.consumer("g", "log") as consumer:
                poll_later = asyncio.ensure_future(consumer.poll(1))
                await asyncio.sleep(0.1)
                child.kill()  # type: ignore[attr-defined]
                await store.append("log", b"x")
                assert store.is_owner
                await queue.put(b"a")
                assert (await job_later).body == b"a"
                assert [message.body for message in await poll_later] == [b"x"]

    with other(home, "for _ in sys.stdin: pass") as child:
        assert line(child) == "open True"
        run(main(child))


def test_several_loops_of_one_program(tmp_path: Path) -> None:
    home = tmp_path / "s"
    done: list[int] = []

    async def main(number: int) -> None:
        async with mqstore.aio.open(home, "share") as store:
            for count in range(50):
                await store.append("log", f"{number} {count}".encode())
            done.append(number)

    threads = [threading.Thread(target=run, args=(main(number),)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == [0, 1, 2]
    with mqstore.open(home) as store:
        assert store.count("log") == 150
