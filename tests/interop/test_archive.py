"""A store that is restored from an archive: the same segments, and RocketMQ opens it."""

from __future__ import annotations

import filecmp
from typing import TYPE_CHECKING

import pytest

import mqstore

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
