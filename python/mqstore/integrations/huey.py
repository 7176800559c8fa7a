"""A storage for huey: its queue is a work queue of a store, its schedule and its data are key tables.

This file owns the topics `huey-NAME-queue`, `-schedule`, `-data` and `-counters`. `MqstoreHuey` acknowledges a task
after its execution, and removes a task from the schedule after it is in the queue. So after a kill a task that was not
finished runs again when its lease ends, and no task is lost. Changes of data and counters are atomic between the
processes of a machine: a lock of the directory orders them, and the end of a process frees it.
"""

from __future__ import annotations

import fcntl
import os
import threading
import time
import uuid
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from mqstore.errors import Empty, MissingPackageError, ShutDown, StoreClosedError
from mqstore.integrations._lease_keeper import LeaseKeeper
from mqstore.integrations._store_handle import ShareMode, StoreHandle, topic_of

try:
    from huey.api import Huey
    from huey.constants import EmptyData
    from huey.signals import SIGNAL_INTERRUPTED
    from huey.storage import BaseStorage
except ModuleNotFoundError as error:
    raise MissingPackageError((error.name or "huey").partition(".")[0], "mqstore[huey]") from error

if TYPE_CHECKING:
    from collections.abc import Iterator
    from datetime import datetime

    import mqstore
    from mqstore.types import StorePath

__all__ = ["MqstoreHuey", "MqstoreStorage"]

# An empty body would delete the key, so each value begins with this byte.
_VALUE = b"="

# Seconds before the redelivery of a task that a consumer returns at its end, so that it does not get it again itself.
_PAUSE = 1.0


