"""Reads from the disk have a pace while a writer of the store syncs, and only then."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import mqstore
from page_cache import evict, resident

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="asks the page cache of Linux")

OPTIONS = {"segment_size": 1 << 20, "index_slots": 100, "index_entries": 4000}
COUNT = 2000
BODIES = [b"%04d" % number + b"x" * 4000 for number in range(COUNT)]
DEADLINE_S = 30.0
"""Far more than any of these waits takes."""
NO_SYNC_S = 2.5
"""The pace ends two seconds after the last sync."""


@pytest.fixture
def segments(home: Path) -> list[Path]:
    """The old segments of a store of 8 MB; the newest one is not included."""
    with mqstore.open(home, "create", **OPTIONS) as store:
        store.create_topic("orders", queues=1)
        for first in range(0, COUNT, 100):
            store.append_batch("orders", BODIES[first : first + 100])
    old = sorted((home / "commitlog").iterdir())[:-1]
    assert len(old) > 6
    for path in old:
        evict(path)
    if any(resident(path) > 0 for path in old):
        pytest.skip("the file system keeps the pages in memory")
    return old


@contextmanager
def syncing(store: mqstore.Store) -> Iterator[None]:
    """Appends durable messages in a thread."""
    end, first = threading.Event(), threading.Event()

    def append() -> None:
        while not end.is_set():
            store.append("new", b"x", durable=True)
            first.set()

    thread = threading.Thread(target=append)
    thread.start()
    try:
        assert first.wait(DEADLINE_S)
        yield
    finally:
        end.set()
        thread.join()


def read(store: mqstore.Store) -> None:
    assert [message.body for message in store.read("orders")] == BODIES


def read_single(store: mqstore.Store) -> None:
    for offset in range(0, COUNT, 7):
        message = store.message_at("orders", 0, offset)
        assert message is not None
        assert message.body == BODIES[offset]


def scan(store: mqstore.Store) -> None:
    assert store.scan(topics="orders", columns=["body"]).to_arrow().column("body").to_pylist() == BODIES


@pytest.mark.parametrize("run", [read, read_single, scan], ids=lambda run: run.__name__)
def test_reads_next_to_a_writer(home: Path, segments: list[Path], run: Callable[[mqstore.Store], None]) -> None:
    with mqstore.open(home, "rw", **OPTIONS) as writer, mqstore.open(home) as reader:
        run(reader)
        assert reader.stats().paced_reads == 0
        with syncing(writer):
            deadline = time.monotonic() + DEADLINE_S
            while reader.stats().paced_reads == 0 and time.monotonic() < deadline:
                for path in segments:
                    evict(path)
                run(reader)
            paced = reader.stats()
            assert paced.paced_reads > 0
            assert paced.paced_read_ms > 0
            # Everything is in memory now.
            run(reader)
            assert reader.stats().paced_reads == paced.paced_reads
        time.sleep(NO_SYNC_S)
        for path in segments:
            evict(path)
        run(reader)
        # Only the reads of the first 10 ms do not know yet that the last sync was long ago. At 32 MiB/s, these are at
        # most 17 reads of 4 KiB, which cost 20 KiB each.
        assert reader.stats().paced_reads <= paced.paced_reads + 20


@pytest.mark.parametrize("run", [read, read_single, scan], ids=lambda run: run.__name__)
def test_reads_in_the_process_of_the_writer(
    home: Path, segments: list[Path], run: Callable[[mqstore.Store], None]
) -> None:
    with mqstore.open(home, "rw", **OPTIONS) as store, syncing(store):
        # The first reads notice the syncs.
        for _ in range(10):
            assert store.message_at("orders", 0, COUNT - 1) is not None
            time.sleep(0.01)
        run(store)
        paced = store.stats()
        assert paced.paced_reads > 0
        for _ in range(2):
            run(store)
        assert store.stats().paced_reads == paced.paced_reads


def test_a_flush_in_the_background_sets_no_pace(home: Path, segments: list[Path]) -> None:
    with (
        mqstore.open(home, "rw", flush_interval=0.01, **OPTIONS) as writer,
        mqstore.open(home) as reader,
    ):
        for _ in range(5):
            writer.append("new", b"x" * 4096)
            time.sleep(0.03)
            for path in segments:
                evict(path)
            read(reader)
        assert reader.stats().paced_reads == 0
