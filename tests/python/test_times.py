"""Times and durations: one parser for every argument of the library, the options and the command line."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest

import mqstore
from conftest import SMALL, Cli
from mqstore import testing
from mqstore._times import command_line_time

if TYPE_CHECKING:
    from pathlib import Path

Call = Callable[[mqstore.Store, Any], object]

MOMENT = 1_704_103_200_000
"""2024-01-01 10:00 UTC, in epoch milliseconds."""
AS_DATETIME = datetime(2024, 1, 1, 10, tzinfo=UTC)
AS_TEXT = ["2024-01-01T10:00Z", "2024-01-01T11:00:00+01:00", "20240101T100000Z", " 1704103200000 "]


def seek(store: mqstore.Store, when: Any) -> None:
    with store.consumer("seeks", "t") as consumer:
        consumer.seek_to_time(when)


def reset(store: mqstore.Store, when: Any) -> None:
    with store.consumer("resets", "t") as consumer:
        consumer.reset(when)


def poll(store: mqstore.Store, limit: Any) -> None:
    with store.consumer("polls", "t") as consumer:
        consumer.poll(timeout=limit)


def start(store: mqstore.Store, when: Any) -> None:
    store.consumer("starts", "t", start=when).close()


def transaction(store: mqstore.Store, when: Any) -> None:
    with store.transaction() as opened:
        opened.append("t", b"x", born_timestamp=when)


TIMES: dict[str, Call] = {
    "append.born_timestamp": lambda store, when: store.append("t", b"x", born_timestamp=when),
    "append.deliver_at": lambda store, when: store.append("t", b"x", deliver_at=when),
    "Message.born_timestamp": lambda _store, when: mqstore.Message(b"x", born_timestamp=when),
    "transaction.born_timestamp": transaction,
    "reschedule.deliver_at": lambda store, when: store.reschedule("none", deliver_at=when),
    "lookup.start_time": lambda store, when: list(store.lookup("t", "k", start_time=when)),
    "lookup.end_time": lambda store, when: list(store.lookup("t", "k", end_time=when)),
    "scan.start_time": lambda store, when: store.scan(start_time=when),
    "scan.end_time": lambda store, when: store.scan(end_time=when),
    "offset_for_time": lambda store, when: store.offset_for_time("t", 0, when),
    "consumer.start": start,
    "seek_to_time": seek,
    "reset": reset,
    "ManualClock": lambda _store, when: testing.ManualClock(when),
    "ManualClock.set": lambda _store, when: testing.ManualClock().set(when),
}

WAITS: dict[str, Call] = {
    "wait": lambda store, limit: store.wait("t", 0, 0, limit),
    "read": lambda store, limit: next(store.read("t", 0, follow=True, timeout=limit)),
    "poll": poll,
    "put": lambda store, limit: store.work_queue("jobs").put(b"x", timeout=limit),
    "join": lambda store, limit: store.work_queue("empty").join(limit),
    "wait_until": lambda store, limit: store.table("t").wait_until(0, timeout=limit),
    "changes": lambda store, limit: store.table("t").changes(timeout=limit),
    "assert_appended": lambda store, limit: testing.assert_appended(store, "t", timeout=limit),
    "lock_timeout": lambda store, limit: mqstore.open(store.path, lock_timeout=limit).close(),
}


@pytest.fixture
def shop(store: mqstore.Store) -> mqstore.Store:
    store.append("t", b"x", keys="k")
    return store


@pytest.mark.parametrize("name", TIMES)
def test_a_time_is_a_datetime_text_or_milliseconds(shop: mqstore.Store, name: str) -> None:
    for right in (MOMENT, AS_DATETIME, *AS_TEXT):
        TIMES[name](shop, right)
    if not name.endswith("deliver_at"):
        TIMES[name](shop, timedelta(hours=1))
    with pytest.raises(mqstore.InvalidOptionError, match="is no age: pass a timedelta of at least 0"):
        TIMES[name](shop, timedelta(hours=-1))
    for wrong in (True, float(MOMENT), b"2024-01-01T10:00Z"):
        with pytest.raises(TypeError, match="datetime"):
            TIMES[name](shop, wrong)
    for text in ("tomorrow", "", "2024-13-01T10:00Z"):
        with pytest.raises(mqstore.InvalidOptionError, match=r"(a|no) time"):
            TIMES[name](shop, text)
    for naive in ("2024-01-01", "20240101", "2024-01-01T10:00", AS_DATETIME.replace(tzinfo=None)):
        with pytest.raises(mqstore.InvalidOptionError, match="time zone"):
            TIMES[name](shop, naive)


@pytest.mark.parametrize("name", TIMES)
def test_a_number_that_can_only_be_seconds_is_refused(shop: mqstore.Store, name: str) -> None:
    for seconds in (MOMENT // 1000, str(MOMENT // 1000)):
        with pytest.raises(
            mqstore.InvalidOptionError, match=r"1704103200 milliseconds .* probably in seconds: multiply"
        ):
            TIMES[name](shop, seconds)


@pytest.mark.parametrize("name", WAITS)
def test_a_wait_takes_every_form_of_a_duration(shop: mqstore.Store, name: str) -> None:
    for right in (5, 5.0, timedelta(seconds=5), "5s", "5", "PT5S", "5000ms"):
        WAITS[name](shop, right)
    for wrong in (True, b"5"):
        with pytest.raises(TypeError, match="must be seconds, a timedelta, or text"):
            WAITS[name](shop, wrong)
    with pytest.raises(mqstore.InvalidOptionError, match="'soon' is no duration"):
        WAITS[name](shop, "soon")


def test_the_forms_of_a_time_are_equal(shop: mqstore.Store) -> None:
    for when in (MOMENT, AS_DATETIME, *AS_TEXT):
        assert mqstore.Message(b"x", born_timestamp=when).born_timestamp == MOMENT
        result = shop.append("t", b"x", born_timestamp=when)
        assert shop.get_at(result.commit_log_offset).born_timestamp == MOMENT


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("90s", 90),
        ("1.5h", 5400),
        ("24h", 86_400),
        ("7d", 604_800),
        ("2w", 1_209_600),
        ("250ms", 0.25),
        ("5 m", 300),
        (" 5m ", 300),
        ("PT24H", 86_400),
        ("P7D", 604_800),
        ("P1DT2H3M4.5S", 93_784.5),
        ("P2W", 1_209_600),
        ("PT0.5S", 0.5),
    ],
)
def test_texts_of_durations(text: str, seconds: float) -> None:
    assert mqstore.StoreOptions(retention=text).retention == seconds


@pytest.mark.parametrize("text", ["P", "PT", "P1Y", "P1M", "1h30m", "7D", "h", "1e3", "nan", "inf", "+5s", "٣s"])
def test_texts_that_are_no_duration(text: str) -> None:
    with pytest.raises(mqstore.InvalidOptionError, match="is no duration: use a number with ms, s, m, h, d or w"):
        mqstore.StoreOptions(retention=text)


def test_a_hook_and_the_delay_levels_take_text(home: Path) -> None:
    assert mqstore.StoreOptions(delay_levels=["1s", "PT1M", 5, timedelta(hours=1)]).delay_levels == "1s 60s 5s 3600s"
    with mqstore.open(home, "create", options=SMALL) as store:
        jobs = store.work_queue("jobs", backoff=lambda _attempt: "1d")
        jobs.put(b"x")
        jobs.nack(jobs.get(timeout="5s"))
        assert jobs.counts().delayed == 1


def test_a_timedelta_is_that_long_ago(shop: mqstore.Store) -> None:
    hour = timedelta(hours=1)
    (message,) = shop.read("t", start=hour)
    assert list(shop.read("t", end=hour)) == []
    assert [len(list(shop.lookup("t", "k", **bound))) for bound in ({"start_time": hour}, {"end_time": hour})] == [1, 0]
    assert shop.offset_for_time("t", 0, hour) == 0
    born = mqstore.Message(b"x", born_timestamp=hour).born_timestamp
    assert born is not None
    assert abs(message.store_timestamp - 3_600_000 - born) < 60_000
    assert list(shop.read("t", end=timedelta.max)) == []
    # The message would be due at once.
    with pytest.raises(mqstore.InvalidOptionError, match="pass it as delay"):
        shop.append("t", b"x", deliver_at=hour)


def test_texts_of_times_on_the_command_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def milliseconds(text: str) -> int:
        return command_line_time("--since", text)[0]

    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        for text, same in (
            ("2026-01-31", "2026-01-30T23:00Z"),
            ("20260131", "2026-01-30T23:00Z"),
            ("2026-07-31T12:00", "2026-07-31T10:00Z"),
        ):
            found, local = command_line_time("--since", text)
            assert found == milliseconds(same)
            assert local is not None
            assert local.tzname() in ("CET", "CEST")
    finally:
        monkeypatch.undo()
        time.tzset()
    assert command_line_time("--since", str(MOMENT)) == (MOMENT, None)
    for age, seconds in (("1h", 3600), ("24h", 86_400), ("7d", 604_800), ("PT24H", 86_400), ("20000d", 1_728_000_000)):
        assert abs(time.time() - seconds - milliseconds(age) / 1000) < 60
    assert milliseconds("9" * 400 + "w") < milliseconds("0001-01-02T00:00Z")
    for text, reason in (
        ("2026-02-30", "does not exist"),
        ("2026-01-31T25:00", "does not exist"),
        ("1x", "is no time"),
        ("-1h", "is no time"),
        ("", "is no time"),
        ("1.5", "is no time"),
        ("1738324800", "probably in seconds"),
    ):
        with pytest.raises(mqstore.InvalidOptionError, match=reason):
            milliseconds(text)


def test_a_note_names_the_zone_of_a_local_time(cli_process: Cli, filled: Path) -> None:
    done = cli_process(
        "cat", filled, "--since", "2026-01-31", "--until", "1ms", "--limit", 1, env={**os.environ, "TZ": "UTC"}
    )
    assert done.returncode == 0
    assert done.stderr == "mqstore: --since 2026-01-31 is local time, in the zone UTC: 2026-01-31T00:00:00+00:00\n"
    assert cli_process("lookup", filled, "orders", "all", "--since", "1h").stderr == ""


@pytest.mark.slow
def test_the_command_line_has_the_same_parser(cli: Cli, filled: Path) -> None:
    def lookup(*times: object) -> int:
        done = cli("lookup", filled, "orders", "all", "--format", "jsonl", *times)
        assert done.returncode == (0 if done.stdout else 1), done.stderr
        return len(done.stdout.splitlines())

    assert lookup("--start-time", "2020-01-01T00:00Z") == lookup("--start-time", "1577836800000") == 40
    assert lookup("--end-time", "2020-01-01T01:00+01:00") == 0
    for wrong, reason in [("1577836800", "in seconds"), ("2026-02-30", "does not exist"), ("1x", "an age such as 24h")]:
        done = cli("lookup", filled, "orders", "all", "--start-time", wrong)
        assert done.returncode == 2
        assert reason in " ".join(done.stderr.replace("│", " ").split())
    for right in ("7d", "PT168H", "P7D", "604800"):
        assert cli("expire", filled, "--retention", right).returncode == 0
    done = cli("expire", filled, "--retention", "soon")
    assert done.returncode == 2
    assert "is no duration" in " ".join(done.stderr.replace("│", " ").split())
