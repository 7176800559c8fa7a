"""The messages of an archive for the native module: for consumers before the log, and for the limits of topics."""

from __future__ import annotations

import time
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING

from mqstore._archive.history import History, Limits, QueueRange, bounds_after, end_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from mqstore._archive.continued import ContinuedReads
    from mqstore._native import StoredMessage
    from mqstore.types import Filter, OnDamage

# Longest read in seconds of messages that do not match the filter, so that a poll can check its time.
_FILTER_TIME = 0.04


@dataclass(slots=True)
class _Position:
    """The place at which the read of a queue stopped."""

    next: int
    end: int
    steps: Iterator[tuple[list[StoredMessage], int]]
    ready: list[StoredMessage]
    """Messages of the last step that were not returned, newest first."""
    after: int
    """The offset after the last step."""


class OlderMessages:
    """The messages from before the log, for one consumer. It calls with its lock, so from one thread at a time."""

    def __init__(self, store: ContinuedReads, filter: Filter | None, on_damage: OnDamage) -> None:
        self._store = store
        self._filter = filter
        self._on_damage: OnDamage = on_damage
        self._positions: dict[tuple[str, int], _Position] = {}

    def first_offset(self, topic: str, queue_id: int) -> int | None:
        """Returns the smallest offset of a queue; None if no older message exists."""
        history = self._of(topic)
        return None if history is None else history[0].first_offset(topic, queue_id)

    def offset_for_time(self, topic: str, queue_id: int, time_ms: int) -> int | None:
        """Returns the offset of the first message of a queue that was stored at or after a time."""
        history = self._of(topic)
        return None if history is None else history[0].offset_for_time(topic, queue_id, time_ms)

    def read(self, topic: str, queue_id: int, start: int, end: int, most: int) -> tuple[list[StoredMessage], int]:
        """Returns messages from offset `start` on, and the offset after the last one that was read."""
        position = self._positions.pop((topic, queue_id), None)
        if position is None or (position.next, position.end) != (start, end):
            history = self._of(topic)
            oldest = None if history is None else history[0].first_offset(topic, queue_id)
            if history is None or oldest is None or oldest >= end or start < oldest:
                return [], start
            wanted = QueueRange(queue_id, start, end)
            steps = history[0].steps(topic, wanted, history[1], self._filter, self._on_damage)
            position = _Position(start, end, steps, [], start)
        latest = time.monotonic() + _FILTER_TIME
        while not position.ready and time.monotonic() <= latest:
            step = next(position.steps, None)
            if step is None:
                # The rest of the range has no messages.
                return [], end
            position.ready = step[0][::-1]
            position.after = max(step[1], position.after)
        found = [position.ready.pop() for _ in range(min(most, len(position.ready)))]
        position.next = end_of(found[-1]) if position.ready else min(position.after, end)
        if position.next < end:
            self._positions[topic, queue_id] = position
        return found, position.next

    def _of(self, topic: str) -> tuple[History, int] | None:
        """Returns the archive and the log offset at which the log begins; None if the log has all of the topic."""
        log_start = self._store._log_start()
        if not bounds_after(self._store, topic, log_start):
            return None
        return self._store._history_before(log_start), log_start


class OlderTopics:
    """The floors of topics before the log. The background of a store asks, so the object does not keep the store."""

    def __init__(self, store: ContinuedReads) -> None:
        self._store = weakref.ref(store)

    def due_floor(
        self,
        topic: str,
        log_start: int,
        lows: dict[int, int],
        since_ms: int | None,
        max_bytes: int | None,
        max_messages: int | None,
    ) -> tuple[int, int] | None:
        """Returns the floor that the rest of the limits of a topic demands before the log, and the messages before it.

        Args:
            topic: the topic.
            log_start: log offset at which the log begins.
            lows: first offset of each queue in the log.
            since_ms: smallest store time that stays; None is any.
            max_bytes: maximum bytes of records; None is any.
            max_messages: maximum number of messages; None is any.

        Returns:
            None if all messages stay.
        """
        store = self._store()
        if store is None or not store._log_start():
            return None
        limits = Limits(since_ms, max_bytes, max_messages)
        return store._history_before(log_start).due_floor(topic, log_start, lows, limits)
