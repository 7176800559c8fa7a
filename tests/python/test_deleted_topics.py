"""A deleted topic: its messages are in no answer, and a new topic of the same name continues at its floor."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import mqstore
from conftest import SMALL, until
from mqstore import testing
from mqstore.errors import CorruptionError, RefusedError, TopicNotFoundError

if TYPE_CHECKING:
    from conftest import Cli

UNITS = SMALL.queue_file_entries
TABLE = {"cleanup.policy": "COMPACTION"}
BATCHES = {"queue.type": "BatchCQ"}
WHEEL = "rmq_sys_wheel_timer"


def fill(store: mqstore.Store, topic: str = "orders", count: int = 5) -> list[mqstore.AppendResult]:
    """Appends `count` messages to queue 0 and two to queue 2 of a new topic."""
    store.create_topic(topic, queues=3)
    appended = [store.append(topic, b"old %d" % number, keys="k", queue_id=0) for number in range(count)]
    return appended + [store.append(topic, b"old in 2", keys="k", queue_id=2) for _ in range(2)]


def recreate(store: mqstore.Store, topic: str = "orders") -> None:
    store.delete_topic(topic)
    store.create_topic(topic, queues=3)


def bounds(store: mqstore.Store, topic: str = "orders") -> list[tuple[int, int]]:
    return [(queue.min_offset, queue.max_offset) for queue in store.queues(topic)]


def seen(store: mqstore.Store, topic: str = "orders", key: str = "k") -> dict[str, list[bytes]]:
    """The bodies in every kind of answer about one topic."""
    queues = store.queues(topic) if topic in store.topics() else []
    return {
        "read": [message.body for queue in queues for message in store.read(topic, queue.queue_id)],
        "lookup": [message.body for message in (store.lookup(topic, key) if queues else ())],
        "log": [message.body for message in store._scan_log() if message.topic == topic],
    }


ONLY_NEW = {"read": [b"new"], "lookup": [b"new"], "log": [b"new"]}
NOTHING: dict[str, list[bytes]] = {"read": [], "lookup": [], "log": []}


def files(home: Path, topic: str = "orders", queue_id: int = 0) -> list[str]:
    folder = home / "consumequeue" / topic / str(queue_id)
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


def test_a_new_topic_has_no_old_messages(store: mqstore.Store, home: Path) -> None:
    old = fill(store)
    store.append("other", b"stays", keys="k")
    recreate(store)
    assert bounds(store) == [(UNITS, UNITS), (0, 0), (UNITS, UNITS)]
    assert (seen(store), files(home)) == (NOTHING, [])
    assert store.get(old[0].message_id) is None
    assert store.get(old[0].unique_id) is None
    with pytest.raises(CorruptionError, match="deleted"):
        store.get_at(old[0].commit_log_offset)
    assert store.append("orders", b"new", keys="k", queue_id=0).queue_offset == UNITS
    assert seen(store) == ONLY_NEW
    assert seen(store, "other")["read"] == [b"stays"]
    store.flush()
    assert files(home) == [f"{UNITS * 20:020}"]


def test_the_floor_survives_reopens_rebuilds_and_a_check(store: mqstore.Store, home: Path) -> None:
    fill(store, count=UNITS + 6)
    recreate(store)
    store.append("orders", b"new", keys="k", queue_id=0)
    assert bounds(store)[0] == (2 * UNITS, 2 * UNITS + 1)
    store.rebuild()
    assert seen(store) == ONLY_NEW
    store.close()
    with mqstore.open(home, "r") as reader:
        assert seen(reader) == ONLY_NEW
        assert bounds(reader)[2] == (UNITS, UNITS)
    assert mqstore.verify(home).ok, mqstore.verify(home)
    mqstore.rebuild(home, options=SMALL)
    assert mqstore.verify(home).ok, mqstore.verify(home)
    shutil.rmtree(home / "consumequeue")
    shutil.rmtree(home / "index")
    with pytest.warns(mqstore.StoreWarning, match="derived from the log"), mqstore.open(home, "r") as reader:
        assert seen(reader) == ONLY_NEW
    with pytest.warns(mqstore.StoreWarning, match="rebuilt"), mqstore.open(home, "rw", options=SMALL) as again:
        assert (seen(again), bounds(again)[0]) == (ONLY_NEW, (2 * UNITS, 2 * UNITS + 1))
        assert bounds(again)[2] == (UNITS, UNITS)
        assert again.append("orders", b"newer", queue_id=2).queue_offset == UNITS
    assert mqstore.verify(home).ok, mqstore.verify(home)


def test_a_topic_that_is_only_deleted_stays_hidden(store: mqstore.Store, home: Path) -> None:
    fill(store)
    store.append("other", b"stays")
    store.delete_topic("orders")
    assert (store.topics(), seen(store)) == (["other"], NOTHING)
    store.close()
    for mode in ("r", "rw", "rw"):
        with mqstore.open(home, mode, options=SMALL) as again:
            assert (again.topics(), seen(again)) == (["other"], NOTHING)
    assert not mqstore.repair(home, dry_run=True).changed


def test_a_second_deletion_and_a_snapshot(store: mqstore.Store, home: Path, tmp_path: Path) -> None:
    fill(store)
    recreate(store)
    recreate(store)
    assert bounds(store) == [(UNITS, UNITS), (0, 0), (UNITS, UNITS)]
    store.append("orders", b"old", keys="k", queue_id=0)
    recreate(store)
    store.append("orders", b"new", keys="k", queue_id=0)
    assert bounds(store)[0] == (2 * UNITS, 2 * UNITS + 1)
    store.snapshot(tmp_path / "copy")
    with mqstore.open(tmp_path / "copy", "rw", options=SMALL) as copy:
        assert (seen(copy), bounds(copy)[0]) == (ONLY_NEW, (2 * UNITS, 2 * UNITS + 1))


def test_an_open_finishes_the_removal_of_queue_files(store: mqstore.Store, home: Path, tmp_path: Path) -> None:
    fill(store, count=UNITS + 6)
    store.flush()
    shutil.copytree(home / "consumequeue/orders", tmp_path / "kept")
    recreate(store)
    store.close()
    shutil.copytree(tmp_path / "kept", home / "consumequeue/orders", dirs_exist_ok=True)
    with mqstore.open(home, "r") as reader:
        assert (seen(reader), bounds(reader)[0]) == (NOTHING, (2 * UNITS, 2 * UNITS))
    with mqstore.open(home, "rw", options=SMALL) as again:
        assert (seen(again), files(home)) == (NOTHING, [])
        again.append("orders", b"new", keys="k", queue_id=0)
        assert seen(again) == ONLY_NEW
    assert mqstore.verify(home).ok


def test_a_reader_in_the_same_directory_follows(store: mqstore.Store, home: Path) -> None:
    fill(store)
    with mqstore.open(home, "r") as reader:
        assert len(seen(reader)["read"]) == 7
        store.delete_topic("orders")
        assert (reader.topics(), seen(reader)) == ([], NOTHING)
        with pytest.raises(TopicNotFoundError):
            reader.read("orders", 0)
        store.create_topic("orders", queues=3)
        assert (bounds(reader)[0], seen(reader)) == ((UNITS, UNITS), NOTHING)
        store.append("orders", b"new", keys="k", queue_id=0)
        assert (seen(reader), bounds(reader)[0]) == (ONLY_NEW, (UNITS, UNITS + 1))
        recreate(store)
        assert seen(reader) == NOTHING
        store.delete_topic("orders")
        store.close()
        assert (reader.topics(), seen(reader)) == ([], NOTHING)


def test_a_group_begins_with_the_new_messages(store: mqstore.Store) -> None:
    fill(store)
    with store.consumer("g", "orders") as consumer:
        assert len(consumer.poll(100, timeout=5)) == 7
        consumer.commit()
        recreate(store)
        store.append("orders", b"new", queue_id=0)
        assert [message.body for message in consumer.poll(10, timeout=5)] == [b"new"]
    with store.consumer("late", "orders") as consumer:
        assert [message.body for message in consumer.poll(10, timeout=5)] == [b"new"]


def test_a_work_queue_of_the_new_topic_ignores_the_old_handle(store: mqstore.Store) -> None:
    store.create_topic("jobs")
    old = store.work_queue("jobs", "g")
    for _ in range(3):
        old.put(b"old")
    leased = old.get(timeout=5)
    recreate(store, "jobs")
    new = store.work_queue("jobs", "g")
    assert new.qsize() == 0
    new.put(b"new")
    assert new.get(timeout=5).body == b"new"
    with pytest.raises(RefusedError):
        old.ack(leased)
    old.put(b"by the old handle")
    assert new.get(timeout=5).body == b"by the old handle"


def test_a_deleted_light_queue_exists_again_with_its_next_message(store: mqstore.Store, home: Path) -> None:
    light = "%LMQ%one"
    for _ in range(3):
        store.append("orders", b"old", light_queues="one", queue_id=0)
    store.delete_topic(light)
    assert store.topics() == ["orders"]
    store.append("orders", b"new", light_queues="one", queue_id=0)
    store.close()
    with mqstore.open(home, "r") as reader:
        assert reader.topics() == [light, "orders"]
        assert [(message.queue_offset, message.body) for message in reader.read(light)] == [(UNITS, b"new")]
        assert len(list(reader.read("orders"))) == 4
    assert mqstore.verify(home).ok, mqstore.verify(home)


LIGHT = "%LMQ%one"


def fill_light_queue(store: mqstore.Store, count: int = 6) -> list[mqstore.AppendResult]:
    """Appends messages to two topics in turn, each also to a light queue."""
    topics = [("orders", "other")[number % 2] for number in range(count)]
    return [
        store.append(topic, b"%d" % number, keys="k", light_queues="one", queue_id=0)
        for number, topic in enumerate(topics)
    ]


def in_light_queue(store: mqstore.Store) -> dict[str, list[bytes]]:
    """The bodies in every kind of answer about the light queue."""
    reads = {"read": store.read(LIGHT), "queue": store.read(LIGHT, 0), "tail": store.tail(LIGHT, 100)}
    found = {name: [message.body for message in messages] for name, messages in reads.items()}
    for plan in ("log", "queues"):
        scan = store.scan(topics=LIGHT, columns=["body"])._narrowed(plan=plan)
        found[f"scan of {plan}"] = scan.to_arrow()["body"].to_pylist()
    single = store.messages_at(LIGHT, 0, range(*bounds(store, LIGHT)[0]))
    found["single"] = [message.body for message in single if message is not None]
    assert store.count(LIGHT) == len(found["read"])
    return found


@pytest.mark.parametrize("by_retention", [False, True], ids=["deletion", "retention"])
def test_hidden_messages_are_in_no_light_queue(
    store: mqstore.Store, home: Path, tmp_path: Path, cli: Cli, by_retention: bool
) -> None:
    placed = fill_light_queue(store)
    if by_retention:
        store.set_retention("orders", max_messages=1)
        store.expire()
        left = [b"1", b"3", b"4", b"5"]
    else:
        store.delete_topic("orders")
        left = [b"1", b"3", b"5"]
    only_left = dict.fromkeys(("read", "queue", "tail", "scan of log", "scan of queues", "single"), left)
    assert in_light_queue(store) == only_left
    assert store.queues(LIGHT)[0].min_store_timestamp == store.get_at(placed[1].commit_log_offset).store_timestamp
    with mqstore.open(home, "r") as reader:
        assert in_light_queue(reader) == only_left
    with store.consumer("g", LIGHT, start="earliest") as consumer:
        assert [message.body for message in consumer.poll(10, timeout=5)] == left
    work = store.work_queue(LIGHT, "w")
    assert [work.get(timeout=5).body for _ in left] == left
    assert work.get_many(5, timeout=0) == []
    store.snapshot(tmp_path / "copy")
    store.rebuild()
    assert in_light_queue(store) == only_left
    store.close()
    for place in (home, tmp_path / "copy"):
        assert mqstore.verify(place).ok, mqstore.verify(place)
    mqstore.rebuild(tmp_path / "copy", options=SMALL)
    assert mqstore.verify(tmp_path / "copy").ok
    shutil.rmtree(tmp_path / "copy/consumequeue")
    with pytest.warns(mqstore.StoreWarning), mqstore.open(tmp_path / "copy", "r") as reader:
        assert in_light_queue(reader) == only_left
    shown = cli("cat", tmp_path / "copy", "--topic", LIGHT)
    assert [json.loads(line)["queue_offset"] for line in shown.stdout.splitlines()] == [int(body) for body in left]


def test_a_delayed_message_of_a_deleted_topic_is_dropped(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    clock = testing.ManualClock()
    with testing.open(tmp_path / "s", clock=clock) as store:
        store.create_topic("gone")
        store.create_topic("kept")
        for topic in ("gone", "kept"):
            store.append(topic, b"later", delay=5)
            store.append(topic, b"by level", delay_level=1)
        store.delete_topic("gone")
        clock.advance(10)
        assert store.wait("kept", 0, 1, timeout=20)
        until(lambda: store.delays().dropped == 2)
        assert (store.topics().count("gone"), store.delays().delivered, store.delays().pending) == (0, 2, 0)
        assert "topic gone are dropped, because the topic was deleted" in caplog.text


@pytest.mark.parametrize("delay", [{"delay": 5}, {"delay_level": 1}], ids=["timer", "level"])
def test_a_dropped_delayed_message_does_not_return_after_a_kill(tmp_path: Path, delay: dict[str, Any]) -> None:
    """The clock stands still, so time does not save the state of delays. A copy of the files is what a kill leaves."""
    clock = testing.ManualClock()
    with testing.open(tmp_path / "s", clock=clock) as store:
        store.create_topic("gone")
        store.append("gone", b"later", **delay)
        store.create_topic("kept")
        store.append("kept", b"waits for long", delay=3600)
        store.delete_topic("gone")
        clock.advance(10)
        until(lambda: store.delays().dropped == 1)
        store.flush()
        shutil.copytree(tmp_path / "s", tmp_path / "killed")
        store.create_topic("gone")
        mqstore.export(tmp_path / "s", tmp_path / "m.jsonl")
    with testing.open(tmp_path / "killed", clock=clock) as store:
        assert (store.delays().pending, store.delays().dropped) == (1, 0)
        store.create_topic("gone")
        clock.advance(10)
        store.append("kept", b"soon", delay=1)
        clock.advance(2)
        until(lambda: store.delays().delivered == 1)
        assert list(store.read("gone")) == []
        assert store.delays().pending == 1
    assert mqstore.verify(tmp_path / "killed").ok
    mqstore.open(tmp_path / "new", "create", options=SMALL).close()
    mqstore.import_(tmp_path / "new", tmp_path / "m.jsonl")
    with mqstore.open(tmp_path / "new") as reader:
        # By the clock of the machine, each message that waited was due at the import.
        assert [message.body for message in reader.read("kept")] == [b"waits for long"]
        assert list(reader.read("gone")) == []


def test_a_transaction_does_not_recreate_a_deleted_topic(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with testing.open(tmp_path / "s") as store:
        store.create_topic("gone")
        store.create_topic("kept")
        with store.transaction("shop") as transaction:
            transaction.append("gone", b"1")
            transaction.append("kept", b"2")
            store.delete_topic("gone")
        assert "gone" not in store.topics()
        assert [message.body for message in store.read("kept")] == [b"2"]
        assert [result.topic for result in transaction.results] == ["kept"]
        assert store.pending_transactions() == []
        assert "1 of 2 messages" in caplog.text
    with testing.open(tmp_path / "s") as store:
        assert "gone" not in store.topics()
        assert len(list(store.read("kept"))) == 1


def killed(store: mqstore.Store, home: Path) -> Path:
    """A copy of the files of an open store, which is what a kill leaves."""
    store.flush()
    return Path(shutil.copytree(home, home.with_name("killed"), ignore=shutil.ignore_patterns("tmp")))


@pytest.mark.parametrize("delay", [{"delay": 5}, {"delay_level": 1}], ids=["timer", "level"])
def test_a_delayed_message_does_not_come_in_a_new_topic(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, delay: dict[str, Any]
) -> None:
    clock = testing.ManualClock()
    with testing.open(tmp_path / "s", clock=clock) as store:
        store.create_topic("again")
        old = store.append("again", b"old", **delay)
        recreate(store, "again")
        assert not store.cancel(old.message_id)
        store.append("again", b"new", **delay)
        copy = killed(store, tmp_path / "s")
        mqstore.export(tmp_path / "s", tmp_path / "m.jsonl")
    for place in (tmp_path / "s", copy):
        with testing.open(place, clock=clock) as store:
            clock.advance(10)
            until(lambda: store.delays().dropped == 1 and store.delays().delivered == 1)
            assert [message.body for message in store.read("again")] == [b"new"]
            assert store.delays().pending == 0
        clock.advance(-10)
    assert "topic again are dropped, because the topic was deleted" in caplog.text
    mqstore.open(tmp_path / "new", "create", options=SMALL).close()
    mqstore.import_(tmp_path / "new", tmp_path / "m.jsonl")
    with mqstore.open(tmp_path / "new") as reader:
        assert [message.body for message in reader.read("again")] == [b"new"]


def test_a_delayed_message_that_is_put_back_is_dropped(tmp_path: Path) -> None:
    """The delay is longer than the timer wheel, so that the message gets a new record in between."""
    clock = testing.ManualClock()
    with testing.open(tmp_path / "s", clock=clock) as store:
        store.create_topic("again")
        store.append("again", b"old", delay=3 * 24 * 3600)
        recreate(store, "again")
        for _ in range(80):
            clock.advance(3600)
            store.delays()
        until(lambda: store.delays().dropped == 1)
        assert list(store.read("again")) == []
        assert store.delays().pending == 0


def test_half_messages_do_not_come_in_a_new_topic(tmp_path: Path) -> None:
    with testing.open(tmp_path / "s") as store:
        store.create_topic("again")
        store.create_topic("kept")
        early, late = store.transaction("shop"), store.transaction("shop")
        for transaction in (early, late):
            transaction.append("again", b"old")
            transaction.append("kept", b"kept")
        recreate(store, "again")
        late.append("again", b"new")
        late.commit()
        assert [result.topic for result in late.results] == ["kept", "again"]
        copy = killed(store, tmp_path / "s")
    for place in (tmp_path / "s", copy):
        with testing.open(place) as store:
            store.check_transactions(lambda _: "commit", "shop", check_after=0, check_interval=1)
            until(lambda: store.pending_transactions() == [])
        with testing.open(place) as store:
            assert [message.body for message in store.read("again")] == [b"new"]
            assert [message.body for message in store.read("kept")] == [b"kept"] * 2
        assert mqstore.verify(place).ok


def test_jobs_do_not_come_in_a_new_topic(store: mqstore.Store, home: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Leased, returned and dead jobs."""
    store.create_topic("jobs")
    work = store.work_queue("jobs", "g", max_attempts=2)
    work.put(b"dies")
    for _ in range(2):
        work.get(timeout=5).nack(0)
    for body in (b"returned", b"leased", b"new"):
        work.put(body)
    work.get(timeout=5).nack(60)
    leased = work.get(timeout=5)
    assert len(list(store.read(work.dead_letters))) == 1
    recreate(store, "jobs")
    with pytest.raises(RefusedError):
        leased.nack(0)
    copy = killed(store, home)
    store.close()
    for place in (home, copy):
        with mqstore.open(place, "rw", options=SMALL) as again:
            work = again.work_queue("jobs", "g", max_attempts=2)
            assert work.redrive() == 0
            assert (work.qsize(), work.get_many(5, timeout=0)) == (0, [])
            assert len(list(again.read(work.dead_letters))) == 1
            work.put(b"new")
            for _ in range(2):
                work.get(timeout=5).nack(0)
            assert work.redrive() == 1
            assert work.get(timeout=5).body == b"new"
    assert caplog.text.count("dead letters of topic jobs are not redriven, because the topic was deleted") == 2


