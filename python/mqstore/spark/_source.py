"""The driver's side of the data source ``mqstore``."""

from __future__ import annotations

import secrets
import sys
from typing import TYPE_CHECKING, Any

from mqstore._native import __version__
from mqstore._paths import home_of, is_url, shown_url
from mqstore.errors import MQStoreError
from mqstore.spark import _remote
from mqstore.spark._options import COLUMNS, read_options, refuse, write_options
from mqstore.spark._read import planning
from mqstore.spark._ship import archive_name

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from pyspark.sql.types import StructType


def _by_value() -> None:
    """Makes Spark pickle the classes for the executors by value; it sends the source itself under its name."""
    from pyspark import cloudpickle

    # The module of the source imports this one. Its classes need this only if it has been imported.
    for module in (_remote, sys.modules.get("pyspark_mqstore")):
        if module is not None:
            cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]


def home() -> tuple[str, str]:
    """Returns archive name and version, by which tasks find the package."""
    return archive_name(), __version__


def entering() -> tuple[Callable[[tuple[str, str]], None], tuple[str, str]]:
    """Returns a function that makes the package importable in a task, and its argument."""
    _by_value()
    return _remote._enter, home()


def schema(given: Mapping[str, str]) -> StructType:
    """Returns the columns that the options select."""
    return columns(read_options(given))


def struct(columns: dict[str, str]) -> StructType:
    """Returns the type of rows with these columns, all nullable."""
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


def columns(options: dict[str, Any]) -> StructType:
    """Returns the columns that the options of `read_options` select."""
    found = {name: COLUMNS[name] for name in options["columns"]}
    if "body" in found and options["body"] != "binary":
        found["body"] = "string"
    if options["mode"] == "PERMISSIVE":
        found[options["corrupt"]] = "string"
    return struct(found)


def _narrowed(options: dict[str, Any], wanted: StructType) -> dict[str, Any]:
    """Returns the options with the columns of the user's own schema."""
    all_columns = {**options, "columns": list(COLUMNS)}
    there = {field.name: field.dataType for field in columns(all_columns).fields}
    for field in wanted.fields:
        if field.name not in there:
            raise refuse("schema", f"there is no column {field.name!r}; the columns are {', '.join(there)}")
        if field.dataType != there[field.name]:
            kind, asked = there[field.name].simpleString(), field.dataType.simpleString()
            raise refuse("schema", f"column {field.name} has the type {kind}, not {asked}")
    return {**options, "output": [field.name for field in wanted.fields]}


def reader(given: Mapping[str, str], wanted: StructType) -> _remote.Reader:
    """Returns the reader of a batch."""
    return batch_reader(read_options(given), wanted)


def batch_reader(options: dict[str, Any], wanted: StructType) -> _remote.Reader:
    """Returns the reader for the options of `read_options`. The end of each store is fixed here, for all attempts."""
    _by_value()
    options = _narrowed(options, wanted)
    if len(options["paths"]) > 1 and "offsets" in str(options["start"]) + str(options["end"]):
        raise refuse("paths", "offsets of single queues need one store; read the stores separately")
    ranges, remotes = {}, {}
    lost = planning.lost(options, "the read starts")
    storage = options.pop("storage")
    for path in options.pop("paths"):
        shown = path
        if is_url(path):
            shown = shown_url(path)
            remotes[shown] = _remote.RemoteStore(path, storage)
        with planning.open_store(shown, remotes.get(shown)) as store:
            ranges[shown] = [tuple(part) for part in planning.batch_ranges(store, options, lost)]
    kind = _remote.PushingReader if options["pushdown"] else _remote.Reader
    return kind(options, home(), ranges, remotes)


def stream_reader(given: Mapping[str, str], wanted: StructType) -> _remote.StreamReader:
    """Returns the reader of a stream."""
    _by_value()
    options = _narrowed(read_options(given), wanted)
    for path in options["paths"]:
        home_of(path, "read it as a stream")
    if len(options["paths"]) > 1:
        raise refuse("paths", "a stream reads one store; combine several streams with union")
    if options["end"] != -1:
        raise refuse("endingOffsets", "a stream has no end; omit this option")
    if options["start"] is None:
        options["start"] = -1
    for name, value in (("maxOffsetsPerTrigger", options["max_offsets"]), ("maxBytesPerTrigger", options["max_bytes"])):
        if value is not None and not _remote.CAPS:
            raise refuse(name, "limits of a batch need PySpark 4.2 or newer")
    return _remote.StreamReader(options, home())


def writer(given: Mapping[str, str], wanted: StructType, overwrite: bool) -> _remote.Writer:
    """Returns the writer of rows."""
    options = _write_options(given, wanted, overwrite)
    return _remote.Writer(options, home(), _new_job())


def stream_writer(given: Mapping[str, str], wanted: StructType, overwrite: bool) -> _remote.StreamWriter:
    """Returns the writer of a stream's rows."""
    options = _write_options(given, wanted, overwrite)
    if options["job_id"] is not None:
        raise refuse("jobId", "the checkpoint of a stream identifies its batches; omit this option")
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
