//! What transactions need of a store: messages that are there together, final records, and where a message would go.
//!
//! Messages that are appended together lie in one segment, one behind the other, and are published by one step: whoever
//! reads in this process or beside it has none of them or all. A crash may leave the first few of them; the first one is
//! for whoever appends them to know the others by.
//!
//! Source: `EndTransactionProcessor#endMessageTransaction` and its caller, for the fields of a final record.

use mqstore_format::MadeKey;

use super::append::ReturnPoint;
use super::append_marks::{AppendMarks, TransactionMark};
use super::encode::apart;
use super::writer::Writer;
use crate::Store;
use mqstore_base::error::StoreError;
use mqstore_base::message::{Appended, NewMessage};

impl Writer {
    /// Whether a segment has room for `messages`, whose heads and tails are `encoded` bytes long.
    pub(crate) fn check_together(
        &self,
        messages: &[NewMessage<'_>],
        encoded: usize,
    ) -> Result<(), StoreError> {
        let bodies: usize = messages.iter().map(|message| apart(message.body).len()).sum();
        let (size, limit) = ((encoded + bodies) as u64, self.log.max_record_bytes());
        if size <= limit {
            return Ok(());
        }
        Err(StoreError::TooLarge { what: "what is to be stored together", size, limit })
    }
}

impl Store {
    /// Appends messages that belong together, and says of each what `marks` has, in the same order: see the module's
    /// text. The unique key is taken as it is given; an empty one stands for none. As durable as the one that asks for
    /// most.
    ///
    /// # Errors
    /// Those of [`Store::append_many`]; [`StoreError::TooLarge`] for more than [`Store::max_together_bytes`];
    /// [`StoreError::InvalidMessage`] for a topic with batch queues. Nothing was appended then, unless the store was
    /// stopped.
    pub fn append_together(
        &self,
        messages: &[NewMessage<'_>],
        marks: &[TransactionMark],
    ) -> Result<Vec<Appended>, StoreError> {
        messages.iter().try_for_each(|message| self.check_copies_to(message.topic))?;
        self.writer("append")?.append_all(messages, AppendMarks::Together(marks), ReturnPoint::Synced)
    }

    /// Bytes that the records of one [`Store::append_together`] may have.
    ///
    /// # Errors
    /// [`StoreError::ReadOnly`] and [`StoreError::Closed`].
    pub fn max_together_bytes(&self) -> Result<u64, StoreError> {
        Ok(self.writer("append")?.log.max_record_bytes())
    }

    /// A unique key that no message has.
    ///
    /// # Errors
    /// [`StoreError::ReadOnly`] and [`StoreError::Closed`].
    pub fn new_unique_key(&self) -> Result<MadeKey, StoreError> {
        let writer = self.writer("append")?;
        Ok(writer.ids.next(writer.files.clock.now_ms()))
    }

    /// The position up to which a sync covers the log.
    ///
    /// # Errors
    /// [`StoreError::ReadOnly`] and [`StoreError::Closed`].
    pub fn durable_position(&self) -> Result<u64, StoreError> {
        Ok(self.writer("look")?.log.durable())
    }

    /// The record at a log position; `None` where none begins.
    ///
    /// # Errors
    /// Those of [`Store::get_at`], but for what is no record.
    pub fn record_at(
        &self,
        commit_log_offset: u64,
    ) -> Result<Option<mqstore_base::message::StoredRecord>, StoreError> {
        if commit_log_offset >= self.view().catch_up()? {
            return Ok(None);
        }
        match self.get_at(commit_log_offset) {
            Err(StoreError::Corrupt { .. }) => Ok(None),
            found => found.map(Some),
        }
    }
}
