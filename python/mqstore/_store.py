"""`open` and `Store`: what the native store lacks and needs no speed for.

The verbs that move messages (append, read, lookup and so on) are inherited from the native class, so
that a call costs no Python frame. Here are life and death: opening, `with`, forgetting, forking,
pickling; and the verbs that answer with dataclasses.
"""

from __future__ import annotations

import warnings
from contextlib import nullcontext
from typing import TYPE_CHECKING, NoReturn, Self, Unpack

from mqstore import _native
from mqstore._delivery.store import DeliveringStore
from mqstore._paths import home_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager
    from types import TracebackType
    from typing import Unpack

    from mqstore._options import StoreOptions
    from mqstore._read.scan import BodyForm, Scan
    from mqstore._read.table import Bodies, Table
    from mqstore._reports import (
        CompactionReport,
        ExpireReport,
        NamespaceInfo,
        Progress,
        QueueInfo,
        RebuildReport,
        RestoreReport,
        SnapshotReport,
        StoreStats,
        TopicQuota,
        VerifyReport,
    )
    from mqstore.types import Filter, Keys, LocalCompactionOptions, Mode, StoreOptionsDict, StorePath, Time


def open(  # noqa: A001 - the name that gzip, dbm and shelve use
    path: StorePath,
    mode: Mode = "r",
    *,
    options: StoreOptions | None = None,
    progress: Callable[[Progress], object] | None = None,
    **overrides: Unpack[StoreOptionsDict],
) -> Store:
    """Opens the store in the directory `path`.

    Args:
        path: the directory.
        mode: `"r"` reads, takes no lock and changes no byte; `"rw"` writes a store that exists;
            `"create"` makes it when it is missing.
        options: how the store behaves; see `StoreOptions`.
        progress: called about once a mebibyte when an open for writing has much to recover (64 MiB, or
            one second of it). An exception that it raises ends the open, and the next open recovers.
        overrides: single options by name, which replace those in `options`. `advanced` replaces all of
            `BrokerOptions`.

    Returns:
        The store, to be closed, best by `with`.

    Raises:
        NotAStoreError: there is no store at `path` (and `mode` does not make one).
        StoreLockedError: another process writes to it.
        CorruptionError: damage that is no torn tail, and nothing was changed; what to do about it is
            the option `recovery`.
        InvalidOptionError: an option is unknown or out of bounds.
    """
    return opened(path, mode, options, overrides, progress=progress)


def opened(
    path: StorePath,
    mode: Mode,
    options: StoreOptions | None,
    overrides: StoreOptionsDict,
    *,
    progress: Callable[[Progress], object] | None = None,
    clock: _native.TestClock | None = None,
    faults: _native.TestFaults | None = None,
) -> Store:
    """As `open`, on the machine that a test has."""
    from mqstore._options import normalise

    home = home_of(path)
    if not isinstance(mode, str):
        msg = f"mode must be a str, not {type(mode).__name__}"
        raise TypeError(msg)
    _native.watch_forks()
    return Store._open(home, mode, normalise(options, overrides), progress, clock, faults)


def opened_or_open(source: Store | StorePath) -> AbstractContextManager[Store]:
    """An open store as it is, or the one in a directory, opened to read and closed at the end."""
    return nullcontext(source) if isinstance(source, Store) else open(source)


