"""The task side of :mod:`mqstore.spark.functions`, on Arrow arrays."""

from __future__ import annotations

from typing import Any

from mqstore import _native
from mqstore.spark import _buffers


def decode(records: Any, columns: list[str]) -> Any:
    """Decodes records to a struct of columns; null for null and for invalid records."""
    import pyarrow as pa

    from mqstore.spark._read.rows import empty

    request = {"columns": columns, "body": "binary"}
    rows, found = _native.decode_records(request, _buffers.texts(records, pa.binary()), len(records))
    batch = empty(columns, "binary") if rows is None else pa.record_batch(rows)
    places: list[int | None] = [None] * len(records)
    for place, row in enumerate(found):
        places[row] = place
    return batch.to_struct_array().take(pa.array(places, pa.int64()))


def tags_code(tags: Any) -> Any:
    """Returns the hash of each tag."""
    import pyarrow as pa

    codes = _native.tags_codes(_buffers.texts(tags, pa.string()), len(tags))
    return _with_nulls(_numbers(codes, pa.int64(), len(tags)), tags)


def key_hash(topics: Any, keys: Any) -> Any:
    """Returns the hash of each topic and key."""
    import pyarrow as pa

    topic, key = _buffers.texts(topics, pa.string()), _buffers.texts(keys, pa.string())
    hashes = _native.key_hashes(topic, key, len(keys))
    return _with_nulls(_numbers(hashes, pa.int32(), len(keys)), topics, keys)


def message_id(hosts: Any, offsets: Any) -> Any:
    """Returns the offset id of each host and log offset."""
    import pyarrow as pa

    host, offset = _buffers.texts(hosts, pa.string()), _buffers.numbers(offsets, pa.int64())
    return pa.array(_native.message_ids(host, offset, len(hosts)), pa.string())


def _numbers(values: bytes, kind: Any, rows: int) -> Any:
    import pyarrow as pa

    return pa.Array.from_buffers(kind, rows, [None, pa.py_buffer(values)])


def _with_nulls(values: Any, *given: Any) -> Any:
    """Returns the values, null where one of the given arrays is null."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for each in given:
        if each.null_count:
            values = pc.if_else(pc.is_valid(each), values, pa.scalar(None, values.type))
    return values
