"""Results at URLs: what is fetched is what was written. Refused targets, `clean`, and the command line."""

from __future__ import annotations

import asyncio
import json
import os
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import damaged_stores
import mqstore
import mqstore.aio
from conftest import Cli
from mqstore._admin import directories
from mqstore._admin.export import file_export
from mqstore._publish import clean as cleaning
from published_results import contents, memory, put
from remote_stores import ACCESS_KEY, SECRET_KEY, Bucket, answers

pytest.importorskip("obstore")
pytest.importorskip("fsspec")
pyarrow = pytest.importorskip("pyarrow")

FORMATS: list[Any] = ["jsonl", "parquet", "arrow"]


def joined(kind: str, paths: list[Path]) -> Any:
    """All rows of files, or all lines."""
    if kind == "jsonl":
        return b"".join(path.read_bytes() for path in paths)
    dataset = pytest.importorskip("pyarrow.dataset")
    return dataset.dataset(paths, format=kind).to_table().to_pylist()


@pytest.mark.parametrize("kind", ["memory", "file", pytest.param("s3", marks=pytest.mark.slow)])
def test_an_export_is_that_of_a_file(
    large_store: Path, kind: str, s3: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for form in FORMATS:
        mqstore.export(large_store, tmp_path / f"local.{form}")
    monkeypatch.setattr(file_export, "_PART_BYTES", 100_000)
    for form in FORMATS:
        url = {"memory": f"memory://{uuid.uuid4().hex}", "file": f"file://{tmp_path}/{form}", "s3": "s3://stores/x"}[
            kind
        ]
        url += f"/{form}"
        options = s3.options if kind == "s3" else None
        report = mqstore.export(large_store, url, format=form, target_options=options)
        assert (report.path, report.format, report.messages, report.resumed) == (url, form, 400, False)
        found = mqstore.published(url, storage_options=options)
        assert (found.url, found.format, found.bytes) == (url, form, report.bytes)
        assert [file.path for file in found.files] == [f"part-{n:05}.{form}" for n in range(len(found.files))]
        assert len(found.files) >= 3
        assert found.urls == [file.url for file in found.files]
        home = tmp_path / f"fetched {form}"
        fetched = mqstore.fetch(url, home, storage_options=options)
        assert (fetched.files, fetched.bytes, fetched.kept) == (len(found.files), report.bytes, 0)
        assert sorted(home.iterdir()) == [home / file.path for file in found.files]
        assert joined(form, sorted(home.iterdir())) == joined(form, [tmp_path / f"local.{form}"])
        assert not list(tmp_path.glob("*.partial*"))
        # The same result again is a success; another one is not.
        again = mqstore.export(large_store, url, format=form, target_options=options)
        assert again.resumed
        assert again.to_dict() == {**report.to_dict(), "resumed": True}
        with pytest.raises(mqstore.ResultExistsError, match="is there since") as told:
            mqstore.export(large_store, url, format=form, keys="k1", target_options=options)
        assert told.value.path == url
        assert mqstore.published(url, storage_options=options) == found
        assert not mqstore.clean(url, older_than=0, storage_options=options).objects


def test_other_libraries_read_the_objects(large_store: Path, tmp_path: Path) -> None:
    polars, duckdb = pytest.importorskip("polars"), pytest.importorskip("duckdb")
    url = f"file://{tmp_path}/out"
    mqstore.export(large_store, url, format="parquet")
    urls = mqstore.published(url).urls
    assert polars.read_parquet(urls).height == 400
    with duckdb.connect() as connection:
        assert connection.read_parquet(urls).count("*").fetchall() == [(400,)]
    paths = [one.removeprefix("file://") for one in urls]
    assert pytest.importorskip("pyarrow.dataset").dataset(paths).count_rows() == 400


def test_an_export_without_messages_has_one_part(filled: Path, empty_url: str) -> None:
    for kind in FORMATS:
        assert mqstore.export(filled, f"{empty_url}/{kind}", format=kind, keys="none").messages == 0
        assert len(mqstore.published(f"{empty_url}/{kind}").files) == 1


def _copies(home: Path) -> dict[str, Callable[..., Any]]:
    def snapshot(dest: Any, **options: Any) -> Any:
        with mqstore.open(home) as store:
            return store.snapshot(dest, **options)

    return {
        "export": lambda dest, **options: mqstore.export(home, dest, format="store", **options),
        "compact": lambda dest, **options: mqstore.compact(home, output=dest, force=True, **options),
        "repair": lambda dest, **options: mqstore.repair(home, output=dest, **options),
        "snapshot": snapshot,
    }


@pytest.mark.parametrize("verb", ["export", "compact", "repair", "snapshot"])
def test_a_copy_at_a_url_is_that_of_a_directory(filled: Path, verb: str, empty_url: str, tmp_path: Path) -> None:
    copy = _copies(filled)[verb]
    local = copy(tmp_path / "local")
    report = copy(empty_url)
    if verb == "repair":
        assert report.output == empty_url
    elif verb != "compact":
        assert report.path == empty_url
    fetched = mqstore.fetch(empty_url, tmp_path / "fetched")
    assert fetched.format == "store"
    assert mqstore.verify(tmp_path / "fetched").ok
    assert contents(tmp_path / "fetched") == contents(tmp_path / "local")
    if verb == "export":
        mapping = (tmp_path / "fetched.mapping.jsonl").read_bytes()
        assert mapping.count(b"\n") == report.messages == local.messages
    # A store can also be read at the URL. The zeros at the ends of files are not uploaded.
    wanted = answers(tmp_path / "fetched")
    found = answers(empty_url)
    for verb_, answer in wanted.items():
        assert found[verb_] == answer, verb_
    assert mqstore.published(empty_url).bytes < sum(
        path.stat().st_size for path in (tmp_path / "fetched").rglob("*") if path.is_file()
    )
    # A writer opens what was fetched.
    with mqstore.open(tmp_path / "fetched", "rw") as store:
        store.append("orders", b"one more")
    with pytest.raises(mqstore.ResultExistsError):
        copy(empty_url, **({"waiting": "drop"} if verb == "export" else {}))


def test_a_snapshot_does_not_change_the_store_that_it_shares_files_with(
    large_store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The temporary folder can be on the same disk, so that files of the snapshot are hard links."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    sizes = {path: path.stat().st_size for path in large_store.rglob("*") if path.is_file()}
    with mqstore.open(large_store) as store:
        store.snapshot(f"file://{tmp_path}/out")
    assert {path: path.stat().st_size for path in large_store.rglob("*") if path.is_file()} == sizes
    assert mqstore.verify(f"file://{tmp_path}/out").ok
    assert not list(tmp_path.glob("mqstore-*"))


@pytest.mark.slow
def test_a_store_in_a_bucket(large_store: Path, s3: Bucket, tmp_path: Path) -> None:
    url = "s3://stores/published"
    mqstore.export(large_store, url, format="store", target_options=s3.options)
    assert mqstore.verify(url, storage_options=s3.options).ok
    assert contents(url, storage_options=s3.options) == contents(large_store)
    mqstore.fetch(url, tmp_path / "fetched", storage_options=s3.options)
    assert contents(tmp_path / "fetched") == contents(large_store)
    with pytest.raises(mqstore.StoreIOError, match="bucket or container does not exist"):
        mqstore.export(large_store, "s3://missing/x", format="store", target_options=s3.options)


def test_a_pattern_matches_published_stores(filled: Path, empty_url: str) -> None:
    for name in ("a", "b"):
        mqstore.export(filled, f"{empty_url}/{name}", format="store")
    mqstore.export(filled, f"{empty_url}/c", format="jsonl")
    found = mqstore.scan(f"{empty_url}/*", topics="orders", columns=["body"]).to_arrow()
    assert found.num_rows == 80
    assert set(found["store"].to_pylist()) == {f"{empty_url}/a", f"{empty_url}/b"}
    with pytest.raises(mqstore.NotAStoreError, match=r"has the format jsonl: mqstore\.published"):
        mqstore.open(f"{empty_url}/c")


# Refused before work starts.


def test_a_target_without_create_if_absent_is_refused(filled: Path, tmp_path: Path) -> None:
    calls: list[Callable[[str], object]] = [
        lambda url: mqstore.export(filled, url, format="jsonl"),
        lambda url: mqstore.repair(filled, output=url),
        lambda url: mqstore.compact(filled, output=url),
        mqstore.clean,
    ]
    for call in calls:
        for url in ("sftp://user:secret@host/out", "https://host/out"):
            with pytest.raises(mqstore.RemoteStoreError, match="use s3://, gs://, az://, hdfs://, file://") as told:
                call(url)
            assert "secret" not in str(told.value)
    for call in (
        lambda _: mqstore.export(filled, tmp_path / "x.jsonl", target_options={}),
        lambda _: mqstore.repair(filled, output=tmp_path / "x", target_options={}),
        lambda _: mqstore.compact(filled, output=tmp_path / "x", target_options={}),
    ):
        with pytest.raises(mqstore.InvalidOptionError, match="target_options"):
            call("")
    for wrong in (lambda: mqstore.fetch("plain", tmp_path / "x"), lambda: mqstore.clean("plain")):
        with pytest.raises(ValueError, match="not a URL"):
            wrong()
    with pytest.raises(ValueError, match="omit mapping"):
        mqstore.export(filled, "memory://x", format="store", mapping=tmp_path / "m")


def test_a_server_that_ignores_the_condition_is_refused(
    filled: Path, empty_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mqstore._publish.memory import Memory

    def overwrite(self: Any, path: str, content: bytes) -> bool:
        put(empty_url, path, content)
        return True

    monkeypatch.setattr(Memory, "put_if_absent", overwrite)
    with pytest.raises(mqstore.RemoteStoreError, match="If-None-Match"):
        mqstore.export(filled, empty_url, format="jsonl")
    assert memory(empty_url) == {}


def test_other_objects_are_refused(filled: Path, empty_url: str) -> None:
    put(empty_url, "notes/a.txt", b"mine")
    with pytest.raises(mqstore.ResultExistsError, match="other objects, such as 'notes'"):
        mqstore.export(filled, empty_url, format="jsonl")
    assert memory(empty_url) == {"notes/a.txt": b"mine"}


# Clean.


def test_clean_keeps_young_attempts_and_named_objects(filled: Path, tmp_path: Path, cli: Cli) -> None:
    url, root = f"file://{tmp_path}/out", tmp_path / "out/_mqstore"
    mqstore.export(filled, url, format="jsonl")
    named = sorted(path for path in root.rglob("*") if path.is_file())
    ages = {"old": (90_000, 100_000), "mixed": (10, 100_000), "young": (10, 20)}
    files = {}
    for name, seconds in ages.items():
        folder = root / f"attempt-{uuid.uuid4().hex}"
        folder.mkdir()
        for number, age in enumerate(seconds):
            files[name, number] = folder / f"{number}"
            files[name, number].write_bytes(b"12345")
            now = folder.stat().st_mtime - age
            os.utime(files[name, number], (now, now))
    (tmp_path / "out/mine.txt").write_text("mine")
    old = [files["old", 0], files["old", 1]]
    plan = json.loads(cli("clean", url, "--dry-run", "--format", "json").stdout)
    assert sorted(one["path"] for one in plan["objects"]) == sorted(
        str(path.relative_to(tmp_path / "out")) for path in old
    )
    assert (plan["bytes"], plan["kept"], plan["dry_run"]) == (10, 4, True)
    refused = cli("clean", url)
    assert refused.returncode == 2
    assert "pass --yes" in refused.stderr
    assert all(path.exists() for path in old)
    done = cli("clean", url, "--yes")
    assert done.returncode == 0
    assert "removed 2 objects" in done.stderr
    assert not any(path.exists() for path in old)
    assert files["mixed", 1].exists()
    report = mqstore.clean(url, older_than="5s")
    assert (len(report.objects), report.kept, report.bytes) == (4, 0, 20)
    assert sorted(path for path in root.rglob("*") if path.is_file()) == named
    assert (tmp_path / "out/mine.txt").exists()
    assert not mqstore.clean(f"file://{tmp_path}/nothing", dry_run=True).objects
    assert cleaning.clean is mqstore.clean


# The command line, asyncio, secrets.


@pytest.mark.slow
def test_the_command_line_writes_and_fetches(filled: Path, tmp_path: Path, cli: Cli) -> None:
    for verb in (
        ("export", filled, "OUT", "--to", "jsonl"),
        ("compact", filled, "--output", "OUT", "--force"),
        ("repair", filled, "--output", "OUT"),
        ("snapshot", filled, "OUT"),
    ):
        url = f"file://{tmp_path}/{verb[0]}"
        done = cli(*(url if word == "OUT" else word for word in verb))
        assert done.returncode == 0, done.stderr
        assert mqstore.published(url).format == ("jsonl" if verb[0] == "export" else "store")
    done = cli("fetch", url, tmp_path / "fetched", "--format", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["path"] == str(tmp_path / "fetched")
    assert mqstore.verify(tmp_path / "fetched").ok
    again = cli("fetch", url, tmp_path / "fetched")
    assert again.returncode == 3
    assert "not empty" in again.stderr
    assert cli("fetch", "plain", tmp_path / "x").returncode == 2


def test_the_command_line_lists_a_result(filled: Path, tmp_path: Path, cli: Cli) -> None:
    url = f"file://{tmp_path}/with space"
    mqstore.export(filled, url, format="jsonl")
    for place in (url, tmp_path / "with space"):
        assert json.loads(cli("published", place, "--format", "json").stdout) == mqstore.published(url).to_dict()
    table = cli("published", url).stdout
    for text in ("jsonl", "created", mqstore.published(url).files[0].path):
        assert text in table
    missing = cli("published", tmp_path / "none")
    assert (missing.returncode, missing.stdout) == (3, "")
    assert "none" in missing.stderr


def test_asyncio_writes_and_fetches(filled: Path, empty_url: str, tmp_path: Path) -> None:
    async def run() -> None:
        await mqstore.aio.export(filled, empty_url, format="jsonl")
        assert (await mqstore.aio.published(empty_url)).format == "jsonl"
        assert (await mqstore.aio.fetch(empty_url, tmp_path / "out")).files == 1
        assert not (await mqstore.aio.clean(empty_url)).objects
        async with mqstore.aio.open(filled) as store:
            assert (await store.snapshot(f"{empty_url}2")).path == f"{empty_url}2"

    asyncio.run(run())


def test_secrets_are_in_no_text(filled: Path, s3: Bucket) -> None:
    texts = []
    wrong = {**s3.options, "endpoint": "http://127.0.0.1:1", "retry_config": {"max_retries": 0}}
    for call in (
        lambda: mqstore.export(filled, "s3://key:secret@bucket/x", format="jsonl"),
        lambda: mqstore.export(filled, "s3://stores/x", format="jsonl", target_options=wrong),
        lambda: mqstore.fetch("s3://stores/x", filled.with_name("y"), storage_options=wrong),
        lambda: mqstore.clean("s3://stores/x", storage_options=wrong),
        lambda: mqstore.published("s3://stores/x?secret=1"),
    ):
        with pytest.raises(mqstore.MQStoreError) as told:
            call()
        texts += [str(told.value), repr(told.value), repr(told.value.__cause__)]
    for text in texts:
        assert "secret" not in text
        assert SECRET_KEY not in text
        assert ACCESS_KEY not in text


@pytest.mark.slow
def test_a_repaired_copy_of_a_damaged_store(tmp_path: Path, empty_url: str) -> None:
    home = tmp_path / "store"
    damaged_stores.ours(home)
    segment = min((home / "commitlog").iterdir())
    with segment.open("r+b") as file:
        file.seek(300)
        file.write(b"\xff" * 20)
    report = mqstore.repair(home, output=empty_url)
    assert report.lost
    assert report.output == empty_url
    mqstore.fetch(empty_url, tmp_path / "fetched")
    assert mqstore.verify(tmp_path / "fetched").ok
    assert directories.repair is mqstore.repair
    plan = mqstore.repair(home, output=f"{empty_url}2", dry_run=True)
    assert plan.dry_run
    assert memory(f"{empty_url}2") == {}
