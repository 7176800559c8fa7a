"""``python -m benches.compare``: the program of `make bench-compare`.

Prints a table and writes it as Markdown and JSON; the JSON has every single measurement. The exit status says whether
everything ran.
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from . import machine, report
from .measure import Bench, Results
from .others_rows import OTHERS_ROWS
from .python_rows import PYTHON_ROWS
from .rows import ROWS, Row
from .sides import HERE, JVMS, KAFKA_VERSION, ROOT, VERSION, MeasureError, Programs
from .spark_rows import spark_rows
from .url_rows import url_rows

IN_MEMORY = ("tmpfs", "ramfs", "devtmpfs")
PATH_OPTIONS = ("--folder", "--output", "--program")
SAID_BY_THE_TABLE = ("--rows", "--rounds")
"""Options whose values a table in benches/RESULTS.md has anyway."""
ROOM_BYTES = 24 << 30
QUICK_ROOM_BYTES = 8 << 30


def main() -> int:
    """Run the rows that the command line selects."""
    arguments = _arguments()
    there = (
        ROWS + OTHERS_ROWS + PYTHON_ROWS + spark_rows(arguments.spark_records) + url_rows(5 if arguments.full else 1)
    )
    rows = _chosen(there, arguments.rows)
    if arguments.list:
        for row in there:
            print(f"{row.name:<20}{row.title}")
        return 0
    # If a signal ends the program, it still removes its files.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    arguments.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="mqstore-compare-", dir=arguments.folder) as name:
        scratch = Path(name)
        _check(scratch, quick=arguments.quick)
        try:
            return _run(arguments, there, rows, scratch)
        except MeasureError as error:
            print(error, file=sys.stderr)
            return 1


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make bench-compare ARGS=…", description=__doc__.splitlines()[0])
    parser.add_argument("--rows", default="", help="names of rows, separated by commas; all by default")
    parser.add_argument("--list", action="store_true", help="print the rows and end")
    parser.add_argument("--sides", default="", help="only sides whose name begins with one of these, by commas")
    parser.add_argument("--rounds", type=int, default=None, help="turns of each side; 5 by default")
    parser.add_argument("--quick", action="store_true", help="a twentieth of the work and 2 rounds: does it run?")
    parser.add_argument("--no-java", action="store_true", help="all but RocketMQ; needs no Maven")
    parser.add_argument("--spark-records", type=int, default=500_000, help="messages of the store of the rows spark-*")
    parser.add_argument("--full", action="store_true", help="a store of 5 GB instead of 1 GB for the rows url-*")
    parser.add_argument("--program", type=Path, help="a built mqstore-compare, to measure another version than this")
    parser.add_argument("--rest", type=float, default=1.0, help="seconds of quiet before each measurement")
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()), help="where stores are made, on a real disk"
    )
    parser.add_argument(
        "--docs", action="store_true", help="replace the tables of these rows in benches/RESULTS.md as well"
    )
    parser.add_argument("--output", type=Path, default=HERE / "results", help="folder of the JSON and the Markdown")
    return parser.parse_args()


def _chosen(there: tuple[Row, ...], names: str) -> list[Row]:
    wanted = [name for name in names.split(",") if name]
    unknown = set(wanted) - {row.name for row in there}
    if unknown:
        sys.exit(f"no such row: {', '.join(sorted(unknown))}; --list prints them")
    return [row for row in there if not wanted or row.name in wanted]


def _check(scratch: Path, *, quick: bool) -> None:
    kind = machine.file_system(scratch)
    if kind in IN_MEMORY:
        sys.exit(f"{scratch} is in memory ({kind}); give a folder on a disk: --folder")
    room = QUICK_ROOM_BYTES if quick else ROOM_BYTES
    if machine.free_bytes(scratch) < room:
        sys.exit(f"{scratch} has less than {room >> 30} GiB free; give another folder: --folder")


def _run(arguments: argparse.Namespace, there: tuple[Row, ...], rows: list[Row], scratch: Path) -> int:
    rounds = arguments.rounds or (2 if arguments.quick else 5)
    programs = Programs(scratch, java=not arguments.no_java, rust=arguments.program)
    facts = machine.describe(scratch) | _versions(programs, java=not arguments.no_java)
    bench = Bench(programs, scratch, quick=arguments.quick, rest=arguments.rest)
    measured: dict[str, Results] = {}
    found: dict[str, dict[str, Any]] = {}
    taken = ""
    for row in rows:
        print(f"{row.name} …", file=sys.stderr)
        contenders = tuple(
            contender
            for contender in row.contenders
            if not (arguments.no_java and contender.driver in JVMS)
            and contender.name.startswith(tuple(arguments.sides.split(",")))
        )
        measured[row.name] = bench.run(row, contenders, rounds, lambda line: print(line, file=sys.stderr, flush=True))
        found[row.name] = report.summary(row, measured[row.name])
        _compare_sizes(bench, row, measured[row.name])
        print(report.text(row, found[row.name]), flush=True)
        taken = _write(arguments.output, facts, rounds, rows, measured, found, bench.problems)
    if arguments.docs and found:
        page = ROOT / "benches" / "RESULTS.md"
        machine_label = report.label_machine(page, facts)
        said = shlex.join(_command_arguments(SAID_BY_THE_TABLE))
        end = f"{_note(rounds, taken)}, {machine_label}" + (f", with `{said}`." if said else ".")
        report.into_page(page, report.tables(rows, found, end), [row.name for row in there])
    print(f"\n{arguments.output / 'latest.md'}, {arguments.output / 'latest.json'}")
    for problem in bench.problems:
        print(f"not measured: {problem}", file=sys.stderr)
    return 1 if bench.problems else 0


def _compare_sizes(bench: Bench, row: Row, results: Results) -> None:
    """All sides of a row must write the same record, so another size is an error."""
    sizes = {
        name: result["record_bytes"]
        for name, all_of in results.items()
        for result in all_of
        if "record_bytes" in result
    }
    if len(set(sizes.values())) > 1:
        bench.problems.append(f"{row.name}: records differ in size: {sizes}")


def _versions(programs: Programs, *, java: bool) -> dict[str, str]:
    facts = {}
    with programs.start("rust") as driver:
        facts["mqstore"] = driver.measure({"op": "version"}, 60)["version"]
    if java:
        with programs.start("java") as driver:
            said = driver.measure({"op": "version"}, 60)
        assert said["version"] == "V" + VERSION.replace(".", "_"), said
        facts |= {"RocketMQ": VERSION, "Kafka": KAFKA_VERSION, "Java": said["java"]}
    return facts


def _command_arguments(omitted: tuple[str, ...] = ()) -> list[str]:
    """Return the arguments of this run without `omitted`, and without its paths, which differ between machines."""
    omitted += PATH_OPTIONS
    said: list[str] = []
    arguments = iter(sys.argv[1:])
    for argument in arguments:
        if argument in omitted:
            next(arguments, None)
        elif not argument.startswith(tuple(f"{option}=" for option in omitted)) and argument != "--docs":
            said.append(argument)
    return said


def _note(rounds: int, taken: str) -> str:
    return f"Medians of {rounds} rounds (smallest to largest); {taken}"


def _write(
    output: Path,
    facts: dict[str, str],
    rounds: int,
    rows: list[Row],
    measured: dict[str, Results],
    found: dict[str, dict[str, Any]],
    problems: list[str],
) -> str:
    """Write the results so far, and return their time."""
    output.mkdir(parents=True, exist_ok=True)
    said = _command_arguments()
    command = f'make bench-compare ARGS="{shlex.join(said)}"' if said else "make bench-compare"
    taken = time.strftime("%Y-%m-%d %H:%M:%S")
    data = {
        "taken": taken,
        "command": command,
        "machine": facts,
        "rounds": rounds,
        "rows": {
            row.name: {
                "spec": row.spec,
                "contenders": {contender.name: contender.spec for contender in row.contenders},
                "measured": measured[row.name],
                "summary": found[row.name],
            }
            for row in rows
            if row.name in measured
        },
        "problems": problems,
    }
    (output / "latest.json").write_text(json.dumps(data, indent=1) + "\n")
    end = f"{_note(rounds, taken)}, with `{command}`. On: {report.facts_text(facts)}"
    (output / "latest.md").write_text(report.markdown(report.tables(rows, found, end)))
    return taken


if __name__ == "__main__":
    sys.exit(main())
