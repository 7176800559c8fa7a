"""The base class of all reports: their JSON form, and tables for notebooks and data frames."""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from functools import cache
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Self, get_args, get_origin, get_type_hints

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import pandas as pd
    import polars as pl


class _Report:
    """Conversion to and from the JSON form, and to tables. The JSON names are the field names."""

    __slots__ = ()

    @classmethod
    def _from_json(cls, text: str | bytes) -> Self:
        return cls._from_dict(json.loads(text))

    def to_dict(self) -> dict[str, Any]:
        """Returns the report in JSON types: dicts, lists, strings and numbers."""
        return {field.name: json_form(getattr(self, field.name)) for field in fields(self)}  # type: ignore[arg-type]

    def to_pandas(self, part: str | None = None) -> pd.DataFrame:
        """Returns the report as a `pandas.DataFrame`. The columns and values are those of `to_dict`.

        Args:
            part: name of a field that is a list, such as `"problems"`: one row for each of its elements. None is one
                row with all other fields.

        Raises:
            MissingPackageError: pandas is not installed (`pip install "mqstore[pandas]"`).
            ValueError: `part` is no list of this report.
        """
        from mqstore._admin import tables

        return tables.pandas_frame(self.to_dict(), part)

    def to_polars(self, part: str | None = None) -> pl.DataFrame:
        """Returns the report as a `polars.DataFrame`. The columns and values are those of `to_dict`.

        Args:
            part: as for `to_pandas`.

        Raises:
            MissingPackageError: Polars is not installed (`pip install "mqstore[polars]"`).
            ValueError: `part` is no list of this report.
        """
        from mqstore._admin import tables

        frame: pl.DataFrame = tables.polars_frame(self.to_dict(), part)
        return frame

    def _repr_html_(self) -> str:
        """Returns the report as HTML for notebooks, with units."""
        from mqstore._admin import tables

        return tables.html(self.to_dict(), type(self).__name__)

    @classmethod
    def _from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Builds the report from its JSON form, in which rows of values can stand for the reports of a list."""
        converted = {name: convert(values[name]) for name, convert in cls._converters().items() if name in values}
        return cls(**{**values, **converted})

    @classmethod
    def _from_row(cls, values: Iterable[Any]) -> Self:
        """Builds the report from the values of its fields, in order."""
        if not cls._converters():
            return cls(*values)
        names = [field.name for field in fields(cls)]  # type: ignore[arg-type]
        return cls._from_dict(dict(zip(names, values, strict=True)))

    @classmethod
    @cache
    def _converters(cls) -> dict[str, Callable[[Any], Any]]:
        """Returns the function for each field whose value has another JSON form."""
        # The initializer remembers the module that defines the class, which `__module__` does not name.
        kinds = get_type_hints(cls.__init__)
        return {name: convert for name, kind in kinds.items() if (convert := _converter(kind)) is not None}


def _converter(kind: Any) -> Callable[[Any], Any] | None:
    """Returns the function from the JSON form of a field of type `kind` to its value; None if they are the same."""
    if isinstance(kind, UnionType):
        inner = _converter(next(one for one in get_args(kind) if one is not NoneType))
        return None if inner is None else lambda value: None if value is None else inner(value)
    if get_origin(kind) is tuple:
        item = _converter(get_args(kind)[0])
        return tuple if item is None else lambda values: tuple(map(item, values))
    if isinstance(kind, type) and issubclass(kind, _Report):
        return lambda value: kind._from_dict(value) if isinstance(value, dict) else kind._from_row(value)
    return None


def json_form(value: Any) -> Any:
    """Returns a value in JSON types."""
    if isinstance(value, _Report):
        return value.to_dict()
    if isinstance(value, tuple | list):
        return [json_form(item) for item in value]
    if isinstance(value, dict):
        return {name: json_form(item) for name, item in value.items()}
    return value


@dataclass(frozen=True, slots=True)
class Progress(_Report):
    """Progress of a long call, for `progress=` callbacks."""

    done: int
    """Bytes processed."""
    total: int
    """Bytes in total."""


def native_progress(progress: Callable[[Progress], object] | None) -> Callable[[int, int], object] | None:
    """Returns the native form of a `progress=` callback: a function of two numbers."""
    return None if progress is None else lambda done, total: progress(Progress(done, total))
