"""Standbys: what a store is after a fail-over, and how the copy and its master agree."""

from __future__ import annotations

import json
import random
import shutil
import sqlite3
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

import mqstore
from conftest import Cli, until
from test_docs import blocks
from test_master import SIZE, address_of, follow, master
from test_share import line

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

SOON: dict[str, Any] = {"metadata_interval": 0.1}


def standby(store: mqstore.Store | str, path: Path, **options: Any) -> mqstore.Follower:
    """A standby, which takes the size of segments from its master."""
    address = store if isinstance(store, str) else address_of(store)
    return mqstore.follow(address, path, protocol="mqstore", **options)


def has_all(follower: mqstore.Follower, store: mqstore.Store) -> bool:
    """Whether the standby has the log and the metadata that the store has now."""
    status = follower.status()
    return status.log_end == status.metadata_end == store.stats().log_max_offset


def give_over(store: mqstore.Store, path: Path, **options: Any) -> mqstore.Store:
    """A planned fail-over: the standby gets everything, and becomes the store."""
    with standby(store, path) as follower:
        # The copy of the metadata that was made after this one has every change so far.
        store.append("marker", b"x")
        until(lambda: has_all(follower, store))
    store.close()
    assert mqstore.promote(path) is not None
    return mqstore.open(path, "rw", segment_size=SIZE, **options)


@contextmanager
def program(code: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """Another process, which is killed at the end."""
    command = [sys.executable, "-c", textwrap.dedent(code), *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        try:
            yield child
        finally:
            child.kill()


def tell(child: subprocess.Popen[str]) -> str:
    """Lets the other process continue, and returns its next line."""
    assert child.stdin is not None
    child.stdin.write("\n")
    child.stdin.flush()
    return line(child)


def bodies(store: mqstore.Store, topic: str) -> list[bytes]:
    return [bytes(message.body) for message in store.read(topic)] if topic in store.topics() else []


def consumed(store: mqstore.Store) -> int:
    """How many messages of "orders" the group has consumed."""
    if "orders" not in store.topics():
        return 0
    with store.consumer("readers", "orders") as consumer:
        return sum(consumer.committed("orders", one.queue_id) or 0 for one in store.queues("orders"))


def test_everything_continues_at_the_standby(tmp_path: Path) -> None:
    store = master(tmp_path / "store", replication=SOON)
    queue = store.work_queue("jobs", visibility_timeout=3600)
    queue.put_many([b"%d" % number for number in range(10)])
    for message in queue.get_many(4, timeout=0)[:3]:
        message.ack()
    store.append_many("orders", [b"%d" % number for number in range(60)])
    with store.consumer("readers", "orders") as consumer:
        consumer.poll(50)
        consumer.commit()
    store.append("later", b"later", delay=3600)
    with store.transaction("shop") as transaction:
        transaction.append("orders", b"whole")
    store.set_retention("orders", keep=timedelta(days=3))
    store.create_topic("wide", queues=7)
    store.create_topic("gone", queues=1)
    store.append("gone", b"gone")
    store.delete_topic("gone")
    store.create_topic("prices", queues=1)
    prices = store.table("prices")
    prices["a"], prices["b"] = b"1", b"2"
    del prices["b"]
    counts, topics, groups = queue.counts(), store.topics(), store.groups()
    with give_over(store, tmp_path / "standby") as new:
        assert new.topics() == sorted([*topics, "marker"])
        assert (len(new.queues("wide")), new.groups()) == (7, groups)
        assert new.work_queue("jobs", visibility_timeout=3600).counts() == counts
        got = new.work_queue("jobs", visibility_timeout=3600).get_many(6, timeout=0)
        assert [message.body for message in got] == [b"%d" % number for number in range(4, 10)]
        with new.consumer("readers", "orders") as consumer:
            assert [message.body for message in consumer.poll(20)][-1] == b"whole"
        assert ("orders", timedelta(days=3)) in [(one.topic, one.keep) for one in new.retention()]
        assert new.delays().pending == 1
        assert {key: one.body for key, one in new.table("prices").items()} == {"a": b"1"}
        assert new.append("gone", b"new").queue_offset >= 1
        assert bodies(new, "gone") == [b"new"]
    assert mqstore.verify(tmp_path / "standby").ok


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(4, 60))])
def test_a_random_history_of_fail_overs(tmp_path: Path, seed: int) -> None:
    """Verbs and fail-overs, with the standby connected all the time or later: the state stays the same."""
    choose, number, rounds = random.Random(seed), 0, 0
    path = tmp_path / "store0"
    store = master(path, replication=SOON)
    done: set[bytes] = set()
    sent: dict[str, list[bytes]] = {"orders": [], "other": []}
    jobs: list[bytes] = []
    polled = 0
    while rounds < 4:
        follower = standby(store, tmp_path / f"store{rounds + 1}") if choose.random() < 0.6 else None
        for _ in range(choose.randrange(5, 20)):
            act = choose.randrange(7)
            if act < 2:
                for _ in range(choose.randrange(1, 30)):
                    topic, body = choose.choice(["orders", "other"]), b"%06d" % number + b"x" * choose.randrange(900)
                    store.append(topic, body)
                    sent[topic].append(body)
                    number += 1
            elif act < 4:
                queue = store.work_queue("jobs", visibility_timeout=3600)
                new = [b"%06d" % (number + one) for one in range(choose.randrange(4))]
                number += len(new)
                queue.put_many(new)
                jobs += new
                for message in queue.get_many(choose.randrange(1, 4), timeout=0):
                    message.ack()
                    done.add(bytes(message.body))
            elif act == 4 and sent["orders"]:
                with store.consumer("readers", "orders") as consumer:
                    polled += len(consumer.poll(choose.randrange(1, 20), timeout=0))
                    consumer.commit()
            elif act == 5 and sent["other"] and choose.random() < 0.3:
                store.delete_topic("other")
                sent["other"] = []
            elif act == 6 and follower is not None:
                follower.close()
                follower = standby(store, tmp_path / f"store{rounds + 1}")
        if follower is not None:
            follower.close()
        rounds += 1
        path = tmp_path / f"store{rounds}"
        replication = mqstore.Master(listen="127.0.0.1:0", **SOON)
        store = give_over(store, path, replication=replication)
        for topic in ("orders", "other"):
            assert sorted(bodies(store, topic)) == sorted(sent[topic])
        counts = store.work_queue("jobs", visibility_timeout=3600).counts()
        assert counts.ready + counts.leased == len(jobs) - len(done)
        assert consumed(store) == polled
    left = [bytes(one.body) for one in store.work_queue("jobs", visibility_timeout=3600).get_many(10_000, timeout=0)]
    assert done.isdisjoint(left)
    store.close()
    assert mqstore.verify(path).ok


