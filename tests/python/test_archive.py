"""Archives: what is restored is what was archived, byte for byte; retention waits for it."""

from __future__ import annotations

import filecmp
import importlib.util
import json
import os
import shutil
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import mqstore
from conftest import SMALL, Cli
from mqstore._archive.archive import _SIZES as SIZES
from restored_stores import SEGMENT, TOPICS, assert_identical, fill, filled_store, keeping, segments

pytest.importorskip("pyarrow")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[mqstore.Store]:
    """An open store with messages in several segments."""
    with filled_store(tmp_path / "store") as opened:
        yield opened


def bodies(place: Path, topic: str) -> list[tuple[int, int, bytes]]:
    with mqstore.open(place) as opened:
        return [(one.queue_id, one.queue_offset, one.body) for one in opened.read(topic)]


def test_a_restore_has_the_same_bytes(store: mqstore.Store, tmp_path: Path) -> None:
    target, restored = tmp_path / "archive", tmp_path / "restored"
    assert (store.archive.target, store.archive.archived_to) == (None, None)
    with pytest.raises(mqstore.InvalidOptionError, match="configure first"):
        store.archive.run()
    store.archive.configure(target)
    assert (store.archive.target, store.archive.archived_to) == (str(target), 0)
    report = store.archive.run()
    home = Path(store.path)
    full = [one.name for one in segments(home)][: report.segments]
    assert report.segments >= 5
    assert report.archived_to == store.archive.archived_to == report.segments * SEGMENT
    assert (report.missing_bytes, report.young_segments, report.target) == (0, 0, str(target))
    assert report.bloom_filters
    again = store.archive.run()
    assert (again.segments, again.files, again.archived_to) == (0, 0, report.archived_to)
    assert store.archive.verify().ok
    files = store.archive.files()
    assert sum(one.rows for one in files) == report.records
    assert sum(one.bytes for one in files) == report.bytes
    done = store.archive.restore(restored)
    assert (done.segments, done.records, done.identical) == (report.segments, report.records, True)
    assert_identical(home, restored, full)
    # It is a store: nothing is wrong, and it has the messages of these segments.
    assert mqstore.verify(restored).ok
    for topic in TOPICS:
        found = bodies(restored, topic)
        assert found == [one for one in bodies(home, topic) if one in found]
    with mqstore.open(restored, "rw", options=SMALL) as opened:
        assert opened.append("orders", b"next", queue_id=0).commit_log_offset == report.archived_to
    with pytest.raises(FileExistsError):
        store.archive.restore(restored)
    assert [one.name for one in tmp_path.iterdir() if "partial" in one.name] == []


def test_later_segments_follow(store: mqstore.Store, tmp_path: Path) -> None:
    store.archive.configure(tmp_path / "archive")
    first = store.archive.run()
    fill(store, start=450)
    second = store.archive.run()
    assert second.segments >= 5
    assert second.archived_to == first.archived_to + second.segments * SEGMENT
    assert len(store.archive.files()) == first.files + second.files
    store.archive.restore(tmp_path / "restored")
    assert_identical(Path(store.path), tmp_path / "restored")
    # Another object for the same archive needs no store.
    archive = mqstore.Archive(tmp_path / "archive")
    assert archive.files() == store.archive.files()
    assert archive.verify().records == first.records + second.records


def test_small_ranges_give_the_same_bytes(
    store: mqstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SIZES, "range_bytes", 20_000)
    monkeypatch.setitem(SIZES, "commit_bytes", 2 * SEGMENT)
    monkeypatch.setitem(SIZES, "group_rows", 7)
    steps: list[mqstore.Progress] = []
    store.archive.configure(tmp_path / "archive")
    report = store.archive.run(progress=steps.append)
    assert steps[-1].done == steps[-1].total == report.segments * SEGMENT
    # No range is smaller than a batch of the scan, which ends with its segment.
    assert report.files == 3 * report.segments
    manifests = sorted((tmp_path / "archive/v1/_manifest").iterdir())
    assert len(manifests) == (report.segments + 1) // 2
    store.archive.restore(tmp_path / "restored")
    assert_identical(Path(store.path), tmp_path / "restored")
    assert store.archive.verify().ok


