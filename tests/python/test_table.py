"""A topic as a mapping is always equal to a dictionary, during appends, deletes and compactions."""

from __future__ import annotations

import os
import pickle
import random
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import mqstore
import mqstore.aio
from conftest import SMALL
from loops import in_loop

TABLE = {"cleanup.policy": "COMPACTION"}


@pytest.fixture
def store(home: Path) -> Iterator[mqstore.Store]:
    """An open store with an empty table of three queues."""
    with mqstore.open(home, "create", options=SMALL) as opened:
        opened.create_topic("prices", queues=3, attributes=TABLE)
        yield opened


def bodies(table: mqstore.Table) -> dict[str, bytes]:
    return {key: message.body for key, message in table.items()}


@pytest.mark.slow
@pytest.mark.parametrize("kept", ["memory", "disk"])
@pytest.mark.parametrize("retention", [0, 1000.0])
def test_it_equals_a_dictionary(store: mqstore.Store, kept: str, retention: float) -> None:
    chance = random.Random(7)
    expected: dict[str, bytes] = {}
    early = store.table("prices", bodies=kept)  # type: ignore[arg-type]
    with mqstore.open(store.path) as reader:
        beside = reader.table("prices")
        for number in range(600):
            key = f"k{chance.randrange(40)} of 40"
            body = b"" if chance.random() < 0.3 else str(number).encode()
            store.append("prices", body, properties={}, keys=key.split())
            expected.pop(key, None)
            if body:
                expected[key] = body
            if chance.random() < 0.1:
                # Some tables have read everything by now, others have not.
                store.compact(tombstone_retention=retention)
            if chance.random() < 0.1:
                assert bodies(early) == expected
            if chance.random() < 0.02:
                assert bodies(beside) == expected
        assert bodies(early) == bodies(beside) == bodies(store.table("prices")) == expected
    assert len(early) == len(expected)
    assert sorted(early) == sorted(expected)


def test_queues_that_come_later_are_seen(store: mqstore.Store) -> None:
    own = store.table("prices")
    with mqstore.open(store.path) as reader:
        beside = reader.table("prices")
        assert len(own) == len(beside) == 0
        store.create_topic("prices", queues=8)
        store.append("prices", b"1.2", keys="tea", queue_id=7)
        store.flush()
        assert bodies(own) == bodies(beside) == {"tea": b"1.2"}


def test_it_is_a_mapping(store: mqstore.Store) -> None:
    table = store.table("prices")
    assert (len(table), table.get("tea"), "tea" in table, 3 in table) == (0, None, False, False)
    place = store.append("prices", b"1.2", keys="tea")
    assert table["tea"].queue_offset == place.queue_offset
    assert table.topic == "prices"
    assert table.offset(place.queue_id) == 1
    with pytest.raises(KeyError):
        table["coffee"]
    with pytest.raises(TypeError, match="pickle"):
        pickle.dumps(table)
    assert "prices" in repr(table)
    assert table != store.table("prices")
    with pytest.raises(mqstore.TopicNotFoundError):
        store.table("nobody")
    with pytest.raises(ValueError, match="bodies"):
        store.table("prices", bodies="nowhere")  # type: ignore[arg-type]
    store.append("prices", b"no key", queue_id=0)
    assert list(table) == ["tea"]


