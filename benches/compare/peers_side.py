"""Stores that a Python program could use for its messages, and mqstore: one JSON line in, one out, as in all drivers.

Operations:

- ``put`` stores bodies, `batch` of them in each call. With `durability` ``sync`` each call survives a power cut when it
  returns, with ``async`` the end of the process.
- ``iterate`` reads all bodies of a filled store in order.
- ``work`` puts a body, gets it under a lease, so that the death of a worker loses nothing, and acknowledges it, with
  one call for each step.
- ``import`` measures the additional start time of an interpreter with the import.

`pattern` names the library. None of them gets keys or tags. If a library needs keys, they are consecutive numbers.
"""

from __future__ import annotations

import os
import queue
import sqlite3
import struct
import subprocess
import sys
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from python_side import AT_ONCE, serve

import mqstore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Work = Callable[[bytes], bytes]

MAP_BYTES = 32 << 30

LEASE_S = 30
"""Seconds for which only one worker has a message."""


class Peer(Protocol):
    """A store for messages."""

    def put(self, bodies: list[bytes]) -> None:
        """Store these bodies with one call."""

    def __iter__(self) -> Iterator[bytes]:
        """Yield all bodies in order."""

    def __len__(self) -> int:
        """Count the stored messages: by reading them, or by a count if reading removes them."""
        return sum(1 for _ in self)

    def worker(self) -> Work:
        """Return a function that puts a body, gets one and acknowledges it."""
        raise NotImplementedError

    def close(self) -> None:
        """Close it."""


class Ours(Peer):
    """mqstore."""

    def __init__(self, path: Path, *, durable: bool) -> None:
        """Create it."""
        self.store = mqstore.open(path, "create")
        self.durable = durable

    def put(self, bodies: list[bytes]) -> None:
        """Store these bodies with one call."""
        if len(bodies) == 1:
            self.store.append("bench", bodies[0], queue_id=0, durable=self.durable)
        else:
            self.store.append_batch("bench", bodies, queue_id=0, durable=self.durable)

    def __iter__(self) -> Iterator[bytes]:
        """Yield all bodies in order."""
        return (message.body for message in self.store.read("bench", 0))

    def worker(self) -> Work:
        """Return a function that puts a body, gets one and acknowledges it."""
        jobs = self.store.work_queue("bench")

        def work(body: bytes) -> bytes:
            jobs.put(body)
            message = jobs.get()
            jobs.ack(message)
            return message.body

        return work

    def close(self) -> None:
        """Close it."""
        self.store.close()


class LogFile(Peer):
    """A file with a length and a checksum before each body, flushed after each call."""

    HEAD = struct.Struct(">II")

    def __init__(self, path: Path, *, durable: bool) -> None:
        """Create it."""
        path.mkdir()
        self.path = path / "log"
        self.file = self.path.open("wb")
        self.durable = durable

    def put(self, bodies: list[bytes]) -> None:
        """Store these bodies with one call."""
        for body in bodies:
            self.file.write(self.HEAD.pack(len(body), zlib.crc32(body)))
            self.file.write(body)
        self.file.flush()
        if self.durable:
            os.fdatasync(self.file.fileno())

    def __iter__(self) -> Iterator[bytes]:
        """Yield all bodies in order."""
        with self.path.open("rb") as file:
            while head := file.read(self.HEAD.size):
                size, checksum = self.HEAD.unpack(head)
                body = file.read(size)
                if zlib.crc32(body) != checksum:
                    raise ValueError
                yield body

    def close(self) -> None:
        """Close it."""
        self.file.close()


class Memory(Peer):
    """`queue.Queue`, which ends with the process."""

    def __init__(self, path: Path, *, durable: bool) -> None:  # noqa: ARG002
        """Create it."""
        self.queue: queue.Queue[bytes] = queue.Queue()

    def put(self, bodies: list[bytes]) -> None:
        """Store these bodies."""
        for body in bodies:
            self.queue.put(body)

    def __iter__(self) -> Iterator[bytes]:
        """Take all bodies out in order."""
        while not self.queue.empty():
            yield self.queue.get()

    def worker(self) -> Work:
        """Return a function that puts a body, gets one and reports it as done."""

        def work(body: bytes) -> bytes:
            self.queue.put(body)
            found = self.queue.get()
            self.queue.task_done()
            return found

        return work

    def __len__(self) -> int:
        """Count the stored messages."""
        return self.queue.qsize()

    def close(self) -> None:
        """Drop it."""


