"""Copies of topics: each message once in the target, over any number of calls, and groups that miss nothing."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import mqstore
from conftest import SMALL, Cli
from mqstore import _native


def fill(home: Path, first: int, count: int, topic: str = "orders") -> None:
    with mqstore.open(home, "create", options=SMALL) as store:
        if topic not in store.topics():
            store.create_topic(topic, queues=2)
        for number in range(first, first + count):
            store.append(topic, f"{topic}-{number}".encode(), keys=f"k{number}", queue_id=number % 2)


def bodies(home: Path, topic: str = "orders") -> list[str]:
    with mqstore.open(home) as store:
        return sorted((message.text() for message in store.read(topic)), key=lambda body: int(body.partition("-")[2]))


def numbered(first: int, count: int) -> list[str]:
    return [f"orders-{number}" for number in range(first, first + count)]


def read(home: Path, group: str, most: int) -> list[str]:
    with mqstore.open(home, "rw") as store, store.consumer(group, "orders") as consumer:
        found = consumer.poll(max_messages=most, timeout=0)
        consumer.commit(durable=True)
        return [message.text() for message in found]


def test_a_further_call_copies_what_came_since(tmp_path: Path) -> None:
    home, target = tmp_path / "source", tmp_path / "target"
    fill(home, 0, 100)
    fill(home, 0, 30, "others")
    for first, count in ((0, 100), (100, 50), (150, 0)):
        if first:
            fill(home, first, count)
            fill(home, first, 5, "others")
        report = mqstore.copy_topic(home, target, "orders")
        assert (report.messages, report.resumed) == (count, False)
        assert bodies(target) == numbered(0, first + count)
    with mqstore.open(target) as store:
        assert store.topics() == ["orders"]
        assert len(store.queues("orders")) == 2
    files = sorted(path.name for path in Path(report.mapping).iterdir())
    assert files == ["000001.jsonl", "000002.jsonl", "000003.jsonl", "state.json"]
    assert mqstore.verify(target).ok


@pytest.mark.parametrize("existing", [0, 7])
def test_a_group_continues_at_its_next_message(tmp_path: Path, existing: int) -> None:
    home, target = tmp_path / "source", tmp_path / "target"
    fill(home, 0, 40)
    if existing:
        fill(target, 1000, existing)
    done = read(home, "group", 25)
    report = mqstore.copy_topic(home, target, ["orders"])
    assert {one.group for one in report.groups} == {"group"}
    fill(home, 40, 10)
    done += read(home, "group", 5)
    report = mqstore.copy_topic(home, target, ["orders"])
    assert report.messages == 10
    assert sorted(done + read(target, "group", 1000)) == sorted(numbered(0, 50))
    # The group is ahead in the target, and has not read more in the source.
    assert mqstore.copy_topic(home, target, ["orders"]).groups == ()
    assert read(target, "group", 1000) == []


def test_the_source_can_be_at_a_url(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    home, target = tmp_path / "source", tmp_path / "target"
    fill(home, 0, 20)
    read(home, "group", 5)
    for first in (0, 20):
        report = mqstore.copy_topic(f"local://{home}", target, "orders")
        assert (report.messages, report.source) == (20, f"local://{home}")
        fill(home, first + 20, 20)
    assert bodies(target) == numbered(0, 40)
    assert len(read(target, "group", 1000)) == 35


def test_groups_can_be_selected(tmp_path: Path) -> None:
    home, target = tmp_path / "source", tmp_path / "target"
    fill(home, 0, 10)
    for group in ("one", "two"):
        read(home, group, 4)
    assert mqstore.copy_topic(home, target, "orders", groups=[]).groups == ()
    assert {one.group for one in mqstore.copy_topic(home, target, "orders", groups=["two"]).groups} == {"two"}


def test_delayed_messages_are_copied_after_their_delivery(tmp_path: Path) -> None:
    home, target = tmp_path / "source", tmp_path / "target"
    fill(home, 0, 4)
    with mqstore.open(home, "rw") as store:
        store.append("orders", b"orders-4", queue_id=0, delay=3600)
        store.append("orders", b"orders-5", queue_id=1)
    report = mqstore.copy_topic(home, target, "orders")
    assert (report.messages, report.waiting) == (5, 1)
    with mqstore.open(home, "rw") as store:
        store.append("orders", b"orders-6", queue_id=0, delay=0.001)
        store.wait("orders", 0, offset=2, timeout=60)
    report = mqstore.copy_topic(home, target, "orders")
    assert (report.messages, report.waiting) == (1, 1)
    assert bodies(target) == [*numbered(0, 4), "orders-5", "orders-6"]


def test_a_batch_is_one_message_with_several_offsets(tmp_path: Path) -> None:
    home, target = tmp_path / "source", tmp_path / "target"
    with mqstore.open(home, "create", options=SMALL) as store:
        store.create_topic("orders", queues=1, attributes={"queue.type": "BatchCQ"})
        for first in range(0, 12, 4):
            store.append_many("orders", [f"orders-{number}".encode() for number in range(first, first + 4)])
    mqstore.copy_topic(home, target, "orders")
    for path in (home, target):
        with mqstore.open(path) as store:
            found = [(message.queue_offset, [one.body for one in message.batch()]) for message in store.read("orders")]
        assert found == [(first, [b"orders-%d" % (first + at) for at in range(4)]) for first in range(0, 12, 4)]
    state = _native.TopicCopy(tmp_path / "target.mapping", os.path.realpath(home), os.path.realpath(target), ["orders"])
    found = [state.translate("orders", 0, offset) for offset in (0, 3, 5, 12)]
    assert found == [(offset, False) for offset in (0, 3, 5, 12)]


def test_what_cannot_be_copied_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    home, target = tmp_path / "source", tmp_path / "target"
    fill(home, 0, 3)
    with pytest.raises(mqstore.TopicNotFoundError):
        mqstore.copy_topic(home, target, "unknown")
    with pytest.raises(mqstore.InvalidOptionError, match="topics"):
        mqstore.copy_topic(home, target, [])
    with pytest.raises(ValueError, match="into itself"):
        mqstore.copy_topic(home, home, "orders", mapping=tmp_path / "own")
    assert not target.exists()
    mqstore.copy_topic(home, target, "orders")
    fill(tmp_path / "other", 0, 3)
    for arguments in ((tmp_path / "other", target, "orders"), (home, target, "others")):
        fill(home, 0, 1, "others")
        with pytest.raises(mqstore.InvalidOptionError, match="choose another folder"):
            mqstore.copy_topic(*arguments)
    state = tmp_path / "target.mapping" / "state.json"
    for damage in (b"{", b"[]", b"{}", b""):
        state.write_bytes(damage)
        with pytest.raises(mqstore.UnsupportedFormatError, match=r"state\.json"):
            mqstore.copy_topic(home, target, "orders")
    assert bodies(target) == numbered(0, 3)


def test_an_interrupted_copy_continues(tmp_path: Path) -> None:
    home, target = tmp_path / "source", tmp_path / "target"
    fill(home, 0, 2000)

    def stop(progress: mqstore.Progress) -> None:
        if progress.done > progress.total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        mqstore.copy_topic(home, target, "orders", progress=stop)
    report = mqstore.copy_topic(home, target, "orders")
    assert report.resumed
    assert bodies(target) == numbered(0, 2000)


# Messages that the log of the source no longer has.

PADDING = b" " * 1000


def extend_source(home: Path, first: int, count: int) -> None:
    """Appends messages of a kilobyte, so that 60 of them fill a segment."""
    with mqstore.open(home, "create", options=SMALL) as store:
        if "orders" not in store.topics():
            store.create_topic("orders", queues=2)
        for number in range(first, first + count):
            store.append("orders", b"orders-%d" % number + PADDING, queue_id=number % 2)


def expire(home: Path, archive: Path | None = None) -> int:
    """Deletes all segments except the last ones. Returns the number of the first message of the log."""
    with mqstore.open(home, "rw", options=SMALL, retention_bytes=128 << 10) as store:
        if archive is not None:
            store.archive.configure(archive)
            store.archive.run()
        store.expire()
        return first_of(store)


def first_of(store: mqstore.Store) -> int:
    return min(2 * queue.min_offset + queue.queue_id for queue in store.queues("orders"))


def found_in(home: Path) -> list[int]:
    with mqstore.open(home) as store:
        return sorted(int(message.text().partition("-")[2]) for message in store.read("orders"))


def commit(home: Path, group: str, offset: int) -> None:
    with mqstore.open(home, "rw", options=SMALL) as store, store.consumer(group, "orders") as consumer:
        consumer.commit({("orders", 0): offset, ("orders", 1): offset}, durable=True)


def queue_gaps(report: mqstore.TopicCopyReport) -> set[tuple[int, int, int]]:
    return {(gap.queue_id, gap.first_offset, gap.end_offset) for gap in report.gaps}


@pytest.mark.parametrize("before", [0, 40])
def test_messages_that_only_the_archive_has_are_copied(tmp_path: Path, before: int) -> None:
    pytest.importorskip("pyarrow")
    home, target = tmp_path / "source", tmp_path / "target"
    extend_source(home, 0, 40)
    if before:
        mqstore.copy_topic(home, target, "orders")
    extend_source(home, 40, 260)
    commit(home, "group", 35)
    assert expire(home, tmp_path / "cold") > 100
    report = mqstore.copy_topic(home, target, "orders")
    assert (report.messages, report.gaps, report.held_groups) == (300 - before, (), ())
    with mqstore.open(target) as store:
        order = [int(message.text().partition("-")[2]) for message in store.read("orders")]
    assert order == list(range(300))
    assert {(one.group, one.queue_id, one.offset) for one in report.groups} == {("group", 0, 35), ("group", 1, 35)}
    assert mqstore.copy_topic(home, target, "orders").messages == 0
    # Without its archive, the source has fewer messages.
    other = tmp_path / "other"
    report = mqstore.copy_topic(home, other, "orders", archive=False)
    assert report.messages == len(found_in(other)) < 200


def test_the_archive_can_be_named(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    home, target = tmp_path / "source", tmp_path / "target"
    extend_source(home, 0, 300)
    expire(home, tmp_path / "cold")
    (tmp_path / "cold").rename(tmp_path / "moved")
    with pytest.raises(mqstore.ResultNotFoundError):
        mqstore.copy_topic(home, target, "orders")
    report = mqstore.copy_topic(home, target, "orders", archive=tmp_path / "moved")
    assert (report.messages, found_in(target)) == (300, list(range(300)))


def test_a_copy_from_the_archive_can_be_interrupted(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    home, target = tmp_path / "source", tmp_path / "target"
    extend_source(home, 0, 40)
    mqstore.copy_topic(home, target, "orders")
    extend_source(home, 40, 260)
    expire(home, tmp_path / "cold")
    steps = 0

    def stop(_progress: mqstore.Progress) -> None:
        nonlocal steps
        steps += 1
        if steps == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        mqstore.copy_topic(home, target, "orders", progress=stop)
    report = mqstore.copy_topic(home, target, "orders")
    assert (report.resumed, report.messages, found_in(target)) == (True, 260, list(range(300)))


def test_segments_can_be_deleted_during_the_copy(tmp_path: Path) -> None:
    """The copy then continues in the archive, in the order of the log."""
    pytest.importorskip("pyarrow")
    home, target = tmp_path / "source", tmp_path / "target"
    big = mqstore.StoreOptions(segment_size=1 << 20)
    with mqstore.open(home, "create", options=big) as store:
        for _ in range(10):
            store.append_batch("orders", [b"orders-%d" % number + PADDING * 8 for number in range(200)])
        store.archive.configure(tmp_path / "cold")

    def delete(_progress: mqstore.Progress) -> None:
        with mqstore.open(home, "rw", options=big, retention_bytes=1 << 20) as store:
            store.archive.run()
            store.expire()

    report = mqstore.copy_topic(home, target, "orders", progress=delete)
    assert (report.messages, report.gaps) == (2000, ())
    with mqstore.open(home) as store:
        assert store.stats().log_min_offset > 10 << 20
        wanted = [message.body for message in store.read("orders")]
    with mqstore.open(target) as store:
        assert [message.body for message in store.read("orders")] == wanted


@pytest.mark.parametrize("how", ["segments", "limits"])
def test_no_group_moves_over_messages_that_the_source_no_longer_has(tmp_path: Path, how: str) -> None:
    home, target = tmp_path / "source", tmp_path / "target"
    extend_source(home, 0, 40)
    mqstore.copy_topic(home, target, "orders")
    extend_source(home, 40, 260)
    for group, offset in (("before", 10), ("inside", 30), ("after", 149)):
        commit(home, group, offset)
    if how == "segments":
        first = expire(home)
    else:
        with mqstore.open(home, "rw", options=SMALL) as store:
            store.set_retention("orders", max_messages=60)
            store.expire()
            first = first_of(store)
    report = mqstore.copy_topic(home, target, "orders")
    assert report.messages == 300 - first
    assert found_in(target) == [*range(40), *range(first, 300)]
    low = first // 2
    assert queue_gaps(report) == {(0, 20, low), (1, 20, low)}
    new = 20 + 149 - low
    assert {(one.group, one.offset) for one in report.groups} == {("after", new)}
    assert {(one.group, one.offset) for one in report.held_groups} == {("before", 10), ("inside", 20)}
    # Nothing changes until the caller accepts the gaps.
    assert mqstore.copy_topic(home, target, "orders").held_groups == report.held_groups
    report = mqstore.copy_topic(home, target, "orders", over_gaps=True)
    assert {(one.group, one.offset) for one in report.groups} == {("before", 10), ("inside", 20)}
    report = mqstore.copy_topic(home, target, "orders")
    assert (report.groups, report.held_groups, len(report.gaps)) == ((), (), 2)


def test_messages_deleted_before_the_first_call_are_no_gap(tmp_path: Path) -> None:
    home, target = tmp_path / "source", tmp_path / "target"
    fill(target, 0, 4)
    extend_source(home, 0, 300)
    commit(home, "group", 5)
    expire(home)
    report = mqstore.copy_topic(home, target, "orders")
    assert (report.gaps, report.held_groups) == ((), ())
    assert {(one.group, one.offset) for one in report.groups} == {("group", 2)}


@pytest.mark.parametrize("known", [True, False])
def test_a_queue_can_lose_all_new_messages(tmp_path: Path, known: bool) -> None:
    """Also a queue that was empty at the first call."""
    home, target = tmp_path / "source", tmp_path / "target"
    extend_source(home, 0, 8 if known else 1)
    mqstore.copy_topic(home, target, "orders")
    with mqstore.open(home, "rw", options=SMALL) as store:
        for queue_id in (1, 0):
            for _ in range(200):
                store.append("orders", b"x-1" + PADDING, queue_id=queue_id)
    expire(home)
    report = mqstore.copy_topic(home, target, "orders")
    with mqstore.open(home) as store:
        low = store.queues("orders")[0].min_offset
    first = 4 if known else 0
    assert queue_gaps(report) == {(0, max(first, 1), low), (1, first, 200 + first)}


def test_the_end_of_a_batch_is_known(tmp_path: Path) -> None:
    """A batch has several offsets, and only the deleted ones after them are a gap."""
    home, target = tmp_path / "source", tmp_path / "target"

    def append(batches: int) -> None:
        with mqstore.open(home, "create", options=SMALL) as store:
            if "orders" not in store.topics():
                store.create_topic("orders", queues=1, attributes={"queue.type": "BatchCQ"})
            for number in range(batches):
                store.append_many("orders", [b"orders-%d" % number + PADDING] * 4)

    append(30)
    report = mqstore.copy_topic(home, target, "orders")
    lines = [json.loads(line) for line in (Path(report.mapping) / "000001.jsonl").read_text().splitlines()]
    assert [(line["queue_offset"], line["messages"]) for line in lines] == [(4 * n, 4) for n in range(30)]
    append(60)
    expire(home)
    with mqstore.open(home) as store:
        low = store.queues("orders")[0].min_offset
    assert queue_gaps(mqstore.copy_topic(home, target, "orders")) == {(0, 120, low)}


def test_a_new_topic_gets_its_limits(tmp_path: Path) -> None:
    home, target = tmp_path / "source", tmp_path / "target"
    for topic in ("orders", "others", "plain"):
        fill(home, 0, 6, topic)
    with mqstore.open(home, "rw", options=SMALL) as store:
        store.set_retention("orders", keep=3.001, max_bytes=1 << 20, max_messages=100)
        store.set_retention("others", max_messages=50)
    fill(target, 0, 1, "others")
    mqstore.copy_topic(home, target, ["orders", "others", "plain"])
    with mqstore.open(target) as store:
        found = {one.topic: (one.keep_seconds, one.max_bytes, one.max_messages) for one in store.retention()}
    # An existing topic keeps its settings.
    assert found == {"orders": (3.001, 1 << 20, 100)}


@pytest.mark.slow
def test_command_line_with_gaps(tmp_path: Path, cli: Cli) -> None:
    pytest.importorskip("pyarrow")
    home, target = tmp_path / "source", tmp_path / "target"
    extend_source(home, 0, 40)
    mqstore.copy_topic(home, target, "orders")
    extend_source(home, 40, 260)
    commit(home, "group", 10)
    expire(home, tmp_path / "cold")
    held = cli("copy-topic", home, target, "--topic", "orders", "--no-archive")
    assert (held.returncode, "held group" in held.stdout, "--over-gaps" in held.stderr) == (1, True, True)
    moved = cli("copy-topic", home, target, "--topic", "orders", "--no-archive", "--over-gaps", "--format", "json")
    assert (moved.returncode, len(json.loads(moved.stdout)["groups"])) == (0, 2)
    whole = tmp_path / "whole"
    done = cli("copy-topic", home, whole, "--topic", "orders", "--archive", tmp_path / "cold", "--format", "json")
    assert (done.returncode, json.loads(done.stdout)["messages"]) == (0, 300)
    assert cli("copy-topic", home, whole, "--topic", "orders", "--archive", "x", "--no-archive").returncode == 2


@pytest.mark.slow
def test_command_line(tmp_path: Path, cli: Cli) -> None:
    home, target = tmp_path / "source", tmp_path / "target"
    fill(home, 0, 10)
    read(home, "group", 3)
    done = cli("copy-topic", home, target, "--topic", "orders", "--format", "json")
    assert (done.returncode, json.loads(done.stdout)["messages"]) == (0, 10)
    assert "group" in cli("copy-topic", home, tmp_path / "second", "--topic", "orders").stdout
    assert cli("copy-topic", home, target, "--topic", "unknown").returncode == 3
    assert cli("copy-topic", home, target).returncode == 2
