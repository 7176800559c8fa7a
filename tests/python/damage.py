"""The table of damages (structure, field, kind of damage, place), and how to do each one to a store.

`python tests/python/damage.py` prints `tests/python/DAMAGE.md`.
"""

from __future__ import annotations

import itertools
import shutil
import struct
from dataclasses import dataclass
from pathlib import Path

SEGMENT = 16 << 10
COUNT = 120

# Fields of a record with IPv4 hosts: position and length. The fields after the body are found in the record.
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
BATCH_UNIT = {
    "physical offset": (0, 8),
    "size": (8, 4),
    "tags code": (12, 8),
    "store time": (20, 8),
    "base offset": (28, 8),
    "messages": (36, 2),
    "compacted offset": (38, 4),
    "reserved": (42, 4),
}
MARK = {
    "magic": (0, 8),
    "version": (8, 4),
    "flags": (12, 4),
    "sequence": (16, 8),
    "position": (24, 8),
    "last offset": (32, 8),
    "last size": (40, 4),
    "last checksum": (44, 4),
    "dispatched": (48, 8),
    "segment length": (56, 8),
    "store time": (96, 8),
    "checksum": (124, 4),
}
ALONE = ("flip", "first bit", "last bit", "zero", "ones", "more", "less", "inverted", "negated", "reversed", "shifted")
"""Kinds of damage that need no neighbour."""
KINDS = (*ALONE, "swap", "duplicate")
SELDOM = ("more", "less", "inverted", "negated", "reversed", "shifted")
"""Kinds that are tried at one place of a field."""
WHOLE = ("missing", "empty", "cut", "overlong", "foreign")
FILES = {
    "log segment": ("first", "middle"),
    "queue file": ("first", "last"),
    "index file": ("first", "last"),
    "batch queue file": ("only",),
    "checkpoint": ("only",),
    "durable mark": ("newest", "older"),
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


SAME: list[tuple[str, str, str, str]] = [
    ("record", "QUEUEID", "zero, inverted, negated, reversed, shifted, duplicate", ""),
    ("record", "FLAG", "zero, duplicate", "first"),
    ("record", "QUEUEOFFSET", "zero, duplicate", "first"),
    ("record", "PHYSICALOFFSET", "zero", "first"),
    ("record", "SYSFLAG", "zero, inverted, negated, reversed, shifted", ""),
    ("record", "BORNHOST", "swap, duplicate", ""),
    ("record", "STOREHOST", "swap, duplicate", ""),
    ("record", "RECONSUMETIMES", "zero, inverted, negated, reversed, shifted, swap, duplicate", ""),
    ("record", "PREPAREDTRANSACTIONOFFSET", "zero, inverted, negated, reversed, shifted, swap, duplicate", ""),
    ("record", "TOPICLEN", "reversed, shifted", ""),
    ("record", "TOPICLEN", "duplicate", "middle, before filler"),
    ("record", "TOPIC", "swap, duplicate", ""),
    ("record", "PROPLEN", "shifted", ""),
    ("filler", "magic", "swap", ""),
    ("queue entry", "tags code", "duplicate", "first, last"),
    ("batch unit", "tags code", "duplicate", ""),
    ("batch unit", "base offset", "duplicate", ""),
    ("batch unit", "messages", "zero, inverted, negated, shifted", ""),
    ("batch unit", "compacted offset", "ones, inverted, reversed, swap, duplicate", ""),
    ("batch unit", "reserved", "zero, inverted, negated, reversed, shifted, swap, duplicate", ""),
    ("index header", "end time", "duplicate", ""),
    ("index header", "begin offset", "zero, inverted, negated, reversed, shifted", ""),
    ("index entry", "physical offset", "zero, swap, duplicate", "first"),
    ("index entry", "time", "less, zero, inverted, negated, swap, duplicate", ""),
    ("index entry", "previous", "zero, swap, duplicate", "first"),
    ("checkpoint", "physic time", "swap, duplicate", ""),
    ("checkpoint", "index time", "duplicate", ""),
    ("checkpoint", "master flushed", "zero, inverted, negated, reversed, shifted", ""),
    ("checkpoint", "confirm offset", "swap, duplicate", ""),
    ("durable mark", "version", "less, duplicate", ""),
    ("durable mark", "flags", "zero, inverted, negated, swap, duplicate", ""),
    ("durable mark", "last size", "duplicate", ""),
]
"""Damages that would change nothing, or the same as an earlier case: structure, field, kinds, places (empty: all)."""


SAME_OF_ROCKETMQ: list[tuple[str, str, str, str]] = [
    ("record", "FLAG", "duplicate", "before filler"),
    ("index header", "entry count", "duplicate", ""),
    ("checkpoint", "master flushed", "swap, duplicate", ""),
    ("checkpoint", "confirm offset", "zero, inverted, negated, reversed, shifted", ""),
]
"""The same for the store that RocketMQ wrote, which also has no durable mark."""


def _is_same(case: Case, writer: str) -> bool:
    if writer != "mqstore" and case.structure == "durable mark":
        return True
    return any(
        (case.structure, case.field) == (structure, field)
        and case.kind in kinds.split(", ")
        and (not places or case.place in places.split(", "))
        for structure, field, kinds, places in (SAME if writer == "mqstore" else SAME + SAME_OF_ROCKETMQ)
    )


def cases(writer: str = "mqstore") -> list[Case]:
    """The damages of a store that `writer` wrote, in the order of the table."""
    found = [
        Case(structure, field, kind, place)
        for structure, fields, places in (
            ("record", (*HEAD, *TAIL), ("first", "middle", "before filler")),
            ("filler", ("size", "magic"), ("first",)),
            ("queue entry", tuple(QUEUE_ENTRY), ("first", "middle", "last")),
            ("batch unit", tuple(BATCH_UNIT), ("middle",)),
            ("index header", tuple(INDEX_HEADER), ("first",)),
            ("index slot", ("entry",), ("first", "last")),
            ("index entry", tuple(INDEX_ENTRY), ("first", "last")),
            ("checkpoint", tuple(CHECKPOINT), ("only",)),
            ("durable mark", tuple(MARK), ("newest",)),
        )
        for field in fields
        for kind in KINDS
        for place in (places if kind not in SELDOM else places[len(places) // 2 :][:1])
    ]
    found += [
        Case(structure, "file", kind, place)
        for structure, places in FILES.items()
        for kind, place in itertools.product(WHOLE, places)
    ]
    return [case for case in found if not _is_same(case, writer)]


def sample(writer: str = "mqstore") -> list[Case]:
    """Returns one case of each (structure, kind) and at least one of each (structure, field).

    The choice is the same in every run. `make soak` tries all cases.
    """
    by_kind: dict[tuple[str, str], list[Case]] = {}
    by_field: dict[tuple[str, str], Case] = {}
    for case in cases(writer):
        by_kind.setdefault((case.structure, case.kind), []).append(case)
        by_field.setdefault((case.structure, case.field), case)
    # Steps of seven spread the kinds over fields and places, because few groups have a multiple of seven cases.
    found = [group[number * 7 % len(group)] for number, group in enumerate(by_kind.values())]
    seen = {(case.structure, case.field) for case in found}
    return found + [case for place, case in by_field.items() if place not in seen]


UNDETECTABLE: list[tuple[str, str, str | None, str]] = [
    *[
        ("record", "CRC32", f"{kind} first", "the first record of a log has only one neighbour to compare it with")
        for kind in ("ones", "inverted", "negated", "reversed")
    ],
    ("index header", "slot count", None, "no reader uses the field"),
    *[
        ("index entry", "time", f"{kind} first", "no reader uses this field of the first entry of a file")
        for kind in ("flip", "first bit", "last bit", "ones")
    ],
    *[
        ("checkpoint", field, None, "a hint, and no other file holds the same value")
        for field in ("physic time", "logics time", "index time", "master flushed")
    ],
    *[
        ("checkpoint", field, kind, "a smaller value only makes the next recovery slower")
        for field in ("confirm offset", "logics offset")
        for kind in ("zero", "ones", "last bit", "more", "less")
    ],
    *[
        (
            "durable mark",
            field,
            None,
            "an invalid mark counts as no mark",
        )
        for field in (*MARK, "file")
    ],
    *[
        ("checkpoint", "file", kind, "without the file, only the next recovery is slower")
        for kind in ("missing", "empty", "cut", "overlong")
    ],
    ("log segment", "file", "missing first", "a log without its oldest segment looks as if these messages had expired"),
]
"""Damages that verify may miss: structure, field, kind or kind and place (None: any), reason."""


def may_hide(case: Case) -> str | None:
    """The reason why verify may miss the damage, or None if it must find it."""
    kinds = (None, case.kind, f"{case.kind} {case.place}")
    for structure, field, kind, reason in UNDETECTABLE:
        if (case.structure, case.field) == (structure, field) and kind in kinds:
            return reason
    return None


def may_stay(case: Case) -> set[str]:
    """Returns the kinds of problems that no repair can cure.

    A segment of another store keeps its own store times. A record that lost its checksum gets no new one.
    """
    if (case.structure, case.field) == ("record", "CRC32"):
        return {"record_checksum_missing"}
    return {"store_time_back"} if (case.structure, case.kind) == ("log segment", "foreign") else set()


def may_go_untold(case: Case) -> str | None:
    """Returns the reason why a repair may not name the lost messages, or None if it must name them."""
    if case.structure == "log segment" and case.kind == "foreign":
        return "the records of another store are whole, and nothing tells that others were there"
    if case.structure == "log segment" and (case.kind, case.place) == ("missing", "first"):
        return "a log without its oldest segment looks as if these messages had expired"
    return None


@dataclass(frozen=True)
class Base:
    """A closed store for damages, and the places of its messages: log offset and size, in log order."""

    home: Path
    other: Path
    """Another store with the foreign files."""
    records: list[tuple[int, int]]

    def segments(self) -> list[int]:
        return sorted({at // SEGMENT for at, _ in self.records})


def fields_of(data: bytes) -> dict[str, tuple[int, int]]:
    """The places of the fields of a record."""
    body_len = struct.unpack_from(">i", data, 84)[0]
    topic_at = 88 + body_len
    # Records of the second version have two bytes for it.
    wide = 2 if data[4:8] == b"\xda\xa3\x20\xab" else 1
    topic_len = int.from_bytes(data[topic_at : topic_at + wide])
    properties_at = topic_at + wide + topic_len
    properties_len = struct.unpack_from(">h", data, properties_at)[0]
    end = properties_at + 2 + properties_len
    return HEAD | {
        "BODY": (88, body_len),
        "TOPICLEN": (topic_at, wide),
        "TOPIC": (topic_at + wide, topic_len),
        "PROPLEN": (properties_at, 2),
        "PROPERTIES": (properties_at + 2, properties_len - 20),
        "CRC32": (end - 20, 20),
    }


def spoiled(old: bytes, kind: str) -> bytes:
    """A field after a damage that needs no neighbour."""
    data, size = bytearray(old), len(old)
    if kind == "flip":
        data[size // 2] ^= 0x10
    elif kind == "first bit":
        data[0] ^= 0x80
    elif kind == "last bit":
        data[-1] ^= 0x01
    elif kind == "zero":
        return bytes(size)
    elif kind == "ones":
        return b"\xff" * size
    elif kind in ("more", "less", "negated"):
        number = int.from_bytes(old)
        number = -number if kind == "negated" else number + (3 if kind == "more" else -3)
        return (number % (1 << 8 * size)).to_bytes(size)
    elif kind == "inverted":
        return bytes(byte ^ 0xFF for byte in old)
    elif kind == "reversed":
        return old[::-1]
    else:
        assert kind == "shifted"
        return old[1:] + b"\0"
    return bytes(data)


def spoil(file: Path, at: int, size: int, kind: str, *, other: int | None = None) -> bool:
    """Damages `size` bytes at `at`. Returns whether any byte changed. `other` is the place of the same field of another
    item."""
    data = bytearray(file.read_bytes())
    before = bytes(data)
    old = before[at : at + size]
    there = at + size if other is None else other
    if kind in ALONE:
        data[at : at + size] = spoiled(old, kind)
    else:
        data[at : at + size] = before[there : there + size]
    if kind == "swap":
        data[there : there + size] = old
    assert len(data) == len(before)
    file.write_bytes(data)
    return bytes(data) != before


def apply(case: Case, base: Base, home: Path) -> tuple[bool, set[int]]:
    """Damages the copy of `base` in `home`. Returns whether a byte changed, and the messages that may be lost."""
    if case.field == "file":
        return _whole(case, base, home)
    if case.structure in ("record", "filler"):
        return _log(case, base, home)
    if case.structure == "checkpoint":
        at, size = CHECKPOINT[case.field]
        return spoil(home / "checkpoint", at, size, case.kind, other=(at + 8) % 48), set()
    if case.structure == "queue entry":
        file = min(home.glob("consumequeue/orders/1/*"))
        number = {"first": 0, "middle": 10, "last": 30}[case.place]
        at, size = QUEUE_ENTRY[case.field]
        return spoil(file, number * 20 + at, size, case.kind, other=number * 20 + 20 + at), set()
    if case.structure == "batch unit":
        file = min(home.glob("batchconsumequeue/batched/0/*"))
        at, size = BATCH_UNIT[case.field]
        return spoil(file, 3 * 46 + at, size, case.kind, other=4 * 46 + at), set()
    if case.structure == "durable mark":
        at, size = MARK[case.field]
        return spoil(_marks(home)[0], at, size, case.kind, other=(at + 8) % 120), set()
    file = min(home.glob("index/*"))
    if case.structure == "index header":
        at, size = INDEX_HEADER[case.field]
        return spoil(file, at, size, case.kind), set()
    slots = 64
    if case.structure == "index slot":
        data = file.read_bytes()
        entries = [data[40 + 4 * n : 44 + 4 * n] for n in range(slots)]
        used = [n for n in range(slots) if entries[n] != bytes(4)]
        number = used[0] if case.place == "first" else used[-2]
        taken = _left_by_others(entries[number])
        other = next(n for n in [*range(number + 1, slots), *range(number)] if entries[n] not in taken)
        return spoil(file, 40 + 4 * number, 4, case.kind, other=40 + 4 * other), set()
    count = struct.unpack_from(">i", file.read_bytes(), 36)[0]
    number = 1 if case.place == "first" else count - 2
    at, size = INDEX_ENTRY[case.field]
    place = 40 + 4 * slots + 20 * number + at
    beside = 20
    if case.field == "previous":
        data = file.read_bytes()
        taken = _left_by_others(data[place : place + size])
        distances = [20 * n for n in (*range(1, count - number), *range(-1, -number, -1))]
        beside = next(n for n in distances if data[place + n : place + n + size] not in taken)
    if case.field == "hash":
        # The next entry belongs to the same message. If both are in one chain, a swap of the two changes nothing.
        beside = 40 if case.place == "first" else -40
    return spoil(file, place, size, case.kind, other=place + beside), set()


def _left_by_others(old: bytes) -> set[bytes]:
    """The values that other damages leave in a field. Small index numbers depend on unique ids and may be equal."""
    return {old, *(spoiled(old, kind) for kind in ALONE)}


def _log(case: Case, base: Base, home: Path) -> tuple[bool, set[int]]:
    ends = [n for n, (at, _) in enumerate(base.records[:-1]) if base.records[n + 1][0] // SEGMENT != at // SEGMENT]
    number = {"first": 0, "middle": COUNT // 2, "before filler": ends[0]}[case.place]
    if case.structure == "filler":
        at, size = base.records[ends[0]]
        file = home / "commitlog" / f"{at // SEGMENT * SEGMENT:020d}"
        start = (at + size) % SEGMENT + (0 if case.field == "size" else 4)
        other = (at + size) % SEGMENT + (4 if case.field == "size" else 0)
        return spoil(file, start, 4, case.kind, other=other), set()
    at, size = base.records[number]
    file = home / "commitlog" / f"{at // SEGMENT * SEGMENT:020d}"
    data = file.read_bytes()

    def field_of(number: int) -> tuple[int, bytes]:
        at, size = base.records[number]
        start, width = fields_of(data[at % SEGMENT :][:size])[case.field]
        return at % SEGMENT + start, data[at % SEGMENT + start :][:width]

    start, old = field_of(number)
    # The neighbour is the nearest record of the segment with a different value, of the same length if there is one.
    near = [n for n, (other, _) in enumerate(base.records) if n != number and other // SEGMENT == at // SEGMENT]
    near.sort(key=lambda n: (len(field_of(n)[1]) != len(old), field_of(n)[1] == old, abs(n - number)))
    there, theirs = field_of(near[0])
    changed = spoil(file, start, min(len(old), len(theirs)), case.kind, other=there)
    return changed, {number, near[0]} if case.kind == "swap" else {number}


def _marks(home: Path) -> list[Path]:
    """The slots of the durable mark, the newest first."""
    return sorted(home.glob("mqstore/state.*"), key=lambda file: file.read_bytes()[16:24], reverse=True)


def _whole(case: Case, base: Base, home: Path) -> tuple[bool, set[int]]:
    pattern = {
        "log segment": "commitlog/*",
        "queue file": "consumequeue/orders/1/*",
        "index file": "index/*",
        "batch queue file": "batchconsumequeue/batched/0/*",
        "checkpoint": "checkpoint",
        "durable mark": "mqstore/state.*",
    }[case.structure]
    files = _marks(home) if case.structure == "durable mark" else sorted(home.glob(pattern))
    places = {"first": 0, "only": 0, "newest": 0, "older": 1, "middle": 1, "last": len(files) - 1}
    number = places[case.place]
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
    """The content of `tests/python/DAMAGE.md`."""
    lines = [
        "# Tested kinds of damage",
        "",
        f"The tests damage a copy of a store that mqstore wrote in {len(cases())} ways, and a copy of a store that",
        f"RocketMQ 5.5.0 wrote in {len(cases('RocketMQ'))} of them. Each case changes bytes, and no two cases change",
        "them in the same way. The tests check for each case:",
        "",
        "- `verify` reports the damage, unless the last column says why it may not.",
        "- `repair` keeps every message that the damage did not hit.",
        "- The repaired store verifies clean, and a second repair changes nothing. Two exceptions: a segment from",
        "  another store may leave store times that go back, and a record that lost its checksum gets no new one.",
        "- The report of `repair` names the range of each lost message, and no other range. Two exceptions: a segment",
        "  from another store, and a missing oldest segment, which looks as if it had expired.",
        "- RocketMQ 5.3.3 and 5.5.0 open the repaired store and deliver its messages.",
        "",
        "`make test` tries one case of each kind for each structure; `make soak` tries all cases.",
        "`damage.py` generates this page, and a test compares the two.",
        "",
        "| Kind | What changes |",
        "|---|---|",
        "| `flip` | a bit in the middle of the field |",
        "| `first bit`, `last bit` | this bit |",
        "| `zero`, `ones` | all bits are 0, or 1 |",
        "| `more`, `less` | the number is 3 larger, or smaller |",
        "| `inverted` | all bits are inverted |",
        "| `negated` | the number changes its sign |",
        "| `reversed`, `shifted` | the bytes are reversed, or shifted by one |",
        "| `swap`, `duplicate` | the field is exchanged with, or replaced by, that field of a neighbour |",
        "| `missing`, `empty` | the file is removed, or has no bytes |",
        "| `cut`, `overlong` | the file is cut to a third, or has extra bytes |",
        "| `foreign` | the file is replaced by one from another store |",
        "",
        "| Structure | Field | Kinds | Places | Why the damage may stay undetected |",
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
