"""`mqstore.integrations.dramatiq` with dramatiq's own worker; the cases follow the tests of dramatiq's brokers."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import mqstore
from conftest import python, until
from mqstore.integrations._store_handle import ShareMode

pytest.importorskip("dramatiq")

import dramatiq
from dramatiq.errors import QueueJoinTimeout, QueueNotFound
from dramatiq.middleware import Retries

from mqstore.integrations.dramatiq import MQStoreBroker


@pytest.fixture
def broker(home: Path) -> Iterator[MQStoreBroker]:
    made = MQStoreBroker(home, mode="create", middleware=[Retries()])
    yield made
    made.close()


@contextmanager
def working(broker: MQStoreBroker, threads: int = 4) -> Iterator[dramatiq.Worker]:
    worker = dramatiq.Worker(broker, worker_timeout=20, worker_threads=threads)
    worker.start()
    try:
        yield worker
    finally:
        worker.stop()


def test_messages_run_and_are_acknowledged(home: Path, mode: ShareMode) -> None:
    broker = MQStoreBroker(home, mode=mode, durable=True)
    done: list[int] = []

    @dramatiq.actor(broker=broker)
    def work(number: int) -> None:
        done.append(number)

    sent = [work.send(number) for number in range(50)]
    queue = broker.work_queue("default")
    assert queue.topic == "dramatiq-default"
    assert [message.keys for message in queue.peek(2)] == [(one.message_id,) for one in sent[:2]]
    with working(broker):
        broker.join("default", timeout=10_000)
    assert sorted(done) == list(range(50))
    counts = queue.counts()
    assert (counts.ready, counts.leased, counts.dead) == (0, 0, 0)
    broker.close()
    assert mqstore.info(home).clean


def test_queues_are_separate(broker: MQStoreBroker) -> None:
    done: list[str] = []

    @dramatiq.actor(broker=broker, queue_name="low.priority")
    def low() -> None:
        done.append("low")

    @dramatiq.actor(broker=broker, queue_name="high")
    def high() -> None:
        done.append("high")

    low.send()
    high.send()
    worker = dramatiq.Worker(broker, queues={"high"}, worker_timeout=20)
    worker.start()
    broker.join("high", timeout=10_000)
    worker.stop()
    assert done == ["high"]
    assert broker.work_queue("low.priority").counts().ready == 1
    assert broker.get_declared_queues() == {"low.priority", "high"}


def test_a_delayed_message_runs_when_it_is_due(broker: MQStoreBroker) -> None:
    done: list[float] = []

    @dramatiq.actor(broker=broker)
    def work() -> None:
        done.append(time.monotonic())

    begin = time.monotonic()
    work.send_with_options(delay=300)
    assert broker.work_queue("default").counts().delayed == 1
    with working(broker):
        broker.join("default", timeout=10_000)
    assert done[0] - begin >= 0.3
    with pytest.raises(mqstore.InvalidOptionError):
        work.send_with_options(delay=31 * 86_400_000)


def test_a_failed_message_is_retried(broker: MQStoreBroker) -> None:
    attempts: list[int] = []

    @dramatiq.actor(broker=broker, min_backoff=1, max_backoff=2)
    def work() -> None:
        attempts.append(1)
        if len(attempts) < 4:
            raise OSError("not yet")

    work.send()
    with working(broker):
        broker.join("default", timeout=10_000)
    assert len(attempts) == 4
    assert broker.work_queue("default").counts().dead == 0


def test_a_rejected_message_is_a_dead_letter(broker: MQStoreBroker, home: Path) -> None:
    is_repaired = threading.Event()
    done: list[int] = []

    @dramatiq.actor(broker=broker, max_retries=0)
    def work(number: int) -> None:
        if not is_repaired.is_set():
            raise LookupError("no such order")
        done.append(number)

    sent = work.send(5)
    queue = broker.work_queue("default")
    with working(broker):
        broker.join("default", timeout=10_000)
        until(lambda: queue.counts().dead == 1)
        with mqstore.open(home) as reader:
            (dead,) = reader.read(queue.dead_letters)
        assert (dead.keys, dead.tags) == ((sent.message_id,), "work")
        assert dead.properties["mqstore.reason"] == "LookupError: no such order"
        is_repaired.set()
        assert queue.redrive() == 1
        until(lambda: done == [5])
        broker.join("default", timeout=10_000)
    assert queue.counts().dead == 0


def test_messages_that_no_actor_can_run_are_dead_letters(broker: MQStoreBroker) -> None:
    broker.declare_queue("default")
    queue = broker.work_queue("default")
    queue.put(b"no message of dramatiq")
    broker.enqueue(dramatiq.Message(queue_name="default", actor_name="unknown", args=(), kwargs={}, options={}))
    with working(broker):
        broker.join("default", timeout=10_000)
        until(lambda: queue.counts().dead == 2)


def test_a_message_longer_than_the_visibility_timeout_runs_once(home: Path) -> None:
    broker = MQStoreBroker(home, mode="create", visibility_timeout=0.15)
    runs: list[int] = []

    @dramatiq.actor(broker=broker)
    def work() -> None:
        runs.append(1)
        time.sleep(0.6)

    work.send()
    with working(broker):
        broker.join("default", timeout=10_000)
    assert runs == [1]
    broker.close()


def test_a_stopped_worker_returns_its_messages(home: Path) -> None:
    broker = MQStoreBroker(home, mode="create", visibility_timeout=600)
    begun = threading.Event()

    @dramatiq.actor(broker=broker)
    def work() -> None:
        begun.set()
        time.sleep(0.2)

    for _ in range(3):
        work.send()
    queue = broker.work_queue("default")
    with working(broker, threads=1):
        assert begun.wait(10)
        until(lambda: queue.counts().leased >= 2)
    counts = queue.counts()
    assert counts.leased == 0
    assert 1 <= counts.ready <= 2
    broker.close()


def test_a_consumer_leases_as_many_messages_as_it_may(broker: MQStoreBroker) -> None:
    @dramatiq.actor(broker=broker)
    def work() -> None: ...

    for _ in range(3):
        work.send()
    consumer = broker.consume("default", prefetch=2, timeout=10)
    first, second = next(consumer), next(consumer)
    assert first is not None
    assert second is not None
    assert next(consumer) is None
    consumer.ack(first)
    third = next(consumer)
    assert third is not None
    consumer.requeue([second, third])
    assert broker.work_queue("default").counts().ready == 2
    assert broker.consume("default").__next__() is not None


def test_flush_and_join(broker: MQStoreBroker) -> None:
    @dramatiq.actor(broker=broker)
    def work() -> None: ...

    work.send()
    work.send_with_options(delay=60_000)
    with pytest.raises(QueueJoinTimeout):
        broker.join("default", timeout=20)
    broker.flush_all()
    broker.join("default", timeout=20)
    for call in (broker.consume, broker.flush, broker.join):
        with pytest.raises(QueueNotFound):
            call("unknown")


def test_a_closed_broker_opens_again(broker: MQStoreBroker) -> None:
    @dramatiq.actor(broker=broker)
    def work() -> None: ...

    work.send()
    broker.close()
    work.send()
    assert broker.work_queue("default").counts().ready == 2


def test_brokers_of_one_process_share_the_store(broker: MQStoreBroker, home: Path) -> None:
    other = MQStoreBroker(home, mode="create", namespace="other")
    for one in (broker, other):
        one.declare_queue("default")
        one.work_queue("default").put(b"1")
    other.close()
    broker.work_queue("default").put(b"2")
    with pytest.raises(mqstore.StoreLockedError):
        mqstore.open(home, "rw")
    broker.close()
    with mqstore.open(home, "rw") as store:
        assert (store.count("dramatiq-default"), store.count("other-default")) == (2, 1)


KILLED = """
import os, sys
import dramatiq
from mqstore.integrations.dramatiq import MQStoreBroker

