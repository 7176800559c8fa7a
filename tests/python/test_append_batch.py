"""append_batch: many messages from columns."""

from __future__ import annotations

import array
import asyncio
from pathlib import Path
from typing import Any

import pytest

import mqstore
import mqstore.aio
from conftest import SMALL


def parts(store: mqstore.Store, topic: str = "t") -> list[tuple[Any, ...]]:
    """Body, keys, tag and properties of the sender of each message."""
    return [
        (one.body, one.keys, one.tags, {name: text for name, text in one.properties.items() if name in ("a", "n")})
        for one in store.read(topic)
    ]


def test_columns_become_messages(store: mqstore.Store) -> None:
    store.create_topic("t", queues=2)
    bodies = [b"a", bytearray(b"b"), memoryview(b"c"), array.array("b", [100])]
    keys = ["k", ["l", "m"], None, ()]
    tags = ["x", None, "y", None]
    properties = [{"a": "1"}, None, {}, {"UNIQ_KEY": "own"}]
    results = store.append_batch("t", bodies, keys, tags, properties, queue_id=1)
    assert [(one.queue_id, one.queue_offset) for one in results] == [(1, n) for n in range(4)]
    assert results[3].unique_id == "own"
    assert parts(store) == [
        (b"a", ("k",), "x", {"a": "1"}),
        (b"b", ("l", "m"), None, {}),
        (b"c", (), "y", {}),
        (b"d", (), None, {}),
    ]
    assert len({one.unique_id for one in results}) == 4
    assert store.append_batch("t", []) == []


def test_batch_is_like_append_many(store: mqstore.Store) -> None:
    """The same messages, also with one tag and one mapping for all."""
    bodies, keys = [b"%d" % n for n in range(50)], [f"k{n}" for n in range(50)]
    one = {"tags": "x", "properties": {"a": "b"}}
    store.append_many("many", [mqstore.Message(body, keys=key, **one) for body, key in zip(bodies, keys, strict=True)])
    results = store.append_batch("batch", iter(bodies), iter(keys), **one, durable=True)
    assert parts(store, "batch") == parts(store, "many")
    assert all(result.durable for result in results)
    assert [message.body for message in store.lookup("batch", "k7")] == [b"7"]


@pytest.mark.parametrize(
    ("columns", "error", "match"),
    [
        ({"keys": ["k"]}, mqstore.InvalidMessageError, "keys has 1 entries for 2 bodies"),
        ({"keys": ["k"] * 3}, mqstore.InvalidMessageError, "keys has more entries than the 2 bodies"),
        ({"tags": ["k"]}, mqstore.InvalidMessageError, "tags has 1 entries"),
        ({"properties": [{}] * 3}, mqstore.InvalidMessageError, "properties has more entries"),
        ({"keys": ["fine", "a b"]}, mqstore.InvalidMessageError, "message 1: key"),
        ({"tags": ["fine", "a||b"]}, mqstore.InvalidMessageError, "message 1: tag"),
        ({"properties": [None, {"KEYS": "x"}]}, mqstore.InvalidMessageError, "message 1: property"),
        # The characters of a text are no keys.
        ({"keys": "ab"}, TypeError, "one entry for each body"),
        ({"keys": [5, 5]}, TypeError, "keys"),
        ({"keys": 5}, TypeError, "one entry for each body"),
        ({"tags": 5}, TypeError, "one entry for each body"),
        ({"tags": [b"x", b"x"]}, TypeError, "tags"),
        ({"properties": [5, 5]}, TypeError, "mapping"),
    ],
    ids=repr,
)
def test_bad_columns_append_nothing(
    store: mqstore.Store, columns: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        store.append_batch("t", [b"x", b"y"], **columns)
    assert store.topics() == []


@pytest.mark.parametrize("bodies", [b"ab", "ab", bytearray(b"ab"), memoryview(b"ab"), 5, [b"good", "text"], [None]])
def test_bad_bodies(store: mqstore.Store, bodies: Any) -> None:
    with pytest.raises(TypeError):
        store.append_batch("t", bodies)
    assert store.topics() == []


def test_batch_in_a_loop(home: Path) -> None:
    async def run() -> None:
        async with mqstore.aio.open(home, "create", options=SMALL) as store:
            first = await store.append_batch("t", [b"a", b"b"], ["k", None], "x")
            second = await store.append_batch("t", [b"c"], [["l"]], durable=True)
            assert [one.queue_offset for one in first + second] == [0, 1, 2]

    asyncio.run(run())
    with mqstore.open(home) as store:
        assert parts(store) == [(b"a", ("k",), "x", {}), (b"b", (), "x", {}), (b"c", ("l",), None, {})]
