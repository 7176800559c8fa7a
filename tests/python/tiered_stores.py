"""Tiered stores as RocketMQ's POSIX provider leaves them, made from plain stores that mqstore wrote.

The bytes are made by hand, so this is an oracle that is independent of the core.

Source: ``MessageStoreUtil`` (names), ``CommitLogInputStream`` (physical offset), ``FlatAppendFile`` (rolling).
"""

from __future__ import annotations

import hashlib
import shutil
import struct
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from dledger_stores import records_of

if TYPE_CHECKING:
    from collections.abc import Mapping

UNIT = struct.Struct(">qiq")
CODA = struct.pack(">iIq", 16, 0xCBD43194, 1_758_000_000_000)
"""What RocketMQ 5.1 and 5.2 write at the end of a full file."""


def digits(text: str) -> str:
    """Returns the first eight digits of the MD5 of a text."""
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()[:8]


def file_name(offset: int) -> str:
    """Returns the name of the file that begins at an offset."""
    return f"{digits(str(offset))}{offset:020}"


@dataclass
class Record:
    """A record of a queue: its bytes in a plain store, and its unit."""

    topic: str
    queue_id: int
    queue_offset: int
    data: bytes
    tags_code: int


@dataclass
class Tier:
    """The files of one broker."""

    root: Path
    cluster: str = "DefaultCluster"
    broker: str = "broker-a"
    log_bytes: int = 8 << 10
    units: int = 40
    coda: bool = False
    starts: dict[tuple[str, int], int] = field(default_factory=dict)
    """The queue offset of the first record of each queue."""

    @property
    def folder(self) -> Path:
        """The folder of the broker."""
        return self.root / f"{digits(self.cluster)}_{self.cluster}" / self.broker

    def files(self, topic: str, queue_id: int, kind: str = "COMMIT_LOG") -> list[Path]:
        """Returns the files of one kind of a queue, in order."""
        found = (self.folder / topic / str(queue_id) / kind).iterdir()
        return sorted(found, key=lambda path: int(path.name[8:]))

    def write(self, records: list[Record]) -> None:
        """Writes the files of one queue."""
        if not records:
            return
        topic, queue_id = records[0].topic, records[0].queue_id
        first = self.starts.setdefault((topic, queue_id), records[0].queue_offset)
        logs, at, base, current = {}, 0, 0, b""
        units = {}
        for number, record in enumerate(records):
            if len(current) + len(record.data) + (len(CODA) if self.coda else 0) > self.log_bytes:
                current += CODA if self.coda else b""
                logs[base] = current
                base, current = base + len(current), b""
            at = base + len(current)
            current += record.data[:28] + struct.pack(">q", at) + record.data[36:]
            unit_base = (first + number // self.units * self.units) * UNIT.size
            units.setdefault(unit_base, bytearray())
            units[unit_base] += UNIT.pack(at, len(record.data), record.tags_code)
        logs[base] = current
        home = self.folder / topic / str(queue_id)
        for kind, parts in (("COMMIT_LOG", logs), ("CONSUME_QUEUE", units)):
            (home / kind).mkdir(parents=True)
            for offset, data in parts.items():
                (home / kind / file_name(offset)).write_bytes(data)


def records(store: Path) -> dict[tuple[str, int], list[Record]]:
    """Returns the records in the queues of a plain store, in the order of each queue."""
    by_offset = dict(records_of(store))
    found: dict[tuple[str, int], list[Record]] = {}
    for folder in sorted((store / "consumequeue").glob("*/*")):
        topic, queue_id = folder.parent.name, int(folder.name)
        for path in sorted(folder.iterdir()):
            data = path.read_bytes()
            for at in range(0, len(data), UNIT.size):
                offset, size, code = UNIT.unpack_from(data, at)
                if 0 < size < 2**31 - 1:
                    number = (int(path.name) + at) // UNIT.size
                    record = Record(topic, queue_id, number, by_offset[offset], code)
                    found.setdefault((topic, queue_id), []).append(record)
    return found


def convert(store: Path, tier: Tier, skip: Mapping[tuple[str, int], int] | None = None) -> Tier:
    """Writes the queues of a plain store, each without its first messages according to `skip`."""
    shutil.rmtree(tier.root, ignore_errors=True)
    for queue, found in records(store).items():
        tier.write(found[(skip or {}).get(queue, 0) :])
    return tier
