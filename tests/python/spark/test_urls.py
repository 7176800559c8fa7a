"""Stores at URLs as sources of Spark: the rows of the directory, or a typed error; no credentials are shown."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest

import damaged_stores
import mqstore
import mqstore.spark
from compaction_rows import SIZES, hashes, make
from conftest import SMALL
from mqstore.spark import _source
from mqstore.spark._jobs import rounds
from mqstore.spark._read import planning
from mqstore.spark._read.rows import rows_of_task
from remote_stores import ACCESS_KEY, BUCKET, SECRET_KEY, Bucket, Requests

pytest.importorskip("obstore")
pytest.importorskip("fsspec")

MIB = 1 << 20


def _compacted(home: Path) -> None:
    make(home, options=SMALL)
    mqstore.compact(home, in_place=True)


STORES: dict[str, Callable[[Path], object]] = {
    "mqstore": damaged_stores.ours,
    "rocketmq": damaged_stores.unpacked,
    "compacted": _compacted,
}


@pytest.fixture(scope="module", params=list(STORES))
def golden(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("golden") / str(request.param)
    STORES[request.param](home)
    return home


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four segments of 2 MiB, each about full."""
    home = tmp_path_factory.mktemp("large") / "store"
    with mqstore.open(home, "create", options=SMALL, segment_size=2 * MIB) as store:
        store.create_topic("orders", queues=2)
        for number in range(2000):
            store.append("orders", b"%04d" % number + bytes(4000), keys=f"k{number}", queue_id=number % 2)
    return home


def url_of(home: Path) -> str:
    """A URL for `fsspec` that every process reads: Spark's `file:` is a directory."""
    return f"local://{home}"


def with_options(bucket: Bucket) -> dict[str, str]:
    return {"storageOptions": json.dumps(bucket.options)}


def planned(path: object, **options: Any) -> Any:
    """The reader of the driver, as each task gets it."""
    given = {"path": str(path), **{name: str(value) for name, value in options.items()}}
    return _source.reader(given, _source.schema(given))


def task(reader: Any, parts: tuple[tuple[Any, ...], ...]) -> list[dict[str, Any]]:
    """The rows of a task, without Spark. Each task has its own copy of all objects."""
    own = pickle.loads(pickle.dumps(reader))
    found = rows_of_task(own.options, pickle.loads(pickle.dumps(parts)), own.remotes)
    return [row for batch in found for row in batch.to_pylist()]


def direct(path: object, **options: Any) -> list[list[dict[str, Any]]]:
    reader = pickle.loads(pickle.dumps(planned(path, **options)))
    return [task(reader, part.value) for part in reader.partitions()]


@pytest.mark.parametrize(
    "options",
    [{}, {"splitBytes": 20_000}, {"maxRecordsPerPartition": 60}, {"mode": "PERMISSIVE"}, {"tags": "t || t1 || paid"}],
    ids=lambda options: next(iter(options), "all"),
)
def test_the_parts_are_those_of_the_directory(golden: Path, options: dict[str, Any]) -> None:
    wanted = direct(golden, **options)
    assert direct(url_of(golden), **options) == wanted
    assert any(wanted)


def test_spark_reads_a_bucket(spark: Any, golden: Path, s3: Bucket) -> None:
    url = s3.upload(golden, f"spark/{golden.name}")
    wanted = spark.read.format("mqstore").load(str(golden)).orderBy("commit_log_offset", "topic").collect()
    for name in (url, url.replace("s3://", "s3a://"), url.replace("s3://", "S3N://")):
        frame = spark.read.format("mqstore").options(**with_options(s3)).load(name)
        assert frame.orderBy("commit_log_offset", "topic").collect() == wanted


def test_directories_and_urls_in_one_read(tmp_path: Path, s3: Bucket) -> None:
    golden = tmp_path / "store"
    damaged_stores.unpacked(golden)
    url = s3.upload(golden, "several")
    places = [str(golden), url, url_of(golden)]
    found = direct("", paths=json.dumps(places), columns="body", **with_options(s3))
    [wanted] = direct(golden, columns="body")
    assert [row for rows in found for row in rows] == [{"store": place, **row} for place in places for row in wanted]


