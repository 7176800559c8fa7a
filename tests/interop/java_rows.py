"""Input and output of the Java side: message specifications, rows, log lines."""

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
    """Specify a message. `body` is the bytes, or (seed, size) for a generated body, see `generated_body`.

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
    """Specify one put of several messages: separate records, or (inner) one record that holds them all."""
    outer = message(topic, b"", **fields)
    return outer | {"inner_batch" if inner else "batch": list(items)}


def generated_body(seed: str, size: int) -> bytes:
    """Return the body that ``Specs.java`` generates for this seed and size."""
    block = b"".join(hashlib.sha256(f"{seed}:{i}".encode()).digest() for i in range(min(32, -(-size // 32))))
    block = block.ljust(1024, b"\0")
    return (block * (-(-size // len(block)) or 1))[:size]


def body_of(spec: Spec) -> bytes:
    """Return the body of a specification, before any compression."""
    if "body" in spec:
        return base64.b64decode(spec["body"])
    return generated_body(spec["seed"], spec["size"])


# ---------------------------------------------------------------------------------------------------------------------
# Answers


class JavaPut(NamedTuple):
    """The result of one put. A batch has one result, with the ids of its records joined by commas."""

    status: str
    commit_log_offset: int = -1
    size: int = 0
    message_id: str = ""
    store_timestamp: int = 0
    queue_offset: int = -1
    messages: int = 0


@dataclass(frozen=True, slots=True)
class JavaMessage:
    """Every field of one record as RocketMQ decodes it. Hosts are in canonical form, bodies are length and MD5."""

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
    """The offset of the queue entry that led to this record; -1 if it was read from the log."""

    @classmethod
    def from_row(cls, row: dict[str, Any]) -> Self:
        """Make a message of a row. A record that cannot be decoded is a `JavaError`."""
        if "undecodable" in row:
            reason = f"RocketMQ's decoder refused a record of {row['undecodable']} bytes"
            raise JavaError(reason)
        row["born_host"] = canonical_host(row["born_host"])
        row["store_host"] = canonical_host(row["store_host"])
        return cls(**row)


@dataclass(frozen=True, slots=True)
class JavaQueue:
    """One queue: its bounds, and the offset and the status at which a read to the end stopped."""

    topic: str
    queue_id: int
    min_offset: int
    max_offset: int
    next_offset: int
    status: str
    messages: int


@dataclass(frozen=True, slots=True)
class JavaView:
    """All messages in the queues of a store."""

    messages: list[JavaMessage]
    queues: list[JavaQueue]

    def by_queue(self) -> dict[tuple[str, int], list[JavaMessage]]:
        """Return the messages of each (topic, queue id), in queue order. Empty queues have an empty list."""
        grouped: dict[tuple[str, int], list[JavaMessage]] = {(q.topic, q.queue_id): [] for q in self.queues}
        for one in self.messages:
            grouped.setdefault((one.topic, one.queue_id), []).append(one)
        return grouped


class KeyQuery(NamedTuple):
    """A look-up by key, or with `kind` "T" by tag. RocketMQ has tag look-ups since 5.5.0."""

    topic: str
    key: str
    begin: int = 0
    end: int = 2**62
    most: int = 100_000
    kind: str | None = None


class TimeQuery(NamedTuple):
    """A look-up of the queue offset for a time. `boundary` is LOWER or UPPER."""

    topic: str
    queue_id: int
    time: int
    boundary: str = "LOWER"


class LogLine(NamedTuple):
    """A line that RocketMQ logged at WARN or ERROR, or the line that names the first file of recovery."""

    level: str
    logger: str
    thread: str
    message: str


TORN_TAIL = ("found a illegal magic code", "found a half message", "CRC check failed")
"""The start of RocketMQ's log line about an incomplete record at the end of the commit log, which it truncates."""


@dataclass(frozen=True, slots=True)
class OpenReport:
    """The events while RocketMQ opened a directory."""

    loaded: bool
    was_clean: bool
    seconds: float
    min_physical: int
    max_physical: int
    ha_port: int
    logs: list[LogLine] = field(repr=False)

    def recovery_start(self) -> int:
        """Return the physical offset from which recovery dispatched every record again.

        After an unclean end, RocketMQ first drops the newer index files, so its look-ups by key may miss messages below
        this offset. RocketMQ names the file where it starts, except if that is the very first one.
        """
        for line in self.logs:
            if line.message.startswith("recover from this mapped file"):
                return int(Path(line.message.split()[-1]).name)
        return max(0, self.min_physical)

    def complaints(self, *, torn_tail: bool = False) -> list[LogLine]:
        """Return the lines that a healthy directory does not cause, see `is_healthy`.

        `torn_tail` means that the last writer may have been killed in the middle of a record.
        """
        lines = [line for line in self.logs if not is_healthy(line, after_kill=not self.was_clean)]
        return [line for line in lines if not (torn_tail and line.message.startswith(TORN_TAIL))]


def is_healthy(line: LogLine, *, after_kill: bool = False) -> bool:
    """Tell whether RocketMQ logs this line even for a perfectly valid directory.

    Both versions log such lines when they reopen a directory that they wrote themselves.
    """
    text = line.message
    if line.level == "INFO":
        return True
    # Recovery after a kill dispatches records again. 5.3.3 logs each record that the queue already has. Both versions
    # log a line when the rebuilt index needs another file. If a queue ends exactly at the end of a file, both log that
    # no queue file starts there.
    end = re.match(r"Offset not matched. Request offset: (\d+), firstOffset: \d+, lastOffset: (\d+),", text)
    if after_kill and end and end[1] == end[2]:
        return True
    again = ("Maybe try to build consume queue repeatedly", "Over index file capacity", "Index file [")
    if after_kill and text.startswith(again):
        return True
    # Recovery scans the last segment to its end, which is the first place without a magic code.
    if text == "found a illegal magic code 0x0":
        return True
    # Logged on every clean open, because in the healthy state queues end exactly where the log ends. If the first
    # number is larger, entries really are truncated.
    if "truncate dirty logic files" in text:
        numbers = [int(part.split(")")[0]) for part in text.split("(")[1:]]
        return len(numbers) == 2 and numbers[0] == numbers[1]
    # Threads of a store that was shut down earlier in the same process.
    return "shutdown" in text and "interrupted" in text


@functools.lru_cache(maxsize=4096)
def canonical_host(text: str) -> str:
    """Return ``ip:port`` or ``[v6]:port`` with the address in its canonical short form."""
    address, _, port = text.rpartition(":")
    ip = ipaddress.ip_address(address.strip("[]"))
    return f"[{ip}]:{port}" if ip.version == 6 else f"{ip}:{port}"
