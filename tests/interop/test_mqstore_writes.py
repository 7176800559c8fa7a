"""mqstore writes; RocketMQ loads without a complaint, reads, looks up and appends; mqstore reads the new messages."""

from __future__ import annotations

import hashlib
import shutil
from typing import TYPE_CHECKING, Any

import pytest

import mqstore

from .compare import assert_same_store, notes_expected
from .java_rows import JavaMessage, Spec, body_of, canonical_host
from .market import GEOMETRY, Market, Traded, append_and_kill, count_by_queue, java_config
from .scenarios import edge_leftovers, mixed, topic
from .shop import DERIVED, ask

if TYPE_CHECKING:
    from pathlib import Path

    from .shop import Shop, Written
    from .tally import Tally

pytestmark = pytest.mark.interop


@pytest.fixture
def traded(request: pytest.FixtureRequest, market: Market, version: str) -> Traded:
    """Return the directory of the test's ``trade`` marker after both sides used it."""
    marker = request.node.get_closest_marker("trade")
    assert marker is not None, "the test needs a trade marker"
    return market.traded(version, marker.args[0])


def check(traded: Traded, tally: Tally, *, look_ups: bool = True) -> None:
    """RocketMQ reads the messages of mqstore, and mqstore reads the directory after RocketMQ."""
    assert traded.report.complaints() == []
    by_offset = {each.commit_log_offset: each for each in traded.before.log}
    assert len(by_offset) == len(traded.specs) == len(traded.results)
    host = canonical_host(traded.trade.options.get("store_host", "127.0.0.1:10911"))
    for spec, result in zip(traded.specs, traded.results, strict=True):
        seen = by_offset[result["commit_log_offset"]]
        assert asked(spec, result, host, traded.trade.options.get("compression")) == read(seen)
        tally.messages += 1
    for queue in traded.before.view.queues:
        count = count_by_queue(traded.results)[queue.topic, queue.queue_id]
        assert (queue.min_offset, queue.max_offset, queue.messages) == (0, count, count), queue
    assert len(traded.after.log) == len(traded.before.log) + traded.java_puts
    assert_same_store(traded.path, traded.after, tally, look_ups=look_ups)
    assert mqstore.verify(traded.path).ok


def asked(spec: Spec, result: dict[str, Any], host: str, compression: str | None) -> dict[str, Any]:
    """Return the expected fields of a message, from its specification and mqstore's result."""
    body = body_of(spec)
    # The flags of RocketMQ's `MessageSysFlag` and `CompressionType`; the default of `compress_over` is 4 KiB.
    packed = {None: 0, "lz4": 0x101, "zstd": 0x201, "zlib": 0x301}[compression if len(body) >= 4096 else None]
    return {
        **result,
        "flag": spec.get("flag", 0),
        "body": (len(body), hashlib.md5(body).hexdigest()),
        "properties": {name: value for name, value in spec["properties"].items() if name != "UNIQ_KEY"},
        "unique_id": spec["properties"].get("UNIQ_KEY", "made"),
        "born_timestamp": spec.get("born_timestamp", "now"),
        "hosts": (host, host),
        "sys_flag": packed | (0x30 if host.startswith("[") else 0),
        "reconsume_times": 0,
    }


def read(seen: JavaMessage) -> dict[str, Any]:
    """Return the same fields of a record as RocketMQ read it."""
    ours = {"__CRC32#", "UNIQ_KEY"}
    return {
        "topic": seen.topic,
        "queue_id": seen.queue_id,
        "queue_offset": seen.queue_offset,
        "commit_log_offset": seen.commit_log_offset,
        "size": seen.size,
        "message_id": seen.message_id,
        "store_timestamp": seen.store_timestamp,
        "flag": seen.flag,
        "body": (seen.body_size, seen.body_md5),
        "properties": {name: value for name, value in seen.properties.items() if name not in ours},
        "unique_id": seen.unique_id if _given(seen) else "made",
        "born_timestamp": "now" if abs(seen.born_timestamp - seen.store_timestamp) < 60_000 else seen.born_timestamp,
        "hosts": (seen.born_host, seen.store_host),
        "sys_flag": seen.sys_flag,
        "reconsume_times": seen.reconsume_times,
    }


