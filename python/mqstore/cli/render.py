"""Output of values: the stable machine formats, and text for people."""

from __future__ import annotations

import base64
import json
import select
import sys
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Any

from mqstore import _native

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from mqstore import Progress, Store, StoredMessage


class Format(StrEnum):
    """Format of an output."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"


class Body(StrEnum):
    """Form of a body in the machine formats."""

    BASE64 = "base64"
    TEXT = "text"
    NONE = "none"


# Names of the machine format before the body, in order.
_FIELDS = (
    "topic",
    "queue_id",
    "queue_offset",
    "commit_log_offset",
    "size",
    "message_id",
    "unique_id",
    "keys",
    "tags",
    "properties",
    "flag",
    "sys_flag",
    "born_timestamp",
    "born_host",
    "store_timestamp",
    "store_host",
    "reconsume_times",
    "prepared_transaction_offset",
    "body_crc",
)

# Columns of the longest bar in a chart.
_BAR_WIDTH = 40

# Bytes of a body in a line for people.
_PREVIEW_BYTES = 60


def note(text: str) -> None:
    """Prints a note about the work, not about its result, to stderr."""
    print(f"mqstore: {text}", file=sys.stderr)


def dump(value: object, *, indent: int | None = None) -> str:
    """Returns JSON in pure ASCII."""
    return json.dumps(value, ensure_ascii=True, indent=indent, allow_nan=False)


def message_object(message: StoredMessage, body: Body, store: Store | None = None) -> dict[str, Any]:
    """Returns a message as a JSON object; every name is present, `null` if it has no value.

    The body is decompressed. If that fails, the object has the stored bytes and `body_error`. A record of a broker's
    pop gets `pop`. A record of delays or transactions gets `system`, with the delay levels of `store`, or RocketMQ's if
    `store` is None.
    """
    found: dict[str, Any] = {name: getattr(message, name) for name in _FIELDS}
    error = None
    try:
        content: bytes = message.body
    except ValueError as failure:
        content, error = bytes(message.body_view), str(failure)
    found["body_size"] = len(content)
    if body is Body.BASE64:
        found["body_base64"] = base64.b64encode(content).decode("ascii")
    elif body is Body.TEXT:
        found["body_text"] = content.decode("utf-8", "replace")
    if error is not None:
        found["body_error"] = error
    if (popped := _native.pop_record(message)) is not None:
        found["pop"] = popped
    if (waiting := _native.waiting_record(message, store)) is not None:
        found["system"] = waiting
    return found


def message_line(message: StoredMessage, body: Body, store: Store) -> str:
    """Returns a message as one line for people."""
    parts = [
        moment(message.store_timestamp),
        f"{plain(message.topic)}/{message.queue_id}",
        str(message.queue_offset),
        f"tags={plain(message.tags or '-')}",
        f"keys={plain(' '.join(message.keys) or '-')}",
    ]
    if (popped := _native.pop_record(message)) is not None:
        parts.append(_popped(popped))
    elif (waiting := _native.waiting_record(message, store)) is not None:
        parts.append(_waiting(waiting))
    elif body is not Body.NONE:
        try:
            content = message.body
        except ValueError:
            content = bytes(message.body_view)
        shown = plain(content[:_PREVIEW_BYTES].decode("utf-8", "replace"))
        parts.append(shown if len(content) <= _PREVIEW_BYTES else f"{shown}... ({len(content)} bytes)")
    return "  ".join(parts)


def _popped(popped: dict[str, Any]) -> str:
    """Describes a record of a broker's pop for people."""
    offsets = " ".join(str(offset) for offset in popped["offsets"])
    text = f"{popped['kind']} of {plain(popped['topic'])}/{popped['queue_id']} for {plain(popped['group'])}: {offsets}"
    if popped["revive_timestamp"] is not None:
        text += f", until {moment(popped['revive_timestamp'])}"
    if popped["acked_offsets"]:
        text += f", acknowledged before: {' '.join(str(offset) for offset in popped['acked_offsets'])}"
    return text


