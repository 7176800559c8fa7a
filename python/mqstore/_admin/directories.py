"""The verbs on whole directories: `info`, `verify`, `repair`, `rebuild` and `compact`."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from mqstore import _native
from mqstore._admin.files import creating, scratch, without_options
from mqstore._paths import home_of, shown_url, target_url, text_of
from mqstore._remote.place import CACHE_BYTES, place_of
from mqstore._times import count_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from typing import Any, TypeVar, Unpack

    from mqstore._admin.info import StoreInfo
    from mqstore._options import StoreOptions
    from mqstore._reports import CompactionReport, Progress, RebuildReport, RepairReport, SnapshotReport, VerifyReport
    from mqstore.types import LocalCompactionOptions, StorePath

    R = TypeVar("R", CompactionReport, RepairReport, SnapshotReport)


def info(
    path: StorePath,
    *,
    storage_options: Mapping[str, Any] | None = None,
    cache: StorePath | None = None,
    cache_size: int = CACHE_BYTES,
) -> StoreInfo:
    """Describes the store in the directory `path`, without any change.

    `path` can also be a `commitlog` folder without a store, or one segment of a log.

    Args:
        path: the directory, or a URL.
        storage_options: only for a URL: credentials and settings of the transport, see `mqstore.open`.
        cache: only for a URL: a local folder that keeps blocks of the files; None keeps nothing.
        cache_size: maximum bytes in `cache`, at least 1 MiB.

    Raises:
        NotAStoreError: `path` contains no store.
    """
    from mqstore._admin.info import StoreInfo

    return StoreInfo._from_dict(_native.info(place_of(path, storage_options, cache, cache_size)))


def verify(
    path: StorePath,
    *,
    progress: Callable[[Progress], object] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    cache: StorePath | None = None,
    cache_size: int = CACHE_BYTES,
) -> VerifyReport:
    """Checks every file of the directory `path`, without any change.

    It checks the log (sizes, magic numbers, positions, checksums), the queues against the log in both directions, the
    results of the index, the checkpoint and the compacted topics. A writer can be active at the same time.

    Args:
        path: the directory, or a URL; also a `commitlog` folder without a store, or one segment of a log.
        progress: callback during the check; an exception in it ends the check.
        storage_options: only for a URL: credentials and settings of the transport, see `mqstore.open`.
        cache: only for a URL: a local folder that keeps blocks of the files; None keeps nothing.
        cache_size: maximum bytes in `cache`, at least 1 MiB.

    Returns:
        The problems found. Damage raises no error. A file that another program left in a folder of the store
        (`.DS_Store`, a temporary file of an editor or of rsync) is no problem but a `StoreWarning`.

    Raises:
        NotAStoreError: `path` contains no store.
    """
    from mqstore._reports import VerifyReport

    return VerifyReport._from_dict(verified(place_of(path, storage_options, cache, cache_size), progress))


def verified(place: str | _native.RemoteDirectory, progress: Callable[[Progress], object] | None) -> dict[str, Any]:
    """Checks a directory, or a URL with its transport. Returns the fields of a `VerifyReport`."""
    from mqstore._reports import native_progress

    return _native.verify(place, native_progress(progress))


def rebuild(
    path: StorePath,
    *,
    dry_run: bool = False,
    threads: int | None = None,
    options: StoreOptions | None = None,
    progress: Callable[[Progress], object] | None = None,
) -> RebuildReport:
    """Rebuilds queues, key index and checkpoint of the directory `path` from its log.

    The log is not changed. The new files are built and synced in `mqstore/tmp/rebuild`. Then each folder replaces the
    old one in one step, so a kill leaves either the old or the new files. Until then the new files need additional
    space, as much as the old ones.

    Damage in the log is skipped and reported; a torn tail ends the log. A queue whose messages are all deleted from the
    log keeps its next offset. For an open store use `Store.rebuild`.

    Args:
        path: the directory.
        dry_run: whether to build everything separately, report it, and discard it.
        threads: maximum number of threads, 1 to 8; None is the number of processors, at most 8.
        options: lengths of queue and index files if no existing file shows them, and delay levels if none are
            remembered, for example from `StoreOptions.from_broker_conf`. Otherwise RocketMQ's defaults apply.
        progress: callback, about once per MiB. An exception in it ends the rebuild; the old files stay in use.

    Returns:
        The report.

    Raises:
        NotAStoreError: `path` contains no store.
        StoreLockedError: another process has the store open for writing.
        UnsupportedFormatError: the queues are in RocksDB.
        DiskFullError: no space for the new files.
    """
    from mqstore._options import StoreOptions, native_form
    from mqstore._reports import RebuildReport, native_progress

    if (count_of("threads", threads) or 1) > 8:
        raise ValueError(f"threads must be between 1 and 8, not {threads}")
    home = home_of(path, "rebuild it")
    chosen = options or StoreOptions()
    tuned = replace(chosen.advanced, dispatch_threads=threads)
    form = native_form(chosen if threads is None else replace(chosen, advanced=tuned))
    with without_options():
        return RebuildReport._timed(
            lambda: _native.rebuild(home, form, dry_run, native_progress(progress)), dry_run=dry_run
        )


def repair(
    path: StorePath,
    *,
    output: StorePath | None = None,
    in_place: bool = False,
    dry_run: bool = False,
    options: StoreOptions | None = None,
    progress: Callable[[Progress], object] | None = None,
    target_options: Mapping[str, Any] | None = None,
) -> RepairReport:
    """Repairs a damaged directory, so that it opens again with every message that can still be read.

    The repair makes these changes where they are needed:

    - It truncates a torn tail.
    - It replaces damaged ranges between two good records by placeholders, which no reader sees.
    - It replaces a missing segment by one without messages, and corrects files with a wrong length or name.
    - It rebuilds wrong queues, key index and checkpoint.
    - It replaces a configuration file that cannot be parsed by its backup.
    - It removes `abort` when everything is durable.

    RocketMQ opens the result. Before the first change, all bytes that will be replaced or truncated are copied to
    `mqstore/lost+found`; `mqstore/repairs.jsonl` describes each change. After an interrupted repair, run it again to
    complete it. A store without damage is not changed.

    Args:
        path: the directory.
        output: new folder for a repaired copy; it must not exist. `path` stays unchanged. Or a URL at which there is
            no result yet: the copy is made in a temporary folder, uploaded and published, as for `mqstore.export`.
        in_place: whether to repair `path` itself.
        dry_run: whether to report the changes only; needs neither `output` nor `in_place`.
        options: as for `rebuild`.
        progress: callback, about once per MiB; an exception in it ends the repair.
        target_options: only if `output` is a URL: credentials and settings of its transport.

    Returns:
        The damage found, the changes, and the remaining problems.

    Raises:
        ValueError: neither or both of `output` and `in_place` are given.
        FileExistsError: `output` exists.
        ResultExistsError: the URL `output` has another result or other objects.
        RemoteStoreError: results cannot be written to this kind of URL.
        NotAStoreError: `path` contains no store.
        StoreLockedError: another process has the store open for writing.
        UnsupportedFormatError: the queues are in RocksDB; a folder is a symbolic link that leads nowhere; or, with
            `output`, a part of the store cannot be copied, such as a log in separate folders.
        CorruptionError: a segment is a symbolic link, or two segments have the same name and different records; or
            the repair would lose a message that can be read now.
        DiskFullError: no space for the copies.
    """
    from mqstore._options import StoreOptions, native_form
    from mqstore._reports import RepairReport, native_progress

    if (output is None) == (not in_place) and not (dry_run and output is None):
        raise ValueError("repair() needs either output=, a folder for a repaired copy, or in_place=True")
    home = home_of(path, "repair it")
    if (url := target_url(output, target_options)) is not None:

        def make(folder: str) -> RepairReport:
            done = repair(home, output=folder, dry_run=dry_run, options=options, progress=progress)
            return replace(done, output=shown_url(url))

        return make_at_url(url, target_options, make, dry_run=dry_run)
    target = None if output is None else text_of(output)
    if target is not None:
        must_be_new(target)
    form, tell = native_form(options or StoreOptions()), native_progress(progress)
    with without_options() if target is None else creating(target):
        found = _native.repair(home, form, target, dry_run, tell)
    return RepairReport._of(home, target, dry_run, found)


def compact(
    path: StorePath,
    *,
    topics: Iterable[str] | None = None,
    output: StorePath | None = None,
    in_place: bool = False,
    job_id: str | None = None,
    target_options: Mapping[str, Any] | None = None,
    **options: Unpack[LocalCompactionOptions],
) -> CompactionReport:
    """Keeps the newest message of each key of compaction topics, in RocketMQ's own compaction folders.

    After a crash each queue is either untouched or fully compacted. The commit log is not changed. Another process can
    append while the job runs, but not while it publishes. For an open store use `Store.compact`.

    Args:
        path: the directory.
        topics: names of the topics; None is all compaction topics.
        output: new folder for a compacted copy; it must not exist. `path` stays unchanged. Or a URL at which there is
            no result yet: the copy is made in a temporary folder, uploaded and published, as for `mqstore.export`.
        in_place: whether to compact `path` itself.
        job_id: name of the job; None generates one. A published job with this name is not repeated. An interrupted job
            is resumed: queues that it finished are not read again.
        target_options: only if `output` is a URL: credentials and settings of its transport.
        options: see `mqstore.types.LocalCompactionOptions`. With `dry_run`, neither `output` nor `in_place` is needed.

    Raises:
        ValueError: neither or both of `output` and `in_place` are given.
        FileExistsError: `output` exists.
        ResultExistsError: the URL `output` has another result or other objects.
        RemoteStoreError: results cannot be written to this kind of URL.
        StoreLockedError: another process has the store open for writing.
        InvalidOptionError: an option is out of bounds.
    """
    from mqstore._admin import compaction
    from mqstore._reports import CompactionReport

    if (output is None) == (not in_place) and not (options.get("dry_run") and output is None):
        raise ValueError("compact() needs either output=, a folder for a compacted copy, or in_place=True")
    chosen = compaction.topic_list(topics)
    request, tell = compaction.request(job_id=job_id, **options)
    home = home_of(path, "compact it")
    if (url := target_url(output, target_options)) is not None:

        def make(folder: str) -> CompactionReport:
            return compact(home, topics=topics, output=folder, job_id=job_id, **options)

        return make_at_url(url, target_options, make, dry_run=bool(options.get("dry_run")))
    if output is None:
        with without_options():
            return CompactionReport._from_json(_native.compaction_run(home, chosen, *request, tell))
    copy = text_of(output)
    must_be_new(copy)
    with creating(copy):
        _native.copy_store(home, copy, None)
        return CompactionReport._from_json(_native.compaction_run(copy, chosen, *request, tell))


def make_at_url(
    url: str, target_options: Mapping[str, Any] | None, make: Callable[[str], R], *, dry_run: bool = False
) -> R:
    """Publishes a store that `make` creates in a new folder; in a dry run, only calls `make`. Returns its report."""
    import json

    from mqstore._publish.target import UPLOADS, result_target

    target = result_target(url, target_options, "write the copy to it")
    with scratch() as folder, target.publication("store", None) as publication:
        publication.begin()
        home = folder / "store"
        report = make(str(home))
        if not dry_run:
            publication.add_directory(home, UPLOADS)
            publication.commit(json.dumps(report.to_dict()))
    return report


def must_be_new(target: str) -> None:
    """Raises an error if `target` exists."""
    if os.path.lexists(target):
        raise FileExistsError(f"{target}: exists already; choose a new folder as output")


for _function in (info, verify, repair, rebuild, compact):
    _function.__module__ = "mqstore"
del _function
