"""Topics with batch queues: one call, one record."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import mqstore
from mqstore import Message

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BATCHED = {"queue.type": "BatchCQ"}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[mqstore.Store]:
    with mqstore.open(tmp_path / "store", "create") as store:
        store.create_topic("b", 2, attributes=BATCHED)
        yield store


def test_a_batch_is_one_record_and_comes_apart_again(store: mqstore.Store) -> None:
    sent = [
        Message(b"one", keys=["k1", "k2"], tags="t", properties={"n": "1"}, flag=7),
        Message(b"two", keys="k3", tags="t"),
        Message(b"", tags="t", properties={"UNIQ_KEY": "given"}),
    ]
    results = store.append_many("b", sent, queue_id=1)
    assert [result.queue_offset for result in results] == [0, 1, 2]
    assert {(result.commit_log_offset, result.unique_id) for result in results} == {(0, results[0].unique_id)}
    single = store.append("b", b"single", queue_id=1)
    assert single.queue_offset == 3

    batch, alone = store.read("b", 1)
    assert (batch.queue_offset, batch.keys, batch.tags) == (0, ("k1", "k2", "k3"), "t")
    assert batch.properties["INNER_NUM"] == "3"
    assert alone.batch() == []
    found = batch.batch()
    assert [message.body for message in found] == [b"one", b"two", b""]
    assert [(m.keys, m.tags, m.flag) for m in found] == [(("k1", "k2"), "t", 7), (("k3",), "t", 0), ((), "t", 0)]
    assert found[0].properties["n"] == "1"
    assert found[2].properties == {"UNIQ_KEY": "given"}
    assert len({message.properties["UNIQ_KEY"] for message in found}) == 3
    # Sent again it is the same message.
    assert store.append_many("b", found, queue_id=0)[2].queue_offset == 2


def test_every_offset_of_a_batch_leads_to_it(store: mqstore.Store) -> None:
    for number in range(20):
        store.append_many("b", [b"%d" % number] * 3, queue_id=0)
    for offset in range(60):
        message = next(iter(store.read("b", 0, start=offset)))
        assert message.queue_offset == offset - offset % 3
    assert [queue.max_offset for queue in store.queues("b")] == [60, 0]
    with mqstore.open(store.path) as reader:
        assert [message.queue_offset for message in reader.read("b", start=31)] == list(range(30, 60, 3))
    assert [m.queue_offset for m in store.read("b", filter="none")] == []
    assert store.verify().ok


def test_following_shows_each_batch_once(store: mqstore.Store) -> None:
    seen = []
    store.append_many("b", [b"a", b"b"], queue_id=0)
    for message in store.read("b", 0, follow=True, timeout=0.3):
        seen.append(message.queue_offset)
        if len(seen) < 4:
            store.append_many("b", [b"a", b"b"], queue_id=0)
    assert seen == [0, 2, 4, 6]


def test_what_cannot_be_a_batch(store: mqstore.Store) -> None:
    with pytest.raises(mqstore.InvalidMessageError, match="32767"):
        store.append_many("b", [b""] * 32_768)
    assert store.append_many("b", []) == []
    with pytest.raises(mqstore.MessageTooLargeError):
        store.append_many("b", [bytes(1 << 20)] * 5)
    assert store.queues("b")[0].max_offset == 0
