"""mqstore frees the space of hidden messages; RocketMQ opens the directory in every state, and finds all others.

RocketMQ's cleaner deletes the rewritten segments when they are due, and its slaves copy them.
"""

from __future__ import annotations

import os
import shutil
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import mqstore

from .compare import assert_same_messages, md5
from .market import GEOMETRY, bounds, java_config
from .scenarios import topic

if TYPE_CHECKING:
    from .driver import JavaSession, JavaStore
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


def burst(store: mqstore.Store, name: str, count: int, size: int = SIZE) -> int:
    """Append messages. Return the log offset of the last one."""
    results = store.append_many(name, [f"{name} ".encode() * (size // (len(name) + 1))] * count)
    return results[-1].commit_log_offset


def reclaimed(path: Path, *, old: Path | None = None, **options: object) -> dict[str, int]:
    """Create a store with placeholders: whole segments of them, and between live records. Return the first offsets.

    `old` receives the first segment as it was before.
    """
    with mqstore.open(path, "create", **(GEOMETRY | options)) as store:
        for name in ("gone", LONG, "live", "metrics"):
            store.create_topic(name, queues=1)
        burst(store, "gone", 700)
        for _ in range(COUNT // 20):
            for name in (LONG, "metrics", "live"):
                burst(store, name, 20)
        burst(store, "gone", 800)
        # RocketMQ 5.5.0 derives the queues of the last ten segments only.
        burst(store, "live", LAST)
        assert 6 <= len(segments(path)) <= 9
        store.delete_topic("gone")
        store.delete_topic(LONG)
        store.set_retention("metrics", max_messages=KEPT)
        store.expire()
        if old is not None:
            shutil.copy(segments(path)[0], old)
        times = {file.name: file.stat().st_mtime_ns // 10**6 for file in segments(path)}
        blocks = sum(file.stat().st_blocks for file in segments(path))
        done = store.reclaim(erase=["gone", LONG, "metrics"])
        assert len(done.segments) >= 4
        assert done.segments[0].log_offset == 0
        assert any(one.live_bytes == 0 for one in done.segments)
        # Many placeholders in a row are in the segment with the records of all topics.
        assert any(one.live_bytes > 0 for one in done.segments)
        # The last segment is in use: its pages get a new time when they reach the disk.
        rewritten = [f"{one.log_offset:020}" for one in done.segments]
        after = {file.name: file.stat().st_mtime_ns // 10**6 for file in segments(path)}
        assert [after[name] for name in rewritten] == [times[name] for name in rewritten]
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


HOURS = (30, 20, 10)
"""The ages of three groups of segments."""
GROUP = 4
"""Segments of the same age, rewritten ones and others."""


def aged(path: Path) -> tuple[dict[str, int], set[str]]:
    """Create a store with segments of three ages. Return the age of each, and those that are rewritten."""
    with mqstore.open(path, "create", **GEOMETRY) as store:
        for number in range(GROUP * len(HOURS)):
            name = "gone" if number % GROUP == 1 else "live"
            while burst(store, name, 2, 10 * SIZE) < (number + 1) * GEOMETRY["segment_size"]:
                pass
        burst(store, "live", LAST // 10, 10 * SIZE)
        store.delete_topic("gone")
    files = segments(path)
    ages = {file.name: HOURS[number // GROUP] for number, file in enumerate(files[: GROUP * len(HOURS)])}
    now = time.time()
    for number, file in enumerate(files):
        if file.name in ages:
            # Of two segments the later one is always the younger one.
            then = now - 3600 * ages[file.name] + number
            os.utime(file, (then, then))
    times = {file.name: file.stat().st_mtime_ns // 10**6 for file in files if file.name in ages}
    with mqstore.open(path, "rw") as store:
        rewritten = {Path(one.path).name for one in store.reclaim().segments}
    assert {file.name: file.stat().st_mtime_ns // 10**6 for file in segments(path) if file.name in ages} == times
    for hours in HOURS:
        group = {name for name, age in ages.items() if age == hours}
        assert len(group) == GROUP
        assert group & rewritten
        assert group - rewritten
    return ages, rewritten


def test_rocketmq_deletes_rewritten_segments_with_their_neighbours(
    tmp_path: Path, shop: Shop, version: str, tally: Tally
) -> None:
    """With each shorter time of retention, exactly the segments of one age go, rewritten or not."""
    path = tmp_path / "store"
    ages, rewritten = aged(path)
    names = [file.name for file in segments(path)]
    java = shop.session(version).open(path, config=java_config({}), topics={"live": topic(1)})
    assert java.report.complaints() == []
    view = java.read().by_queue()["live", 0]
    assert [each.entry_offset for each in view] == list(range(len(view)))
    for hours in HOURS:
        java.clean(hours + 1)
        assert [name for name in names if (path / "commitlog" / name).exists()] == [
            name for name in names if ages.get(name, 0) <= hours
        ], f"too early: {hours} hours"
        java.clean(hours - 1)
        remaining = [name for name in names if ages.get(name, 0) < hours]
        assert [name for name in names if (path / "commitlog" / name).exists()] == remaining
        assert (hours == HOURS[-1]) or rewritten & set(remaining)
        view = [each for each in view if each.commit_log_offset >= int(remaining[0])]
        first, end = view[0].entry_offset, view[-1].entry_offset + 1
        assert bounds(java)["live", 0] == (first, end)
        assert pulled(java, "live", first, end) == list(range(first, end))
    java.close()
    for mode in ("r", "rw"):
        with mqstore.open(path, mode) as store:
            tally.messages += assert_same_messages(view, store.read("live", 0), by_entry=True, where="live")
    assert mqstore.verify(path).ok


QUICK = {"haSendHeartbeatInterval": 100}
"""Milliseconds after which a slave asks for the log."""


def slave_of(session: JavaSession, path: Path, begin: bytes) -> JavaStore:
    """Open a slave whose log has only the bytes `begin`. It has no queues."""
    log = path / "commitlog"
    log.mkdir(parents=True)
    (log / f"{0:020}").write_bytes(begin.ljust(GEOMETRY["segment_size"], b"\0"))
    config = java_config({}) | CHECKS | QUICK | {"brokerRole": "SLAVE"}
    slave = session.open(path, config=config, topics=TOPICS)
    assert slave.report.max_physical == len(begin)
    return slave


def contents(path: Path, end: int) -> dict[str, str]:
    """Return the MD5 of each segment that begins before `end`."""
    return {file.name: md5(file.read_bytes()) for file in segments(path) if int(file.name) < end}


def test_a_slave_copies_placeholders(tmp_path: Path, shop: Shop, version: str, tally: Tally) -> None:
    """A real slave of a real master: its log has the same bytes, and it derives the same queues.

    A slave with an empty log copies only the last segment of its master. So this one already has the first record of
    the log, a placeholder, and copies everything after it.
    """
    path, copy = tmp_path / "store", tmp_path / "slave"
    firsts = reclaimed(path)
    session = shop.session(version)
    master = session.open(path, config=java_config({}) | CHECKS | QUICK, topics=TOPICS)
    with segments(path)[0].open("rb") as log:
        size = int.from_bytes(log.read(4))
        log.seek(0)
        slave = slave_of(session, copy, log.read(size))
    assert bounds(slave) == {}
    slave.follow(master)
    for count in (0, 10):
        if count:
            end = master.put([{"topic": "live", "body": "on", "queue_id": 0} for _ in range(count)])[-1]
            slave.follow(master)
        slave.await_dispatch()
        theirs, ours = master.read().by_queue(), slave.read().by_queue()
        wanted = {("live", 0): (0, COUNT + LAST + count), ("metrics", 0): (firsts["metrics"], COUNT)}
        assert bounds(master) == bounds(slave) == wanted
        for key in wanted:
            different = [pair for pair in zip(theirs[key], ours[key], strict=True) if pair[0] != pair[1]]
            assert different == []
    length = end.commit_log_offset + end.size
    assert contents(copy, length) == contents(path, length)
    session.close_stores([master, slave])
    with mqstore.open(copy) as store:
        for key, messages in theirs.items():
            if messages:
                tally.messages += assert_same_messages(messages, store.read(*key), by_entry=True, where=str(key))
    assert mqstore.verify(copy).ok


def test_a_slave_that_ends_inside_a_placeholder_stands_still(
    tmp_path: Path, shop: Shop, version: str, tally: Tally
) -> None:
    """The reason why a slave must have copied the log before a reclaim: it takes the zeros of a body for records."""
    path, old = tmp_path / "store", tmp_path / "old"
    reclaimed(path, old=old)
    before = old.read_bytes()
    at = 0
    for _ in range(10):
        at += int.from_bytes(before[at : at + 4])
    session = shop.session(version)
    master = session.open(path, config=java_config({}) | CHECKS | QUICK, topics=TOPICS)
    slave = slave_of(session, tmp_path / "slave", before[:at])
    slave.follow(master)
    time.sleep(2)
    # The ten messages that the slave had. It never sees another one.
    assert bounds(slave) == {("gone", 0): (0, 10)}, "RocketMQ has changed: a slave finds records after zeros"
    tally.messages += sum(last - first for first, last in bounds(master).values())


def test_a_follower_copies_placeholders(tmp_path: Path, shop: Shop, version: str, tally: Tally) -> None:
    """A copy of ours has the same bytes, and finds the same messages."""
    path, copy = tmp_path / "store", tmp_path / "copy"
    reclaimed(path)
    master = shop.session(version).open(path, config=java_config({}) | CHECKS, topics=TOPICS)
    with mqstore.follow(f"127.0.0.1:{master.report.ha_port}", copy, **GEOMETRY) as follower:
        end = master.put([{"topic": "live", "body": "on", "queue_id": 0} for _ in range(10)])[-1]
        length = end.commit_log_offset + end.size
        follower.wait(length, timeout=60)
        theirs = master.read().by_queue()
        with mqstore.open(copy) as store:
            for key, messages in theirs.items():
                kept = [each for each in messages if each.entry_offset >= store.queues(key[0])[key[1]].min_offset]
                tally.messages += assert_same_messages(kept, store.read(*key), by_entry=True, where=str(key))
    master.close()
    assert contents(copy, length) == contents(path, length)
    assert mqstore.verify(copy).ok


def test_a_follower_that_ends_inside_a_placeholder_says_so(tmp_path: Path, shop: Shop, version: str) -> None:
    """It was behind when the master freed the space of the messages around its end."""
    path, old, copy = tmp_path / "store", tmp_path / "old", tmp_path / "copy"
    reclaimed(path, old=old)
    before = old.read_bytes()
    at = 0
    for _ in range(10):
        at += int.from_bytes(before[at : at + 4])
    (copy / "commitlog").mkdir(parents=True)
    (copy / "commitlog" / f"{0:020}").write_bytes(before[:at].ljust(GEOMETRY["segment_size"], b"\0"))
    master = shop.session(version).open(path, config=java_config({}) | CHECKS, topics=TOPICS)
    follower = mqstore.follow(f"127.0.0.1:{master.report.ha_port}", copy, **GEOMETRY)
    with pytest.raises(mqstore.RefusedError, match=r"a reclaim of the master .* full_copy"):
        follower.wait(timeout=60)
    with pytest.raises(mqstore.RefusedError):
        follower.close()
    assert (copy / "commitlog" / f"{0:020}").read_bytes()[:at] == before[:at]
    # Nothing of the master was appended, so the directory is no copy.
    assert not (copy / "mqstore/follow").exists()
    master.close()
