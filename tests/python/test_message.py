"""Message and StoredMessage: values, bytes, decoding."""

from __future__ import annotations

import copy
import gc
import json
import pickle
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import mqstore
import rocketmq_bytes as raw
from conftest import SMALL
from mqstore._dicts import RESULT

if TYPE_CHECKING:
    from conftest import Cli


def only(home: Path, **fields: object) -> mqstore.StoredMessage:
    """The only message of a log that was made by hand."""
    raw.write_log(home, [fields])
    with pytest.warns(mqstore.StoreWarning), mqstore.open(home) as store:
        return store.get_at(0)


def test_every_attribute(home: Path) -> None:
    properties = raw.properties(UNIQ_KEY="U1", KEYS="a b", TAGS="tag", other="x", __STARTDELIVERTIME="5")
    message = only(
        home,
        topic="topic",
        queue_id=3,
        queue_offset=0,
        body=b"hello",
        properties=properties,
        flag=-2,
        sys_flag=0x2,
        born=1_600_000_000_001,
        stored=1_700_000_000_123,
        host=("10.1.2.3", 4567),
        reconsume=4,
        prepared=77,
    )
    assert message.topic == "topic"
    assert message.queue_id == 3
    assert message.queue_offset == 0
    assert message.commit_log_offset == 0
    assert message.size == 91 + 5 + 5 + len(properties)
    assert message.message_id == "0A010203000011D70000000000000000"
    assert message.unique_id == "U1"
    assert message.body == b"hello"
    assert message.keys == ("a", "b")
    assert message.tags == "tag"
    assert message.properties == {
        "UNIQ_KEY": "U1", "KEYS": "a b", "TAGS": "tag", "other": "x", "__STARTDELIVERTIME": "5",
    }  # fmt: skip
    assert message.flag == -2
    assert message.sys_flag == 0x2
    assert message.born_timestamp == 1_600_000_000_001
    assert message.born_host == "10.1.2.3:4567"
    assert message.store_timestamp == 1_700_000_000_123
    assert message.store_host == "10.1.2.3:4567"
    assert message.reconsume_times == 4
    assert message.prepared_transaction_offset == 77
    assert message.body_crc == 0x3610A686
    assert message.born_time == datetime(2020, 9, 13, 12, 26, 40, 1000, tzinfo=UTC)
    assert message.store_time == datetime(2023, 11, 14, 22, 13, 20, 123_000, tzinfo=UTC)


def test_absent_things(home: Path) -> None:
    message = only(home, body=b"")
    assert message.unique_id is None
    assert message.tags is None
    assert message.keys == ()
    assert message.properties == {}
    assert message.body == b""
    assert message.body_crc == 0
    assert bytes(message.body_view) == b""


def test_ipv6_host(home: Path) -> None:
    message = only(home, host=("2001:db8::7", 10911))
    assert message.born_host == "[2001:db8::7]:10911"
    assert message.store_host == "[2001:db8::7]:10911"
    assert message.message_id == "20010DB8000000000000000000000007" + "00002A9F" + "0" * 16
    assert message.sys_flag == 0x30


def test_long_topic_is_version_2(home: Path) -> None:
    topic = "%RETRY%" + "g" * 200
    assert only(home, topic=topic).topic == topic


@pytest.mark.parametrize(
    ("kind", "pack"),
    [
        (0, raw.zlib_body),
        (raw.ZLIB, raw.zlib_body),
        (raw.LZ4, raw.lz4_body),
        (raw.ZSTD, raw.zstd_body),
    ],
)
def test_compressed_bodies(home: Path, kind: int, pack: object) -> None:
    body = b"many words " * 20
    packed = pack(body)  # type: ignore[operator]
    message = only(home, body=packed, sys_flag=raw.COMPRESSED | kind)
    assert message.body == body
    assert message.body is message.body
    assert bytes(message.body_view) == packed
    assert message.text() == body.decode()
    assert message.sys_flag == raw.COMPRESSED | kind
    assert pickle.loads(pickle.dumps(message)).body == body


