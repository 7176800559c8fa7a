"""Streaming backups: rounds, restores to a moment, targets that fail, and backups that continue in a thread."""

from __future__ import annotations

import hashlib
import random
import shutil
import threading
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

import mqstore
from conftest import SMALL, Cli, python, until
from mqstore import testing
from remote_stores import BUCKET, Bucket, needs_versitygw, versitygw_bucket

OPTIONS = replace(SMALL, segment_size=16 << 10)


def log_of(home: Path) -> bytes:
    """The bytes of the log of a closed store, without the zeros at its end."""
    return b"".join(path.read_bytes() for path in sorted((home / "commitlog").iterdir())).rstrip(b"\0")


def fill(store: mqstore.Store, count: int, topic: str = "orders") -> None:
    store.append_many(
        topic, [mqstore.Message(b"%06d" % number + b"x" * 300, keys=f"k{number}") for number in range(count)]
    )


def bodies(store: mqstore.Store, topic: str = "orders") -> list[bytes]:
    return [message.body[:6] for message in store.read(topic)] if topic in store.topics() else []


def test_a_backup_has_everything(home: Path, tmp_path: Path) -> None:
    target, back = tmp_path / "cold", tmp_path / "back"
    with mqstore.open(home, "create", options=OPTIONS) as store:
        backup = mqstore.Backup(target)
        fill(store, 100)
        queue = store.work_queue("jobs", visibility_timeout=3600)
        queue.put_many([b"%d" % number for number in range(10)])
        for message in queue.get_many(4, timeout=0)[:3]:
            message.ack()
        store.append("later", b"later", delay=3600)
        with store.consumer("readers", "orders") as consumer:
            consumer.poll(50)
            consumer.commit()
        store.set_retention("orders", keep=timedelta(days=3))
        first = backup.run(store)
        assert first.is_new
        assert first.number == 1
        assert first.missing_bytes == 0
        assert not backup.run(store).is_new
        fill(store, 5)
        second = backup.run(home)
        assert second.is_new
        assert second.log_end > first.log_end
        # The tail is small.
        assert second.bytes < 20_000
        counts = queue.counts()
    assert backup.verify().ok
    report = backup.restore(back)
    assert report.ok, report.problems
    assert report.log_end == second.log_end
    assert log_of(back) == log_of(home)
    assert mqstore.verify(back).ok
    with mqstore.open(home) as before, mqstore.open(back, "rw") as after:
        assert after.topics() == before.topics()
        assert bodies(after) == bodies(before)
        with after.consumer("readers", "orders") as consumer:
            assert sum(consumer.committed("orders", one.queue_id) or 0 for one in after.queues("orders")) == 50
        assert after.work_queue("jobs").counts() == counts
        assert [(one.topic, one.keep) for one in after.retention()] == [("orders", timedelta(days=3))]
        assert [message.body for message in after.work_queue("jobs").get_many(6, timeout=0)] == [
            b"%d" % number for number in range(4, 10)
        ]
        assert after.delays().pending == 1


def test_a_random_history(home: Path, tmp_path: Path) -> None:
    """Verbs, kills, retention, reclaims, other sessions: each state has what the store had."""
    for seed in range(4):
        history(home.parent / f"store{seed}", tmp_path / f"cold{seed}", tmp_path / f"back{seed}", random.Random(seed))


