"""`--filter`, `--sql`, `--key` and `--grep`: the options that select messages."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Annotated

import typer

import mqstore

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from mqstore import StoredMessage
    from mqstore.types import Filter

Tags = Annotated[str | None, typer.Option("--filter", metavar="TAGS", help='Tags, as "a || b".')]
Sql = Annotated[str | None, typer.Option("--sql", metavar="EXPR", help='Condition on properties, as "price > 5".')]

Keys = Annotated[list[str] | None, typer.Option("--key", help="Only messages with this key; repeat for more.")]


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


def selector(keys: Sequence[str] | None, grep: str | None) -> Callable[[StoredMessage], bool]:
    """Returns whether a message has one of `keys`, and a body with a match of the expression `grep`.

    A body that cannot be decompressed is compared as stored.

    Raises:
        typer.BadParameter: `grep` is no regular expression.
    """
    try:
        pattern = None if grep is None else re.compile(grep.encode())
    except re.error as error:
        raise typer.BadParameter(f"--grep {grep!r} is no regular expression: {error}") from None

    def selects(message: StoredMessage) -> bool:
        if keys and not set(keys).intersection(message.keys):
            return False
        if pattern is None:
            return True
        try:
            body = message.body
        except ValueError:
            body = bytes(message.body_view)
        return pattern.search(body) is not None

    return selects
