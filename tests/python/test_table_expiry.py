"""`expire_after`: values of a table expire by their store time, in every process, and compactions remove them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

import mqstore
import mqstore.aio
import mqstore.testing
from conftest import Cli
from loops import in_loop
from mqstore._read.table import Bodies
from mqstore.testing import ManualClock

TABLE = {"cleanup.policy": "COMPACTION"}
DAY = timedelta(days=1)


@pytest.fixture
def clock() -> ManualClock:
    """The clock of the stores of a test."""
    return ManualClock()


@pytest.fixture
def store(home: Path, clock: ManualClock) -> Iterator[mqstore.Store]:
    """An open store with a table of two queues whose values expire after seven days."""
    with mqstore.testing.open(home, "create", clock=clock) as opened:
        opened.create_topic("sessions", queues=2, attributes=TABLE, expire_after="7d")
        yield opened


def bodies(table: mqstore.Table) -> dict[str, bytes]:
    """The content of a table; all ways to ask for it agree."""
    found = {key: message.body for key, message in table.items()}
    assert set(table) == set(found) == {key for key in ("a", "b", "c") if key in table}
    assert len(table) == len(found)
    for key in ("a", "b", "c"):
        message = table.get(key)
        assert (message.body if message else None) == found.get(key)
    return found


@pytest.mark.parametrize("kept", ["memory", "disk"])
def test_a_value_is_absent_after_its_time(store: mqstore.Store, clock: ManualClock, kept: Bodies) -> None:
    table = store.table("sessions", bodies=kept)
    with mqstore.testing.open(store.path, "r", clock=clock) as reader:
        other = reader.table("sessions", bodies=kept)
        assert table.expire_after == other.expire_after == 7 * DAY
        table["a"] = b"1"
        clock.advance(DAY)
        table["b"] = b"2"
        table["a"] = b"3"
        clock.advance(6 * DAY)
        # The first value of `a` is seven days old, and was replaced.
        assert bodies(table) == bodies(other) == {"a": b"3", "b": b"2"}
        clock.advance(DAY - timedelta(milliseconds=1))
        assert len(table) == len(other) == 2
        table["c"] = b"4"
        clock.advance(timedelta(milliseconds=1))
        # No older value takes its place, also not in a table that is loaded now.
        assert bodies(table) == bodies(other) == bodies(store.table("sessions", bodies=kept)) == {"c": b"4"}
        with pytest.raises(KeyError):
            table["a"]
        with pytest.raises(KeyError):
            del table["a"]
        table["a"] = b"5"
        assert bodies(table) == bodies(other) == {"a": b"5", "c": b"4"}
        # The log is unchanged.
        assert [message.body for message in store.lookup("sessions", "a")] == [b"1", b"3", b"5"]


def test_a_compaction_removes_expired_values(store: mqstore.Store, clock: ManualClock) -> None:
    table = store.table("sessions")
    for key in ("a", "b"):
        table[key] = b"old"
    clock.advance(7 * DAY)
    table["c"] = b"new"
    report = store.compact(dry_run=True)
    assert (report.messages_before, report.messages_after, report.expired) == (3, 1, 2)
    assert store.count("sessions") == 3
    assert store.compact().expired == 2
    assert [message.body for message in store.read("sessions")] == [b"new"]
    assert bodies(table) == bodies(store.table("sessions")) == {"c": b"new"}
    # Values that a compaction has kept expire later, without new messages.
    clock.advance(7 * DAY)
    assert (store.compact().messages_after, store.count("sessions")) == (0, 0)
    assert all(reason.endswith("unchanged") for reason in store.compact().skipped)


def test_the_setting_is_durable_and_seen_by_every_process(home: Path, clock: ManualClock) -> None:
    with mqstore.testing.open(home, "create", clock=clock) as store:
        store.create_topic("sessions", attributes=TABLE)
        table = store.table("sessions")
        assert table.expire_after is None
        table["a"] = b"1"
        with mqstore.testing.open(home, "r", clock=clock) as reader:
            other = reader.table("sessions")
            clock.advance(3600)
            assert list(other) == ["a"]
            # Another table of the store sets it.
            assert store.table("sessions", expire_after="1h").expire_after == timedelta(hours=1)
            assert list(table) == list(other) == []
            assert table.expire_after == other.expire_after == timedelta(hours=1)
            # An expired value is valid again if the time is longer, or without a limit.
            table.expire_after = timedelta(hours=2)
            assert bodies(table) == bodies(other) == {"a": b"1"}
            clock.advance(3600)
            assert bodies(table) == bodies(other) == {}
            table.expire_after = None
            assert bodies(table) == bodies(other) == {"a": b"1"}
            table.expire_after = 0.25
            with pytest.raises(mqstore.StoreReadOnlyError):
                other.expire_after = 60
            with pytest.raises(mqstore.StoreReadOnlyError):
                reader.table("sessions", expire_after=60)
            # A program that opens the table with the same value works in a reader.
            assert list(reader.table("sessions", expire_after="250ms")) == []
        store.snapshot(home.with_name("copy"))
    for path in (home, home.with_name("copy")):
        with mqstore.testing.open(path, "r", clock=clock) as reader:
            assert reader.table("sessions").expire_after == timedelta(milliseconds=250)
    with mqstore.testing.open(home, "rw", clock=clock) as store:
        assert list(store.table("sessions")) == []


def test_a_clock_that_is_set_back(store: mqstore.Store, clock: ManualClock) -> None:
    in_memory, on_disk = store.table("sessions"), store.table("sessions", bodies="disk")
    in_memory["a"] = b"1"
    clock.advance(7 * DAY)
    assert bodies(in_memory) == bodies(on_disk) == {}
    clock.advance(-DAY)
    assert bodies(in_memory) == bodies(on_disk) == {"a": b"1"}
    # The age of a value is that of its store time, whatever the order of the times.
    in_memory["b"] = b"2"
    clock.advance(DAY)
    assert bodies(in_memory) == bodies(on_disk) == {"b": b"2"}
    # A compaction is final.
    store.compact()
    clock.advance(-DAY)
    assert bodies(in_memory) == bodies(on_disk) == bodies(store.table("sessions")) == {"b": b"2"}


def test_a_value_that_is_gone_from_the_disk_does_not_block_a_get(home: Path, clock: ManualClock) -> None:
    with mqstore.testing.open(home, "create", clock=clock, retention_bytes=64 << 10) as store:
        store.create_topic("sessions", attributes=TABLE, expire_after="7d")
        table = store.table("sessions", bodies="disk")
        table["a"] = b"1"
        assert "a" in table
        # A compaction removes the value, a retention the record, and then the clock says that it is valid.
        clock.advance(7 * DAY)
        store.compact()
        store.append_many("other", [bytes(10_000)] * 20)
        assert store.expire().segments > 0
        clock.advance(-DAY)
        with pytest.raises(KeyError):
            table["a"]
        assert bodies(table) == {}


def test_changes_show_no_expired_value(store: mqstore.Store, clock: ManualClock) -> None:
    table = store.table("sessions")
    changes = table.changes(timeout=0)
    place = table.set("a", b"1")
    clock.advance(DAY)
    table.set("a", b"2")
    clock.advance(6 * DAY)
    found = [(change.key, change.message and change.message.body, change.queue_offset) for change in changes]
    assert found == [("a", None, place.queue_offset), ("a", b"2", place.queue_offset + 1)]
    # An expiry is no change.
    clock.advance(7 * DAY)
    assert list(table.changes(timeout=0)) == []


def test_what_is_no_time(store: mqstore.Store) -> None:
    table = store.table("sessions")
    for wrong in (0, -1, 0.0001, float("inf"), float("nan"), "soon"):
        with pytest.raises(mqstore.InvalidOptionError, match="expire_after"):
            table.expire_after = wrong
    for kind in (True, [7]):
        with pytest.raises(TypeError, match="expire_after"):
            table.expire_after = kind  # type: ignore[assignment]
    for wrong in (-1, 1e-9, "soon"):
        with pytest.raises(mqstore.InvalidOptionError, match="expire_after"):
            store.update_topic("sessions", expire_after=wrong)
        with pytest.raises(mqstore.InvalidOptionError, match="expire_after"):
            store.create_topic("new", expire_after=wrong)
    with pytest.raises(mqstore.InvalidOptionError, match="expire_after"):
        store.create_topic("new", attributes={"mqstore.expire.after.ms": "-5"})
    with pytest.raises(mqstore.TopicNotFoundError):
        store.table("nobody", expire_after=60)
    assert (table.expire_after, store.topics()) == (7 * DAY, ["sessions"])
    # Sub-second times are kept to the millisecond.
    store.update_topic("sessions", expire_after=10_000_000.123)
    assert table.expire_after == timedelta(seconds=10_000_000, milliseconds=123)
    store.update_topic("sessions", expire_after=0)
    assert table.expire_after is None


def test_any_topic_can_be_a_table_with_an_expiry(store: mqstore.Store, clock: ManualClock) -> None:
    store.append("plain", b"1", keys="a")
    table = store.table("plain", expire_after=DAY)
    assert bodies(table) == {"a": b"1"}
    clock.advance(DAY)
    assert bodies(table) == {}
    assert store.count("plain") == 1


def test_an_export_keeps_the_setting(store: mqstore.Store, home: Path) -> None:
    store.table("sessions")["a"] = b"1"
    file = home.with_name("all.jsonl")
    store.flush()
    mqstore.export(store.path, file)
    mqstore.import_(home.with_name("new"), file)
    with mqstore.open(home.with_name("new")) as other:
        assert other.table("sessions").expire_after == 7 * DAY


@in_loop
async def test_a_table_expires_in_a_loop(home: Path) -> None:
    clock = ManualClock()
    with mqstore.testing.open(home, "create", clock=clock) as made:
        store = mqstore.aio.wrap(made)
        await store.create_topic("sessions", attributes=TABLE)
        table = await store.table("sessions", expire_after="1h")
        assert await table.expire_after() == timedelta(hours=1)
        await table.set("a", b"1")
        clock.advance("1h")
        assert (await table.keys(), await table.get("a")) == ([], None)
        await table.set_expire_after(None)
        assert (await table.expire_after(), await table.keys()) == (None, ["a"])


@pytest.mark.slow
def test_the_command_line_shows_and_sets_it(home: Path, cli: Cli) -> None:
    made = cli("topic", "create", home, "sessions", "--create", "--expire-after", "7d", "--format", "json")
    assert json.loads(made.stdout)["expire_after_seconds"] == 604_800
    shown = cli("topics", home)
    assert "expire after" in shown.stdout
    assert "7 d 0 h" in shown.stdout
    changed = cli("topic", "alter", home, "sessions", "--expire-after", "90s")
    assert "1 min 30 s" in changed.stdout
    with mqstore.open(home) as store:
        assert store.table("sessions").expire_after == timedelta(seconds=90)
    assert cli("topic", "alter", home, "sessions", "--expire-after", "0").returncode == 0
    assert "expire after" not in cli("topics", home).stdout
    refused = cli("topic", "alter", home, "sessions", "--expire-after", "soon")
    assert refused.returncode == 2
    assert "--expire-after" in refused.stderr
