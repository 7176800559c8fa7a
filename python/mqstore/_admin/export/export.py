"""`export`: writes messages of a store to a file of JSON lines, Parquet or Arrow, or to another store.

The native `ExportRules` decide for each record whether and how an export contains it, as of the end of the log at the
start of the export.

A file gets its name when it is complete. Until then it is `NAME.partial`. For JSON lines, and for the mapping of a
store, `NAME.partial.state` records the durable state:

::

    {"digest": "...", "position": 4711, "bytes": 99, "messages": 3, "reasons": {}, "target": 815, "made": [],
     "renumbered": 0, "keeps": true, "waiting": false}

- `digest`: digest of the arguments.
- `position`: log offset at which the export resumes.
- `bytes`: length of the partial file for this position; a resumed export truncates the rest.
- `target`: end of the target store's log at this position. The messages after it in the target store are those that
  were appended after the state was written, in their order, and those that the target store delivered.
- `made`: topics that the export created in the target store.
- `keeps`: whether messages keep their queue offsets. Then there are two passes, because the delivery of a message that
  waits takes an offset: `waiting` says that the second one, of these messages, has begun.
- `renumbered`: number of messages so far with another queue offset than in the source.

`NAME.partial.rules` has the rules. A resumed export uses them, so that it does not contain a message twice that was
delivered meanwhile.

Parquet and Arrow files have their directory at the end, so their export restarts from the beginning. With `parts`
there are many files. Each is complete before the state counts it, so that a resumed export repeats only the last one:

::

    NAME.partial/part-00000.parquet  part-00001.parquet ...   renamed to NAME when all parts are complete
    NAME.partial.state             `bytes` is the length of all parts, `parts` their number

At a URL, the result is always parts, or the files of a store: see `mqstore._publish`. A part exists on the local disk
only until it is uploaded. An interrupted export restarts from the beginning.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import warnings
from contextlib import contextmanager, suppress
from pathlib import Path, PurePosixPath
from typing import IO, TYPE_CHECKING, Any, Literal, TypeAlias

from mqstore import _extras, _native
from mqstore._admin.export.late_log import is_free, make_late_store
from mqstore._admin.export.settings import Settings, commit_offsets
from mqstore._admin.files import only_one, publish, replace_file, replace_state, sync_folder
from mqstore._paths import home_of, is_url, shown_url, target_url, text_of
from mqstore._read.scan import BATCH_ROWS, Scan, request_of
from mqstore._remote.place import CACHE_BYTES, place_of
from mqstore.errors import InvalidOptionError, StoreWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from mqstore._publish.publication import Publication
    from mqstore._reports import ExportReport, Progress
    from mqstore.types import DledgerEnd, Filter, Keys, StorePath, Time

ExportFormat: TypeAlias = Literal["jsonl", "parquet", "arrow", "store"]
"""Format of an export; of an import too, except `"store"`."""

Waiting: TypeAlias = Literal["keep", "drop"]
"""Whether an export contains delayed messages that wait for their delivery."""

_Place: TypeAlias = "tuple[str | _native.RemoteDirectory, DledgerEnd]"
"""Directory or URL, and the last Raft entry that is read."""

_REPEATED = [
    "store",
    "topic",
    "queue_id",
    "tags",
    "properties.key_value.key",
    "flag",
    "sys_flag",
    "born_host",
    "store_host",
    "reconsume_times",
]
"""Parquet columns with a dictionary. For columns whose values differ in each row, a dictionary only costs time."""

_ENDINGS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet", ".arrow": "arrow", ".feather": "arrow"}
_FORMATS = ("jsonl", "parquet", "arrow", "store")

# Bytes and seconds between two writes of the state.
_STATE_BYTES = 64 << 20
_STATE_SECONDS = 5.0

# Bytes of columns in a row group.
_GROUP_BYTES = 32 << 20

# Bytes of columns in a part.
_PART_BYTES = 256 << 20

# Conditions on messages in a request. They leave gaps in the queues.
_CONDITIONS = ("start_time", "end_time", "keys", "filter", "body_matches")

# Largest body that a target store accepts.
_MOST_BODY = 1 << 30


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

    Returns:
        The report, with the numbers of records that were left out.

    Raises:
        FileExistsError: `dest` exists, or for stores `mapping`.
        ValueError: arguments that exclude each other.
        ResultExistsError: the URL `dest` has another result or other objects.
        RemoteStoreError: results cannot be written to this kind of URL.
        StorePermissionError, StoreIOError: a request failed.
        InvalidMessageError: for stores: a message cannot be copied.
        ImportError: Parquet and Arrow need pyarrow.
        StoreLockedError: for stores: another process has `dest` open for writing.
    """
    if body_matches is not None and not isinstance(body_matches, str):
        msg = f"body_matches must be a str, not {type(body_matches).__name__}"
        raise TypeError(msg)
    if waiting not in ("keep", "drop"):
        msg = f"waiting must be 'keep' or 'drop', not {waiting!r}"
        raise ValueError(msg)
    request = export_request(
        topics=topics,
        start_time=start_time,
        end_time=end_time,
        keys=keys,
        filter=filter,
        columns=columns,
        body_matches=body_matches,
    )
    _native.scan_schema(request)
    _native.watch_forks()
    source = place_of(path, storage_options, cache, cache_size)
    target = text_of(dest)
    kind = format_of(shown_url(target) if is_url(target) else target, format)
    if parts and kind not in ("parquet", "arrow"):
        msg = f"parts are for Parquet and Arrow; {kind} can be resumed without them"
        raise ValueError(msg)
    if keep_offsets is not None and kind != "store":
        msg = f"keep_offsets is for stores; {kind} has the offsets of the source in the column queue_offset"
        raise ValueError(msg)
    if (url := target_url(target, target_options)) is not None:
        if mapping is not None:
            msg = "at a URL, the mapping is a part of the result: omit mapping"
            raise ValueError(msg)
        chosen = (request, waiting == "keep", keep_offsets, progress)
        return _to_url((source, dledger_end), url, target_options, kind, chosen)
    work = Export(
        (source, dledger_end),
        Path(target),
        request,
        waiting == "keep",
        overwrite,
        progress,
        keep_offsets=keep_offsets,
    )
    started = time.monotonic()
    if kind == "store":
        report = work.to_store(Path(f"{work.dest}.mapping.jsonl") if mapping is None else Path(home_of(mapping)))
    elif kind == "jsonl":
        report = work.to_lines()
    elif parts:
        report = work.to_parts(kind)
    else:
        report = work.to_columns(kind)
    return _report(str(work.dest), kind, report, time.monotonic() - started)


