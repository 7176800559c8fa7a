"""What an open store counts, for Prometheus and OpenTelemetry; both are optional.

::

    from prometheus_client import CollectorRegistry
    from mqstore.metrics import StoreCollector

    registry = CollectorRegistry()
    registry.register(StoreCollector(store))

This file owns the names, kinds and units of the metrics. It reads nothing but `Store.stats`, `Store.topics` and
`Store.queues`, and only when it is asked: no thread, nothing registered anywhere, no state outside the objects that it
makes. It refers to stores weakly, so that a store lives as long as without it; one that is closed, forgotten, or was
opened before a fork that led to this process has no rows. Collecting takes no lock that a fork could leave locked.
"""

from __future__ import annotations

import re
import threading
import time
import weakref
from typing import TYPE_CHECKING, NamedTuple

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
    """A metric."""

    field: str
    """The field of `StoreStats`, `TopicQuota` or `QueueInfo` that it shows."""
    name: str
    """Its name in Prometheus."""
    other_name: str
    """Its name in OpenTelemetry, where units stand beside names."""
    unit: str
    """As OpenTelemetry writes units."""
    about: str
    scale: float = 1
    """What the field is divided by."""

    @property
    def counts(self) -> bool:
        """Whether it is a counter: it only grows while the store is open."""
        return self.name.endswith("_total")


_STORE = (
    _Kind(
        "appends",
        "mqstore_appended_messages_total",
        "mqstore.appended_messages",
        "{message}",
        "Messages appended since the open.",
    ),
    _Kind(
        "appended_bytes",
        "mqstore_appended_bytes_total",
        "mqstore.appended_bytes",
        "By",
        "Bytes of the records appended since the open.",
    ),
    _Kind(
        "refused_appends",
        "mqstore_refused_appends_total",
        "mqstore.refused_appends",
        "{append}",
        "Appends refused since the open: the store was busy, the disk nearly full, or a quota used up.",
    ),
    _Kind(
        "hot_reads",
        "mqstore_hot_reads_total",
        "mqstore.hot_reads",
        "{record}",
        "Records read near the end of the log since the open, within 40 % of the machine's memory.",
    ),
    _Kind(
        "cold_reads",
        "mqstore_cold_reads_total",
        "mqstore.cold_reads",
        "{record}",
        "Records read from further behind, and so probably from the disk.",
    ),
    _Kind(
        "expired_segments",
        "mqstore_expired_segments_total",
        "mqstore.expired_segments",
        "{segment}",
        "Segments of the log deleted since the open.",
    ),
    _Kind(
        "expired_bytes",
        "mqstore_expired_bytes_total",
        "mqstore.expired_bytes",
        "By",
        "Bytes of files deleted since the open, queue and index files included.",
    ),
    _Kind(
        "log_min_offset", "mqstore_log_min_offset_bytes", "mqstore.log_min_offset", "By", "The first byte of the log."
    ),
    _Kind(
        "log_max_offset",
        "mqstore_log_max_offset_bytes",
        "mqstore.log_max_offset",
        "By",
        "One past the last byte of the log that can be read.",
    ),
    _Kind(
        "durable_offset",
        "mqstore_durable_offset_bytes",
        "mqstore.durable_offset",
        "By",
        "One past the last byte of the log that a sync covers.",
    ),
    _Kind(
        "dispatched_offset",
        "mqstore_dispatched_offset_bytes",
        "mqstore.dispatched_offset",
        "By",
        "How far in the log queues and index are built.",
    ),
    _Kind(
        "reader_lag_bytes",
        "mqstore_reader_lag_bytes",
        "mqstore.reader_lag",
        "By",
        "How far behind the end the farthest cold read was since the figures were asked for last, or 0.",
    ),
    _Kind("segments", "mqstore_segments", "mqstore.segments", "{segment}", "Segments of the log."),
    _Kind("segment_size", "mqstore_segment_size_bytes", "mqstore.segment_size", "By", "Bytes of a segment."),
    _Kind("log_bytes", "mqstore_log_bytes", "mqstore.log", "By", "Bytes of the log's segments."),
    _Kind(
        "max_bytes",
        "mqstore_max_bytes",
        "mqstore.max",
        "By",
        "How many bytes of segments there may be; missing without a limit.",
    ),
)

_QUOTA = (
    _Kind(
        "max_messages",
        "mqstore_topic_max_messages",
        "mqstore.topic.max_messages",
        "{message}",
        "How many messages the topic may hold; missing without a quota.",
    ),
    _Kind(
        "messages",
        "mqstore_topic_messages",
        "mqstore.topic.messages",
        "{message}",
        "How many messages of the topic are in the log; missing without a quota.",
    ),
)

