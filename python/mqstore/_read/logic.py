"""Static topics: logic queues, whose offsets continue over physical queues of several brokers.

Each broker of such a topic has `config/topicQueueMapping.json` with the chains of its logic queues. A part of a chain
is a range of a physical queue; records and units have the numbers of the physical queue only:

::

    logic offset = logic_offset of the part + queue offset - start_offset of the part

The stock tools never close a part. It ends where the next one begins, at a logic offset that is rounded up, so logic
offsets have gaps. A part without a logic offset belongs to a remapping that was interrupted.

Source: ``TopicQueueMappingManager``, ``LogicQueueMappingItem``, ``TopicQueueMappingUtils``, ``MQAdminUtils``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, TypeAlias

from mqstore import _native
from mqstore._paths import text_of
from mqstore._read.lasting import Lasting
from mqstore._read.logic_rows import LogicPiece, LogicRows
from mqstore._read.scan import BATCH_ROWS, Scan, request_of
from mqstore._reports import _Report
from mqstore._store import open as open_store
from mqstore._warn import warn
from mqstore.errors import MQStoreError, OffsetOutOfRangeError, TopicNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from mqstore import StoredMessage
    from mqstore._read.scan import BodyForm
    from mqstore._store import Store
    from mqstore.types import Filter, Keys, OnDamage, StorePath, Time

FILE = "topicQueueMapping.json"
"""The file of a broker with its chains."""

OnMissing: TypeAlias = Literal["raise", "skip"]
"""Behaviour at a part whose broker's directory is not given."""

_MOST = 1 << 62
"""Sums of two smaller numbers are still offsets."""


class LogicMessage(NamedTuple):
    """A message of a logic queue."""

    logic_offset: int
    """Its offset in the logic queue."""
    message: StoredMessage
    """The message; its `queue_id` and `queue_offset` are those of the physical queue."""


@dataclass(frozen=True, slots=True)
class LogicPart(_Report):
    """A part of a logic queue: a range of a physical queue of one broker."""

    broker: str
    """Name of the broker."""
    queue_id: int
    """The physical queue."""
    generation: int
    """Number of the part in its chain; there can be gaps."""
    logic_offset: int | None
    """Logic offset of the first message; None if a remapping was interrupted before it was decided."""
    start_offset: int
    """Queue offset of the first message in the physical queue."""
    end_offset: int | None
    """Queue offset after the last message; None if the part is open, as RocketMQ's tools leave it."""
    is_here: bool
    """Whether the directory of the broker is given."""


@dataclass(frozen=True, slots=True)
class LogicQueue(_Report):
    """A logic queue of a static topic."""

    queue_id: int
    """Its number, from 0."""
    min_offset: int
    """Logic offset of the first readable message."""
    max_offset: int
    """Logic offset after the last readable message. Offsets between the two can be missing."""
    parts: tuple[LogicPart, ...]
    """Its parts, oldest first."""
    undecided_messages: int
    """Readable messages in a part without a logic offset. They get offsets when the remapping is completed."""
    messages: int
    """Number of offsets with a readable message; fewer than from `min_offset` to `max_offset` if there are gaps."""


