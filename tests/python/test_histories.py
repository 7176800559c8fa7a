"""Random sequences of public verbs agree with a model of the messages that a user must see."""

from __future__ import annotations

from pathlib import Path

import pytest

from histories import History


@pytest.mark.parametrize("seed", range(4))
def test_a_random_history_agrees_with_the_model(home: Path, seed: int) -> None:
    History(home, seed).run(60)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 400))
def test_long_random_histories_agree_with_the_model(home: Path, seed: int) -> None:
    History(home, seed).run(250)
