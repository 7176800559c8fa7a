"""The scenarios that RocketMQ writes: one for each kind of record or state of a directory.

A scenario is data: store configuration, topics, and message specifications in bursts with a pause between them. All
numbers come from seeded generators, so a failing run can be repeated.
"""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from .java_rows import Spec, batch, message

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

MIB = 1 << 20
KIB = 1 << 10
BURST_PAUSE = 2.3
"""Seconds between bursts. Index entries hold whole seconds, so a time range must end more than one second away from
both."""

BATCH_QUEUE = {"queue.type": "BatchCQ"}
COMPACTED = {"cleanup.policy": "COMPACTION"}

TAGS = ("paid", "shipped", "order-created", "中文", None)
KEY_ALPHABET = ("order", "Ärger", "ключ", "鍵", "🔑")


@dataclass(frozen=True)
class Scenario:
    """One directory to write."""

    name: str
    bursts: Callable[[], list[list[Spec]]]
    topics: Mapping[str, Mapping[str, Any]]
    config: Mapping[str, object] = field(default_factory=dict)
    kill: bool = False
    """End the process without shutdown instead of closing the store."""
    keep_first_queues: bool = False
    """Keep a copy of queues and index after the first burst."""


def topic(queues: int = 1, **attributes: str) -> dict[str, Any]:
    """Describe a topic for `JavaSession.open`."""
    return {"queues": queues, "attributes": attributes}


def unique_id(number: int) -> str:
    """Return a UNIQ_KEY in the form of clients: 32 hex digits."""
    return f"7F0000010001{number:020X}"


def mixed(topics: Mapping[str, int], count: int, seed: str, *, largest: int = 900) -> list[Spec]:
    """Make messages of every ordinary kind, distributed over topics and queues."""
    chooser = random.Random(seed)
    names = list(topics)
    specs = []
    for number in range(count):
        name = names[number % len(names)]
        keys = [
            f"{chooser.choice(KEY_ALPHABET)}-{chooser.randrange(count // 4 + 1)}" for _ in range(chooser.randrange(4))
        ]
        fields: Spec = {
            "flag": chooser.choice((0, 0, 1, -1, 2**31 - 1)),
            "born_timestamp": 1_700_000_000_000 + chooser.randrange(10**9),
            "born_host": [f"10.{chooser.randrange(256)}.0.{chooser.randrange(256)}", chooser.randrange(65536)],
            "reconsume_times": chooser.choice((0, 0, 0, 16)),
        }
        specs.append(
            message(
                name,
                (f"{seed}/{number}", chooser.randrange(largest)),
                queue_id=chooser.randrange(topics[name]),
                keys=keys,
                tags=chooser.choice(TAGS),
                unique_id=f"{seed[:4].encode().hex().upper():0<8}{number:024X}",
                properties={f"p{i}": chooser.choice(KEY_ALPHABET) * 3 for i in range(chooser.randrange(3))},
                **fields,
            ),
        )
    return specs


BULK_TOPICS = {"orders": 4, "payments": 2, "audit": 1, "events-of_the|day": 8}


def _bulk() -> list[list[Spec]]:
    specs = mixed(BULK_TOPICS, 20_480, "bulk")
    return [specs[:12_000], specs[12_000:]]


def _sizes() -> list[list[Spec]]:
    sizes = [0, 1, 2, 0, 127, 128, 4095, 4096, 65_535, 65_536, 4 * MIB, 0, 4 * MIB, MIB, 4 * MIB - 1, 4 * MIB, 33]
    return [[message("sizes", (f"size{n}", size), unique_id=unique_id(n)) for n, size in enumerate(sizes)]]


EDGE_SEGMENT = 16 * KIB


