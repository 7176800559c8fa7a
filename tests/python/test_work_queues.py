"""Work queues: blocking as in `queue.Queue`, leases, retries, dead letters, and the state after a reopen."""

from __future__ import annotations

import os
import pickle
import queue as queues
import re
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

import mqstore
from conftest import SMALL
from mqstore import testing


def take(queue: mqstore.WorkQueue, timeout: float = 5) -> str:
    message = queue.get(timeout=timeout)
    queue.ack(message)
    return message.text()


def test_put_get_ack(home: Path) -> None:
    with mqstore.open(home, "create", options=SMALL) as store:
        queue = store.work_queue("jobs")
        result = queue.put(b"one", keys=["k"], tags="t", properties={"p": "v"})
        assert (result.topic, result.queue_id, result.queue_offset) == ("jobs", 0, 0)
        assert (queue.qsize(), queue.empty(), queue.full()) == (1, False, False)
        message = queue.get()
        assert isinstance(message, mqstore.LeasedMessage)
        assert isinstance(message, mqstore.StoredMessage)
        assert (message.body, message.keys, message.tags, message.properties["p"]) == (b"one", ("k",), "t", "v")
        assert message.attempt == 1
        assert 25_000 < message.invisible_until - time.time() * 1000 <= 30_000
        assert repr(message).startswith("LeasedMessage(attempt=1, topic='jobs'")
        assert message == store.message_at("jobs", 0, 0)
        assert type(pickle.loads(pickle.dumps(message))) is mqstore.StoredMessage
        assert queue.counts() == mqstore.WorkQueueCounts(ready=0, delayed=0, leased=1, dying=0)
        assert queue.counts().to_dict()["leased"] == 1
        assert queue.empty()
        queue.ack(message)
        queue.ack(message, durable=True)
        assert queue.counts().leased == 0
        assert queue.join(0)
    with mqstore.open(home, "rw", options=SMALL) as store:
        queue = store.work_queue("jobs")
        with pytest.raises(mqstore.Empty):
            queue.get_nowait()


@pytest.mark.parametrize("wait", [5, 0, 0.5, "5s", timedelta(seconds=5)])
def test_a_duration_is_no_block(store: mqstore.Store, wait: Any) -> None:
    """As a `block` that is true, it would wait without a limit."""
    queue = store.work_queue("jobs")
    with pytest.raises(TypeError, match=re.escape(f"call get(timeout={wait!r})")):
        queue.get(wait)
    assert queue.put(b"one").queue_offset == queue.get(True).queue_offset


def test_a_get_blocks_as_that_of_queue(store: mqstore.Store) -> None:
    queue = store.work_queue("jobs")
    for call in (queue.get_nowait, lambda: queue.get(False), lambda: queue.get(timeout=0)):
        with pytest.raises(queues.Empty):
            call()
    with pytest.raises(mqstore.Empty, match="work queue jobs of group workers-jobs"):
        queue.get(False, timeout=-1)
    with pytest.raises(ValueError, match="non-negative"):
        queue.get(timeout=-1)
    started = time.monotonic()
    with pytest.raises(queues.Empty):
        queue.get(timeout=0.15)
    assert 0.15 <= time.monotonic() - started < 5
    threading.Timer(0.1, queue.put, (b"late",)).start()
    assert take(queue) == "late"
    threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        queue.get()


def test_a_put_waits_for_room(store: mqstore.Store) -> None:
    queue = store.work_queue("jobs", maxsize=2)
    queue.put(b"1")
    queue.put_nowait(b"2")
    assert queue.full()
    assert queue.maxsize == 2
    with pytest.raises(queues.Full):
        queue.put_nowait(b"3")
    with pytest.raises(mqstore.Full, match="holds 2"):
        queue.put(b"3", timeout=0.1)
    threading.Timer(0.1, queue.get).start()
    queue.put(b"3", timeout=10)
    assert queue.qsize() == 2