def _given(seen: JavaMessage) -> bool:
    """Tell whether the unique id comes from a scenario. Those have a run of zeros that no generator makes."""
    return seen.unique_id is not None and "0" * 12 in seen.unique_id


@pytest.mark.trade("bulk")
def test_twenty_thousand_messages_in_rolled_segments_and_queues(traded: Traded, tally: Tally) -> None:
    check(traded, tally)
    assert len(traded.specs) >= 20_000
    for folder, least in (("commitlog", 4), ("consumequeue/audit/0", 4), ("index", 3)):
        assert len(list((traded.path / folder).iterdir())) >= least, folder


@pytest.mark.trade("sizes")
def test_empty_and_4_mib_bodies(traded: Traded, tally: Tally) -> None:
    check(traded, tally)


@pytest.mark.trade("edges")
def test_every_fit_at_a_segments_end(traded: Traded, tally: Tally) -> None:
    check(traded, tally)
    left = edge_leftovers([(each.commit_log_offset, each.size) for each in traded.before.log])
    assert left >= set(range(8, 48))


@pytest.mark.trade("text")
def test_unicode_keys_tags_properties_and_odd_hashes(traded: Traded, tally: Tally) -> None:
    check(traded, tally)


@pytest.mark.trade("long_topics")
def test_retry_topics_longer_than_127_characters(traded: Traded, tally: Tally) -> None:
    check(traded, tally)


@pytest.mark.trade("record_crc")
def test_property_crc_holds_under_forced_verification(traded: Traded, tally: Tally) -> None:
    check(traded, tally)


@pytest.mark.trade("no_record_crc")
def test_without_property_crc(traded: Traded, tally: Tally) -> None:
    check(traded, tally)
    assert not any("__CRC32#" in each.properties for each in traded.before.log)


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=pytest.mark.trade(kind)) for kind in ("zstd", "lz4", "zlib")]
)
def test_compressed_bodies(traded: Traded, kind: str, tally: Tally) -> None:
    """RocketMQ's compressors get back the bodies that mqstore compressed."""
    check(traded, tally)
    packed = [each for each in traded.before.log if each.sys_flag & 1]
    assert packed
    assert all(each.stored_body_size < each.body_size for each in packed), kind


@pytest.mark.trade("ipv6")
def test_ipv6_store_host(traded: Traded, tally: Tally) -> None:
    check(traded, tally)


@pytest.mark.trade("sync")
def test_sync_durability(traded: Traded, tally: Tally) -> None:
    check(traded, tally)


@pytest.mark.trade("pooled")
def test_pooled_durability(traded: Traded, tally: Tally) -> None:
    check(traded, tally)


@pytest.mark.trade("manual")
def test_manual_durability(traded: Traded, tally: Tally) -> None:
    check(traded, tally)


@pytest.mark.trade("index_tags")
def test_index_with_tag_entries(traded: Traded, version: str, tally: Tally) -> None:
    """5.5.0 finds messages by the tags that mqstore indexed. The entries do not disturb 5.3.3."""
    tag_queries = [(query, found) for query, found in traded.after.keys if query.kind == "T"]
    traded.after.keys = [(query, found) for query, found in traded.after.keys if query.kind is None]
    check(traded, tally)
    for query, found in tag_queries:
        truth = {each.commit_log_offset for each in traded.after.log if (each.topic, each.tags) == query[:2]}
        assert truth, query
        assert truth <= set(found), query
        tally.keys += 1
    assert bool(tag_queries) == (version >= "5.5")


@pytest.mark.trade("killed")
def test_killed_without_close(traded: Traded, tally: Tally) -> None:
    """RocketMQ recovers the directory of a killed mqstore. It drops newer index files, so its look-ups by key are
    compared only from the file where its recovery starts. mqstore still finds everything."""
    assert not traded.report.was_clean
    check(traded, tally)


