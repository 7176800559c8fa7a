"""Compaction of an open store, the messages that it keeps, and the verb of the command line."""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import mqstore
from conftest import SMALL, Cli, tree_hash

FILES: dict[str, Any] = {"log_file_size": 64 << 10, "queue_file_size": 46 * 200}
TABLE = {"cleanup.policy": "COMPACTION"}


@pytest.fixture
def table(home: Path) -> Iterator[mqstore.Store]:
    """An open store with an empty compaction topic of two queues. Only compactions write its files."""
    with mqstore.open(home, "create", options=SMALL, compaction_feed=False) as store:
        store.create_topic("prices", queues=2, attributes=TABLE)
        yield store


def fill(store: mqstore.Store, count: int = 300, keys: int = 10, queue_id: int | None = 0) -> None:
    for number in range(count):
        store.append("prices", f"{number}".encode(), keys=f"k{number % keys}", queue_id=queue_id)


def offsets(store: mqstore.Store, start: int | None = None, queue_id: int = 0) -> list[int]:
    return [message.queue_offset for message in store.read("prices", queue_id, start)]


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="there is no file system in memory")
def test_a_small_compaction_waits_for_no_timer() -> None:
    """The call ends when its thread ends. On a disk, the syncs take longer than the work."""
    with (
        tempfile.TemporaryDirectory(dir="/dev/shm") as folder,
        mqstore.open(f"{folder}/store", "create", options=SMALL, compaction_feed=False) as store,
    ):
        store.create_topic("prices", attributes=TABLE)
        spent = []
        for _ in range(10):
            fill(store, 5)
            begin = time.monotonic()
            store.compact()
            spent.append(time.monotonic() - begin)
    assert min(spent) < 0.03


def test_an_open_store_goes_on(table: mqstore.Store) -> None:
    fill(table)
    report = table.compact("prices", **FILES)
    assert (report.messages_before, report.messages_after, report.keys) == (300, 10, 10)
    assert offsets(table) == list(range(290, 300))
    more = [table.append("prices", b"more", keys=f"k{number}", queue_id=0).queue_offset for number in range(3)]
    assert more == [300, 301, 302]
    assert offsets(table) == list(range(290, 303))
    queue = table.queues("prices")[0]
    assert (queue.min_offset, queue.max_offset) == (290, 303)
    # A removed offset answers with the next greater one.
    for start in (0, 1, 150, 290):
        assert offsets(table, start) == list(range(290, 303))
    assert offsets(table, 295) == list(range(295, 303))
    assert table.compact(**FILES).messages_after == 10
    assert offsets(table) == [*range(293, 303)]
    with mqstore.open(table.path) as reader:
        assert offsets(reader) == [*range(293, 303)]
        for store in (table, reader):
            assert store.message_at("prices", 0, 150) is None
            assert store.message_at("prices", 0, 295) is not None
    assert table.verify().ok


def test_each_key_has_its_queue(table: mqstore.Store) -> None:
    fill(table, queue_id=None)
    table.compact(["prices"], **FILES)
    found = {message.keys[0]: message.body for queue in (0, 1) for message in table.read("prices", queue)}
    assert found == {f"k{key}": str(290 + key).encode() for key in range(10)}
    assert sum(len(offsets(table, queue_id=queue)) for queue in (0, 1)) == 10


def test_what_was_deleted_is_kept_for_slow_readers(table: mqstore.Store) -> None:
    fill(table)
    table.append("prices", b"", keys="k3", queue_id=0)
    report = table.compact(**FILES)
    assert (report.messages_after, report.tombstones, report.tombstones_kept) == (10, 1, 1)
    assert offsets(table) == [*range(290, 293), *range(294, 301)]
    assert table.compact(tombstone_retention=timedelta(days=2)).skipped == ("prices/0: unchanged",)
    report = table.compact(tombstone_retention=0)
    assert (report.messages_after, report.tombstones_kept) == (9, 0)
    assert offsets(table)[-1] == 299
    assert table.queues("prices")[0].max_offset == 301
    for wrong in (-1, float("nan"), float("inf")):
        with pytest.raises(mqstore.InvalidOptionError, match="tombstone_retention"):
            table.compact(tombstone_retention=wrong)


