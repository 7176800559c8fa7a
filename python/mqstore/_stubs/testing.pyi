"""Stubs of the native module for tests of programs; a part of `_mqstore.pyi`."""

from typing import Self, final

from mqstore.types import Duration

def is_reserved(name: str) -> bool:
    """Returns whether RocketMQ or mqstore uses this name for a property of its own."""

@final
class TestClock:
    """A clock whose wall time a test sets. Intervals pass as on the machine."""

    def __new__(cls, now: int) -> Self: ...
    def now(self) -> int:
        """Returns the wall time, in epoch milliseconds."""
    def set(self, now: int) -> None:
        """Sets the wall time, in epoch milliseconds."""
    def advance(self, milliseconds: int) -> None:
        """Adds milliseconds to the wall time."""

@final
class TestFaults:
    """Faults of the disk for the stores that are opened with this object."""

    def __new__(cls) -> Self: ...
    def fill_disk(self, after_bytes: int) -> None:
        """Makes the disk full after the next `after_bytes` bytes."""
    def fail_syncs(self, times: int | None) -> None:
        """Makes the next `times` syncs fail; None is all of them."""
    def slow_syncs(self, seconds: Duration) -> None:
        """Makes every sync take `seconds` longer."""
    def crash(self, after_writes: int) -> None:
        """Lets `after_writes` more changes reach the disk, and nothing after them."""
    def clear(self) -> None:
        """Ends all faults. A file system that crashed stays crashed."""
    @property
    def crashed(self) -> bool:
        """Returns whether a crash happened and no store was opened with these faults since."""
    @property
    def writes(self) -> int:
        """Number of changes that reached the disk: calls that change it, and writes to mapped files."""
    @property
    def syncs(self) -> int:
        """Number of syncs that succeeded."""
