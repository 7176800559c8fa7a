"""Tables of the last ``make bench``: the medians of each group, and their share of the limit.

Reads the folder that criterion writes. Rows are the measured operations, columns their sizes or threads. A group
without sizes has one column. If several rows are limits, the shares refer to the row ``limit``.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any, NamedTuple

FOUND = Path(__file__).resolve().parent.parent / "target" / "criterion"
LIMIT = "limit"


class Figure(NamedTuple):
    """The result of one benchmark."""

    group: str
    row: str
    column: str
    rate: float
    """Per second."""
    unit: str


def figures(folder: Path) -> list[Figure]:
    """Read all results."""
    found = []
    for path in sorted(folder.glob("**/new/benchmark.json")):
        about = json.loads(path.read_text(encoding="utf-8"))
        median = json.loads((path.parent / "estimates.json").read_text(encoding="utf-8"))["median"]["point_estimate"]
        (unit, amount) = next(iter((about["throughput"] or {"Elements": 1}).items()))
        rate = amount * 1e9 / median
        found.append(Figure(about["group_id"], about["function_id"], about["value_str"] or "", rate, unit))
    return found


def number(text: str) -> tuple[int, str]:
    """Sort sizes as numbers."""
    return (int(text), "") if text.isdigit() else (0, text)


def table(group: str, found: list[Figure]) -> str:
    """Return the table of a group."""
    columns = sorted({figure.column for figure in found}, key=number)
    rows = sorted({figure.row for figure in found}, key=lambda row: (not row.startswith(LIMIT), row))
    at: dict[tuple[str, str], Figure] = {(figure.row, figure.column): figure for figure in found}

    def cell(row: str, column: str) -> str:
        figure = at.get((row, column))
        if figure is None:
            return ""
        limit = at.get((LIMIT, column))
        share = f" ({figure.rate / limit.rate:.0%})" if limit is not None and row != LIMIT else ""
        return rate(figure) + share

    head = [f"| `{group}` | " + " | ".join(columns) + " |", "|---" * (len(columns) + 1) + "|"]
    body = [f"| `{row}` | " + " | ".join(cell(row, column) for column in columns) + " |" for row in rows]
    return "\n".join([*head, *body])


def rate(figure: Figure) -> str:
    """Return a rate as text with few digits."""
    if figure.unit.startswith("Bytes"):
        return f"{figure.rate / 1e9:.3g} GB/s"
    if figure.rate >= 1e6:
        return f"{figure.rate / 1e6:.3g} M/s"
    return f"{figure.rate / 1e3:.3g} k/s" if figure.rate >= 1e3 else f"{figure.rate:.3g}/s"


def main() -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("groups", nargs="*", help="only these")
    given: Any = parser.parse_args()
    found = figures(FOUND)
    groups = sorted({figure.group for figure in found})
    for group in groups:
        if not given.groups or group in given.groups:
            print(table(group, [figure for figure in found if figure.group == group]), end="\n\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
