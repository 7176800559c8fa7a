"""`Archive`: verify, restore and list an archive; `StoreArchive`: the archive of an open store."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mqstore import _native
from mqstore._admin.files import new_directory
from mqstore._archive.place import ArchivePlace
from mqstore._options import StoreOptions, native_form
from mqstore._paths import home_of
from mqstore._reports import (
    ArchiveFile,
    ArchiveQueue,
    ArchiveReport,
    ArchiveRestoreReport,
    ArchiveVerifyReport,
    CleanReport,
    Progress,
    native_progress,
)
from mqstore._times import duration_of, milliseconds_of, seconds_since
from mqstore.errors import InvalidOptionError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mqstore._store import Store
    from mqstore.types import Duration, StorePath, Time

_MOST_LEVEL = 19

_COPIED = "copied"
"""Setting of a copy, which the native module adds: its reads continue in the archive, and it does not extend it."""

_SIZES: dict[str, int] = {}
"""Sizes of runs that replace the default ones. For tests."""


class Archive:
    """An archive in a folder or at a URL. It needs no store, and no process that writes it.

    Args:
        target: the folder, or a URL (`s3://`, `gs://`, `az://`, `file://`).
        target_options: only for a URL: credentials and settings of the transport, as `storage_options` of
            `mqstore.open`. They are never stored.

    Raises:
        InvalidOptionError: `target_options` for a folder.
        RemoteStoreError: archives cannot be written to this kind of URL.
        MissingPackageError: the package for this kind of URL is not installed.
    """

    def __init__(self, target: StorePath, *, target_options: Mapping[str, Any] | None = None) -> None:
        self._place = ArchivePlace(target, target_options)

    def __repr__(self) -> str:
        return f"<mqstore.Archive {self._place.shown!r}>"

    @property
    def target(self) -> str:
        """The folder, or the URL without secrets."""
        return self._place.shown

    def files(self, topic: str | None = None) -> tuple[ArchiveFile, ...]:
        """Returns the files of the archive, in the order of the log.

        Args:
            topic: only files with records of this topic; None is all.

        Raises:
            ResultNotFoundError: there is no archive.
            CorruptionError: the manifest is damaged.
            StorePermissionError, StoreIOError: a request failed.
        """
        rows = self._place.native.files()
        return tuple(_file_of(row) for row in rows if topic is None or row[1] == topic)

    def paths(self, topic: str | None = None) -> list[str]:
        """Returns the paths or URLs of the Parquet files with records, for other programs.

        `polars.scan_parquet`, `pyarrow.dataset.dataset`, DuckDB's `read_parquet` and `spark.read.parquet` accept the
        list. It has each record once. A pattern for the folder may also match files of a run that failed. For an
        archive at a `file://` URL, these are paths; at any other URL, the names of the objects as they are, with
        nothing encoded.

        Args:
            topic: only files with records of this topic; None is all topics.

        Raises:
            ResultNotFoundError, CorruptionError, StorePermissionError, StoreIOError: as for `files`.
        """
        rows = self._place.native.files()
        return [path for path, name, *_ in rows if name is not None and topic in (None, name)]

    def verify(
        self, *, rebuild_manifest: bool = False, progress: Callable[[Progress], object] | None = None
    ) -> ArchiveVerifyReport:
        """Reads all files of the archive, and encodes all their records again.

        The length, the digest, the number of records and their checksums must be those of the time when the records
        were in the log.

        Args:
            rebuild_manifest: whether to make a new manifest first, if the newest one is missing or damaged, or does not
                name complete files: it has everything of the newest manifest that can be read, and the segments whose
                files are complete. The problems in the report name what could not be used.
            progress: callback with bytes of the files. An exception in it ends the call.

        Raises:
            ResultNotFoundError: there is no archive.
            CorruptionError: the manifest is damaged. Problems of the files are in the report.
            StoreBusyError: with `rebuild_manifest`, a run has extended the archive meanwhile.
            StorePermissionError, StoreIOError: a request failed.
        """
        started = time.monotonic()
        found = self._place.native.verify(rebuild_manifest, native_progress(progress))
        problems = tuple(found.pop("problems"))
        return ArchiveVerifyReport(
            target=self._place.shown, ok=not problems, problems=problems, seconds=seconds_since(started), **found
        )

    def restore(
        self,
        directory: StorePath,
        *,
        topics: str | Iterable[str] | None = None,
        since: Time | None = None,
        until: Time | None = None,
        options: StoreOptions | None = None,
        progress: Callable[[Progress], object] | None = None,
    ) -> ArchiveRestoreReport:
        """Makes a new store directory from the archive.

        Its segments have the bytes of the archived segments. Queues, key index and checkpoint are built from them, so
        that mqstore and brokers can open the directory. Topics and groups have default settings, and committed offsets
        are not in an archive. Until it is complete, the directory is `DIR.partial`.

        Args:
            directory: the directory; it must not exist, or be empty.
            topics: only records of these topics, at their old log offsets and queue offsets. Placeholders, which no
                reader sees, take the places of all other records.
            since: only segments with records stored at or after this time. Segments are restored as a whole.
            until: only segments with records stored before this time.
            options: lengths of the new queue and index files. A broker refuses files of other lengths than its own:
                see `StoreOptions.from_broker_conf`. None is RocketMQ's default.
            progress: callback with bytes of the files. An exception in it ends the call.

        Raises:
            FileExistsError: the directory is not empty.
            ResultNotFoundError: there is no archive.
            TopicNotFoundError: the archive has no records of a topic.
            InvalidOptionError: the archive has no segment of this time, or lacks segments between them.
            CorruptionError: the manifest or a file is damaged.
            StorePermissionError, StoreIOError: a request failed.
            StoreBusyError: another call writes the same directory.
            DiskFullError: no space for the directory.
        """
        home = Path(home_of(directory, "restore to it"))
        first = None if since is None else milliseconds_of("since", since)
        last = None if until is None else milliseconds_of("until", until)
        started = time.monotonic()
        restore = self._place.native.restore(_topics(topics), first, last)
        form = native_form(options or StoreOptions())
        with new_directory(home) as partial:
            found = restore.run(partial, home, self._place.text, form, native_progress(progress))
        return ArchiveRestoreReport(target=self._place.shown, path=str(home), seconds=seconds_since(started), **found)

    def clean(self, *, older_than: Duration = "7d", dry_run: bool = False) -> CleanReport:
        """Removes files that failed runs left, and manifests that newer ones have replaced.

        Args:
            older_than: minimum age of an object. A run can be in progress, and a program can still read an old list of
                files, so use more than both take; seven days by default.
            dry_run: whether to report the objects only.

        Raises:
            ResultNotFoundError, CorruptionError, StorePermissionError, StoreIOError: as for `files`.
        """
        age_ms = math.ceil(duration_of("older_than", older_than) * 1000)
        rows, kept = self._place.native.clean(age_ms, dry_run)
        return CleanReport._of_rows(self._place.shown, rows, kept, dry_run=dry_run)


class StoreArchive:
    """The archive of an open store, from `Store.archive`."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def __repr__(self) -> str:
        return f"<mqstore.StoreArchive of {self._store.path!r}>"

    @property
    def target(self) -> str | None:
        """The folder or URL of the archive; None if the store has none."""
        state = _native.archive_state(self._store)
        return None if state is None else str(json.loads(state[1])["target"])

    @property
    def archived_to(self) -> int | None:
        """The log offset up to which segments may be deleted; None if the store has no archive."""
        state = _native.archive_state(self._store)
        return None if state is None else state[0]

    def configure(
        self,
        target: StorePath | None,
        *,
        older_than: Duration = 0,
        topics: str | Iterable[str] | None = None,
        level: int = 3,
        target_options: Mapping[str, Any] | None = None,
    ) -> None:
        """Sets the archive of the store. The change is durable when this returns.

        From then on, retention removes no segment that the archive does not contain, whatever the reason, also if the
        disk is nearly full. So call `run` regularly. Reads that begin before the log continue in the archive.

        Args:
            target: the folder, or a URL (`s3://`, `gs://`, `az://`, `file://`). None removes the configuration; the
                archive stays.
            older_than: minimum age of the last record of a segment that `run` archives; 0 by default: each full
                segment.
            topics: only records of these topics; None is everything in the log. Only then a restore is complete.
            level: compression level of zstd, 1 to 19. Levels above 9 are slow.
            target_options: only for a URL: credentials and settings of the transport. They are not stored: give them to
                each call that needs them, or use the environment variables of the transport.

        Raises:
            StoreReadOnlyError: the store is open for reading.
            StoreBusyError: a hook of the store made the call.
            ResultExistsError: the target has the archive of another store, or of other topics.
            CorruptionError: the target does not have what the store archived there. To begin a new archive without
                these messages, call `configure(None)` first.
            InvalidOptionError: an option is out of bounds.
            RemoteStoreError: archives cannot be written to this kind of URL.
            StorePermissionError, StoreIOError: a request failed.
        """
        if target is None:
            _native.set_archive(self._store, None)
            self._link(None, None, None)
            return
        if type(level) is not int or not 1 <= level <= _MOST_LEVEL:
            raise InvalidOptionError("level", f"must be an int from 1 to {_MOST_LEVEL}, not {level!r}")
        place = ArchivePlace(target, target_options)
        chosen = _topics(topics)
        values = {
            "target": place.text,
            "older_than": duration_of("older_than", older_than),
            "topics": chosen,
            "level": level,
        }
        place.check_outside(self._store.path)
        first = place.native.configure(self._store, json.dumps(values, sort_keys=True), chosen)
        self._link(place.text, target_options, first)

    def run(
        self, *, target_options: Mapping[str, Any] | None = None, progress: Callable[[Progress], object] | None = None
    ) -> ArchiveReport:
        """Archives all full segments that the archive does not contain yet and that are old enough.

        A segment is archived when it is full, synced, and no longer the last one. Each file is written, decoded again,
        compared with the log, uploaded, and read back, before a manifest names it. After an error or a kill, the
        archive is that of the last manifest; a later run continues there. This also works in a store that is open for
        reading next to its writer. The segments can then be deleted after the next run of the writer.

        Args:
            target_options: only for a URL: credentials and settings of the transport.
            progress: callback with bytes of the log. An exception in it ends the run.

        Returns:
            The report.

        Raises:
            InvalidOptionError: the store has no archive, or is a copy that only reads it: call `configure` first.
            StoreBusyError: meanwhile, another run has extended the archive, or a reclaim has rewritten the segments. No
                message is lost: run it again.
            ResultExistsError: the target has the archive of another store, or of other topics.
            CorruptionError: the target does not have what the store archived there. To begin a new archive without
                these messages, call `configure(None)` first.
            StorePermissionError, StoreIOError: a request failed.
            DiskFullError: no space in the target.
        """
        state = self._configured()
        values = json.loads(state[1])
        if _COPIED in values:
            reason = (
                f"{self._store.path} is a copy of a store, whose archive it only reads: call archive.configure to "
                "archive to another target, or to this one if the copy takes the place of the store"
            )
            raise InvalidOptionError("archive", reason)
        place = ArchivePlace(values["target"], target_options)
        self._store._archive_look.note(values["target"], target_options)
        return self._run(place, values, state, self._store.mode != "r", progress)

    def run_to(
        self,
        target: StorePath,
        *,
        older_than: Duration = 0,
        topics: str | Iterable[str] | None = None,
        level: int = 3,
        target_options: Mapping[str, Any] | None = None,
        progress: Callable[[Progress], object] | None = None,
    ) -> ArchiveReport:
        """Archives to another place than the configured one, or without a configuration.

        The arguments are those of `configure` and `run`. Retention does not wait for this archive.
        """
        place = ArchivePlace(target, target_options)
        values = {"older_than": duration_of("older_than", older_than), "topics": _topics(topics), "level": level}
        state = _native.archive_state(self._store)
        if state is not None and json.loads(state[1])["target"] != place.text:
            # The record of another target says nothing.
            state = None
        return self._run(place, values, state, False, progress)

    def _run(
        self,
        place: ArchivePlace,
        values: Mapping[str, Any],
        recorded: tuple[int, str] | None,
        advances: bool,
        progress: Callable[[Progress], object] | None,
    ) -> ArchiveReport:
        started = time.monotonic()
        place.check_outside(self._store.path)
        settings = math.ceil(values["older_than"] * 1000), values["topics"], values["level"]
        found = place.native.run(self._store, settings, recorded, advances, _SIZES, native_progress(progress))
        return ArchiveReport(target=place.shown, bloom_filters=True, seconds=seconds_since(started), **found)

    def files(
        self, topic: str | None = None, *, target_options: Mapping[str, Any] | None = None
    ) -> tuple[ArchiveFile, ...]:
        """Returns the files of the archive, see `Archive.files`."""
        return self._archive(target_options).files(topic)

    def paths(self, topic: str | None = None, *, target_options: Mapping[str, Any] | None = None) -> list[str]:
        """Returns the paths or URLs of the Parquet files, see `Archive.paths`."""
        return self._archive(target_options).paths(topic)

    def verify(
        self,
        *,
        rebuild_manifest: bool = False,
        progress: Callable[[Progress], object] | None = None,
        target_options: Mapping[str, Any] | None = None,
    ) -> ArchiveVerifyReport:
        """Checks all files of the archive, see `Archive.verify`."""
        return self._archive(target_options).verify(rebuild_manifest=rebuild_manifest, progress=progress)

    def restore(
        self,
        directory: StorePath,
        *,
        topics: str | Iterable[str] | None = None,
        since: Time | None = None,
        until: Time | None = None,
        options: StoreOptions | None = None,
        progress: Callable[[Progress], object] | None = None,
        target_options: Mapping[str, Any] | None = None,
    ) -> ArchiveRestoreReport:
        """Makes a new store directory from the archive, see `Archive.restore`."""
        archive = self._archive(target_options)
        return archive.restore(directory, topics=topics, since=since, until=until, options=options, progress=progress)

    def _link(self, target: str | None, target_options: Mapping[str, Any] | None, first: int | None) -> None:
        """Lets the reads of the open store continue in the archive, unless its open named another one or none."""
        if self._store._reads_own_archive:
            self._store._link_archive(target, target_options, first=first)

    def _configured(self) -> tuple[int, str]:
        state = _native.archive_state(self._store)
        if state is None:
            raise InvalidOptionError("archive", f"{self._store.path} has no archive: call archive.configure first")
        return state

    def _archive(self, target_options: Mapping[str, Any] | None) -> Archive:
        return Archive(json.loads(self._configured()[1])["target"], target_options=target_options)


def _file_of(row: tuple[Any, ...]) -> ArchiveFile:
    """Returns a file from its row of the native module, whose queues are the last part."""
    queues = tuple(ArchiveQueue(*one) for one in row[-1])
    values: tuple[Any, ...] = (*row[:-1], queues)
    return ArchiveFile(*values)


def _topics(topics: Any) -> list[str] | None:
    """Returns the names of topics, sorted."""
    if topics is None:
        return None
    if isinstance(topics, bytes) or not isinstance(topics, Iterable):
        raise TypeError(f"topics must be a str or an iterable of str, not {type(topics).__name__}")
    found = {topics} if isinstance(topics, str) else set(topics)
    for one in found:
        if not isinstance(one, str):
            raise TypeError(f"a topic must be a str, not {type(one).__name__}")
    if not found:
        raise InvalidOptionError("topics", "names no topic; use None for all topics")
    return sorted(found)


for _class in (Archive, StoreArchive):
    _class.__module__ = "mqstore"
del _class
