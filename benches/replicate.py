"""A store with a copy, compared with a master and a slave of RocketMQ.

    python benches/replicate.py [FOLDER] [GIB]

In turn, with messages of 1 KiB: appends that wait for a second copy, by one thread and by 64, and those of a
SYNC_MASTER of RocketMQ 5.5.0 with inSyncReplicas=2; then asynchronous appends without and with a copy, and how far
it is behind; then a full copy of a store, while a thread appends with a sync each, and the time of these appends. The
copy and the slave are other processes on the same machine, so they take processor time from the appends. The round
trip is that of 1 KiB to another process, which answers: the limit for one thread.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import mqstore

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from interop.driver import JVM_OPTIONS, JavaSession

if TYPE_CHECKING:
    from collections.abc import Iterator

    from interop.driver import JavaStore

ROUNDS = 3
SECONDS = 3.0
BODY = b"x" * 1024
TRIPS = 3000
COPY = """
import mqstore, sys
with mqstore.follow(sys.argv[1], sys.argv[2]):
    sys.stdin.read()
"""
ECHO = """
import socket, sys
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as own:
    while own.recv(1 << 20):
        own.sendall(b"12345678")
"""


@contextmanager
def copying(store: mqstore.Store, copy: Path) -> Iterator[None]:
    """Another process copies the store meanwhile."""
    command = [sys.executable, "-c", COPY, str(store.replication_address()), str(copy)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as child:
        yield
        assert child.stdin is not None
        child.stdin.close()


@contextmanager
def copied(home: Path) -> Iterator[mqstore.Store]:
    """A store that another process copies."""
    replication = mqstore.Master(listen="127.0.0.1:0")
    with (
        mqstore.open(home / "store", "create", replication=replication) as store,
        copying(store, home / "copy"),
    ):
        store.append("log", BODY)
        while store.stats().in_sync_copies < 2:
            time.sleep(0.01)
        yield store
    shutil.rmtree(home)


def appends(store: mqstore.Store, threads: int, *, replicated: bool) -> float:
    """Returns the appends of all threads in a second."""
    end = time.perf_counter() + SECONDS
    counts = [0] * threads

    def work(number: int) -> None:
        while time.perf_counter() < end:
            store.append("log", BODY, replicated=replicated)
            counts[number] += 1

    workers = [threading.Thread(target=work, args=(number,)) for number in range(threads)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return sum(counts) / SECONDS


def alone(home: Path) -> float:
    with mqstore.open(home / "store", "create") as store:
        rate = appends(store, 1, replicated=False)
    shutil.rmtree(home)
    return rate


def round_trip_us() -> float:
    with socket.create_server(("127.0.0.1", 0)) as server:
        child = subprocess.Popen([sys.executable, "-c", ECHO, str(server.getsockname()[1])])
        own, _ = server.accept()
        with own:
            own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            begun = time.perf_counter()
            for _ in range(TRIPS):
                own.sendall(BODY)
                own.recv(64)
            took = time.perf_counter() - begun
        child.wait()
    return took / TRIPS * 1e6


def java_pair(masters: JavaSession, slaves: JavaSession, base: Path, role: str) -> tuple[JavaStore, JavaStore]:
    """A master, and a slave in another process that follows it."""
    config = {"inSyncReplicas": 2 if role == "SYNC_MASTER" else 1, "haSendHeartbeatInterval": 100}
    master, slave = (
        session.open(base / f"{role} {name}", config=config | {"brokerRole": name}, topics={"log": {"queues": 1}})
        for session, name in ((masters, role), (slaves, "SLAVE"))
    )
    slave.follow_address(f"127.0.0.1:{master.report.ha_port}", 0)
    return master, slave


def java_async(master: JavaStore, slave: JavaStore) -> str:
    rate, end = master.load("log", threads=1, seconds=SECONDS, size=len(BODY))
    ended = time.perf_counter()
    slave.follow_address(f"127.0.0.1:{master.report.ha_port}", end)
    return f"{rate:,.0f}/s, {(time.perf_counter() - ended) * 1000:.0f} ms behind"


def percentiles(times: list[float]) -> str:
    ordered = sorted(times)
    half, most = ordered[len(ordered) // 2], ordered[len(ordered) * 99 // 100]
    return f"{half * 1e6:.0f} us, p99 {most * 1e3:.1f} ms"


def copy_while_syncing(home: Path, size: int) -> str:
    """Lets one thread append with a sync each, before and during a full copy of the store."""
    with mqstore.open(home / "store", "create") as store:
        while store.stats().log_max_offset < size:
            store.append_many("log", [BODY] * 5000)
    replication = mqstore.Master(listen="127.0.0.1:0")
    with mqstore.open(home / "store", "rw", durability="sync", replication=replication) as store:
        times: list[float] = []
        ended = threading.Event()

        def work() -> None:
            while not ended.is_set():
                begun = time.perf_counter()
                store.append("log", BODY)
                times.append(time.perf_counter() - begun)

        worker = threading.Thread(target=work)
        worker.start()
        time.sleep(SECONDS)
        before, begun = len(times), time.perf_counter()
        with copying(store, home / "copy"):
            while not (copies := store.followers()) or copies[0].lag_bytes > 1 << 20:
                time.sleep(0.01)
            took = time.perf_counter() - begun
            ended.set()
            worker.join()
    shutil.rmtree(home)
    alone, during = percentiles(times[:before]), percentiles(times[before:])
    return f"{size / took / 1e6:.0f} MB/s; a durable append {alone} alone, {during} meanwhile"


def main() -> None:
    """Prints the lines."""
    place = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    size = int(float(sys.argv[2] if len(sys.argv) > 2 else "3.3") * (1 << 30))
    # Those of the tests, with the optimizing compiler and a heap for it.
    options = [one for one in JVM_OPTIONS if not one.startswith(("-XX:Tiered", "-Xmx", "-XX:MaxDirect"))]
    options += ["-Xmx2g", "-XX:MaxDirectMemorySize=2g"]
    with (
        tempfile.TemporaryDirectory(dir=place) as folder,
        JavaSession("5.5.0", Path(folder) / "home", options=options) as masters,
        JavaSession("5.5.0", Path(folder) / "slaves", options=options) as slaves,
    ):
        base = Path(folder)
        synced, plain = (java_pair(masters, slaves, base, role) for role in ("SYNC_MASTER", "ASYNC_MASTER"))
        synced[0].load("log", threads=1, seconds=SECONDS, size=len(BODY))
        for _ in range(ROUNDS):
            with copied(base / "one") as store:
                one, many = (appends(store, threads, replicated=True) for threads in (1, 64))
            java_one, java_many = (
                synced[0].load("log", threads=threads, seconds=SECONDS, size=len(BODY))[0] for threads in (1, 64)
            )
            print(
                f"replicated: {1e6 / one:.0f} us, 64 threads {many:,.0f}/s; RocketMQ {1e6 / java_one:.0f} us, "
                f"{java_many:,.0f}/s; a round trip {round_trip_us():.0f} us",
                flush=True,
            )
        for _ in range(ROUNDS):
            own = alone(base / "alone")
            with copied(base / "two") as store:
                rate = appends(store, 1, replicated=False)
                behind = store.followers()[0].lag_bytes
            lag_ms = behind / (rate * 1150) * 1000
            print(
                f"asynchronous: {own:,.0f}/s alone, {rate:,.0f}/s with a copy, {lag_ms:.1f} ms behind; "
                f"RocketMQ {java_async(*plain)}",
                flush=True,
            )
        masters.close_stores([synced[0], plain[0]])
        slaves.close_stores([synced[1], plain[1]])
        for _ in range(ROUNDS):
            print("full copy while the master syncs:", copy_while_syncing(base / "three", size), flush=True)


if __name__ == "__main__":
    main()
