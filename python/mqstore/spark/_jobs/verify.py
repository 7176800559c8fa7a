"""The check of stores on Spark: a task a store, or several for one whose log is huge."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any, get_args

from mqstore import _native
from mqstore._reports import VerifyReport
from mqstore.errors import InvalidOptionError
from mqstore.spark._jobs.compact import Strategy
from mqstore.spark._jobs.folders import absolute, homes, job_folders, log_of
from mqstore.spark._jobs.rounds import Call, Rounds, parallelism, plain
from mqstore.spark._session import require

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import SparkSession

    from mqstore._reports import Progress
    from mqstore.types import StorePath

_STRETCH_BYTES = 4 << 30
"""A log with more bytes is cut, into stretches with at most as many."""


def verify(
    spark: SparkSession,
    paths: Iterable[StorePath],
    *,
    strategy: Strategy = "auto",
    max_tasks: int | None = None,
    staging: StorePath | None = None,
    progress: Callable[[Progress], object] | None = None,
) -> dict[str, VerifyReport]:
    """Checks stores without changing them: each in a task of its own, huge ones in several.

    Several tasks share the log of a store. Each leaves what is not as it should be in a small file; a last task puts
    these together and looks at the rest. The report is that of one process, problem for problem.

    Args:
        spark: the session, classic or Spark Connect.
        paths: the stores' directories; the same paths on the driver and on every executor.
        strategy: ``"partition"`` lets one task check a store, ``"ranged"`` several wherever its log can be cut;
            ``"auto"`` does so with a log of more than 4 GiB.
        max_tasks: at most so many Spark tasks at a time; as many as there are stores, or parts of them, when None.
            About so many share a store, or as many as the session can run at a time.
        staging: a folder that is there, and that driver and executors see under the same path, for what the tasks
            leave for each other. When None it is made in ``mqstore/spark/jobs`` of each store where it is needed: for
            several tasks, and for ``progress``. Nothing stays there. A store that cannot be written is checked by one
            task then.
        progress: called now and then, with bytes of the logs, or with tasks where a store cannot be written; an
            exception that it raises cancels the tasks.

    Returns:
        What `mqstore.verify` finds, by path.

    Raises:
        ImportError: PySpark, pyarrow or pandas is missing.
        InvalidOptionError: there is no such strategy.
        OSError: ``staging`` is not there, or cannot be written.
        MQStoreError: a task failed for good, because there is no store for example; the text says where and why.
    """
    require(spark)
    stores = homes(paths)
    if strategy not in get_args(Strategy):
        raise InvalidOptionError("strategy", f"must be one of {', '.join(get_args(Strategy))}, not {strategy!r}")
    if max_tasks is not None and max_tasks < 1:
        msg = f"max_tasks must be at least 1, not {max_tasks}"
        raise ValueError(msg)
    elsewhere = None if staging is None else absolute(staging)
    least = {"auto": _STRETCH_BYTES, "ranged": 0}.get(strategy)
    logs = [(0, False) if least is None and progress is None else log_of(home) for home in stores]
    # A folder beside the segments of a log that is no store would be in somebody's way.
    free = [is_store or elsewhere is not None for _, is_store in logs]
    shared = [may and least is not None and size > least for may, (size, _) in zip(free, logs, strict=True)]
    used = [may and (shares or progress is not None) for may, shares in zip(free, shared, strict=True)]
    wanted = [home if uses else None for home, uses in zip(stores, used, strict=True)]
    with job_folders(wanted, elsewhere) as folders:
        rounds = Rounds(spark, progress, None if None in folders else sum(size for size, _ in logs), max_tasks)
        found = [
            _Store(home, size, folder, shares and folder is not None)
            for home, (size, _), folder, shares in zip(stores, logs, folders, shared, strict=True)
        ]
        _plan(rounds, found, (max_tasks or parallelism(spark), _STRETCH_BYTES, least))
        _walk(rounds, found)
        _assemble(rounds, found)
        rounds.finish()
    return {store.home: VerifyReport._from_dict(store.report) for store in found}


class _Store:
    """A store that is checked."""

    def __init__(self, home: str, size: int, folder: str | None, shared: bool) -> None:
        self.home = home
        self.size = size
        self.folder = folder
        self.shared = shared
        self.plan = b""
        self.steps: list[tuple[int, bytes]] = []
        self.answers: list[bytes] = []
        self.report: dict[str, Any] = {}


def _plan(rounds: Rounds, stores: list[_Store], cut: tuple[int, int, int | None]) -> None:
    """Shares out the stores that are to be, where that can be done."""
    shared = [store for store in stores if store.shared]
    calls = [Call("verify_plan", (store.home, cut, store.folder), store.folder) for store in shared]
    for store, planned in zip(shared, rounds.run(calls), strict=True):
        store.shared = bool(planned)
        if planned:
            store.plan, store.steps = planned, _native.verify_steps(planned)


def _walk(rounds: Rounds, stores: list[_Store]) -> None:
    """Checks the stores that are not shared, and the parts of those that are."""
    calls = []
    for store in stores:
        if not store.shared:
            calls.append(Call("verify", (store.home,), store.folder, store.size))
            continue
        total = sum(weight for weight, _ in store.steps)
        for weight, step in store.steps:
            calls.append(Call("verify_step", (step,), store.folder, store.size * weight // max(1, total)))
    answers = iter(rounds.run(calls))
    for store in stores:
        if store.shared:
            store.answers = list(islice(answers, len(store.steps)))
        else:
            store.report = plain(next(answers))


def _assemble(rounds: Rounds, stores: list[_Store]) -> None:
    """Puts together what was found of the stores that are shared."""
    shared = [store for store in stores if store.shared]
    calls = [Call("verify_assemble", (store.plan, store.answers), store.folder) for store in shared]
    for store, report in zip(shared, rounds.run(calls), strict=True):
        store.report = plain(report)


verify.__module__ = "mqstore.spark"
