"""Stores larger than memory: how much of them the verbs read, and how much memory they need."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from pathlib import Path

import pytest

import mqstore
from rocketmq_bytes import properties, record

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(sys.platform != "linux", reason="reads /proc"),
]

GIB = 1 << 30
SEGMENTS = 1024

LOOK = """
import json, sys, mqstore

def work():
    with open("/proc/self/io") as lines:
        return {name: int(value) for name, value in (line.split(":") for line in lines)}

before = work()
found = mqstore.info(sys.argv[1])
after = work()
print(json.dumps([found.messages, found.log_max_offset, {name: after[name] - before[name] for name in after}]))
"""


def tebibyte(home: Path) -> None:
    """A log of 1,024 segments with holes. The first and the last segment have messages, with their queue."""
    units = b""
    for number in range(SEGMENTS):
        path = home / "commitlog" / f"{number * GIB:020d}"
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            file.truncate(GIB)
            at = number * GIB
            for _ in range(10 if number in (0, SEGMENTS - 1) else 0):
                data = record(
                    at,
                    topic="orders",
                    queue_offset=len(units) // 20,
                    stored=1_700_000_000_000 + number * 360_000,
                    properties=properties(KEYS="k"),
                )
                file.write(data)
                units += struct.pack(">qiq", at, len(data), 0)
                at += len(data)
    queue = home / "consumequeue/orders/0/00000000000000000000"
    queue.parent.mkdir(parents=True)
    with queue.open("wb") as file:
        file.write(units)
        file.truncate(20 * 300_000)


def test_a_look_at_a_tebibyte_reads_next_to_nothing(tmp_path: Path) -> None:
    tebibyte(tmp_path / "s")
    command = [sys.executable, "-c", LOOK, str(tmp_path / "s")]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=100)
    messages, end, work = json.loads(done.stdout)
    assert messages == 20
    assert end > (SEGMENTS - 1) * GIB
    assert work["rchar"] < 64 << 20, work
    assert work["syscr"] < 8 * SEGMENTS, work


MIB = 1 << 20
BYTES = (2 << 30) if os.environ.get("MQSTORE_SOAK") else 400 * MIB
"""Size of the store, more than the memory that a verb may take."""
MOST_BYTES = 256 * MIB
TOPICS = 200

VERB = """
import os, sys, threading
from mqstore.cli import run

peak, over = 0, threading.Event()

def watch():
    global peak
    status = os.open("/proc/self/status", os.O_RDONLY)
    while True:
        text = os.pread(status, 8192, 0)
        peak = max(peak, int(text[text.index(b"RssAnon:") + 8 :].split()[0]) << 10)
        if over.wait(0.003):
            return

watcher = threading.Thread(target=watch)
watcher.start()
status = run(sys.argv[1:])
over.set()
watcher.join()
print(f"peak {peak}", file=sys.stderr)
sys.exit(status)
"""


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Messages of up to 4 KB in the queues of 200 topics."""
    home = tmp_path_factory.mktemp("large") / "s"
    body = os.urandom(4000)
    options = mqstore.StoreOptions(
        durability="manual", segment_size=64 * MIB, index_slots=100_000, index_entries=400_000
    )
    with mqstore.open(home, "create", options=options) as store:
        for number in range(TOPICS):
            store.create_topic(f"t{number}", queues=4)
        for round_ in range(BYTES // (200 * 2200)):
            messages = [
                mqstore.Message(body[: (round_ * 37 + number * 61) % 4000], keys=f"k{round_}-{number}", tags="a")
                for number in range(200)
            ]
            store.append_many(f"t{round_ % TOPICS}", messages)
    return home


def peak_of(*arguments: object, status: int = 0) -> int:
    done = subprocess.run(
        [sys.executable, "-c", VERB, *map(str, arguments)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        timeout=600,
    )
    assert done.returncode == status, (arguments, done.stderr)
    return int(done.stderr.split()[-1])


@pytest.mark.timeout(1800)
def test_no_verb_takes_memory_by_the_size_of_the_store(large: Path, tmp_path: Path) -> None:
    with mqstore.open(large) as store:
        assert store.stats().log_max_offset > MOST_BYTES
        message = next(iter(store.read("t3")))
    out = tmp_path / "out"
    out.mkdir()
    calls: list[tuple[object, ...]] = [
        ("info", large),
        ("topics", large),
        ("stats", large),
        ("verify", large),
        ("get", large, message.message_id),
        ("lookup", large, "t3", message.keys[0]),
        ("cat", large, "--topic", "t7"),
        ("cat", large, "--log", "--limit", "20000"),
        ("tail", large, "t3"),
        ("export", large, out / "o.jsonl"),
        ("export", large, out / "o.parquet"),
        ("export", large, out / "o.arrow"),
        ("export", large, out / "copy", "--to", "store"),
        ("import", out / "from-jsonl", out / "o.jsonl", "--create", "--yes"),
        ("import", out / "from-parquet", out / "o.parquet", "--create", "--yes"),
        ("snapshot", large, out / "snapshot"),
        ("repair", large, "--output", out / "repaired"),
        ("rebuild", out / "copy"),
        ("info", out / "snapshot"),
    ]
    peaks = {" ".join(str(each) for each in call): peak_of(*call) for call in calls}
    # Missing queues are derived in memory.
    for name in ("consumequeue", "index"):
        shutil.rmtree(out / "snapshot" / name)
    for verb in ("info", "verify"):
        peaks[f"{verb} without queues"] = peak_of(verb, out / "snapshot", status=int(verb == "verify"))
    print("\n".join(f"{peak >> 20:5} MiB  {call}" for call, peak in peaks.items()))
    assert {call: peak for call, peak in peaks.items() if peak > MOST_BYTES} == {}
