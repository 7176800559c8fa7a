"""Makes a manifest of an archive from its Parquet files.

The footer of a file has the facts of the run that wrote it: the archive, the run, the neighbouring segments whose
records the run archived together, the range of the log, and the number of files of this range. So a range is complete
if all its files are there, and a segment if complete ranges cover it. The new manifest has everything of the newest
manifest that can be read, and then complete segments. Files of a run that failed are left out if other files have the
same part of the log.
"""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from bisect import bisect_left
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from mqstore import _native
from mqstore._archive.layout import ROOT, is_file_path
from mqstore._archive.manifest import ArchivedFile, ArchivedSegment, ArchiveManifest, LastRecord
from mqstore._archive.run import entry_of
from mqstore._publish.publication import scratch
from mqstore._remote.failure import requests
from mqstore.errors import CorruptionError, StoreBusyError

if TYPE_CHECKING:
    from mqstore._archive.place import ArchivePlace


@dataclass
class _Found:
    """A file that the newest readable manifest does not name."""

    entry: ArchivedFile
    facts: dict[str, str]
    offsets: list[int] = field(default_factory=list)
    """Log offsets of the records, sorted."""
    times: list[int] = field(default_factory=list)
    """Their store times in epoch milliseconds."""
    last_bytes: int = 0
    """Length of the last record."""


@dataclass
class _Group:
    """Neighbouring segments that one run archived together."""

    facts: dict[str, str]
    segments: list[tuple[int, int]]
    """First log offset and end."""
    files: list[_Found] = field(default_factory=list)

    def complete(self) -> list[tuple[int, int]]:
        """Returns the segments that complete ranges cover."""
        ranges: dict[tuple[int, int], int] = {}
        for one in self.files:
            place = (one.entry.start, one.entry.end)
            ranges[place] = ranges.get(place, int(one.facts["range_files"])) - 1
        covered: list[list[int]] = []
        for start, end in sorted(place for place, left in ranges.items() if not left):
            if covered and covered[-1][1] == start:
                covered[-1][1] = end
            else:
                covered.append([start, end])
        return [one for one in self.segments if any(start <= one[0] and one[1] <= end for start, end in covered)]


