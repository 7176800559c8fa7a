"""Column functions on native code, for those who have raw bytes of stores, or what stores make of names.

::

    from mqstore.spark import functions as mq

    raw.select(mq.decode_record("record").alias("m")).select("m.topic", "m.body")
    orders.groupBy(mq.tags_code("tags")).count()

They run as Arrow functions in Spark's Python workers, and give null where they get null. Executors need mqstore:
installed there, or sent by :func:`mqstore.spark.ship`.
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
    """A record of a commit log as a struct of the columns of a scan.

    Args:
        record: a column of bytes, each value one whole record.
        columns: which columns; all of them when None.

    Returns:
        The struct; null where the bytes are no record, or a checksum does not fit.

    Raises:
        InvalidOptionError: there is no such column.
    """
    wanted = list(COLUMNS) if columns is None else list(columns)
    for name in wanted:
        if name not in COLUMNS:
            raise refuse("columns", f"there is no column {name!r}; there are {', '.join(COLUMNS)}")
    kind = _source.struct({name: COLUMNS[name] for name in wanted})
    enter, home = _source.entering()

    def decode(records: Any) -> Any:
        enter(home)
        from mqstore.spark._read.expressions import decode

        return decode(records, wanted)

    return _call(decode, kind, record)


def tags_code(tags: Column | str) -> Column:
    """The hash of a tag, as queue entries hold it.

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
    """The hash of a topic and a key, as the key index holds it.

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
    """The offset id of a message: store host and log offset.

    Args:
        store_host: a column of text, ``ip:port`` or ``[v6]:port``.
        commit_log_offset: a column of bigint.

    Returns:
        Upper-case hex; null where the host is no host.
    """
    enter, home = _source.entering()

    def ids(hosts: Any, offsets: Any) -> Any:
        enter(home)
        from mqstore.spark._read.expressions import message_id

        return message_id(hosts, offsets)

    return _call(ids, "string", store_host, commit_log_offset)


def _call(function: Callable[..., Any], kind: StructType | str, *columns: Column | str) -> Column:
    """Applies a function of Arrow arrays, which is pickled by value since it is made inside another one."""
    import pyarrow as pa
    from pyspark.sql.pandas.functions import arrow_udf

    # Spark goes by the type hints, and has to find classes in them.
    function.__annotations__ = dict.fromkeys(function.__annotations__, pa.Array)
    found: Column = arrow_udf(function, kind)(*columns)  # type: ignore[call-overload]
    return found
