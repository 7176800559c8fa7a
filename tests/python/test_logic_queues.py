"""Static topics: logic queues over the directories of several brokers."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import mqstore
import mqstore.aio
from conftest import tree_hash
from loops import in_loop

if TYPE_CHECKING:
    from conftest import Cli

GEOMETRY = mqstore.StoreOptions(segment_size=16 << 10, queue_file_entries=64, index_slots=97, index_entries=4000)


def fastjson(value: Any) -> str:
    """Returns the text that a broker writes: numbers as keys have no quotes."""
    if isinstance(value, dict):
        members = (
            f"{key if isinstance(key, int) else json.dumps(key)}:{fastjson(item)}" for key, item in value.items()
        )
        return "{" + ",".join(members) + "}"
    if isinstance(value, list):
        return "[" + ",".join(map(fastjson, value)) + "]"
    return json.dumps(value)


def item(gen: int, bname: str, queue_id: int, logic: int, start: int = 0, end: int = -1) -> dict[str, Any]:
    return {
        "bname": bname, "endOffset": end, "gen": gen, "logicOffset": logic, "queueId": queue_id, "startOffset": start,
        "timeOfEnd": -1, "timeOfStart": -1,
    }  # fmt: skip


def broker(
    home: Path, name: str, queues: dict[int, int], hosted: dict[int, list[dict[str, Any]]], epoch: int = 1
) -> Path:
    """Makes the directory of a broker: the number of messages of each physical queue, and its chains."""
    path = home / name
    with mqstore.open(path, "create", options=GEOMETRY) as store:
        store.create_topic("orders", queues=max(queues, default=0) + 1)
        for queue_id, count in queues.items():
            for number in range(count):
                store.append("orders", f"{name}/{queue_id}/{number}".encode(), queue_id=queue_id)
    write_mapping(path, name, hosted)
    return path


def write_mapping(path: Path, name: str, hosted: dict[int, list[dict[str, Any]]], epoch: int = 1) -> None:
    detail = {
        "bname": name, "currIdMap": {}, "dirty": False, "epoch": epoch, "hostedQueues": hosted, "scope": "__global__",
        "topic": "orders", "totalQueues": 8,
    }  # fmt: skip
    version = {"counter": 3, "stateVersion": 0, "timestamp": 1758000000000}
    content = {"dataVersion": version, "topicQueueMappingInfoMap": {"orders": detail}}
    (path / "config").mkdir(exist_ok=True)
    (path / "config/topicQueueMapping.json").write_text(fastjson(content))


@pytest.fixture
def moved(tmp_path: Path) -> list[Path]:
    """Queue 0 moved from broker a to b; queue 1 stays on a."""
    chain = [item(0, "a", 0, 0), item(1, "b", 2, 10_000)]
    first = broker(tmp_path, "a", {0: 30, 1: 7}, {0: chain, 1: [item(0, "a", 1, 0)]})
    return [first, broker(tmp_path, "b", {2: 12}, {0: chain})]


def bodies(logic: mqstore.LogicQueues, *args: Any, **options: Any) -> list[tuple[int, str]]:
    return [(offset, message.text()) for offset, message in logic.read("orders", *args, **options)]


def test_a_queue_continues_on_another_broker(moved: list[Path]) -> None:
    before = [tree_hash(path) for path in moved]
    with mqstore.open_logic_queues(moved) as logic:
        assert logic.topics() == ["orders"]
        assert logic.problems == ()
        first = [(number, f"a/0/{number}") for number in range(30)]
        second = [(10_000 + number, f"b/2/{number}") for number in range(12)]
        assert bodies(logic, 0) == first + second
        assert bodies(logic, 0, 25, 10_003) == first[25:] + second[:3]
        # In the gap, a read begins with the next part.
        assert bodies(logic, 0, 30, 10_001) == second[:1]
        assert bodies(logic, 0, 10_007) == second[7:]
        assert bodies(logic, 1) == [(number, f"a/1/{number}") for number in range(7)]
        moved_queue, fixed = logic.queues("orders")
        assert (moved_queue.min_offset, moved_queue.max_offset, moved_queue.undecided_messages) == (0, 10_012, 0)
        assert [(part.broker, part.queue_id, part.logic_offset, part.is_here) for part in moved_queue.parts] == [
            ("a", 0, 0, True),
            ("b", 2, 10_000, True),
        ]
        assert (fixed.min_offset, fixed.max_offset) == (0, 7)
        with pytest.raises(mqstore.TopicNotFoundError):
            logic.read("orders", 5)
        with pytest.raises(mqstore.TopicNotFoundError):
            logic.queues("unknown")
    assert [tree_hash(path) for path in moved] == before


def test_a_missing_directory_is_named(moved: list[Path]) -> None:
    with mqstore.open_logic_queues(moved[1:]) as logic:
        (queue,) = logic.queues("orders")
        assert [part.is_here for part in queue.parts] == [False, True]
        with pytest.raises(mqstore.MQStoreError, match=r"the offsets from 0 to 10000 are on broker 'a'"):
            list(logic.read("orders", 0))
        assert len(bodies(logic, 0, on_missing="skip")) == 12
        assert len(bodies(logic, 0, 10_000)) == 12


def test_an_interrupted_remapping(tmp_path: Path) -> None:
    chain = [item(0, "a", 0, 0), item(1, "b", 0, -1)]
    paths = [broker(tmp_path, "a", {0: 5}, {0: chain}), broker(tmp_path, "b", {0: 3}, {0: chain})]
    with mqstore.open_logic_queues(paths) as logic:
        assert len(bodies(logic, 0)) == 5
        (queue,) = logic.queues("orders")
        assert (queue.max_offset, queue.undecided_messages, queue.parts[-1].logic_offset) == (5, 3, None)
        assert len(logic.problems) == 1
        assert "interrupted" in logic.problems[0]
    # The new leader has the decided chain; the old one keeps the undecided one.
    write_mapping(paths[1], "b", {0: [item(0, "a", 0, 0), item(1, "b", 0, 10_000)]})
    with mqstore.open_logic_queues(paths) as logic:
        assert [offset for offset, _ in bodies(logic, 0)] == [0, 1, 2, 3, 4, 10_000, 10_001, 10_002]
        assert logic.problems == ()


def test_closed_parts_and_starts(tmp_path: Path) -> None:
    chain = [item(0, "a", 0, 100, start=4, end=9), item(3, "a", 1, 200)]
    path = broker(tmp_path, "a", {0: 20, 1: 2}, {0: chain})
    with mqstore.open_logic_queues([path]) as logic:
        wanted = [(100 + number, f"a/0/{4 + number}") for number in range(5)] + [(200, "a/1/0"), (201, "a/1/1")]
        assert bodies(logic, 0) == wanted
        assert bodies(logic, 0, 3) == wanted


def test_a_copy_from_another_broker_is_ignored(moved: list[Path], tmp_path: Path) -> None:
    other = broker(tmp_path, "c", {0: 4}, {0: [item(5, "a", 0, 0)]})
    write_mapping(other, "a", {0: [item(5, "c", 0, 77)]})
    names = {"a": moved[0], "b": moved[1], "c": other}
    with pytest.warns(mqstore.StoreWarning, match="a copy from broker a; it is ignored"):
        logic = mqstore.open_logic_queues(names)
    with logic:
        assert len(bodies(logic, 0)) == 42
    with pytest.raises(ValueError, match="another directory is of broker 'a' too"):
        mqstore.open_logic_queues([moved[0], other])


def test_a_directory_without_a_mapping_needs_a_name(moved: list[Path], tmp_path: Path) -> None:
    (moved[0] / "config/topicQueueMapping.json").unlink()
    with pytest.raises(ValueError, match="names no broker; give a mapping"):
        mqstore.open_logic_queues(moved)
    with mqstore.open_logic_queues({"a": moved[0], "b": moved[1]}) as logic:
        assert len(bodies(logic, 0)) == 42
    with pytest.raises(TypeError, match="several directories"):
        mqstore.open_logic_queues(str(moved[0]))  # type: ignore[arg-type]


def commit(path: Path, queue: int, offset: int) -> None:
    text = f'{{"offsetTable":{{"orders@billing":{{{queue}:{offset}}}}}}}'
    (path / "config/consumerOffset.json").write_text(text)


def test_offsets_of_groups(moved: list[Path]) -> None:
    with mqstore.open_logic_queues(moved) as logic:
        assert logic.groups() == []
    commit(moved[0], 0, 28)
    with mqstore.open_logic_queues(moved) as logic:
        assert logic.groups() == ["billing"]
        assert logic.group_offsets("billing", "orders") == {0: 28}
        # The gap between the parts does not count.
        assert logic.lag("billing", "orders") == {0: 2 + 12}
    commit(moved[1], 2, 5)
    with mqstore.open_logic_queues(moved) as logic:
        assert logic.group_offsets("billing", "orders") == {0: 10_005}
        assert logic.lag("billing", "orders") == {0: 7}
        assert logic.group_offsets("other", "orders") == {}
        with pytest.raises(mqstore.TopicNotFoundError):
            logic.lag("billing", "unknown")


def test_columns_have_the_logic_offsets(moved: list[Path]) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    with mqstore.open_logic_queues(moved) as logic:
        table = logic.scan("orders").to_arrow()
        assert table.schema.names[:2] == ["logic_queue_id", "logic_offset"]
        rows = [(row["logic_queue_id"], row["logic_offset"], row["body"].decode()) for row in table.to_pylist()]
        assert rows == [(number, *row) for number in (0, 1) for row in bodies(logic, number)]
        part = logic.scan("orders", 0, 29, 10_001, columns=["body", "logic_offset"]).to_arrow()
        assert part.schema.names == ["logic_queue_id", "body", "logic_offset"]
        assert part.column("logic_offset").to_pylist() == [29, 10_000]
        only = logic.scan("orders", columns=["logic_offset", "logic_queue_id"], limit=3).to_arrow()
        assert only.to_pylist() == [{"logic_offset": number, "logic_queue_id": 0} for number in range(3)]
        assert logic.scan("orders", 1, 7).to_arrow().num_rows == 0
        assert logic.scan("orders", keys="none").to_arrow().num_rows == 0
        with pytest.raises(mqstore.InvalidOptionError, match="nothing"):
            logic.scan("orders", columns=["nothing"])
        with pytest.raises(mqstore.TopicNotFoundError):
            logic.scan("orders", 5)
    with mqstore.open_logic_queues(moved[1:]) as logic:
        assert logic.scan("orders", on_missing="skip").to_arrow().num_rows == 12
        with pytest.raises(mqstore.MQStoreError, match="are on broker 'a'"):
            logic.scan("orders").to_arrow()


def test_a_lazy_frame_of_logic_queues(moved: list[Path]) -> None:
    polars = pytest.importorskip("polars", reason="polars is not installed")
    with mqstore.open_logic_queues(moved) as logic:
        frame = logic.scan("orders").to_polars_lazy()
        found = frame.filter(polars.col("queue_id") == 2).select("logic_offset", "body").collect()
        assert found["logic_offset"].to_list() == list(range(10_000, 10_012))
        assert frame.filter(polars.col("topic") == "other").collect().height == 0
        assert frame.filter(polars.col("logic_offset") < 3).select("logic_queue_id").collect().height == 6


@in_loop
async def test_logic_queues_in_asyncio(moved: list[Path]) -> None:
    with mqstore.open_logic_queues(moved) as own:
        wanted = bodies(own, 0)
    async with mqstore.aio.open_logic_queues(moved) as logic:
        assert await logic.topics() == ["orders"]
        assert [queue.messages for queue in await logic.queues("orders")] == [42, 7]
        assert [(offset, message.text()) async for offset, message in logic.read("orders", 0)] == wanted
        found = logic.read("orders", 0)
        # Tasks share the messages, and a cancelled task takes none.
        waiting = asyncio.create_task(anext(found))
        await asyncio.sleep(0)
        waiting.cancel()
        tasks = [asyncio.create_task(anext(found)) for _ in range(42)]
        got = [(offset, message.text()) for offset, message in await asyncio.gather(*tasks)]
        assert sorted(got) == wanted
        with pytest.raises(StopAsyncIteration):
            await anext(found)
        assert await logic.groups() == []
        assert await logic.lag("billing", "orders") == await logic.group_offsets("billing", "orders") == {}
        assert (await logic.scan("orders", 1).to_arrow()).num_rows == 7
        assert logic.problems == ()
        with pytest.raises(mqstore.TopicNotFoundError):
            logic.read("orders", 5)
    with pytest.raises(mqstore.StoreClosedError):
        await anext(logic.read("orders", 0))
    with pytest.raises(ValueError, match="another directory is of broker"):
        await mqstore.aio.open_logic_queues([moved[0], moved[0]])
    async with mqstore.aio.open_logic_queues(moved[1:]) as logic:
        with pytest.raises(mqstore.MQStoreError, match="are on broker 'a'"):
            await anext(logic.read("orders", 0))


def test_the_command_line(moved: list[Path], tmp_path: Path, cli: Cli) -> None:
    listed = cli("logic-queue", "list", *moved, "--format", "json")
    assert listed.returncode == 0, listed.stderr
    (topic,) = json.loads(listed.stdout)["topics"]
    assert [(queue["queue_id"], queue["max_offset"], queue["messages"]) for queue in topic["queues"]] == [
        (0, 10_012, 42),
        (1, 7, 7),
    ]
    table = cli("logic-queue", "list", *moved)
    assert "10012" in table.stdout
    read = cli("logic-queue", "cat", *moved, "--topic", "orders", "--queue", "0", "--start", "29", "--limit", "2")
    rows = [json.loads(line) for line in read.stdout.splitlines()]
    assert [(row["logic_queue_id"], row["logic_offset"], row["queue_id"], row["body_text"]) for row in rows] == [
        (0, 29, 0, "a/0/29"),
        (0, 10_000, 2, "b/2/0"),
    ]
    text = cli("logic-queue", "cat", *moved, "--format", "table", "--limit", "1")
    assert text.stdout.startswith("logic 0/0  ")
    assert cli("logic-queue", "cat", *moved, "--start", "3").returncode == 2
    assert cli("logic-queue", "cat", *moved, "--topic", "orders", "--queue", "9").returncode == 3
    commit(moved[1], 2, 5)
    lag = json.loads(cli("logic-queue", "lag", *moved, "--format", "json").stdout)
    assert lag == [
        {"group": "billing", "topic": "orders", "queue_id": 0, "offset": 10_005, "max_offset": 10_012, "lag": 7}
    ]
    assert cli("logic-queue", "lag", *moved, "--group", "nobody").returncode == 2
    missing = cli("logic-queue", "cat", moved[1], "--topic", "orders")
    assert missing.returncode == 3
    assert "--on-missing skip" in missing.stderr
    skipped = cli("logic-queue", "cat", moved[1], "--topic", "orders", "--on-missing", "skip", "--format", "json")
    assert len(json.loads(skipped.stdout)) == 12


def test_the_command_line_names_brokers_and_faults(moved: list[Path], cli: Cli) -> None:
    for path, name in zip(moved, "ab", strict=True):
        write_mapping(path, name, {0: BROKEN["negative"]})
    broken = cli("logic-queue", "list", f"a={moved[0]}", f"b={moved[1]}")
    assert broken.returncode == 1
    assert "negative number" in broken.stderr
    assert cli("logic-queue", "list", f"a={moved[0]}", moved[1]).returncode == 2
    (moved[0] / "config/topicQueueMapping.json").unlink()
    unknown = cli("logic-queue", "list", *moved)
    assert unknown.returncode == 2
    assert "NAME=DIR" in unknown.stderr


@pytest.mark.parametrize("kind", ["parquet", "jsonl"])
def test_an_import_of_logic_queues(moved: list[Path], tmp_path: Path, cli: Cli, kind: str) -> None:
    """Logic queues of two brokers that have the same physical queue stay apart."""
    chains = {0: [item(0, "a", 0, 0), item(1, "b", 1, 10_000)], 1: [item(0, "a", 1, 0)]}
    write_mapping(moved[0], "a", chains)
    other = broker(tmp_path / "other", "b", {1: 5}, chains)
    file = tmp_path / f"orders.{kind}"
    if kind == "jsonl":
        file.write_text(cli("logic-queue", "cat", moved[0], other, "--topic", "orders").stdout)
    else:
        pytest.importorskip("pyarrow", reason="pyarrow is not installed")
        export = ("logic-queue", "export", moved[0], other, "--topic", "orders", "--output", file)
        done = json.loads(cli(*export, "--format", "json").stdout)
        assert (done["messages"], done["bytes"]) == (42, file.stat().st_size)
        assert cli(*export).returncode == 3
        assert cli(*export[:-1], tmp_path / "orders.csv").returncode == 2
        assert not file.with_name(file.name + ".partial").exists()
    assert mqstore.import_(tmp_path / "new", file).messages == 42
    with mqstore.open(tmp_path / "new") as store:
        first = [f"a/0/{number}" for number in range(30)] + [f"b/1/{number}" for number in range(5)]
        assert [message.text() for message in store.read("orders", 0)] == first
        assert [message.text() for message in store.read("orders", 1)] == [f"a/1/{number}" for number in range(7)]


BROKEN = {
    "exists twice": [item(0, "a", 0, 0), item(0, "b", 2, 10_000)],
    "has no logic offset": [item(0, "a", 0, -1), item(1, "b", 2, 10_000)],
    "begins before": [item(0, "a", 0, 20_000), item(1, "b", 2, 10_000)],
    "ends after": [item(0, "a", 0, 0, end=20), item(1, "b", 2, 10)],
    "its queue at": [item(0, "a", 0, 0, end=31), item(1, "b", 2, 10_000)],
    "negative": [item(0, "a", 0, 0, start=-5), item(1, "b", 2, 10_000)],
}


@pytest.mark.parametrize("says", BROKEN)
def test_broken_chains_are_reported(moved: list[Path], says: str) -> None:
    for path, name in zip(moved, "ab", strict=True):
        write_mapping(path, name, {0: BROKEN[says]})
    with mqstore.open_logic_queues(moved) as logic:
        assert any(says in problem for problem in logic.problems), logic.problems
        list(logic.read("orders", 0))


def test_a_queue_in_two_chains(moved: list[Path]) -> None:
    write_mapping(moved[0], "a", {0: [item(0, "a", 0, 0)], 1: [item(0, "a", 0, 0)]})
    with mqstore.open_logic_queues(moved[:1]) as logic:
        assert any("is in logic queue 0 too" in problem for problem in logic.problems)


def test_the_backup_of_a_damaged_file(moved: list[Path]) -> None:
    path = moved[0] / "config/topicQueueMapping.json"
    path.with_name(path.name + ".bak").write_bytes(path.read_bytes())
    path.write_bytes(path.read_bytes()[:100])
    with mqstore.open_logic_queues(moved) as logic:
        assert len(bodies(logic, 1)) == 7
    path.with_name(path.name + ".bak").unlink()
    with pytest.raises(mqstore.CorruptionError, match=r"topicQueueMapping\.json"):
        mqstore.open_logic_queues(moved)


@pytest.mark.parametrize("seed", range(40))
def test_any_mapping_ends_in_messages_or_errors(moved: list[Path], seed: int) -> None:
    chooser = random.Random(seed)
    path = moved[0] / "config/topicQueueMapping.json"
    data = bytearray(path.read_bytes())
    for _ in range(chooser.randint(1, 4)):
        at = chooser.randrange(len(data))
        data[at : at + chooser.choice([0, 1, 3])] = chooser.choice([b"", b"9" * 30, b"null", b"{", b"-", b'"x"'])
    path.write_bytes(data)
    try:
        with mqstore.open_logic_queues({"a": moved[0], "b": moved[1]}) as logic:
            for topic in logic.topics():
                for queue in logic.queues(topic):
                    list(logic.read(topic, queue.queue_id, on_missing="skip"))
    except mqstore.MQStoreError:
        pass
