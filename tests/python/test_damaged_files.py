"""Damaged and missing small files: what is left of them is used, copied and reported."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import warnings
from typing import TYPE_CHECKING, Any

import pytest

import mqstore
from conftest import until
from mqstore import testing

if TYPE_CHECKING:
    from pathlib import Path

SMALL: dict[str, Any] = {
    "segment_size": 1 << 20,
    "index_slots": 100,
    "index_entries": 4000,
    "queue_file_entries": 1000,
}
OFFSETS = '{"offsetTable":{"a@g":{0:5,1:7},"b@g":{0:3}}}'


@pytest.fixture
def brokers(tmp_path: Path) -> Path:
    """A store whose groups only the JSON files know, as after a broker."""
    home = tmp_path / "s"
    with mqstore.open(home, "create", **SMALL) as store:
        store.create_topic("a", queues=2)
        store.create_topic("b", queues=1)
        for number in range(20):
            store.append("a", b"x", queue_id=number % 2)
            store.append("b", b"x")
    shutil.rmtree(home / "mqstore")
    return home


def offsets(home: Path) -> dict[tuple[str, int], int]:
    found = [one for one in mqstore.info(home).consumers if one.group == "g"]
    return {(one.topic, queue.queue_id): queue.offset for one in found for queue in one.queues}


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (OFFSETS[:30], {("a", 0): 5}),
        (OFFSETS.replace(":7", ":99999999999999999999999"), {("a", 0): 5, ("b", 0): 3}),
        (OFFSETS.replace("0:5", "0;5"), {("a", 1): 7, ("b", 0): 3}),
        ("", {}),
    ],
)
def test_a_damaged_file_is_kept_and_its_entries_are_used(
    brokers: Path, text: str, left: dict[tuple[str, int], int]
) -> None:
    file = brokers / "config" / "consumerOffset.json"
    file.write_text(text)
    before = sorted(brokers.rglob("*"))
    events: list[mqstore.StoreEvent] = []
    with pytest.warns(mqstore.StoreWarning, match=r"consumerOffset\.json: damaged"):
        mqstore.open(brokers, "r", on_event=events.append).close()
    assert [event.kind for event in events] == ["warning"]
    assert offsets(brokers) == left
    assert any("consumerOffset.json: damaged" in note for note in mqstore.info(brokers).notes)
    assert [problem.kind for problem in mqstore.verify(brokers).problems] == ["config_damaged"]
    assert sorted(brokers.rglob("*")) == before, "a reader writes nothing"
    with pytest.warns(mqstore.StoreWarning, match=r"consumerOffset\.json: damaged"):
        store = mqstore.open(brokers, "rw", on_event=events.append)
    with store, store.consumer("other", "b") as consumer:
        assert consumer.poll(timeout=5)
        consumer.commit()
    assert [event.kind for event in events] == ["warning", "warning"]
    kept = brokers / "mqstore" / "lost+found" / "config_consumerOffset.json"
    assert (kept.read_text() if text else kept.exists()) == (text or False)
    assert left.items() <= offsets(brokers).items()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mqstore.open(brokers, "rw").close()


def test_a_missing_metadata_log_is_reported(tmp_path: Path) -> None:
    home = tmp_path / "s"
    with mqstore.open(home, "create", **SMALL) as store:
        jobs = store.work_queue("jobs", "g")
        for number in range(50):
            jobs.put(str(number).encode())
        for _ in range(20):
            jobs.ack(jobs.get())
    for file in (home / "mqstore" / "meta").glob("*.log"):
        file.unlink()
    assert "meta_damaged" in {problem.kind for problem in mqstore.verify(home).problems}
    with pytest.raises(mqstore.CorruptionError, match="the metadata log is missing"):
        mqstore.open(home, "rw")
    with pytest.warns(mqstore.StoreWarning, match="the metadata log is missing"):
        mqstore.open(home, "r").close()
    with pytest.warns(mqstore.StoreWarning, match="the metadata log is missing"):
        store = mqstore.open(home, "rw", recovery="salvage")
    store.close()
    assert mqstore.verify(home).ok


@pytest.mark.filterwarnings("ignore:.*a queue is not copied to its compaction files")
def test_a_truncated_compaction_file_is_reported(tmp_path: Path) -> None:
    home = tmp_path / "s"
    with mqstore.open(home, "create", **SMALL) as store:
        store.create_topic("prices", queues=1, attributes={"cleanup.policy": "COMPACTION"})
        for number in range(100):
            store.append("prices", str(number).encode(), keys=f"k{number % 5}")
        store.compact("prices")
        assert [message.body for message in store.read("prices")] == [b"95", b"96", b"97", b"98", b"99"]
    [log] = (home / "compaction" / "compactionLog" / "prices" / "0").glob("0*")
    content = log.read_bytes()
    log.write_bytes(content[:300])
    assert {problem.kind for problem in mqstore.verify(home).problems} >= {"compaction_file_changed"}
    for mode in ("r", "rw"):
        with pytest.warns(mqstore.StoreWarning, match="truncated"):
            store = mqstore.open(home, mode)
        with store, pytest.raises(mqstore.CorruptionError):
            list(store.read("prices"))
    (home / "mqstore" / "compaction.json").write_text("{")
    assert "compaction_facts_damaged" in {problem.kind for problem in mqstore.verify(home).problems}
    with pytest.warns(mqstore.StoreWarning, match=r"compaction\.json: damaged"):
        mqstore.open(home, "rw").close()
    assert (home / "mqstore" / "lost+found" / "config_compaction.json").read_text() == "{"


@pytest.mark.slow
def test_levels_that_were_delivered_are_not_delivered_again(tmp_path: Path) -> None:
    home = tmp_path / "s"
    with mqstore.open(home, "create", **SMALL) as store:
        for number in range(3):
            store.append("t", str(number).encode(), delay_level=1)
        assert store.wait("t", 0, 2, timeout=20)
    (home / "config" / "delayOffset.json").write_text("{")
    (home / "mqstore" / "delays").unlink()
    with pytest.warns(mqstore.StoreWarning, match=r"delayOffset\.json: damaged"):
        store = mqstore.open(home, "rw")
    with store:
        assert not store.wait("t", 0, 3, timeout=2)
        assert store.delays().pending == 0
    saved = (home / "config" / "delayOffset.json").read_text()
    assert json.loads(re.sub(r"(\d+):", r'"\1":', saved))["offsetTable"]["1"] == 3


def test_a_delivered_message_does_not_count_after_lost_positions(tmp_path: Path) -> None:
    """The count is right also if the clock is behind the delivery, so that its second is not read yet."""
    clock, home, killed = testing.ManualClock(), tmp_path / "s", tmp_path / "killed"
    with testing.open(home, clock=clock) as store:
        store.append("t", b"soon", delay=10)
        store.append("t", b"later", delay=3600)
    (home / "mqstore" / "delays").unlink()
    with testing.open(home, clock=clock) as store:
        clock.advance(20)
        until(lambda: store.delays().delivered == 1)
        store.flush()
        shutil.copytree(home, killed)
    clock.advance(-15)
    for _ in range(2):
        with testing.open(killed, clock=clock) as store:
            assert store.delays().pending == 1
    clock.advance(4000)
    with testing.open(killed, clock=clock) as store:
        until(lambda: store.delays().delivered == 1)
        assert store.delays().pending == 0
        assert sorted(message.body for message in store.read("t")) == [b"later", b"soon"]


def test_positions_of_a_compaction_are_kept_and_used(tmp_path: Path) -> None:
    home = tmp_path / "s"
    with mqstore.open(home, "create", **SMALL) as store:
        store.create_topic("t", queues=2, attributes={"cleanup.policy": "COMPACTION"})
        for number in range(20):
            store.append("t", b"%d" % number, keys=f"k{number % 3}", queue_id=number % 2)
    mqstore.compact(home, in_place=True)
    file = home / "compaction" / "position-checkpoint"
    whole = file.read_text()
    assert json.loads(whole)["queueOffsetMap"] == {"t_0": 9, "t_1": 9}
    for text, words in [(whole.replace('"t_1":9', '"t_1":x'), "t_1"), ("", "empty"), (None, "missing")]:
        if text is None:
            file.unlink()
        else:
            file.write_text(text)
        for mode in ("r", "rw"):
            with pytest.warns(mqstore.StoreWarning, match=rf"position-checkpoint: .*{words}"):
                mqstore.open(home, mode).close()
        assert "compaction_positions_damaged" in {problem.kind for problem in mqstore.verify(home).problems}
        assert any("position-checkpoint" in note for note in mqstore.info(home).notes)
    kept = home / "mqstore" / "lost+found" / "config_position-checkpoint"
    assert kept.read_text() == whole.replace('"t_1":9', '"t_1":x')
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with mqstore.open(home, "rw") as store:
            store.append("t", b"new", keys="k0", queue_id=0)
            store.append("t", b"new", keys="k0", queue_id=1)
        mqstore.compact(home, in_place=True)
    assert json.loads(file.read_text())["queueOffsetMap"] == {"t_0": 10, "t_1": 10}
    assert mqstore.verify(home).ok


def test_a_damaged_list_of_log_folders_is_kept(tmp_path: Path) -> None:
    home, folders = tmp_path / "s", [str(tmp_path / "one"), str(tmp_path / "two")]
    with mqstore.open(home, "create", commit_log_paths=folders, **SMALL) as store:
        store.append("t", b"x")
    file = home / "mqstore" / "paths"
    damaged = file.read_bytes()[:-1]
    file.write_bytes(damaged)
    for mode in ("r", "rw"):
        with pytest.raises(mqstore.CorruptionError, match="give commit_log_paths") as refused:
            mqstore.open(home, mode)
        assert "paths" in str(refused.value)
    for mode in ("r", "rw"):
        with pytest.warns(mqstore.StoreWarning, match="paths: damaged"):
            mqstore.open(home, mode, commit_log_paths=folders).close()
    assert (home / "mqstore" / "lost+found" / "config_paths").read_bytes() == damaged
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with mqstore.open(home) as store:
            assert [message.body for message in store.read("t")] == [b"x"]


def test_a_missing_list_of_log_folders_is_reported(tmp_path: Path) -> None:
    """Without the list, the log seems to be empty: no verb may take that for an empty store."""
    home, folders = tmp_path / "s", [tmp_path / "one", tmp_path / "two"]
    with mqstore.open(home, "create", commit_log_paths=folders, **SMALL) as store:
        store.append("a", b"x")
    (home / "mqstore" / "paths").unlink()
    lost = "the log was written up to offset [0-9]+, but its files end at 0; .*name the other folders of the log"
    with pytest.warns(mqstore.StoreWarning, match=lost):
        mqstore.open(home, "r").close()
    for mode in ("rw", "create"):
        with pytest.raises(mqstore.CorruptionError, match=lost):
            mqstore.open(home, mode)  # type: ignore[call-overload]
    with mqstore.open(home, "rw", commit_log_paths=folders) as store:
        assert [message.body for message in store.read("a")] == [b"x"]
    with mqstore.open(home, "r") as reader:
        assert [message.body for message in reader.read("a")] == [b"x"]


def test_lines_of_the_loss_report_are_reported_and_kept(brokers: Path) -> None:
    (brokers / "mqstore").mkdir()
    file = brokers / "mqstore" / "repairs.jsonl"
    good = '{"kind":"queue","time_ms":1,"topic":"a","queue_id":0,"from":90,"to":91}\n'
    file.write_text(good + '{"kind":"que\n' + good)
    text = file.read_text()
    for mode in ("r", "rw"):
        with pytest.warns(mqstore.StoreWarning, match=r"repairs\.jsonl: 1 lines cannot be read"):
            mqstore.open(brokers, mode).close()
    assert file.read_text() == text
    assert [problem.kind for problem in mqstore.verify(brokers).problems] == ["loss_report_damaged"]
    report = mqstore.repair(brokers, in_place=True)
    assert any("repairs.jsonl: 1 lines" in action for action in report.actions)
    assert file.read_text() == good * 2
    assert (brokers / "mqstore" / "lost+found" / "config_repairs.jsonl").read_text() == text
    assert mqstore.verify(brokers).ok


@pytest.fixture
def worked(tmp_path: Path) -> tuple[Path, Path, bytes]:
    """A closed store with finished jobs and an offset of a group, its metadata log, and the bytes of that."""
    home = tmp_path / "s"
    with mqstore.open(home, "create", **SMALL) as store:
        queue = store.work_queue("jobs")
        queue.put_many([b"job"] * 20)
        for message in queue.get_many(20, timeout=5):
            queue.ack(message)
        with store.consumer("g", "jobs") as consumer:
            consumer.poll(20, timeout=5)
            consumer.commit()
    (log,) = (home / "mqstore" / "meta").iterdir()
    return home, log, log.read_bytes()


def test_a_cut_metadata_log_of_a_closed_store_is_damage(worked: tuple[Path, Path, bytes]) -> None:
    home, log, whole = worked
    for size in sorted({0, 47, 48, *range(60, len(whole), len(whole) // 8), len(whole) - 1}):
        log.write_bytes(whole[:size])
        with pytest.raises(mqstore.CorruptionError, match="mqstore/meta/") as raised:
            mqstore.open(home, "rw")
        assert "cut" in str(raised.value) or size < 300
        assert log.stat().st_size == size, "nothing was changed"
        with pytest.warns(mqstore.StoreWarning, match="mqstore/meta/"):
            mqstore.open(home, "r").close()
        assert "meta_damaged" in [problem.kind for problem in mqstore.verify(home).problems], size
    with pytest.warns(mqstore.StoreWarning, match="mqstore/meta/"):
        mqstore.open(home, "rw", recovery="salvage").close()
    assert mqstore.verify(home).ok
    mqstore.open(home, "rw").close()


@pytest.mark.parametrize("more", [bytes(1), bytes(5000), b"x", b"x" * 100])
def test_a_longer_metadata_log_of_a_closed_store_is_reported(worked: tuple[Path, Path, bytes], more: bytes) -> None:
    home, log, whole = worked
    log.write_bytes(whole + more)
    words = f"{len(more)} bytes follow the end of the log"
    (problem,) = mqstore.verify(home).problems
    assert problem.kind == "meta_damaged"
    assert words in problem.detail
    with pytest.warns(mqstore.StoreWarning, match=words), mqstore.open(home, "rw", **SMALL) as store:
        assert store.work_queue("jobs").join(0)
    assert mqstore.verify(home).ok


def test_a_kill_leaves_a_metadata_log_that_opens(worked: tuple[Path, Path, bytes]) -> None:
    """Also if the next process is killed before its first flush: the mark of the close still counts."""
    home, _, _ = worked
    program = """if True:
        import os, sys, mqstore
        queue = mqstore.open(sys.argv[1], "rw").work_queue("jobs")
        queue.put(b"job")
        queue.ack(queue.get())
        os._exit(0)
    """
    for _ in range(3):
        subprocess.run([sys.executable, "-c", program, str(home)], check=True)
    with mqstore.open(home, "rw") as store:
        assert store.count("jobs") == 23
        assert store.work_queue("jobs").counts() == mqstore.WorkQueueCounts(0, 0, 0, 0)
