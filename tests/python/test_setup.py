"""The Makefile targets, the programs that set-up finds missing, the choice of Java, and the test runner's report.

The scripts run in a copy of `tools/`, with a PATH that contains only programs that a test puts there.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from conftest import until

ROOT = Path(__file__).resolve().parents[2]
UNIX = (
    *("awk", "bash", "cat", "cp", "date", "df", "dirname", "du", "env", "grep", "head", "mkdir", "mktemp", "paste"),
    *("rm", "sed", "sh", "sleep", "sort", "tail", "tee", "uname"),
)


class Machine:
    """A copy of the tools with its own PATH."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "repository"
        self.bin = folder / "bin"
        self.bin.mkdir()
        for name in UNIX:
            found = shutil.which(name)
            assert found is not None, name
            (self.bin / name).symlink_to(found)
        self.root.mkdir()
        shutil.copytree(ROOT / "tools", self.root / "tools", ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("Cargo.toml", "CHANGELOG.md", "pyproject.toml"):
            shutil.copy(ROOT / name, self.root)

    def program(self, name: str, script: str) -> Path:
        """Puts a shell script on the PATH, or at an absolute path."""
        path = self.bin / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)
        return path

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command,
            cwd=self.root,
            env={"PATH": str(self.bin), "HOME": str(self.root), **environment},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )

    def check(self, **environment: str) -> subprocess.CompletedProcess[str]:
        return self.run("bash", "tools/check_machine.sh", **environment)

    def complete(self) -> None:
        """Adds fake programs for everything that a build needs."""
        self.program("python3", "echo 3.12")
        self.program("cargo", "echo 'cargo 1.95.0 (f2d3ce0bd 2026-03-21)'")
        self.program("cc", "exit 0")
        self.program("df", "echo head; echo 'disk 1 1 99999999 1% /'")
        self.program("du", "true")


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_complete_machine_has_no_faults(machine: Machine) -> None:
    machine.complete()
    found = machine.check()
    assert (found.returncode, found.stderr) == (0, "")
    assert found.stdout.strip() == str(machine.bin / "python3")


def test_all_faults_are_reported_at_once_each_with_its_remedy(machine: Machine) -> None:
    machine.program("python3", "echo 3.9")
    machine.program("cargo", "echo 'cargo 1.70.0'")
    machine.program("df", "echo head; echo 'disk 1 1 2000000 1% /'")
    machine.program("du", "true")
    found = machine.check()
    assert (found.returncode, found.stdout) == (1, "")
    faults = re.findall(r"^ +(\d)\. (.*)\n +found: +(.*)\n +remedy: +(.*)$", found.stderr, re.MULTILINE)
    assert [number for number, *_ in faults] == ["1", "2", "3", "4"]
    text = {what: (seen, remedy) for _, what, seen, remedy in faults}
    assert text["Python 3.11 or newer"][0] == "python3 is 3.9"
    assert "PYTHON=" in text["Python 3.11 or newer"][1]
    assert text["Rust (cargo) 1.89 or newer"] == (
        "cargo 1.70.0",
        "rustup update stable (or install a newer Rust: rust-lang.org/tools/install)",
    )
    assert text["a C compiler"][0] == "no cc"
    assert text["6 GB of free disk"][0].startswith("2.0 GB free in ")


def test_nothing_at_all_is_reported_as_such(machine: Machine) -> None:
    found = machine.check()
    for seen in ("no python3", "no cargo", "no cc"):
        assert f"found:  {seen}\n" in found.stderr


@pytest.mark.parametrize(
    ("name", "script", "seen"),
    [
        ("cargo", "exit 1", "does not start"),  # rustup without the toolchain
        ("cc", "exit 1", "cc cannot build a program of one line"),
        ("python3", "exit 127", "python3 does not start"),
        ("python3", '[ "${2#*ensurepip}" = "$2" ] && echo 3.12', "python3 is 3.12 without venv"),
    ],
)
def test_what_is_there_but_does_not_work(machine: Machine, name: str, script: str, seen: str) -> None:
    machine.complete()
    machine.program(name, script)
    found = machine.check()
    assert found.returncode == 1
    assert seen in found.stderr
    assert "\n  2. " not in found.stderr


def test_an_older_python_gives_way_to_a_newer_one_beside_it(machine: Machine) -> None:
    machine.complete()
    machine.program("python3", "exit 127")  # a version manager without an installed Python
    machine.program("python3.14", "echo 3.10")
    second = machine.program("python3.12", "echo 3.12")
    assert machine.check().stdout.strip() == str(second)


