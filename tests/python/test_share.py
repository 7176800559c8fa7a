"""Several processes with one store: `mode="share"`."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

import mqstore
from conftest import SMALL, Cli, until


@contextmanager
def other(home: Path, code: str) -> Iterator[subprocess.Popen[str]]:
    """Runs a program in another process, which has `store` and `say`; it ends when its input ends."""
    head = f"""
        import sys, time, mqstore
        def say(*words):
            print(*words, flush=True)
        store = mqstore.open({str(home)!r}, "share")
        say("open", store.is_owner)
    """
    text = textwrap.dedent(head) + textwrap.dedent(code)
    command = [sys.executable, "-c", text]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        try:
            yield child
        finally:
            child.kill()


@contextmanager
def raw(home: Path) -> Iterator[socket.socket]:
    """Connects to the socket of a store."""
    folder = os.open(home / "mqstore", os.O_RDONLY)
    peer = socket.socket(socket.AF_UNIX)
    try:
        peer.settimeout(10)
        peer.connect(f"/proc/self/fd/{folder}/socket")
        yield peer
    finally:
        os.close(folder)
        peer.close()


def line(child: subprocess.Popen[str]) -> str:
    """Returns the next line that the other process said."""
    assert child.stdout is not None
    return child.stdout.readline().strip()


def share(home: Path, **options: object) -> mqstore.Store:
    return mqstore.open(home, "share", **options)


def test_two_handles_are_one_store(tmp_path: Path) -> None:
    with share(tmp_path / "s", options=SMALL) as owner, share(tmp_path / "s") as client:
        assert (owner.mode, owner.is_owner, client.is_owner) == ("share", True, False)
        result = client.append("orders", b"one", keys=["k"])
        assert client.get(result.unique_id) == next(iter(owner.lookup("orders", "k")))
        assert [message.body for message in client.read("orders")] == [b"one"]
        many = client.append_many("orders", [mqstore.Message(b"two", keys="k"), b"three"])
        assert [one.queue_offset for one in many] == [1, 2]
        assert client.append("orders", b"four", durable=True).durable
        client.flush()
        client.create_topic("b")
        assert ("b" in client.topics(), list(client.table("b"))) == (True, [])
        client.create_topic("a", 3, max_messages=10)
        client.update_topic("a", max_messages=20)
        assert client.quotas() == owner.quotas()
        client.set_retention("a", max_messages=5)
        assert [one.topic for one in owner.retention()] == ["a"]
        client.delete_topic("a")
        with pytest.raises(mqstore.TopicNotFoundError, match="orders"):
            client.delete_topic("order")
        assert client.stats().appends == owner.stats().appends == 4
        assert client.expire(dry_run=True).dry_run
        assert client.reclaim(dry_run=True).dry_run
        later = client.append("orders", b"five", delay=3600)
        assert client.delays().pending == owner.delays().pending == 1
        assert client.cancel(later.unique_id)
        with pytest.raises(mqstore.InvalidMessageError):
            client.append("orders", b"x", keys=["a b"])
        with pytest.raises(mqstore.MessageTooLargeError):
            client.append("orders", bytes(5 << 20))


def test_work_queues_transactions_consumers_and_tables(tmp_path: Path) -> None:
    with share(tmp_path / "s") as owner, share(tmp_path / "s") as client:
        jobs, same = client.work_queue("jobs", max_attempts=2), owner.work_queue("jobs", max_attempts=2)
        jobs.put(b"a", dedup_id="once")
        jobs.put(b"a", dedup_id="once")
        assert same.counts().ready == 1
        with jobs.get(timeout=5) as job:
            assert (job.body, job.attempt, same.counts().leased) == (b"a", 1, 1)
            job.extend(60)
            assert jobs.leased() == same.leased()
        assert jobs.join(5)
        jobs.put(b"bad", delay=0.01)
        for _ in range(2):
            jobs.get(timeout=5).nack(0, reason="no")
        assert jobs.counts().dead == 1
        assert jobs.redrive() == 1
        jobs.get(timeout=5).ack(durable=True)
        with pytest.raises(mqstore.Empty):
            jobs.get(timeout=0.02)
        with pytest.raises(mqstore.Empty):
            jobs.get_nowait()
        with client.transaction("p") as transaction:
            transaction.append("orders", b"1")
            transaction.append("mails", b"2")
        assert [one.topic for one in transaction.results] == ["orders", "mails"]
        with client.consumer("g", "orders") as consumer:
            assert [message.body for message in consumer.poll(10, 5)] == [b"1"]
            consumer.commit()
            assert (consumer.assignment, consumer.lag()) == ((("orders", 0),), {("orders", 0): 0})
            assert consumer.committed("orders", 0) == 1
        client.append("prices", b"3", keys=["apple"])
        assert client.table("prices")["apple"].body == b"3"


def test_a_long_verb_of_a_client_has_progress_and_an_end(tmp_path: Path) -> None:
    with share(tmp_path / "s") as owner, share(tmp_path / "s") as client:
        client.create_topic("prices", 1, attributes={"cleanup.policy": "COMPACTION"})
        messages = [mqstore.Message(b"x" * 500, keys=f"k{number % 10}") for number in range(4000)]
        owner.append_many("prices", messages)
        steps: list[mqstore.types.Progress] = []

        def stop(step: mqstore.types.Progress) -> None:
            steps.append(step)
            raise RuntimeError("enough")

        with pytest.raises(RuntimeError, match="enough"):
            client.compact("prices", progress=stop, max_bytes_per_second=1 << 20)
        assert 0 < steps[0].done <= steps[0].total
        # The owner has given it up, or this call would wait for it.
        assert client.compact("prices", progress=steps.append).messages_after == 10
        with pytest.raises(mqstore.RefusedError, match="in the process that owns the store"):
            client.rebuild()
        owner.rebuild()


def test_a_consumer_of_each_process_gets_a_part_of_the_queues(tmp_path: Path) -> None:
    with share(tmp_path / "s", default_queues=4) as owner, share(tmp_path / "s") as client:
        owner.create_topic("orders", 4)
        with owner.consumer("g", "orders") as one, client.consumer("g", "orders") as two:
            one.poll(1, 0)
            two.poll(1, 0)
            one.poll(1, 0)
            assert len(one.assignment) == len(two.assignment) == 2
            assert not set(one.assignment) & set(two.assignment)


def test_takeover_after_a_kill(tmp_path: Path) -> None:
    home = tmp_path / "s"
    code = """
        queue = store.work_queue("jobs")
        queue.put(b"a")
        for _ in sys.stdin:
            say(store.append("log", b"x").queue_offset)
    """
    with other(home, code) as child:
        assert line(child) == "open True"
        with share(home) as store:
            assert not store.is_owner
            queue = store.work_queue("jobs")
            job = queue.get(timeout=10)
            store.append("log", b"before")
            child.kill()
            child.wait()
            begun = time.monotonic()
            assert store.append("log", b"after").queue_offset == 1
            took = time.monotonic() - begun
            assert store.is_owner
            job.ack()
            assert queue.join(5)
            print(f"takeover in {took:.3f} s")
    assert mqstore.verify(home).ok


def test_a_stopped_owner_is_waited_for(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    home = tmp_path / "s"
    with other(home, "for _ in sys.stdin: pass") as child:
        assert line(child) == "open True"
        with share(home) as store:
            os.kill(child.pid, signal.SIGSTOP)
            done = threading.Event()

            def append() -> None:
                store.append("log", b"x")
                done.set()

            thread = threading.Thread(target=append)
            thread.start()
            assert not done.wait(1.5)
            with pytest.raises(mqstore.StoreLockedError):
                share(home, lock_timeout=0.2)
            os.kill(child.pid, signal.SIGCONT)
            assert done.wait(10)
            thread.join()


def test_options_agree(tmp_path: Path) -> None:
    home = tmp_path / "s"
    with share(home, segment_size=1 << 20, flush_interval=0.1):
        with pytest.raises(mqstore.InvalidOptionError, match=r"flush_interval.* 0\.1 s, .* 0\.2 s:"):
            share(home, flush_interval=0.2)
        share(home, flush_interval=0.1).close()
        share(home).close()
        with pytest.raises(mqstore.InvalidOptionError, match="before_delete"):
            share(home, before_delete=lambda _file: True)
    with pytest.raises(mqstore.InvalidOptionError, match=r"durability.*pooled"):
        share(tmp_path / "t", durability="pooled")
    with pytest.raises(mqstore.InvalidOptionError, match="own"):
        mqstore.open(home, "rw", own=False)


def test_segments_stay_when_the_process_that_decides_about_them_is_gone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home = tmp_path / "s"
    code = f"""
        store.close()
        store = mqstore.open({str(home)!r}, "share", segment_size=1 << 16, retention=0.001,
                             before_delete=lambda file: False, on_event=lambda event: say(event.kind))
        for _ in range(100):
            store.append("log", bytes(4000))
        say("ready")
        sys.stdin.read()
    """
    with other(home, code) as owner:
        assert line(owner) == "open True"
        # The background of the owner can be the first that asks.
        events = list(iter(lambda: line(owner), "ready"))
        with share(home) as client:
            assert not client.is_owner
            assert client.expire().segments == 0
            assert "segment_kept" in events or line(owner) == "segment_kept"
            owner.kill()
            until(lambda: client.is_owner)
            time.sleep(0.01)
            report = client.expire()
            assert report.segments == 0
            assert "before_delete" in report.kept[0]
            assert "no process with the function before_delete is the owner" in caplog.text


def test_the_processes_of_a_store(home: Path, cli_process: Cli) -> None:
    def ps() -> dict[str, Any]:
        found: dict[str, Any] = json.loads(cli_process("ps", home, "--format", "json").stdout)
        return found

    mqstore.open(home, "create").close()
    assert (ps()["open"], ps()["owner"]) == (False, None)
    with mqstore.open(home, "rw"):
        assert {**ps(), "clients": []} == {
            "owner": os.getpid(),
            "open": True,
            "shared": False,
            "answers": False,
            "clients": [],
        }
    code = """
        queue, consumer = store.work_queue("jobs"), store.consumer("billing", ["jobs"])
        consumer.poll(0)
        say("ready")
        sys.stdin.read()
    """
    with share(home) as owner, other(home, code) as child:
        owner.create_topic("jobs", queues=2)
        assert (line(child), line(child)) == ("open False", "ready")
        found = ps()
        assert (found["owner"], found["shared"], found["answers"]) == (os.getpid(), True, True)
        (client,) = found["clients"]
        assert client["pid"] == child.pid
        assert client["work_queues"] == ["jobs/workers-jobs"]
        assert client["consumers"] == ["billing: jobs/0 jobs/1"]


def test_a_store_that_another_process_does_not_share(tmp_path: Path) -> None:
    home = tmp_path / "s"
    with mqstore.open(home, "create"), pytest.raises(mqstore.StoreLockedError):
        share(home, lock_timeout=0.1)
    with pytest.raises(mqstore.StoreLockedError):
        share(home, lock_timeout=0.1, own=False)
    with share(home), pytest.raises(mqstore.StoreLockedError, match='mode "share" too'):
        mqstore.open(home, "rw")


def test_a_long_path(tmp_path: Path) -> None:
    home = tmp_path / ("x" * 200)
    with share(home) as owner, share(home) as client:
        client.append("a", b"1")
        assert owner.stats().appends == 1


def _in_child(store: mqstore.Store, queue: mqstore.WorkQueue, job: mqstore.LeasedMessage, home: Path) -> None:
    store.append("log", b"child")
    with pytest.raises(mqstore.ForkedProcessError, match="stays with the parent"):
        job.ack()
    again = store.work_queue("jobs")
    again.put(b"from the child")
    (home / "done").write_text(str([message.body for message in store.read("log")]))


@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
@pytest.mark.parametrize("owner", [True, False])
def test_a_forked_child_becomes_a_client(tmp_path: Path, owner: bool) -> None:
    home = tmp_path / "s"
    with share(home) as first, share(home) as second:
        store = first if owner else second
        store.append("log", b"parent")
        queue = store.work_queue("jobs")
        queue.put(b"a")
        job = queue.get(timeout=5)
        child = multiprocessing.get_context("fork").Process(target=_in_child, args=(store, queue, job, home))
        child.start()
        child.join(30)
        assert child.exitcode == 0
        assert (home / "done").read_text() == "[b'parent', b'child']"
        job.ack()
        assert queue.get(timeout=5).body == b"from the child"
        assert store.append("log", b"after").queue_offset == 2


POOL = """
import multiprocessing, os, sys
import mqstore

