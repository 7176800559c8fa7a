"""The columns of a scan for pyarrow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from mqstore import _extras, _native

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class _Columns:
    """What `pyarrow.schema` accepts."""

    request: dict[str, Any]

    def __arrow_c_schema__(self) -> object:
        return _native.scan_schema(self.request)


def schema_of(request: dict[str, Any]) -> pa.Schema:
    """Returns the columns of the rows of a scan."""
    return _extras.pyarrow().schema(_Columns(request))
