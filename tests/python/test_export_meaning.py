"""An export has the meaning of the store: each message once, waiting messages as waiting, no records of the system.

Then an import, or a store written by an export, continues where the source stands.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any, Literal

import pytest

import mqstore
from conftest import SMALL, Cli, until
from mqstore import _native, testing

Way = Literal["jsonl", "parquet", "arrow", "store"]
WAYS: tuple[Way, ...] = ("jsonl", "parquet", "arrow", "store")
BEGIN, FAR = 4_102_444_800_000, 7_258_118_400_000
"""The years 2100 and 2200, in epoch milliseconds: also far away for stores with the clock of the machine."""
TIMER, LEVELS, HALF = "rmq_sys_wheel_timer", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"


def small(home: Path) -> Path:
    """Makes a store with small files, because the files of an import's own store have 1 GiB."""
    mqstore.open(home, "create", options=SMALL).close()
    return home


def moved(source: Path, target: Path, way: Way, **arguments: Any) -> mqstore.ExportReport:
    """Brings the messages of a store to another one, with `way`."""
    if way in {"parquet", "arrow"}:
        pytest.importorskip("pyarrow")
    if way == "store":
        return mqstore.export(source, target, format="store", **arguments)
    file = target.with_name(f"{target.name}.{way}")
    report = mqstore.export(source, file, **arguments)
    mqstore.import_(small(target), file)
    return report


def bodies(path: Path, topic: str) -> list[bytes]:
    """The bodies in a topic of a store, after its background work."""
    with mqstore.open(path) as store:
        found = [message.body for queue in store.queues(topic) for message in store.read(topic, queue.queue_id)]
    return sorted(found)


def opened_again(path: Path, times: int = 2) -> None:
    """Opens a store for writing, which delivers due messages and completes transactions."""
    for _ in range(times):
        with mqstore.open(path, "rw") as store:
            store.append("mark", b"")


def delayed(home: Path) -> testing.ManualClock:
    """A store with delayed messages: delivered, cancelled, moved, two with a level. Returns its clock."""
    clock = testing.ManualClock(BEGIN)
    with testing.open(home, clock=clock, options=SMALL) as store:
        store.append("t", b"plain", keys="k")
        store.append("t", b"delivered", delay=5)
        store.append("t", b"delivered level", delay_level=1)
        cancelled = store.append("t", b"cancelled", delay=3600)
        clock.advance(20)
        until(lambda: store.delays().pending == 1)
        assert store.cancel(cancelled.message_id)
        near = store.append("t", b"waiting", tags="T", keys="w", queue_id=0, delay=3600)
        assert store.reschedule(near.message_id, deliver_at=FAR)
        store.append("t", b"waiting level", delay_level=18, tags="T")
        assert store.delays().pending == 2
    return clock


@pytest.mark.parametrize("way", WAYS)
def test_each_delayed_message_arrives_once(tmp_path: Path, way: Way) -> None:
    delayed(tmp_path / "a")
    report = moved(tmp_path / "a", tmp_path / "c", way)
    assert report.messages == 5
    # Delivered (2), cancelled, and the record before the move; each cancellation has two records.
    assert report.reasons == {"done": 4, "internal": 4}
    assert report.skipped == 8
    opened_again(tmp_path / "c")
    assert bodies(tmp_path / "c", "t") == [b"delivered", b"delivered level", b"plain"]
    # With an exact time, also that of the delay level.
    assert [one.messages for one in mqstore.info(tmp_path / "c").delayed] == [2]
    assert mqstore.verify(tmp_path / "c").ok


