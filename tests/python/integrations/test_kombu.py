"""`mqstore.integrations.kombu`: channels of kombu, and Celery with its own worker."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import mqstore
from conftest import python, until
from mqstore.integrations._store_handle import ShareMode

pytest.importorskip("kombu")

import kombu
from kombu.exceptions import ChannelError

import mqstore.integrations.kombu

TASKS = kombu.Queue("tasks", kombu.Exchange("tasks"), routing_key="tasks")


@contextmanager
def connected(home: Path, **options: Any) -> Iterator[kombu.Connection]:
    with kombu.Connection(f"mqstore:///{home}", transport_options={"mode": "create", **options}) as connection:
        yield connection


def publish(connection: kombu.Connection, *bodies: object, queue: kombu.Queue = TASKS, **options: Any) -> None:
    with kombu.Producer(connection.channel()) as producer:
        for body in bodies:
            options = {"exchange": queue.exchange, "routing_key": queue.routing_key, "declare": [queue], **options}
            producer.publish(body, **options)


def counts(home: Path) -> tuple[int, int, int]:
    """Numbers of ready, leased and dead messages of the queue `tasks`."""
    (queue,) = [one for one in mqstore.info(home).work_queues if one.topic == "kombu-tasks"]
    return queue.ready, queue.leased, queue.dead


def test_messages_are_acknowledged_or_returned(home: Path) -> None:
    with connected(home) as connection:
        publish(connection, "a", "b", "c")
        queue = TASKS(connection.channel())
        first, second, third = [queue.get() for _ in range(3)]
        assert [message.payload for message in (first, second, third)] == ["a", "b", "c"]
        assert queue.get() is None
        first.ack()
        second.reject()
        third.requeue()
        again = queue.get()
        assert again.payload == "c"
        assert again.headers["redelivered"]
        assert again.delivery_info["redelivered"]
        again.ack()
    assert counts(home) == (0, 0, 0)


def test_a_message_waits_for_the_first_consumer(home: Path) -> None:
    with connected(home) as connection:
        publish(connection, "a")
    assert counts(home) == (1, 0, 0)
    with mqstore.open(home) as store:
        assert store.groups() == ["workers-kombu-tasks"]


def test_a_closed_channel_returns_its_messages(home: Path) -> None:
    with connected(home, visibility_timeout=600) as connection:
        publish(connection, "a", "b")
        channel = connection.channel()
        queue = TASKS(channel)
        queue.get().ack()
        held = queue.get()
        channel.close()
        assert TASKS(connection.channel()).get().payload == held.payload == "b"
    assert counts(home) == (1, 0, 0)


def test_a_consumer_gets_messages(home: Path) -> None:
    got: list[object] = []
    with connected(home) as connection:
        publish(connection, *range(10))
        consumer = kombu.Consumer(connection.channel(), [TASKS], prefetch_count=4)
        held: list[kombu.Message] = []
        consumer.register_callback(lambda _body, message: held.append(message))
        with consumer:
            while len(held) < 4:
                connection.drain_events(timeout=5)
            with pytest.raises(socket.timeout):
                connection.drain_events(timeout=0.1)
            while len(got) < 10:
                while held:
                    message = held.pop()
                    got.append(message.payload)
                    message.ack()
                if len(got) < 10:
                    connection.drain_events(timeout=5)
    assert sorted(map(str, got)) == [str(number) for number in range(10)]
    assert counts(home) == (0, 0, 0)


def test_messages_without_acknowledgement(home: Path) -> None:
    got: list[object] = []
    with connected(home) as connection:
        publish(connection, "a", "b")
        assert TASKS(connection.channel()).get(no_ack=True).payload == "a"
        with kombu.Consumer(
            connection.channel(), [TASKS], no_ack=True, callbacks=[lambda body, _message: got.append(body)]
        ):
            connection.drain_events(timeout=5)
    assert got == ["b"]
    assert counts(home) == (0, 0, 0)


def test_sizes_purges_and_deletions(home: Path) -> None:
    with connected(home) as connection:
        channel = connection.channel()
        with pytest.raises(ChannelError, match="NOT_FOUND"):
            channel.queue_declare("tasks", passive=True)
        assert channel.queue_purge("tasks") == 0
        publish(connection, "a", "b")
        assert channel.queue_declare("tasks", passive=True).message_count == 2
        assert channel.queue_purge("tasks") == 2
        publish(connection, "c")
        TASKS(channel).declare()
        channel.queue_delete("tasks", if_empty=True)
        assert channel.queue_declare("tasks", passive=True).message_count == 1
        with connected(home) as other:
            other.channel().queue_delete("tasks")
        assert not channel._has_queue("tasks")
        assert channel.get_table("tasks") == []
    assert [topic.topic for topic in mqstore.info(home).topics] == ["kombu-bindings"]


def test_a_topic_exchange_knows_the_bindings_of_other_connections(home: Path) -> None:
    events = kombu.Exchange("events", type="topic")
    paid = kombu.Queue("paid", events, routing_key="order.*.paid")
    every = kombu.Queue("every", events, routing_key="#")
    with connected(home) as consuming, connected(home) as publishing:
        channel = consuming.channel()
        paid(channel).declare()
        every(channel).declare()
        with kombu.Producer(publishing.channel(), exchange=events) as producer:
            producer.publish("1", routing_key="order.7.paid")
            producer.publish("2", routing_key="order.7.open")
        assert [paid(channel).get().payload, paid(channel).get()] == ["1", None]
        assert [every(channel).get().payload for _ in range(2)] == ["1", "2"]
        every(channel).unbind_from(events, "#")
        with kombu.Producer(publishing.channel(), exchange=events) as producer:
            producer.publish("3", routing_key="order.8.open")
        assert every(channel).get() is None


def test_a_fanout_exchange_reaches_each_queue_from_its_binding_on(home: Path) -> None:
    news = kombu.Exchange("news", type="fanout")
    first, second = (kombu.Queue(name, news, exclusive=True) for name in ("first", "second"))
    with connected(home) as consuming, connected(home) as publishing:
        channel = consuming.channel()
        with kombu.Producer(publishing.channel(), exchange=news, auto_declare=True) as producer:
            producer.publish("early")
            first(channel).declare()
            producer.publish("1")
            second(channel).declare()
            producer.publish("2")
        assert [first(channel).get(no_ack=True).payload for _ in range(2)] == ["1", "2"]
        assert second(channel).get(no_ack=True).payload == "2"
        assert second(channel).get(no_ack=True) is None
        channel.queue_delete("second")
    assert [topic.topic for topic in mqstore.info(home).topics] == ["kombu-fanout-news"]


def test_an_exclusive_queue_ends_with_its_channel(home: Path) -> None:
    replies = kombu.Queue("replies", kombu.Exchange("replies"), routing_key="r", exclusive=True)
    with connected(home) as connection:
        channel = connection.channel()
        with kombu.Consumer(channel, [replies], callbacks=[lambda _body, message: message.ack()]):
            publish(connection, "a", "b", queue=replies)
            connection.drain_events(timeout=5)
            channel.close()
    with mqstore.open(home) as store:
        assert store.topics() == ["kombu-bindings"]
        assert store.groups() == ["kombu"]


def test_a_body_that_kombu_cannot_read_is_a_dead_letter(home: Path) -> None:
    with connected(home) as connection:
        publish(connection, "a")
        with connected(home) as other:
            other.connect()
            other.transport.shared.handle.store.append("kombu-tasks", b"no message of kombu")
            channel = connection.channel()
            TASKS(channel).get().ack()
            assert TASKS(channel).get() is None
    assert counts(home) == (0, 0, 1)


@pytest.mark.parametrize("url", ["mqstore://", "mqstore:///", "mqstore://data/store"])
def test_urls_without_a_path(url: str) -> None:
    with pytest.raises(ValueError, match="mqstore:///data/store"):
        kombu.Connection(url).connect()


celery = pytest.importorskip("celery")

from celery import signals  # noqa: E402
from celery.contrib.testing.worker import start_worker  # noqa: E402


@signals.setup_logging.connect
def keep_logging(**_: Any) -> None:
    """Keeps a worker from setting the level of the root logger: Celery leaves logging to this signal."""


def app_at(home: Path, mode: ShareMode = "create", **options: Any) -> Any:
    app = celery.Celery("tests", broker=f"mqstore:///{home}", backend="cache+memory://", set_as_current=False)
    app.conf.update(
        broker_transport_options={"mode": mode, **options},
        broker_connection_retry_on_startup=True,
    )
    return app


@contextmanager
def working(app: Any) -> Iterator[None]:
    with start_worker(app, perform_ping_check=False, pool="threads", concurrency=4, shutdown_timeout=30):
        yield
    close(app)


def close(app: Any) -> None:
    app.pool.force_close_all()
    app.close()


@pytest.mark.slow
def test_tasks_of_celery(home: Path, mode: ShareMode) -> None:
    app = app_at(home, mode, visibility_timeout=0.3)
    attempts: list[int] = []
    runs: list[int] = []

    @app.task(shared=False)
    def add(first: int, second: int) -> int:
        return first + second

    @app.task(shared=False)
    def later() -> float:
        return time.time()

    @app.task(shared=False, autoretry_for=(OSError,), default_retry_delay=0.05, max_retries=5)
    def flaky() -> str:
        attempts.append(1)
        if len(attempts) < 3:
            raise OSError("not yet")
        return "done"

    @app.task(shared=False, acks_late=True)
    def slow() -> None:
        runs.append(1)
        time.sleep(1)

    begin = time.time()
    results = [add.delay(number, 1) for number in range(20)]
    delayed = later.apply_async(countdown=1)
    (queue,) = mqstore.info(home).work_queues
    assert (queue.ready, queue.delayed) == (20, 1)
    with working(app):
        flaked, slept = flaky.delay(), slow.delay()
        assert [result.get(timeout=20) for result in results] == list(range(1, 21))
        assert add.delay(1, 1).get(timeout=20) == 2
        (answer,) = app.control.ping(timeout=2, limit=1)
        assert list(answer.values()) == [{"ok": "pong"}]
        assert delayed.get(timeout=20) - begin >= 1
        assert flaked.get(timeout=20) == "done"
        slept.get(timeout=20)
        # The worker stores a result before it acknowledges the task.
        until(lambda: not any(queue.leased for queue in mqstore.info(home).work_queues))
    assert runs == [1]
    info = mqstore.info(home)
    assert info.clean
    assert [(queue.ready, queue.leased) for queue in info.work_queues] == [(0, 0)]
    with mqstore.open(home) as store:
        (message,) = store.lookup("kombu-celery", results[3].id)
        assert message.tags == add.name


def test_a_stopped_worker_returns_what_it_has_not_begun(home: Path) -> None:
    app = app_at(home, visibility_timeout=600)
    begun = threading.Event()

    @app.task(shared=False)
    def work() -> None:
        begun.set()
        time.sleep(0.2)

    for _ in range(8):
        work.delay()
    with start_worker(app, perform_ping_check=False, pool="solo", shutdown_timeout=30):
        assert begun.wait(20)
    close(app)
    (queue,) = mqstore.info(home).work_queues
    assert queue.leased == 0
    assert queue.ready >= 1


WORKER = """
import os, sys
from celery import Celery

