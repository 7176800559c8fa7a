"""The place where an archive ends and a log begins: after deletions, for times and limits, and after errors."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import mqstore
import mqstore.aio
import rocketmq_bytes as raw
from archive_histories import failing_at, log_offsets, printed
from archived_stores import KEEPING, SEGMENT, TOPICS, fill, rows_of
from conftest import SMALL
from mqstore._archive.archive import _SIZES as SIZES
from mqstore._remote.failure import RequestFailure
from mqstore.testing import ManualClock
from mqstore.testing import open as open_for_test
from python_folders import Directory, python_transport

pyarrow = pytest.importorskip("pyarrow")


def numbers(messages: Any) -> list[int]:
    return [one.json()["number"] for one in messages]


def polled(consumer: mqstore.Consumer) -> list[mqstore.StoredMessage]:
    found: list[mqstore.StoredMessage] = []
    while some := consumer.poll(1000, timeout=0):
        found += some
    return found


@pytest.mark.parametrize("topics", [None, "orders", "events"])
@pytest.mark.parametrize("runs", [1, 2])
def test_a_store_that_lost_messages_before_its_archive_began(runs: int, topics: str | None, tmp_path: Path) -> None:
    """The first message is the oldest one that the log or the archive has."""
    home = tmp_path / "store"
    with mqstore.open(home, "create", options=KEEPING) as store:
        fill(store, 600)
        store.expire()
        kept = {topic: numbers(store.read(topic)) for topic in TOPICS}
        assert len(kept["orders"]) < 200
        lost = store.stats().log_min_offset
        start = 600
        for _ in range(runs):
            fill(store, 300, start)
            start += 300
            store.archive.configure(tmp_path / "cold", topics=topics)
            # First the log has all that is archived.
            assert store.archive.run().segments > 0
            for topic in TOPICS:
                assert numbers(store.read(topic)) == kept[topic] + [
                    one for one in range(600, start) if (one % 4 == 0) == (topic == "events")
                ]
        before = {topic: list(store.read(topic)) for topic in TOPICS}
        store.expire()
        low = store.stats().log_min_offset
        assert low > lost
        for topic in TOPICS:
            is_archived = topics in (None, topic)
            wanted = [one for one in before[topic] if is_archived or one.commit_log_offset >= low]
            assert list(store.read(topic)) == wanted
            assert rows_of(store.scan(topics=topic, columns=["commit_log_offset"])) == [
                {"commit_log_offset": one.commit_log_offset} for one in wanted
            ]
            assert list(store.lookup(topic, "all")) == [one for one in wanted if "all" in one.keys]
            for queue_id in range(3):
                own = [one for one in wanted if one.queue_id == queue_id]
                assert list(store.read(topic, queue_id)) == own
                assert store.message_at(topic, queue_id, own[0].queue_offset) == own[0]
                for read in (store.read, store.message_at):
                    with pytest.raises(mqstore.OffsetOutOfRangeError) as caught:
                        read(topic, queue_id, own[0].queue_offset - 1)
                    assert caught.value.min_offset == own[0].queue_offset
            with store.consumer("group", topic) as consumer:
                assert sorted(numbers(polled(consumer))) == numbers(wanted)
        assert printed("cat", home, "--topic", "orders")


@pytest.mark.filterwarnings("ignore:.*neither the archive nor the log:mqstore.StoreWarning")
def test_an_archive_continues_after_segments_that_it_does_not_have(tmp_path: Path) -> None:
    """A store without its archive deletes segments. Then the archive is configured again."""
    with mqstore.open(tmp_path / "store", "create", options=KEEPING) as store:
        fill(store, 400)
        store.archive.configure(tmp_path / "cold")
        archived = store.archive.run().archived_to
        store.archive.configure(None)
        fill(store, 900, 400)
        store.expire()
        low = store.stats().log_min_offset
        assert archived < low
        for _ in range(2):
            store.archive.configure(tmp_path / "cold")
            report = store.archive.run()
        assert store.expire().segments == 0
        assert report.missing_bytes in (0, low - archived)
        before = {queue: info.min_offset for queue in range(2) for info in store.queues("orders")[queue : queue + 1]}
        # A limit that the log and a part of the archive meet: the floor is before the log.
        kept = list(store.read("orders", on_damage="skip"))
        older = [one for one in kept if one.commit_log_offset < archived]
        store.set_retention("orders", max_messages=len(kept) - len(older) // 2)
        for _ in range(2):
            store.expire()
            assert list(store.read("orders", on_damage="skip")) == kept[len(older) // 2 :]
            assert {queue: store.queues("orders")[queue].min_offset for queue in before} == before
        for queue, first in before.items():
            found = list(store.read("orders", queue, first))
            assert found == [one for one in kept if one.queue_id == queue and one.queue_offset >= first]


def test_a_topic_that_the_log_has_completely_is_read_from_the_log(tmp_path: Path) -> None:
    """The archive has it too, at offsets that the log still has."""
    options = replace(KEEPING, retention_bytes=5 * SEGMENT)
    with mqstore.open(tmp_path / "store", "create", options=options) as store:
        fill(store, 500)
        for number in range(20):
            store.append("late", b"%d" % number, keys="late", queue_id=0)
        fill(store, 200, 500)
        wanted = list(store.read("late"))
        store.archive.configure(tmp_path / "cold")
        store.archive.run()
        store.expire()
        assert store.stats().log_min_offset > 0
        assert list(store.read("late")) == wanted
        assert list(store.read("late", 0)) == wanted
        assert list(store.read("late", 0, 0)) == wanted
        assert list(store.lookup("late", "late")) == wanted
        assert [store.offset_for_time("late", 0, 0, boundary=one) for one in ("lower", "upper")] == [0, 0]  # type: ignore[arg-type]


def test_before_the_first_archived_segment_the_log_answers(tmp_path: Path) -> None:
    home, target = tmp_path / "store", tmp_path / "cold"
    with mqstore.open(home, "create", options=KEEPING) as store:
        fill(store, 600)
        store.expire()
        assert store.stats().log_min_offset > 0

        def answers(store: mqstore.Store) -> list[Any]:
            found: list[Any] = [store.get("0" * 32), list(store.lookup("orders", "all"))]
            for topic in TOPICS:
                found += [list(store.read(topic)), list(store.read(topic, 1)), store.offset_for_time(topic, 1, 0)]
                found.append(rows_of(store.scan(topics=topic)))
            return found

        wanted = answers(store)
        store.archive.configure(target, older_than="30d")
        assert store.archive.run().segments == 0
        # The target is not even looked at.
        shutil.rmtree(target, ignore_errors=True)
        assert answers(store) == wanted
        with store.consumer("group", "orders") as consumer:
            assert sorted(numbers(polled(consumer))) == numbers(wanted[2])
        with mqstore.open(home) as reader:
            assert answers(reader) == wanted
            reading = reader.read("orders", 1)
            found = [next(reading)]
            # A read that began before the first run continues in the archive.
            store.archive.configure(target)
            fill(store, 300, 600)
            store.archive.run()
            store.expire()
            found += reading
            assert found == wanted[3]
        assert len(list(store.read("orders"))) == len(wanted[2]) + 225
    for arguments in (("cat", home, "--topic", "orders"), ("lookup", home, "orders", "all")):
        assert len(printed(*arguments)) > 0


def test_a_time_at_the_seam(tmp_path: Path) -> None:
    """A time between the last archived message and the first one of the log."""
    clock = ManualClock(1_700_000_000_000)
    home = tmp_path / "store"
    with open_for_test(home, "create", clock=clock, options=SMALL) as store:
        store.create_topic("orders", queues=2)
        for number in range(200):
            store.append("orders", bytes(2000), queue_id=number % 2)
            clock.advance(60)
    with open_for_test(home, "rw", clock=clock, options=replace(KEEPING, retention_bytes=5 * SEGMENT)) as store:

        def answers() -> list[int]:
            return [
                store.offset_for_time("orders", queue_id, 1_700_000_000_000 + milliseconds, boundary=boundary)  # type: ignore[arg-type]
                for queue_id in (0, 1)
                for boundary in ("lower", "upper")
                for milliseconds in range(-30_000, 201 * 60_000, 30_000)
            ]

        store.archive.configure(tmp_path / "cold")
        wanted = answers()
        store.archive.run()
        store.expire()
        assert store.queues("orders")[0].min_offset > 10
        assert answers() == wanted


@pytest.mark.parametrize("first", [0, 5])
def test_records_that_are_no_messages_do_not_count(first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half messages of old brokers and marks of rolled back transactions have the offset 0 and are in no queue."""
    home = tmp_path / "store"
    records: list[dict[str, Any]] = []
    for number in range(60):
        facts = {"body": bytes(800), "stored": 1_700_000_000_000 + number * 1000}
        raw_kind = {"sys_flag": (0x4, 0xC)[number % 2], "prepared": 7}
        records.append({**facts, **(raw_kind if number % 3 != 1 else {"queue_offset": first + number // 3})})
    raw.write_log(home, records)
    mqstore.rebuild(home)

    def answers(store: mqstore.Store) -> list[Any]:
        times = range(1_699_999_999_500, 1_700_000_061_000, 500)
        found: list[Any] = [store.offset_for_time("t", 0, one) for one in times]
        found += [store.offset_for_time("t", 0, one, boundary="upper") for one in times]
        return [*found, list(store.read("t")), [store.message_at("t", 0, first + one) for one in range(20)]]

    # Several files.
    monkeypatch.setitem(SIZES, "range_bytes", 20_000)
    with mqstore.open(home, "rw", options=KEEPING) as store:
        store.archive.configure(tmp_path / "cold")
        for _ in range(100):
            store.append("t", bytes(2000))
        wanted = answers(store)
        assert len(wanted[-2]) == 120
        assert wanted[0] == first
        store.archive.run()
        store.expire()
        assert store.queues("t")[0].min_offset > 50
        assert answers(store) == wanted
        if first:
            with pytest.raises(mqstore.OffsetOutOfRangeError, match=f"holds {first} to"):
                store.read("t", 0, 0)
        with store.consumer("group", "t") as consumer:
            assert [one.queue_offset for one in polled(consumer)] == list(range(first, first + 120))


@pytest.mark.parametrize("number", [0, 1, 2, 3, 5])
def test_after_an_error_no_iterator_jumps(number: int, homes: tuple[Path, Path]) -> None:
    """It repeats from the same place, or it stays failed."""
    whole, short = homes
    reads: list[Callable[[mqstore.Store], Iterator[Any]]] = [
        lambda store: store.read("orders"),
        lambda store: store.read("orders", 1),
        lambda store: store.lookup("orders", "all"),
        lambda store: store.lookup("orders", "all", newest_first=True),
        lambda store: log_offsets(store, "orders", "raise"),
    ]
    for read in reads:
        with mqstore.open(whole) as store:
            wanted = list(read(store))
        with failing_at(number) as failed, mqstore.open(short) as store:
            try:
                reading = read(store)
            except mqstore.StoreIOError:
                # A read that fails at its begin has no iterator.
                continue
            found: list[Any] = []
            errors = 0
            for _ in range(4):
                try:
                    while (one := next(reading, None)) is not None:
                        found.append(one)
                    break
                except mqstore.StoreIOError:
                    errors += 1
            assert found == wanted[: len(found)]
            assert (len(found) == len(wanted)) or errors == 4
            assert bool(errors) <= bool(failed)


def test_a_consumer_after_an_error(homes: tuple[Path, Path]) -> None:
    _, short = homes
    for number in range(6):
        with (
            failing_at(number),
            mqstore.open(short, "rw", options=KEEPING) as store,
            store.consumer(f"group-{number}", "orders") as consumer,
        ):
            found: list[mqstore.StoredMessage] = []
            for _ in range(100):
                try:
                    found += consumer.poll(40, timeout=0)
                except mqstore.StoreIOError:
                    continue
            assert sorted(numbers(found)) == [one for one in range(900) if one % 4]


def limited(store: mqstore.Store, topic: str) -> list[int]:
    return [one.queue_offset for one in store.read(topic)]


@pytest.mark.parametrize(
    ("limits", "first"),
    [
        ({"keep": "2h"}, 80),
        ({"max_messages": 150}, 50),
        ({"max_messages": 199}, 1),
        ({"max_messages": 200}, 0),
        ({"max_messages": 30, "keep": "3h"}, 170),
        ({"max_bytes": 1}, 200),
        ({"max_messages": 119, "keep": "2h"}, 81),
    ],
)
def test_limits_count_log_and_archive(limits: dict[str, Any], first: int, tmp_path: Path) -> None:
    """200 messages, one a minute; the log has fewer than 60 of them."""
    clock = ManualClock(1_700_000_000_000)
    home = tmp_path / "store"
    with open_for_test(home, "create", clock=clock, options=KEEPING) as store:
        for _ in range(200):
            for topic in ("orders", "other"):
                store.append(topic, bytes(1500), queue_id=0, keys="all")
            clock.advance(60)
        store.archive.configure(tmp_path / "cold")
        store.archive.run()
        store.expire()
        low = store.queues("orders")[0].min_offset
        assert low > 140
        store.set_retention("orders", **limits)
        plan = store.expire(dry_run=True).topics
        with open_for_test(home, "r", clock=clock, options=SMALL) as reader:
            assert reader.expire(dry_run=True).topics == plan
        done = store.expire().topics
        assert done == plan
        if 0 < first <= low:
            assert [(one.topic, one.messages) for one in done] == [("orders", first)]
        for view in (store, open_for_test(home, "r", clock=clock, options=SMALL)):
            assert limited(view, "orders") == list(range(first, 200))
            assert limited(view, "other") == list(range(200))
            assert len(list(view.lookup("orders", "all"))) == 200 - first
            assert view.scan(topics="orders", columns=["queue_id"]).to_arrow().num_rows == 200 - first
            if first:
                with pytest.raises(mqstore.OffsetOutOfRangeError, match=f"holds {first} to 200"):
                    view.read("orders", 0, first - 1)
            if view is not store:
                view.close()
        # Hidden messages stay hidden.
        store.set_retention("orders", max_messages=1000)
        assert store.expire().topics == ()
        assert limited(store, "orders") == list(range(first, 200))
    with open_for_test(home, "rw", clock=clock, options=KEEPING) as store:
        assert limited(store, "orders") == list(range(first, 200))


def test_a_limit_of_bytes_counts_whole_records_of_log_and_archive(tmp_path: Path) -> None:
    with mqstore.open(tmp_path / "store", "create", options=KEEPING) as store:
        fill(store)
        sizes = {topic: [one.size for one in store.read(topic)] for topic in TOPICS}
        store.archive.configure(tmp_path / "cold")
        store.archive.run()
        store.expire()
        for most in (sum(sizes["orders"]), sum(sizes["orders"][100:]), sum(sizes["orders"][333:]) + 1):
            store.set_retention("orders", max_bytes=most)
            store.expire()
            found = [one.size for one in store.read("orders")]
            assert sum(found) <= most < sum(sizes["orders"][-len(found) - 1 :]) + (len(found) == 675)
            assert found == sizes["orders"][-len(found) :]


def test_an_archive_that_does_not_answer_keeps_its_messages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits of other topics apply, and the next expiry tries again."""

    def fail(_self: object, _ranges: object) -> None:
        raise RequestFailure("other", "v1/x", "as the test wants")

    with mqstore.open(tmp_path / "store", "create", options=KEEPING) as store:
        fill(store)
        store.archive.configure(tmp_path / "cold")
        store.archive.run()
        store.expire()
        low = store.queues("orders")[0].min_offset
    with python_transport(), mqstore.open(tmp_path / "store", "rw", options=KEEPING) as store:
        store.set_retention("events", max_messages=100)
        store.set_retention("orders", max_messages=5)
        monkeypatch.setattr(Directory, "read", fail)
        with pytest.raises(mqstore.StoreIOError, match="as the test wants"):
            store.expire()
        monkeypatch.undo()
        assert len(list(store.read("orders"))) == 5
        assert len(list(store.read("events"))) == 225
        assert store.expire().topics[0].topic == "events"
        assert len(list(store.read("events"))) == 100
        assert low > 0


def test_a_limit_can_be_longer_than_the_log_keeps_any_message(tmp_path: Path) -> None:
    options = replace(KEEPING, retention=timedelta(hours=1))
    with mqstore.open(tmp_path / "store", "create", options=options) as store:
        fill(store, 10)
        with pytest.raises(mqstore.InvalidOptionError, match="archive"):
            store.set_retention("orders", keep="2h")
        store.archive.configure(tmp_path / "cold")
        store.set_retention("orders", keep="2h")


def test_a_read_of_the_whole_log_continues_in_the_archive(tmp_path: Path) -> None:
    """The log had everything when the read began."""
    options = replace(KEEPING, advanced=replace(KEEPING.advanced, held_limit=0))
    with mqstore.open(tmp_path / "store", "create", options=options) as store:
        store.archive.configure(tmp_path / "cold")
        fill(store)
        wanted = [list(store.read("orders")), list(store.read("orders", 1)), list(store.lookup("orders", "all"))]
        reads = [store.read("orders"), store.read("orders", 1), store.lookup("orders", "all")]
        firsts = [next(one) for one in reads]
        store.archive.run()
        store.expire()
        assert store.stats().log_min_offset >= 4 * SEGMENT
        assert [[first, *rest] for first, rest in zip(firsts, reads, strict=True)] == wanted


def test_asyncio_after_an_error(homes: tuple[Path, Path]) -> None:
    whole, short = homes
    with mqstore.open(whole) as store:
        wanted = list(store.read("orders", 1))

    async def work() -> None:
        with failing_at(1) as failed:
            async with mqstore.aio.open(short) as store:
                reading = store.read("orders", 1)
                found = []
                for _ in range(3):
                    try:
                        while True:
                            found.append(await anext(reading))
                    except StopAsyncIteration:
                        break
                    except mqstore.StoreIOError:
                        assert failed
        assert failed
        assert found == wanted

    asyncio.run(work())
