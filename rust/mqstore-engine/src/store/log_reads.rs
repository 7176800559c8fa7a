//! Reads of the log, by log offset.

use mqstore_base::error::StoreError;
use mqstore_base::message::StoredRecord;

use super::Store;
use crate::read::cursor::LogCursor;
use crate::read::levels;
use crate::read::query;
use crate::scan;

/// See the header of this module; from [`Store::log`].
#[derive(Clone, Copy)]
pub struct LogReads<'a>(pub(super) &'a Store);

impl LogReads<'_> {
    /// Returns a cursor on every record of the log from `start` (default: its beginning) in log order; needs no queue.
    pub fn scan(&self, start: Option<u64>) -> Result<LogCursor, StoreError> {
        let view = self.0.usable_view()?;
        let limit = view.catch_up()?;
        let first = start.unwrap_or_else(|| view.list().min_offset());
        Ok(LogCursor::new(view, first, limit))
    }

    /// Returns the record at a log offset.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] if no record starts there, if its topic was deleted since, or if the retention of the
    /// topic hides it.
    pub fn get_at(&self, commit_log_offset: u64) -> Result<StoredRecord, StoreError> {
        query::get_at(&self.0.usable_view()?, commit_log_offset)
    }

    /// Returns the record at a log offset, also of a deleted topic; `None` if no record starts there.
    ///
    /// # Errors
    /// Those of [`Self::get_at`], except the error for an offset without a record.
    pub fn record_at(&self, commit_log_offset: u64) -> Result<Option<StoredRecord>, StoreError> {
        let view = self.0.usable_view()?;
        if commit_log_offset >= view.catch_up()? {
            return Ok(None);
        }
        match query::any_record_at(&view, commit_log_offset) {
            Err(StoreError::Corrupt { .. }) => Ok(None),
            found => found.map(Some),
        }
    }

    /// Returns the records at `places` (log offset and size), in the same order; `None` if there is no such record, or
    /// no longer one.
    ///
    /// # Errors
    /// Errors of reading the log. Damage of single records is no error.
    pub fn records_at(&self, places: &[(u64, u32)]) -> Result<Vec<Option<StoredRecord>>, StoreError> {
        levels::records_at(&self.0.usable_view()?, places)
    }

    /// Returns the start of the last segment whose first message was stored before `time_ms`; if there is none, the
    /// start of the log.
    pub fn offset_before(&self, time_ms: i64) -> Result<u64, StoreError> {
        levels::log_offset_before(&self.0.usable_view()?, time_ms)
    }

    /// Returns log offsets at which scans of a queue's messages in `range` can begin. For each of `positions`, which
    /// must ascend, it is the log offset of the first of these messages at or after that position. Positions without
    /// such a message, or whose unit points to no record, are left out.
    ///
    /// # Errors
    /// [`StoreError::TopicNotFound`], and errors of the system.
    pub fn scan_cuts(
        &self,
        topic: &str,
        queue_id: i32,
        range: (i64, i64),
        positions: &[u64],
    ) -> Result<Vec<u64>, StoreError> {
        scan::scan_cuts(&self.0.usable_view()?, topic, queue_id, range, positions)
    }

    /// Returns the first log offset, and one more than the last visible one.
    pub fn bounds(&self) -> Result<(u64, u64), StoreError> {
        let view = self.0.usable_view()?;
        let visible = view.catch_up()?;
        Ok((view.list().min_offset(), visible))
    }
}
