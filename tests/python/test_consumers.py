"""Consumers of groups: the messages they get, their commits, the assignment of queues, and where they continue."""

from __future__ import annotations

import logging
import os
import pickle
import signal
import threading
import time
from pathlib import Path

import pytest

import mqstore
from conftest import SMALL, python


def bodies(messages: list[mqstore.StoredMessage]) -> list[str]:
    return [message.text() for message in messages]


def fill(store: mqstore.Store, count: int = 10, queues: int = 2) -> None:
    store.create_topic("orders", queues=queues)
    for number in range(count):
        store.append("orders", str(number).encode(), queue_id=number % queues, tags="odd" if number % 2 else "even")


def test_a_group_goes_on_where_it_committed(home: Path) -> None:
    with mqstore.open(home, "create", options=SMALL) as store:
        fill(store)
        with store.consumer("billing", ["orders"]) as consumer:
            assert consumer.assignment == (("orders", 0), ("orders", 1))
            assert (consumer.group, consumer.topics, consumer.closed) == ("billing", ("orders",), False)
            assert consumer.lag() == {("orders", 0): 5, ("orders", 1): 5}
            first = consumer.poll(4)
            consumer.commit()
            rest = consumer.poll(timeout=0)
            assert sorted(bodies(first + rest), key=int) == [str(number) for number in range(10)]
            assert sum(consumer.lag().values()) == 6
            assert consumer.poll(timeout=0) == []
        assert consumer.closed
        assert consumer.assignment == ()
        # A message that was returned and not committed is delivered again.
        with store.consumer("billing", "orders") as again:
            assert sorted(bodies(again.poll(timeout=0))) == sorted(bodies(rest))
            again.commit(durable=True)
    with mqstore.open(home, "rw", options=SMALL) as store:
        with store.consumer("billing", ["orders"]) as consumer:
            assert consumer.poll(timeout=0) == []
            assert consumer.committed("orders", 1) == 5
            assert consumer.position("orders", 1) == 5
        with store.consumer("audit", ["orders"]) as other:
            assert len(other.poll()) == 10


def test_each_queue_is_in_order_and_iteration_ends_with_the_consumer(store: mqstore.Store) -> None:
    fill(store, 100, queues=3)
    consumer = store.consumer("g", ["orders"])
    seen: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for message in consumer:
        seen[message.queue_id].append(int(message.text()))
        if sum(map(len, seen.values())) == 100:
            consumer.commit()
            consumer.close()
    assert seen == {queue: list(range(queue, 100, 3)) for queue in range(3)}
    with pytest.raises(mqstore.ConsumerClosedError, match="group g"):
        consumer.poll()
    with pytest.raises(mqstore.ConsumerClosedError):
        consumer.commit()
    consumer.close()


def test_what_iteration_read_ahead_is_not_committed(store: mqstore.Store) -> None:
    fill(store, 50, queues=1)
    with store.consumer("g", ["orders"]) as consumer:
        for message in consumer:
            if message.text() == "6":
                break
        consumer.commit()
        assert consumer.committed("orders", 0) == 7
        assert bodies(consumer.poll(2)) == ["7", "8"]


def test_a_poll_waits_for_the_next_message(store: mqstore.Store) -> None:
    fill(store, 0)
    with store.consumer("g", ["orders"]) as consumer:
        started = time.monotonic()
        assert consumer.poll(timeout=0.15) == []
        assert time.monotonic() - started >= 0.15
        threading.Timer(0.1, store.append, ("orders", b"late")).start()
        assert bodies(consumer.poll(timeout=30)) == ["late"]
        closing = threading.Timer(0.1, consumer.close)
        closing.start()
        with pytest.raises(mqstore.ConsumerClosedError):
            consumer.poll()
        closing.join()


def test_ctrl_c_ends_a_wait(store: mqstore.Store) -> None:
    fill(store, 0)
    with store.consumer("g", ["orders"]) as consumer:
        for wait in (consumer.poll, lambda: next(consumer)):
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
            started = time.monotonic()
            with pytest.raises(KeyboardInterrupt):
                wait()
            assert time.monotonic() - started < 5


def test_the_end_of_the_store_ends_a_wait(home: Path) -> None:
    store = mqstore.open(home, "create", options=SMALL)
    fill(store, 0)
    consumer = store.consumer("g", ["orders"])
    closing = threading.Timer(0.1, store.close)
    closing.start()
    with pytest.raises(mqstore.StoreClosedError):
        consumer.poll()
    closing.join()
    with pytest.raises(mqstore.StoreClosedError):
        next(consumer)
    assert consumer.closed
    consumer.close()


