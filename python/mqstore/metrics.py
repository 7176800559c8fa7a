"""Metrics of open stores for Prometheus and OpenTelemetry, which are both optional.

::

    from prometheus_client import CollectorRegistry
    from mqstore.metrics import StoreCollector

    registry = CollectorRegistry()
    registry.register(StoreCollector(store))

This file owns the names, kinds and units of the metrics. A collection calls only `Store.stats`, `Store.topics`,
`Store.quotas`, `Store.queues`, and the counts of groups. There is no thread, no global registration and no global
state. Stores are referenced weakly, so that metrics do not keep them alive. A store that is closed, collected as
garbage, or opened before a fork of this process has no rows. A collection takes no lock that a fork could leave locked.
"""

from __future__ import annotations

import re
import threading
import time
import weakref
from types import SimpleNamespace
from typing import TYPE_CHECKING, NamedTuple

from mqstore import _native
from mqstore._admin.info import SYSTEM_GROUPS
from mqstore.errors import ForkedProcessError, StoreClosedError, TopicNotFoundError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from opentelemetry.metrics import CallbackOptions, Meter, Observation
    from prometheus_client import Metric

    from mqstore._reports import QueueInfo
    from mqstore._store import Store

    _Callback = Callable[[CallbackOptions], Iterable[Observation]]

__all__ = ["StoreCollector", "StoreObserver", "observe"]


class _Kind(NamedTuple):
    """One metric."""

    field: str
    """Field of `StoreStats`, `TopicQuota`, `QueueInfo` or the numbers of a group with the value."""
    short_name: str
    """Name in OpenTelemetry after `mqstore.`."""
    unit: str
    """Unit in the notation of OpenTelemetry."""
    about: str
    scale: float = 1
    """Divisor of the field."""
    counts: bool = False
    """Whether it is a counter, which only grows while the store is open."""

    @property
    def name(self) -> str:
        """Name in Prometheus, which ends with the unit of a size or a time."""
        name = f"mqstore_{self.short_name.replace('.', '_')}"
        if (unit := _UNITS.get(self.unit)) is not None:
            name = f"{name.removesuffix('_time').removesuffix(f'_{unit}')}_{unit}"
        return f"{name}_total" if self.counts else name


# Units that Prometheus has in its names.
_UNITS = {"By": "bytes", "s": "seconds"}

_STORE = (
    _Kind("appends", "appended_messages", "{message}", "Messages appended since the open.", counts=True),
    _Kind("appended_bytes", "appended_bytes", "By", "Bytes of the records appended since the open.", counts=True),
    _Kind(
        "refused_appends",
        "refused_appends",
        "{append}",
        "Appends refused since the open, because the store was busy, the disk nearly full, or a quota used up.",
        counts=True,
    ),
    _Kind(
        "skipped_damage",
        "skipped_damage",
        "{record}",
        "Damaged records, or damaged parts of the log, that reads of this process skipped since the open.",
        counts=True,
    ),
    _Kind(
        "hot_reads",
        "hot_reads",
        "{record}",
        "Records read near the end of the log since the open, within 40 % of the machine's memory.",
        counts=True,
    ),
    _Kind(
        "cold_reads",
        "cold_reads",
        "{record}",
        "Records read further from the end of the log since the open, and therefore probably from the disk.",
        counts=True,
    ),
    _Kind(
        "paced_reads",
        "paced_reads",
        "{read}",
        "Reads from the disk that waited for their turn since the open, because a writer of the store synced.",
        counts=True,
    ),
    _Kind("paced_read_ms", "paced_read_time", "s", "Total time of these waits.", scale=1000, counts=True),
    _Kind(
        "expired_segments", "expired_segments", "{segment}", "Segments of the log deleted since the open.", counts=True
    ),
    _Kind(
        "expired_bytes",
        "expired_bytes",
        "By",
        "Bytes of the files deleted since the open, queue and index files included.",
        counts=True,
    ),
    _Kind(
        "held_files",
        "held_files",
        "{file}",
        "Deleted segments whose space is not free yet, because the program still uses them.",
    ),
    _Kind(
        "segments_kept_by",
        "segment_holders",
        "{message}",
        "Unfinished messages that keep the oldest segment that is due by age.",
    ),
    _Kind("log_min_offset", "log_min_offset", "By", "First byte of the log."),
    _Kind("log_max_offset", "log_max_offset", "By", "One past the last byte of the log that can be read."),
    _Kind("durable_offset", "durable_offset", "By", "One past the last synced byte of the log."),
    _Kind("dispatched_offset", "dispatched_offset", "By", "Log offset up to which queues and index are built."),
    _Kind(
        "reader_lag_bytes",
        "reader_lag",
        "By",
        "Largest distance of a cold read from the end of the log since the last call of stats(), or 0.",
    ),
    _Kind("segments", "segments", "{segment}", "Segments of the log."),
    _Kind("segment_size", "segment_size", "By", "Bytes of a segment."),
    _Kind("log_bytes", "log", "By", "Bytes of the log's segments."),
    _Kind("max_bytes", "max", "By", "Maximum bytes of the log's segments; missing without a limit."),
    _Kind("followers", "followers", "{replica}", "Connected replicas of the store."),
    _Kind("in_sync_copies", "in_sync_copies", "{copy}", "Copies that are in sync, the store included."),
    _Kind("needed_copies", "needed_copies", "{copy}", "Copies that a replicated append waits for, the store included."),
    _Kind(
        "replicated_offset",
        "replicated_offset",
        "By",
        "Log offset up to which that many copies have the log; missing for a store that serves no replicas.",
    ),
    _Kind(
        "follower_lag_bytes",
        "follower_lag",
        "By",
        "Largest number of bytes of the log that a connected replica does not have.",
    ),
    _Kind("open_files", "open_files", "{file}", "Open queue and index files."),
    _Kind("max_open_files", "max_open_files", "{file}", "Maximum number of queue and index files that stay open."),
)

