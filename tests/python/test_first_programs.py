"""The programs that a new user writes first: default options, a kill in the middle, a second run."""

from __future__ import annotations

import ast
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import mqstore
from conftest import Cli

PROGRAMS = Path(__file__).parent / "first_programs"
ROOT = Path(__file__).parents[2]
LARGEST = 8 << 20

# Runs a program, and kills the process as soon as the program has printed a line.
RUN = """
import builtins, os, runpy, signal, sys

program, last = sys.argv[1:3]
del sys.argv[1:3]
show = print

def told(*words):
    line = " ".join(map(str, words))
    os.write(1, f"{line}\\n".encode())
    if line == last:
        os.kill(os.getpid(), signal.SIGKILL)

builtins.print = told
runpy.run_path(program, run_name="__main__")
"""


def run(program: str, folder: Path, *arguments: str, until: str = "") -> list[str]:
    """Runs a program, up to a line that it prints or to its end. Returns its lines."""
    command = [sys.executable, "-c", RUN, str(PROGRAMS / f"{program}.py"), until, *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=100)
    assert done.returncode == (-signal.SIGKILL if until else 0), done.stderr
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    assert not until or until in lines
    check_sizes(folder / "data")
    return lines


def check_sizes(store: Path) -> None:
    sizes = {path: path.stat().st_blocks * 512 for path in store.rglob("*") if path.is_file()}
    assert sizes
    assert [path for path, size in sizes.items() if size > LARGEST] == []


def check_after_the_kill(store: Path, cli: Cli) -> None:
    """The first commands that a worried user tries have no bad news."""
    for verb in ("info", "cat"):
        done = cli(verb, store)
        assert done.returncode == 0
        assert [word for word in ("damage", "corrupt", "lost", "error", "repair") if word in done.stderr] == []


def words(lines: list[str], verb: str) -> list[str]:
    """The rest of each line that begins with a verb."""
    return [line.partition(" ")[2] for line in lines if line.partition(" ")[0] == verb]


@pytest.mark.parametrize("last", [57, *(pytest.param(last, marks=pytest.mark.soak) for last in (0, 99))])
def test_a_durable_log(tmp_path: Path, cli: Cli, last: int) -> None:
    before = run("durable_log", tmp_path, until=f"stored {last}")
    check_after_the_kill(tmp_path / "data", cli)
    # Queues and index may be late. The next open for writing completes them.
    with pytest.warns(mqstore.StoreWarning, match="this loses nothing, and the next open for writing adds them"):
        assert mqstore.verify(tmp_path / "data").ok
    after = run("durable_log", tmp_path)
    assert words([*before, *after], "stored") == [str(number) for number in range(100)]
    assert words(after, "read") == [f"reading {number}" for number in range(100)]
    assert mqstore.verify(tmp_path / "data").ok


@pytest.mark.slow
@pytest.mark.parametrize("last", [pytest.param("put 7", marks=pytest.mark.soak), "begun picture 9", "done picture 15"])
def test_a_job_queue_with_two_workers(tmp_path: Path, cli: Cli, last: str) -> None:
    before = run("job_queue", tmp_path, until=last)
    check_after_the_kill(tmp_path / "data", cli)
    after = run("job_queue", tmp_path)
    pictures = {f"picture {number}" for number in range(20)}
    # The kill can hit the other worker between the end of its job and its line.
    untold = pictures - set(words([*before, *after], "done"))
    assert len(untold) <= 1
    assert untold <= set(words(before, "begun")) - set(words(after, "begun"))
    # A finished job is not done again. Only a job that a worker had at the kill begins again.
    assert set(words(before, "done")).isdisjoint(words(after, "begun"))
    assert len(set(words(before, "begun")) & set(words(after, "begun"))) <= 2
    with mqstore.open(tmp_path / "data") as store:
        assert store.count("pictures") == 20


@pytest.mark.parametrize("last", [pytest.param("noted tea", marks=pytest.mark.soak), "noted eggs", "reminder tea"])
def test_a_delayed_reminder(tmp_path: Path, cli: Cli, last: str) -> None:
    before = run("delayed_reminder", tmp_path, "tea", "0.3", "eggs", "0.8", until=last)
    check_after_the_kill(tmp_path / "data", cli)
    noted = words(before, "noted")
    assert noted == ["tea", "eggs"][: len(noted)]
    after = run("delayed_reminder", tmp_path)
    # The reminder that was not committed at the kill comes again.
    assert words(after, "reminder") == noted
    assert run("delayed_reminder", tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("last", ["noted lamp 4", "paid lamp 4", pytest.param("sold lamp 4", marks=pytest.mark.soak)])
def test_an_outbox(tmp_path: Path, cli: Cli, last: str) -> None:
    before = run("outbox", tmp_path, until=last)
    check_after_the_kill(tmp_path / "data", cli)
    after = run("outbox", tmp_path)
    lamps = [f"lamp {number}" for number in range(10)]
    paid = words([*before, *after], "paid")
    assert paid == lamps
    assert sorted(words(after, "delivered")) == lamps
    with mqstore.open(tmp_path / "data", "rw") as store:
        assert store.count("sold") == 10
        # A transaction without a row is checked, and rolled back, six seconds after it began.
        assert len(store.pending_transactions()) <= last.startswith("noted")


@pytest.mark.slow
@pytest.mark.parametrize("last", [42, *(pytest.param(last, marks=pytest.mark.soak) for last in (0, 99))])
def test_a_key_table(tmp_path: Path, cli: Cli, last: int) -> None:
    before = run("key_table", tmp_path, until=f"counted {last}")
    check_after_the_kill(tmp_path / "data", cli)
    after = run("key_table", tmp_path)
    assert words([*before, *after], "counted") == [str(number) for number in range(100)]
    assert words(after, "page") == [f"{page} 20" for page in range(5)]
    assert run("key_table", tmp_path) == [f"page {page} 20" for page in range(5)]


@pytest.mark.parametrize("program", sorted(path.stem for path in PROGRAMS.glob("*.py")))
def test_the_readme_shows_each_call(program: str) -> None:
    """A program uses no method and no argument of mqstore that the README does not show."""
    readme = (ROOT / "README.md").read_text()
    shown: set[str] = set()
    for block in readme.split("```python\n")[1:]:
        shown |= names(block.partition("```")[0])
    public = {name for kind in vars(mqstore).values() if isinstance(kind, type) for name in dir(kind)} | {"open"}
    assert (names((PROGRAMS / f"{program}.py").read_text()) & public) - shown - set(dir(str)) - set(dir(list)) == set()


def names(code: str) -> set[str]:
    """The attributes and the keyword arguments in a program."""
    nodes = list(ast.walk(ast.parse(code)))
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return attributes | {node.arg for node in nodes if isinstance(node, ast.keyword) and node.arg}