class LogicQueues:
    """Static topics over the directories of their brokers; made by `mqstore.open_logic_queues`. A context manager."""

    __slots__ = ("_chains", "_stack", "_stores", "problems")

    def __init__(self, stores: dict[str, Store], chains: dict[str, dict[int, list[_Item]]], stack: ExitStack) -> None:
        self._stores = stores
        self._chains = chains
        self._stack = stack
        self.problems: tuple[str, ...] = tuple(_problems(chains, self._bounds))
        """Faults of the chains, each as text: rules that RocketMQ checks, and parts that lost messages."""

    def __enter__(self) -> Self:
        """Returns the object."""
        return self

    def __exit__(self, *_error: object) -> None:
        """Closes the stores."""
        self.close()

    def close(self) -> None:
        """Closes the stores."""
        self._stack.close()

    def topics(self) -> list[str]:
        """Returns the static topics, sorted."""
        return sorted(self._chains)

    def queues(self, topic: str) -> list[LogicQueue]:
        """Returns the logic queues of a topic that one of the brokers knows, sorted.

        Raises:
            TopicNotFoundError: no such static topic.
        """
        return [self._described(topic, queue_id, chain) for queue_id, chain in sorted(self._of(topic).items())]

    def read(
        self,
        topic: str,
        queue_id: int,
        start: int | None = None,
        end: int | None = None,
        *,
        on_missing: OnMissing = "raise",
    ) -> Iterator[LogicMessage]:
        """Returns the messages of a logic queue in the order of their logic offsets.

        Args:
            topic: the static topic.
            queue_id: number of the logic queue.
            start: logic offset of the first message; None is the first readable one. A read in a gap begins after it.
            end: logic offset before which the read ends; None reads all messages that exist at the call.
            on_missing: behaviour at a part whose broker's directory is not given. `"raise"` raises `MQStoreError` with
                the name of the broker; `"skip"` continues with the next part.

        Raises:
            TopicNotFoundError: no such static topic or logic queue.
            MQStoreError: the directory of a broker is missing.
        """
        _check_missing(on_missing)
        self._chain(topic, queue_id)
        return Lasting(self._read(topic, self._pieces(topic, queue_id, (start or 0, end), on_missing)))

    def scan(
        self,
        topic: str,
        queue_id: int | None = None,
        start: int | None = None,
        end: int | None = None,
        *,
        start_time: Time | None = None,
        end_time: Time | None = None,
        keys: Keys | None = None,
        filter: Filter | None = None,
        columns: Iterable[str] | None = None,
        batch_size: int = BATCH_ROWS,
        body: BodyForm = "binary",
        threads: int | None = None,
        on_damage: OnDamage = "raise",
        limit: int | None = None,
        on_missing: OnMissing = "raise",
    ) -> Scan:
        """Returns the messages of logic queues as Arrow columns, queue by queue in the order of their logic offsets.

        The columns `logic_queue_id` and `logic_offset` come first, unless `columns` names them. `queue_id` and
        `queue_offset` are physical. This needs pyarrow. Arguments without a description are those of `mqstore.scan`.

        Args:
            topic: the static topic.
            queue_id: number of the logic queue; None is all.
            start: logic offset of the first message of each queue.
            end: logic offset before which each queue ends.
            start_time: only messages stored at or after this time.
            end_time: only messages stored before this time.
            keys: only messages with one of these keys.
            filter: tags, as `"paid || shipped"`, or a condition on properties, `mqstore.sql("price > 5")`.
            columns: names in the wanted order; None is all.
            batch_size: maximum rows of a batch.
            body: form of the column `body`.
            threads: maximum number of decoding threads.
            on_damage: behaviour at a damaged record.
            limit: maximum number of rows; None is no limit.
            on_missing: as for `read`.

        Raises:
            TopicNotFoundError: no such static topic or logic queue.
            InvalidOptionError: an unknown column, or arguments that exclude each other.

        A use of the scan raises `MQStoreError` if the directory of a broker is missing.
        """
        _check_missing(on_missing)
        numbers = sorted(self._of(topic)) if queue_id is None else [queue_id]
        for number in numbers:
            self._chain(topic, number)
        wanted = (start or 0, end)

        def pieces() -> Iterator[LogicPiece]:
            for number in numbers:
                yield from self._pieces(topic, number, wanted, on_missing)

        request = request_of(
            topics=topic,
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
        )
        return Scan(LogicRows(topic, pieces), request, limit)

    def groups(self) -> list[str]:
        """Returns the groups with a committed offset in a static topic, sorted."""
        known = {group for store in self._stores.values() for group in store.groups()}
        return sorted(group for group in known if any(self.group_offsets(group, topic) for topic in self._chains))

    def lag(self, group: str, topic: str) -> dict[int, int]:
        """Returns how many readable messages of each logic queue come after the committed offset of a group.

        Gaps between parts do not count, and neither do messages without a logic offset. A queue without a committed
        offset is not in the result.

        Raises:
            TopicNotFoundError: no such static topic.
        """
        found = {}
        for queue_id, offset in self.group_offsets(group, topic).items():
            pieces = self._pieces(topic, queue_id, (offset, None), "skip")
            found[queue_id] = sum(piece.end - piece.start for piece in pieces)
        return found

    def group_offsets(self, group: str, topic: str) -> dict[int, int]:
        """Returns the committed offsets of a group in a static topic, as logic offsets by logic queue.

        A broker stores the physical offset. The newest part with an offset counts.

        Raises:
            TopicNotFoundError: no such static topic.
        """
        found: dict[int, int] = {}
        saved: dict[str, dict[tuple[str, int], int]] = {}
        for queue_id, chain in self._of(topic).items():
            for item in reversed(chain):
                store = self._stores.get(item.broker)
                if store is None or item.logic_offset < 0:
                    continue
                if item.broker not in saved:
                    saved[item.broker] = dict(_native.saved_offsets(store, group))
                offset = saved[item.broker].get((topic, item.queue_id))
                if offset is not None:
                    found[queue_id] = item.logic_offset + max(offset - item.start, 0)
                    break
        return found

    def _of(self, topic: str) -> dict[int, list[_Item]]:
        if topic not in self._chains:
            raise TopicNotFoundError(topic)
        return self._chains[topic]

    def _chain(self, topic: str, queue_id: int) -> list[_Item]:
        chains = self._of(topic)
        if queue_id not in chains:
            raise TopicNotFoundError(topic, queue_id)
        return chains[queue_id]

    def _bounds(self, topic: str, item: _Item) -> tuple[int, int] | None:
        """Returns the readable offsets of a part in its physical queue; None if its directory is missing."""
        store = self._stores.get(item.broker)
        if store is None:
            return None
        try:
            queues = {queue.queue_id: queue for queue in store.queues(topic)}
        except TopicNotFoundError:
            queues = {}
        if item.queue_id not in queues:
            return item.start, item.start
        queue = queues[item.queue_id]
        low = max(item.start, queue.min_offset)
        high = queue.max_offset if item.end is None else min(item.end, queue.max_offset)
        return low, max(low, high)

    def _described(self, topic: str, queue_id: int, chain: list[_Item]) -> LogicQueue:
        ends = []
        for part in _ranges(chain):
            bounds = self._bounds(topic, part.item)
            if bounds is not None and bounds[0] < bounds[1]:
                low, high = (part.item.logic_offset + offset - part.item.start for offset in bounds)
                ends.append((low, high if part.limit is None else min(high, part.limit)))
        decided = [item.logic_offset for item in chain if item.logic_offset >= 0]
        empty = decided[-1] if decided else 0
        waiting = [self._bounds(topic, item) for item in chain if item.logic_offset < 0]
        parts = tuple(
            LogicPart(
                item.broker,
                item.queue_id,
                item.generation,
                item.logic_offset if item.logic_offset >= 0 else None,
                item.start,
                item.end,
                item.broker in self._stores,
            )
            for item in chain
        )
        return LogicQueue(
            queue_id,
            ends[0][0] if ends else empty,
            ends[-1][1] if ends else empty,
            parts,
            sum(bounds[1] - bounds[0] for bounds in waiting if bounds is not None),
            sum(high - low for low, high in ends),
        )

    def _read(self, topic: str, pieces: Iterator[LogicPiece]) -> Iterator[LogicMessage]:
        for piece in pieces:
            try:
                for message in piece.store.read(topic, piece.queue_id, piece.start, piece.end):
                    yield LogicMessage(message.queue_offset + piece.delta, message)
            except OffsetOutOfRangeError as error:
                error.add_note(f"logic queue {piece.logic_queue_id} of topic {topic}, on broker {piece.broker}")
                raise

    def _pieces(
        self, topic: str, queue_id: int, wanted: tuple[int, int | None], on_missing: str
    ) -> Iterator[LogicPiece]:
        """Yields the readable ranges of a logic queue between two logic offsets, in order."""
        start, end = wanted
        for part in _ranges(self._chain(topic, queue_id)):
            item = part.item
            if end is not None and item.logic_offset >= end:
                return
            if part.limit is not None and part.limit <= start:
                continue
            bounds = self._bounds(topic, item)
            if bounds is None:
                if on_missing == "skip":
                    continue
                upto = "on" if part.limit is None else f"to {part.limit}"
                raise MQStoreError(
                    f"logic queue {queue_id} of topic {topic}: the offsets from {item.logic_offset} {upto} are on "
                    f"broker {item.broker!r}, whose directory is not given; add it, or read with on_missing='skip'"
                )
            delta = item.logic_offset - item.start
            low = max(bounds[0], start - delta)
            high = min([bounds[1], *(limit - delta for limit in (part.limit, end) if limit is not None)])
            if low < high:
                store = self._stores[item.broker]
                yield LogicPiece(store, item.broker, queue_id, item.queue_id, low, high, delta)


