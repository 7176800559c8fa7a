"""The programs in `examples/`: their code and output are those of `docs/examples.md`."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from subprocess import run

import pytest

import damaged_stores
import mqstore
from conftest import tree_hash

ROOT = Path(__file__).parents[2]
# By example: its code and its output.
SHOWN: dict[str, tuple[str, str]] = {
    example: (code, printed)
    for example, code, printed in re.findall(
        r'^```python title="examples/(\w+)\.py"\n(.*?)^```$.*?^```text\n(.*?)^```$',
        (ROOT / "docs/examples.md").read_text(),
        re.MULTILINE | re.DOTALL,
    )
}


def output(example: str, *arguments: object, folder: Path) -> str:
    """Runs an example with `folder` as the place of temporary files."""
    command = [sys.executable, str(ROOT / f"examples/{example}.py"), *map(str, arguments)]
    environment = {**os.environ, "TMPDIR": str(folder)}
    done = run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_page_shows_all_examples() -> None:
    # The demo is a tour that takes minutes and prints times.
    assert set(SHOWN) == {path.stem for path in (ROOT / "examples").glob("*.py")} - {"demo"}


@pytest.mark.parametrize("example", SHOWN)
def test_the_page_shows_the_code_of_an_example(example: str) -> None:
    assert (ROOT / f"examples/{example}.py").read_text() == SHOWN[example][0]


@pytest.mark.slow
@pytest.mark.parametrize("example", SHOWN)
def test_an_example_prints_what_the_page_shows_and_removes_its_files(example: str, tmp_path: Path) -> None:
    assert output(example, folder=tmp_path) == SHOWN[example][1]
    assert list(tmp_path.iterdir()) == []


def test_the_example_of_a_dead_broker_repairs_a_copy_of_another_store(tmp_path: Path) -> None:
    broker = tmp_path / "broker"
    damaged_stores.unpacked(broker)
    min(broker.glob("commitlog/*")).write_bytes(b"")
    before = tree_hash(broker)
    printed = output("dead_broker", broker, folder=tmp_path)
    assert "written by rocketmq" in printed
    assert "problems of the copy: 0" in printed
    assert tree_hash(broker) == before
    assert mqstore.verify(tmp_path / "broker-repaired").ok
