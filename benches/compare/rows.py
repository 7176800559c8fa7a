"""The rows of the comparison: the work of each, its sides, and the ratios that the report prints.

A row is data. A new row needs no code, except if it measures in a new way. README.md describes the fields of a
specification.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Any

Spec = dict[str, Any]

PROCESSORS = os.cpu_count() or 1
"""Number of threads for a loop that uses the whole machine."""

JAVA_WARM_UP = 300_000
"""Messages that a JVM appends before the first round of a row, so that its code is compiled."""

SPIN = {"useReentrantLockWhenPutMessage": "false"}
"""RocketMQ's advice for one machine with few threads: spin for the put lock."""
WARMED = SPIN | {"warmMapedFileEnable": "true"}
"""The same, and the pages of each log file are made present and locked in memory before the first use."""


@dataclass(frozen=True)
class Contender:
    """One side of a row: its name in the table, the program that runs it, and its differences from the row's
    specification."""

    name: str
    driver: str
    """``rust`` (mqstore, limits), ``python`` (mqstore), ``peers`` (mqstore and other libraries), ``spark``, ``url``,
    ``java``."""
    spec: Spec = field(default_factory=dict)


@dataclass(frozen=True)
class Ratio:
    """A ratio that the report prints: the median of one side over the median of another, in one figure."""

    over: str
    under: str
    figure: str = "rate"
    under_figure: str = ""
    """The other side's figure, if it is a different one."""


@dataclass(frozen=True)
class Row:
    """One row of the comparison."""

    name: str
    title: str
    spec: Spec
    contenders: tuple[Contender, ...]
    ratios: tuple[Ratio, ...]
    figures: tuple[str, ...] = ("rate",)
    kind: str = "measure"
    """``measure``: one specification in each turn, in a new folder. ``prepared``: on a store of `filled` messages that
    all sides share. ``cold``: the same, dropped from memory before each turn. ``restart``: opens after a kill and after
    a close."""
    fill: str = "fill"
    """The operation that makes the shared store."""


OURS, JAVA, TUNED = "mqstore", "java", "java tuned"
LIMIT, COLD_LIMIT = "limit", "limit, absent pages"


def ours(name: str = OURS, **spec: Any) -> Contender:
    """Return mqstore as a side."""
    return Contender(name, "rust", {"side": "ours"} | spec)


def java(name: str = JAVA, options: dict[str, str] | None = None, **spec: Any) -> Contender:
    """Return RocketMQ as a side, with these settings of its `MessageStoreConfig`."""
    return Contender(name, "java", {"options": options or {}} | spec)


def limit(name: str, side: str, **spec: Any) -> Contender:
    """Return one of the machine's limits as a side."""
    return Contender(name, "rust", {"op": "limit", "side": side} | spec)


AGAINST_JAVA = (Ratio(OURS, JAVA), Ratio(OURS, TUNED))
"""The ratios to RocketMQ with its default and with its best configuration."""


def _append(name: str, body_bytes: int, messages: int, ratios: tuple[Ratio, ...], **more: int) -> Row:
    short = f", bursts of {more['burst']:,}" if more else ""
    return Row(
        f"burst-{name}" if more else f"append-{name}",
        f"append {_size(body_bytes)}, async, one thread{short}",
        {"body_bytes": body_bytes, "messages": messages, "warm_up": 20_000, "settle_ms": 3_000} | more,
        (
            ours(),
            java(),
            java(TUNED, WARMED),
            limit(LIMIT, "map", prefaulted=True),
            limit(COLD_LIMIT, "map"),
        ),
        ratios,
    )


def _burst(name: str, body_bytes: int, burst: int, ratios: tuple[Ratio, ...]) -> Row:
    """Appends of some 28 MB with a rest after each, in which pages are made ready and queues are built.

    A burst is smaller than the part that mqstore always has prepared. The speed at which the system provides memory for
    the log limits long runs on both sides. Bursts show the cost of an append itself.
    """
    return _append(name, body_bytes, 30 * burst, ratios, burst=burst, pause_ms=250)


