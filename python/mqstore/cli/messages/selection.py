"""The messages that `cat` prints: by queue offset, by time, or in the order of the log."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import mqstore
from mqstore import StoredMessage
from mqstore._admin.nearest import unknown_topic

if TYPE_CHECKING:
    from mqstore.types import Filter, OnDamage

LIGHT_QUEUE = "%LMQ%"
"""The names of light queues begin with this; their records are in other topics."""

Times = tuple[int | None, int | None]
"""First store time, and the one to stop before, in epoch milliseconds."""


def of_topic(
    store: mqstore.Store,
    read: Callable[..., Iterator[StoredMessage]],
    topic: str,
    queue: int | None,
    offsets: tuple[int | None, int | None],
    times: Times,
) -> Iterator[StoredMessage]:
    """Yields the messages of one queue, or of all queues, of a topic."""
    start, end = offsets
    if queue is not None and times == (None, None):
        yield from read(topic, queue, start, end)
        return
    queues = [one for one in store.queues(topic) if queue in (None, one.queue_id)]
    if queue is not None and not queues:
        # The read raises the error for an unknown queue.
        yield from read(topic, queue, start, end)
    for one in queues:
        # Each queue has its own range, so the offsets are limited to it.
        low = one.min_offset if start is None else store._oldest_offset(topic, one.queue_id, one.min_offset)
        first = None if start is None else min(max(start, low), one.max_offset)
        last = end
        if times[0] is not None:
            first = max(store.offset_for_time(topic, one.queue_id, times[0]), first or 0)
        if times[1] is not None:
            reached = store.offset_for_time(topic, one.queue_id, times[1])
            last = reached if last is None else min(last, reached)
        if first is None or last is None or first < last:
            yield from read(topic, one.queue_id, first, last)


def is_between(message: StoredMessage, times: Times) -> bool:
    """Returns whether the store time of a message is in a range."""
    since, until = times
    stored = message.store_timestamp
    return (since is None or stored >= since) and (until is None or stored < until)


def in_log_order(
    store: mqstore.Store, topic: str | None, queue: int | None, wanted: Filter | None, on_damage: OnDamage
) -> Iterator[StoredMessage]:
    """Yields the messages of all topics, or of one, in the order of the log.

    Raises:
        TopicNotFoundError: no such topic.
    """
    if topic is not None and not store._queue_ids(topic):
        raise unknown_topic(topic, store.topics())
    for message in store._scan_log(filter=wanted, on_damage=on_damage):
        if topic is not None and message.topic != topic and topic not in _light_queues(message):
            continue
        if queue is not None and message.queue_id != queue:
            continue
        yield message


def _light_queues(message: StoredMessage) -> list[str]:
    return message.properties.get("INNER_MULTI_DISPATCH", "").split(",")