class MqstoreStorage(BaseStorage):
    """The storage. `dequeue` removes a task, as every storage of huey does; `lease` leaves it in the queue."""

    priority = False

    def __init__(
        self,
        name: str = "huey",
        path: StorePath | mqstore.Store = "huey-store",
        *,
        mode: ShareMode = "share",
        blocking: bool = True,
        read_timeout: float = 1.0,
        visibility_timeout: float = 30.0,
        max_attempts: int | None = None,
        durable: bool = False,
        **open_options: Any,
    ) -> None:
        """Opens nothing yet: the first task opens the store.

        Args:
            name: name of the queue, a part of the names of its topics.
            path: directory of the store, the same for all processes; or an open store.
            mode: mode of the open. With `"create"`, one process sends the tasks and runs them.
            blocking: whether `dequeue` waits for a task. If not, the consumer of huey polls.
            read_timeout: longest wait of a `dequeue`, in seconds.
            visibility_timeout: seconds after which the task of a killed consumer runs again. While a consumer is alive,
                the storage extends its leases.
            max_attempts: number of deliveries after which a task becomes a dead letter; None is no limit.
            durable: whether writes wait until they are on the disk.
            open_options: other arguments of `mqstore.open`.
        """
        super().__init__(name)
        self.blocking = blocking
        self.keeper = LeaseKeeper("mqstore-huey", visibility_timeout)
        self._read_timeout = read_timeout
        self._options: dict[str, Any] = {"visibility_timeout": visibility_timeout, "max_attempts": max_attempts}
        self._durable = durable
        self._handle = StoreHandle(path, mode, open_options)
        # Number of `locked` blocks that the current thread is in.
        self._depth = threading.local()

    @property
    def work_queue(self) -> mqstore.WorkQueue:
        """The work queue, for its counts, its dead letters and `redrive`."""
        return self._handle.work_queue(self._topic("queue"), **self._options)

    def lease(self) -> mqstore.LeasedMessage | None:
        """Leases the next task, or returns None. Pass it to `keeper.finish` or `keeper.give_back` later."""
        try:
            lease = self.work_queue.get(block=self.blocking, timeout=self._read_timeout if self.blocking else None)
        except Empty:
            return None
        except (ShutDown, StoreClosedError):
            # The process ends while the threads of the consumer still run, or another thread closed the storage.
            time.sleep(self._read_timeout)
            return None
        self.keeper.hold(lease)
        return lease

    def bury(self, lease: mqstore.LeasedMessage, reason: str) -> None:
        """Makes a task a dead letter."""
        self.keeper.bury(lease, self._handle.store, self.work_queue, reason)

    def close(self) -> None:
        """Closes the store, if nothing else in this process uses it. A later call opens it again."""
        self.keeper.close()
        self._handle.close()

    def enqueue(self, data: bytes, priority: float | None = None) -> None:
        """Puts a task into the queue.

        Raises:
            NotImplementedError: `priority` is not 0 or None.
        """
        if priority:
            raise NotImplementedError("a work queue of mqstore has no priorities: use a queue for each priority")
        self.work_queue.put(data, durable=self._durable)

    def dequeue(self) -> bytes | None:
        """Returns the next task and removes it from the queue."""
        if (lease := self.lease()) is None:
            return None
        self.keeper.finish(lease)
        return lease.body

    def queue_size(self) -> int:
        """Returns the number of tasks that no consumer has."""
        return self.work_queue.qsize()

    def enqueued_items(self, limit: int | None = None) -> list[bytes]:
        """Returns the first tasks of the queue; they stay there."""
        queue = self.work_queue
        count = queue.qsize() if limit is None else limit
        return [message.body for message in queue.peek(count)] if count else []

    def flush_queue(self) -> None:
        """Finishes all tasks that no consumer has."""
        self.work_queue.purge()

    def add_to_schedule(self, data: bytes, ts: datetime) -> None:
        """Adds a task to the schedule."""
        self._schedule.set(f"{_moment(ts)}~{uuid.uuid1()}", _VALUE + data, durable=self._durable)

    def read_schedule(self, ts: datetime) -> list[bytes]:
        """Returns the tasks that are due at `ts`, the earliest first, and removes them from the schedule."""
        found = []
        with self.locked():
            for key, data in self.due(ts):
                found.append(data)
                self.unschedule(key)
        return found

    def due(self, ts: datetime) -> list[tuple[str, bytes]]:
        """Returns the keys and the data of the tasks that are due at `ts`, the earliest first."""
        moment = _moment(ts)
        return [(key, data) for key, data in self._scheduled() if key.partition("~")[0] <= moment]

    def unschedule(self, key: str) -> None:
        """Removes a task from the schedule."""
        self._schedule.delete(key, durable=self._durable)

    def schedule_size(self) -> int:
        """Returns the number of tasks in the schedule."""
        return len(self._schedule)

    def scheduled_items(self, limit: int | None = None) -> list[bytes]:
        """Returns the tasks of the schedule, the earliest first; they stay there."""
        return [data for _, data in self._scheduled()[:limit]]

    def flush_schedule(self) -> None:
        """Removes all tasks from the schedule."""
        self._clear(self._schedule)

    def put_data(self, key: str | bytes, value: bytes, is_result: bool = False) -> None:  # noqa: ARG002
        """Stores a value."""
        with self.locked():
            self._data.set(_key_of(key), _VALUE + bytes(value), durable=self._durable)

    def peek_data(self, key: str | bytes) -> Any:
        """Returns the value of a key, or `EmptyData`."""
        message = self._data.get(_key_of(key))
        return EmptyData if message is None else _value_of(message)

    def pop_data(self, key: str | bytes) -> Any:
        """Removes a key and returns its value, or `EmptyData`."""
        with self.locked():
            value = self.peek_data(key)
            if value is not EmptyData:
                self._data.delete(_key_of(key), durable=self._durable)
            return value

    def has_data_for_key(self, key: str | bytes) -> bool:
        """Returns whether a key has a value."""
        return _key_of(key) in self._data

    def put_if_empty(self, key: str | bytes, value: bytes, ttl: float | None = None) -> bool:
        """Stores a value if the key has none. Returns whether it did.

        Raises:
            NotImplementedError: `ttl` is not None.
        """
        if ttl is not None:
            raise NotImplementedError("ttl is not supported by this storage")
        with self.locked():
            if self.has_data_for_key(key):
                return False
            self._data.set(_key_of(key), _VALUE + bytes(value), durable=self._durable)
            return True

    def incr(self, key: str | bytes, amount: int = 1) -> int:
        """Adds to a counter, which begins with 0, and returns the sum."""
        with self.locked():
            message = self._counters.get(_key_of(key))
            value = amount + (0 if message is None else int(message.body))
            self._counters.set(_key_of(key), b"%d" % value, durable=self._durable)
            return value

    def delete_counter(self, key: str | bytes) -> None:
        """Removes a counter, if it exists."""
        with self.locked():
            if _key_of(key) in self._counters:
                self._counters.delete(_key_of(key), durable=self._durable)

    def result_store_size(self) -> int:
        """Returns the number of values."""
        return len(self._data)

    def result_items(self) -> dict[str, bytes]:
        """Returns all keys and values."""
        return {unquote(key): _value_of(message) for key, message in self._data.items()}

    def flush_results(self) -> None:
        """Removes all values."""
        self._clear(self._data)

    def flush_counters(self) -> None:
        """Removes all counters."""
        self._clear(self._counters)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Excludes the other threads and processes that change the data of this store, until the end of the block."""
        if getattr(self._depth, "value", 0):
            yield
            return
        directory = os.open(self._handle.store.path, os.O_RDONLY)
        try:
            fcntl.flock(directory, fcntl.LOCK_EX)
            self._depth.value = 1
            yield
        finally:
            self._depth.value = 0
            # A child that was forked meanwhile has the descriptor too, so a close alone would not unlock.
            fcntl.flock(directory, fcntl.LOCK_UN)
            os.close(directory)

    def _scheduled(self) -> list[tuple[str, bytes]]:
        return [(key, _value_of(message)) for key, message in sorted(self._schedule.items(), key=lambda item: item[0])]

    def _clear(self, table: mqstore.Table) -> None:
        with self.locked():
            for key in list(table):
                table.delete(key)

    def _topic(self, part: str) -> str:
        return topic_of("huey-", f"{self.name}-{part}")

    @property
    def _schedule(self) -> mqstore.Table:
        return self._handle.table(self._topic("schedule"))

    @property
    def _data(self) -> mqstore.Table:
        return self._handle.table(self._topic("data"))

    @property
    def _counters(self) -> mqstore.Table:
        return self._handle.table(self._topic("counters"))


class MqstoreHuey(Huey):
    """A huey over a store: `huey = MqstoreHuey("shop", path="/var/lib/shop/store")`.

    A task leaves the queue after its execution, so a task must be able to run twice. `read_schedule` puts the tasks
    that are due into the queue itself, and returns an empty list. The other arguments are those of `MqstoreStorage`.
    """

    storage_class = MqstoreStorage

    def __init__(self, name: str = "huey", **options: Any) -> None:
        """Opens nothing yet.

        Args:
            name: name of the queue.
            options: arguments of `Huey` and of `MqstoreStorage`.
        """
        super().__init__(name, **options)
        self._leases: dict[int, mqstore.LeasedMessage] = {}
        self.signal(SIGNAL_INTERRUPTED)(self._give_back)

    def dequeue(self) -> Any:
        """Leases the next task until `execute` ends."""
        if not isinstance(self.storage, MqstoreStorage):
            return super().dequeue()
        if (lease := self.storage.lease()) is None:
            return None
        try:
            task = self.deserialize_task(lease.body)
        except Exception as error:
            self.storage.bury(lease, repr(error))
            raise
        self._leases[id(task)] = lease
        return task

    def execute(self, task: Any, timestamp: datetime | None = None) -> Any:
        """Executes a task, then acknowledges it, also if it failed. An error of the storage returns it to the queue."""
        try:
            result = super().execute(task, timestamp)
        except BaseException:
            self._give_back("", task)
            raise
        if (lease := self._leases.pop(id(task), None)) is not None:
            self.storage.keeper.finish(lease)
        return result

    def read_schedule(self, timestamp: datetime | None = None) -> list[Any]:
        """Puts the tasks that are due into the queue, then removes them from the schedule."""
        storage = self.storage
        if not isinstance(storage, MqstoreStorage):
            return list(super().read_schedule(timestamp))
        # A store that is closed here is closed by the end of the process.
        with suppress(StoreClosedError), storage.locked():
            for key, data in storage.due(self._get_timestamp() if timestamp is None else timestamp):
                try:
                    task = self.deserialize_task(data)
                except Exception:  # noqa: BLE001 - it is stored with the task
                    # The consumer that gets it makes it a dead letter.
                    storage.enqueue(data)
                else:
                    self.enqueue(task)
                storage.unschedule(key)
        return []

    def _give_back(self, _signal: str, task: Any, _error: BaseException | None = None) -> None:
        """Returns a task that was not executed, for example because the consumer ends."""
        if (lease := self._leases.pop(id(task), None)) is not None:
            self.storage.keeper.give_back(lease, _PAUSE)


def _key_of(key: str | bytes) -> str:
    """Returns the key of a table for a key of huey, which can contain spaces."""
    return quote(key, safe=":/@.-_~")


def _value_of(message: mqstore.StoredMessage) -> bytes:
    return message.body[len(_VALUE) :]


def _moment(ts: datetime) -> str:
    return ts.isoformat(timespec="microseconds")