def _size(body_bytes: int) -> str:
    return f"{body_bytes} B" if body_bytes < 1024 else f"{body_bytes // 1024} KiB"


def _sustained(name: str, body_bytes: int, messages: int) -> Row:
    return Row(
        f"sustained-{name}",
        f"append {_size(body_bytes)}, async, until queues and index are built",
        {
            "body_bytes": body_bytes,
            "messages": messages,
            "warm_up": 20_000,
            "settle_ms": 3_000,
            "until": "drained",
        },
        (ours(), java(), java(TUNED, WARMED)),
        AGAINST_JAVA,
    )


def _threads(name: str, body_bytes: int, messages: int) -> Row:
    return Row(
        f"threads-{name}",
        f"append {_size(body_bytes)}, async, several threads",
        {"body_bytes": body_bytes, "messages": messages, "warm_up": 20_000, "settle_ms": 3_000, "queues": 8},
        (
            ours(threads=1),
            ours("mqstore, 2 threads", threads=2),
            ours("mqstore, 8 threads", threads=8),
            java("java, 4 threads", threads=4),
            java("java tuned, 4 threads", WARMED, threads=4),
        ),
        (Ratio("mqstore, 2 threads", OURS), Ratio("mqstore, 8 threads", OURS)),
    )


def _rolling() -> Row:
    """Times each call, with segments so small that a new one begins about every 100 ms."""
    small = {"segment_bytes": 128 << 20}
    return Row(
        "rolling",
        "append 1 KiB, async, one thread, each call timed; segments of 128 MiB except where noted",
        {"messages": 600_000, "warm_up": 20_000, "settle_ms": 3_000, "latency": True, "options": small},
        (
            ours(),
            ours("mqstore, nothing prepared ahead", options=small | {"prewarm": False}),
            ours("mqstore, one segment of 1 GiB", options={}),
        ),
        (),
        figures=("rate", "p50_us", "p99_us", "p999_us", "p9999_us", "max_us"),
    )


def _sync(name: str, title: str, threads: int, messages: int, ratios: tuple[Ratio, ...]) -> Row:
    return Row(
        name,
        title,
        {
            "durability": "sync",
            "threads": threads,
            "messages": messages,
            # After these messages a store prewrites its full window.
            "warm_up": 2_000,
            # Files that are warmed or pre-written are ready by then.
            "settle_ms": 3_000,
            "latency": True,
            "queues": min(threads, 8),
        },
        (
            ours(),
            java(),
            java(TUNED, WARMED),
            limit(LIMIT, "sync"),
        ),
        ratios,
        figures=("rate", "p50_us", "p99_us"),
    )


OPEN_LOOP = Row(
    "open-loop",
    "1,000,000 messages of 1 KiB a second over 8 GiB, async; latency from when each was due",
    {"op": "open_loop", "rate": 1_000_000, "messages": 8 << 20, "warm_up": 20_000, "settle_ms": 1_000},
    (
        ours(),
        Contender("bare map, sync each 500 ms", "rust", {"side": "bare"}),
        java("java, closed loop", op="append", messages=1 << 20, latency=True),
    ),
    (
        Ratio(OURS, "bare map, sync each 500 ms", figure="p9999_us"),
        Ratio(OURS, "bare map, sync each 500 ms", figure="max_us"),
    ),
    figures=("rate", "p50_us", "p999_us", "p9999_us", "max_us", "device_bytes_per_log_byte"),
)

OPEN_LOOP_HALF = Row(
    "open-loop-half",
    "500,000 messages of 1 KiB a second over 4 GiB, async; latency from when each was due",
    OPEN_LOOP.spec | {"rate": 500_000, "messages": 4 << 20},
    OPEN_LOOP.contenders[:2],
    (),
    figures=OPEN_LOOP.figures,
)
"""The same at a rate that leaves capacity on two cores."""

RESTART = Row(
    "restart",
    "start with 3.56 GB of log, queues and index: after a kill, and after a close",
    # 2.92 million records of 1,218 bytes. The last 40 MB are not synced when the kill comes.
    {"op": "open", "messages": 2_922_800, "unflushed": 33_000},
    (ours(options={"flush_interval_ms": 3_600_000}), java()),
    (Ratio(OURS, JAVA, figure="after_kill_ms"),),
    figures=("after_kill_ms", "after_close_ms"),
    kind="restart",
)