class _Item(NamedTuple):
    """A part of a chain in the file of a broker."""

    generation: int
    broker: str
    queue_id: int
    logic_offset: int
    """-1 if it is not decided."""
    start: int
    end: int | None


class _Range(NamedTuple):
    """A decided part, and the logic offset at which the next decided part begins."""

    item: _Item
    limit: int | None


def _ranges(chain: list[_Item]) -> list[_Range]:
    decided = [item for item in chain if item.logic_offset >= 0]
    limits = [item.logic_offset for item in decided[1:]]
    return [_Range(item, limit) for item, limit in zip(decided, [*limits, None], strict=True)]


def open_logic_queues(paths: Mapping[str, StorePath] | Iterable[StorePath]) -> LogicQueues:
    """Opens the directories of the brokers of static topics together, for reading by logic offset.

    A static topic has logic queues: a chain of parts, each a range of a physical queue on one broker. The
    directory of each broker has the chains in `config/topicQueueMapping.json`. Files are only read.

    Args:
        paths: the directories of the brokers, in any order; or a mapping from their names to them. Without names, the
            file of each directory must name one broker.

    Returns:
        The logic queues; close them after use, or use them in a `with` statement. Threads can share them, but not the
        iterators of `read`.

    Raises:
        NotAStoreError: a path contains no store.
        ValueError: the name of a broker is not known, or two directories have the same name.
        CorruptionError: a mapping file cannot be parsed, and its backup neither.
    """
    if isinstance(paths, (str, bytes, Path)):
        raise TypeError("paths must be several directories: a list, or a mapping from the names of the brokers")
    given = list(paths.items()) if isinstance(paths, Mapping) else [(None, path) for path in paths]
    with ExitStack() as stack:
        stores: dict[str, Store] = {}
        files: dict[str, Any] = {}
        for name, path in given:
            store = stack.enter_context(open_store(path))
            text = _native.config_json(store, FILE)
            entries = _entries(json.loads(text) if text else {})
            broker = _broker(text_of(path), entries) if name is None else name
            if broker in stores:
                msg = f"{text_of(path)}: another directory is of broker {broker!r} too; give a mapping from names"
                raise ValueError(msg)
            stores[broker] = store
            files[broker] = entries
        return LogicQueues(stores, _chains(files), stack.pop_all())


