"""Medians, spreads and ratios of a run, as a table for people and as data."""

from __future__ import annotations

import re
import statistics
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    from .measure import Result, Results
    from .rows import Ratio, Row

_ROW = re.compile(r"^(?=\*\*`([^`]+)`\*\*: )", re.MULTILINE)
"""The begin of the table of a row, with the row's name."""

BEGIN, END = "<!-- bench-compare: begin -->", "<!-- bench-compare: end -->"
"""The marks around the tables in benches/RESULTS.md."""

_MACHINES = re.compile(r"(?<=<!-- machines: begin -->\n\n).*?(?=\n\n<!-- machines: end -->)", re.DOTALL)
_MACHINE = re.compile(r"^- \*\*([^*]+)\*\*: (.*)\.$", re.MULTILINE)
"""A line of the list of machines: the label and the facts."""

LATENCIES = {"p50_us": "p50_ns", "p99_us": "p99_ns", "p999_us": "p999_ns", "p9999_us": "p9999_ns", "max_us": "max_ns"}
HEADINGS = {
    "rate": "messages/s",
    "p50_us": "p50, µs",
    "p99_us": "p99, µs",
    "p999_us": "p99.9, µs",
    "p9999_us": "p99.99, µs",
    "max_us": "max, µs",
    "device_bytes_per_log_byte": "disk bytes per log byte",
    "gb_per_s": "GB/s",
    "taken_ms": "ms",
    "overhead_bytes": "bytes beyond the body",
    "requests": "requests",
    "mib": "MiB",
    "per_byte": "bytes for each byte of the files",
    "per_range": "requests for each 8 MiB of the files",
    "per_entry": "bytes beyond 64 KiB for each 20 bytes of the queue",
    "build_ms": "build, ms",
    "close_ms": "close, ms",
    "open_ms": "open, ms",
    "close_active_ms": "close after 100 were used, ms",
    "open_active_ms": "open after that, ms",
    "read_ms": "read all, ms",
    "descriptors": "descriptors",
    "resident_mib": "memory of its own, MiB",
    "after_kill_ms": "after a kill, ms",
    "after_close_ms": "after a close, ms",
}


def figure(name: str, result: Result) -> float | None:
    """Return one figure of one measurement, or None if the measurement does not have it."""
    value: float | None
    if name == "rate":
        value = result["messages"] / result["seconds"] if "messages" in result and "seconds" in result else None
    elif name in LATENCIES:
        nanos = result.get("latency", {}).get(LATENCIES[name])
        value = None if nanos is None else nanos / 1e3
    elif name == "device_bytes_per_log_byte":
        value = result["device_bytes"] / result["log_bytes"] if "device_bytes" in result else None
    else:
        value = result.get(name)
    return value


def _values(name: str, results: list[Result]) -> list[float]:
    return [value for result in results if (value := figure(name, result)) is not None]


def median(name: str, results: list[Result]) -> float | None:
    """Return the median of a figure over the rounds."""
    values = _values(name, results)
    return statistics.median(values) if values else None


def summary(row: Row, results: Results) -> dict[str, Any]:
    """Return the row's medians and spreads by contender, and the ratios of its sides."""
    sides = {}
    for contender, measured in results.items():
        figures = {}
        for name in row.figures:
            values = _values(name, measured)
            if values:
                figures[name] = {"median": statistics.median(values), "min": min(values), "max": max(values)}
        sides[contender] = figures
    ratios = [_ratio(ratio, results) for ratio in row.ratios]
    return {"title": row.title, "sides": sides, "ratios": ratios}


def _ratio(ratio: Ratio, results: Results) -> dict[str, Any]:
    over = median(ratio.figure, results.get(ratio.over, []))
    under = median(ratio.under_figure or ratio.figure, results.get(ratio.under, []))
    name = f"{ratio.over} / {ratio.under}"
    if ratio.under_figure:
        name += f", {HEADINGS[ratio.figure]} / {HEADINGS[ratio.under_figure]}"
    elif ratio.figure != "rate":
        name += f", {HEADINGS[ratio.figure]}"
    return {"text": name, "found": None if over is None or not under else over / under}


def _number(value: float) -> str:
    if abs(value) >= 1000:
        return f"{value:,.0f}"
    return f"{value:.3g}" if abs(value) < 10 else f"{value:.1f}"


