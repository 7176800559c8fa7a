"""Retention: the removed files, events, hooks that keep a segment, and logs in other folders."""

from __future__ import annotations

import json
import logging
import os
import pickle
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import mqstore
import mqstore.testing
from conftest import Cli, allocated, open_deleted_files
from mqstore import ExpiredFile, StoreEvent
from mqstore.testing import ManualClock

TINY: dict[str, Any] = {
    "segment_size": 4096,
    "queue_file_entries": 5,
    "index_slots": 7,
    "index_entries": 12,
    "advanced": mqstore.BrokerOptions(delete_interval=0, dispatch_threads=0),
    # A slow machine could copy messages in the background before the test checks the ones not copied.
    "compaction_feed": False,
}
KEEP_TWO: dict[str, Any] = {**TINY, "retention_bytes": 2 * 4096}


def fill(store: mqstore.Store, segments: int = 5, size: int = 700) -> list[mqstore.AppendResult]:
    """Appends until the log has this many segments."""
    results: list[mqstore.AppendResult] = []
    while store.stats().segments < segments:
        results.append(store.append("t", b"x" * size, keys=f"k{len(results)}"))
    return results


def segments(home: Path) -> list[int]:
    return sorted(int(path.name) for path in (home / "commitlog").iterdir())


def test_nothing_goes_by_default(home: Path) -> None:
    with mqstore.open(home, "create", **TINY) as store:
        fill(store)
        for dry_run in (True, False):
            report = store.expire(dry_run=dry_run)
            assert (report.files, report.bytes, report.log_min_offset) == ((), 0, 0)
        assert len(segments(home)) == 5


def test_dry_run_tells_and_the_real_run_does_it(home: Path) -> None:
    with mqstore.open(home, "create", **KEEP_TWO) as store:
        results = fill(store)
        plan = store.expire(dry_run=True)
        assert plan.dry_run
        assert len(segments(home)) == 5
        done = store.expire(dry_run=False)
        assert done.to_dict() == {**plan.to_dict(), "dry_run": False}
        assert segments(home) == [3 * 4096, 4 * 4096]
        first = done.files[0]
        assert (first.kind, first.first_offset, first.last_offset, first.bytes) == ("segment", 0, 4095, 4096)
        assert first.path == str(home / "commitlog" / f"{0:020d}")
        assert first.reason.startswith("size: ")
        assert first.first_store_timestamp == results[0].store_timestamp
        assert {file.kind for file in done.files} == {"segment", "queue", "index"}
        assert done.bytes == sum(file.bytes for file in done.files)
        assert pickle.loads(pickle.dumps(done)) == done
        minimum = store.queues("t")[0].min_offset
        assert minimum == next(r.queue_offset for r in results if r.commit_log_offset >= 3 * 4096)
        with pytest.raises(mqstore.OffsetOutOfRangeError) as caught:
            store.read("t", 0, minimum - 1)
        assert (caught.value.min_offset, caught.value.max_offset) == (minimum, len(results))
        stats = store.stats()
        assert (stats.expired_segments, stats.expired_bytes, stats.log_min_offset) == (3, done.bytes, 3 * 4096)
        assert store.expire(dry_run=False).files == ()
    assert mqstore.verify(home).ok


@pytest.mark.slow
def test_age_counts_from_the_last_message(home: Path) -> None:
    with mqstore.open(home, "create", retention=timedelta(seconds=2), **TINY) as store:
        fill(store, 3)
        for path in (home / "commitlog").iterdir():
            os.utime(path, (0, 0))
        assert store.expire(dry_run=True).files == (), "an old file with new messages"
        time.sleep(2.05)
        report = store.expire(dry_run=False)
        assert report.segments == 2
        assert report.files[0].reason.startswith("age: its last record was stored")


def test_a_reader_of_the_directory_tells_and_does_not_delete(home: Path) -> None:
    with mqstore.open(home, "create", **TINY) as store:
        fill(store)
    with mqstore.open(home, **KEEP_TWO) as store:
        assert store.expire(dry_run=True).segments == 3
        with pytest.raises(mqstore.StoreReadOnlyError):
            store.expire(dry_run=False)


