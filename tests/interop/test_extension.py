"""Queues whose entries point to bit maps in `consumequeue_ext/` instead of holding the hash of the tags."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import mqstore

from .java_rows import message
from .market import GEOMETRY, java_config
from .scenarios import topic

if TYPE_CHECKING:
    from pathlib import Path

    from .shop import Shop
    from .tally import Tally

pytestmark = pytest.mark.interop


def test_filters_hold_where_entries_have_an_extension(shop: Shop, version: str, tmp_path: Path, tally: Tally) -> None:
    path = tmp_path / "store"
    config = {**java_config(GEOMETRY), "enableConsumeQueueExt": True}
    topics = {"shop": topic()}
    specs = [message("shop", (f"{n}", 30), tags=("paid", "open", None)[n % 3]) for n in range(300)]
    java = shop.session(version).open(path, config=config, topics=topics, write_topics=True)
    java.put(specs)
    java.await_dispatch()
    java.close()
    assert any((path / "consumequeue_ext").rglob("0*"))
    for _ in range(2):
        assert mqstore.verify(path).ok
        with mqstore.open(path) as store:
            found = [m.queue_offset for m in store.read("shop", filter="paid")]
            assert found == list(range(0, 300, 3))
            assert [m.tags for m in store.read("shop", filter="open || absent")] == ["open"] * 100
            tally.messages += len(found)
        # mqstore's entries hold the hash. RocketMQ accepts both.
        mqstore.rebuild(path)
    java = shop.session(version).open(path, config=config, topics=topics)
    assert java.report.complaints() == []
    java.put(specs[:3])
    java.await_dispatch()
    assert [(queue.min_offset, queue.max_offset) for queue in java.read().queues] == [(0, 303)]
    java.close()
    assert mqstore.verify(path).ok
