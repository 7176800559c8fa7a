"""Kills the owner of a shared store again and again, while other processes append and work. The promises:

* No process fails, and none waits for ever.
* Each append that returned is stored exactly once, in the order of its process. One whose process was killed during the
  call is stored at most once.
* Each message that was put is finished; none is delivered again after its ack returned.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest

import mqstore
from conftest import SMALL
from mqstore import _native
from share_child import GROUP, OPTIONS

SOAK = bool(os.environ.get("MQSTORE_SOAK"))
KILLS = 5000 if SOAK else 200
PROCESSES = 4
CHILD = Path(__file__).with_name("share_child.py")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(7200 if SOAK else 600),
    pytest.mark.filterwarnings("ignore::mqstore.StoreWarning"),
]


class Process:
    """A running child, with its journal."""

    def __init__(self, home: Path, name: str) -> None:
        """Starts it."""
        self.name = name
        self.journal = home.with_name(f"journal-{name}")
        command = [sys.executable, "-W", "ignore", CHILD, home, self.journal, name]
        self.errors = home.with_name(f"errors-{name}")
        with self.errors.open("wb") as errors:
            self.child = subprocess.Popen(command, stderr=errors)

    def kill(self) -> None:
        """Kills it."""
        self.child.kill()
        self.child.wait()

    def check(self) -> None:
        """Fails if it has ended by itself."""
        if self.child.poll() is not None:
            raise AssertionError(f"{self.name} failed: {self.errors.read_text()}")

    def size(self) -> int:
        """Returns the bytes of its journal."""
        return self.journal.stat().st_size if self.journal.exists() else 0


def await_progress(processes: list[Process], sizes: dict[str, int]) -> None:
    """Waits until each process has done something since `sizes`."""
    deadline = time.monotonic() + 60
    while any(process.size() <= sizes.get(process.name, 0) for process in processes):
        for process in processes:
            process.check()
        stuck = [process.name for process in processes if process.size() <= sizes.get(process.name, 0)]
        assert time.monotonic() < deadline, f"no progress of {stuck}"
        time.sleep(0.002)


def owner_of(home: Path, processes: list[Process]) -> Process:
    """Returns the process that owns the store; waits until one does."""
    deadline = time.monotonic() + 60
    while True:
        owner = _native.writer_pid(str(home))
        for process in processes:
            if process.child.pid == owner:
                return process
            process.check()
        assert time.monotonic() < deadline, f"no owner: {owner}"
        time.sleep(0.001)


def test_kill_the_owner(tmp_path: Path) -> None:
    home, chance = tmp_path / "store", random.Random(1)
    processes = [Process(home, f"p{number}-0") for number in range(PROCESSES)]
    names = [process.name for process in processes]
    try:
        await_progress(processes, {})
        for kill in range(KILLS):
            time.sleep(chance.uniform(0, 0.03))
            victims = [owner_of(home, processes)]
            if kill % 10 == 9:
                # Two deaths at once.
                victims += [process for process in processes if process not in victims][:1]
            stopped = chance.random() < 0.1
            for victim in victims:
                if stopped:
                    os.kill(victim.child.pid, signal.SIGSTOP)
                    time.sleep(0.02)
                victim.kill()
            for victim in victims:
                number, incarnation = victim.name.removeprefix("p").split("-")
                fresh = Process(home, f"p{number}-{int(incarnation) + 1}")
                processes[processes.index(victim)] = fresh
                names.append(fresh.name)
            if kill % 20 == 19:
                await_progress(processes, {process.name: process.size() for process in processes})
        await_progress(processes, {process.name: process.size() for process in processes})
        for process in processes:
            process.check()
    finally:
        for process in processes:
            process.kill()
    check(home, tmp_path, names)


def check(home: Path, folder: Path, names: list[str]) -> None:
    """Compares the store with the journals."""
    stored, put, acked = defaultdict(list), set(), set()
    got: list[tuple[str, int]] = []
    for name in names:
        journal = folder / f"journal-{name}"
        for line in journal.read_text().splitlines() if journal.exists() else []:
            verb, *words = line.split()
            if verb == "stored":
                stored[name].append(int(words[0]))
            elif verb == "put":
                put.add(f"{name} {words[0]}")
            elif verb == "acked":
                acked.add(" ".join(words))
            elif verb == "got":
                got.append((" ".join(words[:2]), int(words[2])))
    with mqstore.open(home, "rw", options=SMALL) as store:
        found = defaultdict(list)
        for message in store.read("log", queue_id=0):
            name, number = message.body.decode().split()
            found[name].append(int(number))
        for name in names:
            assert found[name] == sorted(set(found[name])), f"{name}: stored twice, or out of order"
            assert set(stored[name]) <= set(found[name]), f"{name}: lost {set(stored[name]) - set(found[name])}"
        queue = store.work_queue("jobs", GROUP, **OPTIONS)
        jobs = Counter(message.body.decode() for message in store.read("jobs"))
        assert max(jobs.values()) == 1, f"put twice: {jobs.most_common(3)}"
        assert put <= jobs.keys(), f"lost: {put - jobs.keys()}"
        left = set()
        while not queue.join(0):
            for message in queue.get_many(100, timeout=0.1):
                left.add(message.body.decode())
                message.ack()
        assert not left & acked, f"delivered again after the ack: {sorted(left & acked)[:5]}"
        assert put <= acked | left | {job for job, _ in got}
    assert mqstore.verify(home).ok
    print({"stored": sum(map(len, stored.values())), "put": len(put), "acked": len(acked), "processes": len(names)})
