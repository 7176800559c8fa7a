"""A compaction topic, the expected content as a dictionary, and the content of a store after compaction."""

from __future__ import annotations

import hashlib
import random
from pathlib import Path
from typing import Any

import mqstore
from mqstore import _native

TOPIC = "prices"
QUEUES = 3
SIZES: dict[str, Any] = {"log_file_size": 16 << 10, "queue_file_size": 46 * 40}

Contents = dict[int, dict[str, bytes]]


def make(path: Path, **options: Any) -> Contents:
    """Makes a store with a compaction topic. Returns the expected content after all its messages."""
    contents: Contents = {queue: {} for queue in range(QUEUES)}
    sizes = mqstore.BrokerOptions(**{f"compaction_{name}": size for name, size in SIZES.items()})
    with mqstore.open(path, "create", segment_size=1 << 20, advanced=sizes, **options) as store:
        store.create_topic(TOPIC, queues=QUEUES, attributes={"cleanup.policy": "COMPACTION"})
        store.create_topic("other")
        fill(store, contents, 3000, seed=1)
    return contents


def fill(store: mqstore.Store, contents: Contents, count: int, seed: int) -> None:
    chance = random.Random(seed)
    for number in range(count):
        queue = chance.randrange(QUEUES)
        kind = chance.random()
        key = f"item {chance.randrange(200)}".replace(" ", "-")
        body = f"{number}: {'x' * chance.randrange(100)}".encode()
        if kind < 0.05:
            store.append(TOPIC, b"without a key", queue_id=queue)
        elif kind < 0.15:
            store.append(TOPIC, b"", keys=key, queue_id=queue)
            contents[queue].pop(key, None)
        else:
            store.append(TOPIC, body, keys=key, tags="t", queue_id=queue)
            contents[queue][key] = body
        if number % 10 == 0:
            store.append("other", body, keys=key)


def compacted(path: Path) -> Contents:
    """The messages that a reader finds in the compacted queues, without tombstones."""
    found: Contents = {}
    for queue in range(QUEUES):
        with mqstore.open(path) as store:
            end = _native.compaction_end(store, TOPIC, queue) or 0
            rows = [message for message in store.read(TOPIC, queue) if message.queue_offset < end]
        offsets = [message.queue_offset for message in rows]
        assert offsets == sorted(set(offsets))
        by_key = {str(message.properties.get("KEYS")): message.body for message in rows}
        assert len(by_key) == len(rows), "a key is there twice"
        found[queue] = {key: body for key, body in by_key.items() if body}
    return found


def hashes(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def same_files(before: dict[str, str], after: dict[str, str], queue: int) -> bool:
    """Whether the compaction files of a queue of the topic are the same and none is missing."""

    def of(found: dict[str, str]) -> dict[str, str]:
        return {name: digest for name, digest in found.items() if f"/{TOPIC}/{queue}/" in name}

    assert of(before)
    return of(before) == of(after)


def left_in_jobs(path: Path) -> set[str]:
    return {entry.name for job in (path / "mqstore" / "jobs").iterdir() for entry in job.iterdir()}