def test_offsets_of_single_queues(store: mqstore.Store) -> None:
    fill(store)
    with store.consumer("g", ["orders"]) as consumer:
        consumer.commit({("orders", 0): 3})
        assert (consumer.committed("orders", 0), consumer.committed("orders", 1)) == (3, 0)
        # A commit only moves forward, except after a seek.
        consumer.commit({("orders", 0): 2})
        assert consumer.committed("orders", 0) == 3
        with pytest.raises(mqstore.OffsetOutOfRangeError):
            consumer.commit({("orders", 0): 6})
        with pytest.raises(mqstore.QueueNotAssignedError):
            consumer.commit({("orders", 0): 5, ("orders", 7): 0})
        assert consumer.committed("orders", 0) == 3
        with pytest.raises(TypeError):
            consumer.commit({("orders", 0): "4"})  # type: ignore[dict-item]


def test_a_group_is_moved(store: mqstore.Store, caplog: pytest.LogCaptureFixture) -> None:
    fill(store, 10, queues=1)
    times = [message.store_timestamp for message in store.read("orders")]
    time.sleep(0.01)
    between = int(time.time() * 1000)
    store.append("orders", b"10")
    with store.consumer("g", ["orders"]) as consumer:
        assert len(consumer.poll()) == 11
        consumer.commit()
        consumer.seek("orders", 0, 4)
        assert bodies(consumer.poll(1)) == ["4"]
        assert consumer.committed("orders", 0) == 11
        with caplog.at_level(logging.WARNING, "mqstore"):
            consumer.commit()
        assert "goes back from 11 to 5" in caplog.text
        assert consumer.committed("orders", 0) == 5
        consumer.seek_to_time(between)
        assert bodies(consumer.poll()) == ["10"]
        consumer.reset("earliest")
        assert consumer.committed("orders", 0) == 0
        consumer.reset("latest")
        assert consumer.committed("orders", 0) == 11
        consumer.reset(times[0], durable=True)
        assert bodies(consumer.poll(1)) == ["0"]
        for offset in (-1, 12):
            with pytest.raises(mqstore.OffsetOutOfRangeError):
                consumer.seek("orders", 0, offset)
        with pytest.raises(mqstore.QueueNotAssignedError):
            consumer.seek("orders", 1, 0)
        with pytest.raises(ValueError, match="earliest"):
            consumer.reset("newest")  # type: ignore[arg-type]


@pytest.mark.parametrize(("start", "first"), [("earliest", "0"), ("latest", None)])
def test_where_a_group_begins(store: mqstore.Store, start: str, first: str | None) -> None:
    fill(store, 3, queues=1)
    with store.consumer("g", ["orders"], start=start) as consumer:  # type: ignore[arg-type]
        assert bodies(consumer.poll(1, timeout=0)) == ([] if first is None else [first])
    with store.consumer("h", ["orders"], start=int(time.time() * 1000) + 60_000) as consumer:
        assert consumer.poll(timeout=0) == []


def test_filters(store: mqstore.Store) -> None:
    store.create_topic("orders", queues=1)
    for number in range(10):
        store.append("orders", str(number).encode(), tags="ab"[number % 2], properties={"price": str(number)})
    with store.consumer("tags", ["orders"], "a") as consumer:
        assert bodies(consumer.poll()) == ["0", "2", "4", "6", "8"]
        consumer.commit()
        # Messages that do not match count as read.
        assert sum(consumer.lag().values()) == 0
    with store.consumer("sql", ["orders"], mqstore.sql("price > 7")) as consumer:
        assert bodies(consumer.poll()) == ["8", "9"]


def test_consumers_of_a_group_share_the_queues(store: mqstore.Store) -> None:
    fill(store, 40, queues=4)
    one = store.consumer("g", ["orders"])
    assert len(one.assignment) == 4
    with store.consumer("g", ["orders"]) as two:
        assert len(one.assignment) == len(two.assignment) == 2
        assert sorted(one.assignment + two.assignment) == [("orders", queue) for queue in range(4)]
        kept = one.assignment
        foreign = two.assignment[0]
        with pytest.raises(mqstore.QueueNotAssignedError):
            one.commit({foreign: 1})
        found = bodies(one.poll(timeout=0)) + bodies(two.poll(timeout=0))
        assert sorted(found, key=int) == [str(number) for number in range(40)]
        two.commit()
    # The consumer returns its queues. Its commits stay.
    assert len(one.assignment) == 4
    assert set(kept) < set(one.assignment)
    assert one.poll(timeout=0) == []
    one.close()


