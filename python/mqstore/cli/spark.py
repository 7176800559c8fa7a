"""The verbs that run on Spark: `mqstore spark compact | verify | rebuild | export`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from mqstore._remote.glob import is_pattern
from mqstore._store import when_unlocked
from mqstore.cli import render
from mqstore.cli.app import group_of_verbs, verb
from mqstore.cli.errors import error_text_of
from mqstore.cli.options import Directory, LockTimeout, ReportForm, ReportOnly, Topics, lock_wait
from mqstore.cli.render import Format
from mqstore.cli.status import CLEAN, FAILED, PROBLEMS
from mqstore.cli.stores import Directories
from mqstore.cli.write import named_values

if TYPE_CHECKING:
    from mqstore import spark as jobs
    from mqstore.types import OnError

spark_app = group_of_verbs("spark", "Process stores on Spark.")

Master = Annotated[str, typer.Option("--master", help="Spark master: local[4], spark://host:7077, yarn.")]


@contextmanager
def _session(master: str) -> Iterator[Any]:
    """Yields a new Spark session; executors on other machines get the package."""
    from mqstore.spark import ship
    from mqstore.spark._session import begin, is_local

    session = begin(master)
    try:
        if not is_local(master):
            ship(session)
        yield session
    finally:
        session.stop()


@verb(group=spark_app)
def verify(
    directories: Directories,
    master: Master = "local[*]",
    strategy: Annotated[str, typer.Option(help="auto, partition (one task a store) or ranged (several).")] = "auto",
    staging: Annotated[Path | None, typer.Option(help="Shared folder for the files of the tasks.")] = None,
    form: ReportForm = Format.TABLE,
) -> int:
    """Checks stores, one task for each and several for large ones; exit status 1 if there are problems."""
    from mqstore import spark as jobs

    with _session(master) as session, render.progress("verifying", share=True) as bar:
        found = jobs.verify(
            session,
            directories,
            strategy=cast("jobs.Strategy", strategy),
            staging=staging,
            progress=bar,
            on_error=_on_error(directories),
        )
    rows = [{"path": path, **report.to_dict()} for path, report in found.items()]
    if not render.machine(rows, form):
        counted = [{**row, "problems": len(row["problems"])} for row in rows]
        render.listing(counted, "path", "ok", "messages", "bytes", "problems", path="store", bytes="size")
    return _status(found, PROBLEMS if any(not each.ok for each in found.values()) else CLEAN)


@verb(group=spark_app)
def rebuild(
    directories: Directories,
    master: Master = "local[*]",
    dry_run: ReportOnly = False,
    lock_timeout: LockTimeout = "0",
    form: ReportForm = Format.TABLE,
) -> int:
    """Rebuilds queues and key index of stores; exit status 1 if a log is damaged."""
    from mqstore import spark as jobs

    wait = lock_wait(lock_timeout)
    with _session(master) as session, render.progress("building queues and index", share=True) as bar:
        skips = _on_error(directories)
        found = when_unlocked(
            wait, lambda: jobs.rebuild(session, directories, dry_run=dry_run, progress=bar, on_error=skips)
        )
    rows = [{"path": path, **report.to_dict()} for path, report in found.items()]
    if not render.machine(rows, form):
        render.listing(rows, "path", "messages", "queues", "index_entries", path="store")
        for each in found.values():
            for text in each.skipped:
                render.note(text)
    if dry_run:
        render.note_dry_run()
    return _status(found, PROBLEMS if any(each.skipped for each in found.values()) else CLEAN)


@verb(group=spark_app)
def compact(
    directories: Directories,
    topics: Topics = None,
    output: Annotated[str | None, typer.Option(help="New folder or URL for a compacted copy of one store.")] = None,
    master: Master = "local[*]",
    job_id: Annotated[str | None, typer.Option(help="Job name; a finished job is not repeated.")] = None,
    strategy: Annotated[str, typer.Option(help="auto, partition (one task a queue) or ranged (several).")] = "auto",
    memory_size: Annotated[int, typer.Option(help="Bytes of memory for the keys of one task.")] = 100 << 20,
    dry_run: ReportOnly = False,
    lock_timeout: LockTimeout = "0",
    form: ReportForm = Format.TABLE,
) -> int:
    """Keeps the newest message of each key of compaction topics; exit status 1 if a queue was skipped."""
    from mqstore import spark as jobs

    wait = lock_wait(lock_timeout)
    if output is not None and len(directories) > 1:
        raise typer.BadParameter("--output is for one store")
    with _session(master) as session, render.progress("compacting", share=True) as bar:
        call: Any = partial(
            jobs.compact,
            session,
            topics=topics or None,
            job_id=job_id,
            strategy=cast("jobs.Strategy", strategy),
            memory_size=memory_size,
            dry_run=dry_run,
            progress=bar,
        )
        found: jobs.Reports[Any]
        if output is None:
            found = when_unlocked(wait, lambda: call(directories, on_error=_on_error(directories)))
        else:
            found = jobs.Reports({output: when_unlocked(wait, lambda: call(directories[0], output=output))})
    rows = [{"path": path, **report.to_dict()} for path, report in found.items()]
    if not render.machine(rows, form):
        titles = {"messages_before": "messages", "messages_after": "kept", "keys": "keys", "seconds": "time"}
        render.listing(rows, "path", *titles, path="store", **titles)
        for path, each in found.items():
            for text in each.skipped:
                render.note(f"{path}: left out {text}" if len(found) > 1 else f"left out {text}")
    if dry_run:
        render.note_dry_run()
    return _status(found, PROBLEMS if any(each.skipped for each in found.values()) else CLEAN)


@verb(group=spark_app)
def export(
    directory: Directory,
    out: Annotated[str, typer.Argument(metavar="OUT", help="Folder to create, or a URL.")],
    to: Annotated[str, typer.Option("--to", help="parquet or arrow.")] = "parquet",
    options: Annotated[
        list[str] | None, typer.Option("--option", metavar="NAME=VALUE", help="Option of a read; repeat for more.")
    ] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an existing folder.")] = False,
    master: Master = "local[*]",
    form: ReportForm = Format.TABLE,
) -> int:
    """Writes messages to a folder of Parquet or Arrow files."""
    from mqstore import spark as jobs

    given: dict[str, Any] = named_values("--option", options)
    if to not in ("parquet", "arrow"):
        raise typer.BadParameter(f"--to must be parquet or arrow, not {to!r}")
    with _session(master) as session, render.progress("exporting", share=True) as bar:
        skips = _on_error([directory])
        found = jobs.export(
            session, directory, out, format=to, overwrite=overwrite, progress=bar, on_error=skips, **given
        )
    if not isinstance(found, jobs.Reports):
        render.result(found, form)
        return CLEAN
    rows = [{"store": path, **report.to_dict()} for path, report in found.items()]
    if not render.machine(rows, form):
        render.listing(rows, "store", "messages", "bytes", "skipped", bytes="size", skipped="left out")
    return _status(found, CLEAN)


def _on_error(directories: list[str]) -> OnError:
    """Returns "skip" for several stores, like the verbs that run without Spark."""
    return "skip" if len(directories) > 1 or is_pattern(directories[0]) else "raise"


def _status(found: jobs.Reports[Any], status: int) -> int:
    """Prints the stores that failed, and returns the exit status of the verb."""
    for path, error in found.failures:
        render.note(error_text_of(path, error))
    return FAILED if found.failures else status
