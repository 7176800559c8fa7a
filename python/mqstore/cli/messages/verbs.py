"""The verbs that print messages: `cat`, `tail`, `get` and `lookup`."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from itertools import chain, islice
from typing import Annotated

import typer

import mqstore
from mqstore import StoredMessage
from mqstore._admin.tables import moment
from mqstore._paths import home_of
from mqstore.cli import render
from mqstore.cli.app import verb
from mqstore.cli.filters import Keys, Sql, Tags, chosen, selector
from mqstore.cli.jobs import dead_letters_of, why_dead
from mqstore.cli.messages.follow import Tail
from mqstore.cli.messages.selection import LIGHT_QUEUE, in_log_order, is_between, of_topic
from mqstore.cli.options import (
    Archive,
    BodyForm,
    Directory,
    Limit,
    MessageForm,
    NoArchive,
    OnDamage,
    Queue,
    Since,
    Topic,
    Until,
    archive_of,
    message_form,
    past_moment_of,
)
from mqstore.cli.render import Body, Format
from mqstore.cli.status import CLEAN, PROBLEMS
from mqstore.cli.stores import Directories, Stores


@verb()
def cat(
    directories: Directories,
    topic: Topic = None,
    queue: Queue = None,
    start: Annotated[int | None, typer.Option(help="First queue offset.")] = None,
    end: Annotated[int | None, typer.Option(help="Queue offset to stop at, exclusive.")] = None,
    log: Annotated[bool, typer.Option("--log", help="Print in commit log order, without any index.")] = False,
    since: Since = None,
    until: Until = None,
    keys: Keys = None,
    grep: Annotated[str | None, typer.Option(metavar="REGEX", help="Only messages whose body matches.")] = None,
    tags: Tags = None,
    sql: Sql = None,
    limit: Limit = None,
    body: BodyForm = Body.AUTO,
    form: MessageForm = None,
    on_damage: OnDamage = "raise",
    archive: Archive = None,
    no_archive: NoArchive = False,
) -> int:
    """Prints messages, queue by queue or in log order; exit status 1 if there is none."""
    if topic is None and (queue is not None or start is not None or end is not None):
        raise typer.BadParameter("--queue, --start and --end need --topic")
    if log and (start is not None or end is not None):
        raise typer.BadParameter("--start and --end are offsets of a queue; omit --log")
    wanted = chosen(tags, sql)
    selects = selector(keys, grep)
    times = past_moment_of("--since", since), past_moment_of("--until", until)
    if log and archive is not None:
        raise typer.BadParameter("--log prints the commit log, which --archive is not a part of")
    output = _Messages(directories, message_form(form), body, limit, archive_of(archive, no_archive))

    def read(store: mqstore.Store) -> Iterator[StoredMessage]:
        if log:
            found = in_log_order(store, topic, queue, wanted, on_damage)
            found = (message for message in found if is_between(message, times))
        else:
            reads = functools.partial(store.read, filter=wanted, on_damage=on_damage)
            # The records of light queues are in their topics, too.
            everything = [name for name in store.topics() if not name.startswith(LIGHT_QUEUE)]
            names = everything if topic is None else [topic]
            found = chain.from_iterable(of_topic(store, reads, name, queue, (start, end), times) for name in names)
        return filter(selects, found)

    selection = {
        "--topic": topic, "--queue": queue, "--start": start, "--end": end, "--since": since, "--until": until,
        "--key": " ".join(keys or ()) or None, "--grep": grep, "--filter": tags, "--sql": sql,
    }  # fmt: skip
    given = " ".join(f"{option} {value}" for option, value in selection.items() if value is not None)
    return output.print(read, f"no message matches {given}" if given else "there are no messages")


@verb()
def tail(
    directory: Directory,
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    queue: Queue = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Continue with new messages until Ctrl-C.")] = False,
    limit: Annotated[int, typer.Option("-n", "--limit", min=0, help="Number of messages to start with.")] = 10,
    tags: Tags = None,
    sql: Sql = None,
    body: BodyForm = Body.AUTO,
    form: MessageForm = None,
    on_damage: OnDamage = "raise",
) -> None:
    """Prints the newest messages of a topic, from all queues by store time."""
    if follow and form is Format.JSON:
        raise typer.BadParameter("with --follow the output has no end; use --format jsonl instead of json")
    if follow:
        home_of(directory, "follow it")
    wanted = chosen(tags, sql)
    with mqstore.open(directory) as store:
        end = Tail(store, topic, queue, wanted, on_damage)
        render.messages(store, end.newest(limit), message_form(form), body)
        sys.stdout.flush()
        for found in end.coming() if follow else ():
            render.messages(store, found, message_form(form), body)
            sys.stdout.flush()
            # This verb has no end after which notes could follow.
            render.print_notes()
            if not found and render.nobody_reads():
                break


@verb()
def get(
    directory: Directory,
    message_id: Annotated[str, typer.Argument(metavar="ID", help="Offset id or unique id.")],
    body: BodyForm = Body.AUTO,
    form: MessageForm = None,
    archive: Archive = None,
    no_archive: NoArchive = False,
) -> int:
    """Prints the message with this id; exit status 1 if there is none."""
    with mqstore.open(directory, archive=archive_of(archive, no_archive)) as store:
        found = store.get(message_id)
        if found is None:
            render.note(f"no message has the id {message_id}")
            return PROBLEMS
        shown = message_form(form)
        render.messages(store, [found], shown, body)
        if shown is Format.TABLE:
            render.details(found)
        for letter, is_left in dead_letters_of(store, found):
            why = why_dead(letter)
            since = moment(why["dead_since_timestamp"])
            deliveries = render.counted(why["attempts"], "delivery", "deliveries")
            ended = "" if is_left else "; the dead letter was redriven or deleted since"
            render.note(
                f"group {why['group']} made it a dead letter at {since} after {deliveries}; "
                f"reason: {why['reason']}{ended}"
            )
    return CLEAN


@verb()
def lookup(
    directories: Directories,
    topic: Annotated[str, typer.Argument(metavar="TOPIC")],
    key: Annotated[str, typer.Argument(metavar="KEY")],
    since: Since = None,
    until: Annotated[
        str | None,
        typer.Option("--until", "--end-time", metavar="TIME", help="Only messages stored at or before this time."),
    ] = None,
    limit: Limit = None,
    body: BodyForm = Body.AUTO,
    form: MessageForm = None,
    archive: Archive = None,
    no_archive: NoArchive = False,
) -> int:
    """Prints the messages of a topic with this key, oldest first; exit status 1 if there is none."""
    first, last = past_moment_of("--since", since), past_moment_of("--until", until)
    output = _Messages(directories, message_form(form), body, limit, archive_of(archive, no_archive))

    def found(store: mqstore.Store) -> Iterator[StoredMessage]:
        return iter(store.lookup(topic, key, start_time=first, end_time=last, limit=output.left))

    missing = f"no message of the topic {topic} has the key {key}"
    return output.print(found, missing if since is until is None else f"{missing} in this range of times")


class _Messages:
    """Prints at most `limit` messages of one store or several."""

    def __init__(
        self, directories: list[str], form: Format, body: Body, limit: int | None, archive: bool | str | None
    ) -> None:
        self._archive = archive
        self._stores = Stores(directories, form)
        if self._stores.are_many and form is Format.JSON:
            raise typer.BadParameter("the messages of several stores are no single document; use --format jsonl")
        self._form, self._body = form, body
        self.left = limit
        # Also true if no message is wanted.
        self._has_hit = limit == 0

    def print(self, read: Callable[[mqstore.Store], Iterator[StoredMessage]], missing: str) -> int:
        """Prints what `read` returns for each store, and returns the exit status; `missing` is the note for no hit."""

        def show(directory: str) -> None:
            with mqstore.open(directory, archive=self._archive) as store:
                found = self._counted(islice(read(store), self.left))
                render.messages(store, found, self._form, self._body, self._stores.member(directory))
            self._stores.is_done = self.left == 0

        status = self._stores.each(show)
        if status == CLEAN and not self._has_hit:
            render.note_later(missing)
            return PROBLEMS
        return status

    def _counted(self, found: Iterator[StoredMessage]) -> Iterator[StoredMessage]:
        for message in found:
            self._has_hit = True
            if self.left is not None:
                self.left -= 1
            yield message
