"""`clean`: removes the objects of attempts that no manifest names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from mqstore._paths import url_of_result
from mqstore._publish.target import result_target
from mqstore._reports import CleanReport
from mqstore._times import duration_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from mqstore.types import Duration


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
    age_ms = int(duration_of("older_than", older_than) * 1000)
    target = result_target(url_of_result(url), storage_options, "clean it")
    removed, kept = target.clean(age_ms, dry_run)
    return CleanReport._of_rows(target.shown, removed, kept, dry_run=dry_run)


clean.__module__ = "mqstore"
