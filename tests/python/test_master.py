"""Stores that replicas follow: appends that wait for copies, readers that see them, bad input and faults."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import struct
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

import pytest

import mqstore
import mqstore.aio
from conftest import Cli, python, until
from test_share import line, other

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

SIZE = 1 << 16


def master(path: Path, mode: Any = "create", **options: Any) -> mqstore.Store:
    replication = mqstore.Master(listen="127.0.0.1:0", **options.pop("replication", {}))
    return mqstore.open(path, mode, segment_size=SIZE, replication=replication, **options)


def address_of(store: mqstore.Store) -> str:
    address = store.replication_address()
    assert address is not None
    return address


def follow(store: mqstore.Store | str, path: Path, **options: Any) -> mqstore.Follower:
    address = store if isinstance(store, str) else address_of(store)
    return mqstore.follow(address, path, segment_size=SIZE, **options)


def logs(path: Path) -> list[bytes]:
    return [file.read_bytes() for file in sorted((path / "commitlog").iterdir())]


@contextmanager
def replica(store: mqstore.Store, *first: bytes) -> Iterator[socket.socket]:
    """A connection that sends what a test wants."""
    host, _, port = address_of(store).rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as made:
        for part in first:
            made.sendall(part)
        yield made


@pytest.mark.parametrize("durability", ["async", "sync", "pooled", "manual"])
@pytest.mark.parametrize("protocol", ["default", "autoswitch", "mqstore"])
def test_an_append_waits_for_its_copy(tmp_path: Path, protocol: Any, durability: Any) -> None:
    with (
        master(tmp_path / "store", durability=durability) as store,
        follow(store, tmp_path / "copy", protocol=protocol, learner=False),
    ):
        until(lambda: [one.in_sync for one in store.followers()] == [True])
        for number in range(300):
            one = store.append("orders", b"%d" % number * 100, replicated=True)
            stats = store.stats()
            end = one.commit_log_offset + one.size
            assert stats.replicated_offset is not None
            assert stats.replicated_offset >= end
        many = store.append_many("orders", [b"a", b"b"], replicated=True)
        batch = store.append_batch("orders", [b"c", b"d"], replicated=True)
        assert (len(many), len(batch)) == (2, 2)
        with mqstore.open(tmp_path / "copy") as copy:
            assert [one.body for one in copy.read("orders")][-4:] == [b"a", b"b", b"c", b"d"]
        (found,) = store.followers()
        assert (found.protocol, found.learner, found.lag_bytes) == (protocol, False, 0)
        assert (store.stats().followers, store.stats().in_sync_copies, store.stats().needed_copies) == (1, 2, 2)
        end = store.stats().log_max_offset
    assert mqstore.verify(tmp_path / "copy").ok
    for ours, theirs in zip(logs(tmp_path / "store"), logs(tmp_path / "copy"), strict=False):
        used = min(end, SIZE)
        assert ours[:used] == theirs[:used]
        end -= used


def test_an_append_that_waits_too_long_is_stored(tmp_path: Path) -> None:
    with master(tmp_path / "store", replication={"ack_timeout": 0.05}, replicated=True) as store:
        with pytest.raises(
            mqstore.StoreTimeoutError, match=r"is stored at log offset 0, up to .* do not repeat it"
        ) as one:
            store.append("orders", b"one")
        assert one.value.log_offset == 0
        assert one.value.waited >= 0.05
        assert [message.body for message in store.read("orders")] == [b"one"]
        with follow(store, tmp_path / "copy"):
            until(lambda: store.stats().replicated_offset == store.stats().log_max_offset)
            store.append("orders", b"two")
    with mqstore.open(tmp_path / "copy") as copy:
        assert [message.body for message in copy.read("orders")] == [b"one", b"two"]


def test_a_copy_less_is_enough_while_one_is_away(tmp_path: Path) -> None:
    """Three copies are wanted, two are enough: a replica that is gone leaves the copies in sync."""
    wanted = {"in_sync_replicas": 3, "min_in_sync": 2, "lag_limit": 0.2, "ack_timeout": 30.0}
    with master(tmp_path / "store", replication=wanted, replicated=True) as store, follow(store, tmp_path / "one"):
        until(lambda: store.stats().in_sync_copies == 2)
        store.append("orders", b"two copies")
        with follow(store, tmp_path / "two"):
            until(lambda: store.stats().in_sync_copies == 3)
            assert store.stats().needed_copies == 3
            store.append("orders", b"three copies")
        store.append("orders", b"two copies again")
        assert store.stats().needed_copies == 2


def test_a_slow_replica_is_not_in_sync(tmp_path: Path) -> None:
    """A replica that acknowledges nothing does not stop those that do."""
    wanted = {"in_sync_replicas": 3, "min_in_sync": 2, "lag_limit": 0.2, "ack_timeout": 30.0}
    with (
        master(tmp_path / "store", replication=wanted, replicated=True) as store,
        follow(store, tmp_path / "one"),
        replica(store, struct.pack(">q", 0)),
    ):
        until(lambda: store.stats().followers == 2)
        until(lambda: store.stats().in_sync_copies >= 2)
        for _ in range(3):
            store.append("orders", b"x")
        slow = min(store.followers(), key=lambda one: one.log_end)
        assert slow.lag_bytes > 0
        assert not slow.in_sync


def test_readers_see_what_copies_have(tmp_path: Path) -> None:
    with master(tmp_path / "store", visibility="confirmed", replication={"ack_timeout": 0.05}) as store:
        store.create_topic("orders")
        with pytest.raises(mqstore.StoreTimeoutError):
            store.append("orders", b"hidden", replicated=True)
        with mqstore.open(tmp_path / "store") as reader:
            assert list(reader.read("orders")) == []
            assert list(store.read("orders")) == []
            with pytest.raises(mqstore.RefusedError, match="the replicas move it"):
                store.set_confirm_offset(None)
            with follow(store, tmp_path / "copy", protocol="autoswitch", learner=False) as follower:
                assert store.wait("orders", 0, 0, timeout=30)
                assert [message.body for message in store.read("orders")] == [b"hidden"]
                until(lambda: [message.body for message in reader.read("orders")] == [b"hidden"])
                follower.wait(timeout=30)
                with mqstore.open(tmp_path / "copy") as copy:
                    # Its master confirms the message later than it sends it.
                    until(lambda: "orders" in copy.topics())
                    until(lambda: [message.body for message in copy.read("orders")] == [b"hidden"])
    # Everything in the log counts at an open.
    with master(tmp_path / "store", "rw", visibility="confirmed", replication={"min_in_sync": 1}) as store:
        assert [message.body for message in store.read("orders")] == [b"hidden"]
        # Without a replica, one copy is enough.
        store.append("orders", b"alone")
        assert store.wait("orders", 0, 1, timeout=30)


def test_a_learner_does_not_count(tmp_path: Path) -> None:
    with (
        master(tmp_path / "store", replication={"ack_timeout": 0.1}) as store,
        follow(store, tmp_path / "copy", protocol="autoswitch") as follower,
    ):
        with pytest.raises(mqstore.StoreTimeoutError):
            store.append("orders", b"x", replicated=True)
        follower.wait(store.stats().log_max_offset, timeout=30)
        (found,) = store.followers()
        assert (found.learner, found.in_sync) == (True, False)


def test_threads_that_wait_share_acknowledgements(tmp_path: Path) -> None:
    with master(tmp_path / "store", replicated=True) as store, follow(store, tmp_path / "copy"):

        def work(number: int) -> None:
            for turn in range(50):
                store.append("orders", b"%d-%d" % (number, turn))

        threads = [threading.Thread(target=work, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        with mqstore.open(tmp_path / "copy") as copy:
            assert len(list(copy.read("orders"))) == 800


def test_other_verbs_wait_too(tmp_path: Path) -> None:
    """Work queues, transactions, delays and tables."""

    def is_copied() -> bool:
        return store.stats().replicated_offset == store.stats().log_max_offset

    with master(tmp_path / "store", replicated=True) as store, follow(store, tmp_path / "copy"):
        with store.work_queue("jobs") as queue:
            queue.put(b"job")
            assert is_copied()
        with store.transaction() as transaction:
            transaction.append("orders", b"both")
        assert is_copied()
        store.append("orders", b"later", delay=3600)
        assert is_copied()
        store.create_topic("prices")
        store.table("prices")["apple"] = b"3"
        assert is_copied()


@pytest.mark.parametrize("replicated", [True, False])
def test_an_event_loop_waits_for_copies(tmp_path: Path, replicated: bool) -> None:
    """As the option of the store, or of each call."""
    option: dict[str, Any] = {} if replicated else {"replicated": True}
    replication = mqstore.Master(listen="127.0.0.1:0", ack_timeout=0.2)

    async def run() -> None:
        opened = mqstore.aio.open(tmp_path / "store", "create", replication=replication, replicated=replicated)
        async with opened as store:
            with pytest.raises(mqstore.StoreTimeoutError, match="is stored at log offset 0"):
                await store.append("orders", b"alone", **option)
            # All that wait share the time.
            waits = [store.append("orders", b"x", **option) for _ in range(20)]
            failed = await asyncio.gather(*waits, return_exceptions=True)
            assert {type(one) for one in failed} == {mqstore.StoreTimeoutError}
            address = await store.replication_address()
            assert address is not None
            with mqstore.follow(address, tmp_path / "copy") as follower:
                follower.wait((await store.stats()).log_max_offset, timeout=30)
                await asyncio.gather(*(store.append("orders", b"%d" % number, **option) for number in range(50)))
                await store.append_many("orders", [b"x", b"y"], **option)
                await store.append_batch("orders", [b"x", b"y"], **option)
                stats = await store.stats()
                assert stats.replicated_offset == stats.log_max_offset
                assert [one.lag_bytes for one in await store.followers()] == [0]

    asyncio.run(run())


def test_a_store_alone_refuses(tmp_path: Path) -> None:
    with mqstore.open(tmp_path / "store", "create") as store:
        for append in (store.append, store.append_many, store.append_batch):
            with pytest.raises(mqstore.InvalidOptionError, match=r"replication=mqstore\.Master"):
                append("orders", b"x" if append == store.append else [b"x"], replicated=True)  # type: ignore[operator]
        assert store.followers() == []
        assert store.stats().replicated_offset is None
    for option in ({"replicated": True}, {"visibility": "confirmed"}):
        with pytest.raises(mqstore.InvalidOptionError, match="it needs replication"):
            mqstore.open(tmp_path / "store", "rw", **option)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"listen": "nowhere"}, "listen"),
        ({"listen": 5}, "listen"),
        ({"listen": "127.0.0.1:0", "in_sync_replicas": 0}, "in_sync_replicas"),
        ({"listen": "127.0.0.1:0", "in_sync_replicas": 65}, "in_sync_replicas"),
        ({"listen": "127.0.0.1:0", "min_in_sync": 3}, "min_in_sync"),
        ({"listen": "127.0.0.1:0", "ack_timeout": 0}, "ack_timeout"),
        ({"listen": "127.0.0.1:0", "lag_limit": 0.01}, "lag_limit"),
        ({"listen": "127.0.0.1:0", "epoch": 0}, "epoch"),
        ({"listen": "127.0.0.1:0", "timeout": 1}, "timeout"),
    ],
)
def test_options_are_checked(tmp_path: Path, options: dict[str, Any], name: str) -> None:
    with pytest.raises(mqstore.InvalidOptionError) as refused:
        mqstore.open(tmp_path / "store", "create", replication=mqstore.Master(**options))
    assert refused.value.option == name


def test_a_port_in_use(tmp_path: Path) -> None:
    with master(tmp_path / "one") as one:
        taken = mqstore.Master(listen=address_of(one))
        with pytest.raises(mqstore.StoreIOError, match="listening for replicas"):
            mqstore.open(tmp_path / "two", "create", replication=taken)
        # The failed open left no lock.
        mqstore.open(tmp_path / "two", "rw").close()
    mqstore.open(tmp_path / "two", "rw", replication=taken).close()
    mqstore.open(tmp_path / "two", "rw", replication=taken).close()


GARBAGE = [
    b"GET / HTTP/1.1\r\n\r\n",
    struct.pack(">q", 1 << 40),
    struct.pack(">q", -1),
    struct.pack(">ihhq", 1, 0, 0, 7) + struct.pack(">iq", 2, 1 << 40),
    struct.pack(">ihhq", 1, 0, 0, 7) + b"\0\0\0\x09" * 4,
    struct.pack(">ihhq", 1, 1, 1, -1) * 3 + struct.pack(">i", 77),
    b"",
    os.urandom(300_000),
]


@pytest.mark.parametrize("number", range(len(GARBAGE)))
def test_bytes_that_are_no_replica(tmp_path: Path, number: int) -> None:
    """They end their connection, and nothing else."""
    with master(tmp_path / "store") as store, follow(store, tmp_path / "copy"):
        store.append("orders", b"before", replicated=True)
        # The store can end the connection first.
        with replica(store, GARBAGE[number]) as sent, suppress(OSError):
            sent.shutdown(socket.SHUT_WR)
            while sent.recv(1 << 16):
                pass
        store.append("orders", b"after", replicated=True)
        until(lambda: store.stats().followers == 1)


def test_an_acknowledgement_of_what_was_not_sent(tmp_path: Path) -> None:
    with master(tmp_path / "store", replication={"ack_timeout": 0.2}) as store, replica(store) as sent:
        store.append("orders", b"x" * 100)
        end = store.stats().log_max_offset
        sent.sendall(struct.pack(">q", 0))
        received = b""
        while len(received) < 12 + end:
            received += sent.recv(1 << 16)
        assert struct.unpack(">qi", received[:12]) == (0, end)
        sent.sendall(struct.pack(">q", end + 1000))
        assert sent.recv(1) == b""
        with pytest.raises(mqstore.StoreTimeoutError):
            store.append("orders", b"y", replicated=True)


def test_a_storm_of_connections(tmp_path: Path) -> None:
    with master(tmp_path / "store") as store, follow(store, tmp_path / "copy"):
        store.append("orders", b"before", replicated=True)
        host, _, port = address_of(store).rpartition(":")
        made = [socket.create_connection((host, int(port)), timeout=30) for _ in range(400)]
        store.append("orders", b"during", replicated=True)
        for one in made:
            one.close()
        until(lambda: store.stats().followers == 1)
        store.append("orders", b"after", replicated=True)


def test_a_replica_that_is_ahead_or_too_late(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with master(tmp_path / "store") as store:
        store.append("orders", b"x")
        with replica(store, struct.pack(">q", 1 << 20)) as ahead:
            assert ahead.recv(1) == b""
        store.append_many("orders", [b"x" * 1000] * 200)
        store.flush()
    with master(tmp_path / "store", "rw", retention_bytes=2 * SIZE) as store:
        store.expire()
        assert store.stats().log_min_offset > 0
        with replica(store, struct.pack(">q", 100)) as late:
            assert late.recv(1) == b""
        until(lambda: "the segments before" in caplog.text or not store.followers())


def test_close_ends_everything(tmp_path: Path) -> None:
    store = master(tmp_path / "store", replication={"ack_timeout": 600.0})
    failed: list[BaseException] = []

    def work() -> None:
        try:
            store.append("orders", b"x", replicated=True)
        except mqstore.MQStoreError as error:
            failed.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    until(lambda: store.stats().log_max_offset > 0)
    address = address_of(store)
    with follow(address, tmp_path / "copy") as follower:
        follower.wait(timeout=30)
        # The copy ends the wait, or the close does.
        store.close()
        thread.join(30)
        assert not thread.is_alive()
        until(lambda: follower.status().state == "connecting")
    for closed in (store.followers, store.replication_address):
        with pytest.raises(mqstore.StoreClosedError):
            closed()
    host, _, port = address.rpartition(":")
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), timeout=5)


def test_a_store_that_is_dropped(tmp_path: Path) -> None:
    store = master(tmp_path / "store")
    address = address_of(store)
    with follow(address, tmp_path / "copy"):
        store.append("orders", b"x", replicated=True)
        with pytest.warns(ResourceWarning):
            del store
        mqstore.open(tmp_path / "store", "rw").close()


def test_a_child_of_a_fork_keeps_no_connection(tmp_path: Path) -> None:
    """A child that lives on does not hide the end of its parent."""
    text = f"""
