"""`copy_topic`: copies topics to another store, in as many calls as needed, and moves groups there.

A folder next to the target has the state, `<target>.mapping/state.json`, and for each call the positions of its
messages, as `000001.jsonl`. The native `TopicCopy` writes and reads the state. Each call is an export to a store of the
records between the end of the last call and the end of the log, so it resumes like one. Records that the log no longer
has come from the archive of the source.
"""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqstore import _native
from mqstore._admin.compaction import topic_list
from mqstore._admin.export.run import export_request
from mqstore._admin.export.settings import commit_offsets
from mqstore._admin.export.store_export import StoreExport
from mqstore._admin.files import creating, locked_folder
from mqstore._admin.info import SYSTEM_GROUPS
from mqstore._paths import home_of
from mqstore._remote.place import CACHE_BYTES, place_of
from mqstore._times import seconds_since
from mqstore.errors import InvalidOptionError, NotAStoreError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from mqstore._admin.export.counts import Counts
    from mqstore._admin.info import GroupInfo
    from mqstore._native import NativeStore
    from mqstore._reports import MovedGroup, Progress, TopicCopyReport
    from mqstore.types import StorePath


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
    from mqstore._reports import CopyGap, TopicCopyReport

    started = time.monotonic()
    chosen = sorted(set(topic_list(topics, one=True) or []))
    if not chosen:
        raise InvalidOptionError("topics", "is empty; name at least one topic")
    place = place_of(source, storage_options, None, CACHE_BYTES)
    home = home_of(target, "copy to it")
    folder = Path(f"{home}.mapping" if mapping is None else home_of(mapping, "write positions there"))
    work = _Copy(place, home, chosen, progress)
    with _source_with_archive(place, archive, archive_options) as older:
        counts, copied = work.run(folder, older)
    state = info(source, storage_options=storage_options)
    moved, held = _move_groups(state.consumers, home, copied, groups, over_gaps)
    return TopicCopyReport(
        source=work.source,
        target=home,
        mapping=str(folder),
        messages=counts.messages,
        waiting=sum(one.messages for one in state.delayed),
        undecided=sum(one.messages for one in state.undecided),
        resumed=counts.resumed,
        groups=moved,
        seconds=seconds_since(started),
        gaps=tuple(CopyGap(*gap) for gap in copied.gaps()),
        held_groups=held,
    )


@contextmanager
def _source_with_archive(
    place: str | _native.RemoteDirectory, archive: bool | StorePath | None, options: Mapping[str, Any] | None
) -> Iterator[NativeStore | None]:
    """Yields the source, open with its archive; None if it has no archive."""
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
        yield store if _native.has_archive(store) else None


class _Copy:
    """One call of a copy."""

    def __init__(
        self, place: Any, target: str, topics: list[str], progress: Callable[[Progress], object] | None
    ) -> None:
        self._place = place
        self._target = target
        self._topics = topics
        self._progress = progress
        self.source = ""

    def run(self, folder: Path, older: NativeStore | None) -> tuple[Counts, _native.TopicCopy]:
        """Copies what the source has now. Returns the state, and the counts of this call and of an interrupted one."""
        checked = self._export(None)
        checked.check_store()
        self.source = checked.named
        with creating(self._target), locked_folder(folder):
            names = (_named(self.source), _named(os.path.realpath(self._target)))
            state = _native.TopicCopy(folder, *names, self._topics)
            export = self._export(state.position)
            export.older, export.takes_limits = older, True
            mapping = state.mapping
            rules = export.rules(mapping)
            # An interrupted call keeps its rules, so that it ends at the same record. A new one learns the first
            # offsets before its end, so that all messages before these offsets are part of the call.
            first = None if rules.load() else self._first_offsets()
            state.begin(rules.get().limit, first)
            counts = export.to_store(mapping, rules)
            state.finish()
            return counts, state

    def _export(self, begin: int | None) -> StoreExport:
        request = export_request(topics=self._topics)
        return StoreExport((self._place, "queues"), Path(self._target), request, False, False, self._progress, begin)

    def _first_offsets(self) -> dict[str, int]:
        """Returns for each queue the first offset that the log of the source has."""
        from mqstore._admin.info import StoreInfo

        topics = [one for one in StoreInfo._from_dict(_native.info(self._place)).topics if one.topic in self._topics]
        return {f"{one.topic}/{queue.queue_id}": queue.min_offset for one in topics for queue in one.queues}


def _named(path: str) -> str:
    """Returns a path as text that every file can have."""
    return os.fsencode(path).decode(errors="backslashreplace")


def _move_groups(
    consumers: Iterable[GroupInfo],
    target: str,
    copied: _native.TopicCopy,
    groups: Iterable[str] | None,
    over_gaps: bool,
) -> tuple[tuple[MovedGroup, ...], tuple[MovedGroup, ...]]:
    """Commits in the target what the groups have read of the source. No group moves back.

    Returns the moves, and those that were not made because of a gap.
    """
    from mqstore._reports import MovedGroup
    from mqstore._store import open as open_store

    wanted = None if groups is None else set(groups)
    offsets: dict[str, dict[tuple[str, int], int]] = {}
    lacking: set[tuple[str, tuple[str, int]]] = set()
    for one in consumers:
        is_chosen = not one.group.startswith(SYSTEM_GROUPS) if wanted is None else one.group in wanted
        for queue in one.queues if is_chosen else ():
            if (move := copied.translate(one.topic, queue.queue_id, queue.offset)) is not None:
                place = (one.topic, queue.queue_id)
                offsets.setdefault(one.group, {})[place], lacks = move
                if lacks and not over_gaps:
                    lacking.add((one.group, place))
    if not offsets:
        return (), ()
    with open_store(target, "rw") as store:
        moved, held = commit_offsets(store, offsets, lambda group, place: (group, place) in lacking)
    return tuple(MovedGroup(*row) for row in moved), tuple(MovedGroup(*row) for row in held)


copy_topic.__module__ = "mqstore"
