"""Durable appends, alone and next to cold reads: `mqstore bench --cold-reads`.

A store gets some gigabytes of old messages. Then one thread appends durable messages at a fixed rate, in turns: alone,
next to processes that read old messages from the disk, next to a scan from the disk, and next to both. A bare loop that
writes the same bytes to a prepared file, and syncs each write, alternates with the store within each turn. It shows how
much of a delay comes from the disk and the processors.
"""

from __future__ import annotations

import math
import os
import statistics
import tempfile
import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mqstore
from mqstore.cli.measure.cold_reads import TOPIC, Process, Work, drop, processes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

_BLOCK_SECONDS = 0.5
"""Seconds of the store before the bare loop's turn, and of the bare loop before the store's."""

_REST_SECONDS = 1.0
"""Seconds before each turn, at most as long as the turn, in which the disk ends the work of the turn before."""

_NEW = "new"
"""The topic of the appends that are timed."""

_PARTS = {"p50": 0.5, "p99": 0.99, "p999": 0.999, "max": 1.0}

_QUEUES = 8
_AT_ONCE = 1000
_BARE_BYTES = 16 << 20
"""Bytes of the bare loop's file."""

LOADS = ("alone", "readers", "scan", "readers and scan")


@dataclass(frozen=True, slots=True)
class Latencies:
    """Times of one kind of append under one load."""

    count: int
    p50_us: float
    p99_us: float
    p999_us: float
    max_us: float
    p99_ratio: float
    """The 99 % time divided by that without load; the median of the rounds."""
    p999_ratio: float
    """The 99.9 % time of all rounds divided by that without load."""


@dataclass(frozen=True, slots=True)
class Load:
    """The appends under one load, and the work of the load."""

    load: str
    """`alone`, `readers`, `scan`, or `readers and scan`."""
    store: Latencies
    """Durable appends to the store."""
    bare: Latencies
    """Synced writes of the bare loop."""
    messages_per_second: float
    """Messages that the readers got."""
    scan_mb_per_second: float
    """Megabytes of the log that the scan passed."""
    disk_mb_per_second: float
    """Megabytes that the system fetched from the disk for them; 0 if it does not count them."""


@dataclass(frozen=True, slots=True)
class ColdReads:
    """Durable appends, alone and next to cold reads."""

    rate: int
    """Appends a second that were due."""
    size: int
    """Bytes of a body."""
    log_bytes: int
    """Bytes of the log that is read."""
    readers: int
    """Processes that read single messages or 500 in order."""
    rounds: int
    """Turns of each load."""
    loads: tuple[Load, ...]

    def to_dict(self) -> dict[str, Any]:
        """Returns the JSON form."""
        return asdict(self)


@dataclass(slots=True)
class _Turns:
    """The times of one load in seconds, one list for each turn, and the sums of the work of its processes."""

    store: list[list[float]] = field(default_factory=list)
    bare: list[list[float]] = field(default_factory=list)
    seconds: float = 0
    messages: int = 0
    scanned: int = 0
    disk: int = 0

    def add(self, work: Work, *, scans: bool) -> None:
        """Adds the work of one process."""
        if scans:
            self.scanned += work.done
        else:
            self.messages += work.done
        self.disk += work.disk_bytes


@dataclass(frozen=True, slots=True)
class Request:
    """The amount of work."""

    megabytes: int
    """Old messages in the log, in megabytes."""
    readers: int
    """Processes that read messages."""
    rate: int
    """Appends a second."""
    seconds: float
    """Seconds of each turn, half of them for the bare loop."""
    rounds: int
    """Turns of each load."""
    size: int
    """Bytes of a body."""


def measure(folder: Path, request: Request) -> ColdReads:
    """Measures in a temporary folder in `folder`, and removes it at the end."""
    turns = {load: _Turns() for load in LOADS}
    body = os.urandom(request.size)
    with tempfile.TemporaryDirectory(prefix="mqstore-cold-", dir=folder, ignore_cleanup_errors=True) as made:
        home = Path(made) / "store"
        with mqstore.open(home, "create") as store:
            record_bytes = _fill(store, request.megabytes, body)
            log_bytes = store.stats().log_max_offset
            with (
                processes(home, request.readers) as (reading, scanning),
                _bare_loop(Path(made) / "bare", record_bytes) as write,
            ):
                appends = (lambda: store.append(_NEW, body, durable=True), write)
                given = {"alone": [], "readers": reading, "scan": scanning, "readers and scan": reading + scanning}
                for turn in range(request.rounds):
                    for load in LOADS[turn % len(LOADS) :] + LOADS[: turn % len(LOADS)]:
                        time.sleep(min(_REST_SECONDS, request.seconds))
                        drop(home)
                        works = _turn(turns[load], given[load], appends, request)
                        for process, work in works:
                            turns[load].add(work, scans=process in scanning)
    loads = tuple(_load(load, turns[load], turns["alone"]) for load in LOADS)
    return ColdReads(request.rate, request.size, log_bytes, request.readers, request.rounds, loads)


