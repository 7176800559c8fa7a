"""Suggestions for a name that does not exist: the nearest known name.

The library, the command line and the Spark options use it, and the native module for the names of topics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqstore.errors import TopicNotFoundError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

# With more topics, the search would take longer than a caller of a missing topic expects.
_MOST_TOPICS = 10_000


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Returns the known name that is most like `name`, whatever their cases; None if none is like it."""
    import difflib

    by_lower = {one.lower(): one for one in sorted(known)}
    found = difflib.get_close_matches(name.lower(), by_lower, n=1)
    return by_lower[found[0]] if found else None


def unknown_topic(topic: str, topics: Collection[str]) -> TopicNotFoundError:
    """Returns the error about a topic that does not exist in a store with these `topics`."""
    return TopicNotFoundError(topic, None, nearest(topic, topics) if len(topics) <= _MOST_TOPICS else None)
