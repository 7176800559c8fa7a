"""Queues and index that mqstore rebuilds with eight workers, compared with those that RocketMQ made of the same log."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

import mqstore

from .compare import assert_same_store
from .scenarios import SCENARIOS as SCENARIOS_OF_ROCKETMQ
from .scenarios import SCHEDULE_TOPIC
from .shop import DERIVED, ask

if TYPE_CHECKING:
    from pathlib import Path

    from .scenarios import Scenario
    from .shop import Shop, Written
    from .tally import Tally

pytestmark = pytest.mark.interop

SCENARIOS = {
    "bulk": True,
    "batches": False,
    "delayed": False,
    "inner_batches": True,
    "sizes": False,
    "text": False,
    "transactions": False,
}
"""Scenarios that RocketMQ wrote, and whether all queue files except the first ones are lost."""

LEVELS = "7s 2m 3h 1d 9s"


def queue_files(path: Path) -> dict[str, bytes]:
    """Return the files of all queues by name, without those that have no entry."""
    found = {
        str(file.relative_to(path)): file.read_bytes()
        for name in ("consumequeue", "batchconsumequeue")
        for file in sorted((path / name).rglob("*"))
        if file.is_file()
    }
    return {name: data for name, data in found.items() if data.strip(b"\0")}


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.scenario(n)) for n in SCENARIOS])
def test_queues_are_those_that_rocketmq_made(shop: Shop, version: str, name: str, tmp_path: Path, tally: Tally) -> None:
    """The queues are equal byte for byte, and the index answers as before."""
    written = shop.written(version, name)
    expected = queue_files(written.path)
    assert expected
    path = tmp_path / "store"
    shutil.copytree(written.path, path)
    if SCENARIOS[name]:
        # One file of each kind stays, because it shows the length.
        for queue in {file.parent for each in DERIVED[:2] for file in (path / each).rglob("*") if file.is_file()}:
            for file in sorted(queue.iterdir())[1:]:
                file.unlink()
    report = mqstore.rebuild(path, threads=8)
    assert report.skipped == ()
    assert report.messages == len(written.answers.log)
    assert queue_files(path) == expected
    answers = written.answers
    if name == "inner_batches":
        # RocketMQ uses different rules for times in batch queues.
        answers = replace(answers, times=[(query, at) for query, at in answers.times if query.topic == "beside"])
    # For twenty thousand messages, only the queues are compared. The smaller stores also test keys.
    assert_same_store(path, answers, tally, look_ups=name != "bulk")
    assert mqstore.verify(path).ok


def own_levels() -> Scenario:
    """Delayed messages of a broker with its own levels. The last ones use a level above the highest."""
    delayed = SCENARIOS_OF_ROCKETMQ["delayed"]
    return replace(delayed, name="own_levels", config={**delayed.config, "messageDelayLevel": LEVELS})


def test_entries_by_a_brokers_own_delay_levels(shop: Shop, version: str, tmp_path: Path) -> None:
    """Without the levels, verify reports no damage. After one rebuild with them, every rebuild gives the
    same entries."""
    written = shop.write(version, own_levels())
    expected = queue_files(written.path)
    path = tmp_path / "store"
    shutil.copytree(written.path, path)
    assert mqstore.verify(path).problems == ()
    shutil.rmtree(path / "consumequeue")
    mqstore.rebuild(path, options=mqstore.StoreOptions(delay_levels=LEVELS, queue_file_entries=500))
    assert queue_files(path) == expected
    mqstore.rebuild(path)
    assert queue_files(path) == expected
    assert mqstore.verify(path).problems == ()


def test_rocketmq_makes_the_same_entries_by_our_delay_levels(shop: Shop, version: str, tmp_path: Path) -> None:
    """RocketMQ dispatches a log of mqstore whose queues are lost, with the same levels."""
    path = tmp_path / "store"
    scenario = own_levels()
    sizes = {"segment_size": 1 << 20, "queue_file_entries": 500}
    with mqstore.open(path, "create", delay_levels=LEVELS, **sizes) as store:
        for number in range(60):
            store.append("orders", f"later{number}".encode(), delay_level=number % 7 + 1)
    expected = {name: data for name, data in queue_files(path).items() if SCHEDULE_TOPIC in name}
    assert len(expected) == len(LEVELS.split())
    # The index is removed too, because RocketMQ would add every entry to it again.
    for folder in ("consumequeue", "index"):
        shutil.rmtree(path / folder)
    java = shop.session(version).open(path, config=scenario.config, topics=scenario.topics)
    java.await_dispatch()
    java.close()
    assert {name: data for name, data in queue_files(path).items() if SCHEDULE_TOPIC in name} == expected
    with mqstore.open(path) as store:
        assert [len(list(store.read(SCHEDULE_TOPIC, queue))) for queue in range(5)] == [9, 9, 9, 9, 24]
    assert mqstore.verify(path).problems == ()


@pytest.mark.scenario("lagging")
def test_rocketmq_goes_on_with_what_was_rebuilt(written: Written, shop: Shop, tmp_path: Path, tally: Tally) -> None:
    """RocketMQ opens it without a complaint, answers as before, and appends."""
    path = tmp_path / "store"
    shutil.copytree(written.path, path)
    mqstore.rebuild(path, threads=8)
    java = shop.session(written.version).open(path, config=written.scenario.config, topics=written.scenario.topics)
    assert java.report.complaints() == []
    answers = ask(java)
    assert answers.view == written.answers.view
    assert answers.keys == written.answers.keys
    java.put([{"topic": next(iter(written.scenario.topics)), "body": "on"} for _ in range(10)])
    java.await_dispatch()
    after = ask(java)
    java.close()
    assert_same_store(path, after, tally)
    assert mqstore.verify(path).ok