def export_request(
    *,
    topics: str | Iterable[str] | None,
    start_time: Time | None = None,
    end_time: Time | None = None,
    keys: Keys | None = None,
    filter: Filter | None = None,
    columns: Iterable[str] | None = None,
    body_matches: str | None = None,
) -> dict[str, Any]:
    """Returns the request for the native scan of an export; the arguments are those of `export`."""
    request = request_of(
        topics=topics,
        queue_id=None,
        start=None,
        end=None,
        start_time=start_time,
        end_time=end_time,
        keys=keys,
        filter=filter,
        columns=columns,
        batch_size=BATCH_ROWS,
        body="binary",
        threads=None,
    )
    return {**request, "body_matches": body_matches}


def _to_url(
    source: _Place,
    url: str,
    target_options: Mapping[str, Any] | None,
    kind: str,
    chosen: tuple[dict[str, Any], bool, bool | None, Callable[[Progress], object] | None],
) -> ExportReport:
    """Publishes an export at a URL.

    `chosen` are the request, whether to keep what waits and the queue offsets, and the callback.
    """
    from mqstore._publish.publication import Publication, scratch
    from mqstore._publish.target import target_of
    from mqstore._reports import ExportReport

    started = time.monotonic()
    request, keep_waiting, keep_offsets, progress = chosen
    target = target_of(url, target_options, "export to it")
    with scratch() as folder:
        work = Export(source, folder / "store", request, keep_waiting, False, progress, keep_offsets=keep_offsets)
        rules = work.rules(work.dest)
        with Publication(target, kind, work.identity(kind, rules)) as publication:
            found = publication.begin()
            if found is None:
                parts = _UrlParts(publication, folder, kind)
                if kind == "store":
                    counts = work.to_store(folder / "positions", rules)
                    publication.add_directory(work.dest)
                    publication.add_mapping(folder / "positions")
                elif kind == "jsonl":
                    counts = work.to_line_parts(parts, rules)
                else:
                    counts = work.to_column_parts(parts, rules)
                report = _report(target.shown, kind, counts, time.monotonic() - started)
                found = publication.commit(report.to_dict())
                if found.attempt == publication.attempt:
                    return report
    # The same result was published before, perhaps by a call whose end was lost.
    known = {name: found.report[name] for name in ExportReport.__dataclass_fields__ if name in found.report}
    return ExportReport(**{**known, "resumed": True})


