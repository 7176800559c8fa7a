"""The verb `reclaim`: the disk space of hidden messages."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

import mqstore
from mqstore._admin.tables import size
from mqstore.cli import render
from mqstore.cli.app import verb
from mqstore.cli.options import Directory, LockTimeout, ReportForm, Yes, lock_wait
from mqstore.cli.render import Format
from mqstore.cli.status import CLEAN
from mqstore.cli.stores import writing

if TYPE_CHECKING:
    from collections.abc import Iterable


@verb()
def reclaim(
    directory: Directory,
    erase: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TOPIC", help="Overwrite the hidden messages of this topic, whatever the gain; repeatable."
        ),
    ] = None,
    max_bytes_per_second: Annotated[
        int | None, typer.Option(min=1, help="Maximum bytes to read and write in a second.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only report what would be rewritten.")] = False,
    yes: Yes = False,
    lock_timeout: LockTimeout = "0",
    form: ReportForm = Format.TABLE,
) -> int:
    """Rewrites full segments to free the space of hidden messages: of deleted topics and of the retention of topics."""
    wait = lock_wait(lock_timeout)
    with render.progress("recovering the store") as bar:
        opened = writing(directory, progress=bar, lock_timeout=wait)
    with opened as store:
        plan = store.reclaim(dry_run=True, erase=erase, max_bytes_per_second=max_bytes_per_second)
        what = render.counted(len(plan.segments), "segment")
        question = f"Rewrite {what}?"
        otherwise = f"{what} would be rewritten; pass --yes to do it, or --dry-run to list them"
        show, changes = partial(print_reclaimed, plan, form), bool(plan.segments)
        status = render.confirm_plan(show, form, question, otherwise, changes=changes, dry_run=dry_run, yes=yes)
        if status is not None:
            return status
        done = store.reclaim(erase=erase, max_bytes_per_second=max_bytes_per_second)
    if form is Format.TABLE:
        planned = {segment.path for segment in plan.segments}
        print_kept(kept for kept in done.kept if kept.path in planned)
        render.note(f"rewrote {render.counted(len(done.segments), 'segment')} and freed {size(done.reclaimed_bytes)}")
    else:
        print_reclaimed(done, form)
    return CLEAN


def print_reclaimed(report: mqstore.ReclaimReport, form: Format) -> None:
    """Prints the report of `reclaim`."""
    if render.machine(report, form):
        return
    titles = {"live_bytes": "live", "dead_bytes": "dead", "estimated_bytes": "estimated"}
    render.listing(report.topics, "topic", *titles, **titles)
    for segment in report.segments:
        done, freed = ("would free", segment.estimated_bytes) if report.dry_run else ("freed", segment.reclaimed_bytes)
        render.note(f"{segment.path}: {done} {size(freed)}")
    print_kept(report.kept)


def print_kept(segments: Iterable[mqstore.KeptSegment]) -> None:
    """Prints segments that keep their hidden messages."""
    for kept in segments:
        render.note(f"kept: {kept.path}, with {size(kept.dead_bytes)} of hidden messages: {kept.reason}")
