"""Several processes on one directory: a writer and its watchers, a refused writer, a replaced file, forks.

The main test is ``test_hammer``. One process appends as fast as it can, in small segments, from several threads. Other
processes read the same directory all the time. The promises:

* Every message that is read is complete, to the last byte, and was sent.
* Queue offsets have no gap and no repeat. A thread's messages keep their order. Ends never move back.
* No reader goes beyond the published offset of the writer, in ``sync`` mode beyond the durable offset.
* A read sees everything that was acknowledged before it began.
* At the end, the watchers have seen as many messages as the writer has sent.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mqstore
from conftest import SMALL, python, tree_hash
from hammer_child import Board

CHILD = Path(__file__).with_name("hammer_child.py")
SOAK = bool(os.environ.get("MQSTORE_SOAK"))
SECONDS = 60.0 if SOAK else 2.0
GEOMETRY = {"segment_size": 256 << 10, "queue_file_entries": 512, "index_slots": 1024, "index_entries": 16384}

pytestmark = pytest.mark.filterwarnings("ignore::mqstore.StoreWarning")


def knows(option: str) -> bool:
    return option in mqstore.StoreOptions.__dataclass_fields__


def hammer(
    folder: Path, *, threads: int, seconds: float = SECONDS, retention: bool = False, **options: Any
) -> dict[str, dict[str, int]]:
    """Runs a writer with two watchers and returns the counts of each."""
    durability = options.get("durability", "async")
    home = folder / "store"
    board = Board.make(folder / "board")
    role = {
        "options": GEOMETRY | options,
        "threads": threads,
        # Limits the disk space, not only the time.
        "bytes": (4 << 30) if SOAK else (96 << 20),
        "retention": retention,
        "durable_only": durability == "sync" or options.get("visibility") == "durable",
        "acknowledged_is_visible": durability != "pooled" and options.get("visibility") != "durable" and not retention,
    }
    children: dict[str, subprocess.Popen[str]] = {}

    def start(verb: str) -> None:
        command = [sys.executable, "-W", "ignore", CHILD, verb, home, folder / "board", json.dumps(role)]
        children[verb] = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True)

    def wait_for(word: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not board.said(word):
            dead = {verb: child.returncode for verb, child in children.items() if child.poll() is not None}
            assert not dead, f"ended before {word!r}: {dead}"
            assert time.monotonic() < deadline, f"the writer never said {word!r}"
            time.sleep(0.005)

    def end(verb: str) -> dict[str, int]:
        output, _ = children[verb].communicate(timeout=seconds + 60)
        assert children[verb].returncode == 0, f"{verb} ended with {children[verb].returncode}"
        return dict(json.loads(output))

    try:
        start("write")
        wait_for("ready", 30)
        start("follow")
        start("scan")
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline and not board.said("appended all"):
            assert all(child.poll() is None for child in children.values()), "somebody ended early"
            time.sleep(0.02)
        board.say("stop appending")
        wait_for("appended all", 60)
        board.say("last round")
        counts = {verb: end(verb) for verb in ("follow", "scan")}
        board.say("close")
        counts["write"] = end("write")
    finally:
        for child in children.values():
            if child.poll() is None:
                child.kill()
            child.communicate()
    report = mqstore.verify(home)
    assert report.ok, report.problems[:3]
    counts["verify"] = {"messages": report.messages}
    return counts


MODES: list[dict[str, Any]] = [
    {"threads": 1, "durability": "async"},
    {"threads": 4, "durability": "async", "flush_interval": 0.01},
    {"threads": 3, "durability": "sync"},
    {"threads": 2, "durability": "async", "visibility": "durable", "flush_interval": 0.02},
    {"threads": 3, "durability": "pooled", "advanced": {"commit_interval": 0.01}},
]


@pytest.mark.slow
@pytest.mark.timeout(60 if not SOAK else 600)
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: "-".join(str(mode[key]) for key in list(mode)[:3]))
def test_hammer(tmp_path: Path, mode: dict[str, Any]) -> None:
    counts = hammer(tmp_path, **mode)
    print(counts)
    sent = counts["write"]["appended"]
    assert counts["verify"]["messages"] == sent
    # Nothing is deleted, so the follower and the last walk have seen every message.
    assert counts["follow"]["checked"] == sent
    assert counts["scan"]["scanned"] >= sent
    assert counts["follow"]["rounds"] >= 3
    assert counts["scan"]["looked_up"] >= 100
    assert sent >= 200


@pytest.mark.slow
@pytest.mark.skipif(not knows("retention_bytes"), reason="no retention")
@pytest.mark.timeout(60 if not SOAK else 600)
def test_hammer_with_retention(tmp_path: Path) -> None:
    counts = hammer(tmp_path, threads=2, retention=True, retention_bytes=2 << 20, advanced={"delete_interval": 0.0})
    print(counts)
    assert counts["verify"]["messages"] < counts["write"]["appended"], "nothing was deleted"
    assert counts["follow"]["checked"] >= 200
    assert counts["scan"]["scanned"] >= 200


# ---------------------------------------------------------------------------------------------------------------------
# A refused open, a replaced segment


def whole_tree(root: Path) -> dict[str, tuple[int, int, str]]:
    """Every file with its times and a hash of its bytes. Of folders only the times."""
    times = {str(path.relative_to(root)): path.stat() for path in root.rglob("*")}
    return {
        name: (times[name].st_mtime_ns, times[name].st_ctime_ns, digest)
        for name, (_, digest) in tree_hash(root).items()
    }


def test_a_refused_open_changes_no_byte(home: Path) -> None:
    with mqstore.open(home, "create", options=SMALL) as store:
        for number in range(500):
            store.append("t", b"x" * 200, keys=[f"k{number}"])
        store.flush()
        # The writer does nothing from here on. Any change would come from the refused open.
        before = whole_tree(home)
        deadline = time.monotonic() + 10
        while True:
            time.sleep(0.3)
            now = whole_tree(home)
            if now == before:
                break
            assert time.monotonic() < deadline, "the writer never rests"
            before = now
        for mode in ("rw", "create"):
            for options in ({}, {"durability": "sync"}, {"segment_size": 8192, "queue_file_entries": 1}):
                done = python(REFUSED, home, mode, json.dumps(options))
                assert done.stdout.split() == ["StoreLockedError", str(os.getpid())], done.stderr
            with pytest.raises(mqstore.StoreLockedError):
                mqstore.open(home, mode)  # type: ignore[arg-type]
        with pytest.raises(mqstore.MQStoreError):
            mqstore.compact(home, in_place=True)
        assert whole_tree(home) == before
        store.append("t", b"and on it goes")


REFUSED = """
import json, sys, mqstore
try:
    mqstore.open(sys.argv[1], sys.argv[2], **json.loads(sys.argv[3]))
