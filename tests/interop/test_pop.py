"""mqstore takes over the popped and refused messages of a real broker, and clients of a broker see mqstore's leases."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

import mqstore
from mqstore.testing import ManualClock

from .compare import md5
from .driver import JavaBroker, JavaSession
from .java_rows import generated_body
from .market import GEOMETRY, java_config
from .popping import PoppingClient

if TYPE_CHECKING:
    from pathlib import Path

    from .tally import Tally

pytestmark = pytest.mark.interop

INVISIBLE = 300.0


def bodies(topic: str, count: int) -> list[bytes]:
    return [generated_body(f"{topic}{number}", 50) for number in range(count)]


def fill(path: Path) -> None:
    """Topics to take from, a message to be tried again, and a work queue in which 1, 3 and 4 are not finished."""
    with mqstore.open(path, "create", **GEOMETRY) as store:
        for topic, queues, count in (("orders", 2, 12), ("quick", 1, 3), ("refused", 1, 1)):
            store.create_topic(topic, queues)
            for number, body in enumerate(bodies(topic, count)):
                store.append(topic, body, queue_id=number % queues)
        store.append("%RETRY%pushers", b"once more")
        with store.work_queue("jobs", group="workers") as queue:
            queue.put_many(bodies("jobs", 6))
            got = queue.get_many(5)
            queue.ack_many([got[0], got[2]])
            queue.nack(got[3], 3600)


def cat(path: Path, topic: str) -> list[dict[str, Any]]:
    run = [sys.executable, "-m", "mqstore", "cat", str(path), "--topic", topic, "--format", "jsonl"]
    lines = subprocess.run(run, check=True, stdout=subprocess.PIPE).stdout.splitlines()
    return [json.loads(line)["pop"] for line in lines]


@pytest.mark.timeout(300)
def test_what_a_broker_popped_is_taken_over(version: str, tmp_path: Path, tally: Tally) -> None:
    path = tmp_path / "store"
    fill(path)
    text = (path / "config/consumerOffset.json").read_text()
    assert re.search(r'"jobs@workers":\{\s*0:1\b', text), text
    config = java_config({}) | {"timerWheelEnable": "true", "reviveQueueNum": 2}
    with (
        JavaSession(version, tmp_path / "client") as session,
        JavaBroker(version, path, tmp_path / "broker", config) as broker,
    ):
        with PoppingClient(session, broker) as client:
            # A message that is due soon goes to the broker's retry topic meanwhile.
            revived = client.pop("poppers", "quick", 2, ack=0, invisible=1)
            begun = time.time()
            popped = client.pop("poppers", "orders", 10, ack=6, invisible=INVISIBLE)
            # The group of a work queue continues at the first message that was not finished.
            seen = client.take("workers", "jobs", 5)
            assert sorted(each.body_md5 for each in seen) == sorted(map(md5, bodies("jobs", 6)[1:]))
            again = client.take("pushers", "orders", 13)
            assert md5(b"once more") in [each.body_md5 for each in again]
            client.refuse("refusers", "refused", 1)
            client.await_messages("%RETRY%poppers_quick", 2)
        broker.stop()
    tally.messages += len(revived) + len(popped) + len(seen) + len(again) + 1
    acked, unacked = ({each.body_md5 for each in some} for some in (popped[:6], popped[6:]))

    out = mqstore.info(path).popped
    assert {(one.group, one.topic) for one in out} == {("poppers", "orders")}
    assert sum(one.messages for one in out) == 4
    for one in out:
        assert begun - 5 < one.first_due / 1000 - INVISIBLE <= one.last_due / 1000 - INVISIBLE < time.time() + 5
    waiting = [one for one in cat(path, "rmq_sys_wheel_timer") if one and one["topic"] == "orders"]
    handed = [offset for one in waiting if one["kind"] == "checkpoint" for offset in one["offsets"]]
    returned = [offset for one in waiting if one["kind"] == "ack" for offset in one["offsets"]]
    assert (len(handed), len(returned)) == (10, 6)
    revive = cat(path, "rmq_sys_REVIVE_LOG_interop")
    assert [one["kind"] for one in revive if one and one["topic"] == "quick"] == ["checkpoint"]

    clock = ManualClock(round(time.time() * 1000))
    with mqstore.testing.open(path, "rw", clock=clock) as store:
        with store.work_queue("orders", group="poppers") as queue:
            assert queue.counts() == mqstore.WorkQueueCounts(ready=2, delayed=0, leased=4, dying=0)
            new = queue.get_many(20, timeout=0)
            assert {md5(each.body) for each in new} == {*map(md5, bodies("orders", 12))} - acked - unacked
            queue.ack_many(new, durable=True)
            clock.advance(INVISIBLE)
            due = [each for each in queue.get_many(20, timeout=0) if md5(each.body) in unacked]
            assert ({md5(each.body) for each in due}, {each.attempt for each in due}) == (unacked, {2})
            queue.ack_many(due, durable=True)
        with store.work_queue("quick", group="poppers") as queue:
            got = queue.get_many(20, timeout=0)
            assert sorted(each.attempt for each in got) == [1, 2, 2]
            assert {md5(each.body) for each in got if each.attempt == 2} == {each.body_md5 for each in revived}
        with store.consumer("refusers", ["refused", "%RETRY%refusers"]) as consumer:
            (refused,) = consumer.poll(timeout=5)
            assert (refused.body, refused.reconsume_times) == (bodies("refused", 1)[0], 1)
            assert refused.properties["RETRY_TOPIC"] == "refused"
    with mqstore.testing.open(path, "rw", clock=clock) as store:
        assert mqstore.info(path).popped == ()
        with store.work_queue("orders", group="poppers") as queue:
            assert queue.join(timeout=0)
    tally.messages += 10
    assert mqstore.verify(path).problems == ()
