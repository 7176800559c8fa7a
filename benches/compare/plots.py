"""Plots for the documentation, as SVG: of curves, and of the tables in benches/RESULTS.md.

``python -m benches.compare.plots`` draws the latter again and writes the figures of README.md. Needs matplotlib
(`pip install --group bench`).
"""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING, Any, TypeAlias

from .sides import ROOT

if TYPE_CHECKING:
    from pathlib import Path

    from matplotlib.axes import Axes

PAGE, FRONT_PAGE = ROOT / "benches" / "RESULTS.md", ROOT / "README.md"
PLOTS, DOCS_PLOTS = ROOT / "benches" / "plots", ROOT / "docs" / "plots"
OURS, JAVA = "mqstore", "java"
BLUE, GREY, ORANGE = "#2f6f9f", "#9aa5ad", "#c8622d"
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
LIBRARIES = ("rocksdict", "plyvel", "lmdb", "sqlite3", "file")
FRONT = {
    "sustained-1k": ("append 1 KiB while queues and index are built", (JAVA, "java tuned")),
    "sync-64": ("64 threads, each append synced before it returns", (JAVA, "java tuned")),
    "read-sequential": ("read a queue in order", (JAVA,)),
    "read-random": ("read at random offsets", (JAVA,)),
    "lookup": ("find a message by its key", (JAVA,)),
    "rebuild": ("rebuild queues and index from the log", (JAVA,)),
    "compact-1k": ("compact a topic, 1 KiB", (JAVA,)),
    "others-compact": ("compact a topic, compared with Kafka's log cleaner", ("kafka",)),
    "others-append-many": ("append a thousand messages a call", ("kafka",)),
    "py-append": ("Python: append, one message a call", LIBRARIES),
    "py-append-many": (
        "Python: append, a thousand messages a call",
        LIBRARIES,
    ),
    "py-durable": ("Python: append, one message a call, synced", LIBRARIES),
    "py-iterate": ("Python: iterate", LIBRARIES),
    "py-work": ("Python: put, get and acknowledge a job", ("lmdb", "sqlite3", "litequeue", "persist-queue")),
    "spark-compact": ("Spark: compact 500,000 messages", ("log parsed in Python, window",)),
}
"""Rows of the front page: the operation, and the other sides. Of several other sides, the fastest one counts."""
CELL = re.compile(r"([\d,.]+) \(([\d,.]+) to ([\d,.]+)\)")


Tables: TypeAlias = "dict[str, tuple[str, dict[str, tuple[float, float, float]]]]"
"""For each row: its title, and the rates of its sides (median, smallest, largest)."""


