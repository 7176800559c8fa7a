"""Every damage of the table: found, repaired, and nothing else lost."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import damage
import mqstore

if TYPE_CHECKING:
    from collections.abc import Iterator

OPTIONS = mqstore.StoreOptions(
    segment_size=damage.SEGMENT, queue_file_entries=32, index_slots=64, index_entries=200, flush_interval=0.05
)


LONG = "%RETRY%" + "long" * 33
"""A name for which records have another magic."""

TOPICS = (("orders", 0), ("orders", 1), ("returned-orders", 0), ("orders", 1), (LONG, 0), ("batched", 0))


@dataclass(frozen=True)
class Sent:
    """A message of the store to be damaged."""

    topic: str
    queue_id: int
    queue_offset: int
    at: int
    size: int
    key: str


def body(number: int) -> bytes:
    return b"%04d" % number * (5 + number % 40)


def make(home: Path) -> list[Sent]:
    sent = []
    with mqstore.open(home, "create", options=OPTIONS) as store:
        store.create_topic("orders", queues=2)
        store.create_topic("batched", queues=1, attributes={"queue.type": "BatchCQ"})
        for number in range(damage.COUNT):
            topic, queue_id = TOPICS[number % len(TOPICS)]
            # Neighbours differ in their times, and the entries of the index are of more than one second.
            time.sleep(1.1 if number == damage.COUNT // 3 else 0.008)
            message = mqstore.Message(
                body(number),
                keys=f"k{number}",
                tags=f"t{number // 3 % 3}",
                flag=number,
                born_timestamp=1_700_000_000_000 + 1001 * number,
            )
            count = 1 + number // 6 % 3 if topic == "batched" else 1
            one = store.append_many(topic, [message] * count, queue_id=queue_id)[0]
            sent.append(Sent(topic, queue_id, one.queue_offset, one.commit_log_offset, one.size, f"k{number}"))
    return sent


@pytest.fixture(scope="module")
def memory() -> Iterator[Path]:
    """A folder in memory, where there is one: a repair syncs all that it does."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if os.access(shared, os.W_OK) else None) as folder:
        yield Path(folder)


@pytest.fixture
def home(memory: Path, base: damage.Base) -> Iterator[Path]:
    """A copy of the store."""
    home = memory / "copy"
    shutil.copytree(base.home, home)
    yield home
    shutil.rmtree(home)


@pytest.fixture(scope="module")
def sent(memory: Path) -> tuple[Path, list[Sent]]:
    home = memory / "store"
    return home, make(home)


@pytest.fixture(scope="module")
def base(sent: tuple[Path, list[Sent]]) -> damage.Base:
    home, messages = sent
    other = home.with_name("other")
    with mqstore.open(other, "create", options=OPTIONS) as store:
        store.create_topic("orders", queues=2)
        store.create_topic("batched", queues=1, attributes={"queue.type": "BatchCQ"})
        # Its first segments say nothing of the topics that the other store has.
        for number in range(300):
            topic = "others" if number < 250 else ("orders", "batched")[number % 2]
            store.append(topic, b"%d" % number * 30, keys=f"o{number}", queue_id=int(topic == "orders"))
    found = damage.Base(home, other, [(one.at, one.size) for one in messages])
    assert len(found.segments()) >= 3
    return found


def contents(home: Path) -> dict[str, bytes]:
    return {
        os.path.join(folder, name): Path(folder, name).read_bytes()  # noqa: PTH118 - names of os.walk
        for folder, _, names in os.walk(home)
        for name in names
    }


@pytest.mark.parametrize("case", damage.cases(), ids=lambda case: case.name)
def test_it_is_found_and_repaired(
    case: damage.Case, base: damage.Base, sent: tuple[Path, list[Sent]], home: Path
) -> None:
    changed, hit = damage.apply(case, base, home)
    assert changed, "the damage is none"
    found = mqstore.verify(home)
    if damage.may_hide(case) is None:
        assert not found.ok, "verify did not notice"
    report = mqstore.repair(home, in_place=True)
    assert report.ok, (report.problems, report.actions)
    before = contents(home)
    again = mqstore.repair(home, in_place=True)
    assert (again.ok, again.changed) == (True, False), again.actions
    assert contents(home) == before
    with mqstore.open(home) as store:
        left = {m.commit_log_offset: m.body for m in store._scan_log()}
        read = {
            (topic, queue_id): {m.commit_log_offset: m.queue_offset for m in store.read(topic, queue_id)}
            for topic, queue_id in dict.fromkeys(TOPICS)
            if topic in {one.topic for number, one in enumerate(sent[1]) if number not in hit}
        }
        for number, one in enumerate(sent[1]):
            if number not in hit:
                assert read[one.topic, one.queue_id][one.at] == one.queue_offset
                assert body(number) in left[one.at]
                if number % 7 == 0:
                    assert one.at in [m.commit_log_offset for m in store.lookup(one.topic, one.key)]


def test_each_changes_other_bytes(base: damage.Base, home: Path) -> None:
    before = contents(home)
    seen: dict[frozenset[tuple[str, bytes | None]], str] = {}
    for case in damage.cases():
        damage.apply(case, base, home)
        after = contents(home)
        changed = {name: after.get(name) for name in before.keys() | after if before.get(name) != after.get(name)}
        assert changed, f"{case.name} changes nothing"
        earlier = seen.setdefault(frozenset(changed.items()), case.name)
        assert earlier == case.name, f"{case.name} changes the same as {earlier}"
        for name in changed:
            Path(name).write_bytes(before[name])
    assert len({(case.structure, case.field, case.kind) for case in damage.cases()}) >= 500
    assert len(seen) == len(damage.cases())


def test_the_page_is_current() -> None:
    page = Path(__file__).parents[2] / "docs/damage.md"
    assert page.read_text() == damage.page(), "python tests/python/damage.py > docs/damage.md"
