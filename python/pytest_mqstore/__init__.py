"""Fixtures of pytest for tests of programs that use a store or RocketMQ: see `mqstore.testing`.

pytest loads this module automatically if mqstore is installed. The first test that uses a fixture imports mqstore.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    import mqstore
    from mqstore import aio
    from mqstore.testing import Faults, ManualClock
    from mqstore.testing.rocketmq import Broker


@pytest.fixture
def mqstore_path(tmp_path: Path) -> Path:
    """Directory of `mqstore_store`, separate for each test."""
    return tmp_path / "mqstore"


@pytest.fixture
def mqstore_clock() -> ManualClock:
    """Clock of the test's stores; it changes only when the test sets it."""
    from mqstore.testing import ManualClock

    return ManualClock()


@pytest.fixture
def mqstore_faults() -> Faults:
    """Disk faults of the test's stores; none at first."""
    from mqstore.testing import Faults

    return Faults()


@pytest.fixture
def mqstore_store(mqstore_path: Path, request: pytest.FixtureRequest) -> Iterator[mqstore.Store]:
    """An empty store with small files, open for writing; it uses `mqstore_clock` and `mqstore_faults` of the test."""
    from mqstore import MQStoreError
    from mqstore.testing import open as open_store

    clock = request.getfixturevalue("mqstore_clock") if "mqstore_clock" in request.fixturenames else None
    faults = request.getfixturevalue("mqstore_faults") if "mqstore_faults" in request.fixturenames else None
    store = open_store(mqstore_path, clock=clock, faults=faults)
    yield store
    # After a fault, the close may raise an error, which is no failure of the test.
    with contextlib.suppress(MQStoreError) if faults is not None else contextlib.nullcontext():
        store.close()


@pytest.fixture
def mqstore_aio_store(mqstore_store: mqstore.Store) -> Callable[[], aio.Store]:
    """A function that wraps `mqstore_store` for the running event loop; use its result in `async with`."""

    def wrapped() -> aio.Store:
        import mqstore.aio

        return mqstore.aio.wrap(mqstore_store)

    return wrapped


@pytest.fixture
def mqstore_rocketmq(mqstore_store: mqstore.Store, request: pytest.FixtureRequest) -> Iterator[Broker]:
    """A stand-in for RocketMQ with `mqstore_store`, used by `import rocketmq`; it uses `mqstore_clock` of the test."""
    from mqstore.testing.rocketmq import Broker, installed

    clock = request.getfixturevalue("mqstore_clock") if "mqstore_clock" in request.fixturenames else None
    with Broker(mqstore_store, clock=clock) as broker, installed():
        yield broker
