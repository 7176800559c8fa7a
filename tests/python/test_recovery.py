"""Recovery from the view of a program: handling of damage, notes, and Ctrl-C."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import textwrap
import time
import warnings
from pathlib import Path

import pytest

import mqstore

MESSAGES = 40


def fill(path: Path, messages: int = MESSAGES) -> None:
    with mqstore.open(path, "create", segment_size=4096) as store:
        for number in range(messages):
            store.append("orders", f"body {number}".encode() * 3, keys=[f"k{number}"])


def damaged(path: Path) -> Path:
    """A closed store, as another program left it, with one flipped bit in its second segment."""
    fill(path)
    shutil.rmtree(path / "mqstore")
    segment = path / "commitlog" / f"{4096:020}"
    content = bytearray(segment.read_bytes())
    content[300] ^= 4
    segment.write_bytes(content)
    return segment


def snapshot(path: Path) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in path.rglob("*") if file.is_file() and file.name != "lock"}


def test_strict_refuses_and_says_where_and_what_to_do(tmp_path: Path) -> None:
    segment = damaged(tmp_path / "store")
    before = snapshot(tmp_path)
    with pytest.raises(mqstore.CorruptionError, match="salvage") as caught:
        mqstore.open(tmp_path / "store", "rw")
    assert Path(caught.value.path) == segment
    assert 0 <= caught.value.offset <= 300
    assert snapshot(tmp_path) == before


def test_salvage_goes_on_behind_the_damage(tmp_path: Path) -> None:
    damaged(tmp_path / "store")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with mqstore.open(tmp_path / "store", "rw", recovery="salvage") as store:
            assert store.mode == "rw"
            assert len(list(store.read("orders", on_damage="skip"))) == MESSAGES - 1
            result = store.append("orders", b"one more")
            assert result.queue_offset == MESSAGES, "no offset is given twice"
        assert any("skipped" in str(one.message) for one in said)
        with mqstore.open(tmp_path / "store") as store:
            assert len(list(store.read("orders", on_damage="skip"))) == MESSAGES


def test_read_only_opens_what_it_cannot_write(tmp_path: Path) -> None:
    damaged(tmp_path / "store")
    before = snapshot(tmp_path)
    with (
        pytest.warns(mqstore.StoreWarning, match="its checksum is wrong"),
        pytest.warns(mqstore.StoreWarning, match="reading only"),
    ):
        store = mqstore.open(tmp_path / "store", "rw", recovery="read-only")
    with store:
        assert store.mode == "r"
        with pytest.raises(mqstore.StoreReadOnlyError):
            store.append("orders", b"no")
        with pytest.raises(mqstore.CorruptionError, match="message 22 of queue orders/0"):
            list(store.read("orders"))
        with pytest.warns(mqstore.StoreWarning, match="message 22 of queue orders/0"):
            assert len(list(store.read("orders", on_damage="skip"))) == MESSAGES - 1
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("mode", ["strict", "salvage", "read-only"])
def test_without_damage_every_choice_is_the_same(tmp_path: Path, mode: str) -> None:
    fill(tmp_path / "store")
    with mqstore.open(tmp_path / "store", "rw", recovery=mode) as store:
        assert store.mode == "rw"
        assert len(list(store.read("orders"))) == MESSAGES


@pytest.mark.parametrize("mode", ["lenient", "", "STRICT", None, 1])
def test_another_choice_is_refused(tmp_path: Path, mode: object) -> None:
    with pytest.raises(mqstore.InvalidOptionError, match="recovery"):
        mqstore.open(tmp_path / "store", "create", recovery=mode)


def test_a_short_recovery_tells_nothing(tmp_path: Path) -> None:
    fill(tmp_path / "store")
    told: list[mqstore.Progress] = []
    mqstore.open(tmp_path / "store", "rw", progress=told.append).close()
    assert told == []


KILLED = """
    import os, sys, mqstore
    store = mqstore.open(sys.argv[1], "create", durability="manual")
    body = b"x" * (1 << 20)
    for _ in range(int(sys.argv[2])):
        store.append("orders", body)
    os.kill(os.getpid(), 9)
"""


def killed(path: Path, mebibytes: int) -> None:
    """A store that was killed with this many MiB above its durable mark."""
    code = textwrap.dedent(KILLED)
    process = subprocess.run([sys.executable, "-c", code, str(path), str(mebibytes)], check=False)
    assert process.returncode == -signal.SIGKILL


def test_a_long_recovery_tells_how_far_it_is(tmp_path: Path) -> None:
    killed(tmp_path / "store", 100)
    told: list[mqstore.Progress] = []
    with mqstore.open(tmp_path / "store", "rw", progress=told.append) as store:
        assert len(list(store.read("orders"))) == 100
    assert len(told) >= 50
    assert all(0 <= step.done <= step.total for step in told)


def test_an_exception_from_progress_ends_the_open_and_the_next_one_recovers(tmp_path: Path) -> None:
    killed(tmp_path / "store", 80)

    def stop(step: mqstore.Progress) -> None:
        if step.done > 20 << 20:
            raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        mqstore.open(tmp_path / "store", "rw", progress=stop)
    with mqstore.open(tmp_path / "store", "rw") as store:
        assert len(list(store.read("orders"))) == 80


def test_ctrl_c_ends_a_recovery_at_once(tmp_path: Path) -> None:
    killed(tmp_path / "store", 80)
    pressed = []

    def press(_: mqstore.Progress) -> None:
        if not pressed:
            pressed.append(time.monotonic())
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        mqstore.open(tmp_path / "store", "rw", progress=press)
    assert time.monotonic() - pressed[0] < 2
    with mqstore.open(tmp_path / "store", "rw") as store:
        assert len(list(store.read("orders"))) == 80


def test_what_was_cut_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "store"
    fill(path)
    # The last writer was stopped in the middle of a record.
    (path / "abort").write_text("1")
    segment = max((path / "commitlog").iterdir())
    content = bytearray(segment.read_bytes())
    end = len(bytes(content).rstrip(b"\0"))
    content[end : end + 40] = b"\x00\x00\x01\x00" + b"torn" * 9
    segment.write_bytes(content)
    with pytest.warns(mqstore.StoreWarning, match="cut at byte"):
        mqstore.open(path, "rw").close()
    (kept,) = (path / "mqstore" / "lost+found").iterdir()
    assert kept.read_bytes() == bytes(content[end:]).rstrip(b"\0")
    assert segment.read_bytes()[end:].rstrip(b"\0") == b""
