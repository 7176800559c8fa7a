"""`mqstore.testing`: clock, faults, assertions, damage, fixtures."""

from __future__ import annotations

import shutil
import sys
import threading
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from subprocess import run

import pytest

import mqstore
import mqstore.testing
from conftest import python
from mqstore.testing import Faults, ManualClock, assert_appended, assert_clean, damage, messages


def appended(home: Path, count: int = 20) -> list[mqstore.StoredMessage]:
    """The messages of a closed store."""
    with mqstore.testing.open(home) as store:
        for number in range(count):
            store.append("orders", b'{"order": %d}' % number, keys=[f"k{number}", "all"], tags="paid")
    return messages(home, "orders")


def kinds(home: Path) -> set[str]:
    return {problem.kind for problem in mqstore.verify(home).problems}


def test_public_names() -> None:
    for name in mqstore.testing.__all__:
        thing = getattr(mqstore.testing, name)
        assert name in ("SMALL", "damage") or thing.__module__ == "mqstore.testing", name
        assert thing.__doc__, name
    done = python("import sys, mqstore.testing\nassert 'pytest' not in sys.modules")
    assert done.returncode == 0, done.stderr


# The clock.


def test_a_store_goes_by_its_clock(home: Path) -> None:
    clock = ManualClock()
    assert clock.now == datetime(2024, 1, 1, tzinfo=UTC)
    with mqstore.testing.open(home, clock=clock, retention=timedelta(hours=1)) as store:
        first = store.append("orders", bytes(40_000))
        assert first.store_timestamp == clock.timestamp
        assert store.get_at(first.commit_log_offset).born_timestamp == clock.timestamp
        clock.advance(1.5)
        second = store.append("orders", bytes(40_000))
        assert second.store_timestamp - first.store_timestamp == 1500
        assert store.offset_for_time("orders", 0, clock.now) == 1
        assert store.expire(dry_run=False).segments == 0
        clock.advance(timedelta(hours=1))
        assert store.expire(dry_run=False).segments == 1
        assert store.queues("orders")[0].min_offset == 1
        # A timeout is real time, not time of the manual clock.
        assert not store.wait("orders", 0, 2, timeout=0.05)


def test_a_clock_is_set_shared_and_shown(home: Path) -> None:
    clock = ManualClock(datetime(2030, 5, 6, tzinfo=UTC))
    stores = [mqstore.testing.open(home.with_name(name), clock=clock) for name in "ab"]
    clock.set(86_400_000)
    assert [store.append("orders", b"").store_timestamp for store in stores] == [86_400_000] * 2
    assert (clock.time(), clock.timestamp) == (86_400.0, 86_400_000)
    assert repr(clock) == "<mqstore.testing.ManualClock 1970-01-02T00:00:00+00:00>"
    clock.advance(-1)
    assert clock.now == datetime(1970, 1, 1, 23, 59, 59, tzinfo=UTC)
    with pytest.raises(TypeError, match="seconds"):
        clock.advance(b"1")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="without a time zone"):
        ManualClock(datetime(2030, 5, 6))  # noqa: DTZ001
    for store in stores:
        store.close()


# Faults.


# The store prepares segments early, and warns if there is no free space.
NO_ROOM = pytest.mark.filterwarnings("ignore:.*cannot prepare the next part of the log:mqstore.StoreWarning")


@NO_ROOM
def test_a_full_disk(home: Path) -> None:
    faults = Faults()
    with mqstore.testing.open(home, faults=faults) as store:
        store.append("orders", bytes(30_000))
        assert store.wait("orders", 0, 0)
        faults.fill_disk()
        store.append("orders", bytes(20_000))
        with pytest.raises(mqstore.DiskFullError):
            for _ in range(5):
                store.append("orders", bytes(30_000))
        there = len(messages(store, "orders"))
        faults.clear()
        store.append("orders", bytes(30_000))
        assert len(messages(store, "orders")) == there + 1
    assert_clean(home)


@NO_ROOM
def test_a_disk_that_fills_up_later(home: Path) -> None:
    faults = Faults()
    with mqstore.testing.open(home, faults=faults) as store:
        store.append("orders", b"")
        # The disk fills after the queue file exists. A late dispatch could not create its file.
        assert len(messages(store, "orders")) == 1
        faults.fill_disk(after_bytes=3 * 64 << 10)
        with pytest.raises(mqstore.DiskFullError):
            for _ in range(100):
                store.append("orders", bytes(30_000))
        assert 4 <= len(messages(store, "orders")) <= 9
        faults.clear()


