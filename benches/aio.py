"""The cost of `mqstore.aio` compared with the calls that it wraps: `python -m benches.aio [FOLDER]`.

It compares, in alternating rounds in one process, with medians: an awaited append and a plain call; durable appends of
100 tasks and of 100 threads. It also measures 10,000 waiting tasks: their memory, and the time of the message that
wakes them.
"""

from __future__ import annotations

import asyncio
import gc
import os
import statistics
import sys
import tempfile
import threading
import time
from pathlib import Path

import mqstore
import mqstore.aio

ROUNDS = 5
APPENDS = 20_000
DURABLE = 4_000
WORKERS = 100
WAITS = 10_000
BODY = bytes(1024)


def resident() -> int:
    """Memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def plain(store: mqstore.aio.Store) -> tuple[float, float]:
    """Seconds of an append by a plain call, and of an awaited one."""
    sync = store.sync
    began = time.perf_counter()
    for _ in range(APPENDS):
        sync.append("plain", BODY)
    called = time.perf_counter()
    for _ in range(APPENDS):
        await store.append("plain", BODY)
    awaited = time.perf_counter()
    return (called - began) / APPENDS, (awaited - called) / APPENDS


async def durable(store: mqstore.aio.Store) -> tuple[float, float]:
    """Durable appends per second, by threads and by tasks."""
    each = DURABLE // WORKERS

    def call() -> None:
        for _ in range(each):
            store.sync.append("durable", BODY, durable=True)

    async def task() -> None:
        for _ in range(each):
            await store.append("durable", BODY, durable=True)

    def threads() -> None:
        workers = [threading.Thread(target=call) for _ in range(WORKERS)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    began = time.perf_counter()
    await asyncio.to_thread(threads)
    middle = time.perf_counter()
    await asyncio.gather(*(task() for _ in range(WORKERS)))
    ended = time.perf_counter()
    return DURABLE / (middle - began), DURABLE / (ended - middle)


async def waits(store: mqstore.aio.Store) -> tuple[float, float, float, int]:
    """Bytes for each waiting task; seconds from an append to the first and to the last woken task; number
    of threads."""
    await store.create_topic("waits", queues=1)
    start = (await store.queues("waits"))[0].max_offset
    woken: list[float] = []

    async def wait() -> None:
        await store.wait("waits", 0, start, timeout=60)
        woken.append(time.perf_counter())

    gc.collect()
    before, threads = resident(), threading.active_count()
    tasks = [asyncio.ensure_future(wait()) for _ in range(WAITS)]
    await asyncio.sleep(0.2)
    size, more = (resident() - before) / WAITS, threading.active_count() - threads
    began = time.perf_counter()
    await store.append("waits", BODY)
    await asyncio.gather(*tasks)
    return size, woken[0] - began, woken[-1] - began, more


async def one_wait(store: mqstore.aio.Store) -> float:
    """Seconds from an append to the task that waits for it."""
    await store.create_topic("one")
    start = (await store.queues("one"))[0].max_offset
    took = []
    for number in range(start, start + 2000):
        task = asyncio.ensure_future(store.wait("one", 0, number))
        await asyncio.sleep(0)
        began = time.perf_counter()
        await store.append("one", BODY)
        await task
        took.append(time.perf_counter() - began)
    return statistics.median(took)


async def main(folder: str) -> None:
    """Measures and prints."""
    rows: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        rows.setdefault(name, []).append(value)

    for number in range(ROUNDS):
        async with mqstore.aio.open(f"{folder}/{number}", "create", segment_size=256 << 20) as store:
            called, awaited = await plain(store)
            note("append, called (us)", called * 1e6)
            note("append, awaited (us)", awaited * 1e6)
            threads, tasks = await durable(store)
            note(f"durable appends of {WORKERS} threads (1/s)", threads)
            note(f"durable appends of {WORKERS} tasks (1/s)", tasks)
            note("one wait woken by an append, with that (us)", await one_wait(store) * 1e6)
            size, first, last, more = await waits(store)
            note(f"memory of each of {WAITS:,} waiting tasks (bytes)", size)
            note("threads that they cost", more)
            note("first of them woken (ms)", first * 1e3)
            note("last of them woken (ms)", last * 1e3)
    for name, values in rows.items():
        print(f"{name:55} {statistics.median(values):12,.1f}   {min(values):,.1f} to {max(values):,.1f}")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(dir=sys.argv[1] if len(sys.argv) > 1 else None) as folder:
        asyncio.run(main(folder))