def prepared() -> Any:
    """Return matplotlib's drawing module, configured for small files that are the same in each run."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "mqstore", "font.size": 9, "axes.spines.top": False})
    from matplotlib import pyplot as plt

    return plt


def saved(figure: Any, path: Path) -> None:
    """Write a figure."""
    path.parent.mkdir(exist_ok=True)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None, "Creator": None})
    # Blanks at the ends of matplotlib's lines would change in each commit.
    path.write_text("\n".join(map(str.rstrip, path.read_text(encoding="utf-8").splitlines())) + "\n", encoding="utf-8")


def curve_plot(path: Path, title: str, axis: str, units: dict[str, str], points: list[dict[str, Any]]) -> None:
    """Draw the figures of a curve, one picture for each unit, with logarithmic axes."""
    plt = prepared()
    names = list(points[0]["figures"])
    kinds = list(dict.fromkeys(units[name] for name in names))
    figure, drawn = plt.subplots(1, len(kinds), figsize=(4.2 * len(kinds), 3.4), squeeze=False)
    for area, kind in zip(drawn[0], kinds, strict=True):
        for name in (name for name in names if units[name] == kind):
            line(area, name.removesuffix(f", {kind}"), [(point["at"], point["figures"][name]) for point in points])
        area.set(xscale="log", yscale="log", xlabel=axis, ylabel=kind)
        area.grid(visible=True, which="major", color="#dddddd", linewidth=0.5)
        area.legend(frameon=False, fontsize=8)
    figure.suptitle(title, fontsize=10)
    saved(figure, path)
    plt.close(figure)


def line(area: Axes, name: str, points: list[tuple[float, dict[str, float]]]) -> None:
    """Draw medians and their spread."""
    middle = [figure["median"] for _, figure in points]
    below = [figure["median"] - figure["min"] for _, figure in points]
    above = [figure["max"] - figure["median"] for _, figure in points]
    area.errorbar(
        [at for at, _ in points], middle, yerr=[below, above], label=name, marker="o", markersize=3, capsize=2
    )


def number(text: str) -> float:
    """Read a number of a table."""
    return float(text.replace(",", ""))


def tables(page: str) -> Tables:
    """Return, for each row of the comparison, its title and the rates of its sides: median, smallest, largest."""
    found = {}
    for name, title, body in re.findall(r"^\*\*`([^`]+)`\*\*: ([^\n]+)\n\n((?:\|[^\n]*\n)+)", page, re.MULTILINE):
        head, _, *lines = body.splitlines()
        if "messages/s" not in head:
            continue
        at = [cell.strip() for cell in head.split("|")].index("messages/s")
        sides = {}
        for each in lines:
            cells = [cell.strip() for cell in each.split("|")]
            if rates := CELL.fullmatch(cells[at]):
                sides[cells[1]] = tuple(number(rate) for rate in rates.groups())
        found[name] = (title, sides)
    return found


def times_java(found: Tables) -> None:
    """Draw mqstore's rate as a multiple of Java's, for each row that has both."""
    rows = [(name, sides) for name, (_, sides) in found.items() if OURS in sides and JAVA in sides]
    plt = prepared()
    figure, area = plt.subplots(figsize=(7, 0.26 * len(rows) + 1))
    names = [name for name, _ in rows]
    ratios = [sides[OURS][0] / sides[JAVA][0] for _, sides in rows]
    lowest = [sides[OURS][1] / sides[JAVA][2] for _, sides in rows]
    highest = [sides[OURS][2] / sides[JAVA][1] for _, sides in rows]
    spread = [
        [middle - low for middle, low in zip(ratios, lowest, strict=True)],
        [high - middle for middle, high in zip(ratios, highest, strict=True)],
    ]
    area.barh(names, ratios, xerr=spread, color=BLUE, ecolor=GREY, height=0.65)
    area.axvline(1, color=ORANGE, linewidth=1)
    area.invert_yaxis()
    area.set(xlabel="mqstore's rate divided by the Java store's rate", xscale="log")
    area.set_xticks([1, 2, 5, 10, 20], ["1", "2", "5", "10", "20"])
    saved(figure, PLOTS / "java.svg")
    plt.close(figure)


def peers(found: Tables) -> None:
    """Draw the rates for Python programs, of mqstore and of the other libraries."""
    rows = [
        (title.removeprefix("Python, 1 KiB: "), sides) for name, (title, sides) in found.items() if name[:3] == "py-"
    ]
    if not rows:
        return
    plt = prepared()
    heights = [len(sides) + 1.5 for _, sides in rows]
    figure, areas = plt.subplots(
        len(rows), 1, figsize=(7, 0.24 * sum(heights)), height_ratios=heights, squeeze=False, sharex=True
    )
    for area, (title, sides) in zip(areas[:, 0], rows, strict=True):
        ordered = sorted(sides.items(), key=lambda side: -side[1][0])
        spread = [[rate[0] - rate[1] for _, rate in ordered], [rate[2] - rate[0] for _, rate in ordered]]
        colours = [BLUE if side == OURS else GREY for side, _ in ordered]
        rates = [rate[0] for _, rate in ordered]
        area.barh([side for side, _ in ordered], rates, xerr=spread, color=colours, ecolor="#555555", height=0.65)
        area.invert_yaxis()
        area.set_title(title, fontsize=9, loc="left")
        area.set(xscale="log")
    areas[-1, 0].set_xlabel("messages a second")
    saved(figure, PLOTS / "python.svg")
    plt.close(figure)


def short(value: float) -> str:
    """Return a rate as text with few digits."""
    return f"{value / 1e6:.2f} M/s" if value >= 1e6 else f"{value:,.0f}/s" if value < 1e4 else f"{value / 1e3:,.0f} k/s"


def front(found: Tables) -> str:
    """Return the front page's table."""
    lines = ["| | mqstore | fastest other | ratio |", "|---|---|---|---|"]
    for what, ours, rate, other in answers(found):
        lines.append(f"| {what} | {short(ours)} | {other}: {short(rate)} | {ours / rate:.1f} x |")
    return "\n".join(lines)


def answers(found: Tables) -> list[tuple[str, float, float, str]]:
    """Return the rows of the front page: the operation, mqstore's rate, the fastest other rate, and its name."""
    rows = []
    for name, (what, others) in FRONT.items():
        sides = found.get(name, ("", {}))[1]
        ours = next((rate for side, rate in sides.items() if side.startswith(OURS)), None)
        beside = [(sides[other][0], other) for other in others if other in sides]
        if ours is not None and beside:
            rows.append((what, ours[0], *max(beside)))
    return rows


def ratios(found: Tables) -> None:
    """Draw mqstore's rate as a multiple of the fastest other rate, for each row of the front page."""
    rows = answers(found)
    plt = prepared()
    figure, area = plt.subplots(figsize=(7, 0.3 * len(rows) + 1))
    times = [ours / rate for _, ours, rate, _ in rows]
    names = [f"{what} ({other.partition(',')[0]})" for what, _, _, other in rows]
    area.barh(names, times, color=[BLUE if ratio >= 1 else GREY for ratio in times], height=0.65)
    area.axvline(1, color=ORANGE, linewidth=1)
    area.invert_yaxis()
    area.set(xlabel="mqstore's rate divided by the fastest other rate", xscale="log")
    area.set_xticks([0.5, 1, 2, 5, 10], ["0.5", "1", "2", "5", "10"])
    saved(figure, DOCS_PLOTS / "ratios.svg")
    plt.close(figure)


def main() -> int:
    """Draw the plots of the page, and write the figures of the front page."""
    found = tables(PAGE.read_text(encoding="utf-8"))
    ratios(found)
    times_java(found)
    peers(found)
    before, mark, rest = FRONT_PAGE.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    assert mark, f"{FRONT_PAGE} has no {BEGIN}"
    assert end, f"{FRONT_PAGE} has no {END}"
    FRONT_PAGE.write_text(f"{before}{mark}\n\n{front(found)}\n\n{end}{after}", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
