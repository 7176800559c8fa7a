"""Writing to stores: every message arrives exactly once, whatever fails."""

from __future__ import annotations

import json
import os
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import mqstore
import mqstore.spark
from mqstore import _native
from mqstore.spark._jobs import folders
from mqstore.spark._write import append as _append
from mqstore.spark._write import stage as _stage


def bodies(path: Path, topic: str = "t") -> Counter[bytes]:
    with mqstore.open(path) as store:
        return Counter(message.body for queue in store.queues(topic) for message in store.read(topic, queue.queue_id))


def staged(path: Path) -> list[Path]:
    return list(_stage.stage_folder(str(path)).rglob("*.run"))


@pytest.mark.parametrize(("over", "flags"), [(None, [0, 0x201, 0]), (100, [0x201, 0x201, 0]), (60_001, [0, 0, 0])])
def test_tasks_compress_bodies(spark: Any, tmp_path: Path, over: int | None, flags: list[int]) -> None:
    path = tmp_path / "store"
    bodies = ["x" * 1000, "x" * 60_000, "short"]
    frame = spark.createDataFrame([(body,) for body in bodies], "body string").coalesce(1)
    options = {"topic": "t", "compression": "zstd"} | ({} if over is None else {"compressOver": over})
    frame.write.format("mqstore").mode("append").options(**options).save(str(path))
    with mqstore.open(path) as store:
        found = list(store.read("t"))
    assert [(message.text(), message.sys_flag) for message in found] == list(zip(bodies, flags, strict=True))
    assert mqstore.verify(path).ok


def test_threads_that_register_write(spark: Any, tmp_path: Path) -> None:
    frame = spark.sql("SELECT string(id) AS body FROM range(10)")

    def write(number: int) -> None:
        mqstore.spark.register(spark)
        path = tmp_path / f"store{number % 2}"
        frame.write.format("mqstore").mode("append").options(topic="t", jobId=f"job{number}").save(str(path))

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(write, range(4)))
    for number in range(2):
        with mqstore.open(tmp_path / f"store{number}") as store:
            assert len(list(store.read("t"))) == 20


def test_an_unknown_compression_is_refused(spark: Any, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="'gzip' is not one of zstd, lz4, zlib, none"):
        spark.range(1).selectExpr("string(id) AS body").write.format("mqstore").mode("append").options(
            topic="t", compression="gzip"
        ).save(str(tmp_path / "store"))