def test_a_standby_takes_the_terms_of_its_master(tmp_path: Path) -> None:
    """The size of its segments, its end, and durable acknowledgements; it counts for appends."""
    wanted = {"durable_acks": True, **SOON}
    with master(tmp_path / "store", replication=wanted, replicated=True) as store:
        with standby(store, tmp_path / "copy") as follower:
            until(lambda: [one.in_sync for one in store.followers()] == [True])
            # A master without a message has told that it has none.
            assert follower.wait(timeout=30).log_end == 0
            store.append_many("orders", [b"x" * 900] * 200)
            until(lambda: has_all(follower, store))
            assert follower.wait(timeout=30).master_end == store.stats().log_max_offset
            (found,) = store.followers()
            assert (found.protocol, found.learner, found.lag_bytes) == ("mqstore", False, 0)
        # Closed without a kill of the machine, the copy says that its disk has everything.
        sizes = {file.stat().st_size for file in (tmp_path / "copy" / "commitlog").iterdir()}
        assert sizes == {SIZE}
    with master(tmp_path / "other", replication=SOON) as other:
        other.append("orders", b"x")
        with standby(other, tmp_path / "second", segment_size=1 << 17) as follower:
            follower.wait(timeout=30)
        assert {file.stat().st_size for file in (tmp_path / "second" / "commitlog").iterdir()} == {SIZE}