def test_what_did_not_change_is_left_unless_forced(table: mqstore.Store) -> None:
    fill(table)
    fill(table, queue_id=1)
    table.compact(**FILES)
    compaction = Path(table.path) / "compaction"
    before = compaction.stat().st_ino
    report = table.compact()
    assert report.skipped == ("prices/0: unchanged", "prices/1: unchanged")
    assert (report.messages_before, compaction.stat().st_ino) == (0, before)
    table.append("prices", b"x", keys="k0", queue_id=1)
    assert table.compact().skipped == ("prices/0: unchanged",)
    forced = table.compact(force=True)
    assert (forced.messages_after, forced.skipped) == (20, ())


def test_a_dry_run_changes_nothing(table: mqstore.Store) -> None:
    fill(table)
    table.flush()
    report = table.compact(dry_run=True)
    assert (report.messages_before, report.messages_after) == (300, 10)
    assert not (Path(table.path) / "compaction").exists()
    assert list((Path(table.path) / "mqstore/jobs").iterdir()) == []
    assert offsets(table) == list(range(300))


def test_messages_without_a_key(table: mqstore.Store) -> None:
    fill(table)
    table.append("prices", b"no key", queue_id=0)
    table.append("prices", b"last", keys="k0", queue_id=0)
    report = table.compact(keyless="refuse")
    assert report.messages_after == 0
    assert "1 messages have no key" in report.skipped[0]
    assert (table.compact(keyless="keep").messages_after, offsets(table)[-2:]) == (11, [300, 301])
    assert (table.compact().keyless, offsets(table)[-2:]) == (1, [299, 301])
    with pytest.raises(mqstore.InvalidOptionError, match="keyless"):
        table.compact(keyless="lose")  # type: ignore[arg-type]


@pytest.mark.parametrize("confirm_keys", [True, False])
def test_little_memory_takes_rounds(table: mqstore.Store, confirm_keys: bool) -> None:
    fill(table, keys=50)
    report = table.compact(memory_size=700, confirm_keys=confirm_keys, max_bytes_per_second=1 << 30)
    assert (report.messages_after, report.keys) == (50, 50)
    assert report.rounds > 1
    assert offsets(table) == list(range(250, 300))


def test_only_one_at_a_time_and_only_for_writing(table: mqstore.Store) -> None:
    fill(table)
    busy: list[Exception] = []

    def again(_step: mqstore.Progress) -> None:
        try:
            table.compact()
        except mqstore.StoreBusyError as error:
            busy.append(error)
            raise

    with pytest.raises(mqstore.StoreBusyError):
        table.compact(max_bytes_per_second=1, progress=again)
    assert busy
    assert not (Path(table.path) / "compaction").exists()
    with mqstore.open(table.path) as reader, pytest.raises(mqstore.StoreReadOnlyError):
        reader.compact()
    with pytest.raises(mqstore.TopicNotFoundError):
        table.compact("nobody")
    assert table.compact().messages_after == 10


def test_a_close_ends_it(table: mqstore.Store) -> None:
    fill(table)
    begun = threading.Event()
    raised: list[BaseException] = []

    def work() -> None:
        try:
            table.compact(max_bytes_per_second=1, progress=lambda _step: begun.set())
        except mqstore.StoreClosedError as error:
            raised.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    assert begun.wait(30)
    table.close()
    thread.join()
    assert raised
    with mqstore.open(table.path, "rw") as store:
        assert len(offsets(store)) == 300
        assert store.compact().messages_after == 10


