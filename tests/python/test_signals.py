"""Signals during a blocking call, and every way in which an interpreter can end with an open store."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from pathlib import Path

import pytest

import mqstore
from conftest import python

SOAK = bool(os.environ.get("MQSTORE_SOAK"))

# A killed program may leave half a record, and recovery reports it.
pytestmark = pytest.mark.filterwarnings("ignore::mqstore.StoreWarning")

INTERRUPTED = """
import json, os, signal, sys, threading, time
import mqstore

home, what, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
store = mqstore.open(home, "r" if what in READ_ONLY else "rw", **({} if what in READ_ONLY else {"durability": "sync"}))
sent = 0.0

def interrupt():
    global sent
    time.sleep(0.06)
    sent = time.monotonic()
    os.kill(os.getpid(), signal.SIGINT)

# Keeps each store, because Python drops an exception that a signal raises inside a finalizer.
opened = []

def open_and_close():
    opened.append(mqstore.open(home))
    opened[-1].close()

def consume(found):
    for _ in found:
        pass

follower = store.read("t", 0, start=store.queues("t")[0].max_offset, follow=True)
calls = {
    "wait": lambda: store.wait("t", 0, 1 << 40, timeout=30),
    "follow": lambda: next(follower),
    "append": lambda: [store.append("t", b"x" * 1000, queue_id=1, durable=True) for _ in range(100000)],
    "append_many": lambda: [store.append_many("t", [b"x"] * 2000, queue_id=1) for _ in range(100000)],
    "scan": lambda: [consume(store._scan_log()) for _ in range(1000)],
    "filter": lambda: [consume(store.read("t", 0, filter="absent")) for _ in range(100000)],
    "sql": lambda: [consume(store.read("t", 0, filter=mqstore.sql("absent = 1"))) for _ in range(1000)],
    "lookup": lambda: [consume(store.lookup("t", "absent")) for _ in range(1000)],
    "verify": lambda: [store.verify() for _ in range(1000)],
    "rebuild": lambda: [store.rebuild() for _ in range(1000)],
    "open": lambda: [open_and_close() for _ in range(1000)],
}
delays = []
for _ in range(rounds):
    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        calls[what]()
        sys.exit("it ended before the signal")
    except KeyboardInterrupt:
        delays.append(time.monotonic() - sent)
    thread.join()
# The store still works.
if what not in READ_ONLY:
    place = store.append("t", b"afterwards", queue_id=2).queue_offset
    assert next(store.read("t", 2, start=place)).body == b"afterwards"
    store.flush()
for queue in store.queues("t"):
    offsets = [message.queue_offset for message in store.read("t", queue.queue_id)]
    assert offsets == list(range(queue.max_offset)), queue
store.close()
print(json.dumps(delays))
""".replace("READ_ONLY", repr(("scan", "sql", "lookup", "open")))


@pytest.fixture(scope="module")
def long_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60,000 messages, so that one call over all of them takes longer than a person waits."""
    home = tmp_path_factory.mktemp("signals") / "store"
    with mqstore.open(home, "create", segment_size=8 << 20) as store:
        store.create_topic("t", queues=3)
        for number in range(30):
            messages = [mqstore.Message(b"x" * 100, keys=f"k{number}", tags="here") for _ in range(2000)]
            store.append_many("t", messages, queue_id=0)
    return home


@pytest.mark.slow
@pytest.mark.parametrize(
    "what", ["wait", "follow", "append", "append_many", "scan", "filter", "sql", "lookup", "verify", "rebuild", "open"]
)
def test_ctrl_c_ends_what_blocks(long_store: Path, tmp_path: Path, what: str) -> None:
    home = tmp_path / "store"
    shutil.copytree(long_store, home)
    done = python(INTERRUPTED, home, what, 5)
    assert done.returncode == 0, done.stderr
    delays = sorted(json.loads(done.stdout))
    print(what, [round(1000 * delay) for delay in delays], "ms")
    # On a quiet machine this takes milliseconds. The smallest delay counts, because load only slows threads down.
    assert delays[0] < 0.5, delays


HANDLER = """
import os, signal, sys, threading, time
import mqstore

store = mqstore.open(sys.argv[1], "create", segment_size=1 << 16)
store.append("t", b"x")
came = []

def terminate(number, frame):
    came.append(time.monotonic())
    if len(came) == 3:
        sys.exit(7)

def send():
    time.sleep(0.1)
    sent.append(time.monotonic())
    os.kill(os.getpid(), signal.SIGTERM)

sent = []
signal.signal(signal.SIGTERM, terminate)
follower = store.read("t", 0, 1, follow=True, timeout=0.5)
for call in (lambda: store.wait("t", 0, 99, timeout=0.5), lambda: next(follower, None)):
    thread = threading.Thread(target=send)
    thread.start()
    began = time.monotonic()
    # If the handler returns, the call continues until its timeout.
    assert not call()
    assert 0.45 < time.monotonic() - began < 5
    thread.join()
assert len(came) == 2
assert min(there - here for here, there in zip(sent, came)) < 0.1, (sent, came)
threading.Thread(target=send).start()
try:
    store.wait("t", 0, 99)
finally:
    store.append("t", b"last words")
    store.close()
"""


