"""`mqstore.sql`: the object, its errors, and its use as `filter=`. tests/interop compares the matches with RocketMQ."""

from __future__ import annotations

import copy
import json
import pickle
import threading
import time
import types
import warnings
from pathlib import Path
from typing import Any

import pytest

import mqstore
from conftest import SMALL, Cli

MESSAGES = 300


@pytest.fixture
def priced(tmp_path: Path) -> Path:
    """Messages with a price, every second one with a region, a tag and a key."""
    home = tmp_path / "priced"
    with mqstore.open(home, "create", options=SMALL) as store:
        for number in range(MESSAGES):
            properties = {"price": str(number), **({"region": "eu" if number % 4 else "us"} if number % 2 == 0 else {})}
            tags = "paid" if number % 3 == 0 else None
            store.append("t", b"%d" % number, keys=f"k{number % 5}", tags=tags, properties=properties)
    return home


CONDITIONS: list[tuple[str, Any]] = [
    ("price >= 290", lambda n: n >= 290),
    ("price BETWEEN 10 AND 12 OR price = 5", lambda n: n in (5, 10, 11, 12)),
    ("region = 'us' AND TAGS = 'paid'", lambda n: n % 12 == 0),
    ("region IS NULL AND KEYS IN ('k1', 'k2')", lambda n: n % 2 and n % 5 in (1, 2)),
    ("region NOT IN ('us')", lambda n: n % 4 == 2),
    ("UNIQ_KEY IS NOT NULL AND price CONTAINS '99'", lambda n: "99" in str(n)),
    ("region > 5", lambda _: False),
    ("price", lambda _: False),
    ("NOT price", lambda _: True),
]


@pytest.mark.parametrize(("expression", "wanted"), CONDITIONS, ids=[each[0] for each in CONDITIONS])
def test_every_way_to_read(priced: Path, tmp_path: Path, expression: str, wanted: Any) -> None:
    condition = mqstore.sql(expression)
    numbers = [number for number in range(MESSAGES) if wanted(number)]
    bodies = [b"%d" % number for number in numbers]
    with mqstore.open(priced) as store:
        everything = list(store.read("t"))
        assert [message.body for message in store.read("t", filter=condition)] == bodies
        assert [message.body for message in everything if condition.matches(message)] == bodies
        assert [message.body for message in everything if condition.matches(message.properties)] == bodies
        assert [message.body for message in store._scan_log(filter=condition)] == bodies
        pytest.importorskip("pyarrow")
        assert store.scan(filter=condition).to_arrow()["body"].to_pylist() == bodies
    for threads in (1, 4):
        scan = mqstore.scan(priced, topics="t", filter=condition, columns=["body"], threads=threads)
        assert scan.to_arrow()["body"].to_pylist() == bodies
    report = mqstore.export(priced, tmp_path / "out.jsonl", filter=condition)
    assert report.messages == len(numbers)


def test_the_object() -> None:
    condition = mqstore.sql("price > 5 AND region IN ('eu')")
    assert type(condition) is mqstore.SqlFilter
    assert condition.expression == "price > 5 AND region IN ('eu')"
    assert condition.properties == ("price", "region")
    assert condition.ignored is None
    assert repr(condition) == "mqstore.sql(\"price > 5 AND region IN ('eu')\")"
    same, other = mqstore.sql(condition.expression), mqstore.sql("price > 6")
    assert condition == same != other
    assert condition != condition.expression
    assert len({condition, same, other}) == 2
    assert pickle.loads(pickle.dumps(condition)) == copy.deepcopy(condition) == condition
    with pytest.raises(AttributeError):
        condition.expression = "x"  # type: ignore[misc]
    assert condition.explain().splitlines() == [
        "all of:",
        "  price > 5: price is read as a 32-bit integer (int), unknown if it is not set",
        "  region IN ('eu'): compared as text, unknown if region is not set",
        "reads: price, region",
    ]


