"""Queue offsets in an export to a store: they stay, also in queues whose first messages have expired."""

from __future__ import annotations

import json
import shutil
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import dledger_stores
import mqstore
import rocketmq_bytes as rmq
import tiered_stores
from conftest import tree_hash

if TYPE_CHECKING:
    from conftest import Cli

GEOMETRY = mqstore.StoreOptions(segment_size=16 << 10, queue_file_entries=64, index_slots=97, index_entries=4000)
SEGMENT = mqstore.StoreOptions().segment_size


def places(path: Path) -> dict[tuple[str, int], list[tuple[int, bytes]]]:
    """Returns the offset and the body of each message, by queue; queues without messages are left out."""
    with mqstore.open(path) as store:
        found = {
            (topic, queue.queue_id): [
                (one.queue_offset, one.body) for one in store.read(topic, queue.queue_id, queue.min_offset)
            ]
            for topic in store.topics()
            for queue in store.queues(topic)
        }
    return {queue: rows for queue, rows in found.items() if rows}


@pytest.fixture
def expired(tmp_path: Path) -> Path:
    """A store whose first segments have expired; queue 2 of "orders" has lost all its messages."""
    path = tmp_path / "expired"
    with mqstore.open(path, "create", options=GEOMETRY, retention_bytes=40 << 10) as store:
        store.create_topic("orders", queues=3)
        for number in range(30):
            store.append("orders", b"early %d" % number, queue_id=2)
        for number in range(600):
            store.append("orders", b"body %d " % number * 10, queue_id=number % 2, keys=f"k{number}")
            if number % 10 == 0:
                store.append("events", b"event %d" % number)
        store.expire()
        assert store.stats().log_min_offset > 0
    return path


def test_a_late_queue_keeps_its_offsets(expired: Path, tmp_path: Path) -> None:
    wanted, before = places(expired), tree_hash(expired)
    assert wanted["orders", 0][0][0] > 0
    assert ("orders", 2) not in wanted
    copy = tmp_path / "copy"
    report = mqstore.export(expired, copy, format="store")
    assert (report.messages, report.renumbered) == (sum(map(len, wanted.values())), 0)
    assert places(copy) == wanted
    for line in Path(f"{copy}.mapping.jsonl").read_text().splitlines():
        row = json.loads(line)
        assert row["queue_offset"] == row["new_queue_offset"]
    assert mqstore.verify(copy).problems == ()
    info = mqstore.info(copy)
    assert info.log_min_offset == SEGMENT
    # The first segment does not exist, and blank units come before the first message.
    assert [path.name for path in (copy / "commitlog").iterdir()] == [f"{SEGMENT:020}"]
    units = next(iter(sorted((copy / "consumequeue/orders/0").iterdir()))).read_bytes()
    first = wanted["orders", 0][0][0]
    assert units[20 * (first - 1) : 20 * first] == (0).to_bytes(8) + (0x7FFFFFFF).to_bytes(4) + bytes(8)
    assert units[20 * first : 20 * first + 8] != bytes(8)
    assert tree_hash(expired) == before
    # Everything that derives queues agrees.
    shutil.rmtree(copy / "consumequeue")
    with pytest.warns(mqstore.StoreWarning, match="derived from the log"):
        assert places(copy) == wanted
    assert mqstore.rebuild(copy).messages == report.messages
    assert places(copy) == wanted
    with mqstore.open(copy, "rw") as store:
        for queue_id in (0, 1):
            assert (
                store.append("orders", b"more", queue_id=queue_id).queue_offset == wanted["orders", queue_id][-1][0] + 1
            )
        with store.consumer("billing", "orders") as consumer:
            assert consumer.poll(max_messages=1, timeout=5)[0].queue_offset in {rows[0][0] for rows in wanted.values()}
    # An export of the export keeps them again.
    mqstore.export(copy, tmp_path / "again", format="store")
    assert places(tmp_path / "again") == places(copy)


