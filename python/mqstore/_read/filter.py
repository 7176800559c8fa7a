"""`sql`: a condition on message properties, for `filter=`."""

from __future__ import annotations

from mqstore._native import SqlFilter
from mqstore._warn import warn

_SHOWN = 40


def sql(expression: str) -> SqlFilter:
    """Compiles a condition on properties in RocketMQ's SQL92, for every argument `filter=`.

    It accepts the same conditions and matches the same messages as RocketMQ; docs/filters.md has the grammar and the
    surprising cases.

    Args:
        expression: for example `"price > 5 AND region IN ('eu', 'us')"`; at most 1 MiB, nested at most 256 levels deep.

    Returns:
        The compiled condition; it can be reused, compared, pickled and explained.

    Raises:
        InvalidFilterError: RocketMQ does not compile it either, or it is too long or too deep.
        TypeError: `expression` is not a str.

    Warns:
        StoreWarning: text follows the condition. RocketMQ ignores it silently, so mqstore ignores it too.
    """
    found = SqlFilter(expression)
    rest = found.ignored
    if rest is not None:
        place = len(expression) - len(rest) + 1
        shown = rest if len(rest) <= _SHOWN else f"{rest[:_SHOWN]}..."
        text = f"the filter ends before column {place}: {shown!r} is not part of it and is ignored, as in RocketMQ"
        warn(text)
    return found


sql.__module__ = "mqstore"