_QUOTA = (
    _Kind(
        "max_messages",
        "topic.max_messages",
        "{message}",
        "Maximum number of messages of the topic; missing without a quota.",
    ),
    _Kind("messages", "topic.messages", "{message}", "Messages of the topic in the log; missing without a quota."),
)

_QUEUE = (
    _Kind("min_offset", "queue.min_offset", "{message}", "First offset of the queue that can be read."),
    _Kind("max_offset", "queue.max_offset", "{message}", "One past the last offset of the queue that can be read."),
    _Kind(
        "min_store_timestamp",
        "queue.min_store_timestamp",
        "s",
        "Store time of the first message of the queue, in seconds since 1970; missing for an empty queue.",
        scale=1000,
    ),
    _Kind(
        "max_store_timestamp",
        "queue.max_store_timestamp",
        "s",
        "Store time of the last message of the queue, in seconds since 1970; missing for an empty queue.",
        scale=1000,
    ),
)

_GROUP = (_Kind("lag", "group.lag", "{message}", "Messages of the topic from the group's offset to the end."),)

_WORK = (
    _Kind("ready", "work_queue.ready_messages", "{message}", "Messages of the work queue that a worker can get now."),
    _Kind(
        "leased",
        "work_queue.leased_messages",
        "{message}",
        "Messages of the work queue with a lease that has not ended.",
    ),
    _Kind("delayed", "work_queue.delayed_messages", "{message}", "Messages of the work queue that are due later."),
)

_DEAD = (
    _Kind(
        "dead",
        "group.dead_messages",
        "{message}",
        "Dead letters of the group that were not redriven, including messages that become dead letters.",
    ),
)


# Labels of the rows of queues and groups.
_OWN_LABELS = ("topic", "queue_id", "group")
# Prefix of the dead-letter topic of a group.
_DEAD_LETTERS = "%DLQ%"
# For this time all metrics of OpenTelemetry show the same values of the stores; a collection takes milliseconds.
_FRESH_SECONDS = 1.0

_Rows = dict[str, list[tuple[dict[str, str], float]]]


