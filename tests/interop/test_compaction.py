"""Compacted topics in both directions: mqstore reads RocketMQ's compaction folders, RocketMQ serves mqstore's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import mqstore

from .compare import java_fields, mqstore_fields, notes_expected
from .driver import JavaStore
from .java_rows import JavaMessage, Spec, message
from .market import GEOMETRY, java_config
from .scenarios import COMPACTED, KIB, topic
from .writer import append_arguments

if TYPE_CHECKING:
    from .shop import Shop
    from .tally import Tally

pytestmark = pytest.mark.interop

QUEUES = 2
TOPICS = {"table": topic(QUEUES, **COMPACTED), "plain": topic()}
SMALL = java_config({"segment_size": 128 * KIB}) | {
    "compactionMappedFileSize": 64 * KIB,
    "compactionCqMappedFileSize": 46 * 128,
}
NEVER = {"compactionScheduleInternal": 10**8}
"""Milliseconds: RocketMQ copies messages to its compaction log but never compacts during a test."""
SCHEDULES = {"fed": NEVER, "compacted": {"compactionScheduleInternal": 600}}
ATTEMPTS = 5
"""Sometimes RocketMQ leaves an unfinished switch of files (`.delete`) at its close, and then refuses its own directory.
The test makes such a directory again."""
MOVED = {"commit_log_offset", "message_id"}
"""The fields that compaction changes in a record: its position, and the id derived from it."""

Served = dict[tuple[int, int], dict[str, Any]]
"""Messages of the topic by queue id and queue offset."""

Source = Callable[[str, str, Path], Served]
"""Copies the directory of a version and a schedule to a path. Returns the messages that RocketMQ served from it."""


def specs() -> list[Spec]:
    """Updates of 41 keys, some tombstones, and messages of another topic between them."""
    made = [
        message(
            "table", (f"v{n}", 0 if n % 97 == 96 else 60 + n % 300), queue_id=n % QUEUES, keys=[f"k{n % 41}"], tags="t"
        )
        for n in range(3000)
    ]
    return [
        each
        for n, spec in enumerate(made)
        for each in ((spec, message("plain", (f"p{n}", 10))) if n % 10 == 0 else (spec,))
    ]


@pytest.fixture(scope="module")
def source(shop: Shop) -> Source:
    """Return the maker of directories in which RocketMQ filled, or filled and compacted, its compaction log."""
    made: dict[tuple[str, str], tuple[Path, Served]] = {}

    def copy(version: str, schedule: str, path: Path) -> Served:
        if (version, schedule) not in made:
            made.update({(version, name): each for name, each in whole_stores(shop, version).items()})
        home, served = made[version, schedule]
        shutil.copytree(home, path)
        return served

    return copy


def whole_stores(shop: Shop, version: str) -> dict[str, tuple[Path, Served]]:
    """Return a directory of each schedule that RocketMQ wrote and closed, and the messages that it served."""
    for attempt in range(ATTEMPTS):
        stores: dict[str, JavaStore] = {}
        for name, config in SCHEDULES.items():
            home = shop.root / version / f"compaction-{name}-{attempt}"
            java = shop.session(version).open(home, config=SMALL | config, topics=TOPICS, write_topics=True)
            java.put(specs())
            stores[name] = java
        await_compaction(stores["compacted"].path)
        made = {name: (java.path, by_rocketmq(java)) for name, java in stores.items()}
        shop.session(version).close_stores(stores.values())
        if not any(in_the_middle(path) for path, _ in made.values()):
            return made
    raise AssertionError(f"RocketMQ left a switch unfinished {ATTEMPTS} times")


def in_the_middle(path: Path) -> bool:
    """Tell whether a switch to compacted files is unfinished: file names that are not offsets remain."""
    return any(not each.name.isdigit() for each in (path / "compaction/compactionLog").rglob("*.*"))


def await_compaction(path: Path) -> None:
    """Wait until RocketMQ has finished a run on every queue of the topic."""
    checkpoint = path / "compaction" / "position-checkpoint"
    deadline = time.monotonic() + 30
    while not (checkpoint.exists() and checkpoint.read_text().count('"table_') == QUEUES):
        assert time.monotonic() < deadline, "RocketMQ compacted nothing"
        time.sleep(0.1)


def by_rocketmq(java: JavaStore) -> Served:
    """Return the messages that RocketMQ's compaction store serves, from offset 0 of each queue."""
    views = [java.read_queue("table", queue_id, 0) for queue_id in range(QUEUES)]
    assert [view.queues[0].status for view in views] == ["OFFSET_OVERFLOW_ONE"] * QUEUES
    return {
        (each.queue_id, each.entry_offset): without(java_fields(each, by_entry=True))
        for view in views
        for each in view.messages
    }


