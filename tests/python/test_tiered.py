"""Tiered stores of RocketMQ in the POSIX layout: read, verified, scanned and exported, and never written."""

from __future__ import annotations

import json
import shutil
import struct
import warnings
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyarrow import parquet

import mqstore
from conftest import Cli, tree_hash
from dledger_stores import GEOMETRY, fill
from rocketmq_bytes import MAGIC_V2
from tiered_stores import CODA, UNIT, Tier, convert, digits, file_name, records

if TYPE_CHECKING:
    from collections.abc import Iterator

KEYS = ("topic", "queue_id", "queue_offset", "body", "tags", "keys", "store_timestamp", "unique_id", "born_host")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed plain store: 150 messages in three queues of "orders", 30 in "events", and a long topic name."""
    home = tmp_path_factory.mktemp("plain") / "store"
    with mqstore.open(home, "create", options=GEOMETRY) as store:
        fill(store)
    return home


@pytest.fixture
def tier(plain: Path, tmp_path: Path) -> Tier:
    """The plain store as a tiered store, with rolled files."""
    return convert(plain, Tier(tmp_path / "tier"))


def messages(path: Path) -> dict[str, list[dict[str, Any]]]:
    """Returns the messages of all topics by queue, without their log offsets."""
    with mqstore.open(path) as store:
        found = {}
        for topic in store.topics():
            read = [message for queue in store.queues(topic) for message in store.read(topic, queue.queue_id)]
            found[topic] = [{key: getattr(message, key) for key in KEYS} for message in read]
            for message in read:
                assert store.get_at(message.commit_log_offset).body == message.body
        return found


@contextmanager
def told(*texts: str) -> Iterator[None]:
    """Checks that the block warns once with each of these texts, and with nothing else."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        yield
    found = [str(each.message) for each in seen]
    assert len(found) == len(texts), found
    for text in texts:
        assert any(text in each for each in found), found


def kinds(path: Path) -> list[str]:
    return [problem.kind for problem in mqstore.verify(path).problems]