@pytest.mark.parametrize("way", WAYS)
def test_a_waiting_message_keeps_its_due_time(tmp_path: Path, way: Way) -> None:
    with mqstore.open(tmp_path / "a", "create", options=SMALL) as store:
        store.create_topic("t", queues=3)
        first = store.append("t", b"exact", deliver_at=FAR + 7, keys="k", queue_id=2, properties={"own": "x"})
        level = store.append("t", b"level", delay_level=18)
    due = level.store_timestamp + 2 * 3_600_000
    moved(tmp_path / "a", tmp_path / "c", way)
    with mqstore.open(tmp_path / "c") as store:
        records = list(store.read(TIMER))
        assert [record.properties["TIMER_DELIVER_MS"] for record in records] == [str(FAR + 7), str(due)]
        assert [record.properties["REAL_QID"] for record in records] == ["2", "0"]
        one = records[0]
        assert (one.unique_id, one.keys, one.properties["own"]) == (first.unique_id, ("k",), "x")
        assert "mqstore.deliver_at" not in one.properties
        assert not records[1].properties.keys() & {"DELAY", "mqstore.deliver_at"}
    # It can still be cancelled.
    with mqstore.open(tmp_path / "c", "rw") as store:
        assert first.unique_id is not None
        assert store.cancel(first.unique_id)
        assert store.delays().pending == 1


@pytest.mark.parametrize("way", WAYS)
def test_waiting_messages_can_be_dropped(tmp_path: Path, way: Way) -> None:
    delayed(tmp_path / "a")
    report = moved(tmp_path / "a", tmp_path / "c", way, waiting="drop")
    assert (report.messages, report.reasons["waiting"]) == (3, 2)
    opened_again(tmp_path / "c")
    assert mqstore.info(tmp_path / "c").delayed == ()
    with pytest.raises(ValueError, match="waiting"):
        mqstore.export(tmp_path / "a", tmp_path / "x.jsonl", waiting="all")  # type: ignore[arg-type]


@pytest.mark.parametrize("way", ["jsonl", "store"])
def test_the_messages_of_one_topic_include_those_that_wait(tmp_path: Path, way: Way) -> None:
    clock = delayed(tmp_path / "a")
    with testing.open(tmp_path / "a", "rw", clock=clock) as store:
        store.append("other", b"x", deliver_at=FAR)
        store.append("other", b"y", delay_level=18)
    report = moved(tmp_path / "a", tmp_path / "c", way, topics="t")
    assert (report.messages, report.reasons) == (5, {})
    assert [one.messages for one in mqstore.info(tmp_path / "c").delayed] == [2]
    # Conditions hold for waiting messages too, for those of delay levels as well.
    report = moved(tmp_path / "a", tmp_path / "d", way, topics="t", filter="T")
    assert report.messages == 2
    assert [one.messages for one in mqstore.info(tmp_path / "d").delayed] == [2]
    assert moved(tmp_path / "a", tmp_path / "e", way, topics=["t"], keys="w").messages == 1


def test_a_due_message_is_delivered_by_the_import(tmp_path: Path) -> None:
    with testing.open(tmp_path / "a", clock=testing.ManualClock(), options=SMALL) as store:
        store.append("t", b"late", delay=0.2)
    mqstore.export(tmp_path / "a", tmp_path / "o.jsonl")
    (row,) = [json.loads(line) for line in (tmp_path / "o.jsonl").read_text().splitlines()][1:]
    assert (row["topic"], row["queue_id"]) == ("t", 0)
    assert int(row["properties"]["mqstore.deliver_at"]) - row["store_timestamp"] == 200
    mqstore.import_(small(tmp_path / "c"), tmp_path / "o.jsonl")
    with mqstore.open(tmp_path / "c", "rw") as store:
        assert store.wait("t", 0, 0, timeout=20)


TRANSACTIONS = """
import os, sys, mqstore
store = mqstore.open(sys.argv[1], "rw")
with store.transaction("shop") as done:
    done.append("t", b"committed")
gone = store.transaction("shop")
gone.append("t", b"rolled back")
gone.rollback()
left = store.transaction("shop")
left.append("t", b"undecided 1")
left.append("u", b"undecided 2")
store.flush()
os._exit(0)
"""


def with_transactions(home: Path) -> None:
    with mqstore.open(home, "create", options=SMALL) as store:
        store.append("t", b"plain")
        store.append("u", b"plain")
    subprocess.run([sys.executable, "-c", TRANSACTIONS, str(home)], check=True)