@pytest.mark.parametrize("durability", ["sync", "async", "manual", "pooled"])
def test_killed_in_every_mode(durability: str, shop: Shop, version: str, tmp_path: Path, tally: Tally) -> None:
    """Killed in the middle of its appends: RocketMQ finds the records that the mode promises, and continues
    after them."""
    path = tmp_path / "store"
    topics = {"k": topic(2)}
    with mqstore.open(path, "create", **GEOMETRY) as store:
        store.create_topic("k", 2)
    options = {**GEOMETRY, "durability": durability}
    results = append_and_kill(path, mixed({"k": 2}, 3000, "mode"), options, after=1500)
    java = shop.session(version).open(path, config=java_config({}), topics=topics)
    assert java.report.complaints() == []
    found = {each.commit_log_offset: each for each in java.read().messages}
    kept = [result for result in results if result["commit_log_offset"] in found]
    # Pooled records may be lost from one point on. All others were acknowledged and are present.
    assert results[: len(kept)] == kept
    assert durability == "pooled" or len(kept) == len(results)
    for result in kept:
        seen = found[result["commit_log_offset"]]
        assert (seen.queue_id, seen.queue_offset) == (result["queue_id"], result["queue_offset"])
    puts = java.put([{"topic": "k", "queue_id": n % 2, "body": "on"} for n in range(10)])
    assert min(put.commit_log_offset for put in puts) > max(found, default=-1)
    java.close()
    with mqstore.open(path, "rw") as store:
        assert sum(queue.max_offset for queue in store.queues("k")) == len(found) + len(puts)
    assert mqstore.verify(path).ok
    tally.messages += len(found) + len(puts)


@pytest.mark.scenario("lagging")
def test_mqstore_rebuilds_what_rocketmq_cannot(written: Written, shop: Shop, tmp_path: Path, tally: Tally) -> None:
    """Queues lost over more than ten segments: 5.5.0 looks at only ten, until mqstore has had the directory open."""
    path = tmp_path / "store"
    session = shop.session(written.version)
    geometry: dict[str, Any] = {"queue_file_entries": 500, "index_slots": 3000, "index_entries": 12_000}
    config = java_config({"segment_size": 128 * 1024, **geometry})
    java = session.open(path, config=config, topics=written.scenario.topics, write_topics=True)
    java.put([spec for burst in written.scenario.bursts() for spec in burst])
    expected = ask(java)
    java.close()
    assert len(list((path / "commitlog").iterdir())) > 12
    for name in (*DERIVED, "checkpoint"):
        if (path / name).is_dir():
            shutil.rmtree(path / name)
        else:
            (path / name).unlink(missing_ok=True)
    with notes_expected():
        mqstore.open(path, "rw", **geometry).close()
    java = session.open(path, config=config, topics=written.scenario.topics)
    assert java.report.complaints() == []
    rebuilt = ask(java)
    assert rebuilt == expected
    tally.messages += len(rebuilt.view.messages)
    tally.queues += len(rebuilt.view.queues)
    tally.keys += len(rebuilt.keys)
    tally.times += len(rebuilt.times)


def test_an_empty_store_and_an_untouched_topic(shop: Shop, version: str, tmp_path: Path, tally: Tally) -> None:
    """An empty store of mqstore: RocketMQ loads it and starts at offset 0."""
    path = tmp_path / "store"
    with mqstore.open(path, "create", **GEOMETRY) as store:
        store.create_topic("empty", 3)
    java = shop.session(version).open(path, config=java_config({}), topics={"empty": topic(3)})
    # Logged for every store without a record.
    nothing = "The commitlog files are deleted, and delete the consume queue files"
    assert [line for line in java.report.complaints() if line.message != nothing] == []
    puts = java.put([{"topic": "empty", "queue_id": n % 3, "body": ""} for n in range(9)])
    assert [put.queue_offset for put in puts] == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    tally.messages += len(java.read().messages)


