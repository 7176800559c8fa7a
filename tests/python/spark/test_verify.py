"""Verification of stores by several tasks: the same problems as in one process, and failures on the way."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import damage
import damaged_stores
import mqstore
import mqstore.spark
from mqstore import _native
from mqstore.spark._jobs import rounds as _rounds
from mqstore.spark._jobs import verify as _verify


@pytest.fixture
def store(tmp_path: Path) -> Path:
    path = tmp_path / "store"
    with mqstore.open(path, "create", segment_size=1 << 15) as store:
        for number in range(600):
            store.append(f"t{number % 3}", b"x" * (number % 300), keys=f"k{number}", tags="T")
    return path


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The names of the calls in each round."""
    seen: list[list[str]] = []
    real = _rounds.Rounds.run

    def run(self: _rounds.Rounds, calls: list[_rounds.Call]) -> list[bytes]:
        if calls:
            seen.append([call.name for call in calls])
        return real(self, calls)

    monkeypatch.setattr(_rounds.Rounds, "run", run)
    return seen


def tree(path: Path) -> list[str]:
    return sorted(str(each.relative_to(path)) for each in path.rglob("*"))


def spoil(path: Path, folder: str, *places: int) -> None:
    """Changes one byte in each of the first files of a folder."""
    files = sorted(each for each in (path / folder).rglob("*") if each.is_file())
    for file, place in zip(files, places, strict=False):
        data = bytearray(file.read_bytes())
        data[place] ^= 0x55
        file.write_bytes(data)


