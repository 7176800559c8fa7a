"""The verbs on whole directories: `info`, `verify`, `rebuild`, `compact`."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

from mqstore import _native
from mqstore._paths import home_of
from mqstore.errors import StoreLockedError, UnsupportedFormatError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from mqstore._reports import CompactionReport, Progress, RebuildReport, StoreInfo, VerifyReport
    from mqstore.types import StorePath


def info(path: StorePath) -> StoreInfo:
    """Looks at the store in the directory `path`, without changing it.

    Raises:
        NotAStoreError: there is no store.
    """
    from mqstore._reports import StoreInfo

    return StoreInfo._from_dict(_native.info(home_of(path)))


def verify(path: StorePath, *, progress: Callable[[Progress], object] | None = None) -> VerifyReport:
    """Checks everything in the directory `path` against everything else, without changing it.

    The log (sizes, magic numbers, positions, checksums), the queues against the log both ways, the
    answers of the index, the checkpoint, the compacted topics. Works beside a running writer.

    Args:
        path: the directory.
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
    from mqstore._reports import Progress, RebuildReport

    if threads is not None and not 1 <= threads <= 8:
        msg = f"threads must be between 1 and 8, not {threads}"
        raise ValueError(msg)
    home = home_of(path)
    tell = None if progress is None else lambda done, total: progress(Progress(done, total))
    return RebuildReport._timed(lambda: _native.rebuild(home, dry_run, threads, tell), dry_run=dry_run)


def compact(
    path: StorePath,
    *,
    topics: Iterable[str] | None = None,
    output: StorePath | None = None,
    in_place: bool = False,
    force: bool = False,
    threads: int | None = None,
    memory_size: int = 256 << 20,
    log_file_size: int | None = None,
    queue_file_size: int | None = None,
    job_id: str | None = None,
) -> CompactionReport:
    """Keeps of every key of compaction topics the newest message, in RocketMQ's own compaction folders.

    Each queue is wholly in its old or wholly in its new state, whatever happens meanwhile. The commit log
    is not changed; who opens the store for writing may append while the job runs, not while it ends.

    Args:
        path: the directory.
        topics: the topics; None stands for all compaction topics.
        output: leaves `path` as it is and compacts a copy in this folder, which must not exist.
        in_place: compacts `path` itself.
        force: whether `topics` may name topics that are no compaction topics.
        threads: at most so many queues at once; None is the number of processors.
        memory_size: bytes that the keys of one queue may take in memory; with less of it a queue takes
            more rounds. RocketMQ: `maxOffsetMapSize` / `compactionThreadNum`.
        log_file_size: wished bytes of a log file in a store that has none yet; None is 104,857,600.
            RocketMQ: `compactionMappedFileSize`.
        queue_file_size: wished bytes of a queue file, likewise; None is 10,485,760.
            RocketMQ: `compactionCqMappedFileSize`.
        job_id: names the job; one that was published under this name does nothing. None makes a name.

    Raises:
        ValueError: neither or both of `output` and `in_place` are given.
        FileExistsError: `output` exists.
        StoreLockedError: somebody has the store open for writing.
        InvalidOptionError: an option is out of bounds.
    """
    import json

    from mqstore._reports import CompactionReport

    if (output is None) == (not in_place):
        msg = "compact() needs either output=, a folder for a compacted copy, or in_place=True"
        raise ValueError(msg)
    if isinstance(topics, str):
        msg = "topics must be an iterable of str, not a str"
        raise TypeError(msg)
    if threads is not None and threads < 1:
        msg = f"threads must be at least 1, not {threads}"
        raise ValueError(msg)
    chosen = None if topics is None else list(topics)
    home = home_of(path)
    options = json.dumps(
        {
            "force": force,
            "memory_bytes": memory_size,
            "log_file_bytes": log_file_size,
            "queue_file_bytes": queue_file_size,
            "job_id": job_id,
        }
    )
    if output is not None:
        home = _copy(home, home_of(output))
    report = _native.compaction_run(home, chosen, options, threads or os.cpu_count() or 1)
    return CompactionReport._from_dict(json.loads(report))


def _copy(source: str, target: str) -> str:
    """A copy of a store that nobody writes; it appears under its name only when it is whole."""
    import shutil
    from pathlib import Path

    if Path(target).exists():
        msg = f"{target}: exists already; output needs a new folder"
        raise FileExistsError(msg)
    if (Path(source) / "mqstore" / "paths").exists():
        reason = "its log lies in folders of its own, which a copy would share; copy them by hand, or use in_place"
        raise UnsupportedFormatError(source, reason)
    before = info(source)
    if before.locked:
        raise StoreLockedError(source, before.writer_pid)
    partial = f"{target}.partial"
    try:
        shutil.copytree(source, partial, symlinks=True, copy_function=_copy_file, ignore=_not_of_the_copy(source))
        after = info(source)
        if after.locked or after.log_max_offset != before.log_max_offset:
            raise StoreLockedError(source, after.writer_pid)
        os.rename(partial, target)  # noqa: PTH104 - the paths are text
    except BaseException:
        shutil.rmtree(partial, ignore_errors=True)
        raise
    return target


def _not_of_the_copy(source: str) -> Callable[[str, list[str]], set[str]]:
    # Another process's live page, staging and jobs mean nothing in a copy.
    side = os.path.join(source, "mqstore")  # noqa: PTH118 - what copytree hands over is text
    return lambda folder, _names: {"live", "tmp", "jobs"} if folder == side else set()


def _copy_file(source: str, target: str) -> None:
    """Copies a file with its holes: queue and index files are mostly empty."""
    # A store has no pipes and devices; opening one to read it could wait for ever.
    with open(os.open(source, os.O_RDONLY | os.O_NONBLOCK), "rb") as old, open(target, "wb") as new:  # noqa: PTH123
        status = os.fstat(old.fileno())
        if not stat.S_ISREG(status.st_mode):
            msg = f"{source}: not a file; only files can be copied"
            raise OSError(msg)
        for start, end in _data_ranges(old.fileno(), status.st_size):
            old.seek(start)
            new.seek(start)
            while (left := end - old.tell()) > 0 and (chunk := old.read(min(left, 1 << 20))):
                new.write(chunk)
        new.truncate(status.st_size)
        new.flush()
        os.fsync(new.fileno())


def _data_ranges(file: int, size: int) -> Iterator[tuple[int, int]]:
    """The parts of a file that are no holes; all of it where the file system cannot tell."""
    position = 0
    while position < size:
        try:
            start = os.lseek(file, position, os.SEEK_DATA)
            end = os.lseek(file, start, os.SEEK_HOLE)
        except OSError as error:
            if error.errno != errno.ENXIO:  # ENXIO: nothing but a hole is left
                yield position, size
            return
        yield start, end
        position = end


for _function in (info, verify, rebuild, compact):
    _function.__module__ = "mqstore"
del _function