@pytest.mark.parametrize("kind", [0, raw.LZ4, raw.ZSTD, raw.ZLIB, 0x700])
def test_bodies_that_do_not_unpack(home: Path, kind: int) -> None:
    message = only(home, body=b"not compressed at all", sys_flag=raw.COMPRESSED | kind)
    with pytest.raises((mqstore.CorruptionError, mqstore.UnsupportedFormatError)):
        _ = message.body
    assert bytes(message.body_view) == b"not compressed at all"
    assert "not compressed" in repr(message)


def test_a_bomb_is_refused(home: Path) -> None:
    import zlib

    packer = zlib.compressobj(9)
    packed = b"".join(packer.compress(bytes(1 << 20)) for _ in range(80)) + packer.flush()
    raw.write_log(home, [{"body": packed, "sys_flag": raw.COMPRESSED}], segment_size=1 << 20)
    with pytest.warns(mqstore.StoreWarning), mqstore.open(home) as store:
        message = store.get_at(0)
        assert len(message.body) == 80 << 20  # deflate reaches at most 1:1032


def test_body_view_is_read_only_and_outlives_the_store(filled: Path) -> None:
    store = mqstore.open(filled)
    view = next(store.read("orders", 0, 3)).body_view
    store.close()
    del store
    gc.collect()
    assert isinstance(view, memoryview)
    assert view.readonly
    assert view.format == "B"
    assert bytes(view) == b"body 6"
    assert bytes(view[5:]) == b"6"
    with pytest.raises(TypeError):
        view[0] = 1
    with pytest.raises(TypeError):
        memoryview(view.obj)[0] = 1


def test_text_and_json(store: mqstore.Store) -> None:
    value = {"price": 5, "name": "ключ"}
    message = store.get_at(store.append("t", json.dumps(value).encode()).commit_log_offset)
    assert message.json() == value
    latin = store.get_at(store.append("t", "é".encode("latin-1")).commit_log_offset)
    assert latin.text("latin-1") == "é"
    assert latin.text(errors="replace") == "�"
    with pytest.raises(UnicodeDecodeError):
        latin.text()
    with pytest.raises(ValueError):
        latin.json()


def test_stored_message_is_a_frozen_value(filled: Path) -> None:
    with mqstore.open(filled) as store:
        first, second = list(store.read("orders", 0, 0, 2))
        again = next(store.read("orders"))
    assert first == again
    assert hash(first) == hash(again)
    assert first != second
    assert first != b"something else"
    assert len({first, second, again}) == 2
    for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
        restored = pickle.loads(pickle.dumps(first, protocol))
        assert restored == first
        assert (restored.body, restored.keys, restored.message_id) == (first.body, first.keys, first.message_id)
    assert copy.copy(first) == first
    assert copy.deepcopy(first) == first
    with pytest.raises(AttributeError):
        first.body = b""  # type: ignore[misc]
    with pytest.raises(TypeError):
        mqstore.StoredMessage()
    assert repr(first).startswith("StoredMessage(topic='orders', queue_id=0, queue_offset=0, commit_log_offset=0,")
    assert "body=b'body 0'" in repr(first)


def test_properties_are_a_copy(filled: Path) -> None:
    with mqstore.open(filled) as store:
        message = next(store.read("orders"))
    message.properties["region"] = "us"
    assert message.properties["region"] == "eu"


def test_times_out_of_range(home: Path) -> None:
    message = only(home, born=1 << 62, stored=-1)
    assert message.born_timestamp == 1 << 62
    with pytest.raises(OverflowError):
        _ = message.born_time
    assert message.store_time == datetime(1969, 12, 31, 23, 59, 59, 999_000, tzinfo=UTC)


