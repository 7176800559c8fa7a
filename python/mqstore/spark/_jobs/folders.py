"""The stores of a job, and its folders for progress and results of attempts.

The folder is ``mqstore/spark/jobs/<job>/`` of the store, or in a folder of the caller. The driver creates and removes
it. If a killed driver left one in a store, the first job that finds it three days old removes it. A folder of the
caller must exist; its other files are not touched.
"""

from __future__ import annotations

import os
import secrets
import shutil
import time
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from mqstore import _native
from mqstore._paths import home_of, is_url, text_of
from mqstore.errors import MQStoreError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from mqstore.types import StorePath

_STALE_SECONDS = 3 * 86_400.0
_TRIES = 3


def absolute(path: StorePath) -> str:
    """Returns a path for the executors too; symbolic links stay unresolved."""
    return os.path.abspath(home_of(path, "use it with Spark"))  # noqa: PTH100


def homes(paths: Iterable[StorePath], *, with_urls: bool = False) -> list[str]:
    """Returns the directories of several stores; URLs stay unchanged if the job can read them.

    Raises:
        TypeError: `paths` is one path.
        RemoteStoreError: a path is a URL, and the job needs directories.
    """
    if isinstance(paths, str | bytes | os.PathLike):
        msg = f"paths must be an iterable of directories, not {type(paths).__name__}"
        raise TypeError(msg)
    texts = [text_of(path) for path in paths]
    return list(dict.fromkeys(text if with_urls and is_url(text) else absolute(text) for text in texts))


def log_of(home: str) -> tuple[int, bool]:
    """Returns the bytes of a log, and whether it belongs to a store; (0, False) if the tasks will report an error."""
    try:
        return _native.verify_log_bytes(home)
    except (MQStoreError, OSError):
        return 0, False


@contextmanager
def job_folders(wanted: Sequence[str | None], elsewhere: str | None = None) -> Iterator[list[str | None]]:
    """Yields a folder for each store during the job; None for None, and for a store that cannot be written.

    Args:
        wanted: directories of the stores.
        elsewhere: parent of the folders, instead of the stores.

    Raises:
        OSError: the folder `elsewhere` does not exist, or cannot be written.
    """
    with ExitStack() as stack:
        found: list[str | None] = []
        for home in wanted:
            try:
                found.append(None if home is None else stack.enter_context(_job_folder(home, elsewhere)))
            except OSError:
                if elsewhere is not None:
                    raise
                found.append(None)
        yield found


@contextmanager
def _job_folder(home: str, elsewhere: str | None) -> Iterator[str]:
    own = Path(home, "mqstore")
    parents = [own, own / "spark", own / "spark" / "jobs"] if elsewhere is None else []
    folder = Path(parents[-1] if elsewhere is None else elsewhere, secrets.token_hex(12))
    made = _make(parents, folder)
    if elsewhere is None:
        sweep(folder.parent)
    try:
        yield str(folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        # A concurrent job may have removed them already, or may still need them.
        with suppress(OSError):
            for parent in reversed(made):
                parent.rmdir()


def _make(parents: list[Path], folder: Path) -> list[Path]:
    """Creates the folder. Returns those of its parents that did not exist."""
    made: list[Path] = []
    for _ in range(_TRIES):
        for parent in parents:
            with suppress(FileExistsError):
                parent.mkdir()
                made.append(parent)
        with suppress(FileNotFoundError):
            folder.mkdir()
            return made
    folder.mkdir()
    return made


def sweep(home: Path, *kept: str) -> None:
    """Removes folders without a change for three days, except those with the given names."""
    for folder in home.iterdir():
        if not folder.is_dir() or folder.name in kept:
            continue
        try:
            age = time.time() - max(file.stat().st_mtime for file in (folder, *folder.rglob("*")))
        except OSError:
            continue
        if age > _STALE_SECONDS:
            shutil.rmtree(folder, ignore_errors=True)