@pytest.mark.parametrize("way", WAYS)
def test_only_committed_messages_of_transactions_arrive(tmp_path: Path, way: Way) -> None:
    with_transactions(tmp_path / "a")
    report = moved(tmp_path / "a", tmp_path / "c", way)
    assert report.messages == 3
    assert report.reasons == {"done": 2, "undecided": 2, "internal": 2}
    opened_again(tmp_path / "c", 3)
    assert bodies(tmp_path / "c", "t") == [b"committed", b"plain"]
    assert mqstore.info(tmp_path / "c").undecided == ()
    with mqstore.open(tmp_path / "c") as store:
        assert HALF not in store.topics()
    report = moved(tmp_path / "a", tmp_path / "d", way, topics="t")
    assert (report.messages, report.reasons) == (2, {"undecided": 1})


def test_system_topics_only_by_name(tmp_path: Path) -> None:
    delayed(tmp_path / "a")
    file = tmp_path / "o.jsonl"
    report = mqstore.export(tmp_path / "a", file, topics=[TIMER, "t"])
    rows = [json.loads(line) for line in file.read_text().splitlines()[1:]]
    # The unchanged records, also of messages that are done.
    raw = [row for row in rows if row["topic"] == TIMER]
    assert len(raw) == 8
    assert not any("mqstore.deliver_at" in row["properties"] for row in raw)
    assert report.messages == len(rows) == 12
    with pytest.raises(mqstore.InvalidMessageError, match=r"line \d+: .*topic rmq_sys_wheel_timer"):
        mqstore.import_(tmp_path / "c", file)
    assert not (tmp_path / "c").exists()
    file.write_text(json.dumps({"topic": "t", "body_text": ""}) + "\n" + json.dumps({"topic": HALF, "body_text": ""}))
    with pytest.raises(mqstore.InvalidMessageError, match=f"line 2: .*topic {HALF}"):
        mqstore.import_(tmp_path / "c", file)
    with pytest.raises(mqstore.InvalidMessageError, match="line 1"):
        mqstore.import_(tmp_path / "c", file, topic=LEVELS)
    assert mqstore.import_(small(tmp_path / "c"), file, topic="own").topics == {"own": 2}


def test_a_bad_due_time_is_named(tmp_path: Path) -> None:
    file = tmp_path / "in.jsonl"
    for due in ("soon", "253402300800000", "1.5"):
        file.write_text(json.dumps({"topic": "t", "body_text": "", "properties": {"mqstore.deliver_at": due}}))
        with pytest.raises(mqstore.InvalidMessageError, match=r"line 1: .*property mqstore\.deliver_at"):
            mqstore.import_(tmp_path / "c", file)
    assert not (tmp_path / "c").exists()


def test_messages_of_a_deleted_topic_stay_deleted(tmp_path: Path) -> None:
    with mqstore.open(tmp_path / "a", "create", options=SMALL) as store:
        store.append("gone", b"x")
        store.append("t", b"y")
        store.append("gone", b"z", deliver_at=FAR)
        store.delete_topic("gone")
    report = moved(tmp_path / "a", tmp_path / "c", "jsonl")
    assert (report.messages, report.reasons) == (1, {"deleted": 2})
    with mqstore.open(tmp_path / "c") as store:
        assert store.topics() == ["t"]


@pytest.mark.parametrize("way", ["jsonl", "store"])
def test_a_topic_that_exists_again_has_only_its_new_messages(tmp_path: Path, way: Way) -> None:
    with mqstore.open(tmp_path / "a", "create", options=SMALL) as store:
        store.append("again", b"old")
        store.delete_topic("again")
        store.append("again", b"new")
    report = moved(tmp_path / "a", tmp_path / "c", way)
    assert (report.messages, report.reasons) == (1, {"deleted": 1})
    with mqstore.open(tmp_path / "c") as store:
        assert [message.body for message in store.read("again")] == [b"new"]


