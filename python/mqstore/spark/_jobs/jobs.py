"""The jobs `rebuild` and `export` on whole stores."""

from __future__ import annotations

import secrets
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqstore import _native
from mqstore._admin.export import sync_folder
from mqstore._paths import is_url, text_of
from mqstore._reports import ExportReport, RebuildReport
from mqstore.errors import InvalidOptionError
from mqstore.spark._jobs.folders import absolute, homes, job_folders, log_of
from mqstore.spark._jobs.rounds import Call, Rounds, plain
from mqstore.spark._session import require

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from pyspark.sql import SparkSession

    from mqstore._reports import Progress
    from mqstore.spark._read.planning import Part
    from mqstore.spark._remote import Reader, RemoteStore
    from mqstore.types import StorePath


def rebuild(
    spark: SparkSession,
    paths: Iterable[StorePath],
    *,
    dry_run: bool = False,
    progress: Callable[[Progress], object] | None = None,
) -> dict[str, RebuildReport]:
    """Rebuilds the derived files of stores, one task for each store, like `mqstore.rebuild`.

    Each task takes the lock of its store and replaces the old files in one step. The result depends only on the log, so
    a repeated attempt builds the same files.

    Args:
        spark: the session, classic or Spark Connect.
        paths: directories of the stores; the same paths on the driver and on every executor.
        dry_run: whether to report the result only.
        progress: callback with bytes of the logs, or with tasks if a store cannot be written. An exception in it
            cancels the tasks; each store is then rebuilt completely or not at all.

    Returns:
        The reports, by path.

    Raises:
        ImportError: PySpark, pyarrow or pandas is missing.
        MQStoreError: a task failed after all its attempts; the text says where and why. Other stores may be rebuilt.
    """
    require(spark)
    stores = homes(paths)
    logs = [0 if progress is None else log_of(home)[0] for home in stores]
    with job_folders([None if progress is None else home for home in stores]) as folders:
        rounds = Rounds(spark, progress, None if None in folders else sum(logs))
        calls = zip(stores, folders, logs, strict=True)
        found = rounds.run([Call("rebuild", (home, dry_run), folder, size) for home, folder, size in calls])
        rounds.finish()
    reports = ({**each, "skipped": tuple(each["skipped"])} for each in map(plain, found))
    return {home: RebuildReport(**each) for home, each in zip(stores, reports, strict=True)}


def export(
    spark: SparkSession,
    path: StorePath,
    dest: StorePath,
    *,
    format: str = "parquet",
    overwrite: bool = False,
    progress: Callable[[Progress], object] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    **options: object,
) -> ExportReport:
    """Writes messages to a folder of Parquet or Arrow files, without moving them through Spark.

    Each task reads a part of the store and writes its own file to a temporary folder next to ``dest``. The driver
    removes the files of lost attempts and renames the folder in one step, so ``dest`` is complete or does not exist.
    Records of system topics are left out and counted, except those of topics that an option names. So each message is
    there once, and delayed messages that wait are not there.

    Args:
        spark: the session, classic or Spark Connect.
        path: directory of the store, the same path on the driver and on every executor; or a URL. The tasks read the
            versions of the files that the driver listed.
        dest: the folder to create, under the same path on the driver and on every executor.
        format: ``"parquet"`` or ``"arrow"``.
        overwrite: whether to replace an existing folder ``dest``.
        progress: callback with bytes of the log, or with tasks if the read follows queue units. An exception in it
            cancels the tasks.
        storage_options: only for a URL: credentials and settings of the transport, see `mqstore.open`. No error shows
            them.
        options: options of a read: ``topic="orders"``, ``columns="tags,body"``, ``startingTimestamp=...``.

    Returns:
        The report.

    Raises:
        ImportError: PySpark, pyarrow or pandas is missing.
        FileExistsError: ``dest`` exists.
        InvalidOptionError: an option is unknown, or its value is invalid.
        MQStoreError: a task failed after all its attempts, for example because a file at a URL changed meanwhile; the
            text says where and why.
    """
    from mqstore.spark import _source
    from mqstore.spark._options import read_options
    from mqstore.spark._read import planning

    require(spark)
    if format not in ("parquet", "arrow"):
        msg = f"format must be parquet or arrow, not {format!r}"
        raise ValueError(msg)
    started = time.monotonic()
    target = Path(absolute(dest))
    _must_be_free(target, overwrite)
    chosen = read_options({name: _spelled(value) for name, value in {**options, "path": text_of(path)}.items()})
    if storage_options is not None:
        if not any(map(is_url, chosen["paths"])):
            raise InvalidOptionError("storage_options", "only for a store at a URL; omit it")
        chosen["storage"] = dict(storage_options)
    reader = _source.batch_reader(chosen, _source.columns(chosen))
    ranges, left_out = _without_system_topics(reader)
    parts = planning.plan(reader.options, ranges, reader.remotes)
    staging = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    staging.mkdir(parents=True)
    # Folder for progress files, so that lost attempts which still run do not disturb the result.
    attempts = staging / "attempts"
    attempts.mkdir()
    try:
        calls = []
        for number, part in enumerate(parts):
            place = _plain_place(reader.remotes.get(part.path))
            arguments = (reader.options, part.plain(), str(staging), number, format, place)
            calls.append(Call("export", arguments, str(attempts), _size(part)))
        walked = all(part.way == "log" for part in parts)
        rounds = Rounds(spark, progress, sum(call.weight for call in calls) if walked else None)
        found = [plain(answer) for answer in rounds.run(calls)]
        rounds.finish()
        shutil.rmtree(attempts)
        kept = {each["file"] for each in found}
        for file in staging.iterdir():
            if file.name not in kept:
                file.unlink()
        sync_folder(staging)
        _must_be_free(target, overwrite)
        if target.exists():
            shutil.rmtree(target)
        staging.rename(target)
        sync_folder(target.parent)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return ExportReport(
        path=str(target),
        format=format,
        messages=sum(each["rows"] for each in found),
        bytes=sum(each["bytes"] for each in found),
        skipped=left_out,
        reasons={"internal": left_out} if left_out else {},
        resumed=False,
        seconds=round(time.monotonic() - started, 3),
    )


def _without_system_topics(reader: Reader) -> tuple[dict[str, list[Any]], int]:
    """Returns the ranges of a read without those of system topics that no option names, and the number of records."""
    topics = reader.options["topics"]
    named = {*topics.get("names", ()), *topics.get("assign", ())}
    kept: dict[str, list[Any]] = {}
    left_out = 0
    for path, ranges in reader.ranges.items():
        kept[path] = []
        for topic, queue_id, start, end in ranges:
            if topic in named or not _native.is_system_topic(topic):
                kept[path].append((topic, queue_id, start, end))
            else:
                left_out += end - start
    return kept, left_out


def _plain_place(remote: RemoteStore | None) -> tuple[str, dict[str, Any], bytes | None] | None:
    """Returns a store at a URL without classes of this package."""
    return None if remote is None else (remote.url, remote.options, remote.listing)


def _size(part: Part) -> int:
    """Returns the bytes of the log that a part walks."""
    return part.to - part.begin


def _spelled(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _must_be_free(target: Path, overwrite: bool) -> None:
    if target.exists() and not (overwrite and target.is_dir()):
        msg = f"{target}: exists already; set overwrite to replace a folder"
        raise FileExistsError(msg)


for _function in (rebuild, export):
    _function.__module__ = "mqstore.spark"
del _function