except mqstore.MQStoreError as error:
    print(type(error).__name__, error.pid)
"""


def newest_segment(home: Path) -> Path:
    return max((home / "commitlog").iterdir())


def unlink(segment: Path) -> None:
    segment.unlink()


def put_a_copy_there(segment: Path) -> None:
    copy = segment.with_name("copy")
    shutil.copyfile(segment, copy)
    copy.rename(segment)


def take_the_folder_away(segment: Path) -> None:
    segment.parent.rename(segment.parent.with_name("elsewhere"))
    segment.parent.mkdir()


@pytest.mark.parametrize("damage", [unlink, put_a_copy_there, take_the_folder_away], ids=lambda damage: damage.__name__)
@pytest.mark.parametrize("durability", ["async", "manual", "sync", "pooled"])
def test_a_segment_that_is_replaced_is_noticed_before_the_next_acknowledgement(
    home: Path, durability: str, damage: Callable[[Path], None]
) -> None:
    """R10: a record that would vanish with an unlinked file is never acknowledged as durable."""
    store = mqstore.open(home, "create", options=SMALL, durability=durability, flush_interval=3600.0)
    try:
        store.append_many("t", [b"before"] * 20)
        store.flush()
        damage(newest_segment(home))
        if durability != "sync":
            # The record is not durable, and the result says so.
            assert not store.append("t", b"after").durable
        for call in (lambda: store.append("t", b"after", durable=True), store.flush, store.flush):
            with pytest.raises(mqstore.StorePoisonedError):
                call()
        with pytest.raises(mqstore.StorePoisonedError):
            store.append("t", b"nor anything later")
        # Reads still work.
        assert sum(message.body == b"before" for message in store.read("t", 0, end=20)) == 20
    finally:
        with contextlib.suppress(mqstore.StorePoisonedError):
            store.close()
    assert (home / "abort").exists()


def test_the_background_notices_a_replaced_segment_too(home: Path) -> None:
    eager = mqstore.BrokerOptions(flush_least_pages=0)
    store = mqstore.open(home, "create", options=SMALL, flush_interval=0.01, advanced=eager)
    store.append("t", b"before")
    newest_segment(home).unlink()
    deadline = time.monotonic() + 30
    with pytest.raises(mqstore.StorePoisonedError):
        while time.monotonic() < deadline:
            store.append("t", b"after")
            time.sleep(0.002)
    with contextlib.suppress(mqstore.StorePoisonedError):
        store.close()


# ---------------------------------------------------------------------------------------------------------------------
# Forks

PARENT = """
import os, random, sys, threading, time
import mqstore

