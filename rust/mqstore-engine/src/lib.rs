//! The store: one handle for all operations on a directory.
//!
//! `engine` has the plain data of a store that is open for writing, `read` finds messages, `write` appends, `scan` finds
//! many messages. Above them are services that own their state: `staged` appends what other processes have prepared,
//! `archive` finds the segments that an archive may contain, `retention` removes due segments, `topic_retention` hides
//! due messages of a topic, `reclaim` frees the space of hidden messages, `compact` runs compactions. `store` has the
//! facade [`Store`] and the threads. Each folder uses only those named before it. A [`Store`] for writing holds
//! RocketMQ's lock.
#![forbid(unsafe_code)]
#![cfg_attr(
    test,
    allow(
        clippy::disallowed_methods,
        clippy::disallowed_types,
        reason = "tests put real files, links and pipes next to the store"
    )
)]

pub(crate) mod archive;
pub(crate) mod compact;
pub(crate) mod engine;
pub(crate) mod read;
pub(crate) mod reclaim;
pub(crate) mod retention;
pub(crate) mod scan;
pub(crate) mod staged;
pub(crate) mod store;
pub(crate) mod topic_retention;
pub(crate) mod write;

#[cfg(any(test, feature = "testing"))]
#[allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::missing_panics_doc,
    clippy::unwrap_used,
    reason = "a failed test is the point of test code"
)]
pub mod testing;
#[cfg(test)]
mod tests;

pub use archive::{ArchiveState, SealedLog, SealedSegment};
pub use engine::topics::{TopicChange, batch_topics, load_floors, load_listed};
pub use read::cursor::{LogCursor, QueueCursor, RecordBatch};
pub use read::floor_watch::FloorWatch;
pub use read::group_offsets::{GroupOffset, GroupOffsets, GroupTable, WorkCounts, popped_from};
pub use read::levels::LevelTimes;
pub use read::lookup::LookupCursor;
pub use read::merged::{MergedCursor, ReadBound, TopicRead};
pub use read::older::{
    OlderBatch, OlderFloor, OlderLimits, OlderLookup, OlderMessages, OlderRead, OlderReads, OlderRows,
    OlderSource,
};
pub use read::pop_checkpoints::{PopState, PoppedMessage, PoppedQueue};
pub use read::query::{Boundary, QueueInfo, RecordRank};
pub use read::reader::accessors::Geometry;
pub use read::table::{TableLoad, TableRow, TableRows};
pub use read::wait::Waiter;
pub use reclaim::{KeptSegment, ReclaimReport, ReclaimRequest, ReclaimedSegment, ReclaimedTopic};
pub use retention::{ExpireReport, ExpiredTopic, HolderKind, SegmentHolder};
pub use scan::{
    MakeSink, Passed, RecordTest, Scan, ScanBatch, ScanOutput, ScanPlan, ScanRange, ScanRequest, ScanRow,
    ScanSink,
};
pub use staged::{
    StagedFile, StagedFileWriter, StagedStep, StagedWrite, job_in_progress, prepare_stage, was_done,
};
pub use store::{
    Archive, BackgroundTask, FindDeliveriesIn, FollowStep, Inspection, LogFeed, LogReads, NamespaceInfo,
    Namespaces, NonBlocking, Retentions, Settings, Stats, Store, StoreSettings, SystemAppends, TopicFollower,
    TopicQuota, WeakStore, refuse_rocksdb, restore_compaction, take_lock,
};
pub use topic_retention::TopicUsage;
pub use write::append::RefusedMessage;
pub use write::append_marks::{AppendMarks, MessageOrigin, TransactionMark};
pub use write::encode::check_target;
pub use write::raw_append::check_copy;
pub use write::staged_batch::StagedBlock;
