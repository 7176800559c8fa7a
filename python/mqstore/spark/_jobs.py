"""The jobs on whole stores, but for compaction: `verify`, `rebuild`, `export`."""

from __future__ import annotations

import json
import os
import secrets
import shutil
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqstore._export import sync_folder
from mqstore._paths import home_of
from mqstore._reports import ExportReport, Problem, RebuildReport, VerifyReport
from mqstore.spark._session import require, run
from mqstore.spark._tasks import FAILED

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from pyspark.sql import SparkSession

    from mqstore._reports import Progress
    from mqstore.types import StorePath


def verify(
    spark: SparkSession, paths: Iterable[StorePath], *, progress: Callable[[Progress], object] | None = None
) -> dict[str, VerifyReport]:
    """Checks stores, each in a task of its own, without changing them.

    Args:
        spark: the session, classic or Spark Connect.
        paths: the stores' directories; the same paths on the driver and on every executor.
        progress: called now and then, with tasks instead of bytes; an exception that it raises cancels the tasks. On
            Spark Connect it is called at the beginning and at the end.

    Returns:
        What `mqstore.verify` finds, by path.

    Raises:
        ImportError: PySpark, pyarrow or pandas is missing.
        MQStoreError: a task failed for good, because there is no store for example; the text says where and why.
    """
    homes = _homes(spark, paths)
    found = _run(spark, [("verify", [home]) for home in homes], progress)
    return {home: _verified(each) for home, each in zip(homes, found, strict=True)}


def rebuild(
    spark: SparkSession,
    paths: Iterable[StorePath],
    *,
    dry_run: bool = False,
    progress: Callable[[Progress], object] | None = None,
) -> dict[str, RebuildReport]:
    """Makes the derived files of stores anew, each store in a task of its own, as `mqstore.rebuild` does.

    Each task takes the lock of its store and changes the old files for the new ones in one step. What it makes depends
    on the log alone, so that an attempt that is repeated makes the same files again.

    Args:
        spark: the session, classic or Spark Connect.
        paths: the stores' directories; the same paths on the driver and on every executor.
        dry_run: only tells what would come out.
        progress: called now and then, with tasks instead of bytes; an exception that it raises cancels the tasks; a
            store is rebuilt as a whole or not at all. On Spark Connect it is called at the beginning and at the end.

    Returns:
        What was made, by path.

    Raises:
        ImportError: PySpark, pyarrow or pandas is missing.
        MQStoreError: a task failed for good; the text says where and why. Other stores may be rebuilt.
    """
    homes = _homes(spark, paths)
    found = _run(spark, [("rebuild", [home, dry_run]) for home in homes], progress)
    reports = ({**each, "skipped": tuple(each["skipped"])} for each in found)
    return {home: RebuildReport(**each) for home, each in zip(homes, reports, strict=True)}


