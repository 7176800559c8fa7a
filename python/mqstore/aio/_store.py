"""`open` and `Store` for asyncio.

Each verb has its place:

| Verb | Place |
|---|---|
| an append without a wait; a wait; a read of new messages | the loop's thread, in microseconds |
| any other append | one thread, which appends and syncs for all tasks |
| other reads and look-ups, flushes, topics | one of four threads of the store |
| work queues and consumers: take, acknowledge, commit | the loop's thread |
| their reads from disk, moves and syncs | one of four threads of the store |
| Arrow appends, verify, rebuild, compact, expire, reclaim, snapshot, restore, tables | one of two other threads |

Each thread starts when it is first needed.
"""

from __future__ import annotations

import asyncio
import warnings
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar, Unpack

import mqstore
from mqstore._help import lists_options
from mqstore._remote.place import CACHE_BYTES
from mqstore._store import OF_MODE, lock_pauses
from mqstore._times import seconds_of
from mqstore._warn import context_for_thread
from mqstore.aio import _bridge
from mqstore.aio._archive import StoreArchive
from mqstore.aio._consumer import Consumer
from mqstore.aio._delivery import Making, making
from mqstore.aio._ending import Ending
from mqstore.aio._reads import Messages
from mqstore.aio._scan import Scan
from mqstore.aio._table import Table
from mqstore.aio._transaction import Transaction
from mqstore.aio._twins import at_length, bound_arguments, in_thread, like, reading
from mqstore.aio._work_queue import WorkQueue
from mqstore.errors import InvalidOptionError, StoreLockedError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from concurrent.futures import Future, ThreadPoolExecutor
    from types import TracebackType

    from mqstore._native import AppendResult, AppendResults
    from mqstore._options import StoreOptions
    from mqstore._reports import Progress
    from mqstore.types import (
        Check,
        Duration,
        Mode,
        StoreOptionsDict,
        StorePath,
    )

T = TypeVar("T")

# Number and bytes of the appends in progress above which others wait.
_MOST_APPENDS = 1024
_MOST_APPEND_BYTES = 64 << 20


@lists_options
def open(  # noqa: A001 - the name that gzip, dbm and shelve use
    path: StorePath,
    mode: Mode = "r",
    *,
    options: StoreOptions | None = None,
    progress: Callable[[Progress], object] | None = None,
    lock_timeout: Duration | None = OF_MODE,
    own: bool = True,
    max_appends: int = _MOST_APPENDS,
    max_append_bytes: int = _MOST_APPEND_BYTES,
    storage_options: Mapping[str, Any] | None = None,
    cache: StorePath | None = None,
    cache_size: int = CACHE_BYTES,
    archive: bool | StorePath | None = None,
    archive_options: Mapping[str, Any] | None = None,
    **overrides: Unpack[StoreOptionsDict],
) -> Making[Store]:
    """Opens the store in the directory `path` for the running event loop, by `async with` or `await`.

    Args:
        path: directory of the store, or a URL with mode `"r"`.
        mode: as for `mqstore.open`: `"r"`, `"rw"`, `"create"` or `"share"`.
        options: options of the store; see `mqstore.StoreOptions`.
        progress: as for `mqstore.open`; called in the thread of the open.
        lock_timeout: as for `mqstore.open`. The wait can be cancelled, and needs no thread except with mode `"share"`.
        own: as for `mqstore.open`.
        max_appends: number of appends in progress above which others wait; 1,024 by default.
        max_append_bytes: bytes of appends in progress above which others wait; 64 MiB by default.
        storage_options: as for `mqstore.open`, and so are `cache` and `cache_size`.
        cache: only for a URL: a local folder that keeps blocks of the files.
        cache_size: maximum bytes in `cache`.
        archive: the archive in which reads continue that begin before the log, as for `mqstore.open`.
        archive_options: only for an archive at a URL: credentials and settings of its transport.
        overrides: single options by name; they replace those in `options`.

    Returns:
        An object for `async with` or `await`, which create the store. A cancelled open leaves no store open.

    Raises:
        As `mqstore.open`, at the `await`.
    """
    given: dict[str, Any] = {"storage_options": storage_options, "cache": cache, "cache_size": cache_size, **overrides}
    given |= {"options": options, "archive": archive, "archive_options": archive_options}
    attempt = partial(mqstore.open, path, mode, **given)
    if mode == "share":
        # The thread of the open waits for an owner.
        attempt, lock_timeout = partial(attempt, lock_timeout=lock_timeout, own=own), 0
    make = partial(_opened, attempt, progress, lock_timeout, max_appends, max_append_bytes)
    return Making(make, "mqstore.aio.open(...)")


