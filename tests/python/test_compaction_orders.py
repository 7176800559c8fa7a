"""Compactions of one topic in any order with appends, tombstones, clock changes, reopens and copies.

A model states what a reader must see: the newest message of each key. A record that a compaction removed never comes
back, and a tombstone stays for its time.
"""

from __future__ import annotations

import random
import shutil
from dataclasses import dataclass, field
from pathlib import Path

import pytest

import mqstore
from mqstore.testing import ManualClock
from mqstore.testing import open as open_for_test

OPTIONS = {"segment_size": 1 << 20, "index_slots": 100, "index_entries": 4000, "queue_file_entries": 1000}
KEYS = 6
RETENTION = 86_400.0
STEPS = 60


@dataclass
class Model:
    """The messages of the topic, and what compactions have done with them."""

    keys: list[tuple[str, bool]] = field(default_factory=list)
    """Key of each queue offset, and whether the message is a tombstone."""
    removed: set[int] = field(default_factory=set)
    """Offsets that a read did not return any more."""
    covered: dict[int, float] = field(default_factory=dict)
    """Time of the first compaction that had read the tombstone at an offset, by the clock of the store."""

    def newest(self) -> dict[str, int]:
        return {key: offset for offset, (key, _) in enumerate(self.keys)}

    def compact(self, now: float) -> None:
        for offset, (_, deletes) in enumerate(self.keys):
            if deletes:
                # A clock that was set back starts the time again.
                self.covered[offset] = min(self.covered.get(offset, now), now)

    def check(self, seen: list[int], now: float) -> None:
        newest = self.newest()
        assert not self.removed & set(seen), "a removed record came back"
        for key, offset in newest.items():
            _, deletes = self.keys[offset]
            if not deletes:
                assert offset in seen, f"the newest value of {key} is missing"
            elif offset not in seen and offset not in self.removed:
                assert now >= self.covered[offset] + RETENTION, f"the tombstone of {key} went too early"
        self.removed |= set(range(len(self.keys))) - set(seen)


def history(home: Path, seed: int) -> None:
    chance = random.Random(seed)
    clock = ManualClock()
    model, now = Model(), 0.0
    store = open_for_test(home, "create", clock=clock, **OPTIONS)
    store.create_topic("prices", queues=1, attributes={"cleanup.policy": "COMPACTION"})
    for _ in range(STEPS):
        step = chance.choice(
            ("append", "append", "delete", "compact", "compact", "wait", "day", "back", "reopen", "copy")
        )
        if step in {"append", "delete"}:
            for _ in range(chance.randint(1, 6)):
                key = f"key-{chance.randrange(KEYS)}"
                store.append("prices", b"" if step == "delete" else b"value", queue_id=0, keys=[key])
                model.keys.append((key, step == "delete"))
        elif step == "compact":
            store.compact("prices", force=chance.random() < 0.7)
            model.compact(now)
        elif step == "reopen":
            store.close()
            store = open_for_test(home, "rw", clock=clock, **OPTIONS)
        elif step == "copy":
            store.close()
            copy = home.with_name(f"{home.name}-copy")
            shutil.copytree(home, copy, symlinks=True)
            shutil.rmtree(home)
            copy.rename(home)
            store = open_for_test(home, "rw", clock=clock, **OPTIONS)
        else:
            span = {"wait": chance.uniform(60, 20_000), "day": 90_000.0, "back": -chance.uniform(60, 200_000)}[step]
            clock.advance(span)
            now += span
        seen = [message.queue_offset for message in store.read("prices", 0)]
        model.check(seen, now)
    store.close()
    with mqstore.open(home, "r") as reader:
        model.check([message.queue_offset for message in reader.read("prices", 0)], now)
    assert mqstore.verify(home).ok


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_any_order_keeps_the_newest_and_brings_nothing_back(home: Path, seed: int) -> None:
    history(home, seed)
