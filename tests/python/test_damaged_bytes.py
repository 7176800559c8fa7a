"""Each byte of a record header, a unit and an entry header is damaged once: all other messages are still read.

A read reports the message that it leaves out.
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

import mqstore
from dledger_stores import GEOMETRY, HEADER, convert, records_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.filterwarnings("ignore::mqstore.StoreWarning")

TOPICS = ("orders", "events")
NUMBER = 17
"""Number of the damaged message, in order of the log. It is in the middle of its queue."""

Messages = dict[tuple[str, int, int], bytes]


def fill(home: Path, *, record_crc: bool) -> list[tuple[int, bytes]]:
    """Writes a store, and returns its records with their log offsets."""
    with mqstore.open(home, "create", options=replace(GEOMETRY, record_crc=record_crc)) as store:
        store.create_topic("orders", queues=2)
        for number in range(32):
            if number % 4 == 3:
                store.append("events", b"event %d" % number, tags="tick")
            else:
                store.append("orders", b"order %d" % number, keys=f"k{number}", tags="paid", queue_id=number % 2)
    return records_of(home)


def read(home: Path, **options: Any) -> tuple[Messages, int]:
    """Returns the messages of all queues, and how many the reads skipped."""
    with mqstore.open(home, **options) as store:
        found = {
            (topic, one.queue_id, one.queue_offset): bytes(one.body_view)
            for topic in TOPICS
            for one in store.read(topic, on_damage="skip")
        }
        return found, store.stats().skipped_damage


def damages(path: Path, at: int, size: int) -> Iterator[int]:
    """Damages one byte after the other, and restores it."""
    with path.open("r+b", buffering=0) as file:
        for byte in range(at, at + size):
            file.seek(byte)
            old = file.read(1)
            file.seek(byte)
            file.write(bytes([old[0] ^ (0x01 if byte % 2 else 0x80)]))
            yield byte - at
            file.seek(byte)
            file.write(old)


def assert_reported(home: Path, whole: Messages, *, at: int) -> bool:
    """Checks that only one message may be missing, and that reads say so. Returns whether it is."""
    found, skipped = read(home)
    missing = whole.keys() - found.keys()
    assert found.items() <= whole.items(), (at, found.items() - whole.items())
    assert skipped == len(missing) <= 1, (at, missing, skipped)
    for topic, _queue_id, _offset in missing:
        with mqstore.open(home) as store, pytest.raises(mqstore.CorruptionError, match="on_damage"):
            list(store.read(topic))
    return bool(missing)


def topic_range(record: bytes) -> tuple[int, int]:
    """Returns the place of the length and the name of the topic in a record."""
    return record.index(b"\x06orders"), 7


@pytest.mark.parametrize("writer", ["mqstore", "another program"])
@pytest.mark.parametrize("record_crc", [True, False])
def test_a_damaged_record_hides_no_other(tmp_path: Path, writer: str, record_crc: bool) -> None:
    home = tmp_path / "store"
    records = fill(home, record_crc=record_crc)
    whole, _ = read(home)
    if writer != "mqstore":
        # Without these files, nothing says that the queue files are complete.
        shutil.rmtree(home / "mqstore")
    offset, record = records[NUMBER]
    segment = int(GEOMETRY.segment_size)
    path = home / "commitlog" / f"{offset // segment * segment:020}"
    lost = {at for at in damages(path, offset % segment, 88) if assert_reported(home, whole, at=at)}
    # Queue, offset, log offset. Without a checksum, other fields can change unseen.
    assert lost >= {*range(12, 16), *range(20, 36)}
    start, size = topic_range(record)
    for at in damages(path, offset % segment + start, size):
        assert assert_reported(home, whole, at=at)


def test_a_damaged_record_of_dledger_hides_no_other(tmp_path: Path) -> None:
    records = fill(tmp_path / "plain", record_crc=False)
    whole, _ = read(tmp_path / "plain")
    member = convert(tmp_path / "plain", tmp_path / "store")
    path, start = member.place(member.entries[NUMBER].position)
    for at in damages(path, start, HEADER.size):
        assert not assert_reported(member.root, whole, at=at)
    lost = {at for at in damages(path, start + HEADER.size, 88) if assert_reported(member.root, whole, at=at)}
    assert lost >= {*range(12, 16), *range(20, 36)}
    begin, size = topic_range(records[NUMBER][1])
    for at in damages(path, start + HEADER.size + begin, size):
        assert assert_reported(member.root, whole, at=at)


@pytest.mark.parametrize("writer", ["mqstore", "another program"])
def test_a_damaged_unit_hides_no_message(tmp_path: Path, writer: str) -> None:
    home = tmp_path / "store"
    fill(home, record_crc=False)
    whole, _ = read(home)
    if writer != "mqstore":
        shutil.rmtree(home / "mqstore")
    for at in damages(home / "consumequeue" / "orders" / "1" / f"{0:020}", 5 * 20, 20):
        assert not assert_reported(home, whole, at=at)


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 0x20
    path.write_bytes(data)


FIELDS: dict[str, Callable[[bytes], int]] = {
    "topic": lambda record: topic_range(record)[0] + 1,
    "queue": lambda _record: 15,
    "offset": lambda _record: 27,
}


@pytest.mark.parametrize("place", ["middle", "last", "same offset in both queues"])
@pytest.mark.parametrize("field", FIELDS)
def test_a_record_that_names_a_wrong_place(tmp_path: Path, field: str, place: str) -> None:
    """In the process that writes, in a reader, and if the queues are derived."""
    home = tmp_path / "store"
    records = fill(home, record_crc=False)
    whole, _ = read(home)
    number = {"middle": NUMBER, "last": 30, "same offset in both queues": 0}[place]
    offset, record = records[number]
    segment = int(GEOMETRY.segment_size)
    path = home / "commitlog" / f"{offset // segment * segment:020}"
    flip(path, offset % segment + FIELDS[field](record))
    for options in ({"mode": "r"}, {"mode": "rw"}):
        shutil.copytree(home, tmp_path / "copy")
        found, skipped = read(tmp_path / "copy", **options)
        assert (len(whole.keys() - found.keys()), skipped, found.items() <= whole.items()) == (1, 1, True)
        with (
            mqstore.open(tmp_path / "copy", **options) as store,
            pytest.raises(mqstore.CorruptionError, match="points to the record of queue"),
        ):
            list(store.read("orders"))
        shutil.rmtree(tmp_path / "copy")
    shutil.rmtree(home / "mqstore")
    assert assert_reported(home, whole, at=offset)
    with mqstore.open(home) as store:
        assert sorted(store.topics()) == sorted(TOPICS)
