"""append and append_many: arguments, refusals, results."""

from __future__ import annotations

import array
import pickle
import threading
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from types import MappingProxyType

import pytest

import mqstore
from conftest import SMALL, tree_hash


def test_result(store: mqstore.Store) -> None:
    before = int(time.time() * 1000)
    result = store.append("orders", b"hello", keys=["A-1", "A-2"], tags="paid", properties={"region": "eu"})
    assert isinstance(result, mqstore.AppendResult)
    assert (result.topic, result.queue_id, result.queue_offset) == ("orders", 0, 0)
    assert result.commit_log_offset == 0
    assert before <= result.store_timestamp <= int(time.time() * 1000)
    assert result.durable is False
    assert len(result.message_id) == 32
    assert result.message_id == result.message_id.upper()
    assert result.message_id.startswith("7F000001")
    message = store.get_at(result.commit_log_offset)
    for name in ("topic", "queue_id", "queue_offset", "commit_log_offset", "size", "message_id", "unique_id",
                 "store_timestamp"):  # fmt: skip
        assert getattr(message, name) == getattr(result, name), name
    assert store.append("orders", b"").commit_log_offset == result.size


def test_result_is_a_frozen_value(store: mqstore.Store) -> None:
    first, second = store.append("t", b"a"), store.append("t", b"a")
    assert first != second
    again = pickle.loads(pickle.dumps(first))
    assert again == first
    assert hash(again) == hash(first)
    assert first != "something else"
    assert eval(repr(first), {"AppendResult": mqstore.AppendResult}) == first
    with pytest.raises(AttributeError):
        first.size = 1  # type: ignore[misc]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"abc",
        bytearray(b"abc"),
        memoryview(b"abc"),
        memoryview(b"abcdef")[::2],
        array.array("i", [1, 2, 3]),
        bytes(range(256)),
    ],
    ids=lambda body: type(body).__name__,
)
def test_bytes_like_bodies(store: mqstore.Store, body: bytes) -> None:
    expected = memoryview(body).tobytes()
    result = store.append("t", body)
    assert store.get_at(result.commit_log_offset).body == expected
    (result,) = store.append_many("t", [body])
    assert store.get_at(result.commit_log_offset).body == expected
    assert mqstore.Message(body).body == expected


@pytest.mark.parametrize("body", ["text", 5, None, ["a"], [1, 2], object()])
def test_other_bodies_are_type_errors(store: mqstore.Store, body: object) -> None:
    for call in (
        lambda: store.append("t", body),  # type: ignore[arg-type]
        lambda: store.append_many("t", [b"good", body]),  # type: ignore[list-item]
        lambda: mqstore.Message(body),  # type: ignore[arg-type]
    ):
        with pytest.raises(TypeError, match="bytes-like") as caught:
            call()
        assert (".encode()" in str(caught.value)) == isinstance(body, str)
    assert store.topics() == []


@pytest.mark.parametrize(
    ("keys", "expected"),
    [((), ()), ("one", ("one",)), (["a", "b"], ("a", "b")), (iter("xy"), ("x", "y")), ("ключ", ("ключ",))],
)
def test_keys(store: mqstore.Store, keys: object, expected: tuple[str, ...]) -> None:
    result = store.append("t", b"x", keys=keys)  # type: ignore[arg-type]
    assert store.get_at(result.commit_log_offset).keys == expected


BAD_TEXT = [
    {"keys": "a b"},
    {"keys": ["fine", "a b"]},
    {"keys": "a\x01b"},
    {"keys": "a\x02"},
    {"keys": ""},
    {"keys": [""]},
    {"tags": "a\x01"},
    {"tags": ""},
    {"properties": {"a\x01": "b"}},
    {"properties": {"a": "b\x02"}},
    {"properties": {"a": ""}},
    {"properties": {"": "a"}},
    {"properties": {"KEYS": "k"}},
    {"properties": {"TAGS": "k"}},
    {"properties": {"DELAY": "1"}},
    {"properties": {"__CRC32#": "1"}},
]


@pytest.mark.parametrize("arguments", BAD_TEXT, ids=repr)
def test_text_the_format_cannot_hold(store: mqstore.Store, arguments: dict[str, object]) -> None:
    with pytest.raises(mqstore.InvalidMessageError):
        store.append("t", b"x", **arguments)  # type: ignore[arg-type]
    with pytest.raises(mqstore.InvalidMessageError, match="message 1"):
        store.append_many("t", [b"fine", mqstore.Message(b"x", **arguments)])  # type: ignore[arg-type]
    assert store.topics() == []


