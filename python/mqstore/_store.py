"""`open` and `Store`: the parts of a store that are written in Python.

`Store` inherits `append`, `read`, `lookup` and the other fast verbs from the native class, so that a call needs no
Python frame. This module adds the life cycle (open, `with`, finalizer, fork, pickle) and the verbs that return
dataclasses.
"""

from __future__ import annotations

import math
import time
import warnings
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar, Unpack

from mqstore import _native
from mqstore._delivery.store import DeliveringStore
from mqstore._help import lists_options
from mqstore._paths import home_of, shown_url, target_url, text_of
from mqstore._remote.place import CACHE_BYTES, place_of
from mqstore._times import seconds_of
from mqstore.errors import InvalidOptionError, MQStoreError, RemoteStoreError, StoreLockedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager

    from mqstore._archive.archive import StoreArchive
    from mqstore._options import StoreOptions
    from mqstore._read.scan import BodyForm, Scan
    from mqstore._read.table import Bodies, Table
    from mqstore._reports import (
        CompactionReport,
        ExpireReport,
        FollowerInfo,
        NamespaceInfo,
        Progress,
        QueueInfo,
        RebuildReport,
        ReclaimReport,
        RestoreReport,
        SnapshotReport,
        StoreStats,
        TopicQuota,
        TopicRetention,
        VerifyReport,
    )
    from mqstore.types import (
        Duration,
        Filter,
        Keys,
        LocalCompactionOptions,
        Mode,
        OnDamage,
        StoreOptionsDict,
        StorePath,
        Time,
    )

TO_SHARE = 'processes share the store: open it here with mode "share" too, or with mode "r"'

T = TypeVar("T")

# Seconds between two attempts to take a lock: the first pause, and the longest.
_FIRST_PAUSE = 0.005
_LONGEST_PAUSE = 0.1


class _OfMode:
    """The default of `lock_timeout`, which depends on the mode."""

    def __repr__(self) -> str:
        return '0, or None with mode "share"'


OF_MODE: Any = _OfMode()


@lists_options
def open(  # noqa: A001 - the name that gzip, dbm and shelve use
    path: StorePath,
    mode: Mode = "r",
    *,
    options: StoreOptions | None = None,
    progress: Callable[[Progress], object] | None = None,
    lock_timeout: Duration | None = OF_MODE,
    own: bool = True,
    storage_options: Mapping[str, Any] | None = None,
    cache: StorePath | None = None,
    cache_size: int = CACHE_BYTES,
    archive: bool | StorePath | None = None,
    archive_options: Mapping[str, Any] | None = None,
    **overrides: Unpack[StoreOptionsDict],
) -> Store:
    """Opens the store in the directory `path`.

    Args:
        path: directory of the store. With mode `"r"` also a URL: `s3://` (also `s3a://`), `gs://` and `az://` need the
            package `obstore`, all others `fsspec` (`pip install "mqstore[cloud]"`). Nothing is copied. All reads use
            the files of this moment: a file that changes later raises `StoreChangedError`.
        mode: `"r"` reads, takes no lock and changes no byte. `"rw"` writes to an existing store. `"create"` also
            creates a missing store. `"share"` does that together with other processes of this machine that also open
            it with `"share"`: one of them is the owner, and another takes over when it ends.
        options: options of the store; see `StoreOptions`. With mode `"share"`, options that you do not give are those
            of the owner.
        progress: callback, about once per MiB, if an open for writing has much to recover (64 MiB, or more than one
            second of work). An exception in it ends the open; the next open recovers again.
        lock_timeout: longest wait for the lock of the store, if another process or thread has the store open for
            writing, or with mode `"share"` for an owner that answers. 0 does not wait, None waits without a limit. The
            default is 0, and None with mode `"share"`. Mode `"r"` needs no lock.
        own: only for mode `"share"`: whether this process may become the owner.
        storage_options: only for a URL: credentials and settings, by the names of `obstore` or `fsspec`. The usual
            environment variables also work. No error and no `repr` shows them.
        cache: only for a URL: a local folder that keeps blocks of the files, also for later opens and other processes.
            None keeps nothing on the disk.
        cache_size: maximum bytes in `cache`, at least 1 MiB; 1 GiB by default.
        archive: the archive in which reads continue that begin before the log: its folder or URL. None, the default, is
            the archive of the store if it has one (see `Store.archive`). With False, reads begin with the log. With
            True, a store without an archive is an error. The archive needs pyarrow when a read uses it.
        archive_options: only for an archive at a URL: credentials and settings of its transport.
        overrides: single options by name; they replace those in `options`. `advanced` replaces all of
            `BrokerOptions`.

    Returns:
        The store. Close it, best with a `with` block.

    Raises:
        NotAStoreError: `path` contains no store, and `mode` is not `"create"`.
        StoreLockedError: another process has the store open for writing, after the wait of `lock_timeout`.
        CorruptionError: the store has damage other than a torn tail; nothing was changed. The option `recovery`
            selects another behaviour.
        InvalidOptionError: an option is unknown or out of bounds, or differs from that of the owner of a shared store.
        RemoteStoreError: `path` is a URL, and `mode` is not `"r"`.
        MissingPackageError: the package for this kind of URL is not installed.
        StorePermissionError: the object store denied the access.
        StoreIOError: a request to the object store failed.
    """
    place = place_of(path, storage_options, cache, cache_size)
    store = opened(place, mode, options, overrides, progress=progress, lock_timeout=lock_timeout, own=own)
    if archive is not None or archive_options is not None:
        with closing_on_error(store):
            store._choose_archive(archive, archive_options)
    return store


