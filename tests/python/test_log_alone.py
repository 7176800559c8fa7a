"""A commitlog folder, or one segment of it, without the rest of the store."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import mqstore
from conftest import SMALL, Cli, tree_hash

FIRST, SECOND = f"{0:020}", f"{64 << 10:020}"


@pytest.fixture
def backup(home: Path, tmp_path: Path) -> Path:
    """A commit log of two segments with 100 messages, from a store that no longer exists."""
    with mqstore.open(home, "create", options=SMALL) as store:
        for number in range(100):
            store.append("orders", bytes([number]) * 900, keys=f"k{number}", queue_id=0)
    assert [path.name for path in sorted((home / "commitlog").iterdir())] == [FIRST, SECOND]
    folder = tmp_path / "backup"
    shutil.move(home / "commitlog", folder)
    return folder


def bodies(path: Path) -> list[int]:
    with pytest.warns(mqstore.StoreWarning), mqstore.open(path) as store:
        return [message.body[0] for message in store.read("orders")]


@pytest.mark.slow
def test_every_way_to_look_at_it(backup: Path, cli: Cli, tmp_path: Path) -> None:
    first = next(n for n in range(100) if n and bodies(backup / SECOND)[0] == n)
    before = tree_hash(backup)
    for path, numbers in ((backup, range(100)), (backup / FIRST, range(first)), (backup / SECOND, range(first, 100))):
        info = mqstore.info(path)
        assert (info.messages, info.layout, info.written_by, info.clean) == (len(numbers), "log-only", "unknown", True)
        assert info.segment_size == 64 << 10
        assert info.log_min_offset == (64 << 10 if path.name == SECOND else 0)
        assert [(part.part, part.files) for part in info.disk] == [("commitlog", 1 if path.is_file() else 2)]
        assert "a log without a store" in info.notes[0]
        report = mqstore.verify(path)
        assert (report.ok, report.messages, report.problems) == (True, len(numbers), ())
        assert bodies(path) == list(numbers)
        assert cli("verify", path).returncode == 0
        lines = cli("cat", path, "--log", "--limit", 1000).stdout.splitlines()
        assert [json.loads(line)["queue_offset"] for line in lines] == list(numbers)
        found = cli("lookup", path, "orders", f"k{numbers[3]}").stdout.splitlines()
        assert [json.loads(line)["queue_offset"] for line in found] == [numbers[3]]
        out = tmp_path / f"{path.name}.jsonl"
        assert cli("export", path, out).returncode == 0
        assert len(out.read_text().splitlines()) == 1 + len(numbers)
        assert mqstore.scan(path, columns=["queue_offset"]).to_arrow().column(0).to_pylist() == list(numbers)
    assert tree_hash(backup) == before


def test_a_segment_under_another_name(backup: Path, cli: Cli) -> None:
    (backup / FIRST).unlink()
    kept = (backup / SECOND).rename(backup / "old disk.bin")
    (problem,) = mqstore.verify(kept).problems
    assert (problem.kind, problem.path) == ("segment_misnamed", str(kept))
    assert SECOND in problem.detail
    info = mqstore.info(kept)
    assert info.log_min_offset == 64 << 10
    assert any(SECOND in note for note in info.notes)
    assert cli("verify", kept).returncode == 1
    numbers = bodies(kept)
    # As if it were the first segment of its log.
    moved = kept.rename(backup / FIRST)
    assert bodies(moved) == numbers
    # Without the first record, nothing says where the segment begins. With the right name, nothing else is needed.
    with moved.open("r+b") as file:
        file.write(b"\xff" * 16)
    nameless = moved.rename(backup / "nameless")
    with pytest.raises(mqstore.NotAStoreError, match="must begin with a whole record"):
        mqstore.verify(nameless)
    right = nameless.rename(backup / SECOND)
    assert {problem.kind for problem in mqstore.verify(right).problems} == {"record_damaged"}
    assert bodies(right) == numbers[1:]


def test_a_snapshot_makes_a_store_of_it(backup: Path, tmp_path: Path) -> None:
    with pytest.warns(mqstore.StoreWarning), mqstore.open(backup) as log:
        log.snapshot(tmp_path / "made")
    assert mqstore.verify(tmp_path / "made").ok
    with mqstore.open(tmp_path / "made", "rw") as store:
        assert [message.body[0] for message in store.read("orders")] == list(range(100))


def test_who_writes_it_now(home: Path) -> None:
    with mqstore.open(home, "create", options=SMALL) as store:
        for path in (home / "commitlog", home / "commitlog" / FIRST):
            store.append("orders", b"x", queue_id=0)
            info = mqstore.info(path)
            assert (info.locked, info.clean) == (True, False)
            assert info.log_max_offset == store.stats().log_max_offset
            assert mqstore.verify(path).ok


def test_what_is_no_log(filled: Path, tmp_path: Path) -> None:
    queue = filled / "consumequeue" / "orders" / "0"
    (text := tmp_path / "text.txt").write_text("nothing of a log in here, and a few more bytes" * 10)
    (empty := tmp_path / FIRST).touch()
    for path in (queue, queue / FIRST, text, empty, filled / "index", tmp_path / "nowhere", filled / "checkpoint"):
        for look in (mqstore.info, mqstore.verify, mqstore.open):
            with pytest.raises(mqstore.NotAStoreError):
                look(path)


def test_it_is_not_written(backup: Path, tmp_path: Path) -> None:
    before = tree_hash(backup)
    for path in (backup, backup / FIRST):
        for write in (
            lambda path: mqstore.open(path, "rw"),
            mqstore.rebuild,
            lambda path: mqstore.repair(path, output=tmp_path / "out"),
            lambda path: mqstore.repair(path, in_place=True),
        ):
            with pytest.raises(mqstore.NotAStoreError, match="without a store around it"):
                write(path)
    with pytest.raises(mqstore.NotAStoreError):
        mqstore.open(backup, "create")
    assert tree_hash(backup) == before
