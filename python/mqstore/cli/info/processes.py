"""The verb `ps`: the processes that have a store open for writing."""

from __future__ import annotations

import os
from dataclasses import dataclass

import mqstore
from mqstore import _native
from mqstore._reports import _Report
from mqstore.cli import render
from mqstore.cli.app import verb
from mqstore.cli.options import Directory, ReportForm
from mqstore.cli.render import Format


@dataclass(frozen=True, slots=True)
class Process(_Report):
    """A process that uses a shared store."""

    pid: int
    """Its id."""
    version: str
    """Version of its library."""
    work_queues: tuple[str, ...]
    """Topics of its open work queues, each with the group: `mails/workers-mails`."""
    consumers: tuple[str, ...]
    """Groups of its consumers, each with the queues that it owns: `billing: orders/0 orders/1`."""
    transactions: int
    """Number of its open transactions."""


@dataclass(frozen=True, slots=True)
class Processes(_Report):
    """The processes that have a store open for writing, from `mqstore ps`."""

    owner: int | None
    """Process id of the one that holds the lock; None if there is none, or the system does not report it."""
    open: bool
    """Whether a process has the store open for writing."""
    shared: bool
    """Whether the owner shares the store."""
    answers: bool
    """Whether the owner answered."""
    clients: tuple[Process, ...]
    """The other processes that share it."""


def processes_of(directory: str) -> Processes:
    """Asks the owner of a store for the processes that share it."""
    holder = _native.lock_holder(directory)
    if holder is None:
        return Processes(None, open=False, shared=False, answers=False, clients=())
    owner, shared = holder
    if not shared:
        return Processes(owner, open=True, shared=False, answers=False, clients=())
    try:
        with mqstore.open(directory, "share", own=False, lock_timeout=2) as store:
            owner, rows = _native.processes(store)
    except mqstore.StoreLockedError:
        return Processes(owner, open=True, shared=True, answers=False, clients=())
    others = (row for row in rows if row[0] != os.getpid())
    return Processes(owner, open=True, shared=True, answers=True, clients=tuple(_process(*row) for row in others))


def _process(
    pid: int,
    version: str,
    queues: list[tuple[str, str]],
    consumers: list[tuple[str, list[tuple[str, int]]]],
    open_: int,
) -> Process:
    def owned(queues: list[tuple[str, int]]) -> str:
        return " ".join(f"{topic}/{queue_id}" for topic, queue_id in queues) or "no queue"

    names = tuple(f"{topic}/{group}" for topic, group in queues)
    return Process(pid, version, names, tuple(f"{group}: {owned(queues)}" for group, queues in consumers), open_)


@verb()
def ps(directory: Directory, form: ReportForm = Format.TABLE) -> None:
    """Lists the processes that have a store open for writing, with their queues and consumers."""
    found = processes_of(directory)
    if render.machine(found, form):
        return
    if not found.open:
        render.note("no process has the store open for writing")
        return
    who = "a process whose id the system does not report" if found.owner is None else f"process {found.owner}"
    render.note(f"{who} has the store open for writing" + (" and shares it" if found.shared else ""))
    if found.shared and not found.answers:
        render.note("it does not answer: it is stopped, or recovers the store")
    elif found.shared:
        rows = [
            one.to_dict() | {"work_queues": ", ".join(one.work_queues), "consumers": ", ".join(one.consumers)}
            for one in found.clients
        ]
        render.listing(rows, "pid", "version", "work_queues", "consumers", "transactions", work_queues="work queues")
