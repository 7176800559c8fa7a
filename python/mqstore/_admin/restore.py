"""Lost compaction files made anew from another store: `mqstore.restore_compaction`, `Store.restore_compaction`."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from mqstore import _native
from mqstore._admin import compaction
from mqstore._reports import CompactionReport, _Report

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from contextlib import AbstractContextManager

    from mqstore._admin.compaction import Keyless
    from mqstore._reports import Progress
    from mqstore._store import Store
    from mqstore.types import Duration, StorePath

    # Topics, options, threads, bytes a second.
    _Request = tuple[list[str] | None, str, int, int]


@dataclass(frozen=True, slots=True)
class RestoredQueue(_Report):
    """A queue whose lost compaction files were made anew."""

    topic: str
    queue_id: int
    until: int
    """One past the last offset that was lost: the first one that the commit log here has."""
    messages: int
    """Messages that were pulled from the other store."""
    bytes: int
    """Bytes of their records."""
    resumed: int
    """Messages that a call before, which was stopped, had pulled."""


@dataclass(frozen=True, slots=True)
class RestoreReport(_Report):
    """What `restore_compaction` did, or would do."""

    source: str
    """The other store's directory."""
    dry_run: bool
    """Whether nothing was changed."""
    queues: tuple[RestoredQueue, ...]
    """The queues that were restored."""
    skipped: tuple[str, ...]
    """What was left out, each as `topic/queue: reason`; the reason is `nothing is missing` for whole queues."""
    compaction: CompactionReport | None
    """What the compaction of the restored queues did; None when there was none."""

    @classmethod
    def _from_dict(cls, values: Mapping[str, Any]) -> Self:
        queues = tuple(RestoredQueue(**queue) for queue in values["queues"])
        done = values["compaction"]
        compaction = None if done is None else CompactionReport._from_dict(done)
        return cls(**{**values, "queues": queues, "skipped": tuple(values["skipped"]), "compaction": compaction})


def restore_compaction(
    path: StorePath,
    source: Store | StorePath,
    topics: str | Iterable[str] | None = None,
    *,
    tombstone_retention: Duration = 86_400.0,
    dry_run: bool = False,
    force: bool = False,
    keyless: Keyless = "drop",
    confirm_keys: bool = True,
    threads: int | None = None,
    memory_size: int = 100 << 20,
    max_bytes_per_second: int | None = None,
    log_file_size: int | None = None,
    queue_file_size: int | None = None,
    progress: Callable[[Progress], object] | None = None,
) -> RestoreReport:
    """Makes compaction files that are lost, or end before the commit log begins, anew from another store.

    The messages that the commit log here has dropped are pulled from `source`, from offset 0 on; then they and
    the commit log are compacted, and published in one step. A call that was stopped is gone on with by the next
    one with the same source. An open store has `Store.restore_compaction`.

    Args:
        path: the directory; nobody may have it open for writing.
        source: a store of the same messages, such as a replica or an older copy: an open `Store`, which may be in
            use, or a directory. It is only read.
        topics: the topic, or several; None stands for all compaction topics.
        tombstone_retention: how long a message without a body, which deletes its key, is kept from now on;
            seconds, or a `timedelta`.
        dry_run: only tells which queues would be restored, and up to which offset.
        force: also restores queues whose compaction files reach the commit log, for instance because `verify` finds
            them damaged.
        keyless: what becomes of messages without a key, as for `compact`.
        confirm_keys: whether keys are compared in full; otherwise by their MD5, as in RocketMQ.
        threads: at most so many queues are compacted at once; None is the number of processors.
        memory_size: bytes that the keys of one queue may take in memory.
        max_bytes_per_second: what may be read and written; None is no limit.
        log_file_size: wished bytes of a log file in a store that has none; None is 104,857,600.
        queue_file_size: wished bytes of a queue file, likewise; None is 10,485,760.
        progress: called with the bytes that were read and have to be read, as far as that is known; an exception
            that it raises ends the call, and the next one goes on.

    Returns:
        What was done. `skipped` says which queues were left out, and why: `nothing is missing`, for one.

    Raises:
        StoreLockedError: somebody has the store open for writing.
        InvalidOptionError: `source` is the store itself, a topic is no compaction topic, or an option is out of
            bounds.
        TopicNotFoundError: there is no such topic.
        CorruptionError: a message of the source that is needed is damaged.
    """
    from mqstore._paths import home_of

    home = home_of(path)
    return restored(
        lambda request, other, tell: _native.compaction_restore(home, other, request, tell),
        source,
        topics,
        tombstone_retention=tombstone_retention,
        memory_size=memory_size,
        dry_run=dry_run,
        force=force,
        keyless=keyless,
        confirm_keys=confirm_keys,
        log_file_bytes=log_file_size,
        queue_file_bytes=queue_file_size,
        threads=threads,
        max_bytes_per_second=max_bytes_per_second,
        progress=progress,
    )


def restored(
    call: Callable[[_Request, Store, Callable[[int, int], object] | None], str],
    source: Store | StorePath,
    topics: str | Iterable[str] | None,
    *,
    threads: int | None,
    max_bytes_per_second: int | None,
    progress: Callable[[Progress], object] | None,
    **options: Any,
) -> RestoreReport:
    """Calls the native function with what was asked for and the other store; its report."""
    chosen, text = compaction.topic_list(topics, one=True), compaction.options_json(**options)
    with _opened(source) as other:
        found = compaction.call_native(
            lambda threads, pace, tell: call((chosen, text, threads, pace), other, tell),
            threads=threads,
            max_bytes_per_second=max_bytes_per_second,
            progress=progress,
        )
    return RestoreReport._from_dict(found)


def _opened(source: Store | StorePath) -> AbstractContextManager[Store]:
    from mqstore._store import Store, open  # noqa: A004 - the name that gzip, dbm and shelve use

    return nullcontext(source) if isinstance(source, Store) else open(source)


for _thing in (RestoredQueue, RestoreReport, restore_compaction):
    _thing.__module__ = "mqstore"
del _thing
