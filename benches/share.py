"""Several processes on one store: how fast are clients, and how soon does a client take over?

    python benches/share.py [FOLDER]

Each line is measured beside its reference, in turn, in one run: a second process that appends beside SQLite with a
write-ahead log and the same durability; batches beside those of the owner; a producer and three workers, and the
wake-up of a get in another process, beside Redis and huey over SQLite, if they are installed; syncs of four processes
beside one; and the time from the kill of an owner to the next acknowledged append.
"""

from __future__ import annotations

import importlib.util
import multiprocessing
import os
import shutil
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import mqstore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BODY = b"x" * 1024
CONTEXT = multiprocessing.get_context("spawn")


def client_appends(home: str, count: int, results: multiprocessing.Queue[float]) -> None:
    with mqstore.open(home, "share", own=False) as store:
        store.append("log", BODY)
        begun = time.perf_counter()
        for _ in range(count):
            store.append("log", BODY)
        results.put(count / (time.perf_counter() - begun))


def client_batches(home: str, count: int, results: multiprocessing.Queue[float]) -> None:
    with mqstore.open(home, "share", own=False) as store:
        results.put(batches(store, count))


def batches(store: mqstore.Store, count: int) -> float:
    messages = [mqstore.Message(BODY, keys=f"key-{number}") for number in range(1000)]
    store.append_many("log", messages)
    begun = time.perf_counter()
    for _ in range(count):
        store.append_many("log", messages)
    return count * 1000 / (time.perf_counter() - begun)


def sqlite_appends(home: str, count: int, results: multiprocessing.Queue[float]) -> None:
    connection = sqlite3.connect(home, isolation_level=None, timeout=60)
    connection.execute("PRAGMA synchronous=NORMAL")
    begun = time.perf_counter()
    for _ in range(count):
        connection.execute("INSERT INTO log (body) VALUES (?)", (BODY,))
    results.put(count / (time.perf_counter() - begun))
    connection.close()


def durable_appends(home: str, count: int, results: multiprocessing.Queue[float]) -> None:
    with mqstore.open(home, "share", own=False) as store:
        store.append("log", BODY, durable=True)
        begun = time.perf_counter()
        for _ in range(count):
            store.append("log", BODY, durable=True)
        results.put(count / (time.perf_counter() - begun))


def together(work: Callable[..., None], home: str, count: int, processes: int) -> list[float]:
    """Runs `work` in processes at the same time; returns the rate of each."""
    results: multiprocessing.Queue[float] = CONTEXT.Queue()
    started = [CONTEXT.Process(target=work, args=(home, count, results)) for _ in range(processes)]
    for process in started:
        process.start()
    rates = [results.get() for _ in started]
    for process in started:
        process.join()
    return rates


def produce(home: str, count: int, results: multiprocessing.Queue[float]) -> None:
    with mqstore.open(home, "share", own=False) as store, store.work_queue("jobs") as queue:
        for _ in range(count):
            queue.put(BODY)
        results.put(0.0)


def consume(home: str, _count: int, results: multiprocessing.Queue[float]) -> None:
    with mqstore.open(home, "share", own=False) as store, store.work_queue("jobs") as queue:
        done = 0
        while True:
            try:
                job = queue.get(timeout=2)
            except mqstore.Empty:
                break
            job.ack()
            done += 1
        results.put(done)


def queue_rate(home: str, count: int) -> float:
    """Jobs a second with a producer and three workers, in four processes, until the last ack."""
    with mqstore.open(home, "share") as store, store.work_queue("jobs") as queue:
        results: multiprocessing.Queue[float] = CONTEXT.Queue()
        workers = [CONTEXT.Process(target=consume, args=(home, 0, results)) for _ in range(3)]
        producer = CONTEXT.Process(target=produce, args=(home, count, results))
        for process in workers:
            process.start()
        time.sleep(1)
        producer.start()
        while not queue.counts().leased and not queue.qsize():
            time.sleep(0.001)
        begun = time.perf_counter()
        producer.join()
        queue.join()
        took = time.perf_counter() - begun
        for process in workers:
            process.join()
        return count / took


def redis_produce(path: str, count: int, results: multiprocessing.Queue[float]) -> None:
    import redis

    client = redis.Redis(unix_socket_path=path)
    for _ in range(count):
        client.lpush("jobs", BODY)
    results.put(0.0)