def test_events_name_what_went(home: Path) -> None:
    events: list[StoreEvent] = []
    with mqstore.open(home, "create", on_event=events.append, **KEEP_TWO) as store:
        fill(store)
        report = store.expire(dry_run=False)
    assert tuple(event.file for event in events) == report.files
    assert [event.kind for event in events[:3]] == ["segment_deleted"] * 3
    assert {event.kind for event in events[3:]} == {"queue_file_deleted", "index_file_deleted"}
    assert events[0].detail == report.files[0].reason
    assert pickle.loads(pickle.dumps(events)) == events


def test_before_delete_archives_keeps_and_puts_off(home: Path) -> None:
    answers: list[Any] = [None, False]
    archived: dict[str, bytes] = {}

    def archive(file: ExpiredFile) -> Any:
        answer = answers.pop(0) if answers else timedelta(hours=1)
        if answer is None:
            archived[file.path] = Path(file.path).read_bytes()
        return answer

    with mqstore.open(home, "create", before_delete=archive, **KEEP_TWO) as store:
        fill(store)
        original = (home / "commitlog" / f"{0:020d}").read_bytes()
        report = store.expire(dry_run=False)
        assert (report.segments, report.log_min_offset) == (1, 4096)
        assert report.kept == (f"{home / 'commitlog' / f'{4096:020d}'}: before_delete keeps it",)
        assert archived == {report.files[0].path: original}
        assert store.expire(dry_run=False).segments == 0, "not asked again at once"
        assert answers == []


def test_hooks_that_raise_are_reported_and_delete_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)

    def broken(_file: object) -> bool:
        raise RuntimeError("the archive is away")

    with mqstore.open(home, "create", before_delete=broken, **KEEP_TWO) as store:
        fill(store)
        assert store.expire(dry_run=False).segments == 0
    assert [str(each.exc_value) for each in reported] == ["the archive is away"]
    reported.clear()
    with mqstore.open(home, "rw", on_event=broken, before_delete=lambda _file: "yes", **KEEP_TWO) as store:
        assert store.expire(dry_run=False).segments == 0
    assert {type(each.exc_value) for each in reported} == {TypeError, RuntimeError}
    reported.clear()
    with mqstore.open(home, "rw", on_event=broken, **KEEP_TWO) as store:
        assert store.expire(dry_run=False).segments == 3, "an event is no question"
    assert len(reported) > 3


def test_a_hook_may_use_the_store_and_not_wait_for_itself(home: Path) -> None:
    seen: list[Any] = []

    def look(_file: object) -> None:
        seen.append(store.stats().segments)
        for wait in (store.expire, store.close):
            with pytest.raises(mqstore.StoreBusyError, match="wait for itself"):
                wait()

    with mqstore.open(home, "create", before_delete=look, **KEEP_TWO) as store:
        fill(store, 4)
        assert store.expire(dry_run=False).segments == 2
    assert seen == [4, 3]


def test_an_iterator_in_use_keeps_its_segment(home: Path) -> None:
    # Iterators fetch ahead. With small messages they stay in one segment for a while.
    with mqstore.open(home, "create", **KEEP_TWO) as store:
        fill(store, size=10)
        messages = store.read("t")
        assert next(messages).queue_offset == 0
        report = store.expire(dry_run=False)
        assert report.segments == 0
        assert report.kept[0].endswith("a reader is using it")
        del messages
        assert store.expire(dry_run=False).segments == 3
    hasty = replace(KEEP_TWO["advanced"], held_limit=0)
    with mqstore.open(home, "rw", **{**KEEP_TWO, "retention_bytes": 1, "advanced": hasty}) as store:
        messages = store.read("t")
        kept = next(messages)
        assert store.expire(dry_run=False).segments == 1, "held for longer than the limit"
        assert kept.body == b"x" * 10


def test_secure_wipe_leaves_zeros(home: Path) -> None:
    with mqstore.open(home, "create", secure_wipe=True, **KEEP_TWO) as store:
        fill(store, 3)
        path = home / "commitlog" / f"{0:020d}"
        with path.open("rb") as held:
            assert store.expire(dry_run=False).segments == 1
            assert held.read() == bytes(4096)
        assert list((home / "mqstore" / "wipe").iterdir()) == []


