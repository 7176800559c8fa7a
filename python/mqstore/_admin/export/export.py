"""`export`: writes messages of a store to a file of JSON lines, Parquet or Arrow, or to another store."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from mqstore import _native
from mqstore._admin.export.file_export import FileExport
from mqstore._admin.export.formats import file_ending, format_of
from mqstore._admin.export.partitions import Partitions
from mqstore._admin.export.parts import UrlParts
from mqstore._admin.export.run import export_request
from mqstore._admin.export.store_export import StoreExport
from mqstore._admin.files import creating, scratch
from mqstore._paths import LOCAL, decoded, home_of, is_url, object_path, shown_url, target_url, text_of
from mqstore._remote.place import CACHE_BYTES, checked_url, place_of
from mqstore.errors import InvalidOptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from mqstore._admin.export.counts import Counts
    from mqstore._admin.export.formats import ExportFormat, Waiting
    from mqstore._reports import ExportReport, Progress
    from mqstore.types import DledgerEnd, Filter, Keys, OnDamage, StorePath, Time


def export(
    path: StorePath,
    dest: StorePath,
    *,
    topics: str | Iterable[str] | None = None,
    start_time: Time | None = None,
    end_time: Time | None = None,
    keys: Keys | None = None,
    body_matches: str | None = None,
    filter: Filter | None = None,
    columns: Iterable[str] | None = None,
    format: ExportFormat | None = None,
    parts: bool = False,
    partition_by: str | Iterable[str] | None = None,
    overwrite: bool = False,
    mapping: StorePath | None = None,
    waiting: Waiting = "keep",
    keep_offsets: bool | None = None,
    progress: Callable[[Progress], object] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    cache: StorePath | None = None,
    cache_size: int = CACHE_BYTES,
    target_options: Mapping[str, Any] | None = None,
    dledger_end: DledgerEnd = "queues",
    on_damage: OnDamage = "skip",
) -> ExportReport:
    """Writes messages of the directory `path` to a file, to another store, or to a URL.

    The messages are in log order; the arguments select them as for `scan`. Each message is there once, as of the start
    of the export: a delayed message either delivered or waiting with its due time, a message of a transaction only
    after the commit. Records of system topics are left out, except those of topics that you name. Call an interrupted
    export again with the same arguments to resume it. This works for JSON lines, stores and `parts`; a single Parquet
    or Arrow file restarts from the beginning.

    Args:
        path: the directory, or a URL.
        dest: the file, which gets this name when it is complete. For `"store"` a store, created if missing. Or a URL
            (`s3://`, `gs://`, `az://`, `file://`), at which there is no result yet: its files are parts, as with
            `parts`, or a new store, and one manifest publishes all of them. `mqstore.published` lists them, and
            `mqstore.fetch` assembles a directory. If the same call with the same messages has been published, its
            report is returned. Between two parts nothing stays on the local disk; a store is first built there. If
            the URL ends in a file type (`.parquet`), the export is this one object, without a manifest; it is first
            written to the local disk.
        topics: as for `scan`, with the messages that wait for these topics; None is all except system topics. The
            arguments `start_time`, `end_time`, `keys`, `filter` and `columns` are those of `scan` too.
        start_time: only messages stored at or after this time.
        end_time: only messages stored before this time.
        keys: only messages with one of these keys.
        body_matches: only messages whose decompressed body contains a match of this regular expression. The syntax is
            that of Rust's `regex`: no look-around and no back-references; `(?-u)` for bytes that are not text.
        filter: tags, as `"paid || shipped"`, or a condition on properties, `mqstore.sql("price > 5")`.
        columns: names of the columns; None is all. Not for stores. JSON lines with all columns begin with a line of
            the settings of topics and groups.
        format: None selects it by the ending of `dest`: `.jsonl`, `.parquet`, `.arrow`. `"store"` must be given.
        parts: only for Parquet and Arrow: `dest` becomes a folder of files `part-00000.parquet` and so on, with 256 MiB
            of columns each. It gets its name when all are complete; a resumed export repeats only the last part.
        partition_by: only for Parquet and Arrow: columns whose values become folders of `parts`, as in
            `topic=orders/day=2026-11-28/part-00000.parquet`: `"topic"`, `"queue_id"`, `"tags"`, and `"day"` and
            `"hour"` of the store time in UTC. The files do not have the first three. Their rows are in log order.
        overwrite: whether to replace an existing file `dest`, or one object at a URL; a folder or a result at a URL is
            never replaced. Of two calls at the same time that write one object, the last one can replace the first.
        mapping: only for stores: file of JSON lines with the old and the new position of each message. None is `dest`
            with `.mapping.jsonl` appended. Not for a URL: there it is a part of the result.
        waiting: `"keep"` exports delayed messages that wait, with the due time in the property `mqstore.deliver_at`; in
            a store they wait again. `"drop"` leaves them out.
        keep_offsets: only for stores: whether messages keep their queue offsets. None keeps them if the store is new
            and only topics are selected. True raises `ValueError` if this is not so. False, and otherwise None,
            gives each queue of the store consecutive offsets after its end. `ExportReport.renumbered` counts the
            messages with a new offset; if there are none, groups get the offsets that they have in the source.
            Delayed messages get their offset at their delivery.
        progress: callback with bytes of the log; an exception in it interrupts the export.
        storage_options: only for a URL: credentials and settings of the transport, see `mqstore.open`.
        cache: only for a URL: a local folder that keeps blocks of the files; None keeps nothing.
        cache_size: maximum bytes in `cache`, at least 1 MiB.
        target_options: only if `dest` is a URL: credentials and settings of its transport, as `storage_options`.
        dledger_end: only for a directory of a broker that ran with DLedger: the last entry that is exported, see
            `StoreOptions.dledger_end`.
        on_damage: behaviour at a damaged record of the topics, as for `scan`. A call that ended with the error resumes
            with `"skip"`, which is the default here.

    Returns:
        The report, with the numbers of records that were left out.

    Raises:
        FileExistsError: `dest` exists, or for stores `mapping`.
        ValueError: arguments that exclude each other.
        ResultExistsError: the URL `dest` has another result or other objects, or is an object that exists.
        RemoteStoreError: results cannot be written to this kind of URL.
        StorePermissionError, StoreIOError: a request failed.
        CorruptionError: a record is damaged, and `on_damage` is `"raise"`.
        InvalidMessageError: for stores: a message cannot be copied.
        MissingPackageError: Parquet and Arrow need pyarrow.
        StoreLockedError: for stores: another process has `dest` open for writing.
    """
    if body_matches is not None and not isinstance(body_matches, str):
        raise TypeError(f"body_matches must be a str, not {type(body_matches).__name__}")
    if waiting not in ("keep", "drop"):
        raise ValueError(f"waiting must be 'keep' or 'drop', not {waiting!r}")
    partitions = Partitions(partition_by, columns)
    request = export_request(
        topics=topics,
        start_time=start_time,
        end_time=end_time,
        keys=keys,
        filter=filter,
        columns=partitions.columns,
        body_matches=body_matches,
        on_damage=on_damage,
    )
    _native.scan_schema(request)
    _native.watch_forks()
    source = place_of(path, storage_options, cache, cache_size)
    target = text_of(dest)
    kind = format_of(shown_url(target) if is_url(target) else target, format)
    url = target_url(target, target_options)
    ending = file_ending(target) if kind != "store" else None
    chosen = {"parts": parts, "partition_by": bool(partitions.names)}
    for name in (name for name, is_chosen in chosen.items() if is_chosen):
        _check_folder(name, kind, target, ending if url is not None or name == "partition_by" else None)
    if keep_offsets is not None and kind != "store":
        raise ValueError(f"keep_offsets is for stores; {kind} has the offsets of the source in the column queue_offset")
    if url is not None and mapping is not None:
        raise ValueError("at a URL, the mapping is a part of the result: omit mapping")

    def work_to(dest: Path) -> FileExport | StoreExport:
        make = StoreExport if kind == "store" else FileExport
        work = make(
            (source, dledger_end), dest, request, waiting == "keep", overwrite, progress, keep_offsets=keep_offsets
        )
        if isinstance(work, FileExport):
            work.partitions = partitions
        return work

    started = time.monotonic()
    if url is not None and ending is not None:
        counts = _to_object(work_to, url, target_options, kind, overwrite)
        return counts.report(shown_url(url), kind, time.monotonic() - started)
    if url is not None:
        return _to_url(work_to, url, target_options, kind)
    work = work_to(Path(target))
    with creating(work.dest):
        if isinstance(work, StoreExport):
            positions = Path(f"{work.dest}.mapping.jsonl" if mapping is None else home_of(mapping))
            with creating(positions):
                counts = work.to_store(positions)
        else:
            counts = work.to_parts(kind) if any(chosen.values()) else work.to_file(kind)
    return counts.report(str(work.dest), kind, time.monotonic() - started)


def _check_folder(argument: str, kind: str, target: str, ending: str | None) -> None:
    """Raises an error if a format, or the name of a file, excludes an argument that writes a folder of files."""
    if kind not in ("parquet", "arrow"):
        raise InvalidOptionError(argument, f"only for Parquet and Arrow, not for {kind}; omit it")
    if ending is not None:
        shown = shown_url(target) if is_url(target) else target
        reason = f"it writes a folder, and {shown} names one file; omit {ending}, and give the format"
        raise InvalidOptionError(argument, reason)


def _to_object(
    work_to: Callable[[Path], FileExport | StoreExport],
    url: str,
    target_options: Mapping[str, Any] | None,
    kind: str,
    overwrite: bool,
) -> Counts:
    """Writes an export as one object at a URL, whose name ends in a file type."""
    from mqstore._publish.target import object_target

    if url.partition("://")[0] in LOCAL:
        work = work_to(Path(object_path(checked_url(url), "")))
        with creating(work.dest):
            work.dest.parent.mkdir(parents=True, exist_ok=True)
            return cast("FileExport", work).to_file(kind)
    folder, _, name = url.rpartition("/")
    target, name = object_target(folder, target_options, "export to it"), decoded(name, url)
    if not overwrite:
        target.must_be_free(name)
    with scratch() as place:
        work = work_to(place / "file")
        counts = cast("FileExport", work).to_file(kind)
        target.upload_object(name, work.dest, overwrite)
    return counts


def _to_url(
    work_to: Callable[[Path], FileExport | StoreExport],
    url: str,
    target_options: Mapping[str, Any] | None,
    kind: str,
) -> ExportReport:
    """Publishes an export at a URL."""
    from mqstore._publish.target import UPLOADS, result_target
    from mqstore._reports import ExportReport

    started = time.monotonic()
    target = result_target(url, target_options, "export to it")
    with scratch() as folder:
        work = work_to(folder / "store")
        rules = work.rules(work.dest)
        with target.publication(kind, work.identity(kind, rules)) as publication:
            found = publication.begin()
            if found is None:
                parts = UrlParts(publication, folder, kind)
                if isinstance(work, StoreExport):
                    counts = work.to_store(folder / "positions", rules)
                    publication.add_directory(work.dest, UPLOADS)
                    publication.add_mapping(folder / "positions")
                elif kind == "jsonl":
                    counts = work.to_line_parts(parts, rules)
                else:
                    counts = work.to_column_parts(parts, rules)
                report = counts.report(target.shown, kind, time.monotonic() - started)
                found = publication.commit(json.dumps(report.to_dict()))
                if found.attempt == publication.attempt:
                    return report
    # The same result was published before, perhaps by a call whose end was lost.
    told = json.loads(found.report)
    known = {name: told[name] for name in ExportReport.__dataclass_fields__ if name in told}
    return ExportReport(**{**known, "resumed": True})


export.__module__ = "mqstore"
