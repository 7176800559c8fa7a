"""An embeddable message store that reads and writes Apache RocketMQ's store directory.

::

    import mqstore

    with mqstore.open("data", mode="create") as store:
        result = store.append("orders", b"hello", keys=["A-1"], tags="paid")
        for message in store.read("orders", filter="paid || shipped"):
            print(message.queue_offset, message.body)

An import starts no thread and opens no file. Large modules are imported when they are first used.
"""

import sys as _sys
import typing as _typing

from mqstore import (
    _dicts,  # noqa: F401 - it gives native classes their methods
    _native,
    errors,
    types,
)
from mqstore._admin.directories import compact, info, rebuild, repair, verify
from mqstore._native import AppendResult, AppendResults, LeasedMessage, Message, SqlFilter, StoredMessage, __version__
from mqstore._store import Store, open  # noqa: A004 - the name that gzip, dbm and shelve use
from mqstore.errors import *

if _typing.TYPE_CHECKING:
    from mqstore._admin.copy_topic import copy_topic
    from mqstore._admin.export.export import export
    from mqstore._admin.import_ import import_
    from mqstore._admin.info import *
    from mqstore._admin.restore import restore_compaction
    from mqstore._archive.archive import Archive, StoreArchive
    from mqstore._backup.backup import Backup
    from mqstore._backup.running import RunningBackup, backup
    from mqstore._delivery.consumer import Consumer, OffsetCommit
    from mqstore._delivery.delays import DelayStats
    from mqstore._delivery.transactions import PendingTransaction, Transaction
    from mqstore._delivery.work_queue import Delay, Lease, WorkQueue, WorkQueueCounts
    from mqstore._follow import Follower, demote, follow, promote
    from mqstore._options import BrokerOptions, Master, StoreOptions
    from mqstore._publish.clean import clean
    from mqstore._publish.fetch import fetch, published
    from mqstore._read.filter import sql
    from mqstore._read.logic import LogicMessage, LogicPart, LogicQueue, LogicQueues, open_logic_queues
    from mqstore._read.scan import Scan, scan
    from mqstore._read.table import Change, Table
    from mqstore._reports import *

__all__ = [
    "AppendResult", "AppendResults", "Archive", "ArchiveFile", "ArchiveQueue", "ArchiveReport", "ArchiveRestoreReport",
    "ArchiveVerifyReport", "Backup", "BackupReport", "BackupRestoreReport", "BackupState", "BackupStatus",
    "BackupVerifyReport", "BrokerOptions", "Change", "CleanReport", "CompactionReport", "Consumer",
    "ConsumerClosedError", "CopyGap", "CorruptionError", "Delay", "DelayStats", "DelayedInfo", "DiskFullError",
    "DledgerInfo", "DledgerTerm", "Empty", "ExpireReport", "ExpiredFile", "ExpiredTopic", "ExportReport", "FetchReport",
    "FollowStatus", "Follower", "FollowerInfo", "ForkedProcessError", "Full", "GroupInfo", "GroupOffset", "HourRate",
    "ImportReport", "InvalidFilterError", "InvalidMessageError", "InvalidOptionError", "KeptSegment", "Lease",
    "LeaseLostError", "LeasedMessage", "LogicMessage", "LogicPart", "LogicQueue", "LogicQueues", "LostOffsets",
    "LostRange", "MQStoreError", "Master", "Message", "MessageTooLargeError", "MissingPackageError", "MovedGroup",
    "NamespaceInfo", "NotAStoreError", "OffsetCommit", "OffsetOutOfRangeError", "PartSize", "PendingTransaction",
    "PoppedInfo", "Problem", "Progress", "PublishedFile", "PublishedResult", "QueueInfo", "QueueNotAssignedError",
    "QueueRange", "QuotaFull", "RebuildReport", "ReclaimReport", "ReclaimedSegment", "ReclaimedTopic", "RefusedError",
    "RemoteStoreError", "RepairReport", "RestoreReport", "RestoredQueue", "ResultExistsError", "ResultNotFoundError",
    "RunningBackup", "Scan", "SegmentHolder", "ShutDown", "SnapshotReport", "SqlFilter", "Store", "StoreArchive",
    "StoreBusyError", "StoreChangedError", "StoreClosedError", "StoreEvent", "StoreIOError", "StoreInfo",
    "StoreLockedError", "StoreOptions", "StorePermissionError", "StorePoisonedError", "StoreReadOnlyError",
    "StoreStats", "StoreTimeoutError", "StoreWarning", "StoredMessage", "Table", "TieredInfo", "TopicCopyReport",
    "TopicInfo", "TopicNotFoundError", "TopicQuota", "TopicRetention", "Transaction", "UndecidedInfo",
    "UnsupportedFormatError", "UnusedObject", "VerifyReport", "WorkQueue", "WorkQueueCounts", "WorkQueueInfo",
    "__version__", "backup", "clean", "compact", "copy_topic", "demote", "errors", "export", "fetch", "follow",
    "import_", "info", "open", "open_logic_queues", "promote", "published", "rebuild", "repair", "restore_compaction",
    "scan", "sql", "types", "verify",
]  # fmt: skip

if "gevent.monkey" in _sys.modules:
    _native.warn_of_gevent()

_NAMES = {
    "_admin.copy_topic": ("copy_topic",),
    "_admin.export.export": ("export",),
    "_admin.import_": ("import_",),
    "_admin.info": (
        "DelayedInfo", "DledgerInfo", "DledgerTerm", "GroupInfo", "GroupOffset", "HourRate", "PartSize", "PoppedInfo",
        "QueueRange", "StoreInfo", "TieredInfo", "TopicInfo", "UndecidedInfo", "WorkQueueInfo",
    ),
    "_admin.restore": ("restore_compaction",),
    "_archive.archive": ("Archive", "StoreArchive"),
    "_backup.backup": ("Backup",),
    "_backup.running": ("RunningBackup", "backup"),
    "_delivery.consumer": ("Consumer", "OffsetCommit"),
    "_delivery.delays": ("DelayStats",),
    "_delivery.transactions": ("PendingTransaction", "Transaction"),
    "_delivery.work_queue": ("Delay", "Lease", "WorkQueue", "WorkQueueCounts"),
    "_follow": ("Follower", "demote", "follow", "promote"),
    "_options": ("BrokerOptions", "Master", "StoreOptions"),
    "_publish.clean": ("clean",),
    "_publish.fetch": ("fetch", "published"),
    "_read.filter": ("sql",),
    "_read.logic": ("LogicMessage", "LogicPart", "LogicQueue", "LogicQueues", "open_logic_queues"),
    "_read.scan": ("Scan", "scan"),
    "_read.table": ("Change", "Table"),
}  # fmt: skip
_HOMES = {name: home for home, names in _NAMES.items() for name in names}


def __getattr__(name: str) -> object:
    # Imported on first use: creating the dataclasses takes longer than the rest of the import.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    home = _HOMES.get(name, "_reports")
    globals()[name] = found = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
