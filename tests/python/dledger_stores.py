"""Directories as a broker with DLedger leaves them, made from plain stores that mqstore wrote.

The bytes are made by hand, so this is an oracle that is independent of the core.

Source: ``DLedgerEntryCoder`` (header), ``DLedgerIndexEntryCoder`` (unit), ``MmapFileList#preAppend`` (blank).
"""

from __future__ import annotations

import shutil
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import mqstore
from rocketmq_bytes import MAGIC_BLANK, MAGIC_V1, MAGIC_V2

if TYPE_CHECKING:
    from collections.abc import Callable, Collection
    from pathlib import Path

HEADER = struct.Struct(">iiqqqiiii")
UNIT = struct.Struct(">iqiqq")
NORMAL, NOOP = 1, 2

INDEX_FILE_BYTES = 32 << 10
"""Bytes of an index file. DLedger's have 160 MiB, almost all of them a hole."""

GEOMETRY = mqstore.StoreOptions(
    segment_size=16 << 10, queue_file_entries=64, index_slots=97, index_entries=4000, record_crc=False
)
"""Options of the plain stores. DLedger's encoder adds no checksum of the whole record."""


def fill(store: mqstore.Store) -> None:
    """Appends 150 messages in three queues of "orders", and 30 in "events"."""
    store.create_topic("orders", queues=3)
    for number in range(180):
        if number % 6 == 5:
            store.append("events", bytes([number]) * 50, tags="tick")
        else:
            store.append(
                "orders",
                f"body {number} ".encode() * 30,
                keys=[f"k{number}", "all"],
                tags="paid" if number % 2 else "open",
                queue_id=number % 3,
            )


@dataclass
class Entry:
    """A Raft entry of a directory."""

    index: int
    term: int
    position: int
    record: bytes

    @property
    def size(self) -> int:
        """Bytes of header and record."""
        return HEADER.size + len(self.record)


@dataclass
class Member:
    """The files of one member of a DLedger group."""

    root: Path
    id: str
    file_size: int
    entries: list[Entry] = field(default_factory=list)

    @property
    def folder(self) -> Path:
        """The folder of the member."""
        return self.root / f"dledger-{self.id}"

    @property
    def data(self) -> list[Path]:
        """The data files, in order."""
        return sorted((self.folder / "data").iterdir())

    def place(self, position: int) -> tuple[Path, int]:
        """Returns the data file with a log offset, and the offset in it."""
        base = self.data[0].name
        first = (position - int(base)) // self.file_size * self.file_size + int(base)
        return self.folder / "data" / f"{first:020}", position - first

    def write(self, position: int, data: bytes) -> None:
        """Writes bytes at a log offset."""
        path, at = self.place(position)
        with path.open("r+b") as file:
            file.seek(at)
            file.write(data)

    def read(self, position: int, size: int) -> bytes:
        """Reads bytes at a log offset."""
        path, at = self.place(position)
        return path.read_bytes()[at : at + size]

    def header_of(self, entry: Entry) -> bytes:
        """Returns the bytes of an entry's header."""
        magic = NORMAL if entry.record else NOOP
        return HEADER.pack(magic, entry.size, entry.index, entry.term, entry.position, 0, 0, 0, len(entry.record))

    def write_checkpoint(self, committed: int) -> None:
        """Writes DLedger's checkpoint."""
        text = f"#Fri Sep 19 17:25:40 CST 2025\ncommittedIndex={committed}\nendIndex={self.entries[-1].index}\n"
        (self.folder / "checkpoint").write_text(text)

    def append(self, record: bytes, term: int, index: int | None = None) -> Entry:
        """Adds one entry at the end, with a blank before it if the file is full; an empty record makes a NOOP."""
        last = self.entries[-1] if self.entries else None
        position = last.position + last.size if last else int(self.data[0].name)
        size = HEADER.size + len(record)
        first = int(self.data[0].name)
        free = self.file_size - (position - first) % self.file_size
        if size + 8 > free:
            self.write(position, struct.pack(">ii", -1, free) + bytes(free - 8))
            position += free
            _make_file(self.folder / "data" / f"{position:020}", self.file_size)
        if record:
            record = record[:28] + struct.pack(">q", position + HEADER.size) + record[36:]
        entry = Entry(len(self.entries) if index is None else index, term, position, record)
        self.entries.append(entry)
        self.write(position, self.header_of(entry) + record)
        unit = UNIT.pack(NORMAL, position, size, entry.index, term)
        at = entry.index * UNIT.size
        path = self.folder / "index" / f"{at // INDEX_FILE_BYTES * INDEX_FILE_BYTES:020}"
        if not path.exists():
            _make_file(path, INDEX_FILE_BYTES)
        with path.open("r+b") as file:
            file.seek(at % INDEX_FILE_BYTES)
            file.write(unit)
        return entry


