"""Exports to another store: the messages, the queue offsets if they can be kept, and the offsets of groups.

If messages keep their queue offsets, there are two passes, because the delivery of a message that waits takes an
offset: first the delivered messages, then those that wait.
"""

from __future__ import annotations

import os
from contextlib import closing
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqstore import _native
from mqstore._admin.export.counts import Counts
from mqstore._admin.export.formats import MOST_BODY
from mqstore._admin.export.late_log import is_free, make_late_store
from mqstore._admin.export.partial import only_writer
from mqstore._admin.export.run import Export
from mqstore._admin.export.settings import commit_offsets
from mqstore._warn import warn
from mqstore.errors import InvalidOptionError

if TYPE_CHECKING:
    from mqstore._admin.export.rules import Rules

# Conditions on messages in a request. They leave gaps in the queues.
_CONDITIONS = ("start_time", "end_time", "keys", "filter", "body_matches")


class StoreExport(Export):
    """An export to a store."""

    older: _native.NativeStore | None = None
    """The source with its archive, which has the records that its log no longer has; None leaves them out."""
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
        with _store.open(self.dest, "create", max_message_size=MOST_BODY) as target, only_writer(mapping):
            copy = _native.StoreCopy(mapping, self._digest("store"), self._request["topics"], self._keep_waiting)
            known = copy.rules
            counts.resumed = known is not None
            keeps = self._can_keep_offsets(target, rules) if known is None else copy.keeps
            with settings.given_to(target, None if known is None else copy.made) as made, closing(copy):
                request = {**self._request, "from": self._begin}
                copy.begin(self.source, target, self.older, request, known or rules.get(), keeps, made)
                for done, total in copy:
                    self._tell_bytes(done, total)
            counts.messages, counts.renumbered = copy.messages
            counts.reasons = copy.left_out
            for topic in made:
                if topic in limits:
                    keep_ms, most_bytes, most = limits[topic]
                    keep = None if keep_ms is None else timedelta(milliseconds=keep_ms)
                    target.set_retention(topic, keep=keep, max_bytes=most_bytes, max_messages=most)
            if keeps and not counts.renumbered:
                self._copy_groups(target)
            counts.bytes = copy.publish(target)
        if keeps and counts.renumbered:
            text = (
                f"{self.dest}: {counts.renumbered} messages have another queue offset than in the source, because "
                f"records there have the same offset, or are too far apart; {mapping} has both offsets, and groups get "
                "no offsets"
            )
            warn(text)
        if refused := copy.refused_topics:
            text = (
                f"{self.dest}: the messages of some topics are left out, because a store cannot have topics of their "
                f"names: {', '.join(map(repr, refused))}; export these topics to a file"
            )
            warn(text)
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
                warn(text)