class _Watch:
    """Stores with their labels, and the collection of their rows."""

    # Pattern of a label's name; None allows any name.
    _LABEL: re.Pattern[str] | None = None

    def __init__(self, queues: bool, groups: bool) -> None:
        self._queues = queues
        self._groups = groups
        # Replaced as a whole, under the lock; a collection reads it without the lock.
        self._watched: tuple[tuple[weakref.ref[Store], dict[str, str]], ...] = ()
        self._changes = threading.Lock()

    def add(self, store: Store, *, labels: Mapping[str, str] | None = None) -> None:
        """Adds another store.

        Args:
            store: an open store. It is referenced weakly: keep your own reference, and close it.
            labels: additional labels. The label `store` is the path of the store, unless it is given here.

        Raises:
            ValueError: another open store has the same labels, or the name of a label is not allowed.
        """
        own = self._labels(store, labels)
        with self._changes:
            live = tuple((ref, names) for ref, names in self._watched if not _is_gone(ref()))
            if any(names == own for _, names in live):
                raise ValueError(f"an open store with the labels {own} exists already: tell them apart with labels=")
            self._watched = (*live, (weakref.ref(store), own))

    def remove(self, store: Store) -> None:
        """Removes a store, if present. A closed store need not be removed."""
        with self._changes:
            self._watched = tuple((ref, names) for ref, names in self._watched if ref() is not store)

    def _labels(self, store: Store, labels: Mapping[str, str] | None) -> dict[str, str]:
        from mqstore._store import Store

        if not isinstance(store, Store):
            raise TypeError(f"store must be a mqstore.Store, not {type(store).__name__}")
        own = {"store": store.path, **(labels or {})}
        for name, value in own.items():
            if not all(isinstance(part, str) for part in (name, value)):
                raise TypeError(f"labels must be str, not {name!r}: {value!r}")
            if name in _OWN_LABELS:
                raise ValueError(f"the label {name!r} is reserved for the rows of queues and groups")
            if self._LABEL is not None and not self._LABEL.fullmatch(name):
                raise ValueError(
                    f"the label {name!r} is invalid in Prometheus: use letters, digits and _, no digit and no __ first"
                )
        return {name: _text(value) for name, value in own.items()}

    def _kinds(self) -> tuple[_Kind, ...]:
        kinds = _STORE + _QUOTA + _QUEUE if self._queues else _STORE
        return kinds + _GROUP + _WORK + _DEAD if self._groups else kinds

    def _look(self) -> _Rows:
        """Returns the rows of each metric by its name in Prometheus, from one call of `stats` for each store."""
        rows: _Rows = {kind.name: [] for kind in self._kinds()}
        for ref, labels in self._watched:
            store = ref()
            if store is None or store.closed:
                continue
            try:
                found: list[tuple[tuple[_Kind, ...], dict[str, str], object]] = [(_STORE, labels, store.stats())]
                if self._queues:
                    found += [(_QUEUE, {**labels, **queue}, info) for queue, info in _queues_of(store)]
                    quotas = store.quotas().items()
                    found += [(_QUOTA, {**labels, "topic": _text(topic)}, quota) for topic, quota in quotas]
                if self._groups:
                    found += [(kinds, {**labels, **own}, numbers) for kinds, own, numbers in _groups_of(store)]
            except (StoreClosedError, ForkedProcessError):
                continue
            for kinds, names, source in found:
                for kind in kinds:
                    if (value := getattr(source, kind.field)) is not None:
                        number = len(value) if isinstance(value, tuple) else value
                        rows[kind.name].append((names, number / kind.scale))
        return rows


class StoreCollector(_Watch):
    """A collector for `prometheus_client`; docs/metrics.md lists the metrics.

    It does not register itself: call `registry.register(StoreCollector(store))`. A registry accepts one collector; add
    further stores with `add`, so that each metric is described once. If a store cannot be read, a scrape fails with its
    error.

    Args:
        store: an open store. It is referenced weakly: keep your own reference, and close it.
        labels: additional labels. The label `store` is the path of the store, unless it is given here.
        queues: whether to add rows for each queue, with the labels `topic` and `queue_id`, and for each topic with a
            quota. A store with many queues has many such rows.
        groups: whether to add rows for each group and its topics, with the labels `group` and `topic`.

    Raises:
        MissingPackageError: prometheus_client is missing.
        ValueError: the name of a label is not allowed.
    """

    _LABEL = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")

    def __init__(
        self, store: Store, *, labels: Mapping[str, str] | None = None, queues: bool = False, groups: bool = True
    ) -> None:
        from mqstore import _extras

        _extras.module("prometheus_client", "prometheus")
        super().__init__(queues, groups)
        self.add(store, labels=labels)

    def describe(self) -> list[Metric]:
        """Returns the metrics without values; a registry uses them to find duplicates."""
        return [_family(kind, ()) for kind in self._kinds()]

    def collect(self) -> list[Metric]:
        """Returns the metrics of all open stores; each store is read once.

        Raises:
            MQStoreError: a store cannot be read.
        """
        rows = self._look()
        return [_family(kind, rows[kind.name]) for kind in self._kinds() if rows[kind.name]]


class StoreObserver(_Watch):
    """The stores that a meter of OpenTelemetry observes, from `observe`."""

    def __init__(self, queues: bool, groups: bool) -> None:
        super().__init__(queues, groups)
        # Time of the last collection, and its rows for the metrics that were not asked for since.
        self._seen: tuple[float, _Rows] = (0.0, {})

    def _instruments(self, meter: Meter) -> None:
        for kind in self._kinds():
            make = meter.create_observable_counter if kind.counts else meter.create_observable_gauge
            make(f"mqstore.{kind.short_name}", [self._callback(kind)], unit=kind.unit, description=kind.about)

    def _callback(self, kind: _Kind) -> _Callback:
        from opentelemetry.metrics import Observation

        def rows(_options: CallbackOptions) -> Iterable[Observation]:
            return [Observation(value, names) for names, value in self._rows_of(kind.name)]

        return rows

    def _rows_of(self, name: str) -> list[tuple[dict[str, str], float]]:
        # Each metric has its own callback, but all must show one collection: offsets that are read one after the other
        # contradict each other, and each call of `stats` resets the readers' lag. A second request for the same metric
        # starts the next collection. Removing from a dict is atomic: two concurrent collections read the stores once
        # each.
        when, rows = self._seen
        found = rows.pop(name, None)
        if found is None or time.monotonic() - when > _FRESH_SECONDS:
            rows = self._look()
            found = rows.pop(name)
            self._seen = (time.monotonic(), rows)
        return found


