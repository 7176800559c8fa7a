"""The argument `on_error` of reads of several stores: the rule for a store that fails."""

from __future__ import annotations

from mqstore.errors import InvalidFilterError, InvalidOptionError, MQStoreError

FAILURES = (MQStoreError, OSError)
"""Errors that can concern one store only."""


def check_on_error(on_error: str, are_several: bool, name: str = "on_error") -> None:
    """Checks the argument.

    Raises:
        InvalidOptionError: it is unknown, or is "skip" for one plain place.
    """
    if on_error not in ("raise", "skip"):
        raise InvalidOptionError(name, f'{on_error!r} is not one of "raise", "skip"')
    if on_error == "skip" and not are_several:
        raise InvalidOptionError(name, '"skip" is for a list or a pattern of stores, and this is one store')


def can_be_skipped(error: Exception, on_error: str) -> bool:
    """Returns whether the others continue after the error of a store. A wrong argument would fail for every store."""
    return on_error == "skip" and not isinstance(error, InvalidOptionError | InvalidFilterError)


def error_text(path: str, error: Exception) -> str:
    """Returns the text of an error, with the store if it does not name it."""
    return str(error) if path in str(error) else f"{path}: {error}"
