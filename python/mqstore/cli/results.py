"""The verbs `fetch` and `clean` on results at URLs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import mqstore
from mqstore._admin.tables import moment, size
from mqstore.cli import render
from mqstore.cli.app import _verb, app
from mqstore.cli.options import ReportForm, age_of
from mqstore.cli.render import Format
from mqstore.cli.status import CLEAN, USAGE

# Not a Path, which would change a URL.
Url = Annotated[str, typer.Argument(metavar="URL", help="URL of the result.")]


@app.command()
@_verb
def fetch(
    url: Url,
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="New directory.")],
    form: ReportForm = Format.TABLE,
) -> int:
    """Assembles a directory from a result at a URL, and checks every file; run it again to resume it."""
    with render.progress("fetching") as bar:
        report = mqstore.fetch(_url(url), directory, progress=bar)
    if not render.machine(report.to_dict(), form):
        render.report(report.to_dict())
    return CLEAN


@app.command()
@_verb
def clean(
    url: Url,
    older_than: Annotated[
        str, typer.Option("--older-than", metavar="AGE", help='Minimum age of an attempt: "1d", "12h".')
    ] = "1d",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only list the objects.")] = False,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
    form: ReportForm = Format.TABLE,
) -> int:
    """Removes the objects that failed writes of a result left at a URL."""
    age = age_of("--older-than", older_than)
    plan = mqstore.clean(_url(url), older_than=age, dry_run=True)
    if dry_run or not plan.objects:
        print_removed(plan, form)
        if dry_run:
            render.dry_run()
        return CLEAN
    if form is Format.TABLE:
        print_removed(plan, form)
    question = f"Remove these {len(plan.objects)} objects?"
    otherwise = f"{len(plan.objects)} objects would be removed; pass --yes to do it, or --dry-run to list them"
    if not render.confirmed(question, otherwise, yes=yes):
        return USAGE
    done = mqstore.clean(url, older_than=age)
    if form is Format.TABLE:
        render.note(f"removed {len(done.objects)} objects with {size(done.bytes)}")
    else:
        print_removed(done, form)
    return CLEAN


def _url(text: str) -> str:
    from mqstore._paths import is_url

    if not is_url(text):
        raise typer.BadParameter(f"{text} is not a URL")
    return text


def print_removed(report: mqstore.CleanReport, form: Format) -> None:
    """Prints the objects that a `clean` has removed, or would remove."""
    if not render.machine(report.to_dict(), form):
        rows = [(one.path, size(one.bytes), moment(one.changed_timestamp)) for one in report.objects]
        render.table(("object", "bytes", "changed"), rows)
        render.facts({"objects": len(rows), "bytes": report.bytes, "kept": report.kept})
