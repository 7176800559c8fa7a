"""A directory that RocketMQ wrote gives the same answers at a URL as on the disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import mqstore

from . import corpus
from .corpus import stores
from .shop import ask
from .test_repair import assert_delivers

if TYPE_CHECKING:
    from pathlib import Path

    from .shop import Shop, Written
    from .tally import Tally

pytestmark = pytest.mark.interop


def test_the_answers_are_those_of_the_directory(shop: Shop, version: str, tmp_path: Path) -> None:
    pytest.importorskip("fsspec")
    from remote_stores import answers, in_memory

    home = tmp_path / version
    sent = corpus.write(shop.session(version), home)
    assert len(sent) == stores.damage.COUNT
    wanted, found = answers(home), answers(in_memory(home, f"rocketmq {version}"))
    assert wanted["verify"]["ok"]
    assert found.keys() == wanted.keys()
    for verb, answer in wanted.items():
        assert found[verb] == answer, verb


@pytest.mark.scenario("front_deleted")
def test_rocketmq_opens_what_was_fetched(written: Written, shop: Shop, tmp_path: Path, tally: Tally) -> None:
    """A snapshot at a URL becomes a directory that RocketMQ opens, with all messages."""
    pytest.importorskip("fsspec")
    url = f"file://{tmp_path}/bucket/snapshot"
    with mqstore.open(written.path) as store:
        store.snapshot(url)
    assert mqstore.verify(url).ok
    mqstore.fetch(url, tmp_path / "fetched")
    java = shop.session(written.version).open(
        tmp_path / "fetched", config=written.scenario.config, topics=written.scenario.topics
    )
    assert java.report.complaints() == []
    assert_delivers(ask(java), written, set(), tally)
