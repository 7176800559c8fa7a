"""Archives: what is restored is what was archived, byte for byte; other programs read the same messages."""

from __future__ import annotations

import contextlib
import filecmp
import json
import shutil
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import mqstore
from conftest import SMALL, Cli, target_at
from failing_requests import WAYS, KilledError, failing
from mqstore._archive import columns, run
from mqstore._archive.manifest import decoded
from mqstore._remote.failure import RequestFailure

pyarrow = pytest.importorskip("pyarrow")

SEGMENT = 64 << 10
LONG = "%RETRY%" + "long" * 33
"""A topic name so long that its records have another magic code."""
TOPICS = ("orders", "events", LONG)


def fill(store: mqstore.Store, count: int = 450, start: int = 0) -> None:
    """Appends messages of several kinds; 450 of them fill about seven segments."""
    for topic in TOPICS:
        if topic not in store.topics():
            store.create_topic(topic, queues=2)
    for number in range(start, start + count):
        store.append(
            TOPICS[number % 3],
            json.dumps({"number": number, "text": "x" * (number * 7 % 900)}).encode() * (1 + number % 3),
            keys=[f"k{number}", "all"] if number % 2 else None,
            tags="paid" if number % 5 else None,
            properties={"price": str(number)} if number % 3 else None,
            queue_id=number % 2,
            compression="zstd" if number % 7 == 0 else None,
            compress_over=0,
        )


@pytest.fixture
def store(tmp_path: Path) -> Any:
    """An open store with messages in several segments."""
    with mqstore.open(tmp_path / "store", "create", options=SMALL) as opened:
        fill(opened)
        yield opened


def keeping(retention_bytes: int) -> mqstore.StoreOptions:
    """Options with a limit of the log."""
    return replace(SMALL, retention_bytes=retention_bytes, advanced=replace(SMALL.advanced, delete_interval=0))


def segments(home: Path) -> list[Path]:
    return sorted((home / "commitlog").iterdir())


def assert_identical(home: Path, restored: Path, names: list[str] | None = None) -> None:
    """Each restored segment is the original one."""
    found = segments(restored)
    assert names is None or [one.name for one in found] == names
    assert found
    for one in found:
        assert filecmp.cmp(one, home / "commitlog" / one.name, shallow=False), one


def bodies(place: Path, topic: str) -> list[tuple[int, int, bytes]]:
    with mqstore.open(place) as opened:
        return [(one.queue_id, one.queue_offset, one.body) for one in opened.read(topic)]


def test_a_restore_has_the_same_bytes(store: mqstore.Store, tmp_path: Path) -> None:
    target, restored = tmp_path / "archive", tmp_path / "restored"
    assert (store.archive.target, store.archive.archived_to) == (None, None)
    with pytest.raises(mqstore.InvalidOptionError, match="configure first"):
        store.archive.run()
    store.archive.configure(target)
    assert (store.archive.target, store.archive.archived_to) == (str(target), 0)
    report = store.archive.run()
    home = Path(store.path)
    full = [one.name for one in segments(home)][: report.segments]
    assert report.segments >= 5
    assert report.archived_to == store.archive.archived_to == report.segments * SEGMENT
    assert (report.missing_bytes, report.young_segments, report.target) == (0, 0, str(target))
    assert report.bloom_filters
    again = store.archive.run()
    assert (again.segments, again.files, again.archived_to) == (0, 0, report.archived_to)
    assert store.archive.verify().ok
    files = store.archive.files()
    assert sum(one.rows for one in files) == report.records
    assert sum(one.bytes for one in files) == report.bytes
    done = store.archive.restore(restored)
    assert (done.segments, done.records, done.identical) == (report.segments, report.records, True)
    assert_identical(home, restored, full)
    # It is a store: nothing is wrong, and it has the messages of these segments.
    assert mqstore.verify(restored).ok
    for topic in TOPICS:
        found = bodies(restored, topic)
        assert found == [one for one in bodies(home, topic) if one in found]
    with mqstore.open(restored, "rw", options=SMALL) as opened:
        assert opened.append("orders", b"next", queue_id=0).commit_log_offset == report.archived_to
    with pytest.raises(FileExistsError):
        store.archive.restore(restored)
    assert [one.name for one in tmp_path.iterdir() if "partial" in one.name] == []


