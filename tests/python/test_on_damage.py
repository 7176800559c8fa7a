"""Every reading verb has the same rule for a damaged record: an error that names it, or a warning and a count."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mqstore
import mqstore.aio
from mqstore.testing import damage

SMALL = {"segment_size": 1 << 20, "index_slots": 100, "index_entries": 4000, "queue_file_entries": 1000}
LOST = 3
# The first byte of the body in a record.
BODY_AT = 88


def filled(path: Path, topic: str = "orders", messages: int = 10, **attributes: str) -> list[mqstore.StoredMessage]:
    with mqstore.open(path, "create", **SMALL) as store:
        store.create_topic(topic, attributes=attributes)
        for number in range(messages):
            store.append(topic, b"body %d" % number, keys=f"key-{number}")
            store.append("other", b"x")
        return list(store.read(topic))


def body_damage(path: Path, message: mqstore.StoredMessage) -> None:
    damage.flip_body_bit(path, message)


def header_damage(path: Path, message: mqstore.StoredMessage) -> None:
    damage.write_bytes(path, "commitlog/" + "0" * 20, message.commit_log_offset, b"\xff" * 12)


def header_damage_without_queues(path: Path, message: mqstore.StoredMessage) -> None:
    damage.lose_queue(path, "orders")
    header_damage(path, message)


def read(store: mqstore.Store, policy: Any) -> list[int]:
    return [message.queue_offset for message in store.read("orders", on_damage=policy)]


def follow(store: mqstore.Store, policy: Any) -> list[int]:
    found = store.read("orders", on_damage=policy, follow=True, timeout=0)
    return [message.queue_offset for message in found]


def scan(store: mqstore.Store, policy: Any) -> list[int]:
    return store.scan(topics="orders", on_damage=policy).to_arrow()["queue_offset"].to_pylist()


def consumer(store: mqstore.Store, policy: Any) -> list[int]:
    with store.consumer("group", "orders", on_damage=policy) as one:
        found: list[int] = []
        while some := one.poll(timeout=0):
            found += [message.queue_offset for message in some]
        return found


def work_queue(store: mqstore.Store, policy: Any) -> list[int]:
    with store.work_queue("orders", group=policy, on_damage=policy) as queue:
        found: list[int] = []
        try:
            while True:
                message = queue.get(block=False)
                found.append(message.queue_offset)
                queue.ack(message)
        except mqstore.Empty:
            assert queue.qsize() == 0
            return found


def table(store: mqstore.Store, policy: Any) -> list[int]:
    return sorted(message.queue_offset for message in store.table("orders", on_damage=policy).values())


READS = [read, follow, scan, table]
DAMAGES = [body_damage, header_damage, header_damage_without_queues]


def check(path: Path, mode: Any, verb: Callable[[mqstore.Store, Any], list[int]], **options: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mqstore.StoreWarning)
        with (
            mqstore.open(path, mode, **options) as store,
            pytest.raises(mqstore.CorruptionError, match="on_damage") as caught,
        ):
            verb(store, "raise")
    assert caught.value.offset > 0
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with mqstore.open(path, mode, **options) as store:
            assert verb(store, "skip") == [offset for offset in range(10) if offset != LOST]
            assert store.stats().skipped_damage >= 1
    texts = [str(one.message) for one in told if one.category is mqstore.StoreWarning]
    assert any("skipped" in text for text in texts), texts


@pytest.mark.parametrize("verb", READS)
@pytest.mark.parametrize("hit", DAMAGES)
def test_a_reader_of_a_closed_store(tmp_path: Path, verb: Callable[..., list[int]], hit: Callable[..., None]) -> None:
    hit(tmp_path / "store", filled(tmp_path / "store")[LOST])
    check(tmp_path / "store", "r", verb)


@pytest.mark.parametrize("verb", [*READS, consumer, work_queue])
@pytest.mark.parametrize("recovery", ["strict", "salvage"])
def test_the_process_that_writes(tmp_path: Path, verb: Callable[..., list[int]], recovery: str) -> None:
    body_damage(tmp_path / "store", filled(tmp_path / "store")[LOST])
    check(tmp_path / "store", "rw", verb, recovery=recovery)


@pytest.mark.filterwarnings("ignore::mqstore.StoreWarning")
@pytest.mark.parametrize("hit", DAMAGES)
def test_the_default_returns_the_messages_before_and_names_the_place(tmp_path: Path, hit: Callable[..., None]) -> None:
    lost = filled(tmp_path / "store")[LOST]
    hit(tmp_path / "store", lost)
    found = []
    with warnings.catch_warnings(), pytest.raises(mqstore.CorruptionError) as caught:
        warnings.simplefilter("ignore", mqstore.StoreWarning)
        with mqstore.open(tmp_path / "store") as store:
            for message in store.read("orders"):
                found.append(message.queue_offset)  # noqa: PERF401 - the messages before the error count
    assert found == [0, 1, 2]
    assert caught.value.offset == lost.commit_log_offset
    assert "message 3 of queue orders/0" in str(caught.value)


@pytest.mark.parametrize("hit", DAMAGES)
def test_damage_of_another_topic_does_not_count(tmp_path: Path, hit: Callable[..., None]) -> None:
    lost = filled(tmp_path / "store")[LOST]
    hit(tmp_path / "store", lost)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mqstore.StoreWarning)
        with mqstore.open(tmp_path / "store") as store:
            assert len(list(store.read("other"))) == 10
            assert store.scan(topics="other").to_arrow().num_rows == 10
            assert store.stats().skipped_damage == 0


def test_a_damaged_last_message_counts_too(tmp_path: Path) -> None:
    header_damage(tmp_path / "store", filled(tmp_path / "store")[9])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mqstore.StoreWarning)
        for verb in (read, scan):
            with mqstore.open(tmp_path / "store") as store:
                with pytest.raises(mqstore.CorruptionError, match="on_damage"):
                    verb(store, "raise")
                assert verb(store, "skip") == list(range(9))


def test_a_compacted_topic(tmp_path: Path) -> None:
    filled(tmp_path / "store", **{"cleanup.policy": "COMPACTION"})
    with mqstore.open(tmp_path / "store", "rw") as store:
        store.compact("orders")
        lost = list(store.read("orders"))[LOST]
    log = next((tmp_path / "store/compaction/compactionLog/orders/0").iterdir())
    content = bytearray(log.read_bytes())
    content[lost.commit_log_offset + lost.size // 2] ^= 1
    log.write_bytes(content)
    for verb in READS:
        check(tmp_path / "store", "r", verb)


def cat(path: Path, *more: str) -> tuple[int, int, str]:
    command = [sys.executable, "-m", "mqstore", "cat", str(path), "--format", "jsonl", *more]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    return done.returncode, len([json.loads(line) for line in done.stdout.splitlines()]), done.stderr


def test_cat(tmp_path: Path) -> None:
    body_damage(tmp_path / "store", filled(tmp_path / "store")[LOST])
    for form, before, rest in [(["--topic", "orders"], 3, 9), (["--log"], 6, 19)]:
        status, lines, told = cat(tmp_path / "store", *form)
        assert (status, lines) == (3, before)
        assert "--on-damage" in told
        status, lines, told = cat(tmp_path / "store", *form, "--on-damage", "skip")
        assert (status, lines) == (0, rest)
        assert "skipped" in told


@pytest.mark.filterwarnings("ignore::mqstore.StoreWarning")
@pytest.mark.parametrize("form", ["jsonl", "parquet", "store"])
def test_an_export_ends_with_the_error_and_resumes_with_skip(tmp_path: Path, form: Any) -> None:
    body_damage(tmp_path / "store", filled(tmp_path / "store")[LOST])
    copy = tmp_path / f"copy.{form}"
    with pytest.raises(mqstore.CorruptionError, match="on_damage"):
        mqstore.export(tmp_path / "store", copy, format=form, topics="orders", on_damage="raise")
    assert not (tmp_path / "copy.jsonl").exists()
    assert mqstore.export(tmp_path / "store", copy, format=form, topics="orders").messages == 9
    if form == "store":
        with mqstore.open(copy) as store:
            assert store.count("orders") == 9
    assert (
        mqstore.export(tmp_path / "store", tmp_path / "other.jsonl", topics="other", on_damage="raise").messages == 10
    )


def test_the_command_export(tmp_path: Path) -> None:
    body_damage(tmp_path / "store", filled(tmp_path / "store")[LOST])
    command = [sys.executable, "-m", "mqstore", "export", str(tmp_path / "store"), str(tmp_path / "copy.jsonl")]
    strict = [*command, "--on-damage", "raise"]
    done = subprocess.run(strict, check=False, capture_output=True, text=True)
    assert done.returncode == 3
    assert "--on-damage skip" in done.stderr
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0
    assert "skipped" in done.stderr


def test_spark_options(tmp_path: Path) -> None:
    from mqstore.spark._options import read_options

    modes = {"raise": "FAILFAST", "skip": "DROPMALFORMED"}
    for value, mode in modes.items():
        assert read_options({"path": str(tmp_path), "onDamage": value})["mode"] == mode
    for given in ({"onDamage": "ignore"}, {"onDamage": "skip", "mode": "FAILFAST"}):
        with pytest.raises(mqstore.InvalidOptionError, match="onDamage"):
            read_options({"path": str(tmp_path), **given})


@pytest.mark.parametrize("policy", ["ignore", "", None, 1])
def test_another_policy_is_refused(tmp_path: Path, policy: Any) -> None:
    filled(tmp_path / "store")
    with mqstore.open(tmp_path / "store") as store:
        for verb in (read, table) if policy is None else READS:
            if policy is None and verb is read:
                continue
            with pytest.raises((mqstore.InvalidOptionError, TypeError), match="on_damage"):
                verb(store, policy)


FIELDS = {"queue id": 15, "queue offset": 27, "topic": BODY_AT + len("body 6") + len("orders")}
"""The last byte of a field of a record, counted from its first byte."""


def test_a_warning_from_a_thread_names_the_line_of_the_program(tmp_path: Path) -> None:
    home = tmp_path / "store"
    with mqstore.open(home, "create", **SMALL) as store:
        lost = store.append_many("orders", [mqstore.Message(b"body", keys=f"k{n}") for n in range(20)])[LOST]
    damage.flip_bit(home, "commitlog/" + "0" * 20, lost.commit_log_offset + BODY_AT)

    async def main() -> None:
        async with mqstore.aio.open(home) as store:
            assert len([one async for one in store.read("orders", on_damage="skip")]) == 19
        # A store warns of the same damage once.
        async with mqstore.aio.open(home) as store:
            await store.table("orders", on_damage="skip")
        async for _ in mqstore.aio.scan(home, on_damage="skip"):
            pass

    with pytest.warns(mqstore.StoreWarning) as caught:
        asyncio.run(main())
        with mqstore.open(home) as store:
            store.table("orders", on_damage="skip")
    lines = {(one.filename, one.lineno) for one in caught}
    assert {file for file, _ in lines} == {__file__}
    assert len(lines) == 4


@pytest.mark.parametrize("field", FIELDS)
def test_a_record_with_a_damaged_place_takes_no_other_place(tmp_path: Path, field: str) -> None:
    """One flipped bit names another queue that exists, or the offset of another message."""
    home = tmp_path / "store"
    with mqstore.open(home, "create", **SMALL) as store:
        for topic in ("orders", "orderr"):
            store.create_topic(topic, 2)
        for number in range(20):
            for topic in ("orders", "orderr"):
                store.append(topic, b"body %d" % number, queue_id=number % 2)
        lost = list(store.read("orders", 0))[LOST]
    for topic in ("orders", "orderr"):
        damage.lose_queue(home, topic)
    damage.flip_bit(home, "commitlog/" + "0" * 20, lost.commit_log_offset + FIELDS[field])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", mqstore.StoreWarning)
        with mqstore.open(home) as store:
            for topic, queue_id in (("orders", 1), ("orderr", 0), ("orderr", 1)):
                found = [(message.queue_offset, message.body) for message in store.read(topic, queue_id)]
                assert found == [(at, b"body %d" % (2 * at + queue_id)) for at in range(10)]
            with pytest.raises(mqstore.CorruptionError) as caught:
                list(store.read("orders", 0))
            assert caught.value.offset == lost.commit_log_offset
            found = [(message.queue_offset, message.body) for message in store.read("orders", 0, on_damage="skip")]
            assert found == [(at, b"body %d" % (2 * at)) for at in range(10) if at != LOST]
            assert any("its checksum is wrong" in note for note in mqstore.info(home).notes)
        assert any("its checksum is wrong" in line for line in mqstore.rebuild(home).skipped)
        with mqstore.open(home) as store:
            for topic in ("orders", "orderr"):
                for queue_id in range(2):
                    found = [(message.queue_offset, message.body) for message in store.read(topic, queue_id)]
                    lost_here = (topic, queue_id) == ("orders", 0)
                    wanted = [at for at in range(10) if not lost_here or at != LOST]
                    assert found == [(at, b"body %d" % (2 * at + queue_id)) for at in wanted]
