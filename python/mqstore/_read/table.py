"""`Table`: a topic as a mapping from each key to its newest message."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from operator import index
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TypeAlias

from mqstore import _native
from mqstore._read.lasting import Lasting
from mqstore._times import duration_of, seconds_of
from mqstore._warn import context_for_thread
from mqstore.errors import InvalidMessageError, InvalidOptionError, OffsetOutOfRangeError

if TYPE_CHECKING:
    from mqstore._native import AppendResult, StoredMessage
    from mqstore._store import Store
    from mqstore.types import BytesLike, Compression, Duration, OnDamage

Bodies: TypeAlias = Literal["memory", "disk"]
"""Location of a table's messages: in memory, or on disk until they are needed."""

# Longest wait for the first of several queues before the others are checked.
_SLICE = 0.05

# Store times are in milliseconds.
_LEAST_SECONDS = 0.001


@dataclass(frozen=True, slots=True)
class Change:
    """A change of one key of a table."""

    key: str
    """Key."""
    message: StoredMessage | None
    """Newest message of the key; None after its deletion, or if the message has expired since."""
    queue_id: int
    """Queue of the change."""
    queue_offset: int
    """Offset of the message that made the change, also of a tombstone."""


class Table(Mapping[str, "StoredMessage"]):
    """A topic as a live mapping from key to newest message, from `Store.table`.

    The key is the complete `KEYS` text of a message. A message with an empty body deletes its key; messages without a
    key are skipped. If a key is in several queues, its message with the latest store time wins.

    In a store that is open for writing, `table[key] = b"value"` and `del table[key]` append such messages.

    If the topic has an `expire_after`, a key whose newest message is at least that old is absent.

    Every access first applies everything appended so far. Iteration yields the keys of one moment. Thread-safe. A table
    uses only memory, works as long as its store is open, and cannot be pickled.
    """

    def __init__(
        self,
        store: Store,
        topic: str,
        bodies: Bodies = "memory",
        on_damage: OnDamage = "raise",
        expire_after: Duration | None = None,
    ) -> None:
        """Loads the table. Programs call `Store.table` instead."""
        if bodies not in ("memory", "disk"):
            raise ValueError(f'bodies must be "memory" or "disk", not {bodies!r}')
        self._store = store
        self._topic = topic
        self._on_damage: OnDamage = on_damage
        self._in_memory = bodies == "memory"
        self._lock = threading.RLock()
        self._entries = _native.TableRows()
        # Next offset of each queue.
        self._next: dict[int, int] = {}
        self._files: object = None
        if expire_after is not None:
            self.expire_after = expire_after
        self._load(sorted(self._ends()))
        self.refresh()

    @property
    def topic(self) -> str:
        """Name of the topic."""
        return self._topic

    @property
    def expire_after(self) -> timedelta | None:
        """Time after which a value expires, counted from its store time; None if values do not expire.

        Assign seconds, a `timedelta`, text such as `"7d"`, or None to change it. It is a setting of the topic: the
        change is durable, and every process sees it with its next access to the table. An expired value is absent from
        the mapping at once. Reads of the topic return it until a compaction removes it, which is final: a longer time
        brings back only values that are still there. In a store that is open for reading, an assignment raises
        `StoreReadOnlyError` unless the value is the same.
        """
        return expire_after_of(self._store, self._topic)

    @expire_after.setter
    def expire_after(self, value: Duration | None) -> None:
        wanted = 0.0
        if value is not None:
            wanted = duration_of("expire_after", value)
            if wanted < _LEAST_SECONDS:
                reason = f"{wanted:g} s is less than a millisecond; None turns the expiry off"
                raise InvalidOptionError("expire_after", reason)
        known = expire_after_of(self._store, self._topic)
        if abs(wanted - (known.total_seconds() if known else 0)) >= _LEAST_SECONDS / 2:
            self._store.update_topic(self._topic, expire_after=wanted)

    def refresh(self) -> None:
        """Applies everything appended so far; every other method does so too.

        Raises:
            StoreClosedError: the store was closed.
        """
        with self._lock:
            while True:
                files = self._compacted_files()
                if due := self._due(self._next):
                    ends = self._ends()
                    # A compaction may have dropped a tombstone that this table has not read.
                    from_start = [queue for queue in due if files != self._files or queue not in self._next]
                    self._load(from_start)
                    for queue in due:
                        if queue not in from_start:
                            self._follow(queue)
                        # No message before the end is left to read.
                        self._next[queue] = max(self._next[queue], ends.get(queue, 0))
                # A compaction that was published meanwhile may have dropped one too.
                if files == self._compacted_files():
                    self._files = files
                    break
            self._expire()

    def _expire(self) -> None:
        """Removes the expired values from memory."""
        to_ms = _native.expired_to_ms(self._store, self._topic)
        if self._entries.expire(to_ms):
            return
        # Removed values are valid again: the time is longer now, or the clock was set back.
        entries = _native.TableRows()
        self._load(sorted({*self._ends(), *self._next}), entries)
        entries.expire(to_ms)
        self._entries = entries

    def offset(self, queue_id: int = 0) -> int:
        """Returns one past the last offset of a queue that the table has applied."""
        with self._lock:
            return self._next.get(queue_id, 0)

    def wait_until(self, offset: int, *, queue_id: int = 0, timeout: Duration | None = None) -> bool:
        """Waits until the table includes the message at `offset` of a queue, such as the `queue_offset` of an append.

        Args:
            offset: the queue offset.
            queue_id: id of the queue.
            timeout: longest wait; None waits without limit.

        Returns:
            False if `timeout` ended first.

        Raises:
            StoreClosedError: the store was closed during the wait.
        """
        if not self._store.wait(self._topic, queue_id, index(offset), timeout):
            return False
        self.refresh()
        return True

    def changes(self, *, timeout: Duration | None = None) -> Iterator[Change]:
        """Yields the changes of the table from now on, in offset order of each queue. Iterators are independent.

        An iterator that pauses for longer than the `tombstone_retention` of compactions can miss a deletion. The expiry
        of a value is no change, because no message says so.

        Args:
            timeout: longest wait for one change before the iterator ends; None waits without limit.

        Raises:
            StoreClosedError: the store was closed during the wait.
        """
        limit = None if timeout is None else seconds_of("timeout", timeout)
        return Lasting(self._changes(self._places(), limit))

    def _places(self) -> dict[int, int]:
        """Returns the next offset of each queue, after a refresh."""
        with self._lock:
            self.refresh()
            return dict(self._next)

    def __getitem__(self, key: str) -> StoredMessage:
        gone = None
        while True:
            self.refresh()
            with self._lock:
                queue_id, offset, message = self._entries[key]
            if message is None:
                # Still None if a compaction has since replaced it by a newer message, or has removed it as expired.
                message = self._store.message_at(self._topic, queue_id, offset)
            if message is not None:
                return message
            if gone == (queue_id, offset):
                # It had expired for the compaction, and has not for this table: the clock was set back.
                with self._lock:
                    self._load([queue_id])
            gone = (queue_id, offset)

    def set(
        self,
        key: str,
        value: BytesLike,
        *,
        durable: bool = False,
        compression: Compression | None = None,
        compress_over: int | None = None,
    ) -> AppendResult:
        """Appends `value` as the newest message of `key`.

        The message goes to the queue in which the key is, so that the changes of a key stay in order.

        Args:
            key: the key; several words with single blanks are the keys of one message.
            value: any bytes-like object, not empty.
            durable: whether to wait for a sync, in every durability mode.
            compression: as for `Store.append`.
            compress_over: as for `Store.append`.

        Returns:
            The position of the message.

        Raises:
            InvalidMessageError: `value` is empty, or `key` cannot be stored.
            StoreReadOnlyError: the store is open for reading.
        """
        try:
            is_empty = not memoryview(value).nbytes
        except TypeError:
            # The append names the wrong type.
            is_empty = False
        if is_empty:
            raise InvalidMessageError(f"an empty value would delete the key {key!r}; use del table[key]")
        with self._lock:
            return self._append(key, value, self._queue_of(key), durable, compression, compress_over)

    def delete(self, key: str, *, durable: bool = False) -> AppendResult:
        """Deletes `key`: appends a tombstone, a message with the key and without a body.

        Args:
            key: a key of the table.
            durable: whether to wait for a sync, in every durability mode.

        Returns:
            The position of the tombstone.

        Raises:
            KeyError: the table has no such key.
            StoreReadOnlyError: the store is open for reading.
        """
        with self._lock:
            queue_id = self._queue_of(key)
            if queue_id is None:
                raise KeyError(key)
            return self._append(key, b"", queue_id, durable)

    def _queue_of(self, key: str) -> int | None:
        self.refresh()
        return self._entries[key][0] if key in self._entries else None

    def _append(
        self,
        key: str,
        body: BytesLike,
        queue_id: int | None,
        durable: bool,
        compression: Compression | None = None,
        compress_over: int | None = None,
    ) -> AppendResult:
        if not isinstance(key, str):
            raise TypeError(f"a key of a table must be a str, not {type(key).__name__}")
        if not key or key.isspace():
            raise InvalidMessageError(f"the key {key!r} is blank; a message with it has no key")
        return self._store.append(
            self._topic,
            body,
            keys=key.split(" "),
            queue_id=queue_id,
            durable=durable,
            compression=compression,
            compress_over=compress_over,
        )

    def __setitem__(self, key: str, value: BytesLike) -> None:
        self.set(key, value)

    def __delitem__(self, key: str) -> None:
        self.delete(key)

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
        raise TypeError(f"cannot pickle the table {self._topic!r}: it belongs to an open store")

    def _compacted_files(self) -> object:
        """Returns a value that differs after each compaction, by this process or another."""
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
        """Returns the queues with messages after their next offset, and the new queues."""
        # Checked each time: no cached file state changes with every new queue.
        new = [queue for queue in self._store._queue_ids(self._topic) if queue not in places]
        return [queue for queue, start in places.items() if self._store.wait(self._topic, queue, start, 0)] + new

    def _messages(self, queue: int, start: int | None) -> Iterator[StoredMessage]:
        return self._store.read(self._topic, queue, start, on_damage=self._on_damage)

    def _load(self, queues: list[int], entries: _native.TableRows | None = None) -> None:
        """Reads queues from their start, in parallel, into `entries`, by default those of the table."""
        if not queues:
            return
        ended = threading.Event()
        started: list[Future[_native.TableLoad]] = []
        with ThreadPoolExecutor(min(len(queues), os.cpu_count() or 1)) as pool:
            try:
                # If the system cannot start a thread, this one reads the other queues.
                with suppress(RuntimeError):
                    started.extend(
                        pool.submit(context_for_thread().run, self._read_all, queue, ended) for queue in queues
                    )
                rest = [self._read_all(queue, ended) for queue in queues[len(started) :]]
                loaded = [future.result() for future in started] + rest
            except BaseException:
                ended.set()
                raise
        for queue, load in zip(queues, loaded, strict=True):
            # Rows without a key are false.
            self._next[queue] = (self._entries if entries is None else entries).absorb(load)

    def _read_all(self, queue: int, ended: threading.Event) -> _native.TableLoad:
        load = _native.TableLoad(self._store, self._topic, queue, self._in_memory, self._on_damage)
        while not ended.is_set() and load.step():
            pass
        return load

    def _follow(self, queue: int) -> None:
        start = self._next[queue]
        try:
            messages = self._messages(queue, start)
        except OffsetOutOfRangeError:
            # The retention deleted the messages at this offset.
            self._load([queue])
            return
        for message in messages:
            self._next[queue] = message.queue_offset + 1
            key = key_of(message)
            if key is None:
                continue
            self._entries.put(key, queue, message, self._in_memory)

    def _change(self, message: StoredMessage, queue: int) -> Change | None:
        """Returns the change that a message makes; None for a message without a key."""
        key = key_of(message)
        if key is None:
            return None
        expired_to = _native.expired_to_ms(self._store, self._topic)
        is_value = message.body_view.nbytes and (expired_to is None or message.store_timestamp > expired_to)
        return Change(key, message if is_value else None, queue, message.queue_offset)

    def _changes(self, places: dict[int, int], limit: float | None) -> Iterator[Change]:
        last = time.monotonic()
        while True:
            due = self._due(places)
            ends = self._ends() if due else {}
            for queue in due:
                for message in self._messages(queue, places.get(queue)):
                    places[queue] = message.queue_offset + 1
                    if (change := self._change(message, queue)) is not None:
                        yield change
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


def expire_after_of(store: Store, topic: str) -> timedelta | None:
    """Returns the `expire_after` of a topic; None if its values do not expire, or there is no such topic."""
    after_ms = _native.expire_after_ms(store, topic)
    return None if after_ms is None else timedelta(milliseconds=after_ms)


def key_of(message: StoredMessage) -> str | None:
    """Returns the complete `KEYS` text; None if it is blank."""
    keys = message.properties.get("KEYS")
    return keys if keys and not keys.isspace() else None


Table.__module__ = "mqstore"
Change.__module__ = "mqstore"
