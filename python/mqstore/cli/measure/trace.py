"""Delays of appends at a fixed rate, and their causes: `mqstore bench --trace`.

A message is due at its time whether or not the store keeps up, and its latency counts from then. The native core makes
the appends, so the interpreter delays none of them. A bare loop copies records of the same size into a prepared map, at
the same rate: its delays are those of the machine.
"""

from __future__ import annotations

import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import mqstore
from mqstore import _native

_WARM_UP = 20_000
"""Messages appended before the trace, so that topic, queue and first pages exist."""

_REST_SECONDS = 1.0
"""Rest after the warm-up, in which dispatch and page preparation finish."""

_SHOWN_SHARE = 0.05
"""Minimum share of other work that the table shows."""


@dataclass(frozen=True, slots=True)
class Cause:
    """The slow steps with one cause. A step is one append, or one look at the clock between two appends."""

    cause: str
    """`put_lock`, `segment_roll`, `disk_space`, `pool_full` or `dispatch_backlog` (work of the store in the appending
    thread), `major_fault`, `minor_fault`, `preemption`, `wait` (for something else in the kernel), `machine` (nothing
    was counted: interrupts, other guests of the host), or `rate` (no step was slow)."""
    steps: int
    """Number of slow steps."""
    share: float
    """Part of the time of all slow steps."""
    total_us: float
    """Their time, in microseconds."""
    worst_us: float
    """The longest one, in microseconds."""
    late: int
    """Late messages for which this was the longest slow step since the thread was last on time."""
    meanwhile: dict[str, float]
    """What other threads of the store did during these steps, as parts of their time: `page_preparation`, `sync`,
    `index_file`, `dispatch`."""


@dataclass(frozen=True, slots=True)
class SlowStep:
    """One of the slowest steps."""

    at_seconds: float
    """When it began, after the start of the trace."""
    duration_us: float
    """Its duration, in microseconds."""
    cause: str
    """Its cause, as in `causes`."""
    cpu_us: float
    """How long the thread had a processor, in microseconds; includes up to 5 microseconds before the step."""
    minor_faults: int
    """Page faults without a read from a disk."""
    major_faults: int
    """Page faults with a read from a disk."""
    waits: int
    """How often the thread gave up the processor."""
    preemptions: int
    """How often another thread took the processor."""
    meanwhile: dict[str, float]
    """What other threads of the store did, as parts of the duration."""


@dataclass(frozen=True, slots=True)
class Side:
    """The latencies of one side, from the moment when each message was due, in microseconds."""

    messages_per_second: float
    record_bytes: float
    """Bytes of a record."""
    p50_us: float
    p99_us: float
    p999_us: float
    p9999_us: float
    max_us: float
    late: int
    """Messages that were later than `slow_us`."""
    minor_faults: int
    """Page faults of the appending thread without a read from a disk."""
    major_faults: int
    """Page faults of the appending thread with a read from a disk."""
    preemptions: int
    """How often another thread took the processor from it."""
    causes: tuple[Cause, ...]
    """The causes, those with the most late messages first."""
    slowest: tuple[SlowStep, ...]
    """The slowest steps, longest first."""


@dataclass(frozen=True, slots=True)
class Trace:
    """Delays of appends at a fixed rate, and their causes."""

    rate: int
    """Messages a second that were due."""
    messages: int
    """Number of messages of each side."""
    size: int
    """Bytes of a body."""
    slow_us: float
    """Microseconds from which a step is slow and a message is late."""
    store: Side
    """The store."""
    bare: Side
    """The bare loop."""

    def to_dict(self) -> dict[str, Any]:
        """Returns the JSON form."""
        return asdict(self)