def test_a_sync_that_fails_stops_the_store(home: Path) -> None:
    faults = Faults()
    store = mqstore.testing.open(home, faults=faults, flush_interval=3600)
    kept = store.append("orders", b"kept", durable=True)
    assert kept.durable
    faults.fail_syncs(1)
    with pytest.raises(mqstore.StorePoisonedError):
        store.append("orders", b"lost?", durable=True)
    with pytest.raises(mqstore.StorePoisonedError):
        store.append("orders", b"no more")
    with pytest.raises(mqstore.StorePoisonedError):
        store.close()
    with mqstore.testing.open(home, faults=faults) as store:
        assert messages(store, "orders")[0].body == b"kept"
        store.append("orders", b"goes on", durable=True)


def test_slow_syncs(home: Path) -> None:
    faults = Faults()
    with mqstore.testing.open(home, faults=faults, flush_interval=3600) as store:
        store.append("orders", b"", durable=True)
        syncs = faults.syncs
        faults.slow_syncs(timedelta(milliseconds=200))
        began = time.monotonic()
        store.append("orders", b"", durable=True)
        assert time.monotonic() - began >= 0.2
        assert faults.syncs > syncs
        faults.clear()
    with pytest.raises(ValueError, match="3600"):
        faults.slow_syncs(4000)


def test_a_crash_after_any_write_leaves_what_was_acknowledged(home: Path) -> None:
    seen = set()
    for after in range(0, 60, 3):
        faults, where = Faults(), home.with_name(f"crash{after}")
        store = mqstore.testing.open(where, faults=faults)
        store.append("orders", b"0", durable=True)
        acknowledged = 0
        faults.crash(after_writes=after)
        try:
            for acknowledged in range(40):
                store.append("orders", b"%d" % (acknowledged + 1), durable=True)
        except mqstore.MQStoreError:
            pass
        assert faults.crashed
        store.close()
        with mqstore.testing.open(where, faults=faults) as store:
            assert not faults.crashed
            bodies = [message.body for message in messages(store, "orders")]
            assert bodies == [b"%d" % number for number in range(len(bodies))]
            assert acknowledged + 1 <= len(bodies) <= acknowledged + 2
            store.append("orders", b"goes on", durable=True)
        assert_clean(where)
        seen.add(len(bodies))
    assert len(seen) > 3


def test_faults_say_what_they_are() -> None:
    faults = Faults()
    assert repr(faults) == "<mqstore.testing.Faults: 0 writes, 0 syncs>"
    assert not faults.crashed
    faults.crash()
    assert faults.crashed
    assert repr(faults) == "<mqstore.testing.Faults: crashed>"
    with pytest.raises(ValueError, match="after_writes"):
        faults.crash(-1)


# Assertions.


def test_what_was_appended_is_found_by_what_it_is(home: Path) -> None:
    with mqstore.testing.open(home) as store:
        store.create_topic("orders", queues=2)
        store.append("orders", b'{"order": 5}', keys=["a", "b"], tags="paid", properties={"region": "eu"}, queue_id=1)
        store.append("orders", "Grüße".encode(), keys="a", queue_id=0)
        store.append("orders", b"\xff", queue_id=0)
        assert [m.queue_id for m in messages(store, "orders")] == [1, 0, 0]
        assert [m.queue_id for m in messages(store, "orders", 1)] == [1]
        assert messages(store, "none") == []
        (found,) = assert_appended(store, "orders", 1, body={"order": 5})
        for like in (
            {"body": b'{"order": 5}'},
            {"body": '{"order": 5}', "keys": "a"},
            {"keys": ["b", "a"]},
            {"tags": "paid"},
            {"properties": {"region": "eu"}},
            {"queue_id": 1},
            {"body": lambda message: message.queue_id == 1},
        ):
            assert assert_appended(store, "orders", 1, **like) == [found]  # type: ignore[arg-type]
        assert len(assert_appended(store, "orders", 2, keys="a")) == 2
        assert len(assert_appended(store, "orders")) == 3
        assert assert_appended(store, "orders", 0, keys="c") == []
        assert assert_appended(store, "none", 0) == []
        assert_appended(store, "orders", body="Grüße")
    assert assert_appended(home, "orders", 1, tags="paid") == [found]


