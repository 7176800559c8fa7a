"""Reads that begin before the log continue in the archive: with the same messages, from few ranges of its files."""

from __future__ import annotations

import asyncio
import json
import random
import re
import shutil
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

import mqstore
import mqstore.aio
from conftest import SMALL, Cli, target_at
from mqstore._archive import columns, pages, run
from mqstore._archive.place import ArchivePlace
from mqstore._publish.local import Directory
from mqstore._remote.failure import RequestFailure

pyarrow = pytest.importorskip("pyarrow")

MIB = 1 << 20
SEGMENT = 64 << 10
TOPICS = ("orders", "events")
KEEPING = replace(SMALL, retention_bytes=1, advanced=replace(SMALL.advanced, delete_interval=0))


def fill(store: mqstore.Store, count: int = 900, start: int = 0) -> None:
    """Appends messages of several kinds; 100 of them fill about a segment."""
    for topic in TOPICS:
        if topic not in store.topics():
            store.create_topic(topic, queues=3)
    for number in range(start, start + count):
        store.append(
            TOPICS[number % 4 == 0],
            json.dumps({"number": number, "text": "x" * (number * 7 % 900)}).encode(),
            keys=[f"k{number}", "all"] if number % 2 else None,
            tags=("open", "paid")[number % 3 == 0] if number % 5 else None,
            properties={"price": str(number)} if number % 3 else None,
            queue_id=number % 3,
            compression="zstd" if number % 7 == 0 else None,
            compress_over=0,
        )


def aged(home: Path, count: int = 900) -> None:
    """Makes a store whose older segments are only in its archive, `home.cold`."""
    with mqstore.open(home, "create", options=KEEPING) as store:
        fill(store, count)
        store.archive.configure(f"{home}.cold")
        store.archive.run()
        store.expire()
        assert store.stats().log_min_offset >= 4 * SEGMENT


@pytest.fixture
def homes(tmp_path: Path) -> tuple[Path, Path]:
    """A store that has all its segments, and the same store with most of them in an archive."""
    whole, short = tmp_path / "whole", tmp_path / "short"
    with mqstore.open(whole, "create", options=SMALL) as store:
        fill(store)
    shutil.copytree(whole, short)
    with mqstore.open(short, "rw", options=KEEPING) as store:
        store.archive.configure(tmp_path / "cold")
        store.archive.run()
        store.expire()
        assert store.stats().log_min_offset >= 4 * SEGMENT
    return whole, short


