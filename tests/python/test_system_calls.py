"""System calls that fail under a writer, by `strace --inject`: no acknowledged message may be lost.

The simulator (`tests/rust/sim/failing_calls.rs`) lets each call of each verb fail on a simulated disk. Here the calls
of a real process fail. `pytest -s` shows what the caller saw.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections import Counter
from contextlib import suppress
from itertools import product, takewhile
from pathlib import Path

import pytest

import mqstore
from conftest import until

pytestmark = [
    pytest.mark.soak,
    pytest.mark.timeout(3600),
    # A writer that died may leave half a record, and recovery reports it.
    pytest.mark.filterwarnings("ignore::mqstore.StoreWarning"),
]

# The calls that fail, and with which error.
CALLS = {
    "openat": "EMFILE",
    "pwrite64": "EIO",
    "fdatasync": "EIO",
    "fsync": "EIO",
    "msync": "EIO",
    "fallocate": "ENOSPC",
    "rename,renameat,renameat2": "EIO",
    "mmap": "ENOMEM",
}

# The number of the call that fails, for each thread.
NUMBERS = (1, 2, 3, 5, 9, 17)

WRITER = """
import os, sys, warnings, mqstore
warnings.simplefilter("ignore")
home, durability, closes = sys.argv[1], sys.argv[2], sys.argv[3] == "True"

def say(text):
    os.write(1, (text + "\\n").encode())

def attempt(verb, act):
    try:
        return act()
    except Exception as error:
        say(f"! {verb} {type(error).__name__}")

def append(store, topic, number, **options):
    body = f"{topic}/{number}".encode().ljust(50 + number % 3 * 700, b".")
    verb = lambda: store.append(topic, body, keys=f"k{number % 7}", queue_id=0, **options)
    sent = attempt("append", verb)
    if sent is not None:
        say(f"< {topic} {sent.queue_offset} {number}")

def work(store, turn):
    for number in range(turn * 100, turn * 100 + 40):
        append(store, "orders", number, durable=number % 20 == 0)
        append(store, "prices", number)
    attempt("flush", store.flush)
    attempt("create_topic", lambda: store.create_topic(f"new{turn}", 1))
    append(store, f"new{turn}", turn * 100)
    attempt("compact", lambda: store.compact(force=True))

def create(home):
    tuned = mqstore.BrokerOptions(compaction_log_file_size=64 << 10, compaction_queue_file_size=46 * 200)
    options = mqstore.StoreOptions(
        segment_size=32 << 10, queue_file_entries=64, index_slots=32, index_entries=128, flush_interval=0.01,
        durability=durability, advanced=tuned,
    )
    store = mqstore.open(home, "create", options=options)
    store.create_topic("orders", 1)
    store.create_topic("prices", 1, attributes={"cleanup.policy": "COMPACTION"})
    work(store, 0)
    return store

# The calls of imports must not fail, so another store uses every verb once.
create(home + "-first").close()
say("first")
store = create(home)
say("ready")
sys.stdin.readline()
for turn in range(1, 4):
    work(store, turn)
if closes:
    attempt("close", store.close)
say("end")
os._exit(0)
"""


def run(home: Path, call: str, when: str, *, durability: str, closes: bool) -> tuple[list[str], int]:
    """Lets a writer work while its calls fail. Returns what it said, and the number of calls that failed."""
    trace = home.with_suffix(".strace")
    names = ",".join(f"?{name}" for name in call.split(","))
    inject = f"inject={names}:error={CALLS[call]}:when={when}"
    strace = ["strace", "-f", "-q", "-o", trace, "-e", f"trace={names}", "-e", inject]
    with subprocess.Popen(
        [sys.executable, "-c", WRITER, home, durability, str(closes)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as writer:
        assert writer.stdout is not None
        said = list(takewhile(lambda line: line != "ready\n", writer.stdout))
        with subprocess.Popen([*strace, "-p", str(writer.pid)], stderr=subprocess.DEVNULL) as tracer:
            try:
                until(lambda: tracer.poll() is not None or is_traced(writer.pid))
                assert tracer.poll() is None, "strace cannot trace the writer"
                rest, errors = writer.communicate("go\n", timeout=300)
            finally:
                writer.kill()
    said += rest.splitlines(keepends=True)
    # A process without memory may die. Whatever else ends it is a bug.
    assert said[-1] == "end\n" or call == "mmap", errors
    said = said[said.index("first\n") + 1 :]
    return [line.rstrip("\n") for line in said], trace.read_text().count("(INJECTED)")


def is_traced(pid: int) -> bool:
    """Whether strace has all threads of the process. Until then a thread may end."""
    with suppress(FileNotFoundError):
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return not any("TracerPid:\t0\n" in (task / "status").read_text() for task in tasks)
    return False


def lost(home: Path, said: list[str]) -> list[str]:
    """Returns the acknowledged messages that are not in the store. A compaction keeps the newest one of each key."""
    acked = [line.split()[1:] for line in said if line.startswith("< ")]
    missing = []
    with mqstore.open(home, "rw") as store:
        found = {topic: {m.queue_offset: m for m in store.read(topic)} for topic in store.topics()}
    for topic, offset, number in acked:
        message = found.get(topic, {}).get(int(offset))
        if message is not None and message.body.startswith(f"{topic}/{number}.".encode()):
            continue
        key = f"k{int(number) % 7}"
        replaced = topic == "prices" and any(
            other > int(offset) and newer.keys == (key,) for other, newer in found[topic].items()
        )
        if message is not None or not replaced:
            missing.append(f"{topic} {offset} {number}")
    return missing


@pytest.mark.parametrize("call", CALLS)
def test_no_acknowledged_message_is_lost(tmp_path: Path, call: str) -> None:
    if shutil.which("strace") is None:
        pytest.skip("install strace")
    seen: dict[str, Counter[str]] = {"once": Counter(), "always": Counter()}
    failed = 0
    for turn, (number, often) in enumerate(product(NUMBERS, seen)):
        home = tmp_path / f"store-{turn}"
        when = str(number) if often == "once" else f"{number}+"
        durability = ("async", "sync")[turn // 2 % 2]
        said, injected = run(home, call, when, durability=durability, closes=turn // 4 % 2 == 0)
        failed += injected
        seen[often].update(line[2:] for line in said if line.startswith("! "))
        assert lost(home, said) == [], (when, durability)
        report = mqstore.verify(home)
        assert report.ok, (when, durability, report.problems)
    for often, counts in seen.items():
        print(
            f"{call} fails {often}: " + (", ".join(f"{what} ({n})" for what, n in sorted(counts.items())) or "nothing")
        )
    assert failed > 0, "no call failed"