import mqstore, os, sys, time
master = mqstore.Master(listen="127.0.0.1:0")
store = mqstore.open({str(tmp_path / "store")!r}, "create", replication=master)
follower = mqstore.follow(store.replication_address(), {str(tmp_path / "copy")!r})
store.append("orders", b"x", replicated=True)
print(store.replication_address(), flush=True)
if os.fork() == 0:
    try:
        store.append("orders", b"y")
    except mqstore.ForkedProcessError:
        print("forked", flush=True)
    os._exit(0)
os.wait()
follower.close()
store.close()
print("closed", flush=True)
"""
    ran = python(text)
    assert ran.stdout.splitlines()[1:] == ["forked", "closed"], ran.stderr


def test_epochs(tmp_path: Path) -> None:
    path = tmp_path / "store"
    epochs = path / "epochFileCheckpoint"
    for _ in range(2):
        with master(path) as store:
            pass
    assert epochs.read_text().splitlines()[2:] == ["1-0"]
    with master(path) as store:
        end = store.append("orders", b"x").size
    with master(path, replication={"epoch": 7}) as store:
        store.append("orders", b"x")
    assert epochs.read_text().splitlines()[2:] == ["1-0", f"7-{end}"]
    with pytest.raises(mqstore.RefusedError, match="this log has epoch 7, so a master with epoch 7 is too old"):
        master(path, replication={"epoch": 7})
    with master(path) as store:
        assert store.stats().log_max_offset == 2 * end
    assert epochs.read_text().splitlines()[2:] == ["1-0", f"7-{end}", f"8-{2 * end}"]


def test_a_former_master_follows_the_new_one(tmp_path: Path, cli: Cli) -> None:
    """The two cases of a split brain: what only the old master has is removed, and kept aside."""
    one, two = tmp_path / "one", tmp_path / "two"
    with master(one) as old:
        with follow(old, two, protocol="autoswitch", learner=False):
            old.append("orders", b"both", replicated=True)
        old.append("orders", b"lost")
        assert mqstore.promote(two) == address_of(old)
        # Both are masters now.
        with master(two, "rw", replication={"epoch": 5}) as new:
            new.append("orders", b"new")
            with pytest.raises(mqstore.StoreLockedError):
                mqstore.demote(one, address_of(new))
            # A copy of the old master does not take the new one's log for its own.
            other = tmp_path / "other"
            with follow(old, other, protocol="autoswitch") as follower:
                follower.wait(old.stats().log_max_offset, timeout=30)
            with follow(new, other, protocol="autoswitch") as follower:
                follower.wait(new.stats().log_max_offset, timeout=30)
            assert logs(other)[0] == logs(two)[0]
            old.close()
            # A store of its own is not cut without a word.
            follower = follow(new, one, protocol="autoswitch")
            with pytest.raises(mqstore.RefusedError, match=r"mqstore\.demote"):
                follower.wait(timeout=30)
            with pytest.raises(mqstore.RefusedError):
                follower.close()
            run = cli("demote", one, address_of(new))
            assert "is a copy of" in run.stderr
            with follow(new, one, protocol="autoswitch", learner=False) as follower:
                new.append("orders", b"newer", replicated=True)
                follower.wait(timeout=30)
    assert logs(one)[0] == logs(two)[0]
    (kept,) = (one / "mqstore/lost+found").iterdir()
    assert b"lost" in kept.read_bytes()
    with mqstore.open(one) as store:
        assert [message.body for message in store.read("orders")] == [b"both", b"new", b"newer"]


def test_demote_needs_epochs(tmp_path: Path) -> None:
    with mqstore.open(tmp_path / "store", "create") as store:
        store.append("orders", b"x")
    with pytest.raises(mqstore.RefusedError, match="has no epochs in common"):
        mqstore.demote(tmp_path / "store", "127.0.0.1:1")
    with master(tmp_path / "store", "rw"):
        pass
    with pytest.raises(mqstore.RefusedError, match="has no epochs in common"):
        mqstore.demote(tmp_path / "store", "127.0.0.1:1", protocol="default")
    mqstore.demote(tmp_path / "store", "127.0.0.1:1")
    with pytest.raises(mqstore.StoreReadOnlyError, match=r"is a copy of 127\.0\.0\.1:1"):
        mqstore.open(tmp_path / "store", "rw")
    assert mqstore.promote(tmp_path / "store") == "127.0.0.1:1"


def test_processes_that_share_a_master(tmp_path: Path) -> None:
    """The owner serves the replicas; a client waits for them too. The next owner serves them at the same address."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    replication = mqstore.Master(listen=address)
    path = tmp_path / "store"
    owner = mqstore.open(path, "share", segment_size=SIZE, replication=replication)
    code = """
one = store.append("orders", b"client", replicated=True)
many = store.append_many("orders", [b"a", b"b"], replicated=True)
(found,) = store.followers()
print(found.in_sync, store.stats().replicated_offset == many[-1].commit_log_offset + many[-1].size, flush=True)
sys.stdin.readline()
while not store.is_owner:
    pass
store.append("orders", b"owner", replicated=True)
print(store.replication_address(), flush=True)
"""
    with follow(address, tmp_path / "copy"):
        owner.append("orders", b"first", replicated=True)
        with other(path, code) as client:
            assert line(client) == "open False"
            assert line(client) == "True True"
            owner.close()
            assert client.stdin is not None
            client.stdin.write("\n")
            client.stdin.flush()
            assert line(client) == address
    with mqstore.open(tmp_path / "copy") as copy:
        bodies = [message.body for message in copy.read("orders")]
    assert bodies == [b"first", b"client", b"a", b"b", b"owner"]


