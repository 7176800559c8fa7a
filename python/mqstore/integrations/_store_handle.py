"""The store of a broker: it opens at the first use in each process, and all brokers of a process share it.

This file owns the stores that the integrations opened in this process, one for each directory. A fork leaves the stores
of the parent process to the parent: a child opens its own. The last user of a store closes it, or the end of the
process. A kill needs no closing: the next open recovers the store.
"""

from __future__ import annotations

import atexit
import hashlib
import logging
import os
import re
import threading
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast

import mqstore

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mqstore.types import Mode, StorePath

logger = logging.getLogger("mqstore")

ShareMode: TypeAlias = Literal["share", "rw", "create"]
"""Mode of an open: `"share"` lets several processes of one machine open the store; the others are those of `open`."""

# The longest topic whose default group, `workers-` and its name, is still the name of a group.
_LONGEST_TOPIC = 112

# The open stores of this process by real path, with the number of their users.
_opened: dict[str, tuple[mqstore.Store, int]] = {}
_lock = threading.RLock()


def topic_of(prefix: str, name: str) -> str:
    """Returns the topic of a queue `name`. A name that is no topic name gets other characters and a hash."""
    text = re.sub(r"[^a-zA-Z0-9_-]", "-", name)
    if text == name and len(prefix + name) <= _LONGEST_TOPIC:
        return prefix + name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{(prefix + text)[: _LONGEST_TOPIC - 9]}-{digest}"


def keys_of(task_id: str) -> list[str]:
    """Returns the keys by which `lookup` finds a task; none for an id that is no key."""
    return [task_id] if task_id and not re.search(r"\s", task_id) else []


class StoreHandle:
    """A store at a path, which opens at its first use in each process. Threads can share a handle."""

    def __init__(self, place: StorePath | mqstore.Store, mode: ShareMode, options: Mapping[str, Any]) -> None:
        """Opens nothing yet.

        Args:
            place: directory of the store; or a store that is already open, which the handle never closes.
            mode: mode of the open.
            options: other arguments of `mqstore.open`. The first open of a directory in a process decides.
        """
        self._place = place
        self._mode = mode
        self._options = dict(options)
        self._pid = os.getpid()
        self._store: mqstore.Store | None = None
        self._queues: dict[tuple[str, str | None], mqstore.WorkQueue] = {}
        self._tables: dict[str, mqstore.Table] = {}

    @property
    def store(self) -> mqstore.Store:
        """The store of this process.

        Raises:
            As `mqstore.open`.
        """
        with _lock:
            self._leave_parent()
            if self._store is None:
                self._store = self._open()
            return self._store

    def work_queue(self, topic: str, group: str | None = None, **options: Any) -> mqstore.WorkQueue:
        """Returns the work queue of a topic, always the same handle. Only the first call uses the options."""
        with _lock:
            store = self.store
            if (queue := self._queues.get((topic, group))) is None:
                queue = self._queues[topic, group] = store.work_queue(topic, group, **options)
            return queue

    def table(self, topic: str) -> mqstore.Table:
        """Returns the key table of a topic, always the same object. Creates a missing topic."""
        with _lock:
            store = self.store
            if (table := self._tables.get(topic)) is None:
                if topic not in store.topics():
                    store.create_topic(topic, queues=1, attributes={"cleanup.policy": "COMPACTION"})
                table = self._tables[topic] = store.table(topic)
            return table

    def close_queue(self, topic: str, group: str | None = None) -> None:
        """Closes the work queue of a topic, if it is open."""
        with _lock:
            self._leave_parent()
            if (queue := self._queues.pop((topic, group), None)) is not None:
                queue.close()

    def close(self) -> None:
        """Closes the work queues, and the store if no other broker of this process uses it. A later use opens again."""
        with _lock:
            self._leave_parent()
            store, self._store = self._store, None
            self._tables.clear()
            for topic, group in list(self._queues):
                self.close_queue(topic, group)
            if store is None or isinstance(self._place, mqstore.Store):
                return
            key = os.path.realpath(self._place)
            known, users = _opened.get(key, (None, 0))
            if known is store and users > 1:
                _opened[key] = store, users - 1
                return
            if known is store:
                del _opened[key]
            store.close()

    def _open(self) -> mqstore.Store:
        if isinstance(self._place, mqstore.Store):
            return self._place
        key = os.path.realpath(self._place)
        store, users = _opened.get(key, (None, 0))
        if store is None or store.closed:
            store, users = mqstore.open(self._place, cast("Mode", self._mode), **self._options), 0
        _opened[key] = store, users + 1
        return store

    def _leave_parent(self) -> None:
        """Forgets the store of the parent process after a fork."""
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._store = None
            self._queues = {}
            self._tables = {}


def _close_all() -> None:
    while _opened:
        path, (store, _users) = _opened.popitem()
        try:
            store.close()
        except Exception:
            logger.exception("cannot close %s at the end of the process", path)


def _after_fork_in_child() -> None:
    global _lock  # noqa: PLW0603 - another thread of the parent may hold the lock for ever
    _lock = threading.RLock()
    _opened.clear()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_after_fork_in_child)
