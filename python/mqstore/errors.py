"""The errors of mqstore: one tree. Each class is also a built-in class that programs already catch.

::

    MQStoreError
        StoreLockedError        BlockingIOError         another process has the store open for writing
        StoreClosedError        ValueError              the store was closed before or during the call
        ForkedProcessError      RuntimeError            an object that was opened before a fork is used in the child
        StoreReadOnlyError      io.UnsupportedOperation write to a store that is open for reading
        StorePoisonedError      OSError                 an earlier write or sync failed
        StoreIOError            OSError                 another error of the operating system
            StorePermissionError    PermissionError
        StoreChangedError       OSError                 a file of a store at a URL changed after the open
        RemoteStoreError        io.UnsupportedOperation a verb that cannot use this URL
        ResultExistsError       FileExistsError         a URL has a result already, or other objects
        ResultNotFoundError     FileNotFoundError       a URL has no result
        MissingPackageError     ImportError             a package that the call needs is not installed
        DiskFullError           OSError                 no space left
        NotAStoreError          FileNotFoundError       the directory contains no store
        CorruptionError         ValueError              bytes on disk violate the format
        UnsupportedFormatError  NotImplementedError     a layout that this version cannot read
        MessageTooLargeError    ValueError
        InvalidMessageError     ValueError
        InvalidFilterError      ValueError              a filter with a syntax error
        InvalidOptionError      ValueError
        TopicNotFoundError      KeyError
        OffsetOutOfRangeError   IndexError
        RefusedError            ValueError              a change that the current state does not allow
        StoreTimeoutError       TimeoutError
        StoreBusyError          BlockingIOError         the store is busy: try again
        ConsumerClosedError     ValueError              the consumer was closed before or during the call
        QueueNotAssignedError   LookupError             another consumer of the group owns the queue
        LeaseLostError          RuntimeError            another worker has the message of a work queue now
        Empty                   queue.Empty             a work queue has no message to get
        Full                    queue.Full              a work queue is full
          QuotaFull                                     the quota of a topic or of the log is used up
        ShutDown                queue.ShutDown          a work queue was shut down

Errors are frozen, equal by value and picklable. Their arguments are attributes with the same names. Their text names
the file, the offset and what to do. Warnings are `StoreWarning`.
"""

from __future__ import annotations

import errno
import io
import os
import queue as _queue
from typing import TYPE_CHECKING, Any, ClassVar

__all__ = [
    "ConsumerClosedError", "CorruptionError", "DiskFullError", "Empty", "ForkedProcessError", "Full",
    "InvalidFilterError", "InvalidMessageError", "InvalidOptionError", "LeaseLostError", "MQStoreError",
    "MessageTooLargeError", "MissingPackageError", "NotAStoreError", "OffsetOutOfRangeError", "QueueNotAssignedError",
    "QuotaFull", "RefusedError", "RemoteStoreError", "ResultExistsError", "ResultNotFoundError", "ShutDown",
    "StoreBusyError", "StoreChangedError", "StoreClosedError", "StoreIOError", "StoreLockedError",
    "StorePermissionError", "StorePoisonedError", "StoreReadOnlyError", "StoreTimeoutError", "StoreWarning",
    "TopicNotFoundError", "UnsupportedFormatError",
]  # fmt: skip

if TYPE_CHECKING:

    class _ShutDown(Exception): ...  # noqa: N818 - the name in the standard library

else:
    # Python has this class since 3.13.
    _ShutDown = getattr(_queue, "ShutDown", Exception)


class MQStoreError(Exception):
    """Base class of all errors of mqstore.

    A wrong argument type raises `TypeError`, as everywhere in Python.
    """

    # Names of the constructor's parameters, in order. Equality, repr and pickling use them. The end of this file sets
    # them for its classes.
    _fields: ClassVar[tuple[str, ...]] = ("message",)
    # Error number for `OSError`.
    _errno: ClassVar[int] = errno.EIO

    def __init__(self, message: str) -> None:
        self._settle(message)

    def _settle(self, text: str, /, *values: Any, **more: Any) -> None:
        # Sets attributes despite `__setattr__`: the fields in order, and `more`. Only the constructor calls it.
        fields = dict(zip(self._fields, values, strict=False))
        if isinstance(self, OSError):
            OSError.__init__(self, self._errno, text, fields.get("path"))
        else:
            Exception.__init__(self, text)
        self.__dict__.update(fields, **more, _text=text)

    @property
    def message(self) -> str:
        """Text for people, the same as `str()`."""
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
        # Code that handles an error can set tracebacks, causes and notes; all other attributes are frozen.
        if not name.startswith("__"):
            raise AttributeError(f"cannot assign to field {name!r} of {type(self).__name__}: errors are frozen")
        super().__setattr__(name, value)


