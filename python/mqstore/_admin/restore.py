"""Lost compaction files made anew from another store: `mqstore.restore_compaction`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mqstore import _native
from mqstore._admin import compaction
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
    """Makes compaction files that are lost, or end before the commit log begins, anew from another store.

    The messages that the commit log here has dropped are pulled from `source`, from offset 0 on; then they and
    the commit log are compacted, and published in one step. A call that was stopped is gone on with by the next
    one with the same source. An open store has `Store.restore_compaction`.

    Args:
        path: the directory; nobody may have it open for writing.
        source: a store of the same messages, such as a replica or an older copy: an open `Store`, which may be in
            use, or a directory. It is only read.
        topics: the topic, or several; None stands for all compaction topics.
        options: see `mqstore.types.LocalCompactionOptions`; `dry_run` only tells which queues would be restored, and up
            to which offset.

    Returns:
        What was done. `skipped` says which queues were left out, and why: `nothing is missing`, for one.

    Raises:
        StoreLockedError: somebody has the store open for writing.
        InvalidOptionError: `source` is the store itself, a topic is no compaction topic, or an option is out of
            bounds.
        TopicNotFoundError: there is no such topic.
        CorruptionError: a message of the source that is needed is damaged.
    """
    home = home_of(path)
    chosen = compaction.topic_list(topics, one=True)
    request, tell = compaction.request(**options)
    with opened_or_open(source) as other:
        return RestoreReport._from_json(_native.compaction_restore(home, other, (chosen, *request), tell))


restore_compaction.__module__ = "mqstore"
