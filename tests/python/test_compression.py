"""Compression of bodies: which verbs compress, which bodies stay unchanged, and what keeps the stored form."""

from __future__ import annotations

import asyncio
import json
import random
import zlib
from pathlib import Path
from typing import Any

import pytest

import mqstore
import mqstore.aio
import rocketmq_bytes as raw
from conftest import SMALL, Cli, until
from loops import in_loop
from mqstore import Message, testing

BODY = b'{"order": "A-1", "state": "paid"}\n' * 300
FLAGS = {"lz4": raw.LZ4, "zstd": raw.ZSTD, "zlib": raw.ZLIB}
EACH = pytest.mark.parametrize("kind", sorted(FLAGS))
COMPACTION = {"cleanup.policy": "COMPACTION"}


def is_compressed(message: mqstore.StoredMessage) -> bool:
    """Whether the record has a compressed body, and readers get the body as it was given."""
    assert message.body == BODY
    assert (len(message.body_view) < len(BODY) // 10) == bool(message.sys_flag & raw.COMPRESSED)
    return bool(message.sys_flag & raw.COMPRESSED)


def only(store: mqstore.Store, topic: str) -> mqstore.StoredMessage:
    (message,) = store.read(topic)
    return message


@EACH
def test_a_record_says_how_its_body_is_compressed(store: mqstore.Store, kind: Any) -> None:
    result = store.append("t", BODY, keys="k", tags="paid", compression=kind)
    message = only(store, "t")
    assert is_compressed(message)
    assert message.sys_flag == raw.COMPRESSED | FLAGS[kind]
    assert result.size == message.size < len(BODY) // 10
    # The checksum is that of the stored bytes.
    assert message.body_crc == zlib.crc32(message.body_view) & 0x7FFF_FFFF
    assert (message.keys, message.tags) == (("k",), "paid")
    assert next(store.lookup("t", "k")) == message
    if kind == "zlib":
        assert zlib.decompress(message.body_view) == BODY
    assert store.verify().ok


def test_the_option_of_the_store_holds_for_every_verb_that_takes_a_body(tmp_path: Path) -> None:
    clock = testing.ManualClock()
    with testing.open(tmp_path / "s", clock=clock, compression="zstd") as store:
        store.append("single", BODY)
        store.append_many("many", [BODY, Message(BODY, keys="k")])
        store.append_batch("batch", [BODY, BODY], ["k", "l"])
        store.append("beside", BODY, light_queues="light")
        store.append("later", BODY, delay=5)
        store.append("level", BODY, delay_level=1)
        with store.transaction() as transaction:
            transaction.append("all", BODY)
        work = store.work_queue("work")
        work.put(BODY)
        work.put_nowait(BODY, dedup_id="one")
        work.put_many([BODY])
        store.create_topic("table", attributes=COMPACTION)
        table = store.table("table")
        table["k"] = BODY
        table.set("l", BODY)
        clock.advance(10)
        assert store.wait("later", 0, 0, timeout=20)
        assert store.wait("level", 0, 0, timeout=20)
        topics = ["single", "many", "batch", "beside", "%LMQ%light", "later", "level", "all", "work", "table"]
        found = {topic: [is_compressed(message) for message in store.read(topic)] for topic in topics}
        assert found == {topic: [True] * len(found[topic]) for topic in topics}
        assert sum(map(len, found.values())) == 15
        assert is_compressed(table["k"])
        # What a store writes for itself is never compressed: brokers read it without decompressing it.
        own = [message for message in store._scan_log(0) if message.topic == "RMQ_SYS_TRANS_OP_HALF_TOPIC"]
        assert [message.sys_flag & raw.COMPRESSED for message in own] == [0]


def stored(store: mqstore.Store, topic: str) -> list[tuple[bytes, int]]:
    """Body and flag of each message. The stored bytes of a compressed body are few."""
    found = [(message.body, message.sys_flag) for message in store.read(topic)]
    sizes = [len(message.body_view) for message in store.read(topic)]
    assert [size < len(body) // 10 for (body, _), size in zip(found, sizes, strict=True)] == [
        bool(flag & raw.COMPRESSED) for _, flag in found
    ]
    return found


def test_a_batch_of_columns_is_compressed(tmp_path: Path) -> None:
    bodies = [b"small", BODY, bytearray(BODY + b"2"), b""]
    given = [bytes(body) for body in bodies]
    zstd, zlib_ = raw.COMPRESSED | raw.ZSTD, raw.COMPRESSED | raw.ZLIB
    with mqstore.open(tmp_path / "s", "create", options=SMALL, compression="zstd") as store:
        results = store.append_batch("t", bodies, [f"k{n}" for n in range(4)], "tag", {"a": "b"})
        assert stored(store, "t") == list(zip(given, [0, zstd, zstd, 0], strict=True))
        assert [result.size for result in results] == [message.size for message in store.read("t")]
        found = [(message.keys, message.tags, message.properties["a"]) for message in store.read("t")]
        assert found == [((f"k{n}",), "tag", "b") for n in range(4)]
        store.append_batch("call", bodies, compression="zlib", compress_over=len(BODY) + 1)
        assert stored(store, "call") == list(zip(given, [0, 0, zlib_, 0], strict=True))
        store.append_batch("plain", bodies, compression="none")
        assert stored(store, "plain") == list(zip(given, [0] * 4, strict=True))
        store.create_topic("b", attributes={"queue.type": "BatchCQ"})
        store.append_batch("b", [BODY, BODY])
        assert [message.body for message in only(store, "b").batch()] == [BODY, BODY]


def test_the_rows_of_a_table_are_compressed(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    # More rows than one group has; the large bodies are in different groups.
    given = [BODY if row % 900 == 5 else b"%d" % row for row in range(2000)]
    large = [row % 900 == 5 for row in range(2000)]
    table = arrow.table({"body": arrow.array(given, arrow.binary())})
    zstd, lz4 = raw.COMPRESSED | raw.ZSTD, raw.COMPRESSED | raw.LZ4
    with mqstore.open(tmp_path / "s", "create", options=SMALL, compression="zstd") as store:
        assert store.append_arrow("t", table) == 2000
        assert stored(store, "t") == [(body, zstd if one else 0) for body, one in zip(given, large, strict=True)]
        store.append_arrow("call", table.slice(0, 10), compression="lz4", compress_over=len(BODY))
        assert stored(store, "call") == [(body, lz4 if body == BODY else 0) for body in given[:10]]
        store.append_arrow("plain", table.slice(0, 10), compression="none")
        assert stored(store, "plain") == [(body, 0) for body in given[:10]]
        store.create_topic("b", attributes={"queue.type": "BatchCQ"})
        topics = arrow.table({"body": [BODY, BODY], "topic": ["b", "b"]})
        assert store.append_arrow(None, topics) == 2
        assert [message.body for message in only(store, "b").batch()] == [BODY, BODY]


def test_a_message_object_has_no_compressed_form(store: mqstore.Store) -> None:
    """Each call compresses by its own rule; the object does not change."""
    message = Message(BODY, keys="k", tags="a", flag=7)
    store.append_many("t", [message, BODY], compression="zstd")
    store.append_many("t", [message, message])
    store.append_many("t", [message], compression="lz4")
    flags = [raw.COMPRESSED | raw.ZSTD] * 2 + [0, 0] + [raw.COMPRESSED | raw.LZ4]
    assert stored(store, "t") == [(BODY, flag) for flag in flags]
    assert message == Message(BODY, keys="k", tags="a", flag=7)
    store.work_queue("work").put_many([message, BODY], compression="zlib")
    assert [found.sys_flag for found in store.read("work")] == [raw.COMPRESSED | raw.ZLIB] * 2


def test_a_call_overrides_the_store(tmp_path: Path) -> None:
    with mqstore.open(tmp_path / "s", "create", options=SMALL, compression="lz4", compress_over=100) as store:
        store.append("t", BODY, compression="none")
        store.append("t", BODY, compression="zlib")
        store.append("t", BODY, compress_over=len(BODY) + 1)
        store.append("t", b"x" * 99)
        store.append("t", b"x" * 100)
        store.append("t", b"x" * 99, compress_over=0)
        store.append_many("t", [BODY, b"x" * 99], compression="none")
        flags = [message.sys_flag for message in store.read("t")]
        lz4 = raw.COMPRESSED | raw.LZ4
        assert flags == [0, raw.COMPRESSED | raw.ZLIB, 0, 0, lz4, lz4, 0, 0]
    with mqstore.open(tmp_path / "s", "rw") as store:
        store.append("t", BODY)
        store.append("t", b"x" * 4095, compression="zstd")
        store.append("t", b"x" * 4096, compression="zstd")
        flags = [message.sys_flag for message in store.tail("t", 3)]
        assert flags == [0, 0, raw.COMPRESSED | raw.ZSTD]


@EACH
def test_a_body_that_does_not_get_smaller_is_stored_as_it_is(store: mqstore.Store, kind: Any) -> None:
    noise = random.Random(1).randbytes(5000)
    store.append("t", noise, compression=kind)
    store.append("t", b"", compression=kind, compress_over=0)
    store.append_many("t", [b"", noise, b"1"], compression=kind, compress_over=0)
    found = [(message.sys_flag, bytes(message.body_view)) for message in store.read("t")]
    assert found == [(0, noise), (0, b""), (0, b""), (0, noise), (0, b"1")]


def test_the_limit_counts_the_body_as_given(tmp_path: Path) -> None:
    with mqstore.open(tmp_path / "s", "create", options=SMALL, max_message_size=20_000, compression="zstd") as store:
        store.append("t", bytes(20_000))
        with pytest.raises(mqstore.MessageTooLargeError) as caught:
            store.append("t", bytes(20_001))
        assert (caught.value.size, caught.value.limit) == (20_001, 20_000)
        with pytest.raises(mqstore.MessageTooLargeError):
            store.append_many("t", [bytes(20_001)])
        assert store.count("t") == 1
    # A record must fit in a segment in its stored form.
    with mqstore.open(tmp_path / "s", "rw") as store:
        store.append("t", bytes(1 << 20), compression="zstd")
        with pytest.raises(mqstore.MessageTooLargeError):
            store.append("t", bytes(1 << 20))


@pytest.mark.parametrize("value", ["gzip", "", "ZSTD", 5, b"zstd"])
def test_an_unknown_compression_is_refused(store: mqstore.Store, value: Any) -> None:
    with pytest.raises(mqstore.InvalidOptionError, match="compression"):
        store.append("t", BODY, compression=value)
    with pytest.raises(mqstore.InvalidOptionError, match="compression"):
        mqstore.open(store.path, compression=value)
    assert store.topics() == []


@pytest.mark.parametrize("value", [-1, (1 << 30) + 1, "4096", 1.5])
def test_a_bound_out_of_bounds_is_refused(store: mqstore.Store, value: Any) -> None:
    calls = (
        store.append,
        lambda topic, body, **named: store.append_many(topic, [body], **named),
        lambda topic, body, **named: store.append_batch(topic, [body], **named),
    )
    for call in calls:
        with pytest.raises(mqstore.InvalidOptionError, match="compress_over"):
            call("t", BODY, compression="zstd", compress_over=value)
    with pytest.raises(mqstore.InvalidOptionError, match="compress_over"):
        mqstore.open(store.path, compress_over=value)
    assert store.topics() == []


def test_a_batch_is_not_compressed(store: mqstore.Store) -> None:
    """RocketMQ's clients do not compress batches, and its form of a batched message has no flag for a compression."""
    store.create_topic("b", attributes={"queue.type": "BatchCQ"})
    store.append_many("b", [BODY, BODY], compression="zstd")
    store.append("b", BODY, compression="zstd")
    batch, single = store.read("b")
    assert (batch.sys_flag, [message.body for message in batch.batch()]) == (0xC0, [BODY, BODY])
    assert is_compressed(single)


def test_copies_inside_a_store_keep_the_stored_form(tmp_path: Path) -> None:
    clock = testing.ManualClock()
    with testing.open(tmp_path / "s", clock=clock) as store:
        work = store.work_queue("work", max_attempts=1)
        work.put(BODY, compression="zlib")
        work.nack(work.get(), 0)
        stored = bytes(only(store, work.dead_letters).body_view)
        assert is_compressed(only(store, work.dead_letters))
        assert work.redrive() == 1
        assert [bytes(message.body_view) for message in store.read("work")] == [stored, stored]
        assert work.get().body == BODY


def test_a_rescheduled_message_keeps_the_stored_form(tmp_path: Path) -> None:
    clock = testing.ManualClock()
    with testing.open(tmp_path / "s", clock=clock) as store:
        waiting = store.append("t", BODY, delay=60, compression="zlib")
        assert store.reschedule(waiting.message_id, delay=5) is not None
        clock.advance(6)
        assert store.wait("t", 0, 0, timeout=20)
        assert is_compressed(only(store, "t"))


def test_a_transaction_that_another_process_commits_keeps_the_stored_form(tmp_path: Path) -> None:
    home = tmp_path / "s"
    with mqstore.open(home, "create", options=SMALL) as store:
        transaction = store.transaction("g")
        transaction.append("t", BODY, compression="lz4")
        del transaction
    with mqstore.open(home, "rw") as store:
        store.check_transactions(lambda _: "commit", "g", check_after=0.001, check_interval=0.001)
        until(lambda: "t" in store.topics() and store.count("t") == 1)
        assert is_compressed(only(store, "t"))
        assert only(store, "t").sys_flag & 0x701 == raw.COMPRESSED | raw.LZ4


def test_compaction_and_a_copy_of_the_store_keep_the_stored_form(tmp_path: Path) -> None:
    home = tmp_path / "s"
    with mqstore.open(home, "create", options=SMALL, compression="zstd") as store:
        store.create_topic("table", attributes=COMPACTION)
        table = store.table("table")
        for _ in range(3):
            table["k"] = BODY
        stored = bytes(table["k"].body_view)
        store.compact()
        assert bytes(store.table("table")["k"].body_view) == stored
        assert is_compressed(table["k"])
    mqstore.export(home, tmp_path / "copy", format="store")
    mqstore.rebuild(tmp_path / "copy")
    with mqstore.open(tmp_path / "copy") as copy:
        assert bytes(copy.table("table")["k"].body_view) == stored
        assert is_compressed(copy.table("table")["k"])
    assert mqstore.verify(tmp_path / "copy").ok


def test_an_import_compresses_only_as_it_is_told(tmp_path: Path) -> None:
    home, file = tmp_path / "s", tmp_path / "rows.jsonl"
    with mqstore.open(home, "create", options=SMALL, compression="zlib") as store:
        store.append("t", BODY, keys="k")
        store.append("t", b"short")
        store.create_topic("b", attributes={"queue.type": "BatchCQ"})
        store.append_many("b", [BODY, BODY])
    mqstore.export(home, file)
    assert json.loads(file.read_text().splitlines()[-1])["body_size"] > 0
    mqstore.import_(tmp_path / "plain", file)
    mqstore.import_(tmp_path / "packed", file, compression="zstd")
    for name, flags in (("plain", [0, 0]), ("packed", [raw.COMPRESSED | raw.ZSTD, 0])):
        with mqstore.open(tmp_path / name) as store:
            assert [message.sys_flag for message in store.read("t")] == flags
            assert [message.body for message in store.read("t")] == [BODY, b"short"]
            assert [message.body for message in only(store, "b").batch()] == [BODY, BODY]
        assert mqstore.verify(tmp_path / name).ok
    for named in ({"compression": "gzip"}, {"compress_over": -1}):
        with pytest.raises(mqstore.InvalidOptionError, match="compress"):
            mqstore.import_(tmp_path / "none", file, dry_run=True, **named)  # type: ignore[arg-type]


def test_scans_return_the_body_as_given(tmp_path: Path) -> None:
    with mqstore.open(tmp_path / "s", "create", options=SMALL, compression="zstd") as store:
        store.append("t", BODY)
        store.append("t", b"plain")
    arrow = pytest.importorskip("pyarrow")
    table = arrow.table(mqstore.scan(tmp_path / "s", columns=["body", "body_size"]))
    assert table.to_pylist() == [
        {"body": BODY, "body_size": len(BODY)},
        {"body": b"plain", "body_size": 5},
    ]


@in_loop
async def test_tasks_compress_like_threads(home: Path) -> None:
    large = b"large " * 20_000
    async with mqstore.aio.open(home, "create", options=SMALL, compression="zstd", compress_over=100) as store:
        # The loop compresses small bodies itself; a thread compresses the others. The order of the calls stays.
        bodies = [b"%d " % number + (large if number % 3 == 0 else BODY) for number in range(20)]
        await asyncio.gather(*(store.append("t", body) for body in bodies))
        await store.append_many("t", [large, BODY])
        await store.append_many("t", [BODY, b"short"])
        await store.append_batch("batch", [large, b"short", BODY], ["k", "l", "m"])
        await store.append_batch("batch", [BODY, b"short"])
        found = [message async for message in store.read("batch")]
        assert [message.body for message in found] == [large, b"short", BODY, BODY, b"short"]
        assert [message.sys_flag & 1 for message in found] == [1, 0, 1, 1, 0]
        found = [message async for message in store.read("t")]
        assert [message.body for message in found] == [*bodies, large, BODY, BODY, b"short"]
        assert [message.sys_flag & 1 for message in found] == [1] * 23 + [0]
        assert all(len(message.body_view) < 1000 for message in found)
        async with await store.transaction("g") as transaction:
            await transaction.append("all", BODY)
        work = await store.work_queue("work")
        for body in (BODY, large):
            await work.put(body)
            await work.put_many([body])
            await work.put(body, dedup_id=str(len(body)))
        await store.create_topic("table", attributes=COMPACTION)
        table = await store.table("table")
        await table.set("k", BODY)
        for topic in ("all", "work", "table"):
            messages = [message async for message in store.read(topic)]
            assert messages
            assert all(message.sys_flag & 1 for message in messages), topic
        got = [(await work.get()).body for _ in range(6)]
        assert sorted(got) == sorted([BODY] * 3 + [large] * 3)


@pytest.mark.slow
@pytest.mark.parametrize("lines", [False, True])
def test_the_command_line_compresses(tmp_path: Path, cli: Cli, lines: bool) -> None:
    home, file = tmp_path / "s", tmp_path / "body"
    file.write_bytes(BODY.replace(b"\n", b" "))
    more = ["--lines"] if lines else []
    cli("append", home, "t", file, "--create", "--compression", "zlib", *more)
    cli("append", home, "t", file, "--compression", "zlib", "--delay", "0", *more)
    cli("append", home, "t", file, *more)
    cli("append", home, "t", file, "--compression", "zlib", "--compress-over", "1000000", *more)
    with mqstore.open(home) as store:
        zipped = raw.COMPRESSED | raw.ZLIB
        assert [message.sys_flag for message in store.read("t")] == [zipped, zipped, 0, 0]
    mqstore.export(home, tmp_path / "rows.jsonl")
    cli("import", tmp_path / "again", tmp_path / "rows.jsonl", "--create", "--yes", "--compression", "lz4")
    with mqstore.open(tmp_path / "again") as store:
        assert {message.sys_flag for message in store.read("t")} == {raw.COMPRESSED | raw.LZ4}
