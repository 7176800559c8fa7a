"""Groups of consumers: `mqstore group reset DIR GROUP`."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal, cast

import typer

import mqstore
from mqstore._admin.nearest import nearest
from mqstore._reports import _Report
from mqstore.cli import render
from mqstore.cli.app import group_of_verbs, verb
from mqstore.cli.options import (
    TIMES,
    Directory,
    DryRun,
    LockTimeout,
    ReportForm,
    Yes,
    lock_wait,
    past_moment_of,
)
from mqstore.cli.render import Format
from mqstore.cli.status import CLEAN
from mqstore.cli.stores import writing

group_app = group_of_verbs("group", "Show and reset the progress of groups.")

# Prefix of the dead-letter topic of a group.
DEAD_LETTERS = "%DLQ%"

Group = Annotated[str, typer.Argument(metavar="GROUP", help="Name of the group.")]
AnyGroup = Annotated[str | None, typer.Argument(metavar="[GROUP]", help="Only this group.")]


@dataclass(frozen=True, slots=True)
class OffsetReset(_Report):
    """Change of the offset of a group in a queue."""

    group: str
    topic: str
    queue_id: int
    from_offset: int | None
    """Offset before the change; None if the group had none."""
    to_offset: int
    """Offset that the group reads next."""


@verb("reset", group_app)
def reset(
    directory: Directory,
    group: Group,
    to: Annotated[
        str,
        typer.Option(metavar="WHERE", help=f"earliest, latest, or {TIMES}."),
    ],
    topic: Annotated[
        str | None, typer.Option("--topic", help="Only this topic; by default all topics of the group.")
    ] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    lock_timeout: LockTimeout = "0",
    form: ReportForm = Format.TABLE,
) -> int:
    """Moves a group in its topics: it reads the next messages from there."""
    when = None if to in ("earliest", "latest") else past_moment_of("--to", to)
    wait = lock_wait(lock_timeout)
    check_group(directory, group)
    # The offsets of the plan are those of the log, because work queues read no archive.
    with mqstore.open(directory, archive=False) as store:
        plan = _resets(store, group, topic, to, when)
    queues = render.counted(len(plan), "queue")
    question = f"Move the group {group} in {queues}?"
    otherwise = f"{queues} would be moved; pass --yes to do it, or --dry-run to list them"
    show = partial(_print_resets, plan, form)
    status = render.confirm_plan(show, form, question, otherwise, changes=True, dry_run=dry_run, yes=yes)
    if status is not None:
        return status
    # The plan shows which offsets go back, so no further note is needed.
    logging.getLogger("mqstore").setLevel(logging.ERROR)
    with writing(directory, lock_timeout=wait, archive=False) as store:
        # The writer before may have appended since the plan.
        plan = _resets(store, group, topic, to, when)
        if plan:
            with store.consumer(group, sorted({one.topic for one in plan})) as consumer:
                consumer.reset(cast("Literal['earliest', 'latest']", to) if when is None else when, durable=True)
    if form is not Format.TABLE:
        _print_resets(plan, form)
    return CLEAN


def _resets(store: mqstore.Store, group: str, topic: str | None, to: str, when: int | None) -> list[OffsetReset]:
    progress = {
        (one.topic, queue.queue_id): queue.offset
        for one in mqstore.info(store.path).consumers
        if one.group == group
        for queue in one.queues
    }
    existing = set(store.topics())
    own = sorted({name for name, _ in progress if name in existing and not name.startswith(DEAD_LETTERS)})
    found = []
    for name in own if topic is None else [topic]:
        for queue in store.queues(name):
            offset = queue.min_offset if to == "earliest" else queue.max_offset
            if when is not None:
                offset = store.offset_for_time(name, queue.queue_id, when)
            found.append(OffsetReset(group, name, queue.queue_id, progress.get((name, queue.queue_id)), offset))
    return found


def _print_resets(plan: list[OffsetReset], form: Format) -> None:
    if not render.machine(plan, form):
        render.listing(plan, "topic", "queue_id", "from_offset", "to_offset")


def check_group(directory: Directory, group: str) -> None:
    """Raises an error if no group of the store has this name."""
    with mqstore.open(directory) as store:
        groups = store.groups()
    if group in groups:
        return
    near = nearest(group, groups)
    advice = f"did you mean {near}?" if near else f"mqstore group lag {directory} lists the groups"
    raise typer.BadParameter(f"{directory} has no group {group!r}; {advice}")
