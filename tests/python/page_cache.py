"""The pages of files in the page cache of Linux."""

from __future__ import annotations

import ctypes
import mmap
import os
from pathlib import Path

PAGE = mmap.PAGESIZE


def resident(path: Path) -> float:
    """Returns the share of the file's pages that are in memory."""
    size = path.stat().st_size
    pages = -(-size // PAGE)
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_COPY) as memory:
        states = (ctypes.c_ubyte * pages)()
        first = ctypes.c_char.from_buffer(memory)
        address = ctypes.c_void_p(ctypes.addressof(first))
        done = libc.mincore(address, ctypes.c_size_t(size), states)
        del first, address
        assert done == 0, os.strerror(ctypes.get_errno())
    return sum(state & 1 for state in states) / pages


def evict(path: Path) -> None:
    """Drops the file's pages from memory. Pages that are mapped stay."""
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
