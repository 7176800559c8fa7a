"""Jobs on the executors, as rounds of calls. The calls of a round use the results of the round before."""

from __future__ import annotations

import heapq
import pickle
from typing import TYPE_CHECKING, Any, NamedTuple

from mqstore.errors import MQStoreError
from mqstore.spark._jobs.progress import Meter
from mqstore.spark._jobs.tasks import tasks
from mqstore.spark._session import run

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from pyspark.sql import SparkSession

    from mqstore._reports import Progress

_CONNECT_PARALLELISM = 8
"""Number of tasks for one piece of work, if the session does not report how many it can run at a time."""


def parallelism(spark: SparkSession) -> int:
    """Returns the number of tasks for one piece of work."""
    context = getattr(spark, "sparkContext", None)
    return _CONNECT_PARALLELISM if context is None else context.defaultParallelism


class Failed(bytes):
    """The answer of a call that failed, if the job keeps errors."""

    def error(self) -> Exception:
        """Returns the error."""
        found = pickle.loads(self)  # noqa: S301 - from our own task; Spark itself unpickles what tasks return
        return found if isinstance(found, Exception) else MQStoreError(f"a task failed: {found}")


def error_of(answers: Iterable[bytes]) -> Exception | None:
    """Returns the first error in answers."""
    return next((answer.error() for answer in answers if isinstance(answer, Failed)), None)


def balanced(weights: Sequence[int], width: int) -> list[list[int]]:
    """Divides calls with these weights among `width` tasks: the heaviest call first, to the task with the least work.

    The tasks with most work come first, because Spark starts tasks in their order.
    """
    tasks: list[tuple[int, int, int, list[int]]] = [(0, 0, number, []) for number in range(width)]
    for at in sorted(range(len(weights)), key=lambda at: (-weights[at], at)):
        work, count, number, calls = heapq.heappop(tasks)
        calls.append(at)
        heapq.heappush(tasks, (work + weights[at], count + 1, number, calls))
    return [calls for *_, calls in sorted(tasks, key=lambda task: (-task[0], task[2]))]


class Call(NamedTuple):
    """One call of a verb in `work`."""

    name: str
    arguments: tuple[Any, ...]
    """Plain values and bytes, because an executor may not have the classes of this package."""
    job: str | None = None
    """Folder of its job."""
    weight: int = 0
    """Weight of the call, in bytes."""


class Rounds:
    """The rounds of one job."""

    def __init__(
        self,
        spark: SparkSession,
        progress: Callable[[Progress], object] | None,
        total: int | None,
        max_tasks: int | None = None,
        *,
        keeps: bool = False,
    ) -> None:
        """Creates the rounds of a job: `total` bytes (None counts tasks), at most `max_tasks` tasks at a time.

        With `keeps`, an error in a call does not end the round: its answer is a `Failed`.
        """
        self._spark = spark
        self._meter = None if progress is None else Meter(progress, total)
        self._max_tasks = max_tasks
        self._keeps = keeps
        self._number = 0

    def expect(self, size: int) -> None:
        """Adds bytes of the next rounds to the total."""
        if self._meter is not None:
            self._meter.expect(size)

    def run(self, calls: Sequence[Call]) -> list[bytes]:
        """Runs these calls, one or a few in each task, balanced by weight. Returns their results, in order.

        Raises:
            MQStoreError: a call failed after all its attempts; the text has the reason.
        """
        if not calls:
            return []
        width = min(len(calls), self._max_tasks or len(calls))
        plain = [(call.job, call.name, call.arguments) for call in calls]
        shares = balanced([call.weight for call in calls], width)
        function = tasks(plain, shares, self._number, self._meter is not None, self._keeps)
        if self._meter is not None:
            self._meter.begin(self._number, width, [call.weight for call in calls], [call.job for call in calls])
        look = None if self._meter is None else self._meter.look
        rows = run(self._spark, function, width, "number bigint, answer binary, failed boolean", look)
        if self._meter is not None:
            self._meter.end()
        self._number += 1
        by_number = {row.number: (Failed if row.failed else bytes)(row.answer) for row in rows}
        return [by_number[number] for number in range(len(calls))]

    def finish(self) -> None:
        """Ends the last round."""
        if self._meter is not None and self._number:
            self._meter.finish()