app = Celery("tests", broker="mqstore:///" + sys.argv[1])
app.conf.update(
    broker_transport="mqstore.integrations.kombu:Transport",
    broker_transport_options={"mode": sys.argv[2], "visibility_timeout": 0.3},
    broker_connection_retry_on_startup=True,
)

@app.task(shared=False, name="work", acks_late=True)
def work():
    os.kill(os.getpid(), 9)

work.delay()
app.worker_main(["worker", "--pool", "solo", "--loglevel", "error", "--without-gossip", "--without-mingle"])
"""


@pytest.mark.slow
def test_the_task_of_a_killed_worker_is_delivered_again(home: Path) -> None:
    """The worker names the transport in its settings and imports nothing of mqstore."""
    command = [sys.executable, "-c", WORKER, str(home), "create"]
    killed = subprocess.run(command, timeout=60, capture_output=True, text=True)
    assert killed.returncode == -9, killed.stderr
    app = app_at(home)
    done: list[int] = []

    @app.task(shared=False, name="work", acks_late=True, bind=True)
    def work(self: Any) -> None:
        done.append(self.request.delivery_info["redelivered"])

    with working(app):
        until(lambda: done)
    assert done == [True]


SENDER = """
import sys
from celery import Celery
import mqstore.integrations.kombu

