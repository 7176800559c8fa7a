"""Shared stores in a bad environment: disks, users, peers and versions."""

from __future__ import annotations

import os
import resource
import shutil
import socket
import struct
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

import mqstore
import mqstore.testing
from conftest import SMALL
from test_share import line, other, raw, share

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")


def bodies(store: mqstore.Store, topic: str) -> list[bytes]:
    return [message.body for message in store.read(topic)]


def append_once_recovered(store: mqstore.Store, body: bytes) -> None:
    end = time.monotonic() + 30
    while time.monotonic() < end:
        with suppress(mqstore.StorePoisonedError):
            store.append("log", body, durable=True)
            return
        time.sleep(0.01)
    raise AssertionError("no process recovered the store")


def test_a_failed_sync_of_the_owner_and_the_takeover_after_it(tmp_path: Path) -> None:
    home, faults = tmp_path / "s", mqstore.testing.Faults()
    owner = mqstore.testing.open(home, "share", faults=faults, options=SMALL)
    with owner, share(home) as client, share(home) as third:
        assert owner.is_owner
        client.append("log", b"1", durable=True)
        faults.fail_syncs(1)
        with pytest.raises(mqstore.StorePoisonedError):
            client.append("log", b"2", durable=True)
        # The owner gives the store up within a moment. One of the three recovers it; the others join it.
        for store in (client, third, owner):
            append_once_recovered(store, b"3")
        assert [store.is_owner for store in (owner, client, third)].count(True) == 1
        kept = bodies(third, "log")
        assert kept[0] == b"1"
        assert kept[-3:] == [b"3"] * 3
        assert bodies(owner, "log") == bodies(client, "log") == kept


def test_a_full_disk_of_the_owner(tmp_path: Path) -> None:
    home, faults = tmp_path / "s", mqstore.testing.Faults()
    owner = mqstore.testing.open(home, "share", faults=faults, options=SMALL)
    with owner, share(home) as client:
        client.append("log", b"first")
        faults.fill_disk()
        stored = 1
        with pytest.raises(mqstore.DiskFullError):
            while True:
                client.append("log", b"x" * 4096)
                stored += 1
        assert len(bodies(client, "log")) == stored
        faults.clear()
        client.append("log", b"last")
        assert owner.append("log", b"of the owner").queue_offset == stored + 1


def test_a_clock_of_a_test_reaches_a_shared_store(tmp_path: Path) -> None:
    clock = mqstore.testing.ManualClock()
    with mqstore.testing.open(tmp_path / "s", "share", clock=clock) as store:
        assert store.append("log", b"1").store_timestamp == clock.timestamp


def in_mounts(mount: str, code: str) -> subprocess.CompletedProcess[str]:
    """Runs a Python program with mounts of its own, which a shell command makes."""
    command = ["unshare", "-m", "sh", "-c", f'{mount} || exit 77; exec "$@"', "sh", sys.executable, "-c", code]
    if shutil.which("unshare") is None:
        pytest.skip("there is no unshare")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode == 77 or "unshare failed" in done.stderr:
        pytest.skip("unshare -m is not permitted")
    return done


def test_a_read_only_file_system(tmp_path: Path) -> None:
    home, mounted = tmp_path / "s", tmp_path / "mounted"
    mqstore.open(home, "create").close()
    mounted.mkdir()
    mount = f'mount --bind "{home}" "{mounted}" && mount -o remount,bind,ro "{mounted}"'
    done = in_mounts(mount, f"import mqstore; mqstore.open({str(mounted)!r}, 'share')")
    assert "Read-only file system" in done.stderr.splitlines()[-1], done.stderr


def test_a_process_on_another_machine_is_no_owner(tmp_path: Path) -> None:
    """Another number of the boot is all that one machine sees of another through a network file system."""
    home, boot = tmp_path / "s", tmp_path / "boot_id"
    boot.write_text("01234567-89ab-cdef-0123-456789abcdef\n", encoding="ascii")
    mount = f'mount --bind "{boot}" /proc/sys/kernel/random/boot_id'
    code = f"import mqstore; mqstore.open({str(home)!r}, 'share')"
    with mqstore.open(home, "create"):
        done = in_mounts(mount, code)
    assert "RefusedError" in done.stderr, done.stderr
    assert "a process on another machine has the store open" in done.stderr.splitlines()[-1]
    # No process has it open now, and its page is of another boot.
    assert in_mounts(mount, code).returncode == 0


