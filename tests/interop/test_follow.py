"""Live copies of real masters: equal byte for byte whatever is cut, readable at once, and a store for RocketMQ."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import mqstore

from .compare import assert_same_messages
from .cutter import Cutter
from .java_rows import message
from .market import GEOMETRY, java_config
from .scenarios import topic

if TYPE_CHECKING:
    from .driver import JavaStore
    from .java_rows import JavaMessage, Spec
    from .shop import Shop
    from .tally import Tally

pytestmark = pytest.mark.interop

TOPICS = {"orders": topic(2), "prices": topic(1)}
LIMITED = {"haFlowControlEnable": True, "maxHaTransferByteInSecond": 20 << 20}
"""A master that sends an empty frame if its rate is used up."""


def batch(first: int, count: int) -> list[Spec]:
    """Messages of two topics, up to 3,000 bytes."""
    names = ("orders", "orders", "prices")
    return [
        message(names[n % 3], (f"b{n}", 37 * n % 3000 + 1), queue_id=n % 3 % 2, keys=[f"k{n}"])
        for n in range(first, first + count)
    ]


def files_of(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in sorted((path / "commitlog").iterdir()) if file.is_file()}


def assert_equal_logs(master: Path, copy: Path) -> None:
    """Both logs have the same bytes; either side can have prepared one more segment."""
    theirs, ours = files_of(master), files_of(copy)
    shared = theirs.keys() & ours.keys()
    assert len(shared) >= min(len(theirs), len(ours))
    for name in theirs.keys() | ours.keys():
        if name in shared:
            assert theirs[name] == ours[name], name
        else:
            assert not any((theirs | ours)[name]), name


def follow(address: str, path: Path, **options: Any) -> mqstore.Follower:
    return mqstore.follow(address, path, **(GEOMETRY | options))


def assert_same_queues(view: dict[tuple[str, int], list[JavaMessage]], store: mqstore.Store, tally: Tally) -> None:
    """RocketMQ finds in its store what a store of ours has."""
    for (name, queue), messages in view.items():
        tally.messages += assert_same_messages(messages, store.read(name, queue), by_entry=True, where=name)


def check_copy(java: JavaStore, copy: Path, tally: Tally) -> None:
    """Compare what readers of the copy find with what RocketMQ finds."""
    view = java.read().by_queue()
    with mqstore.open(copy) as store:
        assert {(name, queue) for name, queue in view if view[name, queue]} == {
            (name, queue.queue_id) for name in store.topics() for queue in store.queues(name)
        }
        assert_same_queues(view, store, tally)
        assert [each.body for each in store.lookup("orders", "k300")]
        with pytest.raises(mqstore.StoreReadOnlyError, match=r"is a copy of 127\.0\.0\.1:\d+, which alone can append"):
            store.append("orders", b"x")


@pytest.mark.parametrize(
    ("protocol", "count", "cuts"),
    [
        ("default", 1000, 12),
        ("autoswitch", 1000, 12),
        pytest.param("default", 20_000, 30, marks=pytest.mark.soak),
        pytest.param("autoswitch", 20_000, 30, marks=pytest.mark.soak),
    ],
)
def test_a_copy_is_equal_whatever_is_cut(
    tmp_path: Path, shop: Shop, version: str, tally: Tally, protocol: Any, count: int, cuts: int
) -> None:
    """The connection is cut at any byte while the master appends, and the copy is opened again meanwhile."""
    master, copy = tmp_path / "master", tmp_path / "copy"
    epoch = 1 if protocol == "autoswitch" else None
    java = shop.session(version).open(master, config=java_config({}) | LIMITED, topics=TOPICS, epoch=epoch)
    java.put(batch(0, count))
    with Cutter(java.report.ha_port, 7, 150 * count) as cutter:
        for part in range(1, 5):
            with follow(cutter.address, copy, protocol=protocol) as follower:
                java.put(batch(count * part, count))
                deadline = time.monotonic() + 60
                while cutter.cuts < cuts * part and time.monotonic() < deadline:
                    time.sleep(0.02)
                with pytest.raises(mqstore.StoreLockedError):
                    mqstore.follow(cutter.address, copy)
        cutter.keep_whole()
        with follow(cutter.address, copy, protocol=protocol, durable_acks=True) as follower:
            status = follower.wait(timeout=60)
            assert status.state == "following"
            assert cutter.cuts >= 4 * cuts
            assert status.epoch == epoch
            # A reader in this process, while the copy continues.
            check_copy(java, copy, tally)
            (last,) = java.put(batch(9 * count, 1))
            follower.wait(last.commit_log_offset + last.size, timeout=60)
        java.close()
    assert_equal_logs(master, copy)
    assert mqstore.verify(copy).ok
    with pytest.raises(mqstore.StoreReadOnlyError, match="promote"):
        mqstore.open(copy, "rw")
    assert mqstore.promote(copy) == cutter.address
    with mqstore.open(copy, "rw") as store:
        store.append("orders", b"own")


def test_rocketmq_takes_a_copy_over(tmp_path: Path, shop: Shop, version: str, tally: Tally) -> None:
    """The copy begins with the last segment. RocketMQ opens it, and finds its messages."""
    master, copy = tmp_path / "master", tmp_path / "copy"
    java = shop.session(version).open(master, config=java_config({}), topics=TOPICS)
    puts = java.put(batch(0, 3000))
    address = f"127.0.0.1:{java.report.ha_port}"
    with follow(address, copy, begin="last") as follower:
        follower.wait(puts[-1].commit_log_offset + puts[-1].size, timeout=60)
    begin = int(min(files_of(copy)))
    assert begin > 0
    kept = [put.commit_log_offset for put in puts if put.commit_log_offset >= begin]
    other = shop.session(version).open(copy, config=java_config({}), topics=TOPICS)
    assert other.report.complaints() == []
    assert [each.commit_log_offset for each in other.log()] == kept
    shop.session(version).close_stores([java, other])
    with follow("127.0.0.1:1", copy) as follower:
        assert follower.status().log_end == puts[-1].commit_log_offset + puts[-1].size
    tally.messages += len(kept)


def test_a_new_master_truncates_the_copy(tmp_path: Path, shop: Shop, version: str) -> None:
    """The copy is ahead of the next master, which begins an epoch of its own."""
    first, second, copy = (tmp_path / name for name in ("first", "second", "copy"))
    session = shop.session(version)
    java = session.open(first, config=java_config({}), topics=TOPICS, epoch=1)
    java.put(batch(0, 400))
    with follow(f"127.0.0.1:{java.report.ha_port}", second, protocol="autoswitch") as follower:
        follower.wait(timeout=60)
    (lost,) = java.put(batch(400, 1))
    with follow(f"127.0.0.1:{java.report.ha_port}", copy, protocol="autoswitch") as follower:
        follower.wait(lost.commit_log_offset + lost.size, timeout=60)
    java.close()
    java = session.open(second, config=java_config({}), topics=TOPICS, epoch=2)
    assert java.report.max_physical == lost.commit_log_offset
    (new,) = java.put([message("prices", b"new", queue_id=0)])
    with follow(f"127.0.0.1:{java.report.ha_port}", copy, protocol="autoswitch") as follower:
        status = follower.wait(new.commit_log_offset + new.size, timeout=60)
        assert status.epoch == 2
    java.close()
    assert_equal_logs(second, copy)
    (kept,) = (copy / "mqstore/lost+found").iterdir()
    assert kept.read_bytes()[: lost.size] in (first / "commitlog" / kept.name[:20]).read_bytes()
    assert mqstore.verify(copy).ok


def test_another_master_and_a_full_copy(tmp_path: Path, shop: Shop, version: str) -> None:
    session = shop.session(version)
    one = session.open(tmp_path / "one", config=java_config({}), topics=TOPICS)
    two = session.open(tmp_path / "two", config=java_config({}), topics=TOPICS)
    one.put(batch(0, 100))
    two.put(batch(5000, 100))
    copy = tmp_path / "copy"
    with follow(f"127.0.0.1:{one.report.ha_port}", copy) as follower:
        follower.wait(timeout=60)
    follower = follow(f"127.0.0.1:{two.report.ha_port}", copy)
    with pytest.raises(mqstore.RefusedError, match="no copy of the master's log from log offset"):
        follower.wait(timeout=60)
    assert not follower.running
    with pytest.raises(mqstore.RefusedError):
        follower.close()
    with follow(f"127.0.0.1:{two.report.ha_port}", copy, full_copy=True) as follower:
        follower.wait(timeout=60)
    session.close_stores([one, two])
    assert_equal_logs(tmp_path / "two", copy)
