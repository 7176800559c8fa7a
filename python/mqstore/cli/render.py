"""Output of values: the stable machine formats, and text for people.

Notes that the library gives as warnings are printed after the result, except in a verb that has no end.
"""

from __future__ import annotations

import base64
import json
import select
import shutil
import sys
from contextlib import contextmanager
from enum import StrEnum
from typing import TYPE_CHECKING, Any

import typer

from mqstore import _native
from mqstore._admin.tables import grid, human, label, moment
from mqstore._dicts import is_text, message_dict
from mqstore._reports import json_form
from mqstore.cli.status import CLEAN, USAGE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from mqstore import Progress, Store, StoredMessage
    from mqstore._reports import _Report


class Format(StrEnum):
    """Format of an output."""

    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"


class Body(StrEnum):
    """Form of a body. `AUTO` is text if the body is UTF-8, else base64."""

    AUTO = "auto"
    BASE64 = "base64"
    TEXT = "text"
    NONE = "none"


# Names that the table form of a single message adds, in order.
_DETAILS = (
    "message_id", "unique_id", "commit_log_offset", "born_timestamp", "born_host", "store_timestamp", "store_host",
    "reconsume_times",
)  # fmt: skip

# Columns of the longest bar in a chart.
_BAR_WIDTH = 40

# Properties that the line of a message shows in another form.
_SHOWN_PROPERTIES = ("KEYS", "TAGS")

# Notes that wait for the end of the verb; each has one entry.
_waiting_notes: dict[str, None] = {}


def note(text: str) -> None:
    """Prints a note about the work, not about its result, to stderr."""
    print(f"mqstore: {text}", file=sys.stderr)


def note_later(text: str) -> None:
    """Prints a note after the result of the verb: see `print_notes`."""
    _waiting_notes[text] = None


def print_notes() -> None:
    """Prints the notes that waited for the end of the result."""
    while _waiting_notes:
        text = next(iter(_waiting_notes))
        del _waiting_notes[text]
        note(text)


def note_dry_run() -> None:
    """Says, after the result, that nothing was changed."""
    note_later("this was a dry run: nothing was changed")


def counted(number: int, noun: str, plural: str | None = None) -> str:
    """Returns a number with its noun: "1 segment", "2 segments". The default of `plural` adds an "s"."""
    return f"{number} {noun}" if number == 1 else f"{number} {plural or noun + 's'}"


def confirmed(question: str, otherwise: str, *, yes: bool) -> bool:
    """Returns whether to make a change: `yes` says so, or the user does. Another answer of the user ends the program.

    If the input is no terminal, it prints the note `otherwise`, which names the change and `--yes`.
    """
    if yes:
        return True
    if not sys.stdin.isatty():
        note(otherwise)
        return False
    return typer.confirm(question, abort=True, err=True)


def dump(value: object, *, indent: int | None = None) -> str:
    """Returns JSON in pure ASCII."""
    return json.dumps(value, ensure_ascii=True, indent=indent, allow_nan=False)


def message_text(message: StoredMessage, body: Body, store: Store | None, width: int | None) -> str:
    """Returns a whole message for people.

    It is one line if `width` is None or the line has at most so many columns. Otherwise the position, the keys and
    properties, and the body begin on lines of their own, and longer lines are folded.
    """
    head = [moment(message.store_timestamp), f"{plain(message.topic)}/{message.queue_id}", str(message.queue_offset)]
    facts = [f"tags={plain(message.tags or '-')}", f"keys={plain(' '.join(message.keys) or '-')}"]
    facts += [
        f"{plain(name)}={plain(value)}"
        for name, value in message.properties.items()
        if name not in _SHOWN_PROPERTIES and not _native.is_reserved(name)
    ]
    content = _content(message, body, store)
    whole = "  ".join([*head, *facts, *content])
    if width is None:
        return whole
    from rich.cells import cell_len

    if cell_len(whole) <= width:
        return whole
    lines = ["  ".join(head), "  ".join(facts), *content]
    return "\n".join(_folded(lines[0], width) + [line for text in lines[1:] for line in _folded(text, width, "    ")])


def details(message: StoredMessage) -> None:
    """Prints the position, the ids, hosts and times of a message in two columns."""
    facts({name: getattr(message, name) for name in _DETAILS})