broker = MQStoreBroker(sys.argv[1], mode="create", visibility_timeout=0.3)

@dramatiq.actor(broker=broker)
def work():
    os.kill(os.getpid(), 9)

work.send()
worker = dramatiq.Worker(broker, worker_timeout=20)
worker.start()
broker.join("default")
"""


@pytest.mark.slow
def test_the_message_of_a_killed_worker_is_delivered_again(broker: MQStoreBroker, home: Path) -> None:
    assert subprocess.run([sys.executable, "-c", KILLED, str(home)], timeout=60).returncode == -9
    done: list[int] = []

    @dramatiq.actor(broker=broker)
    def work() -> None:
        done.append(1)

    with working(broker):
        broker.join("default", timeout=10_000)
    assert done == [1]


SENDER = """
import sys
import dramatiq
from mqstore.integrations.dramatiq import MQStoreBroker

broker = MQStoreBroker(sys.argv[1])

@dramatiq.actor(broker=broker)
def work(number): ...

for number in range(10):
    work.send(number)
"""


@pytest.mark.slow
def test_messages_of_another_process(home: Path) -> None:
    broker = MQStoreBroker(home, mode="share")
    done: list[int] = []

    @dramatiq.actor(broker=broker)
    def work(number: int) -> None:
        done.append(number)

    with working(broker):
        assert python(SENDER, home).returncode == 0
        broker.join("default", timeout=10_000)
    assert sorted(done) == list(range(10))
    broker.close()