def test_a_nearly_full_disk_refuses_appends_if_asked(home: Path) -> None:
    events: list[StoreEvent] = []
    with mqstore.open(home, "create", disk_refuse_ratio=0.0, on_event=events.append, **TINY) as store:
        with pytest.raises(mqstore.DiskFullError, match="disk_refuse_ratio is 0") as caught:
            store.append("t", b"x")
        assert caught.value.errno == 28
        assert store.stats().refused_appends == 1
    assert [event.kind for event in events] == ["appends_refused"]
    with mqstore.open(home, "rw", **TINY) as store:
        store.append("t", b"x")


DAY = timedelta(days=1)


def a_month(home: Path, daily: Callable[[mqstore.Store, int], None], **options: Any) -> mqstore.Store:
    """Runs `daily` on thirty days of a manual clock, then deletes what is due; returns the open store."""
    clock = ManualClock()
    store = mqstore.testing.open(home, clock=clock, segment_size=4096, retention=7 * DAY, **options)
    for day in range(30):
        daily(store, day)
        clock.advance(DAY)
        store.expire()
    return store


def days_of(store: mqstore.Store, topic: str) -> list[int]:
    return [int(message.body.split()[0]) for message in store.read(topic, 0)]


def put_a_day(store: mqstore.Store, topic: str, day: int) -> None:
    store.append_many(topic, [f"{day} {number} {'x' * 500}".encode() for number in range(10)])


@pytest.mark.slow
def test_thirty_days_of_a_plain_log(home: Path) -> None:
    def daily(store: mqstore.Store, day: int) -> None:
        put_a_day(store, "log", day)
        assert set(days_of(store, "log")) >= set(range(max(day - 6, 0), day + 1)), "nothing goes before a week"

    with a_month(home, daily) as store:
        assert min(days_of(store, "log")) in {23, 24}
        assert store.stats().segments_kept_by == ()


@pytest.mark.slow
def test_finished_jobs_of_a_default_store_give_their_space_back(home: Path, cli: Cli) -> None:
    """The jobs fill a third of the first segment."""
    with mqstore.open(home, "create") as store, store.work_queue("jobs") as queue:
        for _ in range(300):
            queue.put_many([bytes(1000)] * 1000)
            queue.ack_many(queue.get_many(1000))
        assert queue.counts() == mqstore.WorkQueueCounts(ready=0, delayed=0, leased=0, dying=0, dead=0)
    assert allocated(home) > 300 << 20
    assert cli("expire", home, "--retention", "1ms", "--yes").returncode == 0
    assert allocated(home) <= 8 << 20
    with mqstore.open(home, "rw") as store, store.work_queue("jobs") as queue:
        assert queue.put(b"next").queue_offset == 300_000
        assert queue.get().body == b"next"
    assert mqstore.verify(home).ok


@pytest.mark.slow
def test_thirty_days_of_a_work_queue(home: Path) -> None:
    done: list[bytes] = []

    def daily(store: mqstore.Store, day: int) -> None:
        queue = store.work_queue("jobs", "workers")
        for number in range(10):
            queue.put(f"{day} {number} {'x' * 500}".encode())
        # The worker is away from day 5 to day 19, longer than the retention.
        while not 5 <= day < 20:
            try:
                job = queue.get(block=False)
            except mqstore.Empty:
                break
            done.append(job.body)
            queue.ack(job)
        if day == 19:
            (holder,) = store.stats().segments_kept_by
            assert (holder.kind, holder.group, holder.topic, holder.offset) == ("group", "workers", "jobs", 50)

    with a_month(home, daily) as store:
        assert [tuple(map(int, body.split()[:2])) for body in done] == [(d, n) for d in range(30) for n in range(10)]
        assert min(days_of(store, "jobs")) >= 23
        assert store.stats().segments_kept_by == ()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "oldest"),
    [({}, {3, 4}), ({"retention_policy": "time"}, {23, 24}), ({"group_timeout": 2 * DAY}, {23, 24})],
)
def test_thirty_days_of_a_consumer_group(home: Path, options: dict[str, Any], oldest: set[int]) -> None:
    def daily(store: mqstore.Store, day: int) -> None:
        put_a_day(store, "t", day)
        # The second group is forgotten on day 4.
        for group in ("live", "dead")[: 2 if day < 4 else 1]:
            with store.consumer(group, "t") as consumer:
                assert len(consumer.poll(100, timeout=5)) == 10
                consumer.commit()

    with a_month(home, daily, **options) as store:
        assert min(days_of(store, "t")) in oldest
        kept_by = store.stats().segments_kept_by
        assert [holder.group for holder in kept_by] == ([] if options else ["dead"])


