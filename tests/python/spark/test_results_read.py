"""Parquet files of exports, read by Spark without the manifest: of this package, and of Spark's own export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import mqstore
import mqstore.spark
from mqstore._admin.export import file_export
from published_results import contents
from remote_stores import BUCKET, Bucket
from table_readers import COLUMNS, READERS, scanned, sorted_rows


def _rows(spark: Any, place: str) -> list[Any]:
    return sorted_rows([row.asDict() for row in spark.read.parquet(place).select(COLUMNS).collect()])


@pytest.mark.parametrize("by", [(), ("topic", "day"), ("tags",), ("queue_id", "hour")])
@pytest.mark.parametrize("kind", ["folder", "file"])
def test_spark_reads_an_export(
    spark: Any, days: Path, kind: str, by: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_export, "_PART_BYTES", 4000)
    dest = f"{tmp_path}/out" if kind == "folder" else f"file://{tmp_path}/out"
    mqstore.export(days, dest, format="parquet", parts=True, partition_by=by)
    assert _rows(spark, f"file://{tmp_path}/out") == scanned(days)
    if by == ("topic", "day"):
        assert dict(spark.read.parquet(f"{tmp_path}/out").dtypes)["day"] == "date"


def test_programs_read_what_spark_exports(spark: Any, days: Path, s3: Bucket, tmp_path: Path) -> None:
    for place in (f"{tmp_path}/folder", f"file://{tmp_path}/url"):
        mqstore.spark.export(spark, days, place)
        assert _rows(spark, place) == scanned(days)
    url = f"s3://{BUCKET}/read"
    mqstore.spark.export(spark, days, url, target_options=s3.options)
    for name, read in READERS.items():
        assert sorted_rows(read(url, s3, "/*.parquet")) == scanned(days), name
    mqstore.fetch(url, tmp_path / "fetched", storage_options=s3.options)
    assert mqstore.import_(tmp_path / "again", tmp_path / "fetched").messages == 60
    assert contents(tmp_path / "again") == contents(days)


def test_a_name_of_a_file_is_refused(spark: Any, days: Path) -> None:
    with pytest.raises(mqstore.InvalidOptionError, match=r"names one; omit \.parquet"):
        mqstore.spark.export(spark, days, "memory://bucket/x.parquet")
