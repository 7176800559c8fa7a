//! Appends of messages.

use mqstore_base::error::StoreError;
use mqstore_base::message::{Appended, NewMessage};

use super::Store;
use super::system_appends::SystemAppends;

impl Store {
    /// Appends one message.
    pub fn append(&self, message: &NewMessage<'_>) -> Result<Appended, StoreError> {
        let engine = self.engine("append")?;
        let appended = engine.append(message)?;
        engine.replicated(std::slice::from_ref(&appended))?;
        Ok(appended)
    }

    /// Appends messages at consecutive log offsets, with one lock and one sync. A crash may keep only the first of
    /// them.
    pub fn append_many(&self, messages: &[NewMessage<'_>]) -> Result<Vec<Appended>, StoreError> {
        let engine = self.engine("append")?;
        let appended = engine.append_many(messages)?;
        engine.replicated(&appended)?;
        Ok(appended)
    }

    /// Appends a message to its topic and to `light_queues`. The prefix `%LMQ%` of their names may be left out.
    ///
    /// # Errors
    /// [`StoreError::InvalidMessage`] for an invalid name, and for a topic with batch queues, a retry topic or a system
    /// topic; the errors of [`Self::append`].
    pub fn append_to_light_queues(
        &self,
        message: &NewMessage<'_>,
        light_queues: &[&str],
    ) -> Result<Appended, StoreError> {
        let engine = self.engine("append")?;
        let appended = engine.append_to_light_queues(message, light_queues)?;
        engine.replicated(std::slice::from_ref(&appended))?;
        Ok(appended)
    }

    /// Waits until the copies have the messages from `log_offset` to `log_end`, as an append does with the option
    /// `replicated`.
    ///
    /// # Errors
    /// [`StoreError::NotReplicated`] after the time limit of the option `replication`; [`StoreError::InvalidOption`]
    /// without that option.
    pub fn wait_for_copies(&self, log_offset: u64, log_end: u64) -> Result<(), StoreError> {
        let engine = self.engine("wait for copies")?;
        engine.wait_for_copies(log_offset, log_end, engine.files.clock.monotonic())
    }

    /// Makes everything appended so far durable.
    pub fn flush(&self) -> Result<(), StoreError> {
        self.engine("flush")?.flush()
    }

    /// Makes everything appended so far visible to later reads of this process. That needs a sync if reads return only
    /// durable records.
    pub fn make_visible(&self) -> Result<(), StoreError> {
        let engine = self.engine("make appends visible")?;
        let lags = engine.options.durable_only() && engine.log.durable() < engine.log.appended();
        if lags { engine.flush() } else { Ok(()) }
    }

    /// Returns the appends of the layers above.
    pub fn system_appends(&self) -> SystemAppends<'_> {
        SystemAppends(self)
    }
}