def format_of(path: Path | str, format: str | None) -> str:
    """Returns the given format, or the format of the file name's ending."""
    found = _ENDINGS.get(PurePosixPath(path).suffix.lower()) if format is None else format
    if found is None:
        formats = ", ".join(_FORMATS)
        msg = f"{path}: unknown ending; give format= (on the command line --to or --from), one of {formats}"
        raise ValueError(msg)
    if found not in _FORMATS:
        msg = f"format must be one of {', '.join(_FORMATS)}, not {format!r}"
        raise ValueError(msg)
    return found


def _report(path: str, kind: str, counts: Counts, seconds: float) -> ExportReport:
    from mqstore._reports import ExportReport

    return ExportReport(
        path=path,
        format=kind,
        messages=counts.messages,
        bytes=counts.bytes,
        skipped=sum(counts.reasons.values()),
        reasons=dict(counts.reasons),
        resumed=counts.resumed,
        seconds=round(seconds, 3),
        renumbered=counts.renumbered,
    )


class Counts:
    """Counts of an export so far."""

    def __init__(self) -> None:
        self.messages = 0
        # Messages of a store with another queue offset than in the source.
        self.renumbered = 0
        self.reasons: dict[str, int] = {}
        self.bytes = 0
        self.resumed = False

    def leave_out(self, reasons: Iterable[tuple[str, int]]) -> None:
        """Adds numbers of records that were left out."""
        for reason, records in reasons:
            self.reasons[reason] = self.reasons.get(reason, 0) + records


class Rules:
    """The rules of an export, stored before the first state that depends on them."""

    def __init__(self, dest: Path, make: Callable[[bytes | None], _native.ExportRules | None]) -> None:
        self._path = Path(f"{dest}.partial.rules")
        self._make = make
        self._stored = False
        self._rules: _native.ExportRules | None = None

    def load(self) -> bool:
        """Loads the rules of an interrupted export. Returns whether they are complete."""
        with suppress(OSError):
            self._rules = self._make(self._path.read_bytes())
        self._stored = self._rules is not None
        return self._stored

    def get(self) -> _native.ExportRules:
        """Returns the rules; the first call makes them unless they were loaded."""
        if self._rules is None:
            self._rules = self._make(None)
            assert self._rules is not None
        return self._rules

    def store(self) -> None:
        """Stores the rules durably."""
        if not self._stored:
            replace_file(self._path, self.get().encode())
            self._stored = True


