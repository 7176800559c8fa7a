"""Restores lost compaction files from another store."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

import mqstore
from conftest import SMALL, Cli, tree_hash
from mqstore import Progress

FILES: dict[str, Any] = {"log_file_size": 8 << 10, "queue_file_size": 46 * 20}
TABLE = {"cleanup.policy": "COMPACTION"}
KEYS = 50


def fill(store: mqstore.Store, start: int, end: int) -> None:
    for number in range(start, end):
        body = b"" if number % 17 == 16 else f"value {number}".encode() * 20
        store.append("prices", body, keys=f"k{number % KEYS}", queue_id=number % 2)


@pytest.fixture
def lost(tmp_path: Path) -> Path:
    """A store whose log begins late and whose compaction files are lost. `whole` and `other` next to it have them."""
    whole = tmp_path / "whole"
    with mqstore.open(whole, "create", options=SMALL) as store:
        store.create_topic("prices", queues=2, attributes=TABLE)
        fill(store, 0, 600)
        store.compact(**FILES)
        fill(store, 600, 1000)
    shutil.copytree(whole, tmp_path / "other")
    lost = tmp_path / "lost"
    shutil.copytree(whole, lost)
    with mqstore.open(lost, "rw", options=SMALL, retention_bytes=1) as store:
        assert store.expire(dry_run=False, compact=True).segments > 3
    shutil.rmtree(lost / "compaction")
    return lost


def files_of(home: Path) -> dict[str, bytes]:
    root = home / "compaction"
    found = {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    return {name: content for name, content in found.items() if not name.endswith(".bak")}


def check(lost: Path) -> None:
    """The files and the read messages are those of the store that lost nothing."""
    mqstore.compact(lost.with_name("whole"), in_place=True, force=True)
    assert files_of(lost) == files_of(lost.with_name("whole"))
    with mqstore.open(lost) as store, mqstore.open(lost.with_name("whole")) as whole:
        for queue_id in range(2):
            found, expected = list(store.read("prices", queue_id)), list(whole.read("prices", queue_id))
            assert [(each.queue_offset, each.keys, each.body) for each in found] == [
                (each.queue_offset, each.keys, each.body) for each in expected
            ]
            assert len(found) >= KEYS // 2
    assert mqstore.verify(lost).ok


def test_a_directory_equals_one_that_lost_nothing(lost: Path) -> None:
    other = lost.with_name("other")
    before = tree_hash(lost), tree_hash(other)
    plan = mqstore.restore_compaction(lost, other, dry_run=True)
    assert (plan.dry_run, len(plan.queues), plan.compaction) == (True, 2, None)
    assert tree_hash(lost) == before[0]
    seen: list[Progress] = []
    report = mqstore.restore_compaction(lost, other, topics="prices", progress=seen.append, **FILES)
    assert tree_hash(other) == before[1]
    assert (report.source, report.skipped) == (str(other), ())
    assert [(queue.topic, queue.queue_id, queue.resumed) for queue in report.queues] == [
        ("prices", 0, 0),
        ("prices", 1, 0),
    ]
    assert all(queue.messages > 20 and queue.bytes > 1000 for queue in report.queues)
    assert [queue.until for queue in report.queues] == [queue.until for queue in plan.queues]
    assert report.compaction is not None
    assert report.compaction.messages_after > KEYS // 2
    assert report.to_dict()["queues"][0]["topic"] == "prices"
    check(lost)
    again = mqstore.restore_compaction(lost, other)
    assert again.skipped == ("prices/0: nothing is missing", "prices/1: nothing is missing")


# The background copies appended messages to the compaction files, and may notice first that files are missing.
@pytest.mark.filterwarnings("ignore:.*restore_compaction gets the messages between:mqstore.StoreWarning")
@pytest.mark.filterwarnings("ignore:.*that a compaction kept are lost")
def test_an_open_store_from_an_open_store(lost: Path) -> None:
    with (
        mqstore.open(lost, "rw", options=SMALL) as store,
        mqstore.open(lost.with_name("other"), "rw", options=SMALL) as other,
    ):
        assert len(store.restore_compaction(other, **FILES).queues) == 2
        with pytest.raises(mqstore.InvalidOptionError, match="the store itself"):
            store.restore_compaction(store)
    check(lost)
    with mqstore.open(lost) as reader, pytest.raises(mqstore.StoreReadOnlyError):
        reader.restore_compaction(lost.with_name("other"))


@pytest.mark.slow
def test_what_was_pulled_is_not_pulled_again(lost: Path) -> None:
    """A process is killed while it compacts the messages that it fetched."""
    other = lost.with_name("other")
    script = f"""
        import os, signal, mqstore
        mqstore.restore_compaction(
            {str(lost)!r}, {str(other)!r}, log_file_size=8 << 10, queue_file_size=46 * 20,
            max_bytes_per_second=150_000, progress=lambda _: os.kill(os.getpid(), signal.SIGKILL)
            if os.path.exists({str(lost / "mqstore/restore/prices/1/progress.json")!r}) else None,
        )
    """
    child = subprocess.run([sys.executable, "-c", textwrap.dedent(script)], check=False, timeout=60)
    assert child.returncode == -signal.SIGKILL
    assert not (lost / "compaction").exists()
    report = mqstore.restore_compaction(lost, other, **FILES)
    assert all(queue.resumed > 0 for queue in report.queues)
    check(lost)


def test_an_exception_ends_it_and_the_next_call_goes_on(lost: Path) -> None:
    def stop(_: Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        mqstore.restore_compaction(lost, lost.with_name("other"), progress=stop, max_bytes_per_second=100_000, **FILES)
    assert not (lost / "compaction").exists()
    mqstore.restore_compaction(lost, lost.with_name("other"), **FILES)
    check(lost)


@pytest.mark.filterwarnings("ignore:.*that a compaction kept are lost")
def test_a_store_that_lacks_the_same_cannot_help(lost: Path) -> None:
    poor = lost.with_name("poor")
    shutil.copytree(lost, poor)
    report = mqstore.restore_compaction(lost, poor)
    assert (report.queues, report.compaction, len(report.skipped)) == ((), None, 2)
    assert "itself lacks the messages from offset 0" in report.skipped[0]


@pytest.mark.slow
def test_the_verb(lost: Path, cli: Cli) -> None:
    other = str(lost.with_name("other"))
    assert cli("compact", str(lost), "--restore-from", other).returncode == 2
    assert cli("compact", str(lost), "--output", str(lost) + "-2", "--restore-from", other).returncode == 2
    plan = cli("compact", str(lost), "--dry-run", "--restore-from", other).stdout
    assert "queues to restore" in plan
    assert "restored" not in plan
    done = cli("compact", str(lost), "--in-place", "--restore-from", other, "--format", "json")
    assert (done.returncode, len(json.loads(done.stdout)["queues"])) == (0, 2)
    again = cli("compact", str(lost), "--in-place", "--restore-from", other)
    assert (again.returncode, "queues complete" in again.stdout) == (0, True)
    with mqstore.open(lost) as store:
        assert store.queues("prices")[0].min_offset > 0
        assert len({each.keys for each in store.read("prices", 0)}) == KEYS // 2