def test_two_standbys_are_two_copies(tmp_path: Path) -> None:
    """Each has a number of its own, which it keeps."""
    wanted = {"in_sync_replicas": 3, "min_in_sync": 3, **SOON}
    for protocol in ("mqstore", "autoswitch"):
        home = tmp_path / protocol
        home.mkdir()
        with master(home / "store", replication=wanted) as store:
            options: dict[str, Any] = {"protocol": protocol, "learner": False}
            with follow(store, home / "one", **options), follow(store, home / "two", **options):
                until(lambda store=store: [one.in_sync for one in store.followers()] == [True, True])
                store.append("orders", b"x", replicated=True)
                numbers = {one.broker_id for one in store.followers()}
                assert len(numbers) == 2
            with follow(store, home / "one", **options):
                until(lambda store=store: len(store.followers()) == 1)
                until(lambda store=store, numbers=numbers: {one.broker_id for one in store.followers()} <= numbers)
            # Copied files are another copy.
            shutil.copytree(home / "one", home / "three")
            with follow(store, home / "three", **options):
                until(lambda store=store: [one.broker_id for one in store.followers()] not in ([], [None]))
                assert {one.broker_id for one in store.followers()}.isdisjoint(numbers)


def test_a_master_that_is_killed(tmp_path: Path) -> None:
    """Nothing that was acknowledged is lost; work that was finished in the last moment comes again."""
    code = """
        import sys, mqstore
        replication = mqstore.Master(listen="127.0.0.1:0", metadata_interval=0.1)
        store = mqstore.open(sys.argv[1], "create", segment_size=1 << 16, replication=replication)
        print(store.replication_address(), flush=True)
        queue = store.work_queue("jobs", visibility_timeout=3600)
        number = 0
        while sys.stdin.readline():
            for _ in range(200):
                store.append("jobs", b"%d" % number, replicated=True)
                number += 1
                if number % 3 == 0:
                    queue.get(timeout=5).ack()
            print(number, flush=True)
    """
    with program(code, tmp_path / "store") as child, standby(line(child), tmp_path / "copy") as follower:
        until(lambda: follower.status().state == "following")
        number = [int(tell(child)) for _ in range(3)][-1]
        until(lambda: follower.status().metadata_end is not None)
        child.kill()
        child.wait()
        until(lambda: follower.status().state == "connecting")
    mqstore.promote(tmp_path / "copy")
    with mqstore.open(tmp_path / "copy", "rw") as store:
        assert sorted(map(int, bodies(store, "jobs"))) == list(range(number))
        counts = store.work_queue("jobs").counts()
        assert number * 2 // 3 <= counts.ready + counts.leased <= number


def test_a_promotion_has_what_the_standby_kept(tmp_path: Path) -> None:
    """A copy that was killed, and damaged metadata."""
    with master(tmp_path / "store", replication=SOON) as store:
        queue = store.work_queue("jobs", visibility_timeout=3600)
        queue.put_many([b"a", b"b"])
        queue.get(timeout=0).ack()
        code = """
            import sys, time, mqstore
            follower = mqstore.follow(sys.argv[2], sys.argv[1], protocol="mqstore")
            while (end := follower.status().metadata_end) is None or end < int(sys.argv[3]):
                time.sleep(0.01)
            print("there", flush=True)
            time.sleep(600)
        """
        end = store.append("marker", b"x").commit_log_offset
        with program(code, tmp_path / "copy", address_of(store), end) as child:
            assert line(child) == "there"
    kept = tmp_path / "copy" / "mqstore" / "standby"
    content = kept.read_bytes()
    kept.write_bytes(content[:-5] + b"?" + content[-4:])
    with pytest.raises(mqstore.CorruptionError, match=r"mqstore/standby .* remove the file"):
        mqstore.promote(tmp_path / "copy")
    kept.write_bytes(content)
    assert mqstore.promote(tmp_path / "copy") is not None
    assert not kept.exists()
    with mqstore.open(tmp_path / "copy", "rw") as store:
        assert [one.body for one in store.work_queue("jobs").get_many(5, timeout=0)] == [b"b"]


def test_a_former_master_is_a_standby_again(tmp_path: Path, cli: Cli) -> None:
    """Its own metadata go: the new master's count."""
    one, two = tmp_path / "one", tmp_path / "two"
    store = master(one, replication=SOON)
    queue = store.work_queue("jobs", visibility_timeout=3600)
    queue.put_many([b"a", b"b", b"c"])
    with standby(store, two) as follower:
        until(lambda: follower.status().metadata_end == store.stats().log_max_offset)
    # The standby never sees this.
    queue.get(timeout=0).ack()
    store.append("orders", b"lost")
    store.close()
    assert "no longer follows" in cli("promote", two).stderr
    with master(two, "rw", replication=SOON) as new:
        assert len(new.work_queue("jobs").get_many(5, timeout=0)) == 3
        run = cli("demote", one, address_of(new))
        assert "--protocol mqstore" in run.stderr
        run = cli("follow", address_of(new), one, "--protocol", "mqstore", "--once", "--format", "json")
        found = json.loads(run.stdout)
        assert (found["lag_bytes"], found["state"]) == (0, "following")
        again = give_over(new, one)
    with again:
        assert again.work_queue("jobs").counts().leased == 3
        assert bodies(again, "orders") == []


