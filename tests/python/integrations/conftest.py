"""Fixtures of the suites of task libraries: the modes of an open."""

from __future__ import annotations

import pytest

from mqstore.integrations._store_handle import ShareMode


@pytest.fixture(params=["create", "share"])
def mode(request: pytest.FixtureRequest) -> ShareMode:
    """The modes in which a broker can open its store."""
    chosen: ShareMode = request.param
    return chosen
