"""What the native module has for tests of programs; a part of the stub `_mqstore.pyi`."""

from typing import Self, final

from mqstore.types import Duration

__all__ = ["TestClock", "TestFaults", "is_reserved"]

def is_reserved(name: str) -> bool:
    """Whether RocketMQ, or a store, gives a property this name."""

@final
class TestClock:
    """A clock whose wall time is set by hand, while intervals pass as on the machine."""

    def __new__(cls, now: int) -> Self: ...
    def now(self) -> int:
        """The time that it shows, in epoch milliseconds."""
    def set(self, now: int) -> None:
        """Shows this time from now on."""
    def advance(self, milliseconds: int) -> None:
        """Shows so many milliseconds more."""

@final
class TestFaults:
    """What goes wrong with the disk of the stores that were opened with it."""

    def __new__(cls) -> Self: ...
    def fill_disk(self, after_bytes: int) -> None:
        """The disk is full once so many bytes more were taken."""
    def fail_syncs(self, times: int | None) -> None:
        """So many syncs fail from now on; None is all of them."""
    def slow_syncs(self, seconds: Duration) -> None:
        """Every sync takes so much longer."""
    def crash(self, after_writes: int) -> None:
        """Nothing reaches the disk after so many changes more."""
    def clear(self) -> None:
        """Nothing goes wrong any more; what crashed stays so."""
    @property
    def crashed(self) -> bool:
        """Whether a crash came, and no store was opened with these faults since."""
    @property
    def writes(self) -> int:
        """Changes that reached the disk: calls that change it, and writes to mapped files."""
    @property
    def syncs(self) -> int:
        """Syncs that succeeded."""