@pytest.mark.slow
def test_appends_and_reads_meanwhile(table: mqstore.Store) -> None:
    """Each read returns the newest message of every key at its start, in ascending order."""
    fill(table, 50)
    ended = threading.Event()
    failed: list[BaseException] = []
    sent: dict[str, int] = {f"k{key}": 40 + key for key in range(10)}

    def append() -> None:
        number = 50
        while not ended.is_set() or number < 500:
            key = f"k{number % 10}"
            sent[key] = table.append("prices", str(number).encode(), keys=key, queue_id=0).queue_offset
            number += 1

    def read() -> None:
        try:
            while not ended.is_set():
                known = dict(sent)
                found = list(table.read("prices", 0))
                places = [message.queue_offset for message in found]
                assert places == sorted(set(places))
                newest = {message.keys[0]: message.queue_offset for message in found}
                assert all(newest[key] >= offset for key, offset in known.items())
                assert all(int(message.body) == message.queue_offset for message in found)
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=append), threading.Thread(target=read)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(15):
            table.compact(**FILES)
    finally:
        ended.set()
        for thread in threads:
            thread.join()
    assert failed == []
    table.compact()
    assert {message.keys[0]: message.queue_offset for message in table.read("prices", 0)} == sent
    assert table.verify().ok


def test_progress_is_told_and_its_error_ends_it(table: mqstore.Store) -> None:
    fill(table)
    told: list[mqstore.Progress] = []

    def stop(step: mqstore.Progress) -> None:
        told.append(step)
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        table.compact(max_bytes_per_second=1, progress=stop)
    assert 0 < told[0].done <= told[0].total
    assert offsets(table) == list(range(300))


def closed(home: Path, *, keyless: bool = False) -> Path:
    with mqstore.open(home, "create", options=SMALL) as store:
        store.create_topic("prices", queues=1, attributes=TABLE)
        fill(store)
        if keyless:
            store.append("prices", b"no key")
    return home


def test_a_named_job_that_was_stopped_is_gone_on_with(home: Path, cli: Cli) -> None:
    with mqstore.open(home, "create", options=SMALL) as store:
        store.create_topic("prices", queues=4, attributes=TABLE)
        for queue in range(4):
            fill(store, 400, queue_id=queue)
    before = {path.stat().st_ino for path in home.glob("compaction/compactionLog/prices/*/*")}
    finished: list[int] = []

    def stop(step: mqstore.Progress) -> None:
        finished.extend(path.stat().st_ino for path in home.glob("mqstore/jobs/nightly/local-*/result.json"))
        if finished:
            raise RuntimeError("enough")

    # Slow enough to report progress between two queues.
    with pytest.raises(RuntimeError, match="enough"):
        mqstore.compact(
            home, in_place=True, job_id="nightly", threads=1, max_bytes_per_second=400_000, progress=stop, **FILES
        )
    staged = {
        path.stat().st_ino
        for path in home.glob("mqstore/jobs/nightly/local-*/log/*")
        if path.parents[1].joinpath("result.json").exists()
    }
    assert staged
    assert {path.stat().st_ino for path in home.glob("compaction/compactionLog/prices/*/*")} == before
    assert mqstore.compact(home, in_place=True, job_id="nightly", **FILES).skipped == ()
    published = {path.stat().st_ino for path in home.glob("compaction/compactionLog/prices/*/*")}
    assert staged <= published
    with mqstore.open(home) as store:
        for queue in range(4):
            assert offsets(store, queue_id=queue) == list(range(390, 400))
    assert [path.name for path in home.glob("mqstore/jobs/nightly/*") if path.is_dir()] == []
    # The job is done, and the verb knows it.
    before = tree_hash(home / "compaction")
    done = cli("compact", home, "--in-place", "--job-id", "nightly", "--format", "json")
    assert done.returncode == 0, done.stderr
    assert tree_hash(home / "compaction") == before


