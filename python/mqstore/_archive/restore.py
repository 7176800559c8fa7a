"""Restores a store from an archive.

::

    DIR.partial/commitlog/<20 digits>    the segments, until all of them are complete and synced
    DIR                                  DIR.partial, with queues, key index and checkpoint

The files of one range of the log are written before those of the next, so that the record of what is written is small.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqstore import _extras, _native
from mqstore._admin.directories import rebuild
from mqstore._admin.files import disk_of, locked_folder, sync_folder
from mqstore._archive.columns import RecordFile, read_bytes
from mqstore._archive.owner import settings_with
from mqstore._reports import ArchiveRestoreReport, Progress
from mqstore.errors import CorruptionError, InvalidOptionError, TopicNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mqstore._archive.manifest import ArchivedFile, ArchivedSegment, ArchiveManifest
    from mqstore._archive.place import ArchivePlace
    from mqstore._options import StoreOptions

# The bit of `sys_flag` of a record with several messages.
_BATCH = 0x80


class Restore:
    """One restore of an archive to a new directory."""

    def __init__(
        self,
        place: ArchivePlace,
        manifest: ArchiveManifest,
        home: Path,
        topics: frozenset[str] | None,
        times: tuple[int | None, int | None],
        options: StoreOptions | None,
        progress: Callable[[Progress], object] | None,
    ) -> None:
        _extras.module("pyarrow.parquet", "arrow")
        self._place = place
        self._home = home
        self._topics = topics
        self._options = options
        self._progress = progress
        self._segments = _chosen(place.shown, manifest, times)
        known = {file.topic for file in manifest.files}
        for topic in sorted(topics or ()):
            if topic not in known:
                raise TopicNotFoundError(topic)
        # Without all topics, placeholders take the places of other records.
        self._is_whole = topics is None and manifest.topics is None
        start, end = self._segments[0].base, self._segments[-1].end
        self._files = [file for file in manifest.files if file.start < end and file.end > start]
        settings = {"target": place.text, "older_than": 0, "topics": manifest.topics, "level": 3}
        self._settings = settings_with(json.dumps(settings), manifest)
        self._gaps = QueueGaps()

    def restore(self) -> ArchiveRestoreReport:
        """Restores the store and returns the report."""
        started = time.monotonic()
        home = self._home
        if home.is_symlink() or (home.exists() and not (home.is_dir() and not any(home.iterdir()))):
            raise FileExistsError(f"{home}: exists already and is not empty; choose a new directory")
        partial = Path(f"{home}.partial")
        with locked_folder(partial), disk_of(partial, "restoring the archive"):
            # An interrupted call may have left files.
            for one in partial.iterdir():
                shutil.rmtree(one) if one.is_dir() and not one.is_symlink() else one.unlink()
            records = self._write_log(partial / "commitlog")
            # Builds queues, key index and checkpoint.
            rebuild(partial, options=self._options)
            self._write_notes(partial)
            for folder, _, _ in os.walk(partial, topdown=False):
                sync_folder(Path(folder))
            partial.rename(home)
            sync_folder(home.parent)
        return ArchiveRestoreReport(
            target=self._place.shown,
            path=str(home),
            segments=len(self._segments),
            first_log_offset=self._segments[0].base,
            end_log_offset=self._segments[-1].end,
            records=records,
            identical=self._is_whole,
            seconds=round(time.monotonic() - started, 3),
        )

    def _write_log(self, folder: Path) -> int:
        folder.mkdir()
        log = _native.ArchiveLog(str(folder))
        for segment in self._segments:
            log.add(segment.base, segment.bytes)
        total, done, records = sum(file.bytes for file in self._files), 0, 0
        start, end = self._segments[0].base, self._segments[-1].end
        for range_start, range_end, files in self._ranges():
            for file in files:
                records += self._write_file(log, file)
                done += file.bytes
                if self._progress is not None:
                    self._progress(Progress(done, total))
            left = log.complete(max(range_start, start), min(range_end, end), self._placeholder_ms(range_start))
            if left:
                offset, length = left[0]
                reason = f"the archive lacks the {length:,} bytes at log offset {offset}"
                raise CorruptionError(self._place.shown, 0, f"{reason}; verify the archive")
        log.sync()
        return records

    def _write_file(self, log: _native.ArchiveLog, file: ArchivedFile) -> int:
        if file.topic is not None and self._topics is not None and file.topic not in self._topics:
            return 0
        with self._place.opened(file) as path:
            start, end = self._segments[0].base, self._segments[-1].end
            if file.topic is not None:
                self._gaps.add(file.topic, path, (start, end))
                return RecordFile(path).write_to(log)
            for offset, content in read_bytes(path):
                if start <= offset < end:
                    self._gaps.others.append(offset)
                    log.write(offset, content)
            return 0

    def _write_notes(self, folder: Path) -> None:
        """Notes the offsets that no record has, and the archive, in which reads continue."""
        if self._gaps.lines:
            path = folder / "mqstore" / "repairs.jsonl"
            path.parent.mkdir(exist_ok=True)
            with path.open("x") as file:
                file.writelines(f"{json.dumps(line)}\n" for line in self._gaps.lines)
                file.flush()
                os.fsync(file.fileno())
        if self._topics is None:
            _native.set_archive_of_copy(folder, self._segments[-1].end, self._settings)

    def _ranges(self) -> Iterator[tuple[int, int, list[ArchivedFile]]]:
        """Yields each range of the log that follows the one before, with its files. Together they are the whole log."""
        files: dict[tuple[int, int], list[ArchivedFile]] = {}
        for file in self._files:
            files.setdefault((file.start, file.end), []).append(file)
        at, end = self._segments[0].base, self._segments[-1].end
        for (range_start, range_end), some in sorted(files.items()):
            if range_start > at:
                # A range whose bytes are fillers, or records of other topics.
                yield at, range_start, []
            yield range_start, range_end, some
            at = max(at, range_end)
        if at < end:
            yield at, end, []

    def _placeholder_ms(self, offset: int) -> int | None:
        """Returns the store time of placeholders in a range; None if it must have none."""
        if self._is_whole:
            return None
        before = [one for one in self._segments if one.base <= offset]
        time_ms = (before or self._segments[:1])[-1].first_timestamp
        return 0 if time_ms is None else time_ms


class QueueGaps:
    """The offsets of queues between records that no record has.

    A topic that was deleted and made again continues at a later offset. The log of the archive is complete there, so
    these offsets are no loss, and a note like that of a repair keeps `verify` from reporting them.
    """

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        """Lines of `mqstore/repairs.jsonl`."""
        self.others: list[int] = []
        """Log offsets of bytes that are no records, which can be damaged ones."""
        # The last offset of each queue, and the log offset of its record.
        self._last: dict[tuple[str, int], tuple[int, int]] = {}

    def add(self, topic: str, path: Path, log_range: tuple[int, int]) -> None:
        """Adds the records of a file that are in a range of the log. Files come in the order of the log."""
        compute, parquet = _extras.module("pyarrow.compute", "arrow"), _extras.module("pyarrow.parquet", "arrow")
        with parquet.ParquetFile(str(path)) as file:
            rows = file.read(columns=["queue_id", "queue_offset", "commit_log_offset", "sys_flag"])
        places = rows.column("commit_log_offset")
        within = compute.and_(compute.greater_equal(places, log_range[0]), compute.less(places, log_range[1]))
        rows = rows.filter(within).combine_chunks()
        is_batch = compute.not_equal(compute.bit_wise_and(rows.column("sys_flag"), _BATCH), 0)
        if not rows.num_rows or compute.any(is_batch).as_py():
            # The offsets of a batch follow from its properties; a rebuild needs more than the log for them too.
            return
        queues, offsets = (rows.column(name).combine_chunks() for name in ("queue_id", "queue_offset"))
        is_next = compute.and_(
            compute.equal(queues[1:], queues[:-1]), compute.equal(compute.subtract(offsets[1:], offsets[:-1]), 1)
        )
        jumps = compute.add(compute.indices_nonzero(compute.invert(is_next)), 1).to_pylist()
        starts = [0, *jumps]
        for start, end in zip(starts, [*jumps, rows.num_rows], strict=True):
            first, last = rows.slice(start, 1).to_pylist()[0], rows.slice(end - 1, 1).to_pylist()[0]
            key = topic, first["queue_id"]
            known = self._last.get(key)
            if known is not None and known[0] + 1 < first["queue_offset"]:
                self._note(key, (known[0] + 1, first["queue_offset"]), (known[1], first["commit_log_offset"]))
            self._last[key] = last["queue_offset"], last["commit_log_offset"]

    def _note(self, key: tuple[str, int], offsets: tuple[int, int], places: tuple[int, int]) -> None:
        if not any(places[0] < one < places[1] for one in self.others):
            topic, queue_id = key
            gap = {"topic": topic, "queue_id": queue_id, "from": offsets[0], "to": offsets[1]}
            self.lines.append({"kind": "queue", "time_ms": time.time_ns() // 1_000_000, **gap})


def _chosen(shown: str, manifest: ArchiveManifest, times: tuple[int | None, int | None]) -> list[ArchivedSegment]:
    """Returns the segments with records in a range of time, and those between them."""
    since, until = times

    def has_times(one: ArchivedSegment) -> bool:
        first = one.last_timestamp if one.first_timestamp is None else one.first_timestamp
        return (since is None or one.last_timestamp >= since) and (until is None or first < until)

    chosen = [number for number, one in enumerate(manifest.segments) if has_times(one)]
    if not chosen:
        raise InvalidOptionError("since", f"{shown} has no segment of this time")
    segments = list(manifest.segments[chosen[0] : chosen[-1] + 1])
    for before, after in pairwise(segments):
        if before.end != after.base:
            missing = f"the archive has no segments from log offset {before.end} to {after.base}"
            raise InvalidOptionError("since", f"{missing}: choose a time before or after them")
    return segments