def wrap(
    store: mqstore.Store, *, max_appends: int = _MOST_APPENDS, max_append_bytes: int = _MOST_APPEND_BYTES
) -> Store:
    """Wraps an open store for the running event loop, for example a store that threads or other loops use too.

    A close of the returned object ends the waits and appends of this loop. `store` stays open; the code that opened it
    closes it later.

    Args:
        store: the open store.
        max_appends: as for `open`.
        max_append_bytes: as for `open`.

    Raises:
        RuntimeError: no event loop is running in this thread.
    """
    return Store._of(store, _bridge.pool(), max_appends, max_append_bytes, owns=False)


async def _opened(
    attempt: Callable[..., mqstore.Store],
    progress: Callable[[Progress], object] | None,
    lock_timeout: Duration | None,
    max_appends: int,
    max_append_bytes: int,
) -> Store:
    most = [_bound("max_appends", max_appends), _bound("max_append_bytes", max_append_bytes)]
    pauses = lock_pauses(0 if lock_timeout is OF_MODE else lock_timeout)
    ending = Ending()
    pool = _bridge.pool()
    context = context_for_thread()
    attempt = partial(attempt, progress=ending.watching(progress))
    opening: Future[mqstore.Store] | None = None
    try:
        while True:
            opening = pool.submit(context.run, attempt)
            try:
                return Store._of(await asyncio.wrap_future(opening), pool, *most)
            except StoreLockedError:
                if (pause := next(pauses, None)) is None:
                    raise
            # Waits here and not in the thread, so that a cancelled open ends at once.
            await asyncio.sleep(pause)
    except BaseException:
        ending.end()
        # Called in the thread of the open, or here if the store is open already.
        if opening is not None:
            opening.add_done_callback(_close_late)
        pool.shutdown(wait=False)
        raise


