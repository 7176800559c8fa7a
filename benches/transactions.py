"""Transactions from Python: `python -m benches.transactions [FOLDER] [--undecided 100000]`.

It measures how many transactions of three messages one thread commits per second, without syncs. With this many pending
transactions, it also measures an open in a new process: until the open returns, until the first check, and until the
last check is answered.
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import mqstore

ROUNDS = 5
TRANSACTIONS = 20_000
PARTS = 3
UNDECIDED = 100_000
CHECK = """
import sys, threading, time
import mqstore
count = int(sys.argv[2])
asked = first = 0
done = threading.Event()

def check(pending):
    global asked, first
    first = first or time.perf_counter()
    asked += 1
    if asked == count:
        done.set()
    return "commit"

began = time.perf_counter()
with mqstore.open(sys.argv[1], "rw") as store:
    opened = time.perf_counter()
    store.check_transactions(check, check_after=0, check_interval=3600)
    done.wait()
    ended = time.perf_counter()
    print(f"{count:,} undecided: open {opened - began:.2f} s, first asked after {first - began:.2f} s,", end=" ")
    print(f"last one decided after {ended - began:.2f} s")
"""


def commits(home: Path, size: int) -> float:
    """Transactions per second, committed one after the other."""
    body = bytes(size)
    with mqstore.open(home, "create") as store:
        began = time.perf_counter()
        for _ in range(TRANSACTIONS):
            with store.transaction() as transaction:
                for _ in range(PARTS):
                    transaction.append("t", body)
        return TRANSACTIONS / (time.perf_counter() - began)


def leave(home: Path, count: int) -> None:
    """Begin transactions and forget them."""
    with mqstore.open(home, "create") as store:
        for _ in range(count):
            store.transaction().append("t", bytes(100))


def main() -> None:
    """Run both parts."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, help="where the stores lie meanwhile; a temporary folder")
    parser.add_argument("--undecided", type=int, default=UNDECIDED)
    given: Any = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        for size in (100, 1024):
            rates = [commits(Path(folder) / f"{size}-{number}", size) for number in range(ROUNDS)]
            low, median, high = min(rates), statistics.median(rates), max(rates)
            print(f"{size:5} B: {median:,.0f} transactions/s (from {low:,.0f} to {high:,.0f})")
        leave(Path(folder) / "undecided", given.undecided)
        subprocess.run([sys.executable, "-c", CHECK, str(Path(folder) / "undecided"), str(given.undecided)], check=True)


if __name__ == "__main__":
    main()