def _make_file(path: Path, size: int) -> None:
    with path.open("wb") as file:
        file.truncate(size)


def records_of(store: Path) -> list[tuple[int, bytes]]:
    """Returns the records of a plain store, with their log offsets."""
    found = []
    for path in sorted((store / "commitlog").iterdir()):
        data = path.read_bytes()
        at = 0
        while at + 8 <= len(data):
            size, magic = struct.unpack_from(">iI", data, at)
            if magic not in (MAGIC_V1, MAGIC_V2):
                break
            found.append((int(path.name) + at, data[at : at + size]))
            at += size
    return found


def convert(
    store: Path,
    root: Path,
    *,
    split: int = 0,
    file_size: int = 16 << 10,
    term_of: Callable[[int], int] = lambda _index: 0,
    noops: Collection[int] = (),
    member_id: str = "n0",
    base: int = 0,
) -> Member:
    """Makes the directory of a broker with DLedger from a closed plain store.

    Args:
        store: a store with `GEOMETRY`.
        root: the new directory.
        split: number of records that stay in `commitlog`, as before an upgrade.
        file_size: bytes of a data file.
        term_of: the term of the entry with this index.
        noops: indexes of entries without a record.
        member_id: id of the member.
        base: log offset of the first data file, for a directory without `split`.
    """
    records = records_of(store)
    places = {offset: offset for offset, _ in records[:split]}
    (root / "commitlog").mkdir(parents=True)
    if split:
        last, record = records[split - 1]
        segment = int(GEOMETRY.segment_size)
        for path in sorted((store / "commitlog").iterdir()):
            if int(path.name) <= last:
                shutil.copy(path, root / "commitlog")
        base = (last // segment + 1) * segment
        end = last + len(record)
        tail = root / "commitlog" / f"{base - segment:020}"
        with tail.open("r+b") as file:
            file.seek(end % segment)
            file.write(struct.pack(">iI", base - end, MAGIC_BLANK) + bytes(base - end - 8))
    member = Member(root, member_id, file_size)
    (member.folder / "data").mkdir(parents=True)
    (member.folder / "index").mkdir()
    _make_file(member.folder / "data" / f"{base:020}", file_size)
    for offset, record in records[split:]:
        while len(member.entries) in noops:
            member.append(b"", term_of(len(member.entries)))
        places[offset] = member.append(record, term_of(len(member.entries))).position + HEADER.size
    while len(member.entries) in noops:
        member.append(b"", term_of(len(member.entries)))
    if member.entries:
        member.write_checkpoint(member.entries[-1].index)
    (member.folder / "currterm").write_text(f"#date\ncurrTerm={term_of(len(member.entries))}\nvoteLeader=\n")
    _copy_queues(store, root, places)
    _copy_index(store, root, places)
    shutil.copytree(store / "config", root / "config")
    return member


def _copy_queues(store: Path, root: Path, places: dict[int, int]) -> None:
    shutil.copytree(store / "consumequeue", root / "consumequeue")
    for path in (root / "consumequeue").rglob("0*"):
        if path.is_file():
            data = bytearray(path.read_bytes())
            for at in range(0, len(data), 20):
                offset, size = struct.unpack_from(">qi", data, at)
                if 0 < size < 2**31 - 1:
                    struct.pack_into(">q", data, at, places[offset])
            path.write_bytes(data)


def _copy_index(store: Path, root: Path, places: dict[int, int]) -> None:
    shutil.copytree(store / "index", root / "index")
    slots = int(GEOMETRY.index_slots)
    for path in (root / "index").iterdir():
        data = bytearray(path.read_bytes())
        (count,) = struct.unpack_from(">i", data, 36)
        for at in (16, 24, *(44 + 4 * slots + 20 * number for number in range(1, count))):
            (offset,) = struct.unpack_from(">q", data, at)
            struct.pack_into(">q", data, at, places[offset])
        path.write_bytes(data)
