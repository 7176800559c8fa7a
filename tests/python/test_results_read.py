"""Exports that other programs read at a URL and in a folder: parts, partitions, and one object."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mqstore
from conftest import Cli
from mqstore._admin.export import file_export
from mqstore._admin.export.partitions import _folder, values_of
from published_results import contents, memory, put
from remote_stores import Bucket
from table_readers import READERS, scanned, sorted_rows

pytest.importorskip("obstore")
pytest.importorskip("fsspec")
pyarrow = pytest.importorskip("pyarrow")

BY: list[tuple[str, ...]] = [(), ("topic", "day"), ("tags",), ("topic", "queue_id", "hour")]


def visible(root: Path) -> list[str]:
    return sorted(
        path.relative_to(root).as_posix()
        for path in root.rglob("*")
        if path.is_file() and path.relative_to(root).parts[0] != "_mqstore"
    )


@pytest.mark.parametrize("by", BY)
@pytest.mark.parametrize("kind", ["folder", "file", "s3"])
def test_every_program_reads_an_export(
    days: Path, kind: str, by: tuple[str, ...], s3: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_export, "_PART_BYTES", 4000)
    bucket = s3 if kind == "s3" else None
    home = f"stores/{uuid.uuid4().hex}" if bucket else f"{tmp_path}/out"
    dest = {"folder": home, "file": f"file://{home}", "s3": f"s3://{home}"}[kind]
    report = mqstore.export(
        days, dest, format="parquet", parts=True, partition_by=by, target_options=bucket and bucket.options
    )
    assert report.messages == 60
    place = dest if bucket else home
    for name, read in READERS.items():
        assert sorted_rows(read(place, bucket, "/**/*.parquet")) == scanned(days), name
    if bucket is None:
        files = visible(Path(home))
        assert len(files) > (2 if by else 0)
        assert {path.count("/") for path in files} == {len(by)}
    else:
        named = mqstore.published(dest, storage_options=bucket.options).urls
        assert sorted_rows(READERS["polars"](dest, bucket, "/**/*.parquet")) == scanned(days)
        assert all(url.startswith(f"s3://{home}/") for url in named)
    if kind == "file":
        assert files == sorted(url.removeprefix(f"{home}/") for url in mqstore.published(dest).urls)


def test_partitions_have_days_and_hours_in_utc(days: Path, tmp_path: Path) -> None:
    mqstore.export(days, tmp_path / "out", format="parquet", partition_by=("day", "hour"))
    rows = mqstore.scan(days, columns=["store_timestamp"]).to_arrow()["store_timestamp"].to_pylist()
    wanted = {f"day={time:%Y-%m-%d}/hour={time:%H}" for time in rows}
    assert {path.rpartition("/")[0] for path in visible(tmp_path / "out")} == wanted
    pattern = f"{tmp_path}/out/**/*.parquet"
    # The files keep the store time, and readers agree on the values.
    read = {
        "pyarrow": pyarrow.dataset.dataset(tmp_path / "out", partitioning="hive").to_table().to_pylist(),
        "polars": pytest.importorskip("polars").read_parquet(pattern, hive_partitioning=True).to_dicts(),
    }
    with pytest.importorskip("duckdb").connect() as connection:
        read["duckdb"] = connection.read_parquet(pattern, hive_partitioning=True).to_arrow_table().to_pylist()
    for name, found in read.items():
        assert len(found) == 60
        for row in found:
            stored = row["store_timestamp"]
            assert str(row["day"]) == f"{stored:%Y-%m-%d}", name
            assert int(row["hour"]) == stored.hour, name


def test_columns_of_a_partitioned_export(days: Path, tmp_path: Path) -> None:
    mqstore.export(days, tmp_path / "a", format="parquet", columns=["body"], partition_by=["day", "topic"])
    parts = sorted((tmp_path / "a").rglob("*.parquet"))
    assert all(pyarrow.parquet.read_schema(part).names == ["body"] for part in parts)
    # Within a partition, rows are in log order, and the numbers of the files are unique.
    bodies = [pyarrow.parquet.read_table(part, partitioning=None)["body"].to_pylist() for part in parts]
    assert all(part == sorted(part, key=lambda body: int(body.split()[0])) for part in bodies)
    assert sum(map(len, bodies)) == 60
    assert len({part.name for part in parts}) == len(parts)
    mqstore.export(days, tmp_path / "b", format="arrow", columns=["store_timestamp", "body"], partition_by="day")
    found = pyarrow.dataset.dataset(tmp_path / "b", format="ipc", partitioning="hive").to_table()
    assert set(found.schema.names) == {"store_timestamp", "body", "day"}
    # Without messages, one file still has the columns.
    mqstore.export(days, tmp_path / "c", format="parquet", keys="none", partition_by="topic")
    assert visible(tmp_path / "c") == ["part-00000.parquet"]


def test_values_are_encoded_as_hive_does() -> None:
    for value in [*map(chr, range(1, 300)), "", "a/b", "..", "%41", "ü" * 100, "__x=1", "\U0001f600"]:
        folder = _folder("tags", value)
        assert "/" not in folder
        if value and ord(value[0]) not in range(0x80, 0xA0):
            assert values_of(Path(folder, "part")) == {"tags": value}
    assert _folder("tags", None) == _folder("tags", "") == "tags=__HIVE_DEFAULT_PARTITION__"
    assert _folder("topic", "%RETRY%a|b c") == "topic=%25RETRY%25a%7Cb%20c"
    with pytest.raises(mqstore.InvalidOptionError, match="leave out tags"):
        _folder("tags", "x" * 300)


@pytest.mark.parametrize("at", ["folder", "url"])
def test_a_partitioned_export_is_fetched_and_imported(days: Path, at: str, tmp_path: Path) -> None:
    by = ("topic", "tags", "queue_id", "day")
    if at == "url":
        url = f"memory://{uuid.uuid4().hex}"
        report = mqstore.export(days, url, format="parquet", partition_by=by)
        assert mqstore.export(days, url, format="parquet", partition_by=by).to_dict() == {
            **report.to_dict(),
            "resumed": True,
        }
        with pytest.raises(mqstore.ResultExistsError):
            mqstore.export(days, url, format="parquet", partition_by="topic")
        mqstore.fetch(url, tmp_path / "out")
    else:
        mqstore.export(days, tmp_path / "out", format="parquet", partition_by=by)
    assert mqstore.import_(tmp_path / "again", tmp_path / "out").messages == 60
    assert contents(tmp_path / "again") == contents(days)


def test_an_interrupted_partitioned_export_is_resumed(
    days: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_export, "_PART_BYTES", 2000)
    out = tmp_path / "out"

    def stop(step: mqstore.Progress) -> None:
        if step.done > step.total // 2:
            raise KeyboardInterrupt

    def call(by: Any, **options: Any) -> mqstore.ExportReport:
        return mqstore.export(days, out, format="parquet", partition_by=by, **options)

    with pytest.raises(KeyboardInterrupt):
        call(("topic", "day"), progress=stop)
    partial = tmp_path / "out.partial"
    counted = json.loads((tmp_path / "out.partial.state").read_text())["parts"]
    before = {path: path.stat().st_ino for path in partial.rglob("part-*")}
    assert 0 < counted <= len(before)
    # Files that the state does not count go.
    (partial / "topic=x/day=y").mkdir(parents=True)
    (partial / f"topic=x/day=y/part-{counted:05}.parquet").write_bytes(b"cut off")
    report = call(("topic", "day"))
    assert (report.resumed, report.messages) == (True, 60)
    kept = [path for path, number in before.items() if (out / path.relative_to(partial)).stat().st_ino == number]
    assert len(kept) >= counted
    assert not (out / "topic=x").exists()
    assert not list(tmp_path.glob("*.partial*"))
    assert sorted_rows(READERS["duckdb"](str(out), None, "/**/*.parquet")) == scanned(days)


def test_the_state_of_another_partitioning_is_not_resumed(
    days: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_export, "_PART_BYTES", 2000)

    def stop(step: mqstore.Progress) -> None:
        if step.done > step.total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        mqstore.export(days, tmp_path / "out", format="parquet", partition_by="topic", progress=stop)
    report = mqstore.export(days, tmp_path / "out", format="parquet", partition_by="day")
    assert not report.resumed
    assert {path.partition("=")[0] for path in visible(tmp_path / "out")} == {"day"}


# One object.


def _object(s3: Bucket, url: str, name: str) -> bytes:
    import obstore

    return bytes(obstore.get(s3.store, f"{url.split('/')[3]}/{name}").bytes())


@pytest.mark.parametrize("form", ["parquet", "jsonl", "arrow"])
@pytest.mark.parametrize("kind", ["memory", "file", "s3"])
def test_a_name_of_a_file_is_one_object(days: Path, kind: str, form: str, s3: Bucket, tmp_path: Path) -> None:
    name = f"x %.{form}"
    url = {
        "memory": f"memory://{uuid.uuid4().hex}/",
        "file": f"file://{tmp_path}/new/",
        "s3": f"s3://stores/{uuid.uuid4().hex}/",
    }[kind] + name.replace("%", "%25").replace(" ", "%20")
    options: Any = s3.options if kind == "s3" else None
    report = mqstore.export(days, url, target_options=options)
    assert (report.path, report.format, report.messages) == (url, form, 60)
    mqstore.export(days, tmp_path / f"local.{form}")
    content = {
        "memory": lambda: memory(url.rpartition("/")[0])[name],
        "file": (tmp_path / "new" / name).read_bytes,
        "s3": lambda: _object(s3, url, name),
    }[kind]()
    assert content == (tmp_path / f"local.{form}").read_bytes()
    assert len(content) == report.bytes
    with pytest.raises(FileExistsError, match="overwrite"):
        mqstore.export(days, url, target_options=options)
    assert mqstore.export(days, url, keys="none", overwrite=True, target_options=options).messages == 0
    with pytest.raises(mqstore.ResultNotFoundError):
        mqstore.published(url, storage_options=options)


def test_a_large_object_is_refused_if_it_exists(days: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url = f"memory://{uuid.uuid4().hex}/x.parquet"
    folder = url.rpartition("/")[0]
    for content in (b"other", b""):
        put(folder, "x.parquet", content)
        with pytest.raises(mqstore.ResultExistsError, match="overwrite=True"):
            mqstore.export(days, url)
        assert memory(folder) == {"x.parquet": content}


def test_a_failed_export_leaves_no_object(days: Path) -> None:
    url = f"memory://{uuid.uuid4().hex}/x.parquet"

    def stop(_step: mqstore.Progress) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        mqstore.export(days, url, progress=stop)
    assert memory(url.rpartition("/")[0]) == {}


def test_a_slash_at_the_end_is_a_folder(days: Path, tmp_path: Path) -> None:
    url = f"memory://{uuid.uuid4().hex}/x.parquet"
    mqstore.export(days, f"{url}/")
    assert len(mqstore.published(url).files) == 1
    mqstore.export(days, f"{tmp_path}/x.parquet/", partition_by="day")
    assert visible(tmp_path / "x.parquet")[0].startswith("day=")


# Bad input.


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"partition_by": "month"}, r"no partition column 'month'; choose from topic, queue_id, tags, day, hour"),
        ({"partition_by": ["day", "day"]}, "'day' comes twice"),
        ({"partition_by": "topic", "columns": ["topic"]}, "the files have no column"),
        ({"partition_by": "topic", "format": "jsonl"}, "only for Parquet and Arrow, not for jsonl"),
        ({"partition_by": "topic", "format": "store"}, "only for Parquet and Arrow, not for store"),
        ({"partition_by": "topic", "dest": "memory://b/x.parquet"}, r"names one file; omit \.parquet"),
        ({"partition_by": "topic", "dest": "x.parquet"}, r"x\.parquet names one file; omit \.parquet"),
        ({"parts": True, "dest": "memory://b/x.parquet"}, r"names one file; omit \.parquet"),
    ],
)
def test_wrong_arguments(days: Path, tmp_path: Path, arguments: dict[str, Any], told: str) -> None:
    dest = arguments.pop("dest", "out")
    dest = dest if "://" in dest else tmp_path / dest
    with pytest.raises(mqstore.InvalidOptionError, match=told):
        mqstore.export(days, dest, **{"format": "parquet", **arguments})
    assert not list(tmp_path.iterdir())


def test_a_folder_for_parts_that_is_a_file(days: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("mine")
    with pytest.raises(FileExistsError, match="choose a new folder"):
        mqstore.export(days, tmp_path / "out", format="parquet", partition_by="topic")
    with pytest.raises(mqstore.RemoteStoreError, match="HDFS is not written in one step"):
        mqstore.export(days, "hdfs://host/x.parquet")


def test_the_command_line_partitions(days: Path, tmp_path: Path, cli: Cli) -> None:
    done = cli("export", days, tmp_path / "out", "--to", "parquet", "--partition-by", "topic, day")
    assert done.returncode == 0, done.stderr
    assert visible(tmp_path / "out")[0].startswith("topic=%25DLQ%25a/day=2025-11-28/part-")
    for words, status, told in [
        (("out2", "--to", "parquet", "--partition-by", "month"), 2, "queue_id, tags, day, hour"),
        (("x.parquet", "--partition-by", "topic"), 2, "names one file"),
        (("-", "--to", "parquet", "--partition-by", "topic"), 2, "--partition-by"),
        (("out", "--to", "parquet", "--partition-by", "topic"), 3, "exists already"),
    ]:
        wrong = cli("export", days, words[0] if words[0] == "-" else tmp_path / words[0], *words[1:])
        assert (wrong.returncode, wrong.stdout) == (status, ""), wrong.stderr
        assert told in wrong.stderr.replace("\n", " ")


# Other results and foreign files.


def test_a_result_in_the_folder_of_a_partition_is_never_touched(days: Path, tmp_path: Path) -> None:
    """Its files look like those of an attempt of the result above."""
    root = tmp_path / "lake"
    call: Callable[..., Any] = mqstore.export
    call(days, f"file://{root}/day=2026-01-01", format="parquet")
    before = visible(root)
    with pytest.raises(mqstore.ResultExistsError, match="other objects"):
        call(days, f"file://{root}", format="parquet")
    assert not mqstore.clean(f"file://{root}", older_than=0).objects
    assert visible(root) == before
    # The other way round: a new result in a folder of a published one.
    call(days, f"file://{tmp_path}/by", format="parquet", partition_by="day")
    before = visible(tmp_path / "by")
    for folder in {path.partition("/")[0] for path in before}:
        with pytest.raises(mqstore.ResultExistsError, match="other objects"):
            call(days, f"file://{tmp_path}/by/{folder}", format="parquet")
    assert visible(tmp_path / "by") == before


def test_a_killed_attempt_goes_with_the_next_commit(days: Path, tmp_path: Path) -> None:
    from mqstore._publish.target import result_target

    url = f"file://{tmp_path}/out"
    (tmp_path / "file").write_bytes(b"content")
    killed = result_target(url, None, "test").publication("parquet", None)
    assert killed.begin() is None
    killed.add("topic=a/part-00000.parquet", tmp_path / "file")
    assert len(visible(tmp_path / "out")) == 1
    mqstore.export(days, url, format="parquet")
    assert visible(tmp_path / "out") == [Path(file).name for file in mqstore.published(url).urls]
    assert len(mqstore.clean(url, older_than=0).objects) == 1


def test_a_manifest_of_the_first_version_is_read(filled: Path, tmp_path: Path) -> None:
    from mqstore._remote.manifest import NAME

    url = f"file://{tmp_path}/out"
    mqstore.export(filled, url, format="store")
    manifest = tmp_path / "out" / NAME
    manifest.write_bytes(_earlier(manifest.read_bytes()))
    found = mqstore.published(url)
    assert all("/out/_mqstore/attempt-" in one for one in found.urls)
    mqstore.fetch(url, tmp_path / "fetched")
    assert mqstore.verify(tmp_path / "fetched").ok
    assert contents(url) == contents(filled)


def _earlier(content: bytes) -> bytes:
    """A manifest as the first version has it."""
    import hashlib

    values = json.loads(content)
    del values["checksum"]
    values["version"] = 1
    for file in [*values["files"], *filter(None, [values["mapping"]])]:
        file["object"] = file["object"].removeprefix("_mqstore/")
    values["checksum"] = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
    return json.dumps(values).encode()
