"""The verbs `published`, `fetch` and `clean` on results at URLs."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

import mqstore
from mqstore._admin.tables import size
from mqstore._paths import is_url
from mqstore.cli import render
from mqstore.cli.app import verb
from mqstore.cli.options import ListOnly, ReportForm, Yes, age_of
from mqstore.cli.render import Format
from mqstore.cli.status import CLEAN, PROBLEMS

# Not a Path, which would change a URL.
Url = Annotated[str, typer.Argument(metavar="URL", help="URL of the result.")]


@verb()
def published(
    url: Annotated[str, typer.Argument(metavar="URL", help="URL of the result, or a local folder.")],
    form: ReportForm = Format.TABLE,
) -> None:
    """Lists the files of the result at a URL."""
    found = mqstore.published(url if is_url(url) else f"file://{Path(url).absolute()}")
    if not render.machine(found, form):
        render.report(found.to_dict(), "files")
        render.listing(found.files, "path", "bytes", "url", path="file")


@verb()
def fetch(
    url: Url,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="New directory.")],
    form: ReportForm = Format.TABLE,
) -> None:
    """Assembles a directory from a result at a URL, and checks every file; run it again to resume it."""
    with render.progress("fetching") as bar:
        report = mqstore.fetch(_url(url), directory, progress=bar)
    render.result(report, form)


@verb()
def clean(
    url: Url,
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="AGE", help='Minimum age of an attempt: "1d", "12h".')
    ] = "1d",
    dry_run: ListOnly = False,
    yes: Yes = False,
    form: ReportForm = Format.TABLE,
) -> int:
    """Removes the objects that failed writes of a result left at a URL."""
    return remove_objects(partial(mqstore.clean, _url(url)), older_than, form, dry_run=dry_run, yes=yes)


def print_verified(report: mqstore.ArchiveVerifyReport | mqstore.BackupVerifyReport, form: Format) -> int:
    """Prints what a verification has found, and returns the exit status."""
    if form is Format.TABLE:
        for problem in report.problems:
            print(render.plain(problem))
    render.result(report, form, "problems")
    return CLEAN if report.ok else PROBLEMS


def remove_objects(
    clean: Callable[..., mqstore.CleanReport], older_than: str, form: Format, *, dry_run: bool, yes: bool
) -> int:
    """Removes what `clean` finds, after a question, and returns the exit status."""
    age = age_of("--older-than", older_than)
    plan = clean(older_than=age, dry_run=True)
    objects = render.counted(len(plan.objects), "object")
    question = f"Remove {objects}?"
    otherwise = f"{objects} would be removed; pass --yes to do it, or --dry-run to list them"
    show = partial(_print_removed, plan, form)
    status = render.confirm_plan(show, form, question, otherwise, changes=bool(plan.objects), dry_run=dry_run, yes=yes)
    if status is None:
        done = clean(older_than=age)
        if form is Format.TABLE:
            render.note(f"removed {render.counted(len(done.objects), 'object')} with {size(done.bytes)}")
        else:
            _print_removed(done, form)
    return CLEAN if status is None else status


def _url(text: str) -> str:
    if not is_url(text):
        raise typer.BadParameter(f"{text} is not a URL")
    return text


def _print_removed(report: mqstore.CleanReport, form: Format) -> None:
    if not render.machine(report, form):
        render.listing(report.objects, "path", "bytes", "changed_timestamp", path="object", changed_timestamp="changed")
        render.facts({"objects": len(report.objects), "bytes": report.bytes, "kept": report.kept})
