"""A manifest that is made again from the files of an archive."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import mqstore
from conftest import SMALL, Cli
from mqstore._archive.archive import _SIZES as SIZES
from python_folders import Directory, python_transport
from restored_stores import LONG, SEGMENT, assert_identical, fill, keeping, segments

pyarrow = pytest.importorskip("pyarrow")


_OF_EACH = ("number", "run", "created_timestamp", "checksum")


def manifests(target: Path) -> list[Path]:
    return sorted((target / "v1/_manifest").glob("*.json"))


def newest(target: Path) -> dict[str, object]:
    """Returns what the newest manifest says, except what differs in every manifest."""
    values: dict[str, object] = json.loads(manifests(target)[-1].read_bytes())
    return {name: value for name, value in values.items() if name not in _OF_EACH}


def lose_all(target: Path) -> None:
    shutil.rmtree(target / "v1/_manifest")


def cut_the_newest(target: Path) -> None:
    content = manifests(target)[-1].read_bytes()
    manifests(target)[-1].write_bytes(content[: len(content) // 2])


def cut_all(target: Path) -> None:
    for path in manifests(target):
        path.write_bytes(b"")


def lose_the_newest(target: Path) -> None:
    manifests(target)[-1].unlink()


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store with an archive of two runs in `archive`, with segments of two lengths and several ranges."""
    monkeypatch.setitem(SIZES, "range_bytes", 100_000)
    with mqstore.open(tmp_path / "store", "create", options=SMALL) as store:
        store.archive.configure(tmp_path / "archive")
        fill(store, 300)
        store.archive.run()
    with mqstore.open(tmp_path / "store", "rw", options=replace(SMALL, segment_size=2 * SEGMENT)) as store:
        fill(store, 450, start=300)
        store.archive.run()
    return tmp_path / "store"


@pytest.mark.parametrize("damage", [lose_all, cut_all, cut_the_newest, lose_the_newest])
def test_a_manifest_is_rebuilt_from_the_files(home: Path, tmp_path: Path, damage: Callable[[Path], None]) -> None:
    target = tmp_path / "archive"
    archive, wanted = mqstore.Archive(target), newest(target)
    assert not archive.verify(rebuild_manifest=True).rebuilt
    damage(target)
    report = archive.verify(rebuild_manifest=True)
    assert (report.rebuilt, report.ok, report.problems) == (True, True, ())
    assert newest(target) == wanted
    assert not archive.verify(rebuild_manifest=True).rebuilt
    archive.restore(tmp_path / "restored")
    assert_identical(home, tmp_path / "restored")
    # The store continues it.
    with mqstore.open(home, "rw", options=replace(keeping(SEGMENT), segment_size=2 * SEGMENT)) as store:
        fill(store, start=750)
        assert store.archive.run().segments > 0
        assert store.expire().segments > 0
        assert [one.json()["number"] for one in store.read("orders", 0)] == list(range(0, 1200, 6))


def test_only_complete_segments_are_taken(home: Path, tmp_path: Path) -> None:
    target = tmp_path / "archive"
    archive = mqstore.Archive(target)
    files = archive.files()
    lost = next(one for one in files if one.topic == LONG and one.first_log_offset > 0)
    lose_all(target)
    Path(lost.path).unlink()
    damaged = Path(next(one for one in reversed(files) if one.topic == "orders").path)
    damaged.write_bytes(damaged.read_bytes()[:-1])
    report = archive.verify(rebuild_manifest=True)
    assert (report.rebuilt, report.ok) == (True, False)
    text = "\n".join(report.problems)
    assert damaged.name in text
    assert "no complete files have the log from offset" in text
    kept = newest(target)["segments"]
    assert isinstance(kept, list)
    assert 0 < len(kept) < len(segments(home)) - 1
    spans = [(one["base"], one["base"] + one["bytes"]) for one in kept]
    assert not any(low < lost.end_log_offset and high > lost.first_log_offset for low, high in spans)
    assert archive.verify().ok
    # The store knows that more was archived.
    with (
        mqstore.open(home, "rw", options=replace(keeping(SEGMENT), segment_size=2 * SEGMENT)) as store,
        pytest.raises(mqstore.CorruptionError, match="archived its log"),
    ):
        store.archive.run()


def test_files_of_a_run_that_failed_are_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "archive"
    create = Directory.put_if_absent

    class StoppedError(BaseException):
        pass

    def stop(self: Directory, path: str, content: bytes) -> bool:
        if path.endswith(".json"):
            raise StoppedError
        return create(self, path, content)

    with mqstore.open(tmp_path / "store", "create", options=SMALL) as store:
        fill(store)
        with monkeypatch.context() as killing, python_transport():
            # All files are there, and then some of them.
            killing.setattr(Directory, "put_if_absent", stop)
            killing.setattr(Directory, "delete", lambda _self, _paths: None)
            for _ in range(2):
                with pytest.raises(StoppedError):
                    store.archive.run_to(target)
        next(target.rglob("*.parquet")).unlink()
        store.archive.run_to(target)
        wanted = newest(target)
        lose_all(target)
        archive = mqstore.Archive(target)
        assert archive.verify(rebuild_manifest=True).ok
        found = newest(target)
        assert found["segments"] == wanted["segments"]
        assert found["last"] == wanted["last"]
        archive.restore(tmp_path / "restored")
        assert_identical(tmp_path / "store", tmp_path / "restored")


def test_an_archive_of_some_topics_is_rebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SIZES, "range_bytes", 1)
    target = tmp_path / "archive"
    with mqstore.open(tmp_path / "store", "create", options=SMALL) as store:
        fill(store, 90)
        for number in range(120):
            store.append("others", b"%d" % number * 2000)
        fill(store, 90, start=90)
        store.archive.configure(target, topics=["orders", "absent"])
        store.archive.run()
        wanted = newest(target)
        lose_all(target)
        assert mqstore.Archive(target).verify(rebuild_manifest=True).ok
        found = newest(target)
        assert (found["topics"], found["files"]) == (["absent", "orders"], wanted["files"])
        # Without a record of the topics, the times of a segment are those before it.
        bases = [[one["base"] for one in each["segments"]] for each in (found, wanted)]  # type: ignore[attr-defined]
        assert bases[0] == bases[1]
        assert store.archive.run().segments == 0


def test_nothing_is_rebuilt_without_files(tmp_path: Path) -> None:
    archive = mqstore.Archive(tmp_path / "archive")
    with pytest.raises(mqstore.ResultNotFoundError):
        archive.verify(rebuild_manifest=True)
    (tmp_path / "archive/v1/_manifest").mkdir(parents=True)
    (tmp_path / "archive/v1/_manifest/00000000000000000001.json").write_bytes(b"{")
    with pytest.raises(mqstore.CorruptionError, match="no files are complete"):
        archive.verify(rebuild_manifest=True)


@pytest.mark.slow
def test_the_command_line_rebuilds(home: Path, tmp_path: Path, cli: Cli) -> None:
    cut_the_newest(tmp_path / "archive")
    refused = cli("archive-verify", tmp_path / "archive")
    assert (refused.returncode, "rebuild_manifest" in refused.stderr) == (3, True), refused.stderr
    done = cli("archive-verify", tmp_path / "archive", "--rebuild-manifest", "--format", "json")
    assert (done.returncode, json.loads(done.stdout)["rebuilt"]) == (0, True), done.stderr
