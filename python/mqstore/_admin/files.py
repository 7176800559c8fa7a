"""Local files: errors that name the target of a call, and a lock against a second call."""

from __future__ import annotations

import errno
import os
import re
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqstore.errors import DiskFullError, MQStoreError, StoreBusyError

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def creating(target: Path | str, action: str = "writing it") -> Iterator[None]:
    """Makes the errors of a call that creates `target` name it, not the names that its files have until it is complete.

    If its disk is full, the error is a `DiskFullError` without an option: no option makes a copy smaller. `action` is
    for an error that does not say what the call did.
    """
    try:
        yield
    except (MQStoreError, OSError) as error:
        if (named := _naming(str(target), action, error)) is None:
            raise
        for note in getattr(error, "__notes__", ()):
            named.add_note(note)
        raise named.with_traceback(error.__traceback__) from None


@contextmanager
def new_directory(home: Path) -> Iterator[Path]:
    """Yields the existing directory that becomes `home`, which must not exist or be empty, and locks it.

    Raises:
        FileExistsError: the directory is not empty.
        StoreBusyError: another call writes the same directory.
    """
    if home.is_symlink() or (home.exists() and not (home.is_dir() and not any(home.iterdir()))):
        raise FileExistsError(f"{home}: exists already and is not empty; choose a new directory")
    partial = Path(f"{home}.partial")
    with creating(home), locked_folder(partial):
        yield partial


@contextmanager
def without_options() -> Iterator[None]:
    """Makes a `DiskFullError` name no option: a call that changes a directory takes none that makes it smaller."""
    try:
        yield
    except DiskFullError as error:
        raise _without_option(error, error.path).with_traceback(error.__traceback__) from None


def _without_option(error: DiskFullError, path: str) -> DiskFullError:
    return DiskFullError(path, error.action, error.reason, error.requested, error.free, option="")


def _naming(target: str, action: str, error: Exception) -> Exception | None:
    """Returns an error that names `target`; None if the error needs no other name."""
    if isinstance(error, OSError) and (full := _disk_full(target, action, error)) is not None:
        return full
    partial = re.compile(rf"({re.escape(target)}(\.[^\s/'\"]+?)?)\.partial(\.(state|rules|mapping)(\.new)?)?")
    if partial.search(str(error)) is None:
        return None

    def named(value: Any) -> Any:
        return partial.sub(r"\1", os.fspath(value)) if isinstance(value, str | os.PathLike) else value

    if isinstance(error, MQStoreError):
        return type(error)(*map(named, error._values()))
    filename = getattr(error, "filename", None)
    return type(error)(*map(named, error.args), *([] if filename is None else [named(filename)]))


def _disk_full(target: str, action: str, error: OSError) -> DiskFullError | None:
    """Returns the error for a full disk of `target`; None for any other error."""
    if isinstance(error, DiskFullError):
        if f"{error.path}/".startswith((f"{target}/", f"{target}.")):
            return _without_option(error, target)
        return None
    # The native module gives some errors of a full disk another number.
    if error.errno in (errno.ENOSPC, errno.EDQUOT) or os.strerror(errno.ENOSPC) in str(error):
        return DiskFullError(target, action, option="")
    return None


@contextmanager
def scratch() -> Iterator[Path]:
    """Yields an empty folder in the folder for temporary files (`TMPDIR`), which is removed at the end."""
    from tempfile import TemporaryDirectory

    with TemporaryDirectory(prefix="mqstore-") as folder, creating(folder, "preparing the result"):
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


def _busy(path: Path | str) -> StoreBusyError:
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
