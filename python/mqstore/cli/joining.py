"""Opens for writing, which join the processes that share a store, and `mqstore ps`."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any

import mqstore
from mqstore import _native
from mqstore._store import lock_pauses
from mqstore.cli import render
from mqstore.cli.app import verb
from mqstore.cli.options import Directory, ReportForm
from mqstore.cli.render import Format

if TYPE_CHECKING:
    from collections.abc import Callable

    from mqstore.types import Mode


def is_shared(directory: str) -> bool:
    """Returns whether a process has the store open with mode `"share"`."""
    holder = _native.lock_holder(directory)
    return holder is not None and holder[1]


def writing(
    directory: str,
    mode: Mode = "rw",
    *,
    lock_timeout: float,
    joined: Callable[[], object] | None = None,
    **options: Any,
) -> mqstore.Store:
    """Opens a store for writing, or joins the processes that share it; waits up to `lock_timeout` if it is locked.

    `joined` is called before the store is joined.
    """
    pauses = lock_pauses(lock_timeout)
    while True:
        if is_shared(directory):
            if joined is not None:
                joined()
            return mqstore.open(directory, "share", own=False, lock_timeout=10, **options)
        try:
            return mqstore.open(directory, mode, **options)
        except mqstore.StoreLockedError:
            if (pause := next(pauses, None)) is None:
                raise
        time.sleep(pause)


@verb()
def ps(directory: Directory, form: ReportForm = Format.TABLE) -> None:
    """Lists the processes that have a store open for writing, with their queues and consumers."""
    found: dict[str, Any] = {"owner": None, "shared": False, "processes": []}
    holder = _native.lock_holder(directory)
    if holder is not None:
        found["owner"], found["shared"] = holder
    if found["shared"]:
        with mqstore.open(directory, "share", own=False, lock_timeout=10) as store:
            found["owner"], clients = _native.processes(store)
        names = ("pid", "version", "work_queues", "consumers", "transactions")
        # Without this process itself.
        others = [client for client in clients if client[0] != os.getpid()]
        found["processes"] = [dict(zip(names, client, strict=True)) for client in others]
    if render.machine(found, form):
        return
    if holder is None:
        render.note("no process has the store open for writing")
        return
    owner = found["owner"]
    who = "a process whose id the system does not report" if owner is None else f"process {owner}"
    render.note(f"{who} has the store open for writing" + (" and shares it" if found["shared"] else ""))
    if found["shared"]:
        rows = [
            {
                "pid": one["pid"],
                "version": one["version"],
                "work queues": ", ".join(f"{topic} ({group})" for topic, group in one["work_queues"]),
                "consumers": ", ".join(_consumer(*consumer) for consumer in one["consumers"]),
                "transactions": one["transactions"],
            }
            for one in found["processes"]
        ]
        render.listing(rows, "pid", "version", "work queues", "consumers", "transactions")


def _consumer(group: str, queues: list[tuple[str, int]]) -> str:
    return f"{group}: {' '.join(f'{topic}/{queue_id}' for topic, queue_id in queues) or '-'}"
