"""The verbs `logic-queue list`, `cat`, `lag` and `export`, on logic queues of static topics.

They only read, from the directories of all brokers together.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

import mqstore
from mqstore import _native
from mqstore._admin.export.columns import column_file
from mqstore._admin.export.formats import format_of
from mqstore._admin.files import creating
from mqstore._admin.info import SYSTEM_GROUPS
from mqstore._admin.nearest import unknown_topic
from mqstore._dicts import message_dict
from mqstore._reports import _Report
from mqstore.cli import render
from mqstore.cli.app import group_of_verbs, verb
from mqstore.cli.options import BodyForm, Limit, MessageForm, ReportForm, Topic, message_form
from mqstore.cli.progress import GroupLag, print_lag
from mqstore.cli.render import Body, Format
from mqstore.cli.status import CLEAN, PROBLEMS

logic_app = group_of_verbs("logic-queue", "Read static topics by logic offset.")

Brokers = Annotated[
    list[str],
    typer.Argument(
        metavar="DIR...", help="Directories or URLs of all brokers of the topics; NAME=DIR gives the name of a broker."
    ),
]
LogicNumber = Annotated[int | None, typer.Option("--queue", min=0, help="Only this logic queue.")]
Start = Annotated[int | None, typer.Option("--start", min=0, help="First logic offset.")]
End = Annotated[int | None, typer.Option("--end", min=0, help="Logic offset to stop at, exclusive.")]
To = Literal["parquet", "arrow"]
OnMissing = Annotated[
    Literal["raise", "skip"],
    typer.Option("--on-missing", help="At a part of a broker that is not given, end with an error or skip it."),
]

# A name and a directory; a path has a slash before any equals sign, or none.
_NAMED = re.compile(r"([^=/\\:]+)=(.+)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class LogicTopic(_Report):
    """The logic queues of a static topic."""

    topic: str
    queues: tuple[mqstore.LogicQueue, ...]


@dataclass(frozen=True, slots=True)
class LogicTopics(_Report):
    """Static topics, and the faults of their chains."""

    topics: tuple[LogicTopic, ...]
    problems: tuple[str, ...]
    """Rules of RocketMQ that a chain breaks, and parts that lost messages."""


@dataclass(frozen=True, slots=True)
class LogicExport(_Report):
    """Result of an export of logic queues."""

    path: str
    format: str
    messages: int
    bytes: int


@verb("list", logic_app)
def logic_list(brokers: Brokers, topic: Topic = None, form: ReportForm = Format.TABLE) -> int:
    """Lists logic queues with their parts; exit status 1 if a chain has a fault."""
    with _opened(brokers) as logic:
        found = LogicTopics(
            tuple(LogicTopic(name, tuple(logic.queues(name))) for name in _names(logic, topic)), logic.problems
        )
    if not render.machine(found, form):
        _print_queues(found)
    return PROBLEMS if found.problems else CLEAN


@verb("cat", logic_app)
def logic_cat(
    brokers: Brokers,
    topic: Topic = None,
    queue: LogicNumber = None,
    start: Start = None,
    end: End = None,
    on_missing: OnMissing = "raise",
    limit: Limit = None,
    body: BodyForm = Body.AUTO,
    form: MessageForm = None,
) -> None:
    """Prints messages of static topics, queue by queue in the order of their logic offsets."""
    if topic is None and (queue is not None or start is not None or end is not None):
        raise typer.BadParameter("--queue, --start and --end need --topic")
    with _opened(brokers) as logic:
        found = (
            (number, offset, message)
            for name in _names(logic, topic)
            for number in ([one.queue_id for one in logic.queues(name)] if queue is None else [queue])
            for offset, message in logic.read(name, number, start, end, on_missing=on_missing)
        )
        _print_messages(islice(found, limit), message_form(form), body)


@verb("lag", logic_app)
def logic_lag(
    brokers: Brokers,
    group: Annotated[str | None, typer.Option("--group", help="Only this group.")] = None,
    topic: Topic = None,
    form: ReportForm = Format.TABLE,
) -> None:
    """Shows the logic offsets of groups, and how many messages they have not read."""
    with _opened(brokers) as logic:
        groups = [one for one in logic.groups() if not one.startswith(SYSTEM_GROUPS)]
        if group is not None and group not in groups:
            raise typer.BadParameter(f"no broker has an offset of the group {group!r} in a static topic")
        found = [
            GroupLag(one, name, queue_id, offset, ends[queue_id], lag[queue_id])
            for one in (groups if group is None else [group])
            for name in _names(logic, topic)
            for ends, lag in [
                ({queue.queue_id: queue.max_offset for queue in logic.queues(name)}, logic.lag(one, name))
            ]
            for queue_id, offset in sorted(logic.group_offsets(one, name).items())
        ]
    print_lag(found, form)


@verb("export", logic_app)
def logic_export(
    brokers: Brokers,
    out: Annotated[Path, typer.Option("--output", metavar="FILE", help="File to write.")],
    topic: Annotated[str, typer.Option("--topic", help="The static topic.")],
    queue: LogicNumber = None,
    start: Start = None,
    end: End = None,
    on_missing: OnMissing = "raise",
    to: Annotated[To | None, typer.Option("--to", help="Format; by default from the ending of FILE.")] = None,
    form: ReportForm = Format.TABLE,
) -> None:
    """Writes the messages of a static topic to a file of Parquet or Arrow, with their logic offsets."""
    kind = _kind(out, to)
    if out.exists():
        raise FileExistsError(f"{out}: exists already; choose another file")
    partial = Path(f"{out}.partial")
    with _opened(brokers) as logic:
        _names(logic, topic)
        rows = logic.scan(topic, queue, start, end, on_missing=on_missing)
        messages = 0
        try:
            with creating(out), column_file(kind, partial, rows.schema) as write:
                for batch in rows:
                    write(batch)
                    messages += batch.num_rows
            size = partial.stat().st_size
            _native.publish_file(partial, out)
        except BaseException:
            partial.unlink(missing_ok=True)
            raise
    render.result(LogicExport(str(out), kind, messages, size), form)


def _opened(brokers: list[str]) -> mqstore.LogicQueues:
    named = [_NAMED.fullmatch(text) for text in brokers]
    # A folder can have an equals sign in its name.
    pairs = [
        (match[1], match[2]) for match, text in zip(named, brokers, strict=True) if match and not Path(text).exists()
    ]
    if pairs and len(pairs) != len(brokers):
        raise typer.BadParameter("give NAME=DIR for each broker, or for none")
    names = [name for name, _ in pairs]
    if len(set(names)) != len(names):
        raise typer.BadParameter("two brokers have the same name")
    try:
        return mqstore.open_logic_queues(dict(pairs) if pairs else brokers)
    except ValueError as error:
        raise typer.BadParameter(str(error).replace("give a mapping from", "write NAME=DIR, with")) from None


def _names(logic: mqstore.LogicQueues, topic: str | None) -> list[str]:
    if topic is None:
        return logic.topics()
    if topic not in logic.topics():
        raise unknown_topic(topic, logic.topics())
    return [topic]


def _kind(out: Path, to: To | None) -> str:
    try:
        kind = format_of(out, to)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if kind not in ("parquet", "arrow"):
        message = f"the formats are parquet and arrow, not {kind}; for JSON lines use logic-queue cat --format jsonl"
        raise typer.BadParameter(message)
    return kind


def _print_queues(found: LogicTopics) -> None:
    queues = [{"topic": one.topic, **queue.to_dict()} for one in found.topics for queue in one.queues]
    names = ("topic", "queue_id", "min_offset", "max_offset", "messages", "undecided_messages")
    render.listing(queues, *names, queue_id="logic queue", undecided_messages="without offset")
    parts = [{"topic": one["topic"], "queue": one["queue_id"], **part} for one in queues for part in one["parts"]]
    titles = {
        "queue": "logic queue", "generation": "part", "logic_offset": "from offset", "broker": "broker",
        "queue_id": "queue", "start_offset": "queue from", "end_offset": "queue to", "is_here": "here",
    }  # fmt: skip
    render.listing(parts, "topic", *titles, **titles)
    for text in found.problems:
        render.note_later(text)


def _print_messages(found: Iterator[tuple[int, int, mqstore.StoredMessage]], form: Format, body: Body) -> None:
    if form is Format.TABLE:
        width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
        for number, offset, message in found:
            sys.stdout.write(f"logic {number}/{offset}  {render.message_text(message, body, None, width)}\n")
        return
    objects: Iterator[dict[str, Any]] = (
        {"logic_queue_id": number, "logic_offset": offset, **message_dict(message, body.value)}
        for number, offset, message in found
    )
    if form is Format.JSON:
        render.array(objects)
    else:
        render.lines(objects)
