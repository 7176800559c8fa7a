"""The errors of mqstore: one tree, and each class is also a built-in that people already catch.

::

    MQStoreError
        StoreLockedError        BlockingIOError         another process has the store open for writing
        StoreClosedError        ValueError              used after close(), or closed during the call
        ForkedProcessError      RuntimeError            opened before a fork, used in the child
        StoreReadOnlyError      io.UnsupportedOperation a write to a store that is open for reading
        StorePoisonedError      OSError                 an earlier write or sync failed
        StoreIOError            OSError                 another answer of the operating system
            StorePermissionError    PermissionError
        DiskFullError           OSError                 no space left
        NotAStoreError          FileNotFoundError       the directory holds no store
        CorruptionError         ValueError              bytes on disk break the format
        UnsupportedFormatError  NotImplementedError     a layout that this version does not read
        MessageTooLargeError    ValueError
        InvalidMessageError     ValueError
        InvalidFilterError      ValueError              a filter that cannot be understood
        InvalidOptionError      ValueError
        TopicNotFoundError      KeyError
        OffsetOutOfRangeError   IndexError
        RefusedError            ValueError              a change that does not fit what is known by now
        StoreTimeoutError       TimeoutError
        StoreBusyError          BlockingIOError         the store cannot take the request now: try again
        ConsumerClosedError     ValueError              a consumer was closed, before the call or during it
        QueueNotAssignedError   LookupError             another consumer of the group has the queue
        LeaseLostError          RuntimeError            a message of a work queue is somebody else's now
        Empty                   queue.Empty             a work queue has nothing to get
        Full                    queue.Full              a work queue has no room
          QuotaFull                                     a topic or the log holds as much as it may
        ShutDown                queue.ShutDown          a work queue was shut down

Every error is frozen, equal by value and picklable; its arguments are attributes of the same name, and
its text names the file, the place in it and what to do. Warnings are `StoreWarning`.
"""

from __future__ import annotations

import errno
import io
import queue as _queue
from typing import TYPE_CHECKING, Any, ClassVar

__all__ = [
    "ConsumerClosedError",
    "CorruptionError",
    "DiskFullError",
    "Empty",
    "ForkedProcessError",
    "Full",
    "InvalidFilterError",
    "InvalidMessageError",
    "InvalidOptionError",
    "LeaseLostError",
    "MQStoreError",
    "MessageTooLargeError",
    "NotAStoreError",
    "OffsetOutOfRangeError",
    "QueueNotAssignedError",
    "QuotaFull",
    "RefusedError",
    "ShutDown",
    "StoreBusyError",
    "StoreClosedError",
    "StoreIOError",
    "StoreLockedError",
    "StorePermissionError",
    "StorePoisonedError",
    "StoreReadOnlyError",
    "StoreTimeoutError",
    "StoreWarning",
    "TopicNotFoundError",
    "UnsupportedFormatError",
]

if TYPE_CHECKING:

    class _ShutDown(Exception): ...  # noqa: N818 - the name in the standard library

else:
    # Python has it from 3.13 on.
    _ShutDown = getattr(_queue, "ShutDown", Exception)


class MQStoreError(Exception):
    """Base of every error that mqstore raises on its own account.

    Caught alone it means "the store said no"; wrong argument types are `TypeError` as everywhere.
    """

    # The constructor's parameters, in order: what equality, repr and pickling go by.
    _fields: ClassVar[tuple[str, ...]] = ("message",)
    # What OSError needs to be told besides the text.
    _errno: ClassVar[int] = errno.EIO

    def __init__(self, message: str) -> None:
        self._settle(message)

    def _settle(self, text: str, /, **fields: Any) -> None:
        # Goes below the frozen surface, once, from the constructor.
        if isinstance(self, OSError):
            OSError.__init__(self, self._errno, text, fields.get("path"))
        else:
            Exception.__init__(self, text)
        self.__dict__.update(fields, _text=text)

    @property
    def message(self) -> str:
        """The text for people, as `str()` gives it."""
        return str(self)

    def _values(self) -> tuple[Any, ...]:
        return tuple(getattr(self, name) for name in self._fields)

    def __str__(self) -> str:
        return str(self.__dict__.get("_text", ""))

    def __repr__(self) -> str:
        fields = ", ".join(f"{name}={value!r}" for name, value in zip(self._fields, self._values(), strict=True))
        return f"{type(self).__name__}({fields})"

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        return self._values() == other._values()

    def __hash__(self) -> int:
        return hash((type(self), self._values()))

    def __reduce__(self) -> tuple[Any, ...]:
        notes = self.__dict__.get("__notes__")
        return (type(self), self._values(), {"__notes__": list(notes)} if notes else None)

    def __setattr__(self, name: str, value: object) -> None:
        # Tracebacks, causes and notes belong to whoever raises; the rest says what happened.
        if not name.startswith("__"):
            msg = f"cannot assign to field {name!r} of {type(self).__name__}: errors are frozen"
            raise AttributeError(msg)
        super().__setattr__(name, value)