@pytest.mark.parametrize("way", ["jsonl", "store"])
def test_topics_and_groups_keep_their_settings(tmp_path: Path, way: Way) -> None:
    with mqstore.open(tmp_path / "a", "create", options=SMALL) as store:
        store.create_topic("table", queues=2, attributes={"cleanup.policy": "COMPACTION"})
        for number in range(6):
            store.append("table", b"%d" % number, keys=f"k{number % 2}")
        store.create_topic("few", queues=3, max_messages=2)
        store.append_many("few", [b"1", b"2"])
        store.create_topic("closed", queues=5)
        store.append("closed", b"x")
        store.update_topic("closed", perm=4, read_queues=4, write_queues=2)
        store.create_topic("empty", queues=7)
        with store.consumer("billing", "few", ordered=True) as consumer:
            consumer.poll(1)
            consumer.commit()
        store.work_queue("few", group="workers", max_attempts=4).close()
    moved(tmp_path / "a", tmp_path / "c", way)

    def settings(home: Path) -> tuple[Any, Any]:
        topics = json.loads((home / "config" / "topics.json").read_text())["topicConfigTable"]
        groups = json.loads((home / "config" / "subscriptionGroup.json").read_text())["subscriptionGroupTable"]
        return topics, groups

    assert settings(tmp_path / "c") == settings(tmp_path / "a")
    with mqstore.open(tmp_path / "c", "rw") as store:
        assert {key: message.body for key, message in store.table("table").items()} == {"k0": b"4", "k1": b"5"}
        assert store.quotas() == {"few": mqstore.TopicQuota(2, 2)}
        with pytest.raises(mqstore.QuotaFull):
            store.append("few", b"3")
        with pytest.raises(mqstore.RefusedError):
            store.append("closed", b"y")
        assert len(store.queues("empty")) == 7
        assert store.groups() == ["billing", "workers"]
    # Only what was asked for; and topics that exist keep their settings.
    with mqstore.open(tmp_path / "d", "create", options=SMALL) as store:
        store.create_topic("few", queues=1, max_messages=50)
    moved(tmp_path / "a", tmp_path / "d", way, topics="few")
    with mqstore.open(tmp_path / "d") as store:
        assert store.topics() == ["few"]
        assert store.quotas()["few"].max_messages == 50
        assert "billing" in store.groups()


def test_a_file_without_settings_is_imported(tmp_path: Path) -> None:
    """As earlier versions wrote it."""
    delayed(tmp_path / "a")
    file = tmp_path / "o.jsonl"
    mqstore.export(tmp_path / "a", file, topics="t", waiting="drop")
    head, *rows = file.read_text().splitlines(keepends=True)
    assert list(json.loads(head)) == ["mqstore"]
    file.write_text("".join(rows))
    assert mqstore.import_(small(tmp_path / "c"), file).topics == {"t": 3}
    # With some columns only, the file is for other programs and has no such line.
    mqstore.export(tmp_path / "a", tmp_path / "some.jsonl", columns=["topic", "body"])
    assert all("topic" in json.loads(line) for line in (tmp_path / "some.jsonl").read_text().splitlines())


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"version": 2}, "version 2"),
        ({"version": 1}, "topics"),
        ({"version": 1, "topics": {"a b": {}}, "groups": {}}, "a b"),
        ({"version": 1, "topics": {"t": {"perm": 99}}, "groups": {}}, "perm"),
        ({"version": 1, "topics": {"t": {"readQueueNums": "x"}}, "groups": {}}, "readQueueNums"),
        ({"version": 1, "topics": {}, "groups": {"g g": {}}}, "g g"),
        ([], "settings"),
    ],
)
def test_bad_settings_are_named(tmp_path: Path, settings: Any, text: str) -> None:
    file = tmp_path / "in.jsonl"
    file.write_text(json.dumps({"mqstore": settings}) + "\n" + json.dumps({"topic": "t", "body_text": ""}))
    with pytest.raises(mqstore.InvalidMessageError, match=text) as raised:
        mqstore.import_(tmp_path / "c", file)
    assert "line 1" in str(raised.value)
    assert not (tmp_path / "c").exists()


class StopError(Exception):
    pass


