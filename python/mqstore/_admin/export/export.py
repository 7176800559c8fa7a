"""`export`: writes messages of a store to a file of JSON lines, Parquet or Arrow, or to another store."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqstore import _native
from mqstore._admin.export.file_export import FileExport
from mqstore._admin.export.formats import format_of
from mqstore._admin.export.parts import UrlParts
from mqstore._admin.export.run import export_request
from mqstore._admin.export.store_export import StoreExport
from mqstore._admin.files import creating, scratch
from mqstore._paths import home_of, is_url, shown_url, target_url, text_of
from mqstore._remote.place import CACHE_BYTES, place_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from mqstore._admin.export.formats import ExportFormat, Waiting
    from mqstore._admin.export.run import Place
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
            report is returned. Between two parts nothing stays on the local disk; a store is first built there.
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
        overwrite: whether to replace an existing file `dest`; a folder or a result at a URL is never replaced.
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
        ResultExistsError: the URL `dest` has another result or other objects.
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
    request = export_request(
        topics=topics,
        start_time=start_time,
        end_time=end_time,
        keys=keys,
        filter=filter,
        columns=columns,
        body_matches=body_matches,
        on_damage=on_damage,
    )
    _native.scan_schema(request)
    _native.watch_forks()
    source = place_of(path, storage_options, cache, cache_size)
    target = text_of(dest)
    kind = format_of(shown_url(target) if is_url(target) else target, format)
    if parts and kind not in ("parquet", "arrow"):
        raise ValueError(f"parts are for Parquet and Arrow; {kind} can be resumed without them")
    if keep_offsets is not None and kind != "store":
        raise ValueError(f"keep_offsets is for stores; {kind} has the offsets of the source in the column queue_offset")
    if (url := target_url(target, target_options)) is not None:
        if mapping is not None:
            raise ValueError("at a URL, the mapping is a part of the result: omit mapping")
        chosen = (request, waiting == "keep", keep_offsets, progress)
        return _to_url((source, dledger_end), url, target_options, kind, chosen)
    work = _work(kind)(
        (source, dledger_end), Path(target), request, waiting == "keep", overwrite, progress, keep_offsets=keep_offsets
    )
    started = time.monotonic()
    with creating(work.dest):
        if isinstance(work, StoreExport):
            positions = Path(f"{work.dest}.mapping.jsonl" if mapping is None else home_of(mapping))
            with creating(positions):
                counts = work.to_store(positions)
        elif kind == "jsonl":
            counts = work.to_lines()
        elif parts:
            counts = work.to_parts(kind)
        else:
            counts = work.to_columns(kind)
    return counts.report(str(work.dest), kind, time.monotonic() - started)


def _to_url(
    source: Place,
    url: str,
    target_options: Mapping[str, Any] | None,
    kind: str,
    chosen: tuple[dict[str, Any], bool, bool | None, Callable[[Progress], object] | None],
) -> ExportReport:
    """Publishes an export at a URL.

    `chosen` are the request, whether to keep what waits and the queue offsets, and the callback.
    """
    from mqstore._publish.target import UPLOADS, result_target
    from mqstore._reports import ExportReport

    started = time.monotonic()
    request, keep_waiting, keep_offsets, progress = chosen
    target = result_target(url, target_options, "export to it")
    with scratch() as folder:
        work = _work(kind)(source, folder / "store", request, keep_waiting, False, progress, keep_offsets=keep_offsets)
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


def _work(kind: str) -> type[FileExport | StoreExport]:
    """Returns the class of exports in a format."""
    return StoreExport if kind == "store" else FileExport


export.__module__ = "mqstore"
