"""mqstore frees the space of hidden messages between the messages of a broker's own topics; a broker then continues.

RocketMQ wrote every message: delayed ones by level and by time, half messages, decisions, and a compaction topic.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

import mqstore
from mqstore.testing import ManualClock

from .compare import md5
from .driver import JavaBroker, JavaSession
from .java_rows import Spec, generated_body, message
from .market import GEOMETRY, java_config
from .popping import PoppingClient
from .scenarios import COMPACTED, KIB, topic

if TYPE_CHECKING:
    from pathlib import Path

    from .tally import Tally

pytestmark = pytest.mark.interop

TOPICS = {
    "gone": topic(1),
    "metrics": topic(1),
    "live": topic(1),
    "later": topic(1),
    "decided": topic(1),
    "table": topic(1, **COMPACTED),
}
CONFIG: dict[str, Any] = java_config({}) | {
    "timerWheelEnable": "true",
    # The broker copies messages to its compaction log, but does not compact.
    "compactionScheduleInternal": 10**8,
    "compactionMappedFileSize": 64 * KIB,
    "compactionCqMappedFileSize": 46 * 128,
    "transactionOpBatchInterval": 10,
}
CHECKING = {"transactionCheckInterval": 3000, "transactionTimeOut": 1000, "transactionCheckMax": 100}
"""A broker that asks about pending transactions soon."""
OWN = ("SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC")
"""The broker's topics: delayed messages by level and by time, half messages, decisions."""
ROUNDS = 13
BURST = 100
SIZE = 3000
KEPT = 50
LEVEL_5 = 60_000
"""Milliseconds of delay level 5, in which the first broker stops and mqstore reclaims."""

Places = dict[tuple[str, int], bytes]
"""The bytes of each record, by topic and log offset."""


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def burst(name: str, seed: str, count: int = BURST) -> list[Spec]:
    return [message(name, (f"{seed}-{n}", SIZE)) for n in range(count)]


def send(client: PoppingClient) -> dict[bytes, int]:
    """Send messages that wait, between messages that mqstore removes. Return the due time of the delayed ones."""
    due: dict[bytes, int] = {}
    for number in range(ROUNDS):
        for name in ("gone", "metrics"):
            client.produce([{"topic": name, "queue_id": 0, "batch": burst(name, f"{name}{number}")}])
        texts = {kind: f"{kind} {number}".encode() for kind in ("level", "time", "commit", "pending", "rollback")}
        sent = now_ms()
        due[texts["level"]] = due[texts["time"]] = sent + LEVEL_5
        client.produce(
            [
                message("later", texts["level"]) | {"delay_level": 5},
                message("later", texts["time"], properties={"TIMER_DELIVER_MS": str(sent + LEVEL_5)}),
                message("decided", texts["commit"]) | {"transaction": "commit"},
                message("decided", texts["pending"], properties={"when_checked": "commit"})
                | {"transaction": "unknown"},
                message("decided", texts["rollback"], properties={"when_checked": "rollback"})
                | {"transaction": "unknown"},
                message("table", (f"table{number}", 200), keys=[f"k{number % 5}"]),
            ]
        )
    # Segments without hidden messages.
    for number in range(14):
        client.produce([{"topic": "live", "queue_id": 0, "batch": burst("live", f"live{number}")}])
    return due


def records(path: Path) -> Places:
    """Return all records but those of the topics that mqstore removes."""
    found: Places = {}
    with mqstore.open(path) as store:
        for each in store._scan_log():
            if each.topic in ("gone", "metrics"):
                continue
            base = each.commit_log_offset - each.commit_log_offset % GEOMETRY["segment_size"]
            with (path / "commitlog" / f"{base:020}").open("rb") as log:
                log.seek(each.commit_log_offset - base)
                found[each.topic, each.commit_log_offset] = log.read(each.size)
    return found


def reclaim(path: Path) -> list[tuple[int, int]]:
    """Free the space of one deleted topic and of one with a retention. Return the ranges of the rewritten segments."""
    # Time stands still, so that mqstore delivers no message.
    with mqstore.testing.open(path, "rw", clock=ManualClock(now_ms())) as store:
        pending = 2 * ROUNDS
        assert (store.delays().pending, len(store.pending_transactions())) == (pending, pending)
        store.delete_topic("gone")
        store.set_retention("metrics", max_messages=KEPT)
        store.expire()
        assert store.reclaim(erase=[*OWN, "table", "later", "decided"]).segments == ()
        report = store.reclaim()
        assert {one.topic for one in report.topics if one.reclaimed_bytes} == {"gone", "metrics"}
        assert (store.delays().pending, len(store.pending_transactions())) == (pending, pending)
    return [(one.log_offset, one.log_offset + one.bytes) for one in report.segments]


@pytest.mark.timeout(400)
def test_a_broker_delivers_what_waited(version: str, tmp_path: Path, tally: Tally) -> None:
    """Messages that wait, and decisions, keep their bytes in rewritten segments; the next broker delivers the messages
    once and not early, asks about the pending transactions, and serves the compaction topic.
    """
    path = tmp_path / "store"
    with JavaSession(version, tmp_path / "client") as session:
        session.open(path, config=CONFIG, topics=TOPICS, write_topics=True).close()
        with JavaBroker(version, path, tmp_path / "broker", CONFIG) as broker:
            with PoppingClient(session, broker) as client:
                due = send(client)
                client.await_messages("decided", ROUNDS)
            broker.stop()
        before = records(path)
        rewritten = reclaim(path)
        assert len(rewritten) >= 3
        assert records(path) == before
        inside = {name for name, at in before if any(first <= at < end for first, end in rewritten)}
        assert inside >= {*OWN, "table"}
        assert mqstore.verify(path).problems == ()

        with JavaBroker(version, path, tmp_path / "broker2", CONFIG | CHECKING) as broker:
            with PoppingClient(session, broker) as client:
                # A producer tells a broker about itself only after it has sent a message there.
                client.produce([message("live", b"on")])
                client.await_messages("decided", 2 * ROUNDS, seconds=100)
                client.await_messages("later", 2 * ROUNDS, seconds=120)
                later, decided, table = [client.consume(name) for name in ("later", "decided", "table")]
            broker.stop()
    by_body = {md5(body): at for body, at in due.items()}
    assert sorted(each.body_md5 for each in later) == sorted(by_body)
    assert [each for each in later if each.store_timestamp < by_body[each.body_md5]] == []
    # A broker promises at-least-once delivery of transactions.
    wanted = {md5(f"{kind} {number}".encode()) for kind in ("commit", "pending") for number in range(ROUNDS)}
    assert {each.body_md5 for each in decided} == wanted
    assert [each.body_md5 for each in table] == [md5(generated_body(f"table{n}", 200)) for n in range(ROUNDS)]
    after = records(path)
    assert {at: after.get(at) for at in before} == before
    with mqstore.open(path, "rw") as store:
        assert store.delays().pending == 0
        assert store.pending_transactions() == []
    assert mqstore.verify(path).problems == ()
    tally.messages += len(before) + len(later) + len(decided) + len(table)
    tally.queues += len(TOPICS) + len(OWN)