def test_metrics_and_options_name_replicas(tmp_path: Path) -> None:
    with master(tmp_path / "store") as store, follow(store, tmp_path / "copy"):
        store.append("orders", b"x", replicated=True)
        found = json.loads(json.dumps(store.stats().to_dict()))
        assert (found["followers"], found["follower_lag_bytes"]) == (1, 0)
        assert store.followers()[0].to_dict()["protocol"] == "default"


def test_segments_stay_for_a_replica(tmp_path: Path) -> None:
    """Until the replica gets no further for `replica_timeout`; a hard limit still wins."""
    path = tmp_path / "store"
    for timeout, kept in ((3600.0, True), (0.0, False)):
        options: dict[str, Any] = {"retention": 0.001, "replication": {"replica_timeout": timeout}}
        with master(path, **options) as store, replica(store, struct.pack(">q", 1)):
            store.append_many("orders", [b"x" * 1000] * 200)
            until(lambda: store.followers() and store.followers()[0].log_end == 1)
            if kept:
                until(lambda: [one.kind for one in store.stats().segments_kept_by] == ["follower"])
                (holder,) = store.stats().segments_kept_by
                assert (holder.group, holder.log_offset, holder.topic) == ("127.0.0.1", 1, "")
                report = store.expire(dry_run=True)
                assert "the replica 127.0.0.1 has the log up to offset 1 only" in json.dumps(report.to_dict())
                assert store.stats().log_min_offset == 0
            else:
                store.expire()
                assert store.stats().log_min_offset > 0
    with (
        master(path, retention=0.001, retention_bytes=2 * SIZE) as store,
        follow(store, tmp_path / "copy", begin="last"),
    ):
        store.append_many("orders", [b"x" * 1000] * 300)
        store.expire()
        assert store.stats().log_bytes <= 3 * SIZE


def test_a_reclaim_leaves_what_a_replica_lacks(tmp_path: Path) -> None:
    """It rewrites no segment that a replica has not copied, and names the copies that keep erased bytes."""
    with master(tmp_path / "store") as store:
        store.append_many("gone", [b"x" * 1000] * 200)
        store.append_many("orders", [b"y" * 1000] * 200)
        store.flush()
        store.delete_topic("gone")
        with replica(store, struct.pack(">q", 1)):
            until(lambda: store.reclaim(dry_run=True, erase="gone").copies)
            report = store.reclaim(erase="gone")
            assert report.segments == ()
            assert {one.reason for one in report.kept} == {"the replica 127.0.0.1 has the log up to offset 1 only"}
            assert report.copies == ("the replica 127.0.0.1",)
        with follow(store, tmp_path / "copy") as follower:
            follower.wait(store.stats().log_max_offset, timeout=30)
            until(lambda: store.reclaim(dry_run=True, erase="gone").segments)
            assert store.reclaim(erase="gone").segments
            store.append("orders", b"after", replicated=True)
    with mqstore.open(tmp_path / "copy") as copy:
        assert len(list(copy.read("orders"))) == 201
