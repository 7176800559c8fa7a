"""Column functions with native code, for raw bytes of stores, and for hashes and ids of stores.

::

    from mqstore.spark import functions as mq

    raw.select(mq.decode_record("record").alias("m")).select("m.topic", "m.body")
    orders.groupBy(mq.tags_code("tags")).count()

They run as Arrow functions in Spark's Python workers and return null for null. Executors need mqstore: installed there,
or sent by :func:`mqstore.spark.ship`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mqstore.spark import _source
from mqstore.spark._options import COLUMNS, refuse

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pyspark.sql import Column
    from pyspark.sql.types import StructType

__all__ = ["decode_record", "key_hash", "message_id", "tags_code"]


def decode_record(record: Column | str, columns: Iterable[str] | None = None) -> Column:
    """Decodes a record of a commit log to a struct with the columns of a scan.

    Args:
        record: a column of bytes; each value is one complete record.
        columns: names of the columns; None is all.

    Returns:
        The struct; null if the bytes are not a valid record or a checksum is wrong.

    Raises:
        InvalidOptionError: an unknown column.
    """
    wanted = list(COLUMNS) if columns is None else list(columns)
    for name in wanted:
        if name not in COLUMNS:
            raise refuse("columns", f"there is no column {name!r}; the columns are {', '.join(COLUMNS)}")
    kind = _source.struct({name: COLUMNS[name] for name in wanted})
    enter, home = _source.entering()

    def decode(records: Any) -> Any:
        enter(home)
        from mqstore.spark._read.expressions import decode

        return decode(records, wanted)

    return _call(decode, kind, record)


def tags_code(tags: Column | str) -> Column:
    """Returns the hash of a tag, as in queue units.

    Args:
        tags: a column of text.

    Returns:
        A bigint.
    """
    enter, home = _source.entering()

    def codes(given: Any) -> Any:
        enter(home)
        from mqstore.spark._read.expressions import tags_code

        return tags_code(given)

    return _call(codes, "bigint", tags)


def key_hash(topic: Column | str, key: Column | str) -> Column:
    """Returns the hash of a topic and a key, as in the key index.

    Args:
        topic: a column of text.
        key: a column of text.

    Returns:
        An int.
    """
    enter, home = _source.entering()

    def hashes(topics: Any, keys: Any) -> Any:
        enter(home)
        from mqstore.spark._read.expressions import key_hash

        return key_hash(topics, keys)

    return _call(hashes, "int", topic, key)


def message_id(store_host: Column | str, commit_log_offset: Column | str) -> Column:
    """Returns the offset id of a message, from store host and log offset.

    Args:
        store_host: a column of text, ``ip:port`` or ``[v6]:port``.
        commit_log_offset: a column of bigint.

    Returns:
        Upper-case hex; null if the host is invalid.
    """
    enter, home = _source.entering()

    def ids(hosts: Any, offsets: Any) -> Any:
        enter(home)
        from mqstore.spark._read.expressions import message_id

        return message_id(hosts, offsets)

    return _call(ids, "string", store_host, commit_log_offset)


def _call(function: Callable[..., Any], kind: StructType | str, *columns: Column | str) -> Column:
    """Applies a function of Arrow arrays. It is pickled by value, because it is defined inside another function."""
    import pyarrow as pa
    from pyspark.sql.pandas.functions import arrow_udf

    # Spark reads the type hints and needs classes in them.
    function.__annotations__ = dict.fromkeys(function.__annotations__, pa.Array)
    found: Column = arrow_udf(function, kind)(*columns)  # type: ignore[call-overload]
    return found
