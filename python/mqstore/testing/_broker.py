"""The broker behind the stand-ins of `mqstore.testing.rocketmq`: topics in a store, consumer groups in memory.

For each queue a group has an offset, and the messages that it received but has not acknowledged. Both are lost with the
broker. Delayed messages and messages of open transactions are also in memory; they are appended when they are due.
"""

from __future__ import annotations

import itertools
import threading
import time
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from mqstore._native import is_reserved
from mqstore._times import duration_of
from mqstore.testing._exceptions import BadRequestException, IllegalStateException, NotFoundException

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import mqstore
    from mqstore._native import AppendResult, StoredMessage
    from mqstore.testing._machine import ManualClock
    from mqstore.types import Duration, Filter

# Interval at which a wait checks the clock of the machine and messages of other writers, in seconds.
_NAP = 0.02

_DEAD_LETTERS = "%DLQ%"

# RocketMQ's property for the message group.
_MESSAGE_GROUP = "__SHARDINGKEY"


class Draft(NamedTuple):
    """A message from a producer."""

    topic: str
    body: bytes
    keys: tuple[str, ...]
    tag: str | None
    properties: dict[str, str]
    message_id: str
    message_group: str | None
    born_timestamp: int


@dataclass(slots=True)
class Held:
    """A message that a group has received but not acknowledged."""

    message: StoredMessage
    message_group: str | None
    handle: str = ""
    attempts: int = 0
    visible_at: float = 0.0


@dataclass(slots=True)
class _Group:
    """State of a group in one topic: next offset of each queue, and unacknowledged messages by log offset."""

    next: dict[int, int] = field(default_factory=dict)
    held: dict[int, Held] = field(default_factory=dict)