def times_of(home: Path) -> list[datetime]:
    """Store times in the first part of the log."""
    with mqstore.open(home, archive=False) as store:
        found = [message.store_time for message in store.read("orders")]
    return [found[len(found) // 5], found[len(found) // 2]]


def rows_of(scan: mqstore.Scan) -> list[dict[str, Any]]:
    return scan.to_arrow().to_pylist()


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
        monkeypatch.setattr(run, "_RANGE_BYTES", 20_000)
        monkeypatch.setattr(columns, "_GROUP_ROWS", 7)
        monkeypatch.setattr(columns, "_PAGE_BYTES", 2000)
        monkeypatch.setattr(columns, "_PAGE_STEP_ROWS", 2)
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


class Counted:
    """Counts the requests and bytes of reads of an archive."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.requests: list[tuple[str, int]] = []
        plain = Directory.read

        def read(target: Directory, ranges: Any) -> Any:
            found = plain(target, ranges)
            self.requests += [(wanted[0], len(part)) for wanted, part in zip(ranges, found, strict=True)]
            return found

        monkeypatch.setattr(Directory, "read", read)

    def taken(self) -> tuple[int, int]:
        """Returns requests and bytes since the last call."""
        found = len(self.requests), sum(length for _, length in self.requests)
        self.requests.clear()
        return found


def large(home: Path, count: int, seed: int, segment: int) -> int:
    """Makes a store with messages of about 1 KB in 4 queues, mostly in its archive. Returns their number."""
    words = [f"{random.Random(number).getrandbits(40):x}" for number in range(400)]
    chance = random.Random(seed)
    options = mqstore.StoreOptions(segment_size=segment, index_slots=100_000, index_entries=2_000_000)
    with mqstore.open(home, "create", options=options, retention_bytes=1, durability="async") as store:
        store.create_topic("orders", queues=4)
        # First, so that retention keeps what the archive does not have yet.
        store.archive.configure(f"{home}.cold")
        for start in range(0, count, 1000):
            bodies = [
                json.dumps({"id": number, "text": " ".join(chance.choices(words, k=85))}).encode()
                for number in range(start, start + 1000)
            ]
            keys = [f"order-{number}" for number in range(start, start + 1000)]
            store.append_batch("orders", bodies, keys, "paid", queue_id=start // 1000 % 4)
        store.flush()
        report = store.archive.run()
        store.expire()
    return report.records


def random_reads(home: Path, counted: Counted, seed: int, reads: int) -> tuple[list[tuple[int, int]], int]:
    """Reads single messages. Returns requests and bytes of each read, and the largest of the first look-ups."""
    chance = random.Random(seed)
    costs = []
    with mqstore.open(home) as store:
        limits = [(queue.queue_id, queue.min_offset) for queue in store.queues("orders")]
        link = store._archive_link
        history = link.history(store, store.stats().log_min_offset)
        for file in history.reader.files():
            history.reader.footer(file)
        for _ in range(reads):
            queue_id, low = chance.choice(limits)
            offset = chance.randrange(low)
            # As in an archive of which nothing but footers and page indexes is in memory.
            history.reader._columns._values.clear()
            counted.taken()
            message = next(iter(store.read("orders", queue_id, offset)))
            costs.append(counted.taken())
            assert (message.queue_id, message.queue_offset) == (queue_id, offset)
            number = offset // 1000 * 4000 + queue_id * 1000 + offset % 1000
            assert message.keys == (f"order-{number}",)
            assert message.json()["id"] == number
        counted.taken()
        found = list(store.lookup("orders", "order-17"))
        assert [message.json()["id"] for message in found] == [17]
        return costs, counted.taken()[1]


@pytest.mark.parametrize(
    ("count", "segment", "reads"),
    [(24_000, 4 * MIB, 200), pytest.param(1_500_000, 256 * MIB, 1000, marks=pytest.mark.soak)],
)
def test_a_random_read_needs_three_ranges(
    count: int, segment: int, reads: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = large(tmp_path / "store", count, 1, segment)
    assert records > count / 2
    counted = Counted(monkeypatch)
    costs, of_lookup = random_reads(tmp_path / "store", counted, 2, reads)
    print(
        f"\n{records:,} records, requests {max(one for one, _ in costs)}, bytes: mean "
        f"{sum(size for _, size in costs) / len(costs):,.0f}, most {max(size for _, size in costs):,}"
    )
    assert max(requests for requests, _ in costs) <= 3
    assert max(size for _, size in costs) <= 200 << 10
    assert of_lookup <= max(4 * MIB, sum(path.stat().st_size for path in (tmp_path / "store.cold").rglob("*")) // 8)


def test_incompressible_and_large_bodies_need_little_more_than_their_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(3)
    options = replace(KEEPING, segment_size=8 * MIB, queue_file_entries=20_000)
    for size in (1000, 10_000, 300_000):
        home = tmp_path / f"store-{size}"
        with mqstore.open(home, "create", options=options) as store:
            store.create_topic("orders", queues=1)
            for _ in range(24 * MIB // size):
                store.append("orders", chance.randbytes(size))
            store.archive.configure(f"{home}.cold")
            store.archive.run()
            store.expire()
            history = store._archive_link.history(store, store.stats().log_min_offset)
            for file in history.reader.files():
                history.reader.footer(file)
            counted = Counted(monkeypatch)
            for offset in range(0, store.queues("orders")[0].min_offset, 7):
                history.reader._columns._values.clear()
                counted.taken()
                assert store.message_at("orders", 0, offset) is not None
                requests, read = counted.taken()
                assert requests <= 3
                assert read <= (200 << 10) + (size if size > 100_000 else 0)


def test_a_key_is_found_by_bloom_filters(
    homes: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "_RANGE_BYTES", 20_000)
    whole, short = homes
    with mqstore.open(whole) as store:
        report = store.archive.run_to(tmp_path / "small")
    assert report.bloom_filters
    counted = Counted(monkeypatch)
    with mqstore.open(short, archive=tmp_path / "small") as store:
        assert not list(store.lookup("orders", "absent"))
        files = len(mqstore.Archive(tmp_path / "small").files("orders"))
        assert files >= 5
        # The footer, and the filters of each file.
        counted.taken()
        assert not list(store.lookup("orders", "absent as well"))
        assert counted.taken() == (0, 0)
        assert len(list(store.lookup("orders", "k201"))) == 1
        assert counted.taken()[0] <= 5


def move_minimum(home: Path) -> None:
    """Archives and deletes what can be, in a store that is open for reading elsewhere."""
    with mqstore.open(home, "rw", options=KEEPING) as store:
        store.archive.run()
        store.expire()


@pytest.mark.parametrize("filter", [None, "paid"])
@pytest.mark.parametrize("queue_id", [None, 0])
@pytest.mark.parametrize("after", [0, 1, 30, 200])
def test_retention_during_a_read_leaves_no_gap(
    after: int, queue_id: int | None, filter: str | None, tmp_path: Path
) -> None:
    home = tmp_path / "store"
    with mqstore.open(home, "create", options=KEEPING) as store:
        fill(store, 900)
        store.archive.configure(tmp_path / "cold")
        store.archive.run()
        store.expire()
    with mqstore.open(home, "rw", options=replace(SMALL, retention_bytes=1 << 40)) as store:
        fill(store, 900, start=900)
        wanted = list(store.read("orders", queue_id, filter=filter))
    with mqstore.open(home) as reader:
        reading = reader.read("orders", queue_id, filter=filter)
        found = [next(reading) for _ in range(after)]
        low = reader.stats().log_min_offset
        move_minimum(home)
        found += reading
        assert reader.stats().log_min_offset > low + 4 * SEGMENT
        assert [one.commit_log_offset for one in found] == [one.commit_log_offset for one in wanted]


def test_retention_during_scans_and_look_ups_leaves_no_gap(tmp_path: Path) -> None:
    home = tmp_path / "store"
    aged(home)
    with mqstore.open(home, "rw", options=replace(SMALL, retention_bytes=1 << 40)) as store:
        fill(store, 1800, start=900)
        rows = [one["commit_log_offset"] for one in rows_of(store.scan(columns=["commit_log_offset"]))]
        hits = [one.commit_log_offset for one in store.lookup("orders", "all")]
    assert len(rows) == 2700
    for verb in ("scan", "topic", "look-up", "newest"):
        for after in (0, 1, 8):
            copy = tmp_path / f"{verb}-{after}"
            shutil.copytree(home, copy)
            # Archives to its own copy.
            with mqstore.open(copy, "rw", options=replace(SMALL, retention_bytes=1 << 40)) as store:
                shutil.copytree(f"{home}.cold", f"{copy}.cold")
                store.archive.configure(f"{copy}.cold")
            with mqstore.open(copy) as reader:
                found: list[int] = []
                wanted = rows
                if verb in ("scan", "topic"):
                    topics = None if verb == "scan" else TOPICS
                    batches = iter(reader.scan(topics=topics, columns=["commit_log_offset"], batch_size=100, threads=1))
                    for batch in (next(batches) for _ in range(after)):
                        found += batch.column("commit_log_offset").to_pylist()
                    move_minimum(copy)
                    for batch in batches:
                        found += batch.column("commit_log_offset").to_pylist()
                else:
                    wanted = hits
                    messages = reader.lookup("orders", "all", newest_first=verb == "newest")
                    found = [next(messages).commit_log_offset for _ in range(50 * after)]
                    move_minimum(copy)
                    found += [one.commit_log_offset for one in messages]
                    found.sort()
                assert found == wanted, (verb, after)


def test_readers_next_to_a_writer_that_archives_and_expires(tmp_path: Path) -> None:
    home = tmp_path / "store"
    aged(home, 600)
    stop = threading.Event()
    problems: list[BaseException] = []

    def write() -> None:
        try:
            with mqstore.open(home, "rw", options=KEEPING) as store:
                for start in range(600, 4200, 200):
                    fill(store, 200, start)
                    store.archive.run()
                    store.expire()
        except BaseException as error:
            problems.append(error)
        finally:
            stop.set()

    def read(queue_id: int | None) -> None:
        try:
            while not stop.is_set():
                with mqstore.open(home) as store:
                    numbers = [message.json()["number"] for message in store.read("orders", queue_id)]
                wanted = [one for one in range(4200) if one % 4 and queue_id in (None, one % 3)][: len(numbers)]
                assert sorted(numbers) == wanted
        except BaseException as error:
            problems.append(error)
            stop.set()

    threads = [threading.Thread(target=write), *(threading.Thread(target=read, args=(one,)) for one in (None, 1))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not problems


def test_follow_continues_from_the_archive_to_new_messages(homes: tuple[Path, Path]) -> None:
    _, short = homes
    with mqstore.open(short, "rw", options=KEEPING) as store:
        reading = store.read("orders", 0, 0, follow=True, timeout=5)
        found = [next(reading).queue_offset for _ in range(225)]
        assert found == list(range(225))
        store.append("orders", b"new", queue_id=0)
        assert next(reading).body == b"new"


def parquet_files(target: Path) -> list[Path]:
    return sorted((target / "v1").glob("topic=orders/*.parquet"))


def test_damage_is_an_error_that_names_the_file(homes: tuple[Path, Path], tmp_path: Path) -> None:
    _, short = homes
    [path] = parquet_files(tmp_path / "cold")
    content = path.read_bytes()
    with mqstore.open(short) as store:
        wanted = list(store.read("orders"))
        low = store.stats().log_min_offset
    for damage in (None, b"", content[:-1], content[: len(content) // 2], bytes(len(content)), content[:100]):
        if damage is None:
            path.unlink()
        else:
            path.write_bytes(damage)
        with mqstore.open(short) as store:
            for read in (
                lambda store: list(store.read("orders")),
                lambda store: list(store.read("orders", 1, 0)),
                lambda store: list(store.lookup("orders", "k1")),
                lambda store: store.scan(topics="orders").to_arrow(),
                lambda store: store.message_at("orders", 0, 0),
            ):
                with pytest.raises(mqstore.CorruptionError, match=path.name):
                    read(store)
            with pytest.warns(mqstore.StoreWarning, match=path.name):
                found = list(store.read("orders", on_damage="skip"))
            assert found == [one for one in wanted if one.commit_log_offset >= low]
    path.write_bytes(content)
    with mqstore.open(short) as store:
        assert list(store.read("orders")) == wanted


def test_no_damaged_byte_gives_a_wrong_message(homes: tuple[Path, Path], tmp_path: Path) -> None:
    """Each changed byte is an error, or is in bytes that the read does not need."""
    _, short = homes
    [path] = parquet_files(tmp_path / "cold")
    content = path.read_bytes()
    with mqstore.open(short) as store:
        wanted = (
            list(store.read("orders", 1)),
            list(store.lookup("orders", "k301")),
            list(store.read("orders", 1, 9, 12)),
        )
    chance = random.Random(4)
    errors = 0
    for _ in range(150):
        damaged = bytearray(content)
        damaged[chance.randrange(len(content))] ^= 1 << chance.randrange(8)
        path.write_bytes(damaged)
        with mqstore.open(short) as store:
            for number, read in enumerate(
                (
                    lambda store: list(store.read("orders", 1)),
                    lambda store: list(store.lookup("orders", "k301")),
                    lambda store: list(store.read("orders", 1, 9, 12)),
                )
            ):
                try:
                    found = read(store)
                except mqstore.CorruptionError:
                    errors += 1
                else:
                    # A Bloom filter or a key has no checksum of its own in the record.
                    assert found == wanted[number] or (number == 1 and not found)
    assert errors > 100


@pytest.mark.parametrize("name", [b"keys", b"queue_offset", b"element"])
def test_a_footer_with_another_name_of_a_column(name: bytes, homes: tuple[Path, Path], tmp_path: Path) -> None:
    """The footer names a column in its schema and at each place: none of them may differ."""
    [path] = parquet_files(tmp_path / "cold")
    content = path.read_bytes()
    footer = len(content) - 8 - int.from_bytes(content[-8:-4], "little")
    places = [found.start() for found in re.finditer(re.escape(name), content) if found.start() >= footer]
    assert len(places) >= 2
    for place in places[:3]:
        path.write_bytes(content[:place] + b"K" + content[place + 1 :])
        with mqstore.open(homes[1]) as store:
            for read in (
                lambda store: list(store.read("orders", 1)),
                lambda store: list(store.lookup("orders", "k301")),
                lambda store: store.message_at("orders", 1, 9),
            ):
                with pytest.raises(mqstore.CorruptionError, match=path.name):
                    read(store)


@pytest.mark.parametrize(
    ("cause", "error"), [("denied", mqstore.StorePermissionError), ("other", mqstore.StoreIOError)]
)
def test_an_archive_that_does_not_answer(
    cause: Any, error: type[Exception], homes: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_self: object, _ranges: object) -> None:
        raise RequestFailure(cause, "v1/x", "as the test wants")

    with mqstore.open(homes[1]) as store:
        monkeypatch.setattr(Directory, "read", fail)
        for read in (
            lambda: list(store.read("orders")),
            lambda: list(store.lookup("orders", "k1")),
            lambda: store.scan().to_arrow(),
            lambda: list(store.read("orders", on_damage="skip")),
        ):
            with pytest.raises(error, match="as the test wants"):
                read()
        # The log needs no archive.
        low = store.queues("orders")[0].min_offset
        assert next(iter(store.read("orders", 0, low))).queue_offset == low


def test_segments_that_nobody_has_are_an_error(tmp_path: Path) -> None:
    home, target = tmp_path / "store", tmp_path / "cold"
    with mqstore.open(home, "create", options=KEEPING) as store:
        fill(store, 300)
        store.archive.run_to(target)
        fill(store, 600, start=300)
        # Retention does not wait for an archive that is not configured.
        store.expire()
        fill(store, 600, start=900)
        assert store.archive.run_to(target).missing_bytes > 0
        wanted = [one.queue_offset for one in store.read("orders", 0)]
    with mqstore.open(home, "rw", options=KEEPING, archive=target) as store:
        for read in (
            lambda: list(store.read("orders", 0)),
            lambda: list(store.read("orders")),
            lambda: store.scan().to_arrow(),
        ):
            with pytest.raises(mqstore.CorruptionError, match=r"neither the archive nor the log.*on_damage=\"skip\""):
                read()
        with pytest.warns(mqstore.StoreWarning, match="neither the archive nor the log"):
            found = [one.queue_offset for one in store.read("orders", 0, on_damage="skip")]
        assert found[0] == 0
        assert found[-len(wanted) :] == wanted
        # After the missing segments nothing is wrong.
        assert [one.queue_offset for one in store.read("orders", 0, wanted[0])] == wanted


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


def test_a_reader_with_an_old_manifest_continues(homes: tuple[Path, Path], tmp_path: Path) -> None:
    _, short = homes
    with mqstore.open(short) as reader:
        reading = reader.read("orders", 0)
        found = [next(reading).queue_offset for _ in range(20)]
        with mqstore.open(short, "rw", options=KEEPING) as store:
            fill(store, 600, start=900)
            store.archive.run()
            store.expire()
        mqstore.Archive(tmp_path / "cold").clean(older_than=0)
        found += [one.queue_offset for one in reading]
        assert found == list(range(225))
        assert len(list(reader.read("orders", 0))) == 375


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
    assert lines("lookup", short, "orders", "k1", "--no-archive") == []
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


def test_the_hash_of_bloom_filters() -> None:
    # Values of the reference program.
    assert pages.hash_of(b"") == 0xEF46DB3751D8E999
    assert pages.hash_of(b"a") == 0xD24EC4F1A98C6E5B
    assert pages.hash_of(b"abc") == 0x44BC2CF5AD770999
    assert pages.hash_of(b"Nobody inspects the spammish repetition") == 0xFBCEA83C8A378BF1


def test_the_layout_of_a_file(homes: tuple[Path, Path], tmp_path: Path) -> None:
    """The columns that each read needs are neighbours, and their field ids are those of the first version."""
    import pyarrow.parquet as parquet

    [path] = parquet_files(tmp_path / "cold")
    schema = parquet.read_schema(path)
    ids = {field.name: int(field.metadata[b"PARQUET:field_id"]) for field in schema}
    assert [name for name, _ in sorted(ids.items(), key=lambda one: one[1])] == [
        "topic", "queue_id", "queue_offset", "commit_log_offset", "size", "store_timestamp", "born_timestamp",
        "unique_id", "keys", "tags", "flag", "sys_flag", "reconsume_times", "prepared_transaction_offset",
        "born_host", "store_host", "body_crc", "magic", "properties_raw", "body", "raw",
    ]  # fmt: skip
    assert schema.names[-5:] == ["properties_raw", "body", "unique_id", "keys", "tags"]
    metadata = parquet.read_metadata(path).row_group(0)
    places = [metadata.column(number) for number in range(metadata.num_columns)]
    starts = [one.dictionary_page_offset or one.data_page_offset for one in places]
    assert starts == sorted(starts)


def test_a_damaged_configuration_fails_only_reads_before_the_log(homes: tuple[Path, Path]) -> None:
    _, short = homes
    (short / "mqstore/archive").write_bytes(b"damaged")
    with mqstore.open(short) as store:
        low = store.queues("orders")[0].min_offset
        assert next(iter(store.read("orders", 0, low))).queue_offset == low
        with pytest.raises(mqstore.CorruptionError, match="mqstore/archive"):
            store.read("orders")
    with mqstore.open(short, archive=False) as store:
        assert next(iter(store.read("orders", 0))).queue_offset == low


def test_the_place_of_an_archive_reads_ranges(tmp_path: Path, homes: tuple[Path, Path]) -> None:
    place = ArchivePlace(tmp_path / "cold", None)
    entry = place.must_have().files[0]
    content = (tmp_path / "cold/v1" / entry.path).read_bytes()
    assert place.parts(entry, [(0, 4), (10, 20)]) == [content[:4], content[10:30]]
    with pytest.raises(mqstore.CorruptionError):
        place.parts(entry, [(len(content) - 3, 4)])
    (tmp_path / "cold/v1" / entry.path).unlink()
    with pytest.raises(mqstore.CorruptionError, match="missing"):
        place.parts(entry, [(0, 4)])


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


def drained(consumer: mqstore.Consumer, most: int = 50) -> list[mqstore.StoredMessage]:
    found: list[mqstore.StoredMessage] = []
    while some := consumer.poll(most, timeout=0):
        found += some
    return found


@pytest.mark.parametrize("ordered", [False, True])
def test_a_consumer_begins_and_continues_in_the_archive(homes: tuple[Path, Path], ordered: bool) -> None:
    whole, short = homes
    with mqstore.open(whole) as store:
        wanted = {queue_id: list(store.read("orders", queue_id)) for queue_id in range(3)}
    with mqstore.open(short, "rw", options=KEEPING) as store:
        with store.consumer("group", "orders", ordered=ordered) as consumer:
            first = consumer.poll(40)
            assert len(first) == 40
            assert first[0].queue_offset == 0
            consumer.commit()
            # Read and not committed, so they come again.
            assert len(consumer.poll(30)) == 30
        with store.consumer("group", "orders", ordered=ordered) as consumer:
            found = first + drained(consumer)
            for queue_id, messages in wanted.items():
                assert [one for one in found if one.queue_id == queue_id] == messages
            consumer.commit()
            assert set(consumer.lag().values()) == {0}
            consumer.seek("orders", 1, 7)
            assert next(iter(consumer)) == wanted[1][7]
            consumer.reset(wanted[1][30].store_time)
            position = consumer.position("orders", 1)
            assert wanted[1][position].store_timestamp == wanted[1][30].store_timestamp
            consumer.reset("earliest")
            assert consumer.committed("orders", 0) == 0
        with store.consumer("filtered", "orders", "paid") as consumer:
            found = drained(consumer)
            assert sorted(one.commit_log_offset for one in found) == sorted(
                one.commit_log_offset for messages in wanted.values() for one in messages if one.tags == "paid"
            )
        with store.consumer("late", "orders", start=wanted[2][100].store_time) as consumer:
            assert min(one.queue_offset for one in drained(consumer) if one.queue_id == 2) <= 100
    with (
        mqstore.open(short, "rw", options=KEEPING, archive=False) as store,
        store.consumer("of-the-log", "orders") as consumer,
    ):
        assert consumer.poll(1)[0].commit_log_offset >= store.stats().log_min_offset


def test_a_consumer_whose_messages_expire(tmp_path: Path) -> None:
    with mqstore.open(tmp_path / "store", "create", options=KEEPING) as store:
        fill(store, 300)
        store.archive.configure(tmp_path / "cold")
        with store.consumer("group", "orders", on_lost="raise") as consumer:
            numbers = [one.json()["number"] for one in consumer.poll(10)]
            fill(store, 900, start=300)
            store.archive.run()
            # An expiry by size does not wait for groups.
            store.expire()
            numbers += [one.json()["number"] for one in drained(consumer, 7)]
            assert sorted(numbers) == [one for one in range(1200) if one % 4]


def test_a_consumer_meets_a_damaged_archive(homes: tuple[Path, Path], tmp_path: Path) -> None:
    _, short = homes
    [path] = parquet_files(tmp_path / "cold")
    content = path.read_bytes()
    path.write_bytes(content[:100] + bytes(len(content) - 100))
    with mqstore.open(short, "rw", options=KEEPING) as store, store.consumer("group", "orders") as consumer:
        for _ in range(2):
            with pytest.raises(mqstore.CorruptionError, match=path.name):
                consumer.poll(10, timeout=0)
        path.write_bytes(content)
        assert len(drained(consumer)) == 675


def test_consumers_of_asyncio_begin_in_the_archive(homes: tuple[Path, Path]) -> None:
    _, short = homes

    async def work() -> None:
        async with (
            mqstore.aio.open(short, "rw", options=KEEPING) as store,
            store.consumer("group", "orders") as consumer,
        ):
            found: list[mqstore.StoredMessage] = []
            while len(found) < 675:
                found += await consumer.poll(100, timeout=10)
            assert sorted(one.json()["number"] for one in found) == [one for one in range(900) if one % 4]
            await consumer.commit()
            assert set((await consumer.lag()).values()) == {0}

    asyncio.run(work())


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
