"""append_batch and append_arrow: many messages from columns."""

from __future__ import annotations

import array
import asyncio
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

import mqstore
import mqstore.aio
from conftest import SMALL


def parts(store: mqstore.Store, topic: str = "t") -> list[tuple[Any, ...]]:
    """Body, keys, tag and properties of the sender of each message."""
    return [
        (one.body, one.keys, one.tags, {name: text for name, text in one.properties.items() if name in ("a", "n")})
        for one in store.read(topic)
    ]


def test_columns_become_messages(store: mqstore.Store) -> None:
    store.create_topic("t", queues=2)
    bodies = [b"a", bytearray(b"b"), memoryview(b"c"), array.array("b", [100])]
    keys = ["k", ["l", "m"], None, ()]
    tags = ["x", None, "y", None]
    properties = [{"a": "1"}, None, {}, {"UNIQ_KEY": "own"}]
    results = store.append_batch("t", bodies, keys, tags, properties, queue_id=1)
    assert [(one.queue_id, one.queue_offset) for one in results] == [(1, n) for n in range(4)]
    assert results[3].unique_id == "own"
    assert parts(store) == [
        (b"a", ("k",), "x", {"a": "1"}),
        (b"b", ("l", "m"), None, {}),
        (b"c", (), "y", {}),
        (b"d", (), None, {}),
    ]
    assert len({one.unique_id for one in results}) == 4
    assert store.append_batch("t", []) == []


def test_batch_is_like_append_many(store: mqstore.Store) -> None:
    """The same messages, also with one tag and one mapping for all."""
    bodies, keys = [b"%d" % n for n in range(50)], [f"k{n}" for n in range(50)]
    one = {"tags": "x", "properties": {"a": "b"}}
    store.append_many("many", [mqstore.Message(body, keys=key, **one) for body, key in zip(bodies, keys, strict=True)])
    results = store.append_batch("batch", iter(bodies), iter(keys), **one, durable=True)
    assert parts(store, "batch") == parts(store, "many")
    assert all(result.durable for result in results)
    assert [message.body for message in store.lookup("batch", "k7")] == [b"7"]


@pytest.mark.parametrize(
    ("columns", "error", "match"),
    [
        ({"keys": ["k"]}, mqstore.InvalidMessageError, "keys has 1 entries for 2 bodies"),
        ({"keys": ["k"] * 3}, mqstore.InvalidMessageError, "keys has more entries than the 2 bodies"),
        ({"tags": ["k"]}, mqstore.InvalidMessageError, "tags has 1 entries"),
        ({"properties": [{}] * 3}, mqstore.InvalidMessageError, "properties has more entries"),
        ({"keys": ["fine", "a b"]}, mqstore.InvalidMessageError, "message 1: key"),
        ({"tags": ["fine", "a||b"]}, mqstore.InvalidMessageError, "message 1: tag"),
        ({"properties": [None, {"KEYS": "x"}]}, mqstore.InvalidMessageError, "message 1: property"),
        # The characters of a text are no keys.
        ({"keys": "ab"}, TypeError, "one entry for each body"),
        ({"keys": [5, 5]}, TypeError, "keys"),
        ({"keys": 5}, TypeError, "one entry for each body"),
        ({"tags": 5}, TypeError, "one entry for each body"),
        ({"tags": [b"x", b"x"]}, TypeError, "tags"),
        ({"properties": [5, 5]}, TypeError, "mapping"),
    ],
    ids=repr,
)
def test_bad_columns_append_nothing(
    store: mqstore.Store, columns: dict[str, Any], error: type[Exception], match: str
) -> None:
    with pytest.raises(error, match=match):
        store.append_batch("t", [b"x", b"y"], **columns)
    assert store.topics() == []


@pytest.mark.parametrize("bodies", [b"ab", "ab", bytearray(b"ab"), memoryview(b"ab"), 5, [b"good", "text"], [None]])
def test_bad_bodies(store: mqstore.Store, bodies: Any) -> None:
    with pytest.raises(TypeError):
        store.append_batch("t", bodies)
    assert store.topics() == []


def test_batch_in_a_loop(home: Path) -> None:
    async def run() -> None:
        async with mqstore.aio.open(home, "create", options=SMALL) as store:
            first = await store.append_batch("t", [b"a", b"b"], ["k", None], "x")
            second = await store.append_batch("t", [b"c"], [["l"]], durable=True)
            assert [one.queue_offset for one in first + second] == [0, 1, 2]
            assert await store.append_arrow("u", pyarrow().table({"body": [b"1", b"2"]})) == 2
            assert await store.count("u") == 2

    asyncio.run(run())
    with mqstore.open(home) as store:
        assert parts(store) == [(b"a", ("k",), "x", {}), (b"b", (), "x", {}), (b"c", ("l",), None, {})]


