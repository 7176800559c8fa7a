"""rebuild: queues, index and checkpoint derived from the log, for a directory and for an open store."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

import mqstore
from conftest import SMALL, Cli, tree_hash


@pytest.fixture
def shop(home: Path) -> Path:
    """Two topics with 120 messages, closed."""
    with mqstore.open(home, "create", options=SMALL) as store:
        store.create_topic("orders", queues=2)
        for number in range(60):
            store.append("orders", f"order {number}".encode(), keys=f"k{number % 5}", queue_id=number % 2)
            store.append("bills", f"bill {number}".encode())
    return home


def bodies(home: Path) -> list[list[bytes]]:
    with mqstore.open(home) as store:
        found = [[m.body for m in store.read("orders", queue)] for queue in range(2)]
        found.append([m.body for m in store.read("bills")])
        found.append([m.body for m in store.lookup("orders", "k3")])
    return found


def lose_everything(home: Path) -> None:
    for name in ("consumequeue", "index"):
        shutil.rmtree(home / name)
    (home / "checkpoint").unlink()


def overwrite(home: Path) -> None:
    for path in [*home.glob("consumequeue/*/*/*"), *home.glob("index/*")]:
        with path.open("r+b") as file:
            file.seek(40)
            file.write(b"\xee" * 60)


@pytest.mark.parametrize("harm", [lose_everything, overwrite])
def test_rebuild_makes_what_was_there(shop: Path, harm: Callable[[Path], None]) -> None:
    expected = bodies(shop)
    queues, log = tree_hash(shop / "consumequeue"), tree_hash(shop / "commitlog")
    harm(shop)
    seen: list[mqstore.Progress] = []
    report = mqstore.rebuild(shop, progress=seen.append)
    assert isinstance(report, mqstore.RebuildReport)
    assert (report.messages, report.queues, report.skipped, report.dry_run) == (120, 3, (), False)
    # Each message has a unique key, and half of them have another key.
    assert report.index_entries == 180
    assert seen[-1].done == seen[-1].total == report.bytes
    assert 0 < report.seconds < 60
    assert pickle.loads(pickle.dumps(report)) == report
    assert json.loads(json.dumps(report.to_dict()))["messages"] == 120
    assert tree_hash(shop / "consumequeue") == queues
    assert tree_hash(shop / "commitlog") == log
    assert mqstore.verify(shop).ok
    assert bodies(shop) == expected
    with mqstore.open(shop, "rw") as store:
        assert store.append("orders", b"next", queue_id=0).queue_offset == 30
    assert mqstore.verify(shop).ok


def test_a_dry_run_changes_nothing(shop: Path) -> None:
    overwrite(shop)
    before = tree_hash(shop)
    report = mqstore.rebuild(shop, dry_run=True)
    assert (report.dry_run, report.messages) == (True, 120)
    assert tree_hash(shop) == before


def test_an_exception_of_progress_keeps_the_old_files(shop: Path) -> None:
    before = tree_hash(shop)

    def stop(_: mqstore.Progress) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        mqstore.rebuild(shop, progress=stop)
    assert tree_hash(shop) == before


@pytest.mark.parametrize("threads", [1, 8])
def test_any_number_of_threads_makes_the_same(shop: Path, threads: int) -> None:
    before = tree_hash(shop / "consumequeue")
    assert mqstore.rebuild(shop, threads=threads).messages == 120
    assert tree_hash(shop / "consumequeue") == before
    assert mqstore.verify(shop).ok


def test_what_cannot_be_rebuilt(shop: Path, tmp_path: Path) -> None:
    for threads, text in ((0, "at least 1"), (9, "between 1 and 8")):
        with pytest.raises(ValueError, match=text):
            mqstore.rebuild(shop, threads=threads)
    with pytest.raises(mqstore.NotAStoreError):
        mqstore.rebuild(tmp_path)
    with mqstore.open(shop, "rw"), pytest.raises(mqstore.StoreLockedError):
        mqstore.rebuild(shop)
    with mqstore.open(shop) as store, pytest.raises(mqstore.StoreReadOnlyError):
        store.rebuild()
    (shop / "consumequeue" / "CURRENT").write_bytes(b"MANIFEST-000004\n")
    with pytest.raises(mqstore.UnsupportedFormatError):
        mqstore.rebuild(shop)


def test_damage_in_the_log_is_told_and_passed_over(shop: Path, cli: Cli) -> None:
    with mqstore.open(shop) as store:
        places = [m.commit_log_offset for m in store.read("orders", 0)]
    with next((shop / "commitlog").iterdir()).open("r+b") as file:
        file.seek(places[7] + 4)
        file.write(b"\0\0\0\0")
    done = cli("rebuild", str(shop), "--format", "json")
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    assert report["messages"] == 119
    assert len(report["skipped"]) == 1
    assert "skipped" in report["skipped"][0]


def test_an_open_store_is_rebuilt_under_its_users(home: Path) -> None:
    with mqstore.open(home, "create", options=SMALL) as store:
        for number in range(100):
            store.append("orders", b"%d" % number, keys="k")
        overwrite(home)
        stop = threading.Event()
        failures: list[BaseException] = []

        def read() -> None:
            try:
                while not stop.is_set():
                    seen = [int(m.body) for m in store.read("orders", 0, start=99)]
                    assert seen == list(range(99, 99 + len(seen)))
            except BaseException as error:
                failures.append(error)

        def append() -> None:
            try:
                number = 100
                while not stop.is_set():
                    store.append("orders", b"%d" % number, keys="k")
                    number += 1
                    time.sleep(0.0005)
            except BaseException as error:
                failures.append(error)

        report = store.rebuild()
        assert report.messages >= 100
        threads = [threading.Thread(target=work) for work in (read, append)]
        for thread in threads:
            thread.start()
        for _ in range(5):
            store.rebuild()
        stop.set()
        for thread in threads:
            thread.join()
        assert failures == []
        count = len(list(store.read("orders")))
        assert [int(m.body) for m in store.lookup("orders", "k")] == list(range(count))
    assert mqstore.verify(home).ok
    with mqstore.open(home) as store:
        assert [int(m.body) for m in store.read("orders")] == list(range(count))


@pytest.mark.parametrize("moment", [0.0, 0.02, 0.05, 0.1])
def test_a_kill_leaves_the_old_files_or_the_new_ones(home: Path, moment: float) -> None:
    with mqstore.open(home, "create", segment_size=1 << 20, queue_file_entries=1000) as store:
        for number in range(20):
            store.append_many("orders", [b"%d" % n for n in range(number * 500, number * 500 + 500)])
    work = f"import mqstore\nprint('go', flush=True)\nwhile True: mqstore.rebuild({os.fspath(home)!r})"
    with subprocess.Popen([sys.executable, "-c", work], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(moment)
        child.send_signal(signal.SIGKILL)
    assert mqstore.verify(home).ok
    with mqstore.open(home) as store:
        assert [int(m.body) for m in store.read("orders")] == list(range(10_000))


def test_the_verb(shop: Path, cli: Cli) -> None:
    lose_everything(shop)
    done = cli("rebuild", str(shop))
    assert (done.returncode, done.stderr) == (0, "")
    assert "120" in done.stdout
    done = cli("rebuild", str(shop), "--dry-run", "--format", "jsonl")
    assert json.loads(done.stdout)["dry_run"] is True
    with mqstore.open(shop, "rw"):
        assert cli("rebuild", str(shop)).returncode == 3
    assert cli("rebuild", str(shop / "nothing")).returncode == 3
