"""Durations and counts: every argument refuses negative values and booleans, and its error names the value."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

import mqstore
from mqstore import aio, testing

if TYPE_CHECKING:
    from pathlib import Path

Call = Callable[[mqstore.Store, Any], object]


def queue(store: mqstore.Store, **options: Any) -> mqstore.WorkQueue:
    return store.work_queue("jobs", group="g", **options)


def nack(store: mqstore.Store, delay: Any) -> None:
    jobs = queue(store)
    jobs.put(b"x")
    jobs.nack(jobs.get(timeout=5), delay)


def extend(store: mqstore.Store, duration: Any) -> None:
    jobs = queue(store)
    jobs.put(b"x")
    jobs.extend(jobs.get(timeout=5), duration)


def backoff(store: mqstore.Store, duration: Any) -> None:
    jobs = queue(store, backoff=lambda _attempt: duration)
    jobs.put(b"x")
    jobs.nack(jobs.get(timeout=5))


DURATIONS: dict[str, Call] = {
    "delay": lambda store, value: store.append("t", b"x", delay=value),
    "visibility_timeout": lambda store, value: queue(store, visibility_timeout=value),
    "put": lambda store, value: queue(store).put(b"x", delay=value),
    "put_many": lambda store, value: queue(store).put_many([b"x"], delay=value),
    "nack": nack,
    "extend": extend,
    "backoff": backoff,
    "commit_interval": lambda store, value: store.consumer("g", ["t"], commit_interval=value),
    "check_after": lambda store, value: store.check_transactions(lambda _: None, "g", check_after=value),
    "check_interval": lambda store, value: store.check_transactions(lambda _: None, "g", check_interval=value),
    "tombstone_retention": lambda store, value: store.compact(tombstone_retention=value),
    "slow_syncs": lambda _store, value: testing.Faults().slow_syncs(value),
}

COUNTS: dict[str, Call] = {
    "get_many": lambda store, value: queue(store).get_many(value, timeout=0),
    "redrive": lambda store, value: queue(store).redrive(value),
    "peek": lambda store, value: queue(store).peek(value),
    "max_attempts": lambda store, value: queue(store, max_attempts=value),
    "maxsize": lambda store, value: queue(store, maxsize=value),
    "poll": lambda store, value: store.consumer("g", ["t"]).poll(value, timeout=0),
    "lookup": lambda store, value: store.lookup("t", "k", limit=value),
    "check_max": lambda store, value: store.check_transactions(lambda _: None, "g", check_max=value),
    "queues": lambda store, value: store.create_topic("new", value),
    "read_queues": lambda store, value: store.update_topic("t", read_queues=value),
    "write_queues": lambda store, value: store.update_topic("t", write_queues=value),
    "perm": lambda store, value: store.update_topic("t", perm=value),
    "quota": lambda store, value: store.update_topic("t", max_messages=value),
    "new_quota": lambda store, value: store.create_topic("new", max_messages=value),
    "threads": lambda store, value: store.compact(threads=value),
    "max_bytes_per_second": lambda store, value: store.compact(max_bytes_per_second=value),
}


@pytest.fixture
def shop(store: mqstore.Store) -> mqstore.Store:
    store.append("t", b"x", keys="k")
    return store


@pytest.mark.parametrize("name", DURATIONS)
def test_a_negative_duration_is_refused_by_its_value(shop: mqstore.Store, name: str) -> None:
    for wrong in (-1, -1.0, timedelta(seconds=-1)):
        with pytest.raises(mqstore.InvalidOptionError, match="-1 s is no duration"):
            DURATIONS[name](shop, wrong)


@pytest.mark.parametrize("name", DURATIONS)
def test_a_duration_is_a_number_a_timedelta_or_text(shop: mqstore.Store, name: str) -> None:
    for wrong in (True, b"1", [1]):
        with pytest.raises(TypeError, match="must be seconds, a timedelta, or text"):
            DURATIONS[name](shop, wrong)
    for wrong in ("soon", "-1s", "1y", ""):
        with pytest.raises(mqstore.InvalidOptionError, match="is no duration: use a number with"):
            DURATIONS[name](shop, wrong)
    for right in (90, 90.0, timedelta(seconds=90), "90s", "1.5m", "PT1M30S"):
        DURATIONS[name](shop, right)


@pytest.mark.parametrize("name", COUNTS)
def test_a_negative_count_is_refused_by_its_value(shop: mqstore.Store, name: str) -> None:
    with pytest.raises(ValueError, match="-1"):
        COUNTS[name](shop, -1)
    with pytest.raises(ValueError, match=str(1 << 70)):
        COUNTS[name](shop, 1 << 70)


@pytest.mark.parametrize("name", COUNTS)
def test_a_count_is_an_int(shop: mqstore.Store, name: str) -> None:
    for wrong in ("5", True, 1.5):
        with pytest.raises(TypeError, match="must be an int"):
            COUNTS[name](shop, wrong)


def test_a_wait_whose_deadline_has_passed_does_not_wait(shop: mqstore.Store) -> None:
    assert shop.wait("t", 0, 1, timeout=-1) is False
    assert shop.consumer("g", ["none"]).poll(timeout=timedelta(seconds=-1)) == []


def test_an_event_loop_refuses_them_too(home: Path) -> None:
    async def run() -> None:
        async with aio.open(home, "create") as store:
            jobs = await store.work_queue("jobs", group="g")
            consumer = await store.consumer("h", ["t"])
            with pytest.raises(mqstore.InvalidOptionError, match="-1 is negative"):
                await jobs.get_many(-1, timeout=0)
            with pytest.raises(mqstore.InvalidOptionError, match="-1 is negative"):
                await consumer.poll(-1, timeout=0)
            with pytest.raises(mqstore.InvalidOptionError, match="-1 s is no duration"):
                await jobs.put(b"x", delay=-1)

    asyncio.run(run())