# append_arrow


def pyarrow() -> Any:
    return pytest.importorskip("pyarrow")


def test_arrow_columns(store: mqstore.Store) -> None:
    pa = pyarrow()
    born = datetime(2024, 5, 6, tzinfo=UTC)
    table = pa.table(
        {
            "body": pa.array([b"a", b"b", b"c"]),
            "keys": pa.array([["k", "l"], None, []], pa.list_(pa.string())),
            "tags": ["x", None, ""],
            "properties": pa.array([[("a", "1"), ("n", None), ("KEYS", "no")], None, [("UNIQ_KEY", "own")]],
                                   pa.map_(pa.string(), pa.string())),
            "queue_id": pa.array([1, None, 0], pa.int16()),
            "flag": pa.array([-7, None, 8], pa.int64()),
            "born_timestamp": pa.array([born, None, born], pa.timestamp("ns", "Europe/Berlin")),
            # A new message gets a new position.
            "queue_offset": [70, 80, 90],
        }
    )  # fmt: skip
    store.create_topic("t", queues=3)
    assert store.append_arrow("t", table, queue_id=2) == 3
    found = {one.queue_id: one for one in store.read("t")}
    assert {queue: (one.body, one.keys, one.tags, one.flag) for queue, one in found.items()} == {
        1: (b"a", ("k", "l"), "x", -7),
        2: (b"b", (), None, 0),
        0: (b"c", (), None, 8),
    }
    assert "n" not in found[1].properties
    assert (found[1].properties["a"], found[1].properties["KEYS"]) == ("1", "k l")
    assert found[0].unique_id == "own"
    assert found[1].born_time == born
    assert len(found[2].unique_id or "") == 32


@pytest.mark.parametrize("kind", ["string", "large_string", "string_view", "binary", "large_binary", "binary_view"])
def test_arrow_types_of_bytes(store: mqstore.Store, kind: str) -> None:
    pa = pyarrow()
    body = (
        pa.array(["first", None, "one that is longer than twelve"], pa.string()).drop_null().cast(getattr(pa, kind)())
    )
    text = pa.array(["k", "k2"]).dictionary_encode()
    # A part of a table has an offset in its buffers.
    table = pa.table({"value": body, "key": text, "tags": text}).slice(1)
    assert store.append_arrow("t", table) == 1
    assert parts(store) == [(b"one that is longer than twelve", ("k2",), "k2", {})]


def test_arrow_part_of_a_table(store: mqstore.Store) -> None:
    """A slice has an offset in all its buffers, also in those of lists and maps."""
    pa = pyarrow()
    table = pa.table(
        {
            "body": [b"%d" % n for n in range(100)],
            "keys": [[f"k{n}"] * (n % 3) for n in range(100)],
            "properties": pa.array([[("n", str(n))] * (n % 2) for n in range(100)], pa.map_(pa.string(), pa.string())),
            "flag": list(range(100)),
        }
    )
    assert store.append_arrow("t", table.slice(31, 40)) == 40
    found = parts(store)
    assert found == [(b"%d" % n, (f"k{n}",) * (n % 3), None, {"n": str(n)} if n % 2 else {}) for n in range(31, 71)]
    assert [one.flag for one in store.read("t")] == list(range(31, 71))


def test_arrow_tables_of_other_libraries(store: mqstore.Store) -> None:
    polars, duckdb = pytest.importorskip("polars"), pytest.importorskip("duckdb")
    frame = polars.DataFrame({"body": ["a", "b"], "keys": [["k"], []], "tags": ["x", None]})
    pairs = polars.Series("properties", [[{"key": "a", "value": "1"}], []])
    assert store.append_arrow("p", frame.with_columns(pairs)) == 2
    assert parts(store, "p") == [(b"a", ("k",), "x", {"a": "1"}), (b"b", (), None, {})]
    query = (
        "SELECT encode(i::varchar) AS body, ['k' || i] AS keys, MAP {'n': i::varchar} AS properties FROM range(3) r(i)"
    )
    assert store.append_arrow("d", duckdb.sql(query)) == 3
    assert parts(store, "d") == [(b"%d" % n, (f"k{n}",), None, {"n": str(n)}) for n in range(3)]