@pytest.mark.parametrize("protocol", ["mqstore", "autoswitch"])
def test_delays_of_a_former_master(tmp_path: Path, protocol: Any) -> None:
    """It is the store again: each delayed message comes once, after any of the masters has accepted or delivered it."""
    one, two = tmp_path / "one", tmp_path / "two"
    with master(one, replication=SOON) as store:
        for name in (b"a", b"b", b"c"):
            store.append("later", name, delay=2)
        store.append("later", b"d", delay=3600)
        with follow(store, two, protocol=protocol) as follower:
            until(lambda: follower.status().log_end == store.stats().log_max_offset)
            until(lambda: protocol != "mqstore" or has_all(follower, store))
        # Only the old master has this one, and delivers it.
        store.append("later", b"lost", delay=0.1)
        until(lambda: b"lost" in bodies(store, "later"))
    assert mqstore.promote(two) is not None
    with master(two, "rw", replication=SOON) as new:
        new.append("later", b"e", delay=0.5)
        until(lambda: sorted(bodies(new, "later")) == [b"a", b"b", b"c", b"e"])
        new.append("later", b"f", delay=1)
        mqstore.demote(one, address_of(new), protocol=protocol)
        with follow(new, one, protocol=protocol) as follower:
            new.append("marker", b"x")
            until(lambda: follower.status().log_end == new.stats().log_max_offset)
            until(lambda: protocol != "mqstore" or has_all(follower, new))
    assert mqstore.promote(one) is not None
    with mqstore.open(one, "rw", segment_size=SIZE) as store:
        until(lambda: len(bodies(store, "later")) == 5)
        assert sorted(bodies(store, "later")) == [b"a", b"b", b"c", b"e", b"f"]
        assert store.delays().pending == 1
    assert mqstore.verify(one).ok


def test_compaction_files_of_a_former_master(tmp_path: Path) -> None:
    """They can have messages that the new master lacks, so only a full copy is right."""
    one, two = tmp_path / "one", tmp_path / "two"
    with master(one, replication=SOON) as store:
        store.create_topic("prices", attributes={"cleanup.policy": "COMPACTION"})
        store.table("prices")["a"] = b"1"
        with standby(store, two) as follower:
            until(lambda: has_all(follower, store))
        store.table("prices")["a"] = b"lost"
    mqstore.promote(two)
    with master(two, "rw", replication=SOON) as new:
        new.table("prices")["b"] = b"2"
        mqstore.demote(one, address_of(new))
        follower = standby(new, one)
        with pytest.raises(mqstore.RefusedError, match="compaction files can have them"):
            follower.wait(timeout=30)
        with pytest.raises(mqstore.RefusedError):
            follower.close()
        with standby(new, one, full_copy=True) as follower:
            until(lambda: has_all(follower, new))
    mqstore.promote(one)
    with mqstore.open(one, "rw", segment_size=SIZE) as store:
        assert {key: each.body for key, each in store.table("prices").items()} == {"a": b"1", "b": b"2"}


def test_a_standby_keeps_what_no_compaction_has(tmp_path: Path) -> None:
    """Its retention deletes nothing of a compacted topic. As the store, it compacts, and then deletes."""
    with master(tmp_path / "store", replication=SOON) as store:
        store.create_topic("prices", attributes={"cleanup.policy": "COMPACTION"})
        prices = store.table("prices")
        for number in range(50):
            prices[f"k{number}"] = b"%d" % number
        with standby(store, tmp_path / "copy", retention_bytes=SIZE) as follower:
            until(lambda: has_all(follower, store))
            store.append_many("orders", [b"x" * 1000] * 500)
            until(lambda: has_all(follower, store))
            with mqstore.open(tmp_path / "copy", retention_bytes=SIZE) as copy:
                (kept,) = copy.expire(dry_run=True).kept
                assert "in no compaction file yet, of prices" in kept
    assert mqstore.promote(tmp_path / "copy") is not None
    mqstore.compact(tmp_path / "copy", in_place=True)
    with mqstore.open(tmp_path / "copy", "rw", retention_bytes=SIZE) as store:
        store.expire()
        assert store.stats().log_min_offset > 0
        assert len(store.table("prices")) == 50