def test_a_deletion_takes_the_messages_that_a_broker_keeps_for_groups(store: mqstore.Store) -> None:
    """A broker moves messages that a group popped and did not acknowledge to a topic of its own."""
    for topic in ("jobs", "my_jobs"):
        store.create_topic(topic)
        store.append(topic, b"first")
        with store.consumer("g", topic) as consumer:
            assert len(consumer.poll(1, timeout=5)) == 1
            consumer.commit()
    names = ["%RETRY%g_jobs", "%RETRY%g_my_jobs", "%RETRY%other_jobs"]
    for name in names:
        store.append(name, b"popped")
    recreate(store, "jobs")
    assert [name for name in names if name in store.topics()] == names[1:]
    assert store.work_queue("jobs", "g").qsize() == 0


def test_system_topics_cannot_be_deleted(store: mqstore.Store) -> None:
    store.append("orders", b"later", delay=3600)
    assert WHEEL in store.topics()
    with pytest.raises(RefusedError, match="rmq_sys_wheel_timer"):
        store.delete_topic(WHEEL)
    assert WHEEL in store.topics()


@pytest.mark.parametrize("attributes", [TABLE, BATCHES])
def test_other_kinds_of_topics(store: mqstore.Store, home: Path, attributes: dict[str, str]) -> None:
    store.create_topic("orders", attributes=attributes)
    store.append_many("orders", [mqstore.Message(b"old %d" % number, keys="k") for number in range(9)], queue_id=0)
    if attributes is TABLE:
        store.compact("orders")
    store.delete_topic("orders")
    assert not list((home / "compaction").glob("*/orders"))
    store.create_topic("orders", attributes=attributes)
    assert seen(store) == NOTHING
    store.append("orders", b"new", keys="k", queue_id=0)
    assert (seen(store), bounds(store)) == (ONLY_NEW, [(UNITS, UNITS + 1)])
    if attributes is TABLE:
        store.compact("orders")
        assert seen(store)["read"] == [b"new"]
    store.close()
    assert mqstore.verify(home).ok, mqstore.verify(home)
    with mqstore.open(home, "rw", options=SMALL) as again:
        assert (seen(again), bounds(again)) == (ONLY_NEW, [(UNITS, UNITS + 1)])