def test_an_open_after_a_kill(expired: Path, tmp_path: Path) -> None:
    """Without the durable mark and the checkpoint, recovery reads the log from its start."""
    mqstore.export(expired, tmp_path / "copy", format="store")
    for name in ("mqstore", "consumequeue", "index"):
        shutil.rmtree(tmp_path / "copy" / name)
    (tmp_path / "copy/checkpoint").unlink()
    (tmp_path / "copy/abort").write_bytes(b"1")
    with mqstore.open(tmp_path / "copy", "rw"):
        pass
    assert places(tmp_path / "copy") == places(expired)


def test_single_topics(expired: Path, tmp_path: Path) -> None:
    wanted = places(expired)
    mqstore.export(expired, tmp_path / "events", format="store", topics="events")
    assert places(tmp_path / "events") == {("events", 0): wanted["events", 0]}
    # A store in which each queue has all its messages begins its log at 0.
    with mqstore.open(tmp_path / "whole", "create", options=GEOMETRY) as store:
        store.append_many("orders", [b"one", b"two"], queue_id=0)
    report = mqstore.export(tmp_path / "whole", tmp_path / "copy", format="store")
    assert report.renumbered == 0
    assert mqstore.info(tmp_path / "copy").log_min_offset == 0
    assert places(tmp_path / "copy") == places(tmp_path / "whole")


def test_groups_continue_where_they_were(expired: Path, tmp_path: Path) -> None:
    with mqstore.open(expired, "rw") as store:
        topics = {"orders": store.queues("orders"), "events": store.queues("events")}
        near = {(name, one.queue_id): one.max_offset - 3 for name, queues in topics.items() for one in queues}
        with store.consumer("billing", ["orders", "events"]) as consumer:
            consumer.commit(near)
        with store.work_queue("events", "mailers") as queue:
            queue.ack(queue.get())
    mqstore.export(expired, tmp_path / "copy", format="store")

    def offsets(path: Path) -> set[tuple[str, str, int, int]]:
        consumers = mqstore.info(path).consumers
        return {(one.group, one.topic, queue.queue_id, queue.offset) for one in consumers for queue in one.queues}

    # Queue 2 of "orders" has lost its messages, so there is nothing to continue at.
    found, wanted = offsets(tmp_path / "copy"), offsets(expired)
    found, wanted = ({one for one in rows if one[1:3] != ("orders", 2)} for rows in (found, wanted))
    assert found == wanted
    with mqstore.open(tmp_path / "copy", "rw") as store, store.consumer("billing", ["orders", "events"]) as consumer:
        assert len(consumer.poll(timeout=5)) == 9
    mqstore.export(expired, tmp_path / "events", format="store", topics="events")
    assert {(group, topic) for group, topic, _, _ in offsets(tmp_path / "events")} == {
        ("billing", "events"),
        ("mailers", "events"),
    }
    mqstore.export(expired, tmp_path / "new", format="store", keep_offsets=False)
    assert offsets(tmp_path / "new") == set()


def test_new_offsets(expired: Path, tmp_path: Path) -> None:
    wanted = {queue: [body for _, body in rows] for queue, rows in places(expired).items()}
    report = mqstore.export(expired, tmp_path / "copy", format="store", keep_offsets=False)
    assert report.renumbered == report.messages
    assert places(tmp_path / "copy") == {queue: list(enumerate(rows)) for queue, rows in wanted.items()}
    assert mqstore.info(tmp_path / "copy").log_min_offset == 0
    # A selection leaves gaps, and a store with messages has its own offsets.
    mqstore.export(expired, tmp_path / "some", format="store", keys=["k599", "k597"])
    assert [offset for offset, _ in places(tmp_path / "some")["orders", 1]] == [0, 1]
    mqstore.export(expired, tmp_path / "some", format="store", mapping=tmp_path / "second")
    assert [offset for offset, _ in places(tmp_path / "some")["orders", 1]] == list(range(2 + len(wanted["orders", 1])))


