"""The time of single calls in Python, of mqstore and of other libraries (pytest-benchmark).

``make bench-python`` runs it. `.venv/bin/pip install --group bench` installs the libraries.
``benches/compare/peers_side.py`` contains the code for each library. The rows ``py-*`` of ``make bench-compare``
measure the same in alternating turns, and the documentation uses those figures. Use this suite to look at one call
while you work on it.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "compare"))

from peers_side import PEERS, made

if TYPE_CHECKING:
    from collections.abc import Iterator

BODY = b"x" * 1024
SLOW = ("litequeue", "persist-queue", "diskcache")
FAST = [name for name in PEERS if name not in SLOW]
STORED = 20_000


def opened(name: str, path: Path, durability: str = "async") -> Any:
    """Return a new message store. A library that is not installed is skipped."""
    try:
        return made({"pattern": name, "path": str(path / name), "durability": durability})
    except RuntimeError as error:
        pytest.skip(str(error))


@pytest.fixture
def filled(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Any]:
    """Yield a store with messages in it."""
    peer = opened(request.param, tmp_path)
    for _ in range(STORED // 1_000):
        peer.put([BODY] * 1_000)
    yield peer
    peer.close()


@pytest.mark.parametrize("name", PEERS)
@pytest.mark.benchmark(group="append one, 1 KiB, as durable as the process")
def test_append(benchmark: Any, name: str, tmp_path: Path) -> None:
    peer = opened(name, tmp_path)
    one = [BODY]
    benchmark.pedantic(peer.put, (one,), rounds=200, iterations=5 if name in SLOW else 100, warmup_rounds=5)
    assert len(peer) > 0
    peer.close()


@pytest.mark.parametrize("name", FAST)
@pytest.mark.benchmark(group="append a thousand, 1 KiB, as durable as the process")
def test_append_many(benchmark: Any, name: str, tmp_path: Path) -> None:
    peer = opened(name, tmp_path)
    many = [BODY] * 1_000
    benchmark.pedantic(peer.put, (many,), rounds=100, warmup_rounds=5)
    assert len(peer) >= 100_000
    peer.close()


@pytest.mark.parametrize("name", [name for name in FAST if name != "queue.Queue"])
@pytest.mark.benchmark(group="append one, 1 KiB, synced")
def test_append_durable(benchmark: Any, name: str, tmp_path: Path) -> None:
    peer = opened(name, tmp_path, "sync")
    benchmark.pedantic(peer.put, ([BODY],), rounds=300, warmup_rounds=20)
    assert len(peer) == 320
    peer.close()


@pytest.mark.parametrize("filled", [name for name in FAST if name != "queue.Queue"], indirect=True)
@pytest.mark.benchmark(group="look at 20,000 bodies of 1 KiB in order")
def test_iterate(benchmark: Any, filled: Any) -> None:
    assert benchmark(lambda: sum(len(body) for body in filled)) == STORED * len(BODY)


@pytest.mark.parametrize("filled", ["mqstore"], indirect=True)
@pytest.mark.benchmark(group="scan 20,000 messages of 1 KiB to Arrow")
@pytest.mark.parametrize(
    "columns", [["body"], ["queue_offset", "store_timestamp"], None], ids=["body", "numbers", "all"]
)
def test_scan(benchmark: Any, filled: Any, columns: list[str] | None) -> None:
    scan = filled.store.scan(columns=columns)
    assert benchmark(lambda: sum(batch.num_rows for batch in scan)) == STORED
