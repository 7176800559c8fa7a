"""What the Java side is told, and what it answers: message specifications, rows, log lines."""

from __future__ import annotations

import base64
import functools
import hashlib
import ipaddress
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

from .java_build import JavaError

Spec = dict[str, Any]
"""A message specification, as ``Specs.java`` documents it."""


def message(
    topic: str,
    body: bytes | tuple[str, int],
    *,
    queue_id: int = 0,
    keys: Sequence[str] = (),
    tags: str | None = None,
    unique_id: str | None = None,
    properties: Mapping[str, str] | None = None,
    **fields: Any,
) -> Spec:
    """Specify a message. `body` is the bytes, or (seed, size) for a generated one, see `generated_body`.

    `fields` are further names of ``Specs.java``: flag, sys_flag, born_timestamp, born_host, store_host, compress, ...
    """
    spec: Spec = {"topic": topic, "queue_id": queue_id}
    if isinstance(body, tuple):
        spec["seed"], spec["size"] = body
    else:
        spec["body"] = base64.b64encode(body).decode()
    named: dict[str, str] = {}
    if unique_id:
        named["UNIQ_KEY"] = unique_id
    if keys:
        named["KEYS"] = " ".join(keys)
    if tags:
        named["TAGS"] = tags
    return spec | {"properties": named | dict(properties or {})} | fields


def batch(topic: str, items: Sequence[Spec], *, inner: bool = False, **fields: Any) -> Spec:
    """Specify one put of several messages: records of their own, or (inner) one record that holds them all."""
    outer = message(topic, b"", **fields)
    return outer | {"inner_batch" if inner else "batch": list(items)}