_QUEUE = (
    _Kind(
        "min_offset",
        "mqstore_queue_min_offset",
        "mqstore.queue.min_offset",
        "{message}",
        "The first offset of the queue that can be read.",
    ),
    _Kind(
        "max_offset",
        "mqstore_queue_max_offset",
        "mqstore.queue.max_offset",
        "{message}",
        "One past the last offset of the queue that can be read.",
    ),
    _Kind(
        "min_store_timestamp",
        "mqstore_queue_min_store_timestamp_seconds",
        "mqstore.queue.min_store_timestamp",
        "s",
        "When the first message of the queue was stored, in seconds since 1970; missing for an empty queue.",
        1000,
    ),
    _Kind(
        "max_store_timestamp",
        "mqstore_queue_max_store_timestamp_seconds",
        "mqstore.queue.max_store_timestamp",
        "s",
        "When the last message of the queue was stored, in seconds since 1970; missing for an empty queue.",
        1000,
    ),
)

# What Prometheus calls the units of OpenTelemetry.
_UNITS = {"By": "bytes", "s": "seconds"}
# What rows of queues are told apart by.
_QUEUE_LABELS = ("topic", "queue_id")
# Within this time all metrics of OpenTelemetry show the same look at the stores: a collection takes milliseconds.
_FRESH_SECONDS = 1.0

_Rows = dict[str, list[tuple[dict[str, str], float]]]


class _Watch:
    """Some stores, each with its labels, and what there is to say of them."""

    # What a label's name has to look like; None: like anything.
    _LABEL: re.Pattern[str] | None = None

    def __init__(self, queues: bool) -> None:
        self._queues = queues
        # Replaced as a whole, under the lock; those who collect take what there is.
        self._watched: tuple[tuple[weakref.ref[Store], dict[str, str]], ...] = ()
        self._changes = threading.Lock()

    def add(self, store: Store, *, labels: Mapping[str, str] | None = None) -> None:
        """Also shows another store.

        Args:
            store: an open store. It is only referred to weakly: keep it, and close it, as without metrics.
            labels: what tells it apart, besides the label `store`, which is its path unless it is given here.

        Raises:
            ValueError: another open store has the same labels, or a label's name is not allowed.
        """
        own = self._labels(store, labels)
        with self._changes:
            live = tuple((ref, names) for ref, names in self._watched if not _is_gone(ref()))
            if any(names == own for _, names in live):
                msg = f"an open store with the labels {own} is there already: tell them apart with labels="
                raise ValueError(msg)
            self._watched = (*live, (weakref.ref(store), own))

    def remove(self, store: Store) -> None:
        """Shows a store no more; nothing happens where it was not shown. A closed store need not be removed."""
        with self._changes:
            self._watched = tuple((ref, names) for ref, names in self._watched if ref() is not store)

    def _labels(self, store: Store, labels: Mapping[str, str] | None) -> dict[str, str]:
        from mqstore._store import Store

        if not isinstance(store, Store):
            msg = f"store must be a mqstore.Store, not {type(store).__name__}"
            raise TypeError(msg)
        own = {"store": store.path, **(labels or {})}
        for name, value in own.items():
            if not all(isinstance(part, str) for part in (name, value)):
                msg = f"labels must be str, not {name!r}: {value!r}"
                raise TypeError(msg)
            if name in _QUEUE_LABELS:
                msg = f"the label {name!r} is taken: it tells queues apart"
                raise ValueError(msg)
            if self._LABEL is not None and not self._LABEL.fullmatch(name):
                msg = f"the label {name!r} is no name of Prometheus: letters, digits and _, no digit and no __ in front"
                raise ValueError(msg)
        return {name: _text(value) for name, value in own.items()}

    def _kinds(self) -> tuple[_Kind, ...]:
        return _STORE + _QUOTA + _QUEUE if self._queues else _STORE

    def _look(self) -> _Rows:
        """The rows of each metric by its name in Prometheus, all stores looked at once."""
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
            except (StoreClosedError, ForkedProcessError):
                continue
            for kinds, names, source in found:
                for kind in kinds:
                    if (value := getattr(source, kind.field)) is not None:
                        rows[kind.name].append((names, value / kind.scale))
        return rows


