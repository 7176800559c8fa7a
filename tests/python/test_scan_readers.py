"""Users of `scan`: libraries that read Arrow streams, Ctrl-C, forks, memory."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import mqstore
from scan_rows import NAMES, mixed_store, offsets

pa = pytest.importorskip("pyarrow")


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mixed_store(tmp_path_factory.mktemp("mixed") / "store")


def test_without_pyarrow_the_error_says_what_to_install(filled: Path) -> None:
    code = """
import sys; sys.modules["pyarrow"] = None
import mqstore
scan = mqstore.scan(sys.argv[1])
assert type(scan.__arrow_c_stream__()).__name__ == "PyCapsule"
try:
    list(scan)
except ImportError as error:
    assert 'pip install "mqstore[arrow]"' in str(error), error
else:
    raise AssertionError
"""
    subprocess.run([sys.executable, "-c", code, str(filled)], check=True)


def test_scanning_imports_nothing_heavy(filled: Path) -> None:
    code = """
import sys, mqstore
mqstore.scan(sys.argv[1], topics="orders").__arrow_c_stream__()
assert not {"pyarrow", "polars", "duckdb", "pandas", "numpy"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", code, str(filled)], check=True)


SLOW_READER = """
import sys, time, mqstore, pyarrow as pa
scan = mqstore.scan(sys.argv[1], filter="none", threads=int(sys.argv[3]))
print("ready", flush=True)
while True:
    if sys.argv[2] == "capsule":
        pa.RecordBatchReader.from_stream(scan).read_all()
    else:
        for batch in scan:
            pass
"""


@pytest.mark.parametrize("how", ["capsule", "iteration"])
@pytest.mark.parametrize("threads", [1, 2])
def test_ctrl_c(mixed: Path, how: str, threads: int) -> None:
    child = subprocess.Popen(
        [sys.executable, "-c", SLOW_READER, str(mixed), how, str(threads)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stdout is not None
    assert child.stdout.readline() == "ready\n"
    time.sleep(0.2)
    child.send_signal(signal.SIGINT)
    _, error = child.communicate(timeout=30)
    assert child.returncode != 0
    assert "KeyboardInterrupt" in error


def test_a_forked_child_gets_an_end(mixed: Path) -> None:
    code = """
import os, sys, warnings, mqstore
warnings.simplefilter("ignore", DeprecationWarning)
batches = iter(mqstore.scan(sys.argv[1], threads=3, batch_size=1))
next(batches)
child = os.fork()
if child == 0:
    try:
        list(batches)
    except mqstore.ForkedProcessError:
        os._exit(7)
    os._exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
assert len(list(batches)) == 1199
"""
    subprocess.run([sys.executable, "-c", code, str(mixed)], check=True, timeout=60)


def test_readers_of_arrow_streams(mixed: Path) -> None:
    scan = mqstore.scan(mixed)
    table = scan.to_arrow()
    assert pa.RecordBatchReader.from_stream(scan).read_all().equals(table)
    assert pa.schema(scan) == table.schema
    frame = scan.to_pandas()
    assert len(frame) == table.num_rows
    assert list(frame["body"]) == table["body"].to_pylist()


def test_polars(mixed: Path) -> None:
    pl = pytest.importorskip("polars")
    scan = mqstore.scan(mixed)
    table = scan.to_arrow()
    frame = scan.to_polars()
    assert frame.shape == (1200, len(NAMES))
    assert frame["body"].to_list() == table["body"].to_pylist()
    assert pl.DataFrame(mqstore.scan(mixed, columns=["topic", "queue_offset"])).height == 1200
    lazy = scan.to_polars_lazy()
    assert lazy.collect().equals(frame)
    noon = frame["store_timestamp"][600]
    column = pl.col
    queries = [
        lambda f: f.select("queue_id"),
        lambda f: f.filter(column("topic") == "t1"),
        lambda f: f.filter(pl.lit("t1") == column("topic")),
        lambda f: f.filter(column("topic").is_in(["t1", "t2"])).select("body"),
        lambda f: f.filter(column("topic") == "nobody"),
        lambda f: f.filter((column("topic") == "orders") & (column("queue_id") == 1)),
        lambda f: f.filter(
            (column("topic") == "orders") & (column("queue_offset") >= 10) & (column("queue_offset") < 20)
        ),
        lambda f: f.filter((column("topic") == "orders") | (column("queue_id") == 1)),
        lambda f: f.filter(~(column("topic") == "orders")),
        lambda f: f.filter(column("store_timestamp") >= noon),
        lambda f: f.filter(column("store_timestamp") < noon).select("topic"),
        lambda f: f.filter((column("queue_offset") > 3) & column("tags").is_not_null()),
        lambda f: f.filter(column("queue_id") + 1 == 2),
        lambda f: f.head(10),
        lambda f: f.filter(column("tags") == "paid").head(3),
        lambda f: f.group_by("topic").agg(pl.len()).sort("topic"),
    ]
    for query in queries:
        assert query(lazy).collect().equals(query(frame.lazy()).collect())


def test_duckdb(mixed: Path) -> None:
    duckdb = pytest.importorskip("duckdb")
    scan = mqstore.scan(mixed, columns=["topic", "queue_id", "queue_offset", "body"])
    with duckdb.connect() as connection:
        relation = scan.to_duckdb(connection)
        for _ in range(2):
            assert relation.aggregate("count(*)").fetchall() == [(1200,)]
        connection.register("messages", scan)
        query = "select count(*) from messages where topic = 'orders' and queue_id = 1"
        wanted = len(offsets(mqstore.scan(mixed, topics="orders", queue_id=1)))
        assert connection.sql(query).fetchall() == [(wanted,)]


MEMORY = """
import json, sys, mqstore, pyarrow as pa
pa.set_memory_pool(pa.system_memory_pool())

def anonymous():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon:"))

before, most, count = anonymous(), 0, 0
for threads in (1, 2, 4):
    for batch in mqstore.scan(sys.argv[1], threads=threads):
        count += batch.num_rows
        most = max(most, anonymous())
print(json.dumps([count, most - before]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_memory_does_not_grow_with_the_store(tmp_path: Path) -> None:
    with mqstore.open(tmp_path / "s", "create", segment_size=64 << 20) as store:
        body = bytes(4000)
        for _ in range(100):
            store.append_many("t", [body] * 1000)
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(tmp_path / "s")], stdout=subprocess.PIPE, text=True, check=True
    )
    count, grown = json.loads(done.stdout)
    assert count == 300_000
    assert grown < 128 << 20
