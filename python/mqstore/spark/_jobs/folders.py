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
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

from mqstore import _native
from mqstore._paths import home_of, is_url, text_of
from mqstore._remote.glob import expanded, is_pattern
from mqstore.errors import MQStoreError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from pyspark.sql import DataFrame

    from mqstore.types import StorePath

Stores: TypeAlias = "StorePath | Iterable[StorePath] | DataFrame"
"""The stores of a job: paths, patterns, or a DataFrame with them in its first column."""

_STALE_SECONDS = 3 * 86_400.0
_TRIES = 3

# Maximum number of folders that a sweep looks at.
_SWEPT = 100


def absolute(path: StorePath) -> str:
    """Returns a path for the executors too; symbolic links stay unresolved."""
    return os.path.abspath(home_of(path, "use it with Spark"))  # noqa: PTH100


def is_one(path: object) -> bool:
    """Returns whether the argument of a job is one plain path, and not a pattern or several paths."""
    return isinstance(path, str | bytes | os.PathLike) and not is_pattern(path)


def homes(paths: Stores, *, with_urls: bool = False, storage_options: Mapping[str, Any] | None = None) -> list[str]:
    """Returns the directories of several stores, with those of patterns; URLs stay unchanged if the job can read them.

    Raises:
        TypeError: `paths` is one path.
        RemoteStoreError: a path is a URL, and the job needs directories.
        NotAStoreError: a pattern matches no store.
    """
    if is_one(paths):
        raise TypeError(f"paths must be an iterable of directories, not {type(paths).__name__}")
    texts = [text if with_urls and is_url(text) else absolute(text) for text in texts_of(paths)]
    return list(dict.fromkeys(text_of(path) for path in expanded(texts, storage_options)))


def texts_of(paths: Stores) -> list[str]:
    """Returns the paths and patterns of the argument of a job."""
    if isinstance(paths, str | os.PathLike):
        return [text_of(paths)]
    collect = getattr(paths, "collect", None)
    if callable(collect):
        # A DataFrame of Spark.
        return [text_of(row[0]) for row in collect()]
    return [text_of(path) for path in cast("Iterable[StorePath]", paths)]


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
    """Removes folders without a change for three days, except those with the given names.

    It looks at a bounded number, so that old folders do not delay each job. Later sweeps look at the others.
    """
    with os.scandir(home) as entries:
        folders = [Path(each.path) for each in islice(entries, _SWEPT) if each.is_dir() and each.name not in kept]
    for folder in folders:
        try:
            age = time.time() - max(file.stat().st_mtime for file in (folder, *folder.rglob("*")))
        except OSError:
            continue
        if age > _STALE_SECONDS:
            shutil.rmtree(folder, ignore_errors=True)
