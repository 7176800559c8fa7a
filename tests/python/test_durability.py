"""The durability modes: the field `durable`, visibility, and the messages after a stop."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest

import mqstore
from conftest import SMALL
from mqstore.types import Durability

MODES: tuple[Durability, ...] = ("sync", "async", "manual", "pooled")
SLOW = 3600.0
"""Seconds, longer than any test, so that the background does nothing."""

READ = """
import sys, mqstore
with mqstore.open(sys.argv[1]) as store:
    print(len(list(store.read("t"))) if store.topics() else 0)
"""

WRITE_AND_DIE = """
import os, sys, mqstore
options = {"durability": sys.argv[2], "flush_interval": 3600, "segment_size": 1 << 20}
options["advanced"] = mqstore.BrokerOptions(commit_interval=3600)
store = mqstore.open(sys.argv[1], mode="create", **options)
for number in range(100):
    store.append("t", b"%d" % number)
os._exit(1)
"""


def counted_elsewhere(path: Path) -> int:
    """Returns the number of messages that another process reads."""
    done = subprocess.run([sys.executable, "-c", READ, str(path)], stdout=subprocess.PIPE, check=True, text=True)
    return int(done.stdout)


def bodies(store: mqstore.Store) -> list[bytes]:
    """Returns the bodies in queue 0."""
    return [message.body for message in store.read("t")]


@pytest.mark.parametrize("mode", MODES)
def test_durable_says_the_truth(tmp_path: Path, mode: Durability) -> None:
    with mqstore.open(tmp_path / "s", mode="create", options=SMALL, durability=mode, flush_interval=SLOW) as store:
        plain = store.append("t", b"1")
        assert plain.durable == (mode == "sync")
        assert store.append("t", b"2", durable=True).durable
        assert all(result.durable for result in store.append_many("t", [b"3", b"4"], durable=True))
        last = store.append("t", b"5")
        store.flush()
        assert store.stats().durable_offset >= last.commit_log_offset + last.size
        assert bodies(store) == [b"1", b"2", b"3", b"4", b"5"]
    with mqstore.open(tmp_path / "s") as store:
        assert bodies(store) == [b"1", b"2", b"3", b"4", b"5"]
    assert mqstore.verify(tmp_path / "s").ok


@pytest.mark.parametrize("mode", MODES)
def test_what_a_kill_leaves(tmp_path: Path, mode: Durability) -> None:
    command = [sys.executable, "-c", WRITE_AND_DIE, str(tmp_path / "s"), mode]
    assert subprocess.run(command, check=False).returncode == 1
    with mqstore.open(tmp_path / "s", mode="rw") as store:
        found = bodies(store) if store.topics() else []
    assert found == [b"%d" % number for number in range(len(found))]
    # Pooled messages are only in the process until they are written to the file.
    assert len(found) == (0 if mode == "pooled" else 100)


def test_pooled_messages_are_there_for_readers(tmp_path: Path) -> None:
    slow = mqstore.BrokerOptions(commit_interval=SLOW)
    with mqstore.open(
        tmp_path / "s", mode="create", options=SMALL, durability="pooled", flush_interval=SLOW, advanced=slow
    ) as store:
        result = store.append("t", b"1", keys="k")
        assert counted_elsewhere(tmp_path / "s") == 0
        assert bodies(store) == [b"1"]
        assert store.get(result.unique_id or "") is not None
        assert [message.body for message in store.lookup("t", "k")] == [b"1"]
        assert counted_elsewhere(tmp_path / "s") == 1


def test_a_pool_smaller_than_the_messages(tmp_path: Path) -> None:
    sizes = [10, 200_000, 0, 70_000, 3, 1_000_000, 64 << 10]
    for mode in ("sync", "pooled"):
        pool = mqstore.BrokerOptions(pool_size=64 << 10)
        with mqstore.open(
            tmp_path / mode, mode="create", segment_size=4 << 20, durability=mode, advanced=pool
        ) as store:
            for size in sizes:
                store.append("t", b"x" * size)
            store.append_many("t", [b"y" * 1000] * 200)
            found = [len(body) for body in bodies(store)]
        assert found == [*sizes, *[1000] * 200]


@pytest.mark.parametrize("mode", ["async", "manual", "pooled"])
def test_durable_visibility(tmp_path: Path, mode: Durability) -> None:
    options = {"durability": mode, "visibility": "durable", "flush_interval": SLOW}
    with mqstore.open(tmp_path / "s", mode="create", options=SMALL, **options) as store:
        store.append("t", b"1")
        assert bodies(store) == []
        assert counted_elsewhere(tmp_path / "s") == 0
        store.flush()
        assert bodies(store) == [b"1"]
        store.append("t", b"2")
        assert counted_elsewhere(tmp_path / "s") == 1
        store.append("t", b"3", durable=True)
        assert bodies(store) == [b"1", b"2", b"3"]
        assert counted_elsewhere(tmp_path / "s") == 3


def test_durable_visibility_in_time(tmp_path: Path) -> None:
    with mqstore.open(tmp_path / "s", mode="create", options=SMALL, visibility="durable", flush_interval=0.01) as store:
        store.append("t", b"x" * 20_000)
        assert store.wait("t", 0, 0, timeout=10)


PATIENT = mqstore.BrokerOptions(queue_wait_limit=60)


@pytest.mark.parametrize("mode", MODES)
def test_threads(tmp_path: Path, mode: Durability) -> None:
    with mqstore.open(tmp_path / "s", mode="create", options=SMALL, durability=mode, advanced=PATIENT) as store:

        def write(thread: int) -> None:
            for number in range(50):
                store.append("t", b"%d %d" % (thread, number))

        threads = [Thread(target=write, args=(thread,)) for thread in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        found = [tuple(map(int, body.split())) for body in bodies(store)]
        assert sorted(found) == [(thread, number) for thread in range(4) for number in range(50)]
        for thread in range(4):
            assert [number for owner, number in found if owner == thread] == list(range(50))


def test_options_that_do_not_fit(tmp_path: Path) -> None:
    with pytest.raises(mqstore.InvalidOptionError, match="visibility"):
        mqstore.open(tmp_path / "s", mode="create", options=SMALL, visibility="all")  # type: ignore[arg-type]
    for name, value in (("pool_size", 1), ("busy_after", 0)):
        with pytest.raises(mqstore.InvalidOptionError, match=name):
            tuned = mqstore.BrokerOptions(**{name: value})  # type: ignore[arg-type]
            mqstore.open(tmp_path / "s", mode="create", options=SMALL, advanced=tuned)
    with pytest.raises(mqstore.InvalidOptionError, match="lock_memory"):
        tuned = mqstore.BrokerOptions(lock_memory=True, prewarm=False)
        mqstore.open(tmp_path / "s", mode="create", options=SMALL, advanced=tuned)
