"""Damage of each field of records that RocketMQ wrote: verify finds it if anything contradicts it, and repair cures it.

The table of fields and kinds is that of `tests/python/damage.py`. Stores of RocketMQ differ in one point: no checksum
covers most of a record, unless the broker is configured to add one.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import mqstore

from .java_build import VERSIONS

sys.path.append(str(Path(__file__).parents[1] / "python"))
import damage

if TYPE_CHECKING:
    from .java_rows import JavaMessage
    from .shop import Written
    from .tally import Tally

pytestmark = pytest.mark.interop

UNCOVERED = {
    "FLAG", "SYSFLAG", "QUEUEID", "QUEUEOFFSET", "BORNTIMESTAMP", "BORNHOST", "STORETIMESTAMP", "STOREHOST",
    "RECONSUMETIMES", "PREPAREDTRANSACTIONOFFSET", "TOPICLEN", "TOPIC", "PROPLEN", "PROPERTIES",
}  # fmt: skip
"""Fields that only plausibility checks and the queue entries can contradict."""

FIELDS = (*damage.HEAD, *(name for name in damage.TAIL if name != "CRC32"))

LEFT_ALONE = {"store_time_back", "queue_offset_refused"}
"""Problems that no repair can cure: the record is valid except for its time or its queue offset."""


def fields_of(data: bytes) -> dict[str, tuple[int, int]]:
    """The places of the fields of a record without a checksum at its end."""
    found = damage.fields_of(data)
    at, size = found["PROPERTIES"]
    return found | {"PROPERTIES": (at, size + 20)}


def harm(path: Path, record: JavaMessage, field: str, kind: str) -> bool:
    """Damages a field. Returns whether a byte changed."""
    size = min((path / "commitlog").iterdir()).stat().st_size
    file = path / "commitlog" / f"{record.commit_log_offset // size * size:020d}"
    start = record.commit_log_offset % size
    at, width = fields_of(file.read_bytes()[start : start + record.size])[field]
    return width > 0 and damage.spoil(file, start + at, width, kind)


@pytest.mark.scenario("front_deleted")
@pytest.mark.parametrize("field", FIELDS)
def test_damage_of_a_field(written: Written, field: str, tmp_path: Path, tally: Tally) -> None:
    """Each kind of damage of the field in the middle of the log. For the newest version also near its begin."""
    log = written.answers.log
    tried = 0
    begin = [log[7]] if written.version == VERSIONS[-1] else []
    for record in (*begin, log[len(log) // 2]):
        # After the body comes the next record, which would be hit as well.
        for kind in damage.KINDS if field in damage.HEAD else damage.ALONE:
            if kind in damage.SELDOM:
                continue
            path = tmp_path / f"{record.commit_log_offset}-{kind}"
            shutil.copytree(written.path, path)
            if not harm(path, record, field, kind):
                shutil.rmtree(path)
                continue
            assert mqstore.info(path).log_max_offset > 0
            found = mqstore.verify(path)
            if field not in UNCOVERED:
                assert not found.ok, (kind, "verify did not notice")
            report = mqstore.repair(path, in_place=True)
            assert {problem.kind for problem in report.problems} <= LEFT_ALONE, (kind, report.problems)
            assert not mqstore.repair(path, in_place=True).changed, kind
            with mqstore.open(path) as store:
                left = {message.commit_log_offset for message in store._scan_log()}
            assert {each.commit_log_offset for each in log} - {record.commit_log_offset} <= left, kind
            tried += 1
            tally.messages += len(left)
            shutil.rmtree(path)
    assert tried > 0
