"""Folders of a store that are symbolic links: every verb follows them, and none replaces a link."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import mqstore
from conftest import Cli

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