class _Partial:
    """A growing file and its state file."""

    def __init__(self, dest: Path, digest: str, rules: Rules) -> None:
        self._dest = dest
        self._rules = rules
        self._path = Path(f"{dest}.partial")
        self._state_path = Path(f"{dest}.partial.state")
        self._digest = digest
        self._written = 0
        self._when = time.monotonic()
        self.state: dict[str, Any] | None = None
        # Members of the state that belong to a copy to a store.
        self.of_copy: dict[str, Any] = {}
        self.file: IO[bytes] = self._open()

    def _open(self) -> IO[bytes]:
        state: dict[str, Any] | None = None
        with suppress(OSError, ValueError):
            state = json.loads(self._state_path.read_bytes())
        file = open(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666), "r+b")  # noqa: PTH123, SIM115
        try:
            only_one(file.fileno(), self._path)
            size = os.fstat(file.fileno()).st_size
            known = isinstance(state, dict) and state.get("digest") == self._digest
            if state is not None and known and state["bytes"] <= size and self._rules.load():
                self.state = state
            file.truncate(0 if self.state is None else self.state["bytes"])
            file.seek(0, os.SEEK_END)
        except BaseException:
            file.close()
            raise
        return file

    def write(self, text: bytes) -> None:
        self.file.write(text)
        self._written += len(text)

    def is_due(self, bytes_done: int) -> bool:
        """Returns whether a state should be written now."""
        return bytes_done >= _STATE_BYTES or time.monotonic() - self._when >= _STATE_SECONDS

    def save(
        self, position: int | None, counts: Counts, target: int | None = None, made: list[str] | None = None
    ) -> None:
        """Syncs the file, then records its state."""
        self._sync()
        self._rules.store()
        state = {
            "digest": self._digest,
            "position": position,
            "bytes": self.file.tell(),
            "messages": counts.messages,
            "reasons": counts.reasons,
            "target": target,
            "made": made,
            "renumbered": counts.renumbered,
            **self.of_copy,
        }
        replace_state(self._state_path, state)
        self._when = time.monotonic()

    def _sync(self) -> None:
        self.file.flush()
        os.fsync(self.file.fileno())

    def publish(self) -> int:
        """Gives the file its final name and returns its length."""
        self._sync()
        size = self.file.tell()
        self.file.close()
        publish(self._path, self._dest)
        _tidy(self._dest)
        return size


def _tidy(dest: Path) -> None:
    """Removes the state files of an export to `dest`."""
    for ending in (".partial.state", ".partial.state.new", ".partial.rules", ".partial.rules.new"):
        Path(f"{dest}{ending}").unlink(missing_ok=True)


class _Parts:
    """A folder of complete files, and its state file."""

    def __init__(self, dest: Path, kind: str, digest: str, rules: Rules) -> None:
        self._dest = dest
        self._kind = kind
        self._rules = rules
        self._folder = Path(f"{dest}.partial")
        self._state_path = Path(f"{dest}.partial.state")
        self._digest = digest
        self._lock: int | None = None
        self.count = 0

    def __enter__(self) -> None:
        self._folder.mkdir(exist_ok=True)
        self._lock = os.open(self._folder, os.O_RDONLY)
        try:
            only_one(self._lock, self._folder)
        except BaseException:
            os.close(self._lock)
            raise

    def __exit__(self, *_error: object) -> None:
        if self._lock is not None:
            os.close(self._lock)

    def resume(self, counts: Counts) -> int | None:
        """Returns the position to resume at, and removes files that the state does not count."""
        state: Any = None
        with suppress(OSError, ValueError):
            state = json.loads(self._state_path.read_bytes())
        position: int | None = None
        if isinstance(state, dict) and state.get("digest") == self._digest:
            counted = [self._folder / self._name(number) for number in range(state["parts"])]
            if all(path.is_file() for path in counted) and self._rules.load():
                self.count, position = state["parts"], state["position"]
                counts.messages, counts.bytes, counts.resumed = state["messages"], state["bytes"], True
                counts.reasons = state["reasons"]
        kept = {self._name(number) for number in range(self.count)}
        for path in self._folder.iterdir():
            if path.name not in kept:
                path.unlink()
        return position

    def _name(self, number: int) -> str:
        return f"part-{number:05}.{self._kind}"

    def add(self, schema: Any, batches: list[Any], position: int | None, counts: Counts) -> None:
        """Writes and syncs one part, then records the state."""
        path = self._folder / self._name(self.count)
        _write_part(self._kind, path, schema, batches)
        with path.open("rb") as file:
            os.fsync(file.fileno())
            counts.bytes += os.fstat(file.fileno()).st_size
        sync_folder(self._folder)
        self.count += 1
        self._rules.store()
        state = {
            "digest": self._digest,
            "position": position,
            "bytes": counts.bytes,
            "messages": counts.messages,
            "reasons": counts.reasons,
            "parts": self.count,
        }
        replace_state(self._state_path, state)

    def publish(self) -> None:
        """Gives the folder its final name."""
        self._folder.rename(self._dest)
        sync_folder(self._dest.parent)
        _tidy(self._dest)


