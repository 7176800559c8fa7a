"""The verbs `backup`, `backup-files`, `backup-verify`, `backup-restore` and `backup-clean`.

`backup` only reads the directory; the other verbs need no store.
"""

from __future__ import annotations

import re
import time
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

import mqstore
from mqstore.cli import render
from mqstore.cli.app import verb
from mqstore.cli.options import ListOnly, ReportForm, Yes, age_of, past_moment_of
from mqstore.cli.render import Format
from mqstore.cli.status import CLEAN, PROBLEMS
from mqstore.cli.targets.results import print_verified, remove_objects

# Not a Path, which would change a URL.
Target = Annotated[str, typer.Argument(metavar="TARGET", help="Folder or URL of the backup.")]
Keep = Annotated[str, typer.Option("--keep", metavar="AGE", help='Age up to which old states are kept: "7d", "12h".')]


@verb()
def backup(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="Directory of the store.")],
    target: Target,
    interval: Annotated[
        str | None,
        typer.Option("--interval", metavar="TIME", help='Continue until Ctrl-C, with a round each "10s", "1m".'),
    ] = None,
    keep: Keep = "7d",
    form: ReportForm = Format.TABLE,
) -> None:
    """Uploads what is new in a store: its log up to now, and the metadata.

    It only reads the store, next to any writer, also a broker. --keep counts with --interval only; without it, use
    backup-clean.
    """
    age = age_of("--keep", keep)
    if interval is not None:
        _continue(directory, target, age_of("--interval", interval), age)
        return
    with render.progress("backing up") as bar:
        report = mqstore.Backup(target).run(directory, progress=bar)
    render.result(report, form)
    if report.missing_bytes:
        render.note(f"{report.missing_bytes:,} bytes of the log were deleted before they were backed up")


def _continue(directory: str, target: str, interval: float, keep: float) -> None:
    """Backs up until Ctrl-C, whose last round then ends the verb."""
    with mqstore.backup(directory, target, interval=interval, keep=keep) as running:
        render.note(f"backing up {directory} to {running.target} each {interval:g} s; end it with Ctrl-C")
        try:
            while running.running:
                time.sleep(0.2)
        except KeyboardInterrupt:
            render.note("a last round")


@verb("backup-files")
def backup_files(target: Target, form: ReportForm = Format.TABLE) -> None:
    """Lists the states of a backup; backup-restore can also go to a moment between two."""
    states = mqstore.Backup(target).states()
    if not render.machine(states, form):
        titles = {"log_start": "log from", "log_end": "to", "created_timestamp": "created", "is_complete": "complete"}
        render.listing(states, "number", *titles, "generation", "segments", **titles)


@verb("backup-verify")
def backup_verify(target: Target, form: ReportForm = Format.TABLE) -> int:
    """Reads all objects of a backup and compares them with their digests."""
    with render.progress("reading the backup") as bar:
        report = mqstore.Backup(target).verify(progress=bar)
    return print_verified(report, form)


@verb("backup-restore")
def backup_restore(
    target: Target,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="New directory.")],
    at: Annotated[
        str | None,
        typer.Option("--at", metavar="TIME|OFFSET", help="Only messages stored up to this time, or this log offset."),
    ] = None,
    form: ReportForm = Format.TABLE,
) -> int:
    """Makes a store directory from a backup, and verifies it."""
    offset = int(at) if at is not None and re.fullmatch(r"\d{1,18}", at) else None
    moment = past_moment_of("--at", at) if offset is None else None
    with render.progress("restoring") as bar:
        report = mqstore.Backup(target).restore(directory, at=moment, offset=offset, progress=bar)
    render.result(report, form, "problems")
    if form is Format.TABLE and report.archived_to is not None:
        render.note(f"reads of messages before log offset {report.log_start} continue in the archive of the store")
    return CLEAN if report.ok else PROBLEMS


@verb("backup-clean")
def backup_clean(
    target: Target,
    keep: Keep = "7d",
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="AGE", help='Minimum age of an object that no state names: "1d".')
    ] = "1d",
    dry_run: ListOnly = False,
    yes: Yes = False,
    form: ReportForm = Format.TABLE,
) -> int:
    """Removes old states of a backup, and objects that no other state names."""
    clean = partial(mqstore.Backup(target).clean, keep=age_of("--keep", keep))
    return remove_objects(clean, older_than, form, dry_run=dry_run, yes=yes)
