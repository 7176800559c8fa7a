"""mqstore through its Python API: reads one JSON specification a line, answers with one JSON line, as the others do.

Operation ``read``, in the ways of README.md: every message is made as a `StoredMessage`; its fields are not asked for.
Operation ``scan``: every batch is taken and dropped. Operation ``export``: into a Parquet file beside the store.
Operation ``fill`` makes a store to be compacted: `messages` with `keys` keys in turn.
Operation ``table``: a compacted topic is loaded.
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
        except Exception as error:  # noqa: BLE001  (whoever measures is told and goes on)
            result = {"error": f"{type(error).__name__}: {str(error)[:2000]}"}
        print(json.dumps(result), flush=True)


def version(_spec: dict[str, Any]) -> dict[str, Any]:
    """Tell what is measured."""
    return {"version": mqstore.__version__}


def scan(spec: dict[str, Any]) -> dict[str, Any]:
    """Read the store as Arrow batches of some columns; None stands for all of them."""
    begin = time.perf_counter()
    with pa.RecordBatchReader.from_stream(
        mqstore.scan(spec["path"], columns=spec["columns"], threads=spec["threads"])
    ) as batches:
        found = sum(batch.num_rows for batch in batches)
    seconds = time.perf_counter() - begin
    rate = {"gb_per_s": spec["log_end"] / seconds / 1e9}
    return {"seconds": seconds, "messages": spec["messages"], "stored": found, "refused": 0} | rate


def export(spec: dict[str, Any]) -> dict[str, Any]:
    """Export the store to Parquet; the bare way writes batches that are in memory already."""
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
    """Copy the store; the log, which a compaction does not change, by links. A pattern with `first`: without the
    compaction files that its writer kept up, as a store is that nobody has compacted yet."""

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
    # The system would write the copy while what is measured syncs.
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
    """Check the store."""
    begin = time.perf_counter()
    found = mqstore.verify(spec["path"]).messages
    seconds = time.perf_counter() - begin
    return {"seconds": seconds, "messages": spec["messages"], "stored": found, "refused": 0}


def write(spec: dict[str, Any]) -> dict[str, Any]:
    """Append to a new store, a thousand messages a call, and have them durable."""
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
    """Return the numbers below `span` that the other programs take."""
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
    """Read messages at these offsets of a queue, so many a call."""
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
"""Rows of a group as an export makes them of messages of 1 KiB."""

SEGMENT_BYTES = 256 << 20
"""So that a store of half a million messages has several segments: who works by segments has work for each thread."""

AT_ONCE = 1000
"""Messages of a call."""

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
