"""Topics with batch queues: one call, one record."""

from __future__ import annotations

import json
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
    # Sent again, the message is the same.
    assert store.append_many("b", found, queue_id=0)[2].queue_offset == 2


def test_every_offset_of_a_batch_leads_to_it(store: mqstore.Store) -> None:
    for number in range(20):
        store.append_many("b", [b"%d" % number] * 3, queue_id=0)
    for offset in range(60):
        message = next(iter(store.read("b", 0, start=offset)))
        assert message.queue_offset == offset - offset % 3
    assert [queue.max_offset for queue in store.queues("b")] == [60, 0]
    with mqstore.open(store.path) as reader:
        assert [message.queue_offset for message in reader.read("b", 0, start=31)] == list(range(30, 60, 3))
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


def test_batches_are_copied_to_another_store(store: mqstore.Store, tmp_path: Path) -> None:
    store.append("b", b"alone", queue_id=1, keys="k")
    store.append_many("b", [Message(b"one", keys="k1"), Message(b"two", keys="k2")], queue_id=1)
    store.append("plain", b"in between", queue_id=0)
    store.append_many("b", [b"three"] * 3, queue_id=0)
    store.append_many("b", [b"four", b"five"], queue_id=1)
    target = tmp_path / "target"
    mqstore.export(store.path, target, format="store", topics="b")
    # The second copy comes after the first one.
    again = mqstore.export(store.path, target, format="store", mapping=tmp_path / "again")
    assert again.messages == 5
    places = [json.loads(line) for line in (tmp_path / "again").read_text().splitlines()]
    assert [place["new_queue_offset"] for place in places] == [5, 6, 0, 3, 8]

    def essence(message: mqstore.StoredMessage) -> object:
        parts = [(part.body, part.keys, part.properties) for part in message.batch()]
        return message.topic, message.queue_id, message.body, message.keys, message.unique_id, parts

    wanted = [essence(message) for queue in (0, 1) for message in store.read("b", queue)]
    with mqstore.open(target) as copy:
        assert [queue.max_offset for queue in copy.queues("b")] == [6, 10]
        found = {queue: list(copy.read("b", queue)) for queue in (0, 1)}
        assert [essence(one) for queue in (0, 1) for one in found[queue][: len(found[queue]) // 2]] == wanted
        assert [essence(one) for queue in (0, 1) for one in found[queue][len(found[queue]) // 2 :]] == wanted
        assert [one.properties.get("INNER_BASE") for one in found[1]] == [None, "1", "3", None, "6", "8"]
        assert [message.queue_offset for message in copy.lookup("b", "k2")] == [1, 6]
    assert mqstore.verify(target).ok


def test_a_batch_does_not_go_into_plain_queues(store: mqstore.Store, tmp_path: Path) -> None:
    store.append_many("b", [b"one", b"two"], queue_id=0)
    with mqstore.open(tmp_path / "target", "create") as target:
        target.create_topic("b", 2)
    with pytest.raises(mqstore.InvalidMessageError, match=r"queue\.type=BatchCQ"):
        mqstore.export(store.path, tmp_path / "target", format="store")
