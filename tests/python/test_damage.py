"""Every damage of the table: found, repaired, and nothing else lost."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

import damage
import mqstore

OPTIONS = mqstore.StoreOptions(
    segment_size=damage.SEGMENT, queue_file_entries=32, index_slots=64, index_entries=200, flush_interval=0.05
)


def body(number: int) -> bytes:
    return b"%04d" % number * (5 + number % 40)


def make(home: Path) -> list[tuple[int, int]]:
    with mqstore.open(home, "create", options=OPTIONS) as store:
        store.create_topic("orders", queues=2)
        placed = [
            store.append("orders", body(number), keys=f"k{number}", tags=f"t{number % 3}", queue_id=number % 2, flag=7)
            for number in range(damage.COUNT)
        ]
    return [(one.commit_log_offset, one.size) for one in placed]


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> damage.Base:
    folder = tmp_path_factory.mktemp("damage")
    records = make(folder / "store")
    with mqstore.open(folder / "other", "create", options=OPTIONS) as store:
        # Its first segments say nothing of the topic that the other store has.
        for number in range(300):
            store.append("others" if number < 250 else "orders", b"%d" % number * 30, keys=f"o{number}")
    found = damage.Base(folder / "store", folder / "other", records)
    assert len(found.segments()) >= 3
    return found


def contents(home: Path) -> dict[str, bytes]:
    return {
        os.path.join(folder, name): Path(folder, name).read_bytes()  # noqa: PTH118 - names of os.walk
        for folder, _, names in os.walk(home)
        for name in names
    }


@pytest.mark.parametrize("case", damage.cases(), ids=lambda case: case.name)
def test_it_is_found_and_repaired(case: damage.Case, base: damage.Base, tmp_path: Path) -> None:
    home = tmp_path / "store"
    shutil.copytree(base.home, home)
    changed, hit = damage.apply(case, base, home)
    found = mqstore.verify(home)
    if changed and damage.may_hide(case) is None:
        assert not found.ok, "verify did not notice"
    if not changed:
        assert found.ok, found.problems
    report = mqstore.repair(home, in_place=True)
    assert report.ok, (report.problems, report.actions)
    before = contents(home)
    again = mqstore.repair(home, in_place=True)
    assert (again.ok, again.changed) == (True, False), again.actions
    assert contents(home) == before
    with mqstore.open(home) as store:
        left = {m.commit_log_offset: m.body for m in store._scan_log()}
        wanted = {at for number, (at, _) in enumerate(base.records) if number not in hit}
        assert wanted <= set(left)
        for queue_id in (0, 1):
            read = {m.commit_log_offset: m.queue_offset for m in store.read("orders", queue_id)}
            for number, (at, _) in enumerate(base.records):
                if number not in hit and number % 2 == queue_id:
                    assert (read[at], left[at]) == (number // 2, body(number))
        for number in range(0, damage.COUNT, 7):
            if number not in hit:
                at = base.records[number][0]
                assert at in [m.commit_log_offset for m in store.lookup("orders", f"k{number}")]


def test_there_are_many_and_the_page_is_current() -> None:
    assert len(damage.cases()) >= 500
    assert len({case.name for case in damage.cases()}) == len(damage.cases())
    page = Path(__file__).parents[2] / "docs/damage.md"
    assert page.read_text() == damage.page(), "python tests/python/damage.py > docs/damage.md"
