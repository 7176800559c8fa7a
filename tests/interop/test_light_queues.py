"""Light queues: RocketMQ gives one record entries in several queues, and mqstore makes the same entries."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

import pytest

import mqstore

from .compare import notes_expected
from .java_rows import message
from .market import GEOMETRY, java_config
from .scenarios import topic
from .shop import DERIVED

if TYPE_CHECKING:
    from pathlib import Path

    from .shop import Shop
    from .tally import Tally

pytestmark = pytest.mark.interop

LIGHT = {"%LMQ%red": 2, "%LMQ%green": 3}
"""Light queues, with n: every n-th message belongs to the queue."""


def queue_files(path: Path) -> dict[str, bytes]:
    """Return the files of all queues by name."""
    folder = path / "consumequeue"
    return {str(file.relative_to(folder)): file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def test_light_queues_are_those_that_rocketmq_made(shop: Shop, version: str, tmp_path: Path, tally: Tally) -> None:
    path = tmp_path / "store"
    config = {**java_config(GEOMETRY), "enableLmq": True, "enableMultiDispatch": True}
    specs = []
    for number in range(300):
        names = [name for name, every in LIGHT.items() if number % every == 0]
        properties = {"INNER_MULTI_DISPATCH": ",".join(names)} if names else {}
        specs.append(message("mqtt", (f"{number}", 40), queue_id=number % 2, properties=properties))
    java = shop.session(version).open(path, config=config, topics={"mqtt": topic(2)}, write_topics=True)
    java.put(specs)
    java.await_dispatch()
    java.close()
    expected = queue_files(path)
    assert {name.split("/")[0] for name in expected} == {"mqtt", *LIGHT}
    # All of it derived from the log: in memory, and on disk.
    lost = tmp_path / "lost"
    shutil.copytree(path, lost, ignore=shutil.ignore_patterns(*DERIVED))
    mqstore.rebuild(path, threads=8)
    assert queue_files(path) == expected
    for home in (path, lost):
        with notes_expected(), mqstore.open(home) as store:
            named = {
                m.commit_log_offset: m.properties.get("INNER_MULTI_DISPATCH", "")
                for queue_id in range(2)
                for m in store.read("mqtt", queue_id)
            }
            assert len(named) == 300
            for name, every in LIGHT.items():
                found = list(store.read(name))
                assert [m.queue_offset for m in found] == list(range(300 // every))
                assert [m.commit_log_offset for m in found] == sorted(
                    at for at, names in named.items() if name in names
                )
                tally.messages += len(found)
    assert mqstore.verify(path).ok
