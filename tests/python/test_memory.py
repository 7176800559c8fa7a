"""The cost of an open store: maps, descriptors and memory do not grow with the number of segments and queues."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SEGMENTS = 100
READ_MAPS = 64
"""Maximum number of segments that the writing process keeps mapped after reads."""
QUEUES = 1000
MIB = 1 << 20

WORK = """
import json, sys, mqstore

def status(name):
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith(name + ":"))

def maps():
    with open("/proc/self/maps") as lines:
        return sum("/commitlog/" in line for line in lines)

before = status("RssAnon")
options = {"segment_size": 256 << 10, "index_slots": 1000, "index_entries": 20_000, "flush_interval": 0.02}
found = {}
with mqstore.open(sys.argv[1], mode="create", **options) as store:
    store.create_topic("many", queues=%d)
    body = bytes(24_000)
    for number in range(%d):
        store.append("many", body, queue_id=number %% %d, keys=f"k{number}")
    store.flush()
    found["written"] = [store.stats().segments, maps(), status("RssAnon") - before]
for mode in ("rw", "r"):
    with mqstore.open(sys.argv[1], mode=mode) as store:
        assert sum(queue.max_offset for queue in store.queues("many")) == %d
        assert len(list(store.read("many", 7))) == %d
        found[mode] = [store.stats().segments, maps(), status("RssAnon") - before]
print(json.dumps(found))
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_maps_and_memory(tmp_path: Path) -> None:
    messages = QUEUES
    code = WORK % (QUEUES, messages, QUEUES, messages, messages // QUEUES)
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "s")], stdout=subprocess.PIPE, text=True, check=True, timeout=120
    )
    found = json.loads(done.stdout)
    assert found["written"][0] >= SEGMENTS - 10
    for mode, (segments, maps, anonymous) in found.items():
        assert segments >= SEGMENTS - 10
        assert maps <= 3 + (READ_MAPS if mode == "rw" else 0)
        assert anonymous < 64 * MIB


VERY_MANY = 40_000 if os.environ.get("MQSTORE_SOAK") else 2_000
EACH = 10
MOST_DESCRIPTORS = 700
"""512 queue files, and the other open files of a store and an interpreter."""

MANY = """
import json, os, resource, sys, mqstore

# A store uses up to an eighth of the descriptors of its process for queue files.
resource.setrlimit(resource.RLIMIT_NOFILE, (4096, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
home, queues, each = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

def descriptors():
    return len(os.listdir("/proc/self/fd"))

def read_all(store, expected):
    for queue in range(queues):
        bodies = [message.body for message in store.read("many", queue)]
        assert bodies == [b"%d/%d" % (queue, number) for number in range(expected(queue))], queue

found = []
with mqstore.open(home, mode="create") as store:
    store.create_topic("many", queues=queues)
    for number in range(each):
        for queue in range(queues):
            store.append("many", b"%d/%d" % (queue, number), queue_id=queue)
    found.append(descriptors())
with mqstore.open(home, mode="rw") as store:
    assert len(store.queues("many")) == queues
    read_all(store, lambda queue: each)
    for queue in range(0, queues, queues // 100):
        store.append("many", b"%d/%d" % (queue, each), queue_id=queue)
    found.append(descriptors())
for mode in ("rw", "r"):
    with mqstore.open(home, mode=mode) as store:
        read_all(store, lambda queue: each + (queue % (queues // 100) == 0))
        found.append(descriptors())
print(json.dumps(found))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_very_many_queues(tmp_path: Path) -> None:
    command = [sys.executable, "-W", "error", "-c", MANY, str(tmp_path / "s"), str(VERY_MANY), str(EACH)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, timeout=1100)
    assert max(json.loads(done.stdout)) <= MOST_DESCRIPTORS
