"""The verb `bench`: speed of a store on a disk, compared with bare loops over the same disk and memory.

It takes a few seconds, with one thread of this interpreter. This is enough to see whether a machine is suitable and
whether something is wrong. For each line, a bare loop and the store process the same number of bytes in the same
folder, one after the other.
"""

from __future__ import annotations

import errno
import mmap
import os
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import mqstore
from mqstore._reports import _Report
from mqstore.cli import render
from mqstore.cli.app import verb
from mqstore.cli.options import ReportForm
from mqstore.cli.render import Format

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

_AT_ONCE = 100
"""Number of messages in one call of `append_many`."""

_MOST_SYNCS = 500
"""Limit of the number of syncs, because one can take many milliseconds."""


@dataclass(frozen=True, slots=True)
class Line(_Report):
    """One comparison; rates are per second."""

    what: str
    limit: float
    store: float
    unit: str


@verb()
def bench(
    directory: Annotated[
        Path, typer.Argument(metavar="DIR", help="Folder on the disk to measure.", show_default=False)
    ],
    messages: Annotated[int, typer.Option(min=100, max=10_000_000, help="Messages of each measurement.")] = 100_000,
    size: Annotated[int, typer.Option(min=1, max=1 << 20, help="Bytes of each body.")] = 1024,
    form: ReportForm = Format.TABLE,
) -> None:
    """Compares a store with bare loops over the same disk and memory; takes some seconds, with one thread.

    The command creates a temporary folder in DIR, or next to DIR if DIR is a store, and removes it at the end.
    """
    folder = directory.absolute().parent if (directory / "commitlog").exists() else directory
    if not folder.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    with tempfile.TemporaryDirectory(prefix="mqstore-bench-", dir=folder, ignore_cleanup_errors=True) as home:
        found = list(_lines(Path(home), messages, os.urandom(size)))
    if not render.machine(found, form):
        rows = [
            (line.what, f"{line.limit:,.0f}", f"{line.store:,.0f}", line.unit, f"{line.store / line.limit:.2f}")
            for line in found
        ]
        render.table(("what", "bare loop", "store", "unit", "store / bare loop"), rows)


def _lines(home: Path, messages: int, body: bytes) -> Iterator[Line]:
    bare = home / "bare"
    syncs = min(messages, _MOST_SYNCS)
    calls = max(messages // _AT_ONCE, 1)
    copied = _rate(messages, lambda: _copy(bare, messages, body))
    with mqstore.open(home / "store", "create") as store:
        store.create_topic("bench", queues=1)
        many = [mqstore.Message(body, keys=["key"])] * _AT_ONCE
        taken = _rate(calls * _AT_ONCE, lambda: [store.append_many("bench", many) for _ in range(calls)])
        yield Line("append, 100 a call", copied, taken, "messages/s")
        taken = _rate(messages, lambda: [store.append("bench", body, keys="key") for _ in range(messages)])
        yield Line("append", copied, taken, "messages/s")
        limit = _rate(syncs, lambda: _write_synced(bare, syncs, body))
        taken = _rate(syncs, lambda: [store.append("bench", body, durable=True) for _ in range(syncs)])
        yield Line("append, durable", limit, taken, "messages/s")
        limit = _rate(messages, lambda: _read(bare, messages, len(body)))
        found = _rate(messages, lambda: sum(1 for _ in store.read("bench", 0, 0, messages)))
        yield Line("read in order", limit, found, "messages/s")
    began = time.perf_counter()
    report = mqstore.verify(home / "store")
    checked = report.bytes / (time.perf_counter() - began)
    yield Line("verify", limit * len(body) / 1e6, checked / 1e6, "MB/s")


def _rate(count: int, work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return count / (time.perf_counter() - began)


def _copy(path: Path, count: int, body: bytes) -> None:
    """Copies bodies one after the other into a new mapped file."""
    size = len(body)
    with path.open("w+b") as file:
        file.truncate(count * size)
        with mmap.mmap(file.fileno(), count * size) as copy:
            for at in range(0, count * size, size):
                copy[at : at + size] = body


def _write_synced(path: Path, count: int, body: bytes) -> None:
    """Overwrites the start of the file and syncs each write."""
    file = os.open(path, os.O_WRONLY)
    try:
        for number in range(count):
            os.pwrite(file, body, number * len(body))
            os.fdatasync(file)
    finally:
        os.close(file)


def _read(path: Path, count: int, size: int) -> None:
    """Reads the file in pieces of 1 MiB and extracts the bodies."""
    step = max((1 << 20) // size, 1) * size
    file = os.open(path, os.O_RDONLY)
    try:
        for at in range(0, count * size, step):
            piece = os.pread(file, step, at)
            for start in range(0, len(piece), size):
                piece[start : start + size]
    finally:
        os.close(file)