@pytest.mark.parametrize(
    ("count", "like", "said"),
    [
        (None, {"body": b"x"}, ["a message with body=b'x' wanted, 0 found", "offset 1: b'{\"order\": 1}', keys=['k1'"]),
        (2, {"keys": "k3"}, ["2 messages with keys='k3' wanted, 1 found; the topic has:", "k2"]),
        (0, {"tags": "paid", "keys": "k3"}, ["0 messages with keys='k3', tags='paid' wanted, 1 found; found were:"]),
        (3, {}, ["3 messages wanted, 20 found; found were:", "and 10 more"]),
    ],
)
def test_what_is_missing_is_told(home: Path, count: int | None, like: dict[str, object], said: list[str]) -> None:
    appended(home)
    with pytest.raises(AssertionError) as failed:
        assert_appended(home, "orders", count, **like)  # type: ignore[arg-type]
    for part in said:
        assert part in str(failed.value)
    with pytest.raises(AssertionError, match="it has no messages"):
        assert_appended(home, "none")


def test_what_others_append_is_waited_for(home: Path) -> None:
    with mqstore.testing.open(home) as store:
        timer = threading.Timer(0.05, lambda: [store.append("orders", b"%d" % n) for n in range(3)])
        timer.start()
        assert len(assert_appended(store, "orders", 3, timeout=30)) == 3
        timer.join()
        threading.Timer(0.02, store.append, ("orders", b"unwanted")).start()
        with pytest.raises(AssertionError, match="0 messages"):
            assert_appended(store, "orders", 0, body=b"unwanted", timeout=0.5)


# Damage.


DAMAGES: dict[str, tuple[Callable[[Path, list[mqstore.StoredMessage]], damage.Damage], str]] = {
    "flip_body_bit": (lambda home, found: damage.flip_body_bit(home, found[7], 13), "record_damaged"),
    "flip_bit": (lambda home, _: damage.flip_bit(home, "consumequeue/orders/0/" + "0" * 20, 45, 1), "queue_"),
    "write_bytes": (lambda home, _: damage.write_bytes(home, f"commitlog/{0:020}", 4, b"\0" * 4), "record_damaged"),
    "tear_tail": (lambda home, _: damage.tear_tail(home), "torn_tail"),
    "cut_file": (lambda home, _: damage.cut_file(home, f"commitlog/{0:020}", 1000), "torn_tail"),
    "lose_queue": (lambda home, _: damage.lose_queue(home, "orders", 0), "queue_"),
    "lose_index": (lambda home, _: damage.lose_index(home), "index_"),
}


@pytest.mark.filterwarnings("ignore:.*the durable mark")
@pytest.mark.parametrize("name", DAMAGES)
def test_damage_is_seen_and_repaired(home: Path, name: str) -> None:
    found = appended(home)
    assert_clean(home)
    do, kind = DAMAGES[name]
    done = do(home, found)
    assert home in done.path.parents
    assert any(each.startswith(kind) for each in kinds(home)), kinds(home)
    with pytest.raises(AssertionError, match=rf"problems:\n  {kind}"):
        assert_clean(home)
    mqstore.repair(home, in_place=True)
    assert_clean(home)
    left = [message.body for message in messages(home, "orders")]
    assert left == [m.body for m in found if m.body in left]
    assert len(left) >= {"cut_file": 4, "flip_body_bit": 19, "write_bytes": 19, "tear_tail": 19}.get(name, 20)


def test_every_damage_has_a_test() -> None:
    assert set(DAMAGES) == set(damage.__all__) - {"Damage"}


def test_one_bit_is_one_bit(home: Path) -> None:
    found = appended(home)
    segment = home / "commitlog" / f"{0:020}"
    before = segment.read_bytes()
    done = damage.flip_body_bit(home, found[3], 9)
    after = segment.read_bytes()
    changed = [place for place, (one, other) in enumerate(zip(before, after, strict=True)) if one != other]
    assert (changed, done.path, done.size) == ([done.offset], segment, 1)
    assert before[done.offset : done.offset + 1] == found[3].body[1:2]
    assert before[done.offset] ^ after[done.offset] == 2
    assert damage.flip_bit(home, f"commitlog/{0:020}", done.offset, 1) == done
    assert_clean(home)