def test_later_segments_follow(store: mqstore.Store, tmp_path: Path) -> None:
    store.archive.configure(tmp_path / "archive")
    first = store.archive.run()
    fill(store, start=450)
    second = store.archive.run()
    assert second.segments >= 5
    assert second.archived_to == first.archived_to + second.segments * SEGMENT
    assert len(store.archive.files()) == first.files + second.files
    store.archive.restore(tmp_path / "restored")
    assert_identical(Path(store.path), tmp_path / "restored")
    # Another object for the same archive needs no store.
    archive = mqstore.Archive(tmp_path / "archive")
    assert archive.files() == store.archive.files()
    assert archive.verify().records == first.records + second.records


def test_small_ranges_give_the_same_bytes(
    store: mqstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "_RANGE_BYTES", 20_000)
    monkeypatch.setattr(run, "_COMMIT_BYTES", 2 * SEGMENT)
    monkeypatch.setattr(columns, "_GROUP_ROWS", 7)
    steps: list[mqstore.Progress] = []
    store.archive.configure(tmp_path / "archive")
    report = store.archive.run(progress=steps.append)
    assert steps[-1].done == steps[-1].total == report.segments * SEGMENT
    # No range is smaller than a batch of the scan, which ends with its segment.
    assert report.files == 3 * report.segments
    manifests = sorted((tmp_path / "archive/v1/_manifest").iterdir())
    assert len(manifests) == (report.segments + 1) // 2
    store.archive.restore(tmp_path / "restored")
    assert_identical(Path(store.path), tmp_path / "restored")
    assert store.archive.verify().ok


def test_several_ranges_of_a_segment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "_RANGE_BYTES", 1)
    options = replace(SMALL, segment_size=5 << 20)
    with mqstore.open(tmp_path / "store", "create", options=options) as opened:
        for number in range(1200):
            opened.append(("orders", "events")[number % 7 == 0], bytes([number % 251]) * 10_000, queue_id=0)
        report = opened.archive.run_to(tmp_path / "archive")
        archive = mqstore.Archive(tmp_path / "archive")
        assert report.segments == 2
        assert report.files > 3 * report.segments
        assert archive.verify().ok
        archive.restore(tmp_path / "restored")
        assert_identical(tmp_path / "store", tmp_path / "restored")
        done = archive.restore(tmp_path / "events", topics="events", since=0)
        assert done.records == sum(one.rows for one in archive.files("events"))
        assert mqstore.verify(tmp_path / "events").ok


def test_system_topics_and_waiting_messages_too(tmp_path: Path) -> None:
    home = tmp_path / "store"
    with mqstore.open(home, "create", options=SMALL) as opened:
        opened.create_topic("orders", queues=2)
        opened.create_topic("gone", queues=1)
        opened.append("gone", b"x" * 5000)
        with opened.transaction("group") as pending:
            pending.append("orders", b"half" * 1000)
        opened.append("orders", b"later" * 1000, delay="1h")
        opened.append("orders", b"level" * 1000, delay_level=3)
        opened.append("%RETRY%group", b"again" * 100)
        opened.delete_topic("gone")
        for _ in range(100):
            opened.append("orders", b"y" * 3000)
        opened.archive.configure(tmp_path / "archive")
        report = opened.archive.run()
        assert report.segments >= 4
        topics = {one.topic for one in opened.archive.files()}
        assert {"RMQ_SYS_TRANS_HALF_TOPIC", "%RETRY%group", "gone", "orders"} <= topics
        opened.archive.restore(tmp_path / "restored")
        assert_identical(home, tmp_path / "restored")
        [path] = opened.archive.paths("%RETRY%group")
        assert "/topic=%25RETRY%25group/" in path


def test_damaged_bytes_and_placeholders_are_kept(store: mqstore.Store, tmp_path: Path) -> None:
    home = Path(store.path)
    second = segments(home)[1]
    store.close()
    content = bytearray(second.read_bytes())
    # In the body of a record, in the head of another one, and after the header of the filler.
    content[3000] ^= 1
    content[20_000:20_300] = b"\xff" * 300
    content[-1] = 7
    second.write_bytes(content)
    with mqstore.open(home, "rw", options=SMALL, recovery="read-only") as opened, pytest.warns(mqstore.StoreWarning):
        opened.archive.run_to(tmp_path / "archive")
    archive = mqstore.Archive(tmp_path / "archive")
    assert archive.verify().ok
    [other] = [one for one in archive.files() if one.topic is None]
    assert 0 < other.record_bytes < SEGMENT
    archive.restore(tmp_path / "restored")
    assert_identical(home, tmp_path / "restored")


