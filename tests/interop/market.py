"""Directories that change their owner: mqstore writes, RocketMQ reads and appends, once for each version and test run.

All directories of a version are made together, because every clean shutdown of RocketMQ sleeps three seconds. Each test
then checks its own directory.
"""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mqstore

from .java_rows import KeyQuery, LogLine, OpenReport, Spec, message
from .scenarios import EDGE_SEGMENT, LONG_TOPICS, MIB, TAGS, edges, min_hash_keys, mixed, topic
from .shop import JavaAnswers, ask
from .writer import RESULT, append_arguments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from .driver import JavaStore
    from .shop import Shop

GEOMETRY: dict[str, Any] = {
    "segment_size": 2 * MIB,
    "queue_file_entries": 600,
    "index_slots": 3000,
    "index_entries": 12_000,
}
"""Small files in mqstore's options. `java_config` gives the same sizes to RocketMQ."""

TESTS = Path(__file__).resolve().parents[1]


@dataclass(frozen=True)
class Trade:
    """One directory: the messages that mqstore writes, and the options of both sides."""

    name: str
    topics: Mapping[str, int]
    specs: Callable[[], list[Spec]]
    options: Mapping[str, Any] = field(default_factory=dict)
    config: Mapping[str, Any] = field(default_factory=dict)
    """RocketMQ's configuration in addition to the geometry."""
    kill: bool = False
    """mqstore's process is killed after the last append instead of closing the store."""


@dataclass(slots=True)
class Traded:
    """The result of a trade."""

    trade: Trade
    path: Path
    specs: list[Spec]
    results: list[dict[str, Any]]
    report: OpenReport
    before: JavaAnswers
    """RocketMQ's answers about the messages of mqstore."""
    after: JavaAnswers
    """RocketMQ's answers after it appended."""
    java_puts: int
    close_logs: list[LogLine] = field(default_factory=list)


