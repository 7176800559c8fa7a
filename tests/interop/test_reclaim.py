"""mqstore frees the space of hidden messages; RocketMQ opens the directory in every state, and finds all others."""

from __future__ import annotations

import shutil
import warnings
from typing import TYPE_CHECKING

import pytest

import mqstore

from .compare import assert_same_messages
from .market import GEOMETRY, bounds, java_config
from .scenarios import topic

if TYPE_CHECKING:
    from pathlib import Path

    from .driver import JavaStore
    from .shop import Shop
    from .tally import Tally

pytestmark = pytest.mark.interop

LONG = "%RETRY%" + "long" * 33
"""A topic name so long that its records have another magic code."""
TOPICS = {"live": topic(1), "metrics": topic(1)}
UNITS = GEOMETRY["queue_file_entries"]
COUNT = 700
KEPT = 50
LAST = 1400
SIZE = 3000
CHECKS = {"enabledAppendPropCRC": True, "forceVerifyPropCRC": True}
"""RocketMQ then checks each record by its property CRC, and refuses records without one."""


def burst(store: mqstore.Store, name: str, count: int) -> None:
    store.append_many(name, [f"{name} ".encode() * (SIZE // (len(name) + 1))] * count)


def reclaimed(path: Path, **options: object) -> dict[str, int]:
    """Create a store with placeholders: whole segments of them, and between live records. Return the first offsets."""
    with mqstore.open(path, "create", **(GEOMETRY | options)) as store:
        for name in ("gone", LONG, "live", "metrics"):
            store.create_topic(name, queues=1)
        burst(store, "gone", 700)
        for _ in range(COUNT // 20):
            for name in (LONG, "metrics", "live"):
                burst(store, name, 20)
        burst(store, "gone", 800)
        # RocketMQ 5.5.0 derives the queues of the last ten segments only, and the last two are never rewritten.
        burst(store, "live", LAST)
        assert 6 <= len(segments(path)) <= 9
        store.delete_topic("gone")
        store.delete_topic(LONG)
        store.set_retention("metrics", max_messages=KEPT)
        store.expire()
        times = {file.name: file.stat().st_mtime_ns // 10**6 for file in segments(path)}
        blocks = sum(file.stat().st_blocks for file in segments(path))
        done = store.reclaim(erase=["gone", LONG, "metrics"])
        assert len(done.segments) >= 4
        assert done.segments[0].log_offset == 0
        assert any(one.live_bytes == 0 for one in done.segments)
        # Many placeholders in a row are in the segment with the records of all topics.
        assert any(one.live_bytes > 0 for one in done.segments)
        assert {file.name: file.stat().st_mtime_ns // 10**6 for file in segments(path)} == times
        freed = 512 * (blocks - sum(file.stat().st_blocks for file in segments(path)))
        assert done.reclaimed_bytes == freed
        # Only records whose queue file is gone are replaced.
        assert [one.topic for one in done.topics] == sorted(["gone", LONG, "metrics"])
        return {"live": 0, "metrics": UNITS * ((COUNT - KEPT) // UNITS)}


def segments(path: Path) -> list[Path]:
    return sorted(file for file in (path / "commitlog").iterdir() if file.is_file())


def pulled(java: JavaStore, name: str, start: int, end: int) -> list[int]:
    """Return the offsets that a consumer gets with pulls of 32, from `start` on."""
    found: list[int] = []
    while start < end:
        _, following, messages = java.pull(name, 0, start)
        found += [each.entry_offset for each in messages]
        if following == start:
            break
        start = following
    return found


def check(path: Path, java: JavaStore, firsts: dict[str, int], tally: Tally) -> None:
    """Compare RocketMQ's answers with those of mqstore, then let RocketMQ append, and verify the directory."""
    assert java.report.complaints() == []
    java.await_dispatch()
    ends = {"live": COUNT + LAST, "metrics": COUNT}
    assert bounds(java) == {(name, 0): (first, ends[name]) for name, first in firsts.items()}
    for name, first in firsts.items():
        assert pulled(java, name, first, ends[name]) == list(range(first, ends[name]))
    java.put([{"topic": "live", "body": "on", "queue_id": 0} for _ in range(10)])
    java.await_dispatch()
    view = java.read().by_queue()
    java.close()
    kept = [each for each in view["metrics", 0] if each.entry_offset >= COUNT - KEPT]
    for mode in ("r", "rw"):
        with warnings.catch_warnings():
            # After an unclean start, RocketMQ deletes index files.
            warnings.simplefilter("ignore", mqstore.StoreWarning)
            opened = mqstore.open(path, mode)
        with opened as store:
            assert store.queues("metrics")[0].min_offset == COUNT - KEPT
            for name, theirs in (("metrics", kept), ("live", view["live", 0])):
                tally.messages += assert_same_messages(theirs, store.read(name, 0), by_entry=True, where=name)
    assert mqstore.verify(path).ok


@pytest.mark.parametrize("state", ["clean", "unclean", "without_checkpoint", "without_queues"])
def test_rocketmq_finds_every_message_that_is_kept(
    tmp_path: Path, shop: Shop, version: str, tally: Tally, state: str
) -> None:
    """No segment is deleted or cut, no queue begins elsewhere, and no pull skips a message."""
    path = tmp_path / "store"
    firsts = reclaimed(path)
    names = [file.name for file in segments(path)]
    if state in ("unclean", "without_checkpoint"):
        (path / "abort").write_text("1")
    if state == "without_checkpoint":
        (path / "checkpoint").unlink()
    if state == "without_queues":
        for folder in ("consumequeue", "index"):
            shutil.rmtree(path / folder)
    java = shop.session(version).open(path, config=java_config({}) | CHECKS, topics=TOPICS)
    check(path, java, firsts, tally)
    assert [file.name for file in segments(path)][: len(names)] == names


def test_records_without_a_checksum_and_with_ipv6(tmp_path: Path, shop: Shop, version: str, tally: Tally) -> None:
    path = tmp_path / "store"
    firsts = reclaimed(path, record_crc=False, store_host="[2001:db8::5]:10911")
    (path / "abort").write_text("1")
    (path / "checkpoint").unlink()
    shutil.rmtree(path / "consumequeue")
    java = shop.session(version).open(path, config=java_config({}), topics=TOPICS)
    check(path, java, firsts, tally)
