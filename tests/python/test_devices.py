"""Disks that fill up, die, turn read-only or hang under a busy writer.

The tests use real file systems in images on loop devices and break them from outside. The writer is a separate process
(``device_child``) that notes each result on a healthy disk. After the failure, the test mounts the disk again and
opens the store. The promises:

* Every record that was acknowledged as durable, or covered by a flush that returned, is in the store.
* Queues are dense, bodies are complete, and ``verify`` finds nothing.
* Each failing call raises an error of mqstore that is an `OSError`. After it, nothing is acknowledged.
* No signal ends the process, and it does not hang. One exception: a file system that has shut down may refuse a
  write to a mapped page, which the kernel reports with SIGBUS.

If the machine cannot do this (not root, no loop devices, no mkfs), the tests are skipped with the reason.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

import pytest

import mqstore
from device_child import body_of
from loop_device import Disk, obstacle

CHILD = Path(__file__).with_name("device_child.py")
SOAK = bool(os.environ.get("MQSTORE_SOAK"))
GEOMETRY = {"segment_size": 128 << 10, "queue_file_entries": 256, "index_slots": 256, "index_entries": 16384}
THREADS = 3
ERRORS = {"StorePoisonedError", "DiskFullError", "StoreIOError", "StoreReadOnlyError"}
MODES = ["sync", "async", "manual", "pooled"]
SIZES = {"ext4": 64 << 20, "xfs": 320 << 20, "tmpfs": 8 << 20}

pytestmark = pytest.mark.filterwarnings("ignore::mqstore.StoreWarning")

MakeDisk = Callable[..., Disk]


@pytest.fixture
def make_disk(tmp_path: Path) -> Iterator[MakeDisk]:
    """Mounts file systems and unmounts them afterwards."""
    disks: list[Disk] = []

    def make(kind: str, *, size: int | None = None, options: str = "") -> Disk:
        reason = obstacle(kind)
        if reason is not None:
            pytest.skip(reason)
        disks.append(Disk(tmp_path, kind, size or SIZES[kind], options))
        return disks[-1]

    yield make
    for disk in disks:
        disk.remove()


class Writer:
    """A `device_child` and its journal."""

    def __init__(self, home: Path, journal: Path, **options: Any) -> None:
        self.home = home
        self.journal = journal
        self.counted: int | None = None
        self.durability = options.get("durability", "async")
        role = {"threads": THREADS, "options": GEOMETRY | {"flush_interval": 0.02} | options}
        command = [sys.executable, "-W", "ignore", CHILD, home, journal, json.dumps(role)]
        self.process = subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, text=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.communicate()

    def lines(self) -> list[list[str]]:
        text = self.journal.read_text() if self.journal.exists() else ""
        # A line without an end is still being written.
        return [line.split() for line in text.splitlines(keepends=True) if line.endswith("\n")]

    def wait_for_durable(self, count: int, *, of_first: int = 0) -> None:
        """Waits until this many messages were acknowledged as durable, and this many of the first thread."""
        deadline = time.monotonic() + 60
        while len(promised := self.durable()) < count or sum(thread == 0 for thread, _ in promised) < of_first:
            assert self.process.poll() is None, self.process.communicate()[1]
            assert time.monotonic() < deadline, "too few durable messages"
            time.sleep(0.005)

    def end(self, *, after_shutdown: bool = False) -> bool:
        """Waits until it has ended by itself. Returns whether it ended without a signal."""
        try:
            _, errors = self.process.communicate(timeout=60)
        except subprocess.TimeoutExpired:
            pytest.fail(f"the writer hangs; it said last: {self.lines()[-5:]}")
        status = self.process.returncode
        if after_shutdown and status == -signal.SIGBUS:
            return False
        assert status >= 0, f"ended by {signal.Signals(-status).name}: {self.lines()[-3:]}\n{errors}"
        assert status == 0, errors
        assert self.lines()[-1] == ["end"]
        return True

    def count_until_now(self) -> None:
        """From now on, only messages acknowledged before this call are expected.

        A sync that is in progress when a file system is shut down may report success: pages whose extents the file
        system could no longer convert count as written. After a real power loss, no program would receive such an
        answer.
        """
        self.counted = len(self.lines())

    def check_errors(self, *, allowed: set[str] = ERRORS) -> None:
        failures = [line for line in self.lines() if line[0] in "eo" and line[2] != "fine"]
        assert any(line[0] == "e" for line in failures), "nothing failed"
        assert {line[2] for line in failures} <= allowed, failures
        # Nothing is acknowledged as durable after the first failure.
        after = {line[1]: line[2] for line in self.lines() if line[0] == "o"}
        assert after["durable"] != "fine"
        assert after["flush"] != "fine"

    def durable(self) -> set[tuple[int, int]]:
        """Thread and number of the messages that must not be lost."""
        promised: set[tuple[int, int]] = set()
        for line in self.lines()[: self.counted]:
            if line[0] == "a" and line[5] == "1":
                promised.add((int(line[1]), int(line[2])))
            elif line[0] == "f":
                promised |= {
                    (thread, number) for thread, last in enumerate(line[1:]) for number in range(int(last) + 1)
                }
        return promised

    def check_store(self) -> int:
        """Opens the store as the next writer does. Returns the number of durable messages that it expected."""
        promised = self.durable()
        with mqstore.open(self.home, "rw") as store:
            for thread in range(THREADS):
                found = []
                for offset, message in enumerate(store.read("t", thread)):
                    assert message.queue_offset == offset
                    if message.body == b"x":
                        # A test append after the failure.
                        continue
                    number = int(message.body.split(b"|")[0].split(b".")[1])
                    assert message.body == body_of(thread, number)
                    found.append(number)
                assert found == sorted(set(found))
                lost = {number for who, number in promised if who == thread} - set(found)
                assert not lost, (
                    f"thread {thread}: {len(lost)} durable messages are lost, {sorted(lost)[:5]} of {len(found)}"
                )
            store.append("t", b"x", queue_id=0, durable=True)
        report = mqstore.verify(self.home)
        assert report.ok, report.problems[:3]
        return len(promised)


def count(home: Path) -> int:
    """Number of messages that a reader finds in the first queue."""
    with mqstore.open(home) as store:
        return len(list(store.read("t", 0)))


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
@pytest.mark.parametrize("durability", MODES)
def test_power_is_cut(make_disk: MakeDisk, tmp_path: Path, kind: str, durability: str) -> None:
    promised = 0
    for number in range(20 if SOAK else 3):
        disk = make_disk(kind)
        with Writer(disk.path / "store", tmp_path / f"journal-{number}", durability=durability) as writer:
            writer.wait_for_durable(20)
            time.sleep(random.Random(number).uniform(0, 0.15))
            writer.count_until_now()
            disk.cut_the_power()
            has_errors = writer.end(after_shutdown=True)
        if has_errors:
            writer.check_errors()
        disk.remount()
        promised += writer.check_store()
        disk.remove()
        disk.path.rmdir()
    print(kind, durability, promised, "durable messages")
    assert promised > 50


@pytest.mark.parametrize("durability", MODES)
def test_the_file_system_turns_read_only(make_disk: MakeDisk, tmp_path: Path, durability: str) -> None:
    disk = make_disk("ext4", options="errors=remount-ro")
    with Writer(disk.path / "store", tmp_path / "journal", durability=durability) as writer:
        writer.wait_for_durable(51, of_first=11)
        writer.count_until_now()
        disk.fail_to_read_only()
        writer.end()
    writer.check_errors()
    # As a user would find it, before any repair.
    assert count(disk.path / "store") > 10
    with pytest.raises(mqstore.MQStoreError, match=r"ead-only") as caught:
        mqstore.open(disk.path / "store", "rw")
    assert isinstance(caught.value, OSError)
    disk.remount()
    assert writer.check_store() > 50


@pytest.mark.parametrize("kind", ["ext4", "tmpfs"])
@pytest.mark.parametrize("durability", MODES)
def test_the_disk_fills_up(make_disk: MakeDisk, tmp_path: Path, kind: str, durability: str) -> None:
    size = 12 << 20 if kind == "tmpfs" else 24 << 20
    disk = make_disk(kind, size=size)
    # Without a reserve, a fast writer would use the rest before the filler does.
    reserve = disk.path / "reserve"
    reserve.write_bytes(bytes(size // 3))
    options: dict[str, Any] = {"durability": durability}
    with Writer(disk.path / "store", tmp_path / "journal", **options) as writer:
        writer.wait_for_durable(51, of_first=11)
        filler = disk.fill()
        writer.end()
        writer.count_until_now()
    lines = writer.lines()
    assert "DiskFullError" in {line[2] for line in lines if line[0] == "e"}, lines[-8:]
    assert {line[2] for line in lines if line[0] in "eo"} <= ERRORS | {"fine"}
    # A read needs no free space.
    assert count(disk.path / "store") > 10
    filler.unlink()
    reserve.unlink()
    if kind == "ext4":
        disk.remount()
    assert writer.check_store() > 50


def test_a_full_disk_is_no_end(make_disk: MakeDisk) -> None:
    """The same open store continues when there is free space again."""
    disk = make_disk("ext4", size=16 << 20)
    with mqstore.open(disk.path / "store", "create", **GEOMETRY) as store:
        sent = 0
        store.append("t", b"0", durable=True)
        for _ in range(3):
            filler = disk.fill()
            with pytest.raises(mqstore.DiskFullError):
                while True:
                    sent += 1
                    store.append("t", b"%d" % sent + bytes(2000))
            sent -= 1
            filler.unlink()
            sent += 1
            store.append("t", b"%d" % sent + bytes(2000), durable=True)
        assert [int(message.body.rstrip(b"\0")) for message in store.read("t")] == list(range(sent + 1))
    assert mqstore.verify(disk.path / "store").ok


@pytest.mark.parametrize("durability", ["sync", "async"])
def test_the_disk_hangs(make_disk: MakeDisk, tmp_path: Path, durability: str) -> None:
    """Appends that need the disk wait, and nothing is lost when it answers again."""
    disk = make_disk("ext4")
    store = mqstore.open(disk.path / "store", "create", **GEOMETRY, durability=durability)
    store.append_many("t", [b"before"] * 10)
    store.flush()
    done = threading.Event()

    def append() -> None:
        store.append("t", b"waited", durable=True)
        done.set()

    thread = threading.Thread(target=append)
    with disk.frozen():
        thread.start()
        assert not done.wait(0.5), "acknowledged while the disk hangs"
    thread.join(30)
    assert done.is_set()
    assert [message.body for message in store.read("t")][-1] == b"waited"
    store.close()
