"""Work queues: `mqstore jobs DIR [TOPIC]` and `mqstore dead-letter list | show | delete | redrive DIR ...`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Annotated, Any, Literal, NamedTuple

import typer

import mqstore
from mqstore import _native
from mqstore._delivery.work_queue import WorkQueue
from mqstore._dicts import message_dict
from mqstore._reports import _Report
from mqstore.cli import render
from mqstore.cli.app import group_of_verbs, verb
from mqstore.cli.groups import DEAD_LETTERS, AnyGroup, Group, check_group
from mqstore.cli.info.waiting import STATES
from mqstore.cli.options import (
    BodyForm,
    Directory,
    DryRun,
    Limit,
    LockTimeout,
    MessageForm,
    ReportForm,
    Yes,
    lock_wait,
    message_form,
)
from mqstore.cli.render import Body, Format
from mqstore.cli.status import CLEAN, PROBLEMS, USAGE
from mqstore.cli.stores import writing

dead_app = group_of_verbs("dead-letter", "List, show, delete and redrive dead letters.")

# Properties with the topic that a dead letter comes from.
_ORIGINS = ("DLQ_ORIGIN_TOPIC", "RETRY_TOPIC")

Ids = Annotated[
    list[str], typer.Argument(metavar="ID...", help="Id of the message that was put, or of the dead letter.")
]


@dataclass(frozen=True, slots=True)
class Job(_Report):
    """Message of a work queue."""

    state: str
    """`ready`, `delayed`, `leased`, `dying` (it becomes a dead letter) or `dead`."""
    attempts: int
    """Number of its deliveries so far."""
    due_timestamp: int | None
    """When it is due, or when its lease ends, in epoch milliseconds; None if it is ready or dead."""
    reason: str | None
    """Last reason that a worker gave for returning it."""
    message: Any
    """The message, or its dead letter, as `cat` prints it."""


@dataclass(frozen=True, slots=True)
class WorkQueueJobs(mqstore.WorkQueueInfo):
    """Work queue with its messages."""

    jobs: tuple[Job, ...]
    """The first messages of each state."""


@dataclass(frozen=True, slots=True)
class DeadLettersEnded(_Report):
    """Dead letters that were redriven or deleted."""

    group: str
    dead_letters: int
    """Number of dead letters; in a dry run, those that would be."""
    dry_run: bool


@verb()
def jobs(
    directory: Directory,
    topic: Annotated[str | None, typer.Argument(metavar="[TOPIC]", help="Only work queues of this topic.")] = None,
    state: Annotated[
        Literal["ready", "delayed", "leased", "dying", "dead"] | None,
        typer.Option("--state", help="List only messages in this state."),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", min=0, help="Maximum number of listed messages of each state in each work queue.")
    ] = 20,
    body: BodyForm = Body.AUTO,
    form: ReportForm = Format.TABLE,
) -> int:
    """Prints work queues with their messages: ready, delayed, leased and dead; exit status 1 if TOPIC has none."""
    with mqstore.open(directory) as store:
        if topic is not None:
            # Raises the error for an unknown topic.
            store.queues(topic)
        found = _native.jobs(store, topic, limit)
        if not found:
            where = directory if topic is None else f"the topic {topic}"
            render.note(f"{where} has no work queue and no dead letters")
        queues = [
            WorkQueueJobs(group, of, *counts, _listed(store, jobs, state, body)) for group, of, counts, jobs in found
        ]
    if not render.machine(queues, form):
        _print_tables(queues)
    return PROBLEMS if topic is not None and not found else CLEAN


def _listed(
    store: mqstore.Store, jobs: list[tuple[str, int, int | None, str | None, Any]], state: str | None, body: Body
) -> tuple[Job, ...]:
    return tuple(
        Job(own, attempts, due, reason, message_dict(message, body.value, store))
        for own, attempts, due, reason, message in jobs
        if state is None or own == state
    )


def _print_tables(queues: list[WorkQueueJobs]) -> None:
    if queues:
        render.listing(queues, "group", "topic", *STATES)
    rows = [
        {
            "state": job.state,
            "topic": queue.topic,
            "id": job.message["unique_id"] or job.message["message_id"],
            "attempts": job.attempts,
            "store_timestamp": job.message["store_timestamp"],
            "due_timestamp": job.due_timestamp,
            "reason": job.reason,
        }
        for queue in queues
        for job in queue.jobs
    ]
    if rows:
        titles = {"store_timestamp": "stored", "due_timestamp": "due, or end of lease"}
        render.listing(rows, *rows[0], **titles)


@verb("list", dead_app)
def dead_letters(
    directory: Directory,
    group: AnyGroup = None,
    limit: Limit = None,
    body: BodyForm = Body.AUTO,
    form: MessageForm = None,
) -> None:
    """Prints the dead letters that were neither redriven nor deleted, oldest first, group by group."""
    if group is not None:
        check_group(directory, group)
    with mqstore.open(directory) as store:
        render.messages(store, islice(_dead(store, group), limit), message_form(form), body)


@verb("show", dead_app)
def show(
    directory: Directory,
    dead_id: Annotated[str, typer.Argument(metavar="ID", help="Id of the message, or of its dead letter.")],
    body: BodyForm = Body.AUTO,
    form: MessageForm = None,
) -> int:
    """Prints the dead letters of a message with their reason; exit status 1 if there is none."""
    with mqstore.open(directory) as store:
        found = [message for message in _dead(store, None) if dead_id in ids_of(message)]
        if not found:
            render.note(f"no dead letter has the id {dead_id}; mqstore dead-letter list {directory} lists them")
            return PROBLEMS
        shown = message_form(form)
        for message in found:
            render.messages(store, [message], shown, body)
            if shown is Format.TABLE:
                render.details(message)
                render.facts(why_dead(message))
    return CLEAN


@verb("delete", dead_app)
def delete(
    directory: Directory,
    group: Group,
    ids: Ids,
    dry_run: DryRun = False,
    yes: Yes = False,
    lock_timeout: LockTimeout = "0",
    form: ReportForm = Format.TABLE,
) -> int:
    """Deletes dead letters: they are not redriven. Their records stay until the retention deletes them."""
    chosen = _chosen(directory, group, ids, None)
    question = f"Delete {render.counted(len(chosen), 'dead letter')}?"
    ending = _Ending("deleted", question, lambda queue: queue.delete_dead_letters(ids))
    return _end(directory, group, chosen, ending, form, dry_run=dry_run, yes=yes, wait=lock_wait(lock_timeout))


@verb("redrive", dead_app)
def redrive(
    directory: Directory,
    group: Group,
    ids: Annotated[
        list[str] | None,
        typer.Argument(metavar="[ID...]", help="Only the dead letters with these ids; by default all of the group."),
    ] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="Maximum number of dead letters.")] = None,
    dry_run: DryRun = False,
    yes: Yes = False,
    lock_timeout: LockTimeout = "0",
    form: ReportForm = Format.TABLE,
) -> int:
    """Appends the dead letters of a group to their topics again, oldest first."""
    if ids and limit is not None:
        raise typer.BadParameter("give ids or --limit, not both")
    chosen = _chosen(directory, group, ids, limit)
    letters = render.counted(len(chosen), "dead letter")
    question = f"Append {letters} to their topics again?"
    ending = _Ending("redriven", question, lambda queue: queue.redrive(limit, ids=ids or None))
    return _end(directory, group, chosen, ending, form, dry_run=dry_run, yes=yes, wait=lock_wait(lock_timeout))


def _chosen(directory: Directory, group: str, ids: list[str] | None, limit: int | None) -> list[mqstore.StoredMessage]:
    """Returns the dead letters of a group: those with these ids, or without ids up to `limit` of all."""
    check_group(directory, group)
    with mqstore.open(directory) as store:
        if not ids:
            return list(islice(_dead(store, group), limit))
        found = [message for message in _dead(store, group) if not ids_of(message).isdisjoint(ids)]
    known = set().union(*map(ids_of, found))
    for one in ids:
        if one not in known:
            advice = f"mqstore dead-letter list {directory} {group} lists them"
            raise typer.BadParameter(f"group {group} has no dead letter with the id {one}; {advice}")
    return found


class _Ending(NamedTuple):
    """How a verb ends dead letters: the participle, the question, and the call."""

    done: str
    question: str
    call: Callable[[mqstore.WorkQueue], int]


def _end(
    directory: Directory,
    group: str,
    chosen: list[mqstore.StoredMessage],
    ending: _Ending,
    form: Format,
    *,
    dry_run: bool,
    yes: bool,
    wait: float,
) -> int:
    """Ends the chosen dead letters, unless it is a dry run or the user does not want it."""
    if not chosen or dry_run:
        render.result(DeadLettersEnded(group, len(chosen), dry_run), form)
        if dry_run:
            render.note_dry_run()
        return CLEAN
    letters = render.counted(len(chosen), "dead letter")
    otherwise = f"{letters} would be {ending.done}; pass --yes to do it, or --dry-run"
    if not render.confirmed(ending.question, otherwise, yes=yes):
        return USAGE
    properties = chosen[0].properties
    origin = next((properties[name] for name in _ORIGINS if name in properties), chosen[0].topic)
    with writing(directory, lock_timeout=wait) as store, WorkQueue._for_dead_letters(store, origin, group) as queue:
        count = ending.call(queue)
    render.result(DeadLettersEnded(group, count, dry_run=False), form)
    return CLEAN


def _dead(store: mqstore.Store, group: str | None) -> Iterator[mqstore.StoredMessage]:
    """Yields the dead letters that were neither redriven nor deleted, group by group."""
    for its_group, ranges in _native.dead_letters(store):
        if group is None or its_group == group:
            for start, end in ranges:
                yield from store.read(DEAD_LETTERS + its_group, 0, start, end)


def ids_of(letter: mqstore.StoredMessage) -> set[str | None]:
    """Returns the ids by which a dead letter is found: its own, and those of the message from which it was made."""
    properties = letter.properties
    origins = (properties.get(name) for name in ("DLQ_ORIGIN_MESSAGE_ID", "ORIGIN_MESSAGE_ID"))
    return {letter.message_id, letter.unique_id, *origins}


def dead_letters_of(
    store: mqstore.Store, message: mqstore.StoredMessage
) -> Iterator[tuple[mqstore.StoredMessage, bool]]:
    """Yields the dead letters that groups made of a message, found by its unique id.

    With each, whether it was neither redriven nor deleted.
    """
    if message.unique_id is None or message.topic.startswith(DEAD_LETTERS):
        return
    for topic in store.topics():
        if topic.startswith(DEAD_LETTERS):
            for letter in store.lookup(topic, message.unique_id):
                if message.message_id in ids_of(letter):
                    left = dict(_native.dead_letters(store)).get(topic.removeprefix(DEAD_LETTERS), [])
                    yield letter, any(start <= letter.queue_offset < end for start, end in left)


def why_dead(letter: mqstore.StoredMessage) -> dict[str, Any]:
    """Returns why a message is a dead letter."""
    return {
        "group": letter.topic.removeprefix(DEAD_LETTERS),
        "attempts": letter.reconsume_times,
        "dead_since_timestamp": letter.store_timestamp,
        "reason": letter.properties.get("mqstore.reason", "none was given"),
    }