def _ratio_text(ratio: dict[str, Any]) -> str:
    return f"{ratio['text']}: {'not measured' if ratio['found'] is None else _number(ratio['found'])}"


def _cell(figures: dict[str, dict[str, float]], name: str) -> str:
    if name not in figures:
        return "-"
    one = figures[name]
    return f"{_number(one['median'])} ({_number(one['min'])} to {_number(one['max'])})"


def text(row: Row, found: dict[str, Any]) -> str:
    """Return the row for a terminal."""
    lines = [f"{row.name}: {found['title']}"]
    width = max(len(contender) for contender in found["sides"])
    for contender, figures in found["sides"].items():
        cells = "  ".join(f"{HEADINGS[name]} {_cell(figures, name)}" for name in row.figures if name in figures)
        lines.append(f"  {contender:<{width}}  {cells or 'not measured'}")
    lines += [f"  {_ratio_text(ratio)}" for ratio in found["ratios"]]
    return "\n".join(lines)


def into_page(page: Path, tables: dict[str, str], names: list[str]) -> None:
    """Put tables of rows between the two marks of a page, in the order of `names`, which is the list of all rows.

    Rows that only the page has are kept. Each table names the label of its machine. Compare figures within a table, not
    between tables.
    """
    before, _, rest = page.read_text().partition(BEGIN)
    inside, mark, after = rest.partition(END)
    if not mark:
        reason = f"{page} has no {BEGIN} with {END} after it"
        raise ValueError(reason)
    _, *kept = _ROW.split(inside)
    old = dict(zip(kept[::2], kept[1::2], strict=True))
    parts = {name: text.strip() for name, text in (old | tables).items() if name in names}
    body = "\n\n".join(parts[name] for name in sorted(parts, key=names.index))
    page.write_text(f"{before}{BEGIN}\n\n{body}\n\n{END}{after}")


def label_machine(page: Path, facts: dict[str, str]) -> str:
    """Return the label under which the page lists the machine with these facts; a new machine is added to the list.

    A run without Java does not know the versions of Java, RocketMQ and Kafka. So facts that only one of both has do not
    count.
    """
    text = page.read_text()
    inside = _MACHINES.search(text)
    if not inside:
        reason = f"{page} has no list of machines"
        raise ValueError(reason)
    machines = {
        label: dict(fact.split(": ", 1) for fact in line.split("; ")) for label, line in _MACHINE.findall(inside[0])
    }
    vendor = facts["processor"].partition("(")[0].split()[0]
    number = 1 + sum(label.startswith(f"{vendor}-") for label in machines)
    same = (
        label
        for label, known in machines.items()
        if all(known.get(name, value) == value for name, value in facts.items())
    )
    label = next(same, f"{vendor}-{number}")
    machines[label] = machines.get(label, {}) | facts
    lines = "\n".join(f"- **{label}**: {facts_text(known)}" for label, known in machines.items())
    page.write_text(text[: inside.start()] + lines + text[inside.end() :])
    return label


def facts_text(facts: dict[str, str]) -> str:
    """Return the facts of a machine as one sentence."""
    return "; ".join(f"{name}: {value}" for name, value in facts.items()) + "."


def tables(rows: list[Row], found: dict[str, dict[str, Any]], end: str) -> dict[str, str]:
    """Return each measured row as Markdown, followed by the sentence `end`."""
    return {row.name: _table(row, found[row.name], end) for row in rows if row.name in found}


def _table(row: Row, found: dict[str, Any], note: str) -> str:
    lines = [f"**`{row.name}`**: {found['title']}", ""]
    lines.append("| Side | " + " | ".join(HEADINGS[name] for name in row.figures) + " |")
    lines.append("|---|" + "---|" * len(row.figures))
    for contender, figures in found["sides"].items():
        lines.append(f"| {contender} | " + " | ".join(_cell(figures, name) for name in row.figures) + " |")
    if found["ratios"]:
        lines += ["", *(f"- {_ratio_text(ratio)}" for ratio in found["ratios"])]
    return "\n".join([*lines, "", note])


def markdown(parts: dict[str, str]) -> str:
    """Return the whole run as Markdown."""
    return "\n\n".join(parts.values()) + "\n"