def test_a_new_topic_can_have_queues_of_another_type(store: mqstore.Store, home: Path) -> None:
    fill(store)
    store.delete_topic("orders")
    store.create_topic("orders", attributes=BATCHES)
    store.append_many("orders", [b"a", b"b"], queue_id=0)
    assert bounds(store) == [(UNITS, UNITS + 2)]
    store.delete_topic("orders")
    store.create_topic("orders")
    assert store.append("orders", b"new", keys="k", queue_id=0).queue_offset == 2 * UNITS
    store.close()
    with mqstore.open(home, "rw", options=SMALL) as again:
        assert (seen(again), bounds(again)) == (ONLY_NEW, [(2 * UNITS, 2 * UNITS + 1)])
    assert mqstore.verify(home).ok, mqstore.verify(home)


def test_cat_leaves_the_deleted_messages_out(store: mqstore.Store, home: Path, cli: Cli) -> None:
    fill(store)
    recreate(store)
    store.append("orders", b"new", keys="k", queue_id=0)
    store.close()
    for arguments in (["cat", home], ["cat", "--log", home]):
        shown = cli(*arguments)
        assert shown.returncode == 0, shown.stderr
        assert [json.loads(line)["queue_offset"] for line in shown.stdout.splitlines()] == [UNITS]


def test_a_quota_counts_the_new_messages_only(store: mqstore.Store) -> None:
    store.create_topic("orders", max_messages=3)
    for _ in range(3):
        store.append("orders", b"old")
    store.delete_topic("orders")
    store.create_topic("orders", max_messages=3)
    for _ in range(3):
        store.append("orders", b"new")
    with pytest.raises(mqstore.QuotaFull):
        store.append("orders", b"too many")
