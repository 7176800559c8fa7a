"""Static topics on two real brokers, remapped with RocketMQ's own commands: mqstore reads what a client consumed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import pytest

import mqstore

from .compare import state_of
from .driver import JavaBroker, JavaClient, JavaSession

if TYPE_CHECKING:
    from pathlib import Path

    from .tally import Tally

pytestmark = pytest.mark.interop

CLUSTER = {"brokerClusterName": "interop"}
GROUP = "mqstore_interop"
"""The group of the clients."""
QUEUES = 3


def rows_of(logic: mqstore.LogicQueues, topic: str) -> list[tuple[int, int, str]]:
    """Returns the logic queue, the logic offset and the body of each message."""
    return [
        (queue.queue_id, offset, message.text())
        for queue in logic.queues(topic)
        for offset, message in logic.read(topic, queue.queue_id)
    ]


def send(client: JavaClient, topic: str, name: str, count: int) -> list[tuple[int, int, str]]:
    """Sends messages to each logic queue, and returns what the brokers answered."""
    sent = []
    for queue_id in range(QUEUES):
        bodies = [f"{name}/{queue_id}/{number}" for number in range(count + queue_id)]
        rows, _ = client.act("logic_send", topic=topic, queue_id=queue_id, bodies=bodies)
        assert {(row["status"], row["queue_id"]) for row in rows} == {("SEND_OK", queue_id)}
        sent += [(queue_id, row["logic_offset"], body) for row, body in zip(rows, bodies, strict=True)]
    return sent


@pytest.mark.timeout(400)
def test_a_remapped_topic(version: str, tmp_path: Path, tally: Tally) -> None:
    paths = {name: tmp_path / name for name in ("broker-a", "broker-b")}
    names = list(paths)

    def config(name: str) -> dict[str, Any]:
        return {**CLUSTER, "brokerName": name}

    with (
        JavaSession(version, tmp_path / "client") as session,
        JavaBroker(version, paths[names[0]], tmp_path / "home-a", config(names[0])) as first,
        JavaBroker(version, paths[names[1]], tmp_path / "home-b", config(names[1]), namesrv=first.namesrv) as second,
    ):
        with JavaClient(session, first) as client:
            await_brokers(client, second, 2)
            for topic, brokers in (("orders", "broker-a"), ("events", "broker-a,broker-b")):
                create = ["-b", brokers, "-t", topic, "-qn", str(QUEUES)]
                client.act("mqadmin", name="updateStaticTopic", arguments=create)
            sent = {topic: send(client, topic, "first", 20) for topic in ("orders", "events")}
            client.act("mqadmin", name="remappingStaticTopic", arguments=["-b", "broker-b", "-t", "orders"])
            time.sleep(1)
            sent["orders"] += send(client, "orders", "second", 15)
            consumed = {}
            for topic in sent:
                rows, _ = client.act("logic_consume", topic=topic)
                consumed[topic] = [(row["queue_id"], row["logic_offset"], row["body"]) for row in rows]
            # The first messages of "orders" are on the first broker, the others on the second one.
            committed = {}
            for count in (10, 25):
                rows, _ = client.act("logic_commit", topic="orders", count=count)
                committed[count] = {row["queue_id"]: row["logic_offset"] for row in rows}
        second.stop()
        first.stop()
    before = [state_of(path) for path in paths.values()]
    with mqstore.open_logic_queues(paths.values()) as logic:
        assert logic.topics() == ["events", "orders"]
        assert logic.problems == ()
        for topic, rows in consumed.items():
            assert rows_of(logic, topic) == rows
            # Before a remapping is decided, a broker answers a producer with offset -1.
            assert [row for row in sorted(sent[topic]) if row[1] >= 0] == [
                row for row in rows if row in set(sent[topic])
            ]
            tally.messages += len(rows)
        # The brokers' answers, and the offsets that they stored: physical ones of physical queues.
        assert logic.groups() == [GROUP]
        assert logic.group_offsets(GROUP, "orders") == committed[25]
        assert committed[10] != committed[25]
        unread = dict.fromkeys(range(QUEUES), 0)
        for queue_id, offset, _ in consumed["orders"]:
            unread[queue_id] += offset >= committed[25][queue_id]
        assert logic.lag(GROUP, "orders") == unread
        for queue in logic.queues("orders"):
            assert [part.broker for part in queue.parts] == ["broker-a", "broker-b"]
            assert queue.undecided_messages == 0
            tally.queues += 1
    # The old leader never gets the logic offset of the new part.
    with mqstore.open_logic_queues([paths["broker-a"]]) as logic:
        for queue in logic.queues("orders"):
            assert [(part.broker, part.is_here) for part in queue.parts] == [("broker-a", True), ("broker-b", False)]
            assert queue.parts[-1].logic_offset is None
            rows = [row for row in consumed["orders"] if row[0] == queue.queue_id and row[1] < queue.max_offset]
            found = logic.read("orders", queue.queue_id)
            assert [(queue.queue_id, offset, message.text()) for offset, message in found] == rows
        assert all("interrupted" in problem for problem in logic.problems)
        assert len(logic.problems) == QUEUES
    assert [state_of(path) for path in paths.values()] == before
    for path in paths.values():
        assert mqstore.verify(path).problems == ()


def await_brokers(client: JavaClient, other: JavaBroker, count: int) -> None:
    """Waits until the name server knows so many brokers."""
    deadline = time.monotonic() + 60
    while True:
        _, result = client.act("brokers", broker=other.address)
        if result["brokers"] >= count:
            return
        assert time.monotonic() < deadline, f"the name server knows only {result['brokers']} brokers"
        time.sleep(0.5)
