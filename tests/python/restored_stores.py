"""Stores to archive, with messages of several kinds, and the comparison of a restored store with them."""

from __future__ import annotations

import filecmp
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import mqstore
from conftest import SMALL

SEGMENT = 64 << 10
LONG = "%RETRY%" + "long" * 33
"""A topic name of more than 127 bytes, whose records have another magic code."""
TOPICS = ("orders", "events", LONG)


def fill(store: mqstore.Store, count: int = 450, start: int = 0) -> None:
    """Appends messages of several kinds; 450 of them fill about seven segments."""
    for topic in TOPICS:
        if topic not in store.topics():
            store.create_topic(topic, queues=2)
    for number in range(start, start + count):
        store.append(
            TOPICS[number % 3],
            json.dumps({"number": number, "text": "x" * (number * 7 % 900)}).encode() * (1 + number % 3),
            keys=[f"k{number}", "all"] if number % 2 else None,
            tags="paid" if number % 5 else None,
            properties={"price": str(number)} if number % 3 else None,
            queue_id=number % 2,
            compression="zstd" if number % 7 == 0 else None,
            compress_over=0,
        )


@contextmanager
def filled_store(home: Path) -> Iterator[mqstore.Store]:
    """Makes a store with messages in several segments, and closes it at the end."""
    with mqstore.open(home, "create", options=SMALL) as opened:
        fill(opened)
        yield opened


def keeping(retention_bytes: int) -> mqstore.StoreOptions:
    """Options with a limit of the log."""
    return replace(SMALL, retention_bytes=retention_bytes, advanced=replace(SMALL.advanced, delete_interval=0))


def segments(home: Path) -> list[Path]:
    return sorted((home / "commitlog").iterdir())


def assert_identical(home: Path, restored: Path, names: list[str] | None = None) -> None:
    """Each restored segment is the original one."""
    found = segments(restored)
    assert names is None or [one.name for one in found] == names
    assert found
    for one in found:
        assert filecmp.cmp(one, home / "commitlog" / one.name, shallow=False), one