def test_the_driver_lists_once_and_a_task_reads_its_part(
    large: Path, s3: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = s3.upload(large, "parts")
    requests = Requests(monkeypatch)
    reader = planned(url, splitBytes=MIB, columns="body", **with_options(s3))
    parts = [part.value for part in pickle.loads(pickle.dumps(reader)).partitions()]
    assert requests.lists == 1
    requests.taken()
    assert len(parts) >= 7
    for parts_of_task in parts:
        found = task(reader, parts_of_task)
        assert len(found) >= 200
        assert requests.lists == 0, "tasks have the list of the driver"
        count, size = requests.taken()
        # The open reads the ends of the queues, the index and the log; a read of the log is up to 1 MiB longer.
        assert count < 40
        [part] = parts_of_task
        assert size < part[3] - part[2] + 1.3 * MIB


def test_the_driver_lists_and_opens_each_of_several_stores_once(
    large: Path, s3: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    urls = [s3.upload(large, f"fleet/{name}") for name in ("one", "two")]
    requests = Requests(monkeypatch)
    opened: list[Any] = []
    real = planning.opened
    monkeypatch.setattr(planning, "opened", lambda place, *others: opened.append(place) or real(place, *others))
    reader = planned(f"s3://{BUCKET}/fleet/*", splitBytes=2 * MIB, columns="body", **with_options(s3))
    tasks = [each.value for each in reader.partitions()]
    assert (requests.lists, sorted(place.url for place in opened)) == (2, urls)
    assert len(tasks) >= 8
    found = [row["store"] for each in tasks for row in task(reader, each)]
    assert found == [url for url in urls for _ in range(2000)]
    assert requests.lists == 2, "tasks have the list of the driver"


@pytest.mark.parametrize("way", ["log", "queue"])
@pytest.mark.parametrize("change", ["replaced", "removed"])
def test_a_file_that_changes_after_the_plan_is_an_error(large: Path, s3: Bucket, way: str, change: str) -> None:
    url = s3.upload(large, f"{change}-{way}")
    options = {"splitBytes": MIB} if way == "log" else {"maxRecordsPerPartition": 200}
    reader = planned(url, **options, **with_options(s3))
    parts = [part.value for part in reader.partitions()]
    segment = sorted((large / "commitlog").iterdir())[1]
    name = f"{change}-{way}/commitlog/{segment.name}"
    if change == "removed":
        s3.store.delete(name)
    else:
        s3.put(name, segment.read_bytes()[::-1])
    assert len(task(reader, parts[0])) > 0, "this part does not need the file"
    with pytest.raises(mqstore.StoreChangedError, match="open the store again") as told:
        for part in parts[1:4]:
            task(reader, part)
    assert told.value.path == f"s3://{BUCKET}/{name}"


@pytest.mark.parametrize("attempt", ["read", "plan"])
def test_spark_tells_a_changed_file_and_no_secret(spark: Any, large: Path, s3: Bucket, attempt: str) -> None:
    url = s3.upload(large, f"changed-{attempt}")
    frame = spark.read.format("mqstore").options(splitBytes=2 * MIB, **with_options(s3)).load(url)
    texts = []
    if attempt == "read":
        # This lets the reader list the files and plan the parts. Spark keeps the plan for the frame.
        execution = frame._jdf.queryExecution()
        assert execution.toRdd().getNumPartitions() >= 4
        modes = ("simple", "extended", "codegen", "cost", "formatted")
        explain = spark._jvm.PythonSQLUtils.explainString
        texts += [execution.toString(), *(explain(execution, mode) for mode in modes)]
        segment = sorted((large / "commitlog").iterdir())[1]
        s3.put(f"changed-{attempt}/commitlog/{segment.name}", segment.read_bytes()[::-1])
        wanted = "StoreChangedError"
    else:
        frame = spark.read.format("mqstore").options(**with_options(s3)).load(f"{url}/nothing")
        wanted = "NotAStoreError"
    with pytest.raises(Exception, match=wanted) as told:
        frame.collect()
    texts += [str(told.value), repr(told.value)]
    for text in texts:
        assert text
        for secret in (SECRET_KEY, ACCESS_KEY):
            assert secret not in text


def test_credentials_are_not_shown(large: Path, s3: Bucket) -> None:
    url = s3.upload(large, "hidden")
    reader = planned(url, **with_options(s3))
    shown = [repr(reader), repr(vars(reader)), *map(repr, reader.partitions())]
    with pytest.raises(mqstore.InvalidOptionError, match="must be a JSON object") as told:
        planned(url, storageOptions=f'{{"secret_access_key": "{SECRET_KEY}"')
    shown.append(str(told.value))
    wrong = {**s3.options, "secret_access_kye": SECRET_KEY}
    with pytest.raises(mqstore.InvalidOptionError) as told:
        planned(url, storageOptions=json.dumps(wrong))
    shown.append(str(told.value))
    for text in shown:
        for secret in (SECRET_KEY, ACCESS_KEY):
            assert secret not in text

    with_password = url_of(large).replace("local://", "memory://user:pass/word@")
    with pytest.raises(mqstore.NotAStoreError) as missing:
        planned(with_password)
    assert "word" not in str(missing.value)


def test_options(tmp_path: Path, large: Path) -> None:
    with pytest.raises(mqstore.InvalidOptionError, match=r"storageOptions.*only for stores at URLs"):
        planned(large, storageOptions="{}")
    with pytest.raises(mqstore.InvalidOptionError, match="must be a JSON object"):
        planned(url_of(large), storageOptions="[1]")
    assert direct(f"file://{large}", columns="body") == direct(large, columns="body")
    with pytest.raises(mqstore.NotAStoreError, match="local://") as told:
        planned(url_of(tmp_path))
    assert "same path" not in str(told.value)


@pytest.mark.parametrize("strategy", ["auto", "ranged"])
def test_verify_of_urls_and_directories(spark: Any, tmp_path: Path, s3: Bucket, strategy: Any) -> None:
    home = tmp_path / "store"
    damaged_stores.unpacked(home)
    sound, damaged = s3.upload(home, f"verify-{strategy}"), s3.upload(home, f"verify-{strategy}-damaged")
    segment = min((home / "commitlog").iterdir())
    content = bytearray(segment.read_bytes())
    content[200] ^= 1
    s3.put(f"verify-{strategy}-damaged/commitlog/{segment.name}", bytes(content))
    heard: list[mqstore.Progress] = []
    found = mqstore.spark.verify(
        spark, [home, sound, damaged], strategy=strategy, storage_options=s3.options, progress=heard.append
    )
    assert list(found) == [str(home), sound, damaged]
    assert found[sound].ok
    assert not found[damaged].ok
    for url in (sound, damaged):
        wanted = mqstore.verify(url, storage_options=s3.options).to_dict()
        assert {**found[url].to_dict(), "seconds": 0} == {**wanted, "seconds": 0}
    assert heard[-1].done == heard[-1].total

    with pytest.raises(mqstore.InvalidOptionError, match="only for stores at URLs"):
        mqstore.spark.verify(spark, [home], storage_options=s3.options)
    with pytest.raises(mqstore.MQStoreError, match="NotAStoreError") as told:
        mqstore.spark.verify(spark, [f"{sound}/nothing"], storage_options=s3.options)
    for text in (str(told.value), repr(told.value), str(told.value.__cause__)):
        assert SECRET_KEY not in text
        assert ACCESS_KEY not in text
        assert "same path" not in text


def test_a_published_store_is_read_and_copied_like_its_directory(spark: Any, s3: Bucket, tmp_path: Path) -> None:
    home, url = tmp_path / "store", f"s3://{BUCKET}/published/one"
    make(home, options=SMALL)
    mqstore.export(home, url, format="store", target_options=s3.options)
    columns = ["topic", "queue_id", "queue_offset", "body"]
    wanted = mqstore.scan([url], columns=columns, storage_options=s3.options).to_arrow().to_pylist()
    given = f"s3://{BUCKET}/published/*"
    found = [row for rows in direct(given, columns=",".join(columns), **with_options(s3)) for row in rows]
    key = itemgetter("topic", "queue_id", "queue_offset")
    assert sorted(found, key=key) == sorted(wanted, key=key)
    output = tmp_path / "copy"
    report = mqstore.spark.compact(spark, url, output=output, storage_options=s3.options)
    assert report.messages_before == 3000
    assert mqstore.verify(output).ok


def test_a_compacted_copy_goes_from_url_to_url(spark: Any, s3: Bucket, tmp_path: Path) -> None:
    home, target = tmp_path / "store", f"s3://{BUCKET}/copied/compacted"
    make(home, options=SMALL)
    source = s3.upload(home, "copied/store")
    local = mqstore.compact(home, output=tmp_path / "local", **SIZES)
    given: dict[str, Any] = {"storage_options": s3.options, "target_options": s3.options, **SIZES}
    for place, url in ((source, target), (home, f"{target}-of-directory")):
        options = given if place == source else {**given, "storage_options": None}
        report = mqstore.spark.compact(spark, place, output=url, job_id="nightly", **options)
        assert {**report.to_dict(), "job_id": "", "seconds": 0} == {**local.to_dict(), "job_id": "", "seconds": 0}
        # A driver that is started again has nothing to do. Another job is refused.
        assert mqstore.spark.compact(spark, place, output=url, job_id="nightly", **options) == report
        with pytest.raises(mqstore.ResultExistsError):
            mqstore.spark.compact(spark, place, output=url, **options)
        assert mqstore.verify(url, storage_options=s3.options).ok
        fetched = tmp_path / url.rpartition("/")[2]
        mqstore.fetch(url, fetched, storage_options=s3.options)
        for part in ("compaction", "commitlog", "consumequeue"):
            assert hashes(fetched / part) == hashes(tmp_path / "local" / part)


def test_a_compacted_copy_to_a_url_that_fails_leaves_nothing(spark: Any, s3: Bucket, tmp_path: Path) -> None:
    home, folder = tmp_path / "store", "refused/compacted"
    url = f"s3://{BUCKET}/{folder}"
    make(home, options=SMALL)
    given: dict[str, Any] = {"output": url, "target_options": s3.options}
    with pytest.raises(mqstore.MQStoreError, match="TopicNotFoundError"):
        mqstore.spark.compact(spark, home, ["unknown"], **given)
    for wrong in ({"dry_run": True}, {"strategy": "ranged"}, {"storage_options": {}}, {"output": tmp_path / "copy"}):
        with pytest.raises(mqstore.InvalidOptionError):
            mqstore.spark.compact(spark, home, **{**given, **wrong})
    with s3.client() as client:
        assert client.list_objects_v2(Bucket=BUCKET, Prefix=folder)["KeyCount"] == 0


def contents(folder: Path) -> list[bytes]:
    """The files of an export by the numbers of their tasks; the rest of a name differs in each attempt."""
    return [file.read_bytes() for file in sorted(folder.iterdir(), key=lambda file: file.name.split("-")[1])]


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_an_export_of_a_url_is_that_of_the_directory(
    spark: Any, large: Path, s3: Bucket, tmp_path: Path, kind: str
) -> None:
    url = s3.upload(large, f"export-{kind}")
    options = {"format": kind, "splitBytes": 2 * MIB, "columns": "queue_id,queue_offset,body"}
    reports = [
        mqstore.spark.export(spark, large, tmp_path / "directory", **options),
        mqstore.spark.export(spark, url, tmp_path / "url", storage_options=s3.options, **options),
    ]
    shown = [{**report.to_dict(), "path": "", "seconds": 0} for report in reports]
    assert shown[0] == shown[1]
    assert reports[1].messages == 2000
    assert contents(tmp_path / "url") == contents(tmp_path / "directory")
    assert len(contents(tmp_path / "url")) >= 4


def test_an_export_whose_source_changes_leaves_nothing(
    spark: Any, large: Path, s3: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = s3.upload(large, "export-changed")
    segment = sorted((large / "commitlog").iterdir())[1]
    real = rounds.Rounds.run

    def change(self: rounds.Rounds, calls: list[rounds.Call]) -> list[bytes]:
        # The driver has listed the files and planned the parts.
        s3.put(f"export-changed/commitlog/{segment.name}", segment.read_bytes()[::-1])
        return real(self, calls)

    monkeypatch.setattr(rounds.Rounds, "run", change)
    (tmp_path / "out").mkdir()
    with pytest.raises(mqstore.MQStoreError, match=rf"{segment.name}.*\(StoreChangedError\)") as told:
        mqstore.spark.export(spark, url, tmp_path / "out" / "new", splitBytes=2 * MIB, storage_options=s3.options)
    assert list((tmp_path / "out").iterdir()) == []
    for text in (str(told.value), repr(told.value), str(told.value.__cause__)):
        assert SECRET_KEY not in text
        assert ACCESS_KEY not in text
    with pytest.raises(mqstore.InvalidOptionError, match="only for a store at a URL"):
        mqstore.spark.export(spark, large, tmp_path / "out" / "new", storage_options=s3.options)


def test_an_export_to_a_url_is_that_to_a_folder(
    spark: Any, large: Path, s3: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"s3://{BUCKET}/exported"
    options = {"splitBytes": 2 * MIB, "columns": "queue_id,queue_offset,body"}
    real = rounds.Rounds.run

    def repeat(self: rounds.Rounds, calls: list[rounds.Call]) -> list[bytes]:
        # As tasks whose answers are lost, or that Spark runs twice.
        real(self, calls[:2])
        return real(self, calls)

    wanted = mqstore.spark.export(spark, large, tmp_path / "folder", **options)
    monkeypatch.setattr(rounds.Rounds, "run", repeat)
    seen: list[mqstore.Progress] = []
    hadoop = url.replace("s3://", "s3a://")
    found = mqstore.spark.export(spark, large, hadoop, target_options=s3.options, progress=seen.append, **options)
    monkeypatch.undo()
    assert {**found.to_dict(), "path": "", "seconds": 0} == {**wanted.to_dict(), "path": "", "seconds": 0}
    assert found.path == url
    assert seen
    assert seen[-1].done == seen[-1].total
    mqstore.fetch(url, tmp_path / "fetched", storage_options=s3.options)
    assert contents(tmp_path / "fetched") == contents(tmp_path / "folder")
    # The files of the first attempts are gone.
    with s3.client() as client:
        listed = client.list_objects_v2(Bucket=BUCKET, Prefix="exported/")["Contents"]
    named = mqstore.published(url, storage_options=s3.options).urls
    assert sorted(f"s3://{BUCKET}/{one['Key']}" for one in listed) == sorted([*named, f"{url}/_mqstore/manifest.json"])
    assert not mqstore.clean(url, older_than=0, storage_options=s3.options).objects
    mqstore.fetch(url, tmp_path / "again", storage_options=s3.options)
    with pytest.raises(mqstore.ResultExistsError):
        mqstore.spark.export(spark, large, url, target_options=s3.options, **options)
    with pytest.raises(mqstore.InvalidOptionError, match="never replaced"):
        mqstore.spark.export(spark, large, url, target_options=s3.options, overwrite=True, **options)


def test_an_export_to_a_url_that_fails_publishes_nothing(
    spark: Any, large: Path, s3: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = f"s3://{BUCKET}/export-failed"
    real = rounds.Rounds.run

    def fail(self: rounds.Rounds, calls: list[rounds.Call]) -> list[bytes]:
        real(self, calls)
        message = "the tasks have uploaded their files"
        raise mqstore.MQStoreError(message)

    monkeypatch.setattr(rounds.Rounds, "run", fail)
    with pytest.raises(mqstore.MQStoreError, match="uploaded"):
        mqstore.spark.export(spark, large, url, target_options=s3.options, splitBytes=2 * MIB)
    monkeypatch.undo()
    with pytest.raises(mqstore.ResultNotFoundError):
        mqstore.published(url, storage_options=s3.options)
    # One object shows to whom files belong that come late.
    (left,) = mqstore.clean(url, older_than=0, dry_run=True, storage_options=s3.options).objects
    assert left.path.startswith("_mqstore/attempt-")
    # Nothing prevents the next attempt.
    mqstore.spark.export(spark, large, url, target_options=s3.options, splitBytes=2 * MIB)
    assert len(mqstore.published(url, storage_options=s3.options).files) >= 4


def test_what_writes_or_waits_refuses_a_url(spark: Any, large: Path, tmp_path: Path) -> None:
    url = url_of(large)
    given = {"path": url, "topic": "orders"}
    schema = _source.schema(given)
    for call in (
        lambda: _source.stream_reader(given, schema),
        lambda: _source.writer(given, schema, False),
        lambda: _source.stream_writer(given, schema, False),
        lambda: mqstore.spark.compact(spark, url),
        lambda: mqstore.spark.rebuild(spark, [url]),
        lambda: mqstore.spark.resume(url),
    ):
        with pytest.raises(mqstore.RemoteStoreError, match="can only be read; copy it to a directory first"):
            call()
    for write in (mqstore.spark.compact, mqstore.spark.export):
        with pytest.raises(mqstore.RemoteStoreError, match="only if it is absent") as told:
            write(spark, large, **{"output" if write is mqstore.spark.compact else "dest": "sftp://user:word@host/out"})
        assert "word" not in str(told.value)
    with pytest.raises(mqstore.InvalidOptionError, match="only for a URL"):
        mqstore.spark.export(spark, large, tmp_path / "out", target_options={})
    assert not any(tmp_path.iterdir())
    stream = spark.readStream.format("mqstore").load(url).writeStream.format("noop")
    with pytest.raises(Exception, match=r"RemoteStoreError: .* can only be read; copy it to a directory first"):
        stream.option("checkpointLocation", str(tmp_path / "checkpoint")).start().awaitTermination()