class Sqlite(Peer):
    """SQLite with a write-ahead log, one transaction for each call."""

    def __init__(self, path: Path, *, durable: bool) -> None:
        """Create it."""
        path.mkdir()
        self.connection = sqlite3.connect(path / "messages.db")
        self.connection.execute("PRAGMA journal_mode=WAL")
        self.connection.execute(f"PRAGMA synchronous={'FULL' if durable else 'NORMAL'}")
        self.connection.execute("CREATE TABLE messages (number INTEGER PRIMARY KEY, body BLOB NOT NULL)")

    def put(self, bodies: list[bytes]) -> None:
        """Store these bodies with one call."""
        with self.connection:
            self.connection.executemany("INSERT INTO messages (body) VALUES (?)", ((body,) for body in bodies))

    def __iter__(self) -> Iterator[bytes]:
        """Yield all bodies in order."""
        return (row[0] for row in self.connection.execute("SELECT body FROM messages ORDER BY number"))

    def worker(self) -> Work:
        """Return a function that inserts a row, marks the first free row as taken, and deletes it."""
        self.connection.execute("CREATE TABLE jobs (number INTEGER PRIMARY KEY, body BLOB NOT NULL, until REAL)")
        self.connection.execute("CREATE INDEX free ON jobs (number) WHERE until IS NULL")
        first = "(SELECT number FROM jobs WHERE until IS NULL ORDER BY number LIMIT 1)"
        take = f"UPDATE jobs SET until = ? WHERE number = {first} RETURNING number, body"

        def work(body: bytes) -> bytes:
            with self.connection:
                self.connection.execute("INSERT INTO jobs (body) VALUES (?)", (body,))
            with self.connection:
                number, found = self.connection.execute(take, (time.time() + LEASE_S,)).fetchone()
            with self.connection:
                self.connection.execute("DELETE FROM jobs WHERE number = ?", (number,))
            return bytes(found)

        return work

    def close(self) -> None:
        """Close it."""
        self.connection.close()


class Lmdb(Peer):
    """LMDB, one transaction for each call."""

    def __init__(self, path: Path, *, durable: bool) -> None:
        """Create it."""
        import lmdb

        self.environment = lmdb.open(str(path), map_size=MAP_BYTES, max_dbs=2, sync=durable, metasync=durable)
        self.next = 0

    def put(self, bodies: list[bytes]) -> None:
        """Store these bodies with one call."""
        with self.environment.begin(write=True) as transaction:
            for body in bodies:
                transaction.put(self.next.to_bytes(8, "big"), body, append=True)
                self.next += 1

    def __iter__(self) -> Iterator[bytes]:
        """Yield all bodies in order."""
        with self.environment.begin() as transaction, transaction.cursor() as cursor:
            yield from cursor.iternext(keys=False)

    def worker(self) -> Work:
        """Return a function that adds an entry, moves the first one to the taken entries, and deletes it there."""
        free, taken = self.environment.open_db(b"free"), self.environment.open_db(b"taken")

        def work(body: bytes) -> bytes:
            with self.environment.begin(write=True) as transaction:
                transaction.put(self.next.to_bytes(8, "big"), body, db=free, append=True)
            self.next += 1
            with self.environment.begin(write=True) as transaction:
                cursor = transaction.cursor(free)
                cursor.first()
                key, found = cursor.item()
                transaction.put(key, struct.pack(">d", time.time() + LEASE_S) + found, db=taken)
                cursor.delete()
            with self.environment.begin(write=True) as transaction:
                transaction.delete(key, db=taken)
            return bytes(found)

        return work

    def close(self) -> None:
        """Close it."""
        self.environment.close()