@pytest.mark.parametrize("way", ["jsonl", "store"])
def test_a_delivery_during_an_interrupted_export(tmp_path: Path, way: Way, monkeypatch: pytest.MonkeyPatch) -> None:
    """A message that was exported as waiting is not exported again when it was delivered meanwhile."""
    from mqstore._admin.export import partial

    monkeypatch.setattr(partial, "_STATE_BYTES", 1)
    clock = testing.ManualClock(BEGIN)
    home, target = tmp_path / "a", tmp_path / "c"
    with testing.open(home, clock=clock, options=SMALL) as store:
        store.append("t", b"first", delay=60)
        for _ in range(6):
            store.append_many("t", [b"x" * 900] * 1000)
        store.append("t", b"second", delay=60)
    dest = target if way == "store" else tmp_path / "o.jsonl"
    steps = 0

    def stop(_step: mqstore.Progress) -> None:
        nonlocal steps
        steps += 1
        if steps == 3:
            raise StopError

    with pytest.raises(StopError):
        mqstore.export(home, dest, format=way, progress=stop)
    with testing.open(home, "rw", clock=clock) as store:
        clock.advance(61)
        until(lambda: store.delays().pending == 0)
    report = mqstore.export(home, dest, format=way)
    assert (report.resumed, report.messages, report.skipped) == (True, 6002, 0)
    if way == "jsonl":
        mqstore.import_(small(target), dest)
    with testing.open(target, "rw", clock=clock) as store:
        until(lambda: store.delays().pending == 0)
        found = [message.body for message in store.read("t")]
    assert (found.count(b"first"), found.count(b"second"), len(found)) == (1, 1, 6002)


@pytest.mark.parametrize("lost", ["nothing", "wheel", "all but the log", "after a kill"])
def test_the_files_of_delays_may_be_lost(tmp_path: Path, lost: str) -> None:
    """The log alone says which messages wait. So does the store of a running writer."""
    home = tmp_path / "a"
    if lost == "after a kill":
        clock = testing.ManualClock()
        with testing.open(home, clock=clock, options=SMALL) as store:
            for number in range(50):
                store.append("t", b"%d" % number, delay=1 + number)
            clock.advance(25.5)
            until(lambda: store.delays().pending == 25)
            # As the files are at this moment.
            shutil.copytree(home, tmp_path / "b")
            live = mqstore.export(home, tmp_path / "live.jsonl")
        assert (live.messages, live.reasons) == (50, {"done": 25})
        report = moved(tmp_path / "b", tmp_path / "c", "jsonl")
        assert (report.messages, report.reasons) == (50, {"done": 25})
        return
    delayed(home)
    if lost == "wheel":
        (home / "timerwheel").unlink(missing_ok=True)
        shutil.rmtree(home / "timerlog", ignore_errors=True)
        (home / "mqstore" / "delays").unlink()
    elif lost == "all but the log":
        shutil.move(home / "commitlog", tmp_path / "log")
        home = tmp_path / "log"
    report = moved(home, tmp_path / "c", "jsonl")
    assert (report.messages, report.reasons) == (5, {"done": 4, "internal": 4})


def test_the_command(tmp_path: Path, cli: Cli) -> None:
    delayed(tmp_path / "a")
    done = cli("export", tmp_path / "a", tmp_path / "o.jsonl", "--waiting", "drop", "--format", "json")
    assert json.loads(done.stdout)["reasons"] == {"done": 4, "waiting": 2, "internal": 4}
    shown = cli("export", tmp_path / "a", tmp_path / "all.jsonl").stdout
    assert "skipped: done" in shown
    assert cli("export", tmp_path / "a", tmp_path / "x.jsonl", "--waiting", "no").returncode == 2


def test_every_plan_of_a_scan_finds_messages_of_a_level_by_tag(tmp_path: Path) -> None:
    """The unit of a delay level has the due time in the place of the tags code."""
    with mqstore.open(tmp_path / "a", "create", options=SMALL) as store:
        store.append("t", b"x", delay_level=18, tags="T")
        store.append("t", b"y", delay_level=18, tags="U")
    for plan in ("log", "queues"):
        request: dict[str, Any] = {"topics": [LEVELS], "filter": "T", "plan": plan}
        found = [len(rows) for rows in _native.scan_open(str(tmp_path / "a"), request)]
        assert found == [1], plan


