"""Local files: errors of a full disk, and a lock against a second call."""

from __future__ import annotations

import errno
import os
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from mqstore.errors import DiskFullError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def disk_of(folder: Path, action: str) -> Iterator[None]:
    """Turns the error of a full disk into a `DiskFullError` that names the folder."""
    try:
        yield
    except OSError as error:
        if isinstance(error, DiskFullError) or error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise DiskFullError(str(folder), action, option="") from None


@contextmanager
def scratch() -> Iterator[Path]:
    """Yields an empty folder in the folder for temporary files (`TMPDIR`), which is removed at the end."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="mqstore-") as folder, disk_of(Path(folder), "preparing the result"):
        yield Path(folder)


def only_one(file: int, path: Path | str) -> None:
    """Prevents a second call that writes to the same file or folder, as long as the file is open."""
    try:
        import fcntl
    except ImportError:
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise _busy(path) from None


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Creates a folder and its parents, and prevents a second call that writes to it."""
    folder.mkdir(parents=True, exist_ok=True)
    lock = os.open(folder, os.O_RDONLY)
    try:
        only_one(lock, folder)
        if not _is_at(lock, folder):
            # The call that had the lock has ended and has renamed or removed the folder.
            raise _busy(folder)
        yield
    finally:
        os.close(lock)


def _is_at(file: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file), path.stat())
    except FileNotFoundError:
        return False


def _busy(path: Path | str) -> OSError:
    from mqstore.errors import StoreBusyError

    return StoreBusyError(f"{path}: another call is writing this; wait for it, or choose another name")


def chunks(source: Path | bytes, length: int, size: int) -> Iterator[bytes]:
    """Yields the first `length` bytes of a file or of the memory, at most `size` at a time."""
    if isinstance(source, bytes):
        yield from (source[at : min(at + size, length)] for at in range(0, length, size))
        return
    with source.open("rb") as content:
        while length > 0 and (part := content.read(min(size, length))):
            length -= len(part)
            yield part
