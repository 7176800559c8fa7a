"""Groups, their offsets and dead letters move from mqstore to a real broker with official clients, and back."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING

import pytest

import mqstore

from .compare import md5
from .driver import JavaBroker, JavaClient, JavaSession
from .java_rows import generated_body, message
from .market import GEOMETRY, java_config

if TYPE_CHECKING:
    from pathlib import Path

    from .tally import Tally

pytestmark = pytest.mark.interop


def bodies(first: int, last: int) -> list[bytes]:
    return [generated_body(f"order{number}", 100) for number in range(first, last)]


def fill(path: Path) -> None:
    """40 messages, 25 of them consumed by a group, and a dead letter of a work queue."""
    with mqstore.open(path, "create", **GEOMETRY) as store:
        store.create_topic("orders", 2)
        for number, body in enumerate(bodies(0, 40)):
            store.append("orders", body, queue_id=number % 2)
        with store.consumer("billing", "orders") as consumer:
            for queue_id, offset in ((0, 15), (1, 10)):
                consumer.commit({("orders", queue_id): offset}, durable=True)
        with store.work_queue("jobs", group="workers", max_attempts=1) as queue:
            queue.put(b"hopeless")
            queue.put(b"done")
            queue.nack(queue.get(timeout=5))
            queue.ack(queue.get(timeout=5))
            assert queue.dead_letters == "%DLQ%workers"


@pytest.mark.timeout(300)
def test_a_broker_goes_on_where_groups_stand(version: str, tmp_path: Path, tally: Tally) -> None:
    path = tmp_path / "store"
    fill(path)
    # RocketMQ's keys of queues are bare numbers.
    text = re.sub(r"([{,])(\d+):", r'\1"\2":', (path / "config/consumerOffset.json").read_text())
    table = json.loads(text)["offsetTable"]
    assert table["orders@billing"] == {"0": 15, "1": 10}
    assert table["jobs@workers"]["0"] == 2
    configured = json.loads((path / "config/subscriptionGroup.json").read_text())["subscriptionGroupTable"]
    assert {"billing", "workers"} <= configured.keys()
    with (
        JavaSession(version, tmp_path / "client") as session,
        JavaBroker(version, path, tmp_path / "broker", java_config({})) as broker,
    ):
        with JavaClient(session, broker) as client:
            taken = client.take("billing", "orders", 15)
            wanted = [*bodies(0, 40)[30::2], *bodies(0, 40)[21::2]]
            assert sorted(each.body_md5 for each in taken) == sorted(map(md5, wanted))
            (dead,) = client.consume("%DLQ%workers")
            assert dead.body_md5 == md5(b"hopeless")
            assert dead.properties["DLQ_ORIGIN_TOPIC"] == dead.properties["RETRY_TOPIC"] == "jobs"
            # The group has not consumed these new messages. Another group has not begun.
            client.produce([message("orders", (f"order{n}", 100), queue_id=n % 2) for n in range(40, 46)])
            assert len(client.take("auditors", "orders", 46)) == 46
        broker.stop()
    tally.messages += 15 + 1 + 46
    with mqstore.open(path, "rw") as store:
        assert {"auditors", "billing", "workers"} <= set(store.groups())
        with store.consumer("billing", "orders") as consumer:
            assert consumer.lag() == {("orders", 0): 3, ("orders", 1): 3}
            assert sorted(each.body for each in consumer.poll(timeout=5)) == sorted(bodies(40, 46))
            consumer.commit()
        with store.consumer("auditors", "orders") as consumer:
            assert sum(consumer.lag().values()) == 0
        with store.work_queue("jobs", group="workers", max_attempts=1) as queue:
            assert queue.empty()
            assert queue.redrive() == 1
            again = queue.get(timeout=5)
            assert (again.body, again.attempt) == (b"hopeless", 1)
            queue.ack(again)
        assert mqstore.verify(path).problems == ()


@pytest.mark.timeout(300)
def test_a_group_continues_in_an_export(version: str, tmp_path: Path, tally: Tally) -> None:
    """The first messages of the source have expired. A broker serves the export with the offsets of the source."""
    source, copy = tmp_path / "source", tmp_path / "copy"
    with mqstore.open(source, "create", segment_size=64 << 10, retention_bytes=256 << 10) as store:
        store.create_topic("orders", 2)
        for number, body in enumerate(bodies(0, 2000)):
            store.append("orders", body, queue_id=number % 2)
        with store.consumer("billing", "orders") as consumer:
            consumer.commit({("orders", 0): 960, ("orders", 1): 990}, durable=True)
        store.expire()
        firsts = {queue.queue_id: queue.min_offset for queue in store.queues("orders")}
    assert all(first > 0 for first in firsts.values())
    assert mqstore.export(source, copy, format="store").renumbered == 0
    with (
        JavaSession(version, tmp_path / "client") as session,
        JavaBroker(version, copy, tmp_path / "broker", {}) as broker,
    ):
        with JavaClient(session, broker) as client:
            taken = client.take("billing", "orders", 50)
            wanted = [*bodies(0, 2000)[1920::2], *bodies(0, 2000)[1981::2]]
            assert sorted(each.body_md5 for each in taken) == sorted(map(md5, wanted))
            everything = client.consume("orders")
            assert sorted((each.queue_id, each.queue_offset) for each in everything) == sorted(
                (queue_id, offset) for queue_id, first in firsts.items() for offset in range(first, 1000)
            )
            client.produce([message("orders", ("more", 100), queue_id=0)])
        broker.stop()
    tally.messages += len(taken) + len(everything)
    with mqstore.open(copy) as store:
        assert {queue.queue_id: queue.min_offset for queue in store.queues("orders")} == firsts
        assert store.tail("orders", 1)[0].queue_offset == 1000
    assert mqstore.verify(copy).problems == ()
