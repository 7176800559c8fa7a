"""Kills a writer at a random moment. Everything acknowledged must be in the store.

150 runs (2,000 with MQSTORE_SOAK). Each starts a busy writer, kills it with SIGKILL after a random time, and checks the
directory as the next process finds it. The promises:

* Every append that returned is in the store, with its body, at its queue offset and log offset, in ``sync`` mode and in
  ``async``: the mapping belongs to the kernel, not to the process.
* Queue offsets are dense, and every message found was really sent.
* Queues and index answer as the log does, and ``verify`` finds nothing.
* A kill during the creation of the store leaves a directory that opens as an empty store.
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
from kill_child import OPTIONS

RUNS = 2000 if os.environ.get("MQSTORE_SOAK") else 150
WORKERS = max(2, os.cpu_count() or 1)
CHILD = Path(__file__).with_name("kill_child.py")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1200),
    pytest.mark.filterwarnings("ignore::mqstore.StoreWarning"),
]


def kill_one(folder: Path, seed: int) -> str:
    """One run. Returns the step of the writer when it died."""
    chance = random.Random(seed)
    durability = chance.choice(("sync", "async"))
    home, journal = folder / f"store-{seed}", folder / f"journal-{seed}"
    child = subprocess.Popen([sys.executable, "-W", "ignore", CHILD, home, journal, durability, str(seed)])
    try:
        # Some die during the creation of the store, the others while they write.
        early = seed % 8 == 0
        wait_for(journal, b"open" if early else b"ready")
        time.sleep(chance.uniform(0, 0.004 if early else 0.15))
    finally:
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
    lines = journal.read_text().splitlines()
    check(home, lines, seed)
    return place_of_death(lines)


def wait_for(journal: Path, word: bytes) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if journal.exists() and word in journal.read_bytes():
            return
        time.sleep(0.0005)
    msg = f"the writer never said {word!r}"
    raise AssertionError(msg)


def place_of_death(lines: list[str]) -> str:
    last = lines[-1]
    if last.startswith("> "):
        return f"in {last.split()[1]}"
    return "in creation" if last == "open" else "between calls"


def check(home: Path, lines: list[str], seed: int) -> None:
    began = {int(line.split()[2]) for line in lines if line.startswith("> ")}
    done = {int(line.split()[1]): line.split()[2] for line in lines if line.startswith("< ")}
    if not done and not home.exists():
        return
    # The next writer runs recovery and finds everything.
    with mqstore.open(home, "create", options=OPTIONS) as store:
        found: dict[str, str] = {}
        in_log = Counter(message.body for message in store._scan_log())
        for topic in store.topics():
            for queue in store.queues(topic):
                messages = list(store.read(topic, queue.queue_id))
                offsets = [message.queue_offset for message in messages]
                assert offsets == list(range(queue.max_offset)), f"seed {seed}: gaps in queue {queue.queue_id}"
                for message in messages:
                    in_log[message.body] -= 1
                    sender, number = message.body.rstrip(b".").split(b"/")
                    assert int(sender) == seed
                    assert int(number) in began, f"seed {seed}: message {number!r} was never sent"
                    place = f"{message.queue_id}:{message.queue_offset}:{message.commit_log_offset}"
                    found[place] = number.decode()
        assert not +in_log, f"seed {seed}: messages of the log are in no queue"
        for number, place in done.items():
            assert found.get(place) == str(number), f"seed {seed}: append {number} was acknowledged at {place}"
        for number in random.Random(seed).sample(sorted(done), min(5, len(done))):
            places = {f"{m.queue_id}:{m.queue_offset}:{m.commit_log_offset}" for m in store.lookup("t", f"n{number}")}
            assert done[number] in places, f"seed {seed}: append {number} is not found by its key"
        # The queue continues where it stopped.
        again = store.append("t", b"again", queue_id=0)
        assert again.queue_offset == sum(place.startswith("0:") for place in found)
    report = mqstore.verify(home)
    assert report.ok, f"seed {seed}: {report.problems[:3]}"


def test_kill(tmp_path: Path) -> None:
    with ThreadPoolExecutor(WORKERS) as pool:
        places = Counter(pool.map(lambda seed: kill_one(tmp_path, seed), range(RUNS)))
    print(dict(places))
    # The kills must have come during the intended calls.
    assert places["in creation"] >= RUNS // 30
    inside = {verb: places[f"in {verb}"] for verb in ("append", "batch", "durable", "flush")}
    assert all(inside.values()), places
    # Rolls happen inside these calls, and with the flushes also dispatch.
    assert sum(inside.values()) >= 2 * RUNS // 3, places


def test_kill_and_continue(tmp_path: Path) -> None:
    """The same directory is killed many times. No run loses anything."""
    home = tmp_path / "store"
    acknowledged: dict[str, bytes] = {}
    chance = random.Random(1)
    for seed in range(RUNS // 20):
        journal = tmp_path / f"journal-{seed}"
        child = subprocess.Popen([sys.executable, "-W", "ignore", CHILD, home, journal, "async", str(seed)])
        wait_for(journal, b"ready")
        time.sleep(chance.uniform(0, 0.05))
        os.kill(child.pid, signal.SIGKILL)
        child.wait()
        for line in journal.read_text().splitlines():
            if line.startswith("< "):
                _, number, place = line.split()
                assert place not in acknowledged, "a place was given out twice"
                acknowledged[place] = f"{seed}/{number}".encode()
    with mqstore.open(home) as store:
        found = {
            f"{message.queue_id}:{message.queue_offset}:{message.commit_log_offset}": message.body.rstrip(b".")
            for queue in (0, 1)
            for message in store.read("t", queue)
        }
    assert acknowledged
    assert {place: found.get(place) for place in acknowledged} == acknowledged