class LevelDb(Peer):
    """LevelDB through plyvel, one batch for each call."""

    def __init__(self, path: Path, *, durable: bool) -> None:
        """Create it."""
        import plyvel

        self.database = plyvel.DB(str(path), create_if_missing=True)
        self.durable = durable
        self.next = 0

    def put(self, bodies: list[bytes]) -> None:
        """Store these bodies with one call."""
        with self.database.write_batch(sync=self.durable) as batch:
            for body in bodies:
                batch.put(self.next.to_bytes(8, "big"), body)
                self.next += 1

    def __iter__(self) -> Iterator[bytes]:
        """Yield all bodies in order."""
        return iter(self.database.iterator(include_key=False))

    def close(self) -> None:
        """Close it."""
        self.database.close()


class RocksDb(Peer):
    """RocksDB through rocksdict, one batch for each call."""

    def __init__(self, path: Path, *, durable: bool) -> None:
        """Create it."""
        import rocksdict

        self.database = rocksdict.Rdict(str(path), rocksdict.Options(raw_mode=True))
        written = rocksdict.WriteOptions()
        written.sync = durable
        self.database.set_write_options(written)
        self.batch = rocksdict.WriteBatch
        self.next = 0

    def put(self, bodies: list[bytes]) -> None:
        """Store these bodies with one call."""
        if len(bodies) == 1:
            self.database[self.next.to_bytes(8, "big")] = bodies[0]
            self.next += 1
            return
        batch = self.batch(raw_mode=True)
        for body in bodies:
            batch.put(self.next.to_bytes(8, "big"), body)
            self.next += 1
        self.database.write(batch)

    def __iter__(self) -> Iterator[bytes]:
        """Yield all bodies in order."""
        return iter(self.database.values())

    def close(self) -> None:
        """Close it."""
        self.database.close()


class LiteQueue(Peer):
    """litequeue, which keeps texts in SQLite, one call for each message."""

    def __init__(self, path: Path, *, durable: bool) -> None:  # noqa: ARG002
        """Create it."""
        from litequeue import LiteQueue as Queue

        path.mkdir()
        self.queue = Queue(str(path / "queue.db"))

    def put(self, bodies: list[bytes]) -> None:
        """Store these bodies one by one."""
        for body in bodies:
            self.queue.put(body.decode())

    def __iter__(self) -> Iterator[bytes]:
        """Take all bodies out in order."""
        while (message := self.queue.pop()) is not None:
            yield message.data.encode()

    def worker(self) -> Work:
        """Return a function that puts a text, pops one, which locks it, and reports it as done."""

        def work(body: bytes) -> bytes:
            self.queue.put(body.decode())
            message = self.queue.pop()
            self.queue.done(message.message_id)
            return message.data.encode()

        return work

    def __len__(self) -> int:
        """Count the stored messages."""
        return int(self.queue.qsize())

    def close(self) -> None:
        """Close it."""
        self.queue.close()


class PersistQueue(Peer):
    """persist-queue's queue in SQLite, one call for each message."""

    def __init__(self, path: Path, *, durable: bool) -> None:  # noqa: ARG002
        """Create it."""
        import persistqueue

        self.path = path
        self.queue = persistqueue.SQLiteQueue(str(path), auto_commit=True)

    def put(self, bodies: list[bytes]) -> None:
        """Store these bodies one by one."""
        for body in bodies:
            self.queue.put(body)

    def __iter__(self) -> Iterator[bytes]:
        """Take all bodies out in order."""
        while self.queue.size:
            yield self.queue.get()

    def worker(self) -> Work:
        """Return a function that puts a body into a queue with acknowledgements, gets one and acknowledges it."""
        import persistqueue

        jobs = persistqueue.SQLiteAckQueue(str(self.path), name="jobs", auto_commit=True)

        def work(body: bytes) -> bytes:
            jobs.put(body)
            found: bytes = jobs.get()
            jobs.ack(found)
            return found

        return work

    def __len__(self) -> int:
        """Count the stored messages."""
        return int(self.queue.size)

    def close(self) -> None:
        """Close it."""
        self.queue.close()


class DiskCache(Peer):
    """diskcache's deque, one call for each message."""

    def __init__(self, path: Path, *, durable: bool) -> None:  # noqa: ARG002
        """Create it."""
        import diskcache

        self.deque = diskcache.Deque(directory=str(path))

    def put(self, bodies: list[bytes]) -> None:
        """Store these bodies one by one."""
        for body in bodies:
            self.deque.append(body)

    def __iter__(self) -> Iterator[bytes]:
        """Yield all bodies in order."""
        return iter(self.deque)

    def close(self) -> None:
        """Close it."""
        self.deque.cache.close()


