"""The programs of docs/integrations.md run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import mqstore
from conftest import python

PAGE = Path(__file__).parents[3] / "docs/integrations.md"
PROGRAMS = dict(re.findall(r'^```python title="(\S+)"\n(.*?)^```$', PAGE.read_text(), re.MULTILINE | re.DOTALL))

# Runs a program; a version without mode="share" opens the store for one process.
RUN = """
import os, runpy, sys
import mqstore

opened = mqstore.open

def shared(path, mode="r", **options):
    try:
        return opened(path, mode, **options)
    except ValueError:
        return opened(path, "create", **options)

mqstore.open = shared
os.chdir(sys.argv[1])
sys.path.insert(0, sys.argv[1])
runpy.run_path(sys.argv[2], run_name="__main__")
"""


@pytest.mark.slow
@pytest.mark.parametrize("library", ["taskiq", "dramatiq", "celery", "huey"])
def test_a_program_puts_a_task_and_a_delayed_one(library: str, tmp_path: Path) -> None:
    pytest.importorskip(library)
    name = f"{library}_tasks.py"
    (tmp_path / name).write_text(PROGRAMS[name])
    done = python(RUN, tmp_path, name)
    assert done.returncode == 0, done.stderr
    (queue,) = mqstore.info(tmp_path / "data").work_queues
    # The consumer of huey moves a task that is not due into the schedule.
    assert (queue.ready, queue.delayed) == ((2, 0) if library == "huey" else (1, 1))
    assert mqstore.info(tmp_path / "data").clean


@pytest.mark.slow
def test_the_test_of_the_page_passes(tmp_path: Path) -> None:
    pytest.importorskip("dramatiq")
    (tmp_path / "test_mails.py").write_text(PROGRAMS["test_mails.py"])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "pytest_mqstore", "-p", "no:cacheprovider", "test_mails.py"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100)
    assert "1 passed" in done.stdout, done.stdout
