"""Fixtures of the suites of task libraries: the modes of an open."""

from __future__ import annotations

import functools
import tempfile
from pathlib import Path

import pytest

import mqstore
from mqstore.integrations._store_handle import ShareMode


@functools.cache
def accepts_share() -> bool:
    """Whether this version of mqstore opens a store in several processes."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            mqstore.open(Path(folder) / "store", "share").close()  # type: ignore[arg-type]
        except (TypeError, ValueError):
            return False
    return True


@pytest.fixture(params=["create", "share"])
def mode(request: pytest.FixtureRequest) -> ShareMode:
    """The modes in which a broker can open its store."""
    if request.param == "share" and not accepts_share():
        pytest.skip('mode="share" is not in this version')
    chosen: ShareMode = request.param
    return chosen


@pytest.fixture
def shared_mode() -> ShareMode:
    """The mode in which several processes open a store."""
    if not accepts_share():
        pytest.skip('mode="share" is not in this version')
    return "share"
