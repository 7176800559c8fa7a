"""lookup: right answers, in order, within times and limits."""

from __future__ import annotations

import shutil
import struct
import time
from datetime import UTC, datetime
from pathlib import Path

import pytest

import damaged_stores as stores
import mqstore


def test_lookup(filled: Path) -> None:
    with mqstore.open(filled) as store:
        assert [message.body for message in store.lookup("orders", "k7")] == [b"body 7"]
        found = list(store.lookup("orders", "all"))
        assert [message.body for message in found] == [f"body {number}".encode() for number in range(40)]
        assert [message.commit_log_offset for message in found] == sorted(
            message.commit_log_offset for message in found
        )
        assert list(store.lookup("orders", "nothing")) == []
        assert list(store.lookup("events", "all")) == []
        unique = found[3].unique_id
        assert unique is not None
        assert list(store.lookup("orders", unique)) == [found[3]]


def test_limit(filled: Path) -> None:
    with mqstore.open(filled) as store:
        assert len(list(store.lookup("orders", "all", limit=3))) == 3
        assert list(store.lookup("orders", "all", limit=0)) == []
        assert [m.body for m in store.lookup("orders", "all", limit=2)] == [b"body 0", b"body 1"]
        with pytest.raises(ValueError, match="limit"):
            store.lookup("orders", "all", limit=-1)


def test_times(store: mqstore.Store) -> None:
    stamps = []
    for number in range(5):
        stamps.append(store.append("t", str(number).encode(), keys="k").store_timestamp)
        time.sleep(0.005)

    def bodies(**times: int | datetime) -> list[bytes]:
        return [message.body for message in store.lookup("t", "k", **times)]

    assert bodies(start_time=stamps[2]) == [b"2", b"3", b"4"]
    assert bodies(end_time=stamps[1]) == [b"0", b"1"]
    assert bodies(start_time=stamps[1], end_time=stamps[3]) == [b"1", b"2", b"3"]
    assert bodies(start_time=datetime.fromtimestamp(stamps[2] / 1000, UTC)) == [b"2", b"3", b"4"]
    assert bodies(start_time=stamps[4] + 1) == []
    with pytest.raises(ValueError, match="time zone"):
        bodies(start_time=datetime(2024, 1, 1))  # noqa: DTZ001


def test_colliding_keys(store: mqstore.Store) -> None:
    # "Aa" and "BB" have the same hash, so the index keys "t#Aa" and "t#BB" have it too.
    store.append("t", b"first", keys="Aa")
    store.append("t", b"second", keys="BB")
    assert [message.body for message in store.lookup("t", "Aa")] == [b"first"]
    assert [message.body for message in store.lookup("t", "BB")] == [b"second"]


def test_one_answer_a_message(store: mqstore.Store) -> None:
    store.append("t", b"x", keys=["k", "k"])
    assert len(list(store.lookup("t", "k"))) == 1


def test_many_index_files(store: mqstore.Store, home: Path) -> None:
    for number in range(600):
        store.append("t", b"x", keys=[f"k{number % 7}"])
    for key in range(7):
        found = [message.queue_offset for message in store.lookup("t", f"k{key}")]
        assert found == list(range(key, 600, 7))
    store.close()
    assert len(list((home / "index").iterdir())) > 3
    with mqstore.open(home) as reader:
        assert len(list(reader.lookup("t", "k3"))) == 86


def index_entries(home: Path, slots: int = 64) -> int:
    """Returns the number of index entries. An entry that exists twice counts once."""
    found = set()
    for file in (home / "index").iterdir():
        data = file.read_bytes()
        for number in range(1, struct.unpack_from(">i", data, 36)[0]):
            found.add(data[40 + 4 * slots + 20 * number :][:12])
    return len(found)


def test_tags_are_indexed_as_the_last_writer_did(tmp_path: Path) -> None:
    home = tmp_path / "store"
    stores.unpacked(home)
    before = index_entries(home)
    with mqstore.open(home, "rw") as store:
        # Unique id, key, tags.
        store.append("orders", b"more", keys="more", tags="paid")
    assert index_entries(home) == before + 3
    assert mqstore.verify(home).ok
    shutil.rmtree(home / "consumequeue")
    mqstore.rebuild(home)
    assert index_entries(home) == before + 3
    with mqstore.open(home, "rw") as store:
        store.append("orders", b"without", keys="without")
        store.append("orders", b"again", keys="again", tags="paid")
    assert index_entries(home) == before + 3 + 2 + 3


def test_tags_are_not_indexed_in_a_store_of_ours(tmp_path: Path) -> None:
    home = tmp_path / "store"
    for number in range(2):
        with mqstore.open(home, "create", index_slots=64, index_entries=200) as store:
            store.append("orders", b"more", keys="more", tags="paid")
        assert index_entries(home) == 2 * (number + 1)
    with mqstore.open(home, "rw", advanced=mqstore.BrokerOptions(index_tags=True)) as store:
        store.append("orders", b"more", keys="more", tags="paid")
    # Older records may have no entries for their tags. This is no problem.
    assert mqstore.verify(home).problems == ()
    with mqstore.open(home, "rw") as store:
        store.append("orders", b"more", keys="more", tags="paid")
    assert index_entries(home) == 2 + 2 + 3 + 3
