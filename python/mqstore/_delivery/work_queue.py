"""`WorkQueue`: the part of a work queue that is written in Python.

It inherits `put`, `ack` and the other verbs from the native class, so that a call needs no Python frame.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Self

from mqstore import _native
from mqstore._reports import _Report
from mqstore._times import time_of

if TYPE_CHECKING:
    from datetime import datetime

    from mqstore._native import AppendResult, LeasedMessage, StoredMessage
    from mqstore.types import BytesLike, Compression, Duration, Keys, Properties, Time


@dataclass(frozen=True, slots=True)
class Lease(_Report):
    """A lease on a message of a work queue, from `WorkQueue.leased`."""

    topic: str
    """Topic of the message: that of the queue, or one of RocketMQ's retry topics for it."""
    queue_id: int
    """Queue of the message."""
    queue_offset: int
    """Offset of the message in its queue: `Store.message_at` returns the message."""
    attempt: int
    """Number of the delivery, counted from 1."""
    invisible_until: int
    """End of the lease, in epoch milliseconds."""

    @property
    def end(self) -> datetime:
        """`invisible_until` as an aware UTC datetime."""
        return time_of(self.invisible_until)


@dataclass(frozen=True, slots=True)
class Delay(_Report):
    """A message of a work queue that is due later, from `WorkQueue.delayed`."""

    topic: str
    """Topic of the message: that of the queue, or one of RocketMQ's retry topics for it."""
    queue_id: int
    """Queue of the message."""
    queue_offset: int
    """Offset of the message in its queue: `Store.message_at` returns the message."""
    attempts: int
    """Number of its deliveries so far; 0 for a message that was put with a delay."""
    due_timestamp: int
    """Time from which a worker can get it, in epoch milliseconds."""

    @property
    def due(self) -> datetime:
        """`due_timestamp` as an aware UTC datetime."""
        return time_of(self.due_timestamp)


@dataclass(frozen=True, slots=True)
class WorkQueueCounts(_Report):
    """Number of messages in a work queue, by state."""

    ready: int
    """Messages without a lease that are due."""
    delayed: int
    """Messages that are due later: returned or put with a delay."""
    leased: int
    """Messages with a lease."""
    dying: int
    """Messages that become dead letters."""
    dead: int = 0
    """Dead letters of the group that were neither redriven nor deleted."""


class WorkQueue(_native.NativeWorkQueue):
    """A topic from which workers lease single messages, from `Store.work_queue`. It blocks like `queue.Queue`.

    A message is delivered at least once, and never again after its `ack` is on the disk. A lease lasts for
    `visibility_timeout`; without an `ack` until then the message is redelivered. All state is in the store: leases,
    retries and acknowledgements survive a kill of the process. Threads can share a handle.
    """

    __slots__ = ("__weakref__",)

    def __new__(cls, *_args: object, **_kwargs: object) -> Self:
        raise TypeError("open a work queue with store.work_queue(topic)")

    @classmethod
    def _make(cls, store: _native.NativeStore, *options: Any) -> Self:
        return _native.NativeWorkQueue.__new__(cls, store, *options)

    @classmethod
    def _for_dead_letters(cls, store: _native.NativeStore, topic: str, group: str) -> Self:
        """Opens a handle that leases nothing, whatever options another process gave the queue."""
        return cls._make(store, topic, group, 30.0, 16, None, 0, "raise", True)

    def put_nowait(
        self,
        body: BytesLike | None = None,
        *,
        json: object = None,
        keys: Keys = (),
        tags: str | None = None,
        properties: Properties | None = None,
        delay: Duration | None = None,
        deliver_at: Time | None = None,
        dedup_id: str | None = None,
        durable: bool = False,
        compression: Compression | None = None,
        compress_over: int | None = None,
    ) -> AppendResult:
        """Calls `put` with `block=False`."""
        return self.put(
            body,
            json=json,
            keys=keys,
            tags=tags,
            properties=properties,
            delay=delay,
            deliver_at=deliver_at,
            dedup_id=dedup_id,
            durable=durable,
            block=False,
            compression=compression,
            compress_over=compress_over,
        )

    def get_nowait(self) -> LeasedMessage:
        """Calls `get` with `block=False`."""
        return self.get(block=False)

    def counts(self) -> WorkQueueCounts:
        """Returns the number of messages by state: ready, delayed, leased, becoming dead letters, and dead letters.

        It reads each new message once, because only the message says that it was put with a delay.
        """
        return WorkQueueCounts(*self._counts())

    def delayed(self) -> list[Delay]:
        """Returns the messages that are due later: returned or put with a delay. The one that is due first is first.

        Raises:
            ShutDown: this handle is closed.
        """
        return [Delay(*row) for row in self._delays()]

    def cancel(self, job: str | AppendResult | StoredMessage | Delay) -> bool:
        """Cancels a message that no worker has, ready or due later: no worker gets it, and it becomes no dead letter.

        The cancellation is for the group of this queue, and on the disk when the call returns.

        Args:
            job: the result of `put`, an item of `delayed`, a message, or a `message_id` or `unique_id`. Of several
                messages with the same unique id, the newest that waits is cancelled.

        Returns:
            Whether it was found waiting: False if it is finished, a dead letter, or not in this queue.

        Raises:
            RefusedError: a worker has the message; it ends it, or its lease ends.
            ShutDown: this handle is closed.
        """
        if isinstance(job, str):
            return self._cancel(job)
        return self._cancel_at(job.topic, job.queue_id, job.queue_offset)

    def leased(self) -> list[Lease]:
        """Returns the leases of all workers, the one that ends first at first.

        A lease that has ended is in the list until another worker gets the message.

        Raises:
            ShutDown: this handle is closed.
            StoreClosedError: the store is closed.
        """
        return [Lease(*row) for row in self._leases()]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = " (closed)" if self.closed else ""
        return f"<mqstore.WorkQueue topic={self.topic!r} group={self.group!r}{state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"cannot pickle the work queue of topic {self.topic!r}: it belongs to an open store of this process; "
            "open it in the other process with store.work_queue"
        )


WorkQueue.__module__ = WorkQueueCounts.__module__ = Lease.__module__ = Delay.__module__ = "mqstore"
