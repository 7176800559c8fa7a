"""A directory changes its owner five times, and every owner is killed with SIGKILL while it appends.

After each kill, the next owner must see every acknowledged message at its place, and at most some messages that were in
progress. Everything that it sees must stay for all later owners.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import pytest

import mqstore

from .compare import assert_same_store, mqstore_fields, notes_expected
from .driver import JavaSession
from .java_build import JavaError
from .java_rows import JavaMessage, JavaPut, Spec, body_of
from .market import GEOMETRY, append_and_kill, java_config, make_topics
from .scenarios import KIB, mixed, topic
from .shop import ask

if TYPE_CHECKING:
    from pathlib import Path

    from .tally import Tally

pytestmark = pytest.mark.interop

TOPICS = {"orders": 3, "payments": 2}
ROUNDS = 5
BURST = 2500
ACKNOWLEDGED = 1000
OPTIONS = GEOMETRY | {"segment_size": 512 * KIB}

Place = tuple[str, int, int]
"""Topic, queue id and queue offset."""


@pytest.mark.timeout(300)
def test_five_changes_of_ownership_by_kill(version: str, tmp_path: Path, tally: Tally) -> None:
    path = tmp_path / "store"
    topics = {name: topic(queues) for name, queues in TOPICS.items()}
    with mqstore.open(path, "create", **OPTIONS) as store:
        make_topics(store, TOPICS)
    truth: dict[Place, dict[str, Any]] = {}
    number = 0
    # If the properties of the last record were not completely written, RocketMQ takes the record as complete and
    # mqstore as torn. The next owner decides, so the loop then gives the directory to mqstore once more.
    while number < ROUNDS or ends_in_torn_properties(path):
        number += 1
        sent = mixed(TOPICS, BURST, f"{number}py")
        acks = append_and_kill(path, sent, OPTIONS, after=ACKNOWLEDGED)
        asked = {ack["commit_log_offset"]: spec for ack, spec in zip(acks, sent, strict=False)}
        with JavaSession(version, tmp_path / f"jvm-{number}") as session:
            java = session.open(path, config=java_config(OPTIONS), topics=topics)
            assert not java.report.was_clean
            assert java.report.complaints(torn_tail=True) == []
            grew(truth, {place(each): java_facts(each) for each in java.read().messages}, asked, len(sent))
            assert unlike(our_view(path), truth) == {}
            # The published offset of a killed mqstore writer does not limit readers while RocketMQ writes.
            sent = mixed(TOPICS, 20, f"{number}more")
            asked = {put.commit_log_offset: spec for put, spec in zip(java.put(sent), sent, strict=True)}
            grew(truth, our_view(path), asked, len(sent))
            sent = mixed(TOPICS, BURST, f"{number}java")
            puts = put_and_kill(session, java.put_streaming(sent))
        asked = {put.commit_log_offset: spec for put, spec in zip(puts, sent, strict=False)}
        grew(truth, our_view(path), asked, len(sent))
        tally.messages += 2 * len(truth)
    with JavaSession(version, tmp_path / "jvm-last") as session:
        java = session.open(path, config=java_config(OPTIONS), topics=topics)
        complaints = [each.message for each in java.report.complaints(torn_tail=True)]
        # A JVM that is killed while it creates the next segment leaves it empty. mqstore never does.
        assert [each for each in complaints if "size is 0, auto delete" not in each] == []
        answers = ask(java)
        java.close()
    assert unlike({place(each): java_facts(each) for each in answers.view.messages}, truth) == {}
    # After each kill, RocketMQ deletes the index files of its last minutes. An open for writing rebuilds them.
    with notes_expected(), mqstore.open(path, "rw", **OPTIONS):
        pass
    assert list(mqstore.verify(path).problems) == []
    assert_same_store(path, answers, tally)
    assert len(truth) >= 2 * ROUNDS * ACKNOWLEDGED


def ends_in_torn_properties(path: Path) -> bool:
    """Return whether the log ends in a record that mqstore takes as torn only because of its properties."""
    with notes_expected():
        problems = mqstore.verify(path).problems
    return any("properties end in zeros" in problem.detail for problem in problems)


def our_view(path: Path) -> dict[Place, dict[str, Any]]:
    """Return the messages that mqstore reads in all queues. A note about an incomplete last record is allowed."""
    with notes_expected(), mqstore.open(path) as store:
        return {
            (each.topic, each.queue_id, each.queue_offset): our_facts(each)
            for name, queues in TOPICS.items()
            for queue_id in range(queues)
            for each in store.read(name, queue_id)
        }


def put_and_kill(session: JavaSession, puts: Any) -> list[JavaPut]:
    """Take acknowledgements, kill the JVM after enough of them, and return all of them."""
    acks: list[JavaPut] = []
    try:
        for put in puts:
            assert put.status == "PUT_OK"
            acks.append(put)
            if len(acks) == ACKNOWLEDGED:
                session.process.kill()
    except JavaError:
        assert len(acks) >= ACKNOWLEDGED
    return acks


def grew(
    truth: dict[Place, dict[str, Any]],
    seen: dict[Place, dict[str, Any]],
    acknowledged: dict[int, Spec],
    most: int,
) -> None:
    """Check that no known message changed and that every acknowledged message is present. Then add the new ones."""
    assert unlike({at: seen[at] for at in truth if at in seen}, truth) == {}, "messages changed or vanished"
    new = {facts["commit_log_offset"]: facts for at, facts in seen.items() if at not in truth}
    assert len(acknowledged) <= len(new) <= most
    for offset, spec in acknowledged.items():
        assert offset in new, f"acknowledged at {offset}, and gone"
        assert new[offset]["body"] == hashlib.md5(body_of(spec)).hexdigest()
        assert new[offset]["unique_id"] == spec["properties"]["UNIQ_KEY"]
    truth.update(seen)


def unlike(seen: dict[Place, dict[str, Any]], truth: dict[Place, dict[str, Any]]) -> dict[Place, tuple[Any, Any]]:
    """Return the places where the two differ, with both values, so that a failure names only a few messages."""
    return {
        at: (seen.get(at), truth.get(at)) for at in sorted(seen.keys() | truth.keys()) if seen.get(at) != truth.get(at)
    }


def place(row: JavaMessage) -> Place:
    """Return the place of a queue entry."""
    return row.topic, row.queue_id, row.entry_offset


def java_facts(row: JavaMessage) -> dict[str, Any]:
    """Return the facts that must never change about a message, from RocketMQ."""
    return {
        "commit_log_offset": row.commit_log_offset,
        "size": row.size,
        "body": row.body_md5,
        "unique_id": row.unique_id,
        "store_timestamp": row.store_timestamp,
        "properties": row.properties,
    }


def our_facts(message: mqstore.StoredMessage) -> dict[str, Any]:
    """Return the same facts from mqstore."""
    fields = mqstore_fields(message)
    same = ("commit_log_offset", "size", "unique_id", "store_timestamp", "properties")
    return {name: fields[name] for name in same} | {"body": fields["body"][1]}
