"""A client of Spark Connect that uses a store as a program would, and prints the results as JSON."""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import mqstore
import mqstore.spark
from compaction_rows import SIZES, TOPIC


class Enough(Exception):  # noqa: N818 - it is no error
    """The exception with which a caller stops a job."""


def ended(spark: Any, path: str) -> str:
    """Stops a job while its tasks wait. Returns how it ended."""
    from mqstore.spark import _session

    def slow(batches: Any) -> Any:
        import time

        time.sleep(60)
        yield from batches

    def look(_: int | None) -> None:
        if time.monotonic() > begun + 1:
            raise Enough

    begun = time.monotonic()
    try:
        _session.run(spark, slow, 2, "id bigint", look)
    except Enough as error:
        return type(error).__name__ if time.monotonic() < begun + 30 else "late"
    return path


def main(path: str, out: str) -> None:
    """Ships the package, and runs each kind of job, source and sink on a server that this process starts."""
    from pyspark.sql import SparkSession
    from pyspark.sql import functions as f

    spark: Any = SparkSession.builder.remote("local[2]").getOrCreate()
    found: dict[str, Any] = {"session": f"{type(spark).__module__}"}
    mqstore.spark.ship(spark)
    told: list[tuple[int, int]] = []
    report = mqstore.spark.compact(spark, path, progress=lambda each: told.append((each.done, each.total)), **SIZES)
    found["compacted"] = (report.messages_before, report.skipped)
    found["progress"] = told
    found["ended"] = ended(spark, path)
    found["verified"] = mqstore.spark.verify(spark, [path])[path].ok
    rows = spark.read.format("mqstore").option("topic", TOPIC).load(path)
    found["read"] = [tuple(row) for row in rows.groupBy("queue_id").agg(f.count("*")).orderBy("queue_id").collect()]
    found["exported"] = mqstore.spark.export(spark, path, out, topic="other").messages
    new = spark.range(0, 50, 1, 2).selectExpr("concat('new ', id) AS body")
    new.write.format("mqstore").option("topic", "new").mode("append").save(path)
    # A stream runs in a separate session on the server, without the shipped files.
    spark.conf.set("spark.sql.execution.pyspark.python", sys.executable)
    stream = spark.readStream.format("mqstore").option("topic", "new").option("startingOffsets", "earliest").load(path)
    query = stream.writeStream.format("memory").queryName("seen").option("checkpointLocation", out + "-checkpoint")
    query.trigger(availableNow=True).start().awaitTermination()
    found["streamed"] = spark.table("seen").count()
    spark.stop()
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
