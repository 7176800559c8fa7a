"""Static types: the expected types of the interface, and the code of README, docs and first programs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from test_docs import blocks

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SETTINGS = """
[mypy]
strict = True
warn_unused_ignores = True

[mypy-pyarrow.*,pandas.*,duckdb.*,fsspec.*,rocketmq.*]
ignore_missing_imports = True
"""
# A page of short examples uses a store that it does not open.
BEFORE_A_PAGE = """
import mqstore

store: mqstore.Store
"""


@pytest.mark.slow
def test_types(tmp_path: Path) -> None:
    pytest.importorskip("mypy", reason="mypy is not installed")
    # The blocks of a page are one program, each page for itself.
    programs = [HERE / "typing_checks.py", *(HERE / "first_programs").glob("*.py")]
    for page in [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]:
        if code := blocks(str(page.relative_to(ROOT))):
            program = tmp_path / f"{page.stem.replace('-', '_').lower()}_page.py"
            program.write_text("\n".join([BEFORE_A_PAGE, *code]))
            programs.append(program)
    assert len(programs) > 25
    config = tmp_path / "mypy.ini"
    config.write_text(SETTINGS)
    command = [sys.executable, "-m", "mypy", "--config-file", config, "--cache-dir", tmp_path / "cache"]
    done = subprocess.run([*command, *programs], capture_output=True, text=True, timeout=110, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
