"""Many stores in one read or job: rows and reports of each, balanced tasks, and stores that fail."""

from __future__ import annotations

import itertools
import json
import os
import pickle
import threading
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pytest

import compaction_rows
import mqstore
import mqstore.spark
from compaction_rows import SIZES, hashes
from conftest import SMALL
from mqstore.spark import _source, _stores
from mqstore.spark._jobs import rounds
from mqstore.spark._read import planning
from mqstore.spark._read.rows import rows_of_task
from remote_stores import in_memory

pytest.importorskip("fsspec")
from spark_cluster import SparkCli

MIB = 1 << 20
COLUMNS = ["topic", "queue_offset", "body"]


def make(home: Path, count: int, topic: str = "orders") -> Path:
    with mqstore.open(home, "create", options=SMALL) as store:
        for number in range(count):
            store.append(topic, b"%s %d" % (home.name.encode(), number), keys=f"k{number}")
    return home


@pytest.fixture
def homes(tmp_path: Path) -> list[Path]:
    """Three stores, whose order is not that of their names."""
    backups = tmp_path / "backups"
    backups.mkdir()
    return [make(backups / name, count) for name, count in (("c", 3), ("a", 5), ("b", 4))]


def url_of(home: Path) -> str:
    """A URL for `fsspec` that every process reads."""
    return f"local://{home}"


def damage(home: Path) -> Path:
    """Damages the body of the first message of a closed store."""
    [segment] = (home / "commitlog").iterdir()
    content = bytearray(segment.read_bytes())
    content[content.index(b" 0")] ^= 0xFF
    segment.write_bytes(content)
    return home


_changes = itertools.count(1_000_000_000)


def replace(home: Path) -> None:
    """Gives the first segment of a closed store another version."""
    time = next(_changes)
    os.utime(min((home / "commitlog").iterdir()), (time, time))


def several(places: list[Any], **options: Any) -> dict[str, str]:
    return {"paths": json.dumps([str(place) for place in places]), **{name: str(v) for name, v in options.items()}}


def direct(given: dict[str, str], wanted: Any = None) -> list[dict[str, Any]]:
    """The rows of the tasks of a read, without Spark."""
    reader = _source.reader(given, wanted or _source.schema(given))
    copy = pickle.loads(pickle.dumps(reader))
    tasks = [pickle.loads(pickle.dumps(each.value)) for each in reader.partitions()]
    return [row for task in tasks for b in rows_of_task(copy.options, task, copy.remotes) for row in b.to_pylist()]


def scanned(places: list[Any], columns: list[str] = COLUMNS, **request: Any) -> list[dict[str, Any]]:
    return mqstore.scan([str(place) for place in places], columns=columns, **request).to_arrow().to_pylist()


# The planner, without Spark


@pytest.mark.parametrize("options", [{}, {"maxRecordsPerPartition": 2}, {"minPartitions": 4}, {"batchBytes": 1}])
def test_rows_are_those_of_a_scan_of_the_stores(homes: list[Path], options: dict[str, Any]) -> None:
    places = [homes[0], url_of(homes[1]), homes[2]]
    assert direct(several(places, columns=",".join(COLUMNS), **options)) == scanned(places)


def test_the_column_is_where_it_is_named(homes: list[Path]) -> None:
    for columns in (["body", "store"], ["topic", "store", "body"], ["store"]):
        given = several(homes, columns=",".join(columns))
        assert _source.schema(given).names == columns
        assert direct(given) == scanned(homes, columns)
    given = several(homes)
    assert _source.schema(given).names[0] == "store"
    assert direct(given, _source.struct({"body": "binary", "store": "string"})) == scanned(homes, ["body", "store"])
    # One plain path has no such column, and a list of one has.
    assert "store" not in _source.schema({"path": str(homes[0])}).names
    with pytest.raises(mqstore.InvalidOptionError, match="store"):
        _source.schema({"path": str(homes[0]), "columns": "store"})
    assert direct(several(homes[:1], columns="store")) == [{"store": str(homes[0])}] * 3