def test_many_at_once(store: mqstore.Store) -> None:
    store.create_topic("jobs", queues=3)
    queue = store.work_queue("jobs")
    results = queue.put_many([b"0", mqstore.Message(b"1", keys="k", flag=7), bytearray(b"2"), b"3"])
    assert len(results) == 4
    found = queue.get_many(3)
    assert len(found) == 3
    found += queue.get_many(10)
    assert sorted(message.text() for message in found) == ["0", "1", "2", "3"]
    assert next(message.flag for message in found if message.text() == "1") == 7
    assert queue.get_many(5, timeout=0) == []
    assert queue.get_many(0) == []
    queue.ack_many(found, durable=True)
    assert queue.join(0)
    with pytest.raises(TypeError):
        queue.ack_many(["x"])  # type: ignore[list-item]


@pytest.mark.slow
def test_a_message_not_finished_in_time_is_delivered_again(store: mqstore.Store) -> None:
    queue = store.work_queue("jobs", visibility_timeout=1.5)
    other = store.work_queue("jobs", visibility_timeout=timedelta(seconds=20))
    assert (queue.visibility_timeout, other.visibility_timeout) == (1.5, 20)
    queue.put(b"job")
    first = queue.get()
    with pytest.raises(mqstore.Empty):
        other.get_nowait()
    second = other.get(timeout=30)
    assert (second.text(), second.attempt) == ("job", 2)
    for call in (queue.ack, queue.nack, lambda message: queue.extend(message, 5), queue.task_done):
        with pytest.raises(mqstore.LeaseLostError, match="attempt 1"):
            call(first)
    other.ack(second)
    assert other.join(0)


@pytest.mark.slow
def test_a_lease_is_extended(store: mqstore.Store) -> None:
    queue = store.work_queue("jobs", visibility_timeout=1)
    queue.put(b"job")
    message = queue.get()
    before = message.invisible_until
    queue.extend(message, 30)
    assert message.invisible_until > before + 20_000
    time.sleep(1.1)
    with pytest.raises(mqstore.Empty):
        queue.get_nowait()
    with pytest.raises(mqstore.InvalidOptionError):
        queue.extend(message, 0)
    queue.ack(message)


def test_what_is_given_back_waits_as_it_is_told(store: mqstore.Store) -> None:
    asked: list[int] = []

    def backoff(attempt: int) -> float:
        asked.append(attempt)
        return 0.05 * attempt

    queue = store.work_queue("jobs", backoff=backoff)
    # A message with a long delay does not block the others.
    queue.put(b"slow")
    message = queue.get()
    queue.nack(message, 60)
    assert queue.counts() == mqstore.WorkQueueCounts(0, 1, 0, 0)
    queue.put(b"job")
    for attempt in (1, 2, 3):
        message = queue.get(timeout=5)
        assert (message.text(), message.attempt) == ("job", attempt)
        queue.nack(message)
    assert asked == [1, 2, 3]
    queue.ack(queue.get(timeout=5))
    assert queue.qsize() == 1
    queue.put(b"wrong")
    message = queue.get()
    queue = store.work_queue("jobs", backoff=lambda _: b"soon")  # type: ignore[arg-type,return-value]
    with pytest.raises(TypeError, match="backoff"):
        queue.nack(message)
    queue.ack(message)


def test_delays(home: Path) -> None:
    with mqstore.open(home, "create", options=SMALL) as store:
        queue = store.work_queue("jobs")
        queue.put(b"later", delay=0.4)
        queue.put(b"now")
        assert take(queue) == "now"
        with pytest.raises(mqstore.Empty):
            queue.get_nowait()
        with pytest.raises(mqstore.InvalidOptionError, match="delay"):
            queue.put(b"never", delay=timedelta(days=31))
    with mqstore.open(home, "rw", options=SMALL) as store:
        assert take(store.work_queue("jobs")) == "later"


