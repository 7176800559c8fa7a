"""The table of damages: structure, field, kind of damage, place; and how each is done to a store.

`python tests/python/damage.py` prints `docs/damage.md`.
"""

from __future__ import annotations

import itertools
import shutil
import struct
from dataclasses import dataclass
from pathlib import Path

SEGMENT = 16 << 10
COUNT = 120

# Fields of a record with IPv4 hosts: position and bytes; those behind the body are found in the record.
HEAD = {
    "TOTALSIZE": (0, 4),
    "MAGICCODE": (4, 4),
    "BODYCRC": (8, 4),
    "QUEUEID": (12, 4),
    "FLAG": (16, 4),
    "QUEUEOFFSET": (20, 8),
    "PHYSICALOFFSET": (28, 8),
    "SYSFLAG": (36, 4),
    "BORNTIMESTAMP": (40, 8),
    "BORNHOST": (48, 8),
    "STORETIMESTAMP": (56, 8),
    "STOREHOST": (64, 8),
    "RECONSUMETIMES": (72, 4),
    "PREPAREDTRANSACTIONOFFSET": (76, 8),
    "BODYLEN": (84, 4),
}
TAIL = ("BODY", "TOPICLEN", "TOPIC", "PROPLEN", "PROPERTIES", "CRC32")
QUEUE_ENTRY = {"physical offset": (0, 8), "size": (8, 4), "tags code": (12, 8)}
INDEX_HEADER = {
    "begin time": (0, 8),
    "end time": (8, 8),
    "begin offset": (16, 8),
    "end offset": (24, 8),
    "slot count": (32, 4),
    "entry count": (36, 4),
}
INDEX_ENTRY = {"hash": (0, 4), "physical offset": (4, 8), "time": (12, 4), "previous": (16, 4)}
CHECKPOINT = {
    "physic time": (0, 8),
    "logics time": (8, 8),
    "index time": (16, 8),
    "master flushed": (24, 8),
    "confirm offset": (32, 8),
    "logics offset": (40, 8),
}
KINDS = ("flip", "first bit", "last bit", "zero", "ones", "swap", "duplicate")
WHOLE = ("missing", "empty", "cut", "overlong", "foreign")
FILES = {
    "log segment": ("first", "middle"),
    "queue file": ("first", "last"),
    "index file": ("first", "last"),
    "checkpoint": ("only",),
}


@dataclass(frozen=True)
class Case:
    """One damage."""

    structure: str
    field: str
    kind: str
    place: str

    @property
    def name(self) -> str:
        return f"{self.structure}: {self.field}, {self.kind}, {self.place}"


def cases() -> list[Case]:
    """All of them, in the order of the table."""
    found = [
        Case("record", field, kind, place)
        for field, kind, place in itertools.product((*HEAD, *TAIL), KINDS, ("first", "middle", "before filler"))
    ]
    found += [Case("filler", field, kind, "first") for field in ("size", "magic") for kind in KINDS]
    found += [
        Case("queue entry", field, kind, place)
        for field, kind, place in itertools.product(QUEUE_ENTRY, KINDS, ("first", "middle", "last"))
    ]
    found += [Case("index header", field, kind, "first") for field in INDEX_HEADER for kind in KINDS]
    found += [Case("index slot", "entry", kind, place) for kind in KINDS for place in ("first", "last")]
    found += [
        Case("index entry", field, kind, place)
        for field, kind, place in itertools.product(INDEX_ENTRY, KINDS, ("first", "last"))
    ]
    found += [Case("checkpoint", field, kind, "only") for field in CHECKPOINT for kind in KINDS]
    found += [
        Case(structure, "file", kind, place)
        for structure, places in FILES.items()
        for kind, place in itertools.product(WHOLE, places)
    ]
    return found


UNDETECTABLE: list[tuple[str, str, str | None, str]] = [
    *[
        ("record", "CRC32", kind, "a record whose checksum has lost its name is a record without one")
        for kind in ("ones", "first bit")
    ],
    *[
        ("index header", field, None, "no look-up without a time goes by it")
        for field in ("begin time", "end time", "begin offset", "end offset", "slot count")
    ],
    ("index entry", "time", None, "no look-up without a time goes by it"),
    *[
        ("checkpoint", field, None, "a hint that nothing in the store is beside")
        for field in ("physic time", "logics time", "index time", "master flushed")
    ],
    *[
        ("checkpoint", field, kind, "less than it could say costs time after a crash, and nothing else")
        for field in ("confirm offset", "logics offset")
        for kind in ("zero", "ones", "last bit")
    ],
    *[
        ("checkpoint", "file", kind, "a store without it costs time after a crash, and nothing else")
        for kind in ("missing", "empty", "cut", "overlong")
    ],
    ("log segment", "file", "missing first", "a log without its oldest segments is one whose messages expired"),
]
"""Damages that a check may not find: structure, field, kind or kind and place (None: any), why."""