home, rounds, end = sys.argv[1], int(sys.argv[2]), sys.argv[3]
store = mqstore.open(home, "create", segment_size=1 << 16, queue_file_entries=64, index_slots=1024, index_entries=16384,
                     flush_interval=0.005)
store.create_topic("t", queues=4)
stop = threading.Event()
sent = [0] * 4
failures = []

def work(queue):
    try:
        while not stop.is_set():
            store.append("t", b"%d" % sent[queue], queue_id=queue, durable=sent[queue] % 50 == 0)
            sent[queue] += 1
    except BaseException as error:
        failures.append(error)

threads = [threading.Thread(target=work, args=(queue,)) for queue in range(4)]
for thread in threads:
    thread.start()
follower = store.read("t", 0, follow=True)
next(follower)

def child():
    began = time.monotonic()
    wrong = []
    calls = {
        "append": lambda: store.append("t", b"child"), "append_many": lambda: store.append_many("t", [b"child"]),
        "durable": lambda: store.append("t", b"child", durable=True), "flush": store.flush, "topics": store.topics,
        "queues": lambda: store.queues("t"), "read": lambda: store.read("t"), "next": lambda: next(follower),
        "lookup": lambda: store.lookup("t", "k"), "get": lambda: store.get("x"), "get_at": lambda: store.get_at(0),
        "wait": lambda: store.wait("t", 0, 1 << 40, timeout=0), "stats": store.stats, "verify": store.verify,
        "topic": lambda: store.create_topic("u"), "enter": store.__enter__,
        "time": lambda: store.offset_for_time("t", 0, 0), "scan": lambda: store._scan_log(),
    }
    for name, call in calls.items():
        try:
            call()
            wrong.append(name)
        except mqstore.ForkedProcessError:
            pass
    store.close()
    # The parent still owns the directory, and the child can read it.
    try:
        mqstore.open(home, "rw")
        wrong.append("the lock was free")
    except mqstore.StoreLockedError as error:
        if error.pid != os.getppid():
            wrong.append(f"holder {error.pid}")
    with mqstore.open(home) as mine:
        if sum(1 for _ in mine.read("t", 1)) < 1:
            wrong.append("nothing to read")
    if time.monotonic() - began > 20:
        wrong.append("slow")
    if wrong:
        print("child:", wrong, file=sys.stderr)
    return 1 if wrong else 0

for number in range(rounds):
    time.sleep(random.uniform(0, 0.02))
    pid = os.fork()
    if pid == 0:
        status = child()
        if end == "exit":
            # A normal exit, with all exit handlers of Python.
            sys.exit(status)
        os._exit(status)
    assert os.waitpid(pid, 0)[1] == 0, "the child failed"
    before = sum(sent)
    deadline = time.monotonic() + 20
    while sum(sent) < before + 20 and not failures:
        assert time.monotonic() < deadline, "the parent stands still"
        time.sleep(0.001)
stop.set()
for thread in threads:
    thread.join(30)
assert not failures, failures
for queue in range(4):
    assert [int(message.body) for message in store.read("t", queue)] == list(range(sent[queue])), queue
store.close()
with mqstore.open(home, "rw") as again:
    assert [again.queues("t")[queue].max_offset for queue in range(4)] == sent
report = mqstore.verify(home)
assert report.ok, report.problems
print("appended", sum(sent))
"""

needs_fork = pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")


@pytest.mark.slow
@needs_fork
@pytest.mark.parametrize("end", ["exit", "_exit"])
def test_forks_in_the_middle_of_writes(home: Path, end: str) -> None:
    done = python(PARENT, home, 400 if SOAK else 30, end, PYTHONWARNINGS="ignore::DeprecationWarning")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert int(done.stdout.split()[-1]) > 200


ORPHAN = """
import os, subprocess, sys, threading, time
import mqstore

home, how = sys.argv[1:]
store = mqstore.open(home, "create", segment_size=1 << 16, flush_interval=0.005)
store.create_topic("t", queues=1)
def work():
    while True:
        store.append("t", b"x" * 100)
for _ in range(2):
    threading.Thread(target=work, daemon=True).start()
