"""mqstore on a directory that RocketMQ has open: it follows the writes, and is refused as a writer.

RocketMQ publishes no limit for readers. Nevertheless, every message that mqstore returns while RocketMQ appends must be
complete, in its place, and the one that was put.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

import mqstore

from .compare import notes_expected
from .driver import JavaSession
from .java_rows import JavaPut, Spec, body_of
from .market import GEOMETRY, java_config
from .scenarios import KIB, mixed, topic

if TYPE_CHECKING:
    from pathlib import Path

    from .driver import JavaStore
    from .tally import Tally

pytestmark = pytest.mark.interop

TOPICS = {"orders": 3, "payments": 2}
MESSAGES = 24_000
OPTIONS = GEOMETRY | {"segment_size": 512 * KIB}
QUEUES = [(name, queue_id) for name, queues in TOPICS.items() for queue_id in range(queues)]


class Appending(threading.Thread):
    """Puts messages one by one, each acknowledged before the next. Only this thread uses the session meanwhile. Before
    each thousand, it waits for the end of a round of the reader."""

    def __init__(self, java: JavaStore, specs: list[Spec]) -> None:
        super().__init__()
        self.java = java
        self.specs = specs
        self.puts: list[JavaPut] = []
        self.read = threading.Event()

    def run(self) -> None:
        for start in range(0, len(self.specs), 1000):
            self.read.wait(60)
            self.read.clear()
            for put in self.java.put_streaming(self.specs[start : start + 1000]):
                self.puts.append(put)


class Follower:
    """Reads every queue to its end, again and again."""

    def __init__(self, path: Path, specs: list[Spec]) -> None:
        self.path = path
        self.specs = {spec["properties"]["UNIQ_KEY"]: spec for spec in specs}
        self.next = dict.fromkeys(QUEUES, 0)
        self.places: dict[str, int] = {}
        self.counts: Counter[str] = Counter()

    def round(self, store: mqstore.Store) -> None:
        for name, queue_id in QUEUES:
            if name not in store.topics():
                continue
            try:
                found = store.read(name, queue_id, self.next[name, queue_id])
            except mqstore.TopicNotFoundError:
                # The topic has no message yet.
                continue
            for message in found:
                assert message.queue_offset == self.next[name, queue_id]
                self.next[name, queue_id] += 1
                self.check(message)
                assert message.unique_id not in self.places, "a message is there twice"
                self.places[str(message.unique_id)] = message.commit_log_offset
        self.counts["rounds"] += 1

    def check(self, message: mqstore.StoredMessage) -> None:
        spec = self.specs[str(message.unique_id)]
        assert (message.topic, message.queue_id) == (spec["topic"], spec["queue_id"])
        assert message.body == body_of(spec)
        assert message.properties.items() >= spec["properties"].items()
        self.counts["messages"] += 1

    def look_up(self, store: mqstore.Store) -> None:
        """Looks up a message whose place is already known."""
        unique_id = next(reversed(self.places), None)
        if unique_id is not None:
            found = [each.commit_log_offset for each in store.lookup(self.specs[unique_id]["topic"], unique_id)]
            assert found == [self.places[unique_id]]
            self.counts["look-ups"] += 1


@pytest.mark.timeout(300)
def test_a_reader_follows_rocketmq(version: str, tmp_path: Path, tally: Tally) -> None:
    path = tmp_path / "store"
    topics = {name: topic(queues) for name, queues in TOPICS.items()}
    specs = mixed(TOPICS, MESSAGES, "beside")
    with JavaSession(version, tmp_path / "jvm") as session, notes_expected():
        java = session.open(path, config=java_config(OPTIONS), topics=topics, write_topics=True)
        appending = Appending(java, specs)
        follower, anew = Follower(path, specs), Follower(path, specs)
        appending.start()
        with mqstore.open(path) as store:
            while appending.is_alive():
                follower.round(store)
                # Also as a reader that opens the store in the middle of the writes.
                with mqstore.open(path) as fresh:
                    anew.round(fresh)
                    anew.look_up(fresh)
                appending.read.set()
            appending.join()
            java.await_dispatch()
            assert all(put.status == "PUT_OK" for put in appending.puts)
            deadline = time.monotonic() + 10
            while len(follower.places) < MESSAGES and time.monotonic() < deadline:
                follower.round(store)
        java.close()
        with mqstore.open(path) as store:
            anew.round(store)
    placed = {
        spec["properties"]["UNIQ_KEY"]: put.commit_log_offset for spec, put in zip(specs, appending.puts, strict=True)
    }
    assert anew.places == placed
    # In the follower's last read, RocketMQ was still active, so only the very last records may wait for a successor.
    assert follower.places == placed
    print(version, dict(follower.counts), dict(anew.counts))
    assert follower.counts["rounds"] >= 5
    assert anew.counts["look-ups"] >= 5
    tally.messages += follower.counts["messages"] + anew.counts["messages"]
    tally.keys += anew.counts["look-ups"]


def whole_tree(root: Path) -> dict[str, Any]:
    """Every file with its times and a hash of its bytes."""
    found: dict[str, Any] = {}
    for path in root.rglob("*"):
        stat = path.stat()
        digest = hashlib.md5(path.read_bytes()).hexdigest() if path.is_file() else ""
        found[str(path.relative_to(root))] = (stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, digest)
    return found


@pytest.mark.timeout(120)
def test_a_writer_that_is_refused_changes_no_byte(version: str, tmp_path: Path, tally: Tally) -> None:
    path = tmp_path / "store"
    topics = {name: topic(queues) for name, queues in TOPICS.items()}
    specs = mixed(TOPICS, 500, "refused")
    with JavaSession(version, tmp_path / "jvm") as session:
        java = session.open(path, config=java_config(OPTIONS), topics=topics, write_topics=True)
        java.put(specs)
        # RocketMQ writes its checkpoint from time to time. If two states are equal, no such write came between them.
        for _ in range(20):
            before = whole_tree(path)
            for mode in ("rw", "create"):
                with pytest.raises(mqstore.StoreLockedError) as caught:
                    mqstore.open(path, mode, durability="sync")  # type: ignore[arg-type]
                assert caught.value.pid == session.process.pid
            after = whole_tree(path)
            if after == before:
                break
            assert {name for name in after if after[name] != before.get(name)} <= {"checkpoint"}
            assert before.keys() == after.keys()
            time.sleep(0.2)
        else:
            pytest.fail("the directory changes with every refused open")
        assert not (path / "mqstore").exists()
        java.put(mixed(TOPICS, 100, "again"))
        java.close()
    assert mqstore.verify(path).ok
    tally.messages += 600