LAYOUTS: dict[str, dict[str, Any]] = {
    "one file": {"log_bytes": 1 << 30, "units": 1000},
    "rolled": {},
    "a file for each record": {"log_bytes": 600, "units": 1},
    "with codas": {"coda": True},
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_way_to_read(plain: Path, tmp_path: Path, layout: str) -> None:
    tier = convert(plain, Tier(tmp_path / "tier", **LAYOUTS[layout]))
    before = tree_hash(tier.root)
    assert messages(tier.root) == messages(plain)
    with mqstore.open(tier.root) as store, mqstore.open(plain) as other:
        # By time over the queues, although each queue has its own files.
        found, wanted = list(store.read("orders")), list(other.read("orders"))
        # Messages of the same millisecond come in the order of the files.
        assert [each.store_timestamp for each in found] == [each.store_timestamp for each in wanted]
        assert sorted(str(each.unique_id) for each in found) == sorted(str(each.unique_id) for each in wanted)
        ends = [[each.store_timestamp for each in one.tail("orders", 7)] for one in (store, other)]
        assert ends[0] == ends[1]
        assert len(list(store.lookup("orders", "all"))) == 150
        (one,) = store.lookup("orders", "k7")
        assert store.get(str(one.unique_id)) == one
        when = one.store_timestamp
        for queue in store.queues("orders"):
            mine = store.offset_for_time("orders", queue.queue_id, when)
            assert mine == other.offset_for_time("orders", queue.queue_id, when)
    columns = ["topic", "queue_id", "queue_offset", "body"]
    rows = mqstore.scan(tier.root, columns=columns).to_arrow().to_pylist()
    wanted = mqstore.scan(plain, columns=columns).to_arrow().to_pylist()
    order = lambda row: (row["topic"], row["queue_id"], row["queue_offset"])  # noqa: E731
    assert sorted(rows, key=order) == sorted(wanted, key=order)
    report = mqstore.verify(tier.root)
    assert (report.problems, report.messages) == ((), 180)
    assert tree_hash(tier.root) == before


def test_scans_of_times_and_topics(plain: Path, tier: Tier) -> None:
    with mqstore.open(plain) as store:
        times = sorted(message.store_timestamp for message in store.read("orders"))
    middle = times[len(times) // 2]
    for arguments in ({"start_time": middle}, {"end_time": middle}, {"topics": "events"}, {"keys": "k7"}):
        rows = mqstore.scan(tier.root, columns=["unique_id"], **arguments).to_arrow().to_pylist()
        wanted = mqstore.scan(plain, columns=["unique_id"], **arguments).to_arrow().to_pylist()
        assert sorted(row["unique_id"] for row in rows) == sorted(row["unique_id"] for row in wanted)


def test_the_folder_of_a_cluster_and_of_a_broker(tier: Tier) -> None:
    for path in (tier.root, tier.folder.parent, tier.folder):
        info = mqstore.info(path)
        assert (info.layout, info.written_by, info.messages, info.hours) == ("tiered-files", "rocketmq", 180, ())
        (found,) = info.tiered
        assert (found.cluster, found.broker, found.folder) == ("DefaultCluster", "broker-a", str(tier.folder))
        files = [each for each in tier.folder.rglob("*") if each.is_file()]
        assert (found.files, found.bytes) == (len(files), sum(each.stat().st_size for each in files))
    copy = tier.root / "copy"
    shutil.copytree(tier.folder, copy / "broker-a")
    assert mqstore.info(copy).tiered[0].cluster is None


def test_several_brokers_are_refused_with_their_names(plain: Path, tier: Tier) -> None:
    other = convert(plain, Tier(tier.root.parent / "other", broker="broker-b"))
    shutil.copytree(other.folder, tier.folder.parent / "broker-b")
    with pytest.raises(mqstore.UnsupportedFormatError, match=r"several brokers; name .*broker-a or .*broker-b"):
        mqstore.open(tier.root)
    assert mqstore.info(tier.folder.parent / "broker-b").tiered[0].broker == "broker-b"


def test_a_queue_that_begins_later(plain: Path, tmp_path: Path) -> None:
    tier = convert(plain, Tier(tmp_path / "tier"), skip={("orders", 1): 17, ("events", 0): 29})
    found, all_of_them = messages(tier.root), messages(plain)
    assert found["events"] == all_of_them["events"][29:]
    assert [one for one in found["orders"] if one["queue_id"] == 1] == [
        one for one in all_of_them["orders"] if one["queue_id"] == 1
    ][17:]
    with mqstore.open(tier.root) as store:
        assert {queue.queue_id: queue.min_offset for queue in store.queues("orders")} == {0: 0, 1: 17, 2: 0}
        with pytest.raises(mqstore.OffsetOutOfRangeError):
            list(store.read("orders", 1, 3))
    assert kinds(tier.root) == []


def test_expired_files(tier: Tier) -> None:
    logs, units = tier.files("orders", 0), tier.files("orders", 0, "CONSUME_QUEUE")
    assert len(logs) >= 3
    assert len(units) >= 2
    everything = [one for one in messages(tier.root)["orders"] if one["queue_id"] == 0]
    # The log begins after the units.
    logs[0].unlink()
    rest = [one for one in messages(tier.root)["orders"] if one["queue_id"] == 0]
    assert rest == everything[-len(rest) :]
    assert 0 < len(rest) < len(everything)
    assert kinds(tier.root) == []
    # The units begin after the log.
    units[0].unlink()
    rest = [one for one in messages(tier.root)["orders"] if one["queue_id"] == 0]
    assert rest == everything[40:]
    assert kinds(tier.root) == []


def test_the_end_of_the_log_without_units_is_told(tier: Tier) -> None:
    last = tier.files("orders", 0, "CONSUME_QUEUE")[-1]
    last.write_bytes(last.read_bytes()[: -2 * UNIT.size])
    says = r"queue 0 of topic \"orders\": the last \d+ bytes of its log have no units"
    with pytest.warns(mqstore.StoreWarning, match=says), mqstore.open(tier.root) as store:
        assert len(list(store.read("orders", 0))) == 58
    with pytest.warns(mqstore.StoreWarning, match=says):
        report = mqstore.verify(tier.root)
    assert (report.problems, report.messages) == ((), 178)


def test_an_incomplete_unit_at_the_end_is_ignored(tier: Tier) -> None:
    last = tier.files("orders", 0, "CONSUME_QUEUE")[-1]
    last.write_bytes(last.read_bytes() + b"\0" * 7)
    assert len(messages(tier.root)["orders"]) == 150


def test_units_without_records(tier: Tier) -> None:
    last = tier.files("orders", 0)[-1]
    last.write_bytes(last.read_bytes()[:-1])
    with pytest.warns(mqstore.StoreWarning, match=r"offsets 59 to 60 \(exclusive\) have units but no records"):
        assert len(messages(tier.root)["orders"]) == 149
    assert kinds(tier.root) == ["tiered_entry_dangling"]


def test_a_missing_file_in_the_middle(tier: Tier) -> None:
    everything = messages(tier.root)["orders"]
    missing = tier.files("orders", 0)[1]
    missing.unlink()
    with told("the file ends at", "have units but no records"):
        rest = messages(tier.root)["orders"]
    assert 0 < len(rest) < len(everything)
    assert all(one in everything for one in rest)
    assert "tiered_file_gap" in kinds(tier.root)
    assert "tiered_entry_dangling" in kinds(tier.root)


def test_files_with_other_names(tier: Tier) -> None:
    home = tier.files("orders", 0)[0].parent
    for name in ("00000000000000000000", f"{digits('1')}{0:020}", file_name(5)[:-1]):
        (home / name).write_bytes(b"x")
    (home / ".DS_Store").write_bytes(b"x")
    with pytest.warns(mqstore.StoreWarning, match="it is no file of a tiered store"):
        assert len(messages(tier.root)["orders"]) == 150
    assert kinds(tier.root) == ["tiered_file_stray"] * 3


def test_damage_is_found_at_its_real_place(tier: Tier) -> None:
    path = tier.files("orders", 0)[1]
    data = bytearray(path.read_bytes())
    at = data.index(b"body ")
    data[at] ^= 1
    path.write_bytes(data)
    first, *others = mqstore.verify(tier.root).problems
    assert (first.kind, first.path, first.offset) == ("record_damaged", str(path), 0)
    assert all(str(tier.folder) in each.path for each in others), others
    assert {each.kind for each in others} <= {"queue_gap", "queue_entry_dangling"}, others
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with mqstore.open(tier.root) as store:
            with pytest.raises(mqstore.CorruptionError):
                list(store.read("orders", 0, on_damage="raise"))
            assert len(list(store.read("orders", 0, on_damage="skip"))) == 59


def test_a_record_at_a_wrong_position(tier: Tier) -> None:
    path = tier.files("orders", 0)[0]
    data = bytearray(path.read_bytes())
    data[28:36] = struct.pack(">q", 8)
    path.write_bytes(data)
    assert "record_damaged" in kinds(tier.root)


def test_damaged_units(tier: Tier) -> None:
    path = tier.files("orders", 0, "CONSUME_QUEUE")[0]
    data = bytearray(path.read_bytes())
    data[5 * UNIT.size : 6 * UNIT.size] = UNIT.pack(2**62, 100, 0)
    path.write_bytes(data)
    problems = mqstore.verify(tier.root).problems
    assert problems
    assert all(problem.path.startswith(str(tier.folder)) for problem in problems)


@pytest.mark.parametrize("seed", range(60))
def test_any_bytes_end_in_messages_or_errors(tier: Tier, seed: int) -> None:
    import random

    chooser = random.Random(seed)
    files = sorted(each for each in tier.folder.rglob("*") if each.is_file())
    path = chooser.choice(files)
    data = bytearray(path.read_bytes())
    for _ in range(chooser.randint(1, 5)):
        at = chooser.randrange(len(data))
        data[at : at + 4] = chooser.randbytes(4)
    path.write_bytes(data[: len(data) - chooser.choice([0, 0, 1, 9])])
    before = tree_hash(tier.root)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mqstore.verify(tier.root)
        with mqstore.open(tier.root) as store:
            for topic in store.topics():
                for queue in store.queues(topic):
                    list(store.read(topic, queue.queue_id, on_damage="skip"))
        mqstore.scan(tier.root, on_damage="skip").to_arrow()
    assert tree_hash(tier.root) == before


def test_every_change_is_refused_and_names_the_export(plain: Path, tier: Tier, tmp_path: Path) -> None:
    before = tree_hash(tier.root)
    for change in (
        lambda: mqstore.open(tier.root, "rw"),
        lambda: mqstore.open(tier.root, "create"),
        lambda: mqstore.open(tier.folder, "create"),
        lambda: mqstore.export(plain, tier.root, format="store"),
        lambda: mqstore.rebuild(tier.root),
        lambda: mqstore.repair(tier.root, in_place=True),
        lambda: mqstore.repair(tier.root, output=tmp_path / "copy"),
    ):
        with pytest.raises(mqstore.UnsupportedFormatError, match="mqstore export"):
            change()
    with mqstore.open(tier.root) as store, pytest.raises(mqstore.UnsupportedFormatError, match="mqstore export"):
        store.snapshot(tmp_path / "copy")
    with mqstore.open(tier.root) as store, pytest.raises(mqstore.UnsupportedFormatError, match="open it again"):
        next(store.read("orders", follow=True))
    assert tree_hash(tier.root) == before


def test_exports(plain: Path, tier: Tier, tmp_path: Path) -> None:
    mqstore.export(tier.root, tmp_path / "all.parquet")
    table = parquet.read_table(tmp_path / "all.parquet", columns=["topic", "queue_id", "queue_offset"]).to_pylist()
    assert len({tuple(row.values()) for row in table}) == 180
    report = mqstore.export(tier.root, tmp_path / "copy", format="store")
    assert report.messages == 180
    assert messages(tmp_path / "copy") | {} == {
        topic: [{**one, "store_timestamp": mine["store_timestamp"]} for one, mine in zip(found, own, strict=True)]
        for (topic, found), own in zip(messages(plain).items(), messages(tmp_path / "copy").values(), strict=True)
    }
    assert mqstore.verify(tmp_path / "copy").ok


def test_an_export_to_a_store_leaves_out_topics_with_long_names(plain: Path, tmp_path: Path) -> None:
    name = "t" * 200
    tier = Tier(tmp_path / "tier")
    for (topic, _), found in records(plain).items():
        # The records of the topic have two bytes for its length.
        long = [replace(one, topic=name, data=with_topic(one.data, name)) for one in found]
        tier.write(long if topic == "events" else found)
    with pytest.warns(mqstore.StoreWarning, match=f"a store cannot have topics of their names: '{name}'"):
        report = mqstore.export(tier.root, tmp_path / "copy", format="store")
    assert (report.messages, report.reasons, report.skipped) == (150, {"topic_name": 30}, 30)
    assert mqstore.verify(tmp_path / "copy").ok
    with mqstore.open(tmp_path / "copy") as copy:
        assert copy.topics() == ["orders"]
        assert len(list(copy.read("orders"))) == 150
    report = mqstore.export(tier.root, tmp_path / "long.jsonl", topics=name)
    assert (report.messages, report.reasons) == (30, {})


def with_topic(record: bytes, topic: str) -> bytes:
    """Returns a record of "events" with another topic, of more than 127 bytes."""
    (body,) = struct.unpack_from(">i", record, 84)
    head, rest = record[: 88 + body], record[88 + body + 1 + len("events") :]
    made = head + struct.pack(">H", len(topic)) + topic.encode() + rest
    return struct.pack(">iI", len(made), MAGIC_V2) + made[8:]


def test_the_command_line(tier: Tier, cli: Cli) -> None:
    assert json.loads(cli("info", tier.root, "--format", "json").stdout)["tiered"][0]["broker"] == "broker-a"
    assert "tiered-files" in cli("info", tier.root).stdout
    assert cli("verify", tier.root).returncode == 0
    assert len(cli("cat", tier.root, "--topic", "events", "--limit", 100).stdout.splitlines()) == 30


def test_a_coda_is_no_record(plain: Path, tmp_path: Path) -> None:
    tier = convert(plain, Tier(tmp_path / "tier", coda=True))
    first, last = tier.files("orders", 0)[0], tier.files("orders", 0)[-1]
    assert first.read_bytes().endswith(CODA)
    last.write_bytes(last.read_bytes() + CODA)
    report = mqstore.verify(tier.root)
    assert (report.problems, report.messages) == ((), 180)


def test_no_message_yet(tmp_path: Path) -> None:
    home = tmp_path / "tier" / f"{digits('c')}_c" / "b" / "orders" / "0"
    for kind in ("COMMIT_LOG", "CONSUME_QUEUE"):
        (home / kind).mkdir(parents=True)
        (home / kind / file_name(0)).write_bytes(b"")
    with pytest.raises(mqstore.NotAStoreError, match="a tiered store without a message"):
        mqstore.open(tmp_path / "tier")
