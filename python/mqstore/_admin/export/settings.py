"""Settings of topics and groups in an export: queue counts, attributes, quotas, permissions, options of groups.

In JSON lines they are the first line, which has no `topic` and is no message:

::

    {"mqstore": {"version": 1, "topics": {"orders": {"readQueueNums": 4, ...}}, "groups": {"billing": {...}}}}

Names and values are those of RocketMQ's `topics.json` and `subscriptionGroup.json`; a default is left out.
"""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

from mqstore import _native
from mqstore.errors import InvalidMessageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from mqstore._store import Store
    from mqstore.types import DledgerEnd

_NAME = "mqstore"
_VERSION = 1


class Settings(NamedTuple):
    """Settings as JSON texts, by name."""

    topics: dict[str, str]
    groups: dict[str, str]

    @classmethod
    def of(
        cls,
        path: str | _native.RemoteDirectory | tuple[str | _native.RemoteDirectory, DledgerEnd],
        topics: list[str] | None,
    ) -> Settings:
        """Returns the settings of a directory: of these topics, or of all that are not the system's."""
        return cls(*_native.export_settings(path, topics))

    def line(self) -> bytes:
        """Returns the first line of a file of JSON lines."""
        tables = {
            name: {key: json.loads(text) for key, text in table.items()} for name, table in self._asdict().items()
        }
        return json.dumps({_NAME: {"version": _VERSION, **tables}}).encode() + b"\n"

    @contextmanager
    def given_to(self, store: _native.NativeStore, made: list[str] | None = None) -> Iterator[list[str]]:
        """Creates the missing topics, yields their names, and gives them the rest of their settings at the end.

        Existing topics and groups keep their settings. `made` are the topics that an interrupted call created.
        """
        made = _native.make_topics(store, self.topics) if made is None else made
        yield made
        _native.adopt_settings(store, {name: self.topics[name] for name in made if name in self.topics}, self.groups)


def commit_offsets(
    store: Store,
    offsets: dict[str, dict[tuple[str, int], int]],
    is_held: Callable[[str, tuple[str, int]], bool] = lambda _group, _queue: False,
) -> tuple[list[tuple[str, str, int, int]], list[tuple[str, str, int, int]]]:
    """Commits offsets of groups by topic and queue, up to the end of each queue. No group moves back.

    Returns group, topic, queue and offset of each change, and of those that were not made because they are held.
    """
    topics = {topic for found in offsets.values() for topic, _ in found}
    ends = {(topic, queue.queue_id): queue.max_offset for topic in topics for queue in store.queues(topic)}
    moved: list[tuple[str, str, int, int]] = []
    held: list[tuple[str, str, int, int]] = []
    for group, found in sorted(offsets.items()):
        with store.consumer(group, sorted({topic for topic, _ in found})) as consumer:
            # An existing topic can have fewer queues.
            new = {queue: min(offset, ends[queue]) for queue, offset in found.items() if queue in ends}
            new = {queue: offset for queue, offset in new.items() if (consumer.committed(*queue) or 0) < offset}
            kept = {queue for queue in new if is_held(group, queue)}
            consumer.commit({queue: offset for queue, offset in new.items() if queue not in kept}, durable=True)
        for queue, offset in sorted(new.items()):
            (held if queue in kept else moved).append((group, *queue, offset))
    return moved, held


def is_settings(row: dict[str, Any]) -> bool:
    """Returns whether a row of a file has settings and is no message."""
    return _NAME in row and "topic" not in row


def settings_of(file: Path) -> Settings:
    """Returns the settings in the first line of a file of JSON lines; none if it has no such line.

    Raises:
        InvalidMessageError: the settings cannot be used.
    """
    with file.open("rb") as lines:
        first = lines.readline()
    if not first.startswith(b'{"' + _NAME.encode() + b'"'):
        return Settings({}, {})
    try:
        found = json.loads(first)[_NAME]
        if found["version"] != _VERSION:
            msg = f"version {found['version']!r} is not known; import with a newer version of mqstore"
            raise InvalidMessageError(msg)
        tables = [{name: json.dumps(values) for name, values in found[table].items()} for table in Settings._fields]
        settings = Settings(*tables)
        _native.check_settings(*settings)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InvalidMessageError(f"{file}, line 1: cannot read the settings of topics: {error}") from None
    return settings
