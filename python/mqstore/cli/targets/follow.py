"""The verbs `follow` and `promote`: a live copy of a RocketMQ master."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

import mqstore
from mqstore.cli import render
from mqstore.cli.app import verb
from mqstore.cli.options import ReportForm, age_of
from mqstore.cli.render import Format

_REPORT_SECONDS = 10.0

_NO_END = 1 << 62
"""A log offset that no master reaches."""


class _Protocol(StrEnum):
    DEFAULT = "default"
    AUTOSWITCH = "autoswitch"
    MQSTORE = "mqstore"


class _Begin(StrEnum):
    OLDEST = "oldest"
    LAST = "last"


@verb()
def follow(
    master: Annotated[str, typer.Argument(metavar="HOST:PORT", help="HA service of the master (haListenPort).")],
    directory: Annotated[str, typer.Argument(metavar="DIR", help="Directory of the copy.")],
    metadata: Annotated[
        str | None,
        typer.Option("--metadata", metavar="HOST:PORT", help="The broker: its topics, groups and offsets come, too."),
    ] = None,
    protocol: Annotated[_Protocol, typer.Option("--protocol", help="What the master speaks.")] = _Protocol.DEFAULT,
    begin: Annotated[_Begin, typer.Option("--begin", help="The segment with which a new copy begins.")] = _Begin.OLDEST,
    segment_size: Annotated[
        int | None,
        typer.Option("--segment-size", metavar="BYTES", help="Without --metadata: mappedFileSizeCommitLog."),
    ] = None,
    retention: Annotated[
        str | None, typer.Option("--retention", metavar="AGE", help='Age at which the copy deletes segments: "7d".')
    ] = None,
    learner: Annotated[
        bool | None,
        typer.Option(
            "--learner/--no-learner",
            help="Whether appends of the master never wait for this copy: by default with autoswitch only.",
        ),
    ] = None,
    broker_id: Annotated[
        int | None, typer.Option("--broker-id", metavar="N", help="Id of the copy, for a controller.")
    ] = None,
    durable_acks: Annotated[
        bool, typer.Option("--durable-acks", help="Acknowledge what the disk has, not only the page cache.")
    ] = False,
    full_copy: Annotated[
        bool, typer.Option("--full-copy", help="Remove the copy first, and copy everything again.")
    ] = False,
    once: Annotated[bool, typer.Option("--once", help="End when the copy has everything.")] = False,
    form: ReportForm = Format.TABLE,
) -> None:
    """Makes a directory a live copy of a RocketMQ master, or the standby of a store, until Ctrl-C.

    Other programs can read the copy at the same time, and a broker can take it over. A lost connection is made again.
    """
    options: dict[str, object] = {}
    if segment_size is not None:
        options["segment_size"] = segment_size
    if retention is not None:
        options["retention"] = age_of("--retention", retention)
    with mqstore.follow(
        master,
        directory,
        metadata=metadata,
        protocol=protocol.value,
        begin=begin.value,
        learner=learner,
        broker_id=broker_id,
        durable_acks=durable_acks,
        full_copy=full_copy,
        **options,  # type: ignore[arg-type]
    ) as follower:
        if not once:
            render.note(f"following {master} in {directory}; end it with Ctrl-C")
        try:
            _watch(follower, once=once)
        except KeyboardInterrupt:
            render.note("closing the copy")
        status = follower.status()
    render.result(status, form)


def _watch(follower: mqstore.Follower, *, once: bool) -> None:
    """Waits until the copy has everything, or for ever. Says from time to time how far it is."""
    while True:
        try:
            follower.wait(None if once else _NO_END, timeout=_REPORT_SECONDS)
        except mqstore.StoreTimeoutError:
            status = follower.status()
        else:
            return
        behind = f"{status.lag_bytes:,} bytes and {status.lag_seconds:.1f} s behind"
        text = f"{status.state}: {status.log_end:,} bytes, {behind}"
        render.note(text if status.error is None or status.state == "following" else f"{text} ({status.error})")


@verb()
def promote(directory: Annotated[str, typer.Argument(metavar="DIR", help="Directory of the copy.")]) -> None:
    """Makes a copy of a master a store of its own, which can be opened for writing."""
    master = mqstore.promote(directory)
    if master is None:
        render.note(f"{directory} follows no master, so there is nothing to change")
    else:
        render.note(f"{directory} no longer follows {master}; make sure that nothing more is appended there")


@verb()
def demote(
    directory: Annotated[str, typer.Argument(metavar="DIR", help="Directory of the former master.")],
    master: Annotated[str, typer.Argument(metavar="HOST:PORT", help="Address of the new master.")],
) -> None:
    """Makes a former master a copy of the new one; then follow it with --protocol mqstore.

    The follower removes the messages that the new master does not have, and keeps them in mqstore/lost+found.
    """
    mqstore.demote(directory, master)
    render.note(f"{directory} is a copy of {master} now: mqstore follow {master} {directory} --protocol mqstore")