def read_and_summed(name: str = LIMIT, **spec: Any) -> Contender:
    """Return a loop that reads the log by position and checksums every byte as a side."""
    return Contender(name, "rust", {"op": "verify", "side": "bare"} | spec)


def python(name: str = "mqstore, Python", **spec: Any) -> Contender:
    """Return mqstore's Python API as a side."""
    return Contender(name, "python", spec)


def _derive(name: str, body_bytes: int, messages: int, ratios: tuple[Ratio, ...]) -> Row:
    alone = {"op": "dispatch", "check_crc": True}
    queues = alone | {"index": False}
    return Row(
        f"dispatch-{name}",
        f"queues and index from a log of {_size(body_bytes)} bodies in memory",
        {"body_bytes": body_bytes, "filled": messages, "op": "derive"},
        (
            ours(options={"dispatch_threads": 1}),
            ours("mqstore, 2 threads", options={"dispatch_threads": 2}),
            java(),
            ours("dispatcher alone", op="dispatch"),
            ours("dispatcher alone, 2 threads", op="dispatch", threads=2),
            ours("queues only, checksums", **queues),
            ours("queues only, checksums, 2 threads", **queues, threads=2),
            Contender(LIMIT, "rust", {"side": "bare"} | queues),
        ),
        ratios,
        kind="prepared",
    )


def _visible(name: str, title: str, ratios: tuple[Ratio, ...], *contenders: Contender, **spec: Any) -> Row:
    return Row(
        name,
        title,
        {"op": "visible", "messages": 3_000, "pause_ms": 2} | spec,
        contenders,
        ratios,
        figures=("p50_us", "p99_us", "p999_us", "max_us"),
    )


def _scan(name: str, title: str, columns: list[str] | None) -> Row:
    return Row(
        f"scan-{name}",
        f"1,000,000 messages of 1 KiB to Arrow, {title}, in memory",
        {"op": "scan", "filled": 1_000_000, "messages": 1_000_000},
        (
            python(columns=columns),
            python("mqstore, Python, 2 threads", columns=columns, threads=2),
            read_and_summed(),
            read_and_summed("limit, 2 threads", threads=2),
        ),
        (),
        figures=("rate", "gb_per_s"),
        kind="prepared",
    )


def _compact(name: str, body_bytes: int, messages: int, queues: int, ratios: tuple[Ratio, ...]) -> Row:
    """Ten messages a key, in no order; the time of a call that keeps one of them, until that is durable."""
    return Row(
        f"compact-{name}",
        f"compaction of {messages:,} messages of {_size(body_bytes)}, ten a key, {queues} queue{'s' * (queues > 1)}",
        {
            "op": "compact",
            "body_bytes": body_bytes,
            "messages": messages,
            "keys": messages // 10,
            "queues": queues,
            "threads": min(queues, PROCESSORS),
        },
        (
            ours(),
            ours("mqstore, keys by MD5", confirm_keys=False),
            java(),
            Contender(LIMIT, "rust", {"side": "bare"}),
        ),
        ratios,
    )


INLINE, WORKERS = {"dispatch_threads": 0}, {"dispatch_threads": 2}