def rebuilt(place: ArchivePlace) -> tuple[ArchiveManifest | None, list[str]]:
    """Creates a manifest with the complete files that the newest one does not name.

    Returns:
        The new manifest, or None if there is nothing to add; and a text for each file or range that could not be used.

    Raises:
        CorruptionError: no manifest can be read, and no files are complete.
        StoreBusyError: a run has created a manifest meanwhile.
        StorePermissionError, StoreIOError: a request failed.
    """
    base, number = _newest_readable(place)
    groups, problems = _groups(place, set() if base is None else {one.path for one in base.files})
    end = 0 if base is None else base.end
    chosen: list[tuple[_Group, list[tuple[int, int]]]] = []
    complete = [(one, one.complete()) for one in groups]
    for group, segments in sorted(complete, key=lambda one: (one[0].segments[0][0], -len(one[1]))):
        if segments and group.segments[0][0] >= end:
            chosen.append((group, segments))
            end = segments[-1][1]
    if base is None and not chosen:
        raise CorruptionError(place.shown, 0, "; ".join(["no files are complete", *problems]))
    manifest = _manifest(place, base, chosen)
    problems += _gaps(place, manifest, groups)
    if base is not None and not chosen and base.number == number:
        return None, problems
    new = replace(manifest, number=number + 1, run=uuid.uuid4().hex, created_timestamp=time.time_ns() // 1_000_000)
    with requests(place.shown, "rebuild the manifest"):
        if place.create(new) is not None:
            raise StoreBusyError(f"{place.shown}: a run has extended the archive meanwhile: rebuild the manifest again")
    return new, problems


def _groups(place: ArchivePlace, named: set[str]) -> tuple[list[_Group], list[str]]:
    """Returns the files that a manifest does not name, by the segments to which they belong; and the damaged ones."""
    paths = [row[0].removeprefix(f"{ROOT}/") for row in place.objects()]
    groups: dict[tuple[str, str], _Group] = {}
    problems: list[str] = []
    for path in sorted(path for path in paths if is_file_path(path) and path not in named):
        try:
            found = _read(place, path)
        except CorruptionError as error:
            problems.append(str(error))
            continue
        key = found.facts["run"], found.facts["segments"]
        groups.setdefault(key, _Group(found.facts, _segments_in(found.facts))).files.append(found)
    return list(groups.values()), problems


def _newest_readable(place: ArchivePlace) -> tuple[ArchiveManifest | None, int]:
    """Returns the newest manifest that can be read, and the largest number of all."""
    numbers = place.manifest_numbers()
    for number in numbers:
        try:
            return place.manifest(number), numbers[0]
        except CorruptionError:
            continue
    return None, max(numbers, default=0)


def _segments_in(facts: dict[str, str]) -> list[tuple[int, int]]:
    at, runs = json.loads(facts["segments"])
    found = []
    for length, count in runs:
        for _ in range(count):
            found.append((at, at + length))
            at += length
    return found


def _read(place: ArchivePlace, path: str) -> _Found:
    """Returns the entry of a file, whose records must be those of its footer.

    Raises:
        CorruptionError: the file is damaged, or of an earlier version.
    """
    shown = f"{place.shown}/{ROOT}/{path}"
    with place.copied(path) as (local, size, digest):
        topic, footer, summary, places, last_bytes = _native.archive_file_facts(local, shown)
    facts = dict(footer)
    if "range_files" not in facts:
        reason = "an earlier version of mqstore wrote the file, and no manifest that can be read names it"
        raise CorruptionError(shown, 0, reason)
    rows, record_bytes, crc_sum, *_ = summary
    if (rows, record_bytes, crc_sum) != tuple(int(facts[name]) for name in ("rows", "record_bytes", "crc32_sum")):
        raise CorruptionError(shown, 0, "its records are not those of the log: restore the file from a copy")
    start, end = map(int, facts["range"].split("-"))
    entry = entry_of(path, topic, (start, end), summary, (size, digest))
    offsets, times = [offset for offset, _ in places], [time_ms for _, time_ms in places]
    return _Found(entry, facts, offsets, times, last_bytes)


def _manifest(
    place: ArchivePlace, base: ArchiveManifest | None, chosen: list[tuple[_Group, list[tuple[int, int]]]]
) -> ArchiveManifest:
    if base is None:
        facts = chosen[0][0].facts
        topics = json.loads(facts["topics"])
        chosen_topics = None if topics is None else tuple(topics)
        base = ArchiveManifest(0, facts["id"], facts["run"], 0, chosen_topics, (), ())
    files: list[_Found] = []
    segments: list[ArchivedSegment] = []
    last_ms = base.segments[-1].last_timestamp if base.segments else 0
    for group, some in chosen:
        within = [one for one in group.files if any(_overlaps(one.entry, segment) for segment in some)]
        files += within
        for start, end in some:
            first_ms, last_ms = _times(within, start, end, last_ms)
            segments.append(ArchivedSegment(start, end - start, first_ms, last_ms))
    entries = sorted((one.entry for one in files), key=lambda one: (one.start, one.path))
    return base.extended(base.run, 0, segments, entries, _last_record(place, files))


def _overlaps(entry: ArchivedFile, segment: tuple[int, int]) -> bool:
    return entry.start < segment[1] and entry.end > segment[0]


def _times(files: list[_Found], start: int, end: int, before_ms: int) -> tuple[int | None, int]:
    """Returns the store times of the first and the last record of a segment; without records, those before it."""
    found: list[tuple[int, int]] = []
    for one in files:
        low, high = bisect_left(one.offsets, start), bisect_left(one.offsets, end)
        if low < high:
            found += [(one.offsets[low], one.times[low]), (one.offsets[high - 1], one.times[high - 1])]
    return (min(found)[1], max(found)[1]) if found else (None, before_ms)


def _last_record(place: ArchivePlace, files: list[_Found]) -> LastRecord | None:
    found = max((one for one in files if one.offsets), key=lambda one: one.offsets[-1], default=None)
    if found is None:
        return None
    offset, length = found.offsets[-1], found.last_bytes
    with scratch() as folder, place.opened(found.entry) as local:
        log = _native.ArchiveLog(str(folder))
        log.add(offset, length)
        log.write_file(local, place.full_path(found.entry.path), found.entry.record_bytes)
        log.sync()
        content = (folder / f"{offset:020}").read_bytes()
    return LastRecord(offset, length, hashlib.sha256(content).hexdigest())


def _gaps(place: ArchivePlace, manifest: ArchiveManifest, groups: list[_Group]) -> list[str]:
    """Returns the parts of the log that the files do not have."""
    gaps = [(before.end, after.base) for before, after in pairwise(manifest.segments)]
    gaps.append((manifest.end, max((one.segments[-1][1] for one in groups), default=0)))
    return [
        f"{place.shown}: no complete files have the log from offset {start} to {end}; restore the files, or, if the "
        "log still has this part, archive again"
        for start, end in gaps
        if start < end
    ]
