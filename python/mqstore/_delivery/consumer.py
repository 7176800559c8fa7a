"""`Consumer`: the part of a consumer that is written in Python.

It inherits `poll`, `commit`, `seek` and the other verbs from the native class, so that a call needs no Python frame.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, NoReturn, Self

from mqstore import _native
from mqstore._times import time_of

if TYPE_CHECKING:
    from datetime import datetime


@dataclass(frozen=True, slots=True)
class OffsetCommit:
    """One commit of the offset of one queue."""

    topic: str
    queue_id: int
    offset: int
    """Committed offset: the next offset that the group reads."""
    timestamp: int
    """Time of the commit, in epoch milliseconds."""

    @property
    def time(self) -> datetime:
        """`timestamp` as an aware UTC datetime."""
        return time_of(self.timestamp)

    def to_dict(self) -> dict[str, str | int]:
        """Returns the fields as a dict."""
        return asdict(self)


class Consumer(_native.NativeConsumer):
    """Reads topics for a group and stores its progress; from `Store.consumer`.

    Iteration waits for new messages and stops when the consumer is closed. Nothing is committed automatically: after a
    restart, or for the next consumer of the group, messages without a commit are delivered again. Threads can share a
    consumer; each message goes to one of them. Close it, best with a `with` block, which does not commit.
    """

    __slots__ = ("__weakref__",)

    def __new__(cls, *_args: object, **_kwargs: object) -> Self:
        raise TypeError("make a consumer with store.consumer(group, topics)")

    @classmethod
    def _make(cls, store: _native.NativeStore, *options: Any) -> Self:
        return _native.NativeConsumer.__new__(cls, store, *options)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = " (closed)" if self.closed else ""
        return f"<mqstore.Consumer group={self.group!r} topics={self.topics!r}{state}>"

    def __reduce__(self) -> NoReturn:
        msg = f"cannot pickle a consumer of group {self.group!r}: it belongs to an open store of this process"
        raise TypeError(msg)


Consumer.__module__ = OffsetCommit.__module__ = "mqstore"
