"""Helpers for the tests of scans: rows, offsets, and a store with many kinds of messages."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import Any

import mqstore
from conftest import SMALL

NAMES = [
    *("topic", "queue_id", "queue_offset", "commit_log_offset", "size", "message_id", "unique_id", "keys", "tags"),
    *("properties", "flag", "sys_flag", "born_timestamp", "born_host", "store_timestamp", "store_host"),
    *("reconsume_times", "prepared_transaction_offset", "body_crc", "body_size", "body"),
]


def rows(scan: mqstore.Scan) -> list[dict[str, Any]]:
    return [row for batch in scan for row in batch.to_pylist()]


def offsets(scan: mqstore.Scan) -> list[int]:
    return [offset for batch in scan for offset in batch["commit_log_offset"].to_pylist()]


def in_log(path: Path) -> list[mqstore.StoredMessage]:
    with warnings.catch_warnings():
        # Missing queues are derived.
        warnings.simplefilter("ignore", mqstore.StoreWarning)
        with mqstore.open(path) as store:
            return list(store._scan_log())


def mixed_store(home: Path) -> Path:
    """Several topics and segments. Times, keys and tags identify each message."""
    with mqstore.open(home, "create", options=SMALL) as store:
        store.create_topic("orders", queues=3)
        for number in range(1200):
            topic = "orders" if number % 3 else f"t{number % 7}"
            store.append(
                topic,
                bytes([number % 256]) * (number % 400),
                keys=[f"k{number}", f"mod{number % 10}"],
                tags=[None, "paid", "open", "AaAa", "BBBB"][number % 5],
                queue_id=number % 3 if topic == "orders" else None,
            )
            if number % 400 == 399:
                time.sleep(0.02)
    return home