def test_python_names_the_only_candidate(machine: Machine) -> None:
    machine.complete()
    own = machine.program("own python", "echo 3.13")
    assert machine.check(PYTHON=str(own)).stdout.strip() == str(own)
    assert "no /nowhere/python" in machine.check(PYTHON="/nowhere/python").stderr


def test_what_is_already_installed_counts_as_space(machine: Machine) -> None:
    machine.complete()
    machine.program("df", "echo head; echo 'disk 1 1 2000000 1% /'")
    machine.program("du", "echo '4000000 .venv'; echo '1000000 target'")
    assert machine.check().returncode == 0


def java(version: str, home: Path) -> str:
    return f"""
        echo 'Property settings:' >&2
        echo '    java.specification.version = {version}' >&2
        echo '    java.home = {home}' >&2
    """


def test_java_home_wins_then_the_path_then_the_one_in_venv(machine: Machine, tmp_path: Path) -> None:
    home, system, shim = tmp_path / "jdk", tmp_path / "system", machine.root / ".venv/java-shim"
    assert machine.run("tools/java_home").returncode == 1
    machine.program(str(shim / "bin/java"), java("17", shim))
    assert machine.run("tools/java_home").stdout.strip() == str(shim)
    machine.program("java", java("21", system))
    assert machine.run("tools/java_home").stdout.strip() == str(system)
    machine.program(str(home / "bin/java"), java("17", home))
    assert machine.run("tools/java_home", JAVA_HOME=str(home)).stdout.strip() == str(home)


@pytest.mark.parametrize("version", ["1.8", "11", ""])
def test_an_old_java_is_passed_over(machine: Machine, tmp_path: Path, version: str) -> None:
    system = tmp_path / "system"
    machine.program("java", java("17", system))
    machine.program(str(tmp_path / "old/bin/java"), java(version, tmp_path))
    found = machine.run("tools/java_home", JAVA_HOME=str(tmp_path / "old"))
    assert found.stdout.strip() == str(system)
    assert "looking elsewhere" in found.stderr
    machine.program("java", java(version, system))
    assert machine.run("tools/java_home").returncode == 1


def test_the_runner_runs_every_part_and_says_how_each_ended(machine: Machine) -> None:
    machine.program("cargo", "echo 'test result: FAILED. 3 passed; 1 failed; 2 ignored; 0 measured'; exit 101")
    machine.program(str(machine.root / ".venv/bin/python"), "echo '==== 7 passed, 1 skipped in 0.10s ===='")
    found = machine.run("bash", "tools/run_tests.sh", "rust", "python", "spark", "interop")
    assert found.returncode == 1
    summary = found.stdout.partition("==== summary ====")[2]
    assert [line.split()[:2] for line in summary.strip().splitlines()] == [
        ["rust", "FAILED"],
        ["python", "passed"],
        ["spark", "skipped"],
        ["interop", "skipped"],
    ]
    for ending in (
        "3 passed, 1 failed, 2 ignored in 1 suites",
        "7 passed, 1 skipped in 0.10s",
        "install Java 17 or newer",
        "install maven",
    ):
        assert ending in summary


@pytest.mark.slow
def test_joined_parts_run_at_the_same_time_and_show_their_output_one_after_the_other(machine: Machine) -> None:
    # Each part waits until the other one runs.
    meet = "touch {0}; until [ -f {1} ]; do sleep 0.1; done; echo {0} saw {1}; "
    machine.program("touch", ': > "$1"')
    result = "echo 'test result: {0}. {1} passed; {2} failed; 0 ignored; 0 measured'; exit {2}"
    machine.program("cargo", meet.format("cargo", "python") + result.format("FAILED", 3, 1))
    python = meet.format("python", "cargo") + "sleep 2; echo '==== 7 passed in 0.10s ===='"
    machine.program(str(machine.root / ".venv/bin/python"), python)
    found = machine.run("bash", "tools/run_tests.sh", "python+sim")
    assert found.returncode == 1
    assert found.stdout.index("cargo saw python") < found.stdout.index("python saw cargo")
    summary = found.stdout.partition("==== summary ====")[2]
    assert [line.split()[:2] for line in summary.strip().splitlines()] == [["sim", "FAILED"], ["python", "passed"]]
    assert (machine.root / ".venv/.mqstore/logs/sim.log").read_text().startswith("cargo saw python")