def java_config(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return RocketMQ's configuration for these options of mqstore."""
    merged = GEOMETRY | dict(options)
    return {
        "mappedFileSizeCommitLog": merged["segment_size"],
        "mappedFileSizeConsumeQueue": 20 * merged["queue_file_entries"],
        "maxHashSlotNum": merged["index_slots"],
        "maxIndexNum": merged["index_entries"],
    }


def opened(shop: Shop, version: str, path: Path, topics: Sequence[Spec]) -> JavaStore:
    """Return the directory as a store of RocketMQ."""
    return shop.session(version).open(path, config=java_config({}), topics=topics)


def bounds(java: JavaStore) -> dict[tuple[str, int], tuple[int, int]]:
    """Return the bounds of the queues with messages, as RocketMQ sees them."""
    return {
        (each.topic, each.queue_id): (each.min_offset, each.max_offset)
        for each in java.read().queues
        if each.max_offset > 0
    }


def _bulk() -> list[Spec]:
    return mixed(BULK, 20_480, "ours")


def _sizes() -> list[Spec]:
    sizes = [0, 1, 2, 0, 127, 128, 4095, 4096, 65_535, 4 * MIB, 0, 4 * MIB, MIB, 4 * MIB - 1, 4 * MIB, 33]
    return [message("sizes", (f"size{n}", size)) for n, size in enumerate(sizes)]


def _edges() -> list[Spec]:
    """Records are 20 bytes longer than plain ones, because of the property CRC."""
    return edges(91 + len("edges") + len("UNIQ_KEY") + 34 + len("KEYS") + len("edge") + 2 + 20)


def _text() -> list[Spec]:
    words = ["a", "ß", "Ünïcödé", "日本語テキスト", "😀🔑👩‍👩‍👧", "\u0301e", "a\tb", 'q"\\', "x" * 500, "\U0010ffff"]
    specs = [
        message(
            "text",
            f"{w}|{o}".encode(),
            queue_id=n % 3,
            keys=[w.replace("\t", "-"), o.replace("\t", "-")],
            tags=o,
            properties={f"name {w}": o},
        )
        for n, w in enumerate(words)
        for o in words
    ]
    return specs + [message("text", b"m", keys=[key]) for key in min_hash_keys("text")]


BULK = {"orders": 4, "payments": 2, "audit": 1, "events-of_the|day": 8}
FEW = {"few": 2}
INDEX_TAGS = mqstore.BrokerOptions(index_tags=True)
SMALL_POOL = mqstore.BrokerOptions(pool_size=64 << 10)

TRADES = {
    trade.name: trade
    for trade in (
        Trade("bulk", BULK, _bulk),
        Trade("sizes", {"sizes": 1}, _sizes, {"segment_size": 16 * MIB}),
        Trade("edges", {"edges": 1}, _edges, {"segment_size": EDGE_SEGMENT}),
        Trade("text", {"text": 3}, _text),
        Trade("long_topics", LONG_TOPICS, lambda: mixed(LONG_TOPICS, 600, "long")),
        Trade("no_record_crc", FEW, lambda: mixed(FEW, 1500, "nocrc"), {"record_crc": False}),
        # RocketMQ then checks each record by its property CRC, and refuses records without one.
        Trade(
            "record_crc",
            FEW,
            lambda: mixed(FEW, 1500, "crc"),
            {},
            {"enabledAppendPropCRC": True, "forceVerifyPropCRC": True},
        ),
        *(
            Trade(kind, {"sizes": 1}, _sizes, {"segment_size": 16 * MIB, "compression": kind})
            for kind in ("zstd", "lz4", "zlib")
        ),
        Trade("ipv6", FEW, lambda: mixed(FEW, 500, "v6"), {"store_host": "[2001:db8::5]:10911"}),
        Trade("sync", FEW, lambda: mixed(FEW, 400, "sync"), {"durability": "sync"}, {"flushDiskType": "SYNC_FLUSH"}),
        Trade("pooled", FEW, lambda: mixed(FEW, 1500, "pooled"), {"durability": "pooled", "advanced": SMALL_POOL}),
        Trade("manual", FEW, lambda: mixed(FEW, 1500, "manual"), {"durability": "manual"}),
        Trade("index_tags", FEW, lambda: mixed(FEW, 1500, "tags"), {"advanced": INDEX_TAGS}),
        Trade("killed", FEW, lambda: mixed(FEW, 2500, "kill"), {}, kill=True),
    )
}


class Market:
    """Makes the trades that the collected tests need, all of a version together."""

    def __init__(self, shop: Shop, wanted: Mapping[str, AbstractSet[str]]) -> None:
        """Prepare. `wanted` names the trades of each version."""
        self.shop = shop
        self.wanted = wanted
        self._traded: dict[tuple[str, str], Traded | Exception] = {}

    def traded(self, version: str, name: str) -> Traded:
        """Return a directory after both sides used it. A failure on the way is raised here, only for the test of this
        trade."""
        if (version, name) not in self._traded:
            wanted = {name, *self.wanted.get(version, ())}
            names = sorted(each for each in wanted if (version, each) not in self._traded)
            stores: list[JavaStore] = []
            for each in names:
                try:
                    self._traded[version, each] = self._trade(version, TRADES[each], stores)
                except Exception as error:
                    self._traded[version, each] = error
            self.shop.session(version).close_stores(stores)
        traded = self._traded[version, name]
        if isinstance(traded, Exception):
            raise traded
        return traded

    def _trade(self, version: str, trade: Trade, stores: list[JavaStore]) -> Traded:
        path = self.shop.root / version / f"trade-{trade.name}"
        specs = trade.specs()
        results = write(path, trade, specs)
        topics = {name: topic(count) for name, count in trade.topics.items()}
        java = self.shop.session(version).open(
            path, config={**java_config(trade.options), **trade.config}, topics=topics
        )
        stores.append(java)
        before = ask(java)
        extra = mixed(trade.topics, 400, "java")
        java.put(extra)
        after = ask(java, seed="after")
        if trade.options.get("advanced") == INDEX_TAGS and version >= "5.5":
            queries = [KeyQuery(name, tag, kind="T") for name in trade.topics for tag in TAGS if tag]
            after.keys += list(zip(queries, java.look_up(queries), strict=True))
        return Traded(trade, path, specs, results, java.report, before, after, len(extra))


def write(path: Path, trade: Trade, specs: Sequence[Spec]) -> list[dict[str, Any]]:
    """Let mqstore write a directory. Every second message goes through `append_many` if its neighbours allow it."""
    options = GEOMETRY | dict(trade.options)
    if trade.kill:
        with mqstore.open(path, "create", **options) as store:
            make_topics(store, trade.topics)
        return append_and_kill(path, specs, options)
    with mqstore.open(path, "create", **options) as store:
        make_topics(store, trade.topics)
        results = [row(store.append(**append_arguments(spec))) for spec in specs[: len(specs) // 2]]
        rest = list(enumerate(specs[len(specs) // 2 :]))
        later: dict[int, dict[str, Any]] = {}
        for name, queue_id in dict.fromkeys((spec["topic"], spec.get("queue_id", 0)) for _, spec in rest):
            members = [(n, spec) for n, spec in rest if (spec["topic"], spec.get("queue_id", 0)) == (name, queue_id)]
            for start in range(0, len(members), 100):
                some = members[start : start + 100]
                batch = [as_message(spec) for _, spec in some]
                appended = store.append_many(name, batch, queue_id=queue_id)
                later.update((n, row(result)) for (n, _), result in zip(some, appended, strict=True))
    return results + [later[n] for n, _ in rest]


def make_topics(store: mqstore.Store, topics: Mapping[str, int]) -> None:
    """Create topics with their numbers of queues."""
    for name, queues in topics.items():
        store.create_topic(name, queues)


def as_message(spec: Spec) -> mqstore.Message:
    """Return a specification as a `Message`."""
    arguments = append_arguments(spec)
    del arguments["topic"], arguments["queue_id"]
    return mqstore.Message(**arguments)


def row(result: mqstore.AppendResult) -> dict[str, Any]:
    """Return an append result as the child process prints it."""
    return {name: getattr(result, name) for name in RESULT}


def append_and_kill(
    path: Path,
    specs: Iterable[Spec],
    options: Mapping[str, Any],
    *,
    after: int | None = None,
) -> list[dict[str, Any]]:
    """Append in a child process and kill it with SIGKILL after this many acknowledgements, by default after all.

    Returns every acknowledgement of the child, also those between the last expected one and the kill.
    """
    lines = [json.dumps(spec).encode() + b"\n" for spec in specs]
    wanted = len(lines) if after is None else after
    paths = filter(None, (str(TESTS), os.environ.get("PYTHONPATH")))
    with tempfile.TemporaryFile() as stdin:
        stdin.writelines(lines)
        stdin.seek(0)
        process = subprocess.Popen(
            [sys.executable, "-m", "interop.writer", str(path), json.dumps(dict(options))],
            stdin=stdin,
            stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        )
    with process:
        assert process.stdout is not None
        try:
            acks = list(itertools.islice(process.stdout, wanted))
        finally:
            process.kill()
        acks += process.stdout
    assert len(acks) >= wanted, f"mqstore's process ended by itself with status {process.returncode}"
    # The kill may have cut the last line.
    return [json.loads(ack) for ack in acks if ack.endswith(b"\n")]


def count_by_queue(results: Iterable[Mapping[str, Any]]) -> Counter[tuple[str, int]]:
    """Return the number of appends to each queue."""
    return Counter((each["topic"], each["queue_id"]) for each in results)