def export(
    spark: SparkSession,
    path: StorePath,
    dest: StorePath,
    *,
    format: str = "parquet",
    overwrite: bool = False,
    progress: Callable[[Progress], object] | None = None,
    **options: object,
) -> ExportReport:
    """Writes messages to a folder of Parquet or Arrow files, without moving them through Spark.

    Each task reads a part of the store and writes a file of its own into a folder beside ``dest``. The driver removes
    what lost attempts left there and gives the folder its name, in one step: ``dest`` is there whole or not at all.

    Args:
        spark: the session, classic or Spark Connect.
        path: the store's directory; the same path on the driver and on every executor, as ``dest``.
        dest: the folder, which is made.
        format: ``"parquet"`` or ``"arrow"``.
        overwrite: whether a folder at ``dest`` is replaced.
        progress: called now and then, with tasks instead of bytes; an exception that it raises cancels the tasks. On
            Spark Connect it is called at the beginning and at the end.
        options: those of a read: ``topic="orders"``, ``columns="tags,body"``, ``startingTimestamp=...``.

    Returns:
        What was written.

    Raises:
        ImportError: PySpark, pyarrow or pandas is missing.
        FileExistsError: there is something at ``dest``.
        InvalidOptionError: an option is unknown, or cannot be.
        MQStoreError: a task failed for good; the text says where and why.
    """
    from mqstore.spark import _source

    require(spark)
    if format not in ("parquet", "arrow"):
        msg = f"format must be parquet or arrow, not {format!r}"
        raise ValueError(msg)
    started = time.monotonic()
    target = Path(_absolute(dest))
    _must_be_free(target, overwrite)
    given = {name: _spelled(value) for name, value in {**options, "path": home_of(path)}.items()}
    reader = _source.reader(given, _source.schema(given))
    parts = _source.plan(reader.options, reader.ranges)
    staging = target.with_name(f".{target.name}.{secrets.token_hex(8)}")
    staging.mkdir(parents=True)
    try:
        calls = [
            ("export", [reader.options, part.plain(), str(staging), number, format])
            for number, part in enumerate(parts)
        ]
        found = _run(spark, calls, progress)
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
        left_out=0,
        resumed=False,
        seconds=round(time.monotonic() - started, 3),
    )


def _spelled(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _must_be_free(target: Path, overwrite: bool) -> None:
    if target.exists() and not (overwrite and target.is_dir()):
        msg = f"{target}: exists already; overwrite replaces a folder"
        raise FileExistsError(msg)


def _absolute(path: StorePath) -> str:
    # Symbolic links stay as they are on the executors too.
    return os.path.abspath(home_of(path))  # noqa: PTH100


def _homes(spark: SparkSession, paths: Iterable[StorePath]) -> list[str]:
    require(spark)
    if isinstance(paths, str | bytes | os.PathLike):
        msg = f"paths must be an iterable of directories, not {type(paths).__name__}"
        raise TypeError(msg)
    return [_absolute(path) for path in paths]


def _verified(values: dict[str, Any]) -> VerifyReport:
    problems = tuple(Problem(**each) for each in values["problems"])
    return VerifyReport(values["ok"], values["messages"], values["bytes"], problems)


def _run(
    spark: SparkSession, calls: list[tuple[str, list[Any]]], progress: Callable[[Progress], object] | None
) -> list[Any]:
    """Calls functions of `_work` on the executors, each in a task of its own; what they answer, in order."""
    if not calls:
        return []
    function = _tasks([json.dumps(call) for call in calls])
    answers = run(spark, function, len(calls), "number bigint, answer string", progress)
    by_number = {row.number: json.loads(row.answer) for row in answers}
    return [by_number[number] for number in range(len(calls))]


def _tasks(calls: list[str]) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """The function for ``mapInArrow``, pickled by value."""
    from mqstore.spark import _source

    enter, home = _source.entering()
    mark = FAILED

    def run(batches: Iterable[Any]) -> Iterator[Any]:
        import json

        import pyarrow as pa

        try:
            enter(home)
        except RuntimeError as error:
            msg = f"{mark}{error}"
            raise RuntimeError(msg) from None
        import mqstore
        from mqstore.spark import _work
        from mqstore.spark._locks import SAME_PATH

        for batch in batches:
            numbers = batch.column(0).to_pylist()
            answers = []
            for number in numbers:
                name, arguments = json.loads(calls[number])
                try:
                    answers.append(json.dumps(getattr(_work, name)(*arguments)))
                except (mqstore.MQStoreError, OSError) as error:
                    hint = f"; {SAME_PATH}" if isinstance(error, mqstore.NotAStoreError) else ""
                    msg = f"{mark}{type(error).__name__}: {error}{hint}"
                    raise RuntimeError(msg) from None
            columns = {"number": pa.array(numbers, pa.int64()), "answer": pa.array(answers, pa.string())}
            yield pa.RecordBatch.from_pydict(columns)

    return run


for _function in (verify, rebuild, export):
    _function.__module__ = "mqstore.spark"
del _function
