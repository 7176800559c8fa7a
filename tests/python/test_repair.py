"""repair: every readable message can be read afterwards, and the report names the lost ones."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

import damaged_stores as stores
import mqstore
from conftest import SMALL, Cli, tree_hash

SEGMENT = 64 << 10
COUNT = 400


@dataclass(frozen=True)
class Placed:
    """The place of a message."""

    number: int
    at: int
    size: int
    queue_id: int
    queue_offset: int


@dataclass
class Shop:
    """A closed store of several segments."""

    home: Path
    placed: list[Placed]

    def segment(self, number: int) -> Path:
        return self.home / "commitlog" / f"{number * SEGMENT:020d}"

    def write(self, at: int, data: bytes) -> None:
        with self.segment(at // SEGMENT).open("r+b") as file:
            file.seek(at % SEGMENT)
            file.write(data)

    def inside(self, segment: int) -> list[int]:
        """The messages in a segment."""
        return [one.number for one in self.placed if one.at // SEGMENT == segment]


def body(number: int) -> bytes:
    return b"%d " % number + b"x" * (number % 11 * 100)


@pytest.fixture
def shop(home: Path) -> Shop:
    with mqstore.open(home, "create", options=SMALL) as store:
        store.create_topic("orders", queues=2)
        results = [
            store.append("orders", body(number), keys=f"k{number}", queue_id=number % 2) for number in range(COUNT)
        ]
    placed = [
        Placed(number, one.commit_log_offset, one.size, one.queue_id, one.queue_offset)
        for number, one in enumerate(results)
    ]
    assert placed[-1].at > 4 * SEGMENT
    return Shop(home, placed)


def check(home: Path, placed: list[Placed], lost: list[int]) -> None:
    """All messages except the lost ones are found by queue, by key and in the log, also in RocketMQ's files."""
    report = mqstore.verify(home)
    assert report.ok, report.problems
    assert report.messages == len(placed) - len(lost)
    left = [one for one in placed if one.number not in lost]
    with mqstore.open(home) as store:
        for queue_id in (0, 1):
            found = [(m.queue_offset, m.commit_log_offset, m.body) for m in store.read("orders", queue_id)]
            assert found == [(o.queue_offset, o.at, body(o.number)) for o in left if o.queue_id == queue_id]
        for one in placed:
            hits = [m.commit_log_offset for m in store.lookup("orders", f"k{one.number}")]
            assert hits == ([] if one.number in lost else [one.at])
        assert [m.commit_log_offset for m in store._scan_log()] == [one.at for one in left]