def generated_body(seed: str, size: int) -> bytes:
    """Return the body ``Specs.java`` generates for this seed and size."""
    block = b"".join(hashlib.sha256(f"{seed}:{i}".encode()).digest() for i in range(min(32, -(-size // 32))))
    block = block.ljust(1024, b"\0")
    return (block * (-(-size // len(block)) or 1))[:size]


def body_of(spec: Spec) -> bytes:
    """Return the body a specification asks for, before any compression."""
    if "body" in spec:
        return base64.b64decode(spec["body"])
    return generated_body(spec["seed"], spec["size"])


# ---------------------------------------------------------------------------------------------------------------------
# Answers


class JavaPut(NamedTuple):
    """The result of one put; a batch has one result, with the ids of its records joined by commas."""

    status: str
    commit_log_offset: int = -1
    size: int = 0
    message_id: str = ""
    store_timestamp: int = 0
    queue_offset: int = -1
    messages: int = 0


@dataclass(frozen=True, slots=True)
class JavaMessage:
    """Every field of one record as RocketMQ decodes it; hosts in canonical form, bodies as length and MD5."""

    topic: str
    queue_id: int
    queue_offset: int
    commit_log_offset: int
    size: int
    message_id: str
    flag: int
    sys_flag: int
    born_timestamp: int
    born_host: str
    store_timestamp: int
    store_host: str
    reconsume_times: int
    prepared_transaction_offset: int
    body_crc: int
    stored_body_size: int
    stored_body_md5: str
    body_size: int
    body_md5: str
    properties: dict[str, str]
    keys: str | None = None
    tags: str | None = None
    unique_id: str | None = None
    entry_offset: int = -1
    """The offset of the queue entry this was read by; -1 when it was read from the log."""

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> Self:
        """Make a message of a row; an undecodable record is a `JavaError`."""
        if "undecodable" in row:
            reason = f"RocketMQ's decoder refused a record of {row['undecodable']} bytes"
            raise JavaError(reason)
        row["born_host"] = canonical_host(row["born_host"])
        row["store_host"] = canonical_host(row["store_host"])
        return cls(**row)


@dataclass(frozen=True, slots=True)
class JavaQueue:
    """One queue: its bounds, and where and with what status reading it to the end stopped."""

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    next_offset: int
    status: str
    messages: int


@dataclass(frozen=True, slots=True)
class JavaView:
    """Everything a store's queues hold."""

    messages: list[JavaMessage]
    queues: list[JavaQueue]

    def by_queue(self) -> dict[tuple[str, int], list[JavaMessage]]:
        """Return the messages of each (topic, queue id), in queue order; empty queues have an empty list."""
        grouped: dict[tuple[str, int], list[JavaMessage]] = {(q.topic, q.queue_id): [] for q in self.queues}
        for one in self.messages:
            grouped.setdefault((one.topic, one.queue_id), []).append(one)
        return grouped


class KeyQuery(NamedTuple):
    """A look-up by key; with `kind` "T" by tag, which RocketMQ knows from 5.5.0 on."""

    topic: str
    key: str
    begin: int = 0
    end: int = 2**62
    most: int = 100_000
    kind: str | None = None


class TimeQuery(NamedTuple):
    """A look-up of the queue offset at a time; `boundary` is LOWER or UPPER."""

    topic: str
    queue_id: int
    time: int
    boundary: str = "LOWER"


class LogLine(NamedTuple):
    """A line RocketMQ logged at WARN or ERROR, or the one that names the file recovery starts from."""

    level: str
    logger: str
    thread: str
    message: str


TORN_TAIL = ("found a illegal magic code", "found a half message", "CRC check failed")
"""How RocketMQ's log begins to speak of half a record at the end of the commit log, which it cuts off."""


@dataclass(frozen=True, slots=True)
class OpenReport:
    """What happened while RocketMQ opened a directory."""

    loaded: bool
    was_clean: bool
    seconds: float
    min_physical: int
    max_physical: int
    logs: list[LogLine] = field(repr=False)

    def recovery_start(self) -> int:
        """Return the physical offset from which recovery dispatched every record anew.

        After an unclean end RocketMQ first drops the newer index files, so below this offset its look-ups by key may
        miss messages. It names the file it starts from, unless that is the very first.
        """
        for line in self.logs:
            if line.message.startswith("recover from this mapped file"):
                return int(Path(line.message.split()[-1]).name)
        return max(0, self.min_physical)

    def complaints(self, *, torn_tail: bool = False) -> list[LogLine]:
        """Return the lines a healthy directory does not cause, see `is_healthy`.

        With `torn_tail` the last writer may have been killed in the middle of a record.
        """
        lines = [line for line in self.logs if not is_healthy(line, after_kill=not self.was_clean)]
        return [line for line in lines if not (torn_tail and line.message.startswith(TORN_TAIL))]


def is_healthy(line: LogLine, *, after_kill: bool = False) -> bool:
    """Tell whether RocketMQ logs this line for a directory that is in perfect order.

    Seen when RocketMQ reopens what it wrote itself, both versions.
    """
    text = line.message
    if line.level == "INFO":
        return True
    # Recovery after a kill dispatches records again: 5.3.3 says so of each that the queue already has, and both
    # versions say when the index they write anew needs another file.
    # And both say that no queue file starts where a queue ends when it ends exactly with a file.
    end = re.match(r"Offset not matched. Request offset: (\d+), firstOffset: \d+, lastOffset: (\d+),", text)
    if after_kill and end and end[1] == end[2]:
        return True
    again = ("Maybe try to build consume queue repeatedly", "Over index file capacity", "Index file [")
    if after_kill and text.startswith(again):
        return True
    # Recovery scans the last segment to its end, and the end is the first place without a magic number.
    if text == "found a illegal magic code 0x0":
        return True
    # Said on every clean open, because queues that end exactly where the log ends are the healthy state. With the
    # first number larger, entries really are cut off.
    if "truncate dirty logic files" in text:
        numbers = [int(part.split(")")[0]) for part in text.split("(")[1:]]
        return len(numbers) == 2 and numbers[0] == numbers[1]
    # Threads of a store that was shut down before in the same process.
    return "shutdown" in text and "interrupted" in text


@functools.lru_cache(maxsize=4096)
def canonical_host(text: str) -> str:
    """Return ``ip:port`` or ``[v6]:port`` with the address in its canonical short form."""
    address, _, port = text.rpartition(":")
    ip = ipaddress.ip_address(address.strip("[]"))
    return f"[{ip}]:{port}" if ip.version == 6 else f"{ip}:{port}"
