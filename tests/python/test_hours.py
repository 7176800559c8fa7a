"""`mqstore topics --hours`: the messages of each hour, from the offsets at the ends of the hours."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import mqstore
from conftest import Cli
from mqstore import testing
from mqstore.cli.info.hours import hours

HOUR = 3_600_000
START = datetime(2026, 1, 31, 22, 10, tzinfo=UTC)
# The hours since 22:00 with their messages in `counted_home`.
COUNTS = [6, 4, 0, 2]


def millis(moment: datetime) -> int:
    return round(moment.timestamp() * 1000)


@pytest.fixture
def counted_home(home: Path) -> Path:
    """A store with messages at 22:10, 22:50, 23:10 and 01:10, and records of the store itself."""
    clock = testing.ManualClock(START)
    with testing.open(home, clock=clock) as store:
        store.create_topic("orders", queues=2)
        for minutes, count in ((0, 4), (40, 2), (60, 4), (180, 2)):
            clock.set(START + timedelta(minutes=minutes))
            for number in range(count):
                store.append("orders" if number % 4 < 3 else "events", b"x")
        store.append("orders", b"later", delay=3600)
        with store.consumer("billing", "orders", history=True) as consumer:
            consumer.poll(timeout=0)
            consumer.commit()
        assert {"rmq_sys_wheel_timer", "rmq_sys_OFFSET_HISTORY"} < set(store.topics())
    return home


@pytest.mark.slow
def test_each_hour_has_its_messages(counted_home: Path, cli: Cli) -> None:
    first = millis(START) // HOUR * HOUR
    found = json.loads(cli("topics", counted_home, "--hours", "--format", "json").stdout)
    assert found == [{"start_timestamp": first + n * HOUR, "messages": count} for n, count in enumerate(COUNTS)]
    table = cli("topics", counted_home, "--hours", "--topic", "orders").stdout
    rows = re.findall(r"^ (\S+T\S+) +(\d+)(.*)$", table, re.MULTILINE)
    assert [(hour, int(count)) for hour, count, _ in rows] == [
        ("2026-01-31T22:00", 5),
        ("2026-01-31T23:00", 3),
        ("2026-02-01T00:00", 0),
        ("2026-02-01T01:00", 2),
    ]
    bars = [bar.count("█") for *_, bar in rows]
    assert bars == [40, 24, 0, 16]
    several = cli("topics", counted_home, counted_home, "--hours", "--format", "jsonl").stdout.splitlines()
    assert [json.loads(line)["messages"] for line in several] == COUNTS * 2


def test_no_message_is_status_1_with_a_sentence(counted_home: Path, cli: Cli) -> None:
    with testing.open(counted_home, "rw") as store:
        store.create_topic("empty")
    since, topic = ("--since", "2027-01-01T00:00Z"), ("--topic", "empty")
    for arguments, sentence in (
        (since, "there are no messages in this range of times"),
        (topic, "the topic empty has no messages"),
        ((*since, *topic), "the topic empty has no messages in this range of times"),
    ):
        done = cli("topics", counted_home, "--hours", *arguments)
        assert (done.returncode, done.stdout, done.stderr) == (1, "", f"mqstore: {sentence}\n")
        done = cli("topics", counted_home, "--hours", *arguments, "--format", "json")
        assert (done.returncode, done.stdout, done.stderr) == (1, "[]\n", f"mqstore: {sentence}\n")


def test_a_range_cuts_its_first_and_last_hour(counted_home: Path) -> None:
    def counts(since: datetime | None, until: datetime | None, topic: str | None = None) -> list[int]:
        times = [None if one is None else millis(one) for one in (since, until)]
        with mqstore.open(counted_home) as store:
            return [one.messages for one in hours(store, topic, *times)]

    assert counts(START + timedelta(minutes=20), START + timedelta(minutes=90)) == [2, 4]
    # The end is not included, the beginning is.
    assert counts(START, START + timedelta(hours=1)) == [6]
    assert counts(START + timedelta(hours=1), None) == [4, 0, 2]
    assert counts(datetime(1970, 1, 1, tzinfo=UTC), datetime(9000, 1, 1, tzinfo=UTC)) == COUNTS
    assert counts(START + timedelta(days=1), None) == []
    assert counts(None, START) == []
    assert counts(None, None, "rmq_sys_OFFSET_HISTORY") == [2]


def test_without_a_range_the_newest_48_hours_are_counted(home: Path) -> None:
    clock = testing.ManualClock(START)
    with testing.open(home, clock=clock) as store:
        store.create_topic("empty")
        assert hours(store, None, None, None) == []
        for hour in range(60):
            clock.set(START + timedelta(hours=hour))
            store.append_many("orders", [b"x"] * (hour + 1))
        found = hours(store, None, None, None)
        assert [one.messages for one in found] == list(range(13, 61))
        assert found[-1].start_timestamp == millis(START + timedelta(hours=59)) // HOUR * HOUR
        until = millis(START + timedelta(hours=50))
        assert [one.messages for one in hours(store, None, None, until)] == list(range(4, 51))
        assert len(hours(store, None, 0, None)) == 60
        assert hours(store, "empty", None, None) == []


@pytest.mark.parametrize("seed", range(5))
def test_the_counts_are_those_of_a_read(home: Path, seed: int) -> None:
    chosen = random.Random(seed)
    clock = testing.ManualClock(START)
    with testing.open(home, clock=clock) as store:
        store.create_topic("orders", queues=3)
        for _ in range(300):
            clock.advance(chosen.expovariate(1 / 900))
            store.append("orders", b"x", queue_id=chosen.randrange(3))
        times = [message.store_timestamp for message in store.read("orders")]
        since, until = chosen.choice([0, min(times) + chosen.randrange(20 * HOUR)]), max(times) - 5 * HOUR
        expected = Counter(time // HOUR * HOUR for time in times if since <= time < until)
        counted = {one.start_timestamp: one.messages for one in hours(store, None, since, until)}
        assert {hour: count for hour, count in counted.items() if count} == expected
        assert list(counted) == list(range(min(expected), max(expected) + HOUR, HOUR))


def test_a_clock_that_was_set_back_loses_no_message(home: Path) -> None:
    clock = testing.ManualClock(START)
    with testing.open(home, clock=clock) as store:
        for step in (0, 3, -5, 1, 1, 4, -2):
            clock.advance(step * 3600)
            store.append_many("orders", [b"x"] * 10)
        assert sum(one.messages for one in hours(store, None, 0, None)) == 70


def test_messages_in_the_archive_count(homes: tuple[Path, Path]) -> None:
    whole, short = homes
    with mqstore.open(whole) as complete, mqstore.open(short) as store:
        assert store.queues("orders")[0].min_offset > 0
        assert hours(store, "orders", None, None) == hours(complete, "orders", None, None)


@pytest.mark.slow
def test_mistakes(counted_home: Path, cli: Cli) -> None:
    unknown = cli("topics", counted_home, "--hours", "--topic", "ordres")
    assert (unknown.returncode, unknown.stdout) == (3, "")
    assert "did you mean orders?" in unknown.stderr
    for options, reason in (
        (["--hours", "--sizes"], "omit --sizes"),
        (["--hours", "--queues"], "omit --sizes and --queues"),
        (["--topic", "orders"], "select the messages of --hours"),
        (["--since", "1h"], "select the messages of --hours"),
        (["--hours", "--since", "yesterday"], "is no time"),
    ):
        done = cli("topics", counted_home, *options)
        assert (done.returncode, done.stdout) == (2, "")
        assert reason in done.stderr