app = Celery("tests", broker="mqstore:///" + sys.argv[1])
for number in range(10):
    app.send_task("work", (number,))
assert app.control.ping(timeout=5, limit=1)
"""


@pytest.mark.slow
def test_tasks_of_another_process(home: Path) -> None:
    app = app_at(home, "share")
    done: list[int] = []

    @app.task(shared=False, name="work")
    def work(number: int) -> None:
        done.append(number)

    with working(app):
        sent = python(SENDER, home)
        assert sent.returncode == 0, sent.stderr
        until(lambda: len(done) == 10)
    assert sorted(done) == list(range(10))


PREFORK = """
import os, sys, threading, time
from celery import Celery, signals
import mqstore

app = Celery("tests", broker="mqstore:///" + sys.argv[1])
app.conf.update(
    broker_transport="mqstore.integrations.kombu:Transport",
    broker_transport_options={"mode": "share"},
    broker_connection_retry_on_startup=True,
)
print(os.getpid(), flush=True)
# The processes of the pool are forked with this open store.
store = mqstore.open(sys.argv[1], "share")
store.create_topic("notes")

@app.task(shared=False, name="note")
def note(number):
    store.append("notes", b"%d %d" % (number, os.getpid()))

for number in range(20):
    note.delay(number)

def stop():
    while sum(1 for _ in store.read("notes")) < 20:
        time.sleep(0.05)
    os.kill(os.getpid(), 15)

@signals.worker_ready.connect
def ready(**_):
    threading.Thread(target=stop, daemon=True).start()

options = ["--pool", "prefork", "--concurrency", "2", "--loglevel", "error", "--without-gossip", "--without-mingle"]
app.worker_main(["worker", *options])
"""


@pytest.mark.slow
def test_processes_of_a_pool_share_the_store_of_their_worker(home: Path) -> None:
    done = python(PREFORK, home)
    assert done.returncode == 0, done.stderr
    with mqstore.open(home) as store:
        notes = [message.body.split() for message in store.read("notes")]
    assert sorted(int(number) for number, _ in notes) == list(range(20))
    assert int(done.stdout.split()[0]) not in {int(process) for _, process in notes}
    (queue,) = mqstore.info(home).work_queues
    assert (queue.ready, queue.leased, queue.dead) == (0, 0, 0)
