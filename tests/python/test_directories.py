"""info, verify and compact on directories, and their reports."""

from __future__ import annotations

import dataclasses
import json
import pickle
import shutil
from pathlib import Path

import pytest

import mqstore
from conftest import SMALL, tree_hash

FILES = {"log_file_size": 64 << 10, "queue_file_size": 46 * 200}


@pytest.fixture
def prices(home: Path) -> Path:
    """A compaction topic with 300 messages for 10 keys, and a plain topic."""
    with mqstore.open(home, "create", options=SMALL) as store:
        store.create_topic("prices", queues=2, attributes={"cleanup.policy": "COMPACTION"})
        for number in range(300):
            store.append("prices", f"{number}".encode(), keys=f"k{number % 10}", queue_id=number % 2)
        store.append("plain", b"x", keys="k")
    return home


def compacted(home: Path, queue_id: int) -> dict[str | None, bytes]:
    with mqstore.open(home) as store:
        end = mqstore._native.compaction_end(store, "prices", queue_id)
        assert end is not None
        found = [message for message in store.read("prices", queue_id) if message.queue_offset < end]
    return {message.properties.get("KEYS"): message.body for message in found}


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


NEWEST = {0: {f"k{key}": str(290 + key).encode() for key in range(0, 10, 2)},
          1: {f"k{key}": str(290 + key).encode() for key in range(1, 10, 2)}}  # fmt: skip


def test_compact_in_place(prices: Path) -> None:
    log = tree_hash(prices / "commitlog")
    report = mqstore.compact(prices, in_place=True, **FILES)
    assert isinstance(report, mqstore.CompactionReport)
    assert (report.messages_before, report.messages_after, report.keys) == (300, 10, 10)
    assert report.rounds >= 1
    assert report.bytes_after < report.bytes_before
    assert report.seconds >= 0
    assert tree_hash(prices / "commitlog") == log
    for queue in (0, 1):
        assert compacted(prices, queue) == NEWEST[queue]
    assert mqstore.verify(prices).ok
    with mqstore.open(prices, "rw") as store:
        store.append("prices", b"new", keys="k0", queue_id=0)
    mqstore.compact(prices, topics=["prices"], in_place=True, threads=1)
    assert compacted(prices, 0)["k0"] == b"new"


def test_compact_into_a_copy(prices: Path, tmp_path: Path) -> None:
    before = tree_hash(prices)
    target = tmp_path / "out"
    mqstore.compact(prices, output=target, **FILES)
    assert tree_hash(prices) == before
    assert compacted(target, 1) == NEWEST[1]
    assert mqstore.verify(target).ok
    with mqstore.open(target) as copy, mqstore.open(prices) as store:
        newest = {m.keys: (m.queue_offset, m.body) for m in store.read("prices", 1)}
        assert {m.keys: (m.queue_offset, m.body) for m in copy.read("prices", 1)} == newest
    with pytest.raises(FileExistsError):
        mqstore.compact(prices, output=target)
    assert names_in(tmp_path) == ["out", "store"]


def test_a_copy_keeps_holes(prices: Path, tmp_path: Path) -> None:
    sparse = prices / "sparse"
    with sparse.open("wb") as file:
        file.seek(50 << 20)
        file.write(b"end")
        file.truncate(100 << 20)
    mqstore.compact(prices, output=tmp_path / "out", **FILES)
    copy = tmp_path / "out/sparse"
    assert copy.read_bytes() == sparse.read_bytes()
    assert copy.stat().st_blocks * 512 < 1 << 20


def test_compact_refuses(prices: Path, tmp_path: Path) -> None:
    before = tree_hash(prices)
    with pytest.raises(ValueError, match="in_place"):
        mqstore.compact(prices)
    with pytest.raises(ValueError, match="in_place"):
        mqstore.compact(prices, output=tmp_path / "out", in_place=True)
    with pytest.raises(TypeError):
        mqstore.compact(prices, topics="prices", in_place=True)
    with pytest.raises(ValueError, match="threads"):
        mqstore.compact(prices, in_place=True, threads=0)
    with pytest.raises(mqstore.InvalidOptionError):
        mqstore.compact(prices, in_place=True, memory_size=-1)
    with pytest.raises(mqstore.NotAStoreError):
        mqstore.compact(tmp_path / "none", in_place=True)
    with pytest.raises(mqstore.NotAStoreError):
        mqstore.compact(tmp_path / "none", output=tmp_path / "out")
    assert tree_hash(prices) == before
    assert names_in(tmp_path) == ["store"]
    with mqstore.open(prices, "rw"):
        for arguments in ({"in_place": True}, {"output": tmp_path / "out"}):
            with pytest.raises(mqstore.StoreLockedError):
                mqstore.compact(prices, **arguments)  # type: ignore[arg-type]
    assert names_in(tmp_path) == ["store"]


