"""`Consumer` for asyncio: a task takes and commits messages in the loop's thread, in its own step.

A thread reads ahead from the disk, applies the assignment, seeks and syncs. Messages that were only read ahead are
not delivered and not counted by a commit. `Line` describes how tasks wait.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Self

import mqstore
from mqstore import _native
from mqstore._times import seconds_of
from mqstore.aio._delivery import Handle, Line
from mqstore.aio._twins import in_thread, like
from mqstore.errors import ConsumerClosedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from mqstore._native import StoredMessage
    from mqstore.aio._bridge import Bridge
    from mqstore.types import Duration, Start, Time

# Messages that an iteration reads ahead.
_AHEAD = 512


class Consumer(Handle):
    """Reads topics for a group and stores its progress; from `mqstore.aio.Store.consumer`.

    Works like `mqstore.Consumer`, with coroutines. `async for` waits for new messages and stops when the consumer is
    closed. A cancelled `poll` has taken nothing, and no commit counts the messages that it waited for. Tasks can share
    a consumer; each message goes to one of them. Waiting tasks need no thread. A consumer belongs to the loop of its
    store.
    """

    _own: mqstore.Consumer

    def __init__(self, owner: object, bridge: Bridge, consumer: mqstore.Consumer) -> None:
        """Wraps `consumer`. Programs call `Store.consumer` instead."""
        super().__init__(owner, bridge)
        self._own = consumer
        self._native = _native.LoopConsumer(consumer, bridge.link)
        self._line = Line(bridge, self._native.look_around)

    @property
    def group(self) -> str:
        """Name of its group."""
        return self._own.group

    @property
    def topics(self) -> tuple[str, ...]:
        """Names of its topics, sorted."""
        return self._own.topics

    @property
    def assignment(self) -> tuple[tuple[str, int], ...]:
        """The queues that it owns now, as (topic, queue id), sorted; empty after a close."""
        return self._own.assignment

    @like(mqstore.Consumer.poll)
    async def poll(self, max_messages: int = 1000, timeout: Duration | None = None) -> list[StoredMessage]:
        """Returns the next messages: in offset order within a queue, one queue after the other."""
        native = self._native
        return await self._line.result(
            partial(native.poll, max_messages),
            partial(native.prepare, max_messages),
            None if timeout is None else seconds_of("timeout", timeout),
        )

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StoredMessage:
        native = self._native
        try:
            found = await self._line.result(partial(native.poll, None), partial(native.prepare, _AHEAD), None)
        except ConsumerClosedError:
            raise StopAsyncIteration from None
        return found[0]

    @like(mqstore.Consumer.commit)
    async def commit(
        self,
        offsets: dict[tuple[str, int], int] | None = None,
        *,
        durable: bool = False,
    ) -> None:
        """Stores the progress of the group: for each queue the offset after the last message that `poll` returned.

        With `history=True` a thread commits. All tasks that wait for a sync share one; a task that is cancelled
        during the sync has committed.
        """
        bridge = self._bridge
        bridge.check()
        await bridge.breathe()
        stored = self._native.commit(offsets, durable)
        if stored is None:
            own = None if offsets is None else dict(offsets)
            await bridge.run(partial(self._own.commit, own, durable=durable))
        elif stored:
            await bridge.synced()

    @like(mqstore.Consumer.seek)
    async def seek(self, topic: str, queue_id: int, offset: int) -> None:
        """Continues to read a queue at `offset`."""
        await self._move(partial(self._own.seek, topic, queue_id, offset))

    @like(mqstore.Consumer.seek_to_time)
    async def seek_to_time(self, time: Time) -> None:
        """Continues to read each assigned queue at the first message stored at or after `time`."""
        await self._move(partial(self._own.seek_to_time, time))

    @like(mqstore.Consumer.reset)
    async def reset(self, to: Start, *, durable: bool = False) -> None:
        """Moves the group to a new position in each queue of this consumer, and commits it."""
        await self._move(partial(self._own.reset, to, durable=durable))

    async def _move(self, call: Callable[[], None]) -> None:
        self._bridge.check()
        moving = self._bridge.submit(call)
        # Waiting tasks may have messages now, even if the task that moved the consumer was cancelled.
        moving.add_done_callback(lambda _: self._line.wake())
        await moving

    position = in_thread(mqstore.Consumer.position)
    committed = in_thread(mqstore.Consumer.committed)
    lag = in_thread(mqstore.Consumer.lag)


Consumer.__module__ = "mqstore.aio"
