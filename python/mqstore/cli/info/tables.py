"""The tables of `info` and `topics`, for people, and the JSON form of a topic."""

from __future__ import annotations

from typing import Any

import mqstore
from mqstore._admin.tables import duration, moment, size
from mqstore.cli import render
from mqstore.cli.info import waiting
from mqstore.cli.render import Format

# Parts of `info` with their own tables or notes.
_IN_TABLES = (
    "hours",
    "topics",
    "parts",
    "disk",
    "consumers",
    "popped",
    "delayed",
    "undecided",
    "segments_kept_by",
    "dledger",
    "notes",
)


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
    rows = [(part.part, part.files, size(part.bytes), size(part.disk_bytes), part.link or "") for part in disk]
    columns = ("part", "files", "logical size", "allocated", "leads to")
    shown = len(columns) if any(part.link for part in disk) else len(columns) - 1
    render.table(columns[:shown], [row[:shown] for row in rows])
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
        by_term = [(one["term"], one["first_index"], one["last_index"]) for one in terms]
        render.table(("term", "first entry", "last entry"), by_term)
    topic_table(tables["topics"])
    if report.consumers:
        groups = [(one.group, one.topic, len(one.queues), one.lag) for one in report.consumers]
        render.table(("group", "topic", "queues", "lag"), groups)
    if report.popped:
        out = [
            (
                one.group,
                one.topic,
                one.queue_id,
                one.messages,
                moment(one.first_due),
                moment(one.last_due),
            )
            for one in report.popped
        ]
        render.table(("group", "popped from", "queue", "not acknowledged", "first comes again", "last"), out)
    waiting.tables(report)
    if report.segments_kept_by:
        holders = [
            (one.kind, one.group or "-", one.topic, one.queue_id, one.offset, one.log_offset)
            for one in report.segments_kept_by
        ]
        render.table(("segments kept by", "group", "topic", "queue", "offset", "log offset"), holders)


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
    rows = [
        (entry["topic"], queue["queue_id"], queue["min_offset"], queue["max_offset"], entry.get("expire_after_seconds"))
        for entry in found
        for queue in entry["queues"]
    ]
    headings = ["topic", "queue", "min offset", "max offset"]
    if any(row[-1] is not None for row in rows):
        headings.append("expire after")
    shown = [(*row[:4], "-" if row[4] is None else duration(row[4])) for row in rows]
    render.table(headings, [row[: len(headings)] for row in shown])