@pytest.mark.parametrize(
    "arguments",
    [
        {"keys": 5},
        {"keys": b"bytes"},
        {"keys": [5]},
        {"keys": [None]},
        {"tags": 5},
        {"tags": ["a"]},
        {"properties": [("a", "b")]},
        {"properties": {"a": 5}},
        {"properties": {5: "a"}},
        {"flag": "1"},
        {"flag": True},
        {"born_timestamp": b"now"},
        {"born_timestamp": 1.5},
    ],
    ids=repr,
)
def test_wrong_types(store: mqstore.Store, arguments: dict[str, object]) -> None:
    with pytest.raises(TypeError):
        store.append("t", b"x", **arguments)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        mqstore.Message(b"x", **arguments)  # type: ignore[arg-type]
    assert store.topics() == []


@pytest.mark.parametrize(
    "arguments", [{"flag": 1 << 31}, {"flag": -(1 << 40)}, {"queue_id": -1}, {"queue_id": 1 << 40}]
)
def test_numbers_out_of_range(store: mqstore.Store, arguments: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=next(iter(arguments))):
        store.append("t", b"x", **arguments)  # type: ignore[arg-type]
    assert store.topics() == []


@pytest.mark.parametrize("topic", ["", "a b", "a/b", "..", "t\x00", "x" * 128, "тема", "a\ud800"])
def test_bad_topics(store: mqstore.Store, home: Path, topic: str) -> None:
    before = tree_hash(home)
    for call in (
        lambda: store.append(topic, b"x"),
        lambda: store.append_many(topic, [b"x"]),
        lambda: store.create_topic(topic),
    ):
        with pytest.raises(ValueError) as caught:
            call()
        assert isinstance(caught.value, mqstore.InvalidMessageError | UnicodeEncodeError)
    assert tree_hash(home) == before
    with pytest.raises(TypeError):
        store.append(5, b"x")  # type: ignore[arg-type]


@pytest.mark.parametrize("topic", ["t", "%RETRY%" + "g" * 200, "A_b-9|c"])
def test_good_topics(store: mqstore.Store, topic: str) -> None:
    store.append(topic, b"x")
    assert store.topics() == [topic]
    assert next(store.read(topic)).topic == topic


def test_properties_are_any_mapping(store: mqstore.Store) -> None:
    result = store.append("t", b"x", properties=MappingProxyType({"a": "1", "б": "2"}))
    found = store.get_at(result.commit_log_offset).properties
    assert {name: found[name] for name in ("a", "б")} == {"a": "1", "б": "2"}


def test_unique_key_is_made_unless_given(store: mqstore.Store) -> None:
    made = {store.append("t", b"x").unique_id for _ in range(100)}
    assert len(made) == 100
    assert all(len(one) == 32 for one in made)
    given = store.append("t", b"x", properties={"UNIQ_KEY": "my-own-id"})
    assert given.unique_id == "my-own-id"
    found = store.get("my-own-id")
    assert found is not None
    assert found.unique_id == "my-own-id"
    assert found.properties["UNIQ_KEY"] == "my-own-id"


def test_born_timestamp(store: mqstore.Store) -> None:
    when = datetime(2024, 5, 6, 7, 8, 9, 123_000, tzinfo=timezone(timedelta(hours=2)))
    at = int(when.timestamp() * 1000)
    for given, expected in ((when, at), (at, at), (0, 0), (-5, -5)):
        message = store.get_at(store.append("t", b"x", born_timestamp=given).commit_log_offset)
        assert message.born_timestamp == expected
    assert store.get_at(store.append("t", b"x", born_timestamp=when).commit_log_offset).born_time == when
    for call in (
        lambda: store.append("t", b"x", born_timestamp=datetime(2024, 1, 1)),  # noqa: DTZ001
        lambda: mqstore.Message(b"x", born_timestamp=datetime(2024, 1, 1)),  # noqa: DTZ001
    ):
        with pytest.raises(ValueError, match="time zone"):
            call()


def test_queues_take_turns_unless_told(store: mqstore.Store) -> None:
    store.create_topic("t", queues=3)
    taken = [store.append("t", b"x").queue_id for _ in range(9)]
    assert sorted(taken) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
    assert [store.append("t", b"x", queue_id=1).queue_offset for _ in range(3)] == [3, 4, 5]
    with pytest.raises(mqstore.TopicNotFoundError) as caught:
        store.append("t", b"x", queue_id=3)
    assert caught.value.queue_id == 3


