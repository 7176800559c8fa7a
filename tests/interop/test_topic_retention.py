"""mqstore applies the retention of a topic; RocketMQ opens the directory, pulls every message that it has, and appends.

Two tests show why mqstore works as it does: blank units in a queue of a log that begins at offset 0, and zeros in the
middle of a segment, cost RocketMQ messages that nobody wanted to remove.
"""

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

    from .driver import JavaStore
    from .java_rows import JavaMessage
    from .shop import Shop
    from .tally import Tally

pytestmark = pytest.mark.interop

TOPICS = {"orders": topic(2), "other": topic(1)}
UNITS = GEOMETRY["queue_file_entries"]
COUNT = 1500
KEPT = 400
BLANK = bytes(8) + (2**31 - 1).to_bytes(4, "big") + bytes(8)
"""The unit with which RocketMQ fills a queue before its first message."""


@pytest.fixture
def expired(tmp_path: Path) -> Path:
    """A store with 1,500 messages of a topic in three queue files, of which the last 400 are kept."""
    path = tmp_path / "store"
    with mqstore.open(path, "create", **GEOMETRY) as store:
        store.create_topic("orders", queues=2)
        for number in range(COUNT):
            store.append("orders", b"%d" % number * 100, keys=f"k{number}", queue_id=0)
            store.append("other", b"%d" % number * 100, keys=f"k{number}")
        store.set_retention("orders", max_messages=KEPT)
        report = store.expire()
        assert [file.kind for file in report.files] == ["queue"]
        assert report.topics[0].messages == COUNT - KEPT
    return path


def pulled(java: JavaStore, name: str, start: int) -> list[JavaMessage]:
    """Return the messages that a consumer gets with pulls of 32, from `start` on."""
    found: list[JavaMessage] = []
    while True:
        status, following, messages = java.pull(name, 0, start)
        found += messages
        if status == "OFFSET_OVERFLOW_ONE" or following == start:
            return found
        start = following


@pytest.mark.parametrize("clean", [True, False], ids=["clean", "unclean"])
def test_rocketmq_reads_all_that_is_kept_and_goes_on(
    expired: Path, shop: Shop, version: str, tally: Tally, clean: bool
) -> None:
    """Its queue begins at the first file that is left; no message from there on is missing in pulls of 32."""
    if not clean:
        (expired / "abort").write_text("1")
    java = opened(shop, version, expired, TOPICS)
    assert java.report.was_clean is clean
    assert java.report.complaints() == []
    assert bounds(java) == {("orders", 0): (UNITS, COUNT), ("other", 0): (0, COUNT)}
    assert java.pull("orders", 0, 5)[:2] == ("OFFSET_TOO_SMALL", UNITS)
    theirs = pulled(java, "orders", UNITS)
    assert [each.entry_offset for each in theirs] == list(range(UNITS, COUNT))
    assert len(pulled(java, "other", 0)) == COUNT
    java.put([{"topic": "orders", "body": "on", "queue_id": 0} for _ in range(10)])
    java.await_dispatch()
    assert bounds(java)["orders", 0] == (UNITS, COUNT + 10)
    view = java.read().by_queue()
    java.close()
    kept = [each for each in view["orders", 0] if each.entry_offset >= COUNT - KEPT]
    for mode in ("r", "rw"):
        with mqstore.open(expired, mode) as store:
            assert store.queues("orders")[0].min_offset == COUNT - KEPT
            tally.messages += assert_same_messages(kept, store.read("orders", 0), by_entry=True, where="orders")
            tally.messages += assert_same_messages(
                view["other", 0], store.read("other", 0), by_entry=True, where="other"
            )
    assert mqstore.verify(expired).ok


def test_queues_that_rocketmq_rebuilds(expired: Path, shop: Shop, version: str) -> None:
    """RocketMQ does not know the floor and shows all records that the log has; mqstore still hides them."""
    for folder in ("consumequeue", "index"):
        shutil.rmtree(expired / folder)
    java = opened(shop, version, expired, TOPICS)
    java.await_dispatch()
    assert bounds(java) == {("orders", 0): (0, COUNT), ("other", 0): (0, COUNT)}
    java.close()
    for mode in ("r", "rw"):
        with mqstore.open(expired, mode) as store:
            found = [message.queue_offset for message in store.read("orders", 0)]
            assert found == list(range(COUNT - KEPT, COUNT))
    assert mqstore.verify(expired).ok


def test_blank_units_would_lose_messages_of_a_log_that_begins_at_0(expired: Path, shop: Shop, version: str) -> None:
    """The reason why mqstore overwrites no unit: a pull that meets a blank skips messages of the first segment."""
    queue = expired / "consumequeue" / "orders" / "0" / f"{UNITS * 20:020}"
    first = COUNT - KEPT - UNITS
    with queue.open("r+b") as file:
        file.write(BLANK * first)
    java = opened(shop, version, expired, TOPICS)
    begin = bounds(java)["orders", 0][0]
    assert UNITS <= begin < COUNT - KEPT, "a blank counts as a message of the record at log offset 0"
    theirs = {each.entry_offset for each in pulled(java, "orders", begin)}
    java.close()
    lost = set(range(COUNT - KEPT, COUNT)) - theirs
    assert lost, "RocketMQ has changed: mqstore could overwrite units"


def test_zeros_in_a_segment_would_end_the_log(tmp_path: Path, shop: Shop, version: str) -> None:
    """The reason why mqstore frees no part of a segment: an unclean start deletes everything after zeros."""
    path = tmp_path / "store"
    with mqstore.open(path, "create", **GEOMETRY) as store:
        results = [store.append("orders", bytes([number % 256]) * 40_000, queue_id=0) for number in range(200)]
    segments = sorted((path / "commitlog").iterdir())
    assert len(segments) > 3
    hole = results[10]
    with segments[0].open("r+b") as file:
        file.seek(hole.commit_log_offset)
        file.write(bytes(hole.size))
    (path / "checkpoint").unlink()
    (path / "abort").write_text("1")
    java = opened(shop, version, path, TOPICS)
    java.await_dispatch()
    assert bounds(java)["orders", 0][1] == 10
    java.close()
    assert [file.name for file in sorted((path / "commitlog").iterdir()) if file.is_file()][:1] == [segments[0].name]
    assert not segments[2].exists() or segments[2].read_bytes().strip(b"\0") == b""