class _UrlParts:
    """Files of a result at a URL. Each is on the local disk only until it is uploaded."""

    def __init__(self, publication: Publication, folder: Path, kind: str) -> None:
        self._publication = publication
        self._folder = folder
        self._kind = kind
        self.count = 0

    def path(self) -> Path:
        """Returns the local path of the next part."""
        return self._folder / f"part-{self.count:05}.{self._kind}"

    def add(self, schema: Any, batches: list[Any], _position: int | None, counts: Counts) -> None:
        """Writes one part of columns and uploads it."""
        _write_part(self._kind, self.path(), schema, batches)
        self.upload(counts)

    def upload(self, counts: Counts) -> None:
        """Uploads the next part, which is complete."""
        path = self.path()
        counts.bytes += path.stat().st_size
        self._publication.add(path.name, path)
        path.unlink()
        self.count += 1


class Export:
    """One export."""

    def __init__(
        self,
        source: _Place,
        dest: Path,
        request: dict[str, Any],
        keep_waiting: bool,
        overwrite: bool,
        progress: Callable[[Progress], object] | None,
        begin: int | None = None,
        *,
        keep_offsets: bool | None = False,
    ) -> None:
        """Creates the export of records from log offset `begin` on; None is from the first one on."""
        self.source = source
        # Names the source in the state of an interrupted export.
        self._place, self._dledger_end = source
        self.named = os.path.realpath(self._place) if isinstance(self._place, str) else self._place.url
        self.dest = dest
        self._request = request
        self._keep_waiting = keep_waiting
        self._overwrite = overwrite
        self._progress = progress
        self._begin = begin
        self._keep_offsets = keep_offsets

    def to_lines(self) -> Counts:
        self._must_be_free(self.dest)
        counts = Counts()
        partial = _Partial(self.dest, self._digest("jsonl"), rules := self.rules(self.dest))
        with partial.file:
            start = self._resume(partial, counts)
            stream = _native.scan_lines(self.source, self._chosen(rules, start), rules.get())
            with _closing(stream):
                if start is None and self._request["columns"] is None:
                    partial.write(self._settings().line())
                self._tell(stream, stream.start if start is None else start)
                fresh = 0
                for text, rows, left_out, end in stream:
                    partial.write(text)
                    fresh += len(text)
                    counts.messages += rows
                    counts.leave_out(left_out)
                    if partial.is_due(fresh):
                        partial.save(end, counts)
                        fresh = 0
                    self._tell(stream, end)
            self._must_be_free(self.dest)
            counts.bytes = partial.publish()
        return counts

    def to_columns(self, kind: str) -> Counts:
        self._must_be_free(self.dest)
        counts = Counts()
        pyarrow = _extras.pyarrow()
        path = Path(f"{self.dest}.partial")
        schema = Scan(self._place, self._request).schema
        rules = self.rules(self.dest)
        stream = _native.scan_export(self.source, self._chosen(rules, None), rules.get())
        try:
            with _closing(stream), column_file(kind, path, schema) as write:
                for rows, left_out, end in stream:
                    counts.leave_out(left_out)
                    if rows is not None:
                        write(pyarrow.record_batch(rows))
                        counts.messages += len(rows)
                    self._tell(stream, end)
            counts.bytes = path.stat().st_size
            self._must_be_free(self.dest)
            publish(path, self.dest)
        except BaseException:
            path.unlink(missing_ok=True)
            raise
        return counts

    def to_parts(self, kind: str) -> Counts:
        self._must_be_free(self.dest, folder=True)
        counts = Counts()
        schema = Scan(self._place, self._request).schema
        parts = _Parts(self.dest, kind, self._digest(f"{kind} parts"), rules := self.rules(self.dest))
        with parts:
            self._add_parts(parts, schema, rules, parts.resume(counts), counts)
            self._must_be_free(self.dest, folder=True)
            parts.publish()
        return counts

    def to_column_parts(self, parts: _UrlParts, rules: Rules) -> Counts:
        """Writes the columns as parts at a URL."""
        counts = Counts()
        self._add_parts(parts, Scan(self._place, self._request).schema, rules, None, counts)
        return counts

    def _add_parts(
        self, parts: _Parts | _UrlParts, schema: Any, rules: Rules, start: int | None, counts: Counts
    ) -> None:
        pyarrow = _extras.pyarrow()
        with _closing(_native.scan_export(self.source, self._chosen(rules, start), rules.get())) as stream:
            group: list[Any] = []
            end = start
            for rows, left_out, end in stream:
                counts.leave_out(left_out)
                if rows is not None:
                    group.append(pyarrow.record_batch(rows))
                    counts.messages += len(rows)
                if sum(batch.nbytes for batch in group) >= _PART_BYTES:
                    parts.add(schema, group, end, counts)
                    group.clear()
                self._tell(stream, end)
            # Without messages, one empty part still shows the columns.
            if group or not parts.count:
                parts.add(schema, group, end, counts)

    def to_line_parts(self, parts: _UrlParts, rules: Rules) -> Counts:
        """Writes JSON lines as parts at a URL. All parts together are the file of `to_lines`."""
        counts = Counts()
        with _closing(_native.scan_lines(self.source, self._chosen(rules, None), rules.get())) as stream:
            is_complete = False
            first = self._settings().line() if self._request["columns"] is None else b""
            while not is_complete:
                with parts.path().open("wb") as file:
                    file.write(first if not parts.count else b"")
                    is_complete = self._fill(file, stream, counts)
                    is_empty = not file.tell()
                if not (is_empty and parts.count):
                    parts.upload(counts)
        return counts

    def _fill(self, file: IO[bytes], stream: Any, counts: Counts) -> bool:
        """Writes the lines of one part. Returns whether it is the last one."""
        for text, rows, left_out, end in stream:
            file.write(text)
            counts.messages += rows
            counts.leave_out(left_out)
            self._tell(stream, end)
            if file.tell() >= _PART_BYTES:
                return False
        return True

    def identity(self, kind: str, rules: Rules) -> str:
        """Returns a digest of the call and of the range of the log that it exports."""
        with _closing(_native.scan_open(self.source, self._chosen(rules, None))) as stream:
            whole = [kind, self.named, self._told(), stream.start, stream.limit]
        return hashlib.sha256(json.dumps(whole, sort_keys=True, default=repr).encode()).hexdigest()

    def to_store(self, mapping: Path, rules: Rules | None = None) -> Counts:
        from mqstore import _store

        self.check_store()
        self._must_be_free(mapping)
        counts = Counts()
        rules = rules or self.rules(mapping)
        settings = self._settings()
        self._prepare_store(rules)
        with _store.open(self.dest, "create", max_message_size=_MOST_BODY) as target:
            partial = _Partial(mapping, self._digest("store"), rules)
            with partial.file:
                start = self._resume(partial, counts)
                known = partial.state or {}
                keeps = known.get("keeps", False) if known else self._can_keep_offsets(target, rules)
                partial.of_copy = {"keeps": keeps, "waiting": known.get("waiting", False)}
                with settings.given_to(target, known.get("made")) as made:
                    if partial.state is None:
                        partial.save(None, counts, target.stats().log_max_offset, made)
                    self._copy(partial, (rules, start, known.get("target")), target, counts, made)
                if keeps and not counts.renumbered:
                    self._copy_groups(target)
                target.flush()
                counts.bytes = partial.publish()
        if keeps and counts.renumbered:
            text = (
                f"{self.dest}: {counts.renumbered} messages have another queue offset than in the source, because "
                f"records there have the same offset, or are too far apart; {mapping} has both offsets, and groups get "
                "no offsets"
            )
            warnings.warn(text, StoreWarning, stacklevel=3)
        return counts

    @property
    def _wants_offsets(self) -> bool:
        """Whether the arguments allow that messages keep their queue offsets."""
        return self._keep_offsets is not False and not any(self._request[name] is not None for name in _CONDITIONS)

    def _prepare_store(self, rules: Rules) -> None:
        """Makes the store if a queue of it begins late."""
        dest = Path(os.path.realpath(self.dest))
        if self._wants_offsets and is_free(dest) and rules.get().has_late_queue(self.source):
            make_late_store(dest)

    def _can_keep_offsets(self, target: Any, rules: Rules) -> bool:
        """Returns whether messages keep their queue offsets in `target`.

        Raises:
            ValueError: they cannot, but the caller wants it.
        """
        if not self._wants_offsets:
            return False
        now = target.stats()
        if now.log_min_offset != now.log_max_offset:
            reason = "it has messages already"
        elif not now.log_min_offset and rules.get().has_late_queue(self.source):
            reason = "it exists and its log begins at 0, but a queue of the source begins later"
        else:
            return True
        if self._keep_offsets:
            msg = f"{self.dest}: cannot keep the queue offsets: {reason}; choose a new directory, or omit keep_offsets"
            raise ValueError(msg)
        return False

    def check_store(self) -> None:
        """Raises the error for a wrong source or a wrong selection, before the target store is created."""
        if self._request["columns"] is not None:
            msg = "columns are for files; a store takes whole messages"
            raise ValueError(msg)
        if self._keep_offsets and not self._wants_offsets:
            msg = "a selection of messages leaves gaps in the queues: with keep_offsets, select only topics"
            raise ValueError(msg)
        if self.named == os.path.realpath(self.dest):
            msg = f"{self.dest}: a store cannot be exported into itself"
            raise ValueError(msg)
        _native.scan_schema(self._request)
        _native.scan_open(self.source, self._request).close()

    def _copy_groups(self, target: Any) -> None:
        """Gives the groups of the source their offsets in the target."""
        from mqstore._admin.info import SYSTEM_GROUPS, StoreInfo

        topics = set(target.topics())
        offsets: dict[str, dict[tuple[str, int], int]] = {}
        for one in StoreInfo._from_dict(_native.info(self._place)).consumers:
            if one.topic in topics and not one.group.startswith(SYSTEM_GROUPS):
                found = offsets.setdefault(one.group, {})
                found.update({(one.topic, queue.queue_id): queue.offset for queue in one.queues})
        for group, found in offsets.items():
            try:
                commit_offsets(target, {group: found})
            except InvalidOptionError as error:
                text = f"{self.dest}: the group {group!r} of the source gets no offsets: {error}"
                warnings.warn(text, StoreWarning, stacklevel=4)

    def _copy(
        self,
        partial: _Partial,
        place: tuple[Rules, int | None, int | None],
        target: Any,
        counts: Counts,
        made: list[str],
    ) -> None:
        """Appends the messages from a position on to the target. An interrupted call may have written some of them."""
        rules, start, done = place

        def save(position: int | None) -> None:
            target.flush()
            partial.save(position, counts, target.stats().log_max_offset, made)

        def copy(part: str, request: dict[str, Any]) -> None:
            stream = _native.scan_copy(self.source, request, target, rules.get(), done, part)
            with _closing(stream):
                fresh = 0
                for text, copied, renumbered, left_out, end in stream:
                    partial.write(text)
                    fresh += len(text)
                    counts.messages += copied
                    counts.renumbered += 0 if part == "waiting" else renumbered
                    counts.leave_out(left_out)
                    if partial.is_due(fresh * 8):
                        save(end)
                        fresh = 0
                    self._tell(stream, stream.limit if part == "waiting" else end)

        if not partial.of_copy["keeps"]:
            copy("all", self._chosen(rules, start))
            return
        waiting = rules.get().waiting_topics
        if not partial.of_copy["waiting"]:
            copy("delivered", self._chosen(rules, start))
            if waiting:
                # From here on, the target delivers messages, so that a resumed export must not repeat the first pass.
                partial.of_copy["waiting"] = True
                save(None)
                start = done = None
        if waiting:
            copy("waiting", {**self._chosen(rules, start), "topics": waiting})

    def rules(self, dest: Path) -> Rules:
        """Returns the rules of an export to `dest`."""
        topics, keep = self._request["topics"], self._keep_waiting

        def make(stored: bytes | None) -> _native.ExportRules | None:
            if stored is None:
                return _native.ExportRules(self.source, topics, keep)
            return _native.ExportRules.decode(stored, topics, keep)

        return Rules(dest, make)

    def _chosen(self, rules: Rules, start: int | None) -> dict[str, Any]:
        """Returns the request for the records that the rules decide about."""
        begin = self._begin if start is None else start
        return {**self._request, "topics": rules.get().topics, "from": begin, "to": rules.get().limit}

    def _settings(self) -> Settings:
        return Settings.of(self.source, self._request["topics"])

    def _resume(self, partial: _Partial, counts: Counts) -> int | None:
        """Returns the position to resume at."""
        if partial.state is None:
            return None
        counts.resumed = True
        counts.messages = partial.state["messages"]
        counts.reasons = partial.state["reasons"]
        counts.renumbered = partial.state.get("renumbered", 0)
        position: int | None = partial.state["position"]
        return position

    def _digest(self, kind: str) -> str:
        whole = [kind, self.named, os.path.realpath(self.dest), self._told()]
        return hashlib.sha256(json.dumps(whole, sort_keys=True, default=repr).encode()).hexdigest()

    def _told(self) -> dict[str, Any]:
        """Returns the arguments that select the messages and their form."""
        told = {name: value for name, value in self._request.items() if name != "threads"}
        mine = {
            "keep_waiting": self._keep_waiting,
            "keep_offsets": self._keep_offsets,
            "begin": self._begin,
            "dledger_end": self._dledger_end,
        }
        return {**told, **mine}

    def _must_be_free(self, path: Path, *, folder: bool = False) -> None:
        if path.exists() and not Path(f"{path}.partial").exists():
            # An export was killed in its last step.
            _tidy(path)
        if folder and path.exists():
            msg = f"{path}: exists already; choose a new folder for the parts"
            raise FileExistsError(msg)
        if path.is_dir() or (path.exists() and not self._overwrite):
            msg = f"{path}: exists already; set overwrite to replace a file"
            raise FileExistsError(msg)

    def _tell(self, stream: Any, position: int) -> None:
        if self._progress is not None:
            from mqstore._reports import Progress

            self._progress(Progress(position - stream.start, stream.limit - stream.start))


