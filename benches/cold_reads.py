"""Durable appends next to reads from the disk: `python -m benches.cold_reads FOLDER [--megabytes 4000] [--rounds 3]`.

A store gets some gigabytes of old messages of 1 KiB. Then one thread appends durable messages at a fixed rate, in turns
under four loads:

- nothing reads;
- `--readers` processes read from places all over the old messages: half of them single messages, the others 500 in
  order;
- one process scans the bodies of the whole log;
- both.

In each turn, the store alternates every half second with a bare loop that writes the same bytes to a prepared file and
syncs each write. It shows how much of a delay comes from the disk and the processors. Before each turn, and behind the
scan, the pages of the store are dropped from memory, so that the reads reach the disk; the last column of the second
table shows that they do. It needs `posix_fadvise`, which Linux has.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import tempfile
import time
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import mqstore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.process import BaseProcess

OLD = "old"
"""The topic whose messages are read."""

NEW = "new"
"""The topic of the appends that are timed."""

LOADS = ("alone", "readers", "scan", "readers and scan")

QUEUES = 8
BODY_BYTES = 1024
AT_ONCE = 1000

BLOCK_SECONDS = 0.5
"""Seconds of the store before the bare loop's turn, and of the bare loop before the store's."""

REST_SECONDS = 1.0
"""Seconds before each turn, at most as long as the turn, in which the disk ends the work of the turn before."""

BARE_BYTES = 16 << 20
"""Bytes of the bare loop's file."""

IN_ORDER = 500
"""Messages that a reader of the second kind reads from one place."""

STRIDE = 2_654_435_761
"""Distance between two places that a reader visits, modulo the number of messages: a prime, so it visits all."""

LEAST_MEGABYTES = 8
"""Old messages from which on each queue has more than a reader reads from one place."""

DROP_BYTES = 64 << 20
"""Bytes of the log that a scan passes before their pages are dropped."""


class Work(NamedTuple):
    """The work of one process in one turn."""

    done: int
    """Messages of a reader, bytes of the log of a scan."""
    disk_bytes: int
    """Bytes that the system fetched from the disk for the process; 0 if it does not count them."""


def drop(home: Path) -> None:
    """Drop the pages of the log and of the queues from memory. Pages that are mapped or not written yet stay."""
    for folder in ("commitlog", "consumequeue"):
        for path in (home / folder).rglob("*"):
            if path.is_file():
                drop_range(path, 0, 0)


def drop_range(path: Path, start: int, length: int) -> None:
    file = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(file, start, length, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)


def read(home: Path, number: int) -> Iterator[int]:
    """Read single messages if `number` is even, else 500 in order, from places all over the topic."""
    with mqstore.open(home) as store:
        queues = [queue for queue in store.queues(OLD) if queue.count > IN_ORDER]
        places = sum(queue.count - IN_ORDER for queue in queues)
        place = number * places // 7
        while True:
            place = (place + STRIDE) % places
            left = place
            for queue in queues:
                if left < queue.count - IN_ORDER:
                    break
                left -= queue.count - IN_ORDER
            else:
                continue
            start = queue.min_offset + left
            if number % 2 == 0:
                yield int(store.message_at(OLD, queue.queue_id, start) is not None)
            else:
                yield sum(1 for _ in store.read(OLD, queue.queue_id, start, start + IN_ORDER))


def scan(home: Path) -> Iterator[int]:
    """Scan the bodies of the log, again and again."""
    segments = sorted((home / "commitlog").iterdir())
    begins = [int(segment.name) for segment in segments]
    while True:
        stream = mqstore.scan(home, topics=None, columns=["body"])._open()
        position = dropped = begins[0]
        for _rows in stream:
            yield stream.position - position
            position = stream.position
            while position - dropped >= DROP_BYTES:
                segment = max(index for index, begin in enumerate(begins) if begin <= dropped)
                drop_range(segments[segment], dropped - begins[segment], DROP_BYTES)
                dropped += DROP_BYTES


def serve(connection: Connection, home: Path, number: int | None) -> None:
    """Work between every second command and the next one, until the connection ends."""
    steps = scan(home) if number is None else read(home, number)
    next(steps)
    connection.send(None)
    try:
        while connection.recv():
            done, before = 0, disk_bytes()
            while not connection.poll():
                done += next(steps)
            connection.recv()
            connection.send(Work(done, disk_bytes() - before))
    except (EOFError, KeyboardInterrupt):
        return


def disk_bytes() -> int:
    try:
        lines = Path("/proc/self/io").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("read_bytes:")), 0)


class Process:
    """One process that reads: a reader with this number, or a scan."""

    def __init__(self, home: Path, number: int | None) -> None:
        context = get_context("spawn")
        self.scans = number is None
        self._connection, theirs = context.Pipe()
        self._process: BaseProcess = context.Process(target=serve, args=(theirs, home, number), daemon=True)
        self._process.start()
        theirs.close()
        self._connection.recv()

    def begin(self) -> None:
        self._connection.send(True)

    def end(self) -> Work:
        """Stop, and return the work since `begin`."""
        self._connection.send(True)
        work: Work = self._connection.recv()
        return work

    def close(self) -> None:
        self._connection.close()
        self._process.join(10)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


@dataclass(slots=True)
class Turns:
    """The times of one load in seconds, one list for each turn, and the sums of the work of its processes."""

    store: list[list[float]] = field(default_factory=list)
    bare: list[list[float]] = field(default_factory=list)
    seconds: float = 0
    messages: int = 0
    scanned: int = 0
    disk: int = 0


