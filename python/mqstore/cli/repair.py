"""The verbs `verify`, `repair` and `rebuild`, and the tables of problems."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

import mqstore
from mqstore._admin.tables import human, label
from mqstore._store import when_unlocked
from mqstore.cli import render
from mqstore.cli.app import verb
from mqstore.cli.options import BrokerConf, Directory, LockTimeout, ReportForm, ReportOnly, Yes, lock_wait, options_of
from mqstore.cli.render import Format
from mqstore.cli.status import CLEAN, PROBLEMS, USAGE
from mqstore.cli.stores import Directories, Stores

# Number of problems in a table for people; the machine formats list all.
_SHOWN_PROBLEMS = 100
_SHOWN_OF_A_CAUSE = 3


@verb()
def verify(directories: Directories, form: ReportForm = Format.TABLE) -> int:
    """Checks every file of each store; exit status 1 if there are problems."""
    stores = Stores(directories, form)

    def check(directory: str) -> int:
        with render.progress() as bar:
            report = mqstore.verify(directory, progress=bar)
        if not stores.machine(directory, report):
            render.facts({"ok": report.ok, "messages": report.messages, "bytes": report.bytes})
            _problem_tables(report.problems)
            _note_repair(directory, report.problems)
        return CLEAN if report.ok else PROBLEMS

    return stores.each(check)


@verb()
def rebuild(
    directory: Directory,
    dry_run: ReportOnly = False,
    conf: BrokerConf = None,
    lock_timeout: LockTimeout = "0",
    form: ReportForm = Format.TABLE,
) -> int:
    """Rebuilds queues, key index and checkpoint from the log; exit status 1 if the log is damaged."""
    options, wait = options_of(conf), lock_wait(lock_timeout)
    with render.progress("building queues and index") as bar:
        run = partial(mqstore.rebuild, directory, dry_run=dry_run, options=options, progress=bar)
        report = when_unlocked(wait, run)
    render.result(report, form, "skipped")
    for text in report.skipped if form is Format.TABLE else ():
        render.note(text)
    if dry_run:
        render.note_dry_run()
    return PROBLEMS if report.skipped else CLEAN


@verb()
def repair(
    directory: Directory,
    # Not a Path, which would change a URL.
    output: Annotated[
        str | None, typer.Option(metavar="OUT", help="Repair a copy in this new folder, or at a URL.")
    ] = None,
    in_place: Annotated[bool, typer.Option("--in-place", help="Repair the directory itself.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only report the repairs.")] = False,
    yes: Yes = False,
    conf: BrokerConf = None,
    lock_timeout: LockTimeout = "0",
    form: ReportForm = Format.TABLE,
) -> int:
    """Repairs a damaged directory, so that it opens again; exit status 1 if problems remain."""
    if (output is not None and in_place) or (output is None and not in_place and not dry_run):
        raise typer.BadParameter("give --output OUT, a new folder for a repaired copy, or --in-place")
    repairs = partial(mqstore.repair, directory, options=options_of(conf))
    wait = lock_wait(lock_timeout)
    if dry_run or (in_place and not yes):
        with render.progress("looking for damage") as bar:
            plan = when_unlocked(wait, partial(repairs, dry_run=True, progress=bar))
        if dry_run or not plan.changed:
            _repair_report(plan, form)
            return CLEAN if plan.ok else PROBLEMS
        if form is Format.TABLE:
            _repair_report(plan, form)
        otherwise = f"{len(plan.actions)} repairs would be made; pass --yes to do it, or --dry-run to list them"
        if not render.confirmed("Make these repairs?", otherwise, yes=yes):
            return USAGE
    with render.progress("repairing") as bar:
        report = when_unlocked(wait, partial(repairs, output=output, in_place=in_place, progress=bar))
    _repair_report(report, form)
    return CLEAN if report.ok else PROBLEMS


def _repair_report(report: mqstore.RepairReport, form: Format) -> None:
    if report.dry_run:
        render.note_dry_run()
    if render.machine(report, form):
        return
    changed = label("changed", dry_run=report.dry_run)
    render.facts({"ok": report.ok, changed: report.changed, "messages": report.messages})
    if report.lost:
        render.listing(report.lost, "path", "offset", "bytes", "reason", "kept_as", path="lost in")
    if report.queue_offsets:
        titles = {"from_offset": "no record from", "to_offset": "to before"}
        render.listing(report.queue_offsets, "topic", "queue_id", *titles, **titles)
    if report.actions:
        render.table(("would be done" if report.dry_run else "done",), [(text,) for text in report.actions])
    if report.dry_run and report.problems:
        render.note(f"problems found: {len(report.problems)}; mqstore verify lists them")
    else:
        _problem_tables(report.problems)


def _problem_tables(problems: Sequence[mqstore.Problem]) -> None:
    """Prints the kinds of problems with their meaning, then each problem."""
    if not problems:
        return
    kinds: dict[str, list[mqstore.Problem]] = {}
    for one in problems:
        kinds.setdefault(one.kind, []).append(one)
    rows = [(kind, len(them), them[0].consequence, them[0].repair) for kind, them in kinds.items()]
    render.table(("what", "how often", "what it means", "what to do"), rows)
    causes: dict[tuple[str, str], list[mqstore.Problem]] = {}
    for one in problems:
        causes.setdefault((one.kind, one.path), []).append(one)
    places = [row for them in causes.values() for row in _places(them)]
    render.table(("what", "where", "offset", "detail"), places[:_SHOWN_PROBLEMS])
    if len(places) > _SHOWN_PROBLEMS or len(places) < len(problems):
        render.note("--format json lists every problem")


def _note_repair(directory: str, problems: Sequence[mqstore.Problem]) -> None:
    """Notes the command that repairs all problems that can be repaired; none for a URL or a log alone."""
    repairs = [one.repair for one in problems if not one.repair.startswith("nothing")]
    if not repairs or not Path(directory, "commitlog").is_dir():
        return
    if all(text.endswith("mqstore rebuild DIR") for text in repairs):
        command = f"mqstore rebuild {shlex.quote(directory)}"
    else:
        command = f"mqstore repair {shlex.quote(directory)} --in-place"
    share = "all problems" if len(repairs) == len(problems) else f"{len(repairs)} of these {len(problems)} problems"
    render.note_later(f"{command} repairs {share}")


def _places(problems: Sequence[mqstore.Problem]) -> list[tuple[object, ...]]:
    """Returns the rows of the problems of one kind in one file: the first ones, and one row for all others."""
    rows: list[tuple[object, ...]] = [(p.kind, p.path, human("offset", p.offset), p.detail) for p in problems]
    if len(rows) <= _SHOWN_OF_A_CAUSE + 1:
        return rows
    kind, path, first, _ = rows[_SHOWN_OF_A_CAUSE]
    rest = f"{len(rows) - _SHOWN_OF_A_CAUSE} more of this kind in this file"
    return [*rows[:_SHOWN_OF_A_CAUSE], (kind, path, f"{first} ... {rows[-1][2]}", rest)]
