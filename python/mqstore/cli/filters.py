"""`--filter` and `--sql`: which messages a verb prints or moves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

import mqstore

if TYPE_CHECKING:
    from mqstore.types import Filter

Tags = Annotated[str | None, typer.Option("--filter", metavar="TAGS", help='Tags, as "a || b".', show_default=False)]
Sql = Annotated[
    str | None,
    typer.Option("--sql", metavar="EXPR", help='A condition on properties, as "price > 5".', show_default=False),
]


def chosen(tags: str | None, expression: str | None) -> Filter | None:
    """What the two options ask for; at most one of them does.

    Raises:
        typer.BadParameter: both are given, or the condition does not compile.
    """
    if expression is None:
        return tags
    if tags is not None:
        raise typer.BadParameter("--filter and --sql do not go together; a condition knows the tag as TAGS")
    try:
        return mqstore.sql(expression)
    except mqstore.InvalidFilterError as error:
        raise typer.BadParameter(f"--sql: {error}") from None