def test_several_ranges_of_a_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SIZES, "range_bytes", 1)
    options = replace(SMALL, segment_size=5 << 20)
    with mqstore.open(tmp_path / "store", "create", options=options) as opened:
        for number in range(1200):
            opened.append(("orders", "events")[number % 7 == 0], bytes([number % 251]) * 10_000, queue_id=0)
        report = opened.archive.run_to(tmp_path / "archive")
        archive = mqstore.Archive(tmp_path / "archive")
        assert report.segments == 2
        assert report.files > 3 * report.segments
        assert archive.verify().ok
        archive.restore(tmp_path / "restored")
        assert_identical(tmp_path / "store", tmp_path / "restored")
        done = archive.restore(tmp_path / "events", topics="events", since=0)
        assert done.records == sum(one.rows for one in archive.files("events"))
        assert mqstore.verify(tmp_path / "events").ok


def test_system_topics_and_waiting_messages_too(tmp_path: Path) -> None:
    home = tmp_path / "store"
    with mqstore.open(home, "create", options=SMALL) as opened:
        opened.create_topic("orders", queues=2)
        opened.create_topic("gone", queues=1)
        opened.append("gone", b"x" * 5000)
        with opened.transaction("group") as pending:
            pending.append("orders", b"half" * 1000)
        opened.append("orders", b"later" * 1000, delay="1h")
        opened.append("orders", b"level" * 1000, delay_level=3)
        opened.append("%RETRY%group", b"again" * 100)
        opened.delete_topic("gone")
        for _ in range(100):
            opened.append("orders", b"y" * 3000)
        opened.archive.configure(tmp_path / "archive")
        report = opened.archive.run()
        assert report.segments >= 4
        topics = {one.topic for one in opened.archive.files()}
        assert {"RMQ_SYS_TRANS_HALF_TOPIC", "%RETRY%group", "gone", "orders"} <= topics
        opened.archive.restore(tmp_path / "restored")
        assert_identical(home, tmp_path / "restored")
        [path] = opened.archive.paths("%RETRY%group")
        assert "/topic=%25RETRY%25group/" in path


def test_damaged_bytes_and_placeholders_are_kept(store: mqstore.Store, tmp_path: Path) -> None:
    home = Path(store.path)
    second = segments(home)[1]
    store.close()
    content = bytearray(second.read_bytes())
    # In the body of a record, in the head of another one, and after the header of the filler.
    content[3000] ^= 1
    content[20_000:20_300] = b"\xff" * 300
    content[-1] = 7
    second.write_bytes(content)
    with mqstore.open(home, "rw", options=SMALL, recovery="read-only") as opened, pytest.warns(mqstore.StoreWarning):
        opened.archive.run_to(tmp_path / "archive")
    archive = mqstore.Archive(tmp_path / "archive")
    assert archive.verify().ok
    [other] = [one for one in archive.files() if one.topic is None]
    assert 0 < other.record_bytes < SEGMENT
    archive.restore(tmp_path / "restored")
    assert_identical(home, tmp_path / "restored")


def test_topics_are_restored_at_their_places(store: mqstore.Store, tmp_path: Path) -> None:
    store.archive.configure(tmp_path / "archive")
    report = store.archive.run()
    done = store.archive.restore(tmp_path / "restored", topics="events")
    assert (done.identical, done.segments) == (False, report.segments)
    assert mqstore.verify(tmp_path / "restored").ok
    with mqstore.open(tmp_path / "restored") as restored:
        found = list(restored.read("events"))
        assert len(found) == done.records == sum(one.rows for one in store.archive.files("events"))
        for one in found:
            original = store.get_at(one.commit_log_offset)
            assert (one.body, one.queue_offset, one.keys) == (original.body, original.queue_offset, original.keys)
        with pytest.raises(mqstore.TopicNotFoundError):
            list(restored.read("orders"))
    with pytest.raises(mqstore.TopicNotFoundError):
        store.archive.restore(tmp_path / "other", topics=["events", "nothing"])
    assert not (tmp_path / "other").exists()