def keep_unread(store: mqstore.Store) -> None:
    """Fills segments that a group has not read."""
    store.create_topic("t")
    store.consumer("reader", "t").close()
    fill(store)


@pytest.mark.slow
def test_what_keeps_a_segment_is_named(home: Path, cli: Cli, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mqstore")
    with mqstore.open(home, "create", retention=0.001, **TINY) as store:
        keep_unread(store)
        time.sleep(0.01)
        report = store.expire()
        assert report.segments == 0
        (holder,) = report.kept_by
        assert (holder.group, holder.topic, holder.queue_id, holder.offset) == ("reader", "t", 0, 0)
        (reason,) = report.kept
        assert reason.startswith(str(home / "commitlog" / f"{0:020d}"))
        assert reason.endswith("unfinished messages: group reader has not finished t from queue 0, offset 0 on")
        assert store.stats().segments_kept_by == report.kept_by
        assert pickle.loads(pickle.dumps(report)) == report
    (record,) = [one for one in caplog.records if "segment kept" in one.message]
    assert "group reader has not finished t" in record.message
    assert mqstore.info(home).segments_kept_by == report.kept_by
    assert "segments kept by" in cli("info", home).stdout
    rule = ("--retention", "0.001", "--format", "json")
    told = json.loads(cli("expire", home, *rule, "--yes").stdout)
    assert (told["files"], told["kept_by"]) == ([], [holder.to_dict()])
    assert cli("expire", home, *rule, "--retention-policy", "nobody").returncode == 2
    plan = json.loads(cli("expire", home, *rule, "--retention-policy", "time", "--dry-run").stdout)
    assert plan["segments"] == 4
    limit = ("--group-timeout", "0.001")
    assert json.loads(cli("expire", home, *rule, *limit, "--dry-run").stdout)["segments"] == 0
    assert json.loads(cli("expire", home, *rule, *limit, "--dry-run").stdout)["segments"] == 0
    assert cli("expire", home, *rule, *limit).returncode == 2
    assert json.loads(cli("expire", home, *rule, *limit, "--yes").stdout)["segments"] == 0, "the time starts now"
    assert json.loads(cli("expire", home, *rule, *limit, "--yes").stdout)["segments"] == 4


def test_a_hard_limit_deletes_unfinished_messages_and_says_so(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "mqstore")
    events: list[StoreEvent] = []
    with mqstore.open(home, "create", on_event=events.append, **KEEP_TWO) as store:
        keep_unread(store)
        assert store.expire().segments == 3
    deleted = [event.file for event in events if event.kind == "segment_deleted"]
    assert [file.unfinished for file in deleted if file is not None] == [True] * 3
    records = [one for one in caplog.records if one.message.startswith("segment deleted")]
    assert [one.levelno for one in records] == [logging.WARNING] * 3
    assert "unfinished messages are lost: group reader has not finished t" in records[0].message


def test_a_store_without_retention_calls_no_python_code(home: Path) -> None:
    from mqstore._admin.event_log import logged

    assert logged(mqstore.StoreOptions()) is None
    assert logged(mqstore.StoreOptions(retention=1)) is not None


def test_confirm_offset(home: Path) -> None:
    with mqstore.open(home, "create", **TINY) as store:
        assert store.confirm_offset is None
        first = store.append("t", b"1")
        end = first.commit_log_offset + first.size
        store.set_confirm_offset(end)
        assert store.confirm_offset == end
        store.append("t", b"2")
        with mqstore.open(home) as beside:
            for view in (store, beside):
                assert [message.body for message in view.read("t")] == [b"1"]
        for wrong in (end + 1, 0, 1 << 40):
            with pytest.raises(mqstore.InvalidOptionError, match="confirm_offset"):
                store.set_confirm_offset(wrong)
        with pytest.raises(ValueError, match="negative"):
            store.set_confirm_offset(-1)
        store.set_confirm_offset(None)
        assert [message.body for message in store.read("t")] == [b"1", b"2"]
    with mqstore.open(home) as store:
        assert store.confirm_offset is None
        with pytest.raises(mqstore.StoreReadOnlyError):
            store.set_confirm_offset(0)


def test_several_log_folders(home: Path, tmp_path: Path) -> None:
    one, two = tmp_path / "disk1", tmp_path / "disk2"
    with mqstore.open(home, "create", commit_log_paths=[one, str(two)], **TINY) as store:
        count = len(fill(store))
    digits = [sorted(path.name for path in folder.iterdir() if path.is_file()) for folder in (one, two)]
    assert digits == [[f"{n * 4096:020d}" for n in (0, 2, 4)], [f"{n * 4096:020d}" for n in (1, 3)]]
    assert list((home / "commitlog").iterdir()) == []
    assert mqstore.info(home).messages == count
    assert mqstore.verify(home).ok
    with mqstore.open(home, "rw", **KEEP_TWO) as store:
        assert len(list(store.read("t"))) == count
        assert store.expire(dry_run=False).segments == 3
    with pytest.raises(mqstore.InvalidOptionError, match="holds segments too"):
        mqstore.open(home, "rw", commit_log_paths=one)
    with pytest.raises(mqstore.UnsupportedFormatError, match="log is in separate folders"):
        mqstore.compact(home, output=tmp_path / "copy")
    two.rename(tmp_path / "unmounted")
    with pytest.raises(mqstore.StoreIOError, match="disk2"):
        mqstore.open(home)


def test_options_of_paths_and_calls() -> None:
    assert mqstore.StoreOptions(commit_log_paths="a").commit_log_paths == ("a",)
    tuned = mqstore.BrokerOptions(read_only_commit_log_paths=[Path("b"), "c"])
    assert tuned.read_only_commit_log_paths == ("b", "c")
    for wrong in (1, b"a", [1], [""], None):
        with pytest.raises(mqstore.InvalidOptionError, match="commit_log_paths"):
            mqstore.StoreOptions(commit_log_paths=wrong)  # type: ignore[arg-type]
        with pytest.raises(mqstore.InvalidOptionError, match="read_only_commit_log_paths"):
            mqstore.BrokerOptions(read_only_commit_log_paths=wrong)  # type: ignore[arg-type]
    for name in ("on_event", "before_delete"):
        with pytest.raises(mqstore.InvalidOptionError, match="callable"):
            mqstore.StoreOptions(**{name: 1})  # type: ignore[arg-type]


@pytest.mark.slow
def test_the_verb(filled: Path, cli: Cli) -> None:
    assert cli("expire", filled).returncode == 2
    assert cli("expire", filled, "--retention", "soon").returncode == 2
    nothing = cli("expire", filled, "--retention", "7d", "--format", "json")
    assert (nothing.returncode, json.loads(nothing.stdout)["files"]) == (0, [])
    with mqstore.open(filled, "rw") as store:
        for _ in range(3):
            store.append("orders", bytes(50_000))
    rule = ("--retention-bytes", 2 * 65536, "--format", "json")
    plan = json.loads(cli("expire", filled, *rule, "--dry-run").stdout)
    assert plan["dry_run"]
    assert plan["segments"] > 0
    refused = cli("expire", filled, *rule)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "--yes" in refused.stderr
    done = cli("expire", filled, *rule, "--yes")
    assert (done.returncode, json.loads(done.stdout)) == (0, {**plan, "dry_run": False})
    assert mqstore.verify(filled).ok
    table = cli("expire", filled, "--retention-bytes", 65536, "--yes")
    assert table.returncode == 0
    assert "segment" in table.stdout
    assert "deleted" in table.stderr


def test_the_verb_takes_a_brokers_file(filled: Path, tmp_path: Path, cli: Cli) -> None:
    conf = tmp_path / "broker.conf"
    conf.write_text("fileReservedTime=72\ndiskSpaceCleanForciblyRatio=100\n")
    report = cli("expire", filled, "--conf", conf, "--format", "jsonl")
    assert (report.returncode, json.loads(report.stdout)["files"]) == (0, [])


TABLE = {"cleanup.policy": "COMPACTION"}


def fill_table(store: mqstore.Store, keys: int = 5) -> None:
    """Five keys in the first segments only, then messages of another topic."""
    store.create_topic("prices", attributes=TABLE)
    for number in range(keys):
        store.append("prices", f"{number}".encode(), keys=f"k{number}")
    fill(store)


def prices(home: Path) -> list[bytes]:
    with mqstore.open(home) as store:
        return [message.body for message in store.read("prices")]


def test_what_no_compaction_took_up_stays(home: Path) -> None:
    kept: list[StoreEvent] = []
    options = {**KEEP_TWO, "on_event": kept.append}
    with mqstore.open(home, "create", **options) as store:
        fill_table(store)
        for dry_run in (True, False):
            report = store.expire(dry_run=dry_run)
            assert (report.files, report.log_min_offset) == ((), 0)
            (reason,) = report.kept
            assert reason.startswith(str(home / "commitlog" / ("0" * 20)))
            assert "in no compaction file yet, of prices (queue 0 from offset 0 on); compact first" in reason
        assert [(event.kind, "prices (queue 0" in event.detail) for event in kept] == [("segment_kept", True)]
        with mqstore.open(home, **KEEP_TWO) as reader:
            assert reader.expire(dry_run=True).to_dict() == {**report.to_dict(), "dry_run": True}
        done = store.expire(dry_run=False, compact=True)
        assert (done.segments, done.kept) == (3, ())
        assert len(segments(home)) == 2
    assert prices(home) == [b"0", b"1", b"2", b"3", b"4"]


def test_a_dry_run_compacts_nothing_and_keyless_messages_hold_nothing_back(home: Path) -> None:
    with mqstore.open(home, "create", **KEEP_TWO) as store:
        store.create_topic("prices", attributes=TABLE)
        store.append("prices", b"without a key")
        store.append("prices", b"value", keys="k")
        fill(store)
        assert "prices (queue 0 from offset 1 on)" in store.expire(dry_run=True, compact=True).kept[0]
        assert not (home / "compaction").exists()
        store.compact()
        store.append("prices", b"newer", keys="k")
        done = store.expire(dry_run=False)
        assert (done.segments, done.kept) == (3, ())
        fill(store, 4)
        # The newer value is in the oldest segment now.
        assert "prices (queue 0 from offset 2 on)" in store.expire(dry_run=False).kept[0]
    assert prices(home) == [b"value", b"newer"]


def test_expire_uncompacted_lets_it_go(home: Path) -> None:
    with mqstore.open(home, "create", expire_uncompacted=True, **KEEP_TWO) as store:
        fill_table(store)
        assert store.expire(dry_run=False).segments == 3
    assert prices(home) == []


@pytest.mark.slow
def test_the_verb_compacts_first(home: Path, cli: Cli) -> None:
    with mqstore.open(home, "create", **TINY) as store:
        fill_table(store)
    rule = ["--retention-bytes", "8192"]
    told = cli("expire", str(home), *rule, "--yes")
    assert (told.returncode, "kept for now" in told.stderr, len(segments(home))) == (0, True, 5)
    done = cli("expire", str(home), *rule, "--yes", "--compact", "--format", "json")
    assert json.loads(done.stdout)["segments"] == 3
    assert len(segments(home)) == 2
    assert prices(home) == [b"0", b"1", b"2", b"3", b"4"]
    with mqstore.open(home, "rw", **TINY) as store:
        store.append("prices", b"new", keys="k0")
        fill(store)
    assert cli("expire", str(home), *rule, "--yes", "--expire-uncompacted").returncode == 0
    assert len(segments(home)) == 2


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="needs /proc")
def test_the_space_of_deleted_files_is_free_at_once(home: Path) -> None:
    options = {"segment_size": 1 << 20, "index_slots": 100, "index_entries": 4000, "queue_file_entries": 1000}
    with mqstore.open(home, "create", retention=0.2, **options) as store:
        store.create_topic("orders", queues=2)
        for number in range(6000):
            store.append("orders", b"x" * 1000, queue_id=number % 2, keys=[f"key-{number}"])
        held = store.message_at("orders", 0, 0)
        assert len(list(store.read("orders", 1))) == 3000
        time.sleep(0.3)
        # A message can keep the bytes of its segment; nothing else keeps those of the others.
        assert store.expire().segments == 6
        files = open_deleted_files(home)
        assert len(files) <= 1
        assert len(store.stats().held_files) == len(files)
        assert held is not None
        assert held.body == b"x" * 1000
        del held
        deadline = time.monotonic() + 5
        while open_deleted_files(home) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert open_deleted_files(home) == []
        assert store.stats().held_files == ()
