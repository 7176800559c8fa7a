"""Topics with batch queues: mqstore's inner batches in RocketMQ, and RocketMQ's in mqstore."""

from __future__ import annotations

import random
import shutil
from typing import TYPE_CHECKING, Any

import pytest

import mqstore

from .compare import assert_same_store, notes_expected
from .java_rows import batch, message
from .market import GEOMETRY, java_config
from .scenarios import BATCH_QUEUE, topic
from .shop import DERIVED, ask

if TYPE_CHECKING:
    from pathlib import Path

    from .shop import Shop, Written
    from .tally import Tally

pytestmark = pytest.mark.interop

TOPICS = {"inner": topic(2, **BATCH_QUEUE), "beside": topic()}
SMALL: dict[str, Any] = {**GEOMETRY, "queue_file_entries": 40}


def config() -> dict[str, Any]:
    """Return RocketMQ's configuration for small files."""
    return {**java_config(SMALL), "mapperFileSizeBatchConsumeQueue": 46 * SMALL["queue_file_entries"]}


def files(path: Path) -> dict[str, bytes]:
    """Return the files of the batch queues by name."""
    folder = path / "batchconsumequeue"
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def append(store: mqstore.Store, rounds: int, seed: str) -> dict[int, int]:
    """Append batches, single messages and messages of other topics. Return the end of each queue."""
    chooser = random.Random(seed)
    ends = {0: 0, 1: 0}
    for number in range(rounds):
        queue_id = number % 2
        count = chooser.randrange(1, 8)
        messages = [
            mqstore.Message(f"{seed} {number}/{n}".encode(), keys=f"k{number}-{n}", tags="x") for n in range(count)
        ]
        results = store.append_many("inner", messages, queue_id=queue_id)
        assert len({result.commit_log_offset for result in results}) == 1
        assert [result.queue_offset - results[0].queue_offset for result in results] == list(range(count))
        ends[queue_id] = results[-1].queue_offset + 1
        store.append("beside", b"beside %d" % number, keys=f"b{number}")
        if number % 5 == 0:
            ends[queue_id] = store.append("inner", b"single", queue_id=queue_id, keys=f"s{number}").queue_offset + 1
    return ends


def made(path: Path) -> dict[int, int]:
    """Make a store with batch queues of several files. Return the end of each queue."""
    with mqstore.open(path, "create", **SMALL) as store:
        store.create_topic("inner", 2, attributes=BATCH_QUEUE)
        store.create_topic("beside", 1)
        return append(store, 300, "ours")


def test_rocketmq_goes_on_with_mqstores_inner_batches(shop: Shop, version: str, tmp_path: Path, tally: Tally) -> None:
    path = tmp_path / "store"
    ends = made(path)
    java = shop.session(version).open(path, config=config(), topics=TOPICS)
    assert java.report.complaints() == []
    before = java.read()
    queues = {(queue.topic, queue.queue_id): (queue.min_offset, queue.max_offset) for queue in before.queues}
    assert queues["inner", 0] == (0, ends[0])
    assert queues["inner", 1] == (0, ends[1])
    items = [message("inner", (f"java{n}", 30)) for n in range(4)]
    puts = java.put([batch("inner", items, inner=True, queue_id=n % 2, unique_id=f"{n:032X}") for n in range(60)])
    assert [put.queue_offset for put in puts[:4]] == [ends[0], ends[1], ends[0] + 4, ends[1] + 4]
    after = ask(java)
    java.close()
    after.times = [(query, offset) for query, offset in after.times if query.topic == "beside"]
    assert_same_store(path, after, tally)
    assert mqstore.verify(path).ok
    with mqstore.open(path, "rw", **SMALL) as store:
        again = append(store, 20, "again")
        assert again[0] > ends[0] + 120
        assert again[1] > ends[1] + 120
    assert mqstore.verify(path).ok


def test_batch_queues_are_those_that_rocketmq_builds(shop: Shop, version: str, tmp_path: Path) -> None:
    """RocketMQ builds the same files from the log alone, byte for byte."""
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    made(ours)
    shutil.copytree(ours, theirs)
    for name in (*DERIVED, "mqstore"):
        shutil.rmtree(theirs / name)
    (theirs / "checkpoint").unlink()
    (theirs / "abort").touch()
    java = shop.session(version).open(theirs, config=config(), topics=TOPICS)
    java.await_dispatch()
    java.close()
    expected = files(theirs)
    assert len(expected) > 6
    assert files(ours) == expected


@pytest.mark.scenario("inner_batches")
def test_mqstore_goes_on_with_rocketmqs_inner_batches(
    written: Written, shop: Shop, tmp_path: Path, tally: Tally
) -> None:
    path = tmp_path / "store"
    shutil.copytree(written.path, path)
    queues = {(queue.topic, queue.queue_id): queue.max_offset for queue in written.answers.view.queues}
    before = files(path)
    with notes_expected(), mqstore.open(path, "rw") as store:
        found = {queue.queue_id: queue.max_offset for queue in store.queues("inner")}
        assert found == {0: queues["inner", 0], 1: queues["inner", 1]}
        results = store.append_many("inner", [b"one", b"two", b"three"], queue_id=1)
        assert [result.queue_offset - queues["inner", 1] for result in results] == [0, 1, 2]
    # RocketMQ's bytes are unchanged. Only the free part of the last file is used.
    after = files(path)
    for name, content in before.items():
        used = content.rstrip(b"\0")
        assert after[name].startswith(used), name
    assert mqstore.verify(path).ok
    java = shop.session(written.version).open(
        path, config=dict(written.scenario.config), topics=written.scenario.topics
    )
    assert java.report.complaints() == []
    view = java.read()
    assert {(q.topic, q.queue_id): q.max_offset for q in view.queues}["inner", 1] == queues["inner", 1] + 3
    tally.messages += len(view.messages)
