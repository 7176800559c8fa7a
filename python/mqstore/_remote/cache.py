"""Blocks of remote files on the local disk, for the argument `cache`.

::

    <cache>/<digest of URL, path and version>/<number>     checksum, then up to 64 KiB of the file

A block belongs to one version of a file, so it never becomes wrong. A block that is damaged or incomplete counts as
missing. Several processes can share the folder. If the blocks exceed `cache_size`, the oldest ones are removed.
"""

from __future__ import annotations

import hashlib
import os
import threading
import zlib
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from mqstore import _native

if TYPE_CHECKING:
    from mqstore._remote.failure import Part, Range, Row

_BLOCK = 64 << 10
_CHECKSUM = 4


class Source(Protocol):
    """A transport."""

    def files(self) -> list[Row]:
        """Returns all files."""

    def read(self, ranges: list[Range]) -> list[Part]:
        """Returns the bytes of each range."""


class Cached:
    """A transport that keeps the blocks that it read."""

    def __init__(self, source: Source, shown: str, folder: str, most: int) -> None:
        self._source = source
        self._shown = shown
        self._folder = Path(folder)
        self._most = most
        self._lock = threading.Lock()
        # Bytes that may be written before the folder is measured again.
        self._left: int | None = None
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def files(self) -> list[Row]:
        """Returns all files, from the source."""
        return self._source.files()

    def read(self, ranges: list[Range]) -> list[Part]:
        """Returns the bytes of each range. The native reader asks for whole blocks, except at the end of a file."""
        found: list[Part | None] = [self._kept(wanted) for wanted in ranges]
        missing = [number for number, bytes_ in enumerate(found) if bytes_ is None]
        if missing:
            for number, fetched in zip(missing, self._source.read([ranges[n] for n in missing]), strict=True):
                found[number] = fetched
                self._keep(ranges[number], fetched)
        return [part for part in found if part is not None]

    def _blocks(self, wanted: Range) -> list[tuple[Path, int, int]]:
        """Returns the file of each block of a range, and its start and end in the range."""
        path, version, start, length = wanted
        if start % _BLOCK:
            return []
        digest = hashlib.sha256(f"{self._shown}\0{path}\0{version}".encode()).hexdigest()[:32]
        folder = self._folder / digest
        first = start // _BLOCK
        return [(folder / str(first + at // _BLOCK), at, min(at + _BLOCK, length)) for at in range(0, length, _BLOCK)]

    def _kept(self, wanted: Range) -> bytes | None:
        blocks = self._blocks(wanted)
        parts = []
        try:
            for path, start, end in blocks:
                kept = path.read_bytes()
                content = memoryview(kept)[_CHECKSUM:]
                if len(content) != end - start or zlib.crc32(content) != int.from_bytes(kept[:_CHECKSUM], "big"):
                    return None
                parts.append(content)
            for path, *_ in blocks:
                os.utime(path)
        except OSError:
            return None
        return b"".join(parts) if parts else None

    def _keep(self, wanted: Range, fetched: Part) -> None:
        if len(fetched) != wanted[3]:
            return
        # A cache that cannot be written is no reason to fail.
        with suppress(OSError):
            for path, start, end in self._blocks(wanted):
                content = fetched[start:end]
                path.parent.mkdir(mode=0o700, exist_ok=True)
                new = path.with_name(f"{path.name}.{os.getpid()}.{threading.get_ident()}.new")
                _native.replace_cached(path, new, zlib.crc32(content).to_bytes(_CHECKSUM, "big") + content)
                self._count(len(content) + _CHECKSUM)

    def _count(self, written: int) -> None:
        with self._lock:
            if self._left is None or self._left < written:
                self._left = self._tidy()
            self._left -= written

    def _tidy(self) -> int:
        """Removes the oldest blocks above nine tenths of the limit. Returns the bytes until the next call."""
        blocks = []
        for folder, _, names in os.walk(self._folder):
            for name in names:
                path = os.path.join(folder, name)  # noqa: PTH118 - as fast as possible, for very many files
                with suppress(OSError):
                    stat = os.stat(path)  # noqa: PTH116
                    blocks.append((stat.st_mtime_ns, stat.st_size, path))
        total = sum(size for _, size, _ in blocks)
        blocks.sort(reverse=True)
        while blocks and total > self._most * 9 // 10:
            _, size, path = blocks.pop()
            with suppress(OSError):
                os.unlink(path)  # noqa: PTH108
            total -= size
        # Other processes write too.
        return max((self._most - total) // 2, self._most // 20)
