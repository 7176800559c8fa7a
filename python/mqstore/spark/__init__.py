"""Spark jobs on store directories: tasks run native code, and no message body moves through Spark.

::

    from pyspark.sql import SparkSession
    import mqstore.spark

    spark = SparkSession.builder.master("local[*]").getOrCreate()
    report = mqstore.spark.compact(spark, "/data/store", topics=["prices"])

Install it with ``pip install "mqstore[spark]"``. Driver and executors must see the directory of the store under the
same path. Executors need mqstore: installed there, or sent by :func:`ship`. Only the driver changes the store, in one
step and under its lock. Whatever happens to the tasks (retries, speculative copies, lost executors), a job is published
once or not at all.
"""

from __future__ import annotations

from mqstore.spark._jobs.compact import Strategy, compact, job_details
from mqstore.spark._jobs.jobs import export, rebuild
from mqstore.spark._jobs.reports import Reports, as_dataframe
from mqstore.spark._jobs.verify import verify
from mqstore.spark._register import register
from mqstore.spark._ship import ship
from mqstore.spark._write.append import resume

__all__ = [
    "Reports", "Strategy", "as_dataframe", "compact", "export", "job_details", "rebuild", "register", "resume", "ship",
    "verify",
]  # fmt: skip