def edges(record_overhead: int) -> list[Spec]:
    """Fill segments so that the bytes left at the end take every value from 8 to 47, and 0 to 7 do not fit.

    `record_overhead` is the length of a record without its body. A record fits if 8 bytes for the filler remain.
    """
    specs: list[Spec] = []
    at = 0

    def put(size: int) -> None:
        nonlocal at
        if size + 8 > EDGE_SEGMENT - at:
            at = 0
        at += size
        body = (f"edge{len(specs)}", size - record_overhead)
        specs.append(message("edges", body, unique_id=unique_id(len(specs)), keys=["edge"]))

    for left in range(48):
        # If a segment is nearly full, the next record rolls to a new one.
        while not 1000 < EDGE_SEGMENT - at < 8000:
            put(3500)
        # If less than 8 bytes would be left, this record goes to the next segment.
        put(EDGE_SEGMENT - at - left)
    # The end of the last segment counts only when another record follows.
    put(3500)
    return specs


def edge_leftovers(ends: Sequence[tuple[int, int]]) -> set[int]:
    """Return the byte counts left at the ends of segments. `ends` has offset and size of each record, in order."""
    return {-(at + size) % EDGE_SEGMENT for (at, size), (after, _) in itertools.pairwise(ends) if after != at + size}


def _edges() -> list[list[Spec]]:
    plain = 91 + len("edges") + len("UNIQ_KEY") + 34 + len("KEYS") + len("edge") + 2
    return [edges(plain)]


def _text() -> list[list[Spec]]:
    words = [
        "a",
        "ß",
        "Ünïcödé",
        "日本語テキスト",
        "😀🔑👩‍👩‍👧",
        "\u0301e",
        "\u202eabc",
        "a\tb",
        'q"\\',
        "x" * 500,
        "\U0010ffff",
    ]
    specs: list[Spec] = []
    for number, word in enumerate(words):
        for other in words:
            specs.append(
                message(
                    "text",
                    f"{word}|{other}".encode(),
                    queue_id=number % 3,
                    keys=[word.replace(" ", ""), other.replace(" ", "")],
                    tags=other,
                    unique_id=unique_id(len(specs)),
                    properties={f"name {word}": other, "again": "1\u0001 2", "empty": "", "z": " spaces "},
                ),
            )
    # Keys joined with more than one space, and keys of only spaces.
    specs += [message("text", b"k", properties={"KEYS": keys}) for keys in ("a  b", " lead", "trail ", "   ")]
    # Java's absolute value of the smallest integer is itself, and RocketMQ uses slot 0 for it. This is such a key.
    specs += [message("text", b"m", keys=[key]) for key in min_hash_keys("text")]
    return [specs]


def min_hash_keys(topic_name: str, count: int = 3) -> list[str]:
    """Return keys whose index hash, that of ``topic#key``, is the smallest 32-bit number."""
    found: list[str] = []
    prefix = java_hash(f"{topic_name}#")
    number = 0
    while len(found) < count:
        head = f"min{number}"
        number += 1
        # Seven characters in base 31 reach any remainder. Search for one of printable ASCII characters.
        wanted = (-(2**31) - java_hash(head, prefix) * 31**7) % 2**32
        tail = _spell(wanted, 7)
        if tail is not None:
            found.append(head + tail)
    return found


def java_hash(text: str, start: int = 0) -> int:
    """Java's String.hashCode, continued from `start`."""
    value = start
    units = text.encode("utf-16-be")
    for at in range(0, len(units), 2):
        value = (value * 31 + int.from_bytes(units[at : at + 2], "big")) & 0xFFFFFFFF
    return value - 2**32 if value >= 2**31 else value


def _spell(wanted: int, length: int) -> str | None:
    """Spell a 32-bit hash with this many characters between 'A' and '_' (31 of them: digits of base 31)."""
    lowest = ord("A")
    rest = (wanted - sum(lowest * 31**place for place in range(length))) % 2**32
    digits = []
    for _ in range(length):
        rest, digit = divmod(rest, 31)
        digits.append(chr(lowest + digit))
    return "".join(reversed(digits)) if rest == 0 else None


