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
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mqstore import _extras, _native
from mqstore._archive.columns import RecordFile, has_bloom_filters, write_bytes, write_rows
from mqstore._archive.layout import file_path
from mqstore._archive.manifest import ArchivedFile, ArchivedSegment, ArchiveManifest, LastRecord
from mqstore._archive.owner import check_owner, check_recorded
from mqstore._publish.create import WriteRefused
from mqstore._publish.publication import scratch
from mqstore._remote.failure import requests
from mqstore._reports import ArchiveQueue, ArchiveReport, Progress
from mqstore.errors import CorruptionError, ResultExistsError, StoreBusyError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    import pyarrow as pa

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

NUMBERS = ("queue_id", "queue_offset", "commit_log_offset", "size", "store_timestamp")
"""Columns from which the entry of a file is made."""

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
class _Range:
    """A range of the log with its records in the order of the log."""

    start: int
    end: int
    batches: list[Any] = field(default_factory=list)
    files: int = 0
    """Number of its files."""


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
        _extras.module("pyarrow.parquet", "arrow")
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
            bloom_filters=has_bloom_filters(),
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
    if manifest.topics != topics:
        wanted = "all topics" if manifest.topics is None else "the topics " + ", ".join(manifest.topics)
        raise ResultExistsError(place.shown, f"the archive there has {wanted}")
    check_owner(store, place.shown, manifest, extends=True)
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

    def _ranges(self, start: int, end: int) -> Iterator[_Range]:
        """Yields the ranges of the log, each with the columns of its records. Only a single one has no records."""
        pa, compute = _extras.pyarrow(), _extras.module("pyarrow.compute", "arrow")
        topics = self._settings.topics
        current = _Range(start, end)
        held = 0
        position = start
        with closing(_native.scan_archive(self._store, start, end, 1)) as stream:
            for rows in stream:
                batch = pa.record_batch(rows)
                if topics is not None:
                    batch = batch.filter(compute.is_in(batch.column("topic"), pa.array(topics)))
                if held >= _RANGE_BYTES and batch.num_rows:
                    current.end = position
                    yield current
                    current, held = _Range(position, end), 0
                position = rows.end
                if batch.num_rows:
                    held += batch.nbytes
                    current.batches.append(batch)
                del batch
        yield current

    def _write_range(self, one: _Range) -> None:
        """Writes the files of one range."""
        pa, compute = _extras.pyarrow(), _extras.module("pyarrow.compute", "arrow")
        if not one.batches:
            self._write_others(one, [(one.start, one.end)], 0)
            return
        table = pa.Table.from_batches(one.batches).combine_chunks()
        one.batches.clear()
        topics = compute.count_distinct(table.column("topic")).as_py()
        self._write_others(one, _gaps(table, one.start, one.end), topics)
        self._note_last(table)
        for topic, rows, order in _by_topic(table):
            self._write_topic(one, topic, rows, order)

    def _note_last(self, table: pa.Table) -> None:
        """Notes the last record so far."""
        row = table.slice(table.num_rows - 1)
        offset, length = row.column("commit_log_offset")[0].as_py(), row.column("size")[0].as_py()
        digest = hashlib.sha256(_native.read_log(self._store, offset, length)).hexdigest()
        with self._lock:
            if self.last is None or offset > self.last.log_offset:
                self.last = LastRecord(offset, length, digest)

    def _write_topic(self, one: _Range, topic: str, rows: pa.Table, order: Any) -> None:
        """Writes, checks and uploads the file of one topic."""
        compute = _extras.module("pyarrow.compute", "arrow")
        few = rows.select([*NUMBERS, "crc"]) if order is None else rows.select([*NUMBERS, "crc"]).take(order)
        crc_sum, length = compute.sum(few.column("crc")).as_py(), compute.sum(few.column("size")).as_py()
        path = file_path(topic, one.start, one.end)
        local = self._local(path)
        facts = self._facts(one, few.num_rows, length, crc_sum)
        write_rows(local, rows, order, self._settings.level, facts)
        found = RecordFile(local).checksum()
        if found != (few.num_rows, crc_sum, length):
            reason = f"the new file {path} does not give the records of the log again; report this as a bug of mqstore"
            raise CorruptionError(self._place.shown, 0, reason)
        size, digest = self._upload(path, local)
        self.entries.append(entry_of_rows(path, topic, (one.start, one.end), few, (size, digest), (length, crc_sum)))

    def _write_others(self, one: _Range, gaps: Iterable[tuple[int, int]], topics: int) -> None:
        """Writes the bytes between records of so many topics, except fillers that follow from their place."""
        is_whole = self._settings.topics is None
        pieces = [piece for gap in gaps for piece in self._pieces(*gap)] if is_whole else []
        one.files = topics + bool(pieces)
        if not pieces:
            return
        path = file_path(None, one.start, one.end)
        local = self._local(path)
        length = sum(piece[1] for piece in pieces)
        write_bytes(local, pieces, self._settings.level, self._facts(one, len(pieces), length, 0))
        size, digest = self._upload(path, local)
        self.entries.append(
            ArchivedFile(path, None, one.start, one.end, len(pieces), size, digest, record_bytes=length, crc_sum=0)
        )

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

    def _facts(self, one: _Range, rows: int, length: int, crc_sum: int) -> dict[str, str]:
        """Returns the texts of the footer."""
        return {
            "mqstore.archive.version": "1",
            "mqstore.archive.range": f"{one.start}-{one.end}",
            "mqstore.archive.rows": str(rows),
            "mqstore.archive.record_bytes": str(length),
            "mqstore.archive.crc32_sum": str(crc_sum),
            "mqstore.archive.range_files": str(one.files),
            **self.facts,
        }

    def _local(self, path: str) -> Path:
        return self._folder / path.rpartition("/")[2]

    def _upload(self, path: str, local: Path) -> tuple[int, str]:
        self.paths.append(path)
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
        "mqstore.archive.id": archive,
        "mqstore.archive.run": run,
        "mqstore.archive.topics": json.dumps(topics),
        # The first log offset, then length and number of the segments that follow each other.
        "mqstore.archive.segments": json.dumps([segments[0].base, runs]),
    }