def test_offsets_that_cannot_stay(expired: Path, tmp_path: Path, cli: Cli) -> None:
    options: dict[str, Any] = {"format": "store", "keep_offsets": True}
    with pytest.raises(ValueError, match="select only topics"):
        mqstore.export(expired, tmp_path / "copy", keys="k599", **options)
    with pytest.raises(ValueError, match="keep_offsets is for stores"):
        mqstore.export(expired, tmp_path / "copy.jsonl", keep_offsets=True)
    assert not (tmp_path / "copy").exists()
    mqstore.open(tmp_path / "empty", "create", options=GEOMETRY).close()
    with pytest.raises(ValueError, match="its log begins at 0"):
        mqstore.export(expired, tmp_path / "empty", **options)
    with mqstore.open(tmp_path / "empty", "rw") as store:
        store.append("orders", b"mine")
    refused = cli("export", expired, tmp_path / "empty", "--to", "store", "--keep-offsets")
    assert refused.returncode == 2
    assert "it has messages already" in refused.stderr
    assert places(tmp_path / "empty") == {("orders", 0): [(0, b"mine")]}
    done = cli("export", expired, tmp_path / "new", "--to", "store", "--new-offsets", "--format", "json")
    assert json.loads(done.stdout)["renumbered"] > 0


def test_an_empty_folder_and_a_link(expired: Path, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    # A call that was killed has left a folder.
    (folder / ".commitlog.mqstore-1").mkdir(parents=True)
    inode = folder.stat().st_ino
    mqstore.export(expired, folder, format="store", keep_offsets=True)
    assert places(folder) == places(expired)
    # Another folder could not replace a mount point.
    assert folder.stat().st_ino == inode
    assert not list(folder.glob(".*"))
    (tmp_path / "disk").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "disk")
    mqstore.export(expired, tmp_path / "link", format="store", keep_offsets=True)
    assert places(tmp_path / "disk") == places(expired)
    assert (tmp_path / "link").is_symlink()


def test_waiting_messages_take_no_offset_of_another_message(tmp_path: Path) -> None:
    source = tmp_path / "source"
    with mqstore.open(source, "create", options=GEOMETRY) as store:
        for number in range(40):
            store.append("orders", b"body %d" % number, queue_id=0)
            if number % 8 == 0:
                store.append("orders", b"waits %d" % number, queue_id=0, delay=3600)
        due = time.time_ns() // 1_000_000 + 300
        store.append("orders", b"soon", queue_id=0, deliver_at=due)
        store.append("orders", b"last", queue_id=0)
    time.sleep(0.4)
    wanted = places(source)["orders", 0]
    assert wanted[-1] == (40, b"last")
    report = mqstore.export(source, tmp_path / "copy", format="store")
    assert (report.messages, report.renumbered) == (41 + 6, 0)
    with mqstore.open(tmp_path / "copy", "rw") as store:
        assert store.wait("orders", 0, 41, timeout=30)
    assert places(tmp_path / "copy")["orders", 0] == [*wanted, (41, b"soon")]
    assert sum(one.messages for one in mqstore.info(tmp_path / "copy").delayed) == 5


@pytest.mark.parametrize("stop", range(1, 10))
def test_an_interrupted_export_keeps_the_offsets(tmp_path: Path, stop: int) -> None:
    """It is interrupted after each batch, also in the pass over the messages that wait."""
    source, copy = tmp_path / "source", tmp_path / "copy"
    with mqstore.open(source, "create", segment_size=1 << 20, retention_bytes=1 << 20) as store:
        for number in range(12):
            store.append_many("orders", [b"%d" % number * 100] * 1000, queue_id=0)
            store.append("orders", b"waits %d" % number, queue_id=0, delay=3600)
        store.expire()
    wanted = places(source)["orders", 0]
    assert wanted[0][0] > 0
    calls = 0

    def progress(_step: mqstore.Progress) -> None:
        nonlocal calls
        calls += 1
        if calls == stop:
            raise KeyboardInterrupt

    interrupted = False
    try:
        mqstore.export(source, copy, format="store", progress=progress)
    except KeyboardInterrupt:
        interrupted = True
    if interrupted:
        report = mqstore.export(source, copy, format="store")
        assert report.resumed
        assert report.renumbered == 0
    assert places(copy)["orders", 0] == wanted
    waiting = [sum(one.messages for one in mqstore.info(path).delayed) for path in (source, copy)]
    assert waiting[0] == waiting[1] > 0
    rows = [json.loads(line) for line in Path(f"{copy}.mapping.jsonl").read_text().splitlines()]
    assert len(rows) == len(wanted) + waiting[0]
    assert not list(tmp_path.glob(".*"))