@contextmanager
def _closing(stream: Any) -> Iterator[Any]:
    try:
        yield stream
    finally:
        stream.close()


@contextmanager
def _writer(kind: str, path: Path, schema: Any) -> Iterator[Callable[[Any], None]]:
    """Opens a Parquet or Arrow file and yields its function for tables."""
    if kind == "parquet":
        parquet = _extras.module("pyarrow.parquet", "arrow")
        with parquet.ParquetWriter(str(path), schema, compression="zstd", use_dictionary=_REPEATED) as writer:
            yield writer.write_table
    else:
        ipc = _extras.module("pyarrow.ipc", "arrow")
        options = ipc.IpcWriteOptions(compression="zstd")
        with ipc.new_file(str(path), schema, options=options) as writer:
            yield writer.write_table


def _write_part(kind: str, path: Path, schema: Any, batches: list[Any]) -> None:
    """Writes batches to a new file."""
    table = _extras.pyarrow().Table.from_batches(batches, schema)
    with _writer(kind, path, schema) as write:
        rows = max(1, _GROUP_BYTES * table.num_rows // max(table.nbytes, 1))
        for at in range(0, table.num_rows, rows):
            write(table.slice(at, rows))


@contextmanager
def column_file(kind: str, path: Path, schema: Any) -> Iterator[Callable[[Any], None]]:
    """Opens a Parquet or Arrow file and yields its function for batches, which it groups. Syncs the file at the end."""
    group: list[Any] = []
    held = 0
    with _writer(kind, path, schema) as write:

        def flush() -> None:
            nonlocal held
            write(_extras.pyarrow().Table.from_batches(group))
            group.clear()
            held = 0

        def add(batch: Any) -> None:
            nonlocal held
            group.append(batch)
            held += batch.nbytes
            if held >= _GROUP_BYTES:
                flush()

        yield add
        if group:
            flush()
    with path.open("rb") as file:
        os.fsync(file.fileno())


export.__module__ = "mqstore"
