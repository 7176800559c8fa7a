"""RocketMQ writes, mqstore reads: every field of every record, every queue, look-ups by key and time."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

import mqstore

from .compare import assert_same_queues, assert_same_store, notes_expected
from .scenarios import edge_leftovers
from .shop import DERIVED, ask

if TYPE_CHECKING:
    from pathlib import Path

    from .shop import Shop, Written
    from .tally import Tally

pytestmark = pytest.mark.interop


def check(written: Written, tally: Tally) -> None:
    """Compare a directory as RocketMQ left it, and verify it."""
    assert_same_store(written.path, written.answers, tally)
    report = mqstore.verify(written.path)
    assert report.ok, report.problems
    assert report.messages == len(written.answers.log)


@pytest.mark.scenario("bulk")
def test_twenty_thousand_messages_in_rolled_segments_and_queues(written: Written, tally: Tally) -> None:
    check(written, tally)
    assert tally.messages >= 2 * 20_000
    assert tally.keys >= 1000
    assert tally.times >= 1000
    for folder, least in (("commitlog", 4), ("consumequeue/audit/0", 4), ("index", 3)):
        assert len(list((written.path / folder).iterdir())) >= least, folder


@pytest.mark.scenario("sizes")
def test_empty_and_4_mib_bodies(written: Written, tally: Tally) -> None:
    check(written, tally)


@pytest.mark.scenario("edges")
def test_every_fit_at_a_segments_end(written: Written, tally: Tally) -> None:
    check(written, tally)
    left = edge_leftovers([(each.commit_log_offset, each.size) for each in written.answers.log])
    assert left >= set(range(8, 48))


@pytest.mark.scenario("text")
def test_unicode_keys_tags_properties_and_odd_hashes(written: Written, tally: Tally) -> None:
    check(written, tally)


@pytest.mark.scenario("hosts")
def test_ipv4_and_ipv6_hosts(written: Written, tally: Tally) -> None:
    check(written, tally)


@pytest.mark.scenario("long_topics")
def test_retry_topics_longer_than_127_characters(written: Written, tally: Tally) -> None:
    check(written, tally)


@pytest.mark.scenario("batches")
def test_batch_puts(written: Written, tally: Tally) -> None:
    check(written, tally)


@pytest.mark.scenario("inner_batches")
def test_inner_batches_in_batch_queues(written: Written, tally: Tally) -> None:
    """An inner batch is one message. RocketMQ uses different rules for times in batch queues: a time after the last
    unit gives that unit, and the upper boundary may give the first of equal units. So times are compared only in other
    queues."""
    times = [(query, offset) for query, offset in written.answers.times if query.topic == "beside"]
    with notes_expected():
        assert_same_store(written.path, replace(written.answers, times=times), tally)
    assert mqstore.verify(written.path).ok


@pytest.mark.scenario("compressed")
def test_compressed_bodies(written: Written, tally: Tally) -> None:
    check(written, tally)


@pytest.mark.scenario("property_crc")
def test_records_with_the_property_crc(written: Written, tally: Tally) -> None:
    check(written, tally)
    assert all("__CRC32#" in each.properties for each in written.answers.log)


@pytest.mark.scenario("transactions")
def test_half_committed_and_rolled_back_messages(written: Written, tally: Tally) -> None:
    check(written, tally)
    assert len(written.answers.log) > len(written.answers.view.messages)


@pytest.mark.scenario("delayed")
def test_delayed_messages(written: Written, tally: Tally) -> None:
    check(written, tally)


@pytest.mark.scenario("no_index")
def test_a_store_without_index(written: Written, tally: Tally) -> None:
    """RocketMQ finds nothing by key here. mqstore derives the index and finds every record of the log."""
    assert not (written.path / "index").exists()
    with notes_expected():
        assert_same_store(written.path, written.answers, tally, look_ups=False)
        with mqstore.open(written.path) as store:
            for each in written.answers.log[::10]:
                assert each.unique_id is not None
                found = [hit.commit_log_offset for hit in store.lookup(each.topic, each.unique_id)]
                assert found == [each.commit_log_offset]
                tally.keys += 1


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.scenario(n)) for n in ("killed", "killed_sync")])
def test_killed_without_shutdown(shop: Shop, version: str, name: str, tally: Tally) -> None:
    """After a kill, mqstore reads the same as RocketMQ returned just before it."""
    written = shop.written(version, name)
    assert (written.path / "abort").exists()
    assert_same_store(written.path, written.answers, tally)


@pytest.mark.scenario("lagging")
@pytest.mark.parametrize("lost", ["all", "one-topic", "index-only"])
def test_queues_or_index_removed(written: Written, tmp_path: Path, lost: str, tally: Tally) -> None:
    """The log alone is enough. Missing files are derived, and nothing is written."""
    path = tmp_path / "store"
    shutil.copytree(written.path, path)
    if lost == "one-topic":
        shutil.rmtree(path / "consumequeue" / "behind")
    else:
        for name in DERIVED if lost == "all" else ("index",):
            shutil.rmtree(path / name, ignore_errors=True)
    with notes_expected():
        assert_same_store(path, written.answers, tally)


@pytest.mark.scenario("lagging")
def test_commit_log_ahead_of_its_queues(written: Written, tmp_path: Path, tally: Tally) -> None:
    """Queues and index of an earlier moment with the whole log, as after a power loss."""
    assert written.first_queues is not None
    path = tmp_path / "store"
    shutil.copytree(written.path, path, ignore=shutil.ignore_patterns(*DERIVED, "checkpoint"))
    shutil.copytree(written.first_queues, path, dirs_exist_ok=True)
    (path / "abort").touch()
    with notes_expected():
        assert_same_store(path, written.answers, tally)


@pytest.mark.scenario("front_deleted")
def test_front_segments_deleted(written: Written, shop: Shop, tmp_path: Path, tally: Tally) -> None:
    """Retention removed the oldest segments. The queue minima follow the log, as when RocketMQ opens a copy."""
    path, copy = tmp_path / "store", tmp_path / "copy"
    shutil.copytree(written.path, path)
    for segment in sorted((path / "commitlog").iterdir())[:3]:
        segment.unlink()
    shutil.copytree(path, copy)
    java = shop.session(written.version).open(copy, config=written.scenario.config, topics=written.scenario.topics)
    assert java.report.min_physical == 3 * int(str(written.scenario.config["mappedFileSizeCommitLog"]))
    answers = ask(java)
    assert any(queue.min_offset > 0 for queue in answers.view.queues)
    with notes_expected():
        assert_same_store(path, answers, tally)
    with mqstore.open(path) as store, pytest.raises(mqstore.OffsetOutOfRangeError):
        store.read("behind", 0, 0)


@pytest.mark.scenario("bulk")
def test_reading_beside_an_open_rocketmq(written: Written, shop: Shop, tmp_path: Path, tally: Tally) -> None:
    """mqstore reads while RocketMQ has the store open, and is refused as a writer."""
    path = tmp_path / "store"
    shutil.copytree(written.path, path)
    java = shop.session(written.version).open(path, config=written.scenario.config, topics=written.scenario.topics)
    with mqstore.open(path) as store:
        assert_same_queues(store, written.answers, tally)
    with pytest.raises(mqstore.StoreLockedError) as refused:
        mqstore.open(path, "rw")
    assert str(java.session.process.pid) in str(refused.value)