class StoreLockedError(MQStoreError, BlockingIOError):
    """Another process has the store open for writing.

    `pid` is the process id of the writer, or None if the system does not report it. `advice` says what to do, if that
    is not to open the store for reading.
    """

    _errno = errno.EAGAIN

    path: str
    pid: int | None
    advice: str | None

    def __init__(self, path: str, pid: int | None = None, advice: str | None = None) -> None:
        holder = "another process (pid unknown)" if pid is None else f"process {pid}"
        remedy = 'close it there, or open it here with mode "r"'
        if pid == os.getpid():
            holder += " (this one)"
            remedy = "use the store that is already open, or close it first"
        remedy = remedy if advice is None else advice
        self._settle(f"{path}: locked by {holder}: {remedy}", path, pid, advice)


class StoreClosedError(MQStoreError, ValueError):
    """The store was closed before or during the call."""

    path: str

    def __init__(self, path: str) -> None:
        self._settle(f"{path}: the store is closed: open it again with mqstore.open()", path)


class ForkedProcessError(MQStoreError, RuntimeError):
    """The store was opened before a fork and is used in the child.

    The threads of a store do not survive a fork, and its lock stays with the parent. The child must open the directory
    itself. A store with mode `"share"` works in the child too; there only work queues, leases, consumers and
    transactions that were open before the fork raise this error, and `advice` says so.
    """

    path: str
    advice: str | None

    def __init__(self, path: str, advice: str | None = None) -> None:
        text = (
            "the store was opened in the parent process and cannot be used after a fork: "
            'open the path again in the child, with mode "r" while the parent writes'
        )
        self._settle(f"{path}: {text if advice is None else advice}", path, advice)


class StoreReadOnlyError(MQStoreError, io.UnsupportedOperation):
    """A write to a store that is open for reading, or to a copy that follows a master.

    `master` is the host and port of the master; None for another store.
    """

    _errno = errno.EBADF

    path: str
    action: str
    master: str | None

    def __init__(self, path: str, action: str, master: str | None = None) -> None:
        if master is None:
            text = f'{path}: opened read-only: open it with mode "rw" to {action}'
        else:
            text = (
                f"{path}: is a copy of {master}, which alone can {action}: append there, or make the copy a store of "
                f"its own (mqstore.promote, mqstore promote)"
            )
        self._settle(text, path, action, master)


class StorePoisonedError(MQStoreError, OSError):
    """An earlier write or sync failed, so memory and disk can differ.

    `stage` is the step that failed first, `cause` its error. The store acknowledges no further append. Open it again to
    recover it.
    """

    path: str
    stage: str
    cause: str

    def __init__(self, path: str, stage: str, cause: str) -> None:
        text = f"{path}: stopped because {stage} failed ({cause}): close the store and open it again to recover it"
        self._settle(text, path, stage, cause)


# What to do about an error number of the operating system, if the user can do something.
_REMEDIES = {
    errno.EACCES: "give this user access to it, or choose another folder",
    errno.EPERM: "give this user access to it, or choose another folder",
    errno.EROFS: 'open the store with mode "r", or choose a folder on a file system that is not read-only',
}


class StoreIOError(MQStoreError, OSError):
    """An error of the operating system; `errno`, `strerror` and `filename` are set."""

    path: str
    action: str

    def __init__(self, path: str, action: str, errno: int, strerror: str) -> None:
        remedy = f": {_REMEDIES[errno]}" if errno in _REMEDIES else ""
        self._settle(f"{path}: {action}: {strerror}{remedy}", path, action)
        OSError.__init__(self, errno, strerror, path)


