"""The verbs on whole directories: `info`, `verify`, `repair`, `rebuild`, `compact`."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import TYPE_CHECKING

from mqstore import _native
from mqstore._paths import home_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Unpack

    from mqstore._admin.info import StoreInfo
    from mqstore._options import StoreOptions
    from mqstore._reports import CompactionReport, Progress, RebuildReport, RepairReport, VerifyReport
    from mqstore.types import LocalCompactionOptions, StorePath


def info(path: StorePath) -> StoreInfo:
    """Looks at the store in the directory `path`, without changing it.

    `path` may also be a `commitlog` folder without a store around it, or one segment of a log.

    Raises:
        NotAStoreError: there is no store.
    """
    from mqstore._admin.info import StoreInfo

    return StoreInfo._from_dict(_native.info(home_of(path)))


def verify(path: StorePath, *, progress: Callable[[Progress], object] | None = None) -> VerifyReport:
    """Checks everything in the directory `path` against everything else, without changing it.

    The log (sizes, magic numbers, positions, checksums), the queues against the log both ways, the
    answers of the index, the checkpoint, the compacted topics. Works beside a running writer.

    Args:
        path: the directory; or a `commitlog` folder without a store around it, or one segment of a log.
        progress: called now and then; an exception that it raises ends the check.

    Returns:
        What was found; damage is no error here.

    Raises:
        NotAStoreError: there is no store.
    """
    from mqstore._reports import Progress, VerifyReport

    tell = None if progress is None else lambda done, total: progress(Progress(done, total))
    return VerifyReport._from_dict(_native.verify(home_of(path), tell))


def rebuild(
    path: StorePath,
    *,
    dry_run: bool = False,
    threads: int | None = None,
    options: StoreOptions | None = None,
    progress: Callable[[Progress], object] | None = None,
) -> RebuildReport:
    """Makes queues, key index and checkpoint of the directory `path` anew from its log.

    The log is not changed. The new files are built and synced in `mqstore/tmp/rebuild`, then each folder
    changes places with the old one in one step: whoever stops it leaves the old files or the new ones. They
    need as much room as the old ones meanwhile.

    Damage in the log is passed over and told; a torn end of the log counts as its end. Queues of which the
    log holds no message any more keep their place. An open store has `Store.rebuild`.

    Args:
        path: the directory.
        dry_run: builds everything aside, tells what came out, and throws it away.
        threads: at most so many, 1 to 8; None is the number of processors, at most 8.
        options: the lengths of queue and index files where none is left that tells them, and the delay levels where
            none are remembered, as `StoreOptions.from_broker_conf` has them; RocketMQ's defaults otherwise.
        progress: called about once a mebibyte; an exception that it raises ends the rebuild, with the old
            files in use.

    Returns:
        What was made.

    Raises:
        NotAStoreError: there is no store.
        StoreLockedError: somebody has the store open for writing.
        UnsupportedFormatError: the queues are kept in RocksDB.
        DiskFullError: no room for the new files.
    """
    from mqstore._options import StoreOptions, native_form
    from mqstore._reports import Progress, RebuildReport

    if threads is not None and not 1 <= threads <= 8:
        msg = f"threads must be between 1 and 8, not {threads}"
        raise ValueError(msg)
    home = home_of(path)
    chosen = options or StoreOptions()
    tuned = replace(chosen.advanced, dispatch_threads=threads)
    form = native_form(chosen if threads is None else replace(chosen, advanced=tuned))
    tell = None if progress is None else lambda done, total: progress(Progress(done, total))
    return RebuildReport._timed(lambda: _native.rebuild(home, form, dry_run, tell), dry_run=dry_run)


def repair(
    path: StorePath,
    *,
    output: StorePath | None = None,
    in_place: bool = False,
    dry_run: bool = False,
    options: StoreOptions | None = None,
    progress: Callable[[Progress], object] | None = None,
) -> RepairReport:
    """Makes of a damaged directory a store that opens again, with every message that can still be read.

    A torn end of the log is cut. What is damaged between two good records is filled by records that nobody gets to
    see, a missing segment by one without messages; files of a wrong length or under a wrong name are put right.
    Queues, key index and checkpoint are made anew where they are wrong, a configuration file that does not parse
    gives way to its backup, and `abort` is removed once all is durable. RocketMQ opens the result.

    Nothing is lost by it: what is replaced or cut lies in `mqstore/lost+found` before the first byte changes, and
    `mqstore/repairs.jsonl` says what and why. Whoever stops it may run it again, which ends it; on a store that
    is in order it changes nothing.

    Args:
        path: the directory.
        output: leaves `path` as it is and repairs a copy in this folder, which must not exist.
        in_place: repairs `path` itself.
        dry_run: only tells what a repair would do; neither `output` nor `in_place` is needed then.
        options: as for `rebuild`.
        progress: called about once a mebibyte; an exception that it raises ends the repair.

    Returns:
        What was found, what was done, and what is still wrong.

    Raises:
        ValueError: neither or both of `output` and `in_place` are given.
        FileExistsError: `output` exists.
        NotAStoreError: there is no store.
        StoreLockedError: somebody has the store open for writing.
        UnsupportedFormatError: the queues are kept in RocksDB; or with `output` something that cannot be copied,
            such as a log in folders of its own.
        CorruptionError: a symbolic link stands in the place of a segment.
        DiskFullError: no room for the copies.
    """
    from mqstore._options import StoreOptions, native_form
    from mqstore._reports import Progress, RepairReport

    if (output is None) == (not in_place) and not (dry_run and output is None):
        msg = "repair() needs either output=, a folder for a repaired copy, or in_place=True"
        raise ValueError(msg)
    home = home_of(path)
    target = None if output is None else home_of(output)
    if target is not None:
        must_be_new(target)
    tell = None if progress is None else lambda done, total: progress(Progress(done, total))
    found = _native.repair(home, native_form(options or StoreOptions()), target, dry_run, tell)
    return RepairReport._of(home, target, dry_run, found)


def compact(
    path: StorePath,
    *,
    topics: Iterable[str] | None = None,
    output: StorePath | None = None,
    in_place: bool = False,
    job_id: str | None = None,
    **options: Unpack[LocalCompactionOptions],
) -> CompactionReport:
    """Keeps of every key of compaction topics the newest message, in RocketMQ's own compaction folders.

    Each queue is wholly in its old or wholly in its new state, whatever happens meanwhile. The commit log
    is not changed; who opens the store for writing may append while the job runs, not while it ends. An open
    store has `Store.compact`.

    Args:
        path: the directory.
        topics: the topics; None stands for all compaction topics.
        output: leaves `path` as it is and compacts a copy in this folder, which must not exist.
        in_place: compacts `path` itself.
        job_id: names the job; one that was published under this name does nothing, and one that was stopped is gone
            on with: queues that it had finished are not read again. None makes a name.
        options: see `mqstore.types.LocalCompactionOptions`; with `dry_run`, neither `output` nor `in_place` is needed.

    Raises:
        ValueError: neither or both of `output` and `in_place` are given.
        FileExistsError: `output` exists.
        StoreLockedError: somebody has the store open for writing.
        InvalidOptionError: an option is out of bounds.
    """
    from mqstore._admin import compaction
    from mqstore._reports import CompactionReport

    if (output is None) == (not in_place) and not (options.get("dry_run") and output is None):
        msg = "compact() needs either output=, a folder for a compacted copy, or in_place=True"
        raise ValueError(msg)
    chosen = compaction.topic_list(topics)
    request, tell = compaction.request(job_id=job_id, **options)
    home = home_of(path)
    if output is not None:
        copy = home_of(output)
        must_be_new(copy)
        _native.copy_store(home, copy, None)
        home = copy
    return CompactionReport._from_json(_native.compaction_run(home, chosen, *request, tell))


def must_be_new(target: str) -> None:
    """Makes sure that nothing is in the place of a new folder."""
    if os.path.lexists(target):
        msg = f"{target}: exists already; output needs a new folder"
        raise FileExistsError(msg)


for _function in (info, verify, repair, rebuild, compact):
    _function.__module__ = "mqstore"
del _function
