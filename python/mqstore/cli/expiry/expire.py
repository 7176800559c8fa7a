"""The verb `expire`: deletes what retention allows to delete."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import mqstore
from mqstore._admin.tables import size
from mqstore._share import is_shared
from mqstore._store import has_topic_limits
from mqstore.cli import render
from mqstore.cli.app import verb
from mqstore.cli.options import Directory, LockTimeout, ReportForm, Yes, age_of, lock_wait, options_of
from mqstore.cli.render import Format
from mqstore.cli.status import CLEAN
from mqstore.cli.stores import writing

if TYPE_CHECKING:
    from mqstore.types import RetentionPolicy


@verb()
def expire(
    directory: Directory,
    retention: Annotated[
        str | None, typer.Option(metavar="AGE", help='Age to keep: "72h", "7d", "P7D", or seconds.')
    ] = None,
    retention_bytes: Annotated[int | None, typer.Option(min=1, help="Bytes of log segments to keep.")] = None,
    retention_policy: Annotated[
        str | None,
        typer.Option(
            metavar="POLICY", help='"finished": groups keep what they have not finished. "time": they do not.'
        ),
    ] = None,
    group_timeout: Annotated[
        str | None, typer.Option(metavar="AGE", help="Time after which a group without progress keeps nothing.")
    ] = None,
    conf: Annotated[Path | None, typer.Option(help="Properties file of a broker, for its retention.")] = None,
    secure_wipe: Annotated[bool, typer.Option("--secure-wipe", help="Overwrite segments with zeros first.")] = False,
    compact: Annotated[
        bool, typer.Option("--compact", help="Compact first, so that no segment must stay for a compaction topic.")
    ] = False,
    expire_uncompacted: Annotated[
        bool,
        typer.Option(
            "--expire-uncompacted", help="Delete segments even if they have messages that no compaction has read."
        ),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only report the files to delete.")] = False,
    yes: Yes = False,
    lock_timeout: LockTimeout = "0",
    form: ReportForm = Format.TABLE,
) -> int:
    """Deletes the oldest log segments, and the queue and index files that point to deleted segments only.

    It also applies the retention of single topics. If processes share the store, it applies theirs.
    """
    is_given = not (retention is None and retention_bytes is None and conf is None)
    wait = lock_wait(lock_timeout)
    options = replace(options_of(conf), secure_wipe=secure_wipe, expire_uncompacted=expire_uncompacted)
    if retention is not None:
        options = replace(options, retention=age_of("--retention", retention))
    if retention_bytes is not None:
        options = replace(options, retention_bytes=retention_bytes)
    if retention_policy is not None:
        options = replace(options, retention_policy=_policy(retention_policy))
    if group_timeout is not None:
        options = replace(options, group_timeout=age_of("--group-timeout", group_timeout))
    # Processes that share the store have its retention among their options.
    shares = is_shared(directory)
    looking = (
        writing(directory, options=options, lock_timeout=wait) if shares else mqstore.open(directory, options=options)
    )
    with looking as store:
        if not is_given and not shares and not has_topic_limits(store):
            raise typer.BadParameter("give at least one of --retention, --retention-bytes and --conf")
        plan = store.expire(dry_run=True)
    # Only a real run starts the times of the groups that keep segments.
    starts = group_timeout is not None and bool(plan.kept_by)
    deletes = bool(plan.files or plan.topics or (plan.kept and compact))
    question, what = _expire_texts(plan, deletes=deletes, compact=compact)
    otherwise = f"{what}; pass --yes to do it, or --dry-run to list what is due"
    show, changes = partial(_expire_report, plan, form), deletes or starts
    status = render.confirm_plan(show, form, question, otherwise, changes=changes, dry_run=dry_run, yes=yes)
    if status == CLEAN:
        _tell_kept(plan)
    if status is not None:
        return status
    with render.progress("recovering the store") as bar:
        opened = writing(directory, options=options, progress=bar, lock_timeout=wait)
    with opened as store:
        done = store.expire(dry_run=False, compact=compact)
    _tell_kept(done)
    if form is Format.TABLE:
        render.note(f"deleted {render.counted(len(done.files), 'file')} with {size(done.bytes)}")
        _tell_hidden(done)
    else:
        _expire_report(done, form)
    return CLEAN


def _policy(text: str) -> RetentionPolicy:
    policies: dict[str, RetentionPolicy] = {"finished": "finished", "time": "time"}
    if text not in policies:
        raise typer.BadParameter(f'--retention-policy {text!r} must be "finished" or "time"')
    return policies[text]


def _tell_hidden(report: mqstore.ExpireReport) -> None:
    for one in report.topics:
        render.note(f"hid {render.counted(one.messages, 'message')} of {one.topic}")


def _tell_kept(report: mqstore.ExpireReport) -> None:
    for reason in report.kept:
        render.note(f"kept for now: {reason}")
    if report.stays:
        render.note(report.stays)


def _expire_texts(plan: mqstore.ExpireReport, *, deletes: bool, compact: bool) -> tuple[str, str]:
    """Returns the question before an expiry, and its effects."""
    if not deletes:
        return "Start the time of the groups that keep files?", "the time of groups would start"
    first = "Compact, then delete" if compact else "Delete"
    files = render.counted(len(plan.files), "file")
    question, what = f"{first} {files}", f"{files} would be deleted"
    if plan.topics:
        messages = render.counted(sum(one.messages for one in plan.topics), "message")
        hidden = f"{messages} of {render.counted(len(plan.topics), 'topic')}"
        question, what = f"{question}, and hide {hidden}", f"{what}, and {hidden} would be hidden"
    return f"{question}?", what


def _expire_report(report: mqstore.ExpireReport, form: Format) -> None:
    if render.machine(report, form):
        return
    if report.topics:
        render.listing(report.topics, "topic", "messages", "floor", messages="hidden messages")
    render.listing(report.files, "kind", "path", "bytes", "first_offset", "last_offset", "reason", bytes="size")
    render.facts({"files": len(report.files), "bytes": report.bytes, "log_min_offset": report.log_min_offset})