class StorePermissionError(StoreIOError, PermissionError):
    """The operating system denied access to a file or folder of the store."""


class StoreChangedError(MQStoreError, OSError):
    """A file of a store at a URL was replaced or removed, or returned too few bytes, after the store was opened."""

    _errno = errno.ESTALE

    path: str
    reason: str

    def __init__(self, path: str, reason: str) -> None:
        self._settle(f"{path}: {reason}", path, reason)


class RemoteStoreError(MQStoreError, io.UnsupportedOperation):
    """`action` cannot use this URL: it needs a directory, or a target of another kind.

    `reason` says why; None means that a store at a URL can only be read.
    """

    _errno = errno.EROFS

    path: str
    action: str
    reason: str | None

    def __init__(self, path: str, action: str, reason: str | None = None) -> None:
        why = "a store at a URL can only be read; copy it to a directory first" if reason is None else reason
        self._settle(f"{path}: cannot {action}: {why}", path, action, reason)


class ResultExistsError(MQStoreError, FileExistsError):
    """A URL, to which a result should be written, has another result or other objects, or is an object that exists.

    Nothing was published.
    """

    _errno = errno.EEXIST

    path: str
    reason: str

    def __init__(self, path: str, reason: str) -> None:
        self._settle(f"{path}: {reason}; choose another URL", path, reason)


class ResultNotFoundError(MQStoreError, FileNotFoundError):
    """A URL has no published result, or a URL or folder no archive."""

    _errno = errno.ENOENT

    path: str

    def __init__(self, path: str) -> None:
        # Only archives can be in a folder that is not named by a URL.
        if "://" in path:
            text = f"{path}: no result is published here: check the URL, or write the result again"
        else:
            text = f"{path}: no archive is here: check the path, or archive a store first"
        self._settle(text, path)


class MissingPackageError(MQStoreError, ImportError):
    """A package that the call needs is not installed.

    `package` is its name, and `install` the argument for `pip install`. `path` is the URL that needs the package, if
    that is the reason.
    """

    package: str
    install: str
    path: str | None

    def __init__(self, package: str, install: str, path: str | None = None) -> None:
        argument = f'"{install}"' if "[" in install else install
        place = "" if path is None else f"{path}: "
        self._settle(f"{place}{package} is not installed: run pip install {argument}", package, install)
        ImportError.__init__(self, str(self), name=package, path=path)


class DiskFullError(MQStoreError, OSError):
    """The disk or the user's disk quota is full, except for a reserve, or its used share exceeds `disk_refuse_ratio`.

    The action was not carried out. `requested` and `free` are bytes: those that the action needed, and those that the
    file system had left; None if unknown. `option` is the option that makes the store need less space; empty if none
    does, for example because a copy needs the space.
    """

    _errno = errno.ENOSPC

    path: str
    action: str
    reason: str
    requested: int | None
    free: int | None
    option: str

    def __init__(
        self,
        path: str,
        action: str,
        reason: str = "no space left on the device",
        requested: int | None = None,
        free: int | None = None,
        option: str = "retention_bytes",
    ) -> None:
        known = ((requested, "requested"), (free, "free"))
        numbers = "".join(f", {count:,} bytes {what}" for count, what in known if count is not None)
        change = f"or change the option {option}, " if option else ""
        remedy = f"free space on the disk, {change}then try again"
        # An append that is refused before it needs space.
        doing = action if action.partition(" ")[0].endswith("ing") else f"trying to {action}"
        what = f"cannot append: {reason}" if action == "appending" else f"{reason} while {doing}"
        self._settle(f"{path}: {what}{numbers}: {remedy}", path, action, reason, requested, free, option)


class NotAStoreError(MQStoreError, FileNotFoundError):
    """The path contains no store; `reason` names what is missing or in the way."""

    _errno = errno.ENOENT

    path: str
    reason: str

    def __init__(self, path: str, reason: str) -> None:
        self._settle(f"{path}: not a store: {reason}", path, reason)