@pytest.mark.slow
def test_the_verb(home: Path, tmp_path: Path, cli: Cli) -> None:
    closed(home)
    before = tree_hash(home)
    assert cli("compact", home).returncode == 2
    assert cli("compact", home, "--in-place", "--output", tmp_path / "out").returncode == 2
    done = cli("compact", home, "--output", tmp_path / "out", "--format", "json")
    assert (done.returncode, json.loads(done.stdout)["messages_after"]) == (0, 10)
    assert tree_hash(home) == before
    done = cli("compact", home, "--dry-run", "--format", "jsonl")
    assert (done.returncode, json.loads(done.stdout)["bytes_before"] > 0) == (0, True)
    assert tree_hash(home) == before
    done = cli("compact", home, "--in-place", "--topic", "prices", "--tombstone-retention", "0")
    assert (done.returncode, done.stderr) == (0, "")
    assert "messages after" in done.stdout
    again = cli("compact", home, "--in-place", "--format", "json")
    assert (again.returncode, json.loads(again.stdout)["skipped"]) == (0, ["prices/0: unchanged"])
    with mqstore.open(home) as store:
        assert offsets(store) == list(range(290, 300))
    assert cli("compact", tmp_path / "nowhere", "--in-place").returncode == 3


def test_the_verb_says_what_was_left_out(home: Path, cli: Cli) -> None:
    closed(home, keyless=True)
    done = cli("compact", home, "--in-place", "--keyless", "refuse")
    assert done.returncode == 1
    assert "skipped: prices/0:" in done.stderr


def test_verify_knows_what_a_compaction_wrote(table: mqstore.Store) -> None:
    fill(table, queue_id=None)
    table.compact(**FILES)
    home = Path(table.path)
    table.close()
    assert mqstore.verify(home).ok
    log = next(path for path in sorted((home / "compaction/compactionLog/prices/1").iterdir()))
    original = log.read_bytes()
    # The born time of the first record, which its body checksum does not cover.
    spoiled = bytearray(original)
    spoiled[47] ^= 1
    with log.open("r+b") as file:
        file.write(spoiled)
    (problem,) = mqstore.verify(home).problems
    assert (problem.kind, problem.path) == ("compaction_file_changed", str(log))
    assert "messages in it may be wrong or missing" in problem.consequence
    assert "compact the topic again" in problem.repair
    # A copy is a different file, so the recorded state does not apply to it.
    log.rename(log.with_name("aside"))
    log.write_bytes(spoiled)
    log.with_name("aside").unlink()
    assert mqstore.verify(home).ok


def test_a_queue_file_without_a_log_is_reported_and_stops_its_queue_only(table: mqstore.Store) -> None:
    for queue_id in (0, 1):
        fill(table, queue_id=queue_id)
    table.compact(**FILES)
    home = Path(table.path)
    table.close()
    first = next((home / "compaction" / "compactionCq" / "prices" / "0").iterdir())
    alone = first.with_name(f"{int(first.name) + FILES['log_file_size']:020}")
    shutil.copy(first, alone)
    (problem,) = mqstore.verify(home).problems
    assert problem.path == str(alone)
    assert "no log file of the same name" in problem.detail
    with mqstore.open(home, "rw", compaction_feed=False) as store:
        for queue_id in (0, 1):
            fill(store, queue_id=queue_id)
        report = store.compact(**FILES)
        assert [str(alone) in reason and "move the file away" in reason for reason in report.skipped] == [True]
        assert report.messages_before == 310
        alone.unlink()
        assert store.compact(**FILES).messages_before == 310
        assert store.verify().ok


def test_the_background_compacts_what_has_changed_enough(home: Path) -> None:
    told: list[mqstore.StoreEvent] = []
    compacted = threading.Event()

    def hear(event: mqstore.StoreEvent) -> None:
        if event.kind == "compacted":
            told.append(event)
            compacted.set()

    with mqstore.open(home, "create", options=SMALL, compaction_interval=0.02, on_event=hear) as store:
        store.create_topic("prices", queues=2, attributes=TABLE)
        fill(store)
        assert compacted.wait(60)
        # Messages may have been appended after it.
        compacted.clear()
        fill(store)
        assert compacted.wait(60)
        newest = {message.keys: message.body for message in store.read("prices")}
        assert newest == {(f"k{number % 10}",): f"{number}".encode() for number in range(290, 300)}
    assert told[0].detail.startswith("prices: ")
    assert len(mqstore.verify(home).problems) == 0
    with mqstore.open(home, "rw", options=SMALL) as store:
        assert store.queues("prices")[0].min_offset >= 290
