"""The newest and the new messages of a topic, for `tail`."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

from mqstore import OffsetOutOfRangeError
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
    """The end of a topic: its newest messages, then new messages. Both come from all queues."""

    def __init__(
        self, store: Store, topic: str, queue: int | None, wanted: Filter | None, on_damage: OnDamage = "raise"
    ) -> None:
        """Selects the `wanted` messages of `topic`, or of one `queue` of it."""
        self._store = store
        self._topic = topic
        self._queue = queue
        self._read = partial(store.read, topic, filter=wanted, on_damage=on_damage)
        self._tail = partial(store.tail, topic, queue_id=queue, filter=wanted, on_damage=on_damage)
        self._next: dict[int, int] = {}
        self._shown: set[int] = set()

    def newest(self, count: int) -> list[StoredMessage]:
        """Returns the `count` newest messages, oldest first. Call it before `coming`."""
        self._next = {one.queue_id: one.max_offset for one in self._queues()}
        found = self._tail(count)
        # A message that was appended between the two calls must not come twice.
        self._shown = {_place(message) for message in found}
        return found

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
                found.extend(new for new in self._read(one.queue_id, start, end) if _place(new) not in self._shown)
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
