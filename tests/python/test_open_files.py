"""A process with few descriptors: a store closes files that are not in use, and never stops for lack of them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import mqstore

SMALL = {"segment_size": 1 << 18, "index_slots": 100, "index_entries": 400, "queue_file_entries": 1000}

PRELUDE = """
import errno, json, os, resource, sys, mqstore

home, small = sys.argv[1], json.loads(sys.argv[2])

def limit(files):
    resource.setrlimit(resource.RLIMIT_NOFILE, (files, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))

def append(store, topics, number):
    for topic in range(topics):
        store.append(f"t{topic}", b"%d/%d" % (topic, number), keys=[f"k{topic}"])

def check_topic(store, topic, each):
    bodies = [message.body for message in store.read(f"t{topic}")]
    assert bodies == [b"%d/%d" % (topic, number) for number in range(each)], (topic, bodies)

def check(store, topics, each):
    for topic in range(topics):
        check_topic(store, topic, each)
        assert len(list(store.lookup(f"t{topic}", f"k{topic}"))) == each
"""

MANY_TOPICS = """
topics, files = 500, int(sys.argv[3])
limit(files)
with mqstore.open(home, mode="create", **small) as store:
    for number in range(2):
        append(store, topics, number)
        store.flush()
    check(store, topics, 2)
    stats = store.stats()
    assert len(os.listdir("/dev/fd")) < files
    info = mqstore.info(home)
    if sys.platform == "linux":
        assert info.writer_open_files_limit == files
        assert 0 < info.writer_open_files < files
with mqstore.open(home, mode="rw", **small) as store, mqstore.open(home) as one, mqstore.open(home) as two:
    append(store, topics, 2)
    store.flush()
    for reader in (store, one, two):
        check(reader, topics, 3)
    assert one.stats().open_files <= one.stats().max_open_files
assert (mqstore.info(home).writer_open_files, mqstore.info(home).writer_open_files_limit) == (None, None)
mqstore.rebuild(home)
assert mqstore.verify(home).ok
assert mqstore.export(home, home + ".jsonl").messages == 3 * topics
with mqstore.open(home, mode="rw") as store:
    check(store, topics, 3)
print(json.dumps([stats.open_files, stats.max_open_files]))
"""

# A new descriptor gets the lowest free number, and with a limit of 3 it would have to be below 3.
USED_UP = """
import warnings
# The store tells that the background continues later.
warnings.simplefilter("ignore", mqstore.StoreWarning)
limit(128)
topics = 50
with mqstore.open(home, mode="create", **small, advanced=mqstore.BrokerOptions(max_open_files=4)) as store:
    append(store, topics, 0)
    store.flush()
    check(store, topics, 1)
    limit(3)
    append(store, topics, 1)
    refused = []

    def roll():
        for _ in range(8):
            store.append("big", bytes(100_000))

    def sync():
        store.append("big", b"x", durable=True)

    for verb in (store.flush, store.flush, roll, lambda: mqstore.open(home), sync):
        try:
            verb()
        except mqstore.StoreIOError as error:
            refused.append(error)
    for topic in range(topics):
        try:
            check_topic(store, topic, 2)
        except mqstore.StoreIOError as error:
            refused.append(error)
    append(store, topics, 2)
    limit(128)
    assert len(refused) > topics
    for error in refused:
        assert error.errno == errno.EMFILE, error
        assert "ulimit -n" in str(error), error
    store.append("big", bytes(300), durable=True)
    check(store, topics, 3)
    store.flush()
    big = len(list(store.read("big")))
assert mqstore.verify(home).ok
limit(3)
try:
    mqstore.open(home, mode="rw")
    raise SystemExit("opened without a descriptor")
except mqstore.StoreIOError as error:
    assert error.errno == errno.EMFILE, error
limit(128)
with mqstore.open(home, mode="rw") as store:
    assert len(list(store.read("big"))) == big
    append(store, topics, 3)
    check(store, topics, 4)
assert mqstore.verify(home).ok
"""

SEGMENTS = """
limit(64)
with mqstore.open(home, mode="create", **small) as store:
    for number in range(150):
        store.append("t0", bytes(100_000), keys=f"k{number}")
