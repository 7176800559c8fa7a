"""`Transaction`, `PendingTransaction`, and the thread that calls the check functions of producer groups.

`Transaction` inherits its verbs from the native class, so that a call needs no Python frame. Each store with check
functions has one thread. It starts with the first check function, sleeps in the native module, and ends when the store
is closed or the interpreter exits. No lock is held during a check.
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

# Longest wait for a running check when the interpreter exits, in seconds.
_PATIENCE = 5.0

Timing = tuple["Duration", "Duration", int]
"""Age of a transaction at its first check, interval between its checks, and maximum number of checks."""

# RocketMQ's `transactionTimeOut`, `transactionCheckInterval` and `transactionCheckMax`.
_TIMING: Timing = (6.0, 30.0, 15)


@dataclass(frozen=True, slots=True)
class PendingTransaction(_Report):
    """A transaction that is neither committed nor rolled back; the argument of a check function."""

    id: str
    """`Transaction.id`."""
    group: str
    """Its producer group."""
    topics: tuple[str, ...]
    """Topics of its messages."""
    messages: int
    """Number of its messages."""
    begun: int
    """Creation time of its first message, in epoch milliseconds."""
    checks: int
    """Number of checks so far, this one included."""
    next_check: int | None
    """Time of the next check, in epoch milliseconds; None while this process has it open, and if its group has no check
    function."""
    open: bool
    """Whether this process has it open; it is not checked then."""
    half_offsets: tuple[int, ...]
    """Offsets of its messages in queue 0 of the topic `RMQ_SYS_TRANS_HALF_TOPIC`."""


class Transaction(_native.NativeTransaction):
    """Messages that appear all together or never, from `Store.transaction`. Best used in a `with` block.

    The end of the block commits; an exception in it rolls back. A transaction without commit or rollback whose object
    or process is gone is pending: the check function of its producer group decides it. Threads can share a transaction.
    """

    __slots__ = ("__weakref__",)

    def __new__(cls, *_args: object, **_kwargs: object) -> Self:
        raise TypeError("begin a transaction with store.transaction()")

    @classmethod
    def _make(cls, store: _native.NativeStore, group: str, durable: bool) -> Self:
        return _native.NativeTransaction.__new__(cls, store, group, durable)

    def __repr__(self) -> str:
        return f"<mqstore.Transaction {self.id!r} of group {self.group!r}, {self.outcome or 'open'}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("cannot pickle a transaction: it belongs to this process; send its id, and let a check decide")


class Checks:
    """The check functions of one store by producer group, and their thread."""

    def __init__(self, store: _native.NativeStore) -> None:
        self._native = _native.NativeChecks(store)
        self._checks: dict[str, Check] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def set(self, group: str, check: Check, timing: Timing | None = None) -> None:
        """Registers `check` for `group`; without `timing` the group keeps its timing."""
        if timing is None and self._checks.get(group) == check:
            return
        if not callable(check):
            raise TypeError(f"check must be callable, not {type(check).__name__}")
        with self._lock:
            if timing is not None or group not in self._checks:
                self._native.set(group, *(timing or _TIMING))
            self._checks[group] = check
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._run, name="mqstore-check", daemon=True)
                _live.add(self)
                self._thread.start()

    def end(self) -> None:
        """Ends the thread and waits for it, at most `_PATIENCE` seconds."""
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
                _log.exception("cannot search for pending transactions; the search is repeated")
                self._native.rest()
                continue
            if due is None:
                return
            for row in due:
                self._ask(PendingTransaction._from_row(row))

    def _ask(self, pending: PendingTransaction) -> None:
        if self._native.closed:
            return
        with self._lock:
            check = self._checks[pending.group]
        try:
            answer = check(pending)
        except BaseException:  # noqa: BLE001 - also an exit: it is logged, and the check is repeated later
            _log.exception("the check of transaction %s of group %s failed", pending.id, pending.group)
            return
        if answer is None:
            return
        if answer not in ("commit", "rollback"):
            text = 'check of group %s answered %r for transaction %s; expected "commit", "rollback" or None'
            _log.error(text, pending.group, answer, pending.id)
            return
        try:
            self._native.answer(pending.id, answer == "commit")
        except StoreClosedError:
            pass
        except MQStoreError:
            _log.exception("cannot end transaction %s of group %s; the check is repeated", pending.id, pending.group)


_live: weakref.WeakSet[Checks] = weakref.WeakSet()
_making = threading.Lock()


def checks_of(store: DeliveringStore) -> Checks:
    """Returns the checks of a store, created by the first call."""
    with contextlib.suppress(AttributeError):
        return store._checks
    with _making:
        if not hasattr(store, "_checks"):
            store._checks = Checks(store)
        return store._checks


@atexit.register
def _end_all() -> None:
    # Stops the threads before the interpreter does, which would stop them at any point of their work.
    for checks in list(_live):
        checks.end()


Transaction.__module__ = PendingTransaction.__module__ = "mqstore"