@pytest.mark.filterwarnings("ignore:.*the durable mark")
def test_a_torn_record_is_cut_off_by_the_next_open(home: Path) -> None:
    found = appended(home)
    for keep in (8, found[-1].size - 1):
        torn = home.with_name(f"torn{keep}")
        shutil.copytree(home, torn)
        damage.tear_tail(torn, keep)
        with pytest.warns(mqstore.StoreWarning, match="cut at byte"), mqstore.open(torn, "rw") as store:
            assert messages(store, "orders") == found[:-1]
        assert_clean(torn)


def test_damage_that_cannot_be_done(home: Path) -> None:
    found = appended(home, 3)
    with pytest.raises(ValueError, match="no bit"):
        damage.flip_body_bit(home, found[0], 8 * len(found[0].body))
    for offset in (-1, 64 << 10):
        with pytest.raises(ValueError, match="bytes at"):
            damage.flip_bit(home, f"commitlog/{0:020}", offset)
    with pytest.raises(ValueError, match="bit must"):
        damage.flip_bit(home, f"commitlog/{0:020}", 0, 8)
    for keep in (7, found[-1].size):
        with pytest.raises(ValueError, match="keep must"):
            damage.tear_tail(home, keep)
    with pytest.raises(ValueError, match="size must"):
        damage.cut_file(home, f"commitlog/{0:020}", 64 << 10)
    with pytest.raises(FileNotFoundError):
        damage.lose_queue(home, "none")
    with pytest.raises(mqstore.NotAStoreError):
        damage.lose_index(home.with_name("none"))
    with mqstore.open(home, "rw"), pytest.raises(mqstore.StoreLockedError):
        damage.lose_index(home)
    assert_clean(home)


# The pytest plugin.

SUITE = """
import asyncio
import mqstore
import mqstore.testing
import pytest
from datetime import timedelta


def test_a_store(mqstore_store, mqstore_path):
    mqstore_store.append("orders", b"one")
    assert mqstore_store.path == str(mqstore_path)
    mqstore.testing.assert_appended(mqstore_store, "orders", 1, body=b"one")


def test_it_is_empty_again(mqstore_store):
    assert mqstore_store.topics() == []


def test_a_clock(mqstore_store, mqstore_clock):
    mqstore_clock.advance(timedelta(days=1))
    assert mqstore_store.append("orders", b"").store_timestamp == 1_704_153_600_000


def test_faults(mqstore_faults, mqstore_store):
    mqstore_store.append("orders", b"")
    mqstore_faults.fail_syncs()
    with pytest.raises(mqstore.StorePoisonedError):
        mqstore_store.append("orders", b"", durable=True)


def test_an_event_loop(mqstore_store, mqstore_aio_store):
    async def main():
        async with mqstore_aio_store() as store:
            await store.append("orders", b"one")
        assert not mqstore_store.closed

    asyncio.run(main())
    mqstore.testing.assert_appended(mqstore_store, "orders", 1, body=b"one")


def test_what_fails(mqstore_store):
    mqstore_store.append("orders", b"there")
    mqstore.testing.assert_appended(mqstore_store, "orders", body=b"not there")
"""


def pytest_run(folder: Path, suite: str, *arguments: str) -> str:
    """Runs a suite with the plugin, and returns its output."""
    (folder / "test_suite.py").write_text(suite)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "pytest_mqstore", "-p", "no:cacheprovider", *arguments]
    done = run([*command, "test_suite.py"], cwd=folder, capture_output=True, text=True, timeout=100)
    return done.stdout + done.stderr


def test_the_fixtures(tmp_path: Path) -> None:
    said = pytest_run(tmp_path, SUITE, "-W", "error")
    assert "1 failed, 5 passed" in said
    assert "a message with body=b'not there' wanted, 0 found; the topic has:" in said
    assert "queue 0, offset 0: b'there'" in said


@pytest.mark.slow
def test_the_plugin_imports_nothing_before_a_test_asks(tmp_path: Path) -> None:
    said = pytest_run(tmp_path, "import sys\n\n\ndef test_it():\n    assert 'mqstore' not in sys.modules\n")
    assert "1 passed" in said, said
    said = pytest_run(tmp_path, "", "--fixtures")
    for name in ("mqstore_store", "mqstore_path", "mqstore_clock", "mqstore_faults", "mqstore_aio_store"):
        assert name in said
