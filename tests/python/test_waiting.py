"""The command line shows delayed messages, pending transactions, and their records."""

from __future__ import annotations

import json
import shutil
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest

import mqstore
import rocketmq_bytes as rocketmq
import schemas

if TYPE_CHECKING:
    from pathlib import Path

    from conftest import Cli

HALF, OP = "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC"
DAY = 86_400
STORED = 1_700_000_000_123


def delayed(root: Path) -> Path:
    """A store with delayed messages of every kind, one of them cancelled."""
    with mqstore.open(root, "create") as store:
        for delay in (40, 50, 600, 5 * 3600, 2.5 * DAY, 40 * DAY):
            store.append("t", b"later", delay=delay)
        gone = store.append("t", b"gone", delay=600)
        assert gone.unique_id is not None
        assert store.cancel(gone.unique_id)
        store.append("t", b"level", delay_level=18)
    return root


def transactions(root: Path) -> Path:
    """The log of a broker: four half messages, one decided, one checked, one given up."""

    def half(number: int, group: str, offset: int, topic: str = HALF, **more: str) -> dict[str, object]:
        named = {"PGROUP": group, "__transactionId__": f"T{number}", "UNIQ_KEY": f"T{number}", **more}
        text = rocketmq.properties(REAL_TOPIC="orders", REAL_QID="1", TRAN_MSG="true", **named)
        return {"topic": topic, "queue_offset": offset, "properties": text, "stored": STORED + number}

    op = rocketmq.properties(TAGS="d")
    records = [
        half(0, "shop", 0),
        half(1, "shop", 1),
        half(2, "bank", 2, TRANSACTION_CHECK_TIMES="3"),
        half(3, "shop", 3),
        {"topic": OP, "body": b"0,", "properties": op, "stored": STORED + 9},
        half(4, "bank", 0, "TRANS_CHECK_MAX_TIME_TOPIC"),
    ]
    rocketmq.write_log(root, records)
    return root


def records(cli: Cli, root: Path, topic: str) -> list[dict[str, Any]]:
    """The fields that `cat` prints for the records of a topic."""
    form = {"$ref": "#/$defs/message", "$defs": json.loads(schemas.page())["$defs"]}
    found = [json.loads(line) for line in cli("cat", root, "--topic", topic, "--format", "jsonl").stdout.splitlines()]
    for one in found:
        jsonschema.validate(one, form)
    return [{name: value for name, value in one["system"].items() if value is not None} for one in found]


def test_delayed_messages_are_counted_by_when_they_are_due(tmp_path: Path, cli: Cli) -> None:
    root = delayed(tmp_path / "s")
    timer, levels = mqstore.info(root).delayed
    by_due = (timer.overdue, timer.within_minute, timer.within_hour, timer.within_day, timer.within_three_days)
    assert (timer.kind, timer.messages, by_due, timer.later) == ("timer", 6, (0, 2, 1, 1, 1), 1)
    # Two hours, minus the time passed since.
    assert (levels.kind, levels.messages, levels.within_day) == ("levels", 1, 1)
    with mqstore.open(root) as store:
        assert store.delays().pending == 7
        assert store.delays().next_due == timer.first_due
    found = json.loads(cli("info", root, "--format", "json").stdout)
    assert found["delayed"] == [timer.to_dict(), levels.to_dict()]
    table = cli("info", root).stdout
    due = [line.split()[:-1] for line in table.splitlines() if line.strip().startswith("<")]
    assert due == [["<", "1", "min", "2"], ["<", "1", "h", "1"], ["<", "1", "day", "2"], ["<", "3", "days", "1"]]


def test_what_only_a_broker_knows_is_the_same(tmp_path: Path) -> None:
    root = delayed(tmp_path / "s")
    before = [one.to_dict() for one in mqstore.info(root).delayed]
    shutil.rmtree(root / "mqstore")
    assert [one.to_dict() for one in mqstore.info(root).delayed] == before
    (root / "timerwheel").unlink()
    without = mqstore.info(root)
    assert [one.messages for one in without.delayed] == [6, 1]
    assert any("timerwheel" in note for note in without.notes)


