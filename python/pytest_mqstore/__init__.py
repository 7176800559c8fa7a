"""Fixtures of pytest for tests of programs that use a store, or RocketMQ: see `mqstore.testing`.

pytest loads this by itself where mqstore is installed; mqstore itself is imported by the first test that asks.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import mqstore
    from mqstore.testing import Faults, ManualClock
    from mqstore.testing.rocketmq import Broker


@pytest.fixture
def mqstore_path(tmp_path: Path) -> Path:
    """Where `mqstore_store` is: a directory of the test's own."""
    return tmp_path / "mqstore"


@pytest.fixture
def mqstore_clock() -> ManualClock:
    """The clock of the stores of a test that asks for it; it stands still until it is told."""
    from mqstore.testing import ManualClock

    return ManualClock()


@pytest.fixture
def mqstore_faults() -> Faults:
    """What goes wrong with the disk of the stores of a test that asks for it; nothing at first."""
    from mqstore.testing import Faults

    return Faults()


@pytest.fixture
def mqstore_store(mqstore_path: Path, request: pytest.FixtureRequest) -> Iterator[mqstore.Store]:
    """An empty store of small files, open for writing; on `mqstore_clock` and `mqstore_faults` where asked for."""
    from mqstore import MQStoreError
    from mqstore.testing import open as open_store

    clock = request.getfixturevalue("mqstore_clock") if "mqstore_clock" in request.fixturenames else None
    faults = request.getfixturevalue("mqstore_faults") if "mqstore_faults" in request.fixturenames else None
    store = open_store(mqstore_path, clock=clock, faults=faults)
    yield store
    # A store on which things went wrong may have no good end; that is what its test is about.
    with contextlib.suppress(MQStoreError) if faults is not None else contextlib.nullcontext():
        store.close()


@pytest.fixture
def mqstore_rocketmq(mqstore_store: mqstore.Store, request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A stand-in for RocketMQ over `mqstore_store`, reached by `import rocketmq`; on `mqstore_clock` if asked for."""
    from mqstore.testing.rocketmq import Broker, installed

    clock = request.getfixturevalue("mqstore_clock") if "mqstore_clock" in request.fixturenames else None
    with Broker(mqstore_store, clock=clock) as broker, installed():
        yield broker