def test_unknown_topic(home: Path) -> None:
    with mqstore.open(home, "create", options=SMALL, default_queues=2) as store:
        store.append("t", b"x")
        assert len(store.queues("t")) == 2
    with mqstore.open(home, "rw", auto_create_topics=False) as store:
        with pytest.raises(mqstore.TopicNotFoundError):
            store.append("u", b"x")
        store.append("t", b"x")


def test_too_large(home: Path) -> None:
    with mqstore.open(home, "create", options=SMALL, max_message_size=1000) as store:
        store.append("t", b"x" * 1000)
        with pytest.raises(mqstore.MessageTooLargeError) as caught:
            store.append("t", b"x" * 1001)
        assert (caught.value.size, caught.value.limit) == (1001, 1000)
        with pytest.raises((mqstore.MessageTooLargeError, mqstore.InvalidMessageError)):
            store.append("t", b"x", properties={"a": "b" * 40_000})
        with pytest.raises(mqstore.MessageTooLargeError):
            store.append_many("t", [b"x", b"x" * 1001])
        assert store.queues("t")[0].max_offset == 1
    with mqstore.open(home, "rw") as store, pytest.raises(mqstore.MessageTooLargeError):
        store.append("t", b"x" * (64 << 10))


def test_append_many(store: mqstore.Store) -> None:
    store.create_topic("t", queues=2)
    message = mqstore.Message(
        b"c", keys=["k", "l"], tags="tag", properties={"a": "b"}, flag=-7, born_timestamp=1_700_000_000_000
    )
    results = store.append_many("t", (item for item in [b"a", bytearray(b"b"), message]), queue_id=1)
    assert [result.queue_offset for result in results] == [0, 1, 2]
    assert {result.queue_id for result in results} == {1}
    found = list(store.read("t", 1))
    assert [one.body for one in found] == [b"a", b"b", b"c"]
    last = found[-1]
    assert (last.keys, last.tags, last.flag, last.born_timestamp) == (("k", "l"), "tag", -7, 1_700_000_000_000)
    assert last.properties["a"] == "b"
    assert store.append_many("t", []) == []
    for wrong in (b"abc", "abc", 5):
        with pytest.raises(TypeError):
            store.append_many("t", wrong)  # type: ignore[arg-type]


def test_results_of_many_are_a_sequence(store: mqstore.Store) -> None:
    """Its elements are created when they are read; it compares and adds like a list."""
    store.create_topic("t", queues=3)
    results = store.append_many("t", [b"a", b"b", b"c"])
    alone = list(results)
    assert isinstance(results, Sequence)
    assert [one.queue_id for one in results] == [0, 1, 2]
    assert len(results) == 3
    assert (results[0], results[-1], results[1:]) == (alone[0], alone[2], alone[1:])
    assert results == alone
    assert alone == results
    assert results != alone[1:]
    assert results != tuple(alone)
    assert results == pickle.loads(pickle.dumps(results))
    assert results != store.append_many("t", [b"a", b"b", b"c"])
    assert (results + alone, alone + results) == (alone * 2, alone * 2)
    assert list(reversed(results)) == alone[::-1]
    assert alone[1] in results
    assert (results.index(alone[1]), results.count(alone[1]), results.count(None)) == (1, 1, 0)
    assert repr(results) == repr(alone)
    assert eval(repr(results), {"AppendResult": mqstore.AppendResult}) == results
    match results:
        case [first, *rest]:
            assert [first, *rest] == alone
        case _:
            pytest.fail("the results match as a sequence")
    for wrong in (3, -4):
        with pytest.raises(IndexError):
            results[wrong]
    with pytest.raises(ValueError, match="not in list"):
        results.index(alone[1], 2)
    with pytest.raises(TypeError):
        hash(results)
    with pytest.raises(TypeError):
        results[0] = alone[1]  # type: ignore[index]


def test_append_many_takes_turns(store: mqstore.Store) -> None:
    store.create_topic("t", queues=4)
    results = store.append_many("t", [b"x"] * 8)
    assert sorted(result.queue_id for result in results) == [0, 0, 1, 1, 2, 2, 3, 3]


def test_append_many_over_a_roll(store: mqstore.Store) -> None:
    bodies = [bytes([number]) * 3000 for number in range(60)]
    results = store.append_many("t", bodies)
    assert [result.queue_offset for result in results] == list(range(60))
    assert [message.body for message in store.read("t")] == bodies


