"""Archives of an earlier build, whose files pyarrow wrote; and archives without pyarrow."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

import mqstore
from archived_stores import KEEPING, TOPICS, fill

STORE = Path(__file__).parent / "stores/archive.tar.xz"


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """Returns a folder with a store whose older messages are in an archive of an earlier build."""
    with tarfile.open(STORE) as packed:
        packed.extractall(tmp_path, filter="data")
    return tmp_path


def found(store: mqstore.Store, topic: str) -> list[Any]:
    return [
        [one.queue_id, one.queue_offset, one.commit_log_offset, list(one.keys), hashlib.sha256(one.body).hexdigest()]
        for one in store.read(topic)
    ]


def test_an_archive_of_an_earlier_build_is_read(earlier: Path) -> None:
    wanted = json.loads((earlier / "wanted.json").read_text())
    archive = mqstore.Archive(earlier / "cold")
    checked = archive.verify()
    assert checked.ok, checked.problems
    with mqstore.open(earlier / "store", "r", archive=earlier / "cold") as store:
        for topic in TOPICS:
            assert found(store, topic) == wanted["messages"][topic]
            for queue_id, offset, log_offset, keys, _ in wanted["messages"][topic][::11]:
                message = store.message_at(topic, queue_id, offset)
                assert message is not None
                assert message.commit_log_offset == log_offset
                assert store.get_at(log_offset) == message
                assert all(message in store.lookup(topic, key) for key in keys)
    done = archive.restore(earlier / "restored")
    assert done.identical
    segments = {one.name: one for one in (earlier / "restored/commitlog").iterdir()}
    for name, digest in wanted["segments"].items():
        assert hashlib.sha256(segments[name].read_bytes()).hexdigest() == digest


def test_an_archive_of_an_earlier_build_is_continued_and_rebuilt(earlier: Path) -> None:
    wanted = json.loads((earlier / "wanted.json").read_text())["messages"]
    with mqstore.open(earlier / "store", "rw", options=KEEPING, archive=earlier / "cold") as store:
        fill(store, 400, start=1000)
        assert store.archive.run_to(earlier / "cold").segments > 0
        after = {topic: found(store, topic) for topic in TOPICS}
    for topic in TOPICS:
        assert {tuple(one[:3]) for one in wanted[topic]} < {tuple(one[:3]) for one in after[topic]}
    for path in (earlier / "cold/v1/_manifest").iterdir():
        path.unlink()
    checked = mqstore.Archive(earlier / "cold").verify(rebuild_manifest=True)
    assert checked.rebuilt
    assert checked.ok, checked.problems
    with mqstore.open(earlier / "store", "r", archive=earlier / "cold") as store:
        assert {topic: found(store, topic) for topic in TOPICS} == after


WITHOUT_PYARROW = """
import sys

sys.modules["pyarrow"] = None
import mqstore

options = mqstore.StoreOptions(segment_size=65536, index_slots=1000, index_entries=4000, retention_bytes=1)
with mqstore.open("store", "create", options=options) as store:
    for number in range(2000):
        store.append("orders", b"%d" % number * 20, keys=f"k{number}", queue_id=0)
    store.archive.configure("cold")
    report = store.archive.run()
    store.expire()
    assert store.queues("orders")[0].min_offset > 0
    assert [one.queue_offset for one in store.read("orders")] == list(range(2000))
    assert next(store.lookup("orders", "k7")).queue_offset == 7
    with store.consumer("group", "orders") as consumer:
        assert consumer.poll(5)[0].queue_offset == 0
    store.set_retention("orders", max_messages=1500)
    store.expire()
    assert next(iter(store.read("orders"))).queue_offset == 500
archive = mqstore.Archive("cold")
assert archive.verify().ok
assert archive.restore("restored").identical
assert mqstore.verify("restored").ok
print(report.records)
"""


def test_an_archive_needs_no_pyarrow(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_PYARROW], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 1000
