"""The verbs `archive`, `archive-files`, `archive-verify`, `archive-restore` and `archive-clean`.

`archive` reads a store, and changes it only for its configuration; the other verbs need no store.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import mqstore
from mqstore._archive.place import ArchivePlace
from mqstore.cli import render
from mqstore.cli.app import verb
from mqstore.cli.errors import error_text
from mqstore.cli.options import (
    BrokerConf,
    ListOnly,
    LockTimeout,
    ReportForm,
    Since,
    Topic,
    Until,
    Yes,
    age_of,
    lock_wait,
    options_of,
    past_moment_of,
)
from mqstore.cli.render import Format
from mqstore.cli.stores import writing
from mqstore.cli.targets.results import print_verified, remove_objects

# Not a Path, which would change a URL.
Target = Annotated[str, typer.Argument(metavar="TARGET", help="Folder or URL of the archive.")]
Topics = Annotated[
    list[str] | None, typer.Option("--topics", metavar="TOPIC", help="Only records of this topic; repeatable.")
]


@verb()
def archive(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="Directory of the store.")],
    target: Annotated[str | None, typer.Argument(metavar="TARGET", help="Folder or URL of the archive.")] = None,
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="AGE", help='Minimum age of the last record of a segment: "2d".')
    ] = "0",
    topics: Topics = None,
    level: Annotated[int, typer.Option(min=1, max=19, help="Compression level of zstd.")] = 3,
    configure: Annotated[
        bool,
        typer.Option("--configure", help="Make it the archive of the store: retention keeps what it does not contain."),
    ] = False,
    remove: Annotated[bool, typer.Option("--remove", help="Only remove the configuration; the archive stays.")] = False,
    lock_timeout: LockTimeout = "0",
    form: ReportForm = Format.TABLE,
) -> None:
    """Archives full segments as Parquet files.

    It only reads the store. With --configure, and in a store that has this archive, it also notes in the store what is
    archived.
    """
    age = age_of("--older-than", older_than)
    wait = lock_wait(lock_timeout)
    if remove:
        with writing(directory, lock_timeout=wait) as store:
            store.archive.configure(None)
        render.note("the store has no archive now; retention does not wait for one")
        return
    if target is None:
        raise typer.BadParameter("give TARGET, the folder or URL of the archive")
    with render.progress("archiving") as bar, _opened(directory, target, configure=configure, wait=wait) as store:
        if store.mode == "r":
            report = store.archive.run_to(target, older_than=age, topics=topics or None, level=level, progress=bar)
        else:
            store.archive.configure(target, older_than=age, topics=topics or None, level=level)
            report = store.archive.run(progress=bar)
    render.result(report, form)
    if report.missing_bytes:
        render.note(f"{report.missing_bytes:,} bytes of the log were deleted before they were archived")


def _opened(directory: str, target: str, *, configure: bool, wait: float) -> mqstore.Store:
    """Opens the store: for writing with `configure`, or if TARGET is its archive and no other process writes."""
    store = mqstore.open(directory, archive=False)
    known, wanted = store.archive.target, ArchivePlace(target, None).text
    if configure and known not in (None, wanted):
        store.close()
        raise typer.BadParameter(f"the archive of the store is {known}; remove it with --remove first")
    if not configure and known != wanted:
        return store
    store.close()
    try:
        return writing(directory, lock_timeout=wait)
    except mqstore.StoreLockedError as error:
        if configure:
            raise
        render.note_later(f"{error_text(error)}; so the retention of the store does not know what was archived")
        return mqstore.open(directory)


@verb("archive-files")
def archive_files(target: Target, topic: Topic = None, form: ReportForm = Format.TABLE) -> None:
    """Lists the files of an archive."""
    files = mqstore.Archive(target).files(topic)
    if not render.machine(files, form):
        titles = {"rows": "records", "bytes": "bytes", "first_timestamp": "first", "last_timestamp": "last"}
        render.listing(files, "topic", *titles, "path", path="file", **titles)


@verb("archive-verify")
def archive_verify(
    target: Target,
    rebuild_manifest: Annotated[
        bool, typer.Option("--rebuild-manifest", help="First make a missing or damaged manifest again from the files.")
    ] = False,
    form: ReportForm = Format.TABLE,
) -> int:
    """Reads all files of an archive and compares their records with the checksums of the log."""
    with render.progress("reading the archive") as bar:
        report = mqstore.Archive(target).verify(rebuild_manifest=rebuild_manifest, progress=bar)
    return print_verified(report, form)


@verb("archive-restore")
def archive_restore(
    target: Target,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="New directory.")],
    topics: Topics = None,
    since: Since = None,
    until: Until = None,
    conf: BrokerConf = None,
    form: ReportForm = Format.TABLE,
) -> None:
    """Makes a store directory from an archive; its segments have the bytes of the archived ones."""
    first, last = past_moment_of("--since", since), past_moment_of("--until", until)
    with render.progress("restoring") as bar:
        report = mqstore.Archive(target).restore(
            directory, topics=topics or None, since=first, until=last, options=options_of(conf), progress=bar
        )
    render.result(report, form)


@verb("archive-clean")
def archive_clean(
    target: Target,
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="AGE", help='Minimum age of an object: "7d", "12h".')
    ] = "7d",
    dry_run: ListOnly = False,
    yes: Yes = False,
    form: ReportForm = Format.TABLE,
) -> int:
    """Removes the files that failed runs left in an archive, and manifests that newer ones have replaced."""
    return remove_objects(mqstore.Archive(target).clean, older_than, form, dry_run=dry_run, yes=yes)
