"""Record bytes in RocketMQ's layout, made by hand: an oracle that is independent of the core.

Source: ``MessageExtEncoder#encode`` (record), ``MessageSysFlag`` (bits), ``CommitLog`` (segments).
"""

from __future__ import annotations

import binascii
import socket
import struct
import zlib
from pathlib import Path

MAGIC_V1 = 0xDAA320A7
MAGIC_V2 = 0xDAA320AB
MAGIC_BLANK = 0xCBD43194

COMPRESSED = 0x1
LZ4, ZSTD, ZLIB = 0x100, 0x200, 0x300


def record(
    offset: int,
    *,
    topic: str = "t",
    queue_id: int = 0,
    queue_offset: int = 0,
    body: bytes = b"body",
    properties: bytes = b"",
    flag: int = 0,
    sys_flag: int = 0,
    born: int = 1_700_000_000_000,
    stored: int = 1_700_000_000_123,
    host: tuple[str, int] = ("127.0.0.1", 10911),
    reconsume: int = 0,
    prepared: int = 0,
) -> bytes:
    """One record for log offset ``offset``."""
    v6 = ":" in host[0]
    if v6:
        sys_flag |= 0x10 | 0x20
    address = socket.inet_pton(socket.AF_INET6 if v6 else socket.AF_INET, host[0]) + struct.pack(">i", host[1])
    name = topic.encode()
    wide = len(topic) > 127
    length = struct.pack(">h", len(name)) if wide else struct.pack(">b", len(name))
    tail = struct.pack(">i", len(body)) + body + length + name + struct.pack(">h", len(properties)) + properties
    crc = binascii.crc32(body) & 0x7FFF_FFFF if body else 0
    middle = struct.pack(
        ">IIiiqqiq", MAGIC_V2 if wide else MAGIC_V1, crc, queue_id, flag, queue_offset, offset, sys_flag, born
    )
    rest = middle + address + struct.pack(">q", stored) + address + struct.pack(">iq", reconsume, prepared) + tail
    return struct.pack(">i", len(rest) + 4) + rest


def properties(**pairs: str) -> bytes:
    """Properties in RocketMQ's text form."""
    return b"".join(f"{name}\x01{value}\x02".encode() for name, value in pairs.items())


def write_log(root: Path, records: list[dict[str, object]], segment_size: int = 64 << 10) -> list[int]:
    """Writes a store that is only one segment with ``records``. Returns their offsets."""
    log = b""
    offsets = []
    for fields in records:
        offsets.append(len(log))
        log += record(len(log), **fields)  # type: ignore[arg-type]
    assert len(log) + 8 <= segment_size
    folder = root / "commitlog"
    folder.mkdir(parents=True)
    (folder / f"{0:020d}").write_bytes(log.ljust(segment_size, b"\0"))
    return offsets


def zlib_body(body: bytes) -> bytes:
    return zlib.compress(body)


def lz4_body(body: bytes) -> bytes:
    """An LZ4 frame with one stored block."""
    assert len(body) < 64 << 10
    header = bytes.fromhex("04224d18604082")
    return header + struct.pack("<I", len(body) | 0x8000_0000) + body + b"\0\0\0\0"


def zstd_body(body: bytes) -> bytes:
    """A zstd frame with one raw block."""
    assert len(body) < 256
    return bytes.fromhex("28b52ffd20") + bytes([len(body)]) + struct.pack("<I", 1 | len(body) << 3)[:3] + body