def test_what_is_matched() -> None:
    condition = mqstore.sql("a = 5 AND TAGS = 'x' AND KEYS = 'k l'")
    message = mqstore.Message(b"", keys=["k", "l"], tags="x", properties={"a": "5"})
    assert condition.matches(message)
    assert not condition.matches(mqstore.Message(b"", properties={"a": "5"}))
    assert condition.matches({"a": "5", "TAGS": "x", "KEYS": "k l", "b": "ignored"})
    assert condition.matches(types.MappingProxyType({"a": "5", "TAGS": "x", "KEYS": "k l"}))
    assert condition.evaluate({"a": "5"}) is None
    assert condition.evaluate({"a": "6"}) is False
    assert not condition.matches({"a": "5.0"})
    with pytest.raises(ValueError, match=r'"5\.0" cannot be read as a 32-bit integer'):
        condition.evaluate({"a": "5.0"})
    for wrong in (5, "a", ["a"], None):
        with pytest.raises(TypeError, match="a mapping of str to str, a StoredMessage or a Message"):
            condition.matches(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="property a must be a str, not int"):
        condition.matches({"a": 5})  # type: ignore[dict-item]


def test_a_bad_expression() -> None:
    with pytest.raises(mqstore.InvalidFilterError) as caught:
        mqstore.sql("a >\n\u00fc 5")
    error = caught.value
    assert (error.expression, error.position) == ("a >\n\u00fc 5", 4)
    assert "line 2, column 1: expected a property, a value, NOT or (, found `\u00fc`" in str(error)
    assert isinstance(error, mqstore.MQStoreError)
    assert isinstance(error, ValueError)
    assert pickle.loads(pickle.dumps(error)) == error
    with pytest.raises(mqstore.InvalidFilterError, match="column 3004: expected") as caught:
        mqstore.sql("x" * 3000 + " > > 5")
    assert len(str(caught.value)) < 300
    with pytest.raises(mqstore.InvalidFilterError, match="the limit is 1048576"):
        mqstore.sql("a = '" + "x" * (1 << 20) + "'")
    with pytest.raises(mqstore.InvalidFilterError, match="256 levels"):
        mqstore.sql("NOT " * 100_000 + "a")
    with pytest.raises(TypeError, match="expression must be a str, not int"):
        mqstore.sql(5)  # type: ignore[arg-type]


def test_what_is_ignored_is_said() -> None:
    with pytest.warns(mqstore.StoreWarning, match="before column 6: \"LIKE 'x%'\" is not part of it") as caught:
        condition = mqstore.sql("name LIKE 'x%'")
    assert caught[0].filename == __file__
    assert condition.ignored == "LIKE 'x%'"
    assert "after the first 5 characters" in condition.explain()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert pickle.loads(pickle.dumps(condition)).ignored == condition.ignored
        mqstore.sql("name = 'x' -- a comment with an end\n")


def test_other_types_are_refused(priced: Path, tmp_path: Path) -> None:
    wanted = r'filter must be a str of tags as "a \|\| b", or mqstore.sql\("price > 5"\), not '
    for wrong, kind in ((5, "int"), (b"paid", "bytes"), (["paid"], "list")):
        bad: Any = wrong
        with mqstore.open(priced) as store:
            with pytest.raises(TypeError, match=wanted + kind):
                store.read("t", filter=bad)
            with pytest.raises(TypeError, match=wanted + kind):
                store.scan(filter=bad)
        with pytest.raises(TypeError, match=wanted + kind):
            mqstore.scan(priced, filter=bad)
        with pytest.raises(TypeError, match=wanted + kind):
            mqstore.export(priced, tmp_path / "o.jsonl", filter=bad)
    with mqstore.open(priced) as store, pytest.raises(mqstore.InvalidFilterError, match="no tag is named"):
        store.read("t", filter=" || ")


def test_follow(tmp_path: Path) -> None:
    with mqstore.open(tmp_path / "s", "create", options=SMALL) as store:
        store.append("t", b"0", properties={"n": "0"})
        found = store.read("t", follow=True, timeout=10, filter=mqstore.sql("n > 1"))

        def later() -> None:
            for number in range(1, 4):
                time.sleep(0.02)
                store.append("t", b"%d" % number, properties={"n": str(number)})

        thread = threading.Thread(target=later)
        thread.start()
        assert [next(found).body for _ in range(2)] == [b"2", b"3"]
        thread.join()


