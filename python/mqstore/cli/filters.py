"""`--filter` and `--sql`: the options that select messages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

import mqstore

if TYPE_CHECKING:
    from mqstore.types import Filter

Tags = Annotated[str | None, typer.Option("--filter", metavar="TAGS", help='Tags, as "a || b".', show_default=False)]
Sql = Annotated[
    str | None,
    typer.Option("--sql", metavar="EXPR", help='Condition on properties, as "price > 5".', show_default=False),
]


def chosen(tags: str | None, expression: str | None) -> Filter | None:
    """Returns the filter from `--filter` or `--sql`, of the one that is given.

    Raises:
        typer.BadParameter: both are given, or the condition does not compile.
    """
    if expression is None:
        return tags
    if tags is not None:
        raise typer.BadParameter("give only one of --filter and --sql; in a condition, TAGS is the tag")
    try:
        return mqstore.sql(expression)
    except mqstore.InvalidFilterError as error:
        raise typer.BadParameter(f"--sql: {error}") from None
