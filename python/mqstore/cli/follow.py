"""The newest and the new messages of a topic, for `tail`."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from mqstore import OffsetOutOfRangeError, TopicNotFoundError
from mqstore.cli import render

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mqstore import QueueInfo, Store, StoredMessage
    from mqstore.types import Filter, OnDamage

# Seconds between two checks of a store with another writer: the first, and the longest without new messages.
_FIRST_NAP = 0.01
_LONGEST_NAP = 0.25

# Maximum number of messages of one queue that one step sorts into log order.
_AT_ONCE = 1000


class Tail:
    """The end of a topic: its newest messages, then new messages. Both come from all queues, in log order."""

    def __init__(
        self, store: Store, topic: str, queue: int | None, wanted: Filter | None, on_damage: OnDamage = "raise"
    ) -> None:
        """Selects the `wanted` messages of `topic`, or of one `queue` of it."""
        self._store = store
        self._topic = topic
        self._queue = queue
        self._read = partial(store.read, topic, filter=wanted, on_damage=on_damage)
        self._next: dict[int, int] = {}
        queues = self._queues()
        if queue is not None and not queues:
            raise TopicNotFoundError(topic, queue)
        self._first = {one.queue_id: one for one in queues}

    def newest(self, count: int) -> list[StoredMessage]:
        """Returns the `count` newest messages, oldest first. Call it before `coming`."""
        found: list[StoredMessage] = []
        for one in self._first.values():
            self._next[one.queue_id] = one.max_offset
            found.extend(self._last(one, count))
        found.sort(key=_place)
        return found[len(found) - min(count, len(found)) :]

    def _last(self, one: QueueInfo, count: int) -> list[StoredMessage]:
        """Returns the last `count` messages of a queue that pass the filter, searching further and further back."""
        back = count
        while True:
            start = max(one.min_offset, one.max_offset - back)
            found = list(self._read(one.queue_id, start, one.max_offset))
            if len(found) >= count or start == one.min_offset:
                return found[len(found) - min(count, len(found)) :]
            back *= 4

    def coming(self) -> Iterator[list[StoredMessage]]:
        """Yields new messages without end; an empty list if there is none."""
        nap = _FIRST_NAP
        while True:
            found = self._more()
            yield found
            nap = _FIRST_NAP if found else min(2 * nap, _LONGEST_NAP)
            if not found:
                time.sleep(nap)

    def _more(self) -> list[StoredMessage]:
        found: list[StoredMessage] = []
        for one in self._queues():
            # A new queue is read from its first message.
            start = self._next.setdefault(one.queue_id, one.min_offset)
            if start >= one.max_offset:
                continue
            end = min(one.max_offset, start + _AT_ONCE)
            try:
                found.extend(self._read(one.queue_id, start, end))
            except OffsetOutOfRangeError as error:
                end = error.min_offset
                render.note(f"{self._topic}/{one.queue_id}: messages {start} to {end - 1} were deleted meanwhile")
            self._next[one.queue_id] = end
        found.sort(key=_place)
        return found

    def _queues(self) -> list[QueueInfo]:
        return [one for one in self._store.queues(self._topic) if self._queue in (None, one.queue_id)]


def _place(message: StoredMessage) -> int:
    return message.commit_log_offset
