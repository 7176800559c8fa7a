"""The interpreter of local workers: that of the driver, unless the user chose another one."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from mqstore.spark import _session
from spark_cluster import java_options, needs_spark

JOB = """
import logging, sys
logging.basicConfig(level=logging.INFO)
logging.getLogger("py4j").setLevel(logging.WARNING)
from pyspark.sql import SparkSession
import mqstore.spark
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
print(mqstore.spark.verify(spark, [sys.argv[1]])[sys.argv[1]].ok)
mqstore.spark.register(spark)
print(spark.read.format("mqstore").load(sys.argv[1]).count())
"""


def bare(tmp_path: Path) -> dict[str, str]:
    """The environment of a user who did not activate `.venv`: its `python3` is on no path."""
    path = [folder for folder in os.environ["PATH"].split(os.pathsep) if Path(folder) != Path(sys.executable).parent]
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYSPARK", "VIRTUAL_ENV"))}
    arguments = f'--driver-memory 1g --driver-java-options "{java_options(tmp_path)}" pyspark-shell'
    return {
        **kept,
        "PATH": os.pathsep.join(path),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_SUBMIT_ARGS": arguments,
    }


def test_a_command_needs_no_activated_environment(filled: Path, tmp_path: Path) -> None:
    needs_spark()
    command = [Path(sys.executable).parent / "mqstore", "spark", "verify", filled, "--master", "local[1]"]
    done = subprocess.run(
        [*map(str, command), "--format", "json"], capture_output=True, text=True, timeout=180, env=bare(tmp_path)
    )
    assert done.returncode == 0, done.stderr
    assert [report["ok"] for report in json.loads(done.stdout)] == [True]


@pytest.mark.soak
def test_a_session_of_the_user_gets_the_interpreter_too(filled: Path, tmp_path: Path) -> None:
    needs_spark()
    done = subprocess.run(
        [sys.executable, "-c", JOB, str(filled)], capture_output=True, text=True, timeout=180, env=bare(tmp_path)
    )
    assert done.stdout.split() == ["True", "45"], done.stderr
    assert done.stderr.count(f"INFO:mqstore:Spark workers run {sys.executable}; set PYSPARK_PYTHON") == 1


def session(master: str, **conf: str) -> Any:
    return SimpleNamespace(
        sparkContext=SimpleNamespace(master=master, pythonExec="python3"),
        conf=SimpleNamespace(get=lambda name, default: conf.get(name.replace(".", "_"), default)),
    )


@pytest.mark.parametrize(
    ("spark", "variable", "chosen"),
    [
        (session("local[*]"), None, sys.executable),
        (session("local[2,3]"), "", sys.executable),
        (session("local[*]"), "/usr/bin/python3", "python3"),
        (session("local[*]", spark_pyspark_python="/opt/python"), None, "python3"),
        (session("spark://host:7077"), None, "python3"),
        (session("yarn"), None, "python3"),
    ],
)
def test_the_choice_of_the_user_stays(
    spark: Any, variable: str | None, chosen: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    if variable is not None:
        monkeypatch.setenv("PYSPARK_PYTHON", variable)
    with caplog.at_level(logging.INFO, logger="mqstore"):
        _session.select_interpreter(spark)
        _session.select_interpreter(spark)
    assert spark.sparkContext.pythonExec == chosen
    assert len(caplog.records) == (chosen == sys.executable)
