"""After an error, an iterator raises the error again: its end would look like the end of the messages."""

from __future__ import annotations

import asyncio
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import mqstore
import mqstore.aio
from conftest import SMALL

pyarrow = pytest.importorskip("pyarrow")


def test_a_failed_read_of_the_log_stays_failed(tmp_path: Path) -> None:
    home = tmp_path / "store"
    with mqstore.open(home, "create", options=SMALL) as store:
        for number in range(100):
            store.append("t", b"%d" % number * 100, keys="all")
    segment = min((home / "commitlog").glob("0*"))
    content = bytearray(segment.read_bytes())
    place = content.index(b"5050505050")
    content[place] ^= 1
    segment.write_bytes(content)
    with mqstore.open(home) as store, warnings.catch_warnings():
        warnings.simplefilter("ignore", mqstore.StoreWarning)
        reads: list[Callable[[], Iterator[Any]]] = [
            lambda: store.read("t"),
            lambda: store.read("t", 0, 0),
            lambda: iter(store.scan(topics="t", batch_size=10)),
            lambda: iter(mqstore.scan(home, batch_size=10)),
            lambda: iter(mqstore.scan([home], batch_size=10)),
        ]
        for read in reads:
            reading = read()
            for _ in range(3):
                with pytest.raises(mqstore.CorruptionError):
                    list(reading)

    async def work() -> None:
        async with mqstore.aio.open(home) as store:
            messages = store.read("t")
            rows = aiter(store.scan(batch_size=10))
            for _ in range(3):
                with pytest.raises(mqstore.CorruptionError):
                    [one async for one in messages]
                with pytest.raises(mqstore.CorruptionError):
                    [one async for one in rows]

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mqstore.StoreWarning)
        asyncio.run(work())
