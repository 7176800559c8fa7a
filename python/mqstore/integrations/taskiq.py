"""A broker for taskiq: tasks are messages of a work queue.

This file owns no state: the messages, their leases and their delays are in the store. A task is delivered until its
worker acknowledges it, so a task whose worker was killed runs again when its lease ends. After a kill of the process
that sent it, a task is in the queue if `kiq` had returned; after a power loss, if the broker has `durable=True`.
"""

from __future__ import annotations

import asyncio
import logging
from functools import partial
from typing import TYPE_CHECKING, Any

import mqstore.aio
from mqstore.errors import LeaseLostError, MissingPackageError, ShutDown, StoreClosedError
from mqstore.integrations._store_handle import ShareMode, StoreHandle, keys_of, topic_of

try:
    from taskiq import AckableMessage, AsyncBroker
except ModuleNotFoundError as error:
    raise MissingPackageError((error.name or "taskiq").partition(".")[0], "mqstore[taskiq]") from error

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator

    from taskiq import BrokerMessage

    from mqstore import LeasedMessage
    from mqstore.types import StorePath

__all__ = ["MQStoreBroker"]

logger = logging.getLogger("mqstore")

# Extensions of a lease in one visibility timeout.
_EXTENSIONS = 3


class MQStoreBroker(AsyncBroker):
    """A taskiq broker over the work queue of a store.

        broker = MQStoreBroker("/var/lib/shop/store")

        @broker.task
        async def send_mail(number: int) -> None: ...

    The label `delay` is a number of seconds: `send_mail.kicker().with_labels(delay=60).kiq(5)`. taskiq's
    `SmartRetryMiddleware` uses it, too. The longest delay is 30 days.
    """

    def __init__(
        self,
        path: StorePath | mqstore.Store,
        queue: str = "taskiq",
        *,
        mode: ShareMode = "share",
        visibility_timeout: float = 30.0,
        max_attempts: int | None = None,
        durable: bool = False,
        **open_options: Any,
    ) -> None:
        """Opens nothing yet: `startup` opens the store.

        Args:
            path: directory of the store, the same for all processes; or an open store.
            queue: name of the queue, which is also the topic.
            mode: mode of the open. With `"create"`, one process sends the tasks and runs them.
            visibility_timeout: seconds after which the task of a killed worker runs again. While a worker is alive, the
                broker extends its leases.
            max_attempts: number of deliveries after which a task becomes a dead letter; None is no limit. A worker that
                stops returns the tasks that it has not begun, and each return counts as a delivery.
            durable: whether `kiq` waits until the task is on the disk.
            open_options: other arguments of `mqstore.open`.
        """
        super().__init__()
        self._topic = topic_of("", queue)
        self._timeout = visibility_timeout
        self._max_attempts = max_attempts
        self._durable = durable
        self._handle = StoreHandle(path, mode, open_options)
        self._queue: mqstore.aio.WorkQueue | None = None
        self._store: mqstore.aio.Store | None = None
        self._held: dict[int, LeasedMessage] = {}
        self._extending: asyncio.Task[None] | None = None

    @property
    def queue(self) -> mqstore.aio.WorkQueue:
        """The work queue, for its counts, its dead letters and `redrive`.

        Raises:
            RuntimeError: the broker was not started, or it was shut down.
        """
        if self._queue is None:
            raise RuntimeError("the broker is not started: call `await broker.startup()` first")
        return self._queue

    async def startup(self) -> None:
        """Opens the store, then runs the start-up of taskiq."""
        if self._queue is None:
            self._store = mqstore.aio.wrap(await asyncio.to_thread(lambda: self._handle.store))
            self._queue = await self._store.work_queue(
                self._topic, visibility_timeout=self._timeout, max_attempts=self._max_attempts
            )
        await super().startup()

    async def shutdown(self) -> None:
        """Runs the shutdown of taskiq, returns the tasks that are not finished, and closes the store."""
        await super().shutdown()
        if self._extending is not None:
            self._extending.cancel()
            await asyncio.gather(self._extending, return_exceptions=True)
            self._extending = None
        queue, self._queue = self._queue, None
        store, self._store = self._store, None
        if queue is None or store is None:
            return
        for message in list(self._held.values()):
            try:
                await queue.nack(message, 0)
            except LeaseLostError:
                continue
        self._held.clear()
        await queue.close()
        await store.close()
        await asyncio.to_thread(self._handle.close)

    async def kick(self, message: BrokerMessage) -> None:
        """Puts a task into the queue.

        Raises:
            InvalidOptionError: the label `delay` is longer than 30 days.
        """
        delay = message.labels.get("delay")
        await self.queue.put(
            message.message,
            keys=keys_of(message.task_id),
            tags=message.task_name,
            delay=None if delay is None else float(delay),
            durable=self._durable,
        )

    async def listen(self) -> AsyncGenerator[bytes | AckableMessage, None]:
        """Yields tasks until the broker is shut down. The worker acknowledges each task."""
        queue = self.queue
        if self._extending is None:
            self._extending = asyncio.create_task(self._extend(queue))
        while True:
            try:
                message = await queue.get()
            except (ShutDown, StoreClosedError):
                return
            self._held[id(message)] = message
            yield AckableMessage(data=message.body, ack=partial(self._ack, queue, message))

    async def _ack(self, queue: mqstore.aio.WorkQueue, message: LeasedMessage) -> None:
        self._held.pop(id(message), None)
        try:
            await queue.ack(message)
        except LeaseLostError:
            logger.warning("taskiq: another worker has the task %s, too", message.message_id)

    async def _extend(self, queue: mqstore.aio.WorkQueue) -> None:
        """Extends the leases of all tasks of this worker."""
        while True:
            await asyncio.sleep(self._timeout / _EXTENSIONS)
            for message in list(self._held.values()):
                try:
                    await queue.extend(message, self._timeout)
                except LeaseLostError:
                    if self._held.pop(id(message), None) is not None:
                        logger.warning("taskiq: the lease of the task %s is lost", message.message_id)
                except (ShutDown, StoreClosedError):
                    return
                except Exception:
                    logger.exception("taskiq: the lease of the task %s was not extended", message.message_id)
