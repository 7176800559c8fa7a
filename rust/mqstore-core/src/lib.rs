//! The store engine: commit log, consume queues, index, dispatch, flush, recovery, and the façade.
//!
//! Floors, from below: the families `commit_log`, `consume_queue`, `index`, `checkpoint` and `meta` own their
//! files and do not know one another; `dispatch`, `flush`, `recovery`, `compaction` and `inspect` join
//! them; [`store`] is what programs use. Files, maps, clocks and locks come from `mqstore_io` alone.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tests lay real files, links and pipes beside the engine"
    )
)]

pub mod checkpoint;
pub mod commit_log;
pub mod compaction;
pub mod consume_queue;
pub mod dispatch;
pub mod error;
pub mod events;
pub mod files;
pub mod flush;
mod group_commit;
pub mod index;
pub mod inspect;
pub mod live;
pub mod mark;
pub mod mend;
pub mod message;
pub mod meta;
pub mod options;
pub mod progress;
pub mod recovery;
pub mod retention;
pub mod store;

pub use error::{StoreError, Stray};
pub use events::{ExpiredFile, ExpiredKind, Hooks, StoreEvent, Verdict};
pub use files::{DelayTables, StoreFiles};
pub use inspect::{Problem, VerifyReport, verify};
pub use progress::Progress;
pub use mend::{LostOffsets, LostRange};
pub use message::{
    Appended, MessageFilter, NewMessage, RecordBytes, StoredRecord, TagFilter, UniqueKey, encode_properties,
};
pub use options::{Durability, OpenMode, PutLockKind, RecoveryMode, StoreOptions, Visibility};
pub use recovery::{RebuildReport, RecoveryProgress, RecoveryStage};
pub use retention::ExpireReport;
pub use store::{
    AppendDone, AppendQueue, AppendRequest, BackgroundTask, Batch, Boundary, Geometry, GroupOffset,
    GroupOffsets, HourRate, InfoReport, LogCursor, LookupCursor, MakeSink, Mark, NamespaceInfo, Origin,
    OwnedMessage, PartSize, Passed, QueueCursor, QueueInfo, RepairReport, RepairTarget, Scan, ScanBatch,
    ScanPlan, ScanRange, ScanRequest, ScanRow, ScanSink, Scanned, SnapshotReport, StagedBlock, Stats, Store,
    TopicChange, TopicQuota, Waiter, check_copy, copy_store, info, info_and, rebuild, repair,
    restore_compaction, staged_messages,
};
