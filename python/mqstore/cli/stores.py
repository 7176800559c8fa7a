"""Verbs that take several stores, and opens for writing.

Several stores come one after another, each with a heading or with the member `store` in JSON. An open for writing joins
the processes that share the store.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

import mqstore
from mqstore._read.on_error import FAILURES
from mqstore._remote.glob import expanded, is_pattern, shown
from mqstore._reports import json_form
from mqstore._share import is_shared
from mqstore._store import join_shared, lock_pauses
from mqstore.cli import render
from mqstore.cli.errors import error_text_of
from mqstore.cli.render import Format
from mqstore.cli.status import CLEAN, FAILED

if TYPE_CHECKING:
    from collections.abc import Callable

    from mqstore.types import Mode

# Not a Path, which would change a URL.
Directories = Annotated[
    list[str],
    typer.Argument(
        metavar="DIR...",
        help='Directories or URLs of stores; a pattern such as "s3://bucket/backups/*" is all that it matches.',
    ),
]


class Stores:
    """The stores of one call of a verb."""

    def __init__(self, directories: list[str], form: Format) -> None:
        self.are_many = len(directories) > 1 or is_pattern(directories[0])
        self._places = [str(path) for path in expanded(directories)]
        self._form = form
        self.is_done = False
        # Results for one JSON document at the end.
        self._objects: list[dict[str, Any]] = []

    def each(self, work: Callable[[str], int | None]) -> int:
        """Calls `work` with each store and returns the worst exit status. A store that fails does not end the verb."""
        if not self.are_many:
            return work(self._places[0]) or CLEAN
        worst, before = CLEAN, ""
        for place in self._places:
            if self.is_done:
                break
            name = shown(place)
            if self._form is Format.TABLE:
                sys.stdout.write(f"{before}==> {render.plain(name)} <==\n")
                before = "\n"
            try:
                worst = max(worst, work(place) or CLEAN)
            except BrokenPipeError:
                raise
            except FAILURES as error:
                worst = FAILED
                # The note follows the results before it if both go to one file.
                sys.stdout.flush()
                render.note(error_text_of(name, error))
            sys.stdout.flush()
            render.print_notes()
        if self._form is Format.JSON:
            render.document(self._objects)
        return worst

    def member(self, place: str) -> dict[str, str]:
        """Returns the member `store` of the JSON objects of a store; nothing for a single store."""
        return {"store": shown(place)} if self.are_many else {}

    def machine(self, place: str, found: Any) -> bool:
        """Prints the result of a store in a machine format. Returns False without output if it is for people."""
        if not self.are_many:
            return render.machine(found, self._form)
        values = json_form(found)
        objects = [{**self.member(place), **one} for one in (values if isinstance(values, list) else [values])]
        if self._form is Format.JSON:
            self._objects += objects
            return True
        return render.machine(objects, self._form)


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
            return join_shared(directory, **options)
        try:
            return mqstore.open(directory, mode, **options)
        except mqstore.StoreLockedError:
            if (pause := next(pauses, None)) is None:
                raise
        time.sleep(pause)
