"""Work queues: `mqstore jobs DIR [TOPIC]` and `mqstore dead-letter list | show | delete | redrive DIR ...`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated, Any, Literal

import typer

import mqstore
from mqstore import _native
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

dead_app = group_of_verbs("dead-letter", "List, show, delete and redrive dead letters.")

# Properties with the topic that a dead letter comes from.
_ORIGINS = ("DLQ_ORIGIN_TOPIC", "RETRY_TOPIC")
# More than any store has.
_ALL = 1 << 62

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
class WorkQueueJobs(_Report):
    """Work queue with its messages."""

    group: str
    topic: str
    ready: int
    delayed: int
    leased: int
    dying: int
    dead: int
    """Dead letters of the group that were neither redriven nor deleted."""
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
        render.messages(store, list(_dead(store, group))[:limit], message_form(form), body)


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
    chosen = _chosen(directory, group, ids)
    question, verb = f"Delete {len(chosen)} dead letters?", "deleted"
    return _end(directory, group, chosen, ids, (question, verb), (dry_run, yes, lock_timeout), form)


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
    chosen = _chosen(directory, group, ids)[:limit]
    question = f"Append {len(chosen)} dead letters to their topics again?"
    return _end(directory, group, chosen, ids or limit, (question, "redriven"), (dry_run, yes, lock_timeout), form)


def _chosen(directory: Directory, group: str, ids: list[str] | None) -> list[mqstore.StoredMessage]:
    """Returns the dead letters of a group, all or those with these ids."""
    check_group(directory, group)
    with mqstore.open(directory) as store:
        found = list(_dead(store, group))
    if not ids:
        return found
    known = {one: message for message in found for one in ids_of(message)}
    for one in ids:
        if one not in known:
            advice = f"mqstore dead-letter list {directory} {group} lists them"
            raise typer.BadParameter(f"group {group} has no dead letter with the id {one}; {advice}")
    return [message for message in found if not ids_of(message).isdisjoint(ids)]


def _end(
    directory: Directory,
    group: str,
    chosen: list[mqstore.StoredMessage],
    which: list[str] | int | None,
    texts: tuple[str, str],
    options: tuple[bool, bool, str],
    form: Format,
) -> int:
    """Redrives or deletes the chosen dead letters: those with the ids `which`, or up to that number."""
    (question, done), (dry_run, yes, lock_timeout) = texts, options
    wait = lock_wait(lock_timeout)
    if not chosen or dry_run:
        render.result(DeadLettersEnded(group, len(chosen), dry_run), form)
        if dry_run:
            render.note_dry_run()
        return CLEAN
    otherwise = f"{len(chosen)} dead letters would be {done}; pass --yes to do it, or --dry-run"
    if not render.confirmed(question, otherwise, yes=yes):
        return USAGE
    properties = chosen[0].properties
    origin = next((properties[name] for name in _ORIGINS if name in properties), chosen[0].topic)
    with mqstore.open(directory, "rw", lock_timeout=wait) as store, store.work_queue(origin, group) as queue:
        if done == "deleted":
            count = queue.delete_dead_letters([message.message_id for message in chosen])
        elif isinstance(which, list):
            count = queue.redrive(ids=[message.message_id for message in chosen])
        else:
            count = queue.redrive(which)
    render.result(DeadLettersEnded(group, count, dry_run=False), form)
    return CLEAN


def _dead(store: mqstore.Store, group: str | None) -> Iterator[mqstore.StoredMessage]:
    """Yields the dead letters that were neither redriven nor deleted, group by group."""
    found: dict[str, list[mqstore.StoredMessage]] = {}
    for its_group, _, _, listed in _native.jobs(store, None, _ALL):
        if group is None or its_group == group:
            found.setdefault(its_group, []).extend(message for state, *_, message in listed if state == "dead")
    for messages in found.values():
        yield from sorted(messages, key=lambda message: message.queue_offset)


def ids_of(letter: mqstore.StoredMessage) -> set[str | None]:
    """Returns the ids by which a dead letter is found: its own, and those of the message from which it was made."""
    properties = letter.properties
    origins = (properties.get(name) for name in ("DLQ_ORIGIN_MESSAGE_ID", "ORIGIN_MESSAGE_ID"))
    return {letter.message_id, letter.unique_id, *origins}


def dead_letters_of(store: mqstore.Store, message: mqstore.StoredMessage) -> Iterator[mqstore.StoredMessage]:
    """Yields the dead letters that groups made of a message, found by its unique id."""
    if message.unique_id is None or message.topic.startswith(DEAD_LETTERS):
        return
    for topic in store.topics():
        if topic.startswith(DEAD_LETTERS):
            letters = store.lookup(topic, message.unique_id)
            yield from (letter for letter in letters if message.message_id in ids_of(letter))


def why_dead(letter: mqstore.StoredMessage) -> dict[str, Any]:
    """Returns why a message is a dead letter."""
    return {
        "group": letter.topic.removeprefix(DEAD_LETTERS),
        "attempts": letter.reconsume_times,
        "dead_since_timestamp": letter.store_timestamp,
        "reason": letter.properties.get("mqstore.reason", "none was given"),
    }
