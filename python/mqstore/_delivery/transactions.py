"""`Transaction`, `PendingTransaction`, and the thread that asks producer groups about transactions that nobody decided.

The verbs of a transaction are inherited from the native class, so that a call costs no Python frame. There is one
thread per store that has checks; it starts with the first one, sleeps in the native module, and ends when the store is
closed or the interpreter exits. No lock is held while a check runs.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import threading
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn, Self

from mqstore import _native
from mqstore._reports import _Report
from mqstore.errors import MQStoreError, StoreClosedError, StorePoisonedError

if TYPE_CHECKING:
    from mqstore._delivery.store import DeliveringStore
    from mqstore.types import Check, Duration

_log = logging.getLogger("mqstore")

# How long the exit of the interpreter waits for a check that runs, in seconds.
_PATIENCE = 5.0

Timing = tuple["Duration", "Duration", int]
"""When a group is asked first, how long it is left alone then, and how often it is asked."""

# RocketMQ's `transactionTimeOut`, `transactionCheckInterval` and `transactionCheckMax`.
_TIMING: Timing = (6.0, 30.0, 15)


@dataclass(frozen=True, slots=True)
class PendingTransaction(_Report):
    """A transaction that is neither committed nor rolled back; what a check is asked about."""

    id: str
    """`Transaction.id`."""
    group: str
    """The producer group that may decide it."""
    topics: tuple[str, ...]
    """The topics that its messages are for."""
    messages: int
    """How many messages it has."""
    begun: int
    """When its first message was made, in epoch milliseconds."""
    checks: int
    """How often its group was asked, this time included."""
    next_check: int | None
    """When its group is asked next, in epoch milliseconds; None while somebody has it open, and where nobody checks its
    group."""
    open: bool
    """Whether somebody in this process has it open; its group is not asked then."""
    half_offsets: tuple[int, ...]
    """Where its messages are: offsets in queue 0 of the topic `RMQ_SYS_TRANS_HALF_TOPIC`."""

    @classmethod
    def _of(cls, row: tuple[str, str, list[str], int, int, int, int | None, bool, list[int]]) -> Self:
        id_, group, topics, messages, begun, checks, next_check, is_open, offsets = row
        return cls(id_, group, tuple(topics), messages, begun, checks, next_check, is_open, tuple(offsets))


class Transaction(_native.NativeTransaction):
    """Messages that appear together or never; made by `Store.transaction`, best used by `with`.

    The end of the block commits, an exception in it rolls back. One that is forgotten undecided, or whose process dies,
    is pending: its producer group is asked. Threads may share it.
    """

    __slots__ = ("__weakref__",)

    def __new__(cls, *_args: object, **_kwargs: object) -> Self:
        msg = "begin a transaction with store.transaction()"
        raise TypeError(msg)

    @classmethod
    def _make(cls, store: _native.NativeStore, group: str, durable: bool) -> Self:
        return _native.NativeTransaction.__new__(cls, store, group, durable)

    def __repr__(self) -> str:
        return f"<mqstore.Transaction {self.id!r} of group {self.group!r}, {self.outcome or 'open'}>"

    def __reduce__(self) -> NoReturn:
        msg = "cannot pickle a transaction: it belongs to this process; send its id, and have a check decide"
        raise TypeError(msg)


class Checks:
    """The checks of one store, by producer group, and their thread."""

    def __init__(self, store: _native.NativeStore) -> None:
        self._native = _native.NativeChecks(store)
        self._checks: dict[str, Check] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def set(self, group: str, check: Check, timing: Timing | None = None) -> None:
        """Has `check` asked about transactions of `group`; without a timing the one that the group has is kept."""
        if timing is None and self._checks.get(group) == check:
            return
        if not callable(check):
            msg = f"check must be callable, not {type(check).__name__}"
            raise TypeError(msg)
        with self._lock:
            if timing is not None or group not in self._checks:
                self._native.set(group, *(timing or _TIMING))
            self._checks[group] = check
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="mqstore-check", daemon=True)
                _live.add(self)
                self._thread.start()

    def end(self) -> None:
        """Ends the thread, and waits for it as long as that is reasonable."""
        self._native.end()
        if self._thread is not None:
            self._thread.join(_PATIENCE)

    def _run(self) -> None:
        while True:
            try:
                due = self._native.next()
            except (StoreClosedError, StorePoisonedError):
                return
            except MQStoreError:
                _log.exception("transactions could not be looked through; that is tried again")
                self._native.rest()
                continue
            if due is None:
                return
            for row in due:
                self._ask(PendingTransaction._of(row))

    def _ask(self, pending: PendingTransaction) -> None:
        if self._native.closed:
            return
        with self._lock:
            check = self._checks[pending.group]
        try:
            answer = check(pending)
        except BaseException:  # noqa: BLE001 - whatever it is, it is told, and asked again later; also what ends a program
            _log.exception("the check of transaction %s of group %s failed", pending.id, pending.group)
            return
        if answer is None:
            return
        if answer not in ("commit", "rollback"):
            text = 'the check of group %s answered %r about transaction %s: "commit", "rollback" or None was expected'
            _log.error(text, pending.group, answer, pending.id)
            return
        try:
            self._native.answer(pending.id, answer == "commit")
        except StoreClosedError:
            pass
        except MQStoreError:
            _log.exception("transaction %s of group %s could not be decided", pending.id, pending.group)


_live: weakref.WeakSet[Checks] = weakref.WeakSet()
_making = threading.Lock()


def checks_of(store: DeliveringStore) -> Checks:
    """The checks of a store, made with the first call."""
    with contextlib.suppress(AttributeError):
        return store._checks
    with _making:
        if not hasattr(store, "_checks"):
            store._checks = Checks(store)
        return store._checks


@atexit.register
def _end_all() -> None:
    # A thread of Python's that outlives the interpreter would stop in the middle of anything.
    for checks in list(_live):
        checks.end()


Transaction.__module__ = PendingTransaction.__module__ = "mqstore"
