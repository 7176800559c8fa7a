"""One run: archives the sealed segments of a store that the archive does not contain yet.

The log is read once, in its order, in ranges of a bounded size. Threads sort and write one range each, and upload its
files. After some segments the next manifest is created.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
import uuid
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from mqstore import _native
from mqstore._archive.layout import file_path
from mqstore._archive.manifest import ArchivedFile, ArchivedSegment, ArchiveManifest, LastRecord
from mqstore._archive.owner import check_owner, check_recorded
from mqstore._publish.create import WriteRefused
from mqstore._publish.publication import scratch
from mqstore._remote.failure import requests
from mqstore._reports import ArchiveQueue, ArchiveReport, Progress
from mqstore.errors import CorruptionError, ResultExistsError, StoreBusyError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from mqstore._archive.place import ArchivePlace
    from mqstore._native import NativeStore

# Bytes of columns of one range of the log: a file has at most so many.
_RANGE_BYTES = 128 << 20

# Bytes of segments after which a run creates a manifest.
_COMMIT_BYTES = 4 << 30

# Ranges that are written at the same time; each needs memory for two copies of its columns.
_MOST_WRITERS = 4

# Largest piece of the log that is read at once.
_PIECE_BYTES = 64 << 20

# Rows of a row group, bytes of a page, and the number of rows whose multiples end a page.
_GROUP_ROWS = 8192
_PAGE_BYTES = 64 << 10
_PAGE_STEP_ROWS = 32

Summary: TypeAlias = tuple[int, int, int, int | None, int | None, list[tuple[int, int, int, int]]]
"""Number of rows, sum of the lengths of the records, sum of their CRC-32, smallest and largest store time in epoch
milliseconds, and the queues: number, first and last offset, number of rows."""

_FILLER_HEADER_BYTES = 8
_FILLER_MAGIC = 0xCBD43194


@dataclass(frozen=True)
class Settings:
    """The settings of a run."""

    older_than: float = 0
    """Minimum age of the last record of a segment in seconds."""
    topics: tuple[str, ...] | None = None
    """Only records of these topics; None is the whole log."""
    level: int = 3
    """Compression level of zstd."""


@dataclass
class _Counts:
    segments: int = 0
    records: int = 0
    record_bytes: int = 0
    files: int = 0
    bytes: int = 0
    young: int = 0


class Run:
    """A run. Its methods are called by one thread."""

    def __init__(
        self,
        store: NativeStore,
        place: ArchivePlace,
        settings: Settings,
        state: tuple[int, str] | None,
        advance: Callable[[ArchiveManifest, int], None] | None,
        progress: Callable[[Progress], object] | None,
    ) -> None:
        self._state = state
        self._store = store
        self._place = place
        self._settings = settings
        self._advance = advance
        self._progress = progress
        self._run = uuid.uuid4().hex
        self._counts = _Counts()
        self._started = time.monotonic()

    def archive(self) -> ArchiveReport:
        """Archives all segments that are due, and returns the report."""
        manifest = checked(self._store, self._place, self._settings.topics, self._state)
        if manifest is None:
            self._place.probe()
            manifest = ArchiveManifest(0, uuid.uuid4().hex, self._run, 0, self._settings.topics, (), ())
        due = self._due(manifest)
        missing = max(0, due[0].base - manifest.end) if due and manifest.segments else 0
        total = sum(one.bytes for one in due)
        self._advance_to(manifest)
        done = 0
        with scratch() as folder:
            for group in _groups(due):

                def tell(position: int, before: int = done, start: int = group[0].base) -> None:
                    if self._progress is not None:
                        self._progress(Progress(before + position - start, total))

                manifest = self._archived(manifest, group, folder, tell)
                self._advance_to(manifest)
                done += sum(one.bytes for one in group)
        return ArchiveReport(
            target=self._place.shown,
            segments=self._counts.segments,
            records=self._counts.records,
            record_bytes=self._counts.record_bytes,
            files=self._counts.files,
            bytes=self._counts.bytes,
            archived_to=manifest.end,
            missing_bytes=missing,
            young_segments=self._counts.young,
            bloom_filters=True,
            seconds=round(time.monotonic() - self._started, 3),
        )

    def _due(self, manifest: ArchiveManifest) -> list[ArchivedSegment]:
        """Returns the segments to archive, oldest first."""
        rows = [row for row in _native.sealed_segments(self._store, manifest.end) if row[0] >= manifest.end]
        now_ms = time.time_ns() // 1_000_000
        due = []
        for base, length, first_ms, newest_ms, modified_ms in rows:
            one = ArchivedSegment(base, length, first_ms, newest_ms)
            # A store time in the future, from a clock that was ahead, gives no age. The file has another one.
            last_ms = one.last_timestamp if one.last_timestamp <= now_ms else min(modified_ms, now_ms)
            if now_ms - last_ms < self._settings.older_than * 1000:
                break
            due.append(one)
        self._counts.young = len(rows) - len(due)
        return due

    def _advance_to(self, manifest: ArchiveManifest) -> None:
        if self._advance is not None and manifest.segments:
            start = self._store._stats()["log_min_offset"]
            self._advance(manifest, manifest.covered_from(start))

    def _archived(
        self, manifest: ArchiveManifest, segments: list[ArchivedSegment], folder: Path, tell: Callable[[int], None]
    ) -> ArchiveManifest:
        """Writes the files of some segments and creates the next manifest. Returns it."""
        work = _Files(self._store, self._place, self._settings, folder, segments)
        work.facts = group_facts(manifest.archive, self._run, self._settings.topics, segments)
        span = segments[0].base, segments[-1].end
        before = _native.segment_inodes(self._store, *span)
        is_named = False
        try:
            work.write(*span, tell)
            self._check_files(before, _native.segment_inodes(self._store, *span))
            self._place.check_present(work.entries)
            now_ms = time.time_ns() // 1_000_000
            new = manifest.extended(self._run, now_ms, segments, work.sorted_entries(), work.last)
            with requests(self._place.shown, "archive to it"):
                # From here on, the manifest may name the files, or name them later.
                is_named = True
                try:
                    other = self._place.create(new)
                except WriteRefused:
                    is_named = False
                    raise
            if other is not None:
                # A manifest that was rebuilt from the files can name them.
                named = {one.path for one in other.files}
                work.paths = [path for path in work.paths if path not in named]
                is_named = False
                reason = (
                    f"{self._place.shown}: another run has extended the archive to log offset {other.end} meanwhile; "
                    "the files of this run are removed, and no message is lost: run it again"
                )
                raise StoreBusyError(reason)
            try:
                # A clean that has read the manifest before can have removed them since the last check.
                self._place.check_present(work.entries)
            except StoreBusyError:
                self._place.withdraw(new)
                is_named = False
                raise
        except BaseException:
            if not is_named:
                self._place.discard(work.paths)
            raise
        counts = self._counts
        counts.segments += len(segments)
        counts.records += sum(one.rows for one in work.entries if one.topic is not None)
        counts.record_bytes += sum(one.record_bytes for one in work.entries)
        counts.files += len(work.entries)
        counts.bytes += sum(one.bytes for one in work.entries)
        return new

    def _check_files(self, before: dict[int, int], after: dict[int, int]) -> None:
        """Makes sure that no segment got another file while it was read. Its records are then at other places."""
        for base, inode in after.items():
            if before.get(base, inode) != inode:
                reason = (
                    f"{self._place.shown}: a reclaim has rewritten the segment at log offset {base} while it was "
                    "archived; the files of this run are removed, and no message is lost: run it again"
                )
                raise StoreBusyError(reason)


def checked(
    store: NativeStore, place: ArchivePlace, topics: tuple[str, ...] | None, state: tuple[int, str] | None
) -> ArchiveManifest | None:
    """Returns the newest manifest of an archive that can be the archive of a store; None if there is none yet.

    Args:
        store: the store.
        place: the archive.
        topics: the topics of the archive; None is all.
        state: what the store recorded about its archive; None if it has none.

    Raises:
        InvalidOptionError: the target is a folder of the store.
        CorruptionError: the archive does not have what the store archived there.
        ResultExistsError: it is the archive of another store, or of other topics.
    """
    place.check_outside(store.path)
    manifest = place.newest()
    check_recorded(state, place, manifest, store._stats()["log_min_offset"])
    if manifest is None:
        return None
    place.settle()
    if manifest.topics != topics:
        wanted = "all topics" if manifest.topics is None else "the topics " + ", ".join(manifest.topics)
        raise ResultExistsError(place.shown, f"the archive there has {wanted}")
    check_owner(store, place.shown, manifest.last, manifest.segments, extends=True)
    return manifest


def _groups(segments: list[ArchivedSegment]) -> Iterator[list[ArchivedSegment]]:
    """Yields neighbouring segments; one manifest is created for each group."""
    group: list[ArchivedSegment] = []
    for one in segments:
        if group and (group[-1].end != one.base or sum(known.bytes for known in group) + one.bytes > _COMMIT_BYTES):
            yield group
            group = []
        group.append(one)
    if group:
        yield group


class _Files:
    """The files of some neighbouring segments."""

    def __init__(
        self, store: NativeStore, place: ArchivePlace, settings: Settings, folder: Path, segments: list[ArchivedSegment]
    ) -> None:
        self._store = store
        self._place = place
        self._settings = settings
        self._folder = folder
        self._ends = sorted(one.end for one in segments)
        # Texts of each footer, which say to which files this one belongs.
        self.facts: dict[str, str] = {}
        self.entries: list[ArchivedFile] = []
        # Also those of uploads that failed.
        self.paths: list[str] = []
        self.last: LastRecord | None = None
        self._lock = threading.Lock()

    def sorted_entries(self) -> list[ArchivedFile]:
        """Returns the entries in the order of the log."""
        return sorted(self.entries, key=lambda one: (one.start, one.path))

    def write(self, start: int, end: int, tell: Callable[[int], None]) -> None:
        """Writes and uploads all files for a range of the log."""
        writers = max(1, min(os.cpu_count() or 1, _MOST_WRITERS))
        waiting: list[Future[None]] = []
        pool = ThreadPoolExecutor(writers, "mqstore-archive")
        try:
            for one in self._ranges(start, end):
                while len(waiting) >= writers:
                    waiting.pop(0).result()
                waiting.append(pool.submit(self._write_range, one))
                tell(one.end)
                del one
            for rest in waiting:
                rest.result()
        finally:
            pool.shutdown(cancel_futures=True)

    def _ranges(self, start: int, end: int) -> Iterator[_native.ArchiveRange]:
        """Yields the ranges of the log with their records. Only a single one has no records."""
        topics = None if self._settings.topics is None else set(self._settings.topics)
        with closing(_native.scan_archive(self._store, start, end, 1)) as stream:
            while (one := stream.next_range(_RANGE_BYTES, topics)) is not None:
                yield one
                del one

    def _write_range(self, one: _native.ArchiveRange) -> None:
        """Writes the files of one range."""
        topics = one.topics
        files = self._write_others(one, len(topics))
        self._note_last(one)
        for topic in topics:
            self._write_topic(one, topic, files)
        one.clear()

    def _note_last(self, one: _native.ArchiveRange) -> None:
        """Notes the last record so far."""
        if one.last is None:
            return
        offset, length = one.last
        digest = hashlib.sha256(_native.read_log(self._store, offset, length)).hexdigest()
        with self._lock:
            if self.last is None or offset > self.last.log_offset:
                self.last = LastRecord(offset, length, digest)

    def _write_topic(self, one: _native.ArchiveRange, topic: str, files: int) -> None:
        """Writes, checks and uploads the file of one topic. `files` is the number of files of the range."""
        summary = one.summary(topic)
        rows, record_bytes, crc_sum, *_ = summary
        path = file_path(topic, one.start, one.end)
        facts = self._facts(one, files, (rows, record_bytes, crc_sum))
        sizes = _GROUP_ROWS, _PAGE_BYTES, _PAGE_STEP_ROWS
        content = one.file(topic, sizes, self._settings.level, facts)
        if content is None:
            reason = f"the new file {path} does not give the records of the log again; report this as a bug of mqstore"
            raise CorruptionError(self._place.shown, 0, reason)
        self.entries.append(entry_of(path, topic, (one.start, one.end), summary, self._upload(path, content)))

    def _write_others(self, one: _native.ArchiveRange, topics: int) -> int:
        """Writes the bytes between records of so many topics, except fillers that follow from their place.

        Returns the number of the files of the range.
        """
        is_whole = self._settings.topics is None
        pieces = [piece for gap in one.gaps for piece in self._pieces(*gap)] if is_whole else []
        if not pieces:
            return topics
        path = file_path(None, one.start, one.end)
        summary: Summary = (len(pieces), sum(piece[1] for piece in pieces), 0, None, None, [])
        facts = self._facts(one, topics + 1, summary[:3])
        content = _native.archive_bytes_file(pieces, self._settings.level, facts)
        self.entries.append(entry_of(path, None, (one.start, one.end), summary, self._upload(path, content)))
        return topics + 1

    def _pieces(self, start: int, end: int) -> Iterator[tuple[int, int, bytes]]:
        """Yields the pieces of a gap whose bytes do not follow from their place."""
        while start < end:
            segment_end = next(one for one in self._ends if one > start)
            stop = min(end, segment_end, start + _PIECE_BYTES)
            length = stop - start
            content = _native.read_log(self._store, start, length).rstrip(b"\0")
            filler = length.to_bytes(4) + _FILLER_MAGIC.to_bytes(4)
            is_filler = stop == segment_end and length >= _FILLER_HEADER_BYTES and content == filler.rstrip(b"\0")
            if not is_filler:
                yield start, length, content
            start = stop

    def _facts(self, one: _native.ArchiveRange, files: int, sums: tuple[int, int, int]) -> list[tuple[str, str]]:
        """Returns the texts of the footer. `files` is the number of files of the range."""
        rows, record_bytes, crc_sum = sums
        return [
            ("version", "1"),
            ("range", f"{one.start}-{one.end}"),
            ("rows", str(rows)),
            ("record_bytes", str(record_bytes)),
            ("crc32_sum", str(crc_sum)),
            ("range_files", str(files)),
            *self.facts.items(),
        ]

    def _upload(self, path: str, content: bytes) -> tuple[int, str]:
        self.paths.append(path)
        local = self._folder / path.rpartition("/")[2]
        local.write_bytes(content)
        del content
        try:
            return self._place.upload(path, local)
        finally:
            local.unlink()


def group_facts(
    archive: str, run: str, topics: tuple[str, ...] | None, segments: list[ArchivedSegment]
) -> dict[str, str]:
    """Returns the texts of the footers of all files of neighbouring segments; a manifest can be rebuilt from them."""
    runs: list[list[int]] = []
    for one in segments:
        if runs and runs[-1][0] == one.bytes:
            runs[-1][1] += 1
        else:
            runs.append([one.bytes, 1])
    return {
        "id": archive,
        "run": run,
        "topics": json.dumps(topics),
        # The first log offset, then length and number of the segments that follow each other.
        "segments": json.dumps([segments[0].base, runs]),
    }


def entry_of(
    path: str, topic: str | None, log_range: tuple[int, int], summary: Summary, content: tuple[int, str]
) -> ArchivedFile:
    """Returns the entry of a file.

    Args:
        path: its path.
        topic: the topic; None for other bytes of the log.
        log_range: first log offset of its range of the log, and end.
        summary: what the native module says of its rows.
        content: length and digest of the file.
    """
    (start, end), (size, digest) = log_range, content
    rows, record_bytes, crc_sum, first_ms, last_ms, queues = summary
    return ArchivedFile(
        path=path,
        topic=topic,
        start=start,
        end=end,
        rows=rows,
        bytes=size,
        sha256=digest,
        record_bytes=record_bytes,
        crc_sum=crc_sum,
        first_timestamp=first_ms,
        last_timestamp=last_ms,
        queues=tuple(ArchiveQueue(*one) for one in queues),
    )
