"""A store of 5 GB in a bucket: executors that see no folder of it read, verify, export and compact it while their
Python workers are killed. The results are those of the directory."""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset
import pytest

import mqstore
from remote_stores import BUCKET, Bucket, needs_versitygw, versitygw_bucket
from spark_cluster import Cluster, Driver, cluster_without, needs_spark
from spark_driver_side import job
from spark_kills import executors_of, killing

pytest.importorskip("obstore")

pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(sys.platform != "linux", reason="mount namespaces"),
    pytest.mark.timeout(7200),
]

MESSAGES = 1_000_000 * int(os.environ.get("MQSTORE_SOAK_GIGABYTES", "5"))
QUEUES = 4
BODY_BYTES = 1000
KEYS = 100_000
URL = f"s3://{BUCKET}/large"
COLUMNS = ["queue_id", "queue_offset", "body"]
PATIENCE = 3600.0
"""Seconds, far more than any job takes."""

Digest = dict[int, tuple[int, int, int]]
"""For each queue: the number of messages, the sum of the offsets, the sum of the checksums of the bodies."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the server, which keeps each object as a file."""
    return tmp_path_factory.mktemp("buckets") / "folder"


@pytest.fixture(scope="module")
def home(server: Bucket, folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of the store in the server's folder, so that the disk has it only once."""
    path = tmp_path_factory.mktemp("large") / "store"
    chance = random.Random(1)
    padding = chance.randbytes(BODY_BYTES)
    with mqstore.open(path, "create", segment_size=256 << 20) as store:
        store.create_topic("prices", queues=QUEUES, attributes={"cleanup.policy": "COMPACTION"})
        for begin in range(0, MESSAGES, 1000):
            batch = [
                mqstore.Message(b"%016d" % number + padding[16:], keys=f"k{chance.randrange(KEYS)}")
                for number in range(begin, begin + 1000)
            ]
            store.append_many("prices", batch, queue_id=begin // 1000 % QUEUES)
    server.upload(path, "large")
    shutil.rmtree(path)
    return folder / BUCKET / "large"


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Bucket]:
    needs_versitygw()
    with versitygw_bucket(folder) as bucket:
        yield bucket


@pytest.fixture(scope="module")
def cluster(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    needs_spark()
    with cluster_without(folder, tmp_path_factory.mktemp("cluster")) as made:
        # Killed workers fail their tasks.
        made.settings |= {"spark.task.maxFailures": "1000", "spark.executor.memory": "1g"}
        yield made


@pytest.fixture(scope="module")
def driver(cluster: Cluster) -> Driver:
    return cluster.driver()


def local_digest(home: Path) -> Digest:
    found = dict.fromkeys(range(QUEUES), (0, 0, 0))
    for batch in pa.RecordBatchReader.from_stream(mqstore.scan(home, columns=COLUMNS)):
        add(found, batch)
    return found


def add(found: Digest, batch: Any) -> None:
    for queue, offset, body in zip(*(batch[name].to_pylist() for name in COLUMNS), strict=True):
        count, offsets, sums = found[queue]
        found[queue] = (count + 1, offsets + offset, sums + zlib.crc32(body))


def spark_digest(spark: Any, path: str, options: str) -> Digest:
    rows = (
        spark.read.format("mqstore")
        .options(storageOptions=options)
        .load(path)
        .selectExpr("queue_id", "queue_offset", "crc32(body) AS crc")
        .groupBy("queue_id")
        .agg({"*": "count", "queue_offset": "sum", "crc": "sum"})
        .collect()
    )
    return {row["queue_id"]: (row["count(1)"], row["sum(queue_offset)"], row["sum(crc)"]) for row in rows}


Killed = Callable[..., Any]


@pytest.fixture
def killed_meanwhile(driver: Driver, cluster: Cluster) -> Killed:
    """Runs a function in the driver while so many workers are killed, with pauses of so many seconds at most."""

    def run(most: int, pause_seconds: float, function: Any, *arguments: Any, **named: Any) -> Any:
        chance = random.Random(most)
        with killing(lambda: executors_of(cluster.folder), chance, pause_seconds, most) as killed:
            driver.begin(function, *arguments, **named)
            answer = driver.end_of(PATIENCE)
        print(f"{function.__name__} {arguments[:1]}: {len(killed)} workers were killed")
        assert killed
        return answer

    return run


def test_what_executors_read_verify_and_export(
    killed_meanwhile: Killed, home: Path, server: Bucket, folder: Path, tmp_path: Path
) -> None:
    wanted = local_digest(home)
    assert sum(count for count, _, _ in wanted.values()) == MESSAGES
    assert killed_meanwhile(10, 2, spark_digest, URL, json.dumps(server.options)) == wanted

    checked = killed_meanwhile(10, 2, job, "verify", [URL], storage_options=server.options)[URL]
    local = mqstore.verify(home)
    assert (checked.ok, checked.messages, checked.bytes) == (True, local.messages, local.bytes)

    exported = f"s3://{BUCKET}/exported"
    options = {"storage_options": server.options, "target_options": server.options}
    report = killed_meanwhile(25, 3, job, "export", URL, exported, columns=",".join(COLUMNS), **options)
    assert report.messages == MESSAGES
    mqstore.fetch(exported, tmp_path / "exported", storage_options=server.options)
    shutil.rmtree(folder / BUCKET / "exported")
    found: Digest = dict.fromkeys(range(QUEUES), (0, 0, 0))
    for batch in pyarrow.dataset.dataset(tmp_path / "exported").to_batches():
        add(found, batch)
    assert found == wanted
    shutil.rmtree(tmp_path / "exported")


def test_a_copy_that_an_executor_compacts(killed_meanwhile: Killed, home: Path, server: Bucket, tmp_path: Path) -> None:
    compacted = f"s3://{BUCKET}/compacted"
    options = {"storage_options": server.options, "target_options": server.options}
    report = killed_meanwhile(5, 5, job, "compact", URL, output=compacted, force=True, **options)
    here = mqstore.compact(home, output=tmp_path / "local", force=True)
    same = {"job_id": "", "seconds": 0}
    assert {**report.to_dict(), **same} == {**here.to_dict(), **same}
    sums = checksums(tmp_path / "local")
    shutil.rmtree(tmp_path / "local")
    mqstore.fetch(compacted, tmp_path / "fetched", storage_options=server.options)
    parts = ("compaction/", "commitlog/", "consumequeue/")
    wanted = {path: total for path, total in sums.items() if path.startswith(parts)}
    found = checksums(tmp_path / "fetched")
    assert {path: found.get(path) for path in wanted} == wanted


def checksums(folder: Path) -> dict[str, int]:
    """The checksum of each file."""
    found = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        total = 0
        with path.open("rb") as file:
            while content := file.read(16 << 20):
                total = zlib.crc32(content, total)
        found[str(path.relative_to(folder))] = total
    return found
