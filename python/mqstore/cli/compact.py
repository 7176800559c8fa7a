"""The verb `compact`."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

import mqstore
from mqstore._share import is_shared
from mqstore._store import when_unlocked
from mqstore.cli import render
from mqstore.cli.app import verb
from mqstore.cli.options import Directory, LockTimeout, ReportForm, ReportOnly, Topics, age_of, lock_wait
from mqstore.cli.render import Format
from mqstore.cli.status import CLEAN, PROBLEMS
from mqstore.cli.stores import writing
from mqstore.types import Keyless


@verb("compact")
def compact(
    directory: Directory,
    topics: Topics = None,
    # Not a Path, which would change a URL.
    output: Annotated[
        str | None, typer.Option(metavar="OUT", help="Compact a copy in this new folder, or at a URL.")
    ] = None,
    in_place: Annotated[bool, typer.Option("--in-place", help="Compact the directory itself.")] = False,
    restore_from: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Restore lost compaction files from this store.")
    ] = None,
    dry_run: ReportOnly = False,
    tombstone_retention: Annotated[
        str, typer.Option(metavar="AGE", help='Time to keep tombstones: "24h"; 0 as RocketMQ.')
    ] = "24h",
    keyless: Annotated[Keyless, typer.Option(help="Treatment of messages without a key.")] = "drop",
    force: Annotated[
        bool, typer.Option("--force", help="Include unchanged queues, and topics that are not compaction topics.")
    ] = False,
    threads: Annotated[int | None, typer.Option(min=1, help="Queues to compact at a time.")] = None,
    memory: Annotated[
        int, typer.Option("--memory", metavar="BYTES", min=0, help="Memory for the keys of one queue.")
    ] = 100 << 20,
    max_bytes_per_second: Annotated[
        int | None, typer.Option(metavar="BYTES", min=1, help="Limit for reads and writes.")
    ] = None,
    job_id: Annotated[str | None, typer.Option(help="Job name. Rerun with the same name to resume.")] = None,
    lock_timeout: LockTimeout = "0",
    form: ReportForm = Format.TABLE,
) -> int:
    """Keeps the newest message of each key of compaction topics; exit status 1 if a queue was skipped."""
    if (output is not None and in_place) or (output is None and not in_place and not dry_run):
        raise typer.BadParameter("give --output OUT, a new folder for a compacted copy, or --in-place")
    wait = lock_wait(lock_timeout)
    with render.progress("compacting" if restore_from is None else "restoring") as bar:
        options: dict[str, Any] = {
            "topics": topics or None,
            "tombstone_retention": age_of("--tombstone-retention", tombstone_retention),
            "dry_run": dry_run,
            "force": force,
            "keyless": keyless,
            "threads": threads,
            "memory_size": memory,
            "max_bytes_per_second": max_bytes_per_second,
            "progress": bar,
        }
        if restore_from is not None:
            if output is not None:
                raise typer.BadParameter("--restore-from needs --in-place; copy the directory first to keep it")
            if job_id is not None:
                raise typer.BadParameter("--restore-from resumes automatically; omit --job-id")
            restore = partial(mqstore.restore_compaction, directory, restore_from, **options)
            return _tell_restored(when_unlocked(wait, restore), form)
        if in_place and job_id is None and is_shared(directory):
            with writing(directory, lock_timeout=wait) as store:
                report = store.compact(options.pop("topics"), **options)
        else:
            run = partial(mqstore.compact, directory, output=output, in_place=in_place, job_id=job_id, **options)
            report = when_unlocked(wait, run)
    skipped = [text for text in report.skipped if not text.endswith(": unchanged")]
    if not render.machine(report.to_dict(), form):
        values = {**report.to_dict(), "queues_unchanged": len(report.skipped) - len(skipped)}
        render.report(values, "skipped", "job_id")
    if not (report.rounds or report.skipped):
        render.note("no compaction topic has messages: create one with --attribute cleanup.policy=COMPACTION")
    return _tell_skipped(skipped, dry_run)


def _tell_restored(report: mqstore.RestoreReport, form: Format) -> int:
    skipped = [text for text in report.skipped if not text.endswith(": nothing is missing")]
    if not render.machine(report, form):
        titles = {"until": "lost before", "messages": "messages copied", "resumed": "copied before"}
        render.listing(report.queues, "topic", "queue_id", *titles, **titles)
        complete = len(report.skipped) - len(skipped)
        restored = "queues to restore" if report.dry_run else "queues restored"
        render.pairs([(restored, len(report.queues)), ("queues complete", complete)])
    return _tell_skipped(skipped, report.dry_run)


def _tell_skipped(skipped: list[str], dry_run: bool) -> int:
    """Prints the queues that were skipped, and returns the exit status."""
    for text in skipped:
        render.note(f"skipped: {text}")
    if dry_run:
        render.note_dry_run()
    return PROBLEMS if skipped else CLEAN