@pytest.mark.parametrize("durability", ["sync", "async", "manual"])
def test_durability(home: Path, durability: str) -> None:
    with mqstore.open(home, "create", options=SMALL, durability=durability) as store:
        assert store.append("t", b"x").durable is (durability == "sync")
        assert store.append("t", b"x", durable=True).durable is True
        assert all(result.durable for result in store.append_many("t", [b"a", b"b"], durable=True))
        store.flush()
        assert len(list(store.read("t"))) == 4


def test_read_only_refuses(filled: Path) -> None:
    before = tree_hash(filled)
    with mqstore.open(filled) as store:
        for call in (
            lambda: store.append("t", b"x"),
            lambda: store.append_many("t", [b"x"]),
            lambda: store.create_topic("t"),
        ):
            with pytest.raises(mqstore.StoreReadOnlyError, match='mode "rw"'):
                call()
    assert tree_hash(filled) == before


def test_create_topic(store: mqstore.Store) -> None:
    store.create_topic("t", queues=4)
    store.create_topic("t", queues=4)
    assert [queue.queue_id for queue in store.queues("t")] == [0, 1, 2, 3]
    assert all((queue.min_offset, queue.max_offset, queue.count) == (0, 0, 0) for queue in store.queues("t"))
    for wrong in (0, -1, 1 << 20):
        with pytest.raises(ValueError, match="queues"):
            store.create_topic("u", queues=wrong)
    with pytest.raises(TypeError):
        store.create_topic("u", queues="4")  # type: ignore[arg-type]
    assert store.topics() == ["t"]
    with pytest.raises(mqstore.TopicNotFoundError):
        store.queues("u")


def test_topics_survive_without_messages(home: Path) -> None:
    with mqstore.open(home, "create", options=SMALL) as store:
        store.create_topic("empty", queues=2)
    with mqstore.open(home) as store:
        assert store.topics() == ["empty"]
        assert len(store.queues("empty")) == 2


def test_many_threads(store: mqstore.Store) -> None:
    store.create_topic("t", queues=2)
    results: list[mqstore.AppendResult] = []

    def work(name: int) -> None:
        mine = [store.append("t", f"{name}-{number}".encode()) for number in range(500)]
        results.extend(mine)

    threads = [threading.Thread(target=work, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    bodies = {message.body for queue in (0, 1) for message in store.read("t", queue)}
    assert bodies == {f"{name}-{number}".encode() for name in range(4) for number in range(500)}
    for queue in (0, 1):
        offsets = sorted(result.queue_offset for result in results if result.queue_id == queue)
        assert offsets == list(range(len(offsets)))
    assert len({result.commit_log_offset for result in results}) == 2000
    assert len({result.unique_id for result in results}) == 2000


def test_store_times_are_utc_now(store: mqstore.Store) -> None:
    message = store.get_at(store.append("t", b"x").commit_log_offset)
    assert abs(datetime.now(UTC) - message.store_time) < timedelta(seconds=10)
    assert abs(datetime.now(UTC) - message.born_time) < timedelta(seconds=10)
    assert message.store_time.tzinfo is UTC


def test_a_body_of_json(store: mqstore.Store) -> None:
    value = {"name": "Zoë", "tags": ["a", 1, None, True]}
    text = '{"name":"Zoë","tags":["a",1,null,true]}'.encode()
    queue = store.work_queue("jobs")
    queue.put(json=value)
    queue.put_nowait(json=value)
    queue.put_many([mqstore.Message(json=value)])
    store.append("orders", json=value, keys="k")
    with store.transaction() as transaction:
        transaction.append("orders", json=value)
    bodies = [message.body for topic in ("jobs", "orders") for message in store.read(topic)]
    assert bodies == [text] * 5
    for message in store.read("orders"):
        assert message.json() == value
    assert mqstore.Message(json=0) == mqstore.Message(b"0")
    for call in (store.append, store.transaction().append):
        with pytest.raises(TypeError, match="give a bytes-like body or json, and not both"):
            call("orders")
        with pytest.raises(TypeError, match="give a bytes-like body or json, and not both"):
            call("orders", b"", json=1)
    with pytest.raises(TypeError, match="not JSON serializable"):
        store.append("orders", json=b"x")
    with pytest.raises(ValueError, match="not JSON compliant"):
        store.append("orders", json=float("nan"))