class CorruptionError(MQStoreError, ValueError):
    """Bytes on disk violate the format at a place where no crash can cause it.

    `path` is the damaged file, `offset` the byte in it.
    """

    path: str
    offset: int
    reason: str

    def __init__(self, path: str, offset: int, reason: str) -> None:
        text = f"{path} at offset {offset}: {reason}"
        self._settle(text, path, offset, reason)


class UnsupportedFormatError(MQStoreError, NotImplementedError):
    """A file or folder has a layout that this version cannot read."""

    path: str
    reason: str

    def __init__(self, path: str, reason: str) -> None:
        self._settle(f"{path}: {reason}", path, reason)


class MessageTooLargeError(MQStoreError, ValueError):
    """A body, a record or the properties exceed a limit; sizes are in bytes."""

    what: str
    size: int
    limit: int

    def __init__(self, what: str, size: int, limit: int) -> None:
        options = {"the body": "open the store with a larger max_message_size"}
        options["the record"] = "create the store with a larger segment_size"
        remedy = f": send less, or {options[what]}" if what in options else ""
        text = f"{what} is {size} bytes; the limit is {limit}{remedy}"
        self._settle(text, what, size, limit)


class InvalidMessageError(MQStoreError, ValueError):
    """The format cannot store the topic, keys, tags, properties or numbers of the message."""

    reason: str

    def __init__(self, reason: str) -> None:
        self._settle(reason, reason)


class InvalidFilterError(MQStoreError, ValueError):
    """A filter with a syntax error; `position` is the index in `expression` at which it was found."""

    expression: str
    position: int
    reason: str

    def __init__(self, expression: str, position: int, reason: str) -> None:
        before = expression[:position].rsplit("\n", 1)[-1]
        line = expression.count("\n", 0, position) + 1
        place = f"column {len(before) + 1}" if line == 1 else f"line {line}, column {len(before) + 1}"
        # For a long filter, only the text around the position.
        start = 0 if len(expression) <= 100 else max(position - 50, 0)
        shown = expression[start : start + 100]
        shown = f"{'...' if start else ''}{shown}{'...' if start + 100 < len(expression) else ''}"
        text = f"filter {shown!r}, {place}: {reason}"
        self._settle(text, expression, position, reason)


class InvalidOptionError(MQStoreError, ValueError):
    """An option is unknown or out of bounds."""

    option: str
    reason: str

    def __init__(self, option: str, reason: str) -> None:
        self._settle(f"option {option}: {reason}", option, reason)


class TopicNotFoundError(MQStoreError, KeyError):
    """The store has no such topic; or, if `queue_id` is set, the topic has no such queue.

    `nearest` is the topic of the store with the most similar name, if there is one that can be meant.
    """

    topic: str
    queue_id: int | None
    nearest: str | None

    def __init__(self, topic: str, queue_id: int | None = None, nearest: str | None = None) -> None:
        text = f"no topic {topic}" if queue_id is None else f"topic {topic} has no queue {queue_id}"
        if nearest is not None:
            text += f"; did you mean {nearest}?"
        self._settle(text, topic, queue_id, nearest)


class OffsetOutOfRangeError(MQStoreError, IndexError):
    """A queue offset is outside the queue, which has the offsets `min_offset` to `max_offset`, exclusive."""

    topic: str
    queue_id: int
    offset: int
    min_offset: int
    max_offset: int

    def __init__(self, topic: str, queue_id: int, offset: int, min_offset: int, max_offset: int) -> None:
        text = (
            f"offset {offset} is outside queue {topic}/{queue_id}, which holds {min_offset} to {max_offset} (exclusive)"
        )
        self._settle(text, topic, queue_id, offset, min_offset, max_offset)


class RefusedError(MQStoreError, ValueError):
    """A change that the current state of the store does not allow; nothing was changed.

    An example is an append to a topic whose `perm` does not include write.
    """

    reason: str

    def __init__(self, reason: str) -> None:
        self._settle(reason, reason)


class StoreTimeoutError(MQStoreError, TimeoutError):
    """A wait ended before its condition became true; `waited` is in seconds.

    If it was the wait of an append for its copies, the message is stored, and `log_offset` is its log offset. Otherwise
    that is None.
    """

    _errno = errno.ETIMEDOUT

    what: str
    waited: float
    log_offset: int | None

    def __init__(self, what: str, waited: float, log_offset: int | None = None) -> None:
        self._settle(f"timed out after {waited:g} s: {what}", what, waited, log_offset)


