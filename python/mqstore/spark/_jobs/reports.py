"""The reports of a job on several stores, and their conversion to a DataFrame."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_origin, get_type_hints

from mqstore import _reports
from mqstore._reports import CompactionReport, ExportReport, RebuildReport, VerifyReport, _Report
from mqstore.spark._session import require

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

R = TypeVar("R")


class Reports(dict[str, R]):
    """The reports of a job on several stores, by directory or URL, in the order of the stores.

    With `on_error="skip"`, `failures` has the stores that have no report because they failed: directory or URL, and
    error. URLs are without user, password and query.
    """

    failures: list[tuple[str, Exception]]

    def __init__(
        self, reports: Mapping[str, R] | Iterable[tuple[str, R]] = (), failures: Iterable[tuple[str, Exception]] = ()
    ) -> None:
        super().__init__(reports)
        self.failures = list(failures)

    @classmethod
    def of(cls, found: Mapping[str, R | Exception]) -> Reports[R]:
        """Divides results into reports and failures."""
        reports = {path: one for path, one in found.items() if not isinstance(one, Exception)}
        return cls(reports, [(path, one) for path, one in found.items() if isinstance(one, Exception)])


_NAMES = {int: "bigint", float: "double", bool: "boolean", str: "string"}
_KINDS = (CompactionReport, ExportReport, RebuildReport, VerifyReport)


def as_dataframe(
    spark: SparkSession,
    reports: CompactionReport
    | ExportReport
    | RebuildReport
    | VerifyReport
    | Mapping[str, CompactionReport]
    | Mapping[str, ExportReport]
    | Mapping[str, RebuildReport]
    | Mapping[str, VerifyReport],
) -> DataFrame:
    """Returns the reports of a job as a DataFrame, for a table or for SQL.

    Args:
        spark: the session, classic or Spark Connect.
        reports: result of a job: one report, or reports by directory. Stores that failed have no row.

    Returns:
        One row for each report, with its fields as columns. For reports by directory, the first column ``store`` has
        the directory. ``problems`` and ``skipped`` are arrays, and ``reasons`` is a map: ``explode`` makes one row of
        each element.

    Raises:
        MissingPackageError: PySpark, pyarrow or pandas is missing.
        TypeError: ``reports`` is something else.
        ValueError: ``reports`` is empty, so the columns are unknown.
    """
    require(spark)
    named = dict(reports) if isinstance(reports, Mapping) else None
    found = [reports] if named is None else list(named.values())
    if not found:
        raise ValueError("reports is empty: there is no report to convert")
    kind = type(found[0])
    if kind not in _KINDS or any(type(each) is not kind for each in found):
        msg = f"reports must come from one job, not {', '.join(sorted({type(each).__name__ for each in found}))}"
        raise TypeError(msg)
    rows = [tuple(getattr(each, field.name) for field in fields(kind)) for each in found]
    schema = _columns(kind)
    if named is not None:
        schema = f"store string, {schema}"
        rows = [(store, *row) for store, row in zip(named, rows, strict=True)]
    return spark.createDataFrame([_plain(row) for row in rows], schema)


def _columns(kind: type) -> str:
    hints = get_type_hints(kind, vars(_reports))
    return ", ".join(f"`{field.name}` {_type(hints[field.name])}" for field in fields(kind))


def _type(hint: Any) -> str:
    """Returns the SQL name of a field's type."""
    if isinstance(hint, UnionType):
        (hint,) = (each for each in get_args(hint) if each is not NoneType)
    if get_origin(hint) is tuple:
        return f"array<{_type(get_args(hint)[0])}>"
    if get_origin(hint) is dict:
        return f"map<{', '.join(map(_type, get_args(hint)))}>"
    if hint in _NAMES:
        return _NAMES[hint]
    hints = get_type_hints(hint, vars(_reports))
    return f"struct<{', '.join(f'`{field.name}`: {_type(hints[field.name])}' for field in fields(hint))}>"


def _plain(value: Any) -> Any:
    """Converts structs and rows to tuples, and arrays to lists."""
    if isinstance(value, _Report):
        return tuple(_plain(getattr(value, field.name)) for field in fields(value))  # type: ignore[arg-type]
    if isinstance(value, tuple):
        return tuple(list(map(_plain, each)) if isinstance(each, tuple) else _plain(each) for each in value)
    return value


Reports.__module__ = "mqstore.spark"
