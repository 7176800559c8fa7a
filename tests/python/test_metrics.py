"""`mqstore.metrics`: the metrics of Prometheus and OpenTelemetry, read with their own libraries."""

from __future__ import annotations

import gc
import os
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import mqstore
import mqstore.testing
from conftest import SMALL, python
from mqstore.metrics import StoreCollector, StoreObserver, observe

PAGE = Path(__file__).parents[2] / "docs/metrics.md"
COUNTERS = {
    "appends": "mqstore_appended_messages_total",
    "appended_bytes": "mqstore_appended_bytes_total",
    "refused_appends": "mqstore_refused_appends_total",
    "skipped_damage": "mqstore_skipped_damage_total",
    "hot_reads": "mqstore_hot_reads_total",
    "cold_reads": "mqstore_cold_reads_total",
    "paced_reads": "mqstore_paced_reads_total",
    "paced_read_ms": "mqstore_paced_read_seconds_total",
    "expired_segments": "mqstore_expired_segments_total",
    "expired_bytes": "mqstore_expired_bytes_total",
}
GAUGES = {
    "held_files": "mqstore_held_files",
    "segments_kept_by": "mqstore_segment_holders",
    "log_min_offset": "mqstore_log_min_offset_bytes",
    "log_max_offset": "mqstore_log_max_offset_bytes",
    "durable_offset": "mqstore_durable_offset_bytes",
    "dispatched_offset": "mqstore_dispatched_offset_bytes",
    "reader_lag_bytes": "mqstore_reader_lag_bytes",
    "segments": "mqstore_segments",
    "segment_size": "mqstore_segment_size_bytes",
    "log_bytes": "mqstore_log_bytes",
    "max_bytes": "mqstore_max_bytes",
    "followers": "mqstore_followers",
    "in_sync_copies": "mqstore_in_sync_copies",
    "needed_copies": "mqstore_needed_copies",
    "replicated_offset": "mqstore_replicated_offset_bytes",
    "follower_lag_bytes": "mqstore_follower_lag_bytes",
    "open_files": "mqstore_open_files",
    "max_open_files": "mqstore_max_open_files",
}
STORE = {**COUNTERS, **GAUGES}

MASTER = mqstore.Master(listen="127.0.0.1:0")

Sample = tuple[str, frozenset[tuple[str, str]]]


@pytest.fixture
def prometheus() -> Any:
    return pytest.importorskip("prometheus_client", reason="prometheus-client is not installed")


@pytest.fixture
def registry(prometheus: Any) -> Any:
    return prometheus.CollectorRegistry()


@pytest.fixture
def metrics_sdk() -> Any:
    return pytest.importorskip("opentelemetry.sdk.metrics", reason="opentelemetry-sdk is not installed")


@pytest.fixture
def reader(metrics_sdk: Any) -> Any:
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    return InMemoryMetricReader()


@pytest.fixture
def provider(metrics_sdk: Any, reader: Any) -> Iterator[Any]:
    made = metrics_sdk.MeterProvider([reader], shutdown_on_exit=False)
    yield made
    made.shutdown()


def scraped(registry: Any) -> dict[Sample, float]:
    """The samples that a server reads, in both formats, by the libraries' own parsers. The second parser is strict."""
    from prometheus_client import exposition, parser
    from prometheus_client.openmetrics import exposition as open_exposition
    from prometheus_client.openmetrics import parser as open_parser

    # One collection for both formats, because the values may change before the next one.
    families = list(registry.collect())
    once: Any = SimpleNamespace(collect=lambda: families)
    plain = exposition.generate_latest(once).decode()
    strict = open_exposition.generate_latest(once).decode()
    described = re.findall("^# TYPE (.*)", plain, re.MULTILINE)
    assert len(described) == len(set(described))
    found = samples(parser.text_string_to_metric_families(plain))
    assert samples(open_parser.text_string_to_metric_families(strict)) == found
    return found


def samples(families: Any) -> dict[Sample, float]:
    rows = [((one.name, frozenset(one.labels.items())), one.value) for family in families for one in family.samples]
    assert len(rows) == len(dict(rows))
    return dict(rows)


def observed(reader: Any) -> dict[Sample, float]:
    """The values that an exporter of OpenTelemetry gets."""
    data = reader.get_metrics_data()
    if data is None:
        return {}
    return {
        (metric.name, frozenset(point.attributes.items())): point.value
        for resource in data.resource_metrics
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    }


