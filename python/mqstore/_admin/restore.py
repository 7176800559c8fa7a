"""`restore_compaction`: restores lost compaction files from another store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqstore import _native
from mqstore._admin import compaction
from mqstore._admin.files import without_options
from mqstore._paths import home_of
from mqstore._reports import RestoreReport
from mqstore._store import opened_or_open

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Unpack

    from mqstore._store import Store
    from mqstore.types import LocalCompactionOptions, StorePath


def restore_compaction(
    path: StorePath,
    source: Store | StorePath,
    topics: str | Iterable[str] | None = None,
    **options: Unpack[LocalCompactionOptions],
) -> RestoreReport:
    """Restores compaction files that are lost, or that end before the commit log begins, from another store.

    The messages that the commit log of this store has dropped are copied from `source`, from offset 0 on. They are then
    compacted together with the commit log, and published in one step. If a call is interrupted, the next call with the
    same source resumes it. For an open store use `Store.restore_compaction`.

    Args:
        path: the directory; no process may have it open for writing.
        source: a store with the same messages, such as a replica or an older copy: a directory, or an open `Store`,
            which can be in use. It is only read.
        topics: one topic or several; None is all compaction topics.
        options: see `mqstore.types.LocalCompactionOptions`. `dry_run` only reports the queues to restore, each with
            the offset up to which it is restored.

    Returns:
        The report. `skipped` names the queues that were skipped, with the reason, for example `nothing is missing`.

    Raises:
        StoreLockedError: another process has the store open for writing.
        InvalidOptionError: `source` is the store itself, a topic is not a compaction topic, or an option is out of
            bounds.
        TopicNotFoundError: no such topic.
        CorruptionError: a needed message of the source is damaged.
    """
    home = home_of(path, "restore it")
    chosen = compaction.topic_list(topics, one=True)
    request, tell = compaction.request(**options)
    with opened_or_open(source) as other, without_options():
        return RestoreReport._from_json(_native.compaction_restore(home, other, (chosen, *request), tell))


restore_compaction.__module__ = "mqstore"
