"""Damaged stores of RocketMQ after repair: RocketMQ opens them and delivers every undamaged message."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import pytest

import mqstore

from .shop import ask, keys_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .java_rows import JavaMessage
    from .shop import JavaAnswers, Shop, Written
    from .tally import Tally

pytestmark = pytest.mark.interop


def segments(path: Path) -> list[Path]:
    """Return the files of the log."""
    return sorted((path / "commitlog").iterdir())


def write(path: Path, at: int, data: bytes) -> None:
    """Write over bytes of the log."""
    size = segments(path)[0].stat().st_size
    with (path / "commitlog" / f"{at // size * size:020d}").open("r+b") as file:
        file.seek(at % size)
        file.write(data)


def within(path: Path, log: list[JavaMessage], number: int) -> set[int]:
    """Return the records of a segment."""
    size = segments(path)[0].stat().st_size
    return {each.commit_log_offset for each in log if each.commit_log_offset // size == number}


def behind_the_first(path: Path, log: list[JavaMessage]) -> list[JavaMessage]:
    """Return the records that are not in the segment at offset 0.

    A blank queue unit names log offset 0. RocketMQ answers a pull at such a unit with messages from the next segment
    on. So it skips messages after a gap that are in the first segment, whatever made the gap.
    """
    size = segments(path)[0].stat().st_size
    return [each for each in log if each.commit_log_offset >= size]


def one_body(path: Path, log: list[JavaMessage]) -> set[int]:
    """Damage a body."""
    chosen = next(each for each in log[len(log) // 2 :] if each.body_size > 40)
    write(path, chosen.commit_log_offset + 88, b"\xa5" * 30)
    return {chosen.commit_log_offset}


def some_magics(path: Path, log: list[JavaMessage]) -> set[int]:
    """Damage the magic codes of records all over the log."""
    chosen = [each.commit_log_offset for each in behind_the_first(path, log)[5:-5:37]]
    for at in chosen:
        write(path, at + 4, b"\0\0\0\0")
    return set(chosen)


def neighbours(path: Path, log: list[JavaMessage]) -> set[int]:
    """Damage the sizes of records that follow each other."""
    chosen = [each.commit_log_offset for each in behind_the_first(path, log)[60:64]]
    for at in chosen:
        write(path, at, b"\x7f\xff\xff\xff")
    return set(chosen)


def page(path: Path, log: list[JavaMessage]) -> set[int]:
    """Lose a page in the middle."""
    start = log[len(log) // 3].commit_log_offset // 4096 * 4096
    write(path, start, bytes(4096))
    return {
        e.commit_log_offset for e in log if e.commit_log_offset < start + 4096 and e.commit_log_offset + e.size > start
    }


def missing(path: Path, log: list[JavaMessage]) -> set[int]:
    """Lose a segment."""
    lost = within(path, log, 1)
    segments(path)[1].unlink()
    return lost


def empty(path: Path, log: list[JavaMessage]) -> set[int]:
    """Empty a segment."""
    segments(path)[1].write_bytes(b"")
    return within(path, log, 1)


def longer(path: Path, _log: list[JavaMessage]) -> set[int]:
    """Make a segment longer."""
    with segments(path)[1].open("ab") as file:
        file.write(b"more")
    return set()


def swapped(path: Path, _log: list[JavaMessage]) -> set[int]:
    """Swap two segments."""
    first, second = segments(path)[:2]
    aside = path / "aside"
    first.rename(aside)
    second.rename(first)
    aside.rename(second)
    return set()


def strays(path: Path, _log: list[JavaMessage]) -> set[int]:
    """Leave a file that RocketMQ takes for a segment."""
    (path / "commitlog/notes.txt").write_text("mine")
    (path / "abort").write_text("1")
    return set()


def nonsense(path: Path, log: list[JavaMessage]) -> set[int]:
    """Overwrite a segment with something else."""
    segments(path)[1].write_bytes(os.urandom(segments(path)[0].stat().st_size))
    return within(path, log, 1)


def last(path: Path, log: list[JavaMessage]) -> set[int]:
    """Tear the last record."""
    at = log[-1].commit_log_offset
    write(path, at + 20, b"\xee" * 70)
    return {at}


def derived(path: Path, _log: list[JavaMessage]) -> set[int]:
    """Damage queues and checkpoint. The index stays, because RocketMQ's other files do not contain its geometry."""
    for file in [*path.glob("consumequeue/*/*/*"), path / "checkpoint"]:
        with file.open("r+b") as opened:
            opened.seek(24)
            opened.write(b"\x13" * 16)
    return set()


