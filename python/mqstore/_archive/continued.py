"""The reading verbs of a store with an archive: what is before the log comes from the archive.

`ContinuedReads` is the part of the class of such a store that is before `Store`. A verb first asks whether the log
alone has the answer; then it needs no archive. Otherwise the messages of the archive come first, up to the place where
the log begins, and then those of the log. If retention moves this place meanwhile, the read gets the messages between
from the archive: retention deletes only what the archive has.

After an error, an iterator of messages repeats from the same place, and one of a look-up or a scan stays failed.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator
from contextlib import closing, suppress
from itertools import chain, islice
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from mqstore import _extras, _native
from mqstore._archive.manifest import ArchivedSegment, LastRecord
from mqstore._archive.owner import check_owner
from mqstore._archive.place import ArchivePlace
from mqstore._read.lasting import Lasting
from mqstore._read.stores import RowSource
from mqstore._times import milliseconds_of
from mqstore.errors import CorruptionError, MQStoreError, OffsetOutOfRangeError

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Mapping

    import pyarrow as pa

    from mqstore._native import ArchiveHistory, MessageIterator, NativeStore, StoredMessage
    from mqstore._read.scan import Scan
    from mqstore.types import Duration, Filter, OnDamage, ReadBound, StorePath, Time


# Messages of one step of an event loop.
_STEP = 64

# Begin of the names of light queues, which have no files of their own in an archive.
_LIGHT = "%LMQ%"

# Bit of `sys_flag` of a batch of messages in one record.
_BATCH = 0x80

# Attempts to begin a read while retention deletes segments.
_ATTEMPTS = 20


class ArchiveLink:
    """The archive of an open store. Its reader is created when a read first needs it.

    `begin` is the log offset at which the archive begins, if it is known.
    """

    def __init__(
        self,
        target: StorePath | None,
        options: Mapping[str, Any] | None,
        problem: MQStoreError | None,
        begin: int | None = None,
    ) -> None:
        # Refuses a wrong target now, not at the first read.
        self._place = None if target is None else ArchivePlace(target, options)
        self._problem = problem
        self.begin = begin or 0
        self._history: ArchiveHistory | None = None
        self._lock = threading.Lock()

    def history(self, store: NativeStore, log_start: int) -> ArchiveHistory:
        """Returns the records of the archive, with a manifest that reaches the start of the log if there is one.

        Raises:
            ResultNotFoundError: there is no archive.
            ResultExistsError: it is the archive of another store.
            CorruptionError, StoreIOError: the configuration of the archive cannot be read.
        """
        if self._place is None:
            assert self._problem is not None
            raise self._problem.with_traceback(None)
        with self._lock:
            history = self._history
            if history is None:
                history = self._place.history()
                self._place.refresh(history)
                last, segments = history.last_facts()
                record = None if last is None else LastRecord(*last)
                check_owner(store, self._place.shown, record, [ArchivedSegment(*one) for one in segments])
                self._history = history
            if history.end is not None and history.end < log_start:
                self._place.refresh(history)
            return history


def _bounds_after(store: NativeStore, topic: str, log_start: int) -> list[tuple[int, int, int]]:
    """Returns the queues of a topic whose older messages can be in an archive, with their bounds in the log.

    `log_start` is the log offset at which the log begins. The list is empty if the log alone has the topic.
    """
    return [] if not log_start or topic.startswith(_LIGHT) else _native.queue_bounds(store, topic)


def _end_of(message: StoredMessage) -> int:
    """Returns the queue offset after a message; a batch of messages takes several."""
    if message.sys_flag & _BATCH:
        count = message.properties.get("INNER_NUM", "1")
        return message.queue_offset + max(1, int(count) if count.isdecimal() else 1)
    return message.queue_offset + 1


class ContinuedReads(_native.NativeStore):
    """The reading verbs that continue in the archive of a store."""

    __slots__ = ()

    _has_archive: ClassVar[bool] = True
    _archive_link: ArchiveLink

    def _log_start(self) -> int:
        """Returns the log offset at which the log begins; 0 if the archive has nothing from before it."""
        start = int(self._stats()["log_min_offset"])
        return 0 if start <= self._archive_link.begin else start

    def _history_before(self, log_start: int) -> ArchiveHistory:
        return self._archive_link.history(self, log_start)

    def read(
        self,
        topic: str,
        queue_id: int | None = None,
        start: ReadBound | None = None,
        end: ReadBound | None = None,
        *,
        filter: Filter | None = None,
        follow: bool = False,
        timeout: Duration | None = None,
        on_damage: OnDamage = "raise",
    ) -> Iterator[StoredMessage]:
        """Returns the messages of a topic or queue; see `NativeStore.read`."""
        options = {"filter": filter, "follow": follow, "timeout": timeout, "on_damage": on_damage}

        def of_log(first: ReadBound | None) -> MessageIterator:
            return super(ContinuedReads, self).read(topic, queue_id, first, end, **options)  # type: ignore[arg-type, return-value]

        # Before the bounds, which are asked queue by queue, so that a later one can have newer messages.
        log_end = int(self._stats()["log_max_offset"])
        bounds = _bounds_of(self, topic, queue_id, start)
        if not bounds:
            return of_log(start)
        return ContinuedMessages(self, topic, queue_id, start, end, (bounds, log_end), of_log, options)

    def lookup(
        self,
        topic: str,
        key: str,
        *,
        start_time: Time | None = None,
        end_time: Time | None = None,
        limit: int | None = None,
        newest_first: bool = False,
    ) -> Iterator[StoredMessage]:
        """Returns the messages with a key; see `NativeStore.lookup`."""
        log_start = self._log_start()
        plain = super().lookup(
            topic, key, start_time=start_time, end_time=end_time, limit=limit, newest_first=newest_first
        )
        if not _native.queue_bounds(self, topic) or topic.startswith(_LIGHT):
            return plain
        first = None if start_time is None else milliseconds_of("start_time", start_time)
        last = None if end_time is None else milliseconds_of("end_time", end_time) + 1
        seen: set[int] = set()

        def of_log() -> Iterator[StoredMessage]:
            for message in plain:
                seen.add(message.commit_log_offset)
                yield message

        def past(start: int, end: int) -> Iterator[StoredMessage]:
            if start >= end:
                return iter(())
            history = self._history_before(end)
            return history.lookup(self, topic, key, start, end, (first, last), newest_first)

        def moved() -> Iterator[StoredMessage]:
            """The messages that retention deleted after the look-up began."""
            for message in past(log_start, self._log_start()):
                if message.commit_log_offset not in seen:
                    yield message

        parts = [of_log(), moved(), past(0, log_start)] if newest_first else [past(0, log_start), of_log(), moved()]
        return Stepped(islice(chain.from_iterable(parts), limit))

    def get(self, id: str) -> StoredMessage | None:
        """Returns the message with an id; see `NativeStore.get`."""
        found = super().get(id)
        is_answer = found is not None and (found.unique_id != id or _native.standing_of(found.topic) == 0)
        if is_answer or not (log_start := self._log_start()):
            return found
        # The log can have the dead letter of a message that only the archive has.
        older = self._history_before(log_start).by_id(self, id, log_start)
        both = (one for one in (found, older) if one is not None)
        return min(both, key=lambda one: _native.standing_of(one.topic), default=None)

    def get_at(self, commit_log_offset: int) -> StoredMessage:
        """Returns the message at a log offset; see `NativeStore.get_at`."""
        try:
            return super().get_at(commit_log_offset)
        except CorruptionError:
            log_start = self._log_start()
            if not 0 <= commit_log_offset < log_start:
                raise
            found = self._history_before(log_start).at(self, commit_log_offset)
            if found is None:
                raise
            return found

    def message_at(self, topic: str, queue_id: int, queue_offset: int) -> StoredMessage | None:
        """Returns the message at an offset of a queue; see `NativeStore.message_at`."""
        try:
            return super().message_at(topic, queue_id, queue_offset)
        except OffsetOutOfRangeError as error:
            low, high = error.min_offset, error.max_offset
            oldest = self._oldest_offset(topic, queue_id, low) if queue_offset < low else low
            if not oldest <= queue_offset < low:
                raise OffsetOutOfRangeError(topic, queue_id, queue_offset, oldest, high) from None
            log_start = self._log_start()
            wanted = [(queue_id, queue_offset, queue_offset + 1)]
            history = self._history_before(log_start)
            return next(history.read(self, topic, wanted, log_start, None, "raise"), None)

    def messages_at(self, topic: str, queue_id: int, queue_offsets: Iterable[int]) -> list[StoredMessage | None]:
        """Returns the messages at offsets of a queue; see `NativeStore.messages_at`."""
        wanted = list(queue_offsets)
        try:
            return super().messages_at(topic, queue_id, wanted)
        except OffsetOutOfRangeError:
            return [self.message_at(topic, queue_id, one) for one in wanted]

    def offset_for_time(
        self, topic: str, queue_id: int, time: Time, *, boundary: Literal["lower", "upper"] = "lower"
    ) -> int:
        """Returns the offset for a store time; see `NativeStore.offset_for_time`."""
        found = super().offset_for_time(topic, queue_id, time, boundary=boundary)
        log_start = self._log_start()
        bounds = _bounds_after(self, topic, log_start)
        low = next((low for number, low, _ in bounds if number == queue_id), None)
        if low is None or found > low:
            return found
        time_ms = milliseconds_of("time", time)
        if boundary == "upper" and super().offset_for_time(topic, queue_id, time_ms + 1) > low:
            # The first message of the log is not later.
            return found
        history = self._history_before(log_start)
        if boundary == "lower":
            past = history.offset_for_time(self, topic, queue_id, time_ms)
            return found if past is None else min(past, found)
        past = history.last_offset(self, topic, queue_id, time_ms, low)
        if past is None:
            past = history.first_offset(self, topic, queue_id)
        return found if past is None else min(past, found)

    def _count_older_messages(self) -> None:
        """Lets the limits of topics count the messages of the archive."""
        _native.set_older_topics(self, weakref.ref(self))

    def _older_history(self, topic: str) -> tuple[ArchiveHistory, int] | None:
        """Returns the archive and the log offset at which the log begins; None if the log has all of the topic."""
        log_start = self._log_start()
        return (self._history_before(log_start), log_start) if _bounds_after(self, topic, log_start) else None

    def _limit_history(self, log_start: int) -> tuple[ArchiveHistory, int] | None:
        """Returns the archive for the limits of topics; None if it has nothing from before the log."""
        return (self._history_before(log_start), log_start) if self._log_start() else None

    def _oldest_offset(self, topic: str, queue_id: int, min_offset: int) -> int:
        log_start = self._log_start()
        if not _bounds_after(self, topic, log_start):
            return min_offset
        oldest = self._history_before(log_start).first_offset(self, topic, queue_id)
        return min_offset if oldest is None else min(oldest, min_offset)

    def scan(self, **conditions: Any) -> Scan:
        """Returns messages as Arrow columns; see `Store.scan`."""
        from mqstore._read.scan import Scan

        plain: Scan = super().scan(**conditions)  # type: ignore[misc]
        return Scan(ContinuedScan(self), plain._request, plain._limit)


for _name in ("read", "lookup", "get", "get_at", "message_at", "messages_at", "offset_for_time"):
    # For `help`.
    getattr(ContinuedReads, _name).__doc__ = getattr(_native.NativeStore, _name).__doc__
del _name


def _bounds_of(
    store: ContinuedReads, topic: Any, queue_id: int | None, start: ReadBound | None
) -> dict[int, tuple[int, int]]:
    """Returns the bounds in the log of the queues of a read; none if it is wrong, or if no archive has its topic."""
    if not isinstance(topic, str) or topic.startswith(_LIGHT) or (isinstance(start, int) and queue_id is None):
        return {}
    return {one: (low, high) for one, low, high in _native.queue_bounds(store, topic) if queue_id in (None, one)}


class Stepped(Iterator["StoredMessage"]):
    """Messages in order. Threads that share an iterator take turns."""

    def __init__(self, messages: Iterator[StoredMessage]) -> None:
        self._messages = Lasting(messages)
        self._turn = threading.Lock()

    def __iter__(self) -> Stepped:
        return self

    def __next__(self) -> StoredMessage:
        with self._turn:
            return next(self._messages)

    def _step(self, at_once: bool) -> list[StoredMessage] | None:
        """Returns the next messages, an empty list if a thread must get them, or None at the end."""
        if at_once:
            return []
        found: list[StoredMessage] = []
        with self._turn:
            # Messages before an error come first; the next step raises it.
            with suppress(MQStoreError):
                found.extend(islice(self._messages, _STEP))
            return found or list(islice(self._messages, 1)) or None

    def _visible(self, _messages: list[StoredMessage]) -> list[StoredMessage] | None:
        """As the native iterator. The history asks for the floors when it reads."""
        return None


class ContinuedMessages(Iterator["StoredMessage"]):
    """The messages of a read that can begin before the log. Threads that share an iterator take turns."""

    def __init__(
        self,
        store: ContinuedReads,
        topic: str,
        queue_id: int | None,
        start: ReadBound | None,
        end: ReadBound | None,
        ends: tuple[dict[int, tuple[int, int]], int],
        of_log: Callable[[ReadBound | None], MessageIterator],
        options: dict[str, Any],
    ) -> None:
        self._store = store
        self._topic = topic
        self._queue_id = queue_id
        self._of_log = of_log
        self._filter: Filter | None = options["filter"]
        self._on_damage: OnDamage = options["on_damage"]
        self._turn = threading.Lock()
        self._first_time = None if start is None or isinstance(start, int) else milliseconds_of("start", start)
        self._end_time = None if end is None or isinstance(end, int) else milliseconds_of("end", end)
        self._start_time = None if isinstance(start, int) else start
        bounds, log_end = ends
        # Without `follow`, a read ends where the topic ended at the call.
        self._log_end = None if options["follow"] else log_end
        limits = {} if options["follow"] else {one: high for one, (_, high) in bounds.items()}
        if isinstance(end, int) and queue_id is not None:
            limits[queue_id] = min(end, limits.get(queue_id, end))
        self._limits = limits
        self._log: MessageIterator
        self._past: Iterator[StoredMessage] | None = None
        self._lows_of_log: dict[int, int] = {}
        self._lows_at_begin: dict[int, int] = {}
        self._is_over = False
        # Whether an error has ended the iterators, and the error that ends the read.
        self._is_broken = False
        self._lost: OffsetOutOfRangeError | None = None
        # The offset after the last message of each queue that was returned.
        self._next: dict[int, int] = {}
        if isinstance(start, int) and queue_id is not None:
            if start < bounds[queue_id][0]:
                self._check_start(start, bounds[queue_id])
            elif start > bounds[queue_id][1]:
                raise OffsetOutOfRangeError(topic, queue_id, start, *bounds[queue_id])
            self._next[queue_id] = start
        self._begin()

    def _check_start(self, start: int, bounds: tuple[int, int]) -> None:
        assert self._queue_id is not None
        low, high = bounds
        oldest = self._store._oldest_offset(self._topic, self._queue_id, low)
        if start < oldest:
            raise OffsetOutOfRangeError(self._topic, self._queue_id, start, oldest, high)

    def _begin(self) -> None:
        """Opens the log, and then the archive up to the place where the log begins."""
        log = self._opened_log()
        log_start = self._store._log_start()
        # The log was opened before: it begins at these offsets or before them.
        lows = self._lows()
        past, wanted = None, []
        if log_start and self._is_older_wanted(lows):
            history = self._store._history_before(log_start)
            for queue_id, low in lows.items():
                first = self._next.get(queue_id, 0)
                end = min(low, self._limits.get(queue_id, low))
                if first < end and history.has(self._store, self._topic, queue_id):
                    wanted.append((queue_id, first, end))
            past = self._of_archive(history, wanted, log_start) if wanted else None
        # What the log has before these offsets comes from the archive, too.
        self._log, self._past, self._lows_of_log = log, past, {queue_id: end for queue_id, _, end in wanted}
        self._lows_at_begin = lows

    def _opened_log(self) -> MessageIterator:
        attempts = _ATTEMPTS
        while True:
            before = self._lows()
            attempts -= 1
            try:
                return self._of_log(self._log_begin(before))
            except OffsetOutOfRangeError as error:
                if error.offset >= error.min_offset or not attempts:
                    raise

    def _is_older_wanted(self, lows: dict[int, int]) -> bool:
        """Whether messages before the log can belong to the read."""
        if all(self._next.get(queue_id, 0) >= low for queue_id, low in lows.items()):
            return False
        if self._first_time is None:
            return True
        find, time_ms = _native.NativeStore.offset_for_time, self._first_time
        return any(find(self._store, self._topic, one, time_ms) <= low for one, low in lows.items())

    def _log_begin(self, lows: dict[int, int]) -> ReadBound | None:
        if self._queue_id is None or self._start_time is not None:
            return self._start_time
        low, limit = lows[self._queue_id], self._limits.get(self._queue_id)
        return max(low, self._next.get(self._queue_id, 0)) if limit is None or limit >= low else low

    def _lows(self) -> dict[int, int]:
        bounds = _native.queue_bounds(self._store, self._topic)
        return {one: low for one, low, _ in bounds if self._queue_id in (None, one)}

    def _of_archive(
        self, history: ArchiveHistory, wanted: list[tuple[int, int, int]], log_start: int
    ) -> Iterator[StoredMessage]:
        for message in history.read(self._store, self._topic, wanted, log_start, self._filter, self._on_damage):
            if self._first_time is not None and message.store_timestamp < self._first_time:
                continue
            if self._end_time is not None and message.store_timestamp >= self._end_time:
                return
            if not self._is_late(message):
                yield message

    def _is_new(self, message: StoredMessage) -> bool:
        """Notes a message. Returns False if it was returned before or is after the end."""
        queue_id, offset = message.queue_id, message.queue_offset
        low = max(self._next.get(queue_id, 0), self._lows_of_log.get(queue_id, 0))
        limit = self._limits.get(queue_id)
        is_after = (limit is not None and offset >= limit) or self._is_late(message)
        if is_after or (offset < low and _end_of(message) <= low):
            return False
        self._next[queue_id] = _end_of(message)
        return True

    def _is_late(self, message: StoredMessage) -> bool:
        """Whether the message was appended after the call of a read that does not follow the topic."""
        return self._log_end is not None and message.commit_log_offset >= self._log_end

    def _from_past(self, most: int) -> list[StoredMessage]:
        """Returns the next messages of the archive; none at its end."""
        if self._past is None:
            return []
        found = list(islice(self._past, most))
        for message in found:
            self._next[message.queue_id] = max(_end_of(message), self._next.get(message.queue_id, 0))
        if not found:
            self._past = None
            for queue_id, low in self._lows_of_log.items():
                self._next[queue_id] = max(low, self._next.get(queue_id, 0))
        return found

    def _resume(self, error: OffsetOutOfRangeError) -> None:
        """Continues in the archive after retention has deleted the next messages from the log."""
        next_offset, limit = self._next.get(error.queue_id, 0), self._limits.get(error.queue_id)
        self._begin()
        is_read = limit is not None and next_offset >= limit
        # The archive can have given them already.
        is_in_log = next_offset >= self._lows_at_begin.get(error.queue_id, 0)
        if not is_read and not is_in_log and self._lows_of_log.get(error.queue_id, 0) <= next_offset:
            # The archive does not have them.
            raise error

    def __iter__(self) -> ContinuedMessages:
        return self

    def __next__(self) -> StoredMessage:
        with self._turn:
            self._restart()
            try:
                while not self._is_over:
                    if found := self._from_past(1):
                        return found[0]
                    try:
                        message = next(self._log, None)
                    except OffsetOutOfRangeError as error:
                        self._resume(error)
                        continue
                    if message is None:
                        self._is_over = True
                    elif self._is_new(message):
                        return message
            except BaseException as error:
                self._note(error)
                raise
        raise StopIteration

    def _step(self, at_once: bool) -> list[StoredMessage] | tuple[tuple[int, int], ...] | None:
        """As the native iterator: messages, an empty list if a thread must get them, places to wait for, or None."""
        if at_once and (self._past is not None or self._is_broken):
            return []
        with self._turn:
            self._restart()
            try:
                while not self._is_over:
                    if found := self._from_past(_STEP):
                        return found
                    try:
                        step = self._log._step(at_once)
                    except OffsetOutOfRangeError as error:
                        self._resume(error)
                        continue
                    if not isinstance(step, list) or not step:
                        return step
                    if wanted := [message for message in step if self._is_new(message)]:
                        return wanted
            except BaseException as error:
                self._note(error)
                raise
            return None

    def _visible(self, messages: list[StoredMessage]) -> list[StoredMessage] | None:
        """As the native iterator."""
        return self._log._visible(messages)

    def _note(self, error: BaseException) -> None:
        if isinstance(error, OffsetOutOfRangeError):
            self._lost = error
        else:
            self._is_broken = True

    def _restart(self) -> None:
        """After an error, begins again at the same place, unless retention has deleted it."""
        if self._lost is not None:
            raise self._lost.with_traceback(None)
        if self._is_broken:
            self._begin()
            self._is_broken = False


class ContinuedScan(RowSource):
    """The source of a scan of a store with an archive."""

    def __init__(self, store: ContinuedReads) -> None:
        self._store = store

    def __repr__(self) -> str:
        return repr(self._store.path)

    def batches(self, request: dict[str, Any]) -> Generator[pa.RecordBatch]:
        """Yields the rows of one pass, in the order of the log."""
        pyarrow = _extras.pyarrow()
        store = self._store
        position = 0 if request.get("from") is None else int(request["from"])
        topics = request.get("topics")
        names_compacted = any(not one.startswith(_LIGHT) and _is_compacted(store, one) for one in topics or ())
        while True:
            log_start = store._log_start()
            if position < log_start and not names_compacted:
                for rows in store._history_before(log_start).scan(store, request, position, log_start):
                    yield pyarrow.record_batch(rows)
                position = log_start
            # A scan of the first segment on needs no position, so that its plan is free.
            wanted = request if position == 0 or names_compacted else {**request, "from": position}
            stream = _native.scan_open(store, wanted)
            with closing(stream):
                # Otherwise retention deleted segments before the stream was open.
                if names_compacted or store._log_start() <= position:
                    for rows in stream:
                        if not names_compacted and _has_deleted(stream):
                            # Rows before these were deleted before they were read.
                            break
                        yield pyarrow.record_batch(rows)
                        position = max(position, rows.end)
                    else:
                        if names_compacted or not _has_deleted(stream):
                            return


def _has_deleted(stream: _native.ScanStream) -> bool:
    return any(kind == "deleted" for kind, _ in stream.passed())


def _is_compacted(store: NativeStore, topic: str) -> bool:
    return not _native.queue_bounds(store, topic)
