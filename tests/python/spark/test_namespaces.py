"""Executors that do not see the store's folder: their Python workers have a mount namespace with an empty folder there.

So a local path fails in them, and a store at a URL is read only over the network.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import mqstore
from conftest import SMALL
from remote_stores import Bucket
from spark_cluster import Driver, Failed, cluster_without, needs_spark
from spark_driver_side import job

pytest.importorskip("obstore")

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="mount namespaces"),
    pytest.mark.timeout(600),
]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hidden") / "store"
    with mqstore.open(path, "create", options=SMALL, segment_size=1 << 20) as store:
        store.create_topic("orders", queues=2)
        messages = [mqstore.Message(b"%d" % number * 300, keys=f"k{number}") for number in range(1500)]
        for queue in range(2):
            store.append_many("orders", messages, queue_id=queue)
    return path


@pytest.fixture(scope="module")
def driver(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Driver]:
    """A driver whose Python workers have an empty folder instead of the store's one."""
    needs_spark()
    with cluster_without(home.parent, tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster.driver()


def entries(spark: Any, folder: str) -> list[str]:
    """The entries of a folder, as a Python worker of an executor sees them."""

    def look(batches: Any) -> Iterator[Any]:
        import pyarrow as pa

        for _ in batches:
            pass
        names = [path.name for path in Path(folder).iterdir()]
        yield pa.RecordBatch.from_pydict({"name": names}, pa.schema([("name", pa.string())]))

    return [row.name for row in spark.range(0, 1, 1, 1).mapInArrow(look, "name string").collect()]


def read(spark: Any, path: str, **options: Any) -> list[Any]:
    """All rows of a store."""
    frame = spark.read.format("mqstore").options(splitBytes=1 << 20, **options).load(path)
    rows = frame.selectExpr("queue_id", "queue_offset", "string(body)").orderBy("queue_id", "queue_offset").collect()
    return [frame.rdd.getNumPartitions(), [tuple(row) for row in rows]]


@pytest.mark.soak
def test_executors_read_and_verify_a_bucket_without_the_folder(driver: Driver, home: Path, s3: Bucket) -> None:
    url = s3.upload(home, "hidden")
    assert list(home.parent.iterdir()) == [home]
    assert driver.call(entries, str(home.parent)) == []
    with pytest.raises(Failed, match=r"NotAStoreError|under the same path"):
        driver.call(read, str(home))
    options = {"storageOptions": json.dumps(s3.options)}
    parts, rows = driver.call(read, url, **options)
    assert parts >= 2
    with mqstore.open(home) as store:
        wanted = [(m.queue_id, m.queue_offset, m.text()) for queue in range(2) for m in store.read("orders", queue)]
    assert rows == wanted
    found = driver.call(job, "verify", [url], storage_options=s3.options)
    assert found[url].ok
    assert found[url].messages == len(wanted)


@pytest.mark.soak
def test_executors_publish_a_compacted_copy_without_the_folder(driver: Driver, home: Path, s3: Bucket) -> None:
    url = s3.upload(home, "plain")
    target = f"{url}-compacted"
    options = {"storage_options": s3.options, "target_options": s3.options}
    report = driver.call(job, "compact", url, ["orders"], output=target, force=True, **options)
    assert (report.messages_before, report.messages_after) == (3000, 3000)
    checked = mqstore.verify(target, storage_options=s3.options)
    assert (checked.ok, checked.messages) == (True, 3000)
