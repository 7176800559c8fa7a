"""A store of RocketMQ that is restored from a backup: the same log, and RocketMQ opens it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import mqstore

from .compare import notes_expected
from .scenarios import SCENARIOS
from .shop import ask
from .test_repair import assert_delivers, segments

if TYPE_CHECKING:
    from pathlib import Path

    from .shop import Shop
    from .tally import Tally

pytestmark = pytest.mark.interop

# Batch queues have a length of their own, and some queues have no message any more. The others are in the soak.
OFTEN = ("inner_batches", "front_deleted")
CLOSED = [
    name if name in OFTEN else pytest.param(name, marks=pytest.mark.soak)
    for name, scenario in SCENARIOS.items()
    if not scenario.kill
]


def contents(home: Path) -> dict[str, bytes]:
    return {one.name: one.read_bytes() for one in segments(home)}


@pytest.mark.parametrize("name", CLOSED)
def test_rocketmq_opens_what_was_restored(name: str, shop: Shop, version: str, tmp_path: Path, tally: Tally) -> None:
    written = shop.written(version, name)
    backup = mqstore.Backup(tmp_path / "cold")
    before = sorted(path.relative_to(written.path) for path in written.path.rglob("*"))
    with notes_expected():
        assert backup.run(written.path).missing_bytes == 0
    assert sorted(path.relative_to(written.path) for path in written.path.rglob("*")) == before
    restored = tmp_path / "restored"
    with notes_expected():
        report = backup.restore(restored)
    assert report.ok, report.problems
    found, wanted = contents(restored), contents(written.path)
    # A segment that was prepared and has no record is not in the log.
    assert set(found) <= set(wanted)
    assert {one: wanted[one] for one in found} == found
    assert not any(any(wanted[one]) for one in set(wanted) - set(found))
    java = shop.session(version).open(restored, config=written.scenario.config, topics=written.scenario.topics)
    assert java.report.complaints() == []
    assert_delivers(ask(java), written, set(), tally)
