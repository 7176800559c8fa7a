"""Progress of jobs: the files of attempts, the sums of the driver, and the reports while tasks run."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

import mqstore
import mqstore.spark
from mqstore.spark._jobs import progress as _progress
from mqstore.spark._jobs import rounds as _rounds
from mqstore.spark._jobs.progress import Meter, Teller

Told = list[tuple[int, int]]


@pytest.fixture
def told() -> Told:
    return []


@pytest.fixture
def job(tmp_path: Path) -> Path:
    return tmp_path


def meter(told: Told, total: int | None) -> Meter:
    return Meter(lambda now: told.append((now.done, now.total)), total)


def attempt(job: Path, name: str, done: int, total: int) -> None:
    folder = job / name
    folder.mkdir(exist_ok=True)
    (folder / "progress").write_bytes(b"%020d %020d\n" % (done, total))


def look(meter: Meter, tasks: int | None = None) -> None:
    meter._next_look = 0.0
    meter.look(tasks)


def test_the_furthest_attempt_counts(told: Told, job: Path) -> None:
    found = meter(told, 1000)
    found.begin(0, 2, [600, 300], [str(job), str(job)])
    attempt(job, "task-0-0-1-0-7-ab", 50, 100)
    look(found)
    # A second copy of the task, a smaller value of the first copy, another task, another round, and an unrelated file.
    attempt(job, "task-0-0-1-1-9-cd", 10, 100)
    attempt(job, "task-0-0-1-0-7-ab", 20, 100)
    attempt(job, "task-1-1-1-0-7-ab", 100, 100)
    attempt(job, "task-0-2-1-0-7-ab", 100, 100)
    attempt(job, "tasks", 100, 100)
    look(found)
    attempt(job, "task-0-1-1-0-8-ef", 200, 100)
    look(found)
    attempt(job, "task-0-0-1-1-9-cd", 75, 100)
    look(found)
    found.end()
    assert told == [(0, 1000), (300, 1000), (600, 1000), (750, 1000), (900, 1000)]
    found.begin(1, 1, [200], [str(job)])
    # More than expected.
    assert told[-1] == (900, 1000)
    found.end()
    found.finish()
    assert told[-1] == (1100, 1100)


@pytest.mark.parametrize("content", [b"", b"1 2\n", b"0" * 20 + b" " + b"0" * 20 + b"\n", b"x" * 42, b"9" * 64])
def test_a_file_that_says_nothing_is_as_none(told: Told, job: Path, content: bytes) -> None:
    attempt(job, "task-0-0-1", 1, 1)
    (job / "task-0-0-1" / "progress").write_bytes(content)
    found = meter(told, 100)
    found.begin(0, 1, [100], [str(job), str(job / "nothing")])
    look(found)
    assert told == [(0, 100)]


def test_tasks_count_where_bytes_are_not_known(told: Told) -> None:
    found = meter(told, None)
    found.begin(0, 3, [0, 0, 0], [None, None, None])
    for tasks in (0, 2, 1, None, 3):
        look(found, tasks)
    found.end()
    found.begin(1, 2, [0, 0], [None, None])
    look(found, 1)
    found.end()
    found.finish()
    assert told == [(0, 3), (2, 3), (3, 3), (4, 5), (5, 5)]


def test_an_attempt_tells_now_and_then(job: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(_progress.time, "monotonic", lambda: now)
    tell = Teller(str(job))
    file = job / "progress"
    tell(10, 100)
    assert not file.exists()
    now += 1
    tell(20, 100)
    tell(30, 100)
    assert _progress._share(file) == 0.2
    now += 1
    tell(300, 100)
    assert _progress._share(file) == 1.0
    tell.finish()
    assert len(file.read_bytes()) == 42
    # A missing folder is no error.
    late = Teller(str(job / "gone"))
    late.finish()
    assert not (job / "gone").exists()


def test_what_is_told_while_tasks_are_at_work(spark: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, gate = tmp_path / "store", tmp_path / "gate"
    gate.mkdir()
    with mqstore.open(path, "create", segment_size=1 << 15) as store:
        for number in range(100):
            store.append("t", b"x" * 100, keys=f"k{number}")
    real = _rounds.tasks

    def slow(*arguments: Any) -> Callable[[Iterable[Any]], Iterator[Any]]:
        inner, job = real(*arguments), arguments[0][0][0]

        def run(batches: Iterable[Any]) -> Iterator[Any]:
            def tell(name: str, done: int) -> None:
                folder = Path(job, f"task-0-0-{name}")
                folder.mkdir(exist_ok=True)
                (folder / "progress").write_bytes(b"%020d %020d\n" % (done, 100))

            def wait(share: int) -> None:
                end = time.monotonic() + 60
                while not (gate / str(share)).exists() and time.monotonic() < end:
                    time.sleep(0.01)

            tell("first", 25)
            wait(25)
            tell("second", 10)
            tell("first", 5)
            time.sleep(0.6)
            tell("second", 50)
            wait(50)
            yield from inner(batches)

        return run

    monkeypatch.setattr(_rounds, "tasks", slow)
    shares: list[int] = []

    def progress(now: mqstore.Progress) -> None:
        shares.append(100 * now.done // now.total)
        (gate / str(shares[-1])).touch()

    # A total that makes the numbers multiples of a hundredth.
    monkeypatch.setattr("mqstore.spark._jobs.verify.log_of", lambda _: (1 << 20, True))
    found = mqstore.spark.verify(spark, [path], progress=progress)
    assert found == {str(path): mqstore.verify(path)}
    assert shares == [0, 25, 50, 100]
    assert not (path / "mqstore" / "spark").exists()
