"""Exports to another store: the messages, the queue offsets if they can be kept, and the offsets of groups.

If messages keep their queue offsets, there are two passes, because the delivery of a message that waits takes an
offset: first the delivered messages, then those that wait.
"""

from __future__ import annotations

import os
import warnings
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from mqstore import _native
from mqstore._admin.export.counts import Counts
from mqstore._admin.export.formats import MOST_BODY
from mqstore._admin.export.late_log import is_free, make_late_store
from mqstore._admin.export.partial import Partial
from mqstore._admin.export.run import Export
from mqstore._admin.export.settings import commit_offsets
from mqstore.errors import InvalidOptionError, StoreWarning

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from mqstore._admin.export.rules import Rules

# Conditions on messages in a request. They leave gaps in the queues.
_CONDITIONS = ("start_time", "end_time", "keys", "filter", "body_matches")


Copied: TypeAlias = tuple[bytes, int, int, list[tuple[str, int]]]
"""JSON lines with old and new positions, messages, messages with another offset, and records left out by reason."""


class OlderRecords(Protocol):
    """Records of the source from before its log."""

    def records(self, topics: list[str], start: int, end: int) -> Iterator[_native.ArchivedRecords]:
        """Yields the records between two log offsets."""


class StoreExport(Export):
    """An export to a store."""

    older: OlderRecords | None = None
    """The records that the log of the source no longer has; None leaves them out."""
    takes_limits = False
    """Whether topics that the export creates get the limits of `Store.set_retention`."""

    def to_store(self, mapping: Path, rules: Rules | None = None) -> Counts:
        """Appends the messages to the store, or resumes an interrupted call. `mapping` gets the old and new positions.

        `rules` are those of an export to `mapping`; None makes or loads them.
        """
        from mqstore import _store

        self.check_store()
        self._must_be_free(mapping)
        counts = Counts()
        rules = rules or self.rules(mapping)
        settings = self._settings()
        self._prepare_store(rules)
        limits = dict(_native.retention_limits(self.source)) if self.takes_limits else {}
        with (
            _store.open(self.dest, "create", max_message_size=MOST_BODY) as target,
            Partial(mapping, self._digest("store"), rules) as partial,
        ):
            start = self._resume(partial, counts)
            known = partial.state or {}
            keeps = known.get("keeps", False) if known else self._can_keep_offsets(target, rules)
            partial.of_copy = {"keeps": keeps, "waiting": known.get("waiting", False)}
            with settings.given_to(target, known.get("made")) as made:
                if partial.state is None:
                    partial.save(None, counts, target.stats().log_max_offset, made)
                refused = self._copy(partial, (rules, start, known.get("target")), target, counts, made)
            for topic in made:
                if topic in limits:
                    keep_ms, most_bytes, most = limits[topic]
                    keep = None if keep_ms is None else timedelta(milliseconds=keep_ms)
                    target.set_retention(topic, keep=keep, max_bytes=most_bytes, max_messages=most)
            if keeps and not counts.renumbered:
                self._copy_groups(target)
            target.flush()
            counts.bytes = partial.publish()
        if keeps and counts.renumbered:
            text = (
                f"{self.dest}: {counts.renumbered} messages have another queue offset than in the source, because "
                f"records there have the same offset, or are too far apart; {mapping} has both offsets, and groups get "
                "no offsets"
            )
            warnings.warn(text, StoreWarning, stacklevel=3)
        if refused:
            text = (
                f"{self.dest}: the messages of some topics are left out, because a store cannot have topics of their "
                f"names: {', '.join(map(repr, sorted(refused)))}; export these topics to a file"
            )
            warnings.warn(text, StoreWarning, stacklevel=3)
        return counts

    @property
    def _wants_offsets(self) -> bool:
        """Whether the arguments allow that messages keep their queue offsets."""
        return self._keep_offsets is not False and not any(self._request[name] is not None for name in _CONDITIONS)

    def _prepare_store(self, rules: Rules) -> None:
        """Makes the store if a queue of it begins late."""
        dest = Path(os.path.realpath(self.dest))
        if self._wants_offsets and is_free(dest) and rules.get().has_late_queue(self.source):
            make_late_store(dest)

    def _can_keep_offsets(self, target: Any, rules: Rules) -> bool:
        """Returns whether messages keep their queue offsets in `target`.

        Raises:
            ValueError: they cannot, but the caller wants it.
        """
        if not self._wants_offsets:
            return False
        now = target.stats()
        if now.log_min_offset != now.log_max_offset:
            reason = "it has messages already"
        elif not now.log_min_offset and rules.get().has_late_queue(self.source):
            reason = "it exists and its log begins at 0, but a queue of the source begins later"
        else:
            return True
        if self._keep_offsets:
            msg = f"{self.dest}: cannot keep the queue offsets: {reason}; choose a new directory, or omit keep_offsets"
            raise ValueError(msg)
        return False

    def check_store(self) -> None:
        """Raises the error for a wrong source or a wrong selection, before the target store is created."""
        if self._request["columns"] is not None:
            raise ValueError("columns are for files; a store takes whole messages")
        if self._keep_offsets and not self._wants_offsets:
            raise ValueError("a selection of messages leaves gaps in the queues: with keep_offsets, select only topics")
        if self.named == os.path.realpath(self.dest):
            raise ValueError(f"{self.dest}: a store cannot be exported into itself")
        _native.scan_schema(self._request)
        _native.scan_open(self.source, self._request).close()

    def _copy_groups(self, target: Any) -> None:
        """Gives the groups of the source their offsets in the target."""
        from mqstore._admin.info import SYSTEM_GROUPS, StoreInfo

        topics = set(target.topics())
        offsets: dict[str, dict[tuple[str, int], int]] = {}
        for one in StoreInfo._from_dict(_native.info(self._place)).consumers:
            if one.topic in topics and not one.group.startswith(SYSTEM_GROUPS):
                found = offsets.setdefault(one.group, {})
                found.update({(one.topic, queue.queue_id): queue.offset for queue in one.queues})
        for group, found in offsets.items():
            try:
                commit_offsets(target, {group: found})
            except InvalidOptionError as error:
                text = f"{self.dest}: the group {group!r} of the source gets no offsets: {error}"
                warnings.warn(text, StoreWarning, stacklevel=4)

    def _copy(
        self,
        partial: Partial,
        place: tuple[Rules, int | None, int | None],
        target: Any,
        counts: Counts,
        made: list[str],
    ) -> set[str]:
        """Appends the messages from a position on to the target. An interrupted call may have written some of them.

        Returns the topics that the target cannot have.
        """
        rules, start, done = place
        refused: set[str] = set()

        def save(position: int | None) -> None:
            target.flush()
            partial.save(position, counts, target.stats().log_max_offset, made)

        def copy(part: str, request: dict[str, Any]) -> None:
            with closing(self._steps(request, target, rules, done, part)) as steps:
                fresh = 0
                for stream, (text, copied, renumbered, left_out), end in steps:
                    partial.write(text)
                    fresh += len(text)
                    counts.messages += copied
                    counts.renumbered += 0 if part == "waiting" else renumbered
                    counts.leave_out(left_out)
                    if partial.is_due(fresh * 8):
                        save(end)
                        fresh = 0
                    refused.update(stream.refused_topics)
                    self._tell(stream, stream.limit if part == "waiting" else end)

        if not partial.of_copy["keeps"]:
            copy("all", self._chosen(rules, start))
            return refused
        waiting = rules.get().waiting_topics
        if not partial.of_copy["waiting"]:
            copy("delivered", self._chosen(rules, start))
            if waiting:
                # From here on, the target delivers messages, so that a resumed export must not repeat the first pass.
                partial.of_copy["waiting"] = True
                save(None)
                start = done = None
        if waiting:
            copy("waiting", {**self._chosen(rules, start), "topics": waiting})
        return refused

    def _steps(
        self, request: dict[str, Any], target: Any, rules: Rules, done: int | None, part: str
    ) -> Generator[tuple[_native.CopyStream, Copied, int]]:
        """Yields the steps of a pass, each with the log offset after it: first older records than the log has."""
        older = self.older
        before: int | _native.CopyStream | None = done
        while True:
            stream = _native.scan_copy(self.source, request, target, rules.get(), before, part, older is not None)
            with closing(stream):
                position = first = request["from"] or 0
                if older is not None:
                    before_log = older.records(self._request["topics"], first, min(stream.start, stream.limit))
                    for archived in before_log:
                        position = archived.end
                        yield stream, stream.copy_archived(archived), position
                for text, messages, renumbered, left_out, position in stream:
                    yield stream, (text, messages, renumbered, left_out), position
                if older is None or not stream.has_deleted:
                    return
            # Retention deleted the next records meanwhile.
            request, before = {**request, "from": position}, stream