def redis_consume(path: str, _count: int, results: multiprocessing.Queue[float]) -> None:
    import redis

    client, done = redis.Redis(unix_socket_path=path), 0
    while (job := client.brpoplpush("jobs", "running", timeout=2)) is not None:
        client.lrem("running", 1, job)
        done += 1
    results.put(done)


def redis_rate(path: str, count: int) -> float:
    """Like `queue_rate`, with a list of Redis: BRPOPLPUSH and LREM."""
    import redis

    client = redis.Redis(unix_socket_path=path)
    client.delete("jobs", "running")
    results: multiprocessing.Queue[float] = CONTEXT.Queue()
    workers = [CONTEXT.Process(target=redis_consume, args=(path, 0, results)) for _ in range(3)]
    producer = CONTEXT.Process(target=redis_produce, args=(path, count, results))
    for process in workers:
        process.start()
    time.sleep(1)
    producer.start()
    while not client.info("commandstats").get("cmdstat_lpush", {}).get("calls"):
        time.sleep(0.001)
    begun = time.perf_counter()
    producer.join()
    while client.llen("jobs") or client.llen("running"):
        time.sleep(0.001)
    took = time.perf_counter() - begun
    for process in workers:
        process.join()
    client.config_resetstat()
    return count / took


def redis_wake(path: str, count: int, times: multiprocessing.Queue[float]) -> None:
    import redis

    client = redis.Redis(unix_socket_path=path)
    times.put(0.0)
    for _ in range(count):
        _, body = client.blpop("pings")
        times.put(time.time() - float(body))


def redis_wake_ups(path: str, count: int) -> list[float]:
    import redis

    client = redis.Redis(unix_socket_path=path)
    times: multiprocessing.Queue[float] = CONTEXT.Queue()
    process = CONTEXT.Process(target=redis_wake, args=(path, count, times))
    process.start()
    times.get()
    found = []
    for _ in range(count):
        time.sleep(0.005)
        client.rpush("pings", repr(time.time()))
        found.append(times.get())
    process.join()
    return found


def huey_consume(path: str, _count: int, results: multiprocessing.Queue[float]) -> None:
    from huey.storage import SqliteStorage

    storage, done, idle_since = SqliteStorage("jobs", filename=path), 0, time.monotonic()
    while time.monotonic() - idle_since < 2:
        if storage.dequeue() is None:
            time.sleep(0.001)
            continue
        done += 1
        idle_since = time.monotonic()
    results.put(done)


def huey_produce(path: str, count: int, results: multiprocessing.Queue[float]) -> None:
    from huey.storage import SqliteStorage

    storage = SqliteStorage("jobs", filename=path)
    for _ in range(count):
        storage.enqueue(BODY)
    results.put(0.0)


def huey_rate(path: str, count: int) -> float:
    """Like `queue_rate`, with the SQLite storage of huey, which forgets a job when a worker takes it."""
    from huey.storage import SqliteStorage

    storage = SqliteStorage("jobs", filename=path)
    results: multiprocessing.Queue[float] = CONTEXT.Queue()
    workers = [CONTEXT.Process(target=huey_consume, args=(path, 0, results)) for _ in range(3)]
    producer = CONTEXT.Process(target=huey_produce, args=(path, count, results))
    for process in workers:
        process.start()
    time.sleep(1)
    producer.start()
    while not storage.queue_size():
        time.sleep(0.001)
    begun = time.perf_counter()
    producer.join()
    while storage.queue_size():
        time.sleep(0.001)
    took = time.perf_counter() - begun
    for process in workers:
        process.join()
    return count / took