def labels(**names: str) -> frozenset[tuple[str, str]]:
    return frozenset(names.items())


def test_every_field_of_stats_is_exported(registry: Any, store: mqstore.Store) -> None:
    registry.register(StoreCollector(store))
    store.create_topic("orders", queues=2)
    for number in range(30):
        store.append("orders", b"x" * number)
    store.flush()
    assert len(list(store.read("orders", 0))) == 15
    stats = store.stats().to_dict()
    assert set(stats) == set(STORE)
    assert stats["appends"] == 30
    assert stats["hot_reads"] == 15
    assert stats["durable_offset"] == stats["log_max_offset"] == stats["appended_bytes"]
    # There is no limit.
    assert stats.pop("max_bytes") is None
    assert stats.pop("replicated_offset") is None
    for name in ("held_files", "segments_kept_by"):
        assert stats.pop(name) == []
        stats[name] = 0
    assert scraped(registry) == {(STORE[name], labels(store=store.path)): value for name, value in stats.items()}


def test_quotas_and_their_use_are_shown(registry: Any, home: Path) -> None:
    with mqstore.open(home, "create", options=SMALL, max_bytes=1 << 20) as store:
        registry.register(StoreCollector(store, queues=True))
        store.create_topic("bounded", queues=2, max_messages=5)
        store.append_many("bounded", [b"x"] * 3)
        store.append("free", b"x")
        found = scraped(registry)
        own = labels(store=store.path)
        assert found["mqstore_log_bytes", own] == store.stats().segments * store.stats().segment_size
        assert found["mqstore_max_bytes", own] == 1 << 20
        quota = {key: value for key, value in found.items() if key[0].startswith("mqstore_topic_")}
        of_topic = own | labels(topic="bounded")
        assert quota == {("mqstore_topic_max_messages", of_topic): 5, ("mqstore_topic_messages", of_topic): 3}


def test_counters_count_and_units_are_told(registry: Any, prometheus: Any, store: mqstore.Store) -> None:
    registry.register(StoreCollector(store, queues=True))
    store.append("orders", b"x")
    for _ in range(3):
        store.append("orders", b"x")
        families = {family.name: family for family in registry.collect()}
        counter = families["mqstore_appended_messages"]
        assert [one.value for one in counter.samples] == [store.stats().appends]
    for name, family in families.items():
        assert family.type == ("counter" if f"{name}_total" in COUNTERS.values() else "gauge"), name
        unit = next((unit for unit in ("bytes", "seconds") if name.endswith(f"_{unit}")), "")
        assert family.unit == unit, name
        assert family.documentation.endswith("."), name


def test_expired_files_are_counted(registry: Any, home: Path) -> None:
    with mqstore.open(home, "create", options=SMALL, retention_bytes=64 << 10) as store:
        registry.register(StoreCollector(store))
        for _ in range(200):
            store.append("orders", b"x" * 1000)
        store.flush()
        report = store.expire(dry_run=False)
        found = scraped(registry)
        own = labels(store=store.path)
        assert found["mqstore_expired_segments_total", own] == sum(file.kind == "segment" for file in report.files) > 0
        assert found["mqstore_expired_bytes_total", own] == sum(file.bytes for file in report.files)
        assert found["mqstore_log_min_offset_bytes", own] == store.stats().log_min_offset > 0


def dead_letter(store: mqstore.Store) -> None:
    """Makes the work queue "jobs" of "mailers": one dead, one leased, one delayed and two ready messages."""
    queue = store.work_queue("jobs", "mailers", max_attempts=1)
    queue.put_many([b"x"] * 5)
    queue.nack(queue.get())
    queue.get()
    with store.work_queue("jobs", "slow") as other:
        other.nack(other.get(), delay=3600)


