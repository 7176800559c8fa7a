"""The end of work that continues in a thread: a backup, or a copy of a master."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Self

from mqstore.errors import MQStoreError

if TYPE_CHECKING:
    import threading
    from types import TracebackType


class Running(ABC):
    """Work that continues in a thread until `close`. Its class starts the thread."""

    _thread: threading.Thread
    _ended: threading.Event

    @abstractmethod
    def close(self) -> None:
        """Ends the work."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.close()
        except (MQStoreError, OSError):
            # The error of the block matters more. This one is in the log.
            if kind is None:
                raise

    @property
    def running(self) -> bool:
        """Whether it continues: False after `close`, and after an error that would come again."""
        return self._thread.is_alive() and not self._ended.is_set()
