"""Kills Python workers of Spark at random times."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


@contextmanager
def killing(
    executors: Callable[[], set[int]], chance: random.Random, pause_seconds: float, most: int | None = None
) -> Iterator[list[int]]:
    """Kills Python workers during the block, one after the other, with pauses of random length.

    Args:
        executors: returns the process ids of the JVMs whose workers are killed.
        chance: the source of randomness.
        pause_seconds: the longest pause.
        most: the number of workers to kill; None for no limit.
    """
    ended = threading.Event()
    killed: list[int] = []

    def kill() -> None:
        while not ended.is_set() and (most is None or len(killed) < most):
            if workers := workers_of(executors()):
                time.sleep(chance.uniform(0, min(0.2, pause_seconds)))
                with suppress(ProcessLookupError):
                    killed.append(chance.choice(workers))
                    os.kill(killed[-1], signal.SIGKILL)
                ended.wait(chance.uniform(0, pause_seconds))
            ended.wait(0.005)

    thread = threading.Thread(target=kill)
    thread.start()
    try:
        yield killed
    finally:
        ended.set()
        thread.join()


def executors_of(folder: Path) -> set[int]:
    """The process ids of the executors' JVMs of a cluster that has its files in this folder."""
    return {pid for pid in _parents() if {*_words(pid)} >= {EXECUTOR} and str(folder) in " ".join(_words(pid))}


def workers_of(jvms: set[int]) -> list[int]:
    """The Python workers that these JVMs have: children of `pyspark.daemon`, which is a child of the JVM."""
    parents = _parents()
    daemons = {pid for pid, parent in parents.items() if parent in jvms and "pyspark.daemon" in _words(pid)}
    return sorted(pid for pid, parent in parents.items() if parent in daemons)


EXECUTOR = "org.apache.spark.executor.CoarseGrainedExecutorBackend"


def _parents() -> dict[int, int]:
    """The parent of each process."""
    parents = {}
    for entry in Path("/proc").iterdir():
        with suppress(OSError, ValueError):
            parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    return parents


def _words(pid: int) -> list[str]:
    """The command line of a process; empty if it has ended."""
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    return []
