"""`copy_topic`: copies topics to another store, in as many calls as needed, and moves groups there.

A folder next to the target has the state:

::

    <target>.mapping/state.json     {"source": "...", "topics": [...], "position": 4711, "limit": 8150, "calls": 2,
                                     "runs": {"orders/0": [[17, 0, 100]]}, "ends": {"orders/0": 117},
                                     "first": {"orders/0": 17}, "gaps": {"orders/0": []}}
    <target>.mapping/000001.jsonl   old and new position of each message, for each call: see `mqstore._admin.export`

- `position`: log offset of the source up to which the topics are copied.
- `limit`: where the call that runs or was interrupted ends; null between calls.
- `calls`: number of complete calls.
- `runs`: for each queue, old offset, new offset and length of runs in which both count in the same way. They translate
  the offsets of groups.
- `ends`: for each queue, the old offset after the last message up to `position`.
- `first`: for each queue, the first old offset that the log has at the start of the call that runs.
- `gaps`: for each queue, first and end of the old offsets whose messages the source did not have any more.

Each call is an export to a store of the records between `position` and the end of the log, so it resumes like one.
Records that the log no longer has come from the archive of the source. The state is replaced in one step when the file
of positions has its name.
"""

from __future__ import annotations

import json
import os
import time
from bisect import bisect_right
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from mqstore import _native
from mqstore._admin.compaction import topic_list
from mqstore._admin.export.run import export_request
from mqstore._admin.export.settings import commit_offsets
from mqstore._admin.export.store_export import StoreExport
from mqstore._admin.files import locked_folder, replace_state
from mqstore._admin.info import SYSTEM_GROUPS
from mqstore._paths import home_of
from mqstore._remote.place import CACHE_BYTES, place_of
from mqstore.errors import InvalidOptionError, NotAStoreError, UnsupportedFormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from mqstore._admin.export.counts import Counts
    from mqstore._admin.export.store_export import OlderRecords
    from mqstore._admin.info import GroupInfo
    from mqstore._native import NativeStore
    from mqstore._reports import CopyGap, MovedGroup, Progress, TopicCopyReport
    from mqstore.types import StorePath

Runs: TypeAlias = list[list[int]]
"""Runs of a queue in the order of its offsets: old offset, new offset, length."""

_STATE = "state.json"


def copy_topic(
    source: StorePath,
    target: StorePath,
    topics: str | Iterable[str],
    *,
    groups: Iterable[str] | None = None,
    mapping: StorePath | None = None,
    progress: Callable[[Progress], object] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    archive: bool | StorePath | None = None,
    archive_options: Mapping[str, Any] | None = None,
    over_gaps: bool = False,
) -> TopicCopyReport:
    """Copies the messages of topics to another store. A further call copies what came since the last one.

    The copy keeps what an export to a store keeps: bodies, keys, tags, properties, unique ids, born times and hosts,
    and queue ids. Offsets and store times are new; a folder has the old and the new position of each message. Missing
    topics get the settings that they have in the source, also the limits of `Store.set_retention`.

    Messages that the log of the source no longer has come from its archive. If the archive does not have them either,
    the report names the gap in the queue, and no group moves over it, unless `over_gaps` is True.

    For a cut-over, call it while producers still write to `source`, then stop them, wait until no delayed message waits
    (`TopicCopyReport.waiting`), stop the consumers, call it again, and start both on `target`. A group that does not
    exist in the target, or is behind there, gets the offset that corresponds to its offset in the source, so it reads
    each message that it has not read. Waiting messages and transactions without a decision are copied by a later call,
    after their delivery or commit. The state of work queues does not travel.

    Call an interrupted copy again with the same arguments. Until it is complete, nobody else may append to `target`.

    Args:
        source: directory of the store to read, or a URL. Another process can have it open for writing.
        target: directory of the store to write; it is created if missing. No process may have it open for writing.
        topics: one topic or several; no system topics.
        groups: groups whose offsets in these topics move to the target; None is all that have any there.
        mapping: folder for positions and state; None is `target` with `.mapping` appended. Other topics, or the same
            topics from another source, need a folder of their own.
        progress: callback with bytes of the log; an exception in it interrupts the copy.
        storage_options: only for a URL: credentials and settings of the transport, see `mqstore.open`.
        archive: the archive of the source, as for `mqstore.open`. With False, messages that only the archive has are
            left out, and the first ones of the log are the oldest.
        archive_options: only for an archive at a URL: credentials and settings of its transport.
        over_gaps: whether groups move over gaps, past messages that they have not read and that the copy does not have.

    Raises:
        TopicNotFoundError: the source has no such topic.
        InvalidOptionError: no topic is named, or the folder has the state of another copy.
        InvalidMessageError: a message cannot be copied, or another program has appended to the target of an interrupted
            copy.
        UnsupportedFormatError: the state in the folder cannot be used.
        StoreLockedError: another process has `target` open for writing.
        ResultNotFoundError, CorruptionError, StorePermissionError, StoreIOError: the copy needs the archive of the
            source, and it cannot be read.
    """
    from mqstore._admin.directories import info
    from mqstore._reports import TopicCopyReport

    started = time.monotonic()
    chosen = sorted(set(topic_list(topics, one=True) or []))
    if not chosen:
        raise InvalidOptionError("topics", "is empty; name at least one topic")
    place = place_of(source, storage_options, None, CACHE_BYTES)
    home = home_of(target, "copy to it")
    folder = Path(f"{home}.mapping" if mapping is None else home_of(mapping, "write positions there"))
    copied = _Copy(place, Path(home), chosen, folder, progress)
    with _older_records(place, archive, archive_options) as older:
        counts = copied.run(older)
    state = info(source, storage_options=storage_options)
    moved, held = _move_groups(state.consumers, home, copied, groups, over_gaps)
    return TopicCopyReport(
        source=copied.source,
        target=home,
        mapping=str(folder),
        messages=counts.messages,
        waiting=sum(one.messages for one in state.delayed),
        undecided=sum(one.messages for one in state.undecided),
        resumed=counts.resumed,
        groups=moved,
        seconds=round(time.monotonic() - started, 3),
        gaps=copied.gaps(),
        held_groups=held,
    )


