"""`mqstore.integrations.huey` with huey's own consumer, and with the tests of its storages."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import mqstore
from conftest import python, until
from mqstore.integrations._store_handle import ShareMode

pytest.importorskip("huey")

from huey.constants import EmptyData
from huey.exceptions import TaskException, TaskLockedException

from mqstore.integrations.huey import MqstoreHuey


def huey_at(home: Path, mode: ShareMode = "create", **options: Any) -> MqstoreHuey:
    return MqstoreHuey("tests", path=home, mode=mode, read_timeout=0.05, **options)


@pytest.fixture
def huey(home: Path) -> Iterator[MqstoreHuey]:
    made = huey_at(home)
    yield made
    made.storage.close()


@contextmanager
def working(huey: MqstoreHuey, **options: Any) -> Iterator[None]:
    # A consumer takes the signals of its process, and these are the ones of the tests.
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    consumer = huey.create_consumer(workers=2, periodic=False, check_worker_health=False, **options)
    consumer.start()
    try:
        yield
    finally:
        consumer.stop(graceful=True)
        consumer.scheduler.join()
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.slow
def test_the_tests_of_huey_for_storages(home: Path) -> None:
    import unittest

    suite = pytest.importorskip("huey.tests.test_storage")
    base = pytest.importorskip("huey.tests.base").BaseTestCase

    huey = huey_at(home, utc=False)

    class OwnStorage(suite.StorageTests, base):  # type: ignore[misc]
        supports_ttl = False

        def get_huey(self) -> MqstoreHuey:
            return huey

    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(OwnStorage).run(result)
    huey.storage.close()
    assert result.testsRun >= 7
    assert [text for _, text in (*result.errors, *result.failures)] == []
    assert {test._testMethodName for test, _ in result.skipped} <= {
        "test_priority",
        "test_put_if_empty_ttl",
        "test_consumer_integration",
    }


def test_tasks_run_and_return_results(home: Path, mode: ShareMode) -> None:
    huey = huey_at(home, mode, durable=True)

    @huey.task()
    def add(first: int, second: int) -> int:
        return first + second

    @huey.task()
    def fail() -> None:
        raise LookupError("no such order")

    results = [add(number, 1) for number in range(20)]
    assert len(huey) == huey.pending_count() == 20
    assert len(huey.pending(3)) == 3
    with working(huey):
        assert [result.get(blocking=True, timeout=10) for result in results] == list(range(1, 21))
        with pytest.raises(TaskException, match="no such order"):
            fail().get(blocking=True, timeout=10)
        pipeline = huey.enqueue(add.s(2, 2).then(add, 3))
        assert pipeline.get(blocking=True, timeout=10) == [4, 7]
    assert huey.storage.work_queue.join(timeout=5)
    assert huey.storage.work_queue.counts().dead == 0
    huey.storage.close()
    assert mqstore.info(home).clean


@pytest.mark.slow
def test_scheduled_and_retried_tasks(huey: MqstoreHuey) -> None:
    attempts: list[int] = []
    times: list[float] = []

    @huey.task()
    def later() -> None:
        times.append(time.time())

    @huey.task(retries=2)
    def flaky() -> str:
        attempts.append(1)
        if len(attempts) < 3:
            raise OSError("not yet")
        return "done"

    begin = time.time()
    later.schedule(delay=0.5)
    flaky()
    with working(huey, scheduler_interval=1):
        until(lambda: times and len(attempts) == 3)
    assert times[0] - begin >= 0.5
    assert huey.scheduled_count() == 0


def test_the_schedule_moves_tasks_into_the_queue(huey: MqstoreHuey) -> None:
    @huey.task()
    def work(number: int) -> None: ...

    signals: list[str] = []
    huey.signal()(lambda name, _task: signals.append(name))
    due = datetime(2030, 1, 1)  # noqa: DTZ001 - huey has local times
    for number in (2, 1, 3):
        huey.add_schedule(work.s(number, eta=due + timedelta(seconds=number)))
    huey.storage.add_to_schedule(b"no task of huey", due)
    assert huey.read_schedule(due - timedelta(seconds=1)) == []
    assert huey.read_schedule(due + timedelta(seconds=2)) == []
    assert huey.scheduled_count() == 1
    queue = huey.storage.work_queue
    assert queue.counts().ready == 3
    with pytest.raises(Exception, match=r".+"):
        huey.dequeue()
    assert [huey.dequeue().args for _ in range(2)] == [(1,), (2,)]
    assert queue.counts().dead == 1
    assert signals.count("enqueued") == 2


def test_tasks_have_no_priorities(huey: MqstoreHuey) -> None:
    @huey.task()
    def work() -> None: ...

    with pytest.raises(NotImplementedError):
        work(priority=5)


def test_data_with_any_keys_and_values(huey: MqstoreHuey) -> None:
    storage = huey.storage
    for key in ("a b  c", "ü", "x%20y", b"bytes", " "):
        storage.put_data(key, b"")
        assert storage.peek_data(key) == b""
        assert storage.put_if_empty(key, b"2") is False
    assert set(storage.result_items()) == {"a b  c", "ü", "x%20y", "bytes", " "}
    assert storage.pop_data("ü") == b""
    assert storage.pop_data("ü") is EmptyData


def test_locks_exclude_tasks(huey: MqstoreHuey) -> None:
    with huey.lock_task("a lock"), pytest.raises(TaskLockedException), huey.lock_task("a lock"):
        pass
    with huey.lock_task("a lock"):
        pass


def test_changes_of_data_are_atomic_between_threads(huey: MqstoreHuey) -> None:
    winners: list[int] = []

    def run(thread: int) -> None:
        for number in range(20):
            huey.storage.incr("counter")
            if huey.storage.put_if_empty(f"key {number}", b"%d" % thread):
                winners.append(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(winners) == list(range(20))
    assert huey.storage.incr("counter", 0) == 80


def test_a_task_longer_than_the_visibility_timeout_runs_once(home: Path) -> None:
    huey = huey_at(home, visibility_timeout=0.15)
    runs: list[int] = []

    @huey.task()
    def work() -> None:
        runs.append(1)
        time.sleep(0.6)

    with working(huey):
        work()
        assert huey.storage.work_queue.join(timeout=10)
    assert runs == [1]
    huey.storage.close()


def test_an_interrupted_task_returns_to_the_queue(home: Path) -> None:
    huey = huey_at(home, visibility_timeout=600)
    begun, ended = threading.Event(), threading.Event()

    @huey.task()
    def work() -> None:
        begun.set()
        ended.wait(10)

    work()
    with working(huey):
        assert begun.wait(10)
        assert huey.storage.work_queue.counts().leased == 1
        # What the consumer of huey does at the end of a process.
        huey.notify_interrupted_tasks()
        # The second worker gets it.
        until(lambda: [lease.attempt for lease in huey.storage.work_queue.leased()] == [2])
        ended.set()
    huey.storage.close()


def test_a_task_that_the_storage_did_not_let_run_returns_to_the_queue(
    huey: MqstoreHuey, monkeypatch: pytest.MonkeyPatch
) -> None:
    @huey.task()
    def work() -> None: ...

    work()
    task = huey.dequeue()
    monkeypatch.setattr(huey, "is_revoked", lambda *_: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        huey.execute(task)
    counts = huey.storage.work_queue.counts()
    assert (counts.delayed, counts.leased) == (1, 0)


KILLED = """
import os, sys
from mqstore.integrations.huey import MqstoreHuey

