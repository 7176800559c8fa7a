"""Several stores in one call: rows in the order of the list, one open store at a time, failures, patterns."""

from __future__ import annotations

import asyncio
import json
import warnings
from pathlib import Path
from typing import Any

import pytest

import mqstore
import mqstore.aio
from conftest import SMALL, Cli
from remote_stores import Bucket, bucket, in_memory

pa = pytest.importorskip("pyarrow")
pytest.importorskip("fsspec")

COLUMNS = ["topic", "queue_offset", "body"]


def make(home: Path, count: int, topic: str = "orders") -> Path:
    home.parent.mkdir(parents=True, exist_ok=True)
    with mqstore.open(home, "create", options=SMALL) as store:
        for number in range(count):
            store.append(
                topic, f"{home.name} {number}".encode(), keys=[f"k{number}"], tags="paid" if number % 2 else None
            )
    return home


@pytest.fixture
def homes(tmp_path: Path) -> list[Path]:
    """Three stores; the order of their names is not the order of the list."""
    return [make(tmp_path / "backups" / name, count) for name, count in (("c", 3), ("a", 5), ("b", 4))]


def rows(scan: mqstore.Scan) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = scan.to_arrow().to_pylist()
    return found


def union(places: list[Any], **request: Any) -> list[dict[str, Any]]:
    return [{"store": str(place), **row} for place in places for row in rows(mqstore.scan(place, **request))]


def damage(home: Path) -> Path:
    """Damages the body of the first message of a closed store."""
    [segment] = (home / "commitlog").iterdir()
    content = bytearray(segment.read_bytes())
    content[content.index(b" 0")] ^= 0xFF
    segment.write_bytes(content)
    return home


@pytest.mark.parametrize(
    "request_",
    [
        {},
        {"columns": COLUMNS},
        {"columns": COLUMNS, "filter": "paid"},
        {"columns": COLUMNS, "topics": "orders", "start": 2},
        {"columns": COLUMNS, "keys": "k1", "threads": 1},
        {"columns": COLUMNS, "batch_size": 2},
    ],
)
def test_rows_are_those_of_the_single_stores_in_the_order_of_the_list(
    homes: list[Path], request_: dict[str, Any]
) -> None:
    places: list[Any] = [homes[0], str(homes[1]), in_memory(homes[2], "many/third")]
    scan = mqstore.scan(places, **request_)
    wanted = union(places, **request_)
    assert wanted
    assert rows(scan) == wanted
    # Each use reads again.
    assert rows(mqstore.scan(tuple(places), **request_)) == rows(scan) == wanted
    table = scan.to_arrow()
    assert table.schema == scan.schema
    assert table.schema.names[0] == "store"
    assert table.schema.field("store").type == pa.dictionary(pa.int32(), pa.string())
    assert table["store"].chunk(0).dictionary.to_pylist() == [str(place) for place in places]
    assert scan.failures == []


def test_one_place_has_no_column_and_a_list_of_one_has(homes: list[Path]) -> None:
    assert "store" not in mqstore.scan(homes[0]).schema.names
    assert mqstore.scan([homes[0]]).schema.names[0] == "store"
    with pytest.raises(mqstore.InvalidOptionError, match="store"):
        mqstore.scan(homes[0], columns=["store"])


def test_the_column_can_be_at_any_place(homes: list[Path]) -> None:
    for columns in (["body", "store"], ["store", "body"], ["topic", "store", "body"], ["store"]):
        scan = mqstore.scan(homes, columns=columns)
        assert scan.schema.names == columns
        assert scan.to_arrow().num_rows == 12
        assert [row["store"] for row in rows(scan)] == [
            str(home) for home, n in zip(homes, (3, 5, 4), strict=True) for _ in range(n)
        ]


@pytest.mark.parametrize("limit", [0, 1, 3, 4, 11, 12, 100])
def test_the_limit_counts_the_rows_of_all_stores(homes: list[Path], limit: int) -> None:
    for batch_size in (2, 65_536):
        scan = mqstore.scan(homes, columns=COLUMNS, batch_size=batch_size, limit=limit)
        assert rows(scan) == union(homes, columns=COLUMNS)[:limit]
        assert pa.RecordBatchReader.from_stream(scan).read_all() == scan.to_arrow()
    # Of one store too.
    assert rows(mqstore.scan(homes[1], limit=limit)) == rows(mqstore.scan(homes[1]))[:limit]
    with mqstore.open(homes[1]) as store:
        assert rows(store.scan(limit=limit)) == rows(store.scan())[:limit]


