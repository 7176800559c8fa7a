"""Restores a store from an archive.

::

    DIR.partial/commitlog/<20 digits>    the segments, until all of them are complete and synced
    DIR                                  DIR.partial, with queues, key index and checkpoint

The files of one range of the log are written before those of the next, so that the record of what is written is small.
"""

from __future__ import annotations

import json
import shutil
import time
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqstore import _native
from mqstore._admin.directories import rebuild
from mqstore._admin.files import disk_of, locked_folder
from mqstore._archive.owner import settings_with
from mqstore._reports import ArchiveRestoreReport, Progress
from mqstore.errors import CorruptionError, InvalidOptionError, TopicNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from mqstore._archive.manifest import ArchivedFile, ArchivedSegment, ArchiveManifest
    from mqstore._archive.place import ArchivePlace
    from mqstore._options import StoreOptions


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
        # Lines of `mqstore/repairs.jsonl`: the offsets of queues that no record has, which are no loss.
        self._gaps: list[dict[str, Any]] = []

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
            _native.publish_folder(partial, home)
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
        time_ms = time.time_ns() // 1_000_000
        for topic, queue_id, first, end_offset in log.gaps():
            gap = {"topic": topic, "queue_id": queue_id, "from": first, "to": end_offset}
            self._gaps.append({"kind": "queue", "time_ms": time_ms, **gap})
        return records

    def _write_file(self, log: _native.ArchiveLog, file: ArchivedFile) -> int:
        if file.topic is not None and self._topics is not None and file.topic not in self._topics:
            return 0
        with self._place.opened(file) as path:
            return log.write_file(path, self._place.full_path(file.path), file.record_bytes)

    def _write_notes(self, folder: Path) -> None:
        """Notes the offsets that no record has, and the archive, in which reads continue."""
        if self._gaps:
            path = folder / "mqstore" / "repairs.jsonl"
            path.parent.mkdir(exist_ok=True)
            with path.open("x") as file:
                file.writelines(f"{json.dumps(line)}\n" for line in self._gaps)
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