HARMS = (
    one_body, some_magics, neighbours, page, missing, empty, longer, swapped, strays, nonsense, last, derived,
)  # fmt: skip


def assert_delivers(java: JavaAnswers, written: Written, lost: set[int], tally: Tally) -> None:
    """Compare the messages that RocketMQ delivers by queue and by key, and its log, with those before the damage."""
    before = [each for each in written.answers.view.messages if each.commit_log_offset not in lost]
    found = {(e.topic, e.queue_id, e.entry_offset): e for e in java.view.messages}
    assert len(found) == len(before)
    for each in before:
        now = found[each.topic, each.queue_id, each.entry_offset]
        assert (now.commit_log_offset, now.body_md5, now.properties) == (
            each.commit_log_offset, each.body_md5, each.properties,
        )  # fmt: skip
        tally.messages += 1
    kept = {each.commit_log_offset for each in written.answers.log} - lost
    visible = [each for each in java.log if each.commit_log_offset in kept]
    assert len(visible) == len(kept)
    for each in java.log:
        # The placeholders in the gaps have no key and are in no queue.
        assert each.commit_log_offset in kept or (
            keys_of(each) == [] and each.topic == "MQSTORE_LOST"[: len(each.topic)]
        )
    for query, offsets in written.answers.keys:
        answer = dict(java.keys).get(query)
        if answer is not None and query.begin == 0 and query.kind is None:
            assert set(answer) >= set(offsets) - lost, query
            tally.keys += 1


@pytest.mark.parametrize("harm", HARMS, ids=lambda harm: harm.__name__)
@pytest.mark.parametrize("name", [pytest.param("front_deleted", marks=pytest.mark.scenario("front_deleted"))])
def test_rocketmq_delivers_what_was_not_damaged(
    shop: Shop,
    version: str,
    name: str,
    harm: Callable[[Path, list[JavaMessage]], set[int]],
    tmp_path: Path,
    tally: Tally,
) -> None:
    """Every message that was not hit, by queue offset and by key, and no placeholder."""
    written = shop.written(version, name)
    path = tmp_path / "store"
    shutil.copytree(written.path, path)
    assert len(segments(path)) > 3
    lost = harm(path, written.answers.log)
    report = mqstore.repair(path, in_place=True)
    assert report.ok, report.problems
    assert report.changed
    assert not mqstore.repair(path, in_place=True).changed
    java = shop.session(version).open(path, config=written.scenario.config, topics=written.scenario.topics)
    assert_delivers(ask(java), written, lost, tally)


@pytest.mark.scenario("front_deleted")
def test_rocketmq_opens_a_snapshot(written: Written, shop: Shop, tmp_path: Path, tally: Tally) -> None:
    """A snapshot of a store that RocketMQ has open, and one of an mqstore store that is being written."""
    source = tmp_path / "source"
    shutil.copytree(written.path, source)
    running = shop.session(written.version).open(source, config=written.scenario.config, topics=written.scenario.topics)
    with mqstore.open(source) as store:
        store.snapshot(tmp_path / "one")
    running.close()
    with mqstore.open(source, "rw") as store:
        store.snapshot(tmp_path / "two")
    for name in ("one", "two"):
        assert mqstore.verify(tmp_path / name).ok
        java = shop.session(written.version).open(
            tmp_path / name, config=written.scenario.config, topics=written.scenario.topics
        )
        assert java.report.complaints() == []
        assert_delivers(ask(java), written, set(), tally)
