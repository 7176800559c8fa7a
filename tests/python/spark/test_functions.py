"""The column functions, compared with the rest of the package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import mqstore
from mqstore.spark import functions as mq


def records(path: Path) -> list[tuple[bytes]]:
    """The bytes of every record in the only segment."""
    data = min((path / "commitlog").iterdir()).read_bytes()
    with mqstore.open(path) as store:
        return [(data[each.commit_log_offset :][: each.size],) for each in store._scan_log()]


@pytest.fixture
def made(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    with mqstore.open(path, "create", segment_size=1 << 16) as store:
        for number in range(40):
            store.append(f"t{number % 3}", b"x" * number, keys=f"k{number}", tags="ab"[number % 2])
    return path


def test_records(spark: Any, made: Path) -> None:
    torn = records(made)[0][0]
    changed = bytearray(torn)
    changed[-1] ^= 1
    rows = [*records(made), (None,), (b"",), (torn[:-1],), (bytes(changed),)]
    frame = spark.createDataFrame(rows, "record binary")
    found = frame.select(mq.decode_record("record").alias("m")).collect()
    assert [row.m is None for row in found] == [False] * 40 + [True] * 4
    names = ["topic", "queue_offset", "commit_log_offset", "message_id", "keys", "tags", "properties", "body"]
    wanted = mqstore.scan(made, columns=names).to_arrow().to_pylist()
    for row, other in zip(found, wanted, strict=False):
        mine = {name: row.m[name] for name in names}
        assert {**mine, "body": bytes(mine["body"]), "properties": dict(mine["properties"])} == {
            **other,
            "properties": dict(other["properties"]),
        }
    some = frame.select(mq.decode_record("record", ["body_size", "tags"]).alias("m")).select("m.*")
    assert some.columns == ["body_size", "tags"]
    assert some.filter("body_size = 7").first().tags == "b"
    with pytest.raises(mqstore.InvalidOptionError, match="no column 'nothing'"):
        mq.decode_record("record", ["nothing"])


def test_hashes_and_ids(spark: Any, made: Path) -> None:
    from pyspark.sql.functions import col

    frame = spark.read.format("mqstore").load(str(made)).where("topic = 't0'")
    found = frame.select(
        "message_id",
        mq.message_id("store_host", "commit_log_offset").alias("same"),
        mq.message_id("tags", "commit_log_offset").alias("none"),
    ).collect()
    assert len(found) == 14
    assert all(row.message_id == row.same and row.none is None for row in found)
    rows = [("TagA", "orders", "A-1"), (None, None, "x"), ("", "orders", None), ("ä", "ö", "ü")]
    frame = spark.createDataFrame(rows, "tag string, topic string, key string")
    found = frame.select(mq.tags_code(col("tag")).alias("code"), mq.key_hash("topic", "key").alias("hash")).collect()
    # Java's String.hashCode: of the tag, and of topic#key without the sign.
    assert [row.code for row in found] == [java("TagA"), None, 0, java("ä")]
    assert [row.hash for row in found] == [abs(java("orders#A-1")), None, None, abs(java("ö#ü"))]


def java(text: str) -> int:
    found = 0
    units = text.encode("utf-16-be")
    for at in range(0, len(units), 2):
        found = (31 * found + int.from_bytes(units[at : at + 2], "big")) & 0xFFFFFFFF
    return found - (1 << 32) if found >= 1 << 31 else found
