"""What the stand-ins of `mqstore.testing.rocketmq` talk to: topics in a store, groups that consume them in memory.

A group has a place in each queue and what it was given and has not acknowledged; both are gone with the broker. Delayed
messages and those of open transactions are in memory too, and get into the store when they are due.
"""

from __future__ import annotations

import itertools
import threading
import time
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, Self

from mqstore._native import is_reserved
from mqstore._times import seconds_of
from mqstore.testing._exceptions import BadRequestException, IllegalStateException, NotFoundException

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import mqstore
    from mqstore._native import AppendResult, StoredMessage
    from mqstore.testing._machine import ManualClock
    from mqstore.types import Duration, Filter

# How often a wait looks at the clock, which nobody wakes it for, in seconds.
_NAP = 0.02

_DEAD_LETTERS = "%DLQ%"

# The property by which RocketMQ keeps a message group.
_MESSAGE_GROUP = "__SHARDINGKEY"


class Draft(NamedTuple):
    """A message as a producer gives it."""

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
    """A message that a group has to acknowledge."""

    message: StoredMessage
    message_group: str | None
    handle: str = ""
    attempts: int = 0
    visible_at: float = 0.0


@dataclass(slots=True)
class _Group:
    """Of one topic: where each queue is read on, and what is held, by log offset."""

    next: dict[int, int] = field(default_factory=dict)
    held: dict[int, Held] = field(default_factory=dict)


class Broker:
    """A stand-in for RocketMQ's proxy and broker, in memory but for the messages, which are in `store`.

    Inside of `with Broker(store):` all clients of `mqstore.testing.rocketmq` in this process talk to it, whatever
    endpoints they are configured with. Topics that are sent to are made, with one queue unless `store.create_topic`
    made more before. A group that is new to a topic begins at its first message.

    Args:
        store: where the messages are: an open store.
        clock: the time that delays and invisible durations go by; None is the machine's.
        retry_delay: how long a message that a listener failed to consume stays invisible.
        max_attempts: so often a message is given to a group before it goes to the topic `%DLQ%` and the group's name.
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
        self.retry_delay = seconds_of("retry_delay", retry_delay)
        self.max_attempts = max_attempts
        self._clock = clock
        self._changed = threading.Condition(threading.RLock())
        self._numbers = itertools.count(1)
        self._groups: dict[tuple[str, str], _Group] = {}
        self._delayed: dict[str, tuple[int, Draft]] = {}
        self._halves: dict[str, tuple[Draft, Callable[[Draft], Any]]] = {}

    def __enter__(self) -> Self:
        if _running:
            msg = "another Broker is running in this process"
            raise RuntimeError(msg)
        _running.append(self)
        return self

    def __exit__(self, *_error: object) -> None:
        _running.remove(self)
        with self._changed:
            self._changed.notify_all()

    def check_transactions(self) -> int:
        """Asks the producers of open transactions what became of them, as a broker does after a while.

        Returns:
            How many of them were committed or rolled back.
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
        """How many messages wait for a commit or a rollback."""
        with self._changed:
            return len(self._halves)

    # What follows is for the clients.

    @property
    def now(self) -> float:
        """Epoch seconds."""
        return time.time() if self._clock is None else self._clock.time()

    def send(self, draft: Draft) -> AppendResult:
        """Appends a message that anybody may consume from now on."""
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
        """Appends a message once it is `due`, in epoch seconds; returns by what it can be recalled."""
        with self._changed:
            handle = f"recall-{next(self._numbers)}"
            self._delayed[handle] = (due, draft)
            return handle

    def recall(self, topic: str, handle: str) -> str:
        """Takes back a message that is not due; returns its id."""
        with self._changed:
            self._send_due()
            _, draft = self._delayed.get(handle, (0, None))
            if draft is None or draft.topic != topic:
                msg = f"there is no delayed message {handle!r} in {topic!r}"
                raise NotFoundException(msg)
            del self._delayed[handle]
            return draft.message_id

    def begin(self, draft: Draft, checker: Callable[[Draft], Any]) -> str:
        """Keeps a message until its transaction ends; returns the id of that."""
        with self._changed:
            transaction_id = f"transaction-{next(self._numbers)}"
            self._halves[transaction_id] = (draft, checker)
            return transaction_id

    def end_transaction(self, transaction_id: str, *, commit: bool) -> None:
        """Appends the message of a transaction, or drops it."""
        with self._changed:
            if transaction_id not in self._halves:
                msg = f"there is no open transaction {transaction_id!r}"
                raise BadRequestException(msg)
            draft, _ = self._halves.pop(transaction_id)
            if commit:
                self.send(draft)

    def receive(
        self, group: str, topic: str, condition: Filter | None, most: int, invisible: float, wait: float, goes_on: Any
    ) -> list[Held]:
        """Up to `most` messages for a group, hidden from it for `invisible` seconds; after `wait` seconds none.

        `goes_on` says whether somebody still wants them.
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
        """The group has consumed what it was given under `handle`."""
        with self._changed:
            held = self._held(group, topic, handle)
            del self._groups[group, topic].held[held.message.commit_log_offset]
            self._changed.notify_all()

    def hide(self, group: str, topic: str, handle: str | None, invisible: float) -> str:
        """Hides it for so many seconds from now on; returns its new handle."""
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
        msg = "the message was acknowledged, or given to somebody else since: its receipt handle is void"
        raise BadRequestException(msg)

    def _take(self, group: str, topic: str, condition: Filter | None, invisible: float) -> Iterator[Held]:
        self._send_due()
        place = self._groups.setdefault((group, topic), _Group())
        self._fetch(place, topic, condition)
        busy: set[str] = set()
        for offset, held in sorted(place.held.items()):
            # Of a message group one is given at a time, the oldest.
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

    def _send_due(self) -> None:
        now = self.now
        for handle, (due, draft) in sorted(self._delayed.items(), key=lambda item: item[1][0]):
            if due <= now:
                del self._delayed[handle]
                self.send(draft)


_running: list[Broker] = []


def running() -> Broker:
    """The broker that clients talk to."""
    if not _running:
        msg = "there is no broker: use clients inside of `with mqstore.testing.rocketmq.Broker(store):`"
        raise IllegalStateException(msg)
    return _running[0]


def own_properties(message: StoredMessage) -> dict[str, str]:
    """The properties that the sender gave by name."""
    given = message.properties.items()
    return {name: value for name, value in given if name != _MESSAGE_GROUP and not is_reserved(name)}
