"""An embeddable message store that reads and writes Apache RocketMQ's store directory.

::

    import mqstore

    with mqstore.open("data", mode="create") as store:
        result = store.append("orders", b"hello", keys=["A-1"], tags="paid")
        for message in store.read("orders", filter="paid || shipped"):
            print(message.queue_offset, message.body)

Importing starts no thread and opens nothing; what is heavy is imported where it is used.
"""

import typing as _typing

from mqstore import errors, types
from mqstore._directories import compact, info, rebuild, repair, verify
from mqstore._native import AppendResult, LeasedMessage, SqlFilter, StoredMessage, __version__
from mqstore._store import Store, open  # noqa: A004 - the name that gzip, dbm and shelve use
from mqstore.errors import (
    ConsumerClosedError,
    CorruptionError,
    DiskFullError,
    Empty,
    ForkedProcessError,
    Full,
    InvalidFilterError,
    InvalidMessageError,
    InvalidOptionError,
    LeaseLostError,
    MessageTooLargeError,
    MQStoreError,
    NotAStoreError,
    OffsetOutOfRangeError,
    QueueNotAssignedError,
    QuotaFull,
    RefusedError,
    ShutDown,
    StoreBusyError,
    StoreClosedError,
    StoreIOError,
    StoreLockedError,
    StorePermissionError,
    StorePoisonedError,
    StoreReadOnlyError,
    StoreTimeoutError,
    StoreWarning,
    TopicNotFoundError,
    UnsupportedFormatError,
)

if _typing.TYPE_CHECKING:
    from mqstore._consumer import Consumer, OffsetCommit
    from mqstore._delays import DelayStats
    from mqstore._export import export
    from mqstore._filter import sql
    from mqstore._import import import_
    from mqstore._info import (
        DelayedInfo,
        GroupInfo,
        GroupOffset,
        HourRate,
        PartSize,
        PoppedInfo,
        QueueRange,
        StoreInfo,
        TopicInfo,
        UndecidedInfo,
    )
    from mqstore._message import Message
    from mqstore._options import StoreOptions
    from mqstore._reports import (
        CompactionReport,
        ExpiredFile,
        ExpireReport,
        ExportReport,
        ImportReport,
        LostOffsets,
        LostRange,
        NamespaceInfo,
        Problem,
        Progress,
        QueueInfo,
        RebuildReport,
        RepairReport,
        SnapshotReport,
        StoreEvent,
        StoreStats,
        TopicQuota,
        VerifyReport,
    )
    from mqstore._restore import RestoredQueue, RestoreReport, restore_compaction
    from mqstore._scan import Scan, scan
    from mqstore._table import Change, Table
    from mqstore._work_queue import WorkQueue, WorkQueueCounts

__all__ = [
    "AppendResult",
    "Change",
    "CompactionReport",
    "Consumer",
    "ConsumerClosedError",
    "CorruptionError",
    "DelayStats",
    "DelayedInfo",
    "DiskFullError",
    "Empty",
    "ExpireReport",
    "ExpiredFile",
    "ExportReport",
    "ForkedProcessError",
    "Full",
    "GroupInfo",
    "GroupOffset",
    "HourRate",
    "ImportReport",
    "InvalidFilterError",
    "InvalidMessageError",
    "InvalidOptionError",
    "LeaseLostError",
    "LeasedMessage",
    "LostOffsets",
    "LostRange",
    "MQStoreError",
    "Message",
    "MessageTooLargeError",
    "NamespaceInfo",
    "NotAStoreError",
    "OffsetCommit",
    "OffsetOutOfRangeError",
    "PartSize",
    "PoppedInfo",
    "Problem",
    "Progress",
    "QueueInfo",
    "QueueNotAssignedError",
    "QueueRange",
    "QuotaFull",
    "RebuildReport",
    "RefusedError",
    "RepairReport",
    "RestoreReport",
    "RestoredQueue",
    "Scan",
    "ShutDown",
    "SnapshotReport",
    "SqlFilter",
    "Store",
    "StoreBusyError",
    "StoreClosedError",
    "StoreEvent",
    "StoreIOError",
    "StoreInfo",
    "StoreLockedError",
    "StoreOptions",
    "StorePermissionError",
    "StorePoisonedError",
    "StoreReadOnlyError",
    "StoreStats",
    "StoreTimeoutError",
    "StoreWarning",
    "StoredMessage",
    "Table",
    "TopicInfo",
    "TopicNotFoundError",
    "TopicQuota",
    "UndecidedInfo",
    "UnsupportedFormatError",
    "VerifyReport",
    "WorkQueue",
    "WorkQueueCounts",
    "__version__",
    "compact",
    "errors",
    "export",
    "import_",
    "info",
    "open",
    "rebuild",
    "repair",
    "restore_compaction",
    "scan",
    "sql",
    "types",
    "verify",
]


_HOMES = {
    "Change": "_table",
    "Consumer": "_consumer",
    "DelayStats": "_delays",
    "OffsetCommit": "_consumer",
    "Message": "_message",
    "Scan": "_scan",
    "StoreOptions": "_options",
    "Table": "_table",
    "WorkQueue": "_work_queue",
    "WorkQueueCounts": "_work_queue",
    "export": "_export",
    "import_": "_import",
    "RestoreReport": "_restore",
    "RestoredQueue": "_restore",
    "restore_compaction": "_restore",
    "scan": "_scan",
    "sql": "_filter",
    **dict.fromkeys(
        (
            "DelayedInfo",
            "GroupInfo",
            "GroupOffset",
            "HourRate",
            "PartSize",
            "PoppedInfo",
            "QueueRange",
            "StoreInfo",
            "TopicInfo",
            "UndecidedInfo",
        ),
        "_info",
    ),
}


def __getattr__(name: str) -> object:
    # The dataclasses, whose making costs more time than all the rest of the import, and what few programs need.
    if name not in __all__:
        msg = f"module {__name__!r} has no attribute {name!r}"
        raise AttributeError(msg)
    import importlib

    home = _HOMES.get(name, "_reports")
    globals()[name] = found = getattr(importlib.import_module(f"{__name__}.{home}"), name)
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
