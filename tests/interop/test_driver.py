"""Checks the Java driver itself against the bytes that RocketMQ wrote, without mqstore."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest

from .driver import make_java_store
from .java_rows import LogLine, body_of, generated_body, is_healthy, message
from .raw import queue_units, records
from .scenarios import SCENARIOS, java_hash, min_hash_keys
from .shop import Written, records_by_key, without_twins

if TYPE_CHECKING:
    from pathlib import Path

    from .shop import Shop
    from .tally import Tally

pytestmark = pytest.mark.interop

FIELDS = [
    "topic",
    "queue_id",
    "queue_offset",
    "commit_log_offset",
    "size",
    "flag",
    "sys_flag",
    "born_timestamp",
    "born_host",
    "store_timestamp",
    "store_host",
    "reconsume_times",
    "prepared_transaction_offset",
    "body_crc",
    "properties",
]


@pytest.mark.parametrize("name", [pytest.param(each, marks=pytest.mark.scenario(each)) for each in SCENARIOS])
def test_rows_are_the_bytes_on_disk(shop: Shop, version: str, name: str, tally: Tally) -> None:
    """Every row of the driver equals the record in the file, and every queue entry points to its record."""
    written = shop.written(version, name)
    on_disk = list(records(written.path))
    for row, record in zip(written.answers.log, on_disk, strict=True):
        assert {each: getattr(row, each) for each in FIELDS} == {each: record[each] for each in FIELDS}
        assert row.stored_body_md5 == hashlib.md5(record["body"], usedforsecurity=False).hexdigest()
        tally.messages += 1
    for (topic, queue_id), messages in written.answers.view.by_queue().items():
        if (written.path / "consumequeue" / topic / str(queue_id)).is_dir():
            units = queue_units(written.path, topic, queue_id)
            assert [(each.commit_log_offset, each.size) for each in messages] == [unit[:2] for unit in units]
            tally.queues += 1


@pytest.mark.scenario("bulk")
def test_rows_are_what_was_asked_for(written: Written, tally: Tally) -> None:
    """The store holds the specified messages, in order, with bodies equal to those that Python generates."""
    specs = [spec for burst in written.scenario.bursts() for spec in burst]
    for spec, row in zip(specs, written.answers.log, strict=True):
        assert (row.topic, row.queue_id, row.flag) == (spec["topic"], spec["queue_id"], spec["flag"])
        assert row.properties == spec["properties"]
        assert row.body_md5 == hashlib.md5(body_of(spec), usedforsecurity=False).hexdigest()
        tally.messages += 1


@pytest.mark.scenario("bulk")
def test_look_ups_find_what_the_log_holds(written: Written, tally: Tally) -> None:
    """RocketMQ's own index answers agree with the log, so a difference in a later comparison comes from mqstore."""
    truth = records_by_key(written.answers.log)
    by_offset = {each.commit_log_offset: each for each in written.answers.log}
    for query, offsets in written.answers.keys:
        expected = [
            each.commit_log_offset
            for each in truth.get((query.topic, query.key), [])
            if query.begin <= each.store_timestamp <= query.end
        ]
        assert without_twins(query, offsets, by_offset) == expected, query
        tally.keys += 1
        tally.messages += len(expected)
    assert tally.keys > 500


def test_a_killed_store_needs_recovery_and_a_closed_one_does_not(
    version: str, tmp_path: Path, shop: Shop, tally: Tally
) -> None:
    """`make_java_store` leaves the promised state, and RocketMQ reads both states without a complaint."""
    specs = [message("t", (f"m{number}", 100), keys=[f"k{number}"]) for number in range(50)]
    for clean in (True, False):
        path = tmp_path / str(clean)
        view = make_java_store(path, version, specs, topics={"t": {"queues": 1}}, clean=clean)
        assert (path / "abort").exists() is not clean
        store = shop.session(version).open(path)
        assert store.report.was_clean is clean
        assert store.report.complaints() == []
        assert store.read() == view
        tally.messages += len(view.messages)


def test_generated_bodies_and_hashes() -> None:
    """The helper functions of the scenarios are right."""
    assert len(generated_body("a", 0)) == 0
    assert generated_body("a", 5000)[1024:2048] == generated_body("a", 1024)
    assert java_hash("polygenelubricants") == -(2**31)
    for key in min_hash_keys("text"):
        assert java_hash(f"text#{key}") == -(2**31)


def test_only_harmless_log_lines_pass_as_healthy() -> None:
    """Only harmless lines pass: neither a truncated queue nor a repeated dispatch without a kill counts as healthy."""
    cut = "maxPhyOffsetOfConsumeQueue({}) >= processOffset({}), truncate dirty logic files"
    assert is_healthy(LogLine("WARN", "l", "main", cut.format(333, 333)))
    assert not is_healthy(LogLine("WARN", "l", "main", cut.format(444, 333)))
    again = LogLine("WARN", "l", "main", "Maybe try to build consume queue repeatedly maxPhysicOffset=1 phyOffset=0")
    assert is_healthy(again, after_kill=True)
    assert not is_healthy(again)
    end = "Offset not matched. Request offset: {}, firstOffset: 0, lastOffset: 24000, mappedFileSize: 12000, ..."
    assert is_healthy(LogLine("WARN", "l", "main", end.format(24_000)), after_kill=True)
    assert not is_healthy(LogLine("WARN", "l", "main", end.format(36_000)), after_kill=True)
    assert not is_healthy(LogLine("ERROR", "l", "main", "[BUG]dispatch message to consume queue error"))
