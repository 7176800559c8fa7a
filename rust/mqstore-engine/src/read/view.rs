//! What reads need of a store, whether it is open for writing or for reading only.

use std::sync::Arc;
use std::time::Duration;

use mqstore_format::CqUnit;

use mqstore_base::error::StoreError;
use mqstore_base::store_files::StoreFiles;
use mqstore_log::commit_log::{CommitLog, SegmentList};

/// One side of a store's read path.
pub(crate) trait View: Send + Sync {
    /// The store's files.
    fn files(&self) -> &StoreFiles;

    /// Fails when the store was closed or is poisoned for readers.
    fn check(&self) -> Result<(), StoreError>;

    /// Brings queues and index up to what is visible now, and returns where the visible log ends.
    fn catch_up(&self) -> Result<u64, StoreError>;

    /// The segments.
    fn list(&self) -> Arc<SegmentList>;

    /// Every topic's name, sorted.
    fn topics(&self) -> Result<Vec<String>, StoreError>;

    /// The queues of `topic`, sorted; empty when there is no such topic.
    fn queue_ids(&self, topic: &str) -> Result<Vec<i32>, StoreError>;

    /// Minimum and maximum offset of a queue; `None` when there is no such queue.
    fn bounds(&self, topic: &str, queue_id: i32) -> Result<Option<(i64, i64)>, StoreError>;

    /// Appends up to `max` entries with offsets at or after `from` and below the maximum to `units`,
    /// each with its queue offset. Fillers are left out.
    fn units(
        &self,
        topic: &str,
        queue_id: i32,
        from: i64,
        max: usize,
        units: &mut Vec<(i64, CqUnit)>,
    ) -> Result<(), StoreError>;

    /// The queue offset of the first message of the record that holds the message at `offset`: where
    /// records hold several messages, a read begins with a whole one.
    fn start_of(&self, _topic: &str, _queue_id: i32, offset: i64) -> Result<i64, StoreError> {
        Ok(offset)
    }

    /// Stops trusting a queue's files and derives its entries from the log. `false` when this view
    /// cannot do that (then the damage is an error).
    fn distrust(&self, topic: &str, queue_id: i32, reason: &str) -> Result<bool, StoreError>;

    /// Whether an entry whose record cannot be read is passed over instead of ending the read; says so.
    fn passes_over(&self, _error: &StoreError) -> bool {
        false
    }

    /// The log, where this process writes it.
    fn log(&self) -> Option<Arc<CommitLog>> {
        None
    }

    /// Whether compactions keep the newest message of each key of this topic.
    fn keeps_newest(&self, topic: &str) -> bool;

    /// Whether the queues of this topic hold batches.
    fn has_batch_queues(&self, topic: &str) -> bool;

    /// Log offsets that the index knows for a key hash, and the position from which on the log must
    /// be searched itself; `None` when the index cannot be used at all.
    fn candidates(&self, hash: i32) -> Result<Option<(Vec<u64>, u64)>, StoreError>;

    /// Blocks until a message at `offset` may be there, or `timeout` passed; `round` counts the calls of one
    /// wait, from 0 on.
    fn wait_for(
        &self,
        topic: &str,
        queue_id: i32,
        offset: i64,
        timeout: Duration,
        round: u32,
    ) -> Result<(), StoreError>;
}