@pytest.mark.parametrize("way", WAYS)
def test_a_topic_with_batch_queues_keeps_them(tmp_path: Path, way: Way) -> None:
    with mqstore.open(tmp_path / "a", "create", options=SMALL) as store:
        store.create_topic("b", 2, attributes={"queue.type": "BatchCQ", "cleanup.policy": "DELETE"})
        store.append_many("b", [mqstore.Message(b"1", keys="k"), b"2", b"3"], queue_id=1)
        store.append("b", b"4", queue_id=1)
        store.append("plain", b"5")
        store.append_many("b", [b"6", b"7"], queue_id=0)
    report = moved(tmp_path / "a", tmp_path / "c", way)
    assert (report.messages, report.reasons) == (4, {})

    def content(home: Path) -> list[Any]:
        with mqstore.open(home, "rw") as store:
            # A batch needs batch queues.
            store.append_many("b", [b"8", b"9"], queue_id=0)
            found = [message for queue_id in range(2) for message in store.read("b", queue_id)]
            assert [message.body for message in store.lookup("b", "k")] == [found[2].body]
            return [
                (it.queue_offset, it.properties.get("INNER_NUM"), [part.body for part in it.batch()] or it.body)
                for it in found
            ]

    assert content(tmp_path / "c") == content(tmp_path / "a")
    assert mqstore.verify(tmp_path / "c").ok
    if way in {"jsonl", "store"}:
        tables = [json.loads((tmp_path / home / "config" / "topics.json").read_text()) for home in ("a", "c")]
        source, target = (table["topicConfigTable"]["b"] for table in tables)
        assert target == source


@pytest.mark.parametrize(
    ("properties", "text"),
    [
        ({}, "INNER_NUM"),
        ({"INNER_NUM": "0"}, "INNER_NUM"),
        ({"INNER_NUM": "2"}, "not a batch of 2 messages"),
    ],
)
def test_a_row_that_is_no_batch_is_named(tmp_path: Path, properties: dict[str, str], text: str) -> None:
    file = tmp_path / "in.jsonl"
    row = {"topic": "b", "body_text": "x", "sys_flag": 0xC0, "properties": properties}
    file.write_text(json.dumps({"topic": "b", "body_text": "good"}) + "\n" + json.dumps(row) + "\n")
    with pytest.raises(mqstore.InvalidMessageError, match=text) as raised:
        mqstore.import_(tmp_path / "c", file)
    assert f"{file}, line 2" in str(raised.value)
    assert not (tmp_path / "c").exists()


def test_a_batch_for_plain_queues_is_refused_where_it_stands(tmp_path: Path) -> None:
    with mqstore.open(tmp_path / "a", "create", options=SMALL) as store:
        store.create_topic("b", 1, attributes={"queue.type": "BatchCQ"})
        store.append("b", b"1")
        store.append_many("b", [b"2", b"3"])
    file = tmp_path / "o.jsonl"
    mqstore.export(tmp_path / "a", file)
    with mqstore.open(tmp_path / "c", "create", options=SMALL) as store:
        store.create_topic("b", 1)
    with pytest.raises(mqstore.InvalidMessageError, match="the 1 messages before it are imported") as raised:
        mqstore.import_(tmp_path / "c", file)
    assert f"{file}, line 3" in str(raised.value)
    assert bodies(tmp_path / "c", "b") == [b"1"]


def test_a_message_that_is_late_for_its_second_waits_in_an_export(tmp_path: Path) -> None:
    """After a clock that went back, a message is due before the second that the timer has read last."""
    clock, home = testing.ManualClock(FAR), tmp_path / "s"
    with testing.open(home, clock=clock) as store:
        store.append("orders", b"done", delay=1)
        clock.advance(10)
        until(lambda: store.delays().delivered == 1)
    with testing.open(home, clock=clock) as store:
        clock.advance(-1000)
        store.append("orders", b"waits", delay=100)
        assert store.delays().pending == 1
        with mqstore.open(home, "r") as reader:
            assert reader.delays().pending == 1
        report = mqstore.export(home, tmp_path / "m.jsonl")
        assert report.messages == 2