class Store(DeliveringStore):
    """A message store in a directory; made by `mqstore.open`.

    Thread-safe. Close it, best by `with`: a store that is forgotten warns and closes itself. It does
    not survive a fork and cannot be pickled; open the path again where it is needed.
    """

    __slots__ = ("__weakref__",)

    def __new__(cls, *_args: object, **_kwargs: object) -> Self:
        msg = "open a store with mqstore.open(path, mode)"
        raise TypeError(msg)

    @classmethod
    def _open(
        cls,
        path: str,
        mode: str,
        options: StoreOptions,
        progress: Callable[[Progress], object] | None = None,
        clock: _native.TestClock | None = None,
        faults: _native.TestFaults | None = None,
    ) -> Self:
        from mqstore._options import native_form

        tell = None
        if progress is not None:
            from mqstore._reports import Progress

            def tell(_stage: str, done: int, total: int) -> None:
                progress(Progress(done, total))

        return _native.NativeStore.__new__(cls, path, mode, native_form(options), tell, clock, faults)

    def queues(self, topic: str) -> list[QueueInfo]:
        """The queues of `topic` in order of their ids, each with its offsets and store times.

        Raises:
            TopicNotFoundError: there is no such topic.
        """
        from mqstore._reports import QueueInfo

        return [QueueInfo(*row) for row in self._queues(topic)]

    def update_topic(
        self,
        topic: str,
        *,
        read_queues: int | None = None,
        write_queues: int | None = None,
        perm: int | None = None,
        max_messages: int | None = None,
    ) -> None:
        """Makes a topic different; what is None stays as it is. Durable when it returns.

        Args:
            topic: the topic.
            read_queues: queues for readers, 1 to 65,536: for brokers and their clients. Messages in queues that are
                left out stay, and `read` still finds them.
            write_queues: queues that appends use, and may name, 1 to 65,536.
            perm: RocketMQ's permissions, a sum of 2 (write), 4 (read), 1 (inherit) and 8 (priority): 0 to 15.
                Without 2 the topic takes no appends; the others are for brokers.
            max_messages: the topic's quota: the messages that it may hold, those in the commit log, from the first
                that can be read to the last of each queue; at most 2^53, and 0 for no limit. Appends beyond it are
                refused with `Full`. Retry, dead-letter and system topics take none.

        Raises:
            TopicNotFoundError: there is no such topic.
            InvalidOptionError: a number is out of its bounds.
            StoreReadOnlyError: the store is open for reading.
        """
        _native.update_topic(self, topic, read_queues, write_queues, perm, max_messages)

    def quotas(self) -> dict[str, TopicQuota]:
        """The topics that have a quota, by name: how many messages they may hold and how many they do."""
        from mqstore._reports import TopicQuota

        return {topic: TopicQuota(most, messages) for topic, most, messages in _native.quotas(self)}

    def delete_topic(self, topic: str) -> None:
        """Removes a topic, with the offsets of groups in it. Durable when it returns.

        Nobody sees the topic or its queues any more. Its messages stay in the log until they expire: scans of the
        log and `get` find them. A topic of the same name that is made later goes on behind them.

        Raises:
            TopicNotFoundError: there is no such topic.
            StoreReadOnlyError: the store is open for reading.
        """
        _native.delete_topic(self, topic)

    def namespaces(self) -> dict[str, NamespaceInfo]:
        """The namespaces that topics and groups are in, by name, and how many there are in each.

        A namespace stands in front of a name, with `%` between: `ns%topic`; behind `%RETRY%` and `%DLQ%`.
        """
        from mqstore._reports import NamespaceInfo

        return {name: NamespaceInfo(topics, groups) for name, topics, groups in _native.namespaces(self)}

    def delete_namespace(self, namespace: str) -> NamespaceInfo:
        """Removes all topics and groups of a namespace in one step, as `delete_topic` does; how many there were.

        Raises:
            StoreReadOnlyError: the store is open for reading.
        """
        from mqstore._reports import NamespaceInfo

        return NamespaceInfo(*_native.delete_namespace(self, namespace))

    def stats(self) -> StoreStats:
        """Counters since the open, and where log, durability and dispatch stand."""
        from mqstore._reports import StoreStats

        return StoreStats(**self._stats())

    def expire(self, *, dry_run: bool = True, compact: bool = False) -> ExpireReport:
        """Deletes the oldest segments as far as the retention options let them go, whatever the hour.

        Queue and index files that lead nowhere then go too. Without a retention nothing is due. A segment
        with keyed messages of a compaction topic that are in no compaction file yet stays, and those behind
        it, unless the store was opened with `expire_uncompacted`.

        Args:
            dry_run: only tells what would go, which a store open for reading can do too.
            compact: first compacts every compaction topic, as `compact` does without arguments, so that no
                segment has to stay for one. Nothing is compacted with `dry_run`.

        Returns:
            What went, or would go, file by file and why; and in `kept` what stays for now although it is due,
            with the topics that have to be compacted first.

        Raises:
            StoreReadOnlyError: the store is open for reading and `dry_run` is false.
            StoreBusyError: the call comes from inside of a hook; with `compact`, another compaction runs.
        """
        from mqstore._reports import ExpireReport

        if compact and not dry_run:
            self.compact()
        return ExpireReport._from_dict(self._expire(dry_run))

    def verify(self, *, progress: Callable[[Progress], object] | None = None) -> VerifyReport:
        """Checks the directory, as `mqstore.verify` does; nothing is changed."""
        from mqstore._admin.directories import verify

        self._check()
        return verify(self.path, progress=progress)

    def rebuild(self, *, progress: Callable[[Progress], object] | None = None) -> RebuildReport:
        """Makes queues and key index anew from the log, as `mqstore.rebuild` does, while the store is in use.

        Appends and reads go on. While the new files take the place of the old ones, for the time that one
        sync takes, reads wait.

        Args:
            progress: called about once a mebibyte; an exception that it raises ends the rebuild, with the
                old files in use.

        Returns:
            What was made.

        Raises:
            StoreReadOnlyError: the store is open for reading.
            StoreBusyError: another thread rebuilds it.
        """
        from mqstore._reports import Progress, RebuildReport

        tell = None if progress is None else lambda done, total: progress(Progress(done, total))
        return RebuildReport._timed(lambda: self._rebuild(tell))

    def compact(
        self, topic: str | Iterable[str] | None = None, **options: Unpack[LocalCompactionOptions]
    ) -> CompactionReport:
        """Keeps of every key of a compaction topic the newest message, while the store is in use.

        Appends and reads go on; what is appended meanwhile is left to the next compaction. Afterwards reads begin with
        what was kept, at its old offsets, and go on with what came later.

        Args:
            topic: the topic, or several; None stands for all compaction topics.
            options: see `mqstore.types.LocalCompactionOptions`.

        Returns:
            What was done. `skipped` says which queues were left out, and why: `unchanged`, for one.

        Raises:
            StoreReadOnlyError: the store is open for reading.
            StoreBusyError: another thread compacts it.
            StoreClosedError: it was closed meanwhile; every queue is as it was.
            TopicNotFoundError: there is no such topic.
            InvalidOptionError: a topic is no compaction topic, or an option is out of bounds.
        """
        from mqstore._admin import compaction
        from mqstore._reports import CompactionReport

        chosen = compaction.topic_list(topic, one=True)
        request, tell = compaction.request(**options)
        return CompactionReport._from_json(self._compact((chosen, *request, None), tell))

    def restore_compaction(
        self,
        source: Store | StorePath,
        topics: str | Iterable[str] | None = None,
        **options: Unpack[LocalCompactionOptions],
    ) -> RestoreReport:
        """As `mqstore.restore_compaction`, while the store is in use. The arguments are the same but for the path.

        Raises:
            StoreReadOnlyError: the store is open for reading.
            StoreBusyError: another thread compacts it.
            StoreClosedError: it was closed meanwhile; every queue is as it was.
            InvalidOptionError: `source` is the store itself, or an option is out of bounds.
            CorruptionError: a message of the source that is needed is damaged.
        """
        from mqstore._admin import compaction
        from mqstore._reports import RestoreReport

        chosen = compaction.topic_list(topics, one=True)
        request, tell = compaction.request(**options)
        with opened_or_open(source) as other:
            return RestoreReport._from_json(self._compact((chosen, *request, other), tell))

    def table(self, topic: str, *, bodies: Bodies = "memory") -> Table:
        """The topic as a live, read-only mapping from key to newest message, loaded when this returns.

        Args:
            topic: the topic, best one with the attribute `cleanup.policy=COMPACTION`, so that all messages of a key are
                in one queue and old ones can go.
            bodies: `"memory"` keeps the newest message of each key in memory; `"disk"` its place only, which takes
                some 200 bytes a key, and reads it when it is asked for.

        Raises:
            TopicNotFoundError: there is no such topic.
        """
        from mqstore._read.table import Table

        self._check()
        return Table(self, topic, bodies)

    def snapshot(self, dest: StorePath, *, progress: Callable[[Progress], object] | None = None) -> SnapshotReport:
        """Makes a consistent copy of the store in a new folder, of everything that was appended before the call.

        Appends and reads go on. A store that is open for writing is flushed first; one that is open for reading
        may be written by another process meanwhile. Full segments are shared with the store where the file system
        can (the same blocks, or a further name for the same file, which neither side changes any more), the rest is
        copied; queues, key index and checkpoint are built from the copied log. The copy is as after a close.

        Args:
            dest: the folder, which must not exist. It gets its name when it is whole and durable.
            progress: called about once a mebibyte; an exception that it raises ends it, and nothing is left.

        Returns:
            What is in it.

        Raises:
            FileExistsError: `dest` exists.
            UnsupportedFormatError: the queues are kept in RocksDB.
            DiskFullError: no room for the copy.
        """
        from mqstore._admin.directories import must_be_new
        from mqstore._reports import Progress, SnapshotReport

        self._check()
        target = home_of(dest)
        must_be_new(target)
        tell = None if progress is None else lambda done, total: progress(Progress(done, total))
        return SnapshotReport(path=target, **self._snapshot(target, tell))

    def scan(
        self,
        *,
        topics: str | Iterable[str] | None = None,
        queue_id: int | None = None,
        start: int | None = None,
        end: int | None = None,
        start_time: Time | None = None,
        end_time: Time | None = None,
        keys: Keys | None = None,
        filter: Filter | None = None,
        columns: Iterable[str] | None = None,
        batch_size: int = 65_536,
        body: BodyForm = "binary",
        threads: int | None = None,
    ) -> Scan:
        """Messages as Arrow columns, in the order of the log; see `mqstore.scan`.

        Each use sees every append before it. It ends with a `StoreClosedError` when the store is closed.
        """
        from mqstore._read.scan import Scan, request_of

        self._check()
        request = request_of(
            topics=topics,
            queue_id=queue_id,
            start=start,
            end=end,
            start_time=start_time,
            end_time=end_time,
            keys=keys,
            filter=filter,
            columns=columns,
            batch_size=batch_size,
            body=body,
            threads=threads,
        )
        return Scan(self, request)

    def __enter__(self) -> Self:
        self._check()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        state = " (closed)" if self.closed else ""
        return f"<mqstore.Store {self.path!r} mode={self.mode!r}{state}>"

    def __reduce__(self) -> NoReturn:
        msg = (
            f"cannot pickle the store {self.path!r}: it belongs to this process; "
            "send its path and open it there with mqstore.open(path)"
        )
        raise TypeError(msg)

    def __del__(self) -> None:
        if not self.closed:
            warnings.warn(f"store {self.path!r} was not closed", ResourceWarning, source=self, stacklevel=2)
            self.close()


Store.__module__ = "mqstore"
open.__module__ = "mqstore"