def readable(home: Path) -> set[int]:
    """The log offsets of the messages that a reader gets."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mqstore.StoreWarning)
        try:
            with mqstore.open(home) as store:
                return {message.commit_log_offset for message in store._scan_log()}
        except mqstore.MQStoreError:
            return set()


def heal(shop: Shop, lost: list[int]) -> mqstore.RepairReport:
    read_before = readable(shop.home)
    before = tree_hash(shop.home)
    plan = mqstore.repair(shop.home, dry_run=True)
    assert tree_hash(shop.home) == before
    assert plan.dry_run
    assert plan.changed
    report = mqstore.repair(shop.home, in_place=True)
    assert report.ok
    assert report.changed
    assert (report.path, report.output, report.dry_run) == (str(shop.home), None, False)
    assert report.messages == len(shop.placed) - len(lost)
    assert read_before <= readable(shop.home), "no repair may lose a message that could be read"
    assert [(one.log_offset, one.bytes) for one in plan.lost] == [(one.log_offset, one.bytes) for one in report.lost]
    check(shop.home, shop.placed, lost)
    before = tree_hash(shop.home)
    again = mqstore.repair(shop.home, in_place=True)
    assert (again.ok, again.changed, again.lost, again.actions) == (True, False, (), ())
    assert tree_hash(shop.home) == before
    with mqstore.open(shop.home, "rw") as store:
        store.append("others", b"on")
    assert mqstore.verify(shop.home).ok
    return report


def test_one_damaged_record(shop: Shop) -> None:
    one = shop.placed[100]
    shop.write(one.at + 95, b"?" * 20)
    data = shop.segment(one.at // SEGMENT).read_bytes()[one.at % SEGMENT :][: one.size]
    report = heal(shop, [100])
    (lost,) = report.lost
    assert (lost.path, lost.offset) == (str(shop.segment(one.at // SEGMENT)), one.at % SEGMENT)
    assert (lost.log_offset, lost.bytes) == (one.at, one.size)
    assert "checksum" in lost.reason or "CRC" in lost.reason
    assert lost.kept_as is not None
    assert Path(lost.kept_as).read_bytes() == data
    assert Path(lost.kept_as).name == f"{one.at // SEGMENT * SEGMENT:020d}.damaged-at-{one.at % SEGMENT}"
    assert report.queue_offsets == (mqstore.LostOffsets("orders", 0, 50, 51),)
    assert report.problems == ()
    assert pickle.loads(pickle.dumps(report)) == report
    assert json.loads(json.dumps(report.to_dict()))["lost"][0]["bytes"] == one.size
    lines = [json.loads(line) for line in (shop.home / "mqstore/repairs.jsonl").read_text().splitlines()]
    assert [line["kind"] for line in lines] == ["log", "queue"]
    assert (lines[0]["log_offset"], lines[0]["kept_as"]) == (one.at, Path(lost.kept_as).name)
    assert (lines[1]["topic"], lines[1]["queue_id"], lines[1]["from"], lines[1]["to"]) == ("orders", 0, 50, 51)


def first_of_a_segment(shop: Shop) -> list[int]:
    number = shop.inside(2)[0]
    shop.write(shop.placed[number].at, b"\xff" * 30)
    return [number]


def last_of_a_segment(shop: Shop) -> list[int]:
    number = shop.inside(2)[-1]
    shop.write(shop.placed[number].at, b"\xff" * 30)
    return [number]


def a_filler(shop: Shop) -> list[int]:
    last = shop.placed[shop.inside(1)[-1]]
    shop.write(last.at + last.size, b"\x01\x02\x03\x04")
    return []


def a_page_of_zeros(shop: Shop) -> list[int]:
    start = SEGMENT + 8192
    shop.write(start, bytes(4096))
    return [one.number for one in shop.placed if one.at < start + 4096 and one.at + one.size > start]


def the_names_of_checksums(shop: Shop) -> list[int]:
    # One bit in the name, one in the separator before the digits, one in the separator after them.
    for number, back, byte in ((20, 19, b"W"), (21, 12, b"\x03"), (22, 1, b"\x00")):
        one = shop.placed[number]
        shop.write(one.at + one.size - back, byte)
    return []


def many_places(shop: Shop) -> list[int]:
    lost = list(range(30, 300, 17))
    for number in lost:
        shop.write(shop.placed[number].at + number % 40, b"\xa5" * 4)
    return lost


def torn_tail(shop: Shop) -> list[int]:
    shop.write(shop.placed[-1].at + 60, bytes(200))
    return [COUNT - 1]


def missing(shop: Shop) -> list[int]:
    shop.segment(1).unlink()
    return shop.inside(1)


def missing_two(shop: Shop) -> list[int]:
    shop.segment(1).unlink()
    shop.segment(2).unlink()
    return shop.inside(1) + shop.inside(2)


def empty(shop: Shop) -> list[int]:
    shop.segment(1).write_bytes(b"")
    return shop.inside(1)


def short(shop: Shop) -> list[int]:
    os.truncate(shop.segment(1), 10_000)
    limit = SEGMENT + 10_000
    return [number for number in shop.inside(1) if shop.placed[number].at + shop.placed[number].size > limit]


def long(shop: Shop) -> list[int]:
    with shop.segment(1).open("ab") as file:
        file.write(b"and more")
    return []


def swapped(shop: Shop) -> list[int]:
    aside = shop.home / "aside"
    shop.segment(1).rename(aside)
    shop.segment(3).rename(shop.segment(1))
    aside.rename(shop.segment(3))
    return []


def of_another_place(shop: Shop) -> list[int]:
    shutil.copy(shop.segment(0), shop.segment(1))
    return shop.inside(1)


def nonsense(shop: Shop) -> list[int]:
    shop.segment(1).write_bytes(os.urandom(SEGMENT))
    return shop.inside(1)


def a_stray(shop: Shop) -> list[int]:
    (shop.home / "commitlog/notes.txt").write_text("mine")
    return []


def only_the_log(shop: Shop) -> list[int]:
    for each in shop.home.iterdir():
        if each.name != "commitlog":
            shutil.rmtree(each) if each.is_dir() else each.unlink()
    (shop.home / "abort").write_bytes(b"1")
    return []


def queues_and_index(shop: Shop) -> list[int]:
    for path in [*shop.home.glob("consumequeue/*/*/*"), *shop.home.glob("index/*")]:
        with path.open("r+b") as file:
            file.seek(40)
            file.write(b"\xee" * 60)
    return []


HARMS = [
    first_of_a_segment, last_of_a_segment, a_filler, a_page_of_zeros, many_places, torn_tail, missing, missing_two,
    empty, short, long, swapped, of_another_place, nonsense, a_stray, only_the_log, queues_and_index,
    the_names_of_checksums,
]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__)
def test_each_damage_costs_what_it_hit_and_nothing_else(shop: Shop, harm: Callable[[Shop], list[int]]) -> None:
    lost = harm(shop)
    report = heal(shop, lost)
    assert report.actions
    gone = [shop.placed[number] for number in lost]
    told = [(one.queue_id, offset) for one in report.queue_offsets for offset in range(one.from_offset, one.to_offset)]
    assert sorted(told) == sorted((one.queue_id, one.queue_offset) for one in gone)
    if harm is torn_tail:
        assert any("cut at byte" in text for text in report.actions)
        assert list((shop.home / "mqstore/lost+found").iterdir())
    if harm is a_stray:
        kept = list((shop.home / "mqstore/lost+found").iterdir())
        assert [path.read_text() for path in kept] == ["mine"]


@pytest.mark.parametrize("place", [0, 1, 2])
def test_an_empty_segment_of_the_same_name_never_counts(home: Path, place: int) -> None:
    folders = [home / name for name in ("log-a", "log-b", "log-c")]
    options = {"segment_size": 1 << 20, "index_slots": 100, "index_entries": 4000, "queue_file_entries": 1000}
    with mqstore.open(home, "create", commit_log_paths=folders, **options) as store:
        for number in range(600):
            store.append("orders", b"x" * 5000, keys=f"k{number}")
    full = next(folder / f"{1 << 20:020d}" for folder in folders if (folder / f"{1 << 20:020d}").exists())
    twin = folders[place] / full.name
    if twin == full:
        full = full.rename(folders[(place + 1) % 3] / full.name)
    twin.write_bytes(bytes(1 << 20))
    assert len(readable(home)) == 600
    assert [(problem.kind, problem.path) for problem in mqstore.verify(home).problems] == [("segment_stray", str(twin))]
    report = mqstore.repair(home, in_place=True)
    assert (report.ok, report.messages) == (True, 600)
    assert len(readable(home)) == 600
    assert full.exists()
    assert not twin.exists()
    other = bytearray(full.read_bytes())
    other[:90] = bytes(90)
    twin.write_bytes(other)
    full.write_bytes(full.read_bytes()[: 1 << 19] + bytes(1 << 19))
    for refused in (lambda: mqstore.open(home), lambda: mqstore.repair(home, in_place=True)):
        with pytest.raises(mqstore.CorruptionError) as raised:
            refused()
        assert str(twin) in str(raised.value)
        assert str(full) in str(raised.value)
    assert twin.read_bytes() == other


def test_a_store_in_order_is_left_alone(shop: Shop) -> None:
    before = tree_hash(shop.home)
    for arguments in ({"dry_run": True}, {"in_place": True}):
        report = mqstore.repair(shop.home, **arguments)  # type: ignore[arg-type]
        assert (report.ok, report.changed, report.messages) == (True, False, COUNT)
        assert tree_hash(shop.home) == before


def test_into_a_copy(shop: Shop, tmp_path: Path) -> None:
    lost = many_places(shop)
    before = tree_hash(shop.home)
    target = tmp_path / "out"
    steps: list[mqstore.Progress] = []
    report = mqstore.repair(shop.home, output=target, progress=steps.append)
    assert (report.ok, report.output) == (True, str(target))
    assert all(one.path.startswith(str(target)) for one in report.lost)
    assert tree_hash(shop.home) == before
    check(target, shop.placed, lost)
    assert [step.done for step in steps] == sorted(step.done for step in steps)
    with pytest.raises(FileExistsError):
        mqstore.repair(shop.home, output=target)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "store"]


def test_what_is_refused(shop: Shop, tmp_path: Path) -> None:
    torn_tail(shop)
    before = tree_hash(shop.home)
    for arguments in ({}, {"output": tmp_path / "out", "in_place": True}):
        with pytest.raises(ValueError, match="in_place"):
            mqstore.repair(shop.home, **arguments)  # type: ignore[arg-type]
    with pytest.raises(mqstore.NotAStoreError):
        mqstore.repair(tmp_path / "none", in_place=True)
    assert tree_hash(shop.home) == before
    mqstore.repair(shop.home, in_place=True)
    with mqstore.open(shop.home, "rw"):
        for more in ({"in_place": True}, {"dry_run": True}, {"output": tmp_path / "out"}):
            with pytest.raises(mqstore.StoreLockedError):
                mqstore.repair(shop.home, **more)  # type: ignore[arg-type]
    link = tmp_path / "link"
    shop.segment(1).rename(link)
    shop.segment(1).symlink_to(link)
    with pytest.raises(mqstore.CorruptionError, match="symbolic link"):
        mqstore.repair(shop.home, in_place=True)
    with pytest.raises(mqstore.UnsupportedFormatError):
        mqstore.repair(shop.home, output=tmp_path / "out")
    (shop.home / "consumequeue" / "CURRENT").write_bytes(b"MANIFEST-000004\n")
    with pytest.raises(mqstore.UnsupportedFormatError):
        mqstore.repair(shop.home, in_place=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "store"]


def test_who_stops_it_can_run_it_again(shop: Shop) -> None:
    lost = many_places(shop)
    for last in (0, 1, 2):
        steps: list[mqstore.Progress] = []

        def stop(step: mqstore.Progress, steps: list[mqstore.Progress] = steps, last: int = last) -> None:
            steps.append(step)
            if len(steps) > last:
                raise RuntimeError("enough")

        with contextlib.suppress(RuntimeError):
            mqstore.repair(shop.home, in_place=True, progress=stop)
    assert mqstore.repair(shop.home, in_place=True).ok
    check(shop.home, shop.placed, lost)


@pytest.mark.parametrize("moment", [0.0, 0.005, 0.01, 0.02, 0.04])
def test_a_kill_leaves_what_another_repair_ends(shop: Shop, moment: float) -> None:
    lost = many_places(shop) + missing(shop)
    work = f"import mqstore\nprint('go', flush=True)\nmqstore.repair({os.fspath(shop.home)!r}, in_place=True)"
    with subprocess.Popen([sys.executable, "-c", work], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        time.sleep(moment)
        child.send_signal(signal.SIGKILL)
    assert mqstore.repair(shop.home, in_place=True).ok
    check(shop.home, shop.placed, sorted(set(lost)))


@pytest.mark.slow
def test_the_verb(shop: Shop, cli: Cli, tmp_path: Path) -> None:
    lost = many_places(shop)
    home = str(shop.home)
    assert cli("repair", home).returncode == 2
    assert cli("repair", home, "--in-place", "--output", str(tmp_path / "x")).returncode == 2
    plan = cli("repair", home, "--dry-run", "--format", "json")
    assert plan.returncode == 1
    assert len(json.loads(plan.stdout)["lost"]) == len(lost)
    before = tree_hash(shop.home)
    asked = cli("repair", home, "--in-place")
    assert asked.returncode == 2
    assert "--yes" in asked.stderr
    assert tree_hash(shop.home) == before
    done = cli("repair", home, "--output", str(tmp_path / "out"), "--format", "json")
    assert (done.returncode, json.loads(done.stdout)["ok"]) == (0, True)
    assert tree_hash(shop.home) == before
    done = cli("repair", home, "--in-place", "--yes")
    assert (done.returncode, done.stderr) == (0, "")
    assert "damaged-at-" in done.stdout
    assert cli("verify", home).returncode == 0
    assert cli("repair", home, "--in-place").returncode == 0
    log = cli("cat", home, "--log", "--body", "none")
    assert len(log.stdout.splitlines()) == COUNT - len(lost)
    with mqstore.open(home, "rw"):
        assert cli("repair", home, "--in-place", "--yes").returncode == 3


@pytest.mark.parametrize("folder", ["consumequeue/*/*", "batchconsumequeue/*/*"])
def test_new_queue_files_are_as_long_as_the_options_say(folder: str, tmp_path: Path, cli: Cli) -> None:
    """If no file shows their length, the broker's settings decide. With another length, the broker would not start."""
    home = tmp_path / "store"
    stores.unpacked(home)
    lost = list(home.glob(folder))
    for queue in lost:
        shutil.rmtree(queue)
    unit = 46 if folder.startswith("batch") else 20
    told = mqstore.repair(home, dry_run=True).actions
    assert any(f"the new ones have {unit * 300_000} bytes" in text for text in told), told
    conf = tmp_path / "broker.conf"
    conf.write_text("mappedFileSizeConsumeQueue=640\n")
    done = cli("repair", str(home), "--in-place", "--yes", "--conf", str(conf), "--format", "json")
    assert done.returncode == 0, done.stderr
    files = [file for queue in lost for file in queue.iterdir()]
    assert files
    assert {file.stat().st_size for file in files} == {unit * 32}
    assert mqstore.verify(home).ok
    for queue in lost:
        shutil.rmtree(queue)
    mqstore.rebuild(home, options=stores.OPTIONS)
    assert {file.stat().st_size for file in files} == {unit * 32}
