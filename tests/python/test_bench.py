"""`mqstore bench` measures every line and leaves nothing. The figures themselves are not tested."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

import mqstore
from conftest import tree_hash

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Cli

FEW = ("--messages", "200", "--size", "100")


def test_bench(tmp_path: Path, cli: Cli) -> None:
    done = cli("bench", tmp_path, *FEW, "--format", "json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert [line["what"] for line in found] == [
        "append, 100 a call", "append", "append, durable", "read in order", "verify"
    ]  # fmt: skip
    assert all(line["limit"] > 0 and line["store"] > 0 for line in found)
    assert list(tmp_path.iterdir()) == []
    table = cli("bench", tmp_path, *FEW).stdout
    assert "store / bare loop" in table


@pytest.mark.slow
def test_a_store_is_left_alone(home: Path, cli: Cli) -> None:
    with mqstore.open(home, "create") as store:
        store.append("orders", b"x")
    before, beside = tree_hash(home), sorted(home.parent.iterdir())
    assert cli("bench", home, *FEW).returncode == 0
    assert tree_hash(home) == before
    assert sorted(home.parent.iterdir()) == beside


def test_no_folder(tmp_path: Path, cli: Cli) -> None:
    done = cli("bench", tmp_path / "none")
    assert (done.returncode, done.stdout) == (3, "")
    assert str(tmp_path / "none") in done.stderr
