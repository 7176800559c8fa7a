"""The first job of a new cluster, in a separate process: prints the seconds that it took.

The executors are processes with another Python, which has mqstore (``installed``) or gets it with the job
(``shipped``). The time begins when the session exists. In both cases, it includes the start of the Python workers.
"""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
import time
from pathlib import Path

import pyspark
from pyspark.sql import SparkSession

import mqstore.spark

# The cluster tests can make a Python that has pyarrow and nothing else.
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "python"))

from spark_cluster import bare_python

EXECUTORS = "local-cluster[2,1,1024]"


def main(path: str, how: str) -> None:
    """Verify the store."""
    folder = Path(tempfile.mkdtemp(prefix="mqstore-first-"))
    try:
        python = Path(sys.executable) if how == "installed" else bare_python(folder / "python")
        os.environ["SPARK_HOME"] = str(Path(pyspark.__file__).parent)
        builder = SparkSession.builder.master(EXECUTORS).config("spark.ui.enabled", "false")
        builder = builder.config("spark.sql.execution.pyspark.python", str(python))
        builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.local.dir", str(folder))
        spark = builder.getOrCreate()
        # Both executors are running.
        spark.sparkContext.parallelize(range(2), 2).map(lambda _: time.sleep(1)).count()
        begin = time.perf_counter()
        if how == "shipped":
            mqstore.spark.ship(spark)
        report = mqstore.spark.verify(spark, [path])[path]
        print(time.perf_counter() - begin, report.messages)
        spark.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
