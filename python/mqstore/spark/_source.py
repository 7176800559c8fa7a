"""The driver's side of the data source ``mqstore``."""

from __future__ import annotations

import secrets
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

from mqstore._native import __version__
from mqstore._paths import home_of, is_url, shown_url, text_of
from mqstore._remote.glob import expanded
from mqstore.errors import MQStoreError
from mqstore.spark import _remote
from mqstore.spark._options import COLUMNS, STORE, read_options, refuse, write_options
from mqstore.spark._read import planning
from mqstore.spark._ship import archive_name
from mqstore.spark._stores import all_of, each

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


def entering() -> tuple[Callable[..., None], tuple[str, str]]:
    """Returns a function that makes the package importable in a task, and its argument."""
    _by_value()
    return _remote._enter, home()


@_remote.HiddenTraceback()
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
    types = {**COLUMNS, STORE: "string"}
    found = {name: types[name] for name in options["columns"]}
    if "body" in found and options["body"] != "binary":
        found["body"] = "string"
    if options["mode"] == "PERMISSIVE":
        found[options["corrupt"]] = "string"
    return struct(found)


def narrowed(options: dict[str, Any], wanted: StructType) -> dict[str, Any]:
    """Returns the options with the columns of the user's own schema."""
    all_columns = {**options, "columns": [*COLUMNS, STORE] if options["several"] else list(COLUMNS)}
    there = {field.name: field.dataType for field in columns(all_columns).fields}
    for field in wanted.fields:
        if field.name not in there:
            raise refuse("schema", f"there is no column {field.name!r}; the columns are {', '.join(there)}")
        if field.dataType != there[field.name]:
            kind, asked = there[field.name].simpleString(), field.dataType.simpleString()
            raise refuse("schema", f"column {field.name} has the type {kind}, not {asked}")
    return {**options, "output": [field.name for field in wanted.fields]}


@_remote.HiddenTraceback()
def reader(given: Mapping[str, str], wanted: StructType) -> _remote.Reader:
    """Returns the reader of a batch."""
    # The end of each store is fixed here, for all tasks and attempts.
    read = batch(narrowed(read_options(given), wanted))
    ranges = {path: [tuple(part) for part in planned.ranges] for path, planned in read.stores.items()}
    failed = [planning.failed(path, error) for path, error in read.failures.items()]
    # Filters that Spark pushes change the ranges, so the parts are planned after them.
    if read.options["pushdown"]:
        return _remote.PushingReader(read.options, home(), ranges, read.remotes, failed, None)
    parts = [part for planned in read.stores.values() for part in planned.parts]
    return _remote.Reader(read.options, home(), ranges, read.remotes, failed, parts)


class Batch(NamedTuple):
    """A batch read: its options, its stores at URLs, and its plan for each store."""

    options: dict[str, Any]
    remotes: dict[str, _remote.RemoteStore]
    stores: dict[str, planning.Planned]
    failures: dict[str, Exception]
    """The stores that are skipped."""


def batch(options: dict[str, Any], is_left_out: Callable[[str], bool] = lambda _topic: False) -> Batch:
    """Plans a read with these narrowed options, without the topics that the caller leaves out.

    It opens each store once, several at the same time, and lists the files of each URL once.
    """
    _by_value()
    options = dict(options)
    storage = options.pop("storage")
    places = [text_of(path) for path in expanded(options.pop("paths"), storage)]
    remotes = {shown_url(place): _remote.RemoteStore(place, storage) for place in places if is_url(place)}
    paths = list(dict.fromkeys(shown_url(place) if is_url(place) else place for place in places))
    if len(paths) > 1 and "offsets" in str(options["start"]) + str(options["end"]):
        raise refuse("paths", "offsets of single queues need one store; read the stores separately")
    if options["several"]:
        sizes = all_of(lambda path: planning.log_bytes(path, remotes.get(path)), paths)
        options = planning.shared_split(options, sum(sizes))
    found = each(
        lambda path: planning.planned(path, remotes.get(path), options, is_left_out), paths, options["on_error"]
    )
    stores: dict[str, planning.Planned] = {}
    failures: dict[str, Exception] = {}
    for path, one in zip(paths, found, strict=True):
        if isinstance(one, Exception):
            failures[path] = one
        else:
            stores[path] = one
    return Batch(options, remotes, stores, failures)


def stream_reader(given: Mapping[str, str], wanted: StructType) -> _remote.StreamReader:
    """Returns the reader of a stream.

    An error keeps its traceback: PySpark then stops a reader that it does not have, and reports only its own error for
    that. Ours is in the traceback above.
    """
    _by_value()
    options = narrowed(read_options(given), wanted)
    for path in options["paths"]:
        home_of(path, "read it as a stream")
    if options["several"]:
        raise refuse("paths", "a stream reads one store; combine several streams with union")
    if options["end"] != -1:
        raise refuse("endingOffsets", "a stream has no end; omit this option")
    if options["start"] is None:
        options["start"] = -1
    for name, value in (("maxOffsetsPerTrigger", options["max_offsets"]), ("maxBytesPerTrigger", options["max_bytes"])):
        if value is not None and not _remote.CAPS:
            raise refuse(name, "limits of a batch need PySpark 4.2 or newer")
    return _remote.StreamReader(options, home())


@_remote.HiddenTraceback()
def writer(given: Mapping[str, str], wanted: StructType, overwrite: bool) -> _remote.Writer:
    """Returns the writer of rows."""
    options = _write_options(given, wanted, overwrite)
    return _remote.Writer(options, home(), _new_job())


@_remote.HiddenTraceback()
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
        raise MQStoreError('a store is a log and only grows: write with mode("append")')
    check_schema(wanted, options)
    append.prepare(options)
    return options