def history(home: Path, target: Path, back: Path, choose: random.Random) -> None:
    options = replace(OPTIONS, retention_bytes=5 * OPTIONS.segment_size)
    backup = mqstore.Backup(target)
    saved: dict[int, tuple[list[bytes], mqstore.WorkQueueCounts, str]] = {}
    store = mqstore.open(home, "create", options=options)
    number = 0
    for _ in range(40):
        act = choose.randrange(9)
        if act < 4:
            for _ in range(choose.randrange(1, 40)):
                store.append(choose.choice(["orders", "other"]), b"%06d" % number + b"x" * choose.randrange(500))
                number += 1
        elif act == 4:
            queue = store.work_queue("jobs", visibility_timeout=3600)
            queue.put_many([b"%06d" % one for one in range(choose.randrange(5))])
            for message in queue.get_many(choose.randrange(1, 4), timeout=0):
                (message.ack if choose.random() < 0.7 else message.nack)()
        elif act == 5:
            store.expire()
        elif act == 6 and "other" in store.topics():
            store.set_retention("other", max_bytes=choose.randrange(1, 20_000))
            store.expire()
            store.reclaim()
        elif act == 7:
            store.close()
            store = mqstore.open(home, "rw", options=options)
        report = backup.run(home if choose.random() < 0.3 else store)
        work = store.work_queue("jobs", visibility_timeout=3600)
        shown = hashlib.sha256(b"".join(bodies(store, "orders") + bodies(store, "other"))).hexdigest()
        saved[report.log_end] = (bodies(store), work.counts(), shown)
        if choose.random() < 0.2:
            backup.clean(keep=choose.choice([0, "7d"]), older_than=0)
            assert backup.verify().ok
    store.close()
    kept = [state for state in backup.states() if state.is_complete]
    for state in choose.sample(kept, min(4, len(kept))):
        done = backup.restore(back / str(state.number), offset=state.log_end)
        assert done.ok, done.problems
        assert done.log_end == state.log_end
        with mqstore.open(back / str(state.number), "rw", options=options) as restored:
            orders, counts, shown = saved[state.log_end]
            assert bodies(restored) == orders
            assert restored.work_queue("jobs", visibility_timeout=3600).counts() == counts
            everything = b"".join(bodies(restored, "orders") + bodies(restored, "other"))
            assert hashlib.sha256(everything).hexdigest() == shown


def test_a_restore_goes_to_any_moment(home: Path, tmp_path: Path) -> None:
    clock = testing.ManualClock(1_700_000_000_000)
    now_ms = 1_700_000_000_000
    backup = mqstore.Backup(tmp_path / "cold")
    ends = []
    with testing.open(home, "create", options=OPTIONS, clock=clock) as store:
        for number in range(12):
            ends.append((now_ms, store.append("orders", b"%06d" % number).commit_log_offset))
            clock.advance(1)
            now_ms += 1000
            if number % 4 == 3:
                backup.run(store)
                clock.advance(1)
                now_ms += 1000
    # A message ends where the next one begins. The first state has four.
    for number in range(4, 11):
        for moment in ({"at": ends[number][0]}, {"offset": ends[number + 1][1]}, {"offset": ends[number + 1][1] + 1}):
            to = tmp_path / f"{number}-{len(list(tmp_path.iterdir()))}"
            assert backup.restore(to, **moment).ok
            with mqstore.open(to) as store:
                assert bodies(store) == [b"%06d" % one for one in range(number + 1)]
    with pytest.raises(
        mqstore.InvalidOptionError, match=r"at: \S+ has no state so early: its first one was made 4 s later"
    ):
        backup.restore(tmp_path / "early", at=ends[0][0])
    with pytest.raises(mqstore.InvalidOptionError, match="at or offset, not both"):
        backup.restore(tmp_path / "early", at=ends[9][0], offset=9)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "file").touch()
    with pytest.raises(FileExistsError, match="not empty"):
        backup.restore(tmp_path / "full")


def test_a_backup_continues_in_a_thread(home: Path, tmp_path: Path) -> None:
    target = tmp_path / "cold"
    with mqstore.open(home, "create", options=OPTIONS) as store:
        with mqstore.backup(store, target, interval=0.1) as running:
            assert running.running
            fill(store, 20)
            until(lambda: running.status().lag_bytes == 0)
            status = running.status()
            assert status.error is None
            # A round without a change makes no state, once the background has written its JSON files.
            until(lambda: not running.run().is_new and not running.run().is_new)
            fill(store, 1)
        assert not running.running
        running.close()
    assert mqstore.Backup(target).restore(tmp_path / "back").ok
    assert log_of(tmp_path / "back") == log_of(home)
    with mqstore.backup(home, target, interval=60) as running:
        until(lambda: running.status().rounds == 1)


def error_after(running: mqstore.RunningBackup, failures: int) -> str:
    """Waits for so many failures of a backup, which continues and shows its lag. Returns the error that it shows."""
    until(lambda: running.status().failures >= failures)
    status = running.status()
    assert status.running
    assert status.lag_bytes > 0
    assert status.error is not None
    return status.error


