"""`sql`: a condition on the properties of messages, for `filter=`."""

from __future__ import annotations

import warnings

from mqstore._native import SqlFilter
from mqstore.errors import StoreWarning

_SHOWN = 40


def sql(expression: str) -> SqlFilter:
    """A condition on properties in RocketMQ's SQL92, for whatever takes `filter=`.

    Compiles what RocketMQ compiles, and matches what RocketMQ matches; docs/filters.md has the grammar and the cases
    that surprise.

    Args:
        expression: for example `"price > 5 AND region IN ('eu', 'us')"`; at most 1 MiB, conditions nested at most 256
            levels deep.

    Returns:
        The compiled condition; it can be used again, compared, pickled and explained.

    Raises:
        InvalidFilterError: RocketMQ does not compile it either, or it is too long or too deep.
        TypeError: `expression` is no str.

    Warns:
        StoreWarning: text follows the condition. RocketMQ ignores it without a word, and so it is ignored here.
    """
    found = SqlFilter(expression)
    rest = found.ignored
    if rest is not None:
        place = len(expression) - len(rest) + 1
        shown = rest if len(rest) <= _SHOWN else f"{rest[:_SHOWN]}..."
        text = (
            f"the filter ends before column {place}: {shown!r} is no part of it and is ignored, as RocketMQ ignores it"
        )
        warnings.warn(text, StoreWarning, stacklevel=2)
    return found


sql.__module__ = "mqstore"
