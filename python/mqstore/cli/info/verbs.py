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
from mqstore.cli.info.tables import info_tables, topic_object, topic_table
from mqstore.cli.info.topics import print_summaries, summaries
from mqstore.cli.options import Directory, ReportForm
from mqstore.cli.render import Format
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
    form: ReportForm = Format.TABLE,
) -> int:
    """Lists the topics with their messages and times, or with --queues their queues."""
    if queues and sizes:
        raise typer.BadParameter("--sizes are those of topics; omit --queues")
    stores = Stores(directories, form)

    def show(directory: str) -> None:
        with mqstore.open(directory) as store:
            if queues:
                objects = [topic_object(store, topic) for topic in store.topics()]
                if not stores.machine(directory, objects):
                    topic_table(objects)
            else:
                found = summaries(store, sizes=sizes)
                if not stores.machine(directory, found):
                    print_summaries(found)

    return stores.each(show)


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
