"""The manifest of an archive: its files, and the ranges of the log that they contain."""

from __future__ import annotations

import hashlib
import json
import re
from dataclasses import asdict, dataclass, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from mqstore._archive.layout import is_file_path
from mqstore._remote.failure import RequestFailure
from mqstore._reports import ArchiveQueue, _Report

if TYPE_CHECKING:
    from collections.abc import Iterable

_KIND = "mqstore archive"
_VERSION = 1
_DIGEST = re.compile(r"[0-9a-f]{64}")
_ID = re.compile(r"[0-9a-f]{32}")
_LARGEST = 1 << 63

T = TypeVar("T")


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
        return json.dumps({**values, "checksum": _checksum(values)}, separators=(",", ":")).encode() + b"\n"


def decoded(path: str, content: bytes) -> ArchiveManifest:
    """Returns the manifest in the object `path`.

    Raises:
        RequestFailure: the content is damaged, or of another version (cause `damaged`).
    """

    def refuse(why: str, remedy: str = "verify the archive with rebuild_manifest") -> RequestFailure:
        return RequestFailure("damaged", path, f"the manifest of the archive cannot be used: {why}; {remedy}")

    try:
        values = json.loads(content)
    except ValueError:
        values = None
    if not isinstance(values, dict) or values.get("kind") != _KIND:
        raise refuse("it is incomplete, or no manifest of an archive")
    if values.get("version") != _VERSION:
        raise refuse(
            f"it has the version {values.get('version')!r}, and this mqstore reads {_VERSION}", "use a newer one"
        )
    if values.pop("checksum", None) != _checksum(values):
        raise refuse("its content does not match its checksum")
    try:
        parts = [*values["segments"], *values["files"], values["last"] or {}]
        parts += [queue for file in values["files"] for queue in file["queues"]]
        if not all(isinstance(part, dict) for part in parts):
            raise TypeError
        found = ArchiveManifest._from_dict({field.name: values[field.name] for field in fields(ArchiveManifest)})
    except (KeyError, TypeError):
        raise refuse("a member is missing or unknown") from None
    if (why := _problem(found)) is not None:
        raise refuse(why)
    return found


def _problem(manifest: ArchiveManifest) -> str | None:
    """Returns why a manifest with a right checksum is wrong, if it is."""
    end = 0
    for segment in manifest.segments:
        if not _are_lengths(segment.base, segment.bytes, segment.end) or not segment.bytes or segment.base < end:
            return f"the segment at {segment.base!r} is wrong"
        end = segment.end
    for file in manifest.files:
        numbers = (file.start, file.end, file.rows, file.bytes, file.record_bytes, file.crc_sum)
        is_right = is_file_path(file.path) and _are_lengths(*numbers) and file.start <= file.end
        if not (is_right and _DIGEST.fullmatch(file.sha256)):
            return f"the entry of the file {file.path!r} is wrong"
    if len({file.path for file in manifest.files}) != len(manifest.files):
        return "it names a file twice"
    if not _are_lengths(manifest.number) or not _ID.fullmatch(manifest.archive):
        return "its number or its id is wrong"
    return None


def _are_lengths(*values: object) -> bool:
    return all(type(value) is int and 0 <= value < _LARGEST for value in values)


def _checksum(values: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
