"""The environment of a store under test: clock, disk faults, small files."""

from __future__ import annotations

from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Unpack

import mqstore
from mqstore import _native
from mqstore._help import lists_options
from mqstore._store import OF_MODE, opened
from mqstore._times import milliseconds_of, seconds_from, time_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from mqstore._options import StoreOptions
    from mqstore._reports import Progress
    from mqstore.types import Duration, Mode, StoreOptionsDict, StorePath, Time

SMALL = mqstore.StoreOptions(segment_size=64 << 10, queue_file_entries=64, index_slots=64, index_entries=256)
"""Options for a store with small files: it is created in milliseconds, and a few hundred messages fill its files."""

_BEGIN = datetime.fromisoformat("2024-01-01T00:00:00+00:00")


class ManualClock:
    """A clock that changes only when a test sets it; for `open`.

    Store times, born times, retention and everything else that depends on the time of day use it. Waits and timeouts
    take real time. Thread-safe; several stores can share one.

    Args:
        start: first time; 2024-01-01 00:00 UTC by default.
    """

    __slots__ = ("_listeners", "_native")

    def __init__(self, start: Time = _BEGIN) -> None:
        self._native = _native.TestClock(milliseconds_of("start", start))
        # Called after each move, in the thread that moves the clock.
        self._listeners: list[Callable[[], object]] = []

    def advance(self, seconds: Duration) -> None:
        """Moves the clock forward, or back if `seconds` is negative.

        Args:
            seconds: seconds, a `timedelta` or text such as `"24h"`, accurate to the millisecond.
        """
        self._native.advance(round(seconds_from("seconds", seconds) * 1000))
        self._moved()

    def set(self, when: Time) -> None:
        """Sets the clock to `when`."""
        self._native.set(milliseconds_of("when", when))
        self._moved()

    def _moved(self) -> None:
        for listener in tuple(self._listeners):
            listener()

    @property
    def timestamp(self) -> int:
        """Time of the clock, in epoch milliseconds."""
        return self._native.now()

    @property
    def now(self) -> datetime:
        """Time of the clock, as an aware UTC datetime."""
        return time_of(self._native.now())

    def time(self) -> float:
        """Returns the time of the clock in epoch seconds; a replacement for `time.time`."""
        return self._native.now() / 1000

    def __repr__(self) -> str:
        return f"<mqstore.testing.ManualClock {self.now.isoformat()}>"


class Faults:
    """Disk faults of the stores that were opened with this object; none at first. For `open`.

    Reads never fail. Thread-safe; several stores can share one. Every method can be called while they are open.
    """

    __slots__ = ("_native",)

    def __init__(self) -> None:
        self._native = _native.TestFaults()

    def fill_disk(self, after_bytes: int = 0) -> None:
        """Makes the disk full, at once or after `after_bytes` more bytes are allocated; `clear` frees it.

        Operations that need new space then fail: a new segment (`DiskFullError`), and writes beyond the allocated part
        of a file. As on a real disk, appends to the allocated part of a segment still work: the next MiB at least, or
        the rest of a smaller segment. Deleted files free no space here.
        Options that depend on the used share of a disk use the real disk.
        """
        self._native.fill_disk(after_bytes)

    def fail_syncs(self, times: int | None = None) -> None:
        """Makes the next `times` syncs fail with an I/O error; None is all syncs.

        A failed sync stops a store: its appends raise `StorePoisonedError` until it is opened again.
        """
        self._native.fail_syncs(times)

    def slow_syncs(self, seconds: Duration) -> None:
        """Delays every sync by this time, at most an hour."""
        self._native.slow_syncs(seconds)

    def crash(self, after_writes: int = 0) -> None:
        """Lets no change reach the disk any more, at once or after `after_writes` more changes.

        The effect is that of a kill: earlier writes are on the disk, later ones are lost. Appends and flushes raise an
        error. `close` raises none, so that the directory can be opened again. A change is a system call that changes
        the disk, or a write to a mapped file. An append makes one to four changes; the threads of the store make some
        too.
        """
        self._native.crash(after_writes)

    def clear(self) -> None:
        """Removes all faults. A crashed store must be opened again."""
        self._native.clear()

    @property
    def crashed(self) -> bool:
        """Whether a crash happened and no store was opened with these faults since."""
        return self._native.crashed

    @property
    def writes(self) -> int:
        """Number of changes of the disk so far."""
        return self._native.writes

    @property
    def syncs(self) -> int:
        """Number of syncs that succeeded."""
        return self._native.syncs

    def __repr__(self) -> str:
        state = "crashed" if self.crashed else f"{self.writes} writes, {self.syncs} syncs"
        return f"<mqstore.testing.Faults: {state}>"


@partial(lists_options, defaults=SMALL)
def open(  # noqa: A001 - the name of `mqstore.open`
    path: StorePath,
    mode: Mode = "create",
    *,
    clock: ManualClock | None = None,
    faults: Faults | None = None,
    options: StoreOptions | None = None,
    progress: Callable[[Progress], object] | None = None,
    lock_timeout: Duration | None = OF_MODE,
    own: bool = True,
    **overrides: Unpack[StoreOptionsDict],
) -> mqstore.Store:
    """Opens a store like `mqstore.open`, with the clock and the disk faults of a test.

    It is the same store that programs use, with real files.

    Args:
        path: directory of the store.
        mode: as for `mqstore.open`.
        clock: clock of the store; None is the clock of the machine.
        faults: disk faults of the store; None is none.
        options: options of the store; None is `SMALL`.
        progress: as for `mqstore.open`.
        lock_timeout: as for `mqstore.open`; it takes real time.
        own: as for `mqstore.open`.
        overrides: single options by name; they replace those in `options`. The sizes of files in `SMALL` are smaller
            than the defaults below.

    Raises:
        As `mqstore.open`.
    """
    for name, value, kind in (("clock", clock, ManualClock), ("faults", faults, Faults)):
        if value is not None and not isinstance(value, kind):
            raise TypeError(f"{name} must be a mqstore.testing.{kind.__name__} or None, not {type(value).__name__}")
    return opened(
        path,
        mode,
        SMALL if options is None else options,
        overrides,
        progress=progress,
        lock_timeout=lock_timeout,
        own=own,
        clock=None if clock is None else clock._native,
        faults=None if faults is None else faults._native,
    )


for _thing in (ManualClock, Faults, open):
    _thing.__module__ = "mqstore.testing"
del _thing