def test_dead_letters_and_their_way_back(home: Path) -> None:
    with mqstore.open(home, "create", options=SMALL) as store:
        queue = store.work_queue("jobs", "g", max_attempts=2)
        assert (queue.dead_letters, queue.max_attempts) == ("%DLQ%g", 2)
        assert queue.redrive() == 0
        queue.put(b"bad", keys="k", properties={"p": "v"})
        queue.put(b"good")
        for _ in range(2):
            message = queue.get(timeout=5)
            while message.text() != "bad":
                queue.ack(message)
                message = queue.get(timeout=5)
            queue.nack(message, 0)
        assert queue.counts().dying == queue.counts().delayed == 0
        (dead,) = store.read(queue.dead_letters)
        assert (dead.body, dead.keys, dead.reconsume_times) == (b"bad", ("k",), 2)
        assert dead.properties["p"] == "v"
        assert dead.properties["DLQ_ORIGIN_TOPIC"] == dead.properties["RETRY_TOPIC"] == "jobs"
        origin = store.get(dead.properties["DLQ_ORIGIN_MESSAGE_ID"])
        assert origin is not None
        assert origin.body == b"bad"
    with mqstore.open(home, "rw", options=SMALL) as store:
        queue = store.work_queue("jobs", "g", max_attempts=2)
        assert len(list(store.read(queue.dead_letters))) == 1
        assert (queue.redrive(0), queue.redrive(5), queue.redrive()) == (0, 1, 0)
        bodies = [message.text() for message in queue.get_many(5, timeout=1)]
        assert bodies[-1] == "bad"
        with pytest.raises(ValueError, match="limit"):
            queue.redrive(-1)


@pytest.mark.slow
def test_leases_attempts_and_acks_survive_a_reopen(home: Path) -> None:
    with mqstore.open(home, "create", options=SMALL) as store:
        queue = store.work_queue("jobs", visibility_timeout=2)
        queue.put_many([b"acked", b"held", b"given back", b"new"])
        acked, held, back = queue.get_many(3)
        queue.ack(acked)
        queue.nack(back, 0)
        assert held.text() == "held"
    with mqstore.open(home, "rw", options=SMALL) as store:
        queue = store.work_queue("jobs", visibility_timeout=20)
        found = [queue.get(timeout=5) for _ in range(3)]
        assert sorted((message.text(), message.attempt) for message in found) == [
            ("given back", 2),
            ("held", 2),
            ("new", 1),
        ]
        queue.ack_many(found)
        assert queue.join(0)


def test_task_done_and_join(store: mqstore.Store) -> None:
    queue = store.work_queue("jobs")
    with pytest.raises(ValueError, match="too many times"):
        queue.task_done()
    for number in range(20):
        queue.put(str(number).encode())
    assert not queue.join(0.05)
    done: list[str] = []

    def work() -> None:
        while True:
            try:
                message = queue.get()
            except mqstore.ShutDown:
                return
            done.append(message.text())
            queue.task_done()

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    queue.join()
    assert sorted(done, key=int) == [str(number) for number in range(20)]
    queue.shutdown()
    for thread in threads:
        thread.join()
    queue = store.work_queue("jobs")
    queue.put(b"named")
    queue.task_done(queue.get())
    with pytest.raises(ValueError, match="too many times"):
        queue.task_done()


def test_shutdown(store: mqstore.Store) -> None:
    queue = store.work_queue("jobs")
    queue.put_many([b"1", b"2"])
    queue.shutdown()
    with pytest.raises(mqstore.ShutDown):
        queue.put(b"3")
    assert [take(queue), take(queue)] == ["1", "2"]
    with pytest.raises(mqstore.ShutDown):
        queue.get()
    # A queue object that is made later still finds all messages.
    queue = store.work_queue("jobs")
    queue.put(b"3")
    queue.shutdown(immediate=True)
    with pytest.raises(getattr(queues, "ShutDown", mqstore.ShutDown)):
        queue.get_nowait()
    with store.work_queue("jobs") as queue:
        assert take(queue) == "3"
    assert queue.closed
    with pytest.raises(mqstore.ShutDown):
        queue.get()


def test_a_shutdown_and_the_end_of_the_store_wake_who_waits(home: Path) -> None:
    store = mqstore.open(home, "create", options=SMALL)
    queue = store.work_queue("jobs")
    threading.Timer(0.1, queue.shutdown).start()
    with pytest.raises(mqstore.ShutDown):
        queue.get()
    queue = store.work_queue("jobs")
    closing = threading.Timer(0.1, store.close)
    closing.start()
    with pytest.raises(mqstore.StoreClosedError):
        queue.get()
    closing.join()
    assert queue.closed


