"""A small local Spark session for all tests of this folder."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from mqstore import cli
from mqstore.cli import spark as verbs
from spark_cluster import SETTINGS, SparkCli, java_options, needs_spark

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks all tests here as tests of Spark, and ignores Spark's own warnings."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.spark)
            item.add_marker(pytest.mark.filterwarnings("default"))


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """Two executor threads that try each task up to three times, in one JVM on loopback."""
    needs_spark()
    folder = tmp_path_factory.mktemp("spark")
    java = java_options(folder)
    # The JVM reads these once, when the first session starts it.
    os.environ["PYSPARK_SUBMIT_ARGS"] = f'--driver-memory 1g --driver-java-options "{java}" pyspark-shell'
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    from pyspark.sql import SparkSession

    folders = {"spark.sql.warehouse.dir": str(folder / "warehouse"), "spark.local.dir": str(folder / "local")}
    builder = SparkSession.builder.master("local[2,3]").appName("mqstore tests")
    for name, value in {**SETTINGS, **folders}.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    yield session
    session.stop()


@pytest.fixture
def run(spark: SparkSession, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> SparkCli:
    """Runs a verb of `mqstore spark` in the session of all tests."""
    # The session stays open.
    monkeypatch.setattr(type(spark), "stop", lambda _session: None)
    assert verbs.spark_app.info.help

    def call(*arguments: object) -> tuple[int, str, str]:
        status = cli.run(["spark", *map(str, arguments)])
        return status, *capsys.readouterr()

    return call
