"""The verb `bench`."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Annotated

import typer

from mqstore.cli import render
from mqstore.cli.app import _verb, app
from mqstore.cli.options import ReportForm
from mqstore.cli.render import Format
from mqstore.cli.status import CLEAN


@app.command()
@_verb
def bench(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder on the disk to measure.", show_default=False)
    ],
    messages: Annotated[int, typer.Option(min=100, max=10_000_000, help="Messages of each measurement.")] = 100_000,
    size: Annotated[int, typer.Option(min=1, max=1 << 20, help="Bytes of each body.")] = 1024,
    trace: Annotated[
        bool, typer.Option("--trace", help="Append at a fixed rate instead, and find the causes of delays.")
    ] = False,
    cold_reads: Annotated[
        bool, typer.Option("--cold-reads", help="Time durable appends instead, alone and next to reads from the disk.")
    ] = False,
    rate: Annotated[
        int | None,
        typer.Option(
            min=1,
            max=10_000_000,
            help="--trace, --cold-reads: messages a second; 500,000 or 1,000 by default.",
            show_default=False,
        ),
    ] = None,
    seconds: Annotated[
        float, typer.Option(min=0.001, max=3600, help="--trace: seconds of each side; --cold-reads: of each turn.")
    ] = 4,
    slow_us: Annotated[
        float, typer.Option(min=1, max=1e9, help="--trace: microseconds from which a step is slow.")
    ] = 10,
    slowest: Annotated[int, typer.Option(min=0, max=10_000, help="--trace: slow steps to list, JSON only.")] = 20,
    readers: Annotated[int, typer.Option(min=1, max=64, help="--cold-reads: processes that read.")] = 4,
    megabytes: Annotated[
        int, typer.Option(min=8, max=1_000_000, help="--cold-reads: megabytes of old messages.")
    ] = 4000,
    rounds: Annotated[int, typer.Option(min=1, max=100, help="--cold-reads: turns of each load.")] = 3,
    form: ReportForm = Format.TABLE,
) -> int:
    """Compares a store with bare loops over the same disk and memory; takes some seconds, with one thread.

    The command creates a temporary folder in DIR, or next to DIR if DIR is a store, and removes it at the end. With
    --trace, this folder takes RATE * SECONDS * (SIZE + 200) bytes, with --cold-reads MEGABYTES and a gigabyte.
    """
    from mqstore.cli.measure import next_to_reads
    from mqstore.cli.measure import trace as tracing
    from mqstore.cli.measure.bench import lines

    folder = directory.absolute().parent if (directory / "commitlog").exists() else directory
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    if cold_reads:
        if trace or not hasattr(os, "posix_fadvise"):
            raise typer.BadParameter(
                "--cold-reads excludes --trace, and needs a system with posix_fadvise, such as Linux"
            )
        timed = next_to_reads.measure(
            folder, next_to_reads.Request(megabytes, readers, rate or 1000, seconds, rounds, size)
        )
        if not render.machine(timed.to_dict(), form):
            render.table(next_to_reads.APPEND_HEADINGS, next_to_reads.append_rows(timed))
            render.table(next_to_reads.LOAD_HEADINGS, next_to_reads.load_rows(timed))
        return CLEAN
    if trace:
        traced = tracing.trace(folder, rate or 500_000, seconds, size, slow_us, slowest)
        if not render.machine(traced.to_dict(), form):
            render.table(tracing.LATENCY_HEADINGS, tracing.latency_rows(traced))
            render.table(tracing.CAUSE_HEADINGS, tracing.cause_rows(traced))
        return CLEAN
    found = list(lines(folder, messages, size))
    if not render.machine([line.to_dict() for line in found], form):
        rows = [
            (line.what, f"{line.limit:,.0f}", f"{line.store:,.0f}", line.unit, f"{line.store / line.limit:.2f}")
            for line in found
        ]
        render.table(("what", "bare loop", "store", "unit", "store / bare loop"), rows)
    return CLEAN
