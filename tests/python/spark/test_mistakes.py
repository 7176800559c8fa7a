"""The likeliest mistakes with Spark: a wrong Java, and a wrong Python for the workers."""

from __future__ import annotations

import os
import subprocess
import sys
import venv
from collections.abc import Callable
from pathlib import Path

import pytest

import mqstore.spark
from mqstore.spark import _session
from spark_cluster import needs_spark
from test_mistakes import check


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def old_java(folder: Path) -> dict[str, str]:
    script(folder / "jdk/bin/java", "echo '    java.specification.version = 11' >&2")
    return {"JAVA_HOME": str(folder / "jdk")}


def very_old_java(folder: Path) -> dict[str, str]:
    script(folder / "jdk/bin/java", "echo '    java.specification.version = 1.8' >&2")
    return {"JAVA_HOME": str(folder / "jdk")}


def wrong_java_home(folder: Path) -> dict[str, str]:
    return {"JAVA_HOME": str(folder)}


def no_java(folder: Path) -> dict[str, str]:
    return {"JAVA_HOME": "", "PATH": str(folder)}


def missing_python(folder: Path) -> dict[str, str]:
    return {"PYSPARK_PYTHON": str(folder / "python")}


def other_python(folder: Path) -> dict[str, str]:
    return {"PYSPARK_PYTHON": str(script(folder / "python", "echo 3.9"))}


def bare_python(folder: Path) -> dict[str, str]:
    venv.create(folder / "bare")
    return {"PYSPARK_PYTHON": str(folder / "bare/bin/python"), "PYTHONPATH": ""}


JAVA = "set JAVA_HOME to the folder of a Java 17 or newer"
PYTHON = f"set PYSPARK_PYTHON to {sys.executable}, or unset it"
MISTAKES = [
    (old_java, "bin/java is Java 11, which is too old for Spark", JAVA),
    (very_old_java, "bin/java is Java 8, which is too old for Spark", JAVA),
    (wrong_java_home, "Spark cannot start", JAVA),
    (no_java, "Spark needs Java, and there is none on the PATH", JAVA),
    (missing_python, "Spark's workers cannot start", PYTHON),
    (other_python, "which is Python 3.9, not {}.{}".format(*sys.version_info), PYTHON),
    (bare_python, "which lacks mqstore[spark]", PYTHON),
]


@pytest.mark.parametrize(("mistake", "cause", "remedy"), MISTAKES, ids=[row[0].__name__ for row in MISTAKES])
def test_a_mistake_on_the_command_line_is_explained(
    mistake: Callable[[Path], dict[str, str]], cause: str, remedy: str, filled: Path, tmp_path: Path
) -> None:
    needs_spark()
    command = [sys.executable, "-m", "mqstore", "spark", "verify", str(filled), "--master", "local[1]"]
    environment = {**os.environ, **mistake(tmp_path / "tools")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, env=environment)
    assert (done.returncode, done.stdout) == (3, "")
    (line,) = done.stderr.splitlines()
    check(line.replace(str(tmp_path), ""), "mqstore: ", cause, remedy.replace(str(tmp_path), ""))


JOB = """
import sys
from pyspark.sql import SparkSession
import mqstore.spark
spark = SparkSession.builder.master("local[1]").config("spark.ui.enabled", "false").getOrCreate()
mqstore.spark.verify(spark, [sys.argv[1]])
"""


@pytest.mark.parametrize(
    ("mistake", "cause"),
    [
        pytest.param(missing_python, "Spark's workers cannot start", marks=pytest.mark.soak),
        (bare_python, "the Python of Spark's workers has no module"),
    ],
    ids=["missing_python", "bare_python"],
)
def test_a_job_names_the_wrong_python_of_its_workers(
    mistake: Callable[[Path], dict[str, str]], cause: str, filled: Path, tmp_path: Path
) -> None:
    needs_spark()
    environment = {**os.environ, **mistake(tmp_path / "tools"), "SPARK_LOCAL_IP": "127.0.0.1"}
    command = [sys.executable, "-c", JOB, str(filled)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, env=environment)
    assert done.returncode == 1
    line = done.stderr.strip().splitlines()[-1]
    remedy = "set PYSPARK_PYTHON to an interpreter that has mqstore[spark]"
    check(line.replace(str(tmp_path), ""), "mqstore.MQStoreError: ", cause, remedy)


def test_another_version_is_named() -> None:
    text = "[PYTHON_VERSION_MISMATCH] Python in worker has different version: 3.9 than that in driver: 3.11"
    reason = _session._unsuitable_python(text)
    assert reason is not None
    check(reason, "has another version than this one", "set PYSPARK_PYTHON")
    assert _session._unsuitable_python("No module named 'other'") is None


def test_something_else_than_a_session_is_named() -> None:
    with pytest.raises(TypeError, match="spark must be a SparkSession, not str"):
        mqstore.spark.verify("local", "x")  # type: ignore[arg-type]