@contextmanager
def redis_server(folder: Path) -> Iterator[str | None]:
    """Runs Redis without persistence at a Unix domain socket, if it and its client are installed."""
    if shutil.which("redis-server") is None or importlib.util.find_spec("redis") is None:
        yield None
        return
    path = str(folder / "redis.sock")
    command = ["redis-server", "--port", "0", "--unixsocket", path, "--save", "", "--dir", str(folder)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
        while not Path(path).exists():
            if server.poll() is not None:
                raise SystemExit("redis-server did not start")
            time.sleep(0.01)
        try:
            yield path
        finally:
            server.terminate()


def wake(home: str, count: int, times: multiprocessing.Queue[float]) -> None:
    with mqstore.open(home, "share", own=False) as store, store.work_queue("pings") as queue:
        times.put(0.0)
        for _ in range(count):
            job = queue.get()
            times.put(time.time() - float(job.body))
            job.ack()


def wake_ups(home: str, count: int) -> list[float]:
    with mqstore.open(home, "share") as store, store.work_queue("pings") as queue:
        times: multiprocessing.Queue[float] = CONTEXT.Queue()
        process = CONTEXT.Process(target=wake, args=(home, count, times))
        process.start()
        times.get()
        found = []
        for _ in range(count):
            time.sleep(0.005)
            queue.put(repr(time.time()).encode())
            found.append(times.get())
        process.join()
        return found


OWNER = """
import sys, time, mqstore
with mqstore.open(sys.argv[1], "share") as store:
    store.append("log", b"owner")
    print("open", flush=True)
    time.sleep(1000)
"""


def takeover(home: str, clients: int) -> float:
    """Seconds from the kill of an owner to the next acknowledged append of one of its clients."""
    owner = subprocess.Popen([sys.executable, "-c", OWNER, home], stdout=subprocess.PIPE)
    assert owner.stdout is not None
    owner.stdout.readline()
    stores = [mqstore.open(home, "share") for _ in range(clients)]
    for store in stores:
        store.append("log", b"before")
    begun = time.perf_counter()
    os.kill(owner.pid, signal.SIGKILL)
    stores[0].append("log", b"after")
    took = time.perf_counter() - begun
    owner.wait()
    owner.stdout.close()
    for store in stores:
        store.close()
    return took


def summary(found: list[float]) -> str:
    found.sort()
    return f"median {statistics.median(found) * 1e6:.0f} us, p99 {found[-4] * 1e6:.0f} us"


def main(folder: Path) -> None:
    """Prints each figure beside its reference."""
    folder.mkdir(parents=True, exist_ok=True)
    with redis_server(folder) as redis_path:
        measure(folder, redis_path)


def measure(folder: Path, redis_path: str | None) -> None:
    for turn in range(3):
        home = str(folder / f"one-{turn}")
        with mqstore.open(home, "share"):
            (client,) = together(client_appends, home, 20_000, 1)
        base = str(folder / f"sqlite-{turn}")
        made = sqlite3.connect(base)
        made.execute("PRAGMA journal_mode=WAL")
        made.execute("CREATE TABLE log (id INTEGER PRIMARY KEY, body BLOB)")
        made.close()
        (alone,) = together(sqlite_appends, base, 20_000, 1)
        beside = together(sqlite_appends, base, 10_000, 2)
        print(
            f"append, second process: {client:,.0f}/s; SQLite alone {alone:,.0f}/s, two {sum(beside):,.0f}/s together"
        )
        home = str(folder / f"many-{turn}")
        with mqstore.open(home, "share") as store:
            own = batches(store, 100)
            (client,) = together(client_batches, home, 100, 1)
        print(f"append_many of 1,000: owner {own:,.0f}/s, client {client:,.0f}/s, {client / own:.2f}x")
        home = str(folder / f"durable-{turn}")
        with mqstore.open(home, "share"):
            (one,) = together(durable_appends, home, 300, 1)
            four = sum(together(durable_appends, home, 300, 4))
        print(f"durable appends: one process {one:,.0f}/s, four {four:,.0f}/s, {four / one:.2f}x")
        print(f"put, get, ack with three workers: {queue_rate(str(folder / f'queue-{turn}'), 10_000):,.0f}/s")
        if redis_path is not None:
            print(f"  Redis: {redis_rate(redis_path, 10_000):,.0f}/s")
        if importlib.util.find_spec("huey") is not None:
            print(f"  huey over SQLite: {huey_rate(str(folder / f'huey-{turn}'), 2_000):,.0f}/s")
        print(f"wake-up: {summary(wake_ups(str(folder / f'wake-{turn}'), 300))}")
        if redis_path is not None:
            print(f"  Redis: {summary(redis_wake_ups(redis_path, 300))}")
        home = str(folder / f"takeover-{turn}")
        with mqstore.open(home, "create") as store:
            for _ in range(1024):
                store.append_many("log", [BODY] * 1000)
        print(f"takeover with four clients and a log of 1 GiB: {takeover(home, 4) * 1000:.0f} ms")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as made_folder:
            main(Path(made_folder))
