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
def test_trace(tmp_path: Path, cli: Cli) -> None:
    few = ("bench", tmp_path, "--trace", "--rate", "10000", "--seconds", "0.05", "--size", "100")
    done = cli(*few, "--slow-us", "1", "--slowest", "3", "--format", "json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["rate"], found["messages"], found["size"]) == (10_000, 500, 100)
    for side in (found["store"], found["bare"]):
        assert side["p50_us"] <= side["p99_us"] <= side["p999_us"] <= side["p9999_us"] <= side["max_us"]
        assert sum(cause["late"] for cause in side["causes"]) == side["late"]
        durations = [step["duration_us"] for step in side["slowest"]]
        assert durations == sorted(durations, reverse=True)
        assert len(durations) == min(3, sum(cause["steps"] for cause in side["causes"]))
    # Both sides copy the same number of bytes.
    assert found["store"]["record_bytes"] > 100
    assert int(found["store"]["record_bytes"]) == found["bare"]["record_bytes"]
    assert list(tmp_path.iterdir()) == []
    table = cli(*few).stdout
    assert "p99.9, µs" in table
    assert "bare loop" in table


def test_cold_reads(tmp_path: Path, cli: Cli) -> None:
    few = ("bench", tmp_path, "--cold-reads", "--megabytes", "8", "--readers", "2", "--rounds", "2", "--seconds", "0.1")
    done = cli(*few, "--rate", "500", "--format", "json")
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert (found["rate"], found["size"], found["readers"], found["rounds"]) == (500, 1024, 2, 2)
    assert 8_000_000 <= found["log_bytes"] < 12_000_000
    assert [load["load"] for load in found["loads"]] == ["alone", "readers", "scan", "readers and scan"]
    for load in found["loads"]:
        for side in (load["store"], load["bare"]):
            assert side["p50_us"] <= side["p99_us"] <= side["p999_us"] <= side["max_us"]
            # Half of each turn: 0.05 s, twice.
            assert side["count"] == 50
        assert (load["messages_per_second"] > 0) == ("readers" in load["load"])
        assert (load["scan_mb_per_second"] > 0) == ("scan" in load["load"])
    alone = found["loads"][0]
    assert (alone["store"]["p99_ratio"], alone["bare"]["p999_ratio"]) == (1, 1)
    assert list(tmp_path.iterdir()) == []
    table = cli(*few).stdout
    assert "p99.9 / alone" in table
    assert "from the disk, MB/s" in table


def test_cold_reads_and_a_trace_exclude_each_other(tmp_path: Path, cli: Cli) -> None:
    done = cli("bench", tmp_path, "--cold-reads", "--trace")
    assert done.returncode == 2
    assert "--cold-reads excludes --trace" in done.stderr


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
