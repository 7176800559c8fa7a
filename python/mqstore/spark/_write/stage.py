"""Staging of rows: the files that tasks write.

A task writes one file in ``mqstore/spark/stage/<job>/<batch>/`` of the store, under a name that is unique for each
attempt. The file is a sequence of blocks, drawn in ``rust/mqstore-engine/src/write/staged_batch.rs``. It is synced
before the task returns its name. Only the driver reads it. Files of lost attempts are never read and are removed later.
"""

from __future__ import annotations

import os
import secrets
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from mqstore import _native
from mqstore._admin.nearest import nearest
from mqstore.errors import InvalidMessageError, MQStoreError
from mqstore.spark._locks import SAME_PATH
from mqstore.spark._options import COLUMNS, STORE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    import pyarrow as pa
    from pyspark.sql.types import StructType

Refused: TypeAlias = tuple[str | None, str, int, int, str]
"""Rows of a task that cannot become messages: topic, column, number, first row of the partition and its reason."""

# The types in Spark's words. `rust/mqstore-python/src/arrow/message_columns.rs` converts the columns.
_TYPES = {
    "body": ("binary", "string"),
    "value": ("binary", "string"),
    "key": ("binary", "string"),
    "keys": ("array<string>", "string"),
    "topic": ("string",),
    "tags": ("string",),
    "properties": ("map<string,string>",),
    "queue_id": ("int", "smallint", "tinyint", "bigint"),
    "flag": ("int",),
    "born_timestamp": ("timestamp",),
}

# Columns of a read with the store and the position of a message; a new message gets a new position.
_NOT_WRITTEN = {STORE, *COLUMNS} - set(_TYPES)


def stage_folder(path: str) -> Path:
    """Returns the folder for the staged files of all jobs."""
    return Path(path, "mqstore", "spark", "stage")


def check_schema(schema: StructType, options: dict[str, Any]) -> None:
    """Checks that rows of this schema can become messages.

    Raises:
        InvalidMessageError: they cannot.
    """
    names = [field.name for field in schema.fields]
    for field in schema.fields:
        kind = field.dataType.simpleString()
        if field.name in _NOT_WRITTEN:
            continue
        if field.name not in _TYPES:
            near = nearest(field.name, _TYPES)
            hint = f"did you mean {near!r}?" if near else f"a message has {', '.join(_TYPES)}"
            raise InvalidMessageError(f"there is no column {field.name!r}; {hint}")
        if kind not in _TYPES[field.name]:
            raise InvalidMessageError(f"column {field.name} must be {' or '.join(_TYPES[field.name])}, not {kind}")
    for one, other in (("body", "value"), ("keys", "key")):
        if one in names and other in names:
            raise InvalidMessageError(f"give only one of the columns {one} and {other}; they mean the same")
    if "body" not in names and "value" not in names:
        raise InvalidMessageError("there is no column body (or value)")
    if "topic" not in names and options["topic"] is None:
        raise InvalidMessageError("name the topic: set the option topic, or add a column topic")


def stage(
    options: dict[str, Any], job: str, batches: Iterable[pa.RecordBatch]
) -> tuple[int, str, int, int, str | None, dict[str, int], list[Refused]]:
    """Writes the rows of a task to its file.

    Returns:
        Partition number, file name, rows and bytes of the file, streaming query, for each topic the largest queue id in
        a row, or -1, and the rows that cannot become messages.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    if context is None:
        raise MQStoreError("rows can be staged only in a Spark task")
    batch = context.getLocalProperty("streaming.sql.batchId")
    query = context.getLocalProperty("sql.streaming.queryId")
    attempt = f"{context.partitionId()}-{context.attemptNumber()}-{context.taskAttemptId()}-{secrets.token_hex(8)}.run"
    file = f"{batch or 0}/{attempt}"
    _same_folder(options)
    out = _native.StageFile(options["path"], job, file)
    rows, topics, refused = 0, dict[str, int](), list[Refused]()
    for block, count in _blocks(options, batches, topics, refused):
        out.push(block)
        rows += count
    size = out.finish()
    return context.partitionId(), file, rows, size, query, topics, refused


def _same_folder(options: dict[str, Any]) -> None:
    """Checks that this executor sees the same folder as the driver."""
    token = stage_folder(options["path"]) / "token"
    try:
        same = token.read_text() == options["token"]
    except OSError:
        same = False
    if not same:
        raise MQStoreError(f"{token} differs between this executor and the driver: {SAME_PATH}")


def _blocks(
    options: dict[str, Any], batches: Iterable[pa.RecordBatch], topics: dict[str, int], refused: list[Refused]
) -> Iterator[tuple[bytes, int]]:
    """Yields blocks, each with its number of messages. Completes `topics` and `refused` by the way."""
    stager = _native.Stager(
        options["topic"],
        options["max_message_size"],
        os.getpid(),
        secrets.randbits(32),
        options.get("compression"),
        options.get("compress_over"),
    )
    before = 0
    for batch in batches:
        start = 0
        # The native code ignores only the columns of a single store.
        columns = batch.select([name for name in batch.schema.names if name != STORE])
        while start < columns.num_rows:
            block, start, rows, found, bad = stager.stage(columns, start)
            for topic, queue_id in found:
                topics[topic] = max(topics.get(topic, -1), queue_id)
            refused += [(topic, column, count, before + first, reason) for topic, column, count, first, reason in bad]
            if rows:
                yield block, rows
        before += batch.num_rows
