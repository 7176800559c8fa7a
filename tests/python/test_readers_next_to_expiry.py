"""Readers in other processes while a writer appends and removes its oldest files all the time: each answers, and none
reports damage."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import mqstore

SECONDS = 4.0

# Files of a few records, so that each kind of file expires many times a second.
OPTIONS = {"segment_size": 1 << 16, "index_slots": 20, "index_entries": 100, "queue_file_entries": 50}

WRITER = """
import json, sys, mqstore
number = 0
with mqstore.open(sys.argv[1], "rw", retention=0.3, **json.loads(sys.argv[2])) as store:
    print("open", flush=True)
    while True:
        for queue_id in range(8):
            for _ in range(20):
                store.append("orders", b"x" * 200, queue_id=queue_id, keys=[f"key-{number % 50}"])
                number += 1
        store.expire()
"""

READER = """
import json, sys, time, mqstore
home, verb, end = sys.argv[1], sys.argv[2], time.monotonic() + float(sys.argv[3])
kept = mqstore.open(home, "r")

def look():
    if verb == "kept":
        kept.queues("orders")
        list(kept.lookup("orders", "key-7"))
    elif verb == "open":
        with mqstore.open(home, "r") as store:
            for queue in store.queues("orders"):
                try:
                    list(store.read("orders", queue.queue_id))
                except mqstore.OffsetOutOfRangeError:
                    pass  # The range expired during the read; the error says so.
            list(store.lookup("orders", "key-7"))
    elif verb == "scan":
        for batch in mqstore.scan(home):
            pass
    elif verb == "verify":
        return [str(problem) for problem in mqstore.verify(home).problems]
    elif verb == "info":
        mqstore.info(home)
    return []

looks, problems = 0, []
while time.monotonic() < end:
    looks += 1
    try:
        problems += look()
    except mqstore.MQStoreError as error:
        problems.append(f"{type(error).__name__}: {error}")
print(json.dumps({"looks": looks, "problems": problems[:5]}))
"""


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::mqstore.StoreWarning")
def test_every_verb_continues_with_the_files_that_remain(home: Path) -> None:
    with mqstore.open(home, "create", **OPTIONS) as store:
        store.create_topic("orders", queues=8)
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(home), json.dumps(OPTIONS)], stdout=subprocess.PIPE)
    try:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"open\n"
        readers = {
            verb: subprocess.Popen(
                [sys.executable, "-W", "ignore", "-c", READER, str(home), verb, str(SECONDS)],
                stdout=subprocess.PIPE,
            )
            for verb in ("kept", "open", "scan", "verify", "info")
        }
        found = {verb: json.loads(reader.communicate()[0]) for verb, reader in readers.items()}
    finally:
        writer.kill()
        writer.communicate()
    assert {verb: answer["problems"] for verb, answer in found.items() if answer["problems"]} == {}
    assert all(answer["looks"] > 3 for answer in found.values())