PEERS: dict[str, Any] = {
    "mqstore": Ours,
    "file": LogFile,
    "queue.Queue": Memory,
    "sqlite3": Sqlite,
    "lmdb": Lmdb,
    "plyvel": LevelDb,
    "rocksdict": RocksDb,
    "litequeue": LiteQueue,
    "persist-queue": PersistQueue,
    "diskcache": DiskCache,
}


def made(spec: dict[str, Any]) -> Peer:
    """Return a new store."""
    try:
        peer: Peer = PEERS[spec["pattern"]](Path(spec["path"]), durable=spec["durability"] == "sync")
    except ImportError as error:
        reason = f"{error}; .venv/bin/pip install --group bench"
        raise RuntimeError(reason) from None
    return peer


def put(spec: dict[str, Any]) -> dict[str, Any]:
    """Store messages, and count them afterwards."""
    peer, body, batch = made(spec), b"x" * spec["body_bytes"], spec["batch"]
    calls = [[body] * batch] * (spec["messages"] // batch)
    for bodies in [[body] * batch] * (spec["warm_up"] // batch):
        peer.put(bodies)
    begin = time.perf_counter()
    for bodies in calls:
        peer.put(bodies)
    seconds = time.perf_counter() - begin
    stored = len(peer)
    peer.close()
    overhead = used_bytes(peer, Path(spec["path"])) / max(stored, 1) - spec["body_bytes"]
    found = stored - spec["warm_up"] // batch * batch
    told = {"seconds": seconds, "messages": len(calls) * batch, "stored": found, "refused": 0}
    return told if isinstance(peer, Memory) else told | {"overhead_bytes": overhead}


def used_bytes(peer: Peer, path: Path) -> int:
    """Return the disk space of a closed store. For mqstore, which preallocates files, return the used part."""
    if isinstance(peer, Ours):
        with mqstore.open(path) as store:
            stats = store.stats()
            entries = sum(each.max_offset - each.min_offset for each in store.queues("bench"))
        # An entry in the queue and one in the index for the unique key, 20 bytes each.
        return stats.log_max_offset - stats.log_min_offset + 2 * 20 * entries
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_blocks * 512 for file in files if file.is_file())


def imported(spec: dict[str, Any]) -> dict[str, Any]:
    """Import a module in a new interpreter, compared with one that imports nothing."""
    taken = []
    for code in ("pass", f"import {spec['pattern']}"):
        begin = time.perf_counter()
        subprocess.run([sys.executable, "-c", code], check=True)
        taken.append(time.perf_counter() - begin)
    # Noise can make the interpreter with the import the faster one.
    seconds = max(taken[1] - taken[0], 1e-6)
    return {"seconds": seconds, "taken_ms": seconds * 1e3, "messages": 1, "stored": 1, "refused": 0}


def work(spec: dict[str, Any]) -> dict[str, Any]:
    """Put a message, get it and acknowledge it, one after the other."""
    peer = made(spec)
    step, head = peer.worker(), spec["body_bytes"] - 12
    for number in range(spec["warm_up"]):
        step(b"%012d" % number + b"x" * head)
    bodies = [b"%012d" % number + b"x" * head for number in range(spec["messages"])]
    begin = time.perf_counter()
    found = sum(step(body) == body for body in bodies)
    seconds = time.perf_counter() - begin
    peer.close()
    return {"seconds": seconds, "messages": len(bodies), "stored": found, "refused": 0}


def iterate(spec: dict[str, Any]) -> dict[str, Any]:
    """Read the bodies of all messages."""
    peer, body = made(spec), b"x" * spec["body_bytes"]
    for _ in range(spec["messages"] // AT_ONCE):
        peer.put([body] * AT_ONCE)
    begin = time.perf_counter()
    found = sum(len(each) for each in peer)
    seconds = time.perf_counter() - begin
    peer.close()
    messages = spec["messages"] // AT_ONCE * AT_ONCE
    return {"seconds": seconds, "messages": messages, "stored": found // spec["body_bytes"], "refused": 0}


if __name__ == "__main__":
    serve({"put": put, "iterate": iterate, "work": work, "import": imported})
