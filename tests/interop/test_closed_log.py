"""mqstore closes the active segment early, with a filler; RocketMQ opens the directory, reads and appends.

The log is empty afterwards, or has the closed segment, or a rewritten one with a message after it.
"""

from __future__ import annotations

import shutil
import time
import warnings
from typing import TYPE_CHECKING, Any

import pytest

import mqstore

from .compare import assert_same_messages
from .market import GEOMETRY, bounds, java_config
from .scenarios import MIB, topic

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .driver import JavaStore
    from .shop import Shop
    from .tally import Tally

pytestmark = pytest.mark.interop

TOPICS = {"orders": topic(1), "other": topic(1)}
COUNT = 600
SEGMENT = 8 * MIB


def filled(path: Path, **options: Any) -> mqstore.Store:
    """Create a store whose messages take about a quarter of the first segment."""
    store = mqstore.open(path, "create", **(GEOMETRY | {"segment_size": SEGMENT}), **options)
    store.create_topic("orders", queues=1)
    store.create_topic("other", queues=1)
    for number in range(COUNT):
        store.append("orders", b"%d" % number * 1000, keys=f"k{number}")
    return store


def emptied(path: Path) -> int:
    """All messages are deleted. Return the offset at which the queue begins."""
    with filled(path, retention=0.001) as store:
        time.sleep(0.01)
        assert store.expire().segments == 1
    return COUNT


def kept(path: Path) -> int:
    """The closed segment stays, and messages follow in the next one."""
    store = filled(path, retention=0.001, before_delete=lambda _file: False)
    with store:
        time.sleep(0.01)
        assert store.expire().segments == 0
        for number in range(COUNT, COUNT + 20):
            store.append("orders", b"%d" % number, keys=f"k{number}")
    return 0


def rewritten(path: Path) -> int:
    """A placeholder replaces the messages of a deleted topic in the closed segment."""
    with filled(path) as store:
        store.append_many("other", [b"x" * 10_000] * 300)
        store.delete_topic("other")
        assert len(store.reclaim().segments) == 1
    return 0


def cleanly(_path: Path) -> None:
    pass


def killed(path: Path) -> None:
    (path / "abort").write_text("1")


def without_checkpoint(path: Path) -> None:
    (path / "abort").write_text("1")
    (path / "checkpoint").unlink()


def without_queues(path: Path) -> None:
    shutil.rmtree(path / "consumequeue")
    shutil.rmtree(path / "index")


def read(java: JavaStore, start: int) -> list[int]:
    """Return the offsets that a consumer gets from `start` on."""
    found: list[int] = []
    while True:
        status, following, messages = java.pull("orders", 0, start)
        found += [each.entry_offset for each in messages]
        if status == "OFFSET_OVERFLOW_ONE" or following == start:
            return found
        start = following


@pytest.mark.parametrize(
    "change", [cleanly, killed, without_queues, pytest.param(without_checkpoint, marks=pytest.mark.soak)]
)
@pytest.mark.parametrize("make", [emptied, kept, rewritten])
def test_rocketmq_opens_a_log_that_was_closed_early(
    tmp_path: Path,
    shop: Shop,
    version: str,
    tally: Tally,
    make: Callable[[Path], int],
    change: Callable[[Path], None],
) -> None:
    path = tmp_path / "store"
    first = make(path)
    with mqstore.open(path) as store:
        end = store.queues("orders")[0].max_offset
    files = {file.name for file in (path / "commitlog").iterdir() if file.is_file()}
    change(path)
    if make is emptied and change is without_queues:
        # Nothing is left that knows the offsets, as after each loss of the queues of a broker.
        first = end = 0
    java = shop.session(version).open(path, config=java_config({"segment_size": SEGMENT}), topics=TOPICS)
    java.await_dispatch()
    assert java.report.complaints() == []
    assert {file.name for file in (path / "commitlog").iterdir() if file.is_file()} == files
    if end > 0:
        assert bounds(java)["orders", 0] == (first, end)
        assert read(java, first) == list(range(first, end))
    java.put([{"topic": "orders", "body": "on", "queue_id": 0} for _ in range(10)])
    java.await_dispatch()
    assert bounds(java)["orders", 0] == (first, end + 10)
    view = java.read().by_queue()
    java.close()
    for mode in ("r", "rw"):
        with warnings.catch_warnings():
            # After an unclean start, RocketMQ deletes index files. Without queues it counts from 0 again.
            warnings.simplefilter("ignore", mqstore.StoreWarning)
            store = mqstore.open(path, mode)
            with store:
                found = store.read("orders", 0)
                tally.messages += assert_same_messages(view["orders", 0], found, by_entry=True, where="orders")
    assert mqstore.verify(path).ok