def test_the_damages_of_the_table(spark: Any, tmp_path: Path, rounds: list[list[str]]) -> None:
    """Some damages of each structure in a store that mqstore wrote, all in one job."""
    base = tmp_path / "base"
    subject = damaged_stores.subject(base, damaged_stores.elsewhere(tmp_path / "other"), damaged_stores.ours(base))
    by_structure: dict[str, list[damage.Case]] = {}
    for case in damage.cases("mqstore"):
        by_structure.setdefault(case.structure, []).append(case)
    chosen = [case for cases in by_structure.values() for case in cases[:: max(1, len(cases) // 4)]]
    assert len(by_structure) > 5
    homes = []
    for number, case in enumerate(chosen):
        home = tmp_path / f"damaged-{number}"
        shutil.copytree(base, home)
        damage.apply(case, subject.base, home)
        homes.append(home)
    found = mqstore.spark.verify(spark, homes, strategy="ranged", max_tasks=4)
    for case, home in zip(chosen, homes, strict=True):
        assert found[str(home)] == mqstore.verify(home), case
    shared = len(rounds[0])
    assert shared > len(homes) // 2
    assert [set(each) for each in rounds][::2] == [{"verify_plan"}, {"verify_assemble"}]
    assert rounds[1].count("verify_step") > 2 * shared


def test_nothing_is_left_of_it(spark: Any, store: Path, tmp_path: Path, rounds: list[list[str]]) -> None:
    spoil(store, "commitlog", 5000, 9000)
    spoil(store, "index", 100)
    shutil.rmtree(store / "consumequeue" / "t1")
    before, wanted = tree(store), mqstore.verify(store)
    told: list[mqstore.Progress] = []
    found = mqstore.spark.verify(spark, [store], strategy="ranged", progress=told.append)
    assert (found, tree(store)) == ({str(store): wanted}, before)
    assert told[-1].done == told[-1].total
    elsewhere = tmp_path / "elsewhere"
    # Files of other programs stay there, whatever their age.
    (elsewhere / "theirs").mkdir(parents=True)
    os.utime(elsewhere / "theirs", (0, 0))
    # With a file in place of its folder, no job can write in this store.
    (store / "mqstore" / "spark").touch()
    rounds.clear()
    found = mqstore.spark.verify(spark, [store], strategy="ranged", staging=elsewhere)
    assert (found, tree(elsewhere)) == ({str(store): wanted}, ["theirs"])
    assert len(rounds) == 3
    assert mqstore.spark.verify(spark, [store], strategy="ranged") == {str(store): wanted}
    assert rounds[3:] == [["verify"]]
    with pytest.raises(FileNotFoundError):
        mqstore.spark.verify(spark, [store], strategy="ranged", staging=tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()


def test_a_huge_store_among_small_ones(
    spark: Any, store: Path, tmp_path: Path, rounds: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    small = tmp_path / "small"
    with mqstore.open(small, "create", segment_size=1 << 15) as other:
        other.append("t", b"x")
    stores = [small, store]
    wanted = {str(path): mqstore.verify(path) for path in stores}
    assert mqstore.spark.verify(spark, stores) == wanted
    assert rounds == [["verify", "verify"]]
    rounds.clear()
    monkeypatch.setattr(_verify, "_STRETCH_BYTES", 100_000)
    assert mqstore.spark.verify(spark, stores) == wanted
    assert rounds == [["verify_plan"], ["verify", *["verify_step"] * len(rounds[1][1:])], ["verify_assemble"]]
    # As many ranges as the session has task slots, or more if a range would exceed the limit; and one step for the
    # index.
    stretches = max(spark.sparkContext.defaultParallelism, -(-_native.verify_log_bytes(str(store))[0] // 100_000))
    assert len(rounds[1]) == 1 + stretches + 1
    rounds.clear()
    assert mqstore.spark.verify(spark, stores, strategy="partition") == wanted
    assert rounds == [["verify", "verify"]]
    # A log without a store has no place for such files.
    log = store / "commitlog"
    rounds.clear()
    assert mqstore.spark.verify(spark, [log], strategy="ranged") == {str(log): mqstore.verify(log)}
    assert rounds == [["verify"]]


def test_attempts_that_are_lost(spark: Any, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil(store, "commitlog", 5000, 9000, 0)
    before, wanted = tree(store), mqstore.verify(store)
    real = _rounds.tasks

    def made_of(*arguments: Any) -> Callable[[Iterable[Any]], Iterator[Any]]:
        inner = real(*arguments)

        def run(batches: Iterable[Any]) -> Iterator[Any]:
            from pyspark import TaskContext

            results = list(inner(batches))
            context = TaskContext.get()
            assert context is not None
            if context.attemptNumber() == 0:
                raise ConnectionError("lost")
            yield from results

        return run

    monkeypatch.setattr(_rounds, "tasks", made_of)
    assert mqstore.spark.verify(spark, [store], strategy="ranged", max_tasks=3) == {str(store): wanted}
    assert tree(store) == before


def test_what_a_task_left_is_not_what_is_read(spark: Any, store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = tree(store)
    real = _verify._assemble

    def cut(rounds: _rounds.Rounds, stores: list[Any]) -> None:
        for file in Path(stores[0].folder).glob("task-1-*/found"):
            os.truncate(file, file.stat().st_size - 1)
        real(rounds, stores)

    monkeypatch.setattr(_verify, "_assemble", cut)
    with pytest.raises(mqstore.MQStoreError, match=r"task-1-\d+-.*/found at offset 0: .* run the job again"):
        mqstore.spark.verify(spark, [store], strategy="ranged")
    assert tree(store) == before


def test_arguments(spark: Any, store: Path) -> None:
    with pytest.raises(mqstore.InvalidOptionError, match="auto, partition, ranged"):
        mqstore.spark.verify(spark, [store], strategy="whole")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="max_tasks"):
        mqstore.spark.verify(spark, [store], max_tasks=0)


def test_next_to_a_writer_only_problems_that_last_count(
    spark: Any, store: Path, rounds: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    once = {"kind": "queue_behind", "path": str(store), "offset": 7, "detail": "", "consequence": "", "repair": ""}
    checks: list[dict[str, Any]] = []

    def loads(answer: bytes) -> Any:
        report = json.loads(answer)
        if not checks:
            # As a check that compares a new file with an old one.
            report["problems"].append(once)
            report.update(ok=False, confirmations=2)
        checks.append(report)
        return report

    monkeypatch.setattr(_verify, "json", SimpleNamespace(loads=loads))
    round_of_a_check = ["verify_plan", "verify_step", "verify_assemble"]
    with mqstore.open(store, "rw") as writer:
        found = mqstore.spark.verify(spark, [store], strategy="ranged", max_tasks=2)[str(store)]
        assert (found.ok, found.problems) == (True, ())
        assert [each[0] for each in rounds] == round_of_a_check * 2, "a problem that is gone ends the checks"
        # Damage stays.
        writer.flush()
        spoil(store, "commitlog", 5000)
        for each in (rounds, checks):
            each.clear()
        checks.append({})
        found = mqstore.spark.verify(spark, [store], strategy="ranged", max_tasks=2)[str(store)]
        assert found == mqstore.verify(store)
        assert [each[0] for each in rounds] == round_of_a_check * 3
    assert "record_damaged" in {problem.kind for problem in found.problems}
    # Without a writer, one check is enough.
    rounds.clear()
    assert not mqstore.spark.verify(spark, [store], strategy="ranged", max_tasks=2)[str(store)].ok
    assert [each[0] for each in rounds] == round_of_a_check
