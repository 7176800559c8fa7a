"""A store that is restored from an archive: the same segments, and RocketMQ opens it."""

from __future__ import annotations

import filecmp
import shutil
from typing import TYPE_CHECKING

import pytest

import mqstore

from .compare import notes_expected
from .market import GEOMETRY, bounds, opened
from .scenarios import SCENARIOS, topic
from .shop import ask
from .test_repair import assert_delivers, segments

if TYPE_CHECKING:
    from pathlib import Path

    from .shop import Shop, Written
    from .tally import Tally

pytestmark = pytest.mark.interop


@pytest.mark.scenario("front_deleted")
def test_rocketmq_opens_what_was_restored(written: Written, shop: Shop, tmp_path: Path, tally: Tally) -> None:
    """RocketMQ writes the store; its full segments are the same after a restore, with all messages in them."""
    pytest.importorskip("pyarrow")
    with mqstore.open(written.path) as store:
        report = store.archive.run_to(tmp_path / "archive")
    assert report.segments > 1
    restored = tmp_path / "restored"
    geometry = mqstore.info(written.path)
    assert geometry.queue_file_size is not None
    assert geometry.index_slots is not None
    assert geometry.index_entries is not None
    options = mqstore.StoreOptions(
        queue_file_entries=geometry.queue_file_size // 20,
        index_slots=geometry.index_slots,
        index_entries=geometry.index_entries,
    )
    done = mqstore.Archive(tmp_path / "archive").restore(restored, options=options)
    assert done.identical
    assert len(segments(restored)) == report.segments
    for one in segments(restored):
        assert filecmp.cmp(one, written.path / "commitlog" / one.name, shallow=False)
    java = shop.session(written.version).open(restored, config=written.scenario.config, topics=written.scenario.topics)
    assert java.report.complaints() == []
    later = {each.commit_log_offset for each in written.answers.log if each.commit_log_offset >= done.end_log_offset}
    assert_delivers(ask(java), written, later, tally)


ROLLED = [name for name, scenario in SCENARIOS.items() if name != "front_deleted" and not scenario.kill]


@pytest.mark.parametrize("name", ROLLED)
def test_every_kind_of_record_comes_back_with_its_bytes(
    name: str, shop: Shop, version: str, tmp_path: Path, tally: Tally
) -> None:
    """The full segments of each scenario, with every field that RocketMQ writes."""
    pytest.importorskip("pyarrow")
    written = shop.written(version, name)
    source = tmp_path / "source"
    shutil.copytree(written.path, source)
    # A new segment makes the last one full.
    with notes_expected(), mqstore.open(source, "rw") as store:
        roll(store, mqstore.info(source).segment_size)
        report = store.archive.run_to(tmp_path / "archive")
    assert report.segments >= len(segments(written.path))
    with notes_expected():
        done = mqstore.Archive(tmp_path / "archive").restore(tmp_path / "restored")
    assert done.identical
    for one in segments(tmp_path / "restored"):
        assert filecmp.cmp(one, source / "commitlog" / one.name, shallow=False)
    tally.messages += report.records


def roll(store: mqstore.Store, segment_size: int) -> None:
    """Appends until the log has two more segments, the first of them full."""
    wanted = store.stats().segments + 2
    while store.stats().segments < wanted:
        store.append("roll", bytes(min(200_000, segment_size // 4)))
    store.flush()


def test_rocketmq_opens_a_store_whose_archived_segments_are_gone(shop: Shop, version: str, tmp_path: Path) -> None:
    """RocketMQ sees a shorter history, and mqstore reads on in the archive."""
    pytest.importorskip("pyarrow")
    path = tmp_path / "store"
    with mqstore.open(path, "create", **GEOMETRY, retention_bytes=5 << 20) as store:
        for number in range(2000):
            store.append("orders", b"%d" % number * 1000, queue_id=0)
        store.archive.configure(tmp_path / "archive")
        store.archive.run()
        assert store.expire().segments > 0
        first = store.queues("orders")[0].min_offset
    assert first > 0
    java = opened(shop, version, path, {"orders": topic(1)})
    assert java.report.complaints() == []
    assert bounds(java) == {("orders", 0): (first, 2000)}
    assert java.pull("orders", 0, 5)[:2] == ("OFFSET_TOO_SMALL", first)
    assert len(java.read().messages) == 2000 - first
    java.close()
    with mqstore.open(path) as store:
        assert [message.queue_offset for message in store.read("orders", 0)] == list(range(2000))