@contextmanager
def _older_records(
    place: str | _native.RemoteDirectory, archive: bool | StorePath | None, options: Mapping[str, Any] | None
) -> Iterator[_OlderRecords | None]:
    """Yields the records that the archive of a store has; None if it has no archive."""
    from mqstore import _store

    try:
        store = _store.opened(place, "r", None, {})
    except NotAStoreError:
        # Segments without a store have no configuration.
        if archive not in (None, False):
            raise
        yield None
        return
    with store:
        if archive is not None or options is not None:
            store._choose_archive(archive, options)
        yield _OlderRecords(store) if _native.has_archive(store) else None


class _OlderRecords:
    """The records of an archive from before the log of its store."""

    def __init__(self, store: NativeStore) -> None:
        self._store = store

    def records(self, topics: list[str], start: int, end: int) -> Iterator[_native.ArchivedRecords]:
        """Yields the records between two log offsets."""
        if start < end:
            yield from _native.archived_records(self._store, topics, start, end)


class _Copy:
    """The state of a copy, in its folder."""

    def __init__(
        self, place: Any, target: Path, topics: list[str], folder: Path, progress: Callable[[Progress], object] | None
    ) -> None:
        self._place = place
        self._target = target
        self._topics = topics
        self._folder = folder
        self._progress = progress
        self.source = ""
        self._position: int | None = None
        self._limit: int | None = None
        self._calls = 0
        self._runs: dict[str, Runs] = {}
        self._ends: dict[str, int] = {}
        self._first: dict[str, int] = {}
        self._gaps: dict[str, list[list[int]]] = {}

    def run(self, older: OlderRecords | None) -> Counts:
        """Copies what the source has now. Returns the counts of this call, and of an interrupted one before it."""
        checked = self._export()
        checked.check_store()
        self.source = checked.named
        with locked_folder(self._folder):
            self._load()
            # The last call was interrupted between its last two steps.
            if self._limit is not None and self._file().exists():
                self._finish()
            export = self._export()
            export.older, export.takes_limits = older, True
            rules = export.rules(self._file())
            # An interrupted call keeps its rules, so that it ends at the same record.
            if not rules.load():
                # Before the end of the call, so that all messages before these offsets are part of the call.
                self._first = self._first_offsets()
            self._limit = rules.get().limit
            self._save()
            counts = export.to_store(self._file(), rules)
            self._finish()
            return counts

    def moves(self, consumer: GroupInfo) -> dict[tuple[str, int], int]:
        """Returns the offsets in the target of the first copied messages at or after those of a group.

        Leaves out queues without copied messages.
        """
        topic = consumer.topic
        return {
            (topic, queue.queue_id): translated(runs, queue.offset)
            for queue in consumer.queues
            if (runs := self._runs.get(f"{topic}/{queue.queue_id}")) is not None
        }

    def has_topic(self, topic: str) -> bool:
        """Returns whether the topic is copied."""
        return topic in self._topics

    def lacks(self, topic: str, queue_id: int, offset: int) -> bool:
        """Returns whether the copy lacks messages of a queue at or after an offset of the source."""
        return any(end > offset for _, end in self._gaps.get(f"{topic}/{queue_id}", ()))

    def gaps(self) -> tuple[CopyGap, ...]:
        """Returns the messages that are not in the copy."""
        from mqstore._reports import CopyGap

        found = []
        for queue, gaps in self._gaps.items():
            topic, _, queue_id = queue.rpartition("/")
            found += [CopyGap(topic, int(queue_id), first, end) for first, end in gaps]
        return tuple(found)

    def _export(self) -> StoreExport:
        request = export_request(topics=self._topics)
        return StoreExport((self._place, "queues"), self._target, request, False, False, self._progress, self._position)

    def _file(self) -> Path:
        """The positions of the call that runs."""
        return self._folder / f"{self._calls + 1:06}.jsonl"

    def _finish(self) -> None:
        """Counts the call as complete: its messages are in the target, and its file has its name."""
        with self._file().open("rb") as lines:
            for line in lines:
                row = json.loads(line)
                queue, messages = f"{row['topic']}/{row['queue_id']}", row.get("messages", 1)
                offset = row["queue_offset"]
                extend(self._runs.setdefault(queue, []), offset, row["new_queue_offset"], messages)
                self._reach(queue, offset, offset + messages)
        for queue, offset in self._first.items():
            self._reach(queue, offset, offset)
        self._first = {}
        self._position, self._limit = self._limit, None
        self._calls += 1
        self._save()

    def _reach(self, queue: str, offset: int, end: int) -> None:
        """Notes the next message of a queue, and the messages that are missing before it."""
        expected = self._ends.get(queue, offset)
        if offset > expected:
            self._gaps.setdefault(queue, []).append([expected, offset])
        self._ends[queue] = max(expected, end)

    def _first_offsets(self) -> dict[str, int]:
        """Returns for each queue the first offset that the log of the source has."""
        from mqstore._admin.info import StoreInfo

        topics = [one for one in StoreInfo._from_dict(_native.info(self._place)).topics if one.topic in self._topics]
        return {f"{one.topic}/{queue.queue_id}": queue.min_offset for one in topics for queue in one.queues}

    def _load(self) -> None:
        path = self._folder / _STATE
        try:
            state = json.loads(path.read_bytes())
        except FileNotFoundError:
            return
        except ValueError as error:
            raise UnsupportedFormatError(str(path), f"the state of a copy does not parse: {error}") from None
        try:
            known = (state["source"], state["target"], state["topics"])
            self._position, self._limit, self._calls = state["position"], state["limit"], state["calls"]
            self._runs = state["runs"]
            self._ends, self._first, self._gaps = state["ends"], state["first"], state["gaps"]
        except (KeyError, TypeError):
            raise UnsupportedFormatError(str(path), "it is not the state of a copy of topics") from None
        if known != (self.source, os.path.realpath(self._target), self._topics):
            reason = (
                f"{self._folder} belongs to a copy of {known[2]} from {known[0]} to {known[1]}; choose another folder"
            )
            raise InvalidOptionError("mapping", reason)

    def _save(self) -> None:
        state = {
            "source": self.source,
            "target": os.path.realpath(self._target),
            "topics": self._topics,
            "position": self._position,
            "limit": self._limit,
            "calls": self._calls,
            "runs": self._runs,
            "ends": self._ends,
            "first": self._first,
            "gaps": self._gaps,
        }
        replace_state(self._folder / _STATE, state)


