"""Real slaves of our stores: equal byte for byte whatever is cut, and masters that replace each other."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import mqstore

from .cutter import Cutter
from .java_rows import body_of
from .market import GEOMETRY, java_config
from .test_follow import TOPICS, assert_equal_logs, assert_same_queues, batch, follow

if TYPE_CHECKING:
    from .driver import JavaSession, JavaStore
    from .java_rows import Spec
    from .shop import Shop
    from .tally import Tally

pytestmark = pytest.mark.interop

QUICK = {"haSendHeartbeatInterval": 100}
"""Milliseconds after which a slave asks for the log."""


def master(path: Path, **options: Any) -> mqstore.Store:
    """Open a store that serves replicas at a free port."""
    replication = mqstore.Master(listen="127.0.0.1:0", ack_timeout=30.0)
    return mqstore.open(path, "create", replication=replication, **(GEOMETRY | options))


def port_of(store: mqstore.Store) -> int:
    return int(str(store.replication_address()).rpartition(":")[2])


def slave(session: JavaSession, path: Path, epoch: int | None) -> JavaStore:
    config = java_config({}) | QUICK | {"brokerRole": "SLAVE"}
    return session.open(path, config=config, topics=TOPICS, epoch=epoch)


def append(store: mqstore.Store, specs: list[Spec], **options: Any) -> None:
    for one in specs:
        keys = one["properties"].get("KEYS", ())
        store.append(one["topic"], body_of(one), keys=keys, queue_id=one["queue_id"], **options)


def create_topics(store: mqstore.Store) -> None:
    for name, settings in TOPICS.items():
        store.create_topic(name, settings["queues"])


@pytest.mark.parametrize(
    ("protocol", "count", "cuts"),
    [
        ("default", 600, 2),
        ("autoswitch", 600, 2),
        # A slave of RocketMQ waits for five seconds after each cut.
        pytest.param("default", 100_000, 100, marks=(pytest.mark.soak, pytest.mark.timeout(1800))),
        pytest.param("autoswitch", 100_000, 100, marks=(pytest.mark.soak, pytest.mark.timeout(1800))),
    ],
)
def test_a_slave_of_rocketmq_is_equal_whatever_is_cut(
    tmp_path: Path, shop: Shop, version: str, tally: Tally, protocol: str, count: int, cuts: int
) -> None:
    """The connection is cut at any byte while the store appends, and the store is opened again: a new epoch."""
    epoch = 1 if protocol == "autoswitch" else None
    session = shop.session(version)
    java = slave(session, tmp_path / "slave", epoch)
    with master(tmp_path / "store") as store:
        create_topics(store)
        append(store, batch(0, 1))
        port = port_of(store)
        with Cutter(port, 7, 800 * count // cuts) as cutter:
            # An empty slave of the default protocol gets the last segment only, so it begins with the first message.
            java.follow_address(cutter.address, store.stats().log_max_offset)
            appended = threading.Thread(target=append, args=(store, batch(1, count - 1)))
            appended.start()
            deadline = time.monotonic() + 20 * cuts
            while cutter.cuts < cuts and time.monotonic() < deadline:
                time.sleep(0.02)
            appended.join()
            cutter.keep_whole()
            end = store.stats().log_max_offset
            java.follow_address(cutter.address, end)
            assert cutter.cuts >= cuts
            # Each waits for the slave.
            append(store, batch(count, 20), replicated=True)
            (found,) = store.followers()
            assert (found.protocol, found.broker_id) == (protocol, 2 if epoch else None)
            assert found.in_sync
            assert found.lag_bytes == 0
            stats = store.stats()
            assert (stats.followers, stats.in_sync_copies, stats.needed_copies) == (1, 2, 2)
            assert stats.replicated_offset == stats.log_max_offset
    # Another epoch, at another port.
    with master(tmp_path / "store") as store:
        append(store, batch(2 * count, 100))
        java.follow_address(f"127.0.0.1:{port_of(store)}", store.stats().log_max_offset)
        append(store, batch(3 * count, 5), replicated=True)
        java.await_dispatch()
        assert_same_queues(java.read().by_queue(), store, tally)
    java.close()
    assert_equal_logs(tmp_path / "store", tmp_path / "slave")
    assert mqstore.verify(tmp_path / "slave").ok


def test_masters_replace_each_other(tmp_path: Path, shop: Shop, version: str, tally: Tally) -> None:
    """Our store, a slave of RocketMQ that becomes the master, then ours again, and RocketMQ follows it again.

    Each former master has messages that no other one has, and removes them.
    """
    ours, java_path = tmp_path / "ours", tmp_path / "java"
    session = shop.session(version)
    java = slave(session, java_path, 1)
    with master(ours) as store:
        create_topics(store)
        append(store, batch(0, 300))
        java.follow_address(f"127.0.0.1:{port_of(store)}", store.stats().log_max_offset)
        java.close()
        append(store, batch(300, 3))
    java = session.open(java_path, config=java_config({}), topics=TOPICS, epoch=7)
    java.put(batch(1000, 100))
    address = f"127.0.0.1:{java.report.ha_port}"
    # A store that was a master becomes a copy.
    mqstore.demote(ours, address, protocol="autoswitch")
    with follow(address, ours, protocol="autoswitch") as follower:
        status = follower.wait(timeout=60)
        assert status.epoch == 7
    (lost,) = java.put(batch(2000, 1))
    java.close()
    assert any((ours / "mqstore/lost+found").iterdir())
    mqstore.promote(ours)
    java = slave(session, java_path, 8)
    with master(ours) as store:
        assert store.stats().log_max_offset == lost.commit_log_offset
        append(store, batch(3000, 50))
        java.follow_address(f"127.0.0.1:{port_of(store)}", store.stats().log_max_offset)
        append(store, batch(4000, 5), replicated=True)
        java.await_dispatch()
        assert_same_queues(java.read().by_queue(), store, tally)
    java.close()
    assert_equal_logs(ours, java_path)