def test_topics_are_restored_at_their_places(store: mqstore.Store, tmp_path: Path) -> None:
    store.archive.configure(tmp_path / "archive")
    report = store.archive.run()
    done = store.archive.restore(tmp_path / "restored", topics="events")
    assert (done.identical, done.segments) == (False, report.segments)
    assert mqstore.verify(tmp_path / "restored").ok
    with mqstore.open(tmp_path / "restored") as restored:
        found = list(restored.read("events"))
        assert len(found) == done.records == sum(one.rows for one in store.archive.files("events"))
        for one in found:
            original = store.get_at(one.commit_log_offset)
            assert (one.body, one.queue_offset, one.keys) == (original.body, original.queue_offset, original.keys)
        with pytest.raises(mqstore.TopicNotFoundError):
            list(restored.read("orders"))
    with pytest.raises(mqstore.TopicNotFoundError):
        store.archive.restore(tmp_path / "other", topics=["events", "nothing"])
    assert not (tmp_path / "other").exists()


def test_an_archive_of_some_topics(store: mqstore.Store, tmp_path: Path) -> None:
    store.archive.configure(tmp_path / "archive", topics=["orders", "absent"])
    report = store.archive.run()
    assert {one.topic for one in store.archive.files()} == {"orders"}
    done = store.archive.restore(tmp_path / "restored")
    assert (done.identical, done.records) == (False, report.records)
    assert [one for one in bodies(Path(store.path), "orders") if one in bodies(tmp_path / "restored", "orders")]
    with pytest.raises(mqstore.ResultExistsError, match="the topics absent, orders"):
        store.archive.configure(tmp_path / "archive")
    with pytest.raises(mqstore.InvalidOptionError):
        store.archive.configure(tmp_path / "other", topics=[])


def test_segments_of_a_time_are_restored(tmp_path: Path) -> None:
    from mqstore.testing import ManualClock
    from mqstore.testing import open as open_for_test

    clock = ManualClock(1_700_000_000_000)
    with open_for_test(tmp_path / "store", "create", clock=clock, options=SMALL) as opened:
        for _ in range(200):
            opened.append("orders", b"z" * 3000)
            clock.advance(60)
        opened.archive.run_to(tmp_path / "archive", older_than=0)
        archive = mqstore.Archive(tmp_path / "archive")
        start = 1_700_000_000_000 + 60_000 * 50
        done = archive.restore(tmp_path / "restored", since=start, until=start + 60_000 * 40)
        assert 2 <= done.segments <= 4
        assert done.first_log_offset > 0
        assert_identical(tmp_path / "store", tmp_path / "restored")
        with mqstore.open(tmp_path / "restored") as restored:
            times = [one.store_timestamp for one in restored.read("orders")]
        assert times[0] <= start
        assert times[-1] >= start + 60_000 * 39
        with pytest.raises(mqstore.InvalidOptionError, match="no segment of this time"):
            archive.restore(tmp_path / "none", since=start + 10**9)


def test_only_old_segments_are_archived(store: mqstore.Store, tmp_path: Path) -> None:
    store.archive.configure(tmp_path / "archive", older_than="1h")
    report = store.archive.run()
    assert report.segments == 0
    assert report.young_segments >= 5
    with pytest.raises(mqstore.ResultNotFoundError):
        store.archive.files()


# Other programs.


def test_other_programs_read_the_files(store: mqstore.Store, tmp_path: Path) -> None:
    polars, duckdb = pytest.importorskip("polars"), pytest.importorskip("duckdb")
    dataset = pytest.importorskip("pyarrow.dataset")
    store.archive.configure(tmp_path / "archive")
    end = store.archive.run().archived_to
    for topic in TOPICS:
        table = store.scan(topics=topic).to_arrow()
        table = table.filter(pyarrow.compute.less(table.column("commit_log_offset"), end))
        paths = store.archive.paths(topic)
        found = dataset.dataset(paths).to_table()
        names = [name for name in found.column_names if name in table.column_names and name != "body"]
        assert {"queue_offset", "keys", "tags", "unique_id", "born_host", "store_timestamp"} <= set(names)
        order = [("commit_log_offset", "ascending")]
        assert found.select(names).sort_by(order).equals(table.select(names).cast(found.select(names).schema))
        offsets = pyarrow.compute.sum(table.column("queue_offset")).as_py()
        folder = f"{tmp_path}/archive/v1"
        counted = duckdb.sql(
            f"select count(*), sum(queue_offset), sum(size) from read_parquet('{folder}/topic=*/*.parquet', "
            f"hive_partitioning=true) where topic = '{topic}'"
        ).fetchall()
        assert counted == [(table.num_rows, offsets, pyarrow.compute.sum(table.column("size")).as_py())]
        frame = polars.scan_parquet(paths).select(polars.len(), polars.col("queue_offset").sum()).collect()
        assert frame.row(0) == (table.num_rows, offsets)
        parts = dataset.dataset(folder, partitioning="hive")
        rows = parts.count_rows(filter=dataset.field("topic") == topic)
        assert rows == table.num_rows
        frame = polars.scan_parquet(f"{folder}/topic=*/*.parquet", hive_partitioning=True)
        assert frame.filter(polars.col("topic") == topic).select(polars.len()).collect().item() == table.num_rows


