"""Each verb of the command line that changes a store joins the processes that share it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import mqstore
from conftest import Cli
from test_share import share
from test_share_faults import bodies

SEGMENT = 1 << 16
COMPACTION = {"cleanup.policy": "COMPACTION"}


@pytest.fixture
def owner(home: Path) -> Iterator[mqstore.Store]:
    with share(home, segment_size=SEGMENT, retention=timedelta(hours=1)) as store:
        store.create_topic("orders", queues=2)
        yield store


@pytest.fixture
def run(cli_process: Cli, owner: mqstore.Store) -> Any:
    """Runs a verb with the answer as JSON, and checks that the owner is still the owner."""

    def verb(*words: object) -> Any:
        done = cli_process(*words, "--format", "json")
        assert done.returncode == 0, done.stderr
        assert owner.is_owner
        return json.loads(done.stdout)

    return verb


def test_messages_and_topics(home: Path, owner: mqstore.Store, run: Any, tmp_path: Path) -> None:
    run("append", home, "orders", "--body", "from the shell")
    assert bodies(owner, "orders") == [b"from the shell"]
    rows = [
        {"topic": "new", "queue_id": 2, "body_text": "imported", "unique_id": "A" * 32, "reconsume_times": 3},
        {"topic": "orders", "body_text": "x" * 9000, "born_host": "10.0.0.1:99"},
        {"topic": "orders", "body_text": "later", "properties": {"mqstore.deliver_at": "4102444800000"}},
    ]
    (file := tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert run("import", home, file, "--compression", "zlib", "--yes")["messages"] == 3
    (imported,) = owner.read("new", queue_id=2)
    assert (imported.body, imported.unique_id, imported.reconsume_times) == (b"imported", "A" * 32, 3)
    (large,) = (message for message in owner.read("orders") if message.born_host == "10.0.0.1:99")
    assert (large.body, large.sys_flag & 0x701) == (b"x" * 9000, 0x301)
    assert owner.delays().pending == 1
    run("import", home, file, "--topic", "orders", "--yes")
    assert len(bodies(owner, "orders")) == 4
    run("topic", "create", home, "mails", "--queues", "3", "--max-messages", "1")
    owner.append("mails", b"one")
    with pytest.raises(mqstore.QuotaFull):
        owner.append("mails", b"two")
    run("topic", "alter", home, "mails", "--max-messages", "2")
    owner.append("mails", b"two")
    run("retention", home, "mails", "--keep", "30m")
    assert [(one.topic, one.keep) for one in owner.retention()] == [("mails", timedelta(minutes=30))]
    run("topic", "delete", home, "mails", "--yes")
    assert "mails" not in owner.topics()


def test_groups_and_dead_letters(home: Path, owner: mqstore.Store, run: Any) -> None:
    owner.append_many("orders", [b"1", b"2", b"3"], queue_id=0)
    with owner.consumer("billing", ["orders"]) as consumer:
        assert len(consumer.poll(10)) == 3
        consumer.commit()
    run("group", "reset", home, "billing", "--to", "earliest", "--yes")
    with owner.consumer("billing", ["orders"]) as consumer:
        assert len(consumer.poll(10)) == 3
    with owner.work_queue("jobs", max_attempts=1) as queue:
        queue.put(b"bad")
        queue.put(b"worse")
        for job in queue.get_many(2, timeout=5):
            job.nack()
        assert queue.counts().dead == 2
        letters = run("dead-letter", "list", home, queue.group)
        (gone,) = (letter["unique_id"] for letter in letters if letter["body_text"] == "worse")
        run("dead-letter", "delete", home, queue.group, gone, "--yes")
        run("dead-letter", "redrive", home, queue.group, "--yes")
        (job,) = queue.get_many(2, timeout=5)
        assert job.body == b"bad"
        job.ack()


def test_the_space_of_the_log(home: Path, owner: mqstore.Store, run: Any, tmp_path: Path) -> None:
    owner.create_topic("values", attributes=COMPACTION)
    for number in range(40):
        owner.append("values", b"%d" % number + bytes(3000), keys="k")
        owner.append("gone", bytes(9000))
    owner.delete_topic("gone")
    assert run("compact", home, "--in-place")["messages_after"] == 1
    (value,) = (message for message in owner.read("values") if message.keys)
    assert value.body.startswith(b"39")
    report = run("reclaim", home, "--yes")
    assert report["segments"], report
    run("archive", home, tmp_path / "cold", "--configure")
    assert owner.archive.target == str(tmp_path / "cold")
    assert owner.archive.archived_to > SEGMENT
    assert run("expire", home, "--yes")["segments"] == 0, "the retention is that of the owner"


@pytest.mark.parametrize("verb", ["repair", "rebuild"])
def test_what_needs_the_lock_names_its_holder(home: Path, owner: mqstore.Store, cli_process: Cli, verb: str) -> None:
    owner.append("orders", b"1")
    done = cli_process(verb, home, *(["--in-place", "--yes"] if verb == "repair" else []))
    assert done.returncode != 0
    assert f"process {os.getpid()}" in done.stderr
    assert bodies(owner, "orders") == [b"1"]
