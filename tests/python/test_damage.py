"""Damages of the table, in a store of mqstore and in one of RocketMQ: found, repaired, nothing else lost.

By default, one case of each (structure, kind) is tried; with `MQSTORE_SOAK=1`, all cases.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import damage
import damaged_stores as stores
import mqstore

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

TRIED = damage.cases if os.environ.get("MQSTORE_SOAK") else damage.sample
CASES = [(writer, case) for writer in ("mqstore", "RocketMQ") for case in TRIED(writer)]


@pytest.fixture(scope="module")
def memory() -> Iterator[Path]:
    """A folder in memory, if the machine has one, because a repair syncs every step."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if os.access(shared, os.W_OK) else None) as folder:
        yield Path(folder)


@pytest.fixture
def home(memory: Path) -> Iterator[Path]:
    """The path of the copy of the store."""
    yield memory / "copy"
    shutil.rmtree(memory / "copy")


@pytest.fixture(scope="module")
def subject(memory: Path) -> Callable[[str], stores.Subject]:
    """The store of a writer."""
    other = stores.elsewhere(memory / "other")

    @cache
    def made(writer: str) -> stores.Subject:
        home = memory / writer
        return stores.subject(home, other, (stores.ours if writer == "mqstore" else stores.unpacked)(home))

    return made


@pytest.mark.parametrize(("writer", "case"), CASES, ids=lambda each: getattr(each, "name", each))
def test_it_is_found_and_repaired(
    writer: str, case: damage.Case, subject: Callable[[str], stores.Subject], home: Path
) -> None:
    store = subject(writer)
    shutil.copytree(store.base.home, home)
    assert stores.assert_mended(case, store, home) is not None, "the damage is none"


@pytest.mark.parametrize("writer", ["mqstore", "RocketMQ"])
def test_each_changes_other_bytes(writer: str, subject: Callable[[str], stores.Subject], home: Path) -> None:
    base = subject(writer).base
    shutil.copytree(base.home, home)
    assert mqstore.verify(home).ok
    before = stores.contents(home)
    seen: dict[frozenset[tuple[str, bytes | None]], str] = {}
    for case in damage.cases(writer):
        damage.apply(case, base, home)
        after = stores.contents(home)
        changed = {name: after.get(name) for name in before.keys() | after if before.get(name) != after.get(name)}
        assert changed, f"{case.name} changes nothing"
        earlier = seen.setdefault(frozenset(changed.items()), case.name)
        assert earlier == case.name, f"{case.name} changes the same as {earlier}"
        for name in changed:
            Path(name).write_bytes(before[name])
    assert len({(case.structure, case.field, case.kind) for case in damage.cases(writer)}) >= 500
    assert len(seen) == len(damage.cases(writer))


@pytest.mark.parametrize("writer", ["mqstore", "RocketMQ"])
def test_the_sample_has_every_kind_and_field_of_each_structure(writer: str) -> None:
    table, tried = damage.cases(writer), damage.sample(writer)
    assert len(set(tried)) == len(tried)
    assert set(tried) <= set(table)
    assert {(case.structure, case.kind) for case in tried} == {(case.structure, case.kind) for case in table}
    assert {(case.structure, case.field) for case in tried} == {(case.structure, case.field) for case in table}


def test_the_page_is_current() -> None:
    page = Path(__file__).parent / "DAMAGE.md"
    assert page.read_text() == damage.page(), "python tests/python/damage.py > tests/python/DAMAGE.md"
