"""An independent reader of RocketMQ's files in plain Python, which shares no code with the other readers.

The suite compares mqstore with the Java driver. This module compares the driver with the bytes on disk.
"""

from __future__ import annotations

import ipaddress
import struct
import zlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

V1, V2, BLANK = 0xDAA320A7, 0xDAA320AB, 0xCBD43194
CRC_PROPERTY = b"__CRC32#\x01"


def records(store: Path) -> Iterator[dict[str, Any]]:
    """Yield the records of a commit log, field by field, up to the first place without a record."""
    for segment in sorted((store / "commitlog").iterdir()):
        data = segment.read_bytes()
        base, at = int(segment.name), 0
        while at + 8 <= len(data):
            size, magic = struct.unpack_from(">II", data, at)
            if magic not in (V1, V2):
                break
            yield _record(data[at : at + size], magic, base + at)
            at += size
        if at + 8 > len(data) or struct.unpack_from(">I", data, at + 4)[0] != BLANK:
            return


def _record(record: bytes, magic: int, position: int) -> dict[str, Any]:
    names = ("queue_id", "flag", "queue_offset", "commit_log_offset", "sys_flag", "born_timestamp")
    fields: dict[str, Any] = dict(zip(names, struct.unpack_from(">iiqqiq", record, 12), strict=True))
    fields["size"] = len(record)
    fields["body_crc"] = struct.unpack_from(">i", record, 8)[0]
    at = 48
    fields["born_host"], at = _host(record, at, v6=bool(fields["sys_flag"] & 0x10))
    fields["store_timestamp"] = struct.unpack_from(">q", record, at)[0]
    fields["store_host"], at = _host(record, at + 8, v6=bool(fields["sys_flag"] & 0x20))
    rest = struct.unpack_from(">iqi", record, at)
    fields["reconsume_times"], fields["prepared_transaction_offset"], body_size = rest
    body = record[at + 16 : at + 16 + body_size]
    at += 16 + body_size
    width = 1 if magic == V1 else 2
    topic_size = int.from_bytes(record[at : at + width], "big")
    fields["topic"] = record[at + width : at + width + topic_size].decode()
    at += width + topic_size
    assert at + 2 + int.from_bytes(record[at : at + 2], "big") == len(record), "lengths do not add up"
    text = record[at + 2 :]
    fields["body"] = body
    fields["properties"] = properties(text)
    assert fields["commit_log_offset"] == position, "the record is not where it says"
    assert fields["body_crc"] == crc(body), "wrong body CRC"
    if CRC_PROPERTY in text:
        digits = record[-11:-1].decode()[::-1]
        assert int(digits) == crc(record[:-20]), "wrong record CRC"
    return fields


def crc(data: bytes) -> int:
    """Return RocketMQ's CRC: CRC-32 without its top bit."""
    return zlib.crc32(data) & 0x7FFFFFFF


def properties(text: bytes) -> dict[str, str]:
    """Decode a property string by the rules of `MessageDecoder#string2messageProperties`."""
    found = {}
    for part in text.decode().split("\x02"):
        name, separator, value = part.partition("\x01")
        if separator and name and value:
            found[name] = value
    return found


def _host(record: bytes, at: int, *, v6: bool) -> tuple[str, int]:
    length = 16 if v6 else 4
    ip = ipaddress.ip_address(record[at : at + length])
    port = struct.unpack_from(">i", record, at + length)[0]
    return (f"[{ip}]:{port}" if v6 else f"{ip}:{port}"), at + length + 4


def queue_units(store: Path, topic: str, queue_id: int) -> list[tuple[int, int, int]]:
    """Return the units (physical offset, size, tags code) of a consume queue up to the first empty one."""
    units: list[tuple[int, int, int]] = []
    for file in sorted((store / "consumequeue" / topic / str(queue_id)).iterdir()):
        for unit in struct.iter_unpack(">qiq", file.read_bytes()):
            if unit[1] <= 0:
                return units
            units.append((unit[0], unit[1], unit[2]))
    return units
