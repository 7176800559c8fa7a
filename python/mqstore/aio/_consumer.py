"""`Consumer` for asyncio: messages are handed out and committed in the loop's thread, in the task's own step.

A thread reads ahead what is on the disk, takes up queues, moves and syncs. What it has read ahead is not handed out,
and no commit counts it. See `_lines` for how tasks wait.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, NoReturn, Self

import mqstore
from mqstore import _native
from mqstore._times import seconds_of
from mqstore.aio._delivery import Handle, in_thread
from mqstore.aio._lines import Line
from mqstore.aio._twins import like
from mqstore.errors import ConsumerClosedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from mqstore._native import StoredMessage
    from mqstore.aio._bridge import Bridge
    from mqstore.types import Duration, Start, Time

# Messages that are read ahead for an iteration.
_AHEAD = 512


class Consumer(Handle):
    """Reads topics for a group and remembers how far it has come; made by `mqstore.aio.Store.consumer`.

    As `mqstore.Consumer`, with verbs that are awaited: `async for` follows, and stops when the consumer is closed. A
    `poll` that is cancelled has taken nothing, and no commit counts what it waited for. Tasks may share one; each
    message goes to one of them. Waiting costs no thread. Belongs to the loop of its store.
    """

    _own: mqstore.Consumer

    def __init__(self, owner: object, bridge: Bridge, consumer: mqstore.Consumer) -> None:
        """Wraps `consumer`; programs call `Store.consumer`."""
        super().__init__(owner, bridge)
        self._own = consumer
        self._native = _native.LoopConsumer(consumer, bridge.link)
        self._line = Line(bridge, self._native.look_around)

    @property
    def group(self) -> str:
        """Its group."""
        return self._own.group

    @property
    def topics(self) -> tuple[str, ...]:
        """Its topics, sorted."""
        return self._own.topics

    @property
    def assignment(self) -> tuple[tuple[str, int], ...]:
        """The queues that it has now, each a topic and a queue id, sorted; none once it is closed."""
        return self._own.assignment

    @like(mqstore.Consumer.poll)
    async def poll(self, max_messages: int = 1000, timeout: Duration | None = None) -> list[StoredMessage]:
        """The next messages, in the order of their queue, from one queue after the other."""
        native = self._native
        return await self._look(
            self._line,
            lambda patience, number: native.poll(max_messages, patience, number),
            partial(native.prepare, max_messages),
            None if timeout is None else seconds_of("timeout", timeout),
        )

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> StoredMessage:
        native = self._native
        try:
            found = await self._look(
                self._line,
                lambda patience, number: native.poll(None, patience, number),
                partial(native.prepare, _AHEAD),
                None,
            )
        except ConsumerClosedError:
            raise StopAsyncIteration from None
        return found[0]

    @like(mqstore.Consumer.commit)
    async def commit(self, offsets: dict[tuple[str, int], int] | None = None, *, sync: bool = False) -> None:
        """Stores how far the group has come: for each queue the offset behind the last message that was returned here.

        With `history=True` a thread does it. All who wait for a `sync` share one; who is cancelled while it waits has
        committed.
        """
        bridge = self._bridge
        bridge.check()
        await bridge.breathe()
        stored = self._native.commit(offsets, sync)
        if stored is None:
            own = None if offsets is None else dict(offsets)
            await bridge.run(partial(self._own.commit, own, sync=sync))
        elif stored:
            await bridge.syncs.synced()

    @like(mqstore.Consumer.seek)
    async def seek(self, topic: str, queue_id: int, offset: int) -> None:
        """Goes on at `offset` of a queue.

        The next commit stores where it came to from there, also if that is further back than before.
        """
        await self._move(partial(self._own.seek, topic, queue_id, offset))

    @like(mqstore.Consumer.seek_to_time)
    async def seek_to_time(self, time: Time) -> None:
        """Goes on, in each queue that it has, at the first message stored at or after `time`."""
        await self._move(partial(self._own.seek_to_time, time))

    @like(mqstore.Consumer.reset)
    async def reset(self, to: Start, *, sync: bool = False) -> None:
        """Moves the group, in each queue that this consumer has, and stores that."""
        await self._move(partial(self._own.reset, to, sync=sync))

    async def _move(self, call: Callable[[], None]) -> None:
        self._bridge.check()
        moving = self._bridge.submit(call)
        # Who waits may have something to read now, whether the mover still waits or not.
        moving.add_done_callback(lambda _: self._line.wake())
        await moving

    position = in_thread(mqstore.Consumer.position)
    committed = in_thread(mqstore.Consumer.committed)
    lag = in_thread(mqstore.Consumer.lag)

    def __repr__(self) -> str:
        return repr(self._own).replace("<mqstore.", "<mqstore.aio.", 1)

    def __reduce__(self) -> NoReturn:
        self._own.__reduce__()
        raise AssertionError


Consumer.__module__ = "mqstore.aio"