def expired(path: Path, folders: tuple[Path, ...] = ()) -> int:
    """Write segments with mqstore, delete the oldest ones, and return the new start of the log."""
    small: dict[str, Any] = {
        "segment_size": 16 * 1024,
        "queue_file_entries": 20,
        "index_slots": 30,
        "index_entries": 90,
    }
    rule: dict[str, Any] = {"retention_bytes": 5 * 16 * 1024, "commit_log_paths": folders}
    rule["advanced"] = mqstore.BrokerOptions(delete_interval=0)
    with mqstore.open(path, "create", **small, **rule) as store:
        store.create_topic("kept", 3)
        store.create_topic("gone", 1)
        for number in range(30):
            store.append("gone", bytes(400), keys=f"gone-{number}")
        number = 0
        while store.stats().segments < 12:
            store.append("kept", bytes(400), keys=f"key-{number}", tags="t", queue_id=number % 3)
            number += 1
        report = store.expire(dry_run=False)
        assert report.segments == 7
        assert {file.kind for file in report.files} == {"segment", "queue", "index"}
    return report.log_min_offset


@pytest.mark.parametrize("spread", [False, True], ids=["one_folder", "three_folders"])
def test_rocketmq_goes_on_after_an_expiry(shop: Shop, version: str, tmp_path: Path, tally: Tally, spread: bool) -> None:
    """The deletion by mqstore is no loss for RocketMQ: it starts, reads from the same minimum, and appends.

    The same with a log in several folders, which RocketMQ continues to fill in turn.
    """
    path = tmp_path / "store"
    folders = tuple(tmp_path / name for name in ("disk-b", "disk-a", "disk-c")) if spread else ()
    log_min = expired(path, folders)
    config = java_config({"segment_size": 16 * 1024, "queue_file_entries": 20, "index_slots": 30, "index_entries": 90})
    if spread:
        config["storePathCommitLog"] = ",".join(map(str, folders))
    session = shop.session(version)
    java = session.open(path, config=config, topics={"kept": topic(3), "gone": topic(1)})
    assert java.report.complaints() == []
    assert java.report.min_physical == log_min
    before = ask(java)
    assert min(each.commit_log_offset for each in before.log) == log_min
    ends = {(queue.topic, queue.queue_id): queue.max_offset for queue in before.view.queues}
    assert ends["gone", 0] == 30, "a queue without messages goes on where it was"
    more = [{"topic": name, "queue_id": 0, "body": "eHh4" * 500} for name in ("gone", *["kept"] * 20)]
    puts = java.put(more)
    assert [put.queue_offset for put in puts] == [30, *range(ends["kept", 0], ends["kept", 0] + 20)]
    java.await_dispatch()
    after = ask(java)
    java.close()
    assert_same_store(path, after, tally)
    if spread:
        used = [sum(each.is_file() for each in folder.iterdir()) for folder in folders]
        assert min(used) >= 2, used
    assert mqstore.verify(path).ok


def test_rocketmq_follows_the_links_of_derived_path(shop: Shop, version: str, tmp_path: Path, tally: Tally) -> None:
    """RocketMQ reads and extends queues and index on another disk, and keeps the links."""
    path, disk = tmp_path / "store", tmp_path / "disk"
    sizes: dict[str, Any] = {
        "segment_size": 16 * 1024,
        "queue_file_entries": 20,
        "index_slots": 30,
        "index_entries": 90,
    }
    with mqstore.open(path, "create", derived_path=disk, **sizes) as store:
        store.create_topic("orders", 3)
        for number in range(100):
            store.append("orders", bytes(400), keys=f"key-{number}", tags="t", queue_id=number % 3)
    java = shop.session(version).open(path, config=java_config(sizes), topics={"orders": topic(3)})
    # RocketMQ logs that the name `.mqstore` in the folder of the index is no index file.
    assert [line for line in java.report.complaints() if ".mqstore" not in line.message] == []
    assert len(ask(java).log) == 100
    puts = java.put([{"topic": "orders", "queue_id": n % 3, "body": "eHh4" * 100} for n in range(60)])
    assert {put.queue_offset for put in puts} == {*range(33, 54)}
    java.await_dispatch()
    after = ask(java)
    java.close()
    assert_same_store(path, after, tally)
    for name in ("consumequeue", "index"):
        assert (path / name).readlink() == disk / name
    assert len(list((disk / "consumequeue" / "orders" / "0").iterdir())) == 3
    with mqstore.open(path, "rw", derived_path=disk) as store:
        assert store.count("orders") == 160
    assert mqstore.verify(path).ok
