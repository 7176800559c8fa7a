"""Folders of a store that are symbolic links: every verb follows them, and none replaces a link; `derived_path`."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import mqstore
import mqstore.testing
from conftest import Cli
from loop_device import Disk, obstacle

OPTIONS = {"segment_size": 1 << 20, "index_slots": 100, "index_entries": 4000, "queue_file_entries": 1000}
COUNT = 600


@pytest.fixture(params=["same disk", "other disk"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """A folder for the targets, on the file system of the store or on another one."""
    if request.param == "same disk":
        (tmp_path / "disk").mkdir()
        yield tmp_path / "disk"
        return
    shared = Path("/dev/shm")
    if not shared.is_dir() or shared.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("needs a second file system at /dev/shm")
    with tempfile.TemporaryDirectory(dir=shared) as folder:
        yield Path(folder)


def fill(store: mqstore.Store, first: int, count: int) -> None:
    for number in range(first, first + count):
        store.append("orders", b"x" * 3000, keys=f"k{number}")
        store.append("prices", f"{number}".encode(), keys=f"p{number % 10}")


def make(home: Path) -> None:
    with mqstore.open(home, "create", **OPTIONS) as store:
        store.create_topic("orders")
        store.create_topic("prices", attributes={"cleanup.policy": "COMPACTION"})
        fill(store, 0, COUNT)


def move(home: Path, names: list[str], disk: Path) -> None:
    for name in names:
        shutil.move(home / name, disk / name)
        (home / name).symlink_to(disk / name)


def check(home: Path, names: list[str], disk: Path, count: int) -> None:
    for name in names:
        assert (home / name).readlink() == disk / name
    report = mqstore.verify(home)
    assert (report.ok, report.messages) == (True, 2 * count), report.problems
    with mqstore.open(home) as store:
        assert sum(1 for _ in store.read("orders")) == count
        assert len(list(store.lookup("orders", f"k{count - 1}"))) == 1


FOLDERS = ["commitlog", "consumequeue", "index", "config", "mqstore"]


@pytest.mark.slow
@pytest.mark.parametrize("names", [*([name] for name in FOLDERS), FOLDERS], ids=",".join)
def test_every_verb_follows_links(home: Path, disk: Path, names: list[str], cli: Cli) -> None:
    make(home)
    move(home, names, disk)
    check(home, names, disk, COUNT)
    with mqstore.open(home, "rw") as store:
        fill(store, COUNT, 100)
        consumer = store.consumer("group", ["orders"])
        assert consumer.poll()
        consumer.commit()
        store.snapshot(disk / "snapshot")
    check(home, names, disk, COUNT + 100)
    assert mqstore.verify(disk / "snapshot").ok
    mqstore.rebuild(home)
    check(home, names, disk, COUNT + 100)
    shutil.rmtree(home / "consumequeue" / "orders")
    assert mqstore.repair(home, output=disk / "repaired").ok
    assert not any(path.is_symlink() for path in (disk / "repaired").iterdir())
    assert mqstore.repair(home, in_place=True).ok
    check(home, names, disk, COUNT + 100)
    if "mqstore" not in names:
        mqstore.compact(home, in_place=True)
        check(home, names, disk, COUNT + 100)
    assert cli("info", home).returncode == 0


def test_a_compaction_through_a_link(home: Path, tmp_path: Path) -> None:
    make(home)
    mqstore.compact(home, in_place=True)
    disk = tmp_path / "disk"
    disk.mkdir()
    move(home, ["compaction"], disk)
    for round_ in range(2):
        with mqstore.open(home, "rw") as store:
            fill(store, COUNT + 50 * round_, 50)
        report = mqstore.compact(home, in_place=True)
        assert report.messages_after == 10
        check(home, ["compaction"], disk, COUNT + 50 * (round_ + 1))


@pytest.mark.parametrize("name", FOLDERS)
def test_a_link_to_nothing_is_an_error(home: Path, tmp_path: Path, name: str) -> None:
    make(home)
    disk = tmp_path / "disk"
    disk.mkdir()
    move(home, [name], disk)
    (disk / name).rename(disk / "away")
    for refused in (
        lambda: mqstore.open(home, "rw"),
        lambda: mqstore.rebuild(home),
        lambda: mqstore.repair(home, in_place=True),
    ):
        with pytest.raises(mqstore.MQStoreError, match=rf"{name}.*symbolic link|symbolic link.*{name}"):
            refused()
    assert sorted(path.name for path in disk.iterdir()) == ["away"]
    assert (home / name).is_symlink()
    (disk / "away").rename(disk / name)
    check(home, [name], disk, COUNT)


DERIVED = ["consumequeue", "index"]


def make_derived(home: Path, disk: Path) -> None:
    with mqstore.open(home, "create", derived_path=disk, **OPTIONS) as store:
        store.create_topic("orders")
        store.create_topic("prices", attributes={"cleanup.policy": "COMPACTION"})
        fill(store, 0, COUNT)


def test_derived_path_puts_queues_and_index_on_another_disk(home: Path, disk: Path, cli: Cli) -> None:
    make_derived(home, disk / "fast")
    fast = disk / "fast"
    assert sorted(path.name for path in fast.iterdir()) == DERIVED
    assert sorted(path.name for path in home.iterdir() if path.is_symlink()) == DERIVED
    check(home, DERIVED, fast, COUNT)
    assert {part.part: part.link for part in mqstore.info(home).disk if part.link} == {
        name: str(fast / name) for name in DERIVED
    }
    assert f"{fast / 'index'}" in cli("info", home, "--format", "table").stdout
    # The links remain, whether the next opens name the folder or not.
    with mqstore.open(home, "rw") as store:
        fill(store, COUNT, 50)
    with mqstore.open(home, "rw", derived_path=str(fast)) as store:
        fill(store, COUNT + 50, 50)
        store.rebuild()
        store.snapshot(disk / "snapshot")
    assert not any(path.is_symlink() for path in (disk / "snapshot").iterdir())
    assert mqstore.verify(disk / "snapshot").ok
    mqstore.rebuild(home)
    check(home, DERIVED, fast, COUNT + 100)
    shutil.rmtree(fast / "consumequeue" / "orders")
    assert mqstore.repair(home, in_place=True).ok
    mqstore.compact(home, in_place=True)
    check(home, DERIVED, fast, COUNT + 100)


def test_a_lost_disk_of_queues_and_index_can_be_derived_again(home: Path, disk: Path) -> None:
    make_derived(home, disk)
    for name in DERIVED:
        shutil.rmtree(disk / name)
    with pytest.raises(mqstore.MQStoreError, match="leads to no folder"):
        mqstore.open(home, "rw")
    for name in DERIVED:
        (disk / name).mkdir()
    with pytest.warns(mqstore.StoreWarning, match="lost units since the last flush; rebuilt"):
        mqstore.open(home, "rw").close()
    check(home, DERIVED, disk, COUNT)


def test_derived_path_with_a_relative_folder(home: Path) -> None:
    make_derived(home, Path("../fast"))
    assert (home / "index").readlink() == Path("../fast/index")
    assert (home.parent / "fast" / "consumequeue" / "orders").is_dir()
    with mqstore.open(home, "rw", derived_path="../fast") as store:
        assert store.count("orders") == COUNT
    # Both move together.
    (home.parent / "moved").mkdir()
    home.rename(home.parent / "moved" / "store")
    (home.parent / "fast").rename(home.parent / "moved" / "fast")
    assert mqstore.verify(home.parent / "moved" / "store").ok


def test_derived_path_changes_nothing_if_it_is_refused(home: Path, tmp_path: Path) -> None:
    make(home)
    before = sorted(str(path) for path in tmp_path.rglob("*"))

    def refused(folder: Path, text: str) -> None:
        with pytest.raises(mqstore.InvalidOptionError, match=text) as raised:
            mqstore.open(home, "rw", derived_path=folder)
        assert raised.value.option == "derived_path"

    refused(tmp_path / "fast", "consumequeue is a folder with files.*`mkdir -p .*`mv .*`ln -s ")
    refused(home, "inside the store")
    refused(home / "fast", "inside the store")
    refused(home / "../store/fast", "inside the store")
    assert sorted(str(path) for path in tmp_path.rglob("*")) == before
    # The remedy of the message.
    with pytest.raises(mqstore.InvalidOptionError) as raised:
        mqstore.open(home, "rw", derived_path=tmp_path / "fast")
    for command in re.findall(r"`([^`]+)`", str(raised.value)):
        subprocess.run(command, shell=True, check=True)
    with pytest.raises(mqstore.InvalidOptionError, match="index is a folder with files") as raised:
        mqstore.open(home, "rw", derived_path=tmp_path / "fast")
    for command in re.findall(r"`([^`]+)`", str(raised.value)):
        subprocess.run(command, shell=True, check=True)
    mqstore.open(home, "rw", derived_path=tmp_path / "fast").close()
    check(home, DERIVED, tmp_path / "fast", COUNT)
    refused(tmp_path / "other", "is a link to .*fast")
    # The folder of another store.
    with pytest.raises(mqstore.InvalidOptionError, match="is not empty"):
        mqstore.open(tmp_path / "second", "create", derived_path=tmp_path / "fast")
    # An open for reading does not use the option.
    with mqstore.open(home, "r", derived_path=tmp_path / "other") as store:
        assert store.count("orders") == COUNT
    with pytest.raises(mqstore.InvalidOptionError, match="derived_path"):
        mqstore.StoreOptions(derived_path=["a"])  # type: ignore[arg-type]


def test_derived_path_waits_for_the_writer_lock(home: Path, tmp_path: Path) -> None:
    with mqstore.open(home, "create"):
        with pytest.raises(mqstore.StoreLockedError):
            mqstore.open(home, "create", derived_path=tmp_path / "fast")
        assert not (tmp_path / "fast").exists()


@pytest.mark.parametrize("again", [True, False], ids=["same option", "without it"])
def test_a_crash_while_the_links_are_made(tmp_path: Path, disk: Path, again: bool) -> None:
    seen = set()
    for changes in range(1, 25):
        home, fast = tmp_path / f"store-{changes}", disk / f"fast-{changes}"
        faults = mqstore.testing.Faults()
        faults.crash(changes)
        with contextlib.suppress(mqstore.MQStoreError):
            mqstore.testing.open(home, "create", faults=faults, derived_path=fast).close()
        assert faults.crashed, f"{changes} changes"
        links = sum((home / name).is_symlink() for name in DERIVED)
        seen.add((links, sum((fast / name).is_dir() for name in DERIVED)))
        with mqstore.open(home, "create", derived_path=fast if again else None, **OPTIONS) as store:
            fill(store, 0, 5)
        assert mqstore.verify(home).messages == 10
        with mqstore.open(home) as store:
            assert store.count("orders") == 5
            assert len(list(store.lookup("orders", "k3"))) == 1
        made = sum((home / name).is_symlink() for name in DERIVED)
        assert made == (len(DERIVED) if again else links)
    assert {(0, 0), (0, 1), (1, 1), (1, 2), (2, 2)} <= seen, seen


@pytest.mark.slow
def test_the_disk_of_queues_and_index_can_be_full(home: Path, tmp_path: Path) -> None:
    reason = obstacle("tmpfs")
    if reason is not None:
        pytest.skip(reason)
    (tmp_path / "disks").mkdir()
    disk = Disk(tmp_path / "disks", "tmpfs", 32 << 20)
    try:
        with mqstore.open(home, "create", derived_path=disk.path, **OPTIONS) as store:
            store.append("orders", b"x")
            store.count("orders")
            large = disk.path / "large"
            with large.open("wb") as file:
                free = os.statvfs(disk.path)
                os.posix_fallocate(file.fileno(), 0, free.f_bavail * free.f_frsize - (64 << 10))
            end = time.monotonic() + 60
            with pytest.raises(mqstore.DiskFullError, match=f"bytes of the disk of {disk.path}/.* are free") as refused:
                while time.monotonic() < end:
                    store.append("orders", b"x")
                    time.sleep(0.05)
            assert refused.value.option == "retention_bytes"
            large.unlink()
            store.append("orders", b"x")
        assert mqstore.verify(home).ok
    finally:
        disk.unmount()