def by_mqstore(path: Path) -> Served:
    """Return the messages that mqstore reads."""
    with mqstore.open(path) as store:
        found = [each for queue_id in range(QUEUES) for each in store.read("table", queue_id)]
        assert [each.queue_offset for each in found] == [offset for _, offset in sorted(place(each) for each in found)]
        return {place(each): without(mqstore_fields(each)) for each in found}


def place(each: mqstore.StoredMessage) -> tuple[int, int]:
    """Return queue id and queue offset."""
    return each.queue_id, each.queue_offset


def without(fields: dict[str, Any]) -> dict[str, Any]:
    """Leave out the fields that compaction changes."""
    return {name: value for name, value in fields.items() if name not in MOVED}


def unsealed(messages: Served) -> Served:
    """Leave out the record CRC."""
    return {
        at: fields | {"properties": {name: value for name, value in fields["properties"].items() if name != "__CRC32#"}}
        for at, fields in messages.items()
    }


def newest(messages: Served) -> Served:
    """Return the newest message of each key in each queue, unless it is a tombstone."""
    last = {(queue_id, fields["keys"]): (queue_id, offset) for (queue_id, offset), fields in sorted(messages.items())}
    return {at: messages[at] for at in last.values() if messages[at]["body"][0] > 0}


def geometry_of(path: Path) -> dict[str, int]:
    """Return RocketMQ's configuration for the existing compaction files.

    RocketMQ makes log files with the length of k queue files: k = 5, or one more than fit into
    compactionMappedFileSize.
    """
    (log,) = {each.stat().st_size for each in (path / "compaction/compactionLog").rglob("*") if each.is_file()}
    (queue,) = {each.stat().st_size for each in (path / "compaction/compactionCq").rglob("*") if each.is_file()}
    assert log % queue == 0
    return {"compactionMappedFileSize": log - queue, "compactionCqMappedFileSize": queue}


def check_compacted(original: Served, compacted: Served) -> None:
    """No message is invented, every key keeps its newest value, and some messages are removed.

    A record CRC covers the record's position, so it changes with the move.
    """
    original, compacted = unsealed(original), unsealed(compacted)
    assert {at: original.get(at) for at in compacted} == compacted
    latest = newest(original)
    assert {at: compacted.get(at) for at in latest} == latest
    assert len(compacted) < len(original)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_mqstore_reads_rocketmqs_compaction_log(
    source: Source, version: str, tmp_path: Path, schedule: str, tally: Tally
) -> None:
    path = tmp_path / "store"
    served = source(version, schedule, path)
    assert by_mqstore(path) == served
    assert (len(served) < 1000) == (schedule == "compacted")
    tally.messages += len(served)
    tally.queues += QUEUES


def test_mqstore_reads_what_the_commit_log_has_dropped(
    source: Source, shop: Shop, version: str, tmp_path: Path, tally: Tally
) -> None:
    """Most messages exist only in the compaction log. RocketMQ serves them from a copy."""
    path, copy = tmp_path / "store", tmp_path / "copy"
    served = source(version, "compacted", path)
    for segment in sorted((path / "commitlog").iterdir())[:-1]:
        segment.unlink()
    shutil.copytree(path, copy)
    java = shop.session(version).open(copy, config=SMALL | NEVER, topics=TOPICS)
    assert by_rocketmq(java) == served
    with notes_expected():
        assert by_mqstore(path) == served
    tally.messages += len(served)
    tally.queues += QUEUES


def test_rocketmq_serves_what_mqstore_compacted_of_its_own(
    source: Source, shop: Shop, version: str, tmp_path: Path, tally: Tally
) -> None:
    """mqstore compacts a directory of RocketMQ in place, then RocketMQ opens it again."""
    path = tmp_path / "store"
    original = source(version, "fed", path)
    report = mqstore.compact(path, topics=["table"], in_place=True)
    compacted = by_mqstore(path)
    check_compacted(original, compacted)
    assert report.messages_before >= report.messages_after
    hand_over(shop, version, path, SMALL | NEVER, compacted, tally)


SPARK = """
import json, sys
from pyspark.sql import SparkSession
import mqstore.spark
quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.driver.host": "127.0.0.1"}
builder = SparkSession.builder.master("local[2]").config("spark.driver.bindAddress", "127.0.0.1")
for name, value in quiet.items():
    builder = builder.config(name, value)
spark = builder.getOrCreate()
print(json.dumps(mqstore.spark.compact(spark, sys.argv[1], topics=["table"]).to_dict()))
spark.stop()
"""


