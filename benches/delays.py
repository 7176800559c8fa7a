"""Delayed messages on the machine's clock: `python -m benches.delays [FOLDER] [--pending 10000000]`.

It measures how late messages come when ten thousand per second become due for ten seconds. It also measures the time of
an open in a new process with this many waiting messages, and the memory of that process. Both parts print how many
messages per second were accepted, with one call for each.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import mqstore

DUE = 100_000
SPREAD_MS = 10_000
PENDING = 10_000_000
HOUR_MS = 3_600_000
BODY = bytes(100)
OPENS = 3
OPEN = """
import sys, time
from pathlib import Path
began = time.perf_counter()
import mqstore
imported = time.perf_counter()
store = mqstore.open(sys.argv[1], "rw")
pending = store.delays().pending
opened = time.perf_counter()
peak = Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0]
print(f"{pending:,} wait; opened in {1000 * (opened - imported):.0f} ms, {int(peak) / 1024:.0f} MiB at most")
store.close()
"""


def now_ms() -> int:
    """The time of the machine."""
    return time.time_ns() // 1_000_000


def accept(store: mqstore.Store, count: int, first_ms: int, spread_ms: int) -> None:
    """Append messages that are due at random times, and print the speed."""
    chance = random.Random(1)
    began = time.perf_counter()
    for _ in range(count):
        store.append("later", BODY, deliver_at=first_ms + chance.randrange(spread_ms))
    print(f"accepted {count / (time.perf_counter() - began):,.0f}/s")


def lateness(home: Path) -> None:
    """Measure how late the messages come."""
    with mqstore.open(home, "create") as store:
        store.create_topic("later", 1)
        accept(store, DUE, now_ms() + 5_000, SPREAD_MS)
        while store.delays().pending:
            time.sleep(0.5)
        stats = store.delays()
        print(f"{stats.delivered:,} delivered, late by {stats.late_p99} s (99 %), {stats.late_max} s at most")


def start(home: Path, pending: int) -> None:
    """Measure how long an open takes."""
    with mqstore.open(home, "create") as store:
        store.create_topic("later", 1)
        accept(store, pending, now_ms() + 24 * HOUR_MS, HOUR_MS)
    for _ in range(OPENS):
        subprocess.run([sys.executable, "-c", OPEN, str(home)], check=True)


def main() -> None:
    """Run both parts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, help="where the stores lie meanwhile; a temporary folder")
    parser.add_argument("--pending", type=int, default=PENDING)
    given: Any = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        lateness(Path(folder) / "due")
        start(Path(folder) / "pending", given.pending)


if __name__ == "__main__":
    main()
