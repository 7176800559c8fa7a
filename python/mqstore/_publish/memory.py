"""The memory of `fsspec` as a target, for tests."""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import TYPE_CHECKING

from mqstore._admin.files import chunks
from mqstore._remote.file_system import FileSystem

if TYPE_CHECKING:
    from pathlib import Path

# The memory of `fsspec` has no step that creates an object only if it is absent.
_lock = threading.Lock()


class Memory(FileSystem):
    """Objects in the memory of this process."""

    def put(self, path: str, source: Path | bytes, length: int) -> None:
        """Writes the first bytes of a local file or of the memory as an object."""
        self._system.pipe_file(f"{self._root}/{path}", b"".join(chunks(source, length, max(length, 1))))

    def put_if_absent(self, path: str, content: bytes) -> bool:
        """Writes an object unless it exists. Returns whether this call has written it."""
        name = f"{self._root}/{path}"
        with _lock:
            if self._system.exists(name):
                return False
            self._system.pipe_file(name, content)
            return True

    def delete(self, paths: list[str]) -> None:
        """Removes objects. Those that do not exist are no error."""
        for path in paths:
            with suppress(FileNotFoundError):
                self._system.rm_file(f"{self._root}/{path}")