def test_delta_names_the_files_without_a_copy(store: mqstore.Store, tmp_path: Path) -> None:
    deltalake = pytest.importorskip("deltalake")
    transaction = pytest.importorskip("deltalake.transaction")
    store.archive.configure(tmp_path / "archive")
    store.archive.run()
    folder = tmp_path / "archive/v1/topic=orders"
    deltalake.convert_to_deltalake(str(folder))
    for _ in range(2):
        table = deltalake.DeltaTable(str(folder))
        known = {Path(uri).name for uri in table.file_uris()}
        new = [Path(path) for path in store.archive.paths("orders") if Path(path).name not in known]
        actions = [transaction.AddAction(one.name, one.stat().st_size, {}, 0, True, "{}") for one in new]
        if actions:
            table.create_write_transaction(actions, "append", table.schema())
        rows = deltalake.DeltaTable(str(folder)).to_pyarrow_dataset().count_rows()
        assert rows == sum(one.rows for one in store.archive.files("orders"))
        fill(store, start=450)
        assert store.archive.run().segments > 0
    assert not [
        one for one in mqstore.Archive(tmp_path / "archive").clean(older_than=0).objects if "topic=" in one.path
    ]


def test_iceberg_names_the_files_without_a_copy(store: mqstore.Store, tmp_path: Path) -> None:
    """The recipe of docs/archive.md."""
    sql = pytest.importorskip("pyiceberg.catalog.sql", reason="pyiceberg[sql-sqlite,pyarrow] is not installed")
    parquet = pytest.importorskip("pyarrow.parquet")
    store.archive.configure(tmp_path / "archive")
    store.archive.run()
    paths = store.archive.paths("orders")
    warehouse = tmp_path / "warehouse"
    warehouse.mkdir()
    catalog = sql.SqlCatalog("local", uri=f"sqlite:///{tmp_path}/catalog.db", warehouse=f"file://{warehouse}")
    catalog.create_namespace("log")
    columns = parquet.read_schema(paths[0])
    ordered = sorted(columns, key=lambda column: int(column.metadata[b"PARQUET:field_id"]))
    table = catalog.create_table("log.orders", schema=pyarrow.schema(ordered))
    table.add_files(paths)
    fill(store, start=450)
    assert store.archive.run().segments > 0
    known = {Path(task.file.file_path).name for task in table.scan().plan_files()}
    table.add_files([path for path in store.archive.paths("orders") if Path(path).name not in known])
    rows = table.scan(selected_fields=("queue_id", "queue_offset", "keys", "body")).to_arrow()
    assert rows.num_rows == sum(one.rows for one in store.archive.files("orders"))
    first = rows.filter(pyarrow.compute.equal(rows["queue_offset"], 0)).to_pylist()[0]
    message = store.message_at("orders", first["queue_id"], 0)
    assert message is not None
    assert (tuple(first["keys"] or ()), first["body"]) == (tuple(message.keys), bytes(message.body_view))
    assert not list(warehouse.rglob("*.parquet"))