def test_inner_batches_are_one_message(tmp_path: Path) -> None:
    with mqstore.open(tmp_path / "s", "create", options=SMALL) as store:
        store.create_topic("b", attributes={"queue.type": "BatchCQ"})
        store.append_many("b", [mqstore.Message(b"x", properties={"n": "1"}) for _ in range(3)])
        assert len(list(store.read("b", filter=mqstore.sql("INNER_NUM = 3")))) == 1
        assert list(store.read("b", filter=mqstore.sql("INNER_NUM = 4"))) == []


def test_of_a_compacted_topic(tmp_path: Path) -> None:
    with mqstore.open(tmp_path / "s", "create", options=SMALL) as store:
        store.create_topic("c", attributes={"cleanup.policy": "COMPACTION"})
        for number in range(400):
            store.append("c", b"%d" % number, keys=f"k{number % 50}", properties={"n": str(number)})
        store.flush()
        store.compact()
        condition = mqstore.sql("n >= 390")
        assert [message.body for message in store.read("c", filter=condition)] == [b"%d" % n for n in range(390, 400)]


def test_resumed_exports_tell_filters_apart(priced: Path, tmp_path: Path) -> None:
    class StopError(Exception):
        pass

    def stop(_progress: mqstore.Progress) -> None:
        raise StopError

    out = tmp_path / "out.jsonl"
    with pytest.raises(StopError):
        mqstore.export(priced, out, filter=mqstore.sql("price >= 100"), progress=stop)
    report = mqstore.export(priced, out, filter=mqstore.sql("price >= 200"))
    assert (report.messages, len(out.read_text().splitlines())) == (100, 1 + 100)


@pytest.mark.slow
def test_on_the_command_line(priced: Path, tmp_path: Path, cli: Cli) -> None:
    def offsets(*arguments: object) -> list[int]:
        done = cli(*arguments)
        assert done.returncode == 0, done.stderr
        return [json.loads(line)["queue_offset"] for line in done.stdout.splitlines()]

    assert offsets("cat", priced, "--sql", "price > 296") == [297, 298, 299]
    assert offsets("cat", priced, "--log", "--topic", "t", "--sql", "price > 296") == [297, 298, 299]
    assert offsets("tail", priced, "t", "--sql", "price < 3", "-n", "2") == [1, 2]
    out = tmp_path / "o.jsonl"
    assert cli("export", priced, out, "--sql", "TAGS = 'paid' AND price < 9").returncode == 0
    assert len(out.read_text().splitlines()) == 1 + 3
    for verb in (("cat", priced), ("tail", priced, "t"), ("export", priced, tmp_path / "p.jsonl")):
        both = cli(*verb, "--sql", "price > 1", "--filter", "paid")
        assert both.returncode == 2
        assert "give only one" in both.stderr
        bad = cli(*verb, "--sql", "price > > 1")
        assert bad.returncode == 2
        assert "column 9" in " ".join(bad.stderr.split())
    said = cli("cat", priced, "--sql", "price LIKE 'x'")
    assert (said.returncode, said.stdout) == (1, "")
    assert "is not part of it" in said.stderr


def test_the_spark_option() -> None:
    options = pytest.importorskip("mqstore.spark._options")
    assert options.read_options({"path": "/x", "sql": "price > 5"})["filter"] == mqstore.sql("price > 5")
    assert options.read_options({"path": "/x", "SQL": "a"})["filter"] == mqstore.sql("a")
    with pytest.raises(mqstore.InvalidOptionError, match="option sql: cannot be combined with tags"):
        options.read_options({"path": "/x", "sql": "a = 1", "tags": "b"})
    with pytest.raises(mqstore.InvalidOptionError, match="option sql: filter 'a >', column 4: expected"):
        options.read_options({"path": "/x", "sql": "a >"})
    with pytest.raises(mqstore.InvalidOptionError, match="did you mean sql"):
        options.read_options({"path": "/x", "sqll": "a"})
