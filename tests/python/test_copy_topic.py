"""Copies of topics: each message once in the target, over any number of calls, and groups that miss nothing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import mqstore
from conftest import SMALL, Cli
from mqstore._admin import copy_topic as module
from mqstore._admin.copy_topic import extend, translated


def fill(home: Path, first: int, count: int, topic: str = "orders") -> None:
    with mqstore.open(home, "create", options=SMALL) as store:
        if topic not in store.topics():
            store.create_topic(topic, queues=2)
        for number in range(first, first + count):
            store.append(topic, f"{topic}-{number}".encode(), keys=f"k{number}", queue_id=number % 2)


def bodies(home: Path, topic: str = "orders") -> list[str]:
    with mqstore.open(home) as store:
        return sorted((message.text() for message in store.read(topic)), key=lambda body: int(body.partition("-")[2]))


def numbered(first: int, count: int) -> list[str]:
    return [f"orders-{number}" for number in range(first, first + count)]


def read(home: Path, group: str, most: int) -> list[str]:
    with mqstore.open(home, "rw") as store, store.consumer(group, "orders") as consumer:
        found = consumer.poll(max_messages=most, timeout=0)
        consumer.commit(durable=True)
        return [message.text() for message in found]


def test_a_further_call_copies_what_came_since(tmp_path: Path) -> None:
    home, target = tmp_path / "source", tmp_path / "target"
    fill(home, 0, 100)
    fill(home, 0, 30, "others")
    for first, count in ((0, 100), (100, 50), (150, 0)):
        if first:
            fill(home, first, count)
            fill(home, first, 5, "others")
        report = mqstore.copy_topic(home, target, "orders")
        assert (report.messages, report.resumed) == (count, False)
        assert bodies(target) == numbered(0, first + count)
    with mqstore.open(target) as store:
        assert store.topics() == ["orders"]
        assert len(store.queues("orders")) == 2
    files = sorted(path.name for path in Path(report.mapping).iterdir())
    assert files == ["000001.jsonl", "000002.jsonl", "000003.jsonl", "state.json"]
    assert mqstore.verify(target).ok


@pytest.mark.parametrize("existing", [0, 7])
def test_a_group_continues_at_its_next_message(tmp_path: Path, existing: int) -> None:
    home, target = tmp_path / "source", tmp_path / "target"
    fill(home, 0, 40)
    if existing:
        fill(target, 1000, existing)
    done = read(home, "group", 25)
    report = mqstore.copy_topic(home, target, ["orders"])
    assert {one.group for one in report.groups} == {"group"}
    fill(home, 40, 10)
    done += read(home, "group", 5)
    report = mqstore.copy_topic(home, target, ["orders"])
    assert report.messages == 10
    assert sorted(done + read(target, "group", 1000)) == sorted(numbered(0, 50))
    # The group is ahead in the target, and has not read more in the source.
    assert mqstore.copy_topic(home, target, ["orders"]).groups == ()
    assert read(target, "group", 1000) == []


def test_the_source_can_be_at_a_url(tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    home, target = tmp_path / "source", tmp_path / "target"
    fill(home, 0, 20)
    read(home, "group", 5)
    for first in (0, 20):
        report = mqstore.copy_topic(f"local://{home}", target, "orders")
        assert (report.messages, report.source) == (20, f"local://{home}")
        fill(home, first + 20, 20)
    assert bodies(target) == numbered(0, 40)
    assert len(read(target, "group", 1000)) == 35


def test_groups_can_be_selected(tmp_path: Path) -> None:
    home, target = tmp_path / "source", tmp_path / "target"
    fill(home, 0, 10)
    for group in ("one", "two"):
        read(home, group, 4)
    assert mqstore.copy_topic(home, target, "orders", groups=[]).groups == ()
    assert {one.group for one in mqstore.copy_topic(home, target, "orders", groups=["two"]).groups} == {"two"}


def test_delayed_messages_are_copied_after_their_delivery(tmp_path: Path) -> None:
    home, target = tmp_path / "source", tmp_path / "target"
    fill(home, 0, 4)
    with mqstore.open(home, "rw") as store:
        store.append("orders", b"orders-4", queue_id=0, delay=3600)
        store.append("orders", b"orders-5", queue_id=1)
    report = mqstore.copy_topic(home, target, "orders")
    assert (report.messages, report.waiting) == (5, 1)
    with mqstore.open(home, "rw") as store:
        store.append("orders", b"orders-6", queue_id=0, delay=0.001)
        store.wait("orders", 0, offset=2, timeout=60)
    report = mqstore.copy_topic(home, target, "orders")
    assert (report.messages, report.waiting) == (1, 1)
    assert bodies(target) == [*numbered(0, 4), "orders-5", "orders-6"]


@pytest.mark.slow
def test_a_copy_can_be_interrupted_at_every_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = 0

    class StopError(Exception):
        """The end of the process, as far as the copy can tell."""

    def counting(real: Any, at: int) -> Any:
        def call(*arguments: Any) -> Any:
            nonlocal steps
            steps += 1
            if steps == at:
                raise StopError
            found = real(*arguments)
            steps += 1
            if steps == at:
                raise StopError
            return found

        return call

    from mqstore._admin.export import partial, rules

    at = 0
    while True:
        at += 1
        home, target = tmp_path / f"source-{at}", tmp_path / f"target-{at}"
        fill(home, 0, 20)
        mqstore.copy_topic(home, target, "orders")
        fill(home, 20, 20)
        steps = 0
        with monkeypatch.context() as patch:
            durable = (
                (module, "replace_state"),
                (partial, "replace_state"),
                (rules, "replace_file"),
                (partial, "publish"),
            )
            for where, name in durable:
                patch.setattr(where, name, counting(getattr(where, name), at))
            try:
                mqstore.copy_topic(home, target, "orders")
            except StopError:
                pass
            else:
                break
        fill(home, 40, 10)
        mqstore.copy_topic(home, target, "orders")
        mqstore.copy_topic(home, target, "orders")
        assert bodies(target) == numbered(0, 50), f"step {at}"
    assert at > 10


def test_a_batch_is_one_message_with_several_offsets(tmp_path: Path) -> None:
    home, target = tmp_path / "source", tmp_path / "target"
    with mqstore.open(home, "create", options=SMALL) as store:
        store.create_topic("orders", queues=1, attributes={"queue.type": "BatchCQ"})
        for first in range(0, 12, 4):
            store.append_many("orders", [f"orders-{number}".encode() for number in range(first, first + 4)])
    mqstore.copy_topic(home, target, "orders")
    for path in (home, target):
        with mqstore.open(path) as store:
            found = [(message.queue_offset, [one.body for one in message.batch()]) for message in store.read("orders")]
        assert found == [(first, [b"orders-%d" % (first + at) for at in range(4)]) for first in range(0, 12, 4)]
    state = json.loads((tmp_path / "target.mapping" / "state.json").read_bytes())
    assert [translated(state["runs"]["orders/0"], offset) for offset in (0, 3, 5, 12)] == [0, 3, 5, 12]


def test_offsets_of_messages_that_were_not_copied() -> None:
    runs: module.Runs = []
    for old, new in ((5, 0), (6, 1), (9, 2), (10, 3), (14, 7), (20, 13)):
        extend(runs, old, new)
    assert runs == [[5, 0, 2], [9, 2, 12]]
    assert [translated(runs, offset) for offset in (0, 5, 6, 7, 8, 9, 12, 20, 21)] == [0, 0, 1, 2, 2, 2, 5, 13, 14]


def test_what_cannot_be_copied_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    home, target = tmp_path / "source", tmp_path / "target"
    fill(home, 0, 3)
    with pytest.raises(mqstore.TopicNotFoundError):
        mqstore.copy_topic(home, target, "unknown")
    with pytest.raises(mqstore.InvalidOptionError, match="topics"):
        mqstore.copy_topic(home, target, [])
    with pytest.raises(ValueError, match="into itself"):
        mqstore.copy_topic(home, home, "orders", mapping=tmp_path / "own")
    assert not target.exists()
    mqstore.copy_topic(home, target, "orders")
    fill(tmp_path / "other", 0, 3)
    for arguments in ((tmp_path / "other", target, "orders"), (home, target, "others")):
        fill(home, 0, 1, "others")
        with pytest.raises(mqstore.InvalidOptionError, match="choose another folder"):
            mqstore.copy_topic(*arguments)
    state = tmp_path / "target.mapping" / "state.json"
    for damage in (b"{", b"[]", b"{}", b""):
        state.write_bytes(damage)
        with pytest.raises(mqstore.UnsupportedFormatError, match=r"state\.json"):
            mqstore.copy_topic(home, target, "orders")
    assert bodies(target) == numbered(0, 3)


def test_an_interrupted_copy_continues(tmp_path: Path) -> None:
    home, target = tmp_path / "source", tmp_path / "target"
    fill(home, 0, 2000)

    def stop(progress: mqstore.Progress) -> None:
        if progress.done > progress.total // 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        mqstore.copy_topic(home, target, "orders", progress=stop)
    report = mqstore.copy_topic(home, target, "orders")
    assert report.resumed
    assert bodies(target) == numbered(0, 2000)


@pytest.mark.slow
def test_command_line(tmp_path: Path, cli: Cli) -> None:
    home, target = tmp_path / "source", tmp_path / "target"
    fill(home, 0, 10)
    read(home, "group", 3)
    done = cli("copy-topic", home, target, "--topic", "orders", "--format", "json")
    assert (done.returncode, json.loads(done.stdout)["messages"]) == (0, 10)
    assert "group" in cli("copy-topic", home, tmp_path / "second", "--topic", "orders").stdout
    assert cli("copy-topic", home, target, "--topic", "unknown").returncode == 3
    assert cli("copy-topic", home, target).returncode == 2