def test_a_wrong_argument_is_an_error_at_once(homes: list[Path]) -> None:
    for wrong in ({"limit": -1}, {"path": []}):
        with pytest.raises(ValueError, match=r"limit must be at least 0|empty list"):
            mqstore.scan(**{"path": homes, **wrong})  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        mqstore.scan([homes])  # type: ignore[list-item]
    with pytest.raises(TypeError):
        mqstore.scan(homes, limit=True)
    for more in ({"on_error": "ignore"}, {"columns": ["unknown"]}, {"storage_options": {}}, {"cache": "folder"}):
        with pytest.raises(mqstore.InvalidOptionError):
            mqstore.scan(homes, **more)  # type: ignore[arg-type]
    with pytest.raises(mqstore.InvalidOptionError, match="not in the URL"):
        mqstore.scan([homes[0], "memory://a?b=c"])
    with pytest.raises(mqstore.InvalidOptionError, match="one store"):
        mqstore.scan(homes[0], on_error="skip")


def test_a_store_that_fails_is_named(homes: list[Path], tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    with pytest.raises(mqstore.NotAStoreError, match=str(missing)):
        mqstore.scan([homes[0], missing, homes[1]]).to_arrow()
    with pytest.raises(mqstore.NotAStoreError, match="memory://nothing/here"):
        mqstore.scan([homes[0], "memory://nothing/here"]).to_arrow()
    with pytest.raises(mqstore.CorruptionError, match=str(homes[1])):
        mqstore.scan([homes[0], damage(homes[1])]).to_arrow()
    # An error that names no store gets a note.
    with pytest.raises(mqstore.TopicNotFoundError) as caught:
        mqstore.scan([homes[0], make(tmp_path / "other", 1, "other")], topics="orders").to_arrow()
    assert caught.value.__notes__ == [f"while reading the store {tmp_path / 'other'}"]


def test_a_store_that_fails_can_be_skipped(homes: list[Path], tmp_path: Path) -> None:
    other, missing = make(tmp_path / "other", 1, "other"), tmp_path / "missing"
    places = [missing, homes[0], damage(homes[1]), other, homes[2]]
    scan = mqstore.scan(places, topics="orders", columns=COLUMNS, on_error="skip")
    assert scan.failures == []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        found = rows(scan)
    assert found == union([homes[0], homes[2]], columns=COLUMNS)
    failed = [str(missing), str(homes[1]), str(other)]
    assert [place for place, _ in scan.failures] == failed
    kinds = [mqstore.NotAStoreError, mqstore.CorruptionError, mqstore.TopicNotFoundError]
    assert [type(error) for _, error in scan.failures] == kinds
    # The errors keep no store open.
    assert open_stores([home for home in places if home != missing]) == 0
    texts = [str(one.message) for one in caught if issubclass(one.category, mqstore.StoreWarning)]
    assert len(texts) == 3
    assert all(place in text for place, text in zip(failed, texts, strict=True))


def test_a_pattern_names_the_stores_that_match(homes: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    backups = homes[0].parent
    (backups / "readme.txt").write_text("no store")
    (backups / "empty").mkdir()
    wanted = union(sorted(homes), columns=COLUMNS)
    assert rows(mqstore.scan(f"{backups}/*", columns=COLUMNS)) == wanted
    assert rows(mqstore.scan(f"{backups}/[ab]", columns=COLUMNS)) == wanted[:9]
    monkeypatch.chdir(backups.parent)
    found = rows(mqstore.scan(["backups/?", "backups/c"], columns=COLUMNS))
    assert [row["store"] for row in found] == [
        f"backups/{name}" for name, n in (("a", 5), ("b", 4), ("c", 3), ("c", 3)) for _ in range(n)
    ]
    with pytest.raises(mqstore.NotAStoreError, match=r"nothing\*"):
        mqstore.scan("nothing*").to_arrow()
    # A path that exists is no pattern.
    plain = make(backups.parent / "x[1]*", 2)
    assert "store" not in mqstore.scan(str(plain)).schema.names


def test_a_pattern_in_a_url_names_the_stores_that_match(homes: list[Path]) -> None:
    for home in homes:
        in_memory(home, f"patterns/x-{home.name}/store")
    in_memory(homes[0], "patterns/y/store")
    (homes[0].parent / "no store" / "sub").mkdir(parents=True)
    (homes[0].parent / "no store" / "sub" / "file").write_text("x")
    in_memory(homes[0].parent / "no store", "patterns/x-no")
    found = rows(mqstore.scan("memory://patterns/x-*/store", columns=COLUMNS))
    names = {home.name: f"memory://patterns/x-{home.name}/store" for home in sorted(homes)}
    assert list(dict.fromkeys(row["store"] for row in found)) == list(names.values())
    assert len(found) == 12
    assert len(rows(mqstore.scan(f"file://{homes[0].parent}/*"))) == 12
    with pytest.raises(mqstore.NotAStoreError, match="matches no"):
        mqstore.scan("memory://patterns/z*").to_arrow()


@pytest.mark.slow
def test_a_pattern_lists_a_bucket(homes: list[Path]) -> None:
    pytest.importorskip("moto.server")
    pytest.importorskip("obstore")
    with bucket() as s3:
        for home in homes:
            s3.upload(home, f"backups/{home.name}")
        s3.put("backups/readme.txt", b"no store")
        s3.put("backups/other/readme.txt", b"no store")
        scan = mqstore.scan("s3://stores/backups/*", columns=COLUMNS, storage_options=s3.options)
        urls = [f"s3://stores/backups/{home.name}" for home in sorted(homes)]
        assert rows(scan) == [
            {**row, "store": url}
            for home, url in zip(sorted(homes), urls, strict=True)
            for row in union([home], columns=COLUMNS)
        ]
        wrong = {**s3.options, "endpoint": "http://127.0.0.1:1"}
        _fails_without_secrets(s3, {**wrong, "retry_config": {"max_retries": 0}})


def _fails_without_secrets(s3: Bucket, options: dict[str, Any]) -> None:
    with pytest.raises(mqstore.StoreIOError) as caught:
        mqstore.scan("s3://stores/backups/*", storage_options=options).to_arrow()
    assert s3.options["secret_access_key"] not in str(caught.value)


def test_secrets_of_a_url_are_in_no_row(homes: list[Path]) -> None:
    in_memory(homes[0], "secret/store")
    scan = mqstore.scan(["memory://user:word@secret/store", homes[1]], on_error="skip")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        table = scan.to_arrow()
    assert "word" not in f"{table['store'].to_pylist()}{scan.failures}{[one.message for one in caught]}{scan!r}"


def open_stores(homes: list[Path]) -> int:
    """The number of stores whose files this process has open or mapped."""
    used = Path("/proc/self/maps").read_text()
    for link in Path("/proc/self/fd").iterdir():
        try:
            used += f"{link.readlink()}\n"
        except FileNotFoundError:
            continue
    return sum(f"{home}/" in used for home in homes)


def test_at_most_one_store_is_open(tmp_path: Path) -> None:
    homes = [make(tmp_path / f"{number:02}", 6) for number in range(12)]
    highest = 0
    for _ in mqstore.scan(homes, batch_size=2):
        highest = max(highest, open_stores(homes))
    assert highest == 1
    assert open_stores(homes) == 0
    # The first row needs only the first store, and the end of a read closes it.
    batches = iter(mqstore.scan([homes[0], *[tmp_path / "missing"] * 1000]))
    assert next(batches).num_rows
    del batches
    assert open_stores(homes) == 0


def test_libraries_read_several_stores(homes: list[Path]) -> None:
    polars, duckdb = pytest.importorskip("polars"), pytest.importorskip("duckdb")
    places: list[Any] = [homes[0], in_memory(homes[1], "libraries/many")]
    scan = mqstore.scan(places)
    assert polars.DataFrame(scan).height == 8
    assert scan.to_polars()["store"].cast(polars.String).to_list() == [
        str(place) for place, n in zip(places, (3, 5), strict=True) for _ in range(n)
    ]
    with duckdb.connect() as connection:
        relation = scan.to_duckdb(connection)
        for _ in range(2):
            counted = connection.sql("select store::varchar, count(*) from relation group by 1 order by 2").fetchall()
            assert counted == [(str(places[0]), 3), (places[1], 5)]
        assert relation.count("*").fetchall() == [(8,)]
    lazy = scan.to_polars_lazy()
    assert lazy.filter(polars.col("queue_offset") == 1).select("store", "body").collect().height == 2
    assert lazy.filter(polars.col("store") == str(homes[0])).select("body").collect().height == 3
    assert lazy.head(4).collect().height == 4
    # A limit counts the rows before the condition.
    limited = mqstore.scan(places, limit=4).to_polars_lazy()
    assert limited.filter(polars.col("queue_offset") == 1).collect().height == 1
    frame = scan.to_pandas()
    assert frame.groupby("store", observed=False).size().to_list() == [3, 5]
    # A file has one dictionary for all batches.
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, scan.schema) as file:
        for batch in mqstore.scan(places, batch_size=2):
            file.write_batch(batch)


def test_a_condition_on_the_store_opens_no_other_store(homes: list[Path], tmp_path: Path) -> None:
    polars = pytest.importorskip("polars")
    lazy = mqstore.scan([tmp_path / "missing", homes[0]]).to_polars_lazy()
    assert lazy.filter(polars.col("store") == str(homes[0])).collect().height == 3


def test_an_event_loop_reads_several_stores(homes: list[Path]) -> None:
    async def main() -> list[dict[str, Any]]:
        scan = mqstore.aio.scan(homes, columns=COLUMNS, on_error="skip", limit=9)
        found = [row async for batch in scan for row in batch.to_pylist()]
        assert scan.failures == []
        return found

    assert asyncio.run(main()) == union(homes, columns=COLUMNS)[:9]


def lines_of(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize("verb", [("info",), ("verify",), ("topics",), ("cat",), ("lookup", "orders", "k1")])
def test_the_command_line_takes_several_stores(homes: list[Path], cli: Cli, verb: tuple[str, ...]) -> None:
    name, *rest = verb
    single = [
        {"store": str(home), **one}
        for home in homes
        for one in lines_of(cli(name, home, *rest, "--format", "jsonl").stdout)
    ]
    many = cli(name, *homes, *rest, "--format", "jsonl")
    assert many.returncode == 0
    found = lines_of(many.stdout)
    for one in (*single, *found):
        one.pop("seconds", None)
    assert found == single
    assert {"store"} == {next(iter(one)) for one in found}
    table = cli(name, *homes, *rest, "--format", "table").stdout
    assert [line for line in table.splitlines() if line.startswith("==> ")] == [f"==> {home} <==" for home in homes]
    # A pattern that the shell did not expand.
    pattern = cli(name, f"{homes[0].parent}/*", *rest, "--format", "jsonl")
    assert list(dict.fromkeys(one["store"] for one in lines_of(pattern.stdout))) == [
        str(home) for home in sorted(homes)
    ]


@pytest.mark.slow
def test_the_command_line_continues_after_a_store_that_fails(homes: list[Path], tmp_path: Path, cli: Cli) -> None:
    missing = tmp_path / "missing"
    places = [homes[0], missing, damage(homes[1]), homes[2]]
    found = cli("verify", *places, "--format", "json")
    assert found.returncode == 3
    assert str(missing) in found.stderr
    assert [(one["store"], one["ok"]) for one in json.loads(found.stdout)] == [
        (str(homes[0]), True),
        (str(homes[1]), False),
        (str(homes[2]), True),
    ]
    assert cli("verify", homes[1], homes[2]).returncode == 1
    assert cli("info", missing, homes[0], "--format", "jsonl").returncode == 3
    assert cli("cat", homes[0], missing).returncode == 3


def test_the_limit_of_the_command_line_is_for_all_stores(homes: list[Path], cli: Cli) -> None:
    found = cli("cat", *homes, "--limit", 4, "--format", "jsonl")
    assert [one["store"] for one in lines_of(found.stdout)] == [str(homes[0])] * 3 + [str(homes[1])]
    assert len(lines_of(cli("lookup", *homes, "orders", "k1", "--limit", 2, "--format", "jsonl").stdout)) == 2
    refused = cli("cat", *homes, "--format", "json")
    assert refused.returncode == 2
    assert "jsonl" in refused.stderr
