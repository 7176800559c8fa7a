"""The one importer of the native module; everything else in the package imports from here."""

from __future__ import annotations

from mqstore._mqstore import (
    AppendResult,
    MessageIterator,
    NativeStore,
    StoredMessage,
    __version__,
    _after_fork_in_child,
    compaction_abandon,
    compaction_plan,
    compaction_preview,
    compaction_publish,
    compaction_read,
    compaction_report,
    compaction_run,
    compaction_run_task,
    copy_store,
    info,
    rebuild,
    repair,
    verify,
)

__all__ = [
    "AppendResult",
    "MessageIterator",
    "NativeStore",
    "StoredMessage",
    "__version__",
    "_after_fork_in_child",
    "compaction_abandon",
    "compaction_plan",
    "compaction_preview",
    "compaction_publish",
    "compaction_read",
    "compaction_report",
    "compaction_run",
    "compaction_run_task",
    "copy_store",
    "info",
    "rebuild",
    "repair",
    "verify",
]
