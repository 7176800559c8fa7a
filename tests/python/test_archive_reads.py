"""Reads that begin before the log continue in the archive, with the same messages, in every verb."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import mqstore
import mqstore.aio
from archived_stores import KEEPING, SEGMENT, TOPICS, fill, rows_of
from conftest import SMALL, Cli, target_at
from mqstore._archive.archive import _SIZES as SIZES

pyarrow = pytest.importorskip("pyarrow")


def times_of(home: Path) -> list[datetime]:
    """Store times in the first part of the log."""
    with mqstore.open(home, archive=False) as store:
        found = [message.store_time for message in store.read("orders")]
    return [found[len(found) // 5], found[len(found) // 2]]


def answers(store: mqstore.Store, times: list[datetime]) -> dict[str, Any]:
    """Returns the answers of all reading verbs."""
    found: dict[str, Any] = {}
    sql = mqstore.sql("price > 100 AND price < 700")
    for topic in TOPICS:
        messages = list(store.read(topic))
        found[f"read {topic}"] = messages
        found[f"tags {topic}"] = list(store.read(topic, filter="paid"))
        found[f"sql {topic}"] = list(store.read(topic, filter=sql))
        found[f"from time {topic}"] = list(store.read(topic, start=times[0]))
        found[f"to time {topic}"] = list(store.read(topic, end=times[1]))
        found[f"between {topic}"] = list(store.read(topic, start=times[0], end=times[1]))
        for queue_id in range(3):
            queue = f"{topic} {queue_id}"
            found[f"queue {queue}"] = list(store.read(topic, queue_id))
            found[f"queue from {queue}"] = list(store.read(topic, queue_id, 13, filter="paid"))
            found[f"queue to {queue}"] = list(store.read(topic, queue_id, 3, 20))
            found[f"queue over {queue}"] = list(store.read(topic, queue_id, 10, 60))
            found[f"queue between {queue}"] = list(store.read(topic, queue_id, times[0], times[1]))
            found[f"at {queue}"] = [store.message_at(topic, queue_id, offset) for offset in (0, 1, 40)]
            found[f"several {queue}"] = store.messages_at(topic, queue_id, [0, 50, 3, 3])
            for boundary in ("lower", "upper"):
                asked = [store.offset_for_time(topic, queue_id, time, boundary=boundary) for time in (*times, 0)]  # type: ignore[arg-type]
                found[f"time {boundary} {queue}"] = asked
        for message in messages[::97]:
            found[f"get {message.commit_log_offset}"] = (
                store.get(message.message_id),
                store.get(message.unique_id or ""),
                store.get_at(message.commit_log_offset),
                *(list(store.lookup(topic, key)) for key in message.keys[:1]),
                list(store.lookup(topic, message.unique_id or "")),
            )
        found[f"look-up {topic}"] = list(store.lookup(topic, "all"))
        found[f"newest {topic}"] = list(store.lookup(topic, "all", newest_first=True, limit=70))
        found[f"oldest {topic}"] = list(store.lookup(topic, "all", limit=7))
        found[f"timed {topic}"] = list(store.lookup(topic, "all", start_time=times[0], end_time=times[1]))
        found[f"nothing {topic}"] = list(store.lookup(topic, "no such key"))
        found[f"newest of {topic}"] = [store.tail(topic, most) for most in (1, 20, 400, 5000)]
        found[f"newest of a queue {topic}"] = store.tail(topic, 150, queue_id=1)
        found[f"newest with a tag {topic}"] = [store.tail(topic, most, filter="paid") for most in (3, 200)]
        found[f"number {topic}"] = store.count(topic)
        found[f"scan {topic}"] = rows_of(store.scan(topics=topic))
        found[f"scan queue {topic}"] = rows_of(store.scan(topics=topic, queue_id=1, start=5, end=40))
    found["scan"] = rows_of(store.scan())
    found["scan json"] = rows_of(store.scan(columns=["body", "message_id"], body="json", batch_size=7))
    found["scan times"] = rows_of(store.scan(start_time=times[0], end_time=times[1]))
    found["scan keys"] = rows_of(store.scan(topics=TOPICS, keys=["k1", "k301", "k899"]))
    found["scan filter"] = rows_of(store.scan(filter=sql, columns=["properties", "tags"]))
    found["scan limit"] = rows_of(store.scan(limit=10))
    found["scan no columns"] = store.scan(columns=["queue_id"]).to_arrow().num_rows
    return found


def assert_same(found: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert found[name] == value, name


@pytest.mark.parametrize("ranges", ["one", "small"])
def test_every_verb_has_the_messages_of_the_whole_log(
    ranges: str, homes: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, short = homes
    if ranges == "small":
        # Many files and row groups.
        monkeypatch.setitem(SIZES, "range_bytes", 20_000)
        monkeypatch.setitem(SIZES, "group_rows", 7)
        monkeypatch.setitem(SIZES, "page_bytes", 2000)
        monkeypatch.setitem(SIZES, "page_step_rows", 2)
        with mqstore.open(whole) as store:
            store.archive.run_to(tmp_path / "small")
    times = times_of(whole)
    with mqstore.open(whole) as store:
        wanted = answers(store, times)
    assert len(wanted["read orders"]) == 675
    archive = None if ranges == "one" else tmp_path / "small"
    with mqstore.open(short, archive=archive) as store:
        assert next(iter(store.read("orders"))).commit_log_offset < store.stats().log_min_offset
        assert_same(answers(store, times), wanted)
    with mqstore.open(short, "rw", options=KEEPING, archive=archive) as store:
        assert_same(answers(store, times), wanted)


def test_without_the_archive_reads_begin_with_the_log(homes: tuple[Path, Path], tmp_path: Path) -> None:
    whole, short = homes
    with mqstore.open(short, archive=False) as store:
        low = store.queues("orders")[0].min_offset
        assert low > 0
        assert next(iter(store.read("orders", 0))).queue_offset == low
        with pytest.raises(mqstore.OffsetOutOfRangeError):
            store.read("orders", 0, low - 1)
        assert type(store) is mqstore.Store
        # The choice of the open counts, also if the configuration changes.
        assert store.archive.target == str(tmp_path / "cold")
    with mqstore.open(whole, archive=tmp_path / "cold") as store:
        # Nothing is before this log.
        assert [message.queue_offset for message in store.read("orders", 0, end=3)] == [0, 1, 2]
        with pytest.raises(mqstore.OffsetOutOfRangeError):
            store.read("orders", 0, 10_000)
    with pytest.raises(mqstore.InvalidOptionError, match="has no archive"):
        mqstore.open(whole, archive=True)
    with pytest.raises(mqstore.InvalidOptionError, match="archive_options"):
        mqstore.open(whole, archive=False, archive_options={})
    with mqstore.open(short) as store:
        # The offsets of the log keep their meaning.
        assert store.queues("orders")[0].min_offset == low
        assert repr(store).startswith("<mqstore.Store ")
        for start in (-1, 10_000):
            with pytest.raises(mqstore.OffsetOutOfRangeError):
                store.read("orders", 0, start)
        with pytest.raises(mqstore.TopicNotFoundError):
            store.read("unknown")
        with pytest.raises(mqstore.TopicNotFoundError):
            store.read("orders", 77)
        with pytest.raises(mqstore.InvalidOptionError):
            store.read("orders", start=3)
        with pytest.raises(mqstore.OffsetOutOfRangeError):
            store.message_at("orders", 0, 10_000)


def test_the_archive_follows_the_configuration(tmp_path: Path) -> None:
    with mqstore.open(tmp_path / "store", "create", options=KEEPING) as store:
        fill(store)
        assert type(store) is mqstore.Store
        store.archive.configure(tmp_path / "cold")
        store.archive.run()
        store.expire()
        assert len(list(store.read("orders"))) == 675
        store.archive.configure(None)
        assert len(list(store.read("orders"))) < 675


def test_the_archive_of_another_store_is_refused(tmp_path: Path) -> None:
    for name in ("own", "other"):
        with mqstore.open(tmp_path / name, "create", options=replace(KEEPING, retention_bytes=4 * SEGMENT)) as store:
            fill(store)
            store.archive.run_to(tmp_path / f"of {name}")
            store.expire()
            assert store.stats().log_min_offset > 0
    with mqstore.open(tmp_path / "own", archive=tmp_path / "of own") as store:
        assert len(list(store.read("orders"))) == 675
    # The log still has the newest segment of the archive, so it can be compared.
    with (
        mqstore.open(tmp_path / "own", archive=tmp_path / "of other") as store,
        pytest.raises(mqstore.ResultExistsError, match="another store"),
    ):
        store.read("orders")
    with (
        mqstore.open(tmp_path / "own", archive=tmp_path / "nothing") as store,
        pytest.raises(mqstore.ResultNotFoundError),
    ):
        store.read("orders")


def test_follow_continues_from_the_archive_to_new_messages(homes: tuple[Path, Path]) -> None:
    _, short = homes
    with mqstore.open(short, "rw", options=KEEPING) as store:
        reading = store.read("orders", 0, 0, follow=True, timeout=5)
        found = [next(reading).queue_offset for _ in range(225)]
        assert found == list(range(225))
        store.append("orders", b"new", queue_id=0)
        assert next(reading).body == b"new"


def test_batches_deleted_topics_and_light_queues(tmp_path: Path) -> None:
    home = tmp_path / "store"
    with mqstore.open(home, "create", options=KEEPING) as store:
        store.create_topic("batches", queues=1, attributes={"queue.type": "BatchCQ"})
        store.create_topic("again", queues=1)
        store.create_topic("plain", queues=1)
        store.append("again", b"of the deleted topic" * 50)
        for number in range(120):
            store.append_many("batches", [b"%d" % number * 100 for _ in range(1 + number % 5)])
            store.append("plain", b"x" * 2000, light_queues="light")
            if number == 10:
                store.delete_topic("again")
                store.create_topic("again", queues=1)
            if number > 10:
                store.append("again", b"new" * 100)
        names = ("batches", "again", "plain")
        wanted = {name: list(store.read(name)) for name in names}
        starts = [one.queue_offset for one in store.read("batches")]
        inside = [[one.queue_offset for one in store.read("batches", 0, start)][:3] for start in range(60)]
        bounded = [[one.queue_offset for one in store.read("batches", 0, 7, end)] for end in range(8, 40)]
        at = [store.message_at("batches", 0, offset) for offset in range(40)]
        lights = rows_of(store.scan(topics="%LMQ%light"))
        whole = rows_of(store.scan())
        store.archive.configure(tmp_path / "cold")
        store.archive.run()
        store.expire()
        low = store.stats().log_min_offset
        assert low >= 3 * SEGMENT
        assert {name: list(store.read(name)) for name in names} == wanted
        assert [one.queue_offset for one in store.read("batches")] == starts
        assert [[one.queue_offset for one in store.read("batches", 0, start)][:3] for start in range(60)] == inside
        assert [[one.queue_offset for one in store.read("batches", 0, 7, end)] for end in range(8, 40)] == bounded
        assert [store.message_at("batches", 0, offset) for offset in range(40)] == at
        assert not list(store.lookup("again", "none"))
        # A light queue has no rows of its own in an archive, so its reads begin with the log; a scan has all.
        assert next(iter(store.read("%LMQ%light"))).commit_log_offset >= low
        with pytest.raises(mqstore.OffsetOutOfRangeError):
            store.read("%LMQ%light", 0, 0)
        assert rows_of(store.scan(topics="%LMQ%light")) == lights
        assert rows_of(store.scan()) == whole


def test_compaction_topics_have_their_older_messages_in_their_own_files(tmp_path: Path) -> None:
    options = replace(KEEPING, expire_uncompacted=False)
    with mqstore.open(tmp_path / "store", "create", options=options) as store:
        store.create_topic("table", queues=1, attributes={"cleanup.policy": "COMPACTION"})
        for number in range(400):
            store.append("table", b"x" * 1000, keys=f"k{number % 20}")
        store.archive.configure(tmp_path / "cold")
        store.archive.run()
        store.compact()
        wanted = list(store.read("table"))
        store.expire()
        assert store.stats().log_min_offset > 0
        assert list(store.read("table")) == wanted
        assert len(store.table("table")) == 20


@pytest.mark.parametrize("kind", ["file", "memory", pytest.param("s3", marks=pytest.mark.slow)])
def test_archives_at_urls(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    pytest.importorskip("obstore")
    url, options = target_at(kind, request, tmp_path)
    with mqstore.open(tmp_path / "store", "create", options=KEEPING) as store:
        fill(store)
        wanted = list(store.read("orders")), list(store.lookup("events", "all")), rows_of(store.scan())
        store.archive.configure(url, target_options=options)
        store.archive.run(target_options=options)
        store.expire()
        assert (list(store.read("orders")), list(store.lookup("events", "all")), rows_of(store.scan())) == wanted
    with mqstore.open(tmp_path / "store", archive_options=options) as store:
        assert (list(store.read("orders")), list(store.lookup("events", "all")), rows_of(store.scan())) == wanted


def test_asyncio(homes: tuple[Path, Path]) -> None:
    whole, short = homes
    with mqstore.open(whole) as store:
        wanted = list(store.read("orders")), list(store.read("orders", 1, 7, filter="paid"))
        hits, rows = list(store.lookup("orders", "all")), store.scan(topics="orders").to_arrow()

    async def work() -> None:
        async with mqstore.aio.open(short) as store:
            assert [message async for message in store.read("orders")] == wanted[0]
            assert [message async for message in store.read("orders", 1, 7, filter="paid")] == wanted[1]
            assert [message async for message in store.lookup("orders", "all")] == hits
            assert (await store.scan(topics="orders").to_arrow()).to_pylist() == rows.to_pylist()
            first = wanted[0][0]
            assert await store.get(first.message_id) == first
            assert await store.message_at("orders", first.queue_id, first.queue_offset) == first
            assert await store.get_at(first.commit_log_offset) == first
        async with mqstore.aio.open(short, archive=False) as store:
            assert [message async for message in store.read("orders")] != wanted[0]
        async with mqstore.aio.open(short, "rw", options=KEEPING) as store:
            following = store.read("orders", 0, 0, follow=True, timeout=10)
            found = [(await anext(following)).queue_offset for _ in range(225)]
            assert found == list(range(225))
            waiting = asyncio.ensure_future(anext(following))
            await asyncio.sleep(0.05)
            await store.append("orders", b"new", queue_id=0)
            assert (await waiting).body == b"new"

    asyncio.run(work())


def test_the_command_line(homes: tuple[Path, Path], tmp_path: Path, cli: Cli) -> None:
    whole, short = homes
    with mqstore.open(whole) as store:
        first = next(iter(store.read("orders")))

    def lines(*arguments: object) -> list[dict[str, Any]]:
        done = cli(*arguments)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]

    for verb in (("cat", "--topic", "orders"), ("cat", "--topic", "orders", "--queue", 1, "--start", 3, "--end", 70)):
        name, *rest = verb
        wanted = lines(name, whole, *rest)
        assert lines(name, short, *rest) == wanted
        assert lines(name, short, *rest, "--archive", tmp_path / "cold") == wanted
    assert len(lines("cat", short, "--topic", "orders", "--no-archive")) < 675
    assert lines("cat", short, "--topic", "orders", "--start", 5) == lines(
        "cat", whole, "--topic", "orders", "--start", 5
    )
    assert lines("lookup", short, "orders", "k1") == lines("lookup", whole, "orders", "k1")
    assert cli("lookup", short, "orders", "k1", "--no-archive").returncode == 1
    assert lines("get", short, first.message_id) == lines("get", whole, first.message_id)
    assert cli("get", short, first.message_id, "--no-archive").returncode == 1
    assert cli("cat", short, "--topic", "orders", "--archive", "x", "--no-archive").returncode == 2


def test_other_libraries_read_a_scan_with_the_archive(homes: tuple[Path, Path]) -> None:
    polars = pytest.importorskip("polars")
    duckdb = pytest.importorskip("duckdb")
    whole, short = homes
    with mqstore.open(whole) as store:
        total = store.scan(topics="orders", columns=["body_size"]).to_arrow().column(0).to_pylist()
    with mqstore.open(short) as store:
        scan = store.scan(topics="orders")
        assert polars.DataFrame(scan)["body_size"].sum() == sum(total)
        lazy = scan.to_polars_lazy().filter(polars.col("queue_id") == 1).select("queue_offset").collect()
        assert lazy["queue_offset"].to_list() == list(range(225))
        connection = duckdb.connect()
        [(count, size)] = scan.to_duckdb(connection).aggregate("count(*), sum(body_size)").fetchall()
        assert (count, size) == (len(total), sum(total))
        assert "Scan of" in repr(scan)


def test_threads_share_an_iterator(homes: tuple[Path, Path]) -> None:
    _, short = homes
    with mqstore.open(short) as store:
        wanted = sorted(one.commit_log_offset for one in store.read("orders"))
        reading: Iterator[mqstore.StoredMessage] = store.read("orders")
        found: list[int] = []
        threads = [
            threading.Thread(target=lambda: found.extend(one.commit_log_offset for one in reading)) for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(found) == wanted


def test_what_a_topic_retention_hides_stays_hidden_in_the_archive(tmp_path: Path) -> None:
    home = tmp_path / "store"
    sizes: dict[str, Any] = {"segment_size": 1 << 16, "queue_file_entries": 100}
    with mqstore.open(home, "create", options=SMALL, **sizes) as store:
        store.create_topic("orders", queues=1)
        store.create_topic("other", queues=1)
        store.archive.configure(tmp_path / "cold")
        for number in range(1000):
            for topic in ("orders", "other"):
                store.append(topic, b"%d" % number * 50, keys="all")
        store.archive.run()
        store.set_retention("orders", max_messages=300)
        store.expire()
    with mqstore.open(home, "rw", options=SMALL, retention_bytes=3 << 16) as store:
        store.expire()
        assert store.queues("orders")[0].min_offset > 700
    with mqstore.open(home) as store:
        for start in (None, 700):
            assert [one.queue_offset for one in store.read("orders", 0, start)] == list(range(700, 1000))
        for start in (0, 699):
            with pytest.raises(mqstore.OffsetOutOfRangeError, match="holds 700 to 1000"):
                next(store.read("orders", 0, start))
        assert store.message_at("orders", 0, 700) is not None
        assert len(list(store.lookup("orders", "all"))) == 300
        assert [one.queue_offset for one in store.read("other", 0)] == list(range(1000))
