"""Consumers that begin before the log, in the archive."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

import mqstore
import mqstore.aio
from archived_stores import KEEPING, fill, parquet_files

pyarrow = pytest.importorskip("pyarrow")


def drained(consumer: mqstore.Consumer, most: int = 50) -> list[mqstore.StoredMessage]:
    found: list[mqstore.StoredMessage] = []
    while some := consumer.poll(most, timeout=0):
        found += some
    return found


@pytest.mark.parametrize("ordered", [False, True])
def test_a_consumer_begins_and_continues_in_the_archive(homes: tuple[Path, Path], ordered: bool) -> None:
    whole, short = homes
    with mqstore.open(whole) as store:
        wanted = {queue_id: list(store.read("orders", queue_id)) for queue_id in range(3)}
    with mqstore.open(short, "rw", options=KEEPING) as store:
        with store.consumer("group", "orders", ordered=ordered) as consumer:
            first = consumer.poll(40)
            assert len(first) == 40
            assert first[0].queue_offset == 0
            consumer.commit()
            # Read and not committed, so they come again.
            assert len(consumer.poll(30)) == 30
        with store.consumer("group", "orders", ordered=ordered) as consumer:
            found = first + drained(consumer)
            for queue_id, messages in wanted.items():
                assert [one for one in found if one.queue_id == queue_id] == messages
            consumer.commit()
            assert set(consumer.lag().values()) == {0}
            consumer.seek("orders", 1, 7)
            assert next(iter(consumer)) == wanted[1][7]
            consumer.reset(wanted[1][30].store_time)
            position = consumer.position("orders", 1)
            assert wanted[1][position].store_timestamp == wanted[1][30].store_timestamp
            consumer.reset("earliest")
            assert consumer.committed("orders", 0) == 0
        with store.consumer("filtered", "orders", "paid") as consumer:
            found = drained(consumer)
            assert sorted(one.commit_log_offset for one in found) == sorted(
                one.commit_log_offset for messages in wanted.values() for one in messages if one.tags == "paid"
            )
        with store.consumer("late", "orders", start=wanted[2][100].store_time) as consumer:
            assert min(one.queue_offset for one in drained(consumer) if one.queue_id == 2) <= 100
    with (
        mqstore.open(short, "rw", options=KEEPING, archive=False) as store,
        store.consumer("of-the-log", "orders") as consumer,
    ):
        assert consumer.poll(1)[0].commit_log_offset >= store.stats().log_min_offset


def test_a_consumer_whose_messages_expire(tmp_path: Path) -> None:
    with mqstore.open(tmp_path / "store", "create", options=KEEPING) as store:
        fill(store, 300)
        store.archive.configure(tmp_path / "cold")
        with store.consumer("group", "orders", on_lost="raise") as consumer:
            numbers = [one.json()["number"] for one in consumer.poll(10)]
            fill(store, 900, start=300)
            store.archive.run()
            # An expiry by size does not wait for groups.
            store.expire()
            numbers += [one.json()["number"] for one in drained(consumer, 7)]
            assert sorted(numbers) == [one for one in range(1200) if one % 4]


def test_expiry_between_two_polls_leaves_no_message_out(tmp_path: Path) -> None:
    """A consumer has read the units of messages whose segments are deleted then."""
    options = replace(KEEPING, queue_file_entries=16)
    with mqstore.open(tmp_path / "store", "create", options=options) as store:
        store.archive.configure(tmp_path / "cold")
        fill(store, 400)
        consumers = [store.consumer(f"group-{most}", "orders") for most in range(1, 80, 6)]
        found = [consumer.poll(most, timeout=0) for most, consumer in zip(range(1, 80, 6), consumers, strict=True)]
        fill(store, 300, start=400)
        store.archive.run()
        store.expire()
        for some, consumer in zip(found, consumers, strict=True):
            numbers = [one.json()["number"] for one in some + drained(consumer, 20)]
            assert sorted(numbers) == [one for one in range(700) if one % 4]
            consumer.close()


def test_a_consumer_meets_a_damaged_archive(homes: tuple[Path, Path], tmp_path: Path) -> None:
    _, short = homes
    [path] = parquet_files(tmp_path / "cold")
    content = path.read_bytes()
    path.write_bytes(content[:100] + bytes(len(content) - 100))
    with mqstore.open(short, "rw", options=KEEPING) as store, store.consumer("group", "orders") as consumer:
        for _ in range(2):
            with pytest.raises(mqstore.CorruptionError, match=path.name):
                consumer.poll(10, timeout=0)
        path.write_bytes(content)
        assert len(drained(consumer)) == 675


def test_consumers_of_asyncio_begin_in_the_archive(homes: tuple[Path, Path]) -> None:
    _, short = homes

    async def work() -> None:
        async with (
            mqstore.aio.open(short, "rw", options=KEEPING) as store,
            store.consumer("group", "orders") as consumer,
        ):
            found: list[mqstore.StoredMessage] = []
            while len(found) < 675:
                found += await consumer.poll(100, timeout=10)
            assert sorted(one.json()["number"] for one in found) == [one for one in range(900) if one % 4]
            await consumer.commit()
            assert set((await consumer.lag()).values()) == {0}

    asyncio.run(work())
