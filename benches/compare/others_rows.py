"""The rows with other logs, without their brokers: Kafka's with its cleaner, and that of RocketMQ's Rust port."""

from __future__ import annotations

from .rows import OURS, PROCESSORS, Contender, Ratio, Row, ours

KAFKA, PORT = "kafka", "rust port"


def kafka() -> Contender:
    """Return Kafka's log as a side."""
    return Contender(KAFKA, "kafka", {})


def port() -> Contender:
    """Return the Rust port's commit log as a side."""
    return Contender(PORT, "port", {})


def _append(name: str, title: str, others: tuple[Contender, ...], **spec: str | int) -> Row:
    work = {"body_bytes": 1024, "settle_ms": 3_000} | spec
    ratios = tuple(Ratio(OURS, other.name) for other in others)
    return Row(f"others-{name}", f"append 1 KiB, one thread, {title}", work, (ours(), *others), ratios)


OTHERS_ROWS: tuple[Row, ...] = (
    _append("append", "one a call, as durable as the process", (kafka(), port()), messages=1_000_000, warm_up=20_000),
    _append(
        "append-many",
        "a thousand a call, as durable as the process",
        (kafka(),),
        messages=1_000_000,
        warm_up=20_000,
        batch=1_000,
    ),
    _append(
        "sync",
        "one a call, synced before it returns",
        (kafka(), port()),
        messages=3_000,
        warm_up=300,
        durability="sync",
    ),
    Row(
        "others-compact",
        "compaction of 1,000,000 messages of 1 KiB, ten a key, 4 queues",
        {
            "op": "compact",
            "body_bytes": 1024,
            "messages": 1_000_000,
            "keys": 100_000,
            "queues": 4,
            "threads": min(4, PROCESSORS),
        },
        (ours(options={"compaction_feed": False}), kafka()),
        (Ratio(OURS, KAFKA),),
    ),
)
