"""Directories that RocketMQ wrote with DLedger: from the start, and upgraded from a plain log."""

from __future__ import annotations

import random
import shutil
from typing import TYPE_CHECKING, Any

import pytest

import mqstore

from .compare import assert_same_log, assert_same_look_ups, assert_same_queues, notes_expected, state_of
from .driver import free_ports
from .java_rows import batch, message
from .scenarios import LONG_TOPICS, mixed, topic
from .shop import JavaAnswers, key_queries, time_queries

if TYPE_CHECKING:
    from pathlib import Path

    from .driver import JavaStore
    from .java_rows import JavaView, Spec
    from .shop import Shop
    from .tally import Tally

pytestmark = pytest.mark.interop

FILES = {
    "mappedFileSizeCommitLog": 100 << 10,
    "mappedFileSizeConsumeQueue": 20 * 64,
    "maxHashSlotNum": 100,
    "maxIndexNum": 400,
}
DEFAULT_FILES = {"maxHashSlotNum": 5_000_000, "maxIndexNum": 20_000_000}
QUEUES = {"orders": 3, "events": 1}
LONG = max(LONG_TOPICS, key=len)
TOPICS = {**{name: topic(queues) for name, queues in QUEUES.items()}, LONG: topic()}


def dledger_config(number: int, ports: list[int]) -> dict[str, Any]:
    """Returns the configuration of a member of a group."""
    peers = ";".join(f"n{each}-127.0.0.1:{port}" for each, port in enumerate(ports))
    return {
        **FILES,
        "enableDLegerCommitLog": True,
        "dLegerGroup": "interop",
        "dLegerPeers": peers,
        "dLegerSelfId": f"n{number}",
        "recheckReputOffsetFromCq": True,
    }


def specs(count: int, seed: str) -> list[Spec]:
    """Returns messages of every kind, with batches and long topics between them."""
    made = mixed(QUEUES, count, seed)
    items = [message("orders", (f"{seed}-item{n}", 50 + n), keys=[f"{seed}-item{n}"]) for n in range(7)]
    made.insert(count // 2, batch("orders", items))
    made.insert(count // 3, message(LONG, (seed, 300), keys=[f"{seed}-long"]))
    return made


def answers_of(java: JavaStore) -> JavaAnswers:
    """Asks a store with DLedger. Its log is that of the queues: all records of these tests have a unit."""
    view = java.read()
    log = sorted(view.messages, key=lambda each: each.commit_log_offset)
    chooser = random.Random("dledger")
    answers = JavaAnswers(view, log)
    keys = key_queries(log, chooser, most=100)
    answers.keys = list(zip(keys, java.look_up(keys), strict=True))
    times = time_queries(view, chooser)
    answers.times = list(zip(times, java.offsets_for_times(times), strict=True))
    return answers


def assert_same_directory(path: Path, answers: JavaAnswers, tally: Tally) -> None:
    """Compares every way to read a directory with RocketMQ's answers."""
    before = state_of(path)
    with mqstore.open(path) as store:
        assert_same_queues(store, answers, tally)
        assert_same_log(store, answers, tally)
        assert_same_look_ups(store, answers, tally)
    report = mqstore.verify(path)
    assert (report.problems, report.messages) == ((), len(answers.log))
    rows = mqstore.scan(path, columns=["commit_log_offset", "topic", "queue_id", "queue_offset"]).to_arrow().to_pylist()
    assert [tuple(row.values()) for row in rows] == [
        (each.commit_log_offset, each.topic, each.queue_id, each.queue_offset) for each in answers.log
    ]
    assert state_of(path) == before, "reading changed files"


def places(view: JavaView) -> dict[tuple[str, int], list[tuple[int, str]]]:
    """Returns the offset and the body of each message, by queue."""
    found = {key: [(each.entry_offset, each.body_md5) for each in rows] for key, rows in view.by_queue().items()}
    return {key: rows for key, rows in found.items() if rows}


@pytest.mark.parametrize("upgraded", [False, True])
def test_a_directory_and_its_export(shop: Shop, version: str, tmp_path: Path, tally: Tally, upgraded: bool) -> None:
    path, session = tmp_path / "store", shop.session(version)
    config = dledger_config(0, free_ports(1))
    if upgraded:
        java = session.open(path, config=FILES, topics=TOPICS, write_topics=True)
        java.put(specs(300, "before"))
        java.close()
    java = session.open(path, config=config, topics=TOPICS, write_topics=True)
    java.put(specs(500, "first"))
    answers = answers_of(java)
    java.close()
    assert len(list((path / "dledger-n0" / "data").iterdir())) >= 3
    assert_same_directory(path, answers, tally)
    # A second start, and files that are missing.
    java = session.open(path, config=config, topics=TOPICS)
    java.put(specs(100, "second"))
    answers = answers_of(java)
    java.close()
    assert_same_directory(path, answers, tally)
    for name in ("dledger-n0/index", "index", "dledger-n0/checkpoint"):
        gone = path / name
        if gone.is_dir():
            shutil.rmtree(gone)
        else:
            gone.unlink(missing_ok=True)
        with notes_expected(), mqstore.open(path) as store:
            assert_same_queues(store, answers, tally)
            assert_same_look_ups(store, answers, tally)
    # RocketMQ opens the export without DLedger.
    copy = tmp_path / "copy"
    mqstore.export(path, copy, format="store")
    java = session.open(copy, config=DEFAULT_FILES, topics=TOPICS)
    assert java.report.complaints() == []
    assert places(java.read()) == places(answers.view)
    java.close()


def test_beside_an_open_rocketmq(shop: Shop, version: str, tmp_path: Path, tally: Tally) -> None:
    path = tmp_path / "store"
    java = shop.session(version).open(path, config=dledger_config(0, free_ports(1)), topics=TOPICS, write_topics=True)
    java.put(specs(100, "first"))
    with mqstore.open(path) as store:
        for round_ in range(4):
            assert_same_queues(store, answers_of(java), tally)
            java.put(specs(200, f"more{round_}"))
        assert_same_queues(store, answers_of(java), tally)
        with pytest.raises(mqstore.UnsupportedFormatError, match="mqstore export"):
            mqstore.open(path, "rw")
    java.close()