def test_an_archive_of_some_topics(store: mqstore.Store, tmp_path: Path) -> None:
    store.archive.configure(tmp_path / "archive", topics=["orders", "absent"])
    report = store.archive.run()
    assert {one.topic for one in store.archive.files()} == {"orders"}
    done = store.archive.restore(tmp_path / "restored")
    assert (done.identical, done.records) == (False, report.records)
    assert [one for one in bodies(Path(store.path), "orders") if one in bodies(tmp_path / "restored", "orders")]
    with pytest.raises(mqstore.ResultExistsError, match="the topics absent, orders"):
        store.archive.configure(tmp_path / "archive")
    with pytest.raises(mqstore.InvalidOptionError):
        store.archive.configure(tmp_path / "other", topics=[])


def test_segments_of_a_time_are_restored(tmp_path: Path) -> None:
    from mqstore.testing import ManualClock
    from mqstore.testing import open as open_for_test

    clock = ManualClock(1_700_000_000_000)
    with open_for_test(tmp_path / "store", "create", clock=clock, options=SMALL) as opened:
        for _ in range(200):
            opened.append("orders", b"z" * 3000)
            clock.advance(60)
        opened.archive.run_to(tmp_path / "archive", older_than=0)
        archive = mqstore.Archive(tmp_path / "archive")
        start = 1_700_000_000_000 + 60_000 * 50
        done = archive.restore(tmp_path / "restored", since=start, until=start + 60_000 * 40)
        assert 2 <= done.segments <= 4
        assert done.first_log_offset > 0
        assert_identical(tmp_path / "store", tmp_path / "restored")
        with mqstore.open(tmp_path / "restored") as restored:
            times = [one.store_timestamp for one in restored.read("orders")]
        assert times[0] <= start
        assert times[-1] >= start + 60_000 * 39
        with pytest.raises(mqstore.InvalidOptionError, match="no segment of this time"):
            archive.restore(tmp_path / "none", since=start + 10**9)


def test_only_old_segments_are_archived(store: mqstore.Store, tmp_path: Path) -> None:
    store.archive.configure(tmp_path / "archive", older_than="1h")
    report = store.archive.run()
    assert report.segments == 0
    assert report.young_segments >= 5
    with pytest.raises(mqstore.ResultNotFoundError):
        store.archive.files()


@pytest.mark.parametrize("older_than", ["0", "1h"])
def test_a_clock_that_was_ahead_holds_no_segment_back(tmp_path: Path, older_than: str) -> None:
    from mqstore.testing import ManualClock
    from mqstore.testing import open as open_for_test

    year_ms = 365 * 86_400_000
    now_ms = time.time_ns() // 1_000_000
    clock = ManualClock(now_ms + year_ms)
    with open_for_test(tmp_path / "store", "create", clock=clock, options=SMALL) as opened:
        for _ in range(60):
            opened.append("orders", b"z" * 3000)
        if older_than == "0":
            # Full segments are due, whatever their time.
            assert opened.archive.run_to(tmp_path / "archive", older_than=older_than).segments == 2
            return
        report = opened.archive.run_to(tmp_path / "archive", older_than=older_than)
        assert (report.segments, report.young_segments) == (0, 2)
        for segment in segments(tmp_path / "store"):
            os.utime(segment, (now_ms / 1000 - 4000, now_ms / 1000 - 4000))
        report = opened.archive.run_to(tmp_path / "archive", older_than=older_than)
        assert (report.segments, report.young_segments) == (2, 0)