def observe(
    store: Store, meter: Meter, *, labels: Mapping[str, str] | None = None, queues: bool = False, groups: bool = True
) -> StoreObserver:
    """Makes a meter of OpenTelemetry observe a store; docs/metrics.md lists the metrics.

    If a meter has two instruments of the same name, OpenTelemetry keeps the first and silently drops the values of the
    second. Call this once for each meter, and add further stores to the returned object.

    Args:
        store: an open store. It is referenced weakly: keep your own reference, and close it.
        meter: a meter of your provider, `provider.get_meter("mqstore")`.
        labels: additional attributes. The attribute `store` is the path of the store, unless it is given here.
        queues: whether to observe each queue, with the attributes `topic` and `queue_id`. A store with many queues has
            many of them.
        groups: whether to observe each group and its topics, with the attributes `group` and `topic`.

    Returns:
        The object to which stores are added and from which they are removed. It need not be kept.

    Raises:
        MissingPackageError: opentelemetry-api is missing.
        ValueError: the name of a label is reserved.
    """
    from mqstore import _extras

    api = _extras.module("opentelemetry.metrics", "opentelemetry")
    if not isinstance(meter, api.Meter):
        raise TypeError(f"meter must be an opentelemetry.metrics.Meter, not {type(meter).__name__}")
    observer = StoreObserver(queues, groups)
    observer.add(store, labels=labels)
    observer._instruments(meter)
    return observer


def _family(kind: _Kind, rows: Iterable[tuple[dict[str, str], float]]) -> Metric:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    rows = list(rows)
    # Missing labels are empty; Prometheus treats both as the same.
    names = list(dict.fromkeys(name for labels, _ in rows for name in labels))
    make = CounterMetricFamily if kind.counts else GaugeMetricFamily
    family = make(kind.name, kind.about, labels=names, unit=_UNITS.get(kind.unit, ""))
    for labels, value in rows:
        family.add_metric([labels.get(name, "") for name in names], value)
    return family


def _queues_of(store: Store) -> Iterator[tuple[dict[str, str], QueueInfo]]:
    for topic in store.topics():
        for queue in _queues_or_none(store, topic):
            yield {"topic": _text(topic), "queue_id": str(queue.queue_id)}, queue


def _groups_of(store: Store) -> Iterator[tuple[tuple[_Kind, ...], dict[str, str], object]]:
    """Yields the numbers of all groups, with their metrics and labels."""
    # The dead letters first: a message that becomes one meanwhile counts twice rather than not at all.
    dead = {
        topic.removeprefix(_DEAD_LETTERS): sum(queue.count for queue in _queues_or_none(store, topic))
        for topic in store.topics()
        if topic.startswith(_DEAD_LETTERS)
    }
    for group, topic, lag in _native.group_lags(store):
        if topic == _DEAD_LETTERS + group:
            # The offset of the group there is the next dead letter that a redrive takes.
            dead[group] = lag
        elif not group.startswith(SYSTEM_GROUPS):
            yield _GROUP, {"group": _text(group), "topic": _text(topic)}, SimpleNamespace(lag=lag)
    for group, topic, ready, delayed, leased, dying in _native.work_counts(store):
        if not group.startswith(SYSTEM_GROUPS):
            counts = SimpleNamespace(ready=ready, leased=leased, delayed=delayed)
            yield _WORK, {"group": _text(group), "topic": _text(topic)}, counts
            dead[group] = dead.get(group, 0) + dying
    for group, count in dead.items():
        yield _DEAD, {"group": _text(group)}, SimpleNamespace(dead=count)


def _queues_or_none(store: Store, topic: str) -> list[QueueInfo]:
    try:
        return store.queues(topic)
    except TopicNotFoundError:
        # The topic was deleted meanwhile.
        return []


def _is_gone(store: Store | None) -> bool:
    return store is None or store.closed


def _text(value: str) -> str:
    """Returns the text for an export: parts that are not Unicode, such as odd bytes in a path, become escapes."""
    return value.encode("utf-8", "backslashreplace").decode()