store.wait("t", 0, 99)
if how == "subprocess":
    # The child inherits all descriptors except those closed on exec, and must not inherit the lock.
    child = subprocess.Popen([sys.executable, "-c", "import time; print('here', flush=True); time.sleep(60)"],
                             close_fds=False, stdout=subprocess.PIPE)
    child.stdout.readline()
    pid = child.pid
elif how == "multiprocessing":
    import multiprocessing
    context = multiprocessing.get_context("fork")
    there = context.Event()
    def live():
        there.set()
        time.sleep(60)
    child = context.Process(target=live)
    child.start()
    there.wait()
    pid = child.pid
else:
    here, there = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(there, b"x")
        time.sleep(60)
        os._exit(0)
    os.read(here, 1)
os.write(1, f"{pid}\\n".encode())
time.sleep(60)
"""


@needs_fork
@pytest.mark.parametrize("how", ["fork", "subprocess", "multiprocessing"])
def test_a_child_that_outlives_a_killed_writer_holds_no_lock(home: Path, how: str) -> None:
    command = [sys.executable, "-W", "ignore", "-c", ORPHAN, str(home), how]
    writer = subprocess.Popen(command, stdout=subprocess.PIPE)
    assert writer.stdout is not None
    child = int(writer.stdout.readline())
    try:
        with pytest.raises(mqstore.StoreLockedError):
            mqstore.open(home, "rw")
        writer.kill()
        writer.wait()
        with mqstore.open(home, "rw") as store:
            count = len(list(store.read("t")))
            assert count >= 100
            assert store.append("t", b"mine").queue_offset == count
            os.kill(child, 0)
    finally:
        writer.kill()
        os.kill(child, signal.SIGKILL)
        writer.communicate()
    assert mqstore.verify(home).ok


APPEND_AND_DIE = """
import os, signal, sys
import mqstore

store = mqstore.open(sys.argv[1], "create")
for _ in range(10):
    store.append("t", b"x")
os.kill(os.getpid(), signal.SIGKILL)
"""

RECORD_LOCK = """
import fcntl, sys

with open(sys.argv[1], "r+b") as file:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
    print("locked", flush=True)
    sys.stdin.read()
"""


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a broker's lock is told from ours by its process")
def test_what_a_killed_writer_published_bounds_nobody_beside_a_broker(home: Path) -> None:
    assert python(APPEND_AND_DIE, home).returncode == -signal.SIGKILL
    page = (home / "mqstore/live").read_bytes()
    assert python(APPEND_AND_DIE, home).returncode == -signal.SIGKILL
    # Restores the older page, because a broker does not write it.
    (home / "mqstore/live").write_bytes(page)
    broker = subprocess.Popen(
        [sys.executable, "-c", RECORD_LOCK, str(home / "lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert broker.stdout is not None
    try:
        assert broker.stdout.readline() == b"locked\n"
        with mqstore.open(home) as store:
            assert len(list(store.read("t", 0))) == 20
        with pytest.raises(mqstore.StoreLockedError, match=str(broker.pid)):
            mqstore.open(home, "rw")
    finally:
        broker.communicate()


WORKERS = """
import multiprocessing, sys
import mqstore

def look(arguments):
    home, queue = arguments
    with mqstore.open(home) as store:
        return [message.body for message in store.read("t", queue)]

def touch(home):
    try:
        store.append("t", b"child")
    except mqstore.ForkedProcessError:
        return "forked"
    except NameError:
        return "not there"

if __name__ == "__main__":
    home, method = sys.argv[1:]
    store = mqstore.open(home, "create", segment_size=1 << 16)
    store.create_topic("t", queues=4)
    for number in range(400):
        store.append("t", b"%d" % number, queue_id=number % 4)
    with multiprocessing.get_context(method).Pool(2) as pool:
        for queue, found in enumerate(pool.map(look, [(home, queue) for queue in range(4)])):
            assert [int(body) for body in found] == list(range(queue, 400, 4))
        assert set(pool.map(touch, [home] * 4)) == {"forked" if method == "fork" else "not there"}
        store.append("t", b"400", queue_id=0)
        assert pool.apply(look, [(home, 0)])[-1] == b"400"
        pool.close()
        pool.join()
    store.append("t", b"401", queue_id=1)
    store.close()
"""


@needs_fork
@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_pools_of_processes(home: Path, tmp_path: Path, method: str) -> None:
    script = tmp_path / "workers.py"
    script.write_text(WORKERS)
    command = [sys.executable, "-W", "error::ResourceWarning", str(script), str(home), method]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    with mqstore.open(home, "rw") as store:
        assert [queue.max_offset for queue in store.queues("t")] == [101, 101, 100, 100]
