"""The verb `retention`: limits of single topics, and their bytes."""

from __future__ import annotations

from typing import Annotated

import typer

import mqstore
from mqstore.cli import render
from mqstore.cli.app import verb
from mqstore.cli.options import Directory, LockTimeout, ReportForm, age_of, lock_wait
from mqstore.cli.render import Format
from mqstore.cli.stores import writing


@verb()
def retention(
    directory: Directory,
    topic: Annotated[
        str | None, typer.Argument(metavar="[TOPIC]", help="Only this topic; with a limit, set it.")
    ] = None,
    keep: Annotated[
        str | None, typer.Option(metavar="AGE", help='Maximum age of a message: "6h", "7d", or seconds.')
    ] = None,
    max_bytes: Annotated[int | None, typer.Option(min=1, help="Maximum bytes of the topic's records.")] = None,
    max_messages: Annotated[int | None, typer.Option(min=1, help="Maximum number of messages.")] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the limits of the topic.")] = False,
    lock_timeout: LockTimeout = "0",
    form: ReportForm = Format.TABLE,
) -> None:
    """Prints the limits of topics and their bytes in the log; with a limit, sets all limits of a topic."""
    sets = not (keep is None and max_bytes is None and max_messages is None)
    if sets and remove:
        raise typer.BadParameter("give limits or --remove, not both")
    if (sets or remove) and topic is None:
        raise typer.BadParameter("give TOPIC, the topic to change")
    wait = lock_wait(lock_timeout)
    age = None if keep is None else age_of("--keep", keep)
    if topic is not None and (sets or remove):
        with writing(directory, lock_timeout=wait) as store:
            store.set_retention(topic, keep=age, max_bytes=max_bytes, max_messages=max_messages)
            _print(store.retention(), topic, form)
        return
    with mqstore.open(directory) as store:
        if topic is not None:
            # Raises the error about a topic that does not exist.
            store.queues(topic)
        _print(store.retention(), topic, form)


def _print(found: list[mqstore.TopicRetention], topic: str | None, form: Format) -> None:
    shown = [one for one in found if topic in (None, one.topic)]
    if not render.machine(shown, form):
        limits = ("keep_seconds", "max_bytes", "max_messages")
        bytes_of = ("live_bytes", "dead_bytes", "reclaimable_bytes")
        titles = {"keep_seconds": "keep", **{name: name.removesuffix("_bytes") for name in bytes_of}}
        render.listing(shown, "topic", *limits, "floor", *bytes_of, **titles)
