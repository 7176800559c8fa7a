"""A store that is larger than memory: what is read of it."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from rocketmq_bytes import properties, record

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")

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
    """A log of 1,024 segments with holes: messages in the first and in the last one, and their queue."""
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