# The processes of spawn and forkserver run this line, too.
store = mqstore.open(sys.argv[1], "share", segment_size=1 << 16)


def work(number):
    body = b"%d of %d" % (number, os.getpid())
    store.append("log", body)
    assert any(message.body == body for message in store.read("log"))
    return os.getpid()


if __name__ == "__main__":
    store.append("log", b"0 of the parent")
    with multiprocessing.get_context(sys.argv[2]).Pool(3) as pool:
        workers = set(pool.map(work, range(1, 60)))
    assert os.getpid() not in workers
    assert sorted(int(message.body.split()[0]) for message in store.read("log")) == list(range(60))
    store.append("log", b"60 of the parent")
    store.close()
"""


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_pools_of_processes_share_a_store(tmp_path: Path, method: str) -> None:
    (script := tmp_path / "workers.py").write_text(POOL)
    command = [sys.executable, "-W", "error::ResourceWarning", script, tmp_path / "s", method]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    with mqstore.open(tmp_path / "s") as store:
        assert sum(1 for _ in store.read("log")) == 61


def test_random_bytes_do_not_disturb_others(tmp_path: Path) -> None:
    home, chance = tmp_path / "s", random.Random(7)
    with share(home) as owner, share(home) as client, ExitStack() as peers:
        for size in [0, 1, 3, 13, 14, 100, 5000, 1 << 20]:
            peer = peers.enter_context(raw(home))
            with suppress(OSError):
                peer.sendall(chance.randbytes(size))
        large = peers.enter_context(raw(home))
        large.sendall(((16 << 20) + 11).to_bytes(4, "big"))
        assert large.recv(1) == b""
        client.append("a", b"1")
        assert owner.stats().appends == 1
