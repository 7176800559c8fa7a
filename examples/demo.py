"""A tour of mqstore in about two minutes: half a million messages, lookups, a compaction on Spark, a full verify.

    python examples/demo.py [STORE]

STORE is a folder. If it is empty or missing, the demo creates a store in it and keeps the store. If it already contains
a store, the demo appends nothing to it. Without STORE, the demo uses a temporary folder and removes it. The demo needs
about 2 GB of disk space.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
import sys
import tempfile
import time
import zlib
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

import mqstore
import mqstore.spark

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

MIB = 1 << 20
BATCH = 1000
# Topic: queues, messages, approximate bytes of a body.
TOPICS = {"orders": (4, 200_000, 1300), "payments": (2, 100_000, 900), "clicks": (4, 150_000, 1400)}
# The compaction topic: a price list in which only the newest price of each article counts.
PRICES = "prices"
PRICE_QUEUES, PRICE_CHANGES, ARTICLES = 4, 80_000, 5_000

out = Console(highlight=False)


def main() -> int:
    """Runs the tour. Returns 0 if every comparison held."""
    keep = len(sys.argv) > 1
    path = Path(sys.argv[1]) if keep else Path(tempfile.mkdtemp(prefix="mqstore-demo-")) / "store"
    begun = time.perf_counter()
    try:
        held = tour(path)
    finally:
        if not keep:
            shutil.rmtree(path.parent)
    out.rule(f"{'everything held' if held else '[red]something did not hold[/]'}, {elapsed(begun)} in all")
    if keep:
        out.print(
            f"The store is in {path}: try [b]mqstore info {path}[/] or [b]mqstore cat {path} --limit 3[/]",
            soft_wrap=True,
        )
    return 0 if held else 1


def tour(path: Path) -> bool:
    """All steps on the store at ``path``."""
    fresh = not (path / "commitlog").exists()
    if fresh:
        sent = fill(path)
    else:
        out.rule(f"1  {path} holds a store already; nothing is written to its log")
        with mqstore.open(path) as store:
            sent = {topic: store.count(topic) for topic in store.topics()}
    held = reopen(path, sent) or not fresh
    look_up(path)
    if PRICES in sent:
        held = compact(path) and held
    else:
        out.rule(f"4  no topic {PRICES!r} here, so nothing is compacted")
    return verify(path) and held


# 1 -------------------------------------------------------------------------------------------------------------------


def fill(path: Path) -> dict[str, int]:
    """Writes the messages. Returns the number in each topic."""
    sent = {topic: messages for topic, (_, messages, _) in TOPICS.items()} | {PRICES: PRICE_CHANGES}
    out.rule(f"1  append {sum(sent.values()):,} messages to {path}")
    columns = TextColumn("{task.description:9}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    begun = time.perf_counter()
    with mqstore.open(path, "create") as store, Progress(*columns, console=out) as progress:
        for topic, (queues, messages, size) in TOPICS.items():
            store.create_topic(topic, queues=queues)
            shown = progress.add_task(topic, total=messages)
            for batch in batches(topic, messages, size):
                store.append_many(topic, batch)
                progress.advance(shown, len(batch))
        # RocketMQ's attribute for compaction: it allows `mqstore.compact` and brokers to remove old messages.
        store.create_topic(PRICES, queues=PRICE_QUEUES, attributes={"cleanup.policy": "COMPACTION"})
        shown = progress.add_task(PRICES, total=PRICE_CHANGES)
        for queue_id, batch in price_changes():
            store.append_many(PRICES, batch, queue_id=queue_id)
            progress.advance(shown, len(batch))
        appended = time.perf_counter() - begun
        store.flush()
        stats = store.stats()
    table = Table("what", "how much", show_header=False)
    table.add_row("messages", f"{stats.appends:,}")
    table.add_row("bytes of records", f"{stats.appended_bytes / MIB:,.0f} MiB")
    table.add_row("rate, with making them up in Python", f"{stats.appends / appended:,.0f} messages/s")
    table.add_row("flush to disk", elapsed(begun + appended))
    table.add_row("queues and index are built up to", f"{stats.dispatched_offset:,} of {stats.log_max_offset:,}")
    out.print(table)
    return sent


def batches(topic: str, messages: int, size: int) -> Iterator[list[mqstore.Message]]:
    """Messages as an application would send them."""
    chance = random.Random(topic)
    words = [f"{chance.getrandbits(64):016x}" for _ in range(size // 8)]
    for first in range(0, messages, BATCH):
        batch = []
        for number in range(first, min(first + BATCH, messages)):
            customer = f"C{chance.randrange(50_000):05}"
            start = chance.randrange(len(words) // 2)
            detail = " ".join(words[start : start + len(words) // 2 - chance.randrange(8)])
            body = f'{{"id":{number},"customer":"{customer}","cents":{chance.randrange(99_999)},"detail":"{detail}"}}'
            batch.append(
                mqstore.Message(
                    body.encode(),
                    keys=() if topic == "clicks" else (f"{topic[0].upper()}{number:07}", customer),
                    tags=chance.choice(("new", "paid", "shipped")),
                    properties={"region": chance.choice(("eu", "us", "ap"))},
                )
            )
        yield batch


def price_changes() -> Iterator[tuple[int, list[mqstore.Message]]]:
    """Prices by article. An empty body removes an article from the list. Each key always goes to the same queue."""
    chance = random.Random(PRICES)
    pending: list[list[mqstore.Message]] = [[] for _ in range(PRICE_QUEUES)]
    for number in range(PRICE_CHANGES):
        article = f"ART-{chance.randrange(ARTICLES):05}"
        price = {"article": article, "cents": chance.randrange(99_999), "change": number, "text": "x" * 500}
        body = b"" if chance.random() < 0.03 else json.dumps(price).encode()
        queue_id = zlib.crc32(article.encode()) % PRICE_QUEUES
        pending[queue_id].append(mqstore.Message(body, keys=article))
        if len(pending[queue_id]) == BATCH:
            yield queue_id, pending[queue_id]
            pending[queue_id] = []
    yield from enumerate(pending)


# 2, 3 ----------------------------------------------------------------------------------------------------------------


def reopen(path: Path, sent: dict[str, int]) -> bool:
    """Opens the store again and compares."""
    begun = time.perf_counter()
    with mqstore.open(path) as store:
        out.rule(f"2  open it again, read-only: {elapsed(begun)}")
        table = Table("topic", "queues", "expected", "in its queues", "read", "read rate")
        held = True
        for topic, expected in sent.items():
            begun = time.perf_counter()
            read = sum(1 for _ in store.read(topic))
            rate = f"{read / (time.perf_counter() - begun):,.0f}/s"
            found = store.count(topic)
            held = held and found == read == expected
            table.add_row(topic, str(len(store.queues(topic))), f"{expected:,}", f"{found:,}", f"{read:,}", rate)
    out.print(table)
    return held


def look_up(path: Path) -> None:
    """Finds messages by key and by time."""
    out.rule("3  look up by key")
    table = Table("key", "messages", "first one", "took")
    with mqstore.open(path) as store:
        for topic in store.topics():
            newest = next((message for message in store.read(topic) if message.keys), None)
            for key in () if newest is None else newest.keys:
                begun = time.perf_counter()
                found = list(store.lookup(topic, key))
                took = (time.perf_counter() - begun) * 1000
                first = f"{found[0].topic}/{found[0].queue_id} offset {found[0].queue_offset}"
                table.add_row(key, f"{len(found):,}", first, f"{took:.1f} ms")
    out.print(table)


# 4 -------------------------------------------------------------------------------------------------------------------


def compact(path: Path) -> bool:
    """Compacts the price list on Spark and compares the result with a dictionary, key by key."""
    out.rule(f"4  compact {PRICES!r} on Spark")
    expected: dict[str, bytes] = {}
    with mqstore.open(path) as store:
        for message in store.read(PRICES):
            if message.body:
                expected[" ".join(message.keys)] = message.body
            else:
                expected.pop(" ".join(message.keys), None)
    report, workers = on_spark(path) if has_java() else locally(path)
    table = Table("", "messages", "bytes")
    table.add_row("before", f"{report.messages_before:,}", f"{report.bytes_before / MIB:,.1f} MiB")
    table.add_row("after", f"{report.messages_after:,}", f"{report.bytes_after / MIB:,.1f} MiB")
    out.print(table)
    out.print(f"{report.keys:,} keys in {report.seconds:.1f} s")
    for pid, module in sorted(workers):
        out.print(f"  done by process {pid} (this one is {os.getpid()}) with {module}", soft_wrap=True)
    for reason in report.skipped:
        out.print(f"  [yellow]left out: {reason}[/]")
    # Tombstones stay for a day, so that slow readers see them.
    found = {key: body for key, body in compacted_files(path / "compaction") if body}
    wrong = [key for key in expected.keys() | found.keys() if expected.get(key) != found.get(key)]
    out.print(f"A dictionary holds {len(expected):,} articles, RocketMQ's files {len(found):,}: {len(wrong)} differ")
    return not wrong


def on_spark(path: Path) -> tuple[mqstore.CompactionReport, set[tuple[int, str]]]:
    """Compacts on Spark. Returns the report, and the worker processes with their library."""
    job_id = f"demo-{time.time_ns()}"
    begun = time.perf_counter()
    spark = session()
    out.print(f"Spark {spark.version} started in {elapsed(begun)}")
    try:
        report = mqstore.spark.compact(spark, path, topics=[PRICES], job_id=job_id)
    finally:
        spark.stop()
    details = mqstore.spark.job_details(path, job_id) or {"queues": []}
    return report, {(queue["worker"]["pid"], queue["worker"]["module"]) for queue in details["queues"]}


def locally(path: Path) -> tuple[mqstore.CompactionReport, set[tuple[int, str]]]:
    """Compacts in this process, which gives the same files."""
    out.print("[yellow]Spark needs Java 17 or newer, and there is none; this process does the same without Spark[/]")
    return mqstore.compact(path, topics=[PRICES], in_place=True), set()


def has_java() -> bool:
    """Whether Spark can find a Java."""
    home = os.environ.get("JAVA_HOME")
    return Path(home, "bin", "java").exists() if home else shutil.which("java") is not None


def session() -> SparkSession:
    """A Spark session on the processors of this machine."""
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[*]").appName("mqstore demo")
    quiet = {"spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.log.level": "ERROR"}
    for name, value in {"spark.driver.memory": "1g", **quiet}.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def compacted_files(folder: Path) -> Iterator[tuple[str, bytes]]:
    """Keys and bodies in RocketMQ's compaction files, read without mqstore, directly in Apache RocketMQ's format."""
    for entries in sorted((folder / "compactionCq" / PRICES).glob("*/*")):
        log = (folder / "compactionLog" / PRICES / entries.parent.name / entries.name).read_bytes()
        for position, size, _tags, _stored, _offset, messages, _, _ in struct.iter_unpack(
            ">qiqqqhii", entries.read_bytes()
        ):
            if position < 0 or messages == 0:
                break
            start = position - int(entries.name)
            record = log[start : start + size]
            (body_size,) = struct.unpack_from(">i", record, 84)
            body = record[88 : 88 + body_size]
            properties = record[88 + body_size + 1 + record[88 + body_size] + 2 :].decode()
            fields = dict(field.split("\x01", 1) for field in properties.split("\x02") if field)
            yield fields["KEYS"], body


# 5 -------------------------------------------------------------------------------------------------------------------


def verify(path: Path) -> bool:
    """Checks all files of the directory against each other."""
    begun = time.perf_counter()
    report = mqstore.verify(path)
    out.rule(f"5  verify the whole directory: {elapsed(begun)}")
    out.print(f"{report.messages:,} messages, {report.bytes / MIB:,.0f} MiB checked, {len(report.problems)} problems")
    for problem in report.problems[:10]:
        out.print(f"  [red]{problem.path} at {problem.offset}: {problem.detail}[/]")
    return report.ok


def elapsed(begun: float) -> str:
    """The time since ``begun``."""
    return f"{time.perf_counter() - begun:.1f} s"


if __name__ == "__main__":
    sys.exit(main())
