"""Spark with two threads. Reads one JSON specification on each line and prints one JSON line, as all drivers.

The session stays for all turns of a row. The first turn does not count. The sides without mqstore are code that a user
would write by hand: a parser of the commit log in Python, and a data source with prepared batches, which shows the cost
of Spark itself.
"""

from __future__ import annotations

import atexit
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, Window
from pyspark.sql import functions as f
from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from python_side import serve, working_copy

import mqstore
import mqstore.spark

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).resolve().parent.parent.parent
THREADS = 2
RECORD_MAGIC = -626843481
FEW = "keys,queue_id,queue_offset,body"


def prepare() -> None:
    """Set the environment for Spark: Java, address and Python."""
    if "JAVA_HOME" not in os.environ:
        found = subprocess.run([ROOT / "tools" / "java_home"], check=True, capture_output=True, text=True)
        os.environ["JAVA_HOME"] = found.stdout.strip()
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable


@cache
def session() -> SparkSession:
    """Return the session. The JVM has two threads and two gigabytes."""
    prepare()
    os.environ["PYSPARK_SUBMIT_ARGS"] = "--driver-memory 2g pyspark-shell"
    folder = tempfile.mkdtemp(prefix="mqstore-spark-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    builder = SparkSession.builder.master(f"local[{THREADS}]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false").config("spark.local.dir", folder)
    made = builder.config("spark.sql.shuffle.partitions", str(THREADS)).getOrCreate()
    made.dataSource.register(ReadyBatches)
    # The sessions of the tables are warm: Python workers run and have loaded their modules.
    made.range(0, THREADS, 1, THREADS).mapInArrow(loaded, "id bigint").collect()
    return made


def loaded(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Load the package, and return the input."""
    import mqstore.spark  # noqa: F401

    yield from batches


def timed(spec: dict[str, Any], call: Callable[[], int]) -> dict[str, Any]:
    """Time a call, which returns the number of messages that it found."""
    session()
    begin = time.perf_counter()
    found = call()
    seconds = time.perf_counter() - begin
    return {"seconds": seconds, "messages": spec["messages"], "stored": found, "refused": 0}


def beside(spec: dict[str, Any], name: str) -> Path:
    """Return an unused path next to the store."""
    path = Path(spec["path"] + name)
    shutil.rmtree(path, ignore_errors=True)
    return path


# ---------------------------------------------------------------------------------------------------------------------
# Handwritten code


HEAD = ">ii4xi4xq8xi"
"""Of a record: size, magic code, queue, queue offset, system flags."""

ROWS_AT_ONCE = 1024


def parsed(paths: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Parse segments of a log, as far as a compaction needs it: key, queue, offset and body of each record."""
    schema = pa.schema([("key", pa.string()), ("queue", pa.int32()), ("at", pa.int64()), ("body", pa.binary())])
    for batch in paths:
        for name in batch.column(0).to_pylist():
            records = records_of(Path(name).read_bytes())
            while some := list(islice(records, ROWS_AT_ONCE)):
                columns = [
                    pa.array(values, each.type) for values, each in zip(zip(*some, strict=True), schema, strict=True)
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=schema)


def records_of(data: bytes) -> Iterator[tuple[str, int, int, bytes]]:
    """Yield the records of a segment. A filler ends it."""
    head = struct.Struct(HEAD)
    at = 0
    while at + head.size <= len(data):
        size, magic, queue, offset, flags = head.unpack_from(data, at)
        if magic != RECORD_MAGIC:
            return
        # Hosts have 8 bytes, or 20 with an IPv6 address.
        place = at + 48 + (20 if flags & 0x10 else 8) + 8 + (20 if flags & 0x20 else 8) + 4 + 8
        end = place + 4 + int.from_bytes(data[place : place + 4], "big")
        body = data[place + 4 : end]
        end += 1 + data[end]
        text = data[end + 2 : end + 2 + int.from_bytes(data[end : end + 2], "big")].decode()
        properties = dict(pair.split("\x01", 1) for pair in text.split("\x02") if pair)
        yield properties["KEYS"], queue, offset, body
        at += size


class ReadyBatches(DataSource):
    """A source with the rows of a store, prepared before the measurement: one batch of 1024 rows, repeated."""

    @classmethod
    def name(cls) -> str:
        """Return the name of the format."""
        return "ready"

    def schema(self) -> Any:
        """Return the columns of a store."""
        from mqstore.spark import _source

        return _source.schema({name: self.options[name] for name in ("path", "columns") if name in self.options})

    def reader(self, schema: Any) -> DataSourceReader:  # noqa: ARG002
        """Return the reader."""
        return ReadyReader(self.options["batch"], int(self.options["messages"]))


class ReadyReader(DataSourceReader):
    """Yields a batch from a file as often as needed."""

    def __init__(self, batch: str, messages: int) -> None:
        """`messages` is the number of rows in all tasks."""
        self.batch = batch
        self.messages = messages

    def partitions(self) -> list[InputPartition]:
        """Return two tasks for each thread."""
        count = 2 * THREADS
        return [InputPartition(self.messages // count + (at < self.messages % count)) for at in range(count)]

    def read(self, partition: Any) -> Iterator[pa.RecordBatch]:
        """Yield the rows of one task."""
        with pa.ipc.open_file(self.batch) as file:
            batch = file.get_batch(0)
        left = partition.value
        while left > 0:
            yield batch.slice(0, min(left, batch.num_rows))
            left -= batch.num_rows


# ---------------------------------------------------------------------------------------------------------------------
# Operations


def compact(spec: dict[str, Any]) -> dict[str, Any]:
    """Compact a copy of the store. By hand: parse the log, keep the newest message of each key, write Parquet."""
    if spec["pattern"] in ("", "first", "partition", "ranged"):
        path = working_copy(spec)
        strategy = spec["pattern"] if spec["pattern"] in ("partition", "ranged") else "auto"
        result = timed(spec, lambda: mqstore.spark.compact(session(), path, strategy=strategy).messages_before)
        shutil.rmtree(path)
        return result
    out = beside(spec, "-parquet")

    def by_hand() -> int:
        newest(parsed_log(spec), spec["pattern"]).write.parquet(str(out))
        return int(session().read.parquet(str(out)).count())

    result = timed(spec, by_hand)
    # If one message of each key is left, all messages were read.
    result["stored"] = spec["messages"] if result["stored"] == spec["keys"] else result["stored"]
    shutil.rmtree(out)
    return result


def parsed_log(spec: dict[str, Any]) -> DataFrame:
    """Return the records of the log from the Python parser, one segment in each task."""
    segments = sorted(str(path) for path in Path(spec["path"], "commitlog").iterdir())
    paths = session().createDataFrame([(path,) for path in segments], "path string").repartition(len(segments))
    return paths.mapInArrow(parsed, "key string, queue int, at bigint, body binary")


def newest(rows: DataFrame, how: str) -> DataFrame:
    """Keep the newest row of each key."""
    if how == "max_by":
        return rows.groupBy("queue", "key").agg(f.max("at").alias("at"), f.max_by("body", "at").alias("body"))
    of_key = Window.partitionBy("queue", "key").orderBy(f.desc("at"))
    return rows.withColumn("place", f.row_number().over(of_key)).where("place = 1").drop("place")


def store(spec: dict[str, Any], **options: str) -> DataFrame:
    """Return the store's rows."""
    return session().read.format("mqstore").options(**options).load(spec["path"])


def read(spec: dict[str, Any]) -> dict[str, Any]:
    """Count rows and bytes of bodies. If `pattern` contains `few`, read only the columns that a program asks for."""
    way, _, few = spec["pattern"].partition("-")
    columns = {"columns": FEW} if few else {}
    frame = store(spec, **columns)
    if way == "bare":
        file = beside(spec, "-batch.arrow")
        file.unlink(missing_ok=True)
        found = mqstore.scan(spec["path"], columns=FEW.split(",") if few else None)
        first = pa.Table.from_batches([next(iter(found))]).slice(0, ROWS_AT_ONCE)
        with pa.ipc.new_file(file, first.schema) as out:
            out.write_table(first.combine_chunks())
        given = {"path": spec["path"], "batch": str(file), "messages": str(spec["messages"])} | columns
        frame = session().read.format("ready").options(**given).load()
    elif way == "parsed":
        frame = parsed_log(spec)
    return timed(spec, lambda: int(frame.agg(f.count("*"), f.sum(f.length("body"))).collect()[0][0]))


def parquet(spec: dict[str, Any]) -> dict[str, Any]:
    """Write the store to Parquet, by the data source, by the job, or by the Python parser."""
    out = beside(spec, "-parquet")
    way, _, few = spec["pattern"].partition("-")
    columns = {"columns": FEW} if few else {}
    if way == "export":
        return timed(spec, lambda: mqstore.spark.export(session(), spec["path"], out, **columns).messages)
    frame = parsed_log(spec) if way == "parsed" else store(spec)
    result = timed(spec, lambda: frame.write.parquet(str(out)) or 0)
    result["stored"] = int(session().read.parquet(str(out)).count())
    return result


def stream(spec: dict[str, Any]) -> dict[str, Any]:
    """Read the store and drop the rows, as a stream that ends or as a batch."""
    if spec["pattern"] == "batch":
        return timed(spec, lambda: store(spec).write.format("noop").mode("overwrite").save() or spec["messages"])

    def run() -> int:
        frame = session().readStream.format("mqstore").option("startingOffsets", "earliest").load(spec["path"])
        query = frame.writeStream.format("noop").option("checkpointLocation", str(beside(spec, "-checkpoint")))
        started = query.trigger(availableNow=True).start()
        started.awaitTermination()
        return sum(each["numInputRows"] for each in started.recentProgress)

    return timed(spec, run)


def verify(spec: dict[str, Any]) -> dict[str, Any]:
    """Verify the store."""
    return timed(spec, lambda: mqstore.spark.verify(session(), [spec["path"]])[spec["path"]].messages)


def write(spec: dict[str, Any]) -> dict[str, Any]:
    """Write rows to a new store, or to Parquet."""

    def rows(count: int, path: str) -> None:
        frame = session().range(0, count, 1, 2 * THREADS)
        # Bodies that are cheap to make, so that the write dominates.
        number = f.lpad(f.col("id").cast("string"), 8, "0")
        body = f.concat(number, f.repeat(f.lit("x"), spec["body_bytes"] - 8)).cast("binary")
        frame = frame.select(body.alias("body"), f.concat(f.lit("order-"), "id").alias("key"))
        if spec.get("pattern") == "parquet":
            frame.write.parquet(path)
        else:
            frame.write.format("mqstore").option("topic", "bench").mode("append").save(path)

    rows(spec["warm_up"], str(beside(spec, "-warm")))
    shutil.rmtree(spec["path"], ignore_errors=True)
    result = timed(spec, lambda: rows(spec["messages"], spec["path"]) or 0)
    if spec.get("pattern") == "parquet":
        result["stored"] = int(session().read.parquet(spec["path"]).count())
    else:
        with mqstore.open(spec["path"]) as found:
            result["stored"] = sum(queue.max_offset for queue in found.queues("bench"))
    shutil.rmtree(beside(spec, "-warm"), ignore_errors=True)
    return result


def first(spec: dict[str, Any]) -> dict[str, Any]:
    """Run the first job of a new cluster, in a separate process."""
    prepare()
    program = Path(__file__).parent / "first_job.py"
    ran = subprocess.run(
        [sys.executable, program, spec["path"], spec["pattern"]], check=True, capture_output=True, text=True
    )
    seconds, found = ran.stdout.split()
    return {
        "seconds": float(seconds),
        "taken_ms": float(seconds) * 1e3,
        "messages": spec["messages"],
        "stored": int(found),
        "refused": 0,
    }


OPERATIONS = {
    "first": first,
    "compact": compact,
    "read": read,
    "parquet": parquet,
    "stream": stream,
    "verify": verify,
    "write": write,
}

if __name__ == "__main__":
    serve(OPERATIONS)