def test_groups_have_rows(registry: Any, home: Path) -> None:
    clock = mqstore.testing.ManualClock()
    with mqstore.testing.open(home, clock=clock) as store:
        dead_letter(store)
        store.append_many("orders", [b"x"] * 7)
        with store.consumer("billing", "orders") as consumer:
            consumer.commit({("orders", 0): 4})
        registry.register(StoreCollector(store))

        def rows(prefix: str) -> dict[tuple[str, ...], float]:
            return {
                (name.removeprefix(prefix), *(value for label, value in sorted(own) if label != "store")): number
                for (name, own), number in scraped(registry).items()
                if name.startswith(prefix)
            }

        assert rows("mqstore_group_") == {
            ("lag", "billing", "orders"): 3,
            ("lag", "mailers", "jobs"): 4,
            ("lag", "slow", "jobs"): 5,
            ("dead_messages", "mailers"): 1,
            ("dead_messages", "slow"): 0,
        }
        work = {
            ("ready_messages", "mailers", "jobs"): 3,
            ("leased_messages", "mailers", "jobs"): 1,
            ("delayed_messages", "mailers", "jobs"): 0,
            ("ready_messages", "slow", "jobs"): 4,
            ("leased_messages", "slow", "jobs"): 0,
            ("delayed_messages", "slow", "jobs"): 1,
        }
        assert rows("mqstore_work_queue_") == work
        # The lease ends, and the delayed message is due.
        clock.advance(3601)
        ready = {("ready_messages", "mailers", "jobs"): 4, ("leased_messages", "mailers", "jobs"): 0,
                 ("ready_messages", "slow", "jobs"): 5, ("delayed_messages", "slow", "jobs"): 0}  # fmt: skip
        assert rows("mqstore_work_queue_") == work | ready
        with store.work_queue("jobs", "mailers", max_attempts=1) as queue:
            queue.redrive()
        assert rows("mqstore_group_")["dead_messages", "mailers"] == 0
        silent = StoreCollector(store, groups=False)
        assert not [family for family in silent.collect() if "group" in family.name]
    # A store that is open for reading has the same rows.
    with mqstore.testing.open(home, "r", clock=clock) as reader:
        collector = StoreCollector(reader)
        families = {family.name: family for family in collector.collect()}
        assert len(families["mqstore_work_queue_ready_messages"].samples) == 2
        assert len(families["mqstore_group_lag"].samples) == 3


def test_the_labels_of_groups_are_reserved(prometheus: Any, store: mqstore.Store) -> None:
    with pytest.raises(ValueError, match="the label 'group' is reserved"):
        StoreCollector(store, labels={"group": "g"})


def queue_rows(store: mqstore.Store) -> dict[Sample, float]:
    """The rows that `queues=True` adds, computed from `Store.queues`."""
    found: dict[Sample, float] = {}
    for topic in store.topics():
        for queue in store.queues(topic):
            own = labels(store=store.path, topic=topic, queue_id=str(queue.queue_id))
            for field in ("min_offset", "max_offset"):
                found[f"mqstore_queue_{field}", own] = getattr(queue, field)
            for field in ("min_store_timestamp", "max_store_timestamp"):
                if (value := getattr(queue, field)) is not None:
                    found[f"mqstore_queue_{field}_seconds", own] = value / 1000
    return found


def test_queues_have_rows_on_request(registry: Any, filled: Path) -> None:
    with mqstore.open(filled, "rw") as store:
        store.create_topic("idle", queues=1)
        registry.register(StoreCollector(store, queues=True))
        found = {sample: value for sample, value in scraped(registry).items() if "_queue_" in sample[0]}
        assert found == queue_rows(store)
        # Two queues of "orders", one of "events", each with two offsets and two times.
        assert len([sample for sample in found if ("topic", "idle") not in sample[1]]) == 3 * 4
        assert found["mqstore_queue_max_offset", labels(store=store.path, topic="orders", queue_id="1")] == 20


