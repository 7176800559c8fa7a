"""Queues and index that mqstore makes anew with eight workers, beside those that RocketMQ made of the same log."""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

import mqstore

from .compare import assert_same_store
from .shop import DERIVED, ask

if TYPE_CHECKING:
    from pathlib import Path

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
"""What RocketMQ wrote, and whether all queue files but the first ones are lost."""


def queue_files(path: Path) -> dict[str, bytes]:
    """Return the files of all queues, by their names; those without any entry left out."""
    found = {
        str(file.relative_to(path)): file.read_bytes()
        for name in ("consumequeue", "batchconsumequeue")
        for file in sorted((path / name).rglob("*"))
        if file.is_file()
    }
    return {name: data for name, data in found.items() if data.strip(b"\0")}


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.scenario(n)) for n in SCENARIOS])
def test_queues_are_those_that_rocketmq_made(shop: Shop, version: str, name: str, tmp_path: Path, tally: Tally) -> None:
    """Byte for byte; and the index answers as before."""
    written = shop.written(version, name)
    expected = queue_files(written.path)
    assert expected
    path = tmp_path / "store"
    shutil.copytree(written.path, path)
    if SCENARIOS[name]:
        # One file of each kind stays, to tell the lengths.
        for queue in {file.parent for each in DERIVED[:2] for file in (path / each).rglob("*") if file.is_file()}:
            for file in sorted(queue.iterdir())[1:]:
                file.unlink()
    report = mqstore.rebuild(path, threads=8)
    assert report.skipped == ()
    assert report.messages == len(written.answers.log)
    assert queue_files(path) == expected
    answers = written.answers
    if name == "inner_batches":
        # RocketMQ answers times in batch queues by other rules.
        answers = replace(answers, times=[(query, at) for query, at in answers.times if query.topic == "beside"])
    # Of twenty thousand messages the queues were compared; keys are looked up in the smaller stores.
    assert_same_store(path, answers, tally, look_ups=name != "bulk")
    assert mqstore.verify(path).ok


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
