"""Targets on this machine: a folder, by its URL or its path, and the memory of `fsspec` for tests.

In a folder, an object of one attempt is written and synced. The manifest is written and synced under another name and
then gets its own by a hard link, which fails if the name exists. So it is never incomplete.
"""

from __future__ import annotations

import errno
import os
import threading
import uuid
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from mqstore import _native
from mqstore._admin.files import chunks
from mqstore._remote.failure import REMOVED, WRITE_DENIED, RequestFailure
from mqstore._remote.file_system import FileSystem

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mqstore._remote.failure import Cause, Part, Range, Row

_DENIED = (errno.EACCES, errno.EPERM, errno.EROFS)
_FULL = (errno.ENOSPC, errno.EDQUOT)
# Attempts to create a file in a folder that others remove when it is empty.
_ATTEMPTS = 100

T = TypeVar("T")

# The memory of `fsspec` has no step that creates an object only if it is absent.
_lock = threading.Lock()


class Listed(FileSystem):
    """A target whose files are listed together."""

    def listed(self, folder: str) -> list[Row]:
        """Returns the objects in a folder, which ends with a slash, and in its folders."""
        return [row for row in self.files() if row[0].startswith(folder)]


class Memory(Listed):
    """Objects in the memory of this process."""

    def get(self, path: str) -> bytes | None:
        """Returns an object; None if there is none."""
        try:
            return bytes(self._system.cat_file(f"{self._root}/{path}"))
        except FileNotFoundError:
            return None

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


class Folder(Listed):
    """Files below a folder."""

    def read(self, ranges: list[Range]) -> list[Part]:
        """Returns the bytes of each range. It is shorter if the file ends before."""
        found: list[Part] = []
        for path, _, start, length in ranges:
            with _steps(path), self._path(path).open("rb", buffering=0) as file:
                found.append(_read_at(file.fileno(), start, length))
        return found

    def get(self, path: str) -> bytes | None:
        """Returns the content of a file; None if there is none."""
        with _steps(path):
            try:
                return self._path(path).read_bytes()
            except FileNotFoundError:
                return None

    def put(self, path: str, source: Path | bytes, length: int) -> None:
        """Writes the first bytes of a local file to a file, durably."""
        if isinstance(source, bytes):
            self.put_if_absent(path, source[:length])
            return
        dest = self._path(path)
        with _steps(path):
            _in_folder(dest.parent, lambda: _native.copy_file(source, dest, length))

    def put_if_absent(self, path: str, content: bytes) -> bool:
        """Writes a file unless it exists, durably. Returns whether this call has written it."""
        dest = self._path(path)
        new = dest.with_name(f"{dest.name}.{uuid.uuid4().hex}.new")
        with _steps(path):
            try:
                return _in_folder(dest.parent, lambda: _native.create_file(dest, new, content))
            except OSError as error:
                if error.errno != errno.ENOTSUP:
                    raise
                reason = "the file system has no hard links, so a file cannot be created only if it is absent"
                raise RequestFailure("other", path, f"{reason}; choose another file system") from None

    def settle(self, folder: str) -> None:
        """Makes the names in a folder durable: the call that made the last one can have ended before."""
        with _steps(folder.rstrip("/")):
            _native.sync_names(self._path(folder))

    def delete(self, paths: list[str]) -> None:
        """Removes files, and the folders that are then empty. Files that do not exist are no error."""
        with _steps(paths[0]):
            for path in paths:
                self._path(path).unlink(missing_ok=True)
        for folder in {self._path(path).parent for path in paths}:
            with suppress(OSError):
                folder.rmdir()

    def local(self, path: str) -> Path:
        """Returns the path of a file for the operating system."""
        return self._path(path)

    def _path(self, path: str) -> Path:
        return Path(self._root, path)


def _read_at(descriptor: int, start: int, length: int) -> bytes:
    parts = []
    # One call reads at most 2 GiB.
    while length > 0 and (part := os.pread(descriptor, length, start)):
        parts.append(part)
        start, length = start + len(part), length - len(part)
    return b"".join(parts)


def _in_folder(folder: Path, write: Callable[[], T]) -> T:
    """Creates a file in a folder, and the folder if that is missing."""
    for _ in range(_ATTEMPTS):
        with suppress(FileNotFoundError):
            return write()
        # Another writer can remove the folder while it is empty: then `mkdir` says that it exists, and it does not.
        with suppress(FileExistsError):
            folder.mkdir(parents=True, exist_ok=True)
    return write()


@contextmanager
def _steps(path: str) -> Iterator[None]:
    """Turns an error of the operating system into a failed request."""
    try:
        yield
    except FileNotFoundError:
        raise RequestFailure("changed", path, REMOVED) from None
    except OSError as error:
        cause: Cause = "denied" if error.errno in _DENIED else "full" if error.errno in _FULL else "other"
        reason = WRITE_DENIED if cause == "denied" else error.strerror or type(error).__name__
        raise RequestFailure(cause, path, reason) from None