@contextmanager
def closing_on_error(store: Store) -> Iterator[None]:
    """Closes a store if the block raises."""
    try:
        yield
    except BaseException:
        store.close()
        raise


def lock_pauses(lock_timeout: Duration | None) -> Iterator[float]:
    """Returns the pauses in seconds between attempts to take a lock, until `lock_timeout` ends; None is no limit.

    Raises:
        TypeError, ValueError: `lock_timeout` is no duration.
    """
    limit = math.inf if lock_timeout is None else seconds_of("lock_timeout", lock_timeout)
    return _pauses(time.monotonic() + limit)


def _pauses(end: float) -> Iterator[float]:
    pause = _FIRST_PAUSE
    while (left := end - time.monotonic()) > 0:
        yield min(pause, left)
        pause = min(2 * pause, _LONGEST_PAUSE)


def opened(
    path: StorePath | _native.RemoteDirectory,
    mode: Mode,
    options: StoreOptions | None,
    overrides: StoreOptionsDict,
    *,
    progress: Callable[[Progress], object] | None = None,
    lock_timeout: Duration | None = OF_MODE,
    own: bool = True,
    clock: _native.TestClock | None = None,
    faults: _native.TestFaults | None = None,
) -> Store:
    """Opens a store like `open`, with the clock and the disk faults of a test."""
    from mqstore._options import normalise
    from mqstore._share import named_options

    home = path if isinstance(path, _native.RemoteDirectory) else home_of(path)
    if not isinstance(mode, str):
        raise TypeError(f"mode must be a str, not {type(mode).__name__}")
    if not isinstance(own, bool):
        raise TypeError(f"own must be a bool, not {type(own).__name__}")
    if isinstance(home, _native.RemoteDirectory) and mode != "r":
        raise RemoteStoreError(home.url, f"open it with mode {mode!r}")
    chosen = normalise(options, overrides)
    _native.watch_forks()
    if mode == "share" and isinstance(home, str):
        timeout = None if lock_timeout is OF_MODE or lock_timeout is None else seconds_of("lock_timeout", lock_timeout)
        named = named_options(options, overrides)
        return Store._share(home, chosen, named, progress, clock, faults, own=own, timeout=timeout)
    if not own:
        raise InvalidOptionError("own", f'only for mode "share", and the mode is {mode!r}')
    pauses = lock_pauses(0 if lock_timeout is OF_MODE else lock_timeout)
    while True:
        try:
            return Store._open(home, mode, chosen, progress, clock, faults)
        except StoreLockedError as error:
            if (pause := next(pauses, None)) is None:
                holder = _native.lock_holder(str(home))
                if holder is not None and holder[1]:
                    raise StoreLockedError(error.path, error.pid, TO_SHARE) from None
                raise
        time.sleep(pause)


def when_unlocked(lock_timeout: Duration | None, call: Callable[[], T]) -> T:
    """Returns the result of `call`. While the store is locked, calls it again, until `lock_timeout` ends."""
    pauses = lock_pauses(lock_timeout)
    while True:
        try:
            return call()
        except StoreLockedError:
            if (pause := next(pauses, None)) is None:
                raise
        time.sleep(pause)


