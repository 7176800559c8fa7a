"""A store in a bucket of versitygw, a server with the interface of S3 for a folder, which runs on this machine.

Reads one JSON specification on each line and prints one JSON line, as all drivers. Each driver starts its own server
for the same folder. Operations:

- ``fill`` makes a store and copies it to the bucket.
- ``scan`` takes every batch and drops it. The bare way reads the same bytes with `obstore`, in ranges of the same
  length and as many at the same time.
- ``verify`` makes all checks.
- ``open``, ``lookup`` and ``count`` open the store, look up one key in it, and count the messages of one topic.

The result has the requests, with lists, and the MiB of their answers. `per_byte` are the bytes of the answers for each
byte of the files that were read, `per_range` the requests for each 8 MiB of these files, and `per_entry` the bytes
beyond the first 64 KiB for each 20 bytes of the topic's queues.
"""

from __future__ import annotations

import shutil
import sys
import time
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import obstore
import pyarrow as pa
from python_side import AT_ONCE, serve

import mqstore

ROOT = Path(__file__).resolve().parent.parent.parent
# The tests have the server and the counter of requests.
sys.path.insert(0, str(ROOT / "tests" / "python"))

from remote_stores import BUCKET, VERSITYGW, Bucket, Requests, versitygw, versitygw_bucket  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable

MIB = 1 << 20
RANGE_BYTES = 8 * MIB
RANGES = 3
"""Requests of a scan at the same time."""

URL = f"s3://{BUCKET}/store"
TOPIC = "topic-7"
SERVERS = ExitStack()


class Patch:
    """Replaces attributes until the process ends."""

    setattr = staticmethod(setattr)


@cache
def requests() -> Requests:
    """Return the counter of this process."""
    return Requests(Patch)


@cache
def server(folder: str) -> Bucket:
    """Return the server of this process, which shows this folder."""
    if versitygw() is None:
        reason = f"there is no versitygw on the PATH: go install {VERSITYGW}"
        raise RuntimeError(reason)
    return SERVERS.enter_context(versitygw_bucket(Path(folder)))


def fill(spec: dict[str, Any]) -> dict[str, Any]:
    """Make a store whose topics alternate in the log, and copy it to the bucket."""
    local = Path(spec["path"] + "-local")
    body = b"x" * spec["body_bytes"]
    topics = [f"topic-{number}" for number in range(spec["queues"])]
    with mqstore.open(local, "create") as store:
        for topic in topics:
            store.create_topic(topic, queues=1)
        for begin in range(0, spec["messages"], AT_ONCE):
            numbers = range(begin, min(begin + AT_ONCE, spec["messages"]))
            batch = [mqstore.Message(body, keys=f"order-{number:08}") for number in numbers]
            store.append_many(topics[begin // AT_ONCE % len(topics)], batch)
        log_bytes = store.stats().log_max_offset
    server(spec["path"]).upload(local, "store")
    shutil.rmtree(local)
    return {"messages": spec["messages"], "log_bytes": log_bytes}


def measured(spec: dict[str, Any], call: Callable[[], int]) -> dict[str, Any]:
    """Time a call, which returns the number of messages, and count its requests."""
    counter = requests()
    counter.taken()
    begin = time.perf_counter()
    found = call()
    seconds = time.perf_counter() - begin
    files = sum(counter.files.values())
    count, read = counter.taken()
    result = {"seconds": seconds, "messages": spec["messages"], "stored": found, "refused": 0, "files_bytes": files}
    return result | {"taken_ms": seconds * 1e3, "requests": count, "mib": read / MIB, "read_bytes": read}


def scan(spec: dict[str, Any]) -> dict[str, Any]:
    """Read all messages as Arrow batches, or all bytes of the log."""
    bucket = server(spec["path"])
    if spec["pattern"] == "bare":
        return bare(spec, bucket)

    def rows() -> int:
        with pa.RecordBatchReader.from_stream(mqstore.scan(URL, storage_options=bucket.options)) as batches:
            return sum(batch.num_rows for batch in batches)

    result = measured(spec, rows)
    return result | {"gb_per_s": spec["log_end"] / result["seconds"] / 1e9}


def bare(spec: dict[str, Any], bucket: Bucket) -> dict[str, Any]:
    """Read the bytes of the log."""
    store = obstore.store.from_url(URL, **bucket.options)
    begin = time.perf_counter()
    segments = sorted(found["path"] for part in obstore.list(store, "commitlog") for found in part)
    position, count, read = 0, 1, 0
    for path in segments:
        size = min(obstore.head(store, path)["size"], spec["log_end"] - position)
        for at in range(0, size, RANGES * RANGE_BYTES):
            starts = list(range(at, min(at + RANGES * RANGE_BYTES, size), RANGE_BYTES))
            ends = [min(start + RANGE_BYTES, size) for start in starts]
            parts = obstore.get_ranges(store, path, starts=starts, ends=ends, coalesce=0)
            read += sum(len(part) for part in parts)
            count += len(parts)
        position += size
    seconds = time.perf_counter() - begin
    if read != spec["log_end"]:
        reason = f"{read} of {spec['log_end']} bytes were read"
        raise RuntimeError(reason)
    result = {"seconds": seconds, "messages": spec["messages"], "stored": spec["messages"], "refused": 0}
    return result | {"requests": count, "mib": read / MIB, "gb_per_s": read / seconds / 1e9}


def verify(spec: dict[str, Any]) -> dict[str, Any]:
    """Verify the store."""
    options = server(spec["path"]).options
    result = measured(spec, lambda: mqstore.verify(URL, storage_options=options).messages)
    files = result["files_bytes"]
    shares = {"per_byte": result["read_bytes"] / files, "per_range": result["requests"] / (files / RANGE_BYTES)}
    return result | shares | {"gb_per_s": result["read_bytes"] / result["seconds"] / 1e9}


def open_(spec: dict[str, Any]) -> dict[str, Any]:
    """Open the store."""
    options = server(spec["path"]).options
    with ExitStack() as opened:
        result = measured(spec, lambda: opened.enter_context(mqstore.open(URL, storage_options=options)) is not None)
    return result | {"stored": spec["messages"]}


def lookup(spec: dict[str, Any]) -> dict[str, Any]:
    """Look up the key of one message in the open store."""
    with mqstore.open(URL, storage_options=server(spec["path"]).options) as store:
        key = f"order-{spec['messages'] // 2:08}"
        topic = f"topic-{spec['messages'] // 2 // AT_ONCE % spec['queues']}"
        result = measured(spec, lambda: len(list(store.lookup(topic, key))))
    if result["stored"] != 1:
        reason = f"{result['stored']} messages with the key were found"
        raise RuntimeError(reason)
    return result | {"stored": spec["messages"]}


def count(spec: dict[str, Any]) -> dict[str, Any]:
    """Count the messages of one topic in the open store."""
    with mqstore.open(URL, storage_options=server(spec["path"]).options) as store:
        call = measured(spec, lambda: store.count(TOPIC))
    entries = call["stored"]
    per_entry = max(0, call["read_bytes"] - (64 << 10)) / (20 * entries)
    return call | {"stored": spec["messages"] if entries > 0 else 0, "per_entry": per_entry}


OPERATIONS = {
    "fill": fill,
    "scan": scan,
    "verify": verify,
    "open": open_,
    "lookup": lookup,
    "count": count,
}

if __name__ == "__main__":
    with SERVERS:
        serve(OPERATIONS)