def test_spark_compacts_what_rocketmq_wrote(source: Source, version: str, tmp_path: Path, tally: Tally) -> None:
    """Executors compact a directory of RocketMQ. The result is what a dictionary would hold."""
    path = tmp_path / "store"
    original = source(version, "fed", path)
    command = [sys.executable, "-c", SPARK, str(path)]
    env = os.environ | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": "127.0.0.1"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=280, env=env)
    report = json.loads(done.stdout.splitlines()[-1])
    compacted = by_mqstore(path)
    check_compacted(original, compacted)
    assert (report["messages_after"], report["skipped"]) == (len(compacted), [])
    tally.messages += len(compacted)
    tally.queues += QUEUES


def test_rocketmq_serves_what_mqstore_wrote_and_compacted(
    shop: Shop, version: str, tmp_path: Path, tally: Tally
) -> None:
    """mqstore compacts its own directory before RocketMQ opens it for the first time."""
    path = tmp_path / "store"
    options = GEOMETRY | {"segment_size": 128 * KIB}
    with mqstore.open(path, "create", **options) as store:
        store.create_topic("table", QUEUES, attributes=COMPACTED)
        store.create_topic("plain", 1)
        for spec in specs():
            store.append(**append_arguments(spec))
    original = by_mqstore(path)
    mqstore.compact(path, topics=["table"], in_place=True)
    compacted = by_mqstore(path)
    check_compacted(original, compacted)
    hand_over(shop, version, path, java_config(options) | geometry_of(path) | NEVER, compacted, tally)


def test_rocketmq_serves_what_mqstore_fed(shop: Shop, version: str, tmp_path: Path, tally: Tally) -> None:
    """A directory of mqstore that was never compacted: written, opened by RocketMQ, written again, opened again."""
    path = tmp_path / "store"
    sizes = mqstore.BrokerOptions(compaction_log_file_size=16 * KIB, compaction_queue_file_size=46 * 40)
    options = GEOMETRY | {"segment_size": 128 * KIB}
    with mqstore.open(path, "create", **options, advanced=sizes) as store:
        store.create_topic("table", QUEUES, attributes=COMPACTED)
        store.create_topic("plain", 1)
        for spec in specs():
            store.append(**append_arguments(spec))
        for n in range(30):
            store.append("table", f"without a key {n}".encode(), queue_id=n % QUEUES)
    original = by_mqstore(path)
    assert len({each.name for each in (path / "compaction/compactionLog/table/0").iterdir()}) > 3
    assert len(with_keys(original)) < len(original)
    config = java_config(options) | geometry_of(path) | NEVER
    # After RocketMQ begins a new file, it does not find its older files any more. So the test reads its messages only
    # right after an open.
    java = shop.session(version).open(path, config=config, topics=TOPICS)
    assert java.report.complaints() == []
    assert unsealed(by_rocketmq(java)) == with_keys(unsealed(original))
    java.put([message("table", (f"after{n}", 50), queue_id=n % QUEUES, keys=[f"k{n}"]) for n in range(200)])
    java.close()
    both = by_mqstore(path)
    assert len(both) == len(original) + 200
    with mqstore.open(path, "rw", **options, advanced=sizes) as store:
        for n in range(300):
            store.append("table", f"again {n}".encode(), queue_id=n % QUEUES, keys=[f"again{n}"])
    both = by_mqstore(path)
    assert len(both) == len(original) + 500
    java = shop.session(version).open(path, config=config, topics=TOPICS)
    assert java.report.complaints() == []
    assert unsealed(by_rocketmq(java)) == with_keys(unsealed(both))
    java.close()
    assert mqstore.verify(path).problems == ()
    tally.messages += len(original) + len(both)
    tally.queues += 2 * QUEUES


def with_keys(messages: Served) -> Served:
    """Leave out messages without a key."""
    return {at: fields for at, fields in messages.items() if fields["keys"]}


