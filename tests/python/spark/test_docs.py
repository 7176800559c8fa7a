"""Runs the recipes of the documentation as they are printed there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import deltalake

import mqstore

PAGE = Path(__file__).parents[3] / "docs" / "spark.md"


def test_recipes(spark: Any, tmp_path: Path) -> None:
    path = tmp_path / "store"
    with mqstore.open(path, "create") as store:
        for number in range(30):
            store.append("prices", f"{number}".encode(), keys=f"k{number % 3}")
            store.append("orders", f"order {number}".encode(), keys=f"k{number % 5}")
        store.append("%DLQ%billing", b"poison")
    text = PAGE.read_text(encoding="utf-8").partition("## Recipes\n")[2].partition("\n## ")[0]
    blocks = re.findall(r"```(sql|python)\n(.*?)```", text, re.DOTALL)
    assert [kind for kind, _ in blocks] == ["sql"] * 5 + ["python"] * 2
    view, latest, minutes, dead, joined, lake, delta = (block.replace("/data", str(tmp_path)) for _, block in blocks)
    spark.sql(view.strip().rstrip(";"))

    def rows(query: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in spark.sql(query.strip().rstrip(";")).collect()]

    assert rows(latest) == [("k0", "27"), ("k1", "28"), ("k2", "29")]
    found = rows(minutes)
    assert {row[1] for row in found} == {"prices", "orders", "%DLQ%billing"}
    assert sum(row[2] for row in found) == 61
    assert rows(dead) == [("%DLQ%billing", None, 0, "poison")]
    found = rows(joined)
    assert len(found) == 18
    assert found[0] == (0, "order 0", "27")
    exec(compile(lake, str(PAGE), "exec"), {"spark": spark})
    assert spark.read.parquet(str(tmp_path / "lake")).count() == 61
    exec(compile(delta, str(PAGE), "exec"), {"spark": spark})
    deltalake.write_deltalake(tmp_path / "alone", mqstore.scan(path, topics="orders"))
    for table in (tmp_path / "delta", tmp_path / "alone"):
        bodies = deltalake.DeltaTable(table).to_pyarrow_table(columns=["body"])["body"].to_pylist()
        assert sorted(bodies) == sorted(f"order {number}".encode() for number in range(30))
