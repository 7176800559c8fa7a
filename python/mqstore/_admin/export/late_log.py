"""Makes a store whose log begins with its second segment, like a store whose first segment has expired.

A queue can begin at an offset that is in the middle of a file. Then blank units come first in the file, and they name
log offset 0. A broker takes them for the units of deleted records only if the log begins later. Otherwise a pull from
the first unit passes over all messages of the first segment.

Source: ``ConsumeQueue#fillPreBlank``, ``#correctMinOffset``, ``DefaultMessageStore#getMessage``.
"""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from typing import TYPE_CHECKING

from mqstore import _native
from mqstore._admin.files import sync_folder
from mqstore._options import StoreOptions

if TYPE_CHECKING:
    from pathlib import Path


def is_free(directory: Path) -> bool:
    """Returns whether a directory does not exist or is empty."""
    return not directory.exists() or (directory.is_dir() and not any(directory.iterdir()))


def make_late_store(directory: Path) -> None:
    """Makes the store at a free place. After a stop there is nothing, the empty directory, or the store."""
    length = StoreOptions().segment_size
    directory.parent.mkdir(parents=True, exist_ok=True)
    staged = directory.with_name(f".{directory.name}.mqstore-{os.getpid()}")
    shutil.rmtree(staged, ignore_errors=True)
    try:
        (staged / "commitlog").mkdir(parents=True)
        log = _native.ArchiveLog(str(staged / "commitlog"))
        log.add(length, length)
        log.sync()
        sync_folder(staged)
        with suppress(FileNotFoundError):
            directory.rmdir()
        staged.rename(directory)
    except BaseException:
        shutil.rmtree(staged, ignore_errors=True)
        raise
    sync_folder(directory.parent)