def _entries(content: Any) -> dict[str, dict[str, Any]]:
    """Returns the topics of a file."""
    table = content.get("topicQueueMappingInfoMap") if isinstance(content, dict) else None
    entries = table.items() if isinstance(table, dict) else ()
    return {topic: entry for topic, entry in entries if isinstance(entry, dict)}


def _broker(path: str, entries: dict[str, dict[str, Any]]) -> str:
    names = sorted({str(entry.get("bname")) for entry in entries.values()})
    if len(names) == 1:
        return names[0]
    found = f"names the brokers {', '.join(names)}" if names else "names no broker"
    raise ValueError(f"{path}: its {FILE} {found}; give a mapping from the name of each broker to its directory")


def _chains(files: dict[str, dict[str, dict[str, Any]]]) -> dict[str, dict[int, list[_Item]]]:
    """Returns the newest chain of each logic queue."""
    best: dict[str, dict[int, tuple[tuple[int, bool, int], list[_Item]]]] = {}
    for broker, entries in files.items():
        for topic, entry in entries.items():
            owner = entry.get("bname")
            if owner != broker:
                text = f"{FILE} of broker {broker}: topic {topic} is a copy from broker {owner}; it is ignored"
                warn(text)
                continue
            hosted = entry.get("hostedQueues")
            known = best.setdefault(topic, {})
            for number, items in hosted.items() if isinstance(hosted, dict) else ():
                rows = items if isinstance(items, list) else []
                found = [_item(item) for item in rows if isinstance(item, dict)]
                chain = sorted(found, key=lambda item: item.generation)
                if not chain or not number.isdecimal():
                    continue
                last = chain[-1]
                rank = (last.generation, last.logic_offset >= 0, _number(entry.get("epoch"), -1))
                if int(number) not in known or known[int(number)][0] < rank:
                    known[int(number)] = (rank, chain)
    return {topic: {number: chain for number, (_, chain) in queues.items()} for topic, queues in best.items()}