def entry_of_rows(
    path: str,
    topic: str,
    log_range: tuple[int, int],
    rows: pa.Table,
    content: tuple[int, str],
    records: tuple[int, int],
) -> ArchivedFile:
    """Returns the entry of a file of records.

    Args:
        path: its path.
        topic: the topic.
        log_range: first log offset of its range of the log, and end.
        rows: the columns `NUMBERS` of its records.
        content: length and digest of the file.
        records: sum of the lengths of the records, and of their checksums.
    """
    compute = _extras.module("pyarrow.compute", "arrow")
    times = compute.min_max(rows.column("store_timestamp").cast("int64")).as_py()
    groups = rows.group_by("queue_id").aggregate([("queue_offset", "min"), ("queue_offset", "max"), ([], "count_all")])
    queues = [
        ArchiveQueue(row["queue_id"], row["queue_offset_min"], row["queue_offset_max"], row["count_all"])
        for row in groups.sort_by("queue_id").to_pylist()
    ]
    (start, end), (size, digest), (record_bytes, crc_sum) = log_range, content, records
    return ArchivedFile(
        path=path,
        topic=topic,
        start=start,
        end=end,
        rows=rows.num_rows,
        bytes=size,
        sha256=digest,
        record_bytes=record_bytes,
        crc_sum=crc_sum,
        first_timestamp=_milliseconds(times["min"]),
        last_timestamp=_milliseconds(times["max"]),
        queues=tuple(queues),
    )


def _milliseconds(micros: int | None) -> int | None:
    return None if micros is None else micros // 1000


def _gaps(table: pa.Table, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yields the ranges of the log without rows; the rows are in the order of the log."""
    pa, compute = _extras.pyarrow(), _extras.module("pyarrow.compute", "arrow")
    offsets = table.column("commit_log_offset").combine_chunks()
    ends = compute.add(offsets, table.column("size").combine_chunks().cast("int64"))
    begins = pa.concat_arrays([offsets, pa.array([end], pa.int64())])
    ends = pa.concat_arrays([pa.array([start], pa.int64()), ends])
    places = compute.indices_nonzero(compute.not_equal(begins, ends))
    for gap_start, gap_end in zip(ends.take(places).to_pylist(), begins.take(places).to_pylist(), strict=True):
        if gap_start > gap_end:
            raise CorruptionError("commitlog", gap_end, "two records of the log overlap at this log offset")
        yield gap_start, gap_end


def _by_topic(table: pa.Table) -> Iterator[tuple[str, pa.Table, Any]]:
    """Yields each topic with its rows and the order of the rows; the order is None if they are sorted already."""
    compute = _extras.module("pyarrow.compute", "arrow")
    keys = [(name, "ascending") for name in ("queue_id", "queue_offset", "commit_log_offset")]
    topics = compute.dictionary_encode(table.column("topic")).combine_chunks()
    names = topics.dictionary.to_pylist()
    few = table.select([name for name, _ in keys]).append_column("code", topics.indices)
    order = compute.sort_indices(few, sort_keys=[("code", "ascending"), *keys])
    if len(names) == 1:
        is_sorted = compute.all(compute.equal(compute.pairwise_diff(order.cast("int64")), 1)).as_py()
        yield names[0], table, None if is_sorted is not False and order[0].as_py() == 0 else order
        return
    counts = {row["values"]: row["counts"] for row in compute.value_counts(topics.indices).to_pylist()}
    at = 0
    for code, name in enumerate(names):
        yield name, table, order.slice(at, counts[code])
        at += counts[code]
