"""The stores for the table of damages, one written by mqstore and one by RocketMQ, and the checks after each damage.

The store of RocketMQ 5.5.0 is packed in `stores`. In `tests/`, `python -m interop.pack` lets RocketMQ write it again.
"""

from __future__ import annotations

import json
import os
import struct
import time
from dataclasses import dataclass
from pathlib import Path

import damage
import mqstore

OPTIONS = mqstore.StoreOptions(
    segment_size=damage.SEGMENT, queue_file_entries=32, index_slots=64, index_entries=200, flush_interval=0.05
)
PACKED = Path(__file__).with_name("stores") / "rocketmq.pack"
LONG = "%RETRY%" + "long" * 33
"""A topic name so long that its records have another magic code."""

TOPICS = (("orders", 0), ("orders", 1), ("returned-orders", 0), ("orders", 1), (LONG, 0), ("batched", 0))


@dataclass(frozen=True)
class Sent:
    """A message of the store."""

    topic: str
    queue_id: int
    queue_offset: int
    at: int
    size: int
    key: str


@dataclass(frozen=True)
class Subject:
    """A store for damages, and the messages in it."""

    base: damage.Base
    sent: list[Sent]


def body(number: int) -> bytes:
    """Returns the body of the message with this number."""
    return b"%04d" % number * (5 + number % 40)


def pause(number: int) -> float:
    """Seconds before a message. Neighbours have different times, and the index has entries of more than one second."""
    return 1.1 if number == damage.COUNT // 3 else 0.008


def born(number: int) -> int:
    """Returns the born time of the message with this number."""
    return 1_700_000_000_000 + 1001 * number


def tag(number: int) -> str:
    """Returns the tag of a message."""
    return f"t{number // 3 % 3}"


def inner(number: int) -> int:
    """Returns the number of messages in the record with this number."""
    return 1 + number // 6 % 3 if TOPICS[number % len(TOPICS)][0] == "batched" else 1


def ours(home: Path) -> list[Sent]:
    """Writes the store with mqstore."""
    sent = []
    with mqstore.open(home, "create", options=OPTIONS) as store:
        store.create_topic("orders", queues=2)
        store.create_topic("batched", queues=1, attributes={"queue.type": "BatchCQ"})
        for number in range(damage.COUNT):
            topic, queue_id = TOPICS[number % len(TOPICS)]
            time.sleep(pause(number))
            message = mqstore.Message(
                body(number), keys=f"k{number}", tags=tag(number), flag=number, born_timestamp=born(number)
            )
            one = store.append_many(topic, [message] * inner(number), queue_id=queue_id)[0]
            sent.append(Sent(topic, queue_id, one.queue_offset, one.commit_log_offset, one.size, f"k{number}"))
    return sent


def elsewhere(home: Path) -> Path:
    """Writes another store, whose files are used as foreign files."""
    with mqstore.open(home, "create", options=OPTIONS) as store:
        store.create_topic("orders", queues=2)
        store.create_topic("batched", queues=1, attributes={"queue.type": "BatchCQ"})
        # Its first segments do not contain the topics of the other store.
        for number in range(300):
            topic = "others" if number < 250 else ("orders", "batched")[number % 2]
            store.append(topic, b"%d" % number * 30, keys=f"o{number}", queue_id=int(topic == "orders"))
    return home


def subject(home: Path, other: Path, sent: list[Sent]) -> Subject:
    """Returns the closed store in `home`. `other` is the store with the foreign files."""
    found = damage.Base(home, other, [(one.at, one.size) for one in sent])
    assert len(found.segments()) >= 3
    return Subject(found, sent)


def unpacked(home: Path) -> list[Sent]:
    """Unpacks the store of RocketMQ, which is in the form of `tests/interop/pack.py`."""
    data = PACKED.read_bytes()
    at = 0

    def take(form: str) -> tuple[int, ...]:
        nonlocal at
        at += struct.calcsize(form)
        return struct.unpack_from(form, data, at - struct.calcsize(form))

    for _ in range(take(">I")[0]):
        (length,) = take(">H")
        file = home / data[at : at + length].decode()
        at += length
        size, stretches = take(">QI")
        content = bytearray(size)
        for _ in range(stretches):
            start, length = take(">QI")
            content[start : start + length] = data[at : at + length]
            at += length
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    return [Sent(**each) for each in json.loads(PACKED.with_suffix(".json").read_text())]


def assert_mended(
    case: damage.Case, subject: Subject, home: Path, options: mqstore.StoreOptions | None = None
) -> set[int] | None:
    """Damages the copy of the store in `home`, and checks that verify finds it and repair cures it.

    Returns:
        The numbers of the messages that were hit, or None if the damage changes nothing.
    """
    changed, hit = damage.apply(case, subject.base, home)
    if not changed:
        return None
    found = mqstore.verify(home)
    if damage.may_hide(case) is None:
        assert not found.ok, "verify did not notice"
    report = mqstore.repair(home, in_place=True, options=options)
    assert {problem.kind for problem in report.problems} <= damage.may_stay(case), (report.problems, report.actions)
    if damage.may_go_untold(case) is None:
        _assert_told(report, subject.sent, hit, home)
    before = contents(home)
    again = mqstore.repair(home, in_place=True, options=options)
    assert (again.ok, again.changed) == (report.ok, False), again.actions
    assert contents(home) == before
    _assert_all_left(subject.sent, hit, home)
    return hit


def _assert_told(report: mqstore.RepairReport, sent: list[Sent], hit: set[int], home: Path) -> None:
    """Every missing message is in a range that the report names as lost, and no other message is."""
    lost = [(one.log_offset, one.log_offset + one.bytes) for one in report.lost]
    with mqstore.open(home) as store:
        left = {m.commit_log_offset for m in store._scan_log()}
    for number, one in enumerate(sent):
        touched = any(start < one.at + one.size and one.at < end for start, end in lost)
        if number not in hit:
            assert not touched, (number, lost)
        elif one.at not in left:
            assert touched, (number, lost)
    assert report.messages == len(left), (report.messages, len(left))


def _assert_all_left(sent: list[Sent], hit: set[int], home: Path) -> None:
    with mqstore.open(home) as store:
        left = {m.commit_log_offset: m.body for m in store._scan_log()}
        queues = {(one.topic, one.queue_id) for number, one in enumerate(sent) if number not in hit}
        read = {
            (topic, queue_id): {
                m.commit_log_offset: m.queue_offset for m in store.read(topic, queue_id, on_damage="skip")
            }
            for topic, queue_id in queues
        }
        for number, one in enumerate(sent):
            if number not in hit:
                assert read[one.topic, one.queue_id][one.at] == one.queue_offset
                assert body(number) in left[one.at]
                if number % 7 == 0:
                    assert one.at in [m.commit_log_offset for m in store.lookup(one.topic, one.key)]


def contents(home: Path) -> dict[str, bytes]:
    """Returns the files of a store."""
    return {
        os.path.join(folder, name): Path(folder, name).read_bytes()  # noqa: PTH118 - names of os.walk
        for folder, _, names in os.walk(home)
        for name in names
    }