def test_a_target_that_fails_loses_nothing(home: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    target = tmp_path / "cold"
    with mqstore.open(home, "create", options=OPTIONS) as store:
        running = mqstore.backup(store, target, interval=0.1)
        fill(store, 20)
        until(lambda: running.status().lag_bytes == 0)
        aside = tmp_path / "aside"
        target.rename(aside)
        target.write_text("no folder")
        fill(store, 20)
        assert str(target) in error_after(running, 3)
        told = [record for record in caplog.records if "backup of" in record.message]
        # Once for each kind, not with each round.
        assert len(told) <= 2, told
        target.unlink()
        aside.rename(target)
        until(lambda: running.status().lag_bytes == 0)
        assert running.status().error is None
        running.close()
    assert mqstore.Backup(target).restore(tmp_path / "back").ok
    assert log_of(tmp_path / "back") == log_of(home)


def test_two_backups_to_one_target(home: Path, tmp_path: Path) -> None:
    target = tmp_path / "cold"
    with mqstore.open(home, "create", options=OPTIONS) as store:
        fill(store, 5)
        first = mqstore.backup(store, target, interval=0.1)
        until(lambda: first.status().rounds > 0)
        second = mqstore.backup(home, target, interval=0.1)
        until(lambda: second.status().rounds > 0)

        def one_has_ended() -> bool:
            fill(store, 1)
            return not (first.running and second.running)

        until(one_has_ended)
        ended, other = (first, second) if second.running else (second, first)
        with pytest.raises(mqstore.StoreBusyError, match=r"cold: another process backs up to this target; end one of"):
            ended.close()
        other.close()
    assert mqstore.Backup(target).restore(tmp_path / "back").ok
    assert log_of(tmp_path / "back") == log_of(home)


def test_a_backup_is_that_of_one_store(home: Path, tmp_path: Path) -> None:
    backup = mqstore.Backup(tmp_path / "cold")
    with mqstore.open(home, "create", options=OPTIONS) as store:
        fill(store, 60)
        backup.run(store)
    for other, count in (("empty", 0), ("other", 80)):
        with mqstore.open(tmp_path / other, "create", options=OPTIONS) as store:
            fill(store, count)
            with pytest.raises(mqstore.ResultExistsError, match="is of another store, or of a later time"):
                backup.run(store)
    # The restored store continues the backup, also one that went back in time.
    (state,) = backup.states()
    assert backup.restore(tmp_path / "back").ok
    with mqstore.open(tmp_path / "back", "rw", options=OPTIONS) as store:
        fill(store, 1)
        report = backup.run(store)
        assert not report.is_new_generation
        assert report.bytes < 20_000
    assert backup.restore(tmp_path / "again", offset=state.log_end).ok
    with mqstore.open(tmp_path / "again", "rw", options=OPTIONS) as store:
        store.append("orders", b"another way")
        assert backup.run(store).is_new_generation
    assert backup.restore(tmp_path / "last").ok
    assert log_of(tmp_path / "last") == log_of(tmp_path / "again")
    with pytest.raises(mqstore.InvalidOptionError, match="is in the directory of the store"):
        mqstore.Backup(home / "cold").run(home)
    with pytest.raises(mqstore.ResultNotFoundError):
        mqstore.Backup(tmp_path / "nothing").states()


def test_damage_of_a_backup_is_named(home: Path, tmp_path: Path) -> None:
    target = tmp_path / "cold"
    backup = mqstore.Backup(target)
    with mqstore.open(home, "create", options=OPTIONS) as store:
        fill(store, 100)
        backup.run(store)
    pieces = sorted((target / "backup-v1" / "pieces").iterdir(), key=lambda path: path.stat().st_size)
    content = pieces[-1].read_bytes()
    for damaged in (content[:-1], content[:9] + bytes([content[9] ^ 1]) + content[10:], None):
        if damaged is None:
            pieces[-1].unlink()
        else:
            pieces[-1].write_bytes(damaged)
        report = backup.verify()
        assert not report.ok
        assert [problem.startswith(str(pieces[-1])) for problem in report.problems] == [True]
        with pytest.raises(mqstore.CorruptionError, match=pieces[-1].name):
            backup.restore(tmp_path / "back")
        assert not (tmp_path / "back").exists()
    pieces[-1].write_bytes(content)
    assert backup.verify().ok
    (state,) = (target / "backup-v1" / "states").iterdir()
    state.write_bytes(state.read_bytes().replace(b'"number":1', b'"number":2'))
    for verb in (backup.states, backup.verify, backup.clean, lambda: backup.run(home)):
        with pytest.raises(mqstore.CorruptionError, match="cannot be used: it is damaged"):
            verb()


def test_the_retention_waits_for_the_backup(home: Path, tmp_path: Path) -> None:
    clock = testing.ManualClock()
    options = replace(OPTIONS, retention=3600)
    (tmp_path / "file").touch()
    with testing.open(home, "create", options=options, clock=clock) as store:
        fill(store, 200)
        running = mqstore.backup(store, tmp_path / "file" / "cold", interval=0.1, replica_timeout="2h")
        until(lambda: running.status().failures > 0)
        clock.advance(3700)
        report = store.expire()
        assert report.segments == 0
        (kept,) = report.kept_by
        assert (kept.kind, kept.group, kept.log_offset) == ("backup", str(tmp_path / "file" / "cold"), 0)
        # A dead target does not fill the disk.
        clock.advance(3700)
        assert store.expire().segments > 0
        with pytest.raises(mqstore.MQStoreError):
            running.close()


def test_a_backup_of_another_process_keeps_segments(home: Path, tmp_path: Path) -> None:
    """The writer learns from a file how far the backup is, also after both were opened again."""
    clock = testing.ManualClock(timedelta())
    options = replace(OPTIONS, retention=3600)
    code = (
        "import sys, mqstore\n"
        "with mqstore.backup(sys.argv[1], sys.argv[2], interval=3600, replica_timeout='2h') as running:\n"
        "    print(running.run().log_end)\n"
    )
    with testing.open(home, "create", options=options, clock=clock) as store:
        fill(store, 200)
        end = int(python(code, home, tmp_path / "cold").stdout)
        fill(store, 200)
    with testing.open(home, "create", options=options, clock=clock) as store:
        clock.advance(3700)
        assert store.expire().segments > 0
        report = store.expire()
        assert report.segments == 0
        (kept,) = report.kept_by
        assert (kept.kind, kept.group, kept.log_offset) == ("backup", str(tmp_path / "cold"), end)
        assert f"the backup {tmp_path / 'cold'} has the log up to offset {end} only" in report.kept[0]
        with mqstore.open(home) as reader:
            assert reader.expire(dry_run=True).segments == 0
        # A single run copies what is missing, and does not need a time of its own.
        assert mqstore.Backup(tmp_path / "cold").run(home).log_end > end
        assert store.expire().segments > 0


def test_a_wrong_clock_keeps_segments_until_the_next_round_only(home: Path, tmp_path: Path) -> None:
    clock = testing.ManualClock()
    with testing.open(home, "create", options=replace(OPTIONS, retention=3600), clock=clock) as store:
        fill(store, 20)
        with mqstore.backup(store, tmp_path / "cold", interval=3600, replica_timeout="2h") as running:
            running.run()
            clock.advance("3650d")
            running.run()
            clock.advance(timedelta(days=-3650))
            running.run()
            fill(store, 200)
            clock.advance("119m")
            assert {holder.kind for holder in store.expire().kept_by} == {"backup"}
            clock.advance("2m")
            assert store.expire().segments > 0


def test_an_erase_names_backups(home: Path, tmp_path: Path) -> None:
    with mqstore.open(home, "create", options=OPTIONS) as store:
        fill(store, 200, "gone")
        fill(store, 200)
        assert store.reclaim(erase="gone").copies == ()
        mqstore.Backup(tmp_path / "one").run(store)
        running = mqstore.backup(home, tmp_path / "two", interval=0.1, replica_timeout=0)
        until(lambda: running.status().rounds > 0)
        store.delete_topic("gone")
        # It keeps nothing that the backups have, and they keep the bytes that it removes.
        report = store.reclaim(erase="gone")
        assert report.segments
        assert sorted(report.copies) == [f"the backup {tmp_path / name}" for name in ("one", "two")]
        running.close()


def test_a_reclaim_leaves_what_a_backup_lacks(home: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with mqstore.open(home, "create", options=OPTIONS) as store:
        fill(store, 200, "gone")
        fill(store, 200)
        store.flush()
        store.delete_topic("gone")
        running = mqstore.backup(store, tmp_path / "file" / "cold", interval=60)
        until(lambda: running.status().failures > 0)
        assert "cold has the log up to offset 0 only" in store.reclaim().kept[0].reason
        with pytest.raises(mqstore.MQStoreError):
            running.close()


def test_a_backup_leaves_no_file_with_a_broker(home: Path, tmp_path: Path) -> None:
    """Nor in a directory that a single run reads."""
    with mqstore.open(home, "create", options=OPTIONS) as store:
        fill(store, 20)
    before = sorted(home.rglob("*"))
    mqstore.Backup(tmp_path / "one").run(home)
    assert sorted(home.rglob("*")) == before
    shutil.rmtree(home / "mqstore")
    with mqstore.backup(home, tmp_path / "two") as running:
        assert running.run().segments
    assert not (home / "mqstore").exists()


def test_a_url_is_a_target(home: Path, tmp_path: Path, server: Bucket) -> None:
    backup = mqstore.Backup(f"s3://{BUCKET}/backups/one", target_options=server.options)
    with mqstore.open(home, "create", options=OPTIONS) as store:
        fill(store, 100)
        assert backup.run(store).is_new
        fill(store, 3)
        assert backup.run(store).is_new
        assert not backup.run(store).is_new
    assert backup.verify().ok
    assert len(backup.states()) == 2
    assert backup.restore(tmp_path / "back").ok
    assert log_of(tmp_path / "back") == log_of(home)
    assert backup.clean(keep=0, older_than=0).objects
    assert backup.verify().ok
    assert len(backup.states()) == 1


def test_rights_that_end_lose_nothing(home: Path, tmp_path: Path) -> None:
    needs_versitygw()
    url = f"s3://{BUCKET}/backup"
    with versitygw_bucket(tmp_path / "objects") as server:
        server.allow("s3:ListBucket", "s3:GetObject", "s3:PutObject")
        with mqstore.open(home, "create", options=OPTIONS) as store:
            fill(store, 20)
            running = mqstore.backup(store, url, interval=0.1, target_options=server.anonymous)
            until(lambda: running.status().rounds > 0 and running.status().lag_bytes == 0)
            server.allow("s3:GetObject")
            fill(store, 20)
            assert "permission" in error_after(running, 2)
            server.allow("s3:ListBucket", "s3:GetObject", "s3:PutObject")
            until(lambda: running.status().lag_bytes == 0)
            running.close()
        back = mqstore.Backup(url, target_options=server.options)
        assert back.restore(tmp_path / "back").ok
    assert log_of(tmp_path / "back") == log_of(home)


def test_a_killed_writer(tmp_path: Path) -> None:
    """The backup of a process that is killed has everything that it had saved, and its successor continues."""
    home, target = tmp_path / "store", tmp_path / "cold"
    code = (
        "import sys, mqstore\n"
        "store = mqstore.open(sys.argv[1], 'create', segment_size=1 << 16)\n"
        "running = mqstore.backup(store, sys.argv[2], interval=0.1)\n"
        "number = 0\n"
        "while True:\n"
        "    for _ in range(200):\n"
        "        store.append('orders', b'%06d' % number + b'x' * 200)\n"
        "        number += 1\n"
        "    report = running.run()\n"
        "    print(number, report.log_end, flush=True)\n"
        "    if number == 2000:\n"
        "        import os, signal\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = python(code, home, target)
    number, log_end = done.stdout.split()[-2:]
    backup = mqstore.Backup(target)
    assert backup.restore(tmp_path / "back").log_end >= int(log_end)
    with mqstore.open(tmp_path / "back") as store:
        assert bodies(store)[: int(number)] == [b"%06d" % one for one in range(int(number))]
    with mqstore.open(home, "rw") as store:
        fill(store, 1)
        assert backup.run(store).missing_bytes == 0
    assert backup.restore(tmp_path / "last").ok
    assert log_of(tmp_path / "last") == log_of(home)


def test_the_command_line(home: Path, tmp_path: Path, cli: Cli) -> None:
    target = tmp_path / "cold"
    with mqstore.open(home, "create", options=OPTIONS) as store:
        fill(store, 30)
        done = cli("backup", home, target)
        assert done.returncode == 0, done.stderr
        fill(store, 30)
        assert cli("backup", home, target, "--format", "json").returncode == 0
    listed = cli("backup-files", target).stdout
    assert "log from" in listed
    first, second = mqstore.Backup(target).states()
    assert cli("backup-verify", target).returncode == 0
    assert cli("backup-restore", target, tmp_path / "back").returncode == 0
    assert log_of(tmp_path / "back") == log_of(home)
    assert cli("backup-restore", target, tmp_path / "first", "--at", str(first.log_end)).returncode == 0
    with mqstore.open(tmp_path / "first") as store:
        assert store.count("orders") == 30
    refused = cli("backup-restore", target, tmp_path / "early", "--at", "7")
    assert refused.returncode == 3
    assert "--at: " in refused.stderr
    assert "removed " in cli("backup-clean", target, "--keep", "0", "--older-than", "0", "--yes").stderr
    assert [state.number for state in mqstore.Backup(target).states()] == [second.number]
    next((target / "backup-v1" / "pieces").iterdir()).unlink()
    damaged = cli("backup-verify", target)
    assert damaged.returncode == 1
    assert "is missing" in damaged.stdout


def test_the_metadata_is_never_ahead_of_the_log(home: Path, tmp_path: Path) -> None:
    """Groups commit while rounds copy: no state has an offset behind its log, which a restore would report."""
    backup = mqstore.Backup(tmp_path / "cold")
    with mqstore.open(home, "create", options=OPTIONS) as store:
        is_over = threading.Event()

        def work() -> None:
            queue = store.work_queue("jobs")
            with store.consumer("readers", "jobs") as consumer:
                while not is_over.is_set():
                    queue.put(b"x" * 100)
                    queue.get().ack()
                    consumer.poll(1, timeout=0)
                    consumer.commit()

        thread = threading.Thread(target=work)
        thread.start()
        for _ in range(25):
            backup.run(store)
        is_over.set()
        thread.join()
    states = backup.states()
    assert len(states) > 20
    for state in states[::5]:
        report = backup.restore(tmp_path / str(state.number), offset=state.log_end)
        assert report.ok, report.problems


def test_more_segments_than_a_process_may_open(home: Path, tmp_path: Path) -> None:
    code = (
        "import resource, sys, mqstore\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (100, 100))\n"
        "with mqstore.open(sys.argv[1], 'create', segment_size=16 << 10, queue_file_entries=64) as store:\n"
        "    for number in range(300):\n"
        "        store.append_many('orders', [b'%06d' % number + b'x' * 1500] * 10)\n"
        "    print(mqstore.Backup(sys.argv[2]).run(store).segments)\n"
        "    store.append('orders', b'one more')\n"
        "    print(mqstore.Backup(sys.argv[2]).run(sys.argv[1]).segments)\n"
        "print(mqstore.Backup(sys.argv[2]).restore(sys.argv[3]).ok)\n"
    )
    done = python(code, home, tmp_path / "cold", tmp_path / "back")
    first, second, is_ok = done.stdout.split()
    assert int(first) > 250, done.stderr
    assert int(second) >= int(first)
    assert is_ok == "True"
    assert log_of(tmp_path / "back") == log_of(home)


def test_objects_that_are_gone_come_again(home: Path, tmp_path: Path) -> None:
    """The next process uploads what someone has removed, as long as the store has it."""
    target = tmp_path / "cold"
    backup = mqstore.Backup(target)
    with mqstore.open(home, "create", options=OPTIONS) as store:
        fill(store, 300)
        store.create_topic("other", 2)
        backup.run(store)
        pieces = sorted((target / "backup-v1" / "pieces").iterdir())
        for number, piece in enumerate(pieces):
            if number % 2:
                piece.unlink()
            else:
                piece.write_bytes(piece.read_bytes()[:-1])
        assert len(backup.verify().problems) == len(pieces)
        assert backup.run(store).objects >= len(pieces)
        assert backup.clean(keep=0).objects
        assert backup.verify().ok
    assert backup.restore(tmp_path / "back").ok
    assert log_of(tmp_path / "back") == log_of(home)


def test_a_copy_has_no_position_in_the_timer_log(home: Path, tmp_path: Path) -> None:
    """The timer log is made again from the records of its topic, in a restore and in a snapshot."""
    backup = mqstore.Backup(tmp_path / "cold")
    with mqstore.open(home, "create", options=OPTIONS) as store:
        for number in range(5):
            store.append("later", b"%d" % number, delay=3600)
    # A close writes the checkpoint of the timer.
    with mqstore.open(home, "rw", options=OPTIONS) as store:
        store.snapshot(tmp_path / "copy")
        backup.run(store)
    report = backup.restore(tmp_path / "back")
    assert report.ok, report.problems
    for copy in (tmp_path / "copy", tmp_path / "back"):
        found = mqstore.verify(copy)
        assert found.ok, found.problems
        with mqstore.open(copy, "rw", options=OPTIONS) as store:
            assert store.delays().pending == 5
        assert mqstore.verify(copy).ok
