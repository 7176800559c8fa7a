"""`Table`: a topic as a mapping from key to newest message."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias

from mqstore import _native
from mqstore.errors import OffsetOutOfRangeError

if TYPE_CHECKING:
    from mqstore._native import StoredMessage
    from mqstore._store import Store
    from mqstore.types import Duration

Bodies: TypeAlias = Literal["memory", "disk"]
"""Where a table leaves its messages: in memory, or on disk until they are asked for."""

# How long the first of several queues is waited for before the others are looked at.
_SLICE = 0.05


@dataclass(frozen=True, slots=True)
class Change:
    """What happened to a key of a table."""

    key: str
    """The key."""
    message: StoredMessage | None
    """Its newest message; None when the key was deleted."""
    queue_id: int
    """The queue in which it happened."""
    queue_offset: int
    """The offset of the message that says so, also of one that deletes."""


class Table(Mapping[str, "StoredMessage"]):
    """A topic as a live, read-only mapping from key to newest message; made by `Store.table`.

    The key is the whole `KEYS` text of a message. A message with an empty body deletes its key; messages without a
    key are passed over. Of a key that is in several queues the message counts that was stored last.

    Every look at the table first takes up what was appended before it. Iterating over it gives the keys of one moment.
    Thread-safe. It holds no resource but memory, lives as long as its store is open, and cannot be pickled.
    """

    def __init__(self, store: Store, topic: str, bodies: Bodies = "memory") -> None:
        """Loads the table; programs call `Store.table`."""
        if bodies not in ("memory", "disk"):
            msg = f'bodies must be "memory" or "disk", not {bodies!r}'
            raise ValueError(msg)
        self._store = store
        self._topic = topic
        self._in_memory = bodies == "memory"
        self._lock = threading.RLock()
        self._entries = _native.TableRows()
        # Where each queue is read on.
        self._next: dict[int, int] = {}
        self._files: object = None
        self._load(sorted(self._ends()))
        self.refresh()

    @property
    def topic(self) -> str:
        """The topic."""
        return self._topic

    def refresh(self) -> None:
        """Takes up what was appended; every other method does that by itself.

        Raises:
            StoreClosedError: the store was closed.
        """
        with self._lock:
            while True:
                files = self._compacted_files()
                if due := self._due(self._next):
                    ends = self._ends()
                    # A compaction may have dropped a message that deletes a key before it was seen here.
                    from_start = [queue for queue in due if files != self._files or queue not in self._next]
                    self._load(from_start)
                    for queue in due:
                        if queue not in from_start:
                            self._follow(queue)
                        # Of what lies before the end nothing is left to be read.
                        self._next[queue] = max(self._next[queue], ends.get(queue, 0))
                # One that was published meanwhile may have done so too.
                if files == self._compacted_files():
                    self._files = files
                    return

    def offset(self, queue_id: int = 0) -> int:
        """One past the last offset of a queue that the table has seen."""
        with self._lock:
            return self._next.get(queue_id, 0)

    def wait_until(self, offset: int, *, queue_id: int = 0, timeout: Duration | None = None) -> bool:
        """Waits until the table has the message at `offset` of a queue, an append's `queue_offset` for one.

        Args:
            offset: the offset.
            queue_id: the queue.
            timeout: how long at most; None is for ever.

        Returns:
            False when `timeout` passed first.

        Raises:
            StoreClosedError: the store was closed meanwhile.
        """
        if not self._store.wait(self._topic, queue_id, offset, timeout):
            return False
        self.refresh()
        return True

    def changes(self, *, timeout: Duration | None = None) -> Iterator[Change]:
        """What happens to the table from now on, as it happens; each iterator by itself, in the order of each queue.

        An iterator that is left alone for longer than the `tombstone_retention` of compactions may miss a deletion.

        Args:
            timeout: how long to wait for one change before the iterator ends; None is for ever.

        Raises:
            StoreClosedError: the store was closed meanwhile.
        """
        return self._changes(self._places(), timeout)

    def _places(self) -> dict[int, int]:
        """Where each queue is read on, once all that is there was taken up."""
        with self._lock:
            self.refresh()
            return dict(self._next)

    def __getitem__(self, key: str) -> StoredMessage:
        while True:
            self.refresh()
            with self._lock:
                queue_id, offset, message = self._entries[key]
            if message is None:
                # None when it was compacted away since, for a newer one.
                message = self._store.message_at(self._topic, queue_id, offset)
            if message is not None:
                return message

    def __contains__(self, key: object) -> bool:
        self.refresh()
        return key in self._entries

    def __iter__(self) -> Iterator[str]:
        self.refresh()
        with self._lock:
            return iter(self._entries.keys())

    def __len__(self) -> int:
        self.refresh()
        return len(self._entries)

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"<mqstore.Table {self._topic!r} of {self._store.path!r}, {len(self._entries)} keys>"

    def __reduce__(self) -> NoReturn:
        msg = f"cannot pickle the table {self._topic!r}: it belongs to an open store"
        raise TypeError(msg)

    def _compacted_files(self) -> object:
        """Another value after each compaction, by this process or another."""
        compaction = os.path.join(self._store.path, "compaction")  # noqa: PTH118 - paths may be no UTF-8
        found: list[Any] = []
        for name in ("", "position-checkpoint"):
            try:
                stat = os.stat(os.path.join(compaction, name))  # noqa: PTH116, PTH118
                found.append((stat.st_ino, stat.st_mtime_ns if name else 0))
            except FileNotFoundError:
                found.append(None)
        return found

    def _ends(self) -> dict[int, int]:
        return {queue.queue_id: queue.max_offset for queue in self._store.queues(self._topic)}

    def _due(self, places: dict[int, int]) -> list[int]:
        """The queues that have something behind their place, and those that are new."""
        # Asked each time: nothing that files tell changes with every queue that comes.
        new = [queue for queue in self._store._queue_ids(self._topic) if queue not in places]
        return [queue for queue, start in places.items() if self._store.wait(self._topic, queue, start, 0)] + new

    def _messages(self, queue: int, start: int | None) -> Iterator[StoredMessage]:
        return self._store.read(self._topic, queue, start)

    def _load(self, queues: list[int]) -> None:
        """Reads queues from their beginnings, side by side."""
        if not queues:
            return
        ended = threading.Event()
        with ThreadPoolExecutor(min(len(queues), os.cpu_count() or 1)) as pool:
            try:
                loaded = list(pool.map(lambda queue: self._read_all(queue, ended), queues))
            except BaseException:
                ended.set()
                raise
        for queue, load in zip(queues, loaded, strict=True):
            self._next[queue] = self._entries.absorb(load)

    def _read_all(self, queue: int, ended: threading.Event) -> _native.TableLoad:
        load = _native.TableLoad(self._store, self._topic, queue, self._in_memory)
        while not ended.is_set() and load.step():
            pass
        return load

    def _follow(self, queue: int) -> None:
        start = self._next[queue]
        try:
            messages = self._messages(queue, start)
        except OffsetOutOfRangeError:
            # What lay there was deleted by the retention.
            self._load([queue])
            return
        for message in messages:
            self._next[queue] = message.queue_offset + 1
            key = key_of(message)
            if key is None:
                continue
            self._entries.put(key, queue, message, self._in_memory)

    def _changes(self, places: dict[int, int], timeout: Duration | None) -> Iterator[Change]:
        from mqstore._times import seconds_from

        limit = None if timeout is None else seconds_from(timeout)
        last = time.monotonic()
        while True:
            due = self._due(places)
            ends = self._ends() if due else {}
            for queue in due:
                for message in self._messages(queue, places.get(queue)):
                    places[queue] = message.queue_offset + 1
                    if (key := key_of(message)) is not None:
                        kept = message if message.body_view.nbytes else None
                        yield Change(key, kept, queue, message.queue_offset)
                        last = time.monotonic()
                places[queue] = max(places.get(queue, 0), ends.get(queue, 0))
            if due:
                continue
            left = None if limit is None else last + limit - time.monotonic()
            if left is not None and left <= 0:
                return
            pause = left if len(places) == 1 else _SLICE if left is None else min(left, _SLICE)
            queue, start = next(iter(places.items()))
            self._store.wait(self._topic, queue, start, pause)


def key_of(message: StoredMessage) -> str | None:
    """The whole `KEYS` text; None where that is blank."""
    keys = message.properties.get("KEYS")
    return keys if keys and not keys.isspace() else None


Table.__module__ = "mqstore"
Change.__module__ = "mqstore"
