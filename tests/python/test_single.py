"""Messages at single offsets of a queue, and look-ups that begin with the newest message."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import mqstore

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def store(tmp_path: Path) -> Iterator[mqstore.Store]:
    with mqstore.open(tmp_path / "store", "create", segment_size=64 << 10, index_slots=100, index_entries=500) as store:
        store.append_many("t", [mqstore.Message(f"{n}".encode(), keys=["k", f"k{n}"]) for n in range(200)])
        yield store


def test_messages_at_offsets_come_in_the_order_asked_for(store: mqstore.Store) -> None:
    wanted = [199, 0, 7, 7, 100]
    assert [m.body for m in store.messages_at("t", 0, wanted) if m] == [f"{n}".encode() for n in wanted]
    assert [m.queue_offset for m in store.messages_at("t", 0, range(5, 9)) if m] == [5, 6, 7, 8]
    assert store.messages_at("t", 0, []) == []
    first = store.message_at("t", 0, 0)
    assert first == next(store.read("t"))


@pytest.mark.parametrize("offset", [-1, 200, 1 << 62])
def test_offsets_outside_of_the_queue_say_what_it_holds(store: mqstore.Store, offset: int) -> None:
    with pytest.raises(mqstore.OffsetOutOfRangeError) as caught:
        store.message_at("t", 0, offset)
    assert (caught.value.min_offset, caught.value.max_offset) == (0, 200)


def test_a_topic_that_is_not_there_and_what_is_no_offset(store: mqstore.Store) -> None:
    with pytest.raises(mqstore.TopicNotFoundError):
        store.message_at("u", 0, 0)
    with pytest.raises(TypeError):
        store.messages_at("t", 0, ["7"])  # type: ignore[list-item]
    with pytest.raises(TypeError):
        store.messages_at("t", 0, 7)  # type: ignore[arg-type]


def test_a_look_up_may_begin_with_the_newest(store: mqstore.Store) -> None:
    ahead = [m.queue_offset for m in store.lookup("t", "k")]
    assert ahead == list(range(200))
    assert [m.queue_offset for m in store.lookup("t", "k", newest_first=True)] == ahead[::-1]
    assert [m.queue_offset for m in store.lookup("t", "k", newest_first=True, limit=2)] == [199, 198]
    with mqstore.open(store.path) as beside:
        assert [m.queue_offset for m in beside.lookup("t", "k", newest_first=True, limit=2)] == [199, 198]
        assert [m.queue_offset for m in beside.messages_at("t", 0, [199, 3]) if m] == [199, 3]
