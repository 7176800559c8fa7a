"""Spark Connect: the client has no JVM, and a server runs its plans."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import mqstore
from compaction_rows import QUEUES, TOPIC, compacted, make
from spark_cluster import SETTINGS, bare_python, java_options, needs_spark

SIDE = Path(__file__).parent.parent / "spark_connect_side.py"


@pytest.mark.timeout(180)
def test_jobs_sources_and_sinks(tmp_path: Path) -> None:
    needs_spark()
    if find_spec("grpc") is None:
        pytest.skip('the client of Spark Connect is not installed: pip install "pyspark[connect]"')
    path, out = tmp_path / "store", tmp_path / "out"
    contents = make(path)
    # Executors have pyarrow and the shipped files only.
    python = bare_python(tmp_path / "python")
    folders = {"spark.local.dir": str(tmp_path / "local"), "spark.sql.execution.pyspark.python": str(python)}
    settings = {**SETTINGS, **folders}
    given = " ".join(f"--conf {name}={value}" for name, value in settings.items())
    options = f'--driver-memory 1g {given} --driver-java-options "{java_options(tmp_path)}"'
    environment = {
        **os.environ,
        "PYSPARK_SUBMIT_ARGS": f"{options} pyspark-shell",
        # With this variable, the server takes a free port.
        "SPARK_TESTING": "1",
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYTHONPATH": str(SIDE.parent),
    }
    ran = subprocess.run(
        [sys.executable, SIDE, path, out],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert ran.returncode == 0, ran.stderr
    found = json.loads(ran.stdout.splitlines()[-1])
    assert "connect" in found["session"]
    assert found["compacted"] == [3000, []]
    assert [done for done, _ in found["progress"]] == sorted({done for done, _ in found["progress"]})
    assert (found["progress"][0][0], len({total for _, total in found["progress"]})) == (0, 1)
    assert found["progress"][-1][0] == found["progress"][-1][1] > 100_000
    assert found["ended"] == "Enough"
    assert found["verified"]
    with mqstore.open(path) as store:
        left = [sum(1 for _ in store.read(TOPIC, queue)) for queue in range(QUEUES)]
        assert found["read"] == [[queue, count] for queue, count in enumerate(left)]
        exported = sum(1 for queue in store.queues("other") for _ in store.read("other", queue.queue_id))
        assert found["exported"] == exported
        new = {each.text() for queue in store.queues("new") for each in store.read("new", queue.queue_id)}
    assert new == {f"new {number}" for number in range(50)}
    assert found["streamed"] == 50
    assert compacted(path) == contents
