"""The data source ``mqstore``, as far as it runs on the driver's side."""

from __future__ import annotations

import secrets
import sys
from typing import TYPE_CHECKING, Any

from mqstore._native import __version__
from mqstore.errors import MQStoreError
from mqstore.spark import _remote
from mqstore.spark._options import COLUMNS, read_options, refuse, write_options
from mqstore.spark._read import planning
from mqstore.spark._ship import archive_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql.types import StructType


def _by_value() -> None:
    """Has the classes for the executors pickled by value; Spark sends the source itself along for its name."""
    from pyspark import cloudpickle

    # That of the source imports this one; only if somebody has imported it there is something of it to pickle.
    for module in (_remote, sys.modules.get("pyspark_mqstore")):
        if module is not None:
            cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def home() -> tuple[str, str]:
    """By which tasks find the package: the name under which it is sent, and its version."""
    return archive_name(), __version__


def entering() -> tuple[Callable[[tuple[str, str]], None], tuple[str, str]]:
    """A function that makes the package importable in a task, and its argument."""
    _by_value()
    return _remote._enter, home()


def schema(given: Mapping[str, str]) -> StructType:
    """The columns that the options ask for."""
    return _schema(read_options(given))


def struct(columns: dict[str, str]) -> StructType:
    """The type of rows with these columns; all may be null."""
    from pyspark.sql import types

    text = types.StringType()
    kinds: dict[str, types.DataType] = {
        "string": text,
        "int": types.IntegerType(),
        "bigint": types.LongType(),
        "timestamp": types.TimestampType(),
        "binary": types.BinaryType(),
        "array<string>": types.ArrayType(text),
        "map<string,string>": types.MapType(text, text),
    }
    return types.StructType([types.StructField(name, kinds[kind]) for name, kind in columns.items()])


def _schema(options: dict[str, Any]) -> StructType:
    columns = {name: COLUMNS[name] for name in options["columns"]}
    if "body" in columns and options["body"] != "binary":
        columns["body"] = "string"
    if options["mode"] == "PERMISSIVE":
        columns[options["corrupt"]] = "string"
    return struct(columns)


def _narrowed(options: dict[str, Any], wanted: StructType) -> dict[str, Any]:
    """The options, with the columns that a user's own schema names."""
    all_columns = {**options, "columns": list(COLUMNS)}
    there = {field.name: field.dataType for field in _schema(all_columns).fields}
    for field in wanted.fields:
        if field.name not in there:
            raise refuse("schema", f"there is no column {field.name!r}; there are {', '.join(there)}")
        if field.dataType != there[field.name]:
            kind, asked = there[field.name].simpleString(), field.dataType.simpleString()
            raise refuse("schema", f"column {field.name} is {kind} and not {asked}")
    return {**options, "output": [field.name for field in wanted.fields]}


def reader(given: Mapping[str, str], wanted: StructType) -> _remote.Reader:
    """What reads a store as it is now: where it ends is settled here, once for all tasks and attempts."""
    _by_value()
    options = _narrowed(read_options(given), wanted)
    if len(options["paths"]) > 1 and "offsets" in str(options["start"]) + str(options["end"]):
        raise refuse("paths", "offsets of single queues belong to one store; read the stores one by one")
    ranges = {}
    lost = planning.lost(options, "the read begins")
    for path in options["paths"]:
        with planning.open_store(path) as store:
            ranges[path] = [tuple(part) for part in planning.batch_ranges(store, options, lost)]
    kind = _remote.PushingReader if options["pushdown"] else _remote.Reader
    return kind(options, home(), ranges)


def stream_reader(given: Mapping[str, str], wanted: StructType) -> _remote.StreamReader:
    """What reads a store while it grows."""
    _by_value()
    options = _narrowed(read_options(given), wanted)
    if len(options["paths"]) > 1:
        raise refuse("paths", "a stream reads one store; join several by union")
    if options["end"] != -1:
        raise refuse("endingOffsets", "a stream has no end; leave it out")
    if options["start"] is None:
        options["start"] = -1
    for name, value in (("maxOffsetsPerTrigger", options["max_offsets"]), ("maxBytesPerTrigger", options["max_bytes"])):
        if value is not None and not _remote.CAPS:
            raise refuse(name, "this needs PySpark 4.2 or newer; 4.1 has no caps on batches")
    return _remote.StreamReader(options, home())


def writer(given: Mapping[str, str], wanted: StructType, overwrite: bool) -> _remote.Writer:
    """What appends rows."""
    options = _write_options(given, wanted, overwrite)
    return _remote.Writer(options, home(), _new_job())


def stream_writer(given: Mapping[str, str], wanted: StructType, overwrite: bool) -> _remote.StreamWriter:
    """What appends the rows of a stream."""
    options = _write_options(given, wanted, overwrite)
    if options["job_id"] is not None:
        raise refuse("jobId", "a stream's batches are known by its checkpoint; leave it out")
    return _remote.StreamWriter(options, home(), _new_job())


def _new_job() -> str:
    return secrets.token_hex(12)


def _write_options(given: Mapping[str, str], wanted: StructType, overwrite: bool) -> dict[str, Any]:
    from mqstore.spark._write import append
    from mqstore.spark._write.stage import check_schema

    _by_value()
    options = write_options(given)
    if overwrite:
        msg = 'a store is a log and only grows: write with mode("append")'
        raise MQStoreError(msg)
    check_schema(wanted, options)
    append.prepare(options)
    return options
