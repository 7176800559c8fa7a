"""A store and a copy that its appends wait for, compared with a master and a slave of RocketMQ.

    python benches/replicate.py [FOLDER]

In turn: appends of 1 KiB that wait for a second copy, by one thread and by 64, and by one thread of a SYNC_MASTER of
RocketMQ 5.5.0 with inSyncReplicas=2; then asynchronous appends without and with a copy, and how far it is behind. The
copy is another process on the same machine, so it takes processor time from the appends. The time of RocketMQ is that
of its driver, minus that of the same appends to an ASYNC_MASTER: only the waits for the slave are compared. The round
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

from interop.driver import JavaSession
from interop.java_rows import message

if TYPE_CHECKING:
    from collections.abc import Iterator

    from interop.driver import JavaStore

ROUNDS = 3
SECONDS = 3.0
BODY = b"x" * 1024
PUTS = 3000
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
def copied(home: Path) -> Iterator[mqstore.Store]:
    """A store that another process copies."""
    replication = mqstore.Master(listen="127.0.0.1:0")
    with mqstore.open(home / "store", "create", replication=replication) as store:
        command = [sys.executable, "-c", COPY, str(store.replication_address()), str(home / "copy")]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as child:
            store.append("log", BODY)
            while store.stats().in_sync_copies < 2:
                time.sleep(0.01)
            yield store
            assert child.stdin is not None
            child.stdin.close()
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
            for _ in range(PUTS):
                own.sendall(BODY)
                own.recv(64)
            took = time.perf_counter() - begun
        child.wait()
    return took / PUTS * 1e6


def put_us(java: JavaStore) -> float:
    specs = [message("log", ("body", len(BODY))) for _ in range(PUTS)]
    begun = time.perf_counter()
    list(java.put(specs))
    return (time.perf_counter() - begun) / PUTS * 1e6


def main() -> None:
    """Prints the lines."""
    place = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    with tempfile.TemporaryDirectory(dir=place) as folder, JavaSession("5.5.0", Path(folder) / "home") as session:
        base, topics = Path(folder), {"log": {"queues": 1}}
        roles = {"plain": "ASYNC_MASTER", "master": "SYNC_MASTER", "slave": "SLAVE"}
        stores = {
            name: session.open(
                base / name,
                config={"brokerRole": role, "inSyncReplicas": 2, "haSendHeartbeatInterval": 100},
                topics=topics,
            )
            for name, role in roles.items()
        }
        stores["slave"].follow(stores["master"])
        put_us(stores["plain"])
        for _ in range(ROUNDS):
            with copied(base / "one") as store:
                one = 1e6 / appends(store, 1, replicated=True)
                many = appends(store, 64, replicated=True)
            plain, synced = put_us(stores["plain"]), put_us(stores["master"])
            print(
                f"replicated: {one:.0f} us with the append, 64 threads {many:,.0f}/s; RocketMQ {synced - plain:.0f} us "
                f"more than the append ({synced:.0f} in all); a round trip {round_trip_us():.0f} us",
                flush=True,
            )
        for _ in range(ROUNDS):
            own = alone(base / "alone")
            with copied(base / "two") as store:
                rate = appends(store, 1, replicated=False)
                behind = store.followers()[0].lag_bytes
            lag_ms = behind / (rate * 1150) * 1000
            print(f"asynchronous: {own:,.0f}/s alone, {rate:,.0f}/s with a copy, {lag_ms:.1f} ms behind", flush=True)
        session.close_stores(stores.values())


if __name__ == "__main__":
    main()