for mode in ("rw", "r"):
    with mqstore.open(home, mode=mode) as store:
        assert store.stats().segments > 64
        assert len(list(store.read("t0"))) == 150
        assert len(os.listdir("/dev/fd")) < 60
"""

# Each queue with copies for brokers needs two files.
COMPACTED = """
limit(64)
topics = 60
tuned = mqstore.BrokerOptions(compaction_log_file_size=64 << 10, compaction_queue_file_size=46 * 200)
with mqstore.open(home, mode="create", **small, advanced=tuned) as store:
    for topic in range(topics):
        store.create_topic(f"t{topic}", 1, attributes={"cleanup.policy": "COMPACTION"})
for number in range(3):
    with mqstore.open(home, mode="rw", **small, advanced=tuned) as store:
        append(store, topics, number)
        store.flush()
        append(store, topics, number)
        assert len(os.listdir("/dev/fd")) < 64
    for topic in range(topics):
        [log] = [log for log in os.scandir(f"{home}/compaction/compactionLog/t{topic}/0")]
        with open(log.path, "rb") as file:
            assert file.read().count(b"%d/%d" % (topic, number)) == 2, topic
assert mqstore.verify(home).ok
"""

# The stack of a thread needs address space, so this limit is also one of threads.
THREADS = """
hard = resource.getrlimit(resource.RLIMIT_AS)[1]

def limit_memory(more):
    with open("/proc/self/statm") as file:
        pages = int(file.read().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more, hard))

limit_memory(int(sys.argv[3]) << 20)
try:
    mqstore.open(home, mode="rw")
    raise SystemExit("every thread started")
except mqstore.StoreIOError as error:
    assert error.errno in (errno.EAGAIN, errno.ENOMEM), error
    assert "then try again" in str(error), error
resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, hard))
with mqstore.open(home, mode="rw") as store:
    check(store, 3, 1)
"""


def run(code: str, home: Path, *arguments: Any, **sizes: int) -> str:
    command = [sys.executable, "-W", "error", "-c", PRELUDE + code, str(home), json.dumps(SMALL | sizes)]
    done = subprocess.run([*command, *map(str, arguments)], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "most"), [pytest.param(256, 128, marks=pytest.mark.soak), (64, 32)])
def test_many_topics(tmp_path: Path, limit: int, most: int) -> None:
    opened, bound = json.loads(run(MANY_TOPICS, tmp_path / "s", limit))
    assert bound == most
    assert most // 2 < opened <= most


@pytest.mark.slow
def test_a_store_waits_while_no_descriptor_is_free(tmp_path: Path) -> None:
    run(USED_UP, tmp_path / "s")


def test_many_segments(tmp_path: Path) -> None:
    run(SEGMENTS, tmp_path / "s")


@pytest.mark.slow
def test_many_compacted_queues(tmp_path: Path) -> None:
    run(COMPACTED, tmp_path / "s")


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("mebibytes", [3, 5, 9])
def test_a_store_that_cannot_start_its_threads_is_not_left_locked(tmp_path: Path, mebibytes: int) -> None:
    # In a process of its own, because a process keeps the stacks of ended threads for others.
    run("with mqstore.open(home, mode='create', **small) as store:\n    append(store, 3, 0)", tmp_path / "s")
    run(THREADS, tmp_path / "s", mebibytes)


def test_a_table_loads_without_a_new_thread(store: mqstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.create_topic("prices", 3, attributes={"cleanup.policy": "COMPACTION"})
    for queue in range(3):
        store.append("prices", b"x", keys=f"k{queue}", queue_id=queue)

    def refuse(*_: object) -> None:
        msg = "can't start new thread"
        raise RuntimeError(msg)

    monkeypatch.setattr("threading.Thread.start", refuse)
    assert set(store.table("prices")) == {"k0", "k1", "k2"}


THE_OPTION = """
options = mqstore.StoreOptions(**small, advanced=mqstore.BrokerOptions(max_open_files=7))
with mqstore.open(home, "create", options=options) as store:
    for number in range(20):
        store.append(f"t{number}", b"x", keys="k")
    store.flush()
    assert (store.stats().open_files, store.stats().max_open_files) == (7, 7)
"""


def test_the_option(tmp_path: Path) -> None:
    # In a process of its own: all stores of a process share its limit.
    run(THE_OPTION, tmp_path / "s")
