"""Processes that read a store from the disk while `mqstore bench --cold-reads` appends to it.

Each process waits for a command, reads until it gets the next one, and answers with the amount of its work. Before a
turn, and behind a scan, the pages of the files are dropped from memory, so that the reads reach the disk.
"""

from __future__ import annotations

import os
from contextlib import ExitStack, closing, contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import mqstore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

TOPIC = "old"
"""The topic whose messages are read."""

_IN_ORDER = 500
"""Messages that a reader of the second kind reads from one place."""

_STRIDE = 2_654_435_761
"""Distance between two places that a reader visits, modulo the number of messages: a prime, so it visits all."""

_DROP_BYTES = 64 << 20
"""Bytes of the log that a scan passes before their pages are dropped."""


class Work(NamedTuple):
    """The work of one process in one turn."""

    done: int
    """Messages of a reader, bytes of the log of a scan."""
    disk_bytes: int
    """Bytes that the system fetched from the disk for the process; 0 if it does not count them."""


def drop(home: Path) -> None:
    """Drops the pages of the log and of the queues from memory. Pages that are mapped or not written yet stay."""
    for folder in ("commitlog", "consumequeue"):
        for path in (home / folder).rglob("*"):
            if path.is_file():
                _drop_range(path, 0, 0)


def _drop_range(path: Path, start: int, length: int) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(file, start, length, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)


def _read(home: Path, number: int) -> Iterator[int]:
    """Reads single messages if `number` is even, else 500 in order, from places all over the topic."""
    with mqstore.open(home) as store:
        queues = [queue for queue in store.queues(TOPIC) if queue.count > _IN_ORDER]
        places = sum(queue.count - _IN_ORDER for queue in queues)
        place = number * places // 7
        while True:
            place = (place + _STRIDE) % places
            left = place
            for queue in queues:
                if left < queue.count - _IN_ORDER:
                    break
                left -= queue.count - _IN_ORDER
            else:
                continue
            start = queue.min_offset + left
            if number % 2 == 0:
                yield int(store.message_at(TOPIC, queue.queue_id, start) is not None)
            else:
                yield sum(1 for _ in store.read(TOPIC, queue.queue_id, start, start + _IN_ORDER))


def _scan(home: Path, _number: int) -> Iterator[int]:
    """Scans the bodies of the log, again and again."""
    segments = sorted((home / "commitlog").iterdir())
    begins = [int(segment.name) for segment in segments]
    while True:
        stream = mqstore.scan(home, topics=None, columns=["body"])._open()
        position = dropped = begins[0]
        for _rows in stream:
            yield stream.position - position
            position = stream.position
            while position - dropped >= _DROP_BYTES:
                segment = max(index for index, begin in enumerate(begins) if begin <= dropped)
                _drop_range(segments[segment], dropped - begins[segment], _DROP_BYTES)
                dropped += _DROP_BYTES


def _serve(connection: Connection, home: Path, number: int, *, scans: bool) -> None:
    """Works between every second command and the next one, until the connection ends."""
    steps = _scan(home, number) if scans else _read(home, number)
    next(steps)
    connection.send(None)
    try:
        while connection.recv():
            done, before = 0, _disk_bytes()
            while not connection.poll():
                done += next(steps)
            connection.recv()
            connection.send(Work(done, _disk_bytes() - before))
    except (EOFError, KeyboardInterrupt):
        return


def _disk_bytes() -> int:
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("read_bytes:")), 0)


class Process:
    """One process that reads."""

    def __init__(self, home: Path, number: int, scans: bool) -> None:
        context = get_context("spawn")
        self._connection, theirs = context.Pipe()
        arguments = (theirs, home, number)
        self._process: BaseProcess = context.Process(
            target=_serve, args=arguments, kwargs={"scans": scans}, daemon=True
        )
        self._process.start()
        theirs.close()
        self._connection.recv()

    def begin(self) -> None:
        """Starts to read."""
        self._connection.send(True)

    def end(self) -> Work:
        """Stops, and returns the work since `begin`."""
        self._connection.send(True)
        work: Work = self._connection.recv()
        return work

    def close(self) -> None:
        """Ends the process."""
        self._connection.close()
        self._process.join(10)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


@contextmanager
def processes(home: Path, readers: int) -> Iterator[tuple[list[Process], list[Process]]]:
    """Starts this many readers and a scan; they end with the context."""
    with ExitStack() as started:
        kinds = [False] * readers + [True]
        made = [started.enter_context(closing(Process(home, *kind))) for kind in enumerate(kinds)]
        yield made[:readers], made[readers:]
