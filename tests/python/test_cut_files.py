"""Each kind of file is cut and lengthened, at the borders of its units and between them.

Either no answer changes, or a note, an error or a count says what is missing. The metadata log has tests of its own.
"""

from __future__ import annotations

import shutil
import warnings
from typing import TYPE_CHECKING, Any

import pytest

import mqstore

if TYPE_CHECKING:
    from pathlib import Path

TOPICS = ("prices", "orders", "batched")
OPTIONS = mqstore.StoreOptions(
    segment_size=16 << 10,
    queue_file_entries=32,
    index_slots=97,
    index_entries=400,
    advanced=mqstore.BrokerOptions(compaction_log_file_size=46 * 200, compaction_queue_file_size=46 * 20),
)
UNITS = {
    "checkpoint": 8,
    "commitlog/00000000000000000000": 200,
    "commitlog/00000000000000016384": 200,
    "config/topics.json": 1,
    "config/consumerOffset.json": 1,
    "consumequeue/orders/0/00000000000000000000": 20,
    "consumequeue/orders/0/00000000000000000640": 20,
    "batchconsumequeue/batched/0/00000000000000000000": 46,
    "compaction/compactionCq/prices/0/00000000000000000000": 46,
    "compaction/compactionCq/prices/0/00000000000000010120": 46,
    "compaction/compactionLog/prices/0/00000000000000000000": 200,
    "compaction/compactionLog/prices/0/00000000000000010120": 200,
    "compaction/position-checkpoint": 1,
    "index": 20,
    "mqstore/compaction.json": 1,
    "mqstore/queues": 8,
    "mqstore/state.a": 8,
    "mqstore/state.b": 8,
}
"""Files or folders of a store, and the bytes of their units."""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A closed store with every kind of file."""
    home = tmp_path_factory.mktemp("cut") / "store"
    with mqstore.open(home, "create", options=OPTIONS) as store:
        store.create_topic("prices", queues=1, attributes={"cleanup.policy": "COMPACTION"})
        store.create_topic("orders", queues=2)
        store.create_topic("batched", queues=1, attributes={"queue.type": "BatchCQ"})
        for number in range(80):
            store.append("prices", b"price %d " % number * 8, keys=f"k{number % 10}")
            store.append("orders", b"order %d " % number * 8, keys=f"o{number}", queue_id=number % 2)
            if number % 10 == 0:
                store.append_many("batched", [b"one", b"two"], queue_id=0)
        with store.consumer("group", "orders", ordered=True) as consumer:
            assert consumer.poll(timeout=5)
            consumer.commit()
        store.compact("prices")
        for number in range(80, 90):
            store.append("prices", b"price %d " % number * 8, keys=f"k{number}")
    return home


def answers(home: Path, mode: Any) -> tuple[dict[str, Any], list[str]]:
    """Returns what reads answer, and everything that they report."""
    found: dict[str, Any] = {}
    reports = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with mqstore.open(home, mode) as store:
                for topic in TOPICS:
                    messages = store.read(topic, on_damage="skip")
                    found[topic] = [(one.queue_id, one.queue_offset, one.body) for one in messages]
                found["looked up"] = [[one.queue_offset for one in store.lookup("orders", f"o{n}")] for n in (0, 41)]
                found["topics"] = sorted(store.topics())
                reports += ["skipped"] * store.stats().skipped_damage
            groups = mqstore.info(home).consumers
            found["groups"] = [(one.group, [queue.offset for queue in one.queues]) for one in groups]
        except mqstore.MQStoreError as error:
            reports.append(str(error))
    return found, reports + [str(warning.message) for warning in caught]


def lengths(size: int, unit: int) -> list[int]:
    """Returns other lengths of a file: borders of units at both ends and in the middle, and places between them."""
    middle = size // 2 // unit * unit
    short = {0, 1, unit, 2 * unit, 2 * unit + 5, middle, middle + unit // 2 + 1, size - unit, size - 1}
    return sorted({length for length in short if 0 <= length < size} | {size + 1, size + unit})


@pytest.mark.parametrize("mode", ["r", "rw"])
@pytest.mark.parametrize("name", UNITS)
def test_a_file_of_another_length(store: Path, tmp_path: Path, name: str, mode: str) -> None:
    whole, _ = answers(store, "r")
    home = tmp_path / "store"
    shutil.copytree(store, home)
    place = home / name
    path = min(place.iterdir()) if place.is_dir() else place
    content = path.read_bytes()
    # Each open for writing needs a new copy.
    for length in lengths(len(content), UNITS[name])[:: 1 if mode == "r" else 4]:
        if mode == "rw":
            shutil.rmtree(home)
            shutil.copytree(store, home)
        path.write_bytes(content[:length].ljust(length, b"\0"))
        found, reports = answers(home, mode)
        assert found == whole or reports, f"{length} of {len(content)} bytes"
    path.write_bytes(content)


@pytest.mark.parametrize("length", [0, 46, 97, 230, 459])
def test_a_cut_queue_of_a_compacted_topic_hides_no_message(store: Path, tmp_path: Path, length: int) -> None:
    whole, _ = answers(store, "r")
    home = tmp_path / "store"
    shutil.copytree(store, home)
    for path in sorted((home / "compaction" / "compactionCq" / "prices" / "0").iterdir()):
        content = path.read_bytes()
        path.write_bytes(content[:length])
        for mode in ("r", "rw"):
            found, reports = answers(home, mode)
            assert found == whole
            if length and int(path.name) == 0:
                # The compaction noted how long this file is. The other one was appended since.
                assert any("truncated" in report and path.name in report for report in reports), reports
        assert not mqstore.verify(home).ok
        path.write_bytes(content)


@pytest.mark.parametrize("record_crc", [True, False])
def test_damage_in_files_of_a_compacted_topic(tmp_path: Path, record_crc: bool) -> None:
    home = tmp_path / "store"
    options = mqstore.StoreOptions(record_crc=record_crc, advanced=OPTIONS.advanced, compaction_feed=False)
    with mqstore.open(home, "create", options=options) as store:
        store.create_topic("prices", queues=1, attributes={"cleanup.policy": "COMPACTION"})
        for number in range(20):
            store.append("prices", b"price %d" % number, keys=f"k{number % 6}")
        store.compact("prices")

    def read() -> tuple[dict[int, bytes], int]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with mqstore.open(home) as store:
                found = {one.queue_offset: one.body for one in store.read("prices", on_damage="skip")}
                return found, store.stats().skipped_damage

    whole, _ = read()
    assert sorted(whole) == list(range(14, 20))
    [queue] = (home / "compaction" / "compactionCq" / "prices" / "0").iterdir()
    [log] = (home / "compaction" / "compactionLog" / "prices" / "0").iterdir()
    for number in (0, 5):
        unit = queue.read_bytes()[number * 46 : number * 46 + 46]
        for path, start, size in ((queue, number * 46, 46), (log, int.from_bytes(unit[:8]), 36)):
            content = bytearray(path.read_bytes())
            for at in range(start, start + size):
                content[at] ^= 0x41 if at % 2 else 0x82
                path.write_bytes(content)
                found, skipped = read()
                assert found.items() <= whole.items(), (path, at - start)
                assert len(whole) - len(found) == skipped <= 1, (path, at - start)
                assert path == log or not record_crc or not skipped
                content[at] ^= 0x41 if at % 2 else 0x82
            path.write_bytes(content)
