"""Live copies of a master: a store of ours, and programs that are none."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mqstore
from conftest import Cli, until
from loop_device import Disk, obstacle

SMALL: dict[str, Any] = {"segment_size": 1 << 16, "index_slots": 100, "index_entries": 1000, "queue_file_entries": 1000}


class Master:
    """A store that serves replicas."""

    def __init__(self, home: Path) -> None:
        replication = mqstore.Master(listen="127.0.0.1:0")
        self.store = mqstore.open(home, "create", replication=replication, **SMALL)
        self.address = str(self.store.replication_address())

    def append(self, count: int, topic: str = "orders") -> int:
        """Appends messages, and returns the end of the log."""
        first = self.store.stats().appends
        self.store.append_many(topic, [b"message %d " % (first + n) * 40 for n in range(count)])
        return self.end

    @property
    def end(self) -> int:
        """The end of the log."""
        return self.store.stats().log_max_offset

    def close(self) -> None:
        self.store.close()


@contextlib.contextmanager
def answering(bytes_sent: bytes) -> Iterator[str]:
    """The address of a program that sends these bytes after a report, and ends the connection."""

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                slave, _ = listener.accept()
                with slave:
                    slave.recv(8)
                    slave.sendall(bytes_sent)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


@pytest.fixture
def master(tmp_path: Path) -> Iterator[Master]:
    made = Master(tmp_path / "master")
    yield made
    made.close()


def follow(master: Master, copy: Path, **options: Any) -> mqstore.Follower:
    return mqstore.follow(master.address, copy, **(SMALL | options))


def bodies(home: Path | str, topic: str = "orders") -> list[bytes]:
    with mqstore.open(home) as store:
        return [bytes(each.body) for each in store.read(topic)]


def test_a_copy_is_read_while_it_follows(master: Master, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    master.append(300)
    with follow(master, copy) as follower:
        assert follower.wait(timeout=30).state == "following"
        status = follower.wait(master.end, timeout=30)
        assert (status.state, status.lag_bytes, status.error, status.running) == ("following", 0, None, True)
        assert bodies(copy) == bodies(master.store.path)
        end = master.append(300, "prices")
        assert follower.wait(end, timeout=30).log_end >= end
        assert bodies(copy, "prices") == bodies(master.store.path, "prices")
        assert repr(follower) == f"<mqstore.Follower of {master.address} in {str(copy)!r}>"
        assert follower.path == str(copy)
        with pytest.raises(mqstore.StoreTimeoutError, match="has the log up to"):
            follower.wait(end + 1, timeout=0.05)
        until(lambda: [one.log_end for one in master.store.followers()] == [end])
    assert not follower.running
    follower.close()
    assert follower.status().state == "ended"
    with pytest.raises(mqstore.StoreClosedError):
        follower.wait(end + 1)
    # Once more, from the last message on.
    end = master.append(10)
    with follow(master, copy, durable_acks=True) as follower:
        follower.wait(end, timeout=30)
        for name in ("orders", "prices"):
            assert bodies(copy, name) == bodies(master.store.path, name)
    assert mqstore.verify(copy).ok


def test_nobody_else_changes_a_copy(master: Master, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    master.append(10)
    with follow(master, copy) as follower:
        follower.wait(master.end, timeout=30)
        with pytest.raises(mqstore.StoreLockedError):
            follow(master, copy)
        with pytest.raises(mqstore.StoreLockedError):
            mqstore.promote(copy)
        with mqstore.open(copy) as store, pytest.raises(mqstore.StoreReadOnlyError) as caught:
            store.append("orders", b"x")
        assert caught.value.master == master.address
        assert str(caught.value).startswith(f"{copy}: is a copy of {master.address}, which alone can append")
    for mode in ("rw", "create", "share"):
        with pytest.raises(mqstore.StoreReadOnlyError, match=r"mqstore\.promote"):
            mqstore.open(copy, mode)
    assert mqstore.promote(copy) == master.address
    assert mqstore.promote(copy) is None
    with mqstore.open(copy, "rw") as store:
        store.append("orders", b"own")
    assert bodies(copy)[-1] == b"own"
    # It is no copy any more: its last message is not the master's.
    master.append(10)
    follower = follow(master, copy)
    with pytest.raises(mqstore.RefusedError, match="no copy of the master's log from log offset"):
        follower.wait(timeout=30)
    with pytest.raises(mqstore.RefusedError):
        follower.close()
    assert bodies(copy)[-1] == b"own"


def test_a_copy_can_begin_again(master: Master, tmp_path: Path) -> None:
    copy, store = tmp_path / "copy", tmp_path / "store"
    master.append(10)
    with mqstore.open(store, "create", **SMALL) as own:
        own.append("orders", b"mine")
    with pytest.raises(mqstore.RefusedError, match="follows no master"):
        follow(master, store, full_copy=True)
    assert bodies(store) == [b"mine"]
    with follow(master, copy) as follower:
        follower.wait(master.end, timeout=30)
    other = Master(tmp_path / "other")
    other.append(5)
    with follow(other, copy, full_copy=True) as follower:
        follower.wait(other.end, timeout=30)
        assert bodies(copy) == bodies(other.store.path)
    other.close()


@pytest.mark.parametrize(
    ("bytes_sent", "reason"),
    [
        (b"", "closed the connection"),
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "4194304 are the limit"),
        (struct.pack(">qi", 0, 10) + b"0123456789", "it sent log offset 0, not 1"),
        (struct.pack(">qi", 1, 100) + b"\x01" * 100, "bytes that are no log"),
        (struct.pack(">qi", 1, 5 << 20), "4194304 are the limit"),
    ],
    ids=["nothing", "http", "offset", "garbage", "large"],
)
def test_what_is_no_log_is_refused(tmp_path: Path, bytes_sent: bytes, reason: str) -> None:
    with answering(bytes_sent) as address, mqstore.follow(address, tmp_path / "copy", **SMALL) as follower:
        until(lambda: follower.status().connections >= 3 and follower.status().error is not None)
        status = follower.status()
        assert status.running
        assert reason in str(status.error)
        assert status.log_end == 0


@pytest.mark.soak
def test_a_copy_deletes_by_its_own_limits(master: Master, tmp_path: Path) -> None:
    """Old segments go, whatever the master keeps, and the copy continues."""
    copy = tmp_path / "copy"
    master.append(600)
    with follow(master, copy, retention_bytes=3 << 16) as follower:
        for _ in range(5):
            end = master.append(200)
            follower.wait(end, timeout=30)
        until(lambda: len(list((copy / "commitlog").iterdir())) <= 5)
    with follow(master, copy) as follower:
        follower.wait(master.end, timeout=30)
        assert bodies(master.store.path)[-10:] == bodies(copy)[-10:]
        with mqstore.open(copy) as store:
            assert store.stats().log_min_offset > 0


def test_a_full_disk_ends_no_follower(master: Master, tmp_path: Path) -> None:
    """It says so, and continues when there is space."""
    if reason := obstacle("tmpfs"):
        pytest.skip(reason)
    disk = Disk(tmp_path, "tmpfs", 4 << 20)
    try:
        ballast = disk.path / "ballast"
        ballast.write_bytes(bytes(2 << 20))
        copy = disk.path / "copy"
        end = master.append(3000)
        with follow(master, copy) as follower:
            until(lambda: "no space left on the device" in str(follower.status().error))
            assert follower.running
            assert follower.status().log_end < end
            ballast.unlink()
            follower.wait(end, timeout=60)
            assert bodies(copy) == bodies(master.store.path)
    finally:
        disk.remove()


def test_a_master_that_is_away(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as unused:
        port = unused.getsockname()[1]
    with mqstore.follow(f"127.0.0.1:{port}", tmp_path / "copy", **SMALL) as follower:
        with pytest.raises(mqstore.StoreTimeoutError):
            follower.wait(timeout=0.5)
        status = follower.status()
        assert (status.state, status.running, status.connections) == ("connecting", True, 0)
        assert "refused" in str(status.error)
    with pytest.raises((mqstore.StoreIOError, OSError), match="asking the broker for its tables"):
        mqstore.follow(f"127.0.0.1:{port}", tmp_path / "other", metadata=f"127.0.0.1:{port}")
    assert not (tmp_path / "other").exists()


def test_segments_of_another_size(master: Master, tmp_path: Path) -> None:
    master.append(300)
    follower = follow(master, tmp_path / "copy", segment_size=1 << 17)
    with pytest.raises(mqstore.RefusedError, match="mappedFileSizeCommitLog"):
        follower.wait(timeout=30)
    with pytest.raises(mqstore.RefusedError):
        follower.close()


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"master": "host"}, "master"),
        ({"master": "host:0"}, "master"),
        ({"master": ":10912"}, "master"),
        ({"metadata": "host:x"}, "metadata"),
        ({"metadata": "127.0.0.1:10911", "protocol": "mqstore"}, "metadata"),
        ({"protocol": "raft"}, "protocol"),
        ({"begin": "now"}, "begin"),
        ({"durability": "sync"}, "durability"),
        ({"metadata_interval": -1}, "metadata_interval"),
        ({"metadata_interval": 0.05}, "metadata_interval"),
        ({"broker_id": -1}, "broker_id"),
        ({"segment_size": 1}, "segment_size"),
    ],
)
def test_mistakes(tmp_path: Path, given: dict[str, Any], error: str) -> None:
    arguments: dict[str, Any] = {"master": "127.0.0.1:10912"} | given
    with pytest.raises(mqstore.InvalidOptionError) as caught:
        mqstore.follow(path=tmp_path / "copy", **arguments)
    assert caught.value.option == error
    assert not (tmp_path / "copy").exists()


def test_other_places(tmp_path: Path) -> None:
    with pytest.raises(TypeError, match="master must be a str"):
        mqstore.follow(5, tmp_path / "copy")  # type: ignore[arg-type]
    with pytest.raises(mqstore.RemoteStoreError):
        mqstore.follow("127.0.0.1:10912", "s3://bucket/copy")
    (tmp_path / "notes.txt").write_text("x")
    with pytest.raises(mqstore.NotAStoreError):
        mqstore.follow("127.0.0.1:10912", tmp_path)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_child_does_not_use_it(master: Master, tmp_path: Path) -> None:
    master.append(10)
    with follow(master, tmp_path / "copy") as follower:
        follower.wait(master.end, timeout=30)
        child = os.fork()
        if child == 0:
            try:
                follower.status()
            except mqstore.ForkedProcessError:
                os._exit(0)
            os._exit(1)
        assert os.waitpid(child, 0)[1] == 0
        end = master.append(10)
        follower.wait(end, timeout=30)


def test_the_command_line(master: Master, tmp_path: Path, cli: Cli) -> None:
    copy = tmp_path / "copy"
    end = master.append(50)
    assert "--broker-id" in cli("follow", master.address, copy, "--broker-id", "-1").stderr
    done = cli(
        "follow",
        master.address,
        copy,
        "--once",
        "--segment-size",
        str(1 << 16),
        "--retention",
        "7d",
        "--format",
        "json",
    )
    assert done.returncode == 0, done.stderr
    status = json.loads(done.stdout)
    assert (status["log_end"], status["state"], status["error"]) == (end, "following", None)
    done = cli("append", copy, "orders", "--body", "x")
    assert done.returncode != 0
    assert "is a copy of" in done.stderr
    done = cli("promote", copy)
    assert done.returncode == 0
    assert f"no longer follows {master.address}" in done.stderr
    assert "follows no master" in cli("promote", copy).stderr
