"""The jobs `rebuild` and `export` on whole stores."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Any, Literal, cast, overload

from mqstore import _native
from mqstore._paths import is_url, text_of
from mqstore._read.on_error import check_on_error
from mqstore._reports import ExportReport, RebuildReport
from mqstore.errors import InvalidOptionError
from mqstore.spark._jobs.folders import Stores, homes, is_one, job_folders, log_of, texts_of
from mqstore.spark._jobs.reports import Reports
from mqstore.spark._jobs.results import result
from mqstore.spark._jobs.rounds import Call, Failed, Rounds
from mqstore.spark._session import require
from mqstore.spark._stores import all_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql import SparkSession

    from mqstore._reports import Progress
    from mqstore.spark._remote import RemoteStore
    from mqstore.types import OnError, StorePath


def rebuild(
    spark: SparkSession,
    paths: Stores,
    *,
    dry_run: bool = False,
    progress: Callable[[Progress], object] | None = None,
    on_error: OnError = "raise",
) -> Reports[RebuildReport]:
    """Rebuilds the derived files of stores, one task for each store, like `mqstore.rebuild`.

    Each task takes the lock of its store and replaces the old files in one step. The result depends only on the log, so
    a repeated attempt builds the same files.

    Args:
        spark: the session, classic or Spark Connect.
        paths: directories of the stores and patterns with ``*``, or a DataFrame with them in its first column; the
            same paths on the driver and on every executor.
        dry_run: whether to report the result only.
        progress: callback with bytes of the logs, or with tasks if a store cannot be written. An exception in it
            cancels the tasks; each store is then rebuilt completely or not at all.
        on_error: behaviour if a store cannot be rebuilt. ``"raise"`` raises the error. ``"skip"`` rebuilds the other
            stores; `Reports.failures` names those that failed.

    Returns:
        The reports, by path.

    Raises:
        MissingPackageError: PySpark, pyarrow or pandas is missing.
        MQStoreError: a task failed after all its attempts; the text says where and why. Other stores may be rebuilt.
    """
    require(spark)
    check_on_error(on_error, are_several=True)
    stores = homes(paths)
    # The bytes balance the tasks.
    logs = [size for size, _ in all_of(log_of, stores)]
    with job_folders([None if progress is None else home for home in stores]) as folders:
        rounds = Rounds(spark, progress, None if None in folders else sum(logs), keeps=on_error == "skip")
        calls = zip(stores, folders, logs, strict=True)
        found = rounds.run([Call("rebuild", (home, dry_run), folder, size) for home, folder, size in calls])
        rounds.finish()
    return Reports.of({home: _rebuilt(answer) for home, answer in zip(stores, found, strict=True)})


def _rebuilt(answer: bytes) -> RebuildReport | Exception:
    return answer.error() if isinstance(answer, Failed) else RebuildReport._from_json(answer)


@overload
def export(
    spark: SparkSession,
    path: StorePath,
    dest: StorePath,
    *,
    format: str = ...,
    overwrite: bool = ...,
    progress: Callable[[Progress], object] | None = ...,
    on_error: Literal["raise"] = ...,
    storage_options: Mapping[str, Any] | None = ...,
    target_options: Mapping[str, Any] | None = ...,
    **options: object,
) -> ExportReport: ...
@overload
def export(
    spark: SparkSession,
    path: Stores,
    dest: StorePath,
    *,
    format: str = ...,
    overwrite: bool = ...,
    progress: Callable[[Progress], object] | None = ...,
    on_error: OnError = ...,
    storage_options: Mapping[str, Any] | None = ...,
    target_options: Mapping[str, Any] | None = ...,
    **options: object,
) -> ExportReport | Reports[ExportReport]: ...
def export(
    spark: SparkSession,
    path: Stores,
    dest: StorePath,
    *,
    format: str = "parquet",
    overwrite: bool = False,
    progress: Callable[[Progress], object] | None = None,
    on_error: OnError = "raise",
    storage_options: Mapping[str, Any] | None = None,
    target_options: Mapping[str, Any] | None = None,
    **options: object,
) -> ExportReport | Reports[ExportReport]:
    """Writes messages to a folder of Parquet or Arrow files, or to a URL, without moving them through Spark.

    Each task reads a part of a store and writes its own file to a temporary folder next to ``dest``. The driver
    removes the files of lost attempts and renames the folder in one step, so ``dest`` is complete or does not exist.
    At a URL, each task uploads its file, and the driver publishes one manifest that names the files
    (`mqstore.published`), and removes the files of lost attempts; `mqstore.clean` removes those that come later.
    Records of system topics are left out and counted, except those of topics that an option names. So each message is
    there once, and delayed messages that wait are not there.

    Args:
        spark: the session, classic or Spark Connect.
        path: directory of the store, the same path on the driver and on every executor; or a URL. The tasks read the
            versions of the files that the driver listed. An iterable of them, a pattern with ``*``, or a DataFrame with
            them in its first column is several stores: all files are in one folder, and the column ``store`` comes
            first, as in a scan.
        dest: the folder to create, under the same path on the driver and on every executor. Or a URL (``s3://``,
            ``gs://``, ``az://``) at which there is no result yet.
        format: ``"parquet"`` or ``"arrow"``.
        overwrite: whether to replace an existing folder ``dest``. A result at a URL is never replaced.
        progress: callback with bytes of the log, or with tasks if the read follows queue units or ``dest`` is a URL. An
            exception in it cancels the tasks.
        on_error: only for several stores: behaviour if one of them cannot be read. ``"raise"`` raises the error and
            writes nothing. ``"skip"`` exports the other stores; `Reports.failures` names those that failed, and
            ``dest`` has no row of them. If all of them failed, ``dest`` does not change.
        storage_options: only for URLs: credentials and settings of the transport, see `mqstore.open`. No error shows
            them.
        target_options: only if ``dest`` is a URL: credentials and settings of its transport, as `storage_options`.
        options: options of a read: ``topic="orders"``, ``columns="tags,body"``, ``startingTimestamp=...``.

    Returns:
        The report; for several stores the reports by path, with the messages and bytes of each store.

    Raises:
        MissingPackageError: PySpark, pyarrow or pandas is missing.
        FileExistsError: ``dest`` exists.
        ResultExistsError: the URL ``dest`` has a result or other objects.
        RemoteStoreError: results cannot be written to this kind of URL.
        InvalidOptionError: an option is unknown, its value is invalid, or the URL ``dest`` names one file.
        NotAStoreError: a pattern matches no store.
        MQStoreError: a task failed after all its attempts, for example because a file at a URL changed meanwhile; the
            text says where and why.
    """
    from mqstore.spark import _source
    from mqstore.spark._options import read_options

    require(spark)
    if format not in ("parquet", "arrow"):
        raise ValueError(f"format must be parquet or arrow, not {format!r}")
    started = time.monotonic()
    places = {"path": text_of(cast("StorePath", path))} if is_one(path) else {"paths": json.dumps(texts_of(path))}
    chosen = read_options({name: _spelled(value) for name, value in {**options, **places}.items()})
    check_on_error(on_error, chosen["several"])
    chosen["on_error"] = on_error
    # An export is a copy of the log.
    chosen["archive"] = False
    if storage_options is not None:
        if not any(map(is_url, chosen["paths"])):
            raise InvalidOptionError("storage_options", "only for a store at a URL; omit it")
        chosen["storage"] = dict(storage_options)
    topics = chosen["topics"]
    named = {*topics.get("names", ()), *topics.get("assign", ())}
    with result(dest, format, overwrite, target_options) as target:
        read = _source.batch(
            _source.narrowed(chosen, _source.columns(chosen)),
            lambda topic: topic not in named and _native.is_system_topic(topic),
        )
        stores = {path: _Exported(planned.left_out) for path, planned in read.stores.items()}
        parts = [part for planned in read.stores.values() for part in planned.parts]
        calls = []
        for number, part in enumerate(parts):
            place = _plain_place(read.remotes.get(part.path))
            arguments = (read.options, part.plain(), target.place, number, format, place)
            calls.append(Call("export", arguments, target.progress, part.to - part.begin))
        can_measure = target.progress is not None and all(part.way == "log" for part in parts)
        total = sum(call.weight for call in calls) if can_measure else None
        rounds = Rounds(spark, progress, total, keeps=on_error == "skip")
        for part, answer in zip(parts, rounds.run(calls), strict=True):
            stores[part.path].add(answer)
        rounds.finish()
        failures = {**read.failures, **{path: one.error for path, one in stores.items() if one.error is not None}}
        reports = {path: one.report(target.shown, format, started) for path, one in stores.items() if one.error is None}
        if reports:
            shown = [{"store": path, **one.to_dict()} for path, one in reports.items()]
            target.publish([file for store in stores.values() for file in store.files], {"reports": shown})
    return Reports(reports, failures.items()) if chosen["several"] else next(iter(reports.values()))


class _Exported:
    """The files of one store in an export."""

    def __init__(self, left_out: int) -> None:
        self._left_out = left_out
        self._found: list[dict[str, Any]] = []
        self.error: Exception | None = None

    def add(self, answer: bytes) -> None:
        """Adds the answer for a part."""
        if isinstance(answer, Failed):
            self.error = self.error or answer.error()
        else:
            self._found.append(json.loads(answer))

    @property
    def files(self) -> list[dict[str, Any]]:
        """The answers for the files; none of a store that failed."""
        return [] if self.error is not None else self._found

    def report(self, target: str, format: str, started: float) -> ExportReport:
        """Returns the report of the store."""
        return ExportReport(
            path=target,
            format=format,
            messages=sum(each["rows"] for each in self._found),
            bytes=sum(each["bytes"] for each in self._found),
            skipped=self._left_out,
            reasons={"internal": self._left_out} if self._left_out else {},
            resumed=False,
            seconds=round(time.monotonic() - started, 3),
        )


def _plain_place(remote: RemoteStore | None) -> tuple[str, dict[str, Any], bytes | None] | None:
    """Returns a store at a URL without classes of this package."""
    return None if remote is None else (remote.url, remote.options, remote.listing)


def _spelled(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


for _function in (rebuild, export):
    _function.__module__ = "mqstore.spark"
del _function