class StoreLockedError(MQStoreError, BlockingIOError):
    """Another process has the store open for writing.

    `pid` is the holder's process id, or None where the system does not tell.
    """

    _fields = ("path", "pid")
    _errno = errno.EAGAIN

    path: str
    pid: int | None

    def __init__(self, path: str, pid: int | None = None) -> None:
        holder = "a process that the system does not name" if pid is None else f"process {pid}"
        text = f'{path}: locked by {holder}: close it there, or open the store with mode "r"'
        self._settle(text, path=path, pid=pid)


class StoreClosedError(MQStoreError, ValueError):
    """The store was closed, before the call or during it."""

    _fields = ("path",)

    path: str

    def __init__(self, path: str) -> None:
        self._settle(f"{path}: the store is closed: open it again with mqstore.open()", path=path)


class ForkedProcessError(MQStoreError, RuntimeError):
    """The store was opened before a fork and is used in the child.

    The threads of a store do not survive a fork and its lock stays with the parent, so that a child
    has to open the directory itself.
    """

    _fields = ("path",)

    path: str

    def __init__(self, path: str) -> None:
        text = (
            f"{path}: opened in the parent of this process, and a store does not survive a fork: "
            'open the path again in the child (with mode "r" while the parent writes)'
        )
        self._settle(text, path=path)


class StoreReadOnlyError(MQStoreError, io.UnsupportedOperation):
    """A write was asked of a store that is open for reading."""

    _fields = ("path", "action")
    _errno = errno.EBADF

    path: str
    action: str

    def __init__(self, path: str, action: str) -> None:
        text = f'{path}: opened read-only: open it with mode "rw" to {action}'
        self._settle(text, path=path, action=action)


class StorePoisonedError(MQStoreError, OSError):
    """An earlier write or sync failed, so that memory and disk may disagree.

    `stage` is the step that failed first and `cause` its error. Nothing is acknowledged any more;
    opening the store again recovers it.
    """

    _fields = ("path", "stage", "cause")

    path: str
    stage: str
    cause: str

    def __init__(self, path: str, stage: str, cause: str) -> None:
        text = f"{path}: stopped after {stage} failed ({cause}): close it and open it again, which recovers it"
        self._settle(text, path=path, stage=stage, cause=cause)


class StoreIOError(MQStoreError, OSError):
    """The operating system refused a step; `errno`, `strerror` and `filename` are set."""

    _fields = ("path", "action", "errno", "strerror")

    path: str
    action: str

    def __init__(self, path: str, action: str, errno: int, strerror: str) -> None:
        self._settle(f"{path}: {action}: {strerror}", path=path, action=action)
        OSError.__init__(self, errno, strerror, path)


class StorePermissionError(StoreIOError, PermissionError):
    """The operating system denied access to a file or folder of the store."""


class DiskFullError(MQStoreError, OSError):
    """The disk, or the user's share of it, is full, or fuller than `disk_refuse_ratio` allows.

    What was being done has not happened.
    """

    _fields = ("path", "action", "reason")
    _errno = errno.ENOSPC

    path: str
    action: str
    reason: str

    def __init__(self, path: str, action: str, reason: str = "no space left on the device") -> None:
        text = f"{path}: {reason} while {action}: free some, then try again"
        self._settle(text, path=path, action=action, reason=reason)


class NotAStoreError(MQStoreError, FileNotFoundError):
    """The path holds no store; `reason` says what is missing or in the way."""

    _fields = ("path", "reason")
    _errno = errno.ENOENT

    path: str
    reason: str

    def __init__(self, path: str, reason: str) -> None:
        self._settle(f"{path}: not a store: {reason}", path=path, reason=reason)


