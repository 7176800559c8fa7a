"""Disk space: a store takes it in steps ahead of its writer, and a full disk is an error and never a signal.

The full disks are small tmpfs file systems. There, even a read of a hole through a map takes a page, so that a mistake
ends the process with SIGBUS. The writer is therefore a process of its own. Without the right to mount, these tests are
skipped with the reason.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import mqstore
import mqstore.testing
from conftest import Cli, allocated
from loop_device import Disk, obstacle
from mqstore import _native

MODES = ["async", "sync", "manual", "pooled"]
MIB = 1 << 20


@pytest.mark.parametrize("durability", MODES)
def test_one_message_takes_little_space(home: Path, durability: Any) -> None:
    with mqstore.open(home, "create", durability=durability) as store:
        store.append("orders", b"one", keys=["a", "b"], properties={"x": "y"})
        store.flush()
        assert len(list(store.read("orders", 0))) == 1
        assert len(list(store.lookup("orders", "a"))) == 1
        assert allocated(home) <= 4 * MIB
    # The lengths are those that RocketMQ requires.
    assert (home / "commitlog" / f"{0:020d}").stat().st_size == 1 << 30
    assert [path.stat().st_size for path in (home / "index").iterdir()] == [420_000_040]
    assert (home / "consumequeue/orders/0" / f"{0:020d}").stat().st_size == 6_000_000
    assert allocated(home) <= 4 * MIB
    assert mqstore.verify(home).ok
    with mqstore.open(home, "rw", durability=durability) as store:
        store.append_many("orders", [mqstore.Message(b"more", keys=["k"])] * 300)
        assert len(list(store.read("orders", 0))) == 301
    assert max(path.stat().st_blocks * 512 for path in home.rglob("*")) <= 8 * MIB


def test_info_shows_both_sizes(home: Path, cli: Cli) -> None:
    with mqstore.open(home, "create") as store:
        store.append("orders", b"one", keys=["a"])
    parts = {part.part: part for part in mqstore.info(home).disk}
    assert parts["commitlog"].bytes == 1 << 30
    assert parts["commitlog"].disk_bytes <= 2 * MIB
    assert parts["index"].bytes == 420_000_040
    assert parts["index"].disk_bytes <= MIB
    lines = cli("info", home).stdout.splitlines()
    table = [line.split() for line in lines if line.split()[:1] in (["part"], ["commitlog"], ["all"])]
    assert table[0] == ["part", "files", "logical", "size", "allocated"]
    assert table[1][:4] == ["commitlog", "1", "1.0", "GiB"]
    assert table[2][0] == "all"


# The store prepares segments early, and warns if there is no free space.
@pytest.mark.filterwarnings("ignore:.*cannot prepare the next part of the log:mqstore.StoreWarning")
def test_the_error_names_the_numbers_and_the_option(home: Path) -> None:
    faults = mqstore.testing.Faults()
    with mqstore.testing.open(home, faults=faults) as store:
        store.append("orders", b"one")
        assert len(list(store.read("orders", 0))) == 1
        faults.fill_disk(after_bytes=8192)
        with pytest.raises(mqstore.DiskFullError) as caught:
            for _ in range(20):
                store.append("orders", bytes(30_000))
        faults.clear()
    error = caught.value
    assert error.requested is not None
    assert error.free is not None
    assert error.free <= 8192 < error.requested
    assert error.option == "retention_bytes"
    text = str(error)
    assert f"{error.requested:,} bytes requested, {error.free:,} bytes free" in text
    assert "change the option retention_bytes" in text


CHILD = """
import contextlib, json, os, sys
import mqstore
from pathlib import Path

home, role = Path(sys.argv[1]), json.loads(sys.argv[2])
filler = home.parent / "filler"
store = mqstore.open(home, "create", disk_refuse_ratio=1.0, **role["options"])
store.append("t", b"first", keys=["first"])
assert [m.body for m in store.read("t", 0)] == [b"first"]
# Leaves this much free space, or less if the store takes some meanwhile.
with filler.open("wb") as file:
    taken = False
    while not taken:
        disk = os.statvfs(home)
        with contextlib.suppress(OSError):
            os.posix_fallocate(file.fileno(), 0, max(disk.f_bavail * disk.f_frsize - role["free"], 1))
            taken = True