def _hosts() -> list[list[Spec]]:
    hosts = [["127.0.0.1", 10911], ["255.255.255.255", 65_535], ["0.0.0.0", 0], ["2001:db8::1", 50_000], ["::1", 1]]
    hosts += [["fe80::1:2:3:4", 443], ["ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff", 65_535]]
    return [
        [
            message(
                "hosts",
                f"{born} {stored}".encode(),
                queue_id=n % 2,
                keys=[f"h{n}"],
                born_host=born,
                store_host=stored,
                unique_id=unique_id(n * 100 + m),
            )
            for n, born in enumerate(hosts)
            for m, stored in enumerate(hosts)
            for _ in range(4)
        ],
    ]


LONG_TOPICS = {
    "t" * 127: 1,
    "%RETRY%" + "g" * 120: 1,
    "%RETRY%" + "g" * 121: 1,
    "%RETRY%" + "h" * 248: 2,
    "%DLQ%" + "d" * 100: 1,
    "%LMQ%x": 1,
}


def _long_topics() -> list[list[Spec]]:
    return [mixed(LONG_TOPICS, 600, "long")]


def _batches() -> list[list[Spec]]:
    chooser = random.Random("batches")
    specs: list[Spec] = []
    for number in range(300):
        specs.append(message("batches", (f"single{number}", 50), queue_id=number % 2))
        items = [
            message(
                "batches",
                (f"batch{number}/{item}", chooser.randrange(3000)),
                keys=[f"b{number}", f"i{item}"],
                tags=chooser.choice(TAGS),
                unique_id=unique_id(number * 100 + item),
                flag=item,
            )
            for item in range(1 + number % 12)
        ]
        specs.append(
            batch("batches", items, queue_id=number % 2, properties={"CLUSTER": "interop"} if number % 3 else {})
        )
    return [specs]


def _inner_batches() -> list[list[Spec]]:
    specs: list[Spec] = []
    for number in range(400):
        items = [
            message("inner", (f"inner{number}/{n}", 40 + n), tags="x", keys=[f"n{n}"]) for n in range(1 + number % 7)
        ]
        specs.append(batch("inner", items, inner=True, queue_id=number % 2, unique_id=unique_id(number)))
        specs.append(message("beside", (f"beside{number}", 20), keys=[f"beside{number}"]))
        if number % 5 == 0:
            specs.append(message("inner", (f"plain{number}", 20), queue_id=number % 2, keys=[f"plain{number}"]))
    return [specs]


def _compressed() -> list[list[Spec]]:
    kinds = ("ZLIB", "LZ4", "ZSTD")
    sizes = (1, 100, 5000, 70_000, 500_000)
    return [
        [
            message("compressed", (f"{kind}{size}{n}", size), compress=kind, keys=[kind], unique_id=unique_id(n))
            for n in range(30)
            for kind in kinds
            for size in sizes
        ],
    ]


def _property_crc() -> list[list[Spec]]:
    specs = mixed({"sealed": 3, "%RETRY%" + "s" * 200: 1}, 2000, "crc")
    specs += [message("sealed", b""), message("sealed", (b"x" * 10))]
    specs += [batch("sealed", [message("sealed", (f"s{n}/{m}", 99), tags="b") for m in range(5)]) for n in range(50)]
    specs += [message("sealed", ("v6", 10), born_host=["2001:db8::7", 7], store_host=["::1", 8])]
    specs += [message("sealed", ("zip", 9000), compress="ZSTD")]
    return [specs]


HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"


def _transactions() -> list[list[Spec]]:
    specs: list[Spec] = []
    for number in range(800):
        kind = (0x0, 0x4, 0x8, 0xC)[number % 4]
        specs.append(
            message(
                "transactions",
                (f"tx{number}", 64),
                queue_id=number % 3,
                keys=[f"t{number}", "all"],
                tags="tx",
                unique_id=unique_id(number),
                properties={"TRAN_MSG": "true", "PGROUP": "producers"},
                sys_flag=kind,
                prepared_transaction_offset=number * 10 if kind == 0x8 else 0,
            ),
        )
        # A current broker stores half messages like this: in another topic, without transaction bits.
        half = {"REAL_TOPIC": "transactions", "REAL_QID": str(number % 3)}
        specs.append(message(HALF_TOPIC, (f"half{number}", 64), properties=half, unique_id=unique_id(10_000 + number)))
    return [specs]


SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"


def _delayed() -> list[list[Spec]]:
    return [
        [
            message(
                SCHEDULE_TOPIC,
                (f"later{number}", 30),
                queue_id=number % 18,
                tags="ignored",
                keys=[f"d{number}"],
                properties={"DELAY": str(number % 18 + 1), "REAL_TOPIC": "orders", "REAL_QID": str(number % 4)},
                unique_id=unique_id(number),
            )
            for number in range(720)
        ],
    ]


def _lagging() -> list[list[Spec]]:
    specs = mixed({"behind": 3, "other": 2}, 4000, "lag")
    return [specs[:1500], specs[1500:]]


SMALL_INDEX = {"maxHashSlotNum": 3000, "maxIndexNum": 12_000}


def _all() -> list[Scenario]:
    queues = {name: topic(count) for name, count in BULK_TOPICS.items()}
    long_queues = {name: topic(count) for name, count in LONG_TOPICS.items()}
    mid = {"mappedFileSizeCommitLog": MIB, "mappedFileSizeConsumeQueue": 20 * 500}
    return [
        Scenario(
            "bulk",
            _bulk,
            queues,
            {"mappedFileSizeCommitLog": 2 * MIB, "mappedFileSizeConsumeQueue": 20 * 600, **SMALL_INDEX},
        ),
        Scenario("sizes", _sizes, {"sizes": topic()}, {"mappedFileSizeCommitLog": 16 * MIB}),
        Scenario("edges", _edges, {"edges": topic()}, {"mappedFileSizeCommitLog": EDGE_SEGMENT}),
        Scenario("text", _text, {"text": topic(3)}, {**mid, "flushDiskType": "SYNC_FLUSH"}),
        Scenario("hosts", _hosts, {"hosts": topic(2)}, mid),
        Scenario("long_topics", _long_topics, long_queues, mid),
        Scenario("batches", _batches, {"batches": topic(2)}, mid),
        Scenario(
            "inner_batches",
            _inner_batches,
            {"inner": topic(2, **BATCH_QUEUE), "beside": topic()},
            mid | {"mapperFileSizeBatchConsumeQueue": 46 * 100},
        ),
        Scenario("compressed", _compressed, {"compressed": topic()}, {"mappedFileSizeCommitLog": 8 * MIB}),
        Scenario("property_crc", _property_crc, {"sealed": topic(3)}, mid | {"enabledAppendPropCRC": True}),
        Scenario("transactions", _transactions, {"transactions": topic(3), HALF_TOPIC: topic()}, mid),
        Scenario("delayed", _delayed, {SCHEDULE_TOPIC: topic(18)}, mid),
        Scenario("lagging", _lagging, {"behind": topic(3), "other": topic(2)}, mid, keep_first_queues=True),
        Scenario(
            "front_deleted",
            _lagging,
            {"behind": topic(3), "other": topic(2)},
            mid | {"mappedFileSizeCommitLog": 256 * KIB},
        ),
        Scenario(
            "no_index",
            lambda: [mixed({"plain": 1}, 300, "noix")],
            {"plain": topic()},
            mid | {"messageIndexEnable": False},
        ),
        Scenario("killed", lambda: [mixed(BULK_TOPICS, 4000, "kill")], queues, mid, kill=True),
        Scenario(
            "killed_sync",
            lambda: [mixed({"k": 2}, 500, "sync")],
            {"k": topic(2)},
            mid | {"flushDiskType": "SYNC_FLUSH"},
            kill=True,
        ),
    ]


SCENARIOS = {scenario.name: scenario for scenario in _all()}
