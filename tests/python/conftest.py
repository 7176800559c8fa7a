"""Helpers of all Python suites: small stores, hashes of whole directories, the command line."""

from __future__ import annotations

import hashlib
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
import uuid
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

import mqstore
from mqstore.cli import run as run_command

if TYPE_CHECKING:
    from remote_stores import Bucket

# Small files, so that rolls, full index files and second queue files happen within a test.
SMALL = mqstore.StoreOptions(
    segment_size=64 << 10,
    queue_file_entries=64,
    index_slots=64,
    index_entries=256,
    flush_interval=0.05,
    advanced=mqstore.BrokerOptions(compaction_log_file_size=64 << 10, compaction_queue_file_size=46 * 200),
)

Cli = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session", autouse=True)
def _ctrl_c() -> Iterator[None]:
    """Makes Ctrl-C interrupt, even if a shell started the tests in the background and so ignores it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Fails a test that leaves its handler of Ctrl-C or its level of a logger to the tests after it."""
    before = _of_the_process()
    yield
    assert _of_the_process() == before


def _of_the_process() -> tuple[object, int, int]:
    return signal.getsignal(signal.SIGINT), logging.getLogger().level, logging.getLogger("mqstore").level


@pytest.fixture(scope="module")
def s3() -> Iterator[Bucket]:
    """A bucket of moto's server, empty at the begin of each module."""
    pytest.importorskip("moto.server")
    from remote_stores import bucket

    with bucket() as made:
        yield made


@pytest.fixture(scope="module")
def versity(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bucket]:
    """A bucket of versitygw."""
    from remote_stores import needs_versitygw, versitygw_bucket

    needs_versitygw()
    with versitygw_bucket(tmp_path_factory.mktemp("versitygw") / "objects") as made:
        yield made


@pytest.fixture(params=["moto", "versitygw"])
def server(request: pytest.FixtureRequest) -> Bucket:
    """Each of two servers with the interface of S3."""
    found: Bucket = request.getfixturevalue("s3" if request.param == "moto" else "versity")
    return found


@pytest.fixture
def empty_url() -> str:
    """A URL without objects in the memory of `fsspec`."""
    return f"memory://{uuid.uuid4().hex}/out"


@pytest.fixture(scope="module")
def days(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed store of two topics with messages of three days, some without tags."""
    from published_results import make_days

    home = tmp_path_factory.mktemp("days") / "store"
    make_days(home)
    return home


@pytest.fixture(scope="module")
def large_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed store with several segments."""
    from published_results import make_large_store

    home = tmp_path_factory.mktemp("large") / "store"
    make_large_store(home)
    return home


@pytest.fixture
def homes(tmp_path: Path) -> tuple[Path, Path]:
    """A store that has all its segments, and the same store with most of them in the archive `cold`."""
    from archived_stores import whole_and_short

    return whole_and_short(tmp_path)


def target_at(kind: str, request: pytest.FixtureRequest, folder: Path) -> tuple[str, dict[str, Any] | None]:
    """A new URL of the kind "file", "memory" or "s3", with the options of its transport."""
    name = uuid.uuid4().hex
    if kind == "s3":
        return f"s3://stores/{name}", request.getfixturevalue("s3").options
    return {"file": f"file://{folder}/with space", "memory": f"memory://{name}/cold"}[kind], None


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A path at which a test can create a store."""
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
    """Every file in ``root`` with its size and the hash of its bytes. Folders have size -1."""
    found: dict[str, tuple[int, str]] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_dir():
            found[name] = (-1, "")
        elif path.is_file():
            found[name] = (path.stat().st_size, hashlib.sha256(path.read_bytes()).hexdigest())
    return found


def allocated(root: Path) -> int:
    """Returns the bytes that the files below a folder take on the disk."""
    return sum(path.stat().st_blocks * 512 for path in root.rglob("*") if path.is_file())


def open_deleted_files(home: Path) -> list[str]:
    """Returns the files below `home` that have no name and whose space is not free, because this process uses them."""
    if not Path("/proc/self/fd").exists():
        return []
    found = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.is_symlink()]
    found += [line.split(maxsplit=5)[-1].strip() for line in Path("/proc/self/maps").read_text().splitlines()]
    return sorted({name for name in found if name.startswith(str(home)) and name.endswith("(deleted)")})


@pytest.fixture
def cli() -> Cli:
    """Runs the command line in this process, which saves its start: for verbs that share nothing with the test."""
    return _run_here


@pytest.fixture
def cli_process() -> Cli:
    """Runs the command line in a separate process, next to open stores of the test or with another environment."""

    def run(*arguments: object, **extra: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "mqstore", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, **extra)  # type: ignore[call-overload, no-any-return]

    return run


def _run_here(*arguments: object, columns: int = 80) -> subprocess.CompletedProcess[str]:
    words = [str(word) for word in arguments]
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8", newline="") as out,
        tempfile.TemporaryFile("w+", encoding="utf-8", newline="") as err,
    ):
        with redirect_stdout(out), redirect_stderr(err), _as_in_a_process(columns):
            status = run_command(words)
        texts = []
        for file in (out, err):
            file.seek(0)
            texts.append(file.read())
    return subprocess.CompletedProcess(words, status, *texts)


@contextmanager
def _as_in_a_process(columns: int) -> Iterator[None]:
    """Takes back what the command line sets for its process: filters of warnings, variables, a level of the logger."""
    logger = logging.getLogger("mqstore")
    level = logger.level
    try:
        with warnings.catch_warnings(), patch.dict(os.environ, COLUMNS=str(columns)):
            yield
    finally:
        logger.setLevel(level)


def python(code: str, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    """Runs ``code`` in a new interpreter."""
    return subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, **environment},
    )


def until(condition: Callable[[], object]) -> None:
    """Waits until the condition holds. The limit is a minute, for slow machines."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.002)
