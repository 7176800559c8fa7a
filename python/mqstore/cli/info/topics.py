"""The topics of a store, one line for each: `mqstore topics`."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import mqstore
from mqstore._read.table import expire_after_of
from mqstore._reports import _Report
from mqstore.cli import render


@dataclass(frozen=True, slots=True)
class TopicSummary(_Report):
    """A topic with its messages."""

    topic: str
    queues: int
    """Number of queues."""
    messages: int
    """Number of offsets in all queues; with gaps in a queue there are fewer messages."""
    min_store_timestamp: int | None
    """Store time of the first message, in epoch milliseconds; None without messages."""
    max_store_timestamp: int | None
    """Store time of the last message, in epoch milliseconds; None without messages."""
    expire_after_seconds: float | None
    """Time after which a value of the key table expires, in seconds; None if values do not expire."""
    bytes: int | None
    """Bytes of its records in the commit log; None without `--sizes`."""


def summaries(store: mqstore.Store, *, sizes: bool) -> list[TopicSummary]:
    """Returns the topics, sorted by name. With `sizes` it reads the whole commit log."""
    counted = _record_bytes(store) if sizes else None
    return [_summary(store, topic, None if counted is None else counted[topic]) for topic in store.topics()]


def print_summaries(found: list[TopicSummary]) -> None:
    """Prints topics for people; columns without a value are omitted."""
    titles = {"min_store_timestamp": "first stored", "max_store_timestamp": "last stored"}
    rare = {"expire_after_seconds": "expire after", "bytes": "bytes"}
    titles |= {name: title for name, title in rare.items() if any(getattr(one, name) is not None for one in found)}
    render.listing(found, "topic", "queues", "messages", *titles, **titles)


def _summary(store: mqstore.Store, topic: str, size: int | None) -> TopicSummary:
    queues = store.queues(topic)
    firsts = [one.min_store_timestamp for one in queues if one.min_store_timestamp is not None]
    lasts = [one.max_store_timestamp for one in queues if one.max_store_timestamp is not None]
    after = expire_after_of(store, topic)
    return TopicSummary(
        topic,
        len(queues),
        sum(one.count for one in queues),
        min(firsts, default=None),
        max(lasts, default=None),
        None if after is None else after.total_seconds(),
        size,
    )


def _record_bytes(store: mqstore.Store) -> Counter[str]:
    counted: Counter[str] = Counter()
    for message in store._scan_log(on_damage="skip"):
        counted[message.topic] += message.size
    return counted