FINDING: tuple[Row, ...] = (
    _derive(
        "1k",
        1024,
        1_000_000,
        (
            Ratio(OURS, JAVA),
            Ratio("dispatcher alone, 2 threads", "dispatcher alone"),
            Ratio("queues only, checksums", LIMIT),
        ),
    ),
    _derive("100b", 100, 3_000_000, (Ratio("queues only, checksums", LIMIT),)),
    Row(
        "rebuild",
        "queues, index and checkpoint built from scratch for 3.56 GB of log, durable",
        {"op": "rebuild", "filled": 2_914_000},
        (ours(), java(op="derive")),
        (),
        figures=("taken_ms", "rate"),
        kind="prepared",
    ),
    Row(
        "verify",
        "all checks of a store of 3.56 GB, in memory",
        {"op": "verify", "filled": 2_914_000, "messages": 2_914_000},
        (ours(), read_and_summed(threads=PROCESSORS)),
        (),
        figures=("gb_per_s", "rate"),
        kind="prepared",
    ),
    Row(
        "verify-cold",
        "all checks of a store of 3.56 GB, from the disk",
        {"op": "verify", "filled": 2_914_000, "messages": 2_914_000},
        (ours(), read_and_summed(threads=PROCESSORS)),
        (Ratio(OURS, LIMIT, figure="gb_per_s"),),
        figures=("gb_per_s", "rate"),
        kind="cold",
    ),
    _scan("body", "the bodies", ["body"]),
    _scan(
        "numbers",
        "two offsets and the store time",
        ["queue_offset", "commit_log_offset", "store_timestamp"],
    ),
    _scan("all", "all columns", None),
    Row(
        "export-parquet",
        "1,000,000 messages of 1 KiB, all columns, into a Parquet file with zstd",
        {"op": "export", "filled": 1_000_000, "messages": 1_000_000},
        (python(), python("pyarrow's writer alone", pattern="bare")),
        (),
        kind="prepared",
    ),
    _visible(
        "visible",
        "from the start of an append until the same thread has read the message, idle store",
        (),
        ours("inline", options=INLINE),
        ours("workers", options=WORKERS),
        Contender(LIMIT, "rust", {"side": "bare"}),
        pattern="read",
    ),
    _visible(
        "wake",
        "from the start of an append until a waiting thread wakes, idle store",
        (
            Ratio("workers", "two threads alone", figure="p50_us"),
            Ratio("workers, 100,000 more wait", "workers", figure="p50_us"),
        ),
        ours("inline", options=INLINE),
        ours("workers", options=WORKERS),
        ours("workers, 100,000 more wait", options=WORKERS, waiters=100_000),
        Contender("two threads alone", "rust", {"side": "bare"}),
        pattern="wake",
        queues=100,
    ),
    Row(
        "read-sequential",
        "a queue of 1,000,000 messages of 1 KiB read in order, decoded, in memory",
        {"op": "read", "pattern": "sequential", "filled": 1_000_000, "messages": 1_000_000, "warm_up": 1_000_000},
        (ours(), python(), java(), java("java, not decoded", decode=False)),
        (Ratio(OURS, JAVA),),
        kind="prepared",
    ),
    Row(
        "read-cold",
        "the older 40 % of one of 100 queues of 60,000 messages of 1 KiB, in order, decoded, from the disk",
        # Segments that an open of RocketMQ has not read into memory.
        {"op": "read", "pattern": "sequential", "filled": 6_000_000, "queues": 100, "messages": 24_000},
        (ours(), python(), java()),
        (Ratio(OURS, JAVA),),
        kind="cold",
    ),
    Row(
        "read-random",
        "messages of 1 KiB at random offsets of a queue of 1,000,000, decoded, in memory",
        {"op": "read", "pattern": "random", "filled": 1_000_000, "messages": 1_000_000, "warm_up": 1_000_000},
        (
            ours(),
            ours("mqstore, 100 a call", batch=100),
            python(),
            python("mqstore, Python, 100 a call", batch=100),
            java(),
        ),
        (
            Ratio(OURS, JAVA),
            Ratio("mqstore, 100 a call", JAVA),
        ),
        kind="prepared",
    ),
    Row(
        "lookup",
        "messages of 1 KiB by key, 1,000,000 keys, in memory",
        {"op": "read", "pattern": "lookup", "filled": 1_000_000, "messages": 500_000, "warm_up": 500_000},
        (
            ours(),
            ours("mqstore, 10,000 keys", span=10_000),
            python(),
            java(decode=False),
            java("java, 10,000 keys", decode=False, span=10_000),
        ),
        (Ratio(OURS, JAVA), Ratio("mqstore, 10,000 keys", "java, 10,000 keys")),
        kind="prepared",
    ),
)
"""Rows that find messages, and rows that build queues and index."""