def join_shared(directory: str, **options: Any) -> Store:
    """Joins the processes that share a store. If their owner ends just now, waits ten seconds for another."""
    return open(directory, "share", own=False, lock_timeout=10, **options)


def opened_or_open(source: Store | StorePath) -> AbstractContextManager[Store]:
    """Returns an open store, or opens a directory for reading until the end of the `with` block."""
    return nullcontext(source) if isinstance(source, Store) else open(source)


def has_topic_limits(store: Store) -> bool:
    """Returns whether a topic of the store has a retention of its own."""
    return bool(_native.retention_limits(store))


def _told(progress: Callable[[Progress], object] | None) -> Callable[[str, int, int], object] | None:
    """Returns the native form of the progress of a recovery."""
    if progress is None:
        return None
    from mqstore._reports import Progress

    return lambda _stage, done, total: progress(Progress(done, total))


class _ArchiveLook:
    """Looks at the archive of a store before its retention deletes segments. Background threads of the store call it.

    It has no reference to the store, which it would keep open.
    """

    def __init__(self) -> None:
        self._options: dict[str, Mapping[str, Any]] = {}

    def note(self, target: StorePath, options: Mapping[str, Any] | None) -> None:
        """Notes the options of the transport of an archive."""
        if options is not None:
            self._options[text_of(target)] = options

    def __call__(self, settings: str, archived_to: int, log_start: int) -> str | None:
        """Returns why the archive does not have what the store recorded, or None."""
        from mqstore._archive.place import look_at_archive

        return look_at_archive(settings, archived_to, log_start, self._options)