def test_keys_are_set_and_deleted(store: mqstore.Store) -> None:
    table, other = store.table("prices"), store.table("prices", bodies="disk")
    table["tea"] = b"1.2"
    table["green tea"] = bytearray(b"3.4")
    assert bodies(table) == bodies(other) == {"tea": b"1.2", "green tea": b"3.4"}
    assert other["green tea"].keys == ("green", "tea")
    other["tea"] = b"1.3"
    place = table.set("tea", memoryview(b"1.4"), durable=True)
    assert (place.durable, table["tea"].message_id) == (True, place.message_id)
    del other["green tea"]
    gone = table.delete("tea")
    (tombstone,) = store.messages_at("prices", gone.queue_id, [gone.queue_offset])
    assert tombstone is not None
    assert (tombstone.keys, tombstone.body) == (("tea",), b"")
    assert bodies(table) == bodies(other) == bodies(store.table("prices")) == {}
    for missing in ("tea", "coffee"):
        with pytest.raises(KeyError, match=missing):
            del table[missing]
    # The same after a compaction, which removes the messages and in the end the tombstones.
    table["tea"] = b"1.5"
    store.compact(tombstone_retention=0)
    assert bodies(store.table("prices")) == {"tea": b"1.5"}


def test_what_cannot_be_set(store: mqstore.Store) -> None:
    table = store.table("prices")
    table["tea"] = b"1.2"
    with pytest.raises(mqstore.InvalidMessageError, match=r"use del table\[key\]"):
        table["tea"] = b""
    with pytest.raises(TypeError, match="encode"):
        table["tea"] = "1.3"  # type: ignore[assignment]
    with pytest.raises(TypeError, match="bytes-like"):
        table["tea"] = table["tea"]  # type: ignore[assignment]
    with pytest.raises(TypeError, match="must be a str, not int"):
        table[5] = b"x"  # type: ignore[index]
    for key in ("", " ", "a  b", "a\x01"):
        with pytest.raises(mqstore.InvalidMessageError):
            table[key] = b"x"
    assert bodies(table) == {"tea": b"1.2"}
    with mqstore.open(store.path) as reader:
        beside = reader.table("prices")
        with pytest.raises(mqstore.StoreReadOnlyError):
            beside["tea"] = b"1.3"
        with pytest.raises(mqstore.StoreReadOnlyError):
            del beside["tea"]