@pytest.mark.slow
def test_an_interrupt_ends_all_parts_that_run_at_the_same_time(machine: Machine) -> None:
    machine.program("cargo", "echo $$ > cargo.pid; exec sleep 50")
    machine.program(str(machine.root / ".venv/bin/python"), "echo $$ > python.pid; exec sleep 50")
    command = ["bash", "tools/run_tests.sh", "python+sim"]
    environment = {"PATH": str(machine.bin), "HOME": str(machine.root)}
    runner = subprocess.Popen(command, cwd=machine.root, env=environment, stdout=subprocess.DEVNULL)
    files = [machine.root / "cargo.pid", machine.root / "python.pid"]
    until(lambda: all(file.is_file() and file.read_text().endswith("\n") for file in files))
    runner.terminate()
    assert runner.wait(timeout=30) == 130
    for file in files:
        until(lambda: not _runs(int(file.read_text())))  # noqa: B023


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.slow
def test_a_part_that_takes_longer_than_its_limit_fails(machine: Machine) -> None:
    machine.program("cargo", "/bin/sleep 2; echo 'test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured'")
    command = ("bash", "tools/run_tests.sh", "sim")
    assert machine.run(*command).returncode == 0
    found = machine.run(*command, MQSTORE_TIME_FACTOR="0.001")
    assert found.returncode == 1
    assert re.search(r"sim +FAILED .* of +0 +took more than 0 s", found.stdout)


def test_the_runner_lists_the_ten_slowest_rust_tests(machine: Machine) -> None:
    times = "".join(f"echo 'test a::t{number} ... ok <{number}.250s>';" for number in range(12))
    machine.program("cargo", f"{times} echo 'test result: ok. 12 passed; 0 failed; 0 ignored; 0 measured'")
    found = machine.run("bash", "tools/run_tests.sh", "rust")
    slowest = found.stdout.partition("slowest tests:\n")[2].splitlines()[:11]
    assert slowest == [f"{number}.250 s  a::t{number}" for number in range(11, 1, -1)] + [""]


def test_what_cannot_run_is_skipped_by_hand_and_fails_on_a_build_machine(machine: Machine) -> None:
    command = ("bash", "tools/run_tests.sh", "interop")
    assert machine.run(*command).returncode == 0
    found = machine.run(*command, CI="true")
    assert found.returncode == 1
    assert re.search(r"interop +FAILED .* install maven", found.stdout)


def test_no_tests_are_no_success(machine: Machine) -> None:
    machine.program(str(machine.root / ".venv/bin/python"), "echo '==== no tests ran in 0.01s ===='; exit 5")
    command = ("bash", "tools/run_tests.sh", "python")
    assert re.search(r"python +skipped .* no tests", machine.run(*command).stdout)
    assert machine.run(*command, CI="true").returncode == 1


@pytest.mark.parametrize("newest", [False, True])
def test_a_bare_build_machine_gets_what_the_tests_need(machine: Machine, newest: bool) -> None:
    shutil.copytree(ROOT / ".ci", machine.root / ".ci")
    log = machine.root / "log"
    machine.program("id", "echo 0")
    machine.program("make", f'echo "make $* CI=$CI" >>{log}')
    # A release that has dropped Java 17 refuses the whole list.
    refuse = "case $* in *openjdk-17*) exit 100 ;; esac" if newest else ""
    machine.program("apt-get", f'echo "apt-get $*" >>{log}\n{refuse}')
    machine.program("cc", "exit 0")
    done = machine.run(".ci/run")
    assert done.returncode == 0, done.stderr
    lines = [line.split() for line in log.read_text().splitlines()]
    assert lines[0][-1] == "update"
    wanted = {"maven", "python3", "python3-venv", "default-jdk-headless" if newest else "openjdk-17-jdk-headless"}
    assert wanted <= set(lines[-2])
    assert not {"make", "build-essential"} & set(lines[-2])
    assert lines[-1] == ["make", "test", "CI=true"]


def fingerprint(root: Path, *what: str) -> str:
    command = [sys.executable, "tools/fingerprint.py", *what]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=True, timeout=60).stdout.strip()