class CorruptionError(MQStoreError, ValueError):
    """Bytes on disk break the format where they must not.

    `path` is the damaged file and `offset` the byte in it.
    """

    _fields = ("path", "offset", "reason")

    path: str
    offset: int
    reason: str

    def __init__(self, path: str, offset: int, reason: str) -> None:
        text = f"{path} at offset {offset}: {reason}"
        self._settle(text, path=path, offset=offset, reason=reason)


class UnsupportedFormatError(MQStoreError, NotImplementedError):
    """A file or folder has a layout that this version does not read."""

    _fields = ("path", "reason")

    path: str
    reason: str

    def __init__(self, path: str, reason: str) -> None:
        self._settle(f"{path}: {reason}", path=path, reason=reason)


class MessageTooLargeError(MQStoreError, ValueError):
    """A body, a record or the properties exceed a limit; sizes are in bytes."""

    _fields = ("what", "size", "limit")

    what: str
    size: int
    limit: int

    def __init__(self, what: str, size: int, limit: int) -> None:
        text = f"{what} is {size} bytes; the limit is {limit}"
        self._settle(text, what=what, size=size, limit=limit)


class InvalidMessageError(MQStoreError, ValueError):
    """The format cannot hold the message: its topic, keys, tags, properties or numbers."""

    _fields = ("reason",)

    reason: str

    def __init__(self, reason: str) -> None:
        self._settle(reason, reason=reason)


class InvalidFilterError(MQStoreError, ValueError):
    """A filter that cannot be understood; `position` is the index in `expression` where that shows."""

    _fields = ("expression", "position", "reason")

    expression: str
    position: int
    reason: str

    def __init__(self, expression: str, position: int, reason: str) -> None:
        before = expression[:position].rsplit("\n", 1)[-1]
        line = expression.count("\n", 0, position) + 1
        place = f"column {len(before) + 1}" if line == 1 else f"line {line}, column {len(before) + 1}"
        # What stands around the place, where the whole is too much to read.
        start = 0 if len(expression) <= 100 else max(position - 50, 0)
        shown = expression[start : start + 100]
        shown = f"{'...' if start else ''}{shown}{'...' if start + 100 < len(expression) else ''}"
        text = f"filter {shown!r}, {place}: {reason}"
        self._settle(text, expression=expression, position=position, reason=reason)


class InvalidOptionError(MQStoreError, ValueError):
    """An option is unknown or out of its bounds."""

    _fields = ("option", "reason")

    option: str
    reason: str

    def __init__(self, option: str, reason: str) -> None:
        self._settle(f"option {option}: {reason}", option=option, reason=reason)


class TopicNotFoundError(MQStoreError, KeyError):
    """The store has no such topic, or the topic no such queue (then `queue_id` is set)."""

    _fields = ("topic", "queue_id")

    topic: str
    queue_id: int | None

    def __init__(self, topic: str, queue_id: int | None = None) -> None:
        text = f"no topic {topic}" if queue_id is None else f"topic {topic} has no queue {queue_id}"
        self._settle(text, topic=topic, queue_id=queue_id)


class OffsetOutOfRangeError(MQStoreError, IndexError):
    """A queue offset lies outside the queue, which holds `min_offset` to `max_offset` (exclusive)."""

    _fields = ("topic", "queue_id", "offset", "min_offset", "max_offset")

    topic: str
    queue_id: int
    offset: int
    min_offset: int
    max_offset: int

    def __init__(self, topic: str, queue_id: int, offset: int, min_offset: int, max_offset: int) -> None:
        text = (
            f"offset {offset} is outside queue {topic}/{queue_id}, which holds {min_offset} to {max_offset} (exclusive)"
        )
        self._settle(
            text,
            topic=topic,
            queue_id=queue_id,
            offset=offset,
            min_offset=min_offset,
            max_offset=max_offset,
        )


class RefusedError(MQStoreError, ValueError):
    """A change does not fit what the store knows by now; nothing was changed.

    For example an append to a topic whose `perm` lets no messages in.
    """

    _fields = ("reason",)

    reason: str

    def __init__(self, reason: str) -> None:
        self._settle(reason, reason=reason)


class StoreTimeoutError(MQStoreError, TimeoutError):
    """A wait ended without what it waited for; `waited` is in seconds."""

    _fields = ("what", "waited")
    _errno = errno.ETIMEDOUT

    what: str
    waited: float

    def __init__(self, what: str, waited: float) -> None:
        self._settle(f"timed out after {waited:g} s: {what}", what=what, waited=waited)


