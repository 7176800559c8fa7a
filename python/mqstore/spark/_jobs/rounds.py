"""Jobs on the executors, as rounds of calls. The calls of a round use the results of the round before."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, NamedTuple

from mqstore import _native
from mqstore.spark._jobs.progress import Meter
from mqstore.spark._jobs.tasks import Home, tasks
from mqstore.spark._session import run
from mqstore.spark._ship import archive_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pyspark.sql import SparkSession

    from mqstore._reports import Progress

_CONNECT_PARALLELISM = 8
"""Number of tasks for one piece of work, if the session does not report how many it can run at a time."""


def parallelism(spark: SparkSession) -> int:
    """Returns the number of tasks for one piece of work."""
    context = getattr(spark, "sparkContext", None)
    return _CONNECT_PARALLELISM if context is None else context.defaultParallelism


def plain(answer: bytes) -> Any:
    """Returns the report in a result."""
    return json.loads(answer)


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
    ) -> None:
        """Creates the rounds of a job: `total` bytes (None counts tasks), at most `max_tasks` tasks at a time."""
        self._spark = spark
        self._meter = None if progress is None else Meter(progress, total)
        self._max_tasks = max_tasks
        self._number = 0

    def run(self, calls: Sequence[Call]) -> list[bytes]:
        """Runs these calls, one or a few in each task. Returns their results, in order.

        Raises:
            MQStoreError: a call failed after all its attempts; the text has the reason.
        """
        if not calls:
            return []
        width = min(len(calls), self._max_tasks or len(calls))
        plain = [(call.job, call.name, call.arguments) for call in calls]
        home = Home(_native.__version__, archive_name())
        function = tasks(plain, width, self._number, self._meter is not None, home)
        if self._meter is not None:
            self._meter.begin(self._number, width, [call.weight for call in calls], [call.job for call in calls])
        look = None if self._meter is None else self._meter.look
        rows = run(self._spark, function, width, "number bigint, answer binary", look)
        if self._meter is not None:
            self._meter.end()
        self._number += 1
        by_number = {row.number: bytes(row.answer) for row in rows}
        return [by_number[number] for number in range(len(calls))]

    def finish(self) -> None:
        """Ends the last round."""
        if self._meter is not None and self._number:
            self._meter.finish()
