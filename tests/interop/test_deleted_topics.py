"""mqstore deletes a topic and creates it again; RocketMQ reads the directory, appends, and rebuilds the queues."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

import mqstore

from .compare import assert_same_messages
from .market import GEOMETRY, bounds, opened
from .scenarios import topic

if TYPE_CHECKING:
    from pathlib import Path

    from .shop import Shop
    from .tally import Tally

pytestmark = pytest.mark.interop

TOPICS = {"orders": topic(2), "other": topic(1)}
FLOOR = 2 * GEOMETRY["queue_file_entries"]


@pytest.fixture
def recreated(tmp_path: Path) -> Path:
    """A store with a topic that was deleted with 700 messages, more than a queue file has, and got 30 new ones."""
    path = tmp_path / "store"
    with mqstore.open(path, "create", **GEOMETRY) as store:
        store.create_topic("orders", queues=2)
        for number in range(700):
            store.append("orders", f"old {number}".encode(), keys=f"k{number}", queue_id=0)
        store.append("orders", b"old", queue_id=1)
        store.append("other", b"stays", keys="k")
        store.delete_topic("orders")
        store.create_topic("orders", queues=2)
        for number in range(30):
            store.append("orders", f"new {number}".encode(), keys=f"k{number}", queue_id=0)
    return path


def test_rocketmq_starts_at_the_floor_and_goes_on(recreated: Path, shop: Shop, version: str, tally: Tally) -> None:
    """The queues of the new topic begin at the floor, and no old message is in a queue."""
    java = opened(shop, version, recreated, TOPICS)
    assert java.report.complaints() == []
    assert bounds(java) == {("orders", 0): (FLOOR, FLOOR + 30), ("other", 0): (0, 1)}
    java.put([{"topic": "orders", "body": "on", "queue_id": 0} for _ in range(10)])
    java.await_dispatch()
    assert bounds(java)["orders", 0] == (FLOOR, FLOOR + 40)
    theirs = java.read().by_queue()
    java.close()
    for mode in ("r", "rw"):
        with mqstore.open(recreated, mode) as store:
            for name in ("orders", "other"):
                ours = store.read(name, 0)
                tally.messages += assert_same_messages(theirs[name, 0], ours, by_entry=True, where=name)
    assert mqstore.verify(recreated).ok


def test_a_rebuild_by_rocketmq_shows_the_old_messages_to_rocketmq_only(
    recreated: Path, shop: Shop, version: str, tally: Tally
) -> None:
    """The floor is in mqstore's metadata. RocketMQ does not know it, and mqstore still respects it."""
    with mqstore.open(recreated) as store:
        expected = [message.body for message in store.read("orders", 0)]
    for folder in ("consumequeue", "index"):
        shutil.rmtree(recreated / folder)
    java = opened(shop, version, recreated, TOPICS)
    java.await_dispatch()
    first, end = bounds(java)["orders", 0]
    assert (first, end) == (0, 730)
    java.close()
    with pytest.warns(mqstore.StoreWarning, match="rebuilt"):
        mqstore.open(recreated, "rw", **GEOMETRY).close()
    for mode in ("rw", "r"):
        with mqstore.open(recreated, mode) as store:
            assert [message.body for message in store.read("orders", 0)] == expected
            assert len(list(store.lookup("orders", "k7"))) == 1
            tally.messages += len(expected)
    assert mqstore.verify(recreated).ok
