"""What the Python suites share: small stores, hashes of whole directories, the command line."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import mqstore

# Every file small, so that rolls, full index files and second queue files happen within a test.
SMALL = mqstore.StoreOptions(
    segment_size=64 << 10,
    queue_file_entries=64,
    index_slots=64,
    index_entries=256,
    flush_interval=0.05,
    advanced=mqstore.BrokerOptions(compaction_log_file_size=64 << 10, compaction_queue_file_size=46 * 200),
)

# What a store deletes must not depend on how full the disk is that the tests happen to run on.
ANY_DISK: dict[str, Any] = {"disk_clean_ratio": 1.0, "disk_force_ratio": 1.0}

Cli = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session", autouse=True)
def _ctrl_c() -> Iterator[None]:
    """Have Ctrl-C interrupt, also where a shell started the tests in the background, which ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Where a store may be made."""
    return tmp_path / "store"


@pytest.fixture
def store(home: Path) -> Iterator[mqstore.Store]:
    """An empty store, open for writing."""
    with mqstore.open(home, "create", options=SMALL) as opened:
        yield opened


@pytest.fixture
def filled(home: Path) -> Path:
    """A closed store: 40 messages in two queues of "orders", 5 in "events"."""
    with mqstore.open(home, "create", options=SMALL) as opened:
        opened.create_topic("orders", queues=2)
        for number in range(40):
            opened.append(
                "orders",
                f"body {number}".encode(),
                keys=[f"k{number}", "all"],
                tags="paid" if number % 2 else "open",
                properties={"region": "eu"},
                queue_id=number % 2,
            )
        for number in range(5):
            opened.append("events", bytes([number]) * 100)
    return home


def tree_hash(root: Path) -> dict[str, tuple[int, str]]:
    """Every file below ``root`` with its size and the hash of its bytes; folders as size -1."""
    found: dict[str, tuple[int, str]] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_dir():
            found[name] = (-1, "")
        elif path.is_file():
            found[name] = (path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest())
    return found


@pytest.fixture
def cli() -> Cli:
    """Runs the command line in a process of its own."""

    def run(*arguments: object, **extra: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "mqstore", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, **extra)  # type: ignore[call-overload, no-any-return]

    return run


def python(code: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs ``code`` in a fresh interpreter."""
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
    )


def until(condition: Callable[[], object]) -> None:
    """Waits until it holds; a minute is for machines that stall."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.002)
