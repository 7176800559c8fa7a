"""The application `mqstore`, and what makes a function a verb of it.

The verbs are in the other files, grouped by topic; `mqstore.cli` imports all of them.
"""

from __future__ import annotations

import functools
import os
import sys
import warnings
from collections.abc import Callable
from typing import Annotated, Any, ParamSpec

import typer
from typer.core import TyperGroup

import mqstore
from mqstore.cli import render
from mqstore.cli.errors import name_options_of
from mqstore.cli.status import CLEAN, abandon_stdout

P = ParamSpec("P")

# The panels of the help with their verbs, in order.
PANELS = {
    "Read": ("info", "topics", "cat", "tail", "get", "lookup", "last", "jobs", "stats", "ps"),
    "Change": ("append", "import", "topic", "group", "dead-letter"),
    "Operate": ("verify", "repair", "rebuild", "compact", "expire", "retention", "reclaim", "snapshot", "bench"),
    "Broker directories": ("config", "copy-topic", "logic-queue"),
    "Copies, backups, archives, results": (
        *("demote", "follow", "promote"),
        *("backup", "backup-files", "backup-verify", "backup-restore", "backup-clean"),
        *("archive", "archive-files", "archive-verify", "archive-restore", "archive-clean"),
        *("export", "published", "fetch", "clean"),
    ),
    "Spark": ("spark",),
}
_PANEL_OF = {name: panel for panel, names in PANELS.items() for name in names}
_ORDER = tuple(_PANEL_OF)


class _Verbs(TyperGroup):
    """The verbs in the order of `PANELS`, whatever the order of the imports."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Returns the names in their order."""
        return sorted(super().list_commands(ctx), key=_ORDER.index)


app = typer.Typer(
    name="mqstore",
    cls=_Verbs,
    help="Inspect, verify, repair and query message stores in the format of Apache RocketMQ.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # All verbs and groups inherit this.
    context_settings={"help_option_names": ["--help", "-h"]},
)


def group_of_verbs(name: str, about: str) -> typer.Typer:
    """Adds a group to the application, for verbs such as `mqstore topic create`."""
    group = typer.Typer(help=about, no_args_is_help=True)
    app.add_typer(group, name=name, rich_help_panel=_PANEL_OF[name])
    return group


def verb(name: str | None = None, group: typer.Typer = app) -> Callable[[Callable[P, int | None]], Callable[P, None]]:
    """Makes a function a verb of a group. The function returns the exit status; None is 0.

    Args:
        name: the name of the verb; None is the name of the function.
        group: by default the application itself.
    """

    def register(work: Callable[P, int | None]) -> Callable[P, None]:
        @functools.wraps(work)
        def command(*args: P.args, **kwargs: P.kwargs) -> None:
            name_options_of(work)
            try:
                status = work(*args, **kwargs) or CLEAN
                sys.stdout.flush()
            except BrokenPipeError:
                abandon_stdout()
                status = CLEAN
            finally:
                render.print_notes()
            raise typer.Exit(status)

        panel = _PANEL_OF[name or work.__name__] if group is app else None
        return group.command(name, rich_help_panel=panel)(command)

    return register


@app.callback(invoke_without_command=True)
def _main(
    version: Annotated[bool, typer.Option("--version", help="Print the version.", is_eager=True)] = False,
    no_color: Annotated[bool, typer.Option("--no-color", help="Print without colors, like NO_COLOR=1.")] = False,
) -> None:
    if version:
        sys.stdout.write(f"mqstore {mqstore.__version__}\n")
        raise typer.Exit
    if no_color:
        # All libraries that print read this variable: https://no-color.org
        os.environ["NO_COLOR"] = "1"
    warnings.simplefilter("always", mqstore.StoreWarning)
    warnings.showwarning = lambda message, *_rest, **_more: render.note_later(str(message))
