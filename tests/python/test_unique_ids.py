"""Look-ups by unique id, if several records have it: waiting records, dead letters, copies in an archive."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import mqstore
from archived_stores import KEEPING
from conftest import until
from mqstore import testing

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Cli

WHEEL, LEVELS, HALVES = "rmq_sys_wheel_timer", "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC"


def topic_of(store: mqstore.Store, unique_id: str) -> str | None:
    """The topic of the record that the store and a reader next to it find."""
    store.flush()
    with mqstore.open(store.path) as reader:
        found = [one.get(unique_id) for one in (store, reader)]
    topics = {None if one is None else one.topic for one in found}
    assert all(one is None or one.unique_id == unique_id for one in found)
    assert len(topics) == 1
    return topics.pop()


@pytest.mark.parametrize(
    ("delay", "waits_in"), [({"delay": 5}, WHEEL), ({"delay_level": 1}, LEVELS)], ids=["timer", "level"]
)
def test_a_delayed_message_is_found_where_it_is(tmp_path: Path, delay: dict[str, Any], waits_in: str) -> None:
    clock = testing.ManualClock()
    with testing.open(tmp_path / "s", clock=clock) as store:
        store.create_topic("gone")
        one, gone = (store.append(topic, b"x", **delay) for topic in ("mails", "gone"))
        later = store.append("mails", b"y", delay=3600)
        assert [topic_of(store, each.unique_id) for each in (one, gone, later)] == [waits_in, waits_in, WHEEL]
        # A message id names one record.
        waiting = store.get(one.message_id)
        assert waiting is not None
        store.delete_topic("gone")
        assert topic_of(store, gone.unique_id) is None
        clock.advance(10)
        until(lambda: store.delays().delivered == 1)
        assert [topic_of(store, each.unique_id) for each in (one, gone, later)] == ["mails", None, WHEEL]
        assert store.get(one.message_id) == waiting
        moved = store.reschedule(later.unique_id, delay=7200)
        assert moved is not None
        assert topic_of(store, later.unique_id) == WHEEL
        assert store.cancel(later.unique_id)
        assert topic_of(store, later.unique_id) is None
    with testing.open(tmp_path / "s", clock=clock) as store:
        assert [topic_of(store, each.unique_id) for each in (one, gone, later)] == ["mails", None, None]


def test_a_message_of_a_transaction_is_found_where_it_is(tmp_path: Path) -> None:
    with testing.open(tmp_path / "s") as store:
        transactions = [store.transaction("shop") for _ in range(3)]
        committed, rolled_back, pending = (one.append("orders", b"x") for one in transactions)
        assert topic_of(store, committed) == HALVES
        transactions[0].commit()
        transactions[1].rollback()
        assert [topic_of(store, one) for one in (committed, rolled_back, pending)] == ["orders", None, HALVES]


def test_a_dead_letter_does_not_hide_its_job(store: mqstore.Store, home: Path, cli: Cli) -> None:
    work = store.work_queue("jobs", "g", max_attempts=1)
    put = work.put(b"job")
    work.get(timeout=5).nack(0)
    assert len(list(store.read(work.dead_letters))) == 1
    assert topic_of(store, put.unique_id) == "jobs"
    shown = cli("get", home, put.unique_id, "--format", "json")
    assert [one["topic"] for one in json.loads(shown.stdout)] == ["jobs"]
    store.delete_topic("jobs")
    assert topic_of(store, put.unique_id) == work.dead_letters


def test_an_archive_has_the_same_answers(home: Path) -> None:
    pytest.importorskip("pyarrow")
    clock = testing.ManualClock()
    with testing.open(home, "create", clock=clock, options=KEEPING) as store:
        store.archive.configure(f"{home}.cold")
        delayed = store.append("mails", b"delayed", delay=5)
        cancelled = store.append("mails", b"cancelled", delay=60)
        store.cancel(cancelled.unique_id)
        clock.advance(10)
        until(lambda: store.delays().delivered == 1)
        transaction = store.transaction("shop")
        committed = transaction.append("orders", b"committed")
        transaction.commit()
        work = store.work_queue("jobs", "g", max_attempts=1)
        job = work.put(b"job")
        for _ in range(30):
            store.append("other", bytes(10_000))
        # The dead letter stays in the log, and the archive gets its job.
        work.get(timeout=5).nack(0)
        ids = [delayed.unique_id, cancelled.unique_id, committed, job.unique_id]
        before = [topic_of(store, one) for one in ids]
        assert before == ["mails", None, "orders", "jobs"]
        store.archive.run()
        store.expire()
        assert store.stats().log_min_offset > job.commit_log_offset
        assert [topic_of(store, one) for one in ids] == before
    with mqstore.open(home) as reader:
        found = reader.get(job.unique_id)
        assert found is not None
        assert (found.topic, found.body) == ("jobs", b"job")