def _fill(store: mqstore.Store, megabytes: int, body: bytes) -> int:
    """Appends the old messages, and returns the bytes of a record."""
    store.create_topic(TOPIC, queues=_QUEUES)
    store.create_topic(_NEW, queues=1)
    while store.stats().log_max_offset < megabytes * 1_000_000:
        store.append_batch(TOPIC, [body] * _AT_ONCE)
    store.flush()
    return store.append(_NEW, body, durable=True).size


@contextmanager
def _bare_loop(path: Path, record_bytes: int) -> Iterator[Callable[[], object]]:
    """Returns the bare loop's write: as many bytes as a record, one after the other in a prepared file, then a sync."""
    record = os.urandom(record_bytes)
    file = os.open(path, os.O_RDWR | os.O_CREAT)
    position = 0

    def write() -> None:
        nonlocal position
        os.pwrite(file, record, position)
        os.fdatasync(file)
        position = (position + record_bytes) % _BARE_BYTES

    try:
        os.pwrite(file, bytes(_BARE_BYTES + record_bytes), 0)
        os.fsync(file)
        yield write
    finally:
        os.close(file)


def _turn(
    turns: _Turns, load: Sequence[Process], appends: Sequence[Callable[[], object]], request: Request
) -> list[tuple[Process, Work]]:
    """Appends under this load, in blocks of the store and of the bare loop; returns the work of the load."""
    times: tuple[list[float], list[float]] = ([], [])
    for process in load:
        process.begin()
    began = time.perf_counter()
    blocks = 2 * max(round(request.seconds / 2 / _BLOCK_SECONDS), 1)
    for block in range(blocks):
        times[block % 2].extend(_at_rate(appends[block % 2], request.rate, request.seconds / blocks))
    turns.seconds += time.perf_counter() - began
    turns.store.append(times[0])
    turns.bare.append(times[1])
    return [(process, process.end()) for process in load]


def _at_rate(append: Callable[[], object], rate: int, seconds: float) -> Iterator[float]:
    """Yields the time of each append, in seconds. If an append makes the next ones late, their wait counts."""
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


def _load(load: str, turns: _Turns, alone: _Turns) -> Load:
    return Load(
        load=load,
        store=_latencies(turns.store, alone.store),
        bare=_latencies(turns.bare, alone.bare),
        messages_per_second=turns.messages / turns.seconds,
        scan_mb_per_second=turns.scanned / turns.seconds / 1e6,
        disk_mb_per_second=turns.disk / turns.seconds / 1e6,
    )


def _latencies(turns: list[list[float]], alone: list[list[float]]) -> Latencies:
    times, usual = (sorted(time for turn in some for time in turn) for some in (turns, alone))
    pairs = zip(turns, alone, strict=True)
    return Latencies(
        count=len(times),
        **{f"{name}_us": _quantile(times, part) * 1e6 for name, part in _PARTS.items()},
        p99_ratio=statistics.median(
            _quantile(sorted(one), 0.99) / _quantile(sorted(other), 0.99) for one, other in pairs
        ),
        p999_ratio=_quantile(times, 0.999) / _quantile(usual, 0.999),
    )


def _quantile(ordered: Sequence[float], part: float) -> float:
    return ordered[min(math.ceil(part * len(ordered)), len(ordered)) - 1]


APPEND_HEADINGS = ("load", "side", "p50, µs", "p99, µs", "p99.9, µs", "max, µs", "p99 / alone", "p99.9 / alone")
LOAD_HEADINGS = ("load", "messages read/s", "scan, MB/s", "from the disk, MB/s")


def append_rows(found: ColdReads) -> list[tuple[object, ...]]:
    """Returns the table of the appends."""
    rows: list[tuple[object, ...]] = []
    for load in found.loads:
        for name, side in (("store", load.store), ("bare loop", load.bare)):
            times = (side.p50_us, side.p99_us, side.p999_us, side.max_us)
            ratios = (f"{side.p99_ratio:.2f}", f"{side.p999_ratio:.2f}")
            rows.append((load.load, name, *(f"{time:,.0f}" for time in times), *ratios))
    return rows


def load_rows(found: ColdReads) -> list[tuple[object, ...]]:
    """Returns the table of the reads."""
    return [
        (
            load.load,
            *(f"{rate:,.0f}" for rate in (load.messages_per_second, load.scan_mb_per_second, load.disk_mb_per_second)),
        )
        for load in found.loads[1:]
    ]
