"""The rows of Spark: mqstore's jobs and data source beside one process, and beside what is written by hand today."""

from __future__ import annotations

from .rows import Contender, Row, Spec

OURS, ALONE = "mqstore on Spark", "mqstore, one process"

KEYS = 100_000
WRITTEN = 1_000_000


def spark(name: str = OURS, **spec: str | int) -> Contender:
    """Return a session of two threads as a side."""
    return Contender(name, "spark", dict(spec))


def alone(name: str = ALONE, **spec: str | int) -> Contender:
    """Return mqstore's Python API without Spark as a side."""
    return Contender(name, "python", dict(spec))


def spark_rows(records: int) -> tuple[Row, ...]:
    """Return the rows, on a store of so many messages of 1 KiB with 100,000 keys."""

    def row(name: str, title: str, *contenders: Contender, figures: tuple[str, ...] = ("rate",)) -> Row:
        keys = min(KEYS, records)
        spec: Spec = {"op": name, "filled": records, "messages": records, "filler": "python", "keys": keys, "queues": 2}
        whole = f"{records:,} messages of 1 KiB, {keys:,} keys: {title}"
        return Row(f"spark-{name}", whole, spec, contenders, (), figures=figures, kind="prepared")

    return (
        row(
            "compact",
            "compaction",
            spark(),
            alone(),
            spark("log parsed in Python, max_by", pattern="max_by"),
            spark("log parsed in Python, window", pattern="window"),
        ),
        row("read", "rows and bytes of bodies counted", spark(), spark("ready batches", pattern="bare")),
        row("parquet", "into Parquet", spark(), spark("export on Spark", pattern="export"), alone(op="export")),
        row("stream", "into nothing", spark("stream, availableNow"), spark("batch", pattern="batch")),
        row("verify", "all checks", spark(), alone()),
        Row(
            "spark-write",
            f"{WRITTEN:,} rows of 1 KiB into a new store",
            {"op": "write", "messages": WRITTEN, "warm_up": 200_000},
            (spark(), spark("Parquet by Spark", pattern="parquet"), alone()),
            (),
        ),
    )
