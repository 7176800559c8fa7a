"""Passes over a whole log bring no pages into memory to stay, and evict none."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import mqstore
from page_cache import evict, resident

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks the page cache of Linux")

SEGMENT_BYTES = 1 << 20
BODY = b"x" * 4000
COUNT = 3000


def offers_uncached_reads(path: Path) -> bool:
    with path.open("rb") as file:
        try:
            return os.preadv(file.fileno(), [bytearray(1)], 1 << 40, 0x80) == 0
        except OSError:
            return False


@pytest.fixture
def segments(home: Path) -> list[Path]:
    """The old segments of a store, whose pages are not in memory; the newest one is not included."""
    options = {"segment_size": SEGMENT_BYTES, "index_slots": 100, "index_entries": 4000}
    with mqstore.open(home, "create", **options) as store:
        for first in range(0, COUNT, 100):
            store.append_batch("orders", [BODY] * 100, [f"k{n}" for n in range(first, first + 100)])
    old = sorted((home / "commitlog").iterdir())[:-1]
    assert len(old) > 8
    for path in old:
        evict(path)
    if not offers_uncached_reads(old[0]) or any(resident(path) > 0 for path in old):
        pytest.skip("the file system keeps the pages that a read brings into memory")
    return old


def rebuild(home: Path, _: Path) -> None:
    assert mqstore.rebuild(home).messages == COUNT


def rebuild_beside_appends(home: Path, _: Path) -> None:
    with mqstore.open(home, "rw") as store:
        assert store.rebuild().messages == COUNT


def repair_into_a_copy(home: Path, folder: Path) -> None:
    assert mqstore.repair(home, output=folder / "copy").ok


PASSES = [rebuild, rebuild_beside_appends, repair_into_a_copy]


@pytest.mark.parametrize("run", PASSES, ids=lambda run: run.__name__)
def test_a_pass_over_cold_segments_leaves_none_of_them_in_memory(
    home: Path, tmp_path: Path, segments: list[Path], run: Callable[[Path, Path], None]
) -> None:
    run(home, tmp_path)
    shares = [resident(path) for path in segments]
    assert sum(shares) / len(shares) < 0.05, shares


@pytest.mark.parametrize("run", PASSES, ids=lambda run: run.__name__)
def test_a_pass_evicts_nothing(
    home: Path, tmp_path: Path, segments: list[Path], run: Callable[[Path, Path], None]
) -> None:
    hot = segments[3:6]
    for path in hot:
        path.read_bytes()
    run(home, tmp_path)
    assert [resident(path) for path in hot] == [1.0] * len(hot)
    cold = [resident(path) for path in segments if path not in hot]
    assert sum(cold) / len(cold) < 0.05, cold


def test_a_consumer_keeps_the_pages_that_it_reads(home: Path, segments: list[Path]) -> None:
    with mqstore.open(home) as store:
        assert sum(1 for _ in store.read("orders")) == COUNT
    assert [resident(path) for path in segments] == [1.0] * len(segments)