def test_a_pattern_is_several_stores(homes: list[Path]) -> None:
    backups = homes[0].parent
    (backups / "no store").mkdir()
    in_order = sorted(homes)
    columns = ",".join(COLUMNS)
    assert direct({"path": f"{backups}/*", "columns": columns}) == scanned(in_order)
    urls = [url_of(home) for home in in_order]
    assert direct({"path": f"{url_of(backups)}/*", "columns": columns}) == scanned(urls)
    with pytest.raises(mqstore.NotAStoreError, match="matches no"):
        direct({"path": f"{backups}/x*"})
    with pytest.raises(mqstore.InvalidOptionError, match="a stream reads one store"):
        given = {"path": f"{backups}/*"}
        _source.stream_reader(given, _source.schema(given))


def part(path: str, size: int) -> planning.Part:
    return planning.Part(path, (planning.Range("t", 0, 0, 1),), 0, size, "log", 1)


def test_tasks_of_a_read_are_balanced_by_bytes() -> None:
    # A thousand stores, some of them large. Each is divided by the same size.
    sizes = [1 << 30] * 20 + [3 * MIB] * 900 + [200 * MIB] * 80
    given = {"several": True, "max_records": None, "split_bytes": None, "min_partitions": 1}
    options = planning.shared_split(given, sum(sizes))
    split = options["split_bytes"]
    assert split == 512 * MIB
    parts = [
        part(f"/{number}", min(split, size - at)) for number, size in enumerate(sizes) for at in range(0, size, split)
    ]
    tasks = planning.grouped(parts, options)
    assert [each for task in tasks for each in task] == parts
    work = [sum(map(planning.weight, task)) for task in tasks]
    assert all(bytes_ <= split or len(task) == 1 for bytes_, task in zip(work, tasks, strict=True))
    assert sum(work) / split <= len(tasks) <= 2 * sum(work) / split
    # An open counts too, so that one task does not open all small stores.
    assert max(len(task) for task in tasks) < 128
    # More partitions than these are possible.
    options = planning.shared_split({**given, "min_partitions": 500}, sum(sizes))
    assert sum(-(-size // options["split_bytes"]) for size in sizes) >= 500
    # A limit of rows is for each task, and one store has one part for each task.
    for single in ({"several": False}, {"max_records": 5}):
        assert planning.grouped(parts, {**options, **single}) == [[each] for each in parts]


def test_tasks_of_a_job_are_balanced_by_bytes() -> None:
    weights = [100, 1, 1, 60, 30, 10, 90, 1]
    shares = rounds.balanced(weights, 3)
    assert sorted(at for share in shares for at in share) == list(range(8))
    work = [sum(weights[at] for at in share) for share in shares]
    assert work == sorted(work, reverse=True)
    assert max(work) - min(work) <= 10
    # The heaviest call begins first.
    assert rounds.balanced(weights, 8) == [[0], [6], [3], [4], [5], [1], [2], [7]]
    assert [len(share) for share in rounds.balanced([0] * 9, 3)] == [3, 3, 3]


def test_the_driver_opens_stores_at_the_same_time_up_to_a_bound() -> None:
    together = threading.Barrier(_stores.OPENS)
    lock = threading.Lock()
    open_now, most = 0, 0

    def call(number: int) -> int:
        nonlocal open_now, most
        with lock:
            open_now += 1
            most = max(most, open_now)
        # Only the full number of calls passes.
        together.wait(60)
        with lock:
            open_now -= 1
        return number

    assert _stores.each(call, range(2 * _stores.OPENS), "raise") == list(range(2 * _stores.OPENS))
    assert most <= _stores.OPENS


def test_an_error_ends_the_opens_that_have_not_begun() -> None:
    begun = []

    def call(number: int) -> None:
        begun.append(number)
        raise mqstore.NotAStoreError(f"/{number}", "none")

    with pytest.raises(mqstore.NotAStoreError, match="/0"):
        _stores.each(call, range(10_000), "raise")
    assert len(begun) < 10_000
    assert len(_stores.each(call, range(100), "skip")) == 100


def test_a_store_that_fails_in_a_read(homes: list[Path], tmp_path: Path) -> None:
    missing, other = tmp_path / "missing", make(tmp_path / "other", 1, "other")
    places = [missing, homes[0], damage(homes[1]), url_of(other), homes[2]]
    columns = "queue_offset,body"
    with pytest.raises(mqstore.NotAStoreError, match=str(missing)):
        direct(several(places))
    # An error that names no store gets a note.
    with pytest.raises(mqstore.TopicNotFoundError) as caught:
        direct(several(places[3:], topic="orders"))
    assert f"while reading the store {url_of(other)}" in caught.value.__notes__

    with pytest.warns(mqstore.StoreWarning) as heard:
        found = direct(several(places, topic="orders", columns=columns, onError="skip"))
    assert found == scanned([homes[0], homes[2]], ["store", "queue_offset", "body"], topics="orders")
    failed = [str(missing), str(homes[1]), url_of(other)]
    assert all(any(path in str(one.message) for one in heard) for path in failed)

    # In this mode, a row says why.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = direct(several(places, topic="orders", columns=columns, onError="skip", mode="PERMISSIVE"))
    assert {row["store"] for row in found if row["_corrupt_record"]} == set(failed)
    with pytest.raises(mqstore.InvalidOptionError, match="one store"):
        direct({"path": str(homes[0]), "onError": "skip"})


def test_secrets_of_a_url_are_in_no_plan_and_no_row(homes: list[Path]) -> None:
    in_memory(homes[0], "spark-secret/store")
    urls = [f"memory://user:word@spark-secret/{name}" for name in ("store", "none")]
    given = several([homes[1], *urls], onError="skip", mode="PERMISSIVE")
    with pytest.warns(mqstore.StoreWarning) as heard:
        reader = _source.reader(given, _source.schema(given))
    parts = reader.partitions()
    rows = [
        row for each in parts for b in rows_of_task(reader.options, each.value, reader.remotes) for row in b.to_pylist()
    ]
    assert {row["store"] for row in rows} == {str(homes[1]), *(url.replace("user:word@", "") for url in urls)}
    shown = [repr(reader), repr(vars(reader)), repr(rows), *map(repr, parts), *(str(one.message) for one in heard)]
    assert not any("word" in text for text in shown)
    with pytest.raises(mqstore.NotAStoreError) as caught:
        direct(several(urls))
    assert "word" not in f"{caught.value!r}{caught.value}{getattr(caught.value, '__notes__', '')}"


# Sessions of Spark


def test_spark_reads_several_stores(spark: Any, homes: list[Path], tmp_path: Path) -> None:
    wanted = {str(home): count for home, count in zip(homes, (3, 5, 4), strict=True)}

    def counted(frame: Any) -> dict[str, int]:
        return dict(Counter(row.store for row in frame.collect()))

    assert counted(spark.read.format("mqstore").load(f"{homes[0].parent}/*").select("store")) == wanted
    places = [*map(str, homes), str(tmp_path / "missing")]
    assert counted(spark.read.format("mqstore").option("onError", "skip").load(places)) == wanted
    # Rows of a read can be written; the column is not.
    copy = make(tmp_path / "copy", 0)
    rows = spark.read.format("mqstore").load([str(home) for home in homes])
    rows.write.format("mqstore").mode("append").save(str(copy))
    assert mqstore.scan(copy).to_arrow().num_rows == 12


def test_a_filter_of_the_store_opens_no_other_store(spark: Any, homes: list[Path]) -> None:
    given = several(homes, pushdown=True)
    reader = _source.reader(given, _source.schema(given))
    from pyspark.sql.datasource import EqualTo

    assert list(reader.pushFilters([EqualTo(("store",), str(homes[1]))])) == []
    assert {each.path for task in reader.partitions() for each in [planning.Part(*task.value[0])]} == {str(homes[1])}


def test_verify_continues_after_a_store_that_fails(spark: Any, homes: list[Path], tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    places = [homes[0], missing, damage(homes[1]), url_of(homes[2]), url_of(missing)]
    found = mqstore.spark.verify(spark, places, on_error="skip", max_tasks=2)
    assert {path: report.ok for path, report in found.items()} == {
        str(homes[0]): True,
        str(homes[1]): False,
        url_of(homes[2]): True,
    }
    assert [(path, type(error)) for path, error in found.failures] == [
        (str(missing), mqstore.NotAStoreError),
        (url_of(missing), mqstore.NotAStoreError),
    ]
    assert "same path" in found.failures[0][1].__notes__[0]
    assert pickle.loads(pickle.dumps(found)).failures == found.failures
    with pytest.raises(mqstore.MQStoreError, match="NotAStoreError"):
        mqstore.spark.verify(spark, places)
    # A pattern, and a table of places.
    assert set(mqstore.spark.verify(spark, f"{homes[0].parent}/*")) == set(map(str, homes))
    frame = spark.createDataFrame([(str(place),) for place in (homes[0], url_of(homes[2]))], ["url"])
    assert list(mqstore.spark.verify(spark, frame)) == [str(homes[0]), url_of(homes[2])]


def test_an_export_continues_after_a_store_that_changes(
    spark: Any, homes: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = [url_of(home) for home in homes]
    real = rounds.Rounds.run

    def change(self: rounds.Rounds, calls: list[rounds.Call]) -> list[bytes]:
        # The driver has listed the files and planned the parts.
        replace(homes[1])
        return real(self, calls)

    missing = tmp_path / "missing"
    wanted = scanned([urls[0], urls[2]])
    monkeypatch.setattr(rounds.Rounds, "run", change)
    out = tmp_path / "out"
    columns = ",".join(COLUMNS)
    found = mqstore.spark.export(spark, [*urls, missing], out, on_error="skip", columns=columns)
    assert isinstance(found, mqstore.spark.Reports)
    assert {path: report.messages for path, report in found.items()} == {urls[0]: 3, urls[2]: 4}
    assert {path: type(error) for path, error in found.failures} == {
        urls[1]: mqstore.StoreChangedError,
        str(missing): mqstore.NotAStoreError,
    }
    table = pyarrow.dataset.dataset(str(out)).to_table()
    assert table.schema.names == ["store", *COLUMNS]
    assert table.sort_by([("store", "descending"), ("queue_offset", "ascending")]).to_pylist() == sorted(
        wanted, key=lambda row: (row["store"], -row["queue_offset"]), reverse=True
    )
    assert sum(report.bytes for report in found.values()) == sum(file.stat().st_size for file in out.iterdir())
    # An export of nothing replaces nothing, and without on_error="skip" there is none.
    before = sorted(out.iterdir())
    found = mqstore.spark.export(spark, [urls[1]], out, on_error="skip", overwrite=True)
    assert (dict(found), len(found.failures)) == ({}, 1)
    with pytest.raises(mqstore.MQStoreError, match="StoreChangedError"):
        mqstore.spark.export(spark, urls, out, overwrite=True)
    assert sorted(out.iterdir()) == before


def test_compactions_continue_after_a_store_that_fails(spark: Any, tmp_path: Path) -> None:
    one, two = tmp_path / "one", tmp_path / "two"
    contents = [compaction_rows.make(home, options=SMALL) for home in (one, two)]
    places = [one, tmp_path / "missing", two]
    found = mqstore.spark.compact(spark, places, on_error="skip", **SIZES)
    assert [report.messages_before for report in found.values()] == [3000, 3000]
    assert [(path, type(error)) for path, error in found.failures] == [(str(places[1]), mqstore.NotAStoreError)]
    assert [compaction_rows.compacted(home) for home in (one, two)] == contents
    with pytest.raises(mqstore.InvalidOptionError, match="one store"):
        mqstore.spark.compact(spark, one, on_error="skip")  # type: ignore[call-overload]


def test_a_compacted_copy_of_a_url_is_that_of_the_directory(spark: Any, tmp_path: Path) -> None:
    home = tmp_path / "store"
    compaction_rows.make(home, options=SMALL)
    before = hashes(home)
    local = mqstore.compact(home, output=tmp_path / "local", **SIZES)
    told: list[mqstore.Progress] = []
    for name, place in (("url", url_of(home)), ("directory", home)):
        output = tmp_path / "out" / name
        report = mqstore.spark.compact(
            spark, place, output=output, job_id="nightly", max_tasks=3, progress=told.append, **SIZES
        )
        assert {**report.to_dict(), "job_id": "", "seconds": 0} == {**local.to_dict(), "job_id": "", "seconds": 0}
        for part in ("compaction", "commitlog", "consumequeue"):
            assert hashes(output / part) == hashes(tmp_path / "local" / part)
        assert mqstore.verify(output).ok
        # A driver that is started again has nothing to do.
        assert mqstore.spark.compact(spark, place, output=output, job_id="nightly", **SIZES) == report
        with pytest.raises(FileExistsError):
            mqstore.spark.compact(spark, place, output=output, **SIZES)
    assert told[-1].done == told[-1].total
    assert hashes(home) == before
    assert {each.name for each in (tmp_path / "out").iterdir()} == {"url", "directory"}


def test_a_compacted_copy_that_fails_leaves_nothing(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home, output = tmp_path / "store", tmp_path / "out" / "copy"
    compaction_rows.make(home, options=SMALL)
    output.parent.mkdir()
    url = url_of(home)
    for place, wanted in ((url_of(tmp_path / "nothing"), mqstore.NotAStoreError), (url, mqstore.TopicNotFoundError)):
        with pytest.raises(wanted):
            mqstore.spark.compact(spark, place, ["unknown"], output=output)
    with pytest.raises(mqstore.RemoteStoreError, match="output="):
        mqstore.spark.compact(spark, url)
    for wrong in ({"output": output, "dry_run": True}, {"storage_options": {}}):
        with pytest.raises(mqstore.InvalidOptionError):
            mqstore.spark.compact(spark, url, **wrong)
    real = rounds.Rounds.run

    def change(self: rounds.Rounds, calls: list[rounds.Call]) -> list[bytes]:
        replace(home)
        return real(self, calls)

    monkeypatch.setattr(rounds.Rounds, "run", change)
    with pytest.raises(mqstore.MQStoreError, match="StoreChangedError"):
        mqstore.spark.compact(spark, url, output=output)
    assert list(output.parent.iterdir()) == []


def test_the_command_line_takes_several_stores(run: SparkCli, homes: list[Path], tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    status, out, err = run("verify", *homes, missing, "--format", "json")
    assert (status, [each["ok"] for each in json.loads(out)]) == (3, [True] * 3)
    assert str(missing) in err
    status, out, _ = run("export", f"{homes[0].parent}/*", tmp_path / "out", "--format", "json")
    assert (status, [(each["store"], each["messages"]) for each in json.loads(out)]) == (
        0,
        [(str(home), count) for home, count in zip(sorted(homes), (5, 4, 3), strict=True)],
    )
    compaction_rows.make(tmp_path / "prices", options=SMALL)
    status, out, _ = run("compact", url_of(tmp_path / "prices"), "--output", tmp_path / "copy", "--format", "json")
    assert (status, [each["messages_before"] for each in json.loads(out)]) == (0, [3000])
    assert mqstore.verify(tmp_path / "copy").ok
