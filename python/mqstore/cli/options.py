"""The options that several verbs share, and the values of their texts."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import typer

import mqstore
from mqstore._times import command_line_time, duration_of, milliseconds_of
from mqstore.cli import render
from mqstore.cli.render import Body, Format

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")

LockTimeout = Annotated[
    str,
    typer.Option(
        "--lock-timeout",
        metavar="DURATION",
        help='Longest wait while another process has the lock of the store: "30s".',
    ),
]

# Not a Path, which would change a URL.
Directory = Annotated[str, typer.Argument(metavar="DIR", help="Directory of the store; to read it, also a URL.")]
Topic = Annotated[str | None, typer.Option("--topic", help="Only this topic.")]
Topics = Annotated[list[str] | None, typer.Option("--topic", help="Only this topic; repeat for more.")]
Queue = Annotated[int | None, typer.Option("--queue", min=0, help="Only this queue.")]
Limit = Annotated[int | None, typer.Option("--limit", min=0, help="Maximum number of messages.")]
BodyForm = Annotated[Body, typer.Option("--body", help="Form of the bodies; auto is text if a body is UTF-8.")]
Create = Annotated[bool, typer.Option("--create", help="Create the store if DIR does not exist.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only report the change.")]
ReportOnly = Annotated[bool, typer.Option("--dry-run", help="Only report the result.")]
ListOnly = Annotated[bool, typer.Option("--dry-run", help="Only list the objects.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")]
ReportForm = Annotated[Format, typer.Option("--format", help="Format of the output.")]
BrokerConf = Annotated[
    Path | None, typer.Option("--conf", help="Properties file of a broker, for the lengths of new files.")
]
OnDamage = Annotated[
    Literal["raise", "skip"],
    typer.Option("--on-damage", help="At a damaged record, end with an error or skip it with a note."),
]
Compress = Annotated[
    Literal["zstd", "lz4", "zlib", "none"], typer.Option("--compression", help="Compression of the bodies.")
]
CompressOver = Annotated[
    int, typer.Option("--compress-over", min=0, metavar="BYTES", help="Bytes that a body needs to be compressed.")
]
TIMES = "a date, ISO 8601 (local without an offset), epoch milliseconds, or an age such as 24h"
"""Help for the values that `past_moment_of` takes."""

MessageForm = Annotated[
    Format | None, typer.Option("--format", help="Format of the output; jsonl if it is not a terminal.")
]
Since = Annotated[
    str | None,
    typer.Option(
        "--since",
        "--start-time",
        metavar="TIME",
        help=f"Only messages stored at or after this time: {TIMES}.",
    ),
]
Until = Annotated[
    str | None, typer.Option("--until", "--end-time", metavar="TIME", help="Only messages stored before this time.")
]
Archive = Annotated[
    str | None,
    typer.Option(
        "--archive",
        metavar="TARGET",
        help="Folder or URL of the archive with the older messages; by default that of the store.",
    ),
]
NoArchive = Annotated[bool, typer.Option("--no-archive", help="Begin with the log, also if the store has an archive.")]


def message_form(form: Format | None) -> Format:
    """Returns the format of messages: the given one, or one that fits standard output."""
    if form is not None:
        return form
    return Format.TABLE if sys.stdout.isatty() else Format.JSONL


def moment_of(option: str, text: str | None) -> int | None:
    """Returns the epoch milliseconds of a time in the text of an option.

    Raises:
        typer.BadParameter: the text is not a time.
    """
    return None if text is None else _value_of(milliseconds_of, option, text)


def past_moment_of(option: str, text: str | None) -> int | None:
    """Returns the epoch milliseconds of a time, local time or age in the text of an option; a note names a local zone.

    Raises:
        typer.BadParameter: the text is none of these.
    """
    if text is None:
        return None
    found, local = _value_of(command_line_time, option, text)
    if local is not None:
        render.note_later(f"{option} {text} is local time, in the zone {local.tzname()}: {local.isoformat()}")
    return found


def options_of(conf: Path | None) -> mqstore.StoreOptions:
    """Returns the options in a properties file of a broker, or the default ones."""
    return mqstore.StoreOptions() if conf is None else mqstore.StoreOptions.from_broker_conf(conf)


def age_of(option: str, text: str) -> float:
    """Returns the seconds of a duration in the text of an option.

    Raises:
        typer.BadParameter: the text is not a duration.
    """
    return _value_of(duration_of, option, text)


def _value_of(parse: Callable[[str, str], T], option: str, text: str) -> T:
    try:
        return parse(option, text)
    except mqstore.InvalidOptionError as error:
        raise typer.BadParameter(str(error)) from None


def lock_wait(lock_timeout: str) -> float:
    """Returns the seconds of `--lock-timeout`."""
    return age_of("--lock-timeout", lock_timeout)


def archive_of(archive: str | None, no_archive: bool) -> bool | str | None:
    """Returns the argument `archive` of an open."""
    if archive is not None and no_archive:
        raise typer.BadParameter("--archive and --no-archive exclude each other")
    return False if no_archive else archive
