"""Verification of stores on Spark: one task for each store, several for one with a large log."""

from __future__ import annotations

import json
from itertools import islice
from typing import TYPE_CHECKING, Any

from mqstore import _native
from mqstore._paths import is_url, shown_url
from mqstore._read.on_error import check_on_error
from mqstore._remote.failure import RequestFailure
from mqstore._remote.place import pinned
from mqstore._reports import VerifyReport
from mqstore.errors import InvalidOptionError
from mqstore.spark._jobs.compact import Strategy, check_tasks
from mqstore.spark._jobs.folders import Stores, absolute, homes, job_folders, log_of
from mqstore.spark._jobs.reports import Reports
from mqstore.spark._jobs.rounds import Call, Rounds, error_of, parallelism
from mqstore.spark._session import require
from mqstore.spark._stores import all_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession

    from mqstore._reports import Progress
    from mqstore.types import OnError, StorePath

_STRETCH_BYTES = 4 << 30
"""Largest log for one task, and largest range of a divided log, in bytes."""


def verify(
    spark: SparkSession,
    paths: Stores,
    *,
    strategy: Strategy = "auto",
    max_tasks: int | None = None,
    staging: StorePath | None = None,
    progress: Callable[[Progress], object] | None = None,
    on_error: OnError = "raise",
    storage_options: Mapping[str, Any] | None = None,
) -> Reports[VerifyReport]:
    """Checks stores without changing them: one task for each store, several for large ones.

    Several tasks divide the log of a store. Each writes its findings to a small file. A last task combines the files
    and checks the rest. The report is the same as that of one process, problem for problem. If a writer has the store
    open, all of it is done again twice for a store with problems, and only problems that are found each time count.

    Args:
        spark: the session, classic or Spark Connect.
        paths: directories of the stores, the same paths on the driver and on every executor; URLs; and patterns with
            ``*`` for several of them; or a DataFrame with them in its first column. One task checks each store at a
            URL, in the versions of the files that the driver listed.
        strategy: ``"partition"`` uses one task for each store, ``"ranged"`` several if its log can be divided.
            ``"auto"`` uses several for a log of more than 4 GiB.
        max_tasks: maximum number of Spark tasks at a time; None is the number of stores or of their parts. It is also
            the approximate number of tasks for one store; for None, the number that the session can run at a time.
        staging: an existing folder for the files of the tasks, under the same path on the driver and on every
            executor. None creates one in ``mqstore/spark/jobs`` of each store that needs it: for several tasks, and
            for ``progress``. The job removes its files. A store that cannot be written is then checked by one task.
        progress: callback with bytes of the logs, or with tasks if a store cannot be written. An exception in it
            cancels the tasks.
        on_error: behaviour if a store cannot be checked, which is no damage: it does not exist, access is denied, or a
            file at a URL changed meanwhile. ``"raise"`` raises the error. ``"skip"`` checks the other stores;
            `Reports.failures` names those that failed.
        storage_options: only for URLs: credentials and settings of the transport, see `mqstore.open`. No error shows
            them.

    Returns:
        The results of `mqstore.verify`, by path; URLs are without user, password and query.

    Raises:
        MissingPackageError: PySpark, pyarrow or pandas is missing.
        InvalidOptionError: unknown strategy; or ``storage_options`` without a URL.
        NotAStoreError: a pattern matches no store.
        OSError: ``staging`` does not exist, or cannot be written.
        MQStoreError: a task failed after all its attempts, for example because a store does not exist; the text says
            where and why.
    """
    require(spark)
    check_on_error(on_error, are_several=True)
    stores = homes(paths, with_urls=True, storage_options=storage_options)
    if storage_options is not None and not any(map(is_url, stores)):
        raise InvalidOptionError("storage_options", "only for stores at URLs; omit it")
    check_tasks(strategy, max_tasks)
    elsewhere = None if staging is None else absolute(staging)
    least = {"auto": _STRETCH_BYTES, "ranged": 0}.get(strategy)
    storage = dict(storage_options or {})
    # The bytes balance the tasks.
    directories = [home for home in stores if not is_url(home)]
    sizes = dict(zip(directories, all_of(log_of, directories), strict=True))
    listings = _listings([home for home in stores if is_url(home)], storage)
    logs = [(listings[home][0], False) if is_url(home) else sizes[home] for home in stores]
    # A folder must not be created next to the segments of a log without a store.
    free = [
        (is_store or elsewhere is not None) and not is_url(home)
        for home, (_, is_store) in zip(stores, logs, strict=True)
    ]
    shared = [may and least is not None and size > least for may, (size, _) in zip(free, logs, strict=True)]
    used = [may and (shares or progress is not None) for may, shares in zip(free, shared, strict=True)]
    wanted = [home if uses else None for home, uses in zip(stores, used, strict=True)]
    with job_folders(wanted, elsewhere) as folders:
        total = None if None in folders else sum(size for size, _ in logs)
        rounds = Rounds(spark, progress, total, max_tasks, keeps=on_error == "skip")
        found = [
            _Store(home, size, folder, shares and folder is not None)
            for home, (size, _), folder, shares in zip(stores, logs, folders, shared, strict=True)
        ]
        for store in found:
            if is_url(store.home):
                store.place = (storage, listings[store.home][1])
        _check(rounds, found, cut := (max_tasks or parallelism(spark), _STRETCH_BYTES, least))
        _confirm(rounds, found, cut)
        rounds.finish()
    return Reports.of({store.shown: store.error or VerifyReport._from_dict(store.report) for store in found})