def _content(message: StoredMessage, body: Body, store: Store | None) -> list[str]:
    """Returns the content of a message for people: nothing, or one text."""
    if (popped := _native.pop_record(message)) is not None:
        return [_popped(popped)]
    if (waiting := _native.waiting_record(message, store)) is not None:
        return [_waiting(waiting)]
    if body is Body.NONE:
        return []
    try:
        content = message.body
    except ValueError:
        content = bytes(message.body_view)
    if body is Body.BASE64 or (body is Body.AUTO and not is_text(content)):
        return [base64.b64encode(content).decode("ascii")]
    return [plain(content.decode("utf-8", "replace"))]


def _folded(text: str, width: int, indent: str = "") -> list[str]:
    """Returns text in lines of at most `width` columns."""
    from rich.cells import chop_cells

    return [indent + line for line in chop_cells(text, max(width - len(indent), 10))] or [""]


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


def confirm_plan(
    show: Callable[[], None], form: Format, question: str, otherwise: str, *, changes: bool, dry_run: bool, yes: bool
) -> int | None:
    """Shows the plan of a verb and asks whether to make its changes: see `confirmed`.

    Returns the exit status if the verb ends here: a dry run, no changes, or no consent. None makes the changes.
    """
    if dry_run or not changes:
        show()
        if dry_run:
            note_dry_run()
        return CLEAN
    if form is Format.TABLE:
        show()
    return None if confirmed(question, otherwise, yes=yes) else USAGE


def machine(found: Any, form: Format) -> bool:
    """Prints a report, several reports, or the JSON form of one, in a machine format.

    Returns False without output if `form` is for people.
    """
    if form is Format.JSON:
        document(json_form(found))
    elif form is Format.JSONL:
        values = json_form(found)
        lines(values if isinstance(values, list) else [values])
    return form is not Format.TABLE


def messages(
    store: Store, found: Iterable[StoredMessage], form: Format, body: Body, more: dict[str, str] | None = None
) -> None:
    """Prints messages of `store` one by one; JSON lines begin with the members of `more`."""
    if form is Format.JSON:
        array(message_dict(message, body.value, store) for message in found)
        return
    write = sys.stdout.write
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    for message in found:
        if form is Format.TABLE:
            write(message_text(message, body, store, width) + "\n")
        else:
            write(dump({**(more or {}), **message_dict(message, body.value, store)}) + "\n")


def nobody_reads() -> bool:
    """Returns whether standard output is a pipe whose reader has closed it."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def array(values: Iterable[object]) -> None:
    """Prints one JSON list, with an element on each line."""
    write = sys.stdout.write
    before = "[\n"
    for value in values:
        write(before + dump(value))
        before = ",\n"
    write("[]\n" if before == "[\n" else "\n]\n")


def document(value: object) -> None:
    """Prints one JSON document."""
    sys.stdout.write(dump(value, indent=2) + "\n")


def lines(values: Iterable[object]) -> None:
    """Prints one JSON object per line."""
    for value in values:
        sys.stdout.write(dump(value) + "\n")


def result(found: _Report, form: Format, *but: str) -> None:
    """Prints a report: in a machine format, or its fields for people without those in `but`."""
    if not machine(found, form):
        report(found.to_dict(), *but)


def facts(values: dict[str, Any]) -> None:
    """Prints values in two columns, with the units of their names."""
    pairs([(label(name), _fact(name, value)) for name, value in values.items()])


def report(values: dict[str, Any], *but: str) -> None:
    """Prints the fields of a report in two columns, except those in `but`, with their units."""
    facts({name: value for name, value in values.items() if name not in ("dry_run", *but)})


def _fact(name: str, value: object) -> object:
    if isinstance(value, dict | list):
        return dump(value) if value else "-"
    return human(name, value)


def pairs(values: Sequence[tuple[str, object]]) -> None:
    """Prints names and values in two columns."""
    width = max(len(name) for name, _ in values)
    for name, value in values:
        sys.stdout.write(f"{name:<{width}}  {plain(str(value))}\n")


def listing(items: Iterable[Any], *names: str, **titles: str) -> None:
    """Prints a table with a row for each report in `items`: the fields `names`, with their units.

    The headings are the names of the fields, except those in `titles`.
    """
    table(*grid(items, names, {"queue_id": "queue", **titles}))


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