def test_a_build_is_due_when_contents_changed_and_only_then(machine: Machine) -> None:
    source = machine.root / "rust/mqstore-log/src/lib.rs"
    source.parent.mkdir(parents=True)
    source.write_text("// one\n")
    first = fingerprint(machine.root, "sources")
    os.utime(source, (1, 1))
    (machine.root / "rust/target").mkdir()
    (machine.root / "rust/target/x.rs").write_text("built")
    (machine.root / "rust/module.so").write_bytes(b"built")
    assert fingerprint(machine.root, "sources") == first
    source.write_text("// two\n")
    second = fingerprint(machine.root, "sources")
    assert second != first
    source.rename(source.with_name("main.rs"))
    assert fingerprint(machine.root, "sources") not in (first, second)
    wanted = fingerprint(machine.root, "requirements")
    assert {re.split(r"[<>=]", line)[0] for line in wanted.splitlines()} >= {"maturin", "pytest", "pyspark", "typer"}


def stamped() -> bool:
    stamp = ROOT / ".venv/.mqstore/wheel"
    return stamp.exists() and stamp.read_text().split()[-1] == fingerprint(ROOT, "sources")


def test_set_up_is_quick_silent_and_offline_when_done() -> None:
    if not stamped():
        pytest.skip("sources changed since the last `make setup`")
    # No registry can be reached, and set-up asks none.
    offline = {"PIP_INDEX_URL": "http://127.0.0.1:9/", "CARGO_NET_OFFLINE": "true"}
    started = time.monotonic()
    done = subprocess.run(
        ["bash", "tools/setup.sh"],
        cwd=ROOT,
        env={**os.environ, **offline},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    seconds = time.monotonic() - started
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert seconds < 10, "two seconds are the aim; ten are for busy machines"


def test_help_lists_every_target_with_what_it_does() -> None:
    makefile = (ROOT / "Makefile").read_text()
    phony = re.search(r"^\.PHONY: (.*)$", makefile, re.MULTILINE)
    assert phony is not None
    make = shutil.which("make")
    if make is None:
        pytest.skip("make is not installed")
    listed = subprocess.run(
        [make, "-s", "help"], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    ).stdout
    for target in phony[1].split():
        assert re.search(rf"^  make {target} +\S", listed, re.MULTILINE), target


def test_every_target_stands_on_setup() -> None:
    makefile = (ROOT / "Makefile").read_text()
    rules = dict(re.findall(r"^([a-z-]+):([^#\n]*)##", makefile, re.MULTILINE))
    alone = {name for name, needs in rules.items() if "setup" not in needs.split()}
    assert alone == {"help", "setup", "clean"}


@pytest.mark.parametrize(
    ("tag", "heading", "status"),
    [("v9.8.7", "## 9.8.7 - 2026-01-31", 0), ("v9.8.6", "## 9.8.7 - 2026-01-31", 1), ("v9.8.7", "## 9.8.7 - soon", 1)],
)
def test_a_release_is_tagged_with_its_version_and_dated(machine: Machine, tag: str, heading: str, status: int) -> None:
    (machine.root / "Cargo.toml").write_text('[workspace.package]\nversion = "9.8.7"\n[workspace.dependencies]\n')
    (machine.root / "CHANGELOG.md").write_text(f"# Changes\n\n{heading}\n")
    assert machine.run("tools/check_release.sh", tag).returncode == status


def examples(page: str) -> list[str]:
    """The Python blocks of a page."""
    return re.findall(r"^```python\n(.*?)^```$", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    ("part", "printed"),
    [
        ("durable=True", ["0 ", "2 ", "5", "['three']", "['orders'] 3"]),
        ("work_queue", ["resize cat.png for the first time", "['resize cat.png']"]),
        ("delay=", ["the tea is ready"]),
        ("check_transactions", ["a lamp"]),
        ("store.table", ["2 -> 1", "{'theme': 'light'} ['light']"]),
    ],
)
def test_the_readme_for_programs_runs(
    part: str, printed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    (program,) = [text for text in examples("README.md") if part in text]
    exec(compile(program, "README.md", "exec"), {})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == len(printed)
    assert all(line.startswith(start) for line, start in zip(lines, printed, strict=True)), lines


def test_the_readme_for_tests_runs(tmp_path: Path) -> None:
    (program,) = [text for text in examples("README.md") if "def test_" in text]
    names: dict[str, object] = {}
    exec(compile(program, "README.md", "exec"), names)
    test = names["test_an_order_is_announced"]
    assert callable(test)
    test(tmp_path)
