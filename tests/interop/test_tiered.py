"""Tiered stores that RocketMQ's own classes wrote: mqstore reads each queue with its offsets."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

import mqstore

from .compare import java_fields, mqstore_fields, state_of
from .java_rows import message
from .market import bounds
from .scenarios import LONG_TOPICS, mixed, topic

if TYPE_CHECKING:
    from pathlib import Path

    from .java_rows import JavaMessage, JavaView, Spec
    from .shop import Shop
    from .tally import Tally

pytestmark = pytest.mark.interop

LONG = max(LONG_TOPICS, key=len)
QUEUES = {"orders": 3, "events": 1}
TOPICS = {**{name: topic(queues) for name, queues in QUEUES.items()}, LONG: topic()}
LOCAL: dict[str, Any] = {"enabledAppendPropCRC": True, "maxHashSlotNum": 100, "maxIndexNum": 400}
DEFAULT_FILES = {"maxHashSlotNum": 5_000_000, "maxIndexNum": 20_000_000}
TIERED = {
    "brokerClusterName": "DefaultCluster",
    "tieredStoreCommitLogMaxSize": 32 << 10,
    "tieredStoreConsumeQueueMaxSize": 20 * 50,
}
STARTS = {("orders", 1): 23}

PLACES = ("commit_log_offset", "message_id")
"""The fields that are about a place in a log."""


def specs(count: int, seed: str) -> list[Spec]:
    """Returns messages of every kind, with a long topic between them."""
    made = mixed(QUEUES, count, seed)
    made.insert(count // 3, message(LONG, (seed, 300), keys=[f"{seed}-long"]))
    return made


def without_place(fields: dict[str, Any]) -> dict[str, Any]:
    """Returns the fields that do not depend on the log. The checksum of a record covers its log offset."""
    kept = {name: value for name, value in fields.items() if name not in PLACES}
    kept["properties"] = {name: value for name, value in kept["properties"].items() if name != "__CRC32#"}
    return kept


def expected(view: JavaView) -> dict[tuple[str, int], list[JavaMessage]]:
    """Returns the messages that the tiered store has."""
    by_queue = {key: rows for key, rows in view.by_queue().items() if rows}
    return {key: [row for row in rows if row.entry_offset >= STARTS.get(key, 0)] for key, rows in by_queue.items()}


def assert_same_tier(tier: Path, view: JavaView, tally: Tally) -> None:
    """Compares every queue of a tiered store with the local store that it copies."""
    before = state_of(tier)
    wanted = expected(view)
    with mqstore.open(tier) as store:
        found = {(name, each.queue_id) for name in store.topics() for each in store.queues(name)}
        assert found == set(wanted)
        for (name, queue_id), rows in wanted.items():
            (bounds,) = [each for each in store.queues(name) if each.queue_id == queue_id]
            assert (bounds.min_offset, bounds.max_offset) == (rows[0].entry_offset, rows[-1].entry_offset + 1)
            ours = [without_place(mqstore_fields(each)) for each in store.read(name, queue_id)]
            theirs = [without_place(java_fields(each, by_entry=True)) for each in rows]
            assert ours == theirs, f"{name}/{queue_id}"
            middle = rows[len(rows) // 2]
            assert next(store.read(name, queue_id, middle.entry_offset)).unique_id == middle.unique_id
            if middle.unique_id is not None:
                assert store.get(middle.unique_id).body == next(store.read(name, queue_id, middle.entry_offset)).body
            tally.messages += len(rows)
            tally.queues += 1
    total = sum(map(len, wanted.values()))
    report = mqstore.verify(tier)
    assert (report.problems, report.messages) == ((), total)
    assert mqstore.scan(tier, columns=["queue_offset"]).to_arrow().num_rows == total
    assert state_of(tier) == before, "reading changed files"


def places(view: JavaView) -> dict[tuple[str, int], list[tuple[int, str]]]:
    """Returns the offset and the body of each message, by queue."""
    found = {key: [(each.entry_offset, each.body_md5) for each in rows] for key, rows in view.by_queue().items()}
    return {key: rows for key, rows in found.items() if rows}


def test_a_tiered_store_and_its_export(shop: Shop, version: str, tmp_path: Path, tally: Tally) -> None:
    path, tier, session = tmp_path / "store", tmp_path / "tier", shop.session(version)
    config = {**TIERED, "tieredStoreFilePath": tier}
    java = session.open(path, config=LOCAL, topics=TOPICS, write_topics=True, tiered=config, starts=STARTS)
    java.put(specs(400, "first"))
    assert java.upload() == sum(map(len, expected(java.read()).values()))
    assert_same_tier(tier, java.read(), tally)
    # More messages, while both programs have the files open.
    java.put(specs(700, "second"))
    java.upload()
    view = java.read()
    java.close()
    logs = list((tier / "212d6b50_DefaultCluster" / "interop" / "orders" / "0" / "COMMIT_LOG").iterdir())
    assert len(logs) >= 3
    assert_same_tier(tier, view, tally)
    info = mqstore.info(tier)
    assert (info.tiered[0].cluster, info.tiered[0].broker) == ("DefaultCluster", "interop")
    with pytest.raises(mqstore.UnsupportedFormatError, match="mqstore export"):
        mqstore.open(tier, "rw")
    # RocketMQ opens the export as a plain store.
    copy = tmp_path / "copy"
    mqstore.export(tier, copy, format="store")
    java = session.open(copy, config=DEFAULT_FILES, topics=TOPICS)
    assert java.report.complaints() == []
    wanted = {key: [(each.entry_offset, each.body_md5) for each in rows] for key, rows in expected(view).items()}
    assert places(java.read()) == wanted
    assert bounds(java)["orders", 1][0] == STARTS["orders", 1]
    assert java.pull("orders", 1, 3)[:2] == ("OFFSET_TOO_SMALL", STARTS["orders", 1])
    # A pull that meets a blank unit passes over no message.
    status, following, pulled = java.pull("orders", 1, STARTS["orders", 1] - 1, 8)
    assert (status, following, pulled) == ("OFFSET_TOO_SMALL", STARTS["orders", 1], [])
    pulled = java.pull("orders", 1, STARTS["orders", 1], 8)[2]
    assert [each.entry_offset for each in pulled] == [offset for offset, _ in wanted["orders", 1][:8]]
    # RocketMQ derives the same queues from the log.
    java.close()
    for folder in ("consumequeue", "index"):
        shutil.rmtree(copy / folder)
    java = session.open(copy, config=DEFAULT_FILES, topics=TOPICS)
    java.await_dispatch()
    assert places(java.read()) == wanted
    java.put([message("orders", b"more", queue_id=1)])
    java.close()
    with mqstore.open(copy) as store:
        assert store.tail("orders", 1, queue_id=1)[0].queue_offset == wanted["orders", 1][-1][0] + 1
    assert mqstore.verify(copy).problems == ()
