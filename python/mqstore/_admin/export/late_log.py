"""Makes a store whose log begins with its second segment, like a store whose first segment has expired.

A queue can begin at an offset that is in the middle of a file. Then blank units come first in the file, and they name
log offset 0. A broker takes them for the units of deleted records only if the log begins later. Otherwise a pull from
the first unit passes over all messages of the first segment.

Source: ``ConsumeQueue#fillPreBlank``, ``#correctMinOffset``, ``DefaultMessageStore#getMessage``.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from mqstore import _native
from mqstore._options import StoreOptions

if TYPE_CHECKING:
    from pathlib import Path

# The folder of the log until it is complete. It is in the directory, which can be a mount point, or be in a folder that
# the caller must not write.
_STAGED = ".commitlog.mqstore-"


def is_free(directory: Path) -> bool:
    """Returns whether a directory does not exist, or has at most the files of calls that were stopped."""
    if not directory.exists():
        return True
    return directory.is_dir() and all(one.name.startswith(_STAGED) for one in directory.iterdir())


def make_late_store(directory: Path) -> None:
    """Makes the store at a free place. After a stop, the place is free or has the store."""
    length = StoreOptions().segment_size
    directory.mkdir(parents=True, exist_ok=True)
    staged = directory / f"{_STAGED}{os.getpid()}"
    shutil.rmtree(staged, ignore_errors=True)
    try:
        staged.mkdir()
        _native.create_segment(staged, length, length)
        _native.publish_folder(staged, directory / "commitlog")
    except BaseException:
        shutil.rmtree(staged, ignore_errors=True)
        raise
    for left in directory.glob(f"{_STAGED}*"):
        shutil.rmtree(left, ignore_errors=True)
