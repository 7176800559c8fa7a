"""Kills a process with a producer and workers many times. The promises of the work queue must hold.

36 kills (300 with MQSTORE_SOAK), several in a row on each store. The promises:

* Every message whose put returned is finished by a worker or becomes a dead letter.
* No message is delivered again after its ack returned.
* No delivery is counted twice, and none comes after the last allowed attempt.
* Dead letters are exact: each message at most once, every bad message, no finished message.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import mqstore
from worker_child import MAX_ATTEMPTS, OPTIONS, is_bad, open_queue, work

KILLS = 300 if os.environ.get("MQSTORE_SOAK") else 36
STORES = max(4, KILLS // 25)
CHILD = Path(__file__).with_name("worker_child.py")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.filterwarnings("ignore::mqstore.StoreWarning"),
]


def kill_one(home: Path, journal: Path, round_: int, chance: random.Random) -> None:
    before = journal.read_bytes().count(b"ready\n") if journal.exists() else 0
    command = [sys.executable, "-W", "ignore", CHILD, home, journal, str(round_ * 1_000_000 + 1)]
    child = subprocess.Popen(command)
    try:
        deadline = time.monotonic() + 60
        while not journal.exists() or journal.read_bytes().count(b"ready\n") == before:
            assert child.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.001)
        time.sleep(chance.uniform(0, 0.4))
    finally:
        os.kill(child.pid, signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL


def run(folder: Path, seed: int) -> Counter[str]:
    """Kills in a row on one store, then finishes the rest. Returns how often each event happened."""
    chance = random.Random(seed)
    home, journal = folder / f"store-{seed}", folder / f"journal-{seed}"
    for round_ in range(KILLS // STORES):
        kill_one(home, journal, round_, chance)
    lines = journal.read_text().splitlines()
    with mqstore.open(home, "rw", options=OPTIONS) as store:
        queue = open_queue(store)
        while not queue.join(0):
            for message in queue.get_many(100, timeout=0.05):
                work(queue, lines.append, message)
        dead = [int(message.body) for message in store.read(queue.dead_letters)]
    assert mqstore.verify(home).ok
    return check(lines, dead, f"seed {seed}")


def check(lines: list[str], dead: list[int], seed: str) -> Counter[str]:
    put, acks = set(), set()
    # The delivery that was acknowledged.
    acked: dict[int, int] = {}
    deliveries: set[tuple[int, int]] = set()
    happened: Counter[str] = Counter()
    for line in lines:
        verb, *numbers = line.split()
        happened[verb] += 1
        if verb == "put":
            put.add(int(numbers[0]))
        elif verb == "acks":
            acks.add(int(numbers[0]))
        elif verb == "acked":
            acked[int(numbers[0])] = int(numbers[1])
        elif verb == "got":
            number, attempt = map(int, numbers)
            # A worker whose lease ended can write its line late.
            is_late = attempt < acked.get(number, 0)
            assert number not in acked or is_late, f"{seed}: {number} was delivered again after its ack"
            assert (number, attempt) not in deliveries, f"{seed}: delivery {attempt} of {number} came twice"
            assert attempt <= MAX_ATTEMPTS, f"{seed}: {number} was delivered {attempt} times"
            deliveries.add((number, attempt))
            happened["again"] += attempt > 1
    assert len(dead) == len(set(dead)), f"{seed}: dead letters {Counter(dead).most_common(3)}"
    assert not acked.keys() & set(dead), f"{seed}: finished and dead: {acked.keys() & set(dead)}"
    # A worker that died during an ack does not know its result.
    lost = put - acked.keys() - set(dead)
    assert lost <= acks, f"{seed}: lost: {lost - acks}"
    assert len(lost) <= 3 * happened["ready"]
    assert {number for number in put if is_bad(number)} <= set(dead), f"{seed}: a bad one was finished"
    happened["dead"] += len(dead)
    happened["bad"] += sum(map(is_bad, dead))
    return happened


def test_kill(tmp_path: Path) -> None:
    with ThreadPoolExecutor(max(2, os.cpu_count() or 1)) as pool:
        happened = sum(pool.map(lambda seed: run(tmp_path, seed), range(STORES)), Counter())
    print(dict(happened))
    # The kills must have hit workers during their work.
    assert happened["ready"] == KILLS // STORES * STORES
    assert happened["put"] > 20 * KILLS, happened
    assert happened["again"] > KILLS, happened
    assert happened["bad"] > KILLS // 4, happened