def test_every_column_arrives(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "store"
    frame = spark.sql(
        "SELECT 'orders' AS topic, array('a', concat('k', id)) AS keys, if(id % 2 = 0, 'even', null) AS tags, "
        "map('region', 'eu', 'n', string(id)) AS properties, int(id % 3) AS queue_id, int(id) AS flag, "
        "timestamp_millis(1600000000000 + id) AS born_timestamp, encode(string(id), 'utf-8') AS body FROM range(100)"
    )
    frame.write.format("mqstore").mode("append").save(str(path))
    with mqstore.open(path) as store:
        assert len(store.queues("orders")) == 3
        found = [message for queue in range(3) for message in store.read("orders", queue)]
    assert len(found) == 100
    for message in found:
        number = int(message.body)
        assert message.queue_id == number % 3
        assert message.keys == ("a", f"k{number}")
        assert message.tags == ("even" if number % 2 == 0 else None)
        assert (message.properties["region"], message.properties["n"]) == ("eu", str(number))
        assert (message.flag, message.born_timestamp) == (number, 1600000000000 + number)
    assert len({message.unique_id for message in found}) == 100
    assert mqstore.verify(path).ok
    assert staged(path) == []
    # The rows of a read store can be written to another store unchanged.
    copy = tmp_path / "copy"
    spark.read.format("mqstore").load(str(path)).write.format("mqstore").mode("append").save(str(copy))
    with mqstore.open(copy) as store:
        again = [message for queue in range(3) for message in store.read("orders", queue)]
    same = [(m.body, m.keys, m.tags, m.unique_id, m.flag, m.born_timestamp, m.properties["n"]) for m in found]
    assert Counter(same) == Counter(
        (m.body, m.keys, m.tags, m.unique_id, m.flag, m.born_timestamp, m.properties["n"]) for m in again
    )


def test_keys_go_to_the_queues_that_python_chooses(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "store"
    with mqstore.open(path, "create") as store:
        store.create_topic("prices", queues=4, attributes={"cleanup.policy": "COMPACTION"})
        wanted = {f"item-{n}": store.append("prices", b"x", keys=f"item-{n}").queue_id for n in range(50)}
    frame = spark.sql("SELECT concat('item-', id) AS key, string(id) AS value FROM range(50)")
    frame.write.format("mqstore").option("topic", "prices").mode("append").save(str(path))
    with mqstore.open(path) as store:
        found = [(message.keys[0], queue) for queue in range(4) for message in store.read("prices", queue)]
    assert Counter(found) == Counter(dict.fromkeys(wanted.items(), 2))
    assert len(set(wanted.values())) == 4
    frame.write.format("mqstore").option("topic", "turns").option("queues", 2).mode("append").save(str(path))
    with mqstore.open(path) as store:
        assert [queue.max_offset for queue in store.queues("turns")] == [25, 25]


def stage(path: Path, job: str, *parts: list[bytes], batch: int = 0, topic: str = "t") -> list[dict[str, Any]]:
    """Stages the files of tasks and returns their results."""
    options = {"path": str(path), "topic": topic, "max_message_size": 1 << 20}
    if not path.exists():
        mqstore.open(path, "create").close()
    _append.prepare(options)
    import pyarrow as pa

    told = []
    for number, part in enumerate(parts):
        file = f"{batch}/{number}.run"
        home = _stage.stage_folder(str(path)) / job / file
        home.parent.mkdir(parents=True, exist_ok=True)
        batches = [pa.record_batch({"body": pa.array(part[at : at + 7])}) for at in range(0, len(part), 7)]
        topics: dict[str, int] = {}
        data = b"".join(block for block, _ in _stage._blocks(options, batches, topics, []))
        home.write_bytes(data)
        told.append({"file": file, "rows": len(part), "size": len(data), "topics": topics})
    return told


def options(path: Path, job_id: str | None = None) -> dict[str, Any]:
    return {"path": str(path), "job_id": job_id, "queues": None}


PARTS = [[f"{part}-{n}".encode() for n in range(20)] for part in range(3)]
ALL = Counter(body for part in PARTS for body in part)


class Killed(BaseException):
    """Simulates a kill: no handler of `Exception` runs."""


@pytest.mark.parametrize("calls", range(9))
@pytest.mark.parametrize("foreign", [False, True])
def test_a_crash_at_any_step_is_gone_on_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, calls: int, foreign: bool
) -> None:
    path = tmp_path / "store"
    told = stage(path, "job", *PARTS)
    left = calls

    def dying(store: mqstore.Store) -> Iterator[int]:
        nonlocal left
        for rows in resume(store):
            if left == 0:
                # A kill does not clean up, so the journal stays.
                raise Killed
            left -= 1
            yield rows

    resume = _native.resume_step
    monkeypatch.setattr(_native, "resume_step", dying)
    with pytest.raises(Killed):
        _append.commit(options(path, "nightly"), "job", "nightly", None, told)
    monkeypatch.undo()
    assert bodies(path).total() == min(60, sum([7, 7, 6, 7, 7, 6, 7, 7, 6][: calls + 1]))
    if foreign:
        with mqstore.open(path, "rw") as store:
            for _ in range(3):
                store.append("t", b"foreign")
    _append.abandon(options(path), "job")
    # The driver starts again and stages again. The commit that had begun counts.
    again = stage(path, "other", *PARTS)
    _append.commit(options(path, "nightly"), "other", "nightly", None, again)
    assert bodies(path) == ALL + Counter({b"foreign": 3 * foreign})
    _append.commit(options(path, "nightly"), "other", "nightly", None, [])
    assert bodies(path) == ALL + Counter({b"foreign": 3 * foreign})
    assert not (path / "mqstore" / "spark" / "journal.json").exists()


def test_a_batch_of_a_stream_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "store"
    for batch in range(3):
        # Spark creates a writer with a job of its own for each batch.
        told = stage(path, f"job-{batch}", [b"%d" % batch], [], batch=batch)
        _append.commit(options(path), f"job-{batch}", "query", batch, told)
        # Spark repeats a batch whose commit it did not note.
        again = stage(path, f"again-{batch}", [b"%d" % batch], [], batch=batch)
        _append.commit(options(path), f"again-{batch}", "query", batch, again)
        assert [each.name for each in (path / "mqstore/spark/stage").iterdir()] == ["token"]
    assert bodies(path) == Counter([b"0", b"1", b"2"])


def test_a_sweep_looks_at_a_bounded_number_of_folders(tmp_path: Path) -> None:
    for number in range(250):
        folder = tmp_path / f"job-{number}"
        folder.mkdir()
        os.utime(folder, (0, 0))
    (tmp_path / "running" / "0").mkdir(parents=True)
    for left in (250, 150, 50):
        # One of them can be the folder of the running job.
        assert left <= len(list(tmp_path.glob("job-*"))) <= left + 2
        folders.sweep(tmp_path)
    folders.sweep(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["running"]


def test_the_next_write_ends_one_that_was_interrupted(tmp_path: Path) -> None:
    path = tmp_path / "store"
    told = stage(path, "one", *PARTS)
    with mqstore.open(path, "rw") as store:
        store.create_topic("t")
        _append._begin(store, options(path), "one", "one", None, told)
    assert mqstore.spark.resume(path) == 60
    assert mqstore.spark.resume(path) == 0
    assert bodies(path) == ALL
    told = stage(path, "two", [b"more"])
    _append.commit(options(path), "two", "two", None, told)
    assert bodies(path) == ALL + Counter({b"more": 1})


def test_a_step_whose_part_of_the_log_is_gone_says_so(tmp_path: Path) -> None:
    path = tmp_path / "store"
    mqstore.open(path, "create", segment_size=32 << 10).close()
    told = stage(path, "one", *PARTS)
    with mqstore.open(path, "rw", segment_size=32 << 10, retention_bytes=64 << 10) as store:
        _append._begin(store, options(path), "one", "one", None, told)
        assert next(_native.resume_step(store)) == 7
        store.append_many("other", [b"x" * 1000] * 200)
        store.expire()
        with pytest.raises(mqstore.CorruptionError, match=r"journal\.json.*retention has deleted.*move the file away"):
            _native.resume_step(store)


def test_rows_of_a_topic_that_was_deleted_meanwhile_are_not_appended_again(tmp_path: Path) -> None:
    path = tmp_path / "store"
    told = stage(path, "one", *PARTS)
    with mqstore.open(path, "rw") as store:
        _append._begin(store, options(path), "one", "one", None, told)
        assert next(_native.resume_step(store)) == 7
        store.delete_topic("t")
    assert mqstore.spark.resume(path) == 53


def test_a_topic_that_takes_no_rows_stops_a_write_before_the_first(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with mqstore.open(path, "create") as store:
        store.create_topic("batched", attributes={"queue.type": "BatchCQ"})
    told = stage(path, "job", *PARTS) + stage(path, "job", [b"x"], topic="batched", batch=1)
    with pytest.raises(mqstore.InvalidMessageError, match="topic batched has batch queues"):
        _append.commit(options(path), "job", "job", None, told)
    with mqstore.open(path) as store:
        assert store.topics() == ["batched"]
    _append.commit(options(path), "other", "other", None, stage(path, "other", [b"more"]))
    assert bodies(path) == Counter({b"more": 1})


def test_a_quota_that_is_used_up_stops_a_write_which_goes_on_when_it_is_raised(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "store"
    with mqstore.open(path, "create") as store:
        store.create_topic("t", max_messages=30)
    told = stage(path, "job", *PARTS)
    with pytest.raises(mqstore.QuotaFull, match="topic t is full"):
        _append.commit(options(path), "job", "job", None, told)
    assert bodies(path).total() == 27
    frame = spark.createDataFrame([(b"more",)] * 3, "body binary").coalesce(1)
    with pytest.raises(Exception, match="topic t is full"):
        frame.write.format("mqstore").option("topic", "t").mode("append").save(str(path))
    with mqstore.open(path, "rw") as store:
        store.update_topic("t", max_messages=100)
    frame.write.format("mqstore").option("topic", "t").mode("append").save(str(path))
    assert bodies(path) == ALL + Counter({b"more": 3})


def test_batches_of_a_query_count_once(tmp_path: Path) -> None:
    path = tmp_path / "store"
    for batch in (0, 1, 1, 0, 2):
        told = stage(path, "job", [f"batch {batch}".encode()], batch=batch)
        _append.commit(options(path), "job", "query", batch, told)
    assert bodies(path) == Counter({b"batch 0": 1, b"batch 1": 1, b"batch 2": 1})
    told = stage(path, "job", [b"of another query"], batch=0)
    _append.commit(options(path), "job", "another", 0, told)
    assert bodies(path).total() == 4


def test_damaged_staging_appends_nothing(tmp_path: Path) -> None:
    path = tmp_path / "store"
    told = stage(path, "job", [b"a"], [b"b"])
    file = _stage.stage_folder(str(path)) / "job" / told[0]["file"]
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    with pytest.raises(mqstore.MQStoreError, match="damaged"):
        _append.commit(options(path), "job", "job", None, told)
    assert bodies(path).total() == 0
    file.unlink()
    with pytest.raises(mqstore.CorruptionError, match="missing"):
        _append.commit(options(path), "job", "job", None, told)
    assert mqstore.spark.resume(path) == 0


def test_stale_staging_is_swept(tmp_path: Path) -> None:
    path = tmp_path / "store"
    stage(path, "old", [b"a"])
    for each in _stage.stage_folder(str(path)).rglob("*"):
        os.utime(each, (1, 1))
    stage(path, "new", [b"a"])
    assert {each.name for each in _stage.stage_folder(str(path)).iterdir()} == {"new", "token"}


def test_executors_that_see_another_folder_say_so(tmp_path: Path) -> None:
    path = tmp_path / "store"
    options: dict[str, Any] = {"path": str(path)}
    _append.prepare(options)
    _stage._same_folder(options)
    again: dict[str, Any] = {"path": str(path)}
    _append.prepare(again)
    assert again == options
    other = {**options, "token": "another"}
    with pytest.raises(mqstore.MQStoreError, match="under the same path"):
        _stage._same_folder(other)


def test_rows_that_cannot_be_messages(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "store"

    def write(query: str, **given: Any) -> None:
        spark.sql(query).write.format("mqstore").options(topic="t", **given).mode("append").save(str(path))

    for query, error in (
        ("SELECT 1 AS body", "column body must be binary or string"),
        ("SELECT 'x' AS tag, 'b' AS body", "did you mean 'tags'"),
        ("SELECT 'x' AS tags", "no column body"),
        ("SELECT string(null) AS body", "topic t, column body: 1 row, first row 0 of partition 0: it is null"),
        ("SELECT 'a b' AS key, 'b' AS body", "topic t, column keys: 1 row.*contains a space"),
        ("SELECT 'a||b' AS tags, 'b' AS body", "topic t, column tags: 1 row.*no tag filter"),
        ("SELECT map('a', '') AS properties, 'b' AS body", "topic t, column properties: 1 row.*empty"),
        ("SELECT 'b' AS body, 70000 AS queue_id", "column queue_id: 1 row.*queue id 70000"),
        ("SELECT repeat('x', 100) AS body", "column body: 1 row.*100 bytes; maxMessageSize is 10"),
        ("SELECT 'b' AS body, 'SCHEDULE_TOPIC_XXXX' AS topic", "column topic: 1 row.*internal"),
        ("SELECT 'b' AS body, 'rmq_sys_REVIVE_LOG_c' AS topic", "column topic: 1 row.*belongs to the store itself"),
        ("SELECT 'b' AS body, 'a b' AS topic", "column topic: 1 row"),
    ):
        with pytest.raises(Exception, match=error):
            write(query, maxMessageSize=10)
    with pytest.raises(Exception, match="did you mean topic"):
        spark.sql("SELECT 'b' AS body").write.format("mqstore").option("topics", "t").mode("append").save(str(path))
    with pytest.raises(Exception, match="name the topic"):
        spark.sql("SELECT 'b' AS body").write.format("mqstore").mode("append").save(str(path))
    with pytest.raises(Exception, match="only grows"):
        spark.sql("SELECT 'b' AS body").write.format("mqstore").option("topic", "t").mode("overwrite").save(str(path))
    with mqstore.open(path) as store:
        assert store.topics() == []
    assert staged(path) == []


ROWS = (
    "SELECT if(id % 10 = 3, null, string(id)) AS body, if(id % 2 = 0, 'a', 'b') AS topic, "
    "if(id = 7, 'x||y', '') AS tags, map('kept', 'v', 'none', string(null)) AS properties FROM range(0, 100, 1, 4)"
)


def test_bad_rows_are_told_together_before_anything_is_written(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "store"
    with pytest.raises(Exception, match="cannot become messages") as refused:
        spark.sql(ROWS).write.format("mqstore").mode("append").save(str(path))
    text = str(refused.value)
    assert "11 of 100 rows cannot become messages, and nothing was written" in text
    assert "topic b, column body: 10 rows, first row 3 of partition 0: it is null" in text
    assert "topic b, column tags: 1 row, first row 7 of partition 0: tag" in text
    assert "mode=DROPMALFORMED" in text
    assert "Traceback" not in text
    with mqstore.open(path) as store:
        assert store.topics() == []
    assert staged(path) == []


def test_bad_rows_are_skipped_and_counted_on_request(spark: Any, tmp_path: Path) -> None:
    path, report = tmp_path / "store", tmp_path / "report.jsonl"
    rows = spark.sql(ROWS).union(spark.sql("SELECT 'x', 'not a topic', null, null"))
    given = {"mode": "dropmalformed", "reportPath": str(report), "jobId": "once"}
    for _ in range(2):
        rows.write.format("mqstore").options(**given).mode("append").save(str(path))
    with mqstore.open(path) as store:
        assert sorted(store.topics()) == ["a", "b"]
        found = [message for topic in "ab" for message in store.read(topic)]
    assert sorted(int(message.body) for message in found) == [n for n in range(100) if n % 10 != 3 and n != 7]
    assert {message.tags for message in found} == {None}, "an empty tag is no tag"
    own = [{n: v for n, v in m.properties.items() if n in ("kept", "none")} for m in found]
    assert own == [{"kept": "v"}] * 89, "a property without a value does not exist"
    first, again = [json.loads(line) for line in report.read_text().splitlines()]
    assert (first["batch"], first["appended"], first["skipped"]) == (None, 89, 12)
    assert [(each["topic"], each["column"], each["rows"]) for each in first["causes"]] == [
        ("b", "body", 10),
        ("b", "tags", 1),
        ("not a topic", "topic", 1),
    ]
    assert again["appended"] == 0, "this job was done before"


def test_a_store_that_the_driver_has_open_is_refused_at_once(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "store"
    frame = spark.range(3).selectExpr("string(id) AS body")
    with mqstore.open(path, "create") as store:
        store.append("t", b"own")
        began = time.monotonic()
        with pytest.raises(Exception, match="Close the store before the job") as refused:
            frame.write.format("mqstore").option("topic", "t").mode("append").save(str(path))
        assert f"locked by process {os.getpid()}" in str(refused.value)
        assert time.monotonic() - began < 15
    frame.write.format("mqstore").option("topic", "t").mode("append").save(str(path))
    assert bodies(path).total() == 4


def test_a_task_that_is_lost_leaves_no_row(spark: Any, tmp_path: Path) -> None:
    from pyspark.sql.functions import udf

    @udf("string")
    def once(number: int) -> str:
        from pyspark import TaskContext

        context = TaskContext.get()
        if number % 50 == 49 and context is not None and context.attemptNumber() == 0:
            raise ConnectionError("lost")
        return str(number)

    path = tmp_path / "store"
    frame = spark.range(0, 100, 1, 2).select(once("id").alias("body"))
    frame.write.format("mqstore").options(topic="t", jobId="first").mode("append").save(str(path))
    assert bodies(path) == Counter(str(number).encode() for number in range(100))
    frame.write.format("mqstore").options(topic="t", jobId="first").mode("append").save(str(path))
    assert bodies(path).total() == 100


def test_a_stream_into_a_store(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source, path = tmp_path / "source", tmp_path / "store"
    with mqstore.open(source, "create") as store:
        for number in range(90):
            store.append("t", str(number).encode(), keys=f"k{number}")

    def run() -> Any:
        frame = spark.readStream.format("mqstore").options(startingOffsets="earliest", maxOffsetsPerTrigger=40)
        stream = frame.load(str(source)).select("topic", "body", "keys").writeStream.format("mqstore")
        stream = stream.option("checkpointLocation", str(tmp_path / "checkpoint")).option("path", str(path))
        query = stream.outputMode("append").trigger(availableNow=True).start()
        query.awaitTermination()
        return query

    query = run()
    wanted = Counter(str(number).encode() for number in range(90))
    assert bodies(path) == wanted
    # Spark forgets that it committed the last batch. The batch runs again and counts once.
    commits = tmp_path / "checkpoint" / "commits"
    last = max(int(each.name) for each in commits.iterdir() if each.name.isdigit())
    for each in commits.iterdir():
        if each.name in (str(last), f".{last}.crc"):
            each.unlink()
    run()
    assert bodies(path) == wanted
    done = json.loads((path / "mqstore" / "spark" / "done" / f"{query.id}.json").read_text())
    assert done["batch"] == last


def test_a_store_that_somebody_writes_is_not_written(
    spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store"
    monkeypatch.setattr(_append, "_LOCK_WAIT_SECONDS", 0.2)
    told = stage(path, "job", [b"x"])
    with mqstore.open(path, "rw"), pytest.raises(mqstore.StoreLockedError, match="Close the store there"):
        _append.commit(options(path), "job", "job", None, told)
    _append.commit(options(path), "job", "job", None, told)
    assert bodies(path) == Counter({b"x": 1})


@pytest.mark.parametrize("text", ["", "{", "[]", '{"job": "one"}'])
def test_a_damaged_journal_says_what_to_do(tmp_path: Path, text: str) -> None:
    path = tmp_path / "store"
    mqstore.open(path, "create").close()
    home = path / "mqstore" / "spark"
    (home / "done").mkdir(parents=True)
    (home / "journal.json").write_text(text)
    with pytest.raises(mqstore.CorruptionError, match=r"journal\.json.*move the file away"):
        mqstore.spark.resume(path)
    assert (home / "journal.json").read_text() == text
    (home / "done" / "q.json").write_text(text)
    with pytest.raises(mqstore.CorruptionError, match=r"q\.json.*move the file away"):
        _native.was_step_done(str(path), "q", 1)


def test_an_empty_token_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "store"
    options: dict[str, Any] = {"path": str(path)}
    _append.prepare(options)
    token = _stage.stage_folder(str(path)) / "token"
    token.write_text("")
    again: dict[str, Any] = {"path": str(path)}
    _append.prepare(again)
    assert again["token"] not in {"", options["token"]}
    _stage._same_folder(again)