def test_a_standby_frees_the_same_space(tmp_path: Path) -> None:
    """After a fail-over it knows which messages are hidden, and rewrites the segments as the master does."""
    with master(tmp_path / "store") as store:
        for number in range(40):
            store.append_many("gone", [b"x" * 1000] * 10)
            store.append("orders", b"%d" % number, keys=f"k{number}")
        store.delete_topic("gone")
        store.append("orders", b"after")
        copy = give_over(store, tmp_path / "copy")
    with copy, mqstore.open(tmp_path / "store", "rw", segment_size=SIZE) as former:
        there, here = copy.reclaim(), former.reclaim()
        assert here.segments
        assert [one.log_offset for one in there.segments] == [one.log_offset for one in here.segments]
        assert bodies(copy, "orders") == bodies(former, "orders") == [*(b"%d" % n for n in range(40)), b"after"]
        assert "gone" not in copy.topics()
        assert copy.reclaim(erase="gone").segments == ()
    for path in sorted((tmp_path / "store/commitlog").iterdir())[: len(here.segments)]:
        assert path.read_bytes() == (tmp_path / "copy/commitlog" / path.name).read_bytes()


def lease_of_the_page() -> Callable[..., int | None]:
    """The function of docs/standby.md."""
    (code,) = (block for block in blocks("docs/standby.md") if "take_lease" in block)
    names: dict[str, Any] = {}
    exec(code, names)
    found: Callable[..., int | None] = names["take_lease"]
    return found


def test_the_lease_of_the_page_has_one_holder_at_a_time(tmp_path: Path) -> None:
    """Each program has a connection of its own. A lease of -1 seconds has ended."""
    take, path = lease_of_the_page(), tmp_path / "leases.db"
    with closing(sqlite3.connect(path)) as one, closing(sqlite3.connect(path)) as two:
        assert take(one, "store", "one") == 1
        assert take(two, "store", "two") is None
        assert take(one, "store", "one", seconds=-1) == 1
        assert take(two, "store", "two") == 2
        assert take(one, "store", "one") is None
        assert take(two, "other store", "two") == 1
        assert take(two, "store", "two", seconds=-1) == 2
        # A new start of the first program.
        assert take(one, "store", "one again") == 3

    def race(number: int) -> int | None:
        with closing(sqlite3.connect(path, timeout=60)) as database:
            return take(database, "race", f"holder {number}")

    with ThreadPoolExecutor(8) as pool:
        assert sorted(pool.map(race, range(8)), key=str) == [1, *[None] * 7]


def test_masters_with_a_lease(tmp_path: Path) -> None:
    """The holder of the lease is the master, and its number is the epoch. A former master learns it at its open."""
    take = lease_of_the_page()
    with closing(sqlite3.connect(tmp_path / "leases.db")) as database:
        first = take(database, "store", "first", seconds=-1)
        with master(tmp_path / "a", replication={"epoch": first}) as store, standby(store, tmp_path / "b") as follower:
            store.append("orders", b"one", replicated=True)
            # The first master has not renewed its lease, and does not know it yet.
            second = take(database, "store", "second")
            assert (first, second) == (1, 2)
            follower.close()
            mqstore.promote(tmp_path / "b")
            with master(tmp_path / "b", replication={"epoch": second, "min_in_sync": 1}) as other:
                with pytest.raises(mqstore.StoreTimeoutError):
                    store.append("orders", b"lost", replicated=True)
                other.append("orders", b"two")
                store.close()
                assert take(database, "store", "first") is None
                mqstore.demote(tmp_path / "a", address_of(other))
                with standby(other, tmp_path / "a") as back:
                    back.wait(other.stats().log_max_offset, timeout=30)
        with pytest.raises(mqstore.RefusedError, match="too old"):
            master(tmp_path / "b", replication={"epoch": first})
        assert take(database, "store", "second", seconds=-1) == second
        # The next program gets a number that no log has.
        third = take(database, "store", "third")
        mqstore.promote(tmp_path / "a")
        with master(tmp_path / "a", replication={"epoch": third, "min_in_sync": 1}) as store:
            assert bodies(store, "orders") == [b"one", b"two"]
