"""Readers in other processes while a writer is killed and starts again: none sees less than before, nor a gap."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import mqstore

KILLS = 20

# Few queue files and rare syncs: a restart cuts and rewrites much of the queue.
OPTIONS = {"segment_size": 1 << 20, "index_slots": 100, "index_entries": 4000, "queue_file_entries": 1000}

WRITER = """
import json, sys, mqstore
with mqstore.open(sys.argv[1], "rw", **json.loads(sys.argv[2])) as store:
    print("open", flush=True)
    number = store.queues("orders")[0].max_offset
    while True:
        store.append("orders", b"%d" % number, queue_id=0)
        number += 1
"""

# Reads the end of the queue and the messages around the end that it saw last, until its input is closed.
READER = """
import json, select, sys, mqstore
home, again = sys.argv[1], sys.argv[2] == "again"
reader, seen, looks, problems = mqstore.open(home, "r"), 0, 0, []
while not select.select([sys.stdin], [], [], 0)[0]:
    if again:
        reader.close()
        reader = mqstore.open(home, "r")
    end = reader.queues("orders")[0].max_offset
    if end < seen:
        problems.append(f"the queue ends at {end}, before {seen}")
    first = max(0, min(end, seen) - 300)
    messages = list(reader.read("orders", 0, start=first))
    offsets = [message.queue_offset for message in messages]
    if offsets != list(range(first, first + len(offsets))):
        problems.append(f"an offset is missing after {first}")
    if any(message.body != b"%d" % message.queue_offset for message in messages):
        problems.append("a message has another body")
    seen, looks = max(seen, end, first + len(offsets)), looks + 1
print(json.dumps({"looks": looks, "seen": seen, "problems": problems}))
"""


TABLE_WRITER = """
import json, sys, mqstore
with mqstore.open(sys.argv[1], "rw", **json.loads(sys.argv[2])) as store:
    print("open", flush=True)
    last = store.table("prices").get("key-0")
    number = int(last.body) if last else 0
    while True:
        number += 1
        for key in range(5):
            store.append("prices", b"%d" % number, queue_id=key % 2, keys=[f"key-{key}"])
"""

# Reads the values of a table, which only grow.
TABLE_READER = """
import json, select, sys, mqstore
home, again = sys.argv[1], sys.argv[2] == "again"
reader, seen, looks, problems = mqstore.open(home, "r"), {}, 0, []
table = reader.table("prices")
while not select.select([sys.stdin], [], [], 0)[0]:
    if again:
        reader.close()
        reader = mqstore.open(home, "r")
        table = reader.table("prices")
    for key, message in table.items():
        value = int(message.body)
        if value < seen.get(key, 0):
            problems.append(f"{key} went from {seen[key]} back to {value}")
        seen[key] = max(value, seen.get(key, 0))
    looks += 1
print(json.dumps({"looks": looks, "problems": problems}))
"""


def program(code: str, *arguments: str) -> subprocess.Popen[bytes]:
    """Starts a program with pipes for its input and output."""
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)


def run_next_to_kills(home: Path, writer_code: str, reader_code: str, kills: int) -> list[dict[str, Any]]:
    """Returns what three readers report that ran while a writer was killed and started again so often."""
    readers = [program(reader_code, str(home), how) for how in ("again", "again", "once")]
    chance = random.Random(3)
    for _ in range(kills):
        with program(writer_code, str(home), json.dumps(OPTIONS)) as writer:
            assert writer.stdout is not None
            assert writer.stdout.readline() == b"open\n"
            time.sleep(chance.uniform(0.05, 0.5))
            writer.kill()
    return [json.loads(reader.communicate()[0]) for reader in readers]


@pytest.mark.slow
def test_a_reader_never_sees_less_while_a_killed_writer_restarts(home: Path) -> None:
    with mqstore.open(home, "create", **OPTIONS) as store:
        store.create_topic("orders", queues=1)
    for found in run_next_to_kills(home, WRITER, READER, KILLS):
        assert found["looks"] > KILLS
        assert found["problems"] == []


@pytest.mark.slow
def test_a_table_never_shows_an_older_value_while_a_killed_writer_restarts(home: Path) -> None:
    with mqstore.open(home, "create", **OPTIONS) as store:
        store.create_topic("prices", queues=2, attributes={"cleanup.policy": "COMPACTION"})
    for found in run_next_to_kills(home, TABLE_WRITER, TABLE_READER, KILLS // 2):
        assert found["looks"] > 3
        assert found["problems"] == []
