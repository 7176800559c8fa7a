"""mqstore through its Python API. Reads one JSON specification on each line and prints one JSON line, as all drivers.

Operations:

- ``read`` finds messages in the ways of README.md. Every message becomes a `StoredMessage`, whose fields are not read.
- ``scan`` takes every batch and drops it.
- ``export`` writes a Parquet file next to the store.
- ``fill`` makes a store for a compaction: `messages` with `keys` keys in turn.
- ``table`` loads a compacted topic.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from collections import deque
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

import mqstore

if TYPE_CHECKING:
    from collections.abc import Callable

MULTIPLIER, INCREMENT, MASK = 6_364_136_223_846_793_005, 1_442_695_040_888_963_407, (1 << 64) - 1


def serve(operations: dict[str, Callable[[dict[str, Any]], dict[str, Any]]]) -> None:
    """Measure until standard input ends."""
    for line in sys.stdin:
        spec = json.loads(line)
        try:
            result = operations[spec["op"]](spec)
        except Exception as error:  # noqa: BLE001  (the caller gets the error and continues)
            result = {"error": f"{type(error).__name__}: {str(error)[:2000]}"}
        print(json.dumps(result), flush=True)


def version(_spec: dict[str, Any]) -> dict[str, Any]:
    """Return the version of mqstore."""
    return {"version": mqstore.__version__}


def scan(spec: dict[str, Any]) -> dict[str, Any]:
    """Read the store as Arrow batches of some columns, or of all if None."""
    begin = time.perf_counter()
    with pa.RecordBatchReader.from_stream(
        mqstore.scan(spec["path"], columns=spec["columns"], threads=spec["threads"])
    ) as batches:
        found = sum(batch.num_rows for batch in batches)
    seconds = time.perf_counter() - begin
    rate = {"gb_per_s": spec["log_end"] / seconds / 1e9}
    return {"seconds": seconds, "messages": spec["messages"], "stored": found, "refused": 0} | rate


def export(spec: dict[str, Any]) -> dict[str, Any]:
    """Export the store to Parquet. The bare way writes batches that are already in memory."""
    path = Path(spec["path"]).with_suffix(".parquet")
    ready = mqstore.scan(spec["path"]).to_arrow() if spec["pattern"] == "bare" else None
    begin = time.perf_counter()
    if ready is not None:
        pq.write_table(ready, path, compression="zstd", row_group_size=GROUP_ROWS)
    else:
        mqstore.export(spec["path"], path, overwrite=True)
    seconds = time.perf_counter() - begin
    found = pq.ParquetFile(path).metadata.num_rows
    path.unlink()
    return {"seconds": seconds, "messages": spec["messages"], "stored": found, "refused": 0}


def fill(spec: dict[str, Any]) -> dict[str, Any]:
    """Make a store whose topic can be compacted."""
    body = b"x" * (spec["body_bytes"] - 8)
    with mqstore.open(spec["path"], "create", segment_size=SEGMENT_BYTES) as store:
        store.create_topic("bench", queues=spec["queues"], attributes={"cleanup.policy": "COMPACTION"})
        for begin in range(0, spec["messages"], AT_ONCE):
            numbers = range(begin, min(begin + AT_ONCE, spec["messages"]))
            keys = (number % spec["keys"] for number in numbers)
            messages = [mqstore.Message(b"%08d" % key + body, keys=f"order-{key:08}") for key in keys]
            store.append_many("bench", messages)
        log_bytes = store.stats().log_max_offset
    return {"messages": spec["messages"], "log_bytes": log_bytes}


def working_copy(spec: dict[str, Any]) -> Path:
    """Copy the store. The log, which a compaction does not change, is copied as hard links. If the pattern contains
    `first`, the compaction files are left out, as in a store that was never compacted."""

    def copy(source: str, target: str) -> None:
        if "commitlog" in source:
            os.link(source, target)
        else:
            shutil.copy2(source, target)

    path = Path(spec["path"] + "-work")
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(spec["path"], path, copy_function=copy)
    if spec["pattern"].startswith("first"):
        shutil.rmtree(path / "compaction")
        (path / "mqstore" / "compaction.json").unlink()
    # Otherwise, the system would write the copy during the syncs of the measurement.
    os.sync()
    return path


def compact(spec: dict[str, Any]) -> dict[str, Any]:
    """Compact a copy of the store."""
    path = working_copy(spec)
    begin = time.perf_counter()
    found = mqstore.compact(path, in_place=True).messages_before
    seconds = time.perf_counter() - begin
    shutil.rmtree(path)
    return {"seconds": seconds, "messages": spec["messages"], "stored": found, "refused": 0}


def verify(spec: dict[str, Any]) -> dict[str, Any]:
    """Verify the store."""
    begin = time.perf_counter()
    found = mqstore.verify(spec["path"]).messages
    seconds = time.perf_counter() - begin
    return {"seconds": seconds, "messages": spec["messages"], "stored": found, "refused": 0}


def write(spec: dict[str, Any]) -> dict[str, Any]:
    """Append to a new store, a thousand messages in each call, until they are durable."""
    body = b"x" * spec["body_bytes"]
    begin = time.perf_counter()
    with mqstore.open(spec["path"], "create") as store:
        for at in range(0, spec["messages"], AT_ONCE):
            numbers = range(at, min(at + AT_ONCE, spec["messages"]))
            store.append_many("bench", [mqstore.Message(body, keys=f"order-{number}") for number in numbers])
        store.flush()
        seconds = time.perf_counter() - begin
        found = sum(queue.max_offset for queue in store.queues("bench"))
    return {"seconds": seconds, "messages": spec["messages"], "stored": found, "refused": 0}


def read(spec: dict[str, Any]) -> dict[str, Any]:
    """Read `messages` messages of the store in the way that `pattern` names."""
    ways = {"sequential": sequential, "random": random, "lookup": lookup}
    way = ways[spec["pattern"]]
    with mqstore.open(spec["path"], "rw") as store:
        whole = sum(queue.max_offset - queue.min_offset for queue in store.queues("bench"))
        span = min(whole, spec["span"])
        way(store, places(span, spec["warm_up"]), spec)
        wanted = places(span, spec["messages"])
        begin = time.perf_counter()
        found = way(store, wanted, spec)
        seconds = time.perf_counter() - begin
    return {"seconds": seconds, "messages": spec["messages"], "stored": found, "refused": 0}


def table(spec: dict[str, Any]) -> dict[str, Any]:
    """Load the topic as a table, with its messages in memory or on disk."""
    with mqstore.open(spec["path"], "rw") as store:
        begin = time.perf_counter()
        loaded = store.table("bench", bodies=spec["pattern"])
        seconds = time.perf_counter() - begin
        found = len(loaded)
    return {"seconds": seconds, "messages": spec["messages"], "stored": found, "refused": 0}


def places(span: int, count: int) -> list[int]:
    """Return the same numbers below `span` as the other drivers."""
    state, found = 4711, []
    for _ in range(count):
        state = (state * MULTIPLIER + INCREMENT) & MASK
        found.append((state >> 33) % span)
    return found


def sequential(store: mqstore.Store, wanted: list[int], _spec: dict[str, Any]) -> int:
    """Read a queue from its first message on."""
    last = deque(enumerate(islice(store.read("bench"), len(wanted)), 1), maxlen=1)
    return last[0][0] if last else 0


def random(store: mqstore.Store, wanted: list[int], spec: dict[str, Any]) -> int:
    """Read messages at these offsets of a queue, several in each call."""
    found = 0
    if spec["batch"] == 1:
        for offset in wanted:
            found += store.message_at("bench", 0, offset) is not None
        return found
    for begin in range(0, len(wanted), spec["batch"]):
        found += len(store.messages_at("bench", 0, wanted[begin : begin + spec["batch"]]))
    return found


def lookup(store: mqstore.Store, wanted: list[int], _spec: dict[str, Any]) -> int:
    """Look up the keys of these messages."""
    return sum(len(list(store.lookup("bench", f"order-{number:08}"))) for number in wanted)


GROUP_ROWS = 25_000
"""Rows of a row group, as an export makes it for messages of 1 KiB."""

SEGMENT_BYTES = 256 << 20
"""With this length, a store of half a million messages has several segments, which gives each thread work."""

AT_ONCE = 1000
"""Messages in one call."""

OPERATIONS = {
    "version": version,
    "read": read,
    "scan": scan,
    "export": export,
    "table": table,
    "fill": fill,
    "compact": compact,
    "verify": verify,
    "write": write,
}

if __name__ == "__main__":
    serve(OPERATIONS)
