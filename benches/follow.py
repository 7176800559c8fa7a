"""A live copy of a real master, compared with a slave of RocketMQ: how fast is a full copy, and how far is it behind?

    python benches/follow.py [FOLDER] [GIB]

Each line is measured in turn with the same master, a store of RocketMQ 5.5.0: a full copy by mqstore, by a slave of
RocketMQ, and by `cp`; then, while the master appends, the time from its last append until the copy has it. The slave
begins with the first segment, because an empty one copies the last segment only. The driver of the tests starts
RocketMQ, so Maven and a JDK must be there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mqstore

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from interop.driver import JavaSession

if TYPE_CHECKING:
    from interop.driver import JavaStore

SEGMENT = 256 << 20
CONFIG = {"mappedFileSizeCommitLog": SEGMENT}
TOPICS = {"log": {"queues": 4}}
ROUNDS = 3
BURST = 100_000


def fill(home: Path, size: int) -> int:
    """Makes the master's log, and returns its end."""
    body = os.urandom(900)
    with mqstore.open(home, "create", segment_size=SEGMENT) as store:
        store.create_topic("log", 4)
        while store.stats().log_max_offset < size:
            store.append_many("log", [body] * 5000)
        return store.stats().log_max_offset


def full_copy(port: int, copy: Path, end: int) -> float:
    begun = time.perf_counter()
    with mqstore.follow(f"127.0.0.1:{port}", copy, segment_size=SEGMENT) as follower:
        follower.wait(end)
        took = time.perf_counter() - begun
    return end / took / 1e6


def slave_of(session: JavaSession, master: Path, home: Path) -> JavaStore:
    """Opens a slave that has the first segment."""
    (home / "commitlog").mkdir(parents=True)
    shutil.copy(master / "commitlog" / f"{0:020}", home / "commitlog")
    config: dict[str, Any] = CONFIG | {"brokerRole": "SLAVE", "haSendHeartbeatInterval": 100}
    return session.open(home, config=config, topics=TOPICS)


def java_copy(session: JavaSession, java: JavaStore, home: Path, end: int) -> float:
    slave = slave_of(session, java.path, home)
    begun = time.perf_counter()
    slave.follow(java)
    took = time.perf_counter() - begun
    slave.close()
    return (end - SEGMENT) / took / 1e6


def plain_copy(master: Path, copy: Path, end: int) -> float:
    begun = time.perf_counter()
    subprocess.run(["cp", "-r", master, copy], check=True)
    return end / (time.perf_counter() - begun) / 1e6


def burst(java: JavaStore) -> tuple[float, int]:
    """Lets the master append, and returns the rate and the end of its log."""
    begun = time.perf_counter()
    last = java.put([{"topic": "log", "body": "x" * 1024, "queue_id": n % 4} for n in range(BURST)])[-1]
    return BURST / (time.perf_counter() - begun), last.commit_log_offset + last.size


def lag(java: JavaStore, copy: Path) -> str:
    with mqstore.follow(f"127.0.0.1:{java.report.ha_port}", copy, segment_size=SEGMENT, begin="last") as follower:
        follower.wait()
        rate, end = burst(java)
        begun = time.perf_counter()
        follower.wait(end)
        return f"{(time.perf_counter() - begun) * 1000:.0f} ms after {BURST:,} messages at {rate:,.0f} messages/s"


def main() -> None:
    """Prints the lines."""
    place = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    size = int(float(sys.argv[2] if len(sys.argv) > 2 else "3.3") * (1 << 30))
    with tempfile.TemporaryDirectory(dir=place) as folder, JavaSession("5.5.0", Path(folder) / "home") as session:
        base = Path(folder)
        end = fill(base / "master", size)
        java = session.open(base / "master", config=CONFIG, topics=TOPICS)
        for _ in range(ROUNDS):
            ours = full_copy(java.report.ha_port, base / "copy", end)
            theirs = java_copy(session, java, base / "slave", end)
            plain = plain_copy(base / "master/commitlog", base / "plain", end)
            print(f"full copy: {ours:.0f} MB/s, RocketMQ {theirs:.0f}, cp {plain:.0f}", flush=True)
            for name in ("copy", "slave", "plain"):
                shutil.rmtree(base / name)
        for _ in range(ROUNDS):
            print("behind:", lag(java, base / "copy"), flush=True)
            shutil.rmtree(base / "copy")
        java.close()


if __name__ == "__main__":
    main()