class StoreBusyError(MQStoreError, BlockingIOError):
    """The store cannot serve the request now. Nothing was written; try again later."""

    _errno = errno.EAGAIN

    reason: str

    def __init__(self, reason: str) -> None:
        self._settle(reason, reason)


class ConsumerClosedError(MQStoreError, ValueError):
    """The consumer was closed before or during the call."""

    group: str

    def __init__(self, group: str) -> None:
        self._settle(f"the consumer of group {group} is closed", group)


class QueueNotAssignedError(MQStoreError, LookupError):
    """The queue is not assigned to this consumer, or no longer: another consumer of the group owns it."""

    group: str
    topic: str
    queue_id: int

    def __init__(self, group: str, topic: str, queue_id: int) -> None:
        text = f"queue {topic}/{queue_id} is not assigned to this consumer of group {group}: see its assignment"
        self._settle(text, group, topic, queue_id)


class LeaseLostError(MQStoreError, RuntimeError):
    """The lease of a message ended and another worker got it, or it was returned. Nothing was changed.

    `attempt` is the number of the caller's delivery.
    """

    topic: str
    queue_id: int
    queue_offset: int
    attempt: int

    def __init__(self, topic: str, queue_id: int, queue_offset: int, attempt: int) -> None:
        text = (
            f"message {topic}/{queue_id} offset {queue_offset} is no longer leased to this caller (attempt {attempt}): "
            "use a longer visibility_timeout, or call extend in time"
        )
        self._settle(text, topic, queue_id, queue_offset, attempt)


class Empty(MQStoreError, _queue.Empty):  # noqa: N818 - the name in the standard library
    """A work queue has no message to get, or got none before the timeout; also a `queue.Empty`."""

    queue: str

    def __init__(self, queue: str) -> None:
        self._settle(f"nothing to get from {queue}", queue)


class Full(MQStoreError, _queue.Full):  # noqa: N818 - the name in the standard library
    """A work queue or a quota (`QuotaFull`) has no space, or got none before the timeout; also a `queue.Full`."""

    queue: str
    maxsize: int

    def __init__(self, queue: str, maxsize: int) -> None:
        self._settle(f"{queue} holds {maxsize} messages, which is its maxsize", queue, maxsize)


class QuotaFull(Full):
    """A topic has its maximum number of messages, or the log its maximum number of bytes. Nothing was appended.

    `quota` is `"max_messages"` of `topic`; or `"max_bytes"` of the log, then `topic` is None.
    """

    path: str
    topic: str | None
    quota: str
    limit: int
    used: int

    def __init__(self, path: str, topic: str | None, quota: str, limit: int, used: int) -> None:
        if topic is None:
            what = f"the log is full: its segments have {used} bytes, and another one would exceed {quota}, {limit}"
            more = f"set a larger {quota}"
        else:
            what = f"topic {topic} is full: it holds {used} messages, and its {quota} is {limit}"
            more = "set a larger quota with update_topic"
        text = f"{path}: {what}; let a retention delete old segments (expire), or {more}"
        name = "the log" if topic is None else f"topic {topic}"
        self._settle(text, path, topic, quota, limit, used, queue=name, maxsize=limit)


class ShutDown(MQStoreError, _ShutDown):  # noqa: N818 - the name in the standard library
    """A work queue was shut down, or its handle closed; also a `queue.ShutDown`."""

    queue: str

    def __init__(self, queue: str) -> None:
        self._settle(f"{queue} was shut down", queue)


class StoreWarning(UserWarning):
    """A condition of a store that the user should know but that stops nothing.

    An example: the queues are missing and were derived from the log in memory.
    """


def _complete(kind: Any) -> None:
    # Tracebacks and pickles show the public name of a class.
    kind.__module__ = "mqstore"
    if "__init__" in vars(kind):
        code = kind.__init__.__code__
        kind._fields = code.co_varnames[1 : code.co_argcount]


for _name in __all__:
    _complete(globals()[_name])
del _name
