"""The verbs that copy messages: `export`, `import`, `copy-topic` and `snapshot`; `-` is standard output or input."""

from __future__ import annotations

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

import mqstore
from mqstore._admin.export.formats import ExportFormat, Waiting
from mqstore._paths import is_url
from mqstore._store import when_unlocked
from mqstore.cli import render
from mqstore.cli.app import verb
from mqstore.cli.errors import error_text
from mqstore.cli.filters import Keys, Sql, Tags, chosen
from mqstore.cli.options import (
    Archive,
    Compress,
    CompressOver,
    Create,
    Directory,
    LockTimeout,
    NoArchive,
    OnDamage,
    ReportForm,
    Since,
    Topics,
    Until,
    Yes,
    archive_of,
    lock_wait,
    past_moment_of,
)
from mqstore.cli.render import Format
from mqstore.cli.status import CLEAN, PROBLEMS, USAGE
from mqstore.types import DledgerEnd

# Stands for standard output or standard input.
_STANDARD = "-"

From = Literal["jsonl", "parquet", "arrow"]
"""Format of an import."""


@verb("export")
def export(
    directory: Directory,
    # Not a Path, which would change a URL.
    out: Annotated[str, typer.Argument(metavar="OUT", help="File, store or URL to write; - is standard output.")],
    topics: Topics = None,
    since: Since = None,
    until: Until = None,
    keys: Keys = None,
    tags: Tags = None,
    sql: Sql = None,
    body_matches: Annotated[str | None, typer.Option(metavar="REGEX", help="Only messages whose body matches.")] = None,
    columns: Annotated[str | None, typer.Option(help="Column names, separated by commas.")] = None,
    to: Annotated[ExportFormat | None, typer.Option("--to", help="Format; by default from the ending of OUT.")] = None,
    mapping: Annotated[Path | None, typer.Option(help="For a store: file with old and new positions.")] = None,
    parts: Annotated[
        bool, typer.Option("--parts", help="For Parquet and Arrow: write a folder of files, resumable.")
    ] = False,
    partition_by: Annotated[
        str | None,
        typer.Option(
            "--partition-by",
            metavar="COLUMNS",
            help="For Parquet and Arrow: write folders by topic, queue_id, tags, day or hour, separated by commas.",
        ),
    ] = None,
    waiting: Annotated[Waiting, typer.Option("--waiting", help="Keep or drop delayed messages that wait.")] = "keep",
    keep_offsets: Annotated[
        bool | None,
        typer.Option(
            "--keep-offsets/--new-offsets",
            help="For a store: keep the queue offsets, or count from the end of each queue; by default, a new store "
            "keeps them.",
        ),
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
    dledger_end: Annotated[
        DledgerEnd, typer.Option("--dledger-end", help="For a directory of DLedger: the last exported entry.")
    ] = "queues",
    on_damage: OnDamage = "skip",
    lock_timeout: LockTimeout = "0",
    form: ReportForm = Format.TABLE,
) -> None:
    """Writes messages to a file of JSON lines, Parquet or Arrow, copies them to another store, or writes a URL."""
    wanted, wait = chosen(tags, sql), lock_wait(lock_timeout)
    if out == _STANDARD:
        to = to or "jsonl"
        if to == "store" or parts or partition_by is not None or mapping is not None:
            told = "standard output takes one file: omit --parts, --partition-by, --mapping and --to store"
            raise typer.BadParameter(told)
    with render.progress("exporting") as bar, _usage(), _file_for(out) as file:
        run = partial(
            mqstore.export,
            directory,
            file,
            topics=topics or None,
            start_time=past_moment_of("--since", since),
            end_time=past_moment_of("--until", until),
            keys=keys or None,
            body_matches=body_matches,
            filter=wanted,
            columns=_names(columns),
            format=to,
            parts=parts,
            partition_by=_names(partition_by),
            overwrite=overwrite,
            mapping=mapping,
            waiting=waiting,
            keep_offsets=keep_offsets,
            dledger_end=dledger_end,
            on_damage=on_damage,
            progress=bar,
        )
        done = when_unlocked(wait, run)
    if out == _STANDARD:
        render.note(f"exported {render.counted(done.messages, 'message')}")
    else:
        _print(done, form)


@verb("copy-topic")
def copy_topic(
    source: Annotated[str, typer.Argument(metavar="SRC", help="Directory or URL of the store to read.")],
    target: Annotated[Path, typer.Argument(metavar="DST", help="Store to write; created if missing.")],
    topics: Annotated[list[str], typer.Option("--topic", help="Topic to copy; repeat for more.")],
    groups: Annotated[
        list[str] | None, typer.Option("--group", help="Group to move, by default all; repeat for more.")
    ] = None,
    mapping: Annotated[Path | None, typer.Option(help="Folder with old and new positions.")] = None,
    archive: Archive = None,
    no_archive: NoArchive = False,
    over_gaps: Annotated[
        bool, typer.Option("--over-gaps", help="Move groups past messages that the copy lacks, and accept gaps.")
    ] = False,
    lock_timeout: LockTimeout = "0",
    form: ReportForm = Format.TABLE,
) -> int:
    """Copies topics to another store, from where the last call ended, and moves their groups there."""
    wait = lock_wait(lock_timeout)
    with render.progress("copying") as bar, _usage():
        run = partial(
            mqstore.copy_topic,
            source,
            target,
            topics,
            groups=groups or None,
            mapping=mapping,
            archive=archive_of(archive, no_archive),
            over_gaps=over_gaps,
            progress=bar,
        )
        done = when_unlocked(wait, run)
    if not render.machine(done, form):
        render.report(done.to_dict(), "groups", "gaps", "held_groups")
        offset = ("topic", "queue_id", "offset")
        if done.groups:
            render.listing(done.groups, "group", *offset)
        if done.gaps:
            titles = {"first_offset": "missing from", "end_offset": "to"}
            render.listing(done.gaps, "topic", "queue_id", *titles, **titles)
        if done.held_groups:
            render.listing(done.held_groups, "group", *offset, group="held group")
    if over_gaps or not (done.gaps or done.held_groups):
        return CLEAN
    render.note("the source no longer has some messages; held groups have not read all of them: see --over-gaps")
    return PROBLEMS


@verb("import")
def import_(
    directory: Directory,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File from an export; - is standard input.")],
    topic: Annotated[str | None, typer.Option("--topic", help="Topic for all messages.")] = None,
    kind: Annotated[From | None, typer.Option("--from", help="Format; by default from the ending of FILE.")] = None,
    compression: Compress = "none",
    compress_over: CompressOver = 4096,
    create: Create = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only report the messages to append.")] = False,
    yes: Yes = False,
    lock_timeout: LockTimeout = "0",
    form: ReportForm = Format.TABLE,
) -> int:
    """Appends the messages of a file to a store."""
    chosen: ExportFormat | None = kind
    wait = lock_wait(lock_timeout)
    if str(file) == _STANDARD:
        chosen = chosen or "jsonl"
        if not (yes or dry_run):
            render.note("standard input is the file, so it cannot answer a question; pass --yes, or --dry-run")
            return USAGE
    if not create:
        # Raises the error about a store that does not exist.
        mqstore.open(directory).close()
    with _file_from(file) as source:
        with _usage():
            plan = replace(
                mqstore.import_(directory, source, format=chosen, topic=topic, dry_run=True), source=str(file)
            )
        messages = render.counted(plan.messages, "message")
        question = f"Append {messages} to {directory}?"
        otherwise = f"{messages} would be appended; pass --yes to do it, or --dry-run"
        show, changes = partial(_print, plan, form), bool(plan.messages)
        status = render.confirm_plan(show, form, question, otherwise, changes=changes, dry_run=dry_run, yes=yes)
        if status is not None:
            return status
        with render.progress("importing") as bar:
            run = partial(
                mqstore.import_,
                directory,
                source,
                format=chosen,
                topic=topic,
                compression=compression,
                compress_over=compress_over,
                progress=bar,
            )
            done = when_unlocked(wait, run)
    if form is Format.TABLE:
        render.note(f"appended {render.counted(done.messages, 'message')}")
    else:
        _print(replace(done, source=str(file)), form)
    return CLEAN


@verb()
def snapshot(
    directory: Directory,
    output: Annotated[str, typer.Argument(metavar="OUT", help="New folder or URL for the copy.")],
    form: ReportForm = Format.TABLE,
) -> None:
    """Copies the store to a new folder as it is now, even while another process writes it."""
    with mqstore.open(directory) as store, render.progress("copying") as bar:
        report = store.snapshot(output, progress=bar)
    # An upload links no file.
    render.result(report, form, *(["linked_segments"] if is_url(output) else []))


@contextmanager
def _file_for(out: str) -> Iterator[str | Path]:
    """Yields the file to write. The bytes for standard output are in a temporary file until they are complete."""
    if out != _STANDARD:
        yield out
        return
    with tempfile.TemporaryDirectory(prefix="mqstore-") as folder:
        file = Path(folder) / "standard-output"
        yield file
        with file.open("rb") as content:
            shutil.copyfileobj(content, sys.stdout.buffer)


@contextmanager
def _file_from(file: Path) -> Iterator[Path]:
    """Yields the file to read. An import reads its file twice, so standard input goes to a temporary file first."""
    if str(file) != _STANDARD:
        yield file
        return
    with tempfile.TemporaryDirectory(prefix="mqstore-") as folder:
        copy = Path(folder) / "standard-input"
        with copy.open("wb") as content:
            shutil.copyfileobj(sys.stdin.buffer, content)
        yield copy


def _names(columns: str | None) -> list[str] | None:
    return None if columns is None else [name.strip() for name in columns.split(",")]


class _usage:  # noqa: N801 - a context, not a class to anybody
    """Reports arguments that the library refuses as a usage error."""

    def __enter__(self) -> None:
        """Does nothing."""

    def __exit__(self, kind: object, error: BaseException | None, _trace: object) -> None:
        """Converts an error about an argument to a usage error."""
        if isinstance(error, mqstore.InvalidOptionError | mqstore.InvalidFilterError) or type(error) is ValueError:
            raise typer.BadParameter(error_text(error)) from None


def _print(report: mqstore.ExportReport | mqstore.ImportReport, form: Format) -> None:
    values = report.to_dict()
    if not render.machine(values, form):
        topics = values.pop("topics", None)
        values.update({f"skipped: {name}": count for name, count in values.pop("reasons", {}).items()})
        render.report(values)
        if topics:
            render.table(("topic", "messages"), list(topics.items()))
