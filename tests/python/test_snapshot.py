"""snapshot: a consistent copy of a store that is in use."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

import mqstore
from conftest import SMALL, Cli, tree_hash


def numbers(home: Path) -> list[int]:
    with mqstore.open(home) as store:
        return [int(message.body) for message in store.read("orders")]


def check(home: Path, count: int) -> None:
    report = mqstore.verify(home)
    assert report.ok, report.problems
    assert report.messages == count
    assert not (home / "abort").exists()
    assert numbers(home) == list(range(count))
    with mqstore.open(home) as store:
        assert [int(message.body) for message in store.lookup("orders", f"k{count - 1}")] == [count - 1]
    with mqstore.open(home, "rw") as store:
        assert store.append("orders", b"%d" % count).queue_offset == count


def fill(store: mqstore.Store, start: int, end: int) -> None:
    for number in range(start, end):
        store.append("orders", b"%d" % number, keys=f"k{number}")


def test_a_snapshot_of_a_store_that_is_written(home: Path, tmp_path: Path) -> None:
    with mqstore.open(home, "create", options=SMALL) as store:
        fill(store, 0, 2000)
        report = store.snapshot(tmp_path / "one")
        assert report.path == str(tmp_path / "one")
        assert (report.messages, report.log_min_offset) == (2000, 0)
        assert report.log_max_offset == store.stats().log_max_offset
        assert report.linked_segments + report.copied_segments > 2
        fill(store, 2000, 2100)
        with pytest.raises(FileExistsError):
            store.snapshot(tmp_path / "one")
        with mqstore.open(home) as reader:
            assert reader.snapshot(tmp_path / "two").messages == 2100
        fill(store, 2100, 2200)
    check(tmp_path / "one", 2000)
    check(tmp_path / "two", 2100)
    check(home, 2200)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["one", "store", "two"]


def test_appends_go_on_meanwhile(home: Path, tmp_path: Path) -> None:
    with mqstore.open(home, "create", options=SMALL) as store:
        fill(store, 0, 500)
        stop = threading.Event()

        def append() -> None:
            for number in range(500, 3000):
                fill(store, number, number + 1)
                if stop.wait(0.0002):
                    break

        done = threading.Thread(target=append)
        done.start()
        counts = [store.snapshot(tmp_path / str(number)).messages for number in range(4)]
        stop.set()
        done.join()
        assert counts == sorted(counts)
        assert counts[0] >= 500
    for number, count in enumerate(counts):
        check(tmp_path / str(number), count)


def test_an_exception_of_progress_leaves_nothing(home: Path, tmp_path: Path) -> None:
    def stop(_: mqstore.Progress) -> None:
        raise RuntimeError("enough")

    with mqstore.open(home, "create", options=SMALL) as store:
        fill(store, 0, 1000)
        with pytest.raises(RuntimeError, match="enough"):
            store.snapshot(tmp_path / "out", progress=stop)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


def test_repairing_one_leaves_the_other(home: Path, tmp_path: Path) -> None:
    with mqstore.open(home, "create", options=SMALL) as store:
        fill(store, 0, 2000)
        store.snapshot(tmp_path / "out")
        at = [message.commit_log_offset for message in store.read("orders")][10]
    first = home / "commitlog" / f"{0:020d}"
    shared = first.stat().st_nlink
    copy = tmp_path / "out/commitlog" / first.name
    with copy.open("r+b") as file:
        file.seek(at + 4)
        file.write(b"\0\0\0\0")
    damaged = tree_hash(home / "commitlog")
    assert mqstore.repair(tmp_path / "out", in_place=True).ok
    assert tree_hash(home / "commitlog") == damaged
    if shared > 1:
        assert first.stat().st_nlink == 1
        assert mqstore.repair(home, in_place=True).ok
    assert len(numbers(tmp_path / "out")) == 1999


def test_the_verb(home: Path, tmp_path: Path, cli: Cli) -> None:
    with mqstore.open(home, "create", options=SMALL) as store:
        fill(store, 0, 300)
        done = cli("snapshot", str(home), str(tmp_path / "out"), "--format", "json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["messages"] == 300
    check(tmp_path / "out", 300)
    assert cli("snapshot", str(home), str(tmp_path / "out")).returncode == 3