@pytest.fixture
def in_memory() -> Iterator[Path]:
    """Return an empty folder in memory, where a sync costs nothing, if the machine has one."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(prefix="mqstore-", dir=shared if shared.is_dir() else None) as folder:
        yield Path(folder)


def test_rocketmq_goes_on_with_what_mqstore_compacted(
    source: Source, shop: Shop, version: str, in_memory: Path, tally: Tally
) -> None:
    """mqstore compacts, RocketMQ appends, rolls and compacts, mqstore opens: its manifest is void, and nothing is lost.

    At last, retention removes as much of the commit log as possible, so that only the compaction files remain.
    """
    ours = in_memory / "ours"
    original = source(version, "fed", ours)
    # Tombstones stay for a day, so that mqstore's manifest has a fact that is true only for its own files.
    mqstore.compact(ours, topics=["table"], in_place=True)
    path, served = gone_on(shop, version, ours)
    told = (path / "mqstore/compaction.json").read_bytes()
    assert told == (ours / "mqstore/compaction.json").read_bytes()

    latest = newest_of_all(original)
    assert {at: each["keys"] for at, each in served.items() if at in latest} == latest
    old = {at: each for at, each in unsealed(original).items() if at in latest}
    assert {at: unsealed(served)[at] for at in old} == old
    assert 10 < len(old) < len(latest) - 10
    files = listing(path)
    assert by_mqstore(path) == served
    assert mqstore.verify(path).problems == ()
    with mqstore.open(path, "rw", retention_bytes=1) as store:
        report = store.expire(dry_run=False)
        assert (report.segments > 10, report.kept) == (True, ())
    assert listing(path) == files
    assert by_mqstore(path) == served

    done = mqstore.compact(path, topics=["table"], in_place=True, tombstone_retention=0)
    assert (done.messages_before, done.skipped) == (len(served), ())
    assert {at: each["keys"] for at, each in by_mqstore(path).items()} == latest
    tally.messages += 3 * len(served)
    tally.queues += QUEUES


LATER = [*(f"k{n}" for n in range(0, 41, 2)), *(f"later{n}" for n in range(7))]
"""Keys that get later messages: half of the old ones, and new ones."""


def later() -> list[Spec]:
    """Updates of old and new keys, enough for several files of each queue, and new tombstones."""
    return [
        message(
            "table",
            (f"w{n}", 0 if n % 101 == 100 else 80 + n % 200),
            queue_id=n % QUEUES,
            keys=[LATER[n // QUEUES % len(LATER)]],
            tags="t",
        )
        for n in range(1600)
    ]


def newest_of_all(original: Served) -> dict[tuple[int, int], tuple[str, ...]]:
    """Return the keys of all messages that must remain, by queue id and queue offset."""
    last = {
        (queue_id, each["keys"]): (offset, each["body"][0]) for (queue_id, offset), each in sorted(original.items())
    }
    ends = {queue_id: 1 + max(offset for each, offset in original if each == queue_id) for queue_id in range(QUEUES)}
    for n in range(len(later())):
        queue_id = n % QUEUES
        last[queue_id, (LATER[n // QUEUES % len(LATER)],)] = (ends[queue_id], 0 if n % 101 == 100 else 1)
        ends[queue_id] += 1
    return {(queue_id, offset): key for (queue_id, key), (offset, length) in last.items() if length > 0}


def gone_on(shop: Shop, version: str, ours: Path) -> tuple[Path, Served]:
    """Return a copy of a directory in which RocketMQ appended, and compacted until its last run included new files."""
    before = positions(ours)
    for attempt in range(ATTEMPTS):
        path = ours.with_name(f"theirs-{attempt}")
        shutil.copytree(ours, path)
        config = SMALL | geometry_of(path) | SCHEDULES["compacted"]
        java = shop.session(version).open(path, config=config, topics=TOPICS)
        assert java.report.complaints() == []
        java.put(later())
        deadline = time.monotonic() + 30
        while not all(position > before[queue] for queue, position in positions(path).items()):
            assert time.monotonic() < deadline, "RocketMQ compacted nothing"
            time.sleep(0.1)
        served = by_rocketmq(java)
        shop.session(version).close_stores([java])
        if not in_the_middle(path):
            return path, served
    raise AssertionError(f"RocketMQ left a switch unfinished {ATTEMPTS} times")


def positions(path: Path) -> dict[str, int]:
    """Return the offsets up to which RocketMQ's checkpoint says that each queue of the topic is compacted."""
    table = json.loads((path / "compaction/position-checkpoint").read_text())["queueOffsetMap"]
    found = {name: position for name, position in table.items() if name.startswith("table_")}
    assert len(found) == QUEUES
    return found


def listing(path: Path) -> dict[str, bytes]:
    """Return every file in the compaction folder."""
    root = path / "compaction"
    return {str(each.relative_to(root)): each.read_bytes() for each in root.rglob("*") if each.is_file()}


def hand_over(shop: Shop, version: str, path: Path, config: dict[str, Any], compacted: Served, tally: Tally) -> None:
    """RocketMQ loads without a complaint, serves exactly mqstore's messages, and appends; mqstore reads the
    new ones."""
    java = shop.session(version).open(path, config=config, topics=TOPICS)
    assert java.report.complaints() == []
    assert by_rocketmq(java) == compacted
    for offset in (0, 1, min(offset for _, offset in compacted) + 1):
        status, _, messages = java.pull("table", 0, offset, 1)
        assert status == "FOUND"
        assert first(messages) == min(at for queue_id, at in compacted if queue_id == 0 and at >= offset)
    java.put([message("table", (f"after{n}", 50), queue_id=n % QUEUES, keys=[f"k{n}"]) for n in range(200)])
    served = by_rocketmq(java)
    assert len(served) == len(compacted) + 200
    java.close()
    assert by_mqstore(path) == served
    tally.messages += len(compacted) + len(served)
    tally.queues += 2 * QUEUES


def first(messages: list[JavaMessage]) -> int:
    """Return the queue offset of the first message."""
    return messages[0].entry_offset
