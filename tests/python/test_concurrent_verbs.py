"""Eight threads with random verbs on the same few topics of one store: no verb fails, and the store opens again.

40 verbs a thread, or 20,000 with `MQSTORE_SOAK`. A verb may find that another thread was faster: the topic is gone, the
queue is empty, the lease has ended. Everything else is a fault.
"""

from __future__ import annotations

import os
import random
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mqstore

SOAK = bool(os.environ.get("MQSTORE_SOAK"))
VERBS = 20_000 if SOAK else 40
THREADS = 8
OPTIONS: dict[str, Any] = {
    "segment_size": 32 << 10,
    "queue_file_entries": 50,
    "index_slots": 50,
    "index_entries": 200,
    "retention_bytes": 256 << 10,
    "flush_interval": 0.02,
}
TOPICS = ("a", "b", "ns%c")
QUEUES = (*TOPICS, "%LMQ%d")
FASTER = (
    mqstore.TopicNotFoundError,
    mqstore.RefusedError,
    mqstore.OffsetOutOfRangeError,
    mqstore.StoreBusyError,
    mqstore.LeaseLostError,
    mqstore.QueueNotAssignedError,
    mqstore.Empty,
)


def append(store: mqstore.Store, chance: random.Random) -> None:
    lights = ["d"] if chance.random() < 0.3 else ()
    store.append(chance.choice(TOPICS), bytes(chance.randrange(4000)), keys=["k"], light_queues=lights)


def append_many(store: mqstore.Store, chance: random.Random) -> None:
    store.append_many(chance.choice(TOPICS), [bytes(2000)] * chance.randrange(20))


def create(store: mqstore.Store, chance: random.Random) -> None:
    store.create_topic(chance.choice(TOPICS), queues=chance.randrange(1, 4))


def update(store: mqstore.Store, chance: random.Random) -> None:
    store.update_topic(chance.choice(TOPICS), write_queues=chance.randrange(1, 4))


def delete(store: mqstore.Store, chance: random.Random) -> None:
    if chance.random() < 0.2:
        store.delete_namespace("ns")
    else:
        store.delete_topic(chance.choice(QUEUES), erase=chance.random() < 0.1)


def limit(store: mqstore.Store, chance: random.Random) -> None:
    store.set_retention(chance.choice(TOPICS), max_messages=chance.choice([None, 1, 5, 50]))


def expire(store: mqstore.Store, chance: random.Random) -> None:
    store.expire(dry_run=chance.random() < 0.1)


def reclaim(store: mqstore.Store, chance: random.Random) -> None:
    store.reclaim(erase=chance.choice([None, "a", "b"]))


def read(store: mqstore.Store, chance: random.Random) -> None:
    topic = chance.choice(QUEUES)
    for message in store.read(topic) if chance.random() < 0.5 else store.lookup(topic, "k"):
        assert message.body is not None


def consume(store: mqstore.Store, chance: random.Random) -> None:
    with store.consumer(chance.choice(["g", "ns%g"]), chance.choice(QUEUES)) as consumer:
        consumer.poll(20, timeout=0)
        if chance.random() < 0.3:
            consumer.seek_to_time(chance.choice([0, 1 << 42]))
        consumer.commit(durable=chance.random() < 0.2)


def work(store: mqstore.Store, chance: random.Random) -> None:
    queue = store.work_queue(chance.choice(TOPICS), visibility_timeout=chance.choice([0.01, 30]), max_attempts=3)
    if chance.random() < 0.7:
        queue.put(bytes(500))
    for message in queue.get_many(5, timeout=0):
        queue.ack(message) if chance.random() < 0.7 else message.nack()


def flush(store: mqstore.Store, chance: random.Random) -> None:
    store.flush()


CALLS: list[Callable[[mqstore.Store, random.Random], None]] = [
    *[append] * 6, append_many, create, update, *[delete] * 4, *[limit] * 2, *[expire] * 2, *[reclaim] * 2, read,
    *[consume] * 2, *[work] * 3, flush,
]  # fmt: skip


@pytest.mark.parametrize("seed", range(20 if SOAK else 1))
def test_random_verbs_of_eight_threads(tmp_path: Path, seed: int) -> None:
    home, faults = tmp_path / "s", []
    start = threading.Barrier(THREADS)

    def run(store: mqstore.Store, number: int) -> None:
        chance = random.Random(f"{seed}/{number}")
        start.wait()
        for _ in range(VERBS):
            call = chance.choice(CALLS)
            try:
                call(store, chance)
            except FASTER:
                pass
            except Exception as error:
                faults.append(f"{call.__name__}: {error!r}")
                return

    with mqstore.open(home, "create", **OPTIONS) as store:
        threads = [threading.Thread(target=run, args=(store, number)) for number in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        topics = store.topics()
        counts = {topic: store.count(topic) for topic in topics}
    assert not faults, f"seed {seed}: {faults}"
    report = mqstore.verify(home)
    assert report.ok, f"seed {seed}: {report.problems}"
    with mqstore.open(home, "rw", **OPTIONS) as store:
        assert store.topics() == topics, f"seed {seed}"
        assert {topic: store.count(topic) for topic in topics} == counts, f"seed {seed}"


def test_one_of_several_deletions_finds_the_topic(tmp_path: Path) -> None:
    home = tmp_path / "s"
    with mqstore.open(home, "create", **OPTIONS) as store:
        for _ in range(5):
            store.append("a", b"x")
            start, found = threading.Barrier(4), []

            def run(start: threading.Barrier = start, found: list[str] = found) -> None:
                start.wait()
                try:
                    store.delete_topic("a")
                    found.append("deleted")
                except mqstore.TopicNotFoundError:
                    found.append("gone")

            threads = [threading.Thread(target=run) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            assert sorted(found) == ["deleted", "gone", "gone", "gone"]
    mqstore.open(home, "rw").close()


def test_the_classes_of_reports_are_imported_from_their_package() -> None:
    """A package that imports its modules, and threads that import these directly, wait for each other in CPython."""
    package = Path(mqstore.__file__).parent
    files = [path for path in package.rglob("*.py") if path.parent != package / "_reports"]
    assert [path.name for path in files if "mqstore._reports." in path.read_text()] == []