@needs_root
def test_another_user_is_refused(tmp_path: Path) -> None:
    home = tmp_path / "s"
    nobody = 65534
    with share(home) as store:
        # The owner looks at the user, even if all permissions are open.
        for folder_path in (home / "mqstore", home, *home.parents):
            with suppress(OSError):
                folder_path.chmod(folder_path.stat().st_mode | 0o055)
        socket_file = home / "mqstore" / "socket"
        folder = os.open(home / "mqstore", os.O_RDONLY)

        def attempt() -> str:
            code = f"""
import os, socket
os.setgroups([])
os.setgid({nobody})
os.setuid({nobody})
peer = socket.socket(socket.AF_UNIX)
try:
    peer.connect("/proc/self/fd/{folder}/socket")
    print("closed" if peer.recv(1) == b"" else "served")
except PermissionError:
    print("no permission")
"""
            command = [sys.executable, "-c", code]
            done = subprocess.run(command, capture_output=True, text=True, pass_fds=[folder], timeout=60)
            return done.stdout.strip() or done.stderr

        assert attempt() == "no permission"
        socket_file.chmod(0o666)
        assert attempt() == "closed"
        os.close(folder)
        store.append("log", b"goes on")


def test_a_thousand_connections(tmp_path: Path) -> None:
    home = tmp_path / "s"
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= before[1] < 4096:
        pytest.skip("a process may not open 4,096 files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (4096, before[1]))
    try:
        with share(home) as owner, share(home) as client:
            peers = []
            for number in range(1000):
                with suppress(BlockingIOError), raw(home) as peer:
                    peer.sendall(struct.pack(">IQH", 1000, 0, 0)[: number % 15])
                    peers.append(socket.socket(fileno=os.dup(peer.fileno())))
            assert len(peers) == 1000
            client.append("log", b"1")
            with share(home) as late:
                late.append("log", b"2")
            assert owner.stats().appends == 2
            for peer in peers:
                peer.close()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_an_owner_that_has_no_descriptor_left(tmp_path: Path) -> None:
    """New connections wait in the queue of the socket; those that are open are served."""
    home = tmp_path / "s"
    code = """
        import os, resource
        input()
        count = len(os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        say("full")
        input()
        resource.setrlimit(resource.RLIMIT_NOFILE, (1024, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
        say("free")
        input()
    """
    with other(home, code) as child:
        assert line(child) == "open True"
        assert child.stdin is not None
        with share(home) as client:
            client.append("log", b"1")
            child.stdin.write("\n")
            child.stdin.flush()
            assert line(child) == "full"
            late: list[mqstore.Store] = []
            opens = threading.Thread(target=lambda: late.append(share(home)))
            opens.start()
            client.append("log", b"2")
            child.stdin.write("\n")
            child.stdin.flush()
            assert line(child) == "free"
            opens.join(30)
            with late[0] as store:
                assert store.append("log", b"3").queue_offset == 2


def test_a_client_that_never_reads(tmp_path: Path) -> None:
    """The owner reads no more of it than its limits, and serves the others."""
    home = tmp_path / "s"
    with share(home) as owner, share(home) as client, raw(home) as peer:
        # A greeting, and then requests whose answers it does not read.
        hello = b"mqst" + struct.pack(">HH", 1, 1) + bytes([1, 1, 1, 1, ord("0")])
        peer.sendall(struct.pack(">IQH", len(hello) + 10, 0, 0) + hello)
        peer.setblocking(False)
        request, sent = struct.pack(">IQH", 11, 7, 0) + b"\xff", 0
        with suppress(BlockingIOError, BrokenPipeError, ConnectionResetError):
            for _ in range(1 << 20):
                sent += peer.send(request * 100)
        assert sent > 0
        client.append("log", b"1")
        assert owner.stats().appends == 1


def test_an_owner_of_another_version(tmp_path: Path) -> None:
    home = tmp_path / "s"
    mqstore.open(home, "create").close()
    folder = os.open(home / "mqstore", os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as fake:
        fake.bind(f"/proc/self/fd/{folder}/socket")
        os.close(folder)
        fake.listen()

        def serve() -> None:
            with suppress(OSError):
                while True:
                    peer, _ = fake.accept()
                    with peer:
                        peer.recv(4096)
                        greeting = b"mqst" + struct.pack(">HH", 9, 12) + b"later"
                        peer.sendall(struct.pack(">IQH", len(greeting) + 10, 0, 0) + greeting)

        threading.Thread(target=serve, daemon=True).start()
        with pytest.raises(mqstore.UnsupportedFormatError, match=r"speaks version 9 to 12.*use the same version"):
            share(home, own=False, lock_timeout=30)
        fake.shutdown(socket.SHUT_RDWR)


def test_a_broker_has_the_store(tmp_path: Path) -> None:
    home = tmp_path / "s"
    mqstore.open(home, "create").close()
    # Java's lock is that of fcntl, for a process.
    code = """
import fcntl, sys
with open(sys.argv[1], "r+b") as file:
    fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    print("locked", flush=True)
    sys.stdin.read()
"""
    command = [sys.executable, "-c", code, str(home / "lock")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "locked\n"
        # At once, though there is no limit.
        with pytest.raises(mqstore.StoreLockedError):
            share(home)
        child.kill()
    share(home).close()