def test_gaps_in_the_source(tmp_path: Path) -> None:
    def made(name: str, offsets: list[int]) -> Path:
        rmq.write_log(tmp_path / name, [{"topic": "orders", "queue_offset": at, "body": b"%d" % at} for at in offsets])
        return tmp_path / name

    gaps = made("gaps", [7, 8, 12, 1000])
    assert mqstore.export(gaps, tmp_path / "first", format="store").renumbered == 0
    assert [offset for offset, _ in places(tmp_path / "first")["orders", 0]] == [7, 8, 12, 1000]
    # No program reads a unit so far behind the one before it, because the log is too short for so many records.
    far = made("far", [7, 8, 9_000_000])
    with pytest.warns(mqstore.StoreWarning, match="1 messages have another queue offset"):
        report = mqstore.export(far, tmp_path / "second", format="store")
    assert (report.messages, report.renumbered) == (3, 1)
    assert [body for _, body in places(tmp_path / "second")["orders", 0]] == [b"7", b"8", b"9000000"]
    # A broker that deleted a topic and made it again gives its offsets a second time.
    twice = made("twice", [5, 6, 5, 6, 7, 8])
    with pytest.warns(mqstore.StoreWarning, match="4 messages have another queue offset"):
        mqstore.export(twice, tmp_path / "third", format="store")
    assert [body for _, body in places(tmp_path / "third")["orders", 0]] == [b"5", b"6", b"5", b"6", b"7", b"8"]
    absurd = made("absurd", [1 << 62])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mqstore.StoreWarning)
        mqstore.export(absurd, tmp_path / "fourth", format="store")
    assert [offset for offset, _ in places(tmp_path / "fourth")["orders", 0]] == [0]


def test_batch_queues(tmp_path: Path) -> None:
    source = tmp_path / "source"
    with mqstore.open(source, "create", options=GEOMETRY, retention_bytes=20 << 10) as store:
        store.create_topic("orders", queues=1, attributes={"queue.type": "BatchCQ"})
        for number in range(100):
            store.append_many("orders", [b"%d" % number * 100] * 3, queue_id=0)
        store.expire()
    wanted = places(source)["orders", 0]
    assert wanted[0][0] > 0
    report = mqstore.export(source, tmp_path / "copy", format="store")
    assert report.renumbered == 0
    assert places(tmp_path / "copy")["orders", 0] == wanted
    assert mqstore.verify(tmp_path / "copy").problems == ()
    mqstore.rebuild(tmp_path / "copy")
    assert places(tmp_path / "copy")["orders", 0] == wanted


@pytest.mark.parametrize("kind", ["tiered", "dledger"])
def test_other_directories_that_expired(tmp_path: Path, kind: str) -> None:
    plain = tmp_path / "plain"
    with mqstore.open(plain, "create", options=dledger_stores.GEOMETRY) as store:
        dledger_stores.fill(store)
    if kind == "tiered":
        tier = tiered_stores.convert(plain, tiered_stores.Tier(tmp_path / "tier"))
        for queue_id in (0, 1):
            tier.files("orders", queue_id)[0].unlink()
        root = tier.root
    else:
        member = dledger_stores.convert(plain, tmp_path / "member")
        member.data[0].unlink()
        root = member.root
    wanted = places(root)
    assert all(wanted["orders", queue_id][0][0] > 0 for queue_id in (0, 1))
    report = mqstore.export(root, tmp_path / "copy", format="store")
    assert report.renumbered == 0
    assert places(tmp_path / "copy") == wanted
    assert mqstore.verify(tmp_path / "copy").problems == ()


def test_a_result_at_a_url(expired: Path, tmp_path: Path) -> None:
    pytest.importorskip("obstore", reason="obstore is not installed")
    url = f"file://{tmp_path}/published"
    report = mqstore.export(expired, url, format="store")
    assert report.renumbered == 0
    mqstore.fetch(url, tmp_path / "fetched")
    assert places(tmp_path / "fetched") == places(expired)