def test_arrow_stream_from_a_scan(store: mqstore.Store, tmp_path: Path) -> None:
    """Every message of a store, with its topic and unique id, many batches."""
    for topic in ("t", "u"):
        store.append_batch(topic, [b"%d" % n for n in range(3000)], [f"k{n}" for n in range(3000)], "x")
    with mqstore.open(tmp_path / "copy", "create", options=SMALL) as copy:
        assert copy.append_arrow(None, store.scan(), durable=True) == 6000
        for topic in ("t", "u"):
            same = [
                [(one.body, one.keys, one.tags, one.unique_id) for one in each.read(topic)] for each in (store, copy)
            ]
            assert same[0] == same[1]
        # A topic of the call replaces those of the rows.
        assert copy.append_arrow("all", store.scan(topics=["t"])) == 3000
        assert copy.count("all") == 3000
        assert copy.verify().ok


@pytest.mark.parametrize(
    ("columns", "match"),
    [
        ({"tags": ["x"]}, "no column body"),
        ({"body": [b"x"], "value": [b"x"]}, "one column value only"),
        ({"body": [b"x"], "key": ["x"], "keys": ["x"]}, "one column keys only"),
        ({"body": [b"x"], "bodi": [b"x"]}, 'no column "bodi"; a message has body'),
        ({"body": [1]}, "column body must be binary or string, not Int64"),
        ({"body": [b"x"], "tags": [b"x"]}, "column tags must be string"),
        ({"body": [b"x"], "flag": ["x"]}, "column flag must be an integer"),
        ({"body": [b"x"], "born_timestamp": [datetime(2024, 1, 1)]}, "with a time zone"),  # noqa: DTZ001
        ({"body": [b"x", None]}, "row 1, column body: it is null"),
        ({"body": [b"x", b"x"], "keys": [["k"], ["a b"]]}, "row 1, column keys: .*space"),
        ({"body": [b"x"], "keys": [["k", None]]}, "row 0, column keys: a key is null"),
        ({"body": [b"x"], "key": [b"\xff"]}, "row 0, column keys: it is not UTF-8"),
        ({"body": [b"x"], "tags": ["a||b"]}, "row 0, column tags"),
        ({"body": [b"x"], "flag": [1 << 31]}, "row 0, column flag: 2147483648 does not fit 32 bits"),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_arrow_rows_that_are_no_messages(store: mqstore.Store, columns: dict[str, Any], match: str) -> None:
    with pytest.raises(mqstore.InvalidMessageError, match=match):
        store.append_arrow("t", pyarrow().table(columns))
    assert store.topics() == []


def test_arrow_topics(store: mqstore.Store) -> None:
    table = pyarrow().table({"body": [b"1", b"2"], "topic": ["t", None]})
    with pytest.raises(mqstore.InvalidMessageError, match="row 1, column topic: it is null"):
        store.append_arrow(None, table)
    with pytest.raises(mqstore.InvalidMessageError, match="row 0, column topic"):
        store.append_arrow("a/b", table)
    with pytest.raises(mqstore.InvalidMessageError, match=r"row 0, column topic: .* internal"):
        store.append_arrow("rmq_sys_wheel_timer", table)
    assert store.topics() == []
    for wrong in ([b"x"], {"body": [b"x"]}, b"x", None):
        with pytest.raises(TypeError, match="table_or_stream must be rows in Arrow"):
            store.append_arrow("t", wrong)  # type: ignore[arg-type]


def refused_batches(pa: Any, rows: list[dict[str, Any]]) -> Any:
    """A table of two record batches: one that is good, and one of 1,200 good rows and then these."""
    names = ["body", "topic", "queue_id", "properties"]
    kinds = [pa.binary(), pa.string(), pa.int32(), pa.map_(pa.string(), pa.string())]
    schema = pa.schema(list(zip(names, kinds, strict=True)))
    good = {"body": b"x", "topic": "t", "queue_id": 0, "properties": None}
    parts = [[good] * 10, [good] * 1200 + [good | row for row in rows]]
    return pa.Table.from_batches([pa.RecordBatch.from_pylist(part, schema) for part in parts])


@pytest.mark.parametrize(
    ("rows", "column"),
    [
        ([{"body": bytes(5000)}], "body"),
        ([{"body": bytes(5000), "topic": "new"}], "body"),
        ([{"properties": [("a", "x" * 40_000)]}], "properties"),
        ([{"queue_id": -1}], "queue_id"),
        # The messages of a group for batch queues become one record.
        ([{"topic": "batch"}], "queue_id"),
    ],
    ids=repr,
)
def test_a_record_batch_is_checked_before_a_row_is_appended(
    home: Path, rows: list[dict[str, Any]], column: str
) -> None:
    with mqstore.open(home, "create", options=SMALL, max_message_size=4096) as store:
        store.create_topic("t", queues=1)
        store.create_topic("batch", queues=1, attributes={"queue.type": "BatchCQ"})
        table = refused_batches(pyarrow(), rows)
        with pytest.raises(mqstore.InvalidMessageError, match=rf"row 1210, column {column}: .*; the 10 rows before"):
            store.append_arrow(None, table)
        assert store.count("t") == 10
        assert store.topics() == ["batch", "t"]


@pytest.mark.parametrize(
    ("rows", "column", "error"),
    [
        ([{"queue_id": 1}], "queue_id", mqstore.TopicNotFoundError),
        # The first row of a new topic decides how many queues it gets.
        ([{"topic": "new", "queue_id": 2}, {"topic": "new", "queue_id": 3}], "queue_id", mqstore.TopicNotFoundError),
        ([{"topic": "closed"}], "topic", mqstore.RefusedError),
    ],
    ids=repr,
)
def test_a_note_names_the_row_for_an_unknown_queue(
    store: mqstore.Store, rows: list[dict[str, Any]], column: str, error: type[Exception]
) -> None:
    store.create_topic("t", queues=1)
    store.create_topic("closed", queues=1)
    store.update_topic("closed", perm=4)
    with pytest.raises(error) as caught:
        store.append_arrow(None, refused_batches(pyarrow(), rows))
    row = 1210 + len(rows) - 1
    assert caught.value.__notes__ == [f"row {row}, column {column}; the 10 rows before its record batch are appended"]
    assert store.count("t") == 10
    assert store.topics() == ["closed", "t"]


def test_a_record_batch_is_checked_without_new_topics(home: Path) -> None:
    table = refused_batches(pyarrow(), [{"topic": "new"}])
    with mqstore.open(home, "create", options=SMALL, auto_create_topics=False) as store:
        store.create_topic("t", queues=1)
        with pytest.raises(mqstore.TopicNotFoundError, match="no topic new") as caught:
            store.append_arrow(None, table)
        assert "row 1210, column topic" in caught.value.__notes__[0]
        assert store.count("t") == 10


def test_rows_are_checked_in_their_stored_form(home: Path) -> None:
    """A record that does not fit in a segment can fit with a compressed body."""
    table = pyarrow().table({"body": [b"x", bytes(70_000)]})
    with mqstore.open(home, "create", options=SMALL) as store:
        with pytest.raises(mqstore.InvalidMessageError, match="row 1, column body: the record is 70"):
            store.append_arrow("t", table)
        assert store.topics() == []
        assert store.append_arrow("t", table, compression="zstd") == 2


def test_a_record_batch_in_a_loop(home: Path) -> None:
    async def run() -> None:
        async with mqstore.aio.open(home, "create", options=SMALL, max_message_size=4096) as store:
            with pytest.raises(mqstore.InvalidMessageError, match="row 1210, column body"):
                await store.append_arrow(None, refused_batches(pyarrow(), [{"body": bytes(5000)}]))
            assert await store.count("t") == 10

    asyncio.run(run())


@pytest.mark.parametrize("verb", ["append_many", "append_batch"])
def test_a_body_that_is_too_large_appends_no_other_message(home: Path, verb: str) -> None:
    with mqstore.open(home, "create", options=SMALL, max_message_size=4096) as store:
        with pytest.raises(mqstore.MessageTooLargeError, match="the body is 5000 bytes"):
            getattr(store, verb)("t", [b"x"] * 2000 + [bytes(5000)])
        with pytest.raises(mqstore.TopicNotFoundError):
            getattr(store, verb)("t", [b"x"] * 2000, queue_id=1)
        assert store.stats().log_max_offset == 0


def test_arrow_error_after_some_batches(store: mqstore.Store) -> None:
    """The batches before the bad one are appended, and the error counts them."""
    pa = pyarrow()
    schema = pa.schema({"body": pa.binary()})
    good = pa.record_batch({"body": pa.array([b"x"] * 1500)})
    with pytest.raises(mqstore.InvalidMessageError, match=r"row 1500, column body: .* the 1500 rows before"):
        store.append_arrow("t", pa.table({"body": pa.chunked_array([[b"x"] * 1500, [None]])}))
    assert store.count("t") == 1500

    def rows() -> Any:
        yield good
        raise RuntimeError("the source broke")

    with pytest.raises(mqstore.MQStoreError, match=r"after 1500 rows: .*the source broke"):
        store.append_arrow("t", pa.RecordBatchReader.from_batches(schema, rows()))
    assert store.count("t") == 3000
    with pytest.raises(mqstore.InvalidMessageError, match="queue id -1"):
        store.append_arrow("t", pa.table({"body": [b"x"], "queue_id": [-1]}))
    assert store.append_arrow("u", schema.empty_table()) == 0
    assert store.topics() == ["t"]
    # A stream can be read once.
    reader = pa.RecordBatchReader.from_batches(schema, [good])
    assert store.append_arrow("t", reader) == 1500
