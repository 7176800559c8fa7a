"""Random histories of a stream with queries of a real session, whose driver is killed at random moments."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from spark_cluster import Cluster, java_options, needs_spark
from spark_histories import SessionHistory


@pytest.fixture
def local(tmp_path: Path) -> Iterator[Cluster]:
    """Drivers that run their tasks themselves."""
    needs_spark()
    folder = tmp_path / "spark"
    folder.mkdir()
    cluster = Cluster(folder)
    cluster.master, cluster.python, cluster.java = "local[2]", Path(sys.executable), java_options(folder)
    try:
        yield cluster
    finally:
        cluster.stop()


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(40))
def test_a_stream_with_killed_drivers_agrees_with_the_model(tmp_path: Path, local: Cluster, seed: int) -> None:
    history = SessionHistory(tmp_path, seed, local)
    history.run(20)
    print(f"{len(history.batches_in('commits'))} batches, {history.kills} drivers killed")