class Store:
    """A message store in a directory, for one event loop, from `mqstore.aio.open`.

    The verbs are those of `mqstore.Store`, with the same parameters and errors. In another loop than the one that
    opened the store they raise RuntimeError. Close it, best with `async with`; otherwise its finalizer warns and closes
    it.

    An append that is cancelled while it waits is either stored completely or not at all. To find out, give it a
    `UNIQ_KEY` property and call `get` with it. Other cancelled verbs, such as `flush` or `create_topic`, continue in
    their thread; verbs with a `progress` end as if it had raised an exception.
    """

    __slots__ = ("__weakref__", "_bridge")

    _bridge: _bridge.Bridge

    def __new__(cls, *_args: object, **_kwargs: object) -> Self:
        raise TypeError("open a store with mqstore.aio.open(path, mode)")

    @classmethod
    def _of(
        cls,
        store: mqstore.Store,
        pool: ThreadPoolExecutor,
        max_appends: int,
        max_append_bytes: int,
        *,
        owns: bool = True,
    ) -> Self:
        made = object.__new__(cls)
        made._bridge = _bridge.Bridge(
            store, pool, max_appends=max_appends, max_append_bytes=max_append_bytes, owns=owns
        )
        return made

    @property
    def sync(self) -> mqstore.Store:
        """The blocking store, for use in threads."""
        return self._bridge.store

    _own = sync

    @property
    def path(self) -> str:
        """The directory, as given to `open`."""
        return self._bridge.store.path

    @property
    def mode(self) -> str:
        """`"r"`, `"rw"`, `"create"` or `"share"`. Also `"r"` if `recovery="read-only"` found damage."""
        return self._bridge.store.mode

    @property
    def is_owner(self) -> bool:
        """Whether this process has the store open for writing: with mode `"share"`, whether it is the owner."""
        return self._bridge.store.is_owner

    @property
    def closed(self) -> bool:
        """Whether `close()` was called."""
        return self._bridge.closing or self._bridge.store.closed

    @like(mqstore.Store.append)
    async def append(self, /, *args: Any, **kwargs: Any) -> AppendResult:
        """Appends one message and returns its position and its ids.

        The append runs in the loop's thread if it need not wait: the store does not sync each append, the topic exists,
        the segment has space, and the body has less than 256 KiB, or 16 KiB if it is compressed. Otherwise it runs in
        the append thread, where all waiting appends share one sync; an append that is delayed or has light queues runs
        in another thread. Appends that do not ask for a sync are in the log in the order of their calls, and so are
        appends that ask for one. Do not change the body before the call returns.
        """
        bridge = self._bridge
        bridge.check()
        number = bridge.number()
        try:
            done = bridge.link.append(number, *args, **kwargs)
        except TypeError:
            bound_arguments(mqstore.Store.append, args, kwargs)
            raise
        if done is False:
            return await bridge.run(partial(bridge.store.append, *args, **kwargs))
        return await bridge.appended(number, done)

    @like(mqstore.Store.append_many)
    async def append_many(self, /, *args: Any, **kwargs: Any) -> AppendResults:
        """Appends messages under one lock, with at most one sync, and returns the results in the same order.

        See `append` for the thread.
        """
        return await self._append_all(self._bridge.link.append_many, mqstore.Store.append_many, *args, **kwargs)

    @like(mqstore.Store.append_batch)
    async def append_batch(self, /, *args: Any, **kwargs: Any) -> AppendResults:
        """Appends messages like `append_many`, from one sequence for each part of a message.

        See `append` for the thread.
        """
        return await self._append_all(self._bridge.link.append_batch, mqstore.Store.append_batch, *args, **kwargs)

    async def _append_all(
        self, call: Callable[..., Any], verb: Callable[..., AppendResults], /, *args: Any, **kwargs: Any
    ) -> AppendResults:
        """Appends by a method of the link, or in a thread by `verb` of the blocking store."""
        bridge = self._bridge
        bridge.check()
        number = bridge.number()
        try:
            done = call(number, *args, **kwargs)
        except TypeError:
            bound_arguments(verb, args, kwargs)
            raise
        if done is False:
            return await bridge.run(partial(verb, bridge.store, *args, **kwargs))
        results: AppendResults = await bridge.appended(number, done)
        return results

    @like(mqstore.Store.read)
    def read(self, /, *args: Any, **kwargs: Any) -> Messages:
        """Reads the messages of a topic, or of one of its queues: `async for message in store.read(...)`.

        Reads nothing and raises no error of the topic before the first message is requested. The end of the topic is
        also taken then. A wait of `follow` needs no thread.
        """
        given = bound_arguments(mqstore.Store.read, args, kwargs)
        seconds = None if (timeout := given.pop("timeout", None)) is None else seconds_of("timeout", timeout)
        end = given.get("end")
        ends_by_time = end is not None and not isinstance(end, int)
        whole = given.get("queue_id") is None
        opening = partial(self._own.read, **given)
        return Messages(self, self._bridge, opening, given["topic"], seconds, whole=whole, ends_by_time=ends_by_time)

    @like(mqstore.Store.lookup)
    def lookup(self, /, *args: Any, **kwargs: Any) -> Messages:
        """Finds the messages of `topic` with this key or unique id, oldest first: `async for message in ...`."""
        given = bound_arguments(mqstore.Store.lookup, args, kwargs)
        return Messages(self, self._bridge, partial(self._own.lookup, **given))

    @like(mqstore.Store.wait)
    async def wait(
        self, topic: str, queue_id: int | None = None, offset: int | None = None, timeout: Duration | None = None
    ) -> bool:
        """Waits for the next message of a topic, or until `offset` of a queue can be read.

        Returns False if `timeout` ends first. Waiting tasks need no thread, in any number. In a store that is open for
        reading, one timer checks all waits, at most 20 milliseconds apart.
        """
        seconds = None if timeout is None else seconds_of("timeout", timeout)
        if offset is None:
            return await self._bridge.wait_for_next(topic, queue_id, seconds)
        if queue_id is None:
            # Raises the error about it.
            return self._bridge.store.wait(topic, queue_id, offset, 0)
        return await self._bridge.wait(topic, queue_id, offset, seconds)

    create_topic = in_thread(mqstore.Store.create_topic)
    update_topic = in_thread(mqstore.Store.update_topic)
    quotas = in_thread(mqstore.Store.quotas)
    set_retention = in_thread(mqstore.Store.set_retention)
    namespaces = in_thread(mqstore.Store.namespaces)
    delete_namespace = in_thread(mqstore.Store.delete_namespace)
    groups = in_thread(mqstore.Store.groups)
    offset_history = in_thread(mqstore.Store.offset_history)
    cancel = in_thread(mqstore.Store.cancel)
    reschedule = in_thread(mqstore.Store.reschedule)
    delays = in_thread(mqstore.Store.delays)
    check_transactions = in_thread(mqstore.Store.check_transactions)
    pending_transactions = in_thread(mqstore.Store.pending_transactions)
    flush = in_thread(mqstore.Store.flush)
    topics = in_thread(mqstore.Store.topics)
    queues = in_thread(mqstore.Store.queues)
    tail = in_thread(mqstore.Store.tail)
    count = in_thread(mqstore.Store.count)
    get = in_thread(mqstore.Store.get)
    get_at = in_thread(mqstore.Store.get_at)
    message_at = in_thread(mqstore.Store.message_at)
    messages_at = in_thread(mqstore.Store.messages_at)
    offset_for_time = in_thread(mqstore.Store.offset_for_time)
    stats = in_thread(mqstore.Store.stats)
    followers = in_thread(mqstore.Store.followers)
    replication_address = in_thread(mqstore.Store.replication_address)
    set_confirm_offset = in_thread(mqstore.Store.set_confirm_offset)
    append_arrow = at_length(mqstore.Store.append_arrow)
    verify = at_length(mqstore.Store.verify)
    rebuild = at_length(mqstore.Store.rebuild)
    compact = at_length(mqstore.Store.compact)
    expire = at_length(mqstore.Store.expire)
    retention = at_length(mqstore.Store.retention)
    reclaim = at_length(mqstore.Store.reclaim)
    delete_topic = at_length(mqstore.Store.delete_topic)
    snapshot = at_length(mqstore.Store.snapshot)
    restore_compaction = at_length(mqstore.Store.restore_compaction)
    scan = reading(mqstore.Store.scan, Scan)
    consumer = making(mqstore.Store.consumer, Consumer)
    work_queue = making(mqstore.Store.work_queue, WorkQueue)

    @property
    def archive(self) -> StoreArchive:
        """The archive of the store: its configuration, runs, files, verification and restore."""
        self._bridge.check()
        return StoreArchive(self._bridge)

    @property
    def confirm_offset(self) -> int | None:
        """The log offset at which reads and dispatch stop, or None; see `set_confirm_offset`."""
        return self._bridge.store.confirm_offset

    @like(mqstore.Store.table)
    async def table(self, /, *args: Any, **kwargs: Any) -> Table:
        """Returns the topic as a live mapping from key to newest message, already loaded."""
        return Table(self, self._bridge, await self._bridge.run_at_length(self._own.table, *args, **kwargs))

    @like(mqstore.Store.transaction)
    def transaction(
        self, group: str = "DEFAULT_PRODUCER", *, check: Check | None = None, durable: bool = False
    ) -> Transaction:
        """Returns a transaction; `async with` or `await` begin it.

        The thread `mqstore-check` of the store calls the check function, not the loop.
        """
        return Transaction(self, self._bridge, group, check, durable)

    async def close(self) -> None:
        """Syncs everything, closes the files and releases the lock. A second call does nothing.

        Appends in progress are completed first. Tasks that wait for a message, or for space for an append, get
        `StoreClosedError`. The close continues if its task is cancelled.
        """
        await self._bridge.close()

    async def __aenter__(self) -> Self:
        self._bridge.check()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return repr(self._bridge.store).replace("<mqstore.", "<mqstore.aio.", 1)

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"cannot pickle the store {self.path!r}: it belongs to this process and its loop; "
            "send its path and open it there with mqstore.aio.open(path)"
        )

    def __del__(self) -> None:
        bridge = getattr(self, "_bridge", None)
        if bridge is not None and not bridge.closing:
            forgotten = bridge.owns and not bridge.store.closed
            bridge.let_go()
            if forgotten:
                msg = f"store {bridge.store.path!r} was not closed"
                warnings.warn(msg, ResourceWarning, source=self, stacklevel=2)


def _bound(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be an int, not {type(value).__name__}")
    if value < 1:
        raise InvalidOptionError(name, f"{value} is less than 1")
    return value


def _close_late(opening: Future[mqstore.Store]) -> None:
    """Closes a store whose open was cancelled."""
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()


for _thing in (open, wrap, Store):
    _thing.__module__ = "mqstore.aio"
del _thing