def test_groups_have_their_own_view(store: mqstore.Store) -> None:
    one, two = store.work_queue("jobs", "one"), store.work_queue("jobs", "two")
    one.put(b"job")
    assert take(one) == take(two) == "job"


def test_a_handle_keeps_its_store(home: Path) -> None:
    queue = mqstore.open(home, "create", options=SMALL).work_queue("jobs")
    queue.put(b"job")
    assert take(queue) == "job"
    # The last object closes the store when it is dropped, with a warning.
    with pytest.warns(ResourceWarning, match="not closed"):
        del queue


def test_what_is_refused(store: mqstore.Store, home: Path) -> None:
    queue = store.work_queue("jobs")
    for options in (
        {"visibility_timeout": 0},
        {"max_attempts": 0},
        {"max_attempts": -1},
        {"max_attempts": 1 << 40},
        {"maxsize": -1},
        {"maxsize": 1 << 70},
    ):
        with pytest.raises(mqstore.InvalidOptionError):
            store.work_queue("other", **options)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="maxsize"):
        store.work_queue("other", maxsize=2.5)  # type: ignore[arg-type]
    with pytest.raises(mqstore.InvalidOptionError, match="max_attempts"):
        store.work_queue("jobs", max_attempts=3)
    with pytest.raises(TypeError, match="bytes-like"):
        queue.put("text")  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        queue.ack(store.message_at("jobs", 0, queue.put(b"x").queue_offset))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"store\.work_queue"):
        mqstore.WorkQueue()
    with pytest.raises(TypeError, match="cannot pickle"):
        pickle.dumps(queue)
    with store.consumer("g", ["jobs"]), pytest.raises(mqstore.InvalidOptionError, match="consumers"):
        store.work_queue("jobs", "g")
    with mqstore.open(home) as reader, pytest.raises(mqstore.StoreReadOnlyError):
        reader.work_queue("jobs")


def test_many_may_be_held_at_a_time(store: mqstore.Store) -> None:
    queue = store.work_queue("jobs")
    queue.put_many([b"job"] * 20_000)
    started = time.process_time()
    held = [queue.get() for _ in range(20_000)]
    # The cost of a get does not grow with the number of leases of the thread.
    assert time.process_time() - started < 2
    queue.task_done()
    queue.ack_many(held)
    assert queue.join(0)


