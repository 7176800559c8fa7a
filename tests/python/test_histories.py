"""Random sequences of public verbs agree with a model of the messages that a user must see."""

from __future__ import annotations

from pathlib import Path

import pytest

from histories import History


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.soak) for seed in (2, 3))])
def test_a_random_history_agrees_with_the_model(home: Path, seed: int) -> None:
    History(home, seed).run(60)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(100, 400))
def test_long_random_histories_agree_with_the_model(home: Path, seed: int) -> None:
    History(home, seed).run(250)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(40))
def test_the_bytes_of_an_expired_history_are_free(home: Path, seed: int) -> None:
    history = History(home, seed)
    history.run(60)
    history.store = history.opened()
    history.expire_all()
    history.store.close()
