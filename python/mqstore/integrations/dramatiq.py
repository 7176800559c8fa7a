"""A broker for dramatiq: each queue of dramatiq is a work queue of a store.

This file owns no state: the messages, their leases, delays and dead letters are in the store. A message is delivered
until the worker acknowledges it, so a message whose worker was killed runs again when its lease ends. A message that
dramatiq rejects is appended to the dead-letter topic before it is acknowledged: a kill between the two steps leaves it
in both places, and never in none.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any, NoReturn

from mqstore.errors import Empty, ForkedProcessError, MissingPackageError, ShutDown, StoreClosedError
from mqstore.integrations._lease_keeper import LeaseKeeper
from mqstore.integrations._store_handle import ShareMode, StoreHandle, keys_of, topic_of

try:
    from dramatiq import Broker, Consumer, Message, MessageProxy, Middleware
    from dramatiq.common import q_name
    from dramatiq.errors import ConnectionClosed, DecodeError, QueueJoinTimeout, QueueNotFound
except ModuleNotFoundError as error:
    raise MissingPackageError((error.name or "dramatiq").partition(".")[0], "mqstore[dramatiq]") from error

if TYPE_CHECKING:
    from collections.abc import Iterable

    import mqstore
    from mqstore.types import StorePath

__all__ = ["MQStoreBroker"]

_CLOSED = (ForkedProcessError, ShutDown, StoreClosedError)


class MQStoreBroker(Broker):
    """A dramatiq broker over a store.

        dramatiq.set_broker(MQStoreBroker("/var/lib/shop/store"))

    Delays of messages need no memory of a worker: the store hides a message until it is due, for at most 30 days.
    dramatiq's middleware retries failed messages. A message that it rejects becomes a dead letter.
    """

    def __init__(
        self,
        path: StorePath | mqstore.Store,
        *,
        mode: ShareMode = "share",
        middleware: list[Middleware] | None = None,
        namespace: str = "dramatiq",
        visibility_timeout: float = 30.0,
        max_attempts: int | None = None,
        durable: bool = False,
        **open_options: Any,
    ) -> None:
        """Opens nothing yet: the first message opens the store.

        Args:
            path: directory of the store, the same for all processes; or an open store.
            mode: mode of the open. With `"create"`, one process sends the messages and runs them.
            middleware: as for every broker of dramatiq.
            namespace: prefix of the topics: the queue `default` is the topic `dramatiq-default`.
            visibility_timeout: seconds after which the message of a killed worker runs again. While a worker is alive,
                the broker extends its leases.
            max_attempts: number of deliveries after which a message becomes a dead letter; None is no limit. dramatiq
                counts its retries itself. A worker that stops returns the messages that it has not begun, and each
                return counts as a delivery.
            durable: whether `send` waits until the message is on the disk.
            open_options: other arguments of `mqstore.open`.
        """
        super().__init__(middleware=middleware)
        self.queues: set[str] = set()
        self._namespace = namespace
        self._options: dict[str, Any] = {"visibility_timeout": visibility_timeout, "max_attempts": max_attempts}
        self._durable = durable
        self._handle = StoreHandle(path, mode, open_options)
        self._keeper = LeaseKeeper("mqstore-dramatiq", visibility_timeout)

    def work_queue(self, queue_name: str) -> mqstore.WorkQueue:
        """Returns the work queue of a queue, for its counts, its dead letters and `redrive`.

        Raises:
            QueueNotFound: no actor and no `declare_queue` named the queue.
        """
        if q_name(queue_name) not in self.queues:
            raise QueueNotFound(queue_name)
        return self._handle.work_queue(topic_of(f"{self._namespace}-", q_name(queue_name)), **self._options)

    def declare_queue(self, queue_name: str) -> None:
        """Declares a queue. A second call does nothing."""
        if queue_name not in self.queues:
            self.emit_before("declare_queue", queue_name)
            self.queues.add(queue_name)
            self.emit_after("declare_queue", queue_name)

    def get_declared_queues(self) -> set[str]:
        """Returns the names of the declared queues."""
        return self.queues.copy()

    def enqueue(self, message: Message[Any], *, delay: int | None = None) -> Message[Any]:
        """Puts a message into its queue, which it declares.

        Args:
            message: the message.
            delay: milliseconds before the delivery, at most 30 days.

        Raises:
            InvalidOptionError: the delay is too long; nothing was written.
        """
        name = q_name(message.queue_name)
        self.declare_queue(name)
        self.emit_before("enqueue", message, delay)
        self.work_queue(name).put(
            message.encode(),
            keys=keys_of(message.message_id),
            tags=message.actor_name,
            delay=None if delay is None else delay / 1000,
            durable=self._durable,
        )
        self.emit_after("enqueue", message, delay)
        return message

    def consume(self, queue_name: str, prefetch: int = 1, timeout: int = 5000) -> Consumer:
        """Returns a consumer of a queue.

        Args:
            queue_name: name of the queue.
            prefetch: number of messages that the consumer leases at a time.
            timeout: longest wait for a message, in milliseconds.

        Raises:
            QueueNotFound: the queue is not declared.
        """
        return _StoreConsumer(self._handle.store, self.work_queue(queue_name), self._keeper, prefetch, timeout)

    def flush(self, queue_name: str) -> None:
        """Finishes all messages of a queue that no worker has.

        Raises:
            QueueNotFound: the queue is not declared.
        """
        self.work_queue(queue_name).purge()

    def flush_all(self) -> None:
        """Finishes all messages of the declared queues that no worker has."""
        for name in self.queues:
            self.flush(name)

    def join(self, queue_name: str, *, timeout: int | None = None) -> None:
        """Waits until all messages of a queue are acknowledged or dead letters, those with a delay included.

        Args:
            queue_name: name of the queue.
            timeout: longest wait in milliseconds; None is no limit.

        Raises:
            QueueJoinTimeout: the time is over.
            QueueNotFound: the queue is not declared.
        """
        if not self.work_queue(queue_name).join(None if timeout is None else timeout / 1000):
            raise QueueJoinTimeout(queue_name)

    def close(self) -> None:
        """Closes the store, if no other broker of this process uses it. A later call opens it again."""
        self._keeper.close()
        self._handle.close()


class _Delivery(MessageProxy):
    """A message, the lease on it, and the slots of the consumer that got it."""

    def __init__(self, message: Message[Any], lease: mqstore.LeasedMessage, slots: threading.Semaphore) -> None:
        super().__init__(message)
        self.lease = lease
        self.slots = slots


class _StoreConsumer(Consumer):
    """Leases up to `prefetch` messages. dramatiq acknowledges them from other threads."""

    def __init__(
        self,
        store: mqstore.Store,
        queue: mqstore.WorkQueue,
        keeper: LeaseKeeper,
        prefetch: int,
        timeout: int,
    ) -> None:
        self._store = store
        self._queue = queue
        self._keeper = keeper
        self._seconds = timeout / 1000
        self._slots = threading.Semaphore(prefetch)

    def __next__(self) -> _Delivery | None:
        if not self._slots.acquire(timeout=self._seconds):
            return None
        try:
            lease = self._queue.get(timeout=self._seconds)
        except Empty:
            self._slots.release()
            return None
        except _CLOSED as error:
            self._slots.release()
            _raise_closed(error)
        self._keeper.hold(lease)
        try:
            return _Delivery(Message.decode(lease.body), lease, self._slots)
        except DecodeError as error:
            self._keeper.bury(lease, self._store, self._queue, repr(error.__cause__ or error))
            self._slots.release()
            return None

    def ack(self, message: MessageProxy) -> None:
        """Acknowledges a message."""
        delivery = _delivery_of(message)
        try:
            self._keeper.finish(delivery.lease)
        except _CLOSED as error:
            _raise_closed(error)
        delivery.slots.release()

    def nack(self, message: MessageProxy) -> None:
        """Makes a message a dead letter."""
        delivery = _delivery_of(message)
        # The last line of dramatiq's traceback names the exception.
        lines = str(message.options.get("traceback") or "").strip().splitlines()
        try:
            self._keeper.bury(delivery.lease, self._store, self._queue, lines[-1].strip() if lines else "rejected")
        except _CLOSED as error:
            _raise_closed(error)
        delivery.slots.release()

    def requeue(self, messages: Iterable[MessageProxy]) -> None:
        """Returns messages that no worker has begun."""
        for message in messages:
            delivery = _delivery_of(message)
            self._keeper.give_back(delivery.lease)
            delivery.slots.release()


def _delivery_of(message: MessageProxy) -> _Delivery:
    assert isinstance(message, _Delivery)
    return message


def _raise_closed(error: Exception) -> NoReturn:
    """Raises the error for which dramatiq restarts a consumer."""
    raise ConnectionClosed(error) from error
