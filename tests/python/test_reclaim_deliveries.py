"""Delayed messages and transactions after a reclaim: an open with only the log repeats no delivery and no commit."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest

import mqstore
from conftest import SMALL, until

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("pyarrow")

SECRET = b"secret of orders "


def fill(store: mqstore.Store, topic: str) -> None:
    """Appends messages that fill about four segments."""
    store.append_many(topic, [b"x" * 5000] * 50, queue_id=0)


def erased(store: mqstore.Store, way: str) -> mqstore.ReclaimReport:
    """Hides the messages of orders by a retention or a deletion, and erases them."""
    if way == "retention":
        store.set_retention("orders", max_messages=2)
        store.expire()
        done = store.reclaim(erase="orders")
    else:
        found = store.delete_topic("orders", erase=True)
        store.create_topic("orders", queues=1)
        assert found is not None
        done = found
    assert len(done.segments) > 2
    return done


def restored(store: mqstore.Store, folder: Path) -> Path:
    """Archives the store and restores it: all that is left of it is the log."""
    store.archive.run_to(folder / "cold")
    mqstore.Archive(folder / "cold").restore(folder / "restored")
    return folder / "restored"


def unchanged(home: Path) -> bool:
    """Whether an open for writing appends nothing."""
    with mqstore.open(home) as store:
        end = store.stats().log_max_offset
    with mqstore.open(home, "rw") as store:
        time.sleep(1.5)
        return store.stats().log_max_offset == end


@pytest.fixture
def store(home: Path) -> mqstore.Store:
    opened = mqstore.open(home, "create", options=SMALL, queue_file_entries=8)
    for topic in ("orders", "live"):
        opened.create_topic(topic, queues=1)
    fill(opened, "orders")
    return opened


@pytest.mark.parametrize("way", ["retention", "deletion"])
@pytest.mark.parametrize("options", [{"deliver_at": 100}, {"delay_level": 1}], ids=["time", "level"])
def test_delayed_messages_are_not_delivered_again(
    store: mqstore.Store, tmp_path: Path, options: dict[str, int], way: str
) -> None:
    if "deliver_at" in options:
        options = {"deliver_at": time.time_ns() // 1_000_000 + 300}
    with store:
        for number in range(5):
            store.append("orders", SECRET * 100 + b"%d" % number, queue_id=0, **options)
        until(lambda: store.queues("orders")[0].max_offset == 55)
        fill(store, "orders")
        fill(store, "live")
        done = erased(store, way)
        reasons = [one.reason for one in done.kept]
        assert any("deliveries of delayed messages" in reason for reason in reasons)
        copy = restored(store, tmp_path)
    assert unchanged(copy)
    with mqstore.open(copy) as reader:
        late = [message.body for message in reader._scan_log() if message.body.startswith(SECRET)]
        assert len(late) == 10, "the delayed messages, and their deliveries"


@pytest.mark.parametrize("way", ["retention", "deletion"])
def test_transactions_are_not_committed_again(store: mqstore.Store, tmp_path: Path, way: str) -> None:
    with store:
        for number in range(3):
            with store.transaction("group") as transaction:
                transaction.append("orders", SECRET * 100 + b"%d" % number, queue_id=0)
                transaction.append("live", b"shown %d" % number, queue_id=0)
                transaction.append("orders", SECRET * 100, queue_id=0)
        fill(store, "orders")
        fill(store, "live")
        done = erased(store, way)
        # Half messages are records of the system, which stay.
        assert any("have copies of these messages" in one.reason for one in done.kept)
        copy = restored(store, tmp_path)
    assert unchanged(copy)
    with mqstore.open(copy) as reader:
        bodies = [one.body for one in reader.read("live")]
        assert [one for one in bodies if one.startswith(b"shown")] == [b"shown %d" % number for number in range(3)]
        assert not [one for one in reader._scan_log() if one.topic == "orders" and one.body.startswith(SECRET)]