def trace(folder: Path, rate: int, seconds: float, size: int, slow_us: float, listed: int) -> Trace:
    """Traces a store in a temporary folder in `folder`, then the bare loop, and removes the folder."""
    messages, slow_ns = max(int(rate * seconds), 1), int(slow_us * 1000)
    with tempfile.TemporaryDirectory(prefix="mqstore-trace-", dir=folder, ignore_cleanup_errors=True) as home:
        with mqstore.open(f"{home}/store", "create") as store:
            store.create_topic("bench", queues=1)
            store.append_many("bench", [b"x" * size] * min(_WARM_UP, messages))
            time.sleep(_REST_SECONDS)
            found = _native.trace_store(store, (messages, rate, size, slow_ns, listed))
        record_bytes = found["bytes"] // messages
        bare = _native.trace_map(f"{home}/bare", (messages, rate, record_bytes, slow_ns, listed))
    return Trace(rate, messages, size, slow_us, _side(found), _side(bare))


def _side(found: dict[str, Any]) -> Side:
    whole = sum(cause["total_ns"] for cause in found["causes"])
    return Side(
        messages_per_second=found["messages"] * 1e9 / max(found["elapsed_ns"], 1),
        record_bytes=found["bytes"] / found["messages"],
        **{f"{name}_us": found[f"{name}_ns"] / 1000 for name in ("p50", "p99", "p999", "p9999", "max")},
        late=found["late"],
        minor_faults=found["minor_faults"],
        major_faults=found["major_faults"],
        preemptions=found["preemptions"],
        causes=tuple(_cause(cause, whole) for cause in found["causes"]),
        slowest=tuple(_step(step) for step in found["slowest"]),
    )


def _cause(found: dict[str, Any], whole: int) -> Cause:
    return Cause(
        cause=found["cause"],
        steps=found["steps"],
        share=found["total_ns"] / max(whole, 1),
        total_us=found["total_ns"] / 1000,
        worst_us=found["worst_ns"] / 1000,
        late=found["late"],
        meanwhile=_parts(found["meanwhile_ns"], found["total_ns"]),
    )


def _step(found: dict[str, Any]) -> SlowStep:
    return SlowStep(
        at_seconds=found["at_ns"] / 1e9,
        duration_us=found["duration_ns"] / 1000,
        cause=found["cause"],
        cpu_us=found["cpu_ns"] / 1000,
        minor_faults=found["minor_faults"],
        major_faults=found["major_faults"],
        waits=found["waits"],
        preemptions=found["preemptions"],
        meanwhile=_parts(found["meanwhile_ns"], found["duration_ns"]),
    )


def _parts(meanwhile_ns: dict[str, int], whole_ns: int) -> dict[str, float]:
    return {work: busy / max(whole_ns, 1) for work, busy in meanwhile_ns.items()}


LATENCY_HEADINGS = ("side", "messages/s", "p50, µs", "p99, µs", "p99.9, µs", "p99.99, µs", "max, µs", "late")
CAUSE_HEADINGS = ("side", "cause", "slow steps", "share", "worst, µs", "late messages", "meanwhile")


def latency_rows(found: Trace) -> list[tuple[object, ...]]:
    """Returns the table of latencies."""
    rows: list[tuple[object, ...]] = []
    for name, side in _sides(found):
        latencies = (side.p50_us, side.p99_us, side.p999_us, side.p9999_us, side.max_us)
        rate = f"{side.messages_per_second:,.0f}"
        rows.append((name, rate, *(f"{latency:,.1f}" for latency in latencies), side.late))
    return rows


def cause_rows(found: Trace) -> list[tuple[object, ...]]:
    """Returns the table of causes."""
    return [
        (name, cause.cause, cause.steps, f"{cause.share:.0%}", f"{cause.worst_us:,.1f}", cause.late, _shown(cause))
        for name, side in _sides(found)
        for cause in side.causes
    ]


def _sides(found: Trace) -> tuple[tuple[str, Side], ...]:
    return ("store", found.store), ("bare loop", found.bare)


def _shown(cause: Cause) -> str:
    shares = sorted(cause.meanwhile.items(), key=lambda item: -item[1])
    return ", ".join(f"{work} {share:.0%}" for work, share in shares if share >= _SHOWN_SHARE)
