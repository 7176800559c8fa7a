"""Reads that continue in an archive while a writer archives and deletes segments."""

from __future__ import annotations

import shutil
import threading
from dataclasses import replace
from pathlib import Path

import pytest

import mqstore
from archived_stores import KEEPING, SEGMENT, TOPICS, aged, fill, rows_of
from conftest import SMALL

pyarrow = pytest.importorskip("pyarrow")


def move_minimum(home: Path) -> None:
    """Archives and deletes what can be, in a store that is open for reading elsewhere."""
    with mqstore.open(home, "rw", options=KEEPING) as store:
        store.archive.run()
        store.expire()


@pytest.mark.parametrize("filter", [None, "paid"])
@pytest.mark.parametrize("queue_id", [None, 0])
@pytest.mark.parametrize("after", [0, 1, 30, 200])
def test_retention_during_a_read_leaves_no_gap(
    after: int, queue_id: int | None, filter: str | None, tmp_path: Path
) -> None:
    home = tmp_path / "store"
    with mqstore.open(home, "create", options=KEEPING) as store:
        fill(store, 900)
        store.archive.configure(tmp_path / "cold")
        store.archive.run()
        store.expire()
    with mqstore.open(home, "rw", options=replace(SMALL, retention_bytes=1 << 40)) as store:
        fill(store, 900, start=900)
        wanted = list(store.read("orders", queue_id, filter=filter))
    with mqstore.open(home) as reader:
        reading = reader.read("orders", queue_id, filter=filter)
        found = [next(reading) for _ in range(after)]
        low = reader.stats().log_min_offset
        move_minimum(home)
        found += reading
        assert reader.stats().log_min_offset > low + 4 * SEGMENT
        assert [one.commit_log_offset for one in found] == [one.commit_log_offset for one in wanted]


def test_retention_during_scans_and_look_ups_leaves_no_gap(tmp_path: Path) -> None:
    home = tmp_path / "store"
    aged(home)
    with mqstore.open(home, "rw", options=replace(SMALL, retention_bytes=1 << 40)) as store:
        fill(store, 1800, start=900)
        rows = [one["commit_log_offset"] for one in rows_of(store.scan(columns=["commit_log_offset"]))]
        hits = [one.commit_log_offset for one in store.lookup("orders", "all")]
    assert len(rows) == 2700
    for verb in ("scan", "topic", "look-up", "newest"):
        for after in (0, 1, 8):
            copy = tmp_path / f"{verb}-{after}"
            shutil.copytree(home, copy)
            # Archives to its own copy.
            with mqstore.open(copy, "rw", options=replace(SMALL, retention_bytes=1 << 40)) as store:
                shutil.copytree(f"{home}.cold", f"{copy}.cold")
                store.archive.configure(f"{copy}.cold")
            with mqstore.open(copy) as reader:
                found: list[int] = []
                wanted = rows
                if verb in ("scan", "topic"):
                    topics = None if verb == "scan" else TOPICS
                    batches = iter(reader.scan(topics=topics, columns=["commit_log_offset"], batch_size=100, threads=1))
                    for batch in (next(batches) for _ in range(after)):
                        found += batch.column("commit_log_offset").to_pylist()
                    move_minimum(copy)
                    for batch in batches:
                        found += batch.column("commit_log_offset").to_pylist()
                else:
                    wanted = hits
                    messages = reader.lookup("orders", "all", newest_first=verb == "newest")
                    found = [next(messages).commit_log_offset for _ in range(50 * after)]
                    move_minimum(copy)
                    found += [one.commit_log_offset for one in messages]
                    found.sort()
                assert found == wanted, (verb, after)


def test_readers_next_to_a_writer_that_archives_and_expires(tmp_path: Path) -> None:
    home = tmp_path / "store"
    aged(home, 600)
    stop = threading.Event()
    problems: list[BaseException] = []

    def write() -> None:
        try:
            with mqstore.open(home, "rw", options=KEEPING) as store:
                for start in range(600, 4200, 200):
                    fill(store, 200, start)
                    store.archive.run()
                    store.expire()
        except BaseException as error:
            problems.append(error)
        finally:
            stop.set()

    def read(queue_id: int | None) -> None:
        try:
            while not stop.is_set():
                with mqstore.open(home) as store:
                    numbers = [message.json()["number"] for message in store.read("orders", queue_id)]
                wanted = [one for one in range(4200) if one % 4 and queue_id in (None, one % 3)][: len(numbers)]
                assert sorted(numbers) == wanted
        except BaseException as error:
            problems.append(error)
            stop.set()

    threads = [threading.Thread(target=write), *(threading.Thread(target=read, args=(one,)) for one in (None, 1))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems


def test_a_reader_with_an_old_manifest_continues(homes: tuple[Path, Path], tmp_path: Path) -> None:
    _, short = homes
    with mqstore.open(short) as reader:
        reading = reader.read("orders", 0)
        found = [next(reading).queue_offset for _ in range(20)]
        with mqstore.open(short, "rw", options=KEEPING) as store:
            fill(store, 600, start=900)
            store.archive.run()
            store.expire()
        mqstore.Archive(tmp_path / "cold").clean(older_than=0)
        found += [one.queue_offset for one in reading]
        assert found == list(range(225))
        assert len(list(reader.read("orders", 0))) == 375
