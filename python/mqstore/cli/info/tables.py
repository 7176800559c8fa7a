"""The tables of `info` and `topics`, for people, and the JSON form of a topic."""

from __future__ import annotations

from typing import Any

import mqstore
from mqstore._admin.tables import size
from mqstore.cli import render
from mqstore.cli.info import waiting
from mqstore.cli.render import Format

# Parts of `info` with their own tables or notes.
_IN_TABLES = (
    "hours", "topics", "parts", "disk", "consumers", "popped", "delayed", "work_queues", "undecided",
    "segments_kept_by", "dledger", "notes",
)  # fmt: skip


def info_tables(report: mqstore.StoreInfo) -> None:
    """Prints the tables of a store."""
    facts = report.to_dict()
    tables = {name: facts.pop(name) for name in _IN_TABLES}
    queues = next((part.bytes for part in report.disk if part.part == "consumequeue"), 0)
    fill = f"{100 * report.queue_entry_bytes / queues:.1f} % of the queue files" if queues else "-"
    facts["queue_entry_bytes"] = f"{size(report.queue_entry_bytes)} ({fill})"
    render.facts(facts)
    for text in tables["notes"]:
        render.note_later(text)
    total = mqstore.PartSize(
        "all",
        sum(part.files for part in report.disk),
        sum(part.bytes for part in report.disk),
        sum(part.disk_bytes for part in report.disk),
    )
    disk = (*report.disk, total)
    titles = {"part": "part", "files": "files", "bytes": "logical size", "disk_bytes": "allocated"}
    if any(part.link for part in disk):
        titles["link"] = "leads to"
    render.listing(disk, *titles, **titles)
    if report.hours:
        most = max(hour.bytes for hour in report.hours)
        bars = [
            (render.hour(one.start_timestamp), render.bar(one.bytes, most), size(one.bytes)) for one in report.hours
        ]
        render.table(("hour", "written", ""), bars)
    for member in report.dledger:
        found = member.to_dict()
        terms = found.pop("terms")
        render.facts({f"dledger {name}": value for name, value in found.items()})
        render.listing(terms, "term", "first_index", "last_index", first_index="first entry", last_index="last entry")
    topic_table(tables["topics"])
    if report.consumers:
        groups = [(one.group, one.topic, len(one.queues), one.lag) for one in report.consumers]
        render.table(("group", "topic", "queues", "lag"), groups)
    if report.popped:
        titles = {
            "topic": "popped from", "queue_id": "queue", "messages": "not acknowledged",
            "first_due": "first comes again", "last_due": "last",
        }  # fmt: skip
        render.listing(report.popped, "group", *titles, **titles)
    waiting.tables(report)
    if report.segments_kept_by:
        names = ("kind", "group", "topic", "queue_id", "offset", "log_offset")
        render.listing(report.segments_kept_by, *names, kind="segments kept by")


def topic_object(store: mqstore.Store, topic: str) -> dict[str, Any]:
    """Returns the JSON form of a topic."""
    from mqstore._read.table import expire_after_of

    after = expire_after_of(store, topic)
    return {
        "topic": topic,
        "queues": [queue.to_dict() for queue in store.queues(topic)],
        "expire_after_seconds": None if after is None else after.total_seconds(),
    }


def print_topic(found: dict[str, Any], form: Format) -> None:
    """Prints the topic of a change."""
    if not render.machine(found, form):
        topic_table([found])


def topic_table(found: list[dict[str, Any]]) -> None:
    """Prints topics, each in its JSON form, with their queues."""
    rows = [{"expire_after_seconds": None, **one, **queue} for one in found for queue in one["queues"]]
    expires = any(row["expire_after_seconds"] is not None for row in rows)
    names = ("topic", "queue_id", "min_offset", "max_offset", *(["expire_after_seconds"] if expires else []))
    render.listing(rows, *names, expire_after_seconds="expire after")