def test_empty_means_that_nothing_can_be_given(home: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Jobs that a retention has deleted are passed over in one call, and one line of the log counts them."""
    clock = testing.ManualClock()
    options = replace(SMALL, retention_bytes=3 * SMALL.segment_size)
    with testing.open(home, "create", options=options, clock=clock) as store:
        queue = store.work_queue("jobs", visibility_timeout=30)
        queue.put_many([b"lost" * 250] * 40)
        for number, message in enumerate(queue.get_many(40, timeout=0)):
            if number % 2:
                message.nack(delay=5)
        queue.put_many([b"kept" * 250] * 200)
        clock.advance(3600)
        assert store.expire().segments
        (jobs,) = store.queues("jobs")
        waiting = jobs.max_offset - jobs.min_offset
        assert jobs.min_offset > 40
        assert [message.body for message in queue.get_many(1, timeout=0)] == [b"kept" * 250]
        taken = [queue.get_nowait() for _ in range(waiting - 1)]
        assert taken[-1].queue_offset == jobs.max_offset - 1
        with pytest.raises(mqstore.Empty):
            queue.get_nowait()
        assert queue.counts() == mqstore.WorkQueueCounts(ready=0, delayed=0, leased=waiting, dying=0)
    (line,) = [record.message for record in caplog.records if "count as finished" in record.message]
    assert line.endswith("40 messages from 0 to 39 of queue jobs/0 are not in the log any more and count as finished")


def test_a_get_passes_over_jobs_that_are_held_back(store: mqstore.Store) -> None:
    queue = store.work_queue("jobs")
    queue.put_many([b"later"] * 5000, delay=3600)
    queue.put(b"now")
    assert queue.get_nowait().body == b"now"


def test_redrives_at_the_same_time_append_each_dead_letter_once(store: mqstore.Store) -> None:
    queue = store.work_queue("jobs", max_attempts=1)
    queue.put_many([b"%d" % number for number in range(200)])
    for message in queue.get_many(200, timeout=5):
        message.nack(delay=0)
    assert queue.get_many(1, timeout=0) == []
    assert store.count(queue.dead_letters) == 200
    with ThreadPoolExecutor(4) as threads:
        assert sum(threads.map(lambda _: queue.redrive(), range(4))) == 200
    assert store.count("jobs") == 400


def test_a_job_is_cancelled(home: Path) -> None:
    with mqstore.open(home, "create", options=SMALL) as store:
        queue = store.work_queue("jobs")
        ready, later, kept = queue.put(b"ready"), queue.put(b"later", delay=3600), queue.put(b"kept", delay=60)
        by_key = queue.put(b"other", keys=[later.unique_id])
        assert queue.cancel(later.unique_id)
        assert not queue.cancel(later)
        assert queue.cancel(ready)
        counts = mqstore.WorkQueueCounts(ready=1, delayed=1, leased=0, dying=0)
        assert queue.counts() == counts
        assert [one.queue_offset for one in queue.delayed()] == [kept.queue_offset]
        message = queue.get()
        assert message.queue_offset == by_key.queue_offset
        for held in (message, message.message_id):
            with pytest.raises(mqstore.RefusedError, match=r"offset 3 of work queue jobs .* a worker has it"):
                queue.cancel(held)
        message.nack(delay=100)
        assert {one.queue_offset for one in queue.delayed()} == {2, 3}
        (first, _) = queue.delayed()
        assert queue.cancel(first)
        for unknown in ("no such id", "0" * 32):
            assert not queue.cancel(unknown)
    with mqstore.open(home, "rw", options=SMALL) as store:
        queue = store.work_queue("jobs")
        assert (queue.qsize(), queue.counts().delayed) == (1, 1)
        assert queue.cancel(message)
        assert queue.join(0)


def test_dead_letters_end_by_id(store: mqstore.Store) -> None:
    queue = store.work_queue("jobs", max_attempts=1)
    put = queue.put_many([b"%d" % number for number in range(5)])
    for message in queue.get_many(5):
        message.nack(reason="no")
    letters = list(store.read(queue.dead_letters, 0))
    assert queue.counts().dead == 5
    assert queue.redrive(ids=put[3].unique_id) == 1
    assert take(queue) == "3"
    # A redriven message has the id of its dead letter.
    with pytest.raises(mqstore.RefusedError, match="no dead letter with the id"):
        queue.redrive(ids=[put[0].message_id, put[3].unique_id])
    assert queue.delete_dead_letters([put[1].message_id, letters[4].message_id]) == 2
    assert queue.counts().dead == 2
    assert not queue.cancel(put[0])
    assert queue.redrive() == 2
    assert [take(queue), take(queue)] == ["0", "2"]
    assert (queue.counts().dead, queue.redrive()) == (0, 0)
    with pytest.raises(TypeError, match="limit and ids"):
        queue.redrive(1, ids=[])


def test_an_option_of_another_handle_is_named_with_both_values(store: mqstore.Store) -> None:
    first = store.work_queue("jobs", max_attempts=3)
    with pytest.raises(mqstore.InvalidOptionError, match="has 3, and this one asks for no limit"):
        store.work_queue("jobs", max_attempts=None)
    first.close()


def test_counts_of_the_store(home: Path) -> None:
    with mqstore.open(home, "create", options=SMALL) as store:
        queue = store.work_queue("jobs", max_attempts=1)
        queue.put_many([b"a", b"b", b"c"])
        queue.put(b"later", delay=3600)
        queue.get()
        queue.get().nack()
        with mqstore.open(home) as reader:
            assert (store.delays().jobs, reader.delays().jobs) == (1, 1)
        rows = mqstore.info(home).work_queues
        assert rows == (mqstore.WorkQueueInfo("workers-jobs", "jobs", 1, 1, 1, 0, 1),)