full, appended = 0, 1
for number in range(role["most"]):
    try:
        store.append("t", b"%d " % number + bytes(role["body"]), keys=[f"k{number}"])
        appended += 1
    except mqstore.DiskFullError as error:
        assert error.option in ("retention_bytes", "index_slots"), error
        full += 1
        if full > 3:
            break
    if number % 50 == 0:
        # A lookup of any key reads slots that may have no space.
        with contextlib.suppress(mqstore.DiskFullError):
            list(store.lookup("t", f"none{number}"))
with contextlib.suppress(mqstore.DiskFullError):
    list(store.read("t", 0))
filler.unlink()
store.append("t", b"last", keys=["last"], durable=True)
bodies = [m.body for m in store.read("t", 0)]
assert len(bodies) == appended + 1, (len(bodies), appended)
assert [m.body for m in store.lookup("t", "last")] == [b"last"]
store.close()
assert mqstore.verify(home).ok
print(full)
"""


@pytest.fixture(scope="module")
def small_disk(tmp_path_factory: pytest.TempPathFactory) -> Any:
    reason = obstacle("tmpfs")
    if reason is not None:
        pytest.skip(reason)
    disk = Disk(tmp_path_factory.mktemp("full"), "tmpfs", 48 * MIB)
    yield disk
    disk.remove()


def fill(disk: Disk, name: str, **role: Any) -> int:
    """Runs the writer on the disk. Returns the number of refused appends."""
    home = disk.path / name
    command = [sys.executable, "-W", "ignore", "-c", CHILD, str(home), json.dumps(role)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    finally:
        for path in sorted(disk.path.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
    assert done.returncode == 0, f"{role}: {done.returncode}\n{done.stderr}"
    return int(done.stdout)


@pytest.mark.slow
@pytest.mark.parametrize("durability", MODES)
def test_a_disk_that_fills_at_a_step_of_a_segment(small_disk: Disk, durability: str) -> None:
    refused = 0
    for free in [0, 4096, *range(64 << 10, 4 * MIB, 500_000)]:
        options = {"durability": durability, "flush_interval": 0.05}
        refused += fill(small_disk, f"s{free}", free=free, most=2_000, body=3_000, options=options)
    assert refused > 10


@pytest.mark.parametrize("free", [0, 4096, 20_000, 100_000, 300_000, 700_000, 2_000_000])
def test_a_disk_that_fills_at_a_step_of_an_index_or_queue_file(small_disk: Disk, free: int) -> None:
    # Small bodies: the log has space for them already, while slots, entries and units need more.
    options = {"flush_interval": 0.05}
    fill(small_disk, f"i{free}", free=free, most=3_000, body=10, options=options)


@pytest.mark.parametrize("free", [0, 8192, 60_000])
def test_a_disk_that_fills_when_a_file_of_each_kind_is_full(small_disk: Disk, free: int) -> None:
    options = {"segment_size": 64 << 10, "queue_file_entries": 64, "index_slots": 20_000, "index_entries": 1000}
    assert fill(small_disk, f"r{free}", free=free, most=3_000, body=100, options=options) > 0


def test_a_store_with_the_default_sizes_works_on_a_small_volume(small_disk: Disk) -> None:
    home = small_disk.path / "home"
    with mqstore.open(home, "create", disk_refuse_ratio=1.0) as store:
        store.append_many("t", [mqstore.Message(bytes(1000), keys=[f"k{number}"]) for number in range(1000)])
        assert len(list(store.read("t", 0))) == 1000
    assert mqstore.verify(home).ok
    for path in sorted(small_disk.path.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()


def test_a_replacement_that_fails_leaves_the_old_file_alone(small_disk: Disk) -> None:
    path = small_disk.path / "state.json"
    state = _native.TopicCopy(small_disk.path, "source", "target", ["t"])
    state.begin(1, None)
    old = path.read_bytes()
    with pytest.raises(OSError, match="no space left"):
        state.begin(2, {"x" * shutil.disk_usage(small_disk.path).total: 0})
    assert path.read_bytes() == old
    assert not path.with_name("state.json.new").exists()
    path.unlink()
