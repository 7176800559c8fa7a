"""Conversion of Arrow columns to the buffers that native code takes."""

from __future__ import annotations

from typing import Any

Text = tuple[bytes | None, bytes, bytes]
Numbers = tuple[bytes | None, bytes]


def texts(array: Any, kind: Any) -> Text:
    """Converts a column of text or bytes to the type ``kind``."""
    found = _whole(array.cast(kind))
    nulls, offsets, values = found.buffers()
    # A column without rows can have no offsets.
    return _bytes(nulls), _bytes(offsets) or bytes(4 * (len(found) + 1)), _bytes(values) or b""


def numbers(array: Any, kind: Any) -> Numbers:
    """Converts a column of numbers to the type ``kind``."""
    found = _whole(array.cast(kind))
    nulls, values = found.buffers()
    return _bytes(nulls), _bytes(values) or b""


def _whole(array: Any) -> Any:
    """Copies the array if it is a slice of another array's buffers."""
    import pyarrow as pa

    if array.offset == 0:
        return array
    return array.take(pa.array(range(len(array)), pa.int64()))


def _bytes(buffer: Any) -> bytes | None:
    return None if buffer is None else buffer.to_pybytes()