@pytest.mark.slow
def test_handlers_of_other_signals_run_during_a_wait(home: Path) -> None:
    done = python(HANDLER, home)
    assert done.returncode == 7, done.stderr
    with mqstore.open(home, "rw") as store:
        assert [message.body for message in store.read("t")] == [b"x", b"last words"]


# ---------------------------------------------------------------------------------------------------------------------
# Ends of the interpreter

FOLLOWERS = """
threading.Thread(target=lambda: next(store.read("t", 3, follow=True)), daemon=True).start()
threading.Thread(target=lambda: store.wait("t", 3, 1 << 40), daemon=True).start()
time.sleep(0.05)
"""

ENDINGS = {
    # The end of the program, its exit status, and whether it ends with an open store and so with a warning.
    "falls off the end": ("", 0, True),
    "sys.exit": ("sys.exit(3)", 3, True),
    "an exception": ("raise ZeroDivisionError", 1, True),
    "os._exit": ("os._exit(4)", 4, False),
    "sys.exit in a thread": ("thread = threading.Thread(target=sys.exit)\nthread.start()\nthread.join()", 0, True),
    "an exit in a with": ("with store: sys.exit(5)", 5, False),
    "closed at exit": ("import atexit; atexit.register(store.close)", 0, False),
    "a follower waits": (FOLLOWERS, 0, True),
    "it is in a cycle": ("class Cycle: pass\nc = Cycle(); c.c = c; c.store = store; del store, c", 0, True),
    "SIGTERM": ("os.kill(os.getpid(), signal.SIGTERM); time.sleep(30)", -signal.SIGTERM, False),
    "SIGINT": ("os.kill(os.getpid(), signal.SIGINT); time.sleep(30)", -signal.SIGINT, True),
    "abort": ("os.abort()", -signal.SIGABRT, False),
}

ENDING = """
import os, random, signal, sys, threading, time
import mqstore

store = mqstore.open(sys.argv[1], "create", segment_size=1 << 16, queue_file_entries=64, flush_interval=0.01)
store.create_topic("t", queues=4)
acknowledged = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT | os.O_APPEND)

def work(queue, store):
    while True:
        place = store.append("t", b"%d" % queue, queue_id=queue)
        os.write(acknowledged, f"{queue} {place.queue_offset}\\n".encode())

for queue in range(3):
    threading.Thread(target=work, args=(queue, store), daemon=True).start()
time.sleep(random.uniform(0.05, 0.1))
"""


@pytest.mark.parametrize("ending", list(ENDINGS))
def test_the_interpreter_ends_with_an_open_store_and_busy_threads(home: Path, tmp_path: Path, ending: str) -> None:
    code, status, warned = ENDINGS[ending]
    for number in range(20 if SOAK else 3):
        journal = tmp_path / f"journal-{number}"
        done = python(ENDING + code, home, journal, PYTHONWARNINGS="default::ResourceWarning", PYTHONFAULTHANDLER="")
        assert done.returncode == status, done.stderr
        assert "Fatal" not in done.stderr, done.stderr
        assert "panicked" not in done.stderr, done.stderr
        if not warned:
            assert "was not closed" not in done.stderr, done.stderr
        lines = [line.split() for line in journal.read_text().splitlines()]
        assert len(lines) > 10
        with mqstore.open(home, "rw") as store:
            ends = [queue.max_offset for queue in store.queues("t")]
            for queue, offset in lines:
                assert int(offset) < ends[int(queue)], f"{queue}/{offset} was acknowledged"
            for queue in range(3):
                found = list(store.read("t", queue))
                assert [message.queue_offset for message in found] == list(range(ends[queue]))
                assert {message.body for message in found} <= {b"%d" % queue}
    assert mqstore.verify(home).ok


def test_a_store_that_is_open_at_the_end_is_said_to_be(home: Path) -> None:
    code = "import sys, mqstore\nstore = mqstore.open(sys.argv[1], 'create')\nstore.append('t', b'x')"
    done = python(code, home, PYTHONWARNINGS="default::ResourceWarning")
    assert (done.returncode, done.stdout) == (0, "")
    assert re.search(r"ResourceWarning: store .* was not closed", done.stderr), done.stderr
    assert not (home / "abort").exists()