def test_a_topic_that_is_no_compaction_topic(prices: Path) -> None:
    try:
        report = mqstore.compact(prices, topics=["plain"], in_place=True, **FILES)
        assert report.skipped
    except mqstore.MQStoreError as error:
        assert "plain" in str(error)
    report = mqstore.compact(prices, topics=["plain"], in_place=True, force=True, **FILES)
    assert (report.messages_before, report.messages_after) == (1, 1)


def test_info(filled: Path) -> None:
    info = mqstore.info(filled)
    assert isinstance(info, mqstore.StoreInfo)
    assert info.topics[0] == mqstore.TopicInfo("events", (mqstore.QueueRange(0, 0, 5),))
    assert info.writer_pid is None
    assert not info.locked
    with mqstore.open(filled, "rw"):
        beside = mqstore.info(filled)
        assert beside.locked
        assert not beside.clean


def test_verify_progress(home: Path) -> None:
    with mqstore.open(home, "create", segment_size=8 << 20, index_slots=64, index_entries=256) as store:
        store.append_many("t", [b"x" * 100_000] * 50)
    steps: list[mqstore.Progress] = []
    assert mqstore.verify(home, progress=steps.append).ok
    assert steps
    assert [step.done for step in steps] == sorted(step.done for step in steps)
    assert all(0 <= step.done <= step.total for step in steps)
    with mqstore.open(home) as store:
        assert steps[-1].done == steps[-1].total == store.stats().log_max_offset

    def refuse(_step: mqstore.Progress) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        mqstore.verify(home, progress=refuse)


def test_verify_finds_what_is_missing(filled: Path) -> None:
    shutil.rmtree(filled / "consumequeue")
    shutil.rmtree(filled / "index")
    report = mqstore.verify(filled)
    assert not report.ok
    assert report.messages == 45
    kinds = {problem.kind for problem in report.problems}
    assert "queue_missing" in kinds
    for problem in report.problems:
        assert problem.detail
        assert problem.consequence
        assert problem.repair
        assert problem.path.startswith(str(filled))


def test_open_store_verifies_itself(store: mqstore.Store) -> None:
    store.append("t", b"x", keys="k")
    store.flush()
    report = store.verify()
    assert report.ok
    assert report.messages == 1


def test_stats(store: mqstore.Store) -> None:
    results = [store.append("t", b"x") for _ in range(10)]
    stats = store.stats()
    assert isinstance(stats, mqstore.StoreStats)
    assert stats.appends == 10
    assert stats.appended_bytes == sum(result.size for result in results)
    assert (stats.log_min_offset, stats.log_max_offset) == (0, stats.appended_bytes)
    store.flush()
    assert store.stats().durable_offset == stats.appended_bytes
    assert stats.segment_size == 64 << 10


REPORTS = [
    mqstore.Progress(1, 2),
    mqstore.QueueInfo(0, 1, 5, 7, 8),
    mqstore.Problem("kind", "/p", None, "detail", "consequence", "repair"),
    mqstore.VerifyReport(False, 1, 2, (mqstore.Problem("k", "/p", 3, "d", "c", "r"),)),
    mqstore.TopicInfo("t", (mqstore.QueueRange(0, 0, 1),)),
    mqstore.StoreStats(1, 2, 3, 4, 5, 6, 7, 8),
    mqstore.CompactionReport(1, 2, 3, 4, 5, 6, 0.5, ("t: no",)),
]


@pytest.mark.parametrize("report", REPORTS, ids=lambda report: type(report).__name__)
def test_reports_are_frozen_values(report: mqstore.VerifyReport) -> None:
    assert dataclasses.is_dataclass(report)
    assert pickle.loads(pickle.dumps(report)) == report
    assert hash(report) == hash(pickle.loads(pickle.dumps(report)))
    assert eval(repr(report), vars(mqstore)) == report
    name = dataclasses.fields(report)[0].name
    with pytest.raises(dataclasses.FrozenInstanceError):
        setattr(report, name, None)
    assert list(report.to_dict()) == [field.name for field in dataclasses.fields(report)]
    assert json.loads(json.dumps(report.to_dict())) == report.to_dict()


def test_verify_report_names() -> None:
    report = REPORTS[3]
    assert report.to_dict() == {
        "ok": False,
        "messages": 1,
        "bytes": 2,
        "problems": [
            {"kind": "k", "path": "/p", "offset": 3, "detail": "d", "consequence": "c", "repair": "r"},
        ],
    }