def test_what_is_delayed_is_counted_beside_its_writer(tmp_path: Path) -> None:
    with mqstore.open(tmp_path / "s", "create") as store:
        assert mqstore.info(tmp_path / "s").delayed == ()
        store.append("t", b"later", delay=3600)
        assert [one.messages for one in mqstore.info(tmp_path / "s").delayed] == [1]


def test_undecided_transactions_are_counted_by_producer_group(tmp_path: Path, cli: Cli) -> None:
    root = transactions(tmp_path / "s")
    found = json.loads(cli("info", root, "--format", "json").stdout)
    assert found["undecided"] == [
        {
            "producer_group": "bank",
            "transactions": 1,
            "messages": 1,
            "oldest_timestamp": STORED + 2,
            "checks": 3,
        },
        {
            "producer_group": "shop",
            "transactions": 2,
            "messages": 2,
            "oldest_timestamp": STORED + 1,
            "checks": 0,
        },
    ]
    assert found["delayed"] == []
    assert "pending of" in cli("info", root).stdout


@pytest.mark.slow
def test_records_of_delays_are_decoded(tmp_path: Path, cli: Cli) -> None:
    root = delayed(tmp_path / "s")
    found = records(cli, root, "rmq_sys_wheel_timer")
    kinds = [one["kind"] for one in found]
    assert kinds == ["deliver"] * 4 + ["put_back"] * 2 + ["deliver"] + ["cancel"] * 2
    assert all((one["topic"], one["queue_id"]) == ("t", 0) for one in found)
    gone, new, old = found[-3:]
    assert new["due_timestamp"] == old["due_timestamp"] == gone["due_timestamp"]
    assert old["cancels"] == f"t+{new['cancels']}"
    with mqstore.open(root) as store:
        target = store.get_at(new["cancels_log_offset"])
        assert (target.body, target.unique_id) == (b"gone", new["cancels"])
        level = next(store.read("SCHEDULE_TOPIC_XXXX", 17))
    due = level.store_timestamp + 7_200_000
    assert records(cli, root, "SCHEDULE_TOPIC_XXXX") == [
        {"kind": "delay_level", "topic": "t", "queue_id": 0, "level": 18, "due_timestamp": due}
    ]
    lines = cli("cat", root, "--format", "table").stdout.splitlines()
    assert any("delay level t/0 level 18 due 2" in line for line in lines)
    assert any("cancel t/0 due 2" in line and f"of t+{new['cancels']}" in line for line in lines)


def test_delay_levels_of_ones_own_say_when_records_are_due(tmp_path: Path, cli: Cli) -> None:
    root = tmp_path / "s"
    due = []
    for levels in ("9s 3h", "1d 1h"):
        with mqstore.open(root, "create", delay_levels=levels) as store:
            due.append(store.append("t", b"x", delay_level=2).store_timestamp + 3_600_000)
    # The delay of three hours became one of an hour.
    found = records(cli, root, "SCHEDULE_TOPIC_XXXX")
    assert [one["due_timestamp"] for one in found] == due
    level = mqstore.info(root).delayed[0]
    assert (level.kind, level.messages, level.within_hour) == ("levels", 2, 2)


@pytest.mark.slow
def test_records_of_transactions_are_decoded(tmp_path: Path, cli: Cli) -> None:
    root = transactions(tmp_path / "s")
    half = {"kind": "half", "topic": "orders", "queue_id": 1}
    found = records(cli, root, HALF)
    assert found[0] == half | {"producer_group": "shop", "transaction_id": "T0", "checks": 0}
    assert found[2] == half | {"producer_group": "bank", "transaction_id": "T2", "checks": 3}
    assert records(cli, root, OP) == [{"kind": "decision", "half_offsets": [0]}]
    discarded = records(cli, root, "TRANS_CHECK_MAX_TIME_TOPIC")
    assert [(one["kind"], one["transaction_id"]) for one in discarded] == [("discarded", "T4")]
    lines = cli("cat", root, "--format", "table").stdout
    assert "half orders/1 of bank, transaction T2, asked 3 times" in lines
    assert "decided: 0" in lines
