"""Results at URLs for tests: objects in the memory of `fsspec`, a store to publish, and the messages of a store."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mqstore
from conftest import SMALL


def memory(url: str) -> dict[str, bytes]:
    """The objects below a URL in the memory of `fsspec`."""
    import fsspec

    system = fsspec.filesystem("memory")
    root = "/" + url.partition("://")[2]
    return {name.removeprefix(f"{root}/"): system.cat_file(name) for name in system.find(root)}


def visible(url: str) -> list[str]:
    """The names of the objects that other programs see."""
    return [name for name in memory(url) if not name.startswith("_mqstore/")]


def put(url: str, path: str, content: bytes) -> None:
    import fsspec

    fsspec.filesystem("memory").pipe_file(f"/{url.partition('://')[2]}/{path}", content)


def make_large_store(home: Path) -> None:
    """Makes a closed store with several segments."""
    with mqstore.open(home, "create", options=SMALL) as store:
        store.create_topic("orders", queues=2)
        for number in range(400):
            store.append("orders", bytes([number % 251]) * 1000, keys=f"k{number}", queue_id=number % 2)


def make_days(home: Path) -> None:
    """Makes a closed store of two topics with messages of three days, some without tags."""
    import mqstore.testing

    clock = mqstore.testing.ManualClock("2025-11-28T00:00:00Z")
    with mqstore.testing.open(home, clock=clock, options=SMALL) as store:
        for name in ("orders", "%DLQ%a"):
            store.create_topic(name, queues=2)
        for number in range(60):
            clock.advance(3600)
            tags = ("paid", None, "a b/c=\u00fc%")[number % 3]
            store.append(("orders", "%DLQ%a")[number % 2], b"%d " % number * 50, tags=tags, queue_id=number // 2 % 2)


def contents(home: Any, **options: Any) -> list[Any]:
    """The messages of a store, without their positions."""
    table = mqstore.scan(home, columns=["topic", "queue_id", "keys", "body"], **options).to_arrow()
    return sorted(table.to_pylist(), key=repr)
