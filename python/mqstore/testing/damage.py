"""Damage to the files of a closed store, as disks, kills and people cause it.

Each function damages a directory in one way and returns what it changed. Use it in tests of programs that must detect
damage, and for exercises: `mqstore.verify` names the damage, `mqstore.repair` repairs it as far as possible.

::

    from mqstore.testing import damage

    damage.flip_body_bit("data", message)
    assert not mqstore.verify("data").ok
"""

from __future__ import annotations

import shutil
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import mqstore

if TYPE_CHECKING:
    from mqstore._native import StoredMessage
    from mqstore.types import StorePath

__all__ = [
    "Damage", "cut_file", "flip_bit", "flip_body_bit", "lose_index", "lose_queue", "tear_tail", "write_bytes",
]  # fmt: skip

# Bytes of a record before its body: fixed fields and two hosts, each of 8 bytes, or 20 bytes for IPv6.
_FIXED = 88
_MORE_OF_IPV6 = 12
_BORN_HOST_IPV6, _STORE_HOST_IPV6 = 1 << 4, 1 << 5

_SIZE_AND_MAGIC = 8


@dataclass(frozen=True, slots=True)
class Damage:
    """One change that was made."""

    path: Path
    """Changed file, or removed file or folder."""
    offset: int
    """First changed byte of the file; 0 for a removed file."""
    size: int
    """Number of bytes changed or cut off; 0 for a removed file."""


def write_bytes(path: StorePath, file: str, offset: int, content: bytes) -> Damage:
    """Overwrites bytes of a file with `content`.

    Args:
        path: directory of a store that no process has open for writing.
        file: a file in it, for example `commitlog/00000000000000000000`.
        offset: first byte to change. The file must be long enough for all bytes.
        content: the new bytes.

    Raises:
        ValueError: the file is too short.
        StoreLockedError: a writer has the store open.
    """
    return _write(_closed(path) / file, offset, content)


def flip_bit(path: StorePath, file: str, offset: int, bit: int = 0) -> Damage:
    """Flips one bit, as a faulty disk does.

    Args:
        path: directory of a store that no process has open for writing.
        file: a file in it.
        offset: the byte.
        bit: bit of the byte; 0 is the lowest.

    Raises:
        ValueError: the file is too short, or `bit` is not 0 to 7.
        StoreLockedError: a writer has the store open.
    """
    if not 0 <= bit < 8:
        raise ValueError(f"bit must be 0 to 7, not {bit}")
    return _flip(_closed(path) / file, offset, bit)


def flip_body_bit(path: StorePath, message: StoredMessage, bit: int = 0) -> Damage:
    """Flips one bit in the body of a message, so that its checksums are wrong.

    Args:
        path: directory of a store that no process has open for writing.
        message: a message that was read from it.
        bit: bit of the body, counted from the lowest bit of its first byte.

    Raises:
        ValueError: the body has no such bit, or the segment of the message does not exist.
        StoreLockedError: a writer has the store open.
    """
    if not 0 <= bit < 8 * message.body_view.nbytes:
        raise ValueError(f"the stored body has {8 * message.body_view.nbytes} bits, and no bit {bit}")
    segment, offset = _place(_closed(path), message)
    more = sum(_MORE_OF_IPV6 for flag in (_BORN_HOST_IPV6, _STORE_HOST_IPV6) if message.sys_flag & flag)
    return _flip(segment, offset + _FIXED + more + bit // 8, bit % 8)


def tear_tail(path: StorePath, keep: int | None = None) -> Damage:
    """Keeps the first bytes of the last record and zeros the rest, as a power loss during a write does.

    The store then looks as after a kill, without durable mark. The next open truncates the record, and copies the
    truncated bytes to `mqstore/lost+found`.

    Args:
        path: directory of a store that no process has open for writing.
        keep: number of bytes of the record to keep, at least its size and magic number; None is half of the record.

    Raises:
        ValueError: there is no record, or `keep` is out of bounds.
        StoreLockedError: a writer has the store open.
    """
    home = _closed(path)
    with mqstore.open(home) as store:
        newest = deque(store._scan_log(), maxlen=1)
    if not newest:
        raise ValueError(f"{home} has no message")
    last = newest[0]
    keep = last.size // 2 if keep is None else keep
    if not _SIZE_AND_MAGIC <= keep < last.size:
        msg = f"keep must be at least {_SIZE_AND_MAGIC} and less than {last.size}, the size of the record, not {keep}"
        raise ValueError(msg)
    segment, offset = _place(home, last)
    done = _write(segment, offset + keep, bytes(last.size - keep))
    (home / "abort").touch()
    for mark in (home / "mqstore").glob("state*"):
        mark.unlink()
    return done


def cut_file(path: StorePath, file: str, size: int) -> Damage:
    """Cuts a file, as an incomplete copy does.

    Args:
        path: directory of a store that no process has open for writing.
        file: a file in it.
        size: new length of the file in bytes.

    Raises:
        ValueError: `size` is negative, or not smaller than the length of the file.
        StoreLockedError: a writer has the store open.
    """
    whole = _closed(path) / file
    length = whole.stat().st_size
    if not 0 <= size < length:
        raise ValueError(f"size must be at least 0 and less than {length}, the size of {whole}, not {size}")
    with whole.open("r+b") as opened:
        opened.truncate(size)
    return Damage(whole, size, length - size)


def lose_queue(path: StorePath, topic: str, queue_id: int | None = None) -> Damage:
    """Removes the files of a consume queue.

    Args:
        path: directory of a store that no process has open for writing.
        topic: name of the topic.
        queue_id: id of the queue; None is all queues of the topic.

    Raises:
        FileNotFoundError: no such queue.
        StoreLockedError: a writer has the store open.
    """
    queues = _closed(path) / "consumequeue" / topic
    return _lose(queues if queue_id is None else queues / str(queue_id))


def lose_index(path: StorePath) -> Damage:
    """Removes the key index.

    Args:
        path: directory of a store that no process has open for writing.

    Raises:
        FileNotFoundError: there is no index.
        StoreLockedError: a writer has the store open.
    """
    return _lose(_closed(path) / "index")


def _closed(path: StorePath) -> Path:
    info = mqstore.info(path)
    if info.locked:
        raise mqstore.StoreLockedError(str(path), info.writer_pid)
    return Path(path)


def _place(home: Path, message: StoredMessage) -> tuple[Path, int]:
    """Returns the segment of a message, and the offset of the message in it."""
    size = mqstore.info(home).segment_size
    start = message.commit_log_offset // size * size
    segment = home / "commitlog" / f"{start:020}"
    if not segment.is_file():
        raise ValueError(f"there is no segment {segment}")
    return segment, message.commit_log_offset - start


def _flip(file: Path, offset: int, bit: int) -> Damage:
    with file.open("rb") as opened:
        opened.seek(max(offset, 0))
        found = opened.read(1)
    return _write(file, offset, bytes(byte ^ 1 << bit for byte in found) or b"\0")


def _write(file: Path, offset: int, content: bytes) -> Damage:
    if offset < 0 or offset + len(content) > file.stat().st_size:
        raise ValueError(f"{file} does not have {len(content)} bytes at offset {offset}")
    with file.open("r+b") as opened:
        opened.seek(offset)
        opened.write(content)
    return Damage(file, offset, len(content))


def _lose(lost: Path) -> Damage:
    if lost.is_dir():
        shutil.rmtree(lost)
    else:
        lost.unlink()
    return Damage(lost, 0, 0)