def extend(runs: Runs, old: int, new: int, messages: int = 1) -> None:
    """Adds the positions of the next record of a queue."""
    if runs and new - old == runs[-1][1] - runs[-1][0]:
        runs[-1][2] = old + messages - runs[-1][0]
    else:
        runs.append([old, new, messages])


def translated(runs: Runs, offset: int) -> int:
    """Returns the new offset of the first message at or after an old one.

    An offset after a run is in a gap. It counts on, up to the next run: this never passes a message that was copied.
    """
    at = bisect_right(runs, offset, key=lambda run: run[0]) - 1
    if at < 0:
        return runs[0][1]
    old, new, length = runs[at]
    found = new + offset - old
    if offset >= old + length and at + 1 < len(runs):
        return min(found, runs[at + 1][1])
    return found


def _move_groups(
    consumers: Iterable[GroupInfo], target: str, copied: _Copy, groups: Iterable[str] | None, over_gaps: bool
) -> tuple[tuple[MovedGroup, ...], tuple[MovedGroup, ...]]:
    """Commits in the target what the groups have read of the source. No group moves back.

    Returns the moves, and those that were not made because of a gap.
    """
    from mqstore._reports import MovedGroup
    from mqstore._store import open as open_store

    wanted = None if groups is None else set(groups)
    offsets: dict[str, dict[tuple[str, int], int]] = {}
    read: dict[tuple[str, tuple[str, int]], int] = {}
    for one in consumers:
        is_chosen = not one.group.startswith(SYSTEM_GROUPS) if wanted is None else one.group in wanted
        if is_chosen and copied.has_topic(one.topic) and (moves := copied.moves(one)):
            offsets.setdefault(one.group, {}).update(moves)
            read.update({(one.group, (one.topic, queue.queue_id)): queue.offset for queue in one.queues})

    def is_held(group: str, queue: tuple[str, int]) -> bool:
        return not over_gaps and copied.lacks(*queue, read[group, queue])

    if not offsets:
        return (), ()
    with open_store(target, "rw") as store:
        moved, held = commit_offsets(store, offsets, is_held)
    return tuple(MovedGroup(*row) for row in moved), tuple(MovedGroup(*row) for row in held)


copy_topic.__module__ = "mqstore"
