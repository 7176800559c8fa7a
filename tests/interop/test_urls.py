"""A directory that RocketMQ wrote gives the same answers at a URL as on the disk."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from . import corpus
from .corpus import stores

if TYPE_CHECKING:
    from pathlib import Path

    from .shop import Shop

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