TABLES: tuple[Row, ...] = (
    _compact("1k", 1024, 1_000_000, 4, (Ratio(OURS, JAVA),)),
    _compact("1k-one", 1024, 1_000_000, 1, ()),
    _compact("100b", 100, 3_000_000, 4, ()),
    _compact("4k", 4096, 300_000, 4, (Ratio(OURS, JAVA),)),
    Row(
        "compact-feed",
        "1,000,000 messages of 1 KiB, ten a key, 4 queues: from the first append until all are in compaction files",
        {"op": "feed", "messages": 1_000_000, "keys": 100_000, "queues": 4, "threads": PROCESSORS},
        (ours(), java()),
        (Ratio(OURS, JAVA),),
    ),
    Row(
        "table-load",
        "a compacted topic of 1,000,000 keys and 100 B loaded as a table, in memory",
        {
            "op": "table",
            "body_bytes": 100,
            "filled": 1_000_000,
            "messages": 1_000_000,
            "queues": 4,
            "threads": PROCESSORS,
        },
        (python("messages in memory", pattern="memory"), python("messages on disk", pattern="disk")),
        (),
        kind="prepared",
        fill="table",
    ),
)
"""Topics as tables."""

QUEUES = Row(
    "queues-40k",
    "40,000 queues with 10 messages each: build, close, open; then 100 of them used: close, open; read all",
    {"op": "queues", "queues": 40_000, "messages": 400_000},
    (ours(),),
    (Ratio(OURS, OURS, figure="open_active_ms", under_figure="build_ms"),),
    figures=(
        "build_ms",
        "close_ms",
        "open_ms",
        "close_active_ms",
        "open_active_ms",
        "read_ms",
        "descriptors",
        "resident_mib",
    ),
)

ROWS: tuple[Row, ...] = (
    _burst("1k", 1024, 24_000, (*AGAINST_JAVA, Ratio(OURS, LIMIT))),
    _burst("100b", 100, 95_000, AGAINST_JAVA),
    _burst("4k", 4096, 6_600, AGAINST_JAVA),
    _append("1k", 1024, 1_000_000, (*AGAINST_JAVA, Ratio(OURS, LIMIT))),
    _append("100b", 100, 2_500_000, AGAINST_JAVA),
    _append("4k", 4096, 400_000, AGAINST_JAVA),
    _sustained("1k", 1024, 1_000_000),
    _sustained("100b", 100, 2_500_000),
    _threads("1k", 1024, 1_000_000),
    _threads("4k", 4096, 400_000),
    _rolling(),
    _sync("sync-1", "append 1 KiB, sync, one thread", 1, 4_000, (Ratio(OURS, LIMIT),)),
    _sync(
        "sync-16",
        "append 1 KiB, sync, 16 waiting threads",
        16,
        30_000,
        (*AGAINST_JAVA, Ratio(OURS, LIMIT)),
    ),
    _sync(
        "sync-64",
        "append 1 KiB, sync, 64 waiting threads",
        64,
        60_000,
        (*AGAINST_JAVA, Ratio(OURS, LIMIT)),
    ),
    Row(
        "inflight-64",
        "append 1 KiB, sync, 64 messages under way",
        {"durability": "sync", "messages": 64_000, "warm_up": 640, "settle_ms": 3_000, "batch": 64, "queues": 2},
        (
            ours(),
            ours("mqstore, 2 threads of 32", threads=2, batch=32),
            java(),
            java(TUNED, WARMED),
            limit(LIMIT, "sync"),
        ),
        (*AGAINST_JAVA, Ratio("mqstore, 2 threads of 32", JAVA)),
    ),
    Row(
        "pooled-1k",
        "append 1 KiB, pooled, one thread",
        {"durability": "pooled", "messages": 1_000_000, "warm_up": 20_000, "settle_ms": 3_000},
        # The run uses less than three buffers of a segment each. RocketMQ's default is five.
        (ours(), java(options={"transientStorePoolSize": "3"}), java(TUNED, SPIN | {"transientStorePoolSize": "3"})),
        AGAINST_JAVA,
    ),
    OPEN_LOOP,
    OPEN_LOOP_HALF,
    RESTART,
    *FINDING,
    *TABLES,
    QUEUES,
)
