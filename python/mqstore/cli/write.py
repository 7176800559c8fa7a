"""The verb `append`, and the group `topic`: `mqstore topic create | delete | alter DIR TOPIC`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

import typer

import mqstore
from mqstore._reports import _Report
from mqstore.cli import render
from mqstore.cli.app import group_of_verbs, verb
from mqstore.cli.info.tables import print_topic, topic_object
from mqstore.cli.options import (
    Compress,
    CompressOver,
    Create,
    Directory,
    DryRun,
    LockTimeout,
    MessageForm,
    ReportForm,
    Yes,
    age_of,
    lock_wait,
    message_form,
    moment_of,
)
from mqstore.cli.render import Format
from mqstore.cli.status import CLEAN, USAGE
from mqstore.cli.stores import writing

topic_app = group_of_verbs("topic", "Create, change and delete topics.")

Name = Annotated[str, typer.Argument(metavar="TOPIC", help="Name of the topic.")]
MaxMessages = Annotated[int | None, typer.Option(min=0, help="Quota: maximum number of messages; 0 is no limit.")]

ExpireAfter = Annotated[
    str | None, typer.Option(metavar="AGE", help='Time after which a value of the table expires: "7d"; 0 is never.')
]

# Messages of one call and one sync.
_LINES = 1000


@dataclass(frozen=True, slots=True)
class DeletedTopic(_Report):
    """A topic that was deleted."""

    topic: str
    messages: int
    """Messages that could be read before."""
    dry_run: bool
    """Whether this was a dry run, which deletes nothing."""


@verb("append")
def append(
    directory: Directory,
    topic: Name,
    file: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="File with the body; - is standard input.")
    ] = None,
    body: Annotated[str | None, typer.Option("--body", help="The body as text.")] = None,
    lines: Annotated[bool, typer.Option("--lines", help="Append each line of the file as a message.")] = False,
    keys: Annotated[list[str] | None, typer.Option("--key", help="Key of the messages; repeat for more.")] = None,
    tag: Annotated[str | None, typer.Option("--tag", help="Tag of the messages.")] = None,
    properties: Annotated[
        list[str] | None, typer.Option("--property", metavar="NAME=VALUE", help="Property; repeat for more.")
    ] = None,
    queue: Annotated[int | None, typer.Option("--queue", min=0, help="The queue; by default all in turn.")] = None,
    delay: Annotated[
        str | None, typer.Option(metavar="AGE", help='Time until the delivery: "90s", "24h", or seconds.')
    ] = None,
    deliver_at: Annotated[
        str | None,
        typer.Option(metavar="TIME", help="Time of the delivery: ISO 8601 with offset, or epoch milliseconds."),
    ] = None,
    compression: Compress = "none",
    compress_over: CompressOver = 4096,
    create: Create = False,
    lock_timeout: LockTimeout = "0",
    form: MessageForm = None,
) -> None:
    """Appends messages to a topic, which is created if missing; they are durable when the command returns."""
    if body is not None and file is not None:
        raise typer.BadParameter("give FILE or --body, not both")
    if body is None and file is None:
        raise typer.BadParameter("give a FILE, - for standard input, or --body TEXT")
    if delay is not None and deliver_at is not None:
        raise typer.BadParameter("give --delay or --deliver-at, not both")
    described: dict[str, Any] = {"keys": keys or (), "tags": tag, "properties": named_values("--property", properties)}
    due = {
        "delay": None if delay is None else age_of("--delay", delay),
        "deliver_at": moment_of("--deliver-at", deliver_at),
    }
    packed: dict[str, Any] = {"compression": compression, "compress_over": compress_over}
    bodies = _bodies(file, body, lines)
    shown = message_form(form)
    with writing(directory, "create" if create else "rw", lock_timeout=lock_wait(lock_timeout)) as store:
        is_new = topic not in store.topics()
        results = _appended(store, topic, bodies, queue, described, due, packed)
        if shown is Format.JSON:
            render.document([result.to_dict() for result in results])
        elif shown is Format.JSONL:
            render.lines(result.to_dict() for result in results)
        else:
            rows = [(one.topic, one.queue_id, one.queue_offset, one.message_id) for one in results]
            render.table(("topic", "queue", "offset", "message id"), rows)
        # A misspelt name creates a topic that no program reads.
        if is_new and topic in store.topics():
            render.note_later(f"created the topic {topic}")


def _bodies(file: Path | None, body: str | None, lines: bool) -> Iterator[bytes]:
    if body is not None:
        content = body.encode("utf-8", "surrogateescape")
        yield from content.splitlines() if lines else (content,)
    elif file == Path("-"):
        yield from _of_stream(sys.stdin.buffer, lines)
    else:
        assert file is not None
        with file.open("rb") as stream:
            yield from _of_stream(stream, lines)


def _of_stream(stream: Any, lines: bool) -> Iterator[bytes]:
    if lines:
        for line in stream:
            yield line.rstrip(b"\r\n")
    else:
        yield stream.read()


def _appended(
    store: mqstore.Store,
    topic: str,
    bodies: Iterable[bytes],
    queue: int | None,
    described: dict[str, Any],
    due: dict[str, Any],
    packed: dict[str, Any],
) -> Iterator[mqstore.AppendResult]:
    """Appends the messages and yields the results of those that are durable."""
    rest = iter(bodies)
    while some := list(islice(rest, _LINES)):
        if due == {"delay": None, "deliver_at": None}:
            keys = [described["keys"]] * len(some)
            tags, properties = described["tags"], described["properties"]
            yield from store.append_batch(topic, some, keys, tags, properties, queue_id=queue, durable=True, **packed)
        else:
            for each in some:
                yield store.append(topic, each, queue_id=queue, durable=True, **described, **due, **packed)


def named_values(option: str, texts: list[str] | None) -> dict[str, str]:
    """Returns the values of `NAME=VALUE` by name."""
    found = {}
    for text in texts or ():
        name, equals, value = text.partition("=")
        if not (name and equals):
            raise typer.BadParameter(f"{option} {text!r} is not NAME=VALUE")
        found[name] = value
    return found


@verb("create", topic_app)
def create_topic(
    directory: Directory,
    topic: Name,
    queues: Annotated[int | None, typer.Option(min=1, help="Number of queues.")] = None,
    attributes: Annotated[
        list[str] | None,
        typer.Option(
            "--attribute",
            metavar="NAME=VALUE",
            help="RocketMQ's topic attribute, such as cleanup.policy=COMPACTION; repeat for more.",
        ),
    ] = None,
    max_messages: MaxMessages = None,
    expire_after: ExpireAfter = None,
    create: Create = False,
    lock_timeout: LockTimeout = "0",
    form: ReportForm = Format.TABLE,
) -> None:
    """Creates a topic; a topic that exists gets more queues if it has fewer."""
    named = named_values("--attribute", attributes)
    age = None if expire_after is None else age_of("--expire-after", expire_after)
    with writing(directory, "create" if create else "rw", lock_timeout=lock_wait(lock_timeout)) as store:
        store.create_topic(topic, queues, attributes=named or None, max_messages=max_messages, expire_after=age)
        print_topic(topic_object(store, topic), form)


@verb("alter", topic_app)
def alter_topic(
    directory: Directory,
    topic: Name,
    queues: Annotated[int | None, typer.Option(min=1, help="Number of queues for reads and for appends.")] = None,
    read_queues: Annotated[int | None, typer.Option(min=1, help="Number of queues for reads of clients.")] = None,
    write_queues: Annotated[int | None, typer.Option(min=1, help="Number of queues for appends.")] = None,
    perm: Annotated[
        int | None, typer.Option(min=0, max=15, help="RocketMQ's permissions: 2 write, 4 read; 6 is both.")
    ] = None,
    max_messages: MaxMessages = None,
    expire_after: ExpireAfter = None,
    lock_timeout: LockTimeout = "0",
    form: ReportForm = Format.TABLE,
) -> None:
    """Changes the queues, the permissions, the quota or the expiry of a topic."""
    if queues is not None and (read_queues is not None or write_queues is not None):
        raise typer.BadParameter("give --queues, or --read-queues and --write-queues")
    changes: dict[str, Any] = {
        "read_queues": queues or read_queues,
        "write_queues": queues or write_queues,
        "perm": perm,
        "max_messages": max_messages,
        "expire_after": None if expire_after is None else age_of("--expire-after", expire_after),
    }
    if all(value is None for value in changes.values()):
        options = "--queues, --read-queues, --write-queues, --perm, --max-messages, --expire-after"
        raise typer.BadParameter(f"give at least one of {options}")
    with writing(directory, lock_timeout=lock_wait(lock_timeout)) as store:
        store.update_topic(topic, **changes)
        print_topic(topic_object(store, topic), form)


@verb("delete", topic_app)
def delete_topic(
    directory: Directory,
    topic: Name,
    erase: Annotated[
        bool, typer.Option("--erase", help="Also overwrite its records in the log, as `reclaim --erase` does.")
    ] = False,
    dry_run: DryRun = False,
    yes: Yes = False,
    lock_timeout: LockTimeout = "0",
    form: ReportForm = Format.TABLE,
) -> int:
    """Deletes a topic with its messages, and the offsets of groups in it."""
    wait = lock_wait(lock_timeout)
    with mqstore.open(directory) as store:
        messages = sum(queue.count for queue in store.queues(topic))
    if dry_run:
        render.result(DeletedTopic(topic, messages, dry_run=True), form)
        render.note_dry_run()
        return CLEAN
    what = f"the topic {topic} with {render.counted(messages, 'message')}"
    if not render.confirmed(f"Delete {what}?", f"{what} would be deleted; pass --yes, or --dry-run", yes=yes):
        return USAGE
    with writing(directory, lock_timeout=wait) as store:
        erased = store.delete_topic(topic, erase=erase)
    for kept in () if erased is None else erased.kept:
        render.note(f"kept: {kept.path}, with {kept.dead_bytes} bytes of the topic: {kept.reason}")
    for copy in () if erased is None else erased.copies:
        render.note(f"{copy} still has the bytes")
    render.result(DeletedTopic(topic, messages, dry_run=False), form)
    return CLEAN
