"""Random sequences of verbs on log and archive give the answers of a store that moves and deletes nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from archive_histories import ArchiveHistory

pytest.importorskip("pyarrow")
pytest.importorskip("typer")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(6))
def test_a_random_history_of_an_archive_agrees_with_the_model(tmp_path: Path, seed: int) -> None:
    ArchiveHistory(tmp_path, seed, outer=seed == 0).run(12)


@pytest.mark.soak
@pytest.mark.parametrize("seed", range(1000, 3000))
def test_long_random_histories_of_an_archive_agree_with_the_model(tmp_path: Path, seed: int) -> None:
    ArchiveHistory(tmp_path, seed, outer=seed % 10 == 0).run(40)