class Store(DeliveringStore):
    """A message store in a directory, from `mqstore.open`.

    Thread-safe. Close it, best with a `with` block; otherwise its finalizer warns and closes it. A store cannot be used
    after a fork and cannot be pickled: open the path again in the other process.
    """

    __slots__ = ("__weakref__", "_archive_look", "_reads_own_archive")

    _archive_look: _ArchiveLook
    # Whether reads continue in the archive that is configured, also if that changes.
    _reads_own_archive: bool

    def __new__(cls, *_args: object, **_kwargs: object) -> Self:
        raise TypeError("open a store with mqstore.open(path, mode)")

    @classmethod
    def _open(
        cls,
        path: str | _native.RemoteDirectory,
        mode: str,
        options: StoreOptions,
        progress: Callable[[Progress], object] | None = None,
        clock: _native.TestClock | None = None,
        faults: _native.TestFaults | None = None,
    ) -> Self:
        from mqstore._admin.event_log import logged
        from mqstore._options import native_form

        look = _ArchiveLook()
        form = native_form(options) | {"on_event": logged(options), "archive_look": look}
        made = _native.NativeStore.__new__(cls, path, mode, form, _told(progress), clock, faults)
        made._archive_look = look
        with closing_on_error(made):
            made._choose_archive(None, None)
        return made

    @classmethod
    def _share(
        cls,
        path: str,
        options: StoreOptions,
        named: set[str],
        progress: Callable[[Progress], object] | None,
        clock: _native.TestClock | None,
        faults: _native.TestFaults | None,
        *,
        own: bool,
        timeout: float | None,
    ) -> Self:
        """Opens a store together with other processes."""
        from mqstore._admin.event_log import logged
        from mqstore._share import share_form

        look = _ArchiveLook()
        program = share_form(options, named, path, {"on_event": logged(options), "archive_look": look})
        form = {"share": program, "own": own, "timeout": timeout}
        made = _native.NativeStore.__new__(cls, path, "share", form, _told(progress), clock, faults)
        made._archive_look = look
        with closing_on_error(made):
            made._choose_archive(None, None)
        return made

    def _choose_archive(self, archive: bool | StorePath | None, options: Mapping[str, Any] | None) -> None:
        """Sets the archive in which reads continue; the arguments are those of `open`."""
        self._reads_own_archive = archive is None or archive is True
        self._link_archive(None)
        if archive is False:
            if options is not None:
                raise InvalidOptionError("archive_options", "only for an archive, and archive is False")
            return
        if not isinstance(archive, bool | None):
            self._link_archive(archive, options)
            return
        settings, is_known = _own_archive(self)
        if settings is None and is_known and (archive or options is not None):
            name = "archive" if archive else "archive_options"
            raise InvalidOptionError(name, f"{self.path} has no archive: call archive.configure, or name the archive")
        if settings is not None:
            self._link_archive(settings["target"], options, first=settings.get("first"))
        elif not is_known:
            _native.link_unknown_archive(self)

    def _link_archive(
        self,
        target: StorePath | None,
        options: Mapping[str, Any] | None = None,
        first: int | None = None,
    ) -> None:
        """Lets reads continue in an archive; None ends that.

        `first` is the log offset at which the archive begins, if it is known.
        """
        if target is None:
            _native.unlink_archive(self)
            return
        from mqstore._archive.place import ArchivePlace

        # Refuses a wrong target now, not at the first read.
        ArchivePlace(target, options).link(self, first or 0)
        self._archive_look.note(target, options)

    def queues(self, topic: str) -> list[QueueInfo]:
        """Returns the queues of `topic` in order of their ids, each with its offsets and store times.

        Raises:
            TopicNotFoundError: no such topic.
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
        expire_after: Duration | None = None,
    ) -> None:
        """Changes a topic. A value of None stays unchanged. The change is durable when this returns.

        Args:
            topic: name of the topic.
            read_queues: number of queues for reads by brokers and their clients, 1 to 65,536. Messages in other queues
                stay, and `read` still finds them.
            write_queues: number of queues for appends, 1 to 65,536.
            perm: RocketMQ's permissions, a sum of 2 (write), 4 (read), 1 (inherit) and 8 (priority): 0 to 15. Without 2
                the topic accepts no appends; brokers use the other bits.
            max_messages: quota of the topic: maximum number of messages in the commit log, counted from the first to
                the last offset of each queue that can be read. At most 2^53; 0 is no limit. Further appends raise
                `Full`. Retry, dead-letter and system topics cannot have a quota.
            expire_after: time after which a value of the table expires, see `Table.expire_after`; from a millisecond
                to 2^53 milliseconds, 0 turns the expiry off.

        Raises:
            TopicNotFoundError: no such topic.
            InvalidOptionError: a number is out of bounds.
            StoreReadOnlyError: the store is open for reading.
        """
        _native.update_topic(self, topic, read_queues, write_queues, perm, max_messages, expire_after)

    def quotas(self) -> dict[str, TopicQuota]:
        """Returns the topics with a quota, by name: the maximum and the current number of messages."""
        from mqstore._reports import TopicQuota

        return {topic: TopicQuota(most, messages) for topic, most, messages in _native.quotas(self)}

    def set_retention(
        self, topic: str, *, keep: Duration | None = None, max_bytes: int | None = None, max_messages: int | None = None
    ) -> None:
        """Sets how much of a topic stays readable, whatever the retention of the store. Durable when this returns.

        The call sets all limits: a limit of None does not apply any more, and a call without a limit removes the
        retention of the topic. `expire` and the background apply the limits: the oldest messages of the topic
        disappear from every kind of read, and the minimum of each queue moves, as after the deletion of a segment. The
        log keeps the records until their segments expire or `reclaim` replaces them. Unfinished messages of groups keep
        nothing. In a store with an archive, the limits count the messages of log and archive together.

        Args:
            topic: name of the topic.
            keep: maximum age of a message, at least a millisecond, and at most the `retention` of a store without an
                archive.
            max_bytes: maximum bytes of the topic's records, each counted with its header and properties; 1 to 2^53.
            max_messages: maximum number of messages over all queues, counted as offsets; 1 to 2^53.

        Raises:
            TopicNotFoundError: no such topic.
            RefusedError: a topic of the system, a light queue or a compaction topic.
            InvalidOptionError: a limit is out of bounds.
            StoreReadOnlyError: the store is open for reading.
        """
        _native.set_retention(self, topic, keep, max_bytes, max_messages)

    def retention(self) -> list[TopicRetention]:
        """Returns the topics that have a retention or hidden records, by name: limits, floor, and bytes in the log.

        Reads the whole commit log, to count the bytes. Hidden records are those of deleted topics and those that
        `set_retention` hides.
        """
        from mqstore._reports import TopicRetention

        return [TopicRetention._of_row(*row) for row in _native.retention_usage(self)]

    def reclaim(
        self,
        *,
        dry_run: bool = False,
        erase: str | Iterable[str] | None = None,
        max_bytes_per_second: int | None = None,
    ) -> ReclaimReport:
        """Frees the disk space of hidden messages: of deleted topics, and of those that `set_retention` hides.

        It rewrites segments, one at a time, also the active one, which it closes first if that pays: all records that
        reads find keep their bytes and log offsets, and one placeholder without a message replaces adjacent hidden
        records. Only whole pages of the file system get free, so it pays for large bodies and for messages of one topic
        in a row. A segment is rewritten if that frees at least a quarter of it, or a twentieth if less than half of it
        must be copied. Records that brokers or an archive still need stay; the report says why. Appends and reads
        continue.

        Args:
            dry_run: whether to report only.
            erase: one topic or several: their hidden records are overwritten in every segment that can be rewritten,
                whether that frees space or not, and those of other topics stay.
            max_bytes_per_second: maximum bytes to read and write in a second; None is no limit.

        Raises:
            StoreReadOnlyError: the store is open for reading.
            StoreBusyError: another `reclaim` or a rebuild is running, or a hook of the store made the call.
            StoreClosedError: the store was closed during the call. Segments that were rewritten before stay so.
        """
        from mqstore._admin.compaction import byte_rate, topic_list
        from mqstore._reports import ReclaimReport

        topics = topic_list(erase, one=True) or []
        return ReclaimReport._from_row(_native.reclaim(self, dry_run, topics, byte_rate(max_bytes_per_second)))

    def delete_topic(self, topic: str, *, erase: bool = False) -> ReclaimReport | None:
        """Removes a topic and the committed offsets of groups in it. The change is durable when this returns.

        The topic, its queues and its messages disappear at once, from every kind of read. The log keeps the records
        until their segments expire or `reclaim` replaces them. A new topic of the same name is empty; each queue
        continues at the next multiple of `queue_file_entries`, so old offsets never stand for new messages. A broker
        that rebuilds the queues itself shows the old messages again.

        Args:
            topic: name of the topic.
            erase: whether to remove the records from the log, too, like `reclaim` with `erase`. Segments that cannot be
                rewritten yet keep theirs: see `kept` in the report.

        Returns:
            The report of the rewritten segments if `erase` is true, else None. If the rewrite fails, the topic stays
            deleted.

        Raises:
            TopicNotFoundError: no such topic.
            RefusedError: a system topic, for example the topic of delayed messages.
            StoreBusyError: a compaction topic, while a compaction runs.
            StoreReadOnlyError: the store is open for reading.
        """
        _native.delete_topic(self, topic)
        return self.reclaim(erase=topic) if erase else None

    def namespaces(self) -> dict[str, NamespaceInfo]:
        """Returns the namespaces of topics and groups, by name, with the number of topics and groups in each.

        A namespace is the part of a name before `%`: `ns%topic`. In retry and dead-letter topics it comes after
        `%RETRY%` or `%DLQ%`.
        """
        from mqstore._reports import NamespaceInfo

        return {name: NamespaceInfo(topics, groups) for name, topics, groups in _native.namespaces(self)}

    def delete_namespace(self, namespace: str) -> NamespaceInfo:
        """Removes all topics and groups of a namespace in one step, like `delete_topic`. Returns their numbers.

        Raises:
            StoreReadOnlyError: the store is open for reading.
        """
        from mqstore._reports import NamespaceInfo

        return NamespaceInfo(*_native.delete_namespace(self, namespace))

    def stats(self) -> StoreStats:
        """Returns counters since the open, the positions of log, sync and dispatch, and what keeps old segments.

        Raises:
            StoreClosedError: the store is closed. Read the counters before you close it.
        """
        from mqstore._reports import StoreStats

        return StoreStats._from_dict(self._stats())

    def followers(self) -> list[FollowerInfo]:
        """Returns the replicas that are connected now, and how far each one is; see the option `replication`.

        Raises:
            StoreClosedError: the store is closed.
        """
        from mqstore._reports import FollowerInfo

        return [FollowerInfo(**one) for one in self._followers()]

    def replication_address(self) -> str | None:
        """Returns the host and port at which replicas connect; None without the option `replication`.

        Raises:
            StoreClosedError: the store is closed.
        """
        return self._replication_address()

    def expire(self, *, dry_run: bool = False, compact: bool = False) -> ExpireReport:
        """Deletes the oldest segments as far as the retention options allow, at any hour.

        It also deletes queue and index files that point to deleted segments only. Without a retention option no segment
        is due. Then it applies the retention of single topics, see `set_retention`.

        A segment that is due by age stays, and so do all later segments, if a group has not finished its messages (see
        the options `retention_policy` and `group_timeout`), or if a delayed message or an undecided transaction in it
        waits. If a segment contains keyed messages of a compaction topic that are not in its compaction files yet, it
        stays too, unless the store was opened with `expire_uncompacted`.

        Args:
            dry_run: whether to report the files only; this also works in a store that is open for reading.
            compact: whether to compact every compaction topic first, like `compact` without arguments, so that no
                segment must stay for one. No compaction takes place if `dry_run` is true.

        Returns:
            The files that were deleted, or would be, each with the reason; in `kept` the segments that are due but
            stay, each with the reason; and in `kept_by` the unfinished messages that keep the first of them.

        Raises:
            StoreReadOnlyError: the store is open for reading and `dry_run` is false.
            StoreBusyError: a hook of the store made the call; or, with `compact`, another compaction is running.
            CorruptionError, StorePermissionError, StoreIOError: the archive of the store is damaged or does not answer,
                and a limit of a topic counts its messages. Everything else was done.
        """
        from mqstore._reports import ExpireReport

        if compact and not dry_run:
            self.compact()
        return ExpireReport._from_dict(self._expire(dry_run))

    def verify(self, *, progress: Callable[[Progress], object] | None = None) -> VerifyReport:
        """Checks the directory like `mqstore.verify`, without any change."""
        from mqstore._admin.directories import verified
        from mqstore._reports import VerifyReport

        self._check()
        return VerifyReport._from_dict(verified(self._place, progress))

    def rebuild(self, *, progress: Callable[[Progress], object] | None = None) -> RebuildReport:
        """Rebuilds queues and key index from the log, like `mqstore.rebuild`, while the store is in use.

        Appends and reads continue. Reads wait only while the new files replace the old ones, for about one sync.

        Args:
            progress: callback, about once per MiB. An exception in it ends the rebuild; the old files stay in use.

        Returns:
            The report.

        Raises:
            StoreReadOnlyError: the store is open for reading.
            StoreBusyError: another thread is rebuilding it.
        """
        from mqstore._reports import RebuildReport, native_progress

        return RebuildReport._timed(lambda: self._rebuild(native_progress(progress)))

    def compact(
        self, topic: str | Iterable[str] | None = None, **options: Unpack[LocalCompactionOptions]
    ) -> CompactionReport:
        """Keeps the newest message of each key of a compaction topic, while the store is in use.

        Appends and reads continue; the next compaction reads the messages that are appended meanwhile. After the
        compaction, a read returns the survivors at their old offsets, then the newer messages.

        Args:
            topic: one topic or several; None is all compaction topics.
            options: see `mqstore.types.LocalCompactionOptions`.

        Returns:
            The report. `skipped` names the queues that were skipped, with the reason, for example `unchanged`.

        Raises:
            StoreReadOnlyError: the store is open for reading.
            StoreBusyError: another thread is compacting it.
            StoreClosedError: the store was closed during the call; every queue is unchanged.
            TopicNotFoundError: no such topic.
            InvalidOptionError: a topic is not a compaction topic, or an option is out of bounds.
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
        """Restores compaction files like `mqstore.restore_compaction`, while the store is in use.

        The arguments are the same, without the path.

        Raises:
            StoreReadOnlyError: the store is open for reading.
            StoreBusyError: another thread is compacting it.
            StoreClosedError: the store was closed during the call; every queue is unchanged.
            InvalidOptionError: `source` is the store itself, or an option is out of bounds.
            CorruptionError: a needed message of the source is damaged.
        """
        from mqstore._admin import compaction
        from mqstore._reports import RestoreReport

        chosen = compaction.topic_list(topics, one=True)
        request, tell = compaction.request(**options)
        with opened_or_open(source) as other:
            return RestoreReport._from_json(self._compact((chosen, *request, other), tell))

    def table(
        self,
        topic: str,
        *,
        bodies: Bodies = "memory",
        on_damage: OnDamage = "raise",
        expire_after: Duration | None = None,
    ) -> Table:
        """Returns the topic as a live mapping from key to newest message, already loaded.

        Args:
            topic: name of the topic. Best a topic with the attribute `cleanup.policy=COMPACTION`: all messages of a key
                are then in one queue, and old ones can be removed.
            bodies: `"memory"` keeps the newest message of each key in memory. `"disk"` keeps only its position, about
                200 bytes for each key, and reads the message when you ask for it.
            on_damage: behaviour at a damaged message, as for `read`.
            expire_after: time after which a value expires, a setting of the topic for all processes, see
                `Table.expire_after`; None leaves the setting unchanged.

        Raises:
            TopicNotFoundError: no such topic.
            CorruptionError: a message is damaged, and `on_damage` is `"raise"`.
            StoreReadOnlyError: the store is open for reading, and `expire_after` differs from the setting.
        """
        from mqstore._read.table import Table

        self._check()
        return Table(self, topic, bodies, on_damage, expire_after)

    @property
    def archive(self) -> StoreArchive:
        """The archive of the store: its configuration, runs, files, verification and restore."""
        from mqstore._archive.archive import StoreArchive

        self._check()
        return StoreArchive(self)

    def snapshot(
        self,
        dest: StorePath,
        *,
        progress: Callable[[Progress], object] | None = None,
        target_options: Mapping[str, Any] | None = None,
    ) -> SnapshotReport:
        """Copies everything appended before the call to a new folder, as a consistent store.

        Appends and reads continue. A store that is open for writing is flushed first; one that is open for reading can
        have a writer in another process. If the file system allows it, full segments are shared with the store, as the
        same blocks or as hard links, which neither side changes any more; the rest is copied. Queues, key index and
        checkpoint are built from the copied log. The snapshot looks like a store after a close.

        Args:
            dest: the folder, which must not exist. It gets its name when it is complete and durable. Or a URL at which
                there is no result yet: the copy is made in a temporary folder, uploaded and published, as for
                `mqstore.export`.
            progress: callback, about once per MiB. An exception in it ends the call and removes all copied files.
            target_options: only if `dest` is a URL: credentials and settings of its transport.

        Returns:
            The report.

        Raises:
            FileExistsError: `dest` exists.
            ResultExistsError: the URL `dest` has another result or other objects.
            RemoteStoreError: results cannot be written to this kind of URL.
            UnsupportedFormatError: the queues are in RocksDB.
            DiskFullError: no space for the copy.
        """
        from dataclasses import replace

        from mqstore._admin.directories import make_at_url, must_be_new
        from mqstore._admin.files import creating
        from mqstore._reports import SnapshotReport, native_progress

        self._check()
        home_of(self.path, "make a snapshot of it")
        if (url := target_url(dest, target_options)) is not None:

            def make(folder: str) -> SnapshotReport:
                return replace(self.snapshot(folder, progress=progress), path=shown_url(url))

            return make_at_url(url, target_options, make)
        target = text_of(dest)
        must_be_new(target)
        with creating(target):
            return SnapshotReport(path=target, **self._snapshot(target, native_progress(progress)))

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
        on_damage: OnDamage = "raise",
        limit: int | None = None,
    ) -> Scan:
        """Returns messages as Arrow columns, in log order; see `mqstore.scan`.

        Each use includes every append before it, and raises `StoreClosedError` after the store is closed.
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
            on_damage=on_damage,
            as_reads=True,
            older=True,
        )
        return Scan(self, request, limit)

    def __enter__(self) -> Self:
        self._check()
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = " (closed)" if self.closed else ""
        return f"<mqstore.Store {self.path!r} mode={self.mode!r}{state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"cannot pickle the store {self.path!r}: it belongs to this process; "
            "send its path and open it there with mqstore.open(path)"
        )

    def __del__(self) -> None:
        if not self.closed:
            warnings.warn(f"store {self.path!r} was not closed", ResourceWarning, source=self, stacklevel=2)
            self.close()


def _own_archive(store: Store) -> tuple[dict[str, Any] | None, bool]:
    """Returns the settings of the archive that is configured for a store, and whether they can be read."""
    try:
        state = _native.archive_state(store)
    except MQStoreError:
        # Reads of the log need no archive.
        return None, False
    if state is None:
        return None, True
    import json

    return json.loads(state[1]), True


Store.__module__ = "mqstore"
open.__module__ = "mqstore"
