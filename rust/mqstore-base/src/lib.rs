//! The ground that every other crate of the store stands on.
//!
//! Errors, options, paths and messages as values; events for the program; and the two small files that say how far
//! the log is: the live page (published, for readers in other processes) and the durable mark (synced, for recovery).
//! Group commit is here because the commit log and the metadata log both wait for syncs.
#![forbid(unsafe_code)]

pub mod durable_mark;
pub mod error;
pub mod events;
pub mod files;
pub mod group_commit;
pub mod live_page;
pub mod message;
pub mod options;
pub mod progress;

pub use error::{StoreError, Stray};
pub use events::{ExpiredFile, ExpiredKind, Hooks, StoreEvent, Verdict};
pub use files::{DelayTables, StoreFiles};
pub use message::{
    Appended, MessageFilter, NewMessage, RecordBytes, StoredRecord, TagFilter, UniqueKey, encode_properties,
};
pub use mqstore_engine::retention::ExpireReport;
pub use mqstore_engine::store::{
    AppendDone, AppendQueue, AppendRequest, BackgroundTask, Batch, Boundary, Geometry, GroupOffset,
    GroupOffsets, HourRate, InfoReport, LogCursor, LookupCursor, MakeSink, Mark, NamespaceInfo, Origin,
    OwnedMessage, PartSize, Passed, QueueCursor, QueueInfo, RepairReport, RepairTarget, Scan, ScanBatch,
    ScanPlan, ScanRange, ScanRequest, ScanRow, ScanSink, Scanned, SnapshotReport, StagedBlock, Stats, Store,
    TopicChange, TopicQuota, Waiter, check_copy, copy_store, info_and, restore_compaction, staged_messages,
};
pub use mqstore_engine::write::rebuild;
pub use mqstore_inspect::repair::log::{LostOffsets, LostRange};
pub use mqstore_inspect::verify::{Problem, VerifyReport, verify};
pub use mqstore_inspect::{info, repair};
pub use mqstore_log::recovery::{RebuildReport, RecoveryProgress, RecoveryStage};
pub use options::{Durability, OpenMode, RecoveryMode, StoreOptions, Visibility};
pub use progress::Progress;