def fill(store: mqstore.Store, megabytes: int, body: bytes) -> int:
    """Append the old messages, and return the bytes of a record."""
    store.create_topic(OLD, queues=QUEUES)
    store.create_topic(NEW, queues=1)
    while store.stats().log_max_offset < megabytes * 1_000_000:
        store.append_batch(OLD, [body] * AT_ONCE)
    store.flush()
    return store.append(NEW, body, durable=True).size


@contextmanager
def bare_loop(path: Path, record_bytes: int) -> Iterator[Callable[[], object]]:
    """Return the bare loop's write: as many bytes as a record, one after the other in a prepared file, then a sync."""
    record = os.urandom(record_bytes)
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    position = 0

    def write() -> None:
        nonlocal position
        os.pwrite(file, record, position)
        os.fdatasync(file)
        position = (position + record_bytes) % BARE_BYTES

    try:
        os.pwrite(file, bytes(BARE_BYTES + record_bytes), 0)
        os.fsync(file)
        yield write
    finally:
        os.close(file)


def turn(
    turns: Turns, load: Sequence[Process], appends: Sequence[Callable[[], object]], rate: int, seconds: float
) -> None:
    """Append under this load, in blocks of the store and of the bare loop."""
    times: tuple[list[float], list[float]] = ([], [])
    for process in load:
        process.begin()
    began = time.perf_counter()
    blocks = 2 * max(round(seconds / 2 / BLOCK_SECONDS), 1)
    for block in range(blocks):
        times[block % 2].extend(at_rate(appends[block % 2], rate, seconds / blocks))
    turns.seconds += time.perf_counter() - began
    turns.store.append(times[0])
    turns.bare.append(times[1])
    for process in load:
        work = process.end()
        turns.disk += work.disk_bytes
        if process.scans:
            turns.scanned += work.done
        else:
            turns.messages += work.done


def at_rate(append: Callable[[], object], rate: int, seconds: float) -> Iterator[float]:
    """Yield the time of each append, in seconds. If an append makes the next ones late, their wait counts."""
    began = ended = time.perf_counter()
    for number in range(max(int(rate * seconds), 1)):
        start = began + number / rate
        if ended < start:
            time.sleep(max(start - time.perf_counter(), 0))
            # The time until this thread wakes up is not part of the append.
            start = time.perf_counter()
        append()
        ended = time.perf_counter()
        yield ended - start


def quantile(times: Sequence[float], part: float) -> float:
    ordered = sorted(times)
    return ordered[min(math.ceil(part * len(ordered)), len(ordered)) - 1]


def print_report(turns: dict[str, Turns]) -> None:
    print(f"{'load':17}{'side':10}   p50, µs   p99, µs p99.9, µs   max, µs  p99 / alone  p99.9 / alone")
    for load in LOADS:
        for side in ("store", "bare"):
            ours, alone = getattr(turns[load], side), getattr(turns["alone"], side)
            times, usual = ([one for some in all_turns for one in some] for all_turns in (ours, alone))
            pairs = zip(ours, alone, strict=True)
            p99 = statistics.median(quantile(one, 0.99) / quantile(other, 0.99) for one, other in pairs)
            p999 = quantile(times, 0.999) / quantile(usual, 0.999)
            shown = "".join(f"{quantile(times, part) * 1e6:10,.0f}" for part in (0.5, 0.99, 0.999, 1))
            print(f"{load:17}{side:10}{shown}{p99:13.2f}{p999:15.2f}")
    print(f"\n{'load':17}messages read/s  scan, MB/s  from the disk, MB/s")
    for load in LOADS[1:]:
        one = turns[load]
        rates = (one.messages / one.seconds, one.scanned / one.seconds / 1e6, one.disk / one.seconds / 1e6)
        print("{:17}{:15,.0f}{:12,.0f}{:21,.0f}".format(load, *rates))


def main() -> None:
    """Measure in a temporary folder, and remove it at the end."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="a folder on the disk to measure")
    parser.add_argument("--megabytes", type=int, default=4000, help="old messages in the log")
    parser.add_argument("--readers", type=int, default=4, help="processes that read messages")
    parser.add_argument("--rate", type=int, default=1000, help="appends a second")
    parser.add_argument("--seconds", type=float, default=4, help="seconds of each turn, half of them for the bare loop")
    parser.add_argument("--rounds", type=int, default=3, help="turns of each load")
    arguments = parser.parse_args()
    if arguments.megabytes < LEAST_MEGABYTES or arguments.rounds < 1:
        parser.error(f"--megabytes must be at least {LEAST_MEGABYTES}, and --rounds at least 1")
    turns = {load: Turns() for load in LOADS}
    body = os.urandom(BODY_BYTES)
    with ExitStack() as open_things:
        made = open_things.enter_context(tempfile.TemporaryDirectory(dir=arguments.folder, ignore_cleanup_errors=True))
        home = Path(made) / "store"
        store = open_things.enter_context(mqstore.open(home, "create"))
        record_bytes = fill(store, arguments.megabytes, body)
        started = [
            open_things.enter_context(closing(Process(home, number))) for number in (*range(arguments.readers), None)
        ]
        write = open_things.enter_context(bare_loop(Path(made) / "bare", record_bytes))
        appends = (lambda: store.append(NEW, body, durable=True), write)
        given = dict(zip(LOADS, ([], started[:-1], started[-1:], started), strict=True))
        for number in range(arguments.rounds):
            first = number % len(LOADS)
            for load in LOADS[first:] + LOADS[:first]:
                time.sleep(min(REST_SECONDS, arguments.seconds))
                drop(home)
                turn(turns[load], given[load], appends, arguments.rate, arguments.seconds)
    print_report(turns)


if __name__ == "__main__":
    main()
