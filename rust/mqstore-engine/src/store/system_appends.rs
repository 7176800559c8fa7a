//! Appends of the layers above, which set fields that no program can set: copies, deliveries, and parts of transactions.

use mqstore_base::append_request::AppendDone;
use mqstore_base::error::StoreError;
use mqstore_base::message::{Appended, NewMessage};
use mqstore_format::{Host, MadeKey};
use mqstore_log::commit_log::CopiedPart;

use super::Store;
use crate::staged::{StagedStep, StagedWrite};
use crate::write::append::{RefusedMessage, ReturnPoint};
use crate::write::append_marks::{AppendMarks, MessageOrigin};

/// See the header of this module; from [`Store::system_appends`].
#[derive(Clone, Copy)]
pub struct SystemAppends<'a>(pub(super) &'a Store);

impl SystemAppends<'_> {
    /// Like [`Store::append_many`], for messages with marks: copies from elsewhere, deliveries that were accepted earlier,
    /// or parts of a transaction. The given unique key is used; an empty one means none.
    ///
    /// # Errors
    /// Those of [`Store::append_many`]; [`StoreError::InvalidMessage`] for a topic with batch queues. Those of
    /// [`AppendMarks`].
    pub fn append_marked(
        &self,
        messages: &[NewMessage<'_>],
        marks: AppendMarks<'_>,
    ) -> Result<Vec<Appended>, StoreError> {
        self.0.engine("append")?.append_marked(messages, marks)
    }

    /// Like [`Store::append`], but never waits for copies: after this append, the caller changes a state of its own.
    /// [`Self::replicated`] waits when that is done.
    ///
    /// # Errors
    /// Those of [`Store::append`], without those of the wait.
    pub fn append_first(&self, message: &NewMessage<'_>) -> Result<Appended, StoreError> {
        self.0.engine("append")?.append(message)
    }

    /// Like [`Self::append_first`], for [`Store::append_many`].
    ///
    /// # Errors
    /// Those of [`Store::append_many`], without those of the wait.
    pub fn append_many_first(&self, messages: &[NewMessage<'_>]) -> Result<Vec<Appended>, StoreError> {
        self.0.engine("append")?.append_many(messages)
    }

    /// Appends messages like [`Store::append_many`], or if `many` is false, one like [`Store::append`], and returns when
    /// they are published. [`Self::settle_all`] waits.
    ///
    /// # Errors
    /// Those of [`Store::append_many`], without those of waits.
    pub fn place(&self, messages: &[NewMessage<'_>], many: bool) -> Result<Vec<Appended>, StoreError> {
        let engine = self.0.engine("append")?;
        match messages {
            [one] if !many => Ok(vec![engine.append_one(one, ReturnPoint::Placed)?]),
            all => engine.append_all(all, AppendMarks::None, ReturnPoint::Placed),
        }
    }

    /// Whether an append of this store waits that asks for a sync, or for copies.
    pub fn waits(&self, (durable, replicated): (bool, bool)) -> bool {
        self.0.writing_engine().is_some_and(|engine| engine.waits(durable, replicated))
    }

    /// Waits for the sync and the copies of messages from [`Self::place`], as each asked, and gives the results.
    pub fn settle_all(&self, waiting: Vec<((bool, bool), Vec<Appended>, AppendDone)>) {
        if let Ok(engine) = self.0.engine("append") {
            return engine.settle_all(waiting);
        }
        // A store that has placed messages is open for writing.
        for (.., done) in waiting {
            done(Err(StoreError::Closed { path: self.0.path().to_path_buf() }));
        }
    }

    /// Waits for the copies of messages, if each append of the store does.
    ///
    /// # Errors
    /// [`StoreError::NotReplicated`].
    pub fn replicated(&self, appended: &[Appended]) -> Result<(), StoreError> {
        self.0.engine("append")?.replicated(appended)
    }

    /// Appends a record of another store to a topic with batch queues: an unchanged batch of messages, or a single
    /// message. The body is in its stored form; `INNER_BASE` of `message` is set again.
    ///
    /// # Errors
    /// Those of [`Store::append_many`]; [`StoreError::InvalidMessage`] for a topic with plain queues, and for a batch
    /// without the number of its messages.
    pub fn append_batch_copy(
        &self,
        message: &NewMessage<'_>,
        origin: &MessageOrigin,
    ) -> Result<Appended, StoreError> {
        self.0.engine("append")?.append_batch_copy(message, origin)
    }

    /// Appends a part of the log of another store at `position`, the end of this log. Returns the new end.
    ///
    /// # Errors
    /// Those of [`CommitLog::append_copied`](mqstore_log::commit_log::CommitLog::append_copied), and of a full disk.
    pub fn append_copied(&self, position: u64, part: CopiedPart<'_>) -> Result<u64, StoreError> {
        let engine = self.0.engine("append")?;
        engine.before_append()?;
        let end = engine.log.append_copied(position, part)?;
        engine.wake_services(end)?;
        Ok(end)
    }

    /// Waits until the log is synced up to `position`.
    ///
    /// # Errors
    /// [`StoreError::Poisoned`] if a sync has failed.
    pub fn sync_to(&self, position: u64) -> Result<(), StoreError> {
        self.0.engine("append")?.synced(position)
    }

    /// Begins a step of staged messages, whose files must be there; an earlier step must be over.
    /// [`Self::resume_staged`] appends them.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] for a file that is missing or has another length; errors of the system.
    pub fn begin_staged(&self, step: StagedStep) -> Result<(), StoreError> {
        StagedWrite::begin(self.0.engine("append")?, step)
    }

    /// Returns the step of staged messages that has begun; `None` if there is none. Their hosts are `born_host`.
    /// Messages without a queue go to the queue that [`Store::append`] would use.
    ///
    /// # Errors
    /// [`StoreError::Corrupt`] for a damaged journal or file, and if retention has deleted the part of the log in which
    /// messages of the step can be.
    pub fn resume_staged(&self, born_host: Host) -> Result<Option<StagedWrite>, StoreError> {
        StagedWrite::resume(self.0.engine("append")?, born_host)
    }

    /// Checks that [`Self::append_marked`] accepts copies for this topic.
    ///
    /// # Errors
    /// [`StoreError::InvalidMessage`] for a topic with batch queues; [`StoreError::ReadOnly`].
    pub fn check_copies_to(&self, topic: &str) -> Result<(), StoreError> {
        self.0.engine("append")?.check_copies_to(topic)
    }

    /// Returns the first message that [`Store::append_many`] would refuse if it got `groups` one after the other, as
    /// far as that depends on the messages and the topics.
    ///
    /// # Errors
    /// [`StoreError::ReadOnly`] and [`StoreError::Closed`].
    pub fn refused_append<'m>(
        &self,
        groups: impl Iterator<Item = &'m [NewMessage<'m>]>,
    ) -> Result<Option<RefusedMessage>, StoreError> {
        Ok(self.0.engine("append")?.check_appends(groups).err())
    }

    /// Returns the queue for `message` if it were appended now: the given one, else the one for its key, else the next
    /// in turn. Creates the topic like an append, and refuses a message that could not be delivered later.
    ///
    /// # Errors
    /// Those of [`Store::append`]; [`StoreError::InvalidMessage`] for a topic with batch queues.
    pub fn target_queue(&self, message: &NewMessage<'_>) -> Result<i32, StoreError> {
        self.0.engine("append")?.target_queue(message)
    }

    /// Lets the next message of a queue have the offset `offset`, if that is possible, and returns the offset that it
    /// will have.
    ///
    /// A queue never goes back. It can begin at any offset up to 2^56; later, it passes over at most 1,000 offsets at a
    /// time. These offsets have blank units once the message is there. Nothing is stored before: after a stop, the queue
    /// continues at its last message.
    ///
    /// # Errors
    /// [`StoreError::TopicNotFound`], [`StoreError::ReadOnly`] and [`StoreError::Closed`].
    pub fn advance_queue(&self, topic: &str, queue_id: i32, offset: i64) -> Result<i64, StoreError> {
        self.0.engine("append")?.advance_queue(topic, queue_id, offset)
    }

    /// Returns the maximum bytes of the records that are appended together; see [`AppendMarks::Together`].
    ///
    /// # Errors
    /// [`StoreError::ReadOnly`] and [`StoreError::Closed`].
    pub fn max_together_bytes(&self) -> Result<u64, StoreError> {
        Ok(self.0.engine("append")?.log.max_record_bytes())
    }

    /// Returns a unique key that no message has.
    ///
    /// # Errors
    /// [`StoreError::ReadOnly`] and [`StoreError::Closed`].
    pub fn new_unique_key(&self) -> Result<MadeKey, StoreError> {
        let engine = self.0.engine("append")?;
        Ok(engine.ids.next(engine.files.clock.now_ms()))
    }

    /// Returns the log offset up to which the log is synced.
    ///
    /// # Errors
    /// [`StoreError::ReadOnly`] and [`StoreError::Closed`].
    pub fn durable_position(&self) -> Result<u64, StoreError> {
        Ok(self.0.engine("read the durable offset")?.log.durable())
    }

    /// Whether the topic was deleted after log offset `accepted`, at which the store accepted a message for it: it does
    /// not exist, or it was created again since. A new topic has none of the old messages.
    ///
    /// # Errors
    /// [`StoreError::Closed`].
    pub fn is_deleted_since(&self, topic: &str, accepted: u64) -> Result<bool, StoreError> {
        let view = self.0.usable_view()?;
        Ok(view.is_removed(topic) || accepted < view.floors().deleted(topic))
    }

    /// Calls `append`, and lets no topic be deleted until it returns, so that an answer of [`Self::is_deleted_since`]
    /// stays right. `append` must not delete a topic.
    ///
    /// # Errors
    /// [`StoreError::ReadOnly`] and [`StoreError::Closed`].
    pub fn without_deletions<T>(&self, append: impl FnOnce() -> T) -> Result<T, StoreError> {
        let engine = self.0.engine("append")?;
        let _no_deletion = engine.topics.deletions().read();
        Ok(append())
    }
}