def test_message() -> None:
    message = mqstore.Message(b"body", keys="k", tags="t", properties={"a": "b"}, flag=7, born_timestamp=5)
    assert message.keys == ("k",)
    same = mqstore.Message(bytearray(b"body"), keys=["k"], tags="t", properties={"a": "b"}, flag=7, born_timestamp=5)
    assert message == same
    assert hash(message) == hash(same)
    assert message != mqstore.Message(b"body")
    assert pickle.loads(pickle.dumps(message)) == message
    assert copy.deepcopy(message) == message
    assert eval(repr(message), vars(mqstore)) == message
    assert "(100 bytes)" in repr(mqstore.Message(b"x" * 100))
    with pytest.raises(AttributeError):
        message.body = b""  # type: ignore[misc]
    with pytest.raises(TypeError):
        message.properties["a"] = "c"  # type: ignore[index]
    with pytest.raises(ValueError, match="32 bits"):
        mqstore.Message(b"", flag=1 << 31)


def test_message_parts_and_copies() -> None:
    message = mqstore.Message(b"body", keys=["k", "l"], properties={"a": "b"}, flag=7)
    match message:
        case mqstore.Message(body, keys, tags, properties):
            assert (body, keys, tags, properties) == (b"body", ("k", "l"), None, {"a": "b"})
        case _:
            pytest.fail("a Message matches its class by position")
    changed = message.__replace__(tags="t", keys=())
    assert changed == mqstore.Message(b"body", tags="t", properties={"a": "b"}, flag=7)
    assert message.__replace__() == message
    assert message.__replace__(body=b"x").body == b"x"
    with pytest.raises(TypeError, match="tag"):
        message.__replace__(tag="t")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("born", [None, -1, 5, datetime(1970, 2, 1, tzinfo=UTC), datetime(2024, 2, 1, tzinfo=UTC)])
def test_message_is_picklable(protocol: int, born: int | datetime | None) -> None:
    """Also if its time, as a number, looks like seconds and would be refused."""
    message = mqstore.Message(b"body", keys="k", tags="t", properties={"a": "b"}, flag=-7, born_timestamp=born)
    assert pickle.loads(pickle.dumps(message, protocol)) == message
    assert message.__replace__() == message


def test_message_can_be_appended_again(home: Path) -> None:
    good = mqstore.Message(b"x", keys=["k", "l"], tags="t", properties={"a": "b", "UNIQ_KEY": "id"})
    bad = mqstore.Message(b"x", keys="a b")
    with mqstore.open(home, "create", options=SMALL) as store:
        for topic in ("t", "u"):
            (first, second) = store.append_many(topic, [good, good])
            assert first.unique_id == second.unique_id == "id"
            assert [(one.keys, one.tags, one.properties["a"]) for one in store.read(topic)] == [
                (("k", "l"), "t", "b")
            ] * 2
            with pytest.raises(mqstore.InvalidMessageError, match="message 2: key"):
                store.append_many(topic, [b"", good, bad])


def test_message_does_not_see_later_changes() -> None:
    body, properties, keys = bytearray(b"x"), {"a": "b"}, ["k"]
    message = mqstore.Message(body, keys=keys, properties=properties)
    body[0] = 0
    properties["a"] = "c"
    keys.append("l")
    assert message == mqstore.Message(b"x", keys=["k"], properties={"a": "b"})


def test_a_message_and_a_result_are_dicts_for_json(home: Path, cli: Cli) -> None:
    with mqstore.open(home, "create", options=SMALL) as store:
        text = store.append("orders", "grün".encode(), keys=["a", "b"], tags="paid", properties={"other": "x"})
        store.append("orders", b"\xff\x00")
        messages = [message.to_dict() for message in store.read("orders")]
        with store.work_queue("orders") as queue, queue.get() as job:
            assert job.to_dict() == messages[0]
            job.ack()
    assert text.to_dict() == {name: getattr(text, name) for name in RESULT}
    assert messages[0]["keys"] == ["a", "b"]
    assert messages[0]["body_text"] == "grün"
    assert messages[1]["body_base64"] == "/wA="
    assert "body_text" not in messages[1]
    for found in (text.to_dict(), *messages):
        assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert json.loads(cli("cat", home, "--topic", "orders", "--format", "json").stdout) == messages
