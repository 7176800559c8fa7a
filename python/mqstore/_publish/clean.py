"""`clean`: removes the objects of attempts that no manifest names."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any

from mqstore._paths import shown_url, url_of_result
from mqstore._publish.target import target_of
from mqstore._remote.failure import requests
from mqstore._remote.manifest import ATTEMPT, FOLDER, NAME, decoded
from mqstore._reports import CleanReport, UnusedObject
from mqstore._times import duration_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mqstore._publish.target import Target
    from mqstore._remote.failure import Row
    from mqstore.types import Duration

# Objects of one request.
_MOST_REMOVED = 1000


def clean(
    url: str, *, older_than: Duration = "1d", dry_run: bool = False, storage_options: Mapping[str, Any] | None = None
) -> CleanReport:
    """Removes the objects that failed or unfinished writes of a result left at a URL.

    These are the objects of attempts that the manifest does not name; without a manifest, of all attempts. An attempt
    can be in progress, so its age counts from its newest object, by the clock of the server. Other objects below the
    URL are never removed. An upload in several parts that was interrupted is no object: let a rule of the bucket
    remove its parts.

    Args:
        url: the URL that a result was written to.
        older_than: minimum age of an attempt; one day by default. Use more than the longest upload of one file takes.
        dry_run: whether to report the objects only. The age is then by the clock of this machine.
        storage_options: credentials and settings of the transport, see `mqstore.open`.

    Returns:
        The report.

    Raises:
        RemoteStoreError: results cannot be written to this kind of URL.
        CorruptionError: the manifest is damaged, so the objects that it names are unknown. Nothing was removed.
        StorePermissionError, StoreIOError: a request failed.
    """
    age_ms = duration_of("older_than", older_than) * 1000
    text = url_of_result(url)
    target = target_of(text, storage_options, "clean it")
    with requests(shown_url(text), "clean the result"):
        now_ms, rows = _listed(target, dry_run)
        # After the list, so that an attempt that is published meanwhile is named.
        content = target.get(NAME)
        named = set() if content is None else {f"{FOLDER}/{entry.object}" for entry in decoded(content).objects()}
        unused = [row for row in rows if row[0] not in named and row[0] != NAME]
        newest: dict[str, int] = {}
        for path, _, changed_ms, _ in unused:
            attempt = _attempt(path)
            newest[attempt] = max(newest.get(attempt, changed_ms), changed_ms)
        due = [row for row in unused if now_ms - newest[_attempt(row[0])] >= age_ms]
        paths = [row[0] for row in due]
        for start in range(0, 0 if dry_run else len(paths), _MOST_REMOVED):
            target.delete(paths[start : start + _MOST_REMOVED])
    objects = tuple(UnusedObject(path, size, changed_ms) for path, size, changed_ms, _ in due)
    return CleanReport(
        url=shown_url(text),
        dry_run=dry_run,
        bytes=sum(one.bytes for one in objects),
        objects=objects,
        kept=len(unused) - len(due),
    )


def _listed(target: Target, dry_run: bool) -> tuple[int, list[Row]]:
    """Returns the time of the server in epoch milliseconds, and the objects of all attempts."""
    folder = f"{FOLDER}/"
    if dry_run:
        return time.time_ns() // 1_000_000, target.listed(folder)
    # An object that is written now has the time of the server.
    clock = f"{FOLDER}/{ATTEMPT}{uuid.uuid4().hex}/clock"
    target.put_if_absent(clock, b"clock")
    try:
        rows = target.listed(folder)
    finally:
        target.delete([clock])
    times = [row[2] for row in rows if row[0] == clock]
    return (times[0] if times else 0), [row for row in rows if row[0] != clock]


def _attempt(path: str) -> str:
    """Returns the folder of the attempt to which an object belongs."""
    return path.rpartition("/")[0] if path.startswith(f"{FOLDER}/{ATTEMPT}") else path


clean.__module__ = "mqstore"