def test_files_have_statistics_page_indexes_and_bloom_filters(store: mqstore.Store, tmp_path: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    store.archive.configure(tmp_path / "archive")
    store.archive.run()
    for path in store.archive.paths():
        found = parquet.ParquetFile(path)
        metadata = found.metadata
        facts = {name.decode(): value.decode() for name, value in metadata.metadata.items()}
        assert facts["mqstore.archive.version"] == "1"
        assert int(facts["mqstore.archive.rows"]) == metadata.num_rows
        group = metadata.row_group(0)
        chunks = {group.column(at).path_in_schema: group.column(at) for at in range(group.num_columns)}
        for name in ("queue_offset", "commit_log_offset", "store_timestamp"):
            assert chunks[name].statistics.has_min_max
            assert chunks[name].has_column_index
            assert chunks[name].has_offset_index
        assert chunks["unique_id"].bloom_filter_length > 0
        assert chunks["keys.list.element"].bloom_filter_length > 0
        assert chunks["body"].compression == "ZSTD"
        ids = {field.metadata[b"PARQUET:field_id"] for field in found.schema_arrow}
        assert len(ids) == len(found.schema_arrow)


def test_the_columns_never_change() -> None:
    """Tables of Iceberg and Delta depend on names, types and field ids."""
    listed = [(field.metadata[b"PARQUET:field_id"].decode(), field.name, str(field.type)) for field in columns.schema()]
    # Their places in the files are another question.
    assert sorted(listed, key=lambda one: int(one[0])) == [
        ("1", "topic", "string"),
        ("2", "queue_id", "int32"),
        ("3", "queue_offset", "int64"),
        ("4", "commit_log_offset", "int64"),
        ("5", "size", "int32"),
        ("6", "store_timestamp", "timestamp[us, tz=UTC]"),
        ("7", "born_timestamp", "timestamp[us, tz=UTC]"),
        ("8", "unique_id", "string"),
        ("9", "keys", "list<element: string>"),
        ("10", "tags", "string"),
        ("11", "flag", "int32"),
        ("12", "sys_flag", "int32"),
        ("13", "reconsume_times", "int32"),
        ("14", "prepared_transaction_offset", "int64"),
        ("15", "born_host", "string"),
        ("16", "store_host", "string"),
        ("17", "body_crc", "int32"),
        ("18", "magic", "int32"),
        ("19", "properties_raw", "binary"),
        ("20", "body", "binary"),
        ("21", "raw", "binary"),
    ]


# Retention.


def test_retention_waits_for_the_archive(tmp_path: Path) -> None:
    options = keeping(2 * SEGMENT)
    home = tmp_path / "store"
    with mqstore.open(home, "create", options=options) as opened:
        opened.archive.configure(tmp_path / "archive")
        fill(opened)
        before = segments(home)
        plan = opened.expire(dry_run=True)
        assert (plan.segments, len(plan.kept)) == (0, 1)
        assert "not in the archive yet" in plan.kept[0]
        assert opened.expire().segments == 0
        copies = tmp_path / "copies" / "commitlog"
        shutil.copytree(home / "commitlog", copies)
        end = opened.archive.run().archived_to
        assert opened.expire().segments == len(before) - 2
        assert segments(home)[0].name == f"{end - SEGMENT:020}"
        # The archive has what is gone, and the next run continues.
        fill(opened, start=450)
        opened.archive.run()
        opened.archive.restore(tmp_path / "restored")
        for one in segments(tmp_path / "restored"):
            origin = copies / one.name if (copies / one.name).exists() else home / "commitlog" / one.name
            if int(one.name) < end:
                assert filecmp.cmp(one, origin, shallow=False)
        assert segments(tmp_path / "restored")[0].name == "0" * 20
        opened.archive.configure(None)
        assert opened.archive.target is None
        assert opened.expire().segments > 0


def test_segments_that_are_gone_are_reported(tmp_path: Path) -> None:
    options = keeping(SEGMENT)
    with mqstore.open(tmp_path / "store", "create", options=options) as opened:
        fill(opened)
        opened.archive.run_to(tmp_path / "archive")
        fill(opened, start=450)
        opened.expire()
        fill(opened, start=900)
        report = opened.archive.run_to(tmp_path / "archive")
        assert report.missing_bytes > 0
        archive = mqstore.Archive(tmp_path / "archive")
        with pytest.raises(mqstore.InvalidOptionError, match="has no segments from log offset"):
            archive.restore(tmp_path / "restored")
        assert archive.verify().ok
        # A configuration with this archive trusts only what continues the log.
        opened.archive.configure(tmp_path / "archive")
        assert opened.archive.archived_to == report.archived_to


def test_an_archive_of_another_store_is_refused(store: mqstore.Store, tmp_path: Path) -> None:
    store.archive.configure(tmp_path / "archive")
    store.archive.run()
    with mqstore.open(tmp_path / "other", "create", options=SMALL) as other:
        other.append("first", b"one")
        with pytest.raises(mqstore.ResultExistsError, match="of another store"):
            other.archive.configure(tmp_path / "archive")
        fill(other)
        with pytest.raises(mqstore.ResultExistsError, match="of another store"):
            other.archive.run_to(tmp_path / "archive")
        assert other.archive.target is None


def test_a_reader_archives_beside_the_writer(store: mqstore.Store, tmp_path: Path) -> None:
    store.archive.configure(tmp_path / "archive")
    store.flush()
    with mqstore.open(store.path) as reader:
        report = reader.archive.run()
        assert report.segments >= 5
        assert reader.archive.archived_to == 0
        with pytest.raises(mqstore.StoreReadOnlyError):
            reader.archive.configure(tmp_path / "other")
    assert store.archive.run().segments == 0
    assert store.archive.archived_to == report.archived_to


# Targets, failures and races.


def memory(url: str) -> dict[str, bytes]:
    """The objects below a URL in the memory of `fsspec`."""
    fsspec = pytest.importorskip("fsspec")
    system, root = fsspec.filesystem("memory"), "/" + url.partition("://")[2]
    return {name.removeprefix(f"{root}/"): system.cat_file(name) for name in system.find(root)}


@pytest.mark.parametrize("kind", ["file", "memory", pytest.param("s3", marks=pytest.mark.slow)])
def test_targets_at_urls(store: mqstore.Store, kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    pytest.importorskip("obstore")
    url, options = target_at(kind, request, tmp_path)
    store.append("%RETRY%group", b"again" * 100)
    fill(store, start=450)
    store.archive.configure(url, target_options=options)
    report = store.archive.run(target_options=options)
    assert report.target == url
    assert store.archive.verify(target_options=options).ok
    assert all(one.startswith(f"{url}/v1/topic=") for one in store.archive.paths(target_options=options))
    store.archive.restore(tmp_path / "restored", target_options=options)
    assert_identical(Path(store.path), tmp_path / "restored")
    assert store.archive.run(target_options=options).segments == 0
    cleaned = mqstore.Archive(url, target_options=options).clean(older_than=0)
    assert [one.path for one in cleaned.objects] == []


def test_a_target_must_create_if_absent(store: mqstore.Store, tmp_path: Path) -> None:
    with pytest.raises(mqstore.RemoteStoreError):
        store.archive.configure("ftp://host/archive")
    with pytest.raises(mqstore.InvalidOptionError, match="target_options"):
        store.archive.configure(tmp_path / "archive", target_options={"key": "secret"})


class Requests:
    """The requests that change or read objects of an archive, with failures."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        from mqstore._publish.local import Directory

        self.calls: list[str] = []
        self.before: Callable[[int, str], None] = lambda _number, _name: None
        self.after: Callable[[int, str], None] = lambda _number, _name: None
        for name in ("listed", "get", "put", "put_if_absent", "delete"):
            monkeypatch.setattr(Directory, name, self._wrapped(name, getattr(Directory, name)))

    def _wrapped(self, name: str, plain: Callable[..., Any]) -> Callable[..., Any]:
        def call(target: Any, *arguments: Any) -> Any:
            number = len(self.calls)
            self.calls.append(name)
            self.before(number, name)
            found = plain(target, *arguments)
            self.after(number, name)
            return found

        return call

    def fail(self, way: str, fails: int) -> None:
        """Lets one request fail, before or after it is carried out. After a kill, no request has an effect."""
        self.calls.clear()
        failing(way, fails)(self)

    def heal(self) -> None:
        self.before = self.after = lambda _number, _name: None
        self.calls.clear()


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_whichever_request_fails_nothing_is_lost(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After each failure, retention deletes only what a readable archive has, and the next run continues."""
    # One range and one upload at a time, so that the requests have an order.
    monkeypatch.setattr(run, "_MOST_WRITERS", 1)
    monkeypatch.setattr(run, "_COMMIT_BYTES", 3 * SEGMENT)
    monkeypatch.setattr("mqstore._publish.create._PAUSES", (0,))
    requests = Requests(monkeypatch)
    origin = tmp_path / "origin"
    with mqstore.open(origin, "create", options=SMALL) as opened:
        fill(opened, 350)
        opened.archive.run_to(tmp_path / "counted")
        count = len(requests.calls)
    assert requests.calls.count("put_if_absent") >= 4
    assert count < 80
    options = keeping(1)
    for fails in range(count):
        home, target, restored = (tmp_path / f"{name}{fails}" for name in ("store", "archive", "restored"))
        shutil.copytree(origin, home)
        with mqstore.open(home, "rw", options=options) as opened:
            opened.archive.configure(target)
            requests.fail(way, fails)
            with contextlib.suppress(mqstore.StoreIOError, KilledError):
                opened.archive.run()
            requests.heal()
            archived_to = opened.archive.archived_to
            assert archived_to is not None
            opened.expire()
            assert int(segments(home)[0].name) == archived_to
            opened.archive.run()
            opened.expire()
            assert mqstore.Archive(target).verify().ok
            opened.archive.restore(restored)
        assert [one.name for one in segments(restored)] == [one.name for one in segments(origin)][:-1]
        assert_identical(origin, restored)
        if not way.startswith("kill") and fails:
            unused = mqstore.Archive(target).clean(older_than=0, dry_run=True).objects
            # A run that failed removes its files, unless its manifest may still arrive.
            assert not [one for one in unused if "/topic=" in one.path] or way == "lost request"
        mqstore.Archive(target).clean(older_than=0)
        assert mqstore.Archive(target).verify().ok
        for one in (home, target, restored):
            shutil.rmtree(one)


@pytest.mark.parametrize(
    ("cause", "error"),
    [("denied", mqstore.StorePermissionError), ("full", mqstore.DiskFullError), ("other", mqstore.StoreIOError)],
)
@pytest.mark.parametrize("name", ["listed", "get", "put", "put_if_absent"])
def test_a_failed_request_is_a_typed_error(
    store: mqstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: Any, error: type[Exception], name: str
) -> None:
    from mqstore._publish.local import Directory

    def fail(_self: object, *_arguments: object) -> None:
        raise RequestFailure(cause, "", "as the test wants")

    monkeypatch.setattr("mqstore._publish.create._PAUSES", (0,))
    with monkeypatch.context() as failing:
        failing.setattr(Directory, name, fail)
        with pytest.raises(error):
            store.archive.run_to(tmp_path / "archive")
    with pytest.raises(mqstore.ResultNotFoundError):
        mqstore.Archive(tmp_path / "archive").files()
    assert store.archive.run_to(tmp_path / "archive").segments > 0


def test_a_target_that_returns_half_a_file_gets_no_manifest(
    store: mqstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mqstore._publish.local import Directory

    plain = Directory.get

    def half(self: Directory, path: str) -> bytes | None:
        content = plain(self, path)
        return content[: len(content) // 2] if content and path.endswith(".parquet") else content

    store.archive.configure(tmp_path / "archive")
    with monkeypatch.context() as failing:
        failing.setattr(Directory, "get", half)
        with pytest.raises(mqstore.CorruptionError, match="differs from what was written"):
            store.archive.run()
    assert store.archive.archived_to == 0
    with pytest.raises(mqstore.ResultNotFoundError):
        store.archive.files()
    assert not list((tmp_path / "archive").rglob("*.parquet"))


def test_of_two_runs_one_wins(store: mqstore.Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    requests = Requests(monkeypatch)
    meeting = threading.Barrier(2, timeout=60)
    store.flush()

    def meet(_number: int, name: str) -> None:
        if name == "put_if_absent" and threading.current_thread().name.startswith("run"):
            counts[threading.current_thread().name] += 1
            if counts[threading.current_thread().name] == 3:
                meeting.wait()

    counts = {"run 0": 0, "run 1": 0}
    outcomes: list[Any] = []

    def archive() -> None:
        with mqstore.open(store.path) as reader:
            try:
                outcomes.append(reader.archive.run_to(tmp_path / "archive"))
            except mqstore.StoreBusyError as error:
                outcomes.append(error)

    requests.before = meet
    threads = [threading.Thread(target=archive, name=f"run {number}") for number in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    requests.heal()
    [report] = [one for one in outcomes if isinstance(one, mqstore.ArchiveReport)]
    [error] = [one for one in outcomes if isinstance(one, mqstore.StoreBusyError)]
    assert "another run has extended the archive" in str(error)
    archive_ = mqstore.Archive(tmp_path / "archive")
    assert len(archive_.files()) == report.files
    assert archive_.verify().ok
    # The files of the other run are gone.
    assert not archive_.clean(older_than=0).objects
    archive_.restore(tmp_path / "restored")
    assert_identical(Path(store.path), tmp_path / "restored")
    assert store.archive.run_to(tmp_path / "archive").segments == 0


def test_damaged_archives_are_typed_errors(store: mqstore.Store, tmp_path: Path) -> None:
    target = tmp_path / "archive"
    store.archive.configure(target)
    store.archive.run()
    archive = mqstore.Archive(target)
    path = Path(archive.paths()[0])
    content = path.read_bytes()
    for damage in (content[:-1], content[:50] + b"\0" + content[51:], b"", None):
        if damage is None:
            path.unlink()
        else:
            path.write_bytes(damage)
        report = archive.verify()
        assert (report.ok, len(report.problems)) == (False, 1)
        assert path.name in report.problems[0]
        with pytest.raises(mqstore.CorruptionError):
            archive.restore(tmp_path / "restored")
        assert not (tmp_path / "restored").exists()
    path.write_bytes(content)
    archive.restore(tmp_path / "restored")
    assert_identical(Path(store.path), tmp_path / "restored")
    [manifest] = (target / "v1/_manifest").iterdir()
    content = manifest.read_bytes()
    for damage in (
        content[:-9],
        content.replace(b'"rows":', b'"rows ":', 1),
        b"{}",
        content.replace(b"topic=", b"../..="),
    ):
        manifest.write_bytes(damage)
        for verb in (archive.files, archive.verify, store.archive.run):
            with pytest.raises(mqstore.CorruptionError, match="manifest"):
                verb()
    manifest.write_bytes(content)
    assert archive.verify().ok


def test_a_manifest_names_only_files_of_its_folder(store: mqstore.Store, tmp_path: Path) -> None:
    store.archive.configure(tmp_path / "archive")
    store.archive.run()
    [path] = (tmp_path / "archive/v1/_manifest").iterdir()
    manifest = decoded("m", path.read_bytes())
    assert decoded("m", manifest.encoded()) == manifest
    file, segment = manifest.files[0], manifest.segments[0]
    for wrong in (
        replace(manifest, files=(replace(file, path="../../etc/passwd"),)),
        replace(manifest, files=(replace(file, path="topic=a/../x.parquet"),)),
        replace(manifest, files=(replace(file, rows=-1),)),
        replace(manifest, files=(file, file)),
        replace(manifest, segments=(segment, segment)),
        replace(manifest, segments=(replace(segment, bytes=0),)),
        replace(manifest, archive="x"),
    ):
        with pytest.raises(RequestFailure, match="cannot be used"):
            decoded("m", wrong.encoded())


def test_clean_removes_what_no_manifest_names(store: mqstore.Store, tmp_path: Path) -> None:
    store.archive.configure(tmp_path / "archive")
    store.archive.run()
    fill(store, start=450)
    store.archive.run()
    archive = mqstore.Archive(tmp_path / "archive")
    path = Path(archive.paths()[0])
    stray = path.with_name(path.name.replace(path.stem[-8:], "0123abcd"))
    shutil.copy(path, stray)
    (path.parent / "notes.txt").write_text("mine")
    assert not archive.clean().objects
    plan = archive.clean(older_than=0, dry_run=True)
    assert len(plan.objects) == 2
    assert archive.clean(older_than=0).objects == plan.objects
    assert not stray.exists()
    assert (path.parent / "notes.txt").exists()
    assert archive.verify().ok


def test_asyncio(store: mqstore.Store, tmp_path: Path) -> None:
    import asyncio
    import inspect

    import mqstore.aio

    async def work() -> None:
        async with mqstore.aio.open(store.path) as opened:
            report = await opened.archive.run_to(tmp_path / "archive")
            assert report.segments >= 5
            assert (await opened.archive.target(), await opened.archive.archived_to()) == (None, None)
            with pytest.raises(mqstore.InvalidOptionError):
                await opened.archive.run()

    store.flush()
    asyncio.run(work())
    assert mqstore.Archive(tmp_path / "archive").verify().ok
    for name in ("configure", "run", "run_to", "files", "paths", "verify", "restore"):
        own, twin = getattr(mqstore.StoreArchive, name), getattr(mqstore.aio.StoreArchive, name)
        assert inspect.iscoroutinefunction(twin)
        assert inspect.signature(twin) == inspect.signature(own)


@pytest.mark.slow
def test_the_command_line(tmp_path: Path, cli: Cli) -> None:
    home, target = tmp_path / "store", tmp_path / "archive"
    with mqstore.open(home, "create", options=SMALL) as opened:
        fill(opened)
    done = cli("archive", home, target, "--format", "json")
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["segments"] >= 4
    listed = json.loads(cli("archive-files", target, "--topic", "orders", "--format", "json").stdout)
    assert {one["topic"] for one in listed} == {"orders"}
    assert cli("archive-verify", target).returncode == 0
    assert cli("archive-restore", target, tmp_path / "restored").returncode == 0
    assert_identical(home, tmp_path / "restored")
    Path(listed[0]["path"]).write_bytes(b"")
    assert cli("archive-verify", target).returncode == 1
    refused = cli("archive", home, tmp_path / "other")
    assert (refused.returncode, "--remove" in refused.stderr) == (2, True)
    assert cli("archive", home).returncode == 2
    with mqstore.open(home, "rw", options=SMALL) as opened:
        assert opened.archive.target == str(target)
        fill(opened, start=450)
        opened.flush()
        beside = cli("archive", home, target, "--format", "json")
        assert beside.returncode == 0, beside.stderr
        assert json.loads(beside.stdout)["segments"] > 0
        assert "does not know what was archived" in beside.stderr
    assert cli("archive", home, "--remove").returncode == 0
    with mqstore.open(home) as opened:
        assert opened.archive.target is None
    assert "2 objects" not in cli("archive-clean", target, "--older-than", "0", "--dry-run").stdout
    assert cli("archive-clean", target, "--older-than", "0", "--yes").returncode == 0
