"""Parquet files in a folder or bucket, read by other programs: pyarrow, Polars and DuckDB. Spark has its own tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import mqstore
from remote_stores import ACCESS_KEY, SECRET_KEY, Bucket

COLUMNS = ["topic", "queue_id", "queue_offset", "tags", "body"]
"""The columns that are compared."""

Row = tuple[str, int, int, str | None, bytes]


def sorted_rows(rows: list[dict[str, Any]]) -> list[Row]:
    """Rows as tuples, sorted. Readers can take a tag or a topic for another type."""
    found = [(str(row["topic"]), row["queue_id"], row["queue_offset"], row["tags"], bytes(row["body"])) for row in rows]
    return sorted(found, key=lambda row: row[:3])


def scanned(home: Path) -> list[Row]:
    """The rows of a store."""
    return sorted_rows(mqstore.scan(home, columns=COLUMNS).to_arrow().to_pylist())


def _pyarrow(place: str, s3: Bucket | None, pattern: str) -> list[dict[str, Any]]:
    datasets, fs = pytest.importorskip("pyarrow.dataset"), pytest.importorskip("pyarrow.fs")
    files = None
    if s3 is not None:
        files = fs.S3FileSystem(
            access_key=ACCESS_KEY,
            secret_key=SECRET_KEY,
            endpoint_override=s3.options["endpoint"],
            region=s3.options["region"],
        )
    found = datasets.dataset(place.removeprefix("s3://"), filesystem=files, partitioning="hive")
    rows: list[dict[str, Any]] = found.to_table(columns=COLUMNS).to_pylist()
    return rows


def _polars(place: str, s3: Bucket | None, pattern: str) -> list[dict[str, Any]]:
    polars = pytest.importorskip("polars")
    options = None
    if s3 is not None:
        options = {name: s3.options[name] for name in ("endpoint", "access_key_id", "secret_access_key", "region")}
        options["allow_http"] = "true"
    frame = polars.scan_parquet(place + pattern, hive_partitioning=True, storage_options=options)
    rows: list[dict[str, Any]] = frame.select(COLUMNS).collect().to_dicts()
    return rows


def _duckdb(place: str, s3: Bucket | None, pattern: str) -> list[dict[str, Any]]:
    duckdb = pytest.importorskip("duckdb")
    with duckdb.connect() as connection:
        files: Any = place + pattern
        if s3 is not None:
            # DuckDB downloads its own transport. This one matches patterns without `s3://` only.
            system = pytest.importorskip("obstore.fsspec").FsspecStore("s3", **s3.options)
            connection.register_filesystem(system)
            files = [f"s3://{path}" for path in system.glob(files.removeprefix("s3://"))]
        found = connection.read_parquet(files, hive_partitioning=True)
        rows: list[dict[str, Any]] = found.select(*COLUMNS).to_arrow_table().to_pylist()
        return rows


READERS: dict[str, Callable[[str, Bucket | None, str], list[dict[str, Any]]]] = {
    "pyarrow": _pyarrow,
    "polars": _polars,
    "duckdb": _duckdb,
}
"""Functions that read a folder, or a URL in a bucket; the last argument is the pattern of its files."""
