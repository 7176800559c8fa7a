"""Damage that is done to the files of a closed store: what disks, kills and people leave.

Each function does one damage to a directory and says what it changed. For tests of programs that have to notice it, and
for drills: `mqstore.verify` names what was done, `mqstore.repair` makes the best of it.

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
    "Damage",
    "cut_file",
    "flip_bit",
    "flip_body_bit",
    "lose_index",
    "lose_queue",
    "tear_tail",
    "write_bytes",
]

# Bytes of a record before its body: the fixed fields, and two hosts of eight bytes, or twenty where they are IPv6.
_FIXED = 88
_MORE_OF_IPV6 = 12
_BORN_HOST_IPV6, _STORE_HOST_IPV6 = 1 << 4, 1 << 5

_SIZE_AND_MAGIC = 8


@dataclass(frozen=True, slots=True)
class Damage:
    """One damage that was done."""

    path: Path
    """The file that was changed, or the file or folder that is gone."""
    offset: int
    """The first byte of the file that was changed; 0 of what is gone."""
    size: int
    """How many bytes were changed or cut off; 0 of what is gone."""


def write_bytes(path: StorePath, file: str, offset: int, content: bytes) -> Damage:
    """Writes `content` over what is there.

    Args:
        path: the directory of a store that nobody has open for writing.
        file: a file in it, `commitlog/00000000000000000000` for one.
        offset: the first byte that changes. All of them have to be there.
        content: the bytes.

    Raises:
        ValueError: the file ends before.
        StoreLockedError: a writer has the store open.
    """
    return _write(_closed(path) / file, offset, content)


def flip_bit(path: StorePath, file: str, offset: int, bit: int = 0) -> Damage:
    """Flips one bit, as a disk does.

    Args:
        path: the directory of a store that nobody has open for writing.
        file: a file in it.
        offset: the byte.
        bit: the bit of it; 0 is the lowest.

    Raises:
        ValueError: the file ends before, or there is no such bit.
        StoreLockedError: a writer has the store open.
    """
    if not 0 <= bit < 8:
        msg = f"bit must be 0 to 7, not {bit}"
        raise ValueError(msg)
    return _flip(_closed(path) / file, offset, bit)


def flip_body_bit(path: StorePath, message: StoredMessage, bit: int = 0) -> Damage:
    """Flips one bit of the body of a message; its checksums do not hold any more.

    Args:
        path: the directory of a store that nobody has open for writing.
        message: one that was read from it.
        bit: the bit of the body, from the lowest of its first byte on.

    Raises:
        ValueError: the body has no such bit, or the segment that it is in is not there.
        StoreLockedError: a writer has the store open.
    """
    if not 0 <= bit < 8 * message.body_view.nbytes:
        msg = f"the stored body has {8 * message.body_view.nbytes} bits, and no bit {bit}"
        raise ValueError(msg)
    segment, offset = _place(_closed(path), message)
    more = sum(_MORE_OF_IPV6 for flag in (_BORN_HOST_IPV6, _STORE_HOST_IPV6) if message.sys_flag & flag)
    return _flip(segment, offset + _FIXED + more + bit // 8, bit % 8)


def tear_tail(path: StorePath, keep: int | None = None) -> Damage:
    """Leaves the first bytes of the last record and zeros behind them, as a loss of power in the middle of a write.

    The store looks as if it was killed then, and what it notes about syncs is gone: the next open cuts the record off,
    and copies what it cuts to `mqstore/lost+found`.

    Args:
        path: the directory of a store that nobody has open for writing.
        keep: how many bytes of the record stay; None is half of them. At least its size and its magic number do.

    Raises:
        ValueError: there is no record, or `keep` is no part of it.
        StoreLockedError: a writer has the store open.
    """
    home = _closed(path)
    with mqstore.open(home) as store:
        newest = deque(store._scan_log(), maxlen=1)
    if not newest:
        msg = f"{home} has no message"
        raise ValueError(msg)
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
    """Cuts a file, as a copy does that ended early.

    Args:
        path: the directory of a store that nobody has open for writing.
        file: a file in it.
        size: how many bytes are left.

    Raises:
        ValueError: the file is no longer than that.
        StoreLockedError: a writer has the store open.
    """
    whole = _closed(path) / file
    length = whole.stat().st_size
    if not 0 <= size < length:
        msg = f"size must be at least 0 and less than {length}, the size of {whole}, not {size}"
        raise ValueError(msg)
    with whole.open("r+b") as opened:
        opened.truncate(size)
    return Damage(whole, size, length - size)


def lose_queue(path: StorePath, topic: str, queue_id: int | None = None) -> Damage:
    """Loses the files of a consume queue.

    Args:
        path: the directory of a store that nobody has open for writing.
        topic: the topic.
        queue_id: the queue; None is all queues of the topic.

    Raises:
        FileNotFoundError: there is no such queue.
        StoreLockedError: a writer has the store open.
    """
    queues = _closed(path) / "consumequeue" / topic
    return _lose(queues if queue_id is None else queues / str(queue_id))


def lose_index(path: StorePath) -> Damage:
    """Loses the key index.

    Args:
        path: the directory of a store that nobody has open for writing.

    Raises:
        FileNotFoundError: there is none.
        StoreLockedError: a writer has the store open.
    """
    return _lose(_closed(path) / "index")


def _closed(path: StorePath) -> Path:
    info = mqstore.info(path)
    if info.locked:
        raise mqstore.StoreLockedError(str(path), info.writer_pid)
    return Path(path)


def _place(home: Path, message: StoredMessage) -> tuple[Path, int]:
    """The segment of a message, and where in it the message begins."""
    size = mqstore.info(home).segment_size
    start = message.commit_log_offset // size * size
    segment = home / "commitlog" / f"{start:020}"
    if not segment.is_file():
        msg = f"there is no segment {segment}"
        raise ValueError(msg)
    return segment, message.commit_log_offset - start


def _flip(file: Path, offset: int, bit: int) -> Damage:
    with file.open("rb") as opened:
        opened.seek(max(offset, 0))
        found = opened.read(1)
    return _write(file, offset, bytes(byte ^ 1 << bit for byte in found) or b"\0")


def _write(file: Path, offset: int, content: bytes) -> Damage:
    if offset < 0 or offset + len(content) > file.stat().st_size:
        msg = f"{file} has no {len(content)} bytes at {offset}"
        raise ValueError(msg)
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
