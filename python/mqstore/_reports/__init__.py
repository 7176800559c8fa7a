"""Results of the verbs on stores and directories: frozen dataclasses whose `to_dict` is their JSON form.

Each file has the results of some related verbs. Other packages import the classes from here.
"""

from __future__ import annotations

from mqstore._reports.archive import ArchiveFile, ArchiveQueue, ArchiveReport, ArchiveRestoreReport, ArchiveVerifyReport
from mqstore._reports.backup import BackupReport, BackupRestoreReport, BackupState, BackupStatus, BackupVerifyReport
from mqstore._reports.base import Progress
from mqstore._reports.base import _Report as _Report
from mqstore._reports.base import json_form as json_form
from mqstore._reports.base import native_progress as native_progress
from mqstore._reports.compaction import CompactionReport, RestoredQueue, RestoreReport
from mqstore._reports.copies import CopyGap, ExportReport, ImportReport, MovedGroup, SnapshotReport, TopicCopyReport
from mqstore._reports.damage import LostOffsets, LostRange, Problem, RebuildReport, RepairReport, VerifyReport
from mqstore._reports.follow import FollowerInfo, FollowStatus
from mqstore._reports.published import CleanReport, FetchReport, PublishedFile, PublishedResult, UnusedObject
from mqstore._reports.retention import (
    ExpiredFile,
    ExpiredTopic,
    ExpireReport,
    KeptSegment,
    ReclaimedSegment,
    ReclaimedTopic,
    ReclaimReport,
    SegmentHolder,
    StoreEvent,
    TopicRetention,
)
from mqstore._reports.store import NamespaceInfo, QueueInfo, StoreStats, TopicQuota

__all__ = [
    "ArchiveFile", "ArchiveQueue", "ArchiveReport", "ArchiveRestoreReport", "ArchiveVerifyReport", "BackupReport",
    "BackupRestoreReport", "BackupState", "BackupStatus", "BackupVerifyReport", "CleanReport", "CompactionReport",
    "CopyGap", "ExpireReport", "ExpiredFile", "ExpiredTopic", "ExportReport", "FetchReport", "FollowStatus",
    "FollowerInfo", "ImportReport", "KeptSegment", "LostOffsets", "LostRange", "MovedGroup", "NamespaceInfo", "Problem",
    "Progress", "PublishedFile", "PublishedResult", "QueueInfo", "RebuildReport", "ReclaimReport", "ReclaimedSegment",
    "ReclaimedTopic", "RepairReport", "RestoreReport", "RestoredQueue", "SegmentHolder", "SnapshotReport", "StoreEvent",
    "StoreStats", "TopicCopyReport", "TopicQuota", "TopicRetention", "UnusedObject", "VerifyReport",
]  # fmt: skip

# Tracebacks and pickles show the public name of a class.
for _name in __all__:
    globals()[_name].__module__ = "mqstore"
del _name
