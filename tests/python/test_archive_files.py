"""The files of an archive: other programs read them, and their columns never change."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import mqstore
from conftest import SMALL
from restored_stores import TOPICS, fill, filled_store

pyarrow = pytest.importorskip("pyarrow")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[mqstore.Store]:
    """An open store with messages in several segments."""
    with filled_store(tmp_path / "store") as opened:
        yield opened


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


def test_long_names_of_topics_are_in_the_files(tmp_path: Path) -> None:
    """No partition of Hive hides them, neither for one topic nor for all."""
    duckdb, dataset = pytest.importorskip("duckdb"), pytest.importorskip("pyarrow.dataset")
    # The shortest escaped name that is hashed, and the longest one that is not; a name that is mostly escaped.
    names = ["%DLQ%" + "y" * 232, "%DLQ%" + "y" * 231, "%DLQ%" + "%" * 200, "orders"]
    with mqstore.open(tmp_path / "store", "create", options=SMALL) as store:
        for _ in range(30):
            for name in names:
                store.append(name, b"x" * 900)
        store.archive.configure(tmp_path / "archive")
        store.archive.run()
        for topic in [*names, None]:
            paths = store.archive.paths(topic)
            wanted = {topic} if topic else set(names)
            assert {row[0] for row in duckdb.read_parquet(paths).project("topic").fetchall()} == wanted
            assert set(dataset.dataset(paths).to_table(columns=["topic"])["topic"].to_pylist()) == wanted
        assert store.archive.verify().ok
    folders = sorted(one.name for one in (tmp_path / "archive/v1").iterdir() if "=" in one.name)
    assert [len(one) <= 255 and one.startswith("topic_hash=") for one in folders] == [False, False, True, True]


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


def test_the_columns_never_change(store: mqstore.Store, tmp_path: Path) -> None:
    """Tables of Iceberg and Delta depend on names, types and field ids."""
    import pyarrow.parquet as parquet

    store.archive.run_to(tmp_path / "cold")
    columns = parquet.read_schema(mqstore.Archive(tmp_path / "cold").paths()[0])
    listed = [(field.metadata[b"PARQUET:field_id"].decode(), field.name, str(field.type)) for field in columns]
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
