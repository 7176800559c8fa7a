"""Directories that RocketMQ wrote with DLedger: from the start, and upgraded from a plain log."""

from __future__ import annotations

import random
import shutil
import time
from typing import TYPE_CHECKING, Any

import pytest

import mqstore

from .compare import (
    assert_same_log,
    assert_same_look_ups,
    assert_same_messages,
    assert_same_queues,
    md5,
    notes_expected,
    state_of,
)
from .driver import JavaSession, free_ports
from .java_rows import batch, generated_body, message
from .scenarios import LONG_TOPICS, mixed, topic
from .shop import JavaAnswers, key_queries, time_queries

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
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
STALE_KINDS = {"queue_entry_wrong", "queue_entry_dangling", "queue_gap", "index_entry_wrong", "checkpoint_ahead"}
"""The problems of units, index entries and an offset in the checkpoint that name replaced messages."""
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


def until(condition: Callable[[], object], what: str) -> None:
    """Waits up to a minute."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        time.sleep(0.1)


def leader_of(members: Mapping[int, JavaStore]) -> int:
    """Waits for an election. Returns the number of the leader, which is ready for messages."""
    until(lambda: any(each.is_leader() for each in members.values()), "a leader")
    number = next(number for number, each in members.items() if each.is_leader())
    members[number].lead()
    return number


def bodies(path: Path, end: mqstore.types.DledgerEnd) -> list[bytes]:
    """Returns the bodies of "orders", in log order, up to an end of the log."""
    with notes_expected(), mqstore.open(path, dledger_end=end) as store:
        return [each.body for each in store._scan_log() if each.topic == "orders"]


def log_of(path: Path, end: int) -> bytes:
    """Returns the bytes of a log of one file, up to an end."""
    (folder,) = path.glob("dledger-*/data")
    return (folder / f"{0:020}").read_bytes()[:end]


@pytest.mark.soak
@pytest.mark.timeout(400)
def test_a_group_replaces_the_tail_of_a_killed_leader(version: str, tmp_path: Path, tally: Tally) -> None:
    """Two of three members: the leader loses its follower, appends and is killed. The follower and a third member
    elect a new leader, which replaces these messages when the old one comes back.

    Before that, only the end "all" gives the unacknowledged messages. After it, every directory gives what the new
    leader gives, up to every end. The end "committed" may miss the newest messages.
    """
    ports = free_ports(3)
    paths = [tmp_path / f"member{number}" for number in range(3)]

    def member(session: JavaSession, number: int) -> JavaStore:
        return session.open(paths[number], config=dledger_config(number, ports), topics=TOPICS, write_topics=True)

    with JavaSession(version, tmp_path / "jvm0") as first, JavaSession(version, tmp_path / "jvm1") as second:
        sessions = {0: first, 1: second}
        members = {number: member(session, number) for number, session in sessions.items()}
        old = leader_of(members)
        follower = 1 - old
        members[old].put([message("orders", (f"kept{n}", 200)) for n in range(150)])
        until(lambda: places(members[follower].read()) == places(members[old].read()), "the queues of the follower")
        kept = members[old].read().by_queue()["orders", 0]
        sessions[follower].kill()
        # One record for each message; no majority gets any of them.
        lost = batch("orders", [message("orders", (b"lost%d" % n).ljust(500, b".")) for n in range(40)])
        assert "PUT_OK" not in {put.status for put in members[old].put_streaming([lost])}
        sessions[old].kill()
    assert len(kept) == 150
    known = bodies(paths[old], "queues")
    assert [md5(body) for body in known] == [each.body_md5 for each in kept]
    tail = bodies(paths[old], "all")
    assert tail[:150] == known
    uncommitted = set(tail[150:])
    assert uncommitted == {(b"lost%d" % n).ljust(500, b".") for n in range(40)}
    committed = bodies(paths[old], "committed")
    assert committed == known[: len(committed)]
    with JavaSession(version, tmp_path / "jvm2") as session:
        members = {number: member(session, number) for number in (follower, 2)}
        new = leader_of(members)
        members[new].put([message("orders", (f"new{n}", 100)) for n in range(5)])
        wanted = members[new].read().by_queue()["orders", 0]
        end = wanted[-1].commit_log_offset + wanted[-1].size
        members[old] = member(session, old)
        until(lambda: log_of(paths[old], end) == log_of(paths[new], end), "the log of the old leader")
        assert members[new].is_leader()
        assert members[new].read().by_queue()["orders", 0] == wanted
        session.close_stores(list(members.values()))
    assert wanted[:150] == kept
    assert [each.body_md5 for each in wanted[150:]] == [md5(generated_body(f"new{n}", 100)) for n in range(5)]
    for path in paths:
        for which in ("committed", "queues", "all"):
            found = bodies(path, which)
            assert not set(found) & uncommitted
            assert [md5(body) for body in found] == [each.body_md5 for each in wanted][: len(found)]
            assert len(found) == len(wanted) or which == "committed"
        with notes_expected(), mqstore.open(path) as store:
            tally.messages += assert_same_messages(wanted, store.read("orders", 0), by_entry=True, where=path.name)
        # RocketMQ dispatches the tail of an old leader when it starts, and leaves its traces when the tail is replaced.
        kinds = {problem.kind for problem in mqstore.verify(path).problems}
        assert kinds <= (STALE_KINDS if path == paths[old] else set())
        assert len(mqstore.info(path).dledger[0].terms) > 1
    tally.queues += len(paths)
