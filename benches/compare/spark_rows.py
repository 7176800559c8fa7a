"""The rows of Spark: mqstore's jobs and data source, compared with one process and with handwritten code."""

from __future__ import annotations

from .rows import Contender, Ratio, Row, Spec

OURS, ALONE = "mqstore on Spark", "mqstore, one process"
BY_WINDOW, EXPORT, STREAM = "log parsed in Python, window", "export on Spark", "stream, availableNow"
BY_HAND, FEW = "log parsed in Python", "mqstore on Spark, keys, place and body"
EXPORT_FEW = "export on Spark, keys, place and body"

FIRST = "mqstore on Spark, first compaction"
RANGED = "by ranges of hashes"

KEYS = 100_000
WRITTEN = 1_000_000


def spark(name: str = OURS, **spec: str | int) -> Contender:
    """Return a session of two threads as a side."""
    return Contender(name, "spark", dict(spec))


def alone(name: str = ALONE, **spec: str | int) -> Contender:
    """Return mqstore's Python API without Spark as a side."""
    return Contender(name, "python", dict(spec))


def spark_rows(records: int) -> tuple[Row, ...]:
    """Return the rows, for a store of this many messages of 1 KiB with 100,000 keys."""

    keyed = 2 * records

    def row(name: str, title: str, *contenders: Contender, ratios: tuple[Ratio, ...] = ()) -> Row:
        keys = min(KEYS, records)
        spec: Spec = {"op": name, "filled": records, "messages": records, "filler": "python", "keys": keys, "queues": 2}
        whole = f"{records:,} messages of 1 KiB, {keys:,} keys: {title}"
        return Row(f"spark-{name}", whole, spec, contenders, ratios, kind="prepared")

    return (
        row(
            "compact",
            "compaction",
            spark(FIRST, pattern="first"),
            spark(),
            alone("mqstore, one process, first compaction", pattern="first"),
            alone(),
            spark("log parsed in Python, max_by", pattern="max_by"),
            spark(BY_WINDOW, pattern="window"),
            ratios=(Ratio(FIRST, BY_WINDOW), Ratio(OURS, BY_WINDOW)),
        ),
        Row(
            "spark-ranged",
            f"{keyed:,} messages of 24 bytes in one queue, each with a key of its own: compaction",
            {"op": "compact", "filled": keyed, "messages": keyed, "filler": "python", "keys": keyed, "queues": 1}
            | {"body_bytes": 24},
            (spark(RANGED, pattern="ranged"), spark("one task", pattern="partition"), alone()),
            (Ratio(RANGED, ALONE),),
            kind="prepared",
        ),
        row(
            "read",
            "rows and bytes of bodies counted",
            spark(),
            spark("ready batches", pattern="bare"),
            spark(FEW, pattern="all-few"),
            spark("ready batches, keys, place and body", pattern="bare-few"),
            spark(BY_HAND, pattern="parsed"),
        ),
        row(
            "parquet",
            "into Parquet",
            spark(),
            spark(EXPORT, pattern="export"),
            spark(EXPORT_FEW, pattern="export-few"),
            alone(op="export"),
            spark(BY_HAND, pattern="parsed"),
            # What is parsed by hand are keys, places and bodies.
            ratios=(Ratio(EXPORT_FEW, BY_HAND),),
        ),
        row(
            "stream",
            "into nothing",
            spark(STREAM),
            spark("batch", pattern="batch"),
            ratios=(Ratio(STREAM, "batch"),),
        ),
        row("verify", "all checks", spark(), alone()),
        Row(
            "spark-first",
            "the first job of a new cluster of two executors: 50,000 messages verified",
            {"op": "first", "filled": 50_000, "messages": 50_000, "filler": "python", "keys": 50_000, "queues": 2},
            (spark("mqstore shipped", pattern="shipped"), spark("mqstore installed", pattern="installed")),
            (Ratio("mqstore shipped", "mqstore installed", figure="taken_ms"),),
            figures=("taken_ms",),
            kind="prepared",
        ),
        Row(
            "spark-write",
            f"{WRITTEN:,} rows of 1 KiB into a new store",
            {"op": "write", "messages": WRITTEN, "warm_up": 200_000},
            (spark(), spark("Parquet by Spark", pattern="parquet"), alone()),
            (),
        ),
    )
