//! Messages from before the log, for consumers: those of an archive.

use std::fmt::Debug;

use mqstore_base::error::StoreError;
use mqstore_base::message::StoredRecord;

/// Messages of queues from before the log. A consumer reads them if the log no longer has its next messages.
pub trait OlderMessages: Debug + Send + Sync {
    /// Returns the smallest offset of a queue; `None` if there is no older message of it.
    ///
    /// # Errors
    /// The messages cannot be read.
    fn first_offset(&self, topic: &str, queue_id: i32) -> Result<Option<i64>, StoreError>;

    /// Returns the offset of the first message of a queue stored at or after a time in epoch milliseconds.
    ///
    /// # Errors
    /// The messages cannot be read.
    fn offset_for_time(&self, topic: &str, queue_id: i32, time_ms: i64) -> Result<Option<i64>, StoreError>;

    /// Returns up to `max` messages of a queue that match the filter of the consumer, with offsets from the start of
    /// `range` up to its end (exclusive), and the offset after the last one that was read: the start if there is none.
    ///
    /// # Errors
    /// The messages cannot be read.
    fn read(
        &self,
        topic: &str,
        queue_id: i32,
        range: (i64, i64),
        max: usize,
    ) -> Result<(Vec<StoredRecord>, i64), StoreError>;
}
