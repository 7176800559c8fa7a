"""An archive in a folder: `python -m benches.archive [FOLDER] [--gigabytes 2] [--reads 1000] [--rounds 1]`.

It makes a store with JSON messages of about 1 KB in four queues, and measures:

- the rate and the ratio of a run of the archive, alternately with `tar | zstd -3 -T2` over the same segments;
- a restore, whose segments are compared with the originals byte by byte;
- DuckDB's count by hour over the archive, and over the JSON lines of a tenth of the messages;
- reads of messages that are only in the archive: single ones at random offsets with their requests and bytes, look-ups
  of keys, and whole passes.

Before each part, the pages of its files leave the page cache. At most 2.3 times `--gigabytes` are on the disk.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import mqstore
from mqstore import _native
from mqstore._publish import place as places

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "python"))
from python_folders import Directory, with_directories

QUEUES = 4
AT_ONCE = 1000
TEXTS: list[str] = []
WORDS = [f"{random.Random(number).getrandbits(40):x}" for number in range(400)]
TOPIC = "orders"
TEXTS_COUNT = 20_000


class Requests:
    """Counts the requests and the bytes of all reads of archives in folders."""

    def __init__(self) -> None:
        self.requests = self.bytes = 0
        plain = Directory.read

        def read(target: Directory, ranges: Any) -> list[bytes]:
            found = plain(target, ranges)
            self.requests += len(found)
            self.bytes += sum(map(len, found))
            return found

        Directory.read = read  # type: ignore[method-assign]
        places._transport_of = with_directories(places._transport_of)

    def taken(self) -> tuple[int, int]:
        """Return requests and bytes since the last call."""
        found = self.requests, self.bytes
        self.requests = self.bytes = 0
        return found


def body(chance: random.Random, number: int) -> bytes:
    """Return a JSON document of about 1 KB."""
    return json.dumps({"id": number, "text": chance.choice(TEXTS)}).encode()


def fill(home: Path, size: int) -> int:
    """Make the store, and return the number of its messages."""
    chance = random.Random(1)
    # A page of a file has 64 of them, and the window of zstd 2,000.
    TEXTS.extend(" ".join(chance.choices(WORDS, k=85)) for _ in range(TEXTS_COUNT))
    options = mqstore.StoreOptions(segment_size=256 << 20)
    with mqstore.open(home, "create", options=options) as store:
        store.create_topic(TOPIC, queues=QUEUES)
        start = 0
        while store.stats().log_max_offset < size:
            numbers = range(start, start + AT_ONCE)
            keys = [f"order-{number}" for number in numbers]
            bodies = [body(chance, number) for number in numbers]
            store.append_batch(TOPIC, bodies, keys, "paid", queue_id=start // AT_ONCE % QUEUES)
            start += AT_ONCE
        return start


def forget(folder: Path) -> int:
    """Remove the files of a folder from the page cache, and return their bytes."""
    total = 0
    for path in folder.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            total += path.stat().st_size
    return total


def single(store: mqstore.Store, cold: Path, counter: Requests, reads: int) -> None:
    """Read single messages, with footers and page indexes in memory."""
    chance = random.Random(2)
    limits = [(queue.queue_id, queue.min_offset) for queue in store.queues(TOPIC)]
    began = time.perf_counter()
    _native.read_archive_footers(store)
    requests, read = counter.taken()
    print(f"footers: {time.perf_counter() - began:.2f} s, {requests} requests, {read / 1e6:.1f} MB")
    forget(cold)
    times, counts, sizes = [], [], []
    for _ in range(reads):
        queue_id, low = chance.choice(limits)
        offset = chance.randrange(low)
        began = time.perf_counter()
        message = next(iter(store.read(TOPIC, queue_id, offset)))
        times.append(1e3 * (time.perf_counter() - began))
        if (message.queue_id, message.queue_offset) != (queue_id, offset):
            raise SystemExit(f"the read of {queue_id}/{offset} returned {message!r}")
        requests, read = counter.taken()
        counts.append(requests)
        sizes.append(read / 1024)
    times.sort()
    print(
        f"{reads} random reads: requests at most {max(counts)}, KiB mean {statistics.mean(sizes):.1f} and at most "
        f"{max(sizes):.1f}, ms p50 {times[len(times) // 2]:.2f} and p99 {times[len(times) * 99 // 100]:.2f}"
    )


def look_ups(store: mqstore.Store, counter: Requests, messages: int, count: int) -> None:
    """Look up keys: the first one reads the Bloom filters."""
    chance = random.Random(3)
    for name in ("first look-up", *["look-up"] * count):
        key = f"order-{chance.randrange(messages * 3 // 4)}"
        began = time.perf_counter()
        found = len(list(store.lookup(TOPIC, key)))
        requests, read = counter.taken()
        took = 1e3 * (time.perf_counter() - began)
        print(f"{name}: {found} found, {took:.1f} ms, {requests} requests, {read / 1e6:.2f} MB")


def passes(home: Path, cold: Path, counter: Requests, past: int) -> None:
    """Read all messages of the archive, in several ways."""
    with mqstore.open(home) as store:
        low = store.queues(TOPIC)[1].min_offset
        scans = {
            "read of one queue": lambda: sum(1 for _ in store.read(TOPIC, 1, end=low)),
            "scan of all columns": lambda: sum(batch.num_rows for batch in store.scan()),
        }
        for name, call in scans.items():
            forget(cold)
            counter.taken()
            began = time.perf_counter()
            found = call()
            taken = time.perf_counter() - began
            requests, read = counter.taken()
            print(f"{name}: {found:,} messages, {found / taken:,.0f}/s, {requests} requests, {read / 1e6:.0f} MB")
    print(f"bytes of the log before its start: {past / 1e6:.0f} MB")


def archive(home: Path, cold: Path) -> mqstore.ArchiveReport:
    """Archive all full segments of a store whose pages are not in memory."""
    forget(home)
    with mqstore.open(home) as store:
        report = store.archive.run_to(cold)
    forget(cold)
    return report


def tar(home: Path, file: Path, segments: int) -> float:
    """Compress the first segments of the log into a file, and return the seconds."""
    forget(home)
    names = [path.name for path in sorted((home / "commitlog").iterdir())][:segments]
    began = time.perf_counter()
    with (
        file.open("wb") as out,
        subprocess.Popen(["tar", "-C", home / "commitlog", "-c", *names], stdout=subprocess.PIPE) as packed,
    ):
        subprocess.run(["zstd", "-q", "-3", "-T2"], stdin=packed.stdout, stdout=out, check=True)
        os.fsync(out.fileno())
    if packed.returncode:
        raise SystemExit("tar failed")
    return time.perf_counter() - began


def runs(home: Path, folder: Path, rounds: int) -> None:
    """Archive the log and pack it with tar and zstd, in turn."""
    for number in range(rounds):
        cold, file = folder / f"cold{number}", folder / "log.tar.zst"
        report = archive(home, cold)
        rate, ratio = report.record_bytes / report.seconds / 1e6, report.record_bytes / forget(cold)
        print(f"archive: {report.records:,} records, {rate:.0f} MB/s, {report.files} files, ratio {ratio:.2f}")
        seconds = tar(home, file, report.segments)
        packed = report.record_bytes / file.stat().st_size
        print(f"tar | zstd -3 -T2: {report.record_bytes / seconds / 1e6:.0f} MB/s, ratio {packed:.2f}")
        file.unlink()
        shutil.rmtree(cold)


def restore(home: Path, cold: Path, target: Path) -> None:
    """Restore the archive and compare its segments with those of the store."""
    began = time.perf_counter()
    report = mqstore.Archive(cold).restore(target)
    seconds = time.perf_counter() - began
    restored = sorted((target / "commitlog").iterdir())
    same = sum(filecmp.cmp(path, home / "commitlog" / path.name, shallow=False) for path in restored)
    if not report.identical or same != len(restored) or same != report.segments:
        raise SystemExit(f"{same} of {len(restored)} restored segments have the bytes of the log")
    print(f"restore: {same} segments with the same bytes, {report.records / seconds:,.0f} records/s")
    shutil.rmtree(target)


def counts(home: Path, cold: Path, lines: Path, messages: int) -> None:
    """Count the messages of each hour over the archive, and over JSON lines of a tenth of them."""
    import duckdb

    archived = [path for path in cold.rglob("*.parquet") if "topic=" in str(path)]
    with mqstore.open(home) as store:
        tenth = next(iter(store.read(TOPIC, 0, store.queues(TOPIC)[0].max_offset // 10)))
    report = mqstore.export(home, lines, end_time=tenth.store_timestamp)
    files = ", ".join(repr(str(path)) for path in archived)
    query = "select date_trunc('hour', {time}) as hour, count(*) from {rows} group by hour"
    members = "{topic: 'VARCHAR', store_timestamp: 'BIGINT'}"
    sides = {
        "archive": query.format(time="store_timestamp", rows=f"read_parquet([{files}])"),
        "JSON lines": query.format(
            time="make_timestamp(store_timestamp * 1000)",
            rows=f"read_json('{lines}', format='newline_delimited', columns={members}) where topic is not null",
        ),
    }
    rates: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(3):
        for name, text in sides.items():
            forget(cold)
            forget(lines.parent)
            began = time.perf_counter()
            found = sum(row[1] for row in duckdb.sql(text).fetchall())
            rates[name].append(found / (time.perf_counter() - began))
    for name, values in rates.items():
        low, high = min(values), max(values)
        print(f"count by hour, {name}: {statistics.median(values):,.0f} messages/s ({low:,.0f} to {high:,.0f})")
    print(f"ratio {statistics.median(rates['archive']) / statistics.median(rates['JSON lines']):.0f}")
    print(f"{report.messages:,} of {messages:,} messages as JSON lines: {lines.stat().st_size / 1e6:.0f} MB")
    lines.unlink()


def main() -> None:
    """Run all parts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, help="a folder on the disk to measure")
    parser.add_argument("--gigabytes", type=float, default=2, help="bytes of the log")
    parser.add_argument("--reads", type=int, default=1000, help="random reads")
    parser.add_argument("--rounds", type=int, default=1, help="runs of the archive and of tar")
    arguments = parser.parse_args()
    counter = Requests()
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        home, cold = folder / "store", folder / "cold"
        messages = fill(home, int(arguments.gigabytes * 1e9))
        runs(home, folder, arguments.rounds)
        with mqstore.open(home, "rw") as store:
            store.archive.configure(cold)
            store.archive.run()
        restore(home, cold, folder / "restored")
        (folder / "lines").mkdir()
        counts(home, cold, folder / "lines/some.jsonl", messages)
        with mqstore.open(home, "rw", retention_bytes=1) as store:
            store.expire()
            past = store.stats().log_min_offset
        forget(cold)
        counter.taken()
        with mqstore.open(home) as store:
            single(store, cold, counter, arguments.reads)
            look_ups(store, counter, messages, 3)
        passes(home, cold, counter, past)


if __name__ == "__main__":
    main()
