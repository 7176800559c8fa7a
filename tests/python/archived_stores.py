"""Stores whose older segments are only in an archive."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import mqstore
from conftest import SMALL

SEGMENT = 64 << 10

TOPICS = ("orders", "events")

KEEPING = replace(SMALL, retention_bytes=1, advanced=replace(SMALL.advanced, delete_interval=0))


def fill(store: mqstore.Store, count: int = 900, start: int = 0) -> None:
    """Appends messages of several kinds; 100 of them fill about a segment."""
    for topic in TOPICS:
        if topic not in store.topics():
            store.create_topic(topic, queues=3)
    for number in range(start, start + count):
        store.append(
            TOPICS[number % 4 == 0],
            json.dumps({"number": number, "text": "x" * (number * 7 % 900)}).encode(),
            keys=[f"k{number}", "all"] if number % 2 else None,
            tags=("open", "paid")[number % 3 == 0] if number % 5 else None,
            properties={"price": str(number)} if number % 3 else None,
            queue_id=number % 3,
            compression="zstd" if number % 7 == 0 else None,
            compress_over=0,
        )


def aged(home: Path, count: int = 900) -> None:
    """Makes a store whose older segments are only in its archive, `home.cold`."""
    with mqstore.open(home, "create", options=KEEPING) as store:
        fill(store, count)
        store.archive.configure(f"{home}.cold")
        store.archive.run()
        store.expire()
        assert store.stats().log_min_offset >= 4 * SEGMENT


def whole_and_short(folder: Path) -> tuple[Path, Path]:
    """Makes a store that has all its segments, and the same store with most of them in the archive `cold`."""
    whole, short = folder / "whole", folder / "short"
    with mqstore.open(whole, "create", options=SMALL) as store:
        fill(store)
    shutil.copytree(whole, short)
    with mqstore.open(short, "rw", options=KEEPING) as store:
        store.archive.configure(folder / "cold")
        store.archive.run()
        store.expire()
        assert store.stats().log_min_offset >= 4 * SEGMENT
    return whole, short


def rows_of(scan: mqstore.Scan) -> list[dict[str, Any]]:
    return scan.to_arrow().to_pylist()


def parquet_files(target: Path) -> list[Path]:
    return sorted((target / "v1").glob("topic=orders/*.parquet"))