def _listings(urls: list[str], storage: dict[str, Any]) -> dict[str, tuple[int, bytes | None]]:
    """Lists the files of stores. Returns their bytes and their listings; None if the task will report an error."""

    def listed(url: str) -> tuple[int, bytes | None]:
        source = pinned(url, storage)[1]
        try:
            rows = source.files()
        except (RequestFailure, OSError):
            return 0, None
        return sum(row[1] for row in rows), source.listing()

    return dict(zip(urls, all_of(listed, urls), strict=True))


class _Store:
    """A store of the job."""

    def __init__(self, home: str, size: int, folder: str | None, shared: bool) -> None:
        self.home = home
        self.place: tuple[dict[str, Any], bytes | None] | None = None
        """Storage options and listing of a URL."""
        self.error: Exception | None = None
        """The error of a task; then no later round includes the store."""
        self.size = size
        self.folder = folder
        self.shared = shared
        self.plan = b""
        self.steps: list[tuple[int, bytes]] = []
        self.answers: list[bytes] = []
        self.report: dict[str, Any] = {}
        self.confirmations = 0
        """Number of further checks that must find the problems too."""

    @property
    def shown(self) -> str:
        """The path, or the URL without secrets."""
        return shown_url(self.home) if is_url(self.home) else self.home

    def again(self) -> _Store:
        """Returns the store for a further check."""
        return _Store(self.home, self.size, self.folder, shared=True)

    def confirm(self, later: _Store) -> None:
        """Keeps the problems that a later check found too, with the same kind and place."""
        known = {_place(problem) for problem in self.report["problems"]}
        found = [problem for problem in later.report["problems"] if _place(problem) in known]
        self.report = {**later.report, "problems": found, "ok": not found and not later.report["more"]}
        self.confirmations = self.confirmations - 1 if found else 0


def _place(problem: dict[str, Any]) -> tuple[Any, ...]:
    return problem["kind"], problem["path"], problem["offset"]


def _check(rounds: Rounds, stores: list[_Store], cut: tuple[int, int, int | None]) -> None:
    _plan(rounds, stores, cut)
    _walk(rounds, stores)
    _assemble(rounds, stores)


def _confirm(rounds: Rounds, stores: list[_Store], cut: tuple[int, int, int | None]) -> None:
    """Checks stores with problems again if a writer has them open. `mqstore.verify` does the same by itself."""
    while unsure := [store for store in stores if store.confirmations and store.error is None]:
        later = [store.again() for store in unsure]
        _check(rounds, later, cut)
        for store, again in zip(unsure, later, strict=True):
            store.error = again.error
            if again.error is None:
                store.confirm(again)


def _plan(rounds: Rounds, stores: list[_Store], cut: tuple[int, int, int | None]) -> None:
    """Plans the stores with several tasks, if their logs can be divided."""
    shared = [store for store in stores if store.shared]
    calls = [Call("verify_plan", (store.home, cut, store.folder), store.folder) for store in shared]
    for store, planned in zip(shared, rounds.run(calls), strict=True):
        store.error = error_of([planned])
        store.shared = bool(planned)
        if planned and store.error is None:
            store.plan, store.steps = planned, _native.verify_steps(planned)


def _walk(rounds: Rounds, stores: list[_Store]) -> None:
    """Checks the stores with one task, and the parts of the others."""
    calls = []
    stores = [store for store in stores if store.error is None]
    for store in stores:
        if not store.shared:
            calls.append(Call("verify", (store.home, store.place), store.folder, store.size))
            continue
        total = sum(weight for weight, _ in store.steps)
        for weight, step in store.steps:
            calls.append(Call("verify_step", (step,), store.folder, store.size * weight // max(1, total)))
    answers = iter(rounds.run(calls))
    for store in stores:
        store.answers = list(islice(answers, len(store.steps) if store.shared else 1))
        store.error = error_of(store.answers)
        if not store.shared and store.error is None:
            store.report = json.loads(store.answers[0])


def _assemble(rounds: Rounds, stores: list[_Store]) -> None:
    """Combines the results of stores with several tasks."""
    shared = [store for store in stores if store.shared and store.error is None]
    calls = [Call("verify_assemble", (store.plan, store.answers), store.folder) for store in shared]
    for store, report in zip(shared, rounds.run(calls), strict=True):
        store.error = error_of([report])
        if store.error is None:
            store.report = json.loads(report)
            store.confirmations = store.report.pop("confirmations")


verify.__module__ = "mqstore.spark"
