"""The verbs that describe stores: `info`, `topics`, `stats` and `config show`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import mqstore
from mqstore._admin.tables import human
from mqstore.cli import render
from mqstore.cli.app import group_of_verbs, verb
from mqstore.cli.info import settings
from mqstore.cli.info.hours import hours as hours_of
from mqstore.cli.info.hours import print_hours
from mqstore.cli.info.tables import info_tables, topic_object, topic_table
from mqstore.cli.info.topics import print_summaries, summaries
from mqstore.cli.options import Directory, ReportForm, Since, Topic, Until, past_moment_of
from mqstore.cli.render import Format
from mqstore.cli.status import CLEAN, PROBLEMS
from mqstore.cli.stores import Directories, Stores

config = group_of_verbs("config", "Show the options of a store.")


@verb()
def info(directories: Directories, form: ReportForm = Format.TABLE) -> int:
    """Shows layout, writer, offsets, topics and parts of each store."""
    stores = Stores(directories, form)

    def show(directory: str) -> None:
        report = mqstore.info(directory)
        if not stores.machine(directory, report):
            info_tables(report)

    return stores.each(show)


@verb()
def topics(
    directories: Directories,
    queues: Annotated[bool, typer.Option("--queues", help="List each queue with its range of offsets.")] = False,
    sizes: Annotated[
        bool, typer.Option("--sizes", help="Add the bytes of the records; this reads the whole commit log.")
    ] = False,
    hours: Annotated[
        bool, typer.Option("--hours", help="Count the messages of each hour: the newest 48, or --since and --until.")
    ] = False,
    topic: Topic = None,
    since: Since = None,
    until: Until = None,
    form: ReportForm = Format.TABLE,
) -> int:
    """Lists the topics with their messages and times, with --queues their queues, or with --hours the hours.

    With --hours the exit status is 1 if no hour has messages.
    """
    if queues and sizes:
        raise typer.BadParameter("--sizes are those of topics; omit --queues")
    if hours and (queues or sizes):
        raise typer.BadParameter("--hours lists hours; omit --sizes and --queues")
    if not hours and (topic, since, until) != (None, None, None):
        raise typer.BadParameter("--topic, --since and --until select the messages of --hours; add it")
    times = past_moment_of("--since", since), past_moment_of("--until", until)
    stores = Stores(directories, form)
    has_messages = False

    def show(directory: str) -> None:
        nonlocal has_messages
        with mqstore.open(directory) as store:
            if hours:
                counted = hours_of(store, topic, *times)
                has_messages = has_messages or bool(counted)
                if not stores.machine(directory, counted) and counted:
                    print_hours(counted)
            elif queues:
                objects = [topic_object(store, topic) for topic in store.topics()]
                if not stores.machine(directory, objects):
                    topic_table(objects)
            else:
                found = summaries(store, sizes=sizes)
                if not stores.machine(directory, found):
                    print_summaries(found)

    status = stores.each(show)
    if status == CLEAN and hours and not has_messages:
        missing = "there are no messages" if topic is None else f"the topic {topic} has no messages"
        render.note_later(missing if since is until is None else f"{missing} in this range of times")
        return PROBLEMS
    return status


@verb()
def stats(directory: Directory, form: ReportForm = Format.TABLE) -> None:
    """Shows counters and positions of a store as a reader sees them: visible, durable and dispatched offset."""
    with mqstore.open(directory) as store:
        found = store.stats().to_dict()
    if not render.machine(found, form):
        render.facts(found)


@verb("show", config)
def config_show(
    directory: Annotated[str | None, typer.Argument(metavar="[DIR]", help="A store; its file lengths win.")] = None,
    conf: Annotated[Path | None, typer.Option(help="Properties file of a broker (broker.conf).")] = None,
    form: ReportForm = Format.TABLE,
) -> None:
    """Lists every option with its value, the source of the value, and RocketMQ's name."""
    shown = settings.options(directory, conf)
    for note in [] if conf is None else settings.notes(conf):
        render.note(f"{conf}: {note}")
    if not render.machine(shown, form):
        rows = [
            (one.option, human(one.option, one.value), one.setting or one.source, ", ".join(one.rocketmq))
            for one in shown
        ]
        render.table(("option", "value", "from", "RocketMQ"), rows)