class Broker:
    """A stand-in for RocketMQ's proxy and broker. Messages are in `store`, everything else is in memory.

    Inside `with Broker(store):`, all clients of `mqstore.testing.rocketmq` in this process use it, whatever their
    endpoints are. A send to an unknown topic creates it with one queue; for more queues call `store.create_topic`
    first. A new group starts at the first message of a topic.

    Args:
        store: an open store for the messages.
        clock: clock for delays and invisible durations; None is the clock of the machine. When it moves, the messages
            that are due appear in their topics, and a receive without messages returns without a wait.
        retry_delay: time for which a message stays invisible after a listener failed.
        max_attempts: number of deliveries to a group after which a message moves to the topic `%DLQ%` and the group
            name.
    """

    def __init__(
        self,
        store: mqstore.Store,
        *,
        clock: ManualClock | None = None,
        retry_delay: Duration = 0.01,
        max_attempts: int = 17,
    ) -> None:
        self.store = store
        self.retry_delay = duration_of("retry_delay", retry_delay)
        self.max_attempts = max_attempts
        self._clock = clock
        self._changed = threading.Condition(threading.RLock())
        self._numbers = itertools.count(1)
        self._groups: dict[tuple[str, str], _Group] = {}
        self._delayed: dict[str, tuple[int, Draft]] = {}
        self._halves: dict[str, tuple[Draft, Callable[[Draft], Any]]] = {}

    def __enter__(self) -> Self:
        if _running:
            raise RuntimeError("another Broker is running in this process")
        _running.append(self)
        if self._clock is not None:
            self._clock._listeners.append(self._deliver)
        return self

    def __exit__(self, *_error: object) -> None:
        _running.remove(self)
        if self._clock is not None:
            self._clock._listeners.remove(self._deliver)
        with self._changed:
            self._changed.notify_all()

    def check_transactions(self) -> int:
        """Calls the checkers of open transactions, as a broker does after some time.

        Returns:
            Number of transactions that were committed or rolled back.
        """
        with self._changed:
            halves = list(self._halves.items())
        ended = 0
        for transaction_id, (draft, checker) in halves:
            resolution = checker(draft)
            if resolution in (1, 2):
                self.end_transaction(transaction_id, commit=resolution == 1)
                ended += 1
        return ended

    @property
    def open_transactions(self) -> int:
        """Number of messages that wait for a commit or a rollback."""
        with self._changed:
            return len(self._halves)

    # The following methods are for the clients.

    @property
    def now(self) -> float:
        """Current time in epoch seconds."""
        return time.time() if self._clock is None else self._clock.time()

    @property
    def is_manual(self) -> bool:
        """Whether the time stands still until a test moves it."""
        return self._clock is not None

    def send(self, draft: Draft) -> AppendResult:
        """Appends a message that all groups can consume."""
        with self._changed:
            queue_id = None
            properties = {**draft.properties, "UNIQ_KEY": draft.message_id}
            if draft.message_group is not None:
                queues = len(self.store.queues(draft.topic)) if draft.topic in self.store.topics() else 1
                queue_id = zlib.crc32(draft.message_group.encode()) % queues
                properties[_MESSAGE_GROUP] = draft.message_group
            result = self.store.append(
                draft.topic,
                draft.body,
                keys=draft.keys,
                tags=draft.tag,
                properties=properties,
                queue_id=queue_id,
                born_timestamp=draft.born_timestamp,
            )
            self._changed.notify_all()
            return result

    def delay(self, draft: Draft, due: int) -> str:
        """Appends a message when it is `due`, in epoch seconds. Returns its recall handle."""
        with self._changed:
            handle = f"recall-{next(self._numbers)}"
            self._delayed[handle] = (due, draft)
            return handle

    def recall(self, topic: str, handle: str) -> str:
        """Recalls a message that is not due and returns its id."""
        with self._changed:
            self._send_due()
            _, draft = self._delayed.get(handle, (0, None))
            if draft is None or draft.topic != topic:
                raise NotFoundException(f"no delayed message {handle!r} in topic {topic!r}")
            del self._delayed[handle]
            return draft.message_id

    def begin(self, draft: Draft, checker: Callable[[Draft], Any]) -> str:
        """Keeps a message until its transaction ends. Returns the transaction id."""
        with self._changed:
            transaction_id = f"transaction-{next(self._numbers)}"
            self._halves[transaction_id] = (draft, checker)
            return transaction_id

    def end_transaction(self, transaction_id: str, *, commit: bool) -> None:
        """Appends the message of a transaction, or drops it."""
        with self._changed:
            if transaction_id not in self._halves:
                raise BadRequestException(f"no open transaction {transaction_id!r}")
            draft, _ = self._halves.pop(transaction_id)
            if commit:
                self.send(draft)

    def receive(
        self, group: str, topic: str, condition: Filter | None, most: int, invisible: float, wait: float, goes_on: Any
    ) -> list[Held]:
        """Returns up to `most` messages, hidden from the group for `invisible` seconds; none after `wait` seconds.

        `goes_on` returns whether the caller still waits.
        """
        end = time.monotonic() + wait
        with self._changed:
            while goes_on() and _running == [self]:
                if found := list(itertools.islice(self._take(group, topic, condition, invisible), most)):
                    return found
                left = end - time.monotonic()
                if left <= 0:
                    break
                self._changed.wait(min(left, _NAP))
        return []

    def acknowledge(self, group: str, topic: str, handle: str | None) -> None:
        """Acknowledges the message with the receipt handle `handle` for the group."""
        with self._changed:
            held = self._held(group, topic, handle)
            del self._groups[group, topic].held[held.message.commit_log_offset]
            self._changed.notify_all()

    def hide(self, group: str, topic: str, handle: str | None, invisible: float) -> str:
        """Hides a message for `invisible` seconds from now. Returns its new receipt handle."""
        with self._changed:
            held = self._held(group, topic, handle)
            held.visible_at = self.now + invisible
            held.handle = f"receipt-{next(self._numbers)}"
            self._changed.notify_all()
            return held.handle

    def _held(self, group: str, topic: str, handle: str | None) -> Held:
        for held in self._groups.get((group, topic), _Group()).held.values():
            if handle is not None and held.handle == handle:
                return held
        raise BadRequestException("the message was acknowledged or redelivered: its receipt handle is void")

    def _take(self, group: str, topic: str, condition: Filter | None, invisible: float) -> Iterator[Held]:
        self._send_due()
        place = self._groups.setdefault((group, topic), _Group())
        self._fetch(place, topic, condition)
        busy: set[str] = set()
        for offset, held in sorted(place.held.items()):
            # Delivers one message of a message group at a time, the oldest.
            if held.message_group is not None:
                if held.message_group in busy:
                    continue
                busy.add(held.message_group)
            if held.visible_at > self.now:
                continue
            if held.attempts >= self.max_attempts:
                del place.held[offset]
                self._bury(group, held.message)
                continue
            held.attempts += 1
            held.visible_at = self.now + invisible
            held.handle = f"receipt-{next(self._numbers)}"
            yield held

    def _fetch(self, place: _Group, topic: str, condition: Filter | None) -> None:
        if topic not in self.store.topics():
            return
        for queue in self.store.queues(topic):
            start = max(place.next.get(queue.queue_id, 0), queue.min_offset)
            for message in self.store.read(topic, queue.queue_id, start, queue.max_offset, filter=condition):
                place.held[message.commit_log_offset] = Held(message, message.properties.get(_MESSAGE_GROUP))
            place.next[queue.queue_id] = queue.max_offset

    def _bury(self, group: str, message: StoredMessage) -> None:
        self.store.append(
            _DEAD_LETTERS + group,
            message.body,
            keys=message.keys,
            tags=message.tags,
            properties={**own_properties(message), "UNIQ_KEY": message.unique_id or message.message_id},
        )

    def _deliver(self) -> None:
        """Appends the messages that are due after a move of the clock, and wakes the consumers."""
        with self._changed:
            if not self.store.closed:
                self._send_due()
            self._changed.notify_all()

    def _send_due(self) -> None:
        now = self.now
        for handle, (due, draft) in sorted(self._delayed.items(), key=lambda item: item[1][0]):
            if due <= now:
                del self._delayed[handle]
                self.send(draft)


_running: list[Broker] = []


def running() -> Broker:
    """Returns the broker for clients."""
    if not _running:
        msg = "no broker is running: use clients inside `with mqstore.testing.rocketmq.Broker(store):`"
        raise IllegalStateException(msg)
    return _running[0]


def own_properties(message: StoredMessage) -> dict[str, str]:
    """Returns the properties that the sender set by name."""
    given = message.properties.items()
    return {name: value for name, value in given if name != _MESSAGE_GROUP and not is_reserved(name)}