class StoreBusyError(MQStoreError, BlockingIOError):
    """The store cannot take the request now; nothing was written, try again a little later."""

    _fields = ("reason",)
    _errno = errno.EAGAIN

    reason: str

    def __init__(self, reason: str) -> None:
        self._settle(reason, reason=reason)


class ConsumerClosedError(MQStoreError, ValueError):
    """The consumer was closed, before the call or during it."""

    _fields = ("group",)

    group: str

    def __init__(self, group: str) -> None:
        self._settle(f"the consumer of group {group} is closed", group=group)


class QueueNotAssignedError(MQStoreError, LookupError):
    """The queue is not, or no longer, this consumer's: another one of its group has it."""

    _fields = ("group", "topic", "queue_id")

    group: str
    topic: str
    queue_id: int

    def __init__(self, group: str, topic: str, queue_id: int) -> None:
        text = (
            f"queue {topic}/{queue_id} is not assigned to this consumer of group {group}: its assignment says which are"
        )
        self._settle(text, group=group, topic=topic, queue_id=queue_id)


class LeaseLostError(MQStoreError, RuntimeError):
    """The time of a message was over and somebody else got it, or it was given back; nothing was changed.

    `attempt` is the delivery that the caller had.
    """

    _fields = ("topic", "queue_id", "queue_offset", "attempt")

    topic: str
    queue_id: int
    queue_offset: int
    attempt: int

    def __init__(self, topic: str, queue_id: int, queue_offset: int, attempt: int) -> None:
        text = (
            f"message {topic}/{queue_id} offset {queue_offset} is no longer leased to this caller (attempt {attempt}): "
            "a longer invisible_duration, or extend in time, keeps it"
        )
        self._settle(text, topic=topic, queue_id=queue_id, queue_offset=queue_offset, attempt=attempt)


class Empty(MQStoreError, _queue.Empty):  # noqa: N818 - the name in the standard library
    """A work queue has nothing to get, or had nothing in time; also the `Empty` of the module `queue`."""

    _fields = ("queue",)

    queue: str

    def __init__(self, queue: str) -> None:
        self._settle(f"nothing to get from {queue}", queue=queue)


class Full(MQStoreError, _queue.Full):  # noqa: N818 - the name in the standard library
    """There is no room, or was none in time, in a work queue or in a quota (`QuotaFull`); also `queue.Full`."""

    _fields: ClassVar[tuple[str, ...]] = ("queue", "maxsize")

    queue: str
    maxsize: int

    def __init__(self, queue: str, maxsize: int) -> None:
        self._settle(f"{queue} holds {maxsize} messages, which is its maxsize", queue=queue, maxsize=maxsize)


class QuotaFull(Full):
    """A topic holds as many messages as it may, or the log as many bytes; nothing was appended.

    `quota` is `"max_messages"` of `topic`, or `"max_bytes"` of the log, where `topic` is None.
    """

    _fields = ("path", "topic", "quota", "limit", "used")

    path: str
    topic: str | None
    quota: str
    limit: int
    used: int

    def __init__(self, path: str, topic: str | None, quota: str, limit: int, used: int) -> None:
        if topic is None:
            what = f"the log is full: its segments have {used} bytes, and another one would exceed {quota}, {limit}"
            more = f"with a larger {quota}"
        else:
            what = f"topic {topic} is full: it holds {used} messages, and its {quota} is {limit}"
            more = "with a larger quota (update_topic)"
        text = f"{path}: {what}; there is room again once a retention lets old segments go (expire), or {more}"
        name = "the log" if topic is None else f"topic {topic}"
        self._settle(text, path=path, topic=topic, quota=quota, limit=limit, used=used, queue=name, maxsize=limit)


class ShutDown(MQStoreError, _ShutDown):  # noqa: N818 - the name in the standard library
    """A work queue was shut down, or the handle on it closed; also the `ShutDown` of the module `queue`."""

    _fields = ("queue",)

    queue: str

    def __init__(self, queue: str) -> None:
        self._settle(f"{queue} was shut down", queue=queue)


class StoreWarning(UserWarning):
    """Something about a store that its user should know and that stops nothing.

    For example that its queues were missing and are derived from the log in memory.
    """


# The name under which people import a class is the one that tracebacks and pickles show.
for _name in __all__:
    globals()[_name].__module__ = "mqstore"
del _name
