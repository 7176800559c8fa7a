"""The manifest of an archive: its files, and the ranges of the log that they contain."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING

from mqstore import _native
from mqstore._remote.failure import RequestFailure
from mqstore._reports import ArchiveQueue, _Report

if TYPE_CHECKING:
    from collections.abc import Iterable

_KIND = "mqstore archive"
_VERSION = 1


@dataclass(frozen=True, slots=True)
class ArchivedFile(_Report):
    """A file of the archive."""

    path: str
    """Path below `v1`."""
    topic: str | None
    """None for bytes of the log that are no records of a topic."""
    start: int
    """First log offset of the range of the log."""
    end: int
    """End of this range."""
    rows: int
    bytes: int
    """Length of the file."""
    sha256: str
    """Digest of the file."""
    record_bytes: int
    """Sum of the lengths of the records."""
    crc_sum: int
    """Sum of the CRC-32 of each record."""
    first_timestamp: int | None = None
    """Smallest store time in epoch milliseconds."""
    last_timestamp: int | None = None
    """Largest store time in epoch milliseconds."""
    queues: tuple[ArchiveQueue, ...] = ()


@dataclass(frozen=True, slots=True)
class ArchivedSegment(_Report):
    """A segment of the log that the archive contains completely."""

    base: int
    """Log offset of the first byte."""
    bytes: int
    first_timestamp: int | None
    """Store time of the first record in epoch milliseconds, if it is known."""
    last_timestamp: int
    """Store time of the last record in epoch milliseconds."""

    @property
    def end(self) -> int:
        """The log offset after the segment."""
        return self.base + self.bytes


@dataclass(frozen=True, slots=True)
class LastRecord(_Report):
    """The last record of the archive, which shows whether an archive and a log belong together."""

    log_offset: int
    bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class ArchiveManifest(_Report):
    """One state of an archive."""

    number: int
    archive: str
    """Random id of the archive."""
    run: str
    """Random id of the run that created this manifest."""
    created_timestamp: int
    """Epoch milliseconds."""
    topics: tuple[str, ...] | None
    """The topics whose records the archive contains; None is everything in the log."""
    segments: tuple[ArchivedSegment, ...]
    """In the order of the log."""
    files: tuple[ArchivedFile, ...]
    last: LastRecord | None = None

    @property
    def begin(self) -> int:
        """The log offset of the first segment; 0 without segments."""
        return self.segments[0].base if self.segments else 0

    @property
    def end(self) -> int:
        """The end of the last segment; 0 without segments."""
        return self.segments[-1].end if self.segments else 0

    def covered_from(self, start: int) -> int:
        """Returns the log offset up to which the archive contains every segment from log offset `start` on.

        The end of the archive if that is before `start`: the segments between them are lost.
        """
        for segment in self.segments:
            if segment.base <= start < segment.end:
                start = segment.end
        return min(start, self.end)

    def extended(
        self,
        run: str,
        now_ms: int,
        segments: Iterable[ArchivedSegment],
        files: Iterable[ArchivedFile],
        last: LastRecord | None,
    ) -> ArchiveManifest:
        """Returns the next manifest, with more segments and files."""
        return replace(
            self,
            number=self.number + 1,
            run=run,
            created_timestamp=now_ms,
            segments=(*self.segments, *segments),
            files=(*self.files, *files),
            last=last or self.last,
        )

    def encoded(self) -> bytes:
        """Returns the content of the object."""
        values = {"kind": _KIND, "version": _VERSION, **asdict(self)}
        checksum = _native.manifest_checksum(json.dumps(values))
        return json.dumps({**values, "checksum": checksum}, separators=(",", ":")).encode() + b"\n"


def decoded(path: str, content: bytes) -> ArchiveManifest:
    """Returns the manifest in the object `path`.

    Raises:
        RequestFailure: the content is damaged, or of another version (cause `damaged`).
    """
    if (problem := _native.manifest_problem(content)) is not None:
        raise wrong_manifest(path, *problem)
    values = json.loads(content)
    return ArchiveManifest._from_dict({field.name: values[field.name] for field in fields(ArchiveManifest)})


def wrong_manifest(path: str, why: str, remedy: str) -> RequestFailure:
    """Returns the failure for a manifest that cannot be used."""
    return RequestFailure("damaged", path, f"the manifest of the archive cannot be used: {why}; {remedy}")