def test_a_restored_topic_that_was_made_again_is_clean(tmp_path: Path) -> None:
    home, restored = tmp_path / "store", tmp_path / "restored"
    with mqstore.open(home, "create", options=SMALL) as opened:
        for count in (25, 61):
            opened.create_topic("orders", queues=2)
            for number in range(count):
                opened.append("orders", b"%d" % count * 1500, queue_id=number % 2)
            if count == 25:
                opened.delete_topic("orders")
        opened.archive.configure(tmp_path / "archive")
        opened.archive.run()
        opened.archive.restore(restored)
        opened.archive.restore(tmp_path / "chosen", topics="orders")
        first = opened.queues("orders")[0].min_offset
    for place in (restored, tmp_path / "chosen"):
        report = mqstore.verify(place)
        assert report.ok, report.problems
    assert_identical(home, restored)
    with mqstore.open(restored) as reader:
        offsets = [one.queue_offset for one in reader.read("orders", 0)]
    assert offsets == [*range(13), *range(first, first + len(offsets) - 13)]
    assert first > 13


def test_offsets_next_to_damaged_bytes_are_still_reported(store: mqstore.Store, tmp_path: Path) -> None:
    home = Path(store.path)
    store.close()
    second = segments(home)[1]
    content = bytearray(second.read_bytes())
    content[20_000:20_300] = b"\xff" * 300
    second.write_bytes(content)
    with mqstore.open(home, "rw", options=SMALL, recovery="read-only") as opened, pytest.warns(mqstore.StoreWarning):
        opened.archive.run_to(tmp_path / "archive")
    mqstore.Archive(tmp_path / "archive").restore(tmp_path / "restored")
    assert "queue_gap" in {one.kind for one in mqstore.verify(tmp_path / "restored").problems}


@pytest.mark.parametrize("way", ["snapshot", "published", "restore"])
def test_a_copy_reads_on_in_the_archive_and_does_not_extend_it(tmp_path: Path, way: str) -> None:
    copy = tmp_path / "copy"
    with mqstore.open(tmp_path / "store", "create", options=keeping(2 * SEGMENT)) as opened:
        opened.archive.configure(tmp_path / "archive")
        fill(opened)
        end = opened.archive.run().archived_to
        assert opened.expire().segments > 0
        wanted = [one.body for one in opened.read("orders", 0)]
        assert opened.stats().log_min_offset > 0
        if way == "restore":
            files = opened.archive.files("orders")
            opened.archive.restore(copy, since=files[-1].last_timestamp)
            wanted = wanted[: sum(one.rows for file in files for one in file.queues if one.queue_id == 0)]
        elif way == "snapshot":
            opened.snapshot(copy)
        else:
            pytest.importorskip("fsspec")
            opened.snapshot(f"memory://{tmp_path.name}/copy")
            with mqstore.open(f"memory://{tmp_path.name}/copy") as reader:
                assert [one.body for one in reader.read("orders", 0)] == wanted
            mqstore.fetch(f"memory://{tmp_path.name}/copy", copy)
        # The archive continues.
        shutil.copytree(tmp_path / "archive", tmp_path / "at the copy")
        fill(opened, start=450)
        opened.archive.run()
    assert mqstore.verify(copy).ok
    with mqstore.open(copy) as reader:
        assert [one.body for one in reader.read("orders", 0)] == wanted
        assert reader.archive.target == str(tmp_path / "archive")
    with mqstore.open(copy, "rw", options=keeping(SEGMENT)) as opened:
        with pytest.raises(mqstore.InvalidOptionError, match="is a copy of a store"):
            opened.archive.run()
        # The store has archived more than the copy has.
        with pytest.raises(mqstore.ResultExistsError, match="of another store"):
            opened.archive.configure(tmp_path / "archive")
        shutil.rmtree(tmp_path / "archive")
        (tmp_path / "at the copy").rename(tmp_path / "archive")
        # What the copy gets is not in the archive.
        fill(opened, start=450)
        opened.expire()
        assert opened.stats().log_min_offset <= end
        assert [one.body for one in opened.read("orders", 0)][: len(wanted)] == wanted
        opened.archive.configure(tmp_path / "archive")
        assert opened.archive.run().segments > 0
        assert opened.expire().segments > 0
    with (
        mqstore.open(tmp_path / "store", "rw", options=SMALL) as opened,
        # The archive has the messages of the copy now.
        pytest.raises((mqstore.CorruptionError, mqstore.ResultExistsError), match=r"archived its log|another store"),
    ):
        opened.archive.run()