@pytest.mark.slow
def test_workers_of_a_group_handle_each_message_once(store: mqstore.Store) -> None:
    fill(store, 400, queues=4)
    seen: list[str] = []

    def work() -> None:
        with store.consumer("g", ["orders"]) as consumer:
            while messages := consumer.poll(10, timeout=1):
                seen.extend(bodies(messages))
                consumer.commit()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    # If a queue changes its owner in the middle of a poll, the messages of that poll may be delivered again.
    assert set(seen) == {str(number) for number in range(400)}


def test_a_queue_stays_with_an_ordered_consumer(store: mqstore.Store) -> None:
    fill(store, 4, queues=2)
    one = store.consumer("g", ["orders"], ordered=True)
    assert len(one.poll()) == 4
    with store.consumer("g", ["orders"], ordered=True) as two:
        # Both queues have messages that are not committed.
        assert two.poll(timeout=0.2) == []
        assert len(one.assignment) == 2
        one.commit()
        two.poll(timeout=0.2)
        assert len(one.assignment) == len(two.assignment) == 1
    one.close()


def test_broadcast(home: Path) -> None:
    with mqstore.open(home, "create", options=SMALL) as store:
        fill(store)
        with (
            store.consumer("g", ["orders"], broadcast=True) as one,
            store.consumer("g", ["orders"], broadcast=True, name="two") as two,
        ):
            assert len(one.poll()) == len(two.poll()) == 10
            two.commit()
            with pytest.raises(mqstore.InvalidOptionError, match="two"):
                store.consumer("g", ["orders"], broadcast=True, name="two")
    with mqstore.open(home, "rw", options=SMALL) as store:
        with store.consumer("g", ["orders"], broadcast=True, name="two") as two:
            assert two.poll(timeout=0) == []
        with store.consumer("g", ["orders"], broadcast=True) as one:
            assert len(one.poll()) == 10


def test_a_topic_may_come_later(store: mqstore.Store) -> None:
    with store.consumer("g", ["orders", "events"]) as consumer:
        assert consumer.poll(timeout=0) == []
        store.append("events", b"e")
        assert bodies(consumer.poll(timeout=10)) == ["e"]
        fill(store, 2)
        assert sorted(bodies(consumer.poll(timeout=10))) == ["0", "1"]


def test_what_is_refused(store: mqstore.Store, home: Path) -> None:
    fill(store, 1)
    with pytest.raises(mqstore.InvalidOptionError, match="topics"):
        store.consumer("g", [])
    with pytest.raises(mqstore.InvalidOptionError, match="group"):
        store.consumer("a group", ["orders"])
    with pytest.raises(mqstore.InvalidOptionError, match="name"):
        store.consumer("g", ["orders"], name="n")
    with pytest.raises(TypeError):
        store.consumer("g", ["orders"], filter=5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="on_lost"):
        store.consumer("g", ["orders"], on_lost="ignore")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"store\.consumer"):
        mqstore.Consumer()
    with store.work_queue("orders", "g"), pytest.raises(mqstore.InvalidOptionError, match="work queue"):
        store.consumer("g", ["orders"])
    with store.consumer("h", ["orders"]) as consumer, pytest.raises(TypeError, match="cannot pickle"):
        pickle.dumps(consumer)
    with mqstore.open(home) as reader, pytest.raises(mqstore.StoreReadOnlyError):
        reader.consumer("g", ["orders"])


FORKED = """
import os, sys, mqstore
store = mqstore.open(sys.argv[1], "create")
store.append("t", b"x")
consumer, queue = store.consumer("g", ["t"]), store.work_queue("t")
message = queue.get()
child = os.fork()
if child == 0:
    raised = 0
    for call in (consumer.poll, lambda: next(consumer), queue.get, lambda: queue.ack(message)):
        try:
            call()
        except mqstore.ForkedProcessError:
            raised += 1
    del consumer, queue, message
    os._exit(raised)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 4
queue.ack(message)
assert len(consumer.poll()) == 1
store.close()
"""


def test_a_forked_child_gets_an_error(home: Path) -> None:
    done = python(FORKED, home)
    assert done.returncode == 0, done.stderr