def _waiting(record: dict[str, Any]) -> str:
    """Describes a record of delays or transactions for people."""
    kind = record["kind"]
    if kind == "decision":
        decided = record["decision"] or "decided"
        return f"{decided}: {' '.join(str(offset) for offset in record['half_offsets'])}"
    queue = "-" if record["queue_id"] is None else record["queue_id"]
    text = f"{kind.replace('_', ' ')} {plain(record['topic'] or '-')}/{queue}"
    if record["level"] is not None:
        text += f" level {record['level']}"
    if record["due_timestamp"] is not None:
        text += f" due {moment(record['due_timestamp'])}"
    if record["cancels"] is not None:
        text += f" of {plain(record['cancels'])}"
    if record["transaction_id"] is not None:
        group, transaction = plain(record["producer_group"]), plain(record["transaction_id"])
        text += f" of {group}, transaction {transaction}, asked {record['checks']} times"
    return text


def machine(found: dict[str, Any] | list[dict[str, Any]], form: Format) -> bool:
    """Prints a result in a machine format. Returns False without output if `form` is for people."""
    if form is Format.JSON:
        document(found)
    elif form is Format.JSONL:
        lines(found if isinstance(found, list) else [found])
    return form is not Format.TABLE


def messages(store: Store, found: Iterable[StoredMessage], form: Format, body: Body) -> None:
    """Prints messages of `store` one by one."""
    if form is Format.JSON:
        _array(store, found, body)
        return
    write = sys.stdout.write
    for message in found:
        line = (
            message_line(message, body, store) if form is Format.TABLE else dump(message_object(message, body, store))
        )
        write(line + "\n")


def nobody_reads() -> bool:
    """Returns whether standard output is a pipe whose reader has closed it."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def _array(store: Store, found: Iterable[StoredMessage], body: Body) -> None:
    write = sys.stdout.write
    before = "[\n"
    for message in found:
        write(before + dump(message_object(message, body, store)))
        before = ",\n"
    write("[]\n" if before == "[\n" else "\n]\n")


def document(value: object) -> None:
    """Prints one JSON document."""
    sys.stdout.write(dump(value, indent=2) + "\n")


def lines(values: Iterable[object]) -> None:
    """Prints one JSON object per line."""
    for value in values:
        sys.stdout.write(dump(value) + "\n")


def pairs(values: Sequence[tuple[str, object]]) -> None:
    """Prints names and values in two columns."""
    width = max(len(name) for name, _ in values)
    for name, value in values:
        sys.stdout.write(f"{name:<{width}}  {plain(str(value))}\n")


def table(headings: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Prints a table. If the output is not a terminal, nothing is cut or wrapped."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        grid.add_column(heading, overflow="fold")
    for row in rows:
        grid.add_row(*(Text(plain(str(cell)), justify="right" if isinstance(cell, int) else "left") for cell in row))
    console = Console() if sys.stdout.isatty() else Console(width=1 << 16, color_system=None, legacy_windows=False)
    console.print(grid)


@contextmanager
def progress(what: str = "reading the log", *, share: bool = False) -> Iterator[Callable[[Progress], None] | None]:
    """Yields the callback of a progress bar on stderr, in bytes or as a `share`; None if stderr is not a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import DownloadColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    units = [] if share else [DownloadColumn(binary_units=True), TransferSpeedColumn()]
    columns = (*Bar.get_default_columns(), *units)
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda step: bar.update(task, completed=step.done, total=step.total or None)


def plain(text: str) -> str:
    """Returns text without control characters for a terminal."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


def size(number: int) -> str:
    """Returns a number of bytes for people."""
    if number < 1024:
        return f"{number} B"
    power = min((number.bit_length() - 1) // 10, 6)
    return f"{number / (1 << 10 * power):.1f} {'KMGTPE'[power - 1]}iB"


def moment(milliseconds: int) -> str:
    """Returns a time in ISO 8601, UTC."""
    from mqstore._times import time_of

    try:
        return time_of(milliseconds).isoformat(timespec="milliseconds")
    except OverflowError:
        return str(milliseconds)


def hour(milliseconds: int) -> str:
    """Returns the hour that begins at this time, UTC."""
    return moment(milliseconds)[: len("2026-01-31T12:00")]


def bar(value: int, most: int) -> str:
    """Returns a bar with the length of `value` relative to `most`; never empty for a positive value."""
    eighths = -(-value * _BAR_WIDTH * 8 // most) if most else 0
    if not (sys.stdout.encoding or "").lower().startswith("utf"):
        return "#" * -(-eighths // 8)
    whole, rest = divmod(eighths, 8)
    return "█" * whole + " ▏▎▍▌▋▊▉"[rest].strip()
