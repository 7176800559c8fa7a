"""Names with special characters in URLs: what is decoded, and that names from a list are used as they are."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest

import mqstore
from conftest import SMALL
from mqstore._paths import decoded, encoded
from remote_stores import Bucket
from restored_stores import fill

pytest.importorskip("pyarrow")
fsspec = pytest.importorskip("fsspec")
pytest.importorskip("obstore")

NAMES = ["run #7", "50%41", "50A", "what?", "a::b", "s*r", "[1]", "ä b", "x=1&y=2"]

URL = "memory://names"


def made(home: Path) -> Path:
    with mqstore.open(home, "create", options=SMALL) as store:
        store.append("orders", home.name.encode())
    return home


@pytest.fixture
def homes(tmp_path: Path) -> list[Path]:
    folder = tmp_path / "stores"
    folder.mkdir()
    return [made(folder / name) for name in NAMES]


def put(homes: list[Path], kind: str, request: pytest.FixtureRequest) -> tuple[str, dict[str, Any]]:
    """Copies the stores to a URL. Returns it, with its options."""
    if kind == "file":
        return f"file://{homes[0].parent}", {}
    if kind == "memory":
        system = fsspec.filesystem("memory")
        for home in homes:
            for path in home.rglob("*"):
                if path.is_file():
                    system.pipe_file(f"/names/{home.name}/{path.relative_to(home)}", path.read_bytes())
        return URL, {}
    server: Bucket = request.getfixturevalue("s3")
    for home in homes:
        server.upload(home, f"names/{home.name}")
    return "s3://stores/names", {"storage_options": server.options}


@pytest.mark.parametrize("kind", ["file", "memory", pytest.param("s3", marks=pytest.mark.slow)])
def test_a_pattern_finds_every_name(homes: list[Path], kind: str, request: pytest.FixtureRequest) -> None:
    url, options = put(homes, kind, request)
    rows = mqstore.scan(f"{url}/*", columns=["body"], **options).to_arrow().to_pylist()
    assert sorted(row["body"].decode() for row in rows) == sorted(NAMES)
    for row in rows:
        # The column `store` is a URL again.
        with mqstore.open(row["store"], **options) as store:
            assert [one.body for one in store.read("orders")] == [row["body"]]
    for pattern, wanted in [
        ("50%2541*", ["50%41"]),
        ("s%2Ar*", ["s*r"]),
        ("%5B1%5D*", ["[1]"]),
        ("run%20%23*", ["run #7"]),
        ("50*", ["50%41", "50A"]),
    ]:
        rows = mqstore.scan(f"{url}/{pattern}", columns=["body"], **options).to_arrow().to_pylist()
        assert sorted(row["body"].decode() for row in rows) == wanted


def test_a_pattern_skips_damaged_stores_only(homes: list[Path], request: pytest.FixtureRequest) -> None:
    url, _ = put(homes, "memory", request)
    rows = mqstore.scan(f"{url}/*", columns=["body"], on_error="skip").to_arrow().to_pylist()
    assert len(rows) == len(NAMES)


def test_a_name_is_read_as_it_was_encoded() -> None:
    for name in [*NAMES, "%", "%2", "%%41", "\udcff", "a\nb"]:
        assert decoded(encoded(name), URL) == name
        assert not {"?", "#", "*", "%"} & set(encoded(name).replace("%", "", encoded(name).count("%")))
        assert "::" not in encoded(name)
    for url in ("https://host/a%20b", "zip://a%20b::file:///x.zip"):
        assert decoded("a%20b", url) == "a%20b"


@pytest.mark.parametrize("name", ["a%20b", "a b", "50%2541", "run%20%237", "ä"])
@pytest.mark.parametrize("kind", ["file", "memory", pytest.param("s3", marks=pytest.mark.slow)])
def test_other_programs_open_every_path(kind: str, name: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    options: dict[str, Any] | None = None
    root = {"file": f"file://{tmp_path}", "memory": f"memory://{tmp_path.name}"}.get(
        kind, f"s3://stores/{tmp_path.name}"
    )
    if kind == "s3":
        options = request.getfixturevalue("s3").options
    with mqstore.open(tmp_path / "store", "create", options=SMALL) as store:
        fill(store, 100)
        store.archive.run_to(f"{root}/cold/{name}", target_options=options)
        archive = mqstore.Archive(f"{root}/cold/{name}", target_options=options)
        assert archive.verify().ok
        store.flush()
    mqstore.export(tmp_path / "store", f"{root}/out/{name}", format="parquet", target_options=options)
    published = mqstore.published(f"{root}/out/{name}", storage_options=options)
    paths = [*archive.paths(), *published.urls]
    assert any("%25RETRY%25" in one for one in paths)
    for path in paths:
        assert decoded(name, URL) in path
        assert read_by_others(path, options)
    if kind == "file":
        import pyarrow.dataset

        assert pyarrow.dataset.dataset(archive.paths()).count_rows() == archive.verify().records
        assert (tmp_path / "cold" / decoded(name, URL)).is_dir()


def read_by_others(path: str, options: dict[str, Any] | None) -> bool:
    """Returns whether pyarrow and Polars read the rows of a file."""
    import pyarrow.fs
    import pyarrow.parquet

    polars = pytest.importorskip("polars")
    if path.startswith("memory:"):
        # Both read it through fsspec only.
        content = fsspec.filesystem("memory").cat_file(path)
        frame = polars.read_parquet(io.BytesIO(content))
        return bool(pyarrow.parquet.read_table(io.BytesIO(content)).num_rows == frame.height > 0)
    if options is None:
        return bool(pyarrow.parquet.read_table(path).num_rows == polars.read_parquet(path).height > 0)
    system = pyarrow.fs.S3FileSystem(
        endpoint_override=options["endpoint"],
        access_key=options["access_key_id"],
        secret_key=options["secret_access_key"],
        region=options["region"],
    )
    named = {f"aws_{key}": options[key] for key in ("access_key_id", "secret_access_key", "region")}
    frame = polars.read_parquet(
        path, storage_options={**named, "aws_endpoint_url": options["endpoint"], "aws_allow_http": "true"}, glob=False
    )
    table = pyarrow.parquet.read_table(path.removeprefix("s3://"), filesystem=system)
    return bool(table.num_rows == frame.height > 0)


def test_a_scheme_in_capitals_is_the_same(tmp_path: Path) -> None:
    home = tmp_path / "store"
    with mqstore.open(home, "create", options=SMALL) as store:
        fill(store, 100)
        store.archive.configure(f"File://{tmp_path}/cold")
        assert store.archive.run().segments > 0
        assert store.archive.target == f"file://{tmp_path}/cold"
    with mqstore.open(f"FILE://{home}") as store:
        assert store.count("orders") > 0
    mqstore.export(home, f"MEMORY://{tmp_path.name}/out", format="parquet")
    assert mqstore.published(f"memory://{tmp_path.name}/out").urls


def test_a_url_that_names_no_object_is_an_error_at_once(tmp_path: Path) -> None:
    for url in ("s3://bucket/a//b", "s3://bucket//a", "gs://bucket/a%2F/b"):
        with pytest.raises(mqstore.RemoteStoreError, match="no name may be empty"):
            mqstore.open(url)
        with pytest.raises(mqstore.RemoteStoreError, match="no name may be empty"):
            mqstore.Archive(url)
    for url in ("s3://", "gs:///a", "s3a://"):
        for verb in (mqstore.open, mqstore.Archive, mqstore.published, mqstore.clean):
            with pytest.raises(mqstore.RemoteStoreError, match=r"it has no bucket: write (s3|gs)://BUCKET/PATH"):
                verb(url)
    for url in ("memory://b/run #7", "file:///tmp/what?", "s3://bucket/run #7"):
        for verb in (mqstore.open, mqstore.Archive, mqstore.published, mqstore.clean):
            with pytest.raises(mqstore.InvalidOptionError, match="write %3F for"):
                verb(url)