def test_the_folders_of_the_store_are_no_target(store: mqstore.Store, tmp_path: Path) -> None:
    home = Path(store.path)
    (tmp_path / "link").symlink_to(home / "commitlog")
    inside: list[str | Path] = [home, home / "commitlog", home / "cold", home / "mqstore/archive", tmp_path / "link/a"]
    if importlib.util.find_spec("fsspec"):
        inside.append(f"file://{home}/cold")
    for target in inside:
        with pytest.raises(mqstore.InvalidOptionError, match="choose a folder outside"):
            store.archive.configure(target)
        with pytest.raises(mqstore.InvalidOptionError, match="choose a folder outside"):
            store.archive.run_to(target)
    for empty in (lambda: store.archive.configure(""), lambda: store.archive.run_to(""), lambda: mqstore.Archive("")):
        with pytest.raises(mqstore.InvalidOptionError, match="must name a folder"):
            empty()
    assert store.archive.target is None
    assert not (home / "commitlog/v1").exists()
    store.archive.configure(f"{home}-cold")


# Retention.


def test_retention_waits_for_the_archive(tmp_path: Path) -> None:
    options = keeping(2 * SEGMENT)
    home = tmp_path / "store"
    with mqstore.open(home, "create", options=options) as opened:
        opened.archive.configure(tmp_path / "archive")
        fill(opened)
        before = segments(home)
        plan = opened.expire(dry_run=True)
        assert (plan.segments, len(plan.kept)) == (0, 1)
        assert "not in the archive yet" in plan.kept[0]
        assert opened.expire().segments == 0
        copies = tmp_path / "copies" / "commitlog"
        shutil.copytree(home / "commitlog", copies)
        end = opened.archive.run().archived_to
        assert opened.expire().segments == len(before) - 2
        assert segments(home)[0].name == f"{end - SEGMENT:020}"
        # The archive has what is gone, and the next run continues.
        fill(opened, start=450)
        opened.archive.run()
        opened.archive.restore(tmp_path / "restored")
        for one in segments(tmp_path / "restored"):
            origin = copies / one.name if (copies / one.name).exists() else home / "commitlog" / one.name
            if int(one.name) < end:
                assert filecmp.cmp(one, origin, shallow=False)
        assert segments(tmp_path / "restored")[0].name == "0" * 20
        opened.archive.configure(None)
        assert opened.archive.target is None
        assert opened.expire().segments > 0


def test_segments_that_are_gone_are_reported(tmp_path: Path) -> None:
    options = keeping(SEGMENT)
    with mqstore.open(tmp_path / "store", "create", options=options) as opened:
        fill(opened)
        opened.archive.run_to(tmp_path / "archive")
        fill(opened, start=450)
        opened.expire()
        fill(opened, start=900)
        report = opened.archive.run_to(tmp_path / "archive")
        assert report.missing_bytes > 0
        archive = mqstore.Archive(tmp_path / "archive")
        with pytest.raises(mqstore.InvalidOptionError, match="has no segments from log offset"):
            archive.restore(tmp_path / "restored")
        assert archive.verify().ok
        # A configuration with this archive trusts only what continues the log.
        opened.archive.configure(tmp_path / "archive")
        assert opened.archive.archived_to == report.archived_to