class StoreCollector(_Watch):
    """A collector of `prometheus_client` that shows what stores count; see docs/metrics.md for the metrics.

    It registers itself nowhere: `registry.register(StoreCollector(store))`. A registry takes one; further stores are
    added to it with `add`, so that each metric is described once. A scrape fails with the error of a store that
    cannot be looked at.

    Args:
        store: an open store. It is only referred to weakly: keep it, and close it, as without metrics.
        labels: what tells it apart, besides the label `store`, which is its path unless it is given here.
        queues: whether each queue has rows of its own, labelled `topic` and `queue_id`, and each topic with a quota.
            A store with many queues has many such rows.

    Raises:
        ImportError: prometheus_client is missing.
        ValueError: a label's name is not allowed.
    """

    _LABEL = re.compile(r"(?!__)[a-zA-Z_][a-zA-Z0-9_]*")

    def __init__(self, store: Store, *, labels: Mapping[str, str] | None = None, queues: bool = False) -> None:
        from mqstore import _extras

        _extras.module("prometheus_client", "prometheus")
        super().__init__(queues)
        self.add(store, labels=labels)

    def describe(self) -> list[Metric]:
        """The metrics without values; how a registry finds out that two collectors show the same."""
        return [_family(kind, ()) for kind in self._kinds()]

    def collect(self) -> list[Metric]:
        """The metrics of all stores that are open, from one look at each.

        Raises:
            MQStoreError: a store cannot be looked at.
        """
        rows = self._look()
        return [_family(kind, rows[kind.name]) for kind in self._kinds() if rows[kind.name]]


class StoreObserver(_Watch):
    """The stores that a meter of OpenTelemetry observes; made by `observe`."""

    def __init__(self, queues: bool) -> None:
        super().__init__(queues)
        # When the stores were looked at, and the rows of the metrics that have not been asked for since.
        self._seen: tuple[float, _Rows] = (0.0, {})

    def _instruments(self, meter: Meter) -> None:
        for kind in self._kinds():
            make = meter.create_observable_counter if kind.counts else meter.create_observable_gauge
            make(kind.other_name, [self._callback(kind)], unit=kind.unit, description=kind.about)

    def _callback(self, kind: _Kind) -> _Callback:
        from opentelemetry.metrics import Observation

        def rows(_options: CallbackOptions) -> Iterable[Observation]:
            return [Observation(value, names) for names, value in self._rows_of(kind.name)]

        return rows

    def _rows_of(self, name: str) -> list[tuple[dict[str, str], float]]:
        # Each metric has a callback of its own, but all show one look: offsets that are taken one after the other
        # contradict each other, and a look ends the time that the readers' lag speaks of. Whoever asks for a metric
        # twice begins the next collection. Taking from a dict is atomic: two who collect at once get a look each.
        when, rows = self._seen
        found = rows.pop(name, None)
        if found is None or time.monotonic() - when > _FRESH_SECONDS:
            rows = self._look()
            found = rows.pop(name)
            self._seen = (time.monotonic(), rows)
        return found


def observe(
    store: Store, meter: Meter, *, labels: Mapping[str, str] | None = None, queues: bool = False
) -> StoreObserver:
    """Has a meter of OpenTelemetry observe what a store counts; see docs/metrics.md for the metrics.

    OpenTelemetry keeps the first of two instruments of the same name and drops the other one's values in silence:
    call this once a meter, and add further stores to what it returns.

    Args:
        store: an open store. It is only referred to weakly: keep it, and close it, as without metrics.
        meter: of a provider of yours, `provider.get_meter("mqstore")`.
        labels: attributes that tell the store apart, besides `store`, which is its path unless it is given here.
        queues: whether each queue is observed, with the attributes `topic` and `queue_id`. A store with many queues
            has many of them.

    Returns:
        What stores are added to and removed from. It need not be kept.

    Raises:
        ImportError: opentelemetry-api is missing.
        ValueError: a label's name is taken.
    """
    from mqstore import _extras

    api = _extras.module("opentelemetry.metrics", "opentelemetry")
    if not isinstance(meter, api.Meter):
        msg = f"meter must be an opentelemetry.metrics.Meter, not {type(meter).__name__}"
        raise TypeError(msg)
    observer = StoreObserver(queues)
    observer.add(store, labels=labels)
    observer._instruments(meter)
    return observer


def _family(kind: _Kind, rows: Iterable[tuple[dict[str, str], float]]) -> Metric:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    rows = list(rows)
    # A label that a store does not have is empty, which is the same to Prometheus.
    names = list(dict.fromkeys(name for labels, _ in rows for name in labels))
    make = CounterMetricFamily if kind.counts else GaugeMetricFamily
    family = make(kind.name, kind.about, labels=names, unit=_UNITS.get(kind.unit, ""))
    for labels, value in rows:
        family.add_metric([labels.get(name, "") for name in names], value)
    return family


def _queues_of(store: Store) -> Iterator[tuple[dict[str, str], QueueInfo]]:
    for topic in store.topics():
        try:
            queues = store.queues(topic)
        except TopicNotFoundError:
            # It went between the two calls.
            continue
        for queue in queues:
            yield {"topic": _text(topic), "queue_id": str(queue.queue_id)}, queue


def _is_gone(store: Store | None) -> bool:
    return store is None or store.closed


def _text(value: str) -> str:
    """As text that can be sent: what is no Unicode, such as odd bytes in a path, is written as an escape."""
    return value.encode("utf-8", "backslashreplace").decode()
