"""The machine that a store under test stands on: its clock, its disk, its sizes."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Unpack

import mqstore
from mqstore import _native
from mqstore._times import milliseconds_of, time_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from mqstore._options import StoreOptions
    from mqstore._reports import Progress
    from mqstore.types import Duration, Mode, StoreOptionsDict, StorePath, Time

SMALL = mqstore.StoreOptions(segment_size=64 << 10, queue_file_entries=64, index_slots=64, index_entries=256)
"""Options of a store whose files are small: it is made in milliseconds, and a few hundred messages fill its files."""

_BEGIN = datetime.fromisoformat("2024-01-01T00:00:00+00:00")


class ManualClock:
    """A clock that stands still until it is told; for `open`.

    Store times, born times, retention and everything else that a store does by the time of day go by it. Waits and
    time-outs last as on the machine. Thread-safe; several stores may share one.

    Args:
        start: what it shows first: epoch milliseconds or an aware datetime. 2024-01-01 00:00 UTC unless given.
    """

    __slots__ = ("_native",)

    def __init__(self, start: Time = _BEGIN) -> None:
        self._native = _native.TestClock(milliseconds_of("start", start))

    def advance(self, seconds: Duration) -> None:
        """Moves it on, or back where `seconds` is less than nothing.

        Args:
            seconds: seconds, to the millisecond, or a `timedelta`.
        """
        span = seconds.total_seconds() if isinstance(seconds, timedelta) else seconds
        if isinstance(span, bool) or not isinstance(span, int | float):
            msg = f"seconds must be a number or a timedelta, not {type(seconds).__name__}"
            raise TypeError(msg)
        self._native.advance(round(span * 1000))

    def set(self, when: Time) -> None:
        """Has it show `when`: epoch milliseconds or an aware datetime."""
        self._native.set(milliseconds_of("when", when))

    @property
    def timestamp(self) -> int:
        """What it shows, in epoch milliseconds."""
        return self._native.now()

    @property
    def now(self) -> datetime:
        """What it shows, as an aware UTC datetime."""
        return time_of(self._native.now())

    def time(self) -> float:
        """What it shows, in epoch seconds: takes the place of `time.time`."""
        return self._native.now() / 1000

    def __repr__(self) -> str:
        return f"<mqstore.testing.ManualClock {self.now.isoformat()}>"


class Faults:
    """What goes wrong with the disk of stores that were opened with it; nothing at first. For `open`.

    Reads are never hindered. Thread-safe; several stores may share one. Every method may be called while they are open.
    """

    __slots__ = ("_native",)

    def __init__(self) -> None:
        self._native = _native.TestFaults()

    def fill_disk(self, after_bytes: int = 0) -> None:
        """The disk is full, or is so once `after_bytes` more were taken; `clear` makes room.

        What needs new room fails: a segment that has to be made (`DiskFullError`), writes beyond what a file occupies.
        What has its room goes on, as on a real disk: appends to the segment that is there. What is deleted makes no
        room here, and the options that go by how full a disk is look at the real one.
        """
        self._native.fill_disk(after_bytes)

    def fail_syncs(self, times: int | None = None) -> None:
        """The next syncs fail with an I/O error: so many, or all with None.

        A sync that failed stops a store: its appends raise `StorePoisonedError` until it is opened again.
        """
        self._native.fail_syncs(times)

    def slow_syncs(self, seconds: Duration) -> None:
        """Every sync takes so much longer."""
        self._native.slow_syncs(seconds)

    def crash(self, after_writes: int = 0) -> None:
        """Nothing reaches the disk any more, now or after so many changes of it.

        As after a kill: what was written before is there. What the program does from then on is abandoned; its appends
        and flushes raise, and `close` ends it without an error, so that the directory can be opened again. A change is
        a call that changes the disk, or a write to a mapped file, of which an append makes one to four; the store's
        threads make some too.
        """
        self._native.crash(after_writes)

    def clear(self) -> None:
        """Nothing goes wrong any more. What crashed has to be opened again."""
        self._native.clear()

    @property
    def crashed(self) -> bool:
        """Whether a crash came, and no store was opened with these faults since."""
        return self._native.crashed

    @property
    def writes(self) -> int:
        """Changes of the disk that were made."""
        return self._native.writes

    @property
    def syncs(self) -> int:
        """Syncs that succeeded."""
        return self._native.syncs

    def __repr__(self) -> str:
        state = "crashed" if self.crashed else f"{self.writes} writes, {self.syncs} syncs"
        return f"<mqstore.testing.Faults: {state}>"


def open(  # noqa: A001 - the name of `mqstore.open`
    path: StorePath,
    mode: Mode = "create",
    *,
    clock: ManualClock | None = None,
    faults: Faults | None = None,
    options: StoreOptions | None = None,
    progress: Callable[[Progress], object] | None = None,
    **overrides: Unpack[StoreOptionsDict],
) -> mqstore.Store:
    """Opens a store as `mqstore.open` does, on a clock and a disk of the test's own.

    It is the store that programs use, on real files.

    Args:
        path: the directory.
        mode: as for `mqstore.open`.
        clock: the time that it goes by; None is the machine's.
        faults: what may go wrong with its disk; None is nothing.
        options: how it behaves; None is `SMALL`.
        progress: as for `mqstore.open`.
        overrides: single options by name, which replace those in `options`.

    Raises:
        As `mqstore.open`.
    """
    from mqstore._store import opened

    return opened(
        path,
        mode,
        SMALL if options is None else options,
        overrides,
        progress=progress,
        clock=None if clock is None else clock._native,
        faults=None if faults is None else faults._native,
    )


for _thing in (ManualClock, Faults, open):
    _thing.__module__ = "mqstore.testing"
del _thing