def may_hide(case: Case) -> str | None:
    """Why a check may not find the damage; None when it must."""
    kinds = (None, case.kind, f"{case.kind} {case.place}")
    for structure, field, kind, reason in UNDETECTABLE:
        if (case.structure, case.field) == (structure, field) and kind in kinds:
            return reason
    return None


@dataclass(frozen=True)
class Base:
    """A store to be damaged, closed, and where its messages lie: log offset and size, in log order."""

    home: Path
    other: Path
    """Another store, for files from elsewhere."""
    records: list[tuple[int, int]]

    def segments(self) -> list[int]:
        return sorted({at // SEGMENT for at, _ in self.records})


def fields_of(data: bytes) -> dict[str, tuple[int, int]]:
    """Where the fields of a record lie."""
    body_len = struct.unpack_from(">i", data, 84)[0]
    topic_at = 88 + body_len
    topic_len = data[topic_at]
    properties_at = topic_at + 1 + topic_len
    properties_len = struct.unpack_from(">h", data, properties_at)[0]
    end = properties_at + 2 + properties_len
    return HEAD | {
        "BODY": (88, body_len),
        "TOPICLEN": (topic_at, 1),
        "TOPIC": (topic_at + 1, topic_len),
        "PROPLEN": (properties_at, 2),
        "PROPERTIES": (properties_at + 2, properties_len - 20),
        "CRC32": (end - 20, 20),
    }


def spoil(file: Path, at: int, size: int, kind: str, *, other: int | None = None) -> bool:
    """Damages `size` bytes at `at`; whether any byte is another one now. `other` is where the same field of another
    such thing lies."""
    data = bytearray(file.read_bytes())
    before = bytes(data)
    old = data[at : at + size]
    there = at + size if other is None else other
    if kind == "flip":
        data[at + size // 2] ^= 0x10
    elif kind == "first bit":
        data[at] ^= 0x80
    elif kind == "last bit":
        data[at + size - 1] ^= 0x01
    elif kind == "zero":
        data[at : at + size] = bytes(size)
    elif kind == "ones":
        data[at : at + size] = b"\xff" * size
    elif kind == "swap":
        data[at : at + size], data[there : there + size] = data[there : there + size], old
    else:
        data[at : at + size] = data[there : there + size]
    assert len(data) == len(before)
    file.write_bytes(data)
    return bytes(data) != before


def apply(case: Case, base: Base, home: Path) -> tuple[bool, set[int]]:
    """Damages the copy of `base` in `home`; whether a byte changed, and the messages that may be lost."""
    if case.field == "file":
        return _whole(case, base, home)
    if case.structure in ("record", "filler"):
        return _log(case, base, home)
    if case.structure == "checkpoint":
        at, size = CHECKPOINT[case.field]
        return spoil(home / "checkpoint", at, size, case.kind, other=(at + 8) % 48), set()
    if case.structure == "queue entry":
        file = min(home.glob("consumequeue/orders/0/*"))
        number = {"first": 0, "middle": 10, "last": 30}[case.place]
        at, size = QUEUE_ENTRY[case.field]
        return spoil(file, number * 20 + at, size, case.kind, other=number * 20 + 20 + at), set()
    file = min(home.glob("index/*"))
    if case.structure == "index header":
        at, size = INDEX_HEADER[case.field]
        return spoil(file, at, size, case.kind), set()
    slots = 64
    if case.structure == "index slot":
        used = [n for n in range(slots) if file.read_bytes()[40 + 4 * n : 44 + 4 * n] != bytes(4)]
        number = used[0] if case.place == "first" else used[-2]
        return spoil(file, 40 + 4 * number, 4, case.kind), set()
    count = struct.unpack_from(">i", file.read_bytes(), 36)[0]
    number = 1 if case.place == "first" else count - 2
    at, size = INDEX_ENTRY[case.field]
    place = 40 + 4 * slots + 20 * number + at
    return spoil(file, place, size, case.kind, other=place + 20), set()


def _log(case: Case, base: Base, home: Path) -> tuple[bool, set[int]]:
    ends = [n for n, (at, _) in enumerate(base.records[:-1]) if base.records[n + 1][0] // SEGMENT != at // SEGMENT]
    number = {"first": 0, "middle": COUNT // 2, "before filler": ends[0]}[case.place]
    if case.structure == "filler":
        at, size = base.records[ends[0]]
        file = home / "commitlog" / f"{at // SEGMENT * SEGMENT:020d}"
        start = (at + size) % SEGMENT + (0 if case.field == "size" else 4)
        other = (at + size) % SEGMENT + (4 if case.field == "size" else 0)
        return spoil(file, start, 4, case.kind, other=other), set()
    # Of two neighbours in one segment; the earlier one where there is no later.
    neighbour = number - 1 if number == ends[0] else number + 1
    (at, size), (there, length) = base.records[number], base.records[neighbour]
    file = home / "commitlog" / f"{at // SEGMENT * SEGMENT:020d}"
    data = file.read_bytes()
    field, width = fields_of(data[at % SEGMENT :][:size])[case.field]
    other, other_width = fields_of(data[there % SEGMENT :][:length])[case.field]
    changed = spoil(file, at % SEGMENT + field, min(width, other_width), case.kind, other=there % SEGMENT + other)
    return changed, {number, neighbour} if case.kind == "swap" else {number}


def _whole(case: Case, base: Base, home: Path) -> tuple[bool, set[int]]:
    pattern = {
        "log segment": "commitlog/*",
        "queue file": "consumequeue/orders/0/*",
        "index file": "index/*",
        "checkpoint": "checkpoint",
    }[case.structure]
    files = sorted(home.glob(pattern))
    number = {"first": 0, "only": 0, "middle": 1, "last": len(files) - 1}[case.place]
    file = files[number]
    before = file.read_bytes()
    if case.kind == "missing":
        file.unlink()
    elif case.kind == "empty":
        file.write_bytes(b"")
    elif case.kind == "cut":
        file.write_bytes(before[: len(before) // 3])
    elif case.kind == "overlong":
        file.write_bytes(before + b"and more")
    else:
        theirs = sorted(base.other.glob(pattern))
        shutil.copy(theirs[min(number, len(theirs) - 1)], file)
    lost: set[int] = set()
    if case.structure == "log segment" and case.kind != "overlong":
        lost = {n for n, (at, _) in enumerate(base.records) if at // SEGMENT == base.segments()[number]}
    return not file.exists() or file.read_bytes() != before, lost


def page() -> str:
    """The content of `docs/damage.md`."""
    lines = [
        "# Damages that are tried",
        "",
        f"Each of these {len(cases())} damages is done to a store of its own. `verify` finds it, or the last column",
        "says why it need not; `repair` saves every message that was not hit, its result verifies clean, and a second",
        "repair changes nothing. Where the bytes happen to be those already, `verify` finds nothing.",
        "This page is made by `tests/python/damage.py`; a test sees that it is current.",
        "",
        "Kinds: `flip` a bit in the middle, the `first bit`, the `last bit`, `zero`, `ones`, `swap` with the same",
        "field of its neighbour, `duplicate` of that field; of whole files `missing`, `empty`, `cut` to a third,",
        "`overlong`, `foreign` (from another store).",
        "",
        "| Structure | Field | Kinds | Places | May go unnoticed because |",
        "|---|---|---|---|---|",
    ]
    for (structure, field), group in itertools.groupby(cases(), key=lambda case: (case.structure, case.field)):
        every = list(group)
        kinds = list(dict.fromkeys(case.kind for case in every))
        places = list(dict.fromkeys(case.place for case in every))
        hidden = [case for case in every if may_hide(case)]
        reasons = list(dict.fromkeys(may_hide(case) or "" for case in hidden))
        text = "; ".join(reasons)
        if hidden and len(hidden) < len(every):
            of = ["; ".join(dict.fromkeys(c.kind for c in hidden if may_hide(c) == reason)) for reason in reasons]
            text = "; ".join(f"`{kind}`: {reason}" for kind, reason in zip(of, reasons, strict=True))
        lines.append(f"| {structure} | {field} | {', '.join(kinds)} | {', '.join(places)} | {text} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(page(), end="")
