"""`WorkQueue`: what the native work queue lacks and needs no speed for.

The verbs (put, get, ack and so on) are inherited from the native class, so that a call costs no Python frame.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Self

from mqstore import _native

if TYPE_CHECKING:
    from types import TracebackType

    from mqstore._native import AppendResult, LeasedMessage
    from mqstore.types import BytesLike, Duration, Keys, Properties


@dataclass(frozen=True, slots=True)
class WorkQueueCounts:
    """How many messages are where in a work queue."""

    ready: int
    """Nobody got them yet, or they were given back and are due."""
    delayed: int
    """Given back or held back, and due later."""
    leased: int
    """Somebody has them."""
    dying: int
    """On their way to the dead letters."""

    def to_dict(self) -> dict[str, int]:
        """The same as a dict."""
        return asdict(self)


class WorkQueue(_native.NativeWorkQueue):
    """Messages that are finished one by one; made by `Store.work_queue`. It blocks as `queue.Queue` does.

    A message is delivered at least once, and not again once its `ack` is on the disk. Whoever got one has it alone for
    `invisible_duration`: not finished by then, it is delivered again. Nothing is kept in memory that the store does not
    have: a lease, a retry, what was finished survive the death of the process. Threads may share a handle.
    """

    __slots__ = ("__weakref__",)

    def __new__(cls, *_args: object, **_kwargs: object) -> Self:
        msg = "open a work queue with store.work_queue(topic)"
        raise TypeError(msg)

    @classmethod
    def _make(cls, store: _native.NativeStore, *options: Any) -> Self:
        return _native.NativeWorkQueue.__new__(cls, store, *options)

    def put_nowait(
        self,
        body: BytesLike,
        *,
        keys: Keys = (),
        tags: str | None = None,
        properties: Properties | None = None,
        delay: Duration | None = None,
        durable: bool = False,
    ) -> AppendResult:
        """As `put` with `block=False`."""
        return self.put(body, keys=keys, tags=tags, properties=properties, delay=delay, durable=durable, block=False)

    def get_nowait(self) -> LeasedMessage:
        """As `get` with `block=False`."""
        return self.get(block=False)

    def counts(self) -> WorkQueueCounts:
        """How many messages are where: ready, delayed, leased, on their way to the dead letters."""
        return WorkQueueCounts(*self._counts())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = " (closed)" if self.closed else ""
        return f"<mqstore.WorkQueue topic={self.topic!r} group={self.group!r}{state}>"

    def __reduce__(self) -> NoReturn:
        msg = (
            f"cannot pickle the work queue of topic {self.topic!r}: it belongs to an open store of this process; "
            "open it there with store.work_queue"
        )
        raise TypeError(msg)


WorkQueue.__module__ = WorkQueueCounts.__module__ = "mqstore"
