"""Pending transactions move between mqstore and real brokers, and each is decided once by its current owner."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Literal

import pytest

import mqstore

from .compare import md5
from .driver import JavaBroker, JavaSession
from .java_rows import message
from .market import GEOMETRY, java_config
from .popping import PoppingClient

if TYPE_CHECKING:
    from pathlib import Path

    from .tally import Tally

pytestmark = pytest.mark.interop

GROUP = "mqstore_interop"
"""The producer group of the client, which a broker asks."""
# If a broker writes decisions later than it checks, it asks about decided transactions and delivers them again.
CONFIG = java_config({}) | {
    "transactionOpBatchInterval": 10,
    "transactionCheckInterval": 3000,
    "transactionTimeOut": 1000,
    "transactionCheckMax": 15,
}
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
TWO_CHECKS = 7.0
"""Seconds in which a broker checks twice."""


def begin(store: mqstore.Store) -> None:
    """mqstore's transactions: decided ones, and pending ones that a broker asks about."""
    store.create_topic("ours", 2)
    store.create_topic("more", 1)
    store.create_topic("theirs", 1)
    with store.transaction(GROUP) as tx:
        tx.append("ours", b"committed 0", queue_id=0)
        tx.append("more", b"committed 1")
    with pytest.raises(KeyError), store.transaction(GROUP) as tx:
        tx.append("ours", b"rolled back")
        raise KeyError
    for answer in ("commit", "rollback"):
        # Left without a decision, as if its process had ended.
        tx = store.transaction(GROUP)
        tx.append("ours", f"broker: {answer}".encode(), queue_id=1, properties={"when_checked": answer})


def bodies(path: Path, topic: str) -> list[bytes]:
    with mqstore.open(path) as store:
        return sorted(each.body for queue in store.queues(topic) for each in store.read(topic, queue.queue_id))


@pytest.mark.timeout(300)
def test_transactions_are_decided_once_whoever_has_them(version: str, tmp_path: Path, tally: Tally) -> None:
    path = tmp_path / "store"
    with mqstore.open(path, "create", **GEOMETRY) as store:
        begin(store)
        assert len(store.pending_transactions()) == 2
    with JavaSession(version, tmp_path / "client") as session:
        with JavaBroker(version, path, tmp_path / "broker", CONFIG) as broker:
            with PoppingClient(session, broker) as client:
                specs = [
                    message("theirs", b"theirs: %s" % decision.encode()) | {"transaction": decision}
                    for decision in ("commit", "rollback", "unknown")
                ]
                for spec in specs:
                    spec["properties"]["when_checked"] = spec["transaction"]
                client.produce(specs)
                # The broker asks the client about both of mqstore's: one appears, the other never does.
                client.await_messages("ours", 2)
                client.await_messages("theirs", 1)
                seen = [each.body_md5 for topic in ("ours", "more", "theirs") for each in client.consume(topic)]
                wanted = [b"committed 0", b"committed 1", b"broker: commit", b"theirs: commit"]
                # A broker promises at-least-once delivery.
                assert set(seen) == set(map(md5, wanted))
                time.sleep(TWO_CHECKS)
            broker.stop()
        assert mqstore.verify(path).problems == ()
        (undecided,) = mqstore.info(path).undecided
        assert (undecided.producer_group, undecided.transactions) == (GROUP, 1)

        asked: list[mqstore.PendingTransaction] = []

        def check(pending: mqstore.PendingTransaction) -> Literal["commit"]:
            asked.append(pending)
            return "commit"

        with mqstore.open(path, "rw") as store:
            (pending,) = store.pending_transactions()
            assert (pending.group, pending.topics) == (GROUP, ("theirs",))
            (queue,) = store.queues("theirs")
            store.check_transactions(check, group=GROUP, check_after=0)
            assert store.wait("theirs", 0, queue.max_offset, timeout=60)
            assert [each.id for each in asked] == [pending.id]
            with store.transaction(GROUP) as tx:
                tx.append("more", b"committed 2")
        theirs = bodies(path, "theirs")
        assert set(theirs) == {b"theirs: commit", b"theirs: unknown"}
        assert theirs.count(b"theirs: unknown") == 1
        assert bodies(path, "more") == [b"committed 1", b"committed 2"]

        # A broker asks about no transaction that mqstore decided, although its client would commit all of them.
        with JavaBroker(version, path, tmp_path / "broker2", CONFIG) as broker:
            with PoppingClient(session, broker) as client:
                client.produce([message("theirs", b"last") | {"transaction": "commit"}])
                client.await_messages("theirs", len(theirs) + 1)
                time.sleep(TWO_CHECKS)
            broker.kill()
    ours = bodies(path, "ours")
    assert (set(ours), ours.count(b"committed 0")) == ({b"broker: commit", b"committed 0"}, 1)
    assert bodies(path, "more") == [b"committed 1", b"committed 2"]
    assert set(bodies(path, "theirs")) == {b"last", *theirs}
    assert bodies(path, "theirs").count(b"theirs: unknown") == 1
    with mqstore.open(path, "rw") as store:
        assert store.pending_transactions() == []
        tally.messages += len(list(store.read(HALF_TOPIC))) + 7
    assert mqstore.verify(path).problems == ()