def test_a_key_stays_in_its_queue(store: mqstore.Store) -> None:
    # Without the attribute, appends take the queues in turn.
    store.create_topic("log", queues=3)
    table = store.table("log")
    for number in range(9):
        for key in ("a", "b"):
            table[key] = str(number).encode()
    assert len({message.queue_id for message in store.lookup("log", "a")}) == 1
    del table["a"]
    assert bodies(store.table("log")) == {"b": b"8"}
    # Threads that set keys of one table do not lose any.
    threads = [
        threading.Thread(target=lambda first: [table.set(f"k{n}", b"x") for n in range(first, first + 50)], args=(n,))
        for n in (0, 25, 50)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(table) == 101


@in_loop
async def test_keys_are_set_and_deleted_in_a_loop(home: Path) -> None:
    async with mqstore.aio.open(home, "create", options=SMALL) as store:
        await store.create_topic("prices", queues=3, attributes=TABLE)
        table = await store.table("prices")
        place = await table.set("tea", b"1.2", durable=True)
        assert (await table["tea"]).queue_offset == place.queue_offset
        await table.delete("tea")
        assert await table.count() == 0
        with pytest.raises(KeyError):
            await table.delete("tea")


def test_new_queues_are_found(store: mqstore.Store) -> None:
    table = store.table("prices")
    store.create_topic("prices", queues=6)
    store.append("prices", b"x", keys="late", queue_id=5)
    assert table["late"].queue_id == 5
    # A key in two queues: the message stored last counts.
    store.append("prices", b"y", keys="late", queue_id=1)
    assert table["late"].body == b"y"


def test_new_queues_are_found_whatever_the_times_of_files(store: mqstore.Store) -> None:
    watched = [Path(store.path, *names) for names in (("config", "topics.json"), ("consumequeue", "prices"))]
    store.append("prices", b"x", keys="early", queue_id=0)
    assert store.wait("prices", 0, 0, 30)
    with mqstore.open(store.path) as reader:
        tables = [store.table("prices"), reader.table("prices")]
        changes = [table.changes(timeout=30) for table in tables]
        assert [len(table) for table in tables] == [1, 1]
        before = [(path, path.stat().st_mtime_ns) for path in watched if path.exists()]
        assert before
        store.create_topic("prices", queues=8)
        for queue_id in (7, 5):
            store.append("prices", str(queue_id).encode(), keys=f"late-{queue_id}", queue_id=queue_id)
            assert store.wait("prices", queue_id, 0, 30)
            assert Path(store.path, "consumequeue", "prices", str(queue_id)).is_dir()
            # As if all of it happened within one tick of the file system's clock.
            for path, time_ns in before:
                os.utime(path, ns=(time_ns, time_ns))
            for table, seen in zip(tables, changes, strict=True):
                assert table[f"late-{queue_id}"].queue_id == queue_id
                assert next(seen).key == f"late-{queue_id}"
        assert [len(table) for table in tables] == [3, 3]


def test_waiting(store: mqstore.Store) -> None:
    table = store.table("prices")
    assert not table.wait_until(0, queue_id=1, timeout=0.01)
    timer = threading.Timer(0.05, lambda: store.append("prices", b"x", keys="k", queue_id=1))
    timer.start()
    assert table.wait_until(0, queue_id=1, timeout=30)
    assert table["k"].body == b"x"
    timer.join()


def test_changes_come_as_they_happen(store: mqstore.Store) -> None:
    store.append("prices", b"before", keys="a", queue_id=0)
    table = store.table("prices")
    changes = table.changes(timeout=30)
    store.append("prices", b"1", keys="a", queue_id=0)
    store.append("prices", b"", keys="a", queue_id=0)
    store.append("prices", b"passed over", queue_id=0)
    first, second = next(changes), next(changes)
    assert (first.key, first.message and first.message.body, first.queue_offset) == ("a", b"1", 1)
    assert (second.key, second.message, second.queue_id) == ("a", None, 0)
    timer = threading.Timer(0.05, lambda: store.append("prices", b"2", keys="b", queue_id=2))
    timer.start()
    third = next(changes)
    assert (third.key, third.queue_id) == ("b", 2)
    timer.join()
    assert list(table.changes(timeout=0.01)) == []
    # Messages that a compaction removed at the end of a queue are not waited for.
    store.append("prices", b"", keys="b", queue_id=2)
    store.compact(tombstone_retention=0)
    assert list(store.table("prices").changes(timeout=0.01)) == []


def test_it_ends_with_its_store(home: Path) -> None:
    with mqstore.open(home, "create", options=SMALL) as store:
        store.create_topic("prices", attributes=TABLE)
        table = store.table("prices")
        changes = table.changes()
    with pytest.raises(mqstore.StoreClosedError):
        len(table)
    with pytest.raises(mqstore.StoreClosedError):
        next(changes)


def test_any_topic_can_be_one(store: mqstore.Store) -> None:
    for number in range(20):
        store.append("plain", str(number).encode(), keys=f"k{number % 3}")
    assert bodies(store.table("plain")) == {"k0": b"18", "k1": b"19", "k2": b"17"}


def test_consumer_offsets_in_a_table(store: mqstore.Store) -> None:
    """The recipe of docs/compaction.md."""
    store.create_topic("offsets", attributes=TABLE)
    for number in range(10):
        store.append("orders", str(number).encode())

    def work(most: int) -> list[bytes]:
        offsets = store.table("offsets")
        done = offsets["reports/orders/0"].text() if "reports/orders/0" in offsets else "0"
        found = []
        for message in store.read("orders", 0, int(done)):
            found.append(message.body)
            store.append("offsets", str(message.queue_offset + 1).encode(), keys="reports/orders/0")
            if len(found) == most:
                break
        return found

    assert work(4) == [b"0", b"1", b"2", b"3"]
    store.compact("offsets")
    assert work(100) == [b"4", b"5", b"6", b"7", b"8", b"9"]
    assert work(100) == []
