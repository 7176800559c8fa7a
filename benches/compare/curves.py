"""``python -m benches.compare.curves``, the program of `make bench-curves`: growth of times and memory with the work.

A separate process measures each point. Meanwhile this program samples the private memory of that process, without the
pages of mapped files. The figures are written as JSON, and with `--docs` also as the tables of docs/scale.md and their
plots.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from . import machine
from .measure import DEFAULTS, DERIVED, MOST_SECONDS
from .plots import curve_plot
from .report import label_machine
from .sides import HERE, ROOT, Programs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from .rows import Spec
    from .sides import Driver

LOOK_EVERY_S = 0.01
RECORD_BYTES = 1_218
"""Bytes of a record of these measurements, with a body of 1 KiB."""
TAIL = 33_000
"""Messages after the last sync when a store is killed: 40 MB."""
PATIENT = {"flush_interval_ms": 3_600_000}
BEGIN, END = "<!-- curve {}: begin -->", "<!-- curve {}: end -->"

Figures = dict[str, float]


class Curve(NamedTuple):
    """A measurement and its points."""

    name: str
    title: str
    axis: str
    points: tuple[int, ...]
    measure: Callable[[Curves, int], Iterator[Figures]]
    """Yields the figures of one round, in several parts if one process cannot measure them all."""
    units: dict[str, str]
    """The unit of each figure."""
    scale: float = 1.0
    """Factor from a point to its value on the axis."""


class Memory(threading.Thread):
    """Samples the private memory of a process until it is stopped."""

    def __init__(self, process: int) -> None:
        """Start to sample."""
        super().__init__(daemon=True)
        self._status = Path(f"/proc/{process}/status")
        self._seen: list[tuple[float, int]] = []
        self._over = threading.Event()
        self.start()

    def run(self) -> None:
        """Sample in a loop."""
        while not self._over.wait(LOOK_EVERY_S):
            with suppress(OSError):
                for line in self._status.read_text(encoding="ascii").splitlines():
                    if line.startswith("RssAnon:"):
                        self._seen.append((time.monotonic(), int(line.split()[1])))

    def most_mib(self, seconds: float) -> float:
        """Stop, and return the maximum of the last `seconds` seconds."""
        since = time.monotonic() - seconds - 2 * LOOK_EVERY_S
        self._over.set()
        self.join()
        return max((kib for at, kib in self._seen if at >= since), default=0) / 1024


class Curves:
    """Measures points in a scratch folder."""

    def __init__(self, programs: Programs, scratch: Path) -> None:
        """Stores are made in `scratch`."""
        self.programs = programs
        self.store = scratch / "store"

    def once(self, **spec: Any) -> Figures:
        """Measure in a separate process. Returns its figures, and its maximum memory during the measurement."""
        with self.programs.start("rust") as driver:
            return self.told(driver, **spec)

    def told(self, driver: Driver, **spec: Any) -> Figures:
        """Measure in the process of this driver."""
        whole: Spec = DEFAULTS | {"side": "ours", "path": str(self.store)} | spec
        os.sync()
        memory = Memory(driver.process.pid)
        result = driver.measure(whole, MOST_SECONDS)
        return result | {"mib": memory.most_mib(result.get("seconds", 0))}

    @contextmanager
    def emptied(self) -> Iterator[None]:
        """Remove the store before and afterwards."""
        shutil.rmtree(self.store, ignore_errors=True)
        yield
        shutil.rmtree(self.store, ignore_errors=True)


def of_log(curves: Curves, messages: int) -> Iterator[Figures]:
    """Open after a kill, rebuild, verify and compact a store with this many messages of 1 KiB in four queues."""
    with curves.emptied():
        filled = curves.once(op="fill", messages=messages, queues=4)
        killed = curves.programs.start("rust")
        try:
            tail = {"messages": TAIL, "unflushed": TAIL, "options": PATIENT, "close": False}
            curves.told(killed, op="open", **tail)
        finally:
            killed.kill()
        found = curves.once(op="open", messages=0, options=PATIENT)
        assert found["was_clean"] is False, "a killed store was found closed"
        yield {"open after a kill": found["seconds"], "open after a kill, MiB": found["mib"]}
        found = curves.once(op="verify", messages=messages)
        yield {"verify": found["seconds"], "verify, MiB": found["mib"]}
        for name in DERIVED:
            path = curves.store / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
        found = curves.once(op="rebuild", log_end=filled["log_bytes"])
        yield {"rebuild": found["seconds"], "rebuild, MiB": found["mib"]}
    with curves.emptied():
        table = {"keys": messages // 10, "queues": 4, "threads": 2, "options": {"compaction_feed": False}}
        found = curves.once(op="compact", messages=messages, **table)
        yield {"compact": found["seconds"], "compact, MiB": found["mib"]}


def of_queues(curves: Curves, queues: int) -> Iterator[Figures]:
    """Append 400,000 messages to this many queues. Open them again after a hundred of them were used."""
    with curves.emptied():
        found = curves.once(op="queues", queues=queues, messages=400_000)
        yield {
            "build": found["build_ms"] / 1e3,
            "close": found["close_ms"] / 1e3,
            "open": found["open_active_ms"] / 1e3,
            "read all": found["read_ms"] / 1e3,
            "MiB": found["resident_mib"],
        }


def of_waiters(curves: Curves, threads: int) -> Iterator[Figures]:
    """Append with syncs from this many threads, compared with bare writes that share their syncs."""
    work = {
        "threads": threads,
        "messages": max(4_000, 400 * threads),
        "warm_up": 200,
        "settle_ms": 3_000,
        "latency": True,
    }
    for name, spec in (
        ("mqstore", {"op": "append", "durability": "sync"}),
        ("limit", {"op": "limit", "side": "sync"}),
    ):
        with curves.emptied():
            found: Any = curves.once(**(work | spec))
            yield {name: found["messages"] / found["seconds"], f"{name}, p99": found["latency"]["p99_ns"] / 1e6}


def of_keys(curves: Curves, keys: int) -> Iterator[Figures]:
    """Compact one queue with this many messages of 24 bytes, each with a different key."""
    with curves.emptied():
        work = {"messages": keys, "keys": keys, "body_bytes": 24, "options": {"compaction_feed": False}}
        found = curves.once(op="compact", **work)
        yield {"compact": found["seconds"], "compact, MiB": found["mib"]}


SECONDS = dict.fromkeys(
    ("open after a kill", "verify", "rebuild", "compact", "build", "close", "open", "read all"), "s"
)
MIB = {f"{name}, MiB": "MiB" for name in ("open after a kill", "verify", "rebuild", "compact")} | {"MiB": "MiB"}

MILLION = 1_000_000
CURVES = (
    Curve(
        "log",
        "a store of messages of 1 KiB in four queues",
        "log, GB",
        (MILLION // 4, MILLION // 2, MILLION, 2 * MILLION, 4 * MILLION, 8 * MILLION),
        of_log,
        SECONDS | MIB,
        scale=RECORD_BYTES / 1e9,
    ),
    Curve(
        "queues", "400,000 messages of 1 KiB", "queues", (1, 10, 100, 1_000, 10_000, 40_000), of_queues, SECONDS | MIB
    ),
    Curve(
        "waiters",
        "messages of 1 KiB, each synced before its call returns",
        "threads",
        (1, 2, 4, 8, 16, 32, 64, 128, 256),
        of_waiters,
        {"mqstore": "messages/s", "limit": "messages/s", "mqstore, p99": "ms", "limit, p99": "ms"},
    ),
    Curve(
        "keys",
        "messages of 24 bytes in one queue, each with a key of its own",
        "keys",
        (10_000, 100_000, MILLION, 5 * MILLION, 20 * MILLION),
        of_keys,
        SECONDS | MIB,
    ),
)


def measured(curves: Curves, curve: Curve, rounds: int, points: tuple[int, ...]) -> list[dict[str, Any]]:
    """Return medians and spreads of all points."""
    found = []
    for point in points:
        values: dict[str, list[float]] = {}
        for _ in range(rounds):
            for figures in curve.measure(curves, point):
                for name, value in figures.items():
                    values.setdefault(name, []).append(value)
        spread = {
            name: {"median": statistics.median(all_of), "min": min(all_of), "max": max(all_of)}
            for name, all_of in values.items()
        }
        found.append({"at": point * curve.scale, "figures": spread})
        told = ", ".join(f"{name} {figure['median']:.4g}" for name, figure in spread.items())
        print(f"{curve.name} {point:,}: {told}", file=sys.stderr, flush=True)
    return found


def table(curve: Curve, found: list[dict[str, Any]]) -> str:
    """Return the figures as Markdown."""
    names = list(found[0]["figures"])
    head = [name if curve.units[name] in name else f"{name}, {curve.units[name]}" for name in names]
    lines = [f"| {curve.axis} | " + " | ".join(head) + " |", "|---" * (len(names) + 1) + "|"]
    for point in found:
        cells = [f"{point['figures'][name]['median']:,.{digits(point['figures'][name]['median'])}f}" for name in names]
        lines.append(
            f"| {point['at']:,.{digits(point['at']) if curve.scale != 1 else 0}f} | " + " | ".join(cells) + " |"
        )
    return "\n".join(lines)


def digits(value: float) -> int:
    """Return the number of decimals that gives three digits in total."""
    return 0 if value >= 100 else 1 if value >= 10 else 2 if value >= 1 else 3


def into_page(page: Path, name: str, text: str) -> None:
    """Put a text between its marks in the page."""
    before, mark, rest = page.read_text(encoding="utf-8").partition(BEGIN.format(name))
    _, end, after = rest.partition(END.format(name))
    if not mark or not end:
        reason = f"{page} has no marks for the curve {name}"
        raise ValueError(reason)
    page.write_text(f"{before}{mark}\n\n{text}\n\n{end}{after}", encoding="utf-8")


def main() -> int:
    """Measure the curves that the command line selects."""
    parser = argparse.ArgumentParser(prog="make bench-curves ARGS=…", description=__doc__.splitlines()[0])
    names = [curve.name for curve in CURVES]
    parser.add_argument("curves", nargs="*", help=f"of {', '.join(names)}; all by default")
    parser.add_argument("--rounds", type=int, default=3, help="how often each point is measured")
    parser.add_argument("--points", type=int, default=None, help="only so many points of each, the smallest")
    parser.add_argument("--folder", type=Path, default=Path(tempfile.gettempdir()), help="a folder on a real disk")
    parser.add_argument("--docs", action="store_true", help="write docs/scale.md and its plots, too")
    given = parser.parse_args()
    if unknown := set(given.curves) - set(names):
        parser.error(f"there is no curve {', '.join(sorted(unknown))}")
    with tempfile.TemporaryDirectory(prefix="mqstore-curves-", dir=given.folder) as name:
        scratch = Path(name)
        curves = Curves(Programs(scratch, java=False), scratch)
        facts = machine.describe(scratch)
        for curve in CURVES:
            if given.curves and curve.name not in given.curves:
                continue
            found = measured(curves, curve, given.rounds, curve.points[: given.points])
            output = HERE / "results" / f"curve-{curve.name}.json"
            output.parent.mkdir(exist_ok=True)
            output.write_text(json.dumps({"machine": facts, "points": found}, indent=1) + "\n", encoding="utf-8")
            text = table(curve, found)
            print(f"{curve.name}: {curve.title}\n\n{text}\n", flush=True)
            if given.docs:
                plot = ROOT / "docs" / "plots" / f"curve-{curve.name}.svg"
                curve_plot(plot, curve.title, curve.axis, curve.units, found)
                taken = time.strftime("%Y-%m-%d")
                label = label_machine(ROOT / "benches" / "RESULTS.md", facts)
                note = f"Medians of {given.rounds}; taken {taken} on the machine {label} of `benches/RESULTS.md`."
                picture = f"![{curve.title}](plots/{plot.name})"
                into_page(ROOT / "docs" / "scale.md", curve.name, f"{text}\n\n{note}\n\n{picture}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
