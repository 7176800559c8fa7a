"""The rows of stores at URLs: times, requests and bytes, with a server with the interface of S3 on this machine."""

from __future__ import annotations

from typing import Any

from .rows import OURS, Contender, Ratio, Row, Spec

BARE = "obstore, not decoded"
FEW_TOPICS, MANY_TOPICS = 4, 100


def _url(name: str = OURS, **spec: Any) -> Contender:
    """Return a Python program with the server as a side."""
    return Contender(name, "url", dict(spec))


def url_rows(gigabytes: int) -> tuple[Row, ...]:
    """Return the rows, for a store with this many gigabytes of messages of 1 KiB."""
    messages = 820_000 * gigabytes

    def row(
        op: str,
        title: str,
        figures: tuple[str, ...],
        *more: Contender,
        topics: int = FEW_TOPICS,
        ratios: tuple[Ratio, ...] = (),
    ) -> Row:
        spec: Spec = {"op": op, "filled": messages, "messages": messages, "filler": "url", "queues": topics}
        whole = f"{gigabytes} GB of {topics} topics in a bucket on this machine: {title}"
        return Row(f"url-{op}", whole, spec, (_url(), *more), ratios, figures, kind="prepared")

    return (
        row(
            "scan",
            "all columns to Arrow, one process",
            ("gb_per_s", "requests", "mib"),
            _url(BARE, pattern="bare"),
            ratios=(Ratio(OURS, BARE, figure="gb_per_s"),),
        ),
        row("verify", "all checks", ("gb_per_s", "requests", "mib", "per_byte", "per_range")),
        row("open", "open, after a clean close", ("taken_ms", "requests", "mib")),
        row("lookup", "look-up of one key in the open store", ("taken_ms", "requests", "mib")),
        row(
            "count",
            "count of the messages of one topic in the open store",
            ("taken_ms", "requests", "mib", "per_entry"),
            topics=MANY_TOPICS,
        ),
    )
