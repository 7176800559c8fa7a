"""The verbs `export` and `import`, which move messages to files and back."""

from __future__ import annotations

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

import mqstore
from mqstore._admin.export import ExportFormat
from mqstore.cli import render
from mqstore.cli.app import Directory, Moment, ReportForm, _moment, _verb, app
from mqstore.cli.filters import Sql, Tags, chosen
from mqstore.cli.render import Format
from mqstore.cli.status import CLEAN, USAGE


class To(StrEnum):
    """Format of an export."""

    JSONL = "jsonl"
    PARQUET = "parquet"
    ARROW = "arrow"
    STORE = "store"


class Waits(StrEnum):
    """Whether an export contains delayed messages that wait."""

    KEEP = "keep"
    DROP = "drop"


class From(StrEnum):
    """Format of an import."""

    JSONL = "jsonl"
    PARQUET = "parquet"
    ARROW = "arrow"


@app.command("export")
@_verb
def export(
    directory: Directory,
    out: Annotated[Path, typer.Argument(metavar="OUT", help="File or store to write.", show_default=False)],
    topics: Annotated[list[str] | None, typer.Option("--topic", help="Only this topic; repeat for more.")] = None,
    start_time: Moment = None,
    end_time: Moment = None,
    keys: Annotated[
        list[str] | None, typer.Option("--key", help="Only messages with this key; repeat for more.")
    ] = None,
    tags: Tags = None,
    sql: Sql = None,
    body_matches: Annotated[
        str | None, typer.Option(metavar="REGEX", help="Only messages whose body matches.", show_default=False)
    ] = None,
    columns: Annotated[str | None, typer.Option(help="Column names, separated by commas.", show_default=False)] = None,
    to: Annotated[
        To | None, typer.Option("--to", help="Format; by default from the ending of OUT.", show_default=False)
    ] = None,
    mapping: Annotated[
        Path | None, typer.Option(help="For a store: file with old and new positions.", show_default=False)
    ] = None,
    parts: Annotated[
        bool, typer.Option("--parts", help="For Parquet and Arrow: write a folder of files, resumable.")
    ] = False,
    waiting: Annotated[Waits, typer.Option("--waiting", help="Keep or drop delayed messages that wait.")] = Waits.KEEP,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing file.")] = False,
    form: ReportForm = Format.TABLE,
) -> int:
    """Writes messages to a file of JSON lines, Parquet or Arrow, or copies them to another store."""
    wanted = chosen(tags, sql)
    with render.progress("exporting") as bar, _usage():
        done = mqstore.export(
            directory,
            out,
            topics=topics or None,
            start_time=_moment("--start-time", start_time),
            end_time=_moment("--end-time", end_time),
            keys=keys or None,
            body_matches=body_matches,
            filter=wanted,
            columns=None if columns is None else [name.strip() for name in columns.split(",")],
            format=None if to is None else to.value,
            parts=parts,
            overwrite=overwrite,
            mapping=mapping,
            waiting=waiting.value,
            progress=bar,
        )
    _print(done, form)
    return CLEAN


@app.command("import")
@_verb
def import_(
    directory: Directory,
    file: Annotated[Path, typer.Argument(metavar="FILE", help="File from an export.", show_default=False)],
    topic: Annotated[str | None, typer.Option("--topic", help="Topic for all messages.", show_default=False)] = None,
    kind: Annotated[
        From | None, typer.Option("--from", help="Format; by default from the ending of FILE.", show_default=False)
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only report the messages to append.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    form: ReportForm = Format.TABLE,
) -> int:
    """Appends the messages of a file to a store, which is created if missing."""
    chosen: ExportFormat | None = None if kind is None else kind.value
    with _usage():
        plan = mqstore.import_(directory, file, format=chosen, topic=topic, dry_run=True)
    if dry_run or not plan.messages:
        _print(plan, form)
        return CLEAN
    if form is Format.TABLE:
        _print(plan, form)
    if not yes:
        if not sys.stdin.isatty():
            render.note(f"{plan.messages} messages would be appended; pass --yes to append them, or --dry-run")
            return USAGE
        typer.confirm(f"Append these {plan.messages} messages to {directory}?", abort=True, err=True)
    with render.progress("importing") as bar:
        done = mqstore.import_(directory, file, format=chosen, topic=topic, progress=bar)
    if form is Format.TABLE:
        render.note(f"appended {done.messages} messages")
    else:
        _print(done, form)
    return CLEAN


class _usage:  # noqa: N801 - a context, not a class to anybody
    """Reports arguments that the library refuses as a usage error."""

    def __enter__(self) -> None:
        """Does nothing."""

    def __exit__(self, kind: object, error: BaseException | None, _trace: object) -> None:
        """Converts an error about an argument to a usage error."""
        if isinstance(error, mqstore.InvalidOptionError | mqstore.InvalidFilterError) or type(error) is ValueError:
            raise typer.BadParameter(str(error)) from None


def _print(report: mqstore.ExportReport | mqstore.ImportReport, form: Format) -> None:
    values = report.to_dict()
    if not render.machine(values, form):
        topics = values.pop("topics", None)
        values.update({f"left out: {name}": count for name, count in values.pop("reasons", {}).items()})
        facts = {name: "yes" if value is True else "no" if value is False else value for name, value in values.items()}
        render.pairs([(name.replace("_", " "), value) for name, value in facts.items()])
        if topics:
            render.table(("topic", "messages"), list(topics.items()))
