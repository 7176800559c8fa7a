"""The messages of each hour: `mqstore topics --hours`. Queue offsets at the ends of the hours give their numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import mqstore
from mqstore import _native
from mqstore._reports import _Report
from mqstore.cli import render
from mqstore.cli.messages.selection import LIGHT_QUEUE

_HOUR_MS = 3_600_000
# Number of hours without `--since`, as in `info`.
_SHOWN_HOURS = 48


@dataclass(frozen=True, slots=True)
class HourMessages(_Report):
    """An hour with its messages."""

    start_timestamp: int
    """Time at which the hour begins, in epoch milliseconds."""
    messages: int
    """Number of offsets in all queues; with gaps in a queue there are fewer messages."""


def hours(store: mqstore.Store, topic: str | None, since: int | None, until: int | None) -> list[HourMessages]:
    """Returns the hours from the first one with messages to the last one, also those without messages between them.

    Args:
        store: the store.
        topic: the topic; None is all except system topics and light queues, whose records are in other topics.
        since: first store time, in epoch milliseconds; None is 48 hours before the end.
        until: store time to stop before, in epoch milliseconds; None is the end of the hour of the newest message.

    Raises:
        TopicNotFoundError: no such topic.
    """
    names = [topic] if topic is not None else [name for name in store.topics() if not _is_internal(name)]
    queues = [(name, queue) for name in names for queue in store.queues(name)]
    newest = max((one.max_store_timestamp for _, one in queues if one.max_store_timestamp is not None), default=None)
    ends = [] if newest is None else [newest // _HOUR_MS + 1]
    ends += [] if until is None else [-(-until // _HOUR_MS)]
    if not ends:
        return []
    end_hour = min(ends)
    if since is None:
        since = (end_hour - _SHOWN_HOURS) * _HOUR_MS
    counted: Counter[int] = Counter()
    for name, queue in queues:
        offset_for = partial(store.offset_for_time, name, queue.queue_id)
        end = queue.max_offset if until is None else offset_for(until)
        _count(counted, offset_for, since // _HOUR_MS, offset_for(since), end_hour, end)
    first, last = min(counted, default=0), max(counted, default=-1)
    return [HourMessages(hour * _HOUR_MS, counted[hour]) for hour in range(first, last + 1)]


def print_hours(found: list[HourMessages]) -> None:
    """Prints the hours for people, with a bar for the messages of each."""
    most = max((one.messages for one in found), default=0)
    rows = [(render.hour(one.start_timestamp), one.messages, render.bar(one.messages, most)) for one in found]
    render.table(("hour (UTC)", "messages", ""), rows)


def _is_internal(topic: str) -> bool:
    return _native.is_system_topic(topic) or topic.startswith(LIGHT_QUEUE)


def _count(
    counted: Counter[int], offset_for: Callable[[int], int], hour: int, offset: int, end_hour: int, end_offset: int
) -> None:
    """Adds the offsets from `offset` to `end_offset` to their hours. It searches only hours with messages."""
    if offset >= end_offset:
        return
    if end_hour - hour <= 1:
        counted[hour] += end_offset - offset
        return
    middle = (hour + end_hour) // 2
    # If the clock was set back, the times of a queue are not sorted, and a message can count for another hour.
    between = min(max(offset_for(middle * _HOUR_MS), offset), end_offset)
    _count(counted, offset_for, hour, offset, middle, between)
    _count(counted, offset_for, middle, between, end_hour, end_offset)