huey = MqstoreHuey("tests", path=sys.argv[1], mode="create", visibility_timeout=0.3)

def work():
    os.kill(os.getpid(), 9)

work.__module__ = "shop"
huey.task()(work)()
huey.create_consumer(workers=1, periodic=False).run()
"""


@pytest.mark.slow
def test_the_task_of_a_killed_consumer_runs_again(huey: MqstoreHuey, home: Path) -> None:
    killed = subprocess.run([sys.executable, "-c", KILLED, str(home)], timeout=60, capture_output=True, text=True)
    assert killed.returncode == -9, killed.stderr
    done: list[int] = []

    def work() -> None:
        done.append(1)

    work.__module__ = "shop"
    huey.task()(work)

    with working(huey):
        until(lambda: done)


SENDER = """
import sys
from mqstore.integrations.huey import MqstoreHuey

huey = MqstoreHuey("tests", path=sys.argv[1])

def add(number):
    return number

add.__module__ = "shop"
add = huey.task()(add)
results = [add(number) for number in range(10)]
assert [result.get(blocking=True, timeout=20) for result in results] == list(range(10))
for _ in range(100):
    huey.storage.incr("counter")
"""


@pytest.mark.slow
def test_tasks_of_other_processes(home: Path) -> None:
    huey = huey_at(home, "share")

    def add(number: int) -> int:
        return number

    add.__module__ = "shop"
    huey.task()(add)

    with working(huey):
        senders = [threading.Thread(target=lambda: ended.append(python(SENDER, home))) for _ in range(2)]
        ended: list[subprocess.CompletedProcess[str]] = []
        for sender in senders:
            sender.start()
        for sender in senders:
            sender.join()
    assert [one.stderr for one in ended if one.returncode] == []
    assert huey.storage.incr("counter", 0) == 200
    huey.storage.close()