def test_an_empty_queue_has_no_times(registry: Any, store: mqstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = [mqstore.QueueInfo(0, 7, 7)]
    monkeypatch.setattr(mqstore.Store, "topics", lambda _: ["t"])
    monkeypatch.setattr(mqstore.Store, "queues", lambda *_: empty)
    registry.register(StoreCollector(store, queues=True))
    names = {name: value for (name, _), value in scraped(registry).items() if "_queue_" in name}
    assert names == {"mqstore_queue_min_offset": 7, "mqstore_queue_max_offset": 7}


def test_a_topic_that_goes_meanwhile_is_left_out(
    registry: Any, store: mqstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.append("orders", b"x")
    monkeypatch.setattr(mqstore.Store, "topics", lambda _: ["gone", "orders"])
    registry.register(StoreCollector(store, queues=True))
    assert {dict(own).get("topic") for _, own in scraped(registry)} == {None, "orders"}


def test_looking_at_queues_is_no_read(registry: Any, store: mqstore.Store) -> None:
    for _ in range(3):
        store.append("orders", b"x")
    registry.register(StoreCollector(store, queues=True))
    own = labels(store=store.path)
    for _ in range(2):
        found = scraped(registry)
        assert found["mqstore_queue_max_offset", own | labels(topic="orders", queue_id="0")] == 3
        assert found["mqstore_hot_reads_total", own] + found["mqstore_cold_reads_total", own] == 0


def test_two_stores_are_told_apart(registry: Any, prometheus: Any, tmp_path: Path) -> None:
    with (
        mqstore.open(tmp_path / "a", "create", options=SMALL) as one,
        mqstore.open(tmp_path / "b", "create", options=SMALL) as two,
    ):
        collector = StoreCollector(one)
        registry.register(collector)
        collector.add(two, labels={"store": "b", "service": "orders"})
        one.append("t", b"x")
        found = scraped(registry)
        # The first store gets an empty label, which Prometheus ignores.
        first, second = labels(store=one.path, service=""), labels(store="b", service="orders")
        assert found["mqstore_appended_messages_total", first] == 1
        assert found["mqstore_appended_messages_total", second] == 0
        assert {own for _, own in found} == {first, second}
        # A second collector is refused in this registry, but can use another one.
        with pytest.raises(ValueError, match="mqstore_appended"):
            registry.register(StoreCollector(two))
        other = prometheus.CollectorRegistry()
        other.register(StoreCollector(two))
        assert {own for _, own in scraped(other)} == {labels(store=two.path)}
        collector.remove(one)
        collector.remove(one)
        assert {own for _, own in scraped(registry)} == {second}


def test_nothing_is_registered_by_itself(prometheus: Any, store: mqstore.Store) -> None:
    StoreCollector(store)
    assert b"mqstore" not in prometheus.generate_latest()


def test_a_closed_store_has_no_rows(registry: Any, home: Path) -> None:
    with mqstore.open(home, "create", options=SMALL) as store:
        collector = StoreCollector(store, queues=True)
        registry.register(collector)
        store.append("orders", b"x")
        assert scraped(registry)
    assert scraped(registry) == {}
    assert collector.collect() == StoreCollector(store).collect() == []
    # Its labels are free again.
    with mqstore.open(home) as again:
        collector.add(again)
        assert scraped(registry)["mqstore_log_max_offset_bytes", labels(store=str(home))] > 0
        with pytest.raises(ValueError, match="tell them apart with labels="):
            collector.add(again)


def test_a_store_that_is_closed_while_it_is_looked_at(
    registry: Any, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with mqstore.open(home, "create", options=SMALL) as store:
        store.append("orders", b"x")
        registry.register(StoreCollector(store, queues=True))
        topics = mqstore.Store.topics
        monkeypatch.setattr(mqstore.Store, "topics", lambda self: (self.close(), topics(self))[1])
        assert scraped(registry) == {}


def test_another_error_fails_the_scrape(registry: Any, store: mqstore.Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: object) -> None:
        raise mqstore.CorruptionError("file", 7, "bad")

    registry.register(StoreCollector(store))
    monkeypatch.setattr(mqstore.Store, "stats", fails)
    with pytest.raises(mqstore.CorruptionError):
        list(registry.collect())


def test_metrics_keep_no_store(registry: Any, home: Path) -> None:
    registry.register(StoreCollector(store := mqstore.open(home, "create", options=SMALL)))
    assert scraped(registry)
    with pytest.warns(ResourceWarning, match="was not closed"):
        del store
        gc.collect()
    assert scraped(registry) == {}


FORKED = """
import os, sys
import mqstore
from mqstore.metrics import StoreCollector

with mqstore.open(sys.argv[1]) as store:
    collector = StoreCollector(store)
    assert collector.collect()
    child = os.fork()
    if child == 0:
        os._exit(len(collector.collect()))
    assert os.waitpid(child, 0)[1] == 0
    assert collector.collect()
"""


@pytest.mark.usefixtures("prometheus")
def test_a_forked_child_has_no_rows_of_its_parent(filled: Path) -> None:
    done = python(FORKED, filled)
    assert done.returncode == 0, done.stderr


@pytest.mark.skipif(sys.platform != "linux", reason="file names are any bytes on Linux only")
def test_odd_paths_and_topics_can_be_sent(registry: Any, tmp_path: Path) -> None:
    home = os.fsdecode(os.fsencode(tmp_path) + b'/a\xff"\n')
    with mqstore.open(home, "create", options=SMALL) as store:
        registry.register(StoreCollector(store))
        assert {own for _, own in scraped(registry)} == {labels(store=f'{tmp_path}/a\\udcff"\n')}


@pytest.mark.usefixtures("prometheus")
def test_labels_are_checked(store: mqstore.Store) -> None:
    for name in ("topic", "queue_id", "a-b", "1a", "__a", "ä", "", "a\n"):
        with pytest.raises(ValueError, match="label"):
            StoreCollector(store, labels={name: "x"})
    wrong: Any
    for wrong in ({"a": 1}, {1: "a"}):
        with pytest.raises(TypeError, match="labels must be str"):
            StoreCollector(store, labels=wrong)
    wrong = store.path
    with pytest.raises(TypeError, match=r"store must be a mqstore\.Store, not str"):
        StoreCollector(wrong)


def test_opentelemetry_gets_the_same(provider: Any, reader: Any, registry: Any, filled: Path) -> None:
    with mqstore.open(filled, "rw") as store:
        observer = observe(store, provider.get_meter("mqstore"), labels={"a.b": "c"}, queues=True)
        assert isinstance(observer, StoreObserver)
        store.append("orders", b"x")
        store.flush()
        names = {prometheus: other for prometheus, other, *_ in table()}
        # Reading the rows of the queues opens their files, which the store then counts.
        queues = queue_rows(store)
        wanted: dict[Sample, float] = {
            (STORE[field], labels(store=store.path)): len(value) if isinstance(value, list) else value
            for field, value in store.stats().to_dict().items()
            if value is not None
        }
        wanted |= queues
        registry.register(StoreCollector(store, queues=True))
        found = scraped(registry)
        # Reading queue metrics does not count as a read.
        assert wanted["mqstore_hot_reads_total", labels(store=store.path)] == 0
        assert found == wanted
        assert observed(reader) == {
            (names[name], own | labels(**{"a.b": "c"})): value for (name, own), value in wanted.items()
        }
    assert observed(reader) == {}


def test_two_stores_are_observed_apart(provider: Any, reader: Any, tmp_path: Path) -> None:
    with (
        mqstore.open(tmp_path / "a", "create", options=SMALL) as one,
        mqstore.open(tmp_path / "b", "create", options=SMALL) as two,
    ):
        observer = observe(one, provider.get_meter("mqstore"))
        observer.add(two)
        one.append("t", b"x")
        found = observed(reader)
        assert found["mqstore.appended_messages", labels(store=one.path)] == 1
        assert found["mqstore.appended_messages", labels(store=two.path)] == 0
        observer.remove(two)
        assert {own for _, own in observed(reader)} == {labels(store=one.path)}


def test_a_collection_is_one_look(
    provider: Any, reader: Any, store: mqstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise, offsets of one collection contradict each other, and only the first reader gets the lag."""
    looks = []
    stats = mqstore.Store.stats

    def counted(self: mqstore.Store) -> mqstore.StoreStats:
        store.append("t", b"x")
        store.flush()
        looks.append(stats(self))
        return looks[-1]

    monkeypatch.setattr(mqstore.Store, "stats", counted)
    observe(store, provider.get_meter("mqstore"))
    own = labels(store=store.path)
    for turn in range(1, 4):
        found = observed(reader)
        assert len(looks) == turn
        for name in ("log_max_offset", "durable_offset", "dispatched_offset"):
            assert found[f"mqstore.{name}", own] == getattr(looks[-1], name)


def test_what_nobody_asked_for_does_not_grow_old(
    provider: Any, reader: Any, store: mqstore.Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("mqstore.metrics.time.monotonic", lambda: now[0])
    observer = observe(store, provider.get_meter("mqstore"))
    observer._rows_of("mqstore_segments")
    store.append("t", b"x")
    # Within a second, the earlier values. Later, new ones.
    assert observer._rows_of("mqstore_appended_messages_total")[0][1] == 0
    observer._rows_of("mqstore_segments")
    store.append("t", b"x")
    now[0] += 1.5
    assert observer._rows_of("mqstore_appended_messages_total")[0][1] == 2


def test_several_who_collect_at_once(metrics_sdk: Any, store: mqstore.Store) -> None:
    from opentelemetry.sdk.metrics.export import InMemoryMetricReader

    readers = [InMemoryMetricReader() for _ in range(4)]
    provider = metrics_sdk.MeterProvider(readers, shutdown_on_exit=False)
    observe(store, provider.get_meter("mqstore"))
    errors = []

    def collect(reader: Any) -> None:
        try:
            last = -1.0
            for _ in range(100):
                found = observed(reader)
                # All except the limit, which is not set, and the offset of copies, which are none.
                assert len(found) == len(STORE) - 2
                last, before = found["mqstore.appended_messages", labels(store=store.path)], last
                assert last >= before
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=collect, args=(reader,)) for reader in readers]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        store.append("t", b"x")
    for thread in threads:
        thread.join()
    provider.shutdown()
    assert errors == []


def test_a_meter_is_asked_for(store: mqstore.Store) -> None:
    pytest.importorskip("opentelemetry.metrics", reason="opentelemetry-api is not installed")
    wrong: Any = "meter"
    with pytest.raises(TypeError, match=r"meter must be an opentelemetry\.metrics\.Meter, not str"):
        observe(store, wrong)


@pytest.mark.parametrize(
    ("missing", "call", "extra"),
    [
        ("prometheus_client", "StoreCollector(store)", "prometheus"),
        ("opentelemetry", "observe(store, None)", "opentelemetry"),
        ("opentelemetry.metrics", "observe(store, None)", "opentelemetry"),
    ],
)
def test_without_the_library_the_error_says_what_to_install(filled: Path, missing: str, call: str, extra: str) -> None:
    code = f"""
import sys; sys.modules[{missing!r}] = None
import mqstore
from mqstore.metrics import StoreCollector, observe
with mqstore.open(sys.argv[1]) as store:
    try:
        {call}
    except ImportError as error:
        assert str(error).endswith('pip install "mqstore[{extra}]"'), error
    else:
        raise AssertionError
"""
    done = python(code, filled)
    assert done.returncode == 0, done.stderr


def test_importing_is_light() -> None:
    code = """
import sys, threading
import mqstore
assert "mqstore.metrics" not in sys.modules
import mqstore.metrics
assert not {"prometheus_client", "opentelemetry"} & set(sys.modules)
assert threading.active_count() == 1
"""
    done = python(code)
    assert done.returncode == 0, done.stderr


_ROW = re.compile(
    r"^\| `(mqstore_\w+)` \| `(mqstore\.[\w.]+)` \| (counter|gauge) \| `(\S+)` \| (\S.*) \|$", re.MULTILINE
)


def table() -> list[tuple[str, str, str, str, str]]:
    """The rows of docs/metrics.md: both names, the kind, the unit, the meaning."""
    return _ROW.findall(PAGE.read_text())


def test_the_page_lists_what_prometheus_gets(registry: Any, filled: Path) -> None:
    with mqstore.open(filled, "rw", max_bytes=1 << 40, replication=MASTER) as store:
        store.create_topic("bounded", max_messages=5)
        dead_letter(store)
        registry.register(StoreCollector(store, queues=True))
        exported = {
            (sample.name, family.type, family.unit, family.documentation)
            for family in registry.collect()
            for sample in family.samples
        }
    units = {"By": "bytes", "s": "seconds"}
    listed = {
        (name, kind, units.get(unit, ""), f"{about[0].upper()}{about[1:]}.") for name, _, kind, unit, about in table()
    }
    assert listed == exported
    assert len(table()) == len(listed)


def test_the_page_lists_what_opentelemetry_gets(provider: Any, reader: Any, filled: Path) -> None:
    with mqstore.open(filled, "rw", max_bytes=1 << 40, replication=MASTER) as store:
        store.create_topic("bounded", max_messages=5)
        dead_letter(store)
        observe(store, provider.get_meter("mqstore"), queues=True)
        data = reader.get_metrics_data()
    exported = set()
    for metric in data.resource_metrics[0].scope_metrics[0].metrics:
        kind = "counter" if getattr(metric.data, "is_monotonic", False) else "gauge"
        exported.add((metric.name, kind, metric.unit, metric.description))
    assert exported == {(name, kind, unit, f"{about[0].upper()}{about[1:]}.") for _, name, kind, unit, about in table()}
