//! Appends for transactions: messages that become visible together, final records, and new unique keys.
//!
//! Messages that are appended together are in one segment, one after the other, and are published in one step. A reader
//! in this or another process sees none or all of them. A crash may keep only the first few. From the first one, the
//! caller can tell which others belong to it.
//!
//! Source: `EndTransactionProcessor#endMessageTransaction` and its caller, for the fields of a final record.

use mqstore_format::MadeKey;

use super::append::ReturnPoint;
use super::append_marks::{AppendMarks, TransactionMark};
use super::writer::Writer;
use crate::Store;
use mqstore_base::error::StoreError;
use mqstore_base::message::{Appended, NewMessage};
use mqstore_log::commit_log::EncodedRecord;

impl Writer {
    /// Checks that one segment can hold `records` together.
    pub(crate) fn check_together(&self, records: &[EncodedRecord<'_>]) -> Result<(), StoreError> {
        let size: u64 = records.iter().map(|record| record.parts.len() as u64).sum();
        let limit = self.log.max_record_bytes();
        if size <= limit {
            return Ok(());
        }
        Err(StoreError::TooLarge { what: "the set of messages to append together", size, limit })
    }
}

impl Store {
    /// Appends messages that belong together; `marks` has the mark of each message, in the same order. See the header
    /// of this module. The given unique key is used; an empty one means none. If one message must be durable, all are.
    /// It does not create a topic that was deleted.
    ///
    /// # Errors
    /// Those of [`Store::append_many`]; [`StoreError::TooLarge`] for more than [`Store::max_together_bytes`];
    /// [`StoreError::InvalidMessage`] for a topic with batch queues. After an error nothing is appended, unless the
    /// error stopped the store.
    pub fn append_together(
        &self,
        messages: &[NewMessage<'_>],
        marks: &[TransactionMark],
    ) -> Result<Vec<Appended>, StoreError> {
        messages.iter().try_for_each(|message| self.check_copies_to(message.topic))?;
        self.writer("append")?.append_all(messages, AppendMarks::Together(marks), ReturnPoint::Synced)
    }

    /// Returns the maximum bytes of the records of one [`Store::append_together`].
    ///
    /// # Errors
    /// [`StoreError::ReadOnly`] and [`StoreError::Closed`].
    pub fn max_together_bytes(&self) -> Result<u64, StoreError> {
        Ok(self.writer("append")?.log.max_record_bytes())
    }

    /// Returns a unique key that no message has.
    ///
    /// # Errors
    /// [`StoreError::ReadOnly`] and [`StoreError::Closed`].
    pub fn new_unique_key(&self) -> Result<MadeKey, StoreError> {
        let writer = self.writer("append")?;
        Ok(writer.ids.next(writer.files.clock.now_ms()))
    }

    /// Returns the log offset up to which the log is synced.
    ///
    /// # Errors
    /// [`StoreError::ReadOnly`] and [`StoreError::Closed`].
    pub fn durable_position(&self) -> Result<u64, StoreError> {
        Ok(self.writer("read the durable offset")?.log.durable())
    }

    /// Returns the record at a log offset, also of a deleted topic; `None` if no record starts there.
    ///
    /// # Errors
    /// Those of [`Store::get_at`], except the error for an offset without a record.
    pub fn record_at(
        &self,
        commit_log_offset: u64,
    ) -> Result<Option<mqstore_base::message::StoredRecord>, StoreError> {
        if commit_log_offset >= self.view().catch_up()? {
            return Ok(None);
        }
        match self.any_record_at(commit_log_offset) {
            Err(StoreError::Corrupt { .. }) => Ok(None),
            found => found.map(Some),
        }
    }
}