def test_an_archive_of_another_store_is_refused(store: mqstore.Store, tmp_path: Path) -> None:
    store.archive.configure(tmp_path / "archive")
    store.archive.run()
    with mqstore.open(tmp_path / "other", "create", options=SMALL) as other:
        other.append("first", b"one")
        with pytest.raises(mqstore.ResultExistsError, match="of another store"):
            other.archive.configure(tmp_path / "archive")
        fill(other)
        with pytest.raises(mqstore.ResultExistsError, match="of another store"):
            other.archive.run_to(tmp_path / "archive")
        assert other.archive.target is None


def test_a_reader_archives_beside_the_writer(store: mqstore.Store, tmp_path: Path) -> None:
    store.archive.configure(tmp_path / "archive")
    store.flush()
    with mqstore.open(store.path) as reader:
        report = reader.archive.run()
        assert report.segments >= 5
        assert reader.archive.archived_to == 0
        with pytest.raises(mqstore.StoreReadOnlyError):
            reader.archive.configure(tmp_path / "other")
    assert store.archive.run().segments == 0
    assert store.archive.archived_to == report.archived_to


def test_asyncio(store: mqstore.Store, tmp_path: Path) -> None:
    import asyncio
    import inspect

    import mqstore.aio

    async def work() -> None:
        async with mqstore.aio.open(store.path) as opened:
            report = await opened.archive.run_to(tmp_path / "archive")
            assert report.segments >= 5
            assert (await opened.archive.target(), await opened.archive.archived_to()) == (None, None)
            with pytest.raises(mqstore.InvalidOptionError):
                await opened.archive.run()

    store.flush()
    asyncio.run(work())
    assert mqstore.Archive(tmp_path / "archive").verify().ok
    for name in ("configure", "run", "run_to", "files", "paths", "verify", "restore"):
        own, twin = getattr(mqstore.StoreArchive, name), getattr(mqstore.aio.StoreArchive, name)
        assert inspect.iscoroutinefunction(twin)
        assert inspect.signature(twin) == inspect.signature(own)


@pytest.mark.slow
def test_the_command_line(tmp_path: Path, cli: Cli) -> None:
    home, target = tmp_path / "store", tmp_path / "archive"
    with mqstore.open(home, "create", options=SMALL) as opened:
        fill(opened)
    done = cli("archive", home, target, "--configure", "--format", "json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["segments"] >= 4
    listed = json.loads(cli("archive-files", target, "--topic", "orders", "--format", "json").stdout)
    assert {one["topic"] for one in listed} == {"orders"}
    lines = cli("archive-files", target, "--topic", "orders", "--format", "jsonl").stdout.splitlines()
    assert [json.loads(line) for line in lines] == listed
    assert cli("archive-verify", target).returncode == 0
    assert cli("archive-restore", target, tmp_path / "restored").returncode == 0
    assert_identical(home, tmp_path / "restored")
    Path(listed[0]["path"]).write_bytes(b"")
    assert cli("archive-verify", target).returncode == 1
    refused = cli("archive", home, tmp_path / "other", "--configure")
    assert (refused.returncode, "--remove" in refused.stderr) == (2, True)
    assert cli("archive", home).returncode == 2
    with mqstore.open(home, "rw", options=SMALL) as opened:
        assert opened.archive.target == str(target)
        fill(opened, start=450)
        opened.flush()
        beside = cli("archive", home, target, "--format", "json")
        assert beside.returncode == 0, beside.stderr
        assert json.loads(beside.stdout)["segments"] > 0
        assert "does not know what was archived" in beside.stderr
    assert cli("archive", home, "--remove").returncode == 0
    with mqstore.open(home) as opened:
        assert opened.archive.target is None
    assert "2 objects" not in cli("archive-clean", target, "--older-than", "0", "--dry-run").stdout
    assert cli("archive-clean", target, "--older-than", "0", "--yes").returncode == 0
