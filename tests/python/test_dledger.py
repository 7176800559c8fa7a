"""Directories of brokers that ran with DLedger: read, verified, scanned and exported, and never written."""

from __future__ import annotations

import json
import shutil
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyarrow import feather

import mqstore
from conftest import Cli, tree_hash
from dledger_stores import GEOMETRY, HEADER, Member, convert, fill

KEYS = ("topic", "queue_id", "queue_offset", "body", "tags", "keys", "properties", "store_timestamp", "unique_id")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed plain store: 150 messages in three queues of "orders", 30 in "events", rolled segments."""
    home = tmp_path_factory.mktemp("plain") / "store"
    with mqstore.open(home, "create", options=GEOMETRY) as store:
        fill(store)
        with store.consumer("billing", "orders", ordered=True) as consumer:
            assert sum(1 for _message in zip(range(17), consumer, strict=False)) == 17
            consumer.commit()
    return home


def messages(path: Path, **options: Any) -> dict[str, list[dict[str, Any]]]:
    """Returns the messages of all topics, without the places that differ between the two logs."""
    with mqstore.open(path, **options) as store:
        found = {}
        for topic in store.topics():
            read = list(store.read(topic))
            found[topic] = [{key: getattr(message, key) for key in KEYS if hasattr(message, key)} for message in read]
            for message in read:
                assert store.get_at(message.commit_log_offset).body == message.body
        return found


def offsets(path: Path, **options: Any) -> dict[str, list[tuple[int, int]]]:
    """Returns queue ids and queue offsets of the messages by topic, in order."""
    return {
        topic: sorted((one["queue_id"], one["queue_offset"]) for one in found)
        for topic, found in messages(path, **options).items()
    }


def kinds(path: Path) -> list[str]:
    return [problem.kind for problem in mqstore.verify(path).problems]


def flip(member: Member, position: int, bit: int = 0) -> None:
    """Inverts one bit of the log."""
    (byte,) = member.read(position, 1)
    member.write(position, bytes([byte ^ 1 << bit]))


LAYOUTS: dict[str, dict[str, Any]] = {
    "from the start": {},
    "upgraded": {"split": 70},
    "terms and entries without a record": {"noops": {0, 7, 8, 60}, "term_of": lambda index: index // 50},
    "later files": {"base": 48 << 10, "file_size": 8 << 10},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_it_reads_like_the_plain_store(plain: Path, tmp_path: Path, layout: str) -> None:
    member = convert(plain, tmp_path / "store", **LAYOUTS[layout])
    assert len(member.data) >= 3
    before = tree_hash(member.root)
    assert messages(member.root) == messages(plain)
    report = mqstore.verify(member.root)
    assert (report.problems, report.messages) == ((), 180)
    columns = ["topic", "queue_id", "queue_offset", "body", "store_timestamp"]
    assert mqstore.scan(member.root, columns=columns).to_arrow() == mqstore.scan(plain, columns=columns).to_arrow()
    found = mqstore.scan(member.root, topics="orders", columns=["queue_offset", "keys"], filter="paid").to_arrow()
    assert found == mqstore.scan(plain, topics="orders", columns=["queue_offset", "keys"], filter="paid").to_arrow()
    with mqstore.open(member.root) as store, mqstore.open(plain) as other:
        assert store.mode == "r"
        assert [one.body for one in store.lookup("orders", "k100")] == [b"body 100 " * 30]
        found = sorted(one.queue_offset for one in store.lookup("orders", "all"))
        assert found == sorted(one.queue_offset for one in other.lookup("orders", "all"))
    assert mqstore.info(member.root).consumers == mqstore.info(plain).consumers
    assert tree_hash(member.root) == before


@pytest.mark.slow
def test_command_line(plain: Path, tmp_path: Path, cli: Cli) -> None:
    member = convert(plain, tmp_path / "store", split=70)
    assert cli("verify", member.root).returncode == 0
    lines = cli("cat", member.root, "--topic", "orders", "--limit", 1000).stdout.splitlines()
    assert len(lines) == 150
    lines = cli("cat", member.root, "--log", "--limit", 1000).stdout.splitlines()
    assert len(lines) == 180
    assert len(cli("lookup", member.root, "orders", "k12").stdout.splitlines()) == 1
    assert "dledger" in cli("info", member.root).stdout.lower()


def test_it_is_never_written(plain: Path, tmp_path: Path, cli: Cli) -> None:
    for number, split in enumerate((0, 70)):
        root = convert(plain, tmp_path / f"store{number}", split=split).root
        if not split:
            # A broker makes this folder, but nothing needs it.
            (root / "commitlog").rmdir()
        before = tree_hash(root)
        refused = pytest.raises(mqstore.UnsupportedFormatError, match="mqstore export DIR OUT --to store")
        for mode in ("rw", "create"):
            with refused:
                mqstore.open(root, mode)  # type: ignore[arg-type]
        with refused:
            mqstore.rebuild(root)
        with refused:
            mqstore.repair(root, in_place=True)
        with refused, mqstore.open(root) as store:
            store.snapshot(tmp_path / "copy")
        done = cli("append", root, "orders", "--body", "x", "--create")
        assert done.returncode != 0
        assert "mqstore export" in done.stderr
        assert tree_hash(root) == before
    assert not (tmp_path / "copy").exists()


def test_two_members_are_refused(plain: Path, tmp_path: Path) -> None:
    member = convert(plain, tmp_path / "store")
    shutil.copytree(member.folder, member.root / "dledger-n1")
    for use in (mqstore.open, mqstore.verify, mqstore.info):
        with pytest.raises(mqstore.UnsupportedFormatError, match=r"dledger-n0 and .*dledger-n1"):
            use(member.root)
    with pytest.raises(mqstore.UnsupportedFormatError, match=r"dledger-n0 and .*dledger-n1"):
        mqstore.open(member.root, "create")
    # Without data files, it is no log.
    shutil.rmtree(member.root / "dledger-n1" / "data")
    assert mqstore.verify(member.root).ok


def test_a_part_of_the_log_names_the_store(plain: Path, tmp_path: Path) -> None:
    member = convert(plain, tmp_path / "store")
    for path in (member.folder / "data", member.data[0]):
        with pytest.raises(mqstore.NotAStoreError, match=r"name the folder above dledger-\*"):
            mqstore.open(path)


def test_the_two_parts_must_join(plain: Path, tmp_path: Path) -> None:
    member = convert(plain, tmp_path / "store", split=70)
    last = max((member.root / "commitlog").iterdir())
    after = member.root / "commitlog" / member.data[0].name
    # A file that the broker prepared and never wrote to.
    after.write_bytes(bytes(last.stat().st_size))
    assert messages(member.root) == messages(plain)
    shutil.copy(last, after)
    for use in (mqstore.open, mqstore.verify):
        with pytest.raises(mqstore.UnsupportedFormatError, match=r"commitlog, continues .*dledger-n0/data, begin"):
            use(member.root)
    after.unlink()
    last.unlink()
    assert "segment_gap" in kinds(member.root)


def test_bounds(plain: Path, tmp_path: Path) -> None:
    member = convert(plain, tmp_path / "store", term_of=lambda _index: 1)
    whole = offsets(member.root)
    # One entry was committed and is not in the checkpoint yet. Two were never committed, and of the last one only its
    # begin is written.
    member.write_checkpoint(len(member.entries) - 2)
    lost = member.entries[-2].record
    lost = lost[:20] + struct.pack(">q", 1000) + lost[28:]
    for _ in range(2):
        member.append(lost, term=1)
    half = member.append(lost, term=1)
    member.write(half.position + 200, bytes(half.size - 200))
    assert mqstore.verify(member.root).problems == ()
    with pytest.warns(mqstore.StoreWarning, match="may never have been committed"):
        assert offsets(member.root) == whole
    with pytest.warns(mqstore.StoreWarning, match="may never have been committed"):
        committed = offsets(member.root, dledger_end="committed")
    assert sum(map(len, committed.values())) == 179
    for bound, count in (("committed", 179), ("queues", 180), ("all", 182)):
        with pytest.warns(mqstore.StoreWarning):
            report = mqstore.export(member.root, tmp_path / f"{bound}.jsonl", dledger_end=bound)  # type: ignore[arg-type]
        assert report.messages == count
    with (
        pytest.warns(mqstore.StoreWarning, match="the log ends there"),
        mqstore.open(member.root, dledger_end="all") as store,
    ):
        # Both have the same offset in the queue.
        assert len(list(store.scan(columns=["topic"]).to_arrow()["topic"])) == 182
    with pytest.raises(mqstore.InvalidOptionError, match="dledger_end"):
        mqstore.open(member.root, dledger_end="most")  # type: ignore[arg-type]


def test_an_earlier_tail_is_never_read(plain: Path, tmp_path: Path) -> None:
    """A new leader replaced the last entries of this follower; the rest of them is still in the file."""
    member = convert(plain, tmp_path / "store", term_of=lambda index: 1 if index < 179 else 2)
    whole = offsets(member.root)
    lost = member.entries[-3].record
    lost = lost[:20] + struct.pack(">q", 1000) + lost[28:]
    for index in (180, 181):
        member.append(lost, term=1, index=index)
    for bound in ("committed", "queues"):
        with pytest.warns(mqstore.StoreWarning, match="may never have been committed"):
            assert offsets(member.root, dledger_end=bound) == whole
    # The terms show that these entries are not of this history.
    assert offsets(member.root, dledger_end="all") == whole
    assert mqstore.verify(member.root).problems == ()


@pytest.mark.filterwarnings("ignore::mqstore.StoreWarning")
@pytest.mark.parametrize("sizes", ["equal", "shorter"])
def test_units_of_an_earlier_tail_do_not_count(plain: Path, tmp_path: Path, sizes: str) -> None:
    """A leader dispatched entries when it started again, and a new leader has replaced them since. The units stay."""
    member = convert(plain, tmp_path / "store", term_of=lambda index: 1 if index < 177 else 2)
    whole = messages(member.root)
    lost = member.entries[-3].record
    place = member.entries[-3].position + HEADER.size
    lost = lost[:20] + struct.pack(">q", 1000) + lost[28:]
    if sizes == "shorter":
        # The entries that replaced the begin of the tail are shorter, so the rest of an old entry comes first.
        last = member.entries[-1]
        member.write(last.position + last.size, b"\x07" * 60)
        member.entries[-1] = replace(last, record=last.record + bytes(60))
    for index in (180, 181):
        last = member.append(lost, term=1, index=index)
    [(path, at)] = [
        (path, path.read_bytes().index(struct.pack(">q", place)))
        for path in (member.root / "consumequeue").rglob("0*")
        if path.is_file() and struct.pack(">q", place) in path.read_bytes()
    ]
    content = path.read_bytes()
    end = at
    while content[end : end + 12].strip(b"\0"):
        end += 20
    unit = struct.pack(">qi", last.position + HEADER.size, len(lost)) + content[at + 12 : at + 20]
    path.write_bytes(content[:end] + unit + content[end + 20 :])
    for bound in ("committed", "queues", "all"):
        assert messages(member.root, dledger_end=bound) == whole


def test_files_that_are_missing(plain: Path, tmp_path: Path) -> None:
    member = convert(plain, tmp_path / "store", split=70)
    whole = messages(plain)
    shutil.rmtree(member.folder / "index")
    assert messages(member.root) == whole
    assert kinds(member.root) == ["raft_index_missing"]
    shutil.rmtree(member.root / "consumequeue" / "events")
    # The last message was in this queue, and no other queue names an entry as late.
    with pytest.warns(mqstore.StoreWarning, match="may never have been committed"), mqstore.open(member.root) as store:
        assert [one.body[0] for one in store.read("events")] == list(range(5, 179, 6))
    checkpoint = (member.folder / "checkpoint").read_bytes()
    (member.folder / "checkpoint").unlink()
    with pytest.warns(mqstore.StoreWarning, match="may never have been committed"), mqstore.open(member.root) as store:
        assert sum(len(list(store.read(topic))) for topic in store.topics()) == 179
    with pytest.raises(mqstore.UnsupportedFormatError, match='dledger_end="all"'):
        mqstore.open(member.root, dledger_end="committed")
    # Without queues, only the checkpoint says which entries are committed.
    shutil.rmtree(member.root / "consumequeue")
    with pytest.raises(mqstore.UnsupportedFormatError, match="it has no consume queues"):
        mqstore.open(member.root)
    with pytest.warns(mqstore.StoreWarning, match="derived from the log"):
        assert messages(member.root, dledger_end="all") == whole
    (member.folder / "checkpoint").write_bytes(checkpoint)
    with pytest.warns(mqstore.StoreWarning, match="derived from the log"):
        assert messages(member.root) == whole
    shutil.rmtree(member.root / "index")
    with pytest.warns(mqstore.StoreWarning), mqstore.open(member.root) as store:
        assert [one.body for one in store.lookup("orders", "k100")] == [b"body 100 " * 30]


HEADER_FIELDS = {"magic": 3, "size": 7, "index": 15, "term": 23, "position": 31, "body size": 47}


@pytest.mark.parametrize("has_index", [True, False])
@pytest.mark.parametrize("name", HEADER_FIELDS)
def test_damage_of_a_header(plain: Path, tmp_path: Path, name: str, has_index: bool) -> None:
    for bit in (0, 1, 5):
        member = convert(plain, tmp_path / f"store{bit}", term_of=lambda _index: 4)
        entry = member.entries[100]
        if not has_index:
            shutil.rmtree(member.folder / "index")
        flip(member, entry.position + HEADER_FIELDS[name], bit)
        problems = [one for one in mqstore.verify(member.root).problems if one.kind != "raft_index_missing"]
        assert len(problems) == 1, problems
        (problem,) = problems
        assert problem.kind in ("raft_header_wrong", "raft_index_wrong")
        if problem.kind == "raft_header_wrong" and name != "term":
            assert problem.path == str(member.place(entry.position)[0])
            assert problem.offset == member.place(entry.position)[1]
        # The record is intact, and so is its message.
        assert messages(member.root) == messages(plain)
        assert mqstore.scan(member.root).to_arrow().num_rows == 180


@pytest.mark.filterwarnings("ignore::mqstore.StoreWarning")
@pytest.mark.parametrize(
    ("number", "missing"), [(0, None), (0, "both"), (100, None), (100, "index"), (100, "checkpoint")]
)
def test_a_damaged_header_hides_no_other_entry(plain: Path, tmp_path: Path, number: int, missing: str | None) -> None:
    """Also in the newest file, where an earlier tail could begin."""
    member = convert(plain, tmp_path / "store", file_size=128 << 10, term_of=lambda index: 1 + index // 90)
    assert len(member.data) == 1
    if missing in ("index", "both"):
        shutil.rmtree(member.folder / "index")
    if missing in ("checkpoint", "both"):
        (member.folder / "checkpoint").unlink()
    ends = ("queues", "all") if missing in ("checkpoint", "both") else ("queues", "all", "committed")
    entry = member.entries[number]
    for at in range(HEADER.size):
        flip(member, entry.position + at, 1 if at % 2 else 6)
        is_place = 8 <= at < 24
        for end in ends if is_place else ends[:1]:
            with mqstore.open(member.root, dledger_end=end) as store:  # type: ignore[arg-type]
                assert store.count("orders") + store.count("events") == 180, (at, end)
        member.write(entry.position, member.header_of(entry))


def test_damage_of_other_bytes(plain: Path, tmp_path: Path) -> None:
    member = convert(plain, tmp_path / "store")
    for at in (32, 36, 40):
        # The channel, and two checksums that no release sets.
        flip(member, member.entries[3].position + at)
    assert mqstore.verify(member.root).problems == ()
    entry = member.entries[100]
    flip(member, entry.position + HEADER.size + 100)
    # As in a plain store: the record, its offset without a record, and the unit that leads to it.
    found = ["record_damaged", "queue_gap", "queue_entry_dangling"]
    assert kinds(member.root) == found
    assert mqstore.verify(member.root).problems[0].offset == member.place(entry.position + HEADER.size)[1]
    with mqstore.open(member.root) as store, pytest.warns(mqstore.StoreWarning, match="body CRC"):
        assert len(list(store.read("orders", on_damage="skip"))) == 149
        assert store.stats().skipped_damage == 1
    unit = 101 * 32 + 8
    path = member.folder / "index" / f"{0:020}"
    data = bytearray(path.read_bytes())
    data[unit] ^= 1
    path.write_bytes(data)
    assert sorted(kinds(member.root)) == sorted([*found, "raft_index_wrong"])


def test_entries_that_are_out_of_order(plain: Path, tmp_path: Path) -> None:
    member = convert(plain, tmp_path / "store")
    for entry in member.entries[90:]:
        entry.index += 5
        member.write(entry.position, member.header_of(entry))
    shutil.rmtree(member.folder / "index")
    member.write_checkpoint(184)
    (first, _missing) = mqstore.verify(member.root).problems
    assert (first.kind, first.detail) == ("raft_header_wrong", "index 95 follows index 89")
    member.write_checkpoint(1000)
    assert "raft_checkpoint_ahead" in kinds(member.root)
    assert messages(member.root) == messages(plain)


@pytest.mark.parametrize("split", [0, 70])
def test_export(plain: Path, tmp_path: Path, split: int, cli: Cli) -> None:
    member = convert(plain, tmp_path / "store", split=split, noops=set() if split else {3})
    before = tree_hash(member.root)
    copy = tmp_path / "copy"
    assert cli("export", member.root, copy, "--to", "store").returncode == 0
    assert offsets(copy) == offsets(plain)
    mapping = [json.loads(line) for line in Path(f"{copy}.mapping.jsonl").read_text().splitlines()]
    assert len(mapping) == 180
    with mqstore.open(copy, "rw") as store:
        assert store.append("orders", b"more", queue_id=0).queue_offset == 60
    for ending in ("jsonl", "parquet", "arrow"):
        one, other = tmp_path / f"one.{ending}", tmp_path / f"other.{ending}"
        columns = ["topic", "queue_id", "queue_offset", "body", "tags", "keys"]
        assert mqstore.export(member.root, one, columns=columns).messages == 180
        mqstore.export(plain, other, columns=columns)
        if ending == "arrow":
            # The gaps between the columns of an Arrow file can contain anything.
            assert feather.read_table(one) == feather.read_table(other)
        else:
            assert one.read_bytes() == other.read_bytes()
    mqstore.export(member.root, tmp_path / "all.jsonl")
    mqstore.open(tmp_path / "imported", "create", options=GEOMETRY).close()
    mqstore.import_(tmp_path / "imported", tmp_path / "all.jsonl")
    assert offsets(tmp_path / "imported") == offsets(plain)
    assert tree_hash(member.root) == before


def test_a_log_without_entries(tmp_path: Path, plain: Path) -> None:
    member = convert(plain, tmp_path / "store", split=180)
    assert not member.entries
    assert messages(member.root) == messages(plain)
    assert mqstore.verify(member.root).problems == ()
    member.data[0].unlink()
    assert messages(member.root) == messages(plain)
    assert mqstore.verify(member.root).problems == ()


def test_a_reader_follows_new_entries(plain: Path, tmp_path: Path) -> None:
    """A broker that has the store open is simulated by its lock and by its files."""
    whole = convert(plain, tmp_path / "whole")
    part = convert(plain, tmp_path / "part")
    # Take the entries of the last file away, and the units that name them.
    end = int(part.data[-1].name)
    part.data[-1].unlink()
    units: dict[Path, bytes] = {}
    for path in (part.root / "consumequeue").rglob("0*"):
        if path.is_file():
            units[path] = path.read_bytes()
            data = bytearray(units[path])
            for at in range(0, len(data), 20):
                if struct.unpack_from(">q", data, at)[0] >= end:
                    data[at : at + 20] = bytes(20)
            if any(data):
                path.write_bytes(data)
            else:
                path.unlink()
    with mqstore.open(part.root) as store:
        before = sum(1 for topic in store.topics() for _ in store.read(topic))
        assert 0 < before < 180
        # Committed entries appear with their units, not before.
        shutil.copy(whole.data[-1], part.folder / "data")
        with pytest.warns(mqstore.StoreWarning, match="may never have been committed"):
            assert sum(1 for topic in store.topics() for _ in store.read(topic)) == before
        for path, data in units.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    assert messages(part.root) == messages(plain)


def test_info(plain: Path, tmp_path: Path) -> None:
    member = convert(plain, tmp_path / "store", split=70, term_of=lambda index: (1, 1, 4, 9)[index // 30])
    info = mqstore.info(member.root)
    assert (info.messages, info.layout, info.written_by) == (180, "file-queues", "rocketmq")
    assert info.parts[:2] == ("commitlog", "dledger")
    assert {part.part: part.files for part in info.disk}["dledger"] == len(member.data) + 3
    (found,) = info.dledger
    assert (found.member_id, found.data_files) == ("n0", len(member.data))
    assert found.data_min_offset == int(member.data[0].name)
    assert (found.first_index, found.last_index, found.committed_index, found.current_term) == (0, 109, 109, 9)
    terms = [(term.term, term.first_index, term.last_index) for term in found.terms]
    assert terms == [(1, 0, 59), (4, 60, 89), (9, 90, 109)]
    (member.folder / "checkpoint").unlink()
    shutil.rmtree(member.folder / "index")
    (found,) = mqstore.info(member.root).dledger
    assert (found.last_index, found.committed_index, found.terms) == (109, None, ())
    assert mqstore.info(plain).dledger == ()