def _item(item: dict[str, Any]) -> _Item:
    start, end = _number(item.get("startOffset"), 0), _number(item.get("endOffset"), -1)
    return _Item(
        _number(item.get("gen"), 0),
        str(item.get("bname")),
        _number(item.get("queueId"), 0),
        _number(item.get("logicOffset"), -1),
        start,
        end if end > start else None,
    )


def _check_missing(on_missing: str) -> None:
    if on_missing not in ("raise", "skip"):
        raise ValueError(f"on_missing must be 'raise' or 'skip', not {on_missing!r}")


def _number(value: object, default: int) -> int:
    """Returns an integer that a queue can have; the default for anything else."""
    is_number = isinstance(value, int) and not isinstance(value, bool) and abs(value) < _MOST
    return value if is_number else default  # type: ignore[return-value]


def _problems(
    chains: dict[str, dict[int, list[_Item]]], bounds: Callable[[str, _Item], tuple[int, int] | None]
) -> Iterator[str]:
    """Yields the rules that chains break. Source: ``TopicQueueMappingUtils#checkLogicQueueMappingItemOffset``."""
    for topic, queues in sorted(chains.items()):
        owners: dict[tuple[str, int], int] = {}
        for queue_id, chain in sorted(queues.items()):
            where = f"topic {topic}, logic queue {queue_id}"
            for item in chain:
                owner = owners.setdefault((item.broker, item.queue_id), queue_id)
                if owner != queue_id:
                    yield f"{where}: queue {item.queue_id} of broker {item.broker} is in logic queue {owner} too"
                found = bounds(topic, item)
                if item.end is not None and found is not None and found[1] < item.end:
                    yield f"{where}: generation {item.generation} ends at offset {item.end}, its queue at {found[1]}"
            if chain[-1].logic_offset < 0:
                yield f"{where}: a remapping to broker {chain[-1].broker} was interrupted; complete it with mqadmin"
            yield from (f"{where}: {text}" for text in _faults(chain))


def _faults(chain: list[_Item]) -> Iterator[str]:
    """Yields the rules that the numbers of a chain break."""
    for item in chain:
        if min(item.generation, item.start, item.queue_id) < 0:
            yield f"generation {item.generation} has a negative number"
        if item.logic_offset < 0 and item is not chain[-1]:
            yield f"generation {item.generation} has no logic offset, and is not the newest"
    for before, after in pairwise(chain):
        if before.generation == after.generation:
            yield f"generation {before.generation} exists twice"
        if after.logic_offset < 0 or before.logic_offset < 0:
            continue
        if before.logic_offset >= after.logic_offset:
            yield f"generation {after.generation} begins before generation {before.generation}"
        elif before.end is not None and before.logic_offset + before.end - before.start >= after.logic_offset:
            yield f"generation {before.generation} ends after generation {after.generation} begins"


for _class in (LogicMessage, LogicPart, LogicQueue, LogicQueues, open_logic_queues):
    _class.__module__ = "mqstore"
del _class
