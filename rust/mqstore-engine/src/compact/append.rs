//! The compaction appender of an open store: copies new messages of compaction topics to their compaction files.
//!
//! Decides when to copy: in background rounds up to the durable offset, and the rest when the store closes. It blocks
//! no other work. Messages that cannot be copied stay in the commit log, and a note says so. A close that finds the
//! disk full is still a clean close. During a compaction, the appender does not run.

use std::sync::atomic::{AtomicI64, Ordering};

use super::compaction_state::Compactions;
use mqstore_base::error::StoreError;
use mqstore_compaction::{AppenderInput, QueueAheadOfLog, queues_ahead_of_log};

/// Maximum number of segments whose rest is left empty if the log has lost its end.
const MOST_SKIPPED_SEGMENTS: u64 = 8;

/// Bytes that one round copies. A compaction that is requested meanwhile waits for the end of the round.
const ROUND_BYTES: u64 = 64 << 20;

impl Compactions {
    /// Makes new messages of compaction topics continue after the offsets in the topics' compaction files.
    ///
    /// If the log has lost its end, or was replaced by an older one, the files contain later offsets than the log. One
    /// offset must not stand for two messages: readers would get the old one, and no compaction would read the new one.
    pub(crate) fn advance_past_compacted(&self) -> Result<(), StoreError> {
        let topics = self.engine.topics.compaction_topics();
        let log_end =
            |topic: &str, queue_id| self.next_of(topic, queue_id, |next| next.load(Ordering::Acquire));
        let mut lost = Vec::new();
        for queue in queues_ahead_of_log(&self.engine.files, &topics, log_end)? {
            let QueueAheadOfLog { topic, queue_id, log_end, end } = &queue;
            if let Some(outcome) = self.create_gap(topic, *queue_id, *end)? {
                self.engine.files.notes.warn(format!(
                    "{topic}/{queue_id}: the log ends at offset {log_end}, but its compaction files have messages up \
                     to {end}: the log has lost its end; new messages get offsets from {end} on{outcome}"
                ));
                lost.push(queue);
            } else {
                self.engine.files.notes.warn(format!(
                    "{topic}/{queue_id}: the log ends at offset {log_end}, but its compaction files at {end}. A log \
                     cannot lose that much, so the files belong to another log; they hide new messages below {end}"
                ));
            }
        }
        if lost.is_empty() {
            return Ok(());
        }
        // Before the first append: readers use it.
        self.appender().log_lost(&lost)?;
        for QueueAheadOfLog { topic, queue_id, end, .. } in lost {
            self.next_of(&topic, queue_id, |next| next.store(end, Ordering::Release));
            self.engine.refresh_quota(&topic);
        }
        Ok(())
    }

    fn next_of<T>(&self, topic: &str, queue_id: i32, on: impl FnOnce(&AtomicI64) -> T) -> Option<T> {
        u16::try_from(queue_id).ok()?;
        Some(on(self.engine.topics.get(topic)?.next_offset(queue_id)))
    }

    /// Leaves a gap in the log if a queue must continue at `end`. The larger the gap in the offsets, the more bytes of
    /// the log must be between the records, because the store uses this rule to find damaged records. Returns a text
    /// for the note; `None` if the gap would be too large.
    fn create_gap(&self, topic: &str, queue_id: i32, end: i64) -> Result<Option<&'static str>, StoreError> {
        let Some(queue) = self.engine.queues.get(topic, queue_id) else { return Ok(Some("")) };
        let mut place = self.engine.log.appended();
        let most = place.saturating_add(MOST_SKIPPED_SEGMENTS * self.engine.options.segment_bytes);
        if queue.has_no_space_for(end, most as i64) {
            return Ok(None);
        }
        let mut outcome = "";
        while queue.has_no_space_for(end, place as i64) {
            place = self.engine.log.force_roll()?;
            outcome = ", in the next segment of the log";
        }
        Ok(Some(outcome))
    }

    /// Copies durable messages in one round, unless `stop` returns true. Returns whether messages remain.
    pub(crate) fn feed(&self, stop: &dyn Fn() -> bool) -> Result<bool, StoreError> {
        if !self.engine.options.compaction_feed {
            return Ok(false);
        }
        let durable = self.engine.log.durable();
        // Then every durable message has its unit.
        let dispatched = self.engine.dispatcher.position() >= durable;
        if self.is_copied_to(durable) {
            return Ok(false);
        }
        let topics = self.engine.topics.compaction_topics();
        if topics.is_empty() {
            return Ok(false);
        }
        // A broker reads the compaction files of a topic only if it knows the topic.
        self.engine.topics.store()?;
        let outcome = self.appender().round(&AppenderInput {
            queues: &self.engine.queues,
            topics: &topics,
            log: &self.engine.log,
            list: &self.engine.log.list(),
            durable,
            most_bytes: ROUND_BYTES,
            stop,
        })?;
        if outcome.waits {
            self.engine.files.notes.warn(
                "a compaction job of another process runs; new messages of compaction topics are copied to the \
                 compaction files after its end",
            );
        }
        for reason in outcome.left {
            self.engine.files.notes.warn(format!(
                "a queue is not copied to its compaction files, from which a broker reads: {reason}"
            ));
        }
        for queue in outcome.keyless {
            self.engine.files.notes.warn(format!(
                "{queue} has messages without a key, which are copied to no compaction file, as in RocketMQ: a broker \
                 does not serve them, and they are lost when their segments are removed"
            ));
        }
        if dispatched && !outcome.more && !outcome.waits && !stop() {
            self.set_copied_to(durable);
        }
        Ok(outcome.more)
    }

    /// Copies all durable messages; writes a note if this fails.
    pub(crate) fn drain(&self) {
        // Queues that were skipped before can continue after a compaction.
        self.set_copied_to(0);
        loop {
            match self.feed(&|| false) {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => return self.warn_append_failed(&error),
            }
        }
    }

    /// Adds the note that a round failed.
    pub(crate) fn warn_append_failed(&self, error: &StoreError) {
        self.engine.files.notes.warn(format!(
            "cannot copy new messages of compaction topics to their compaction files ({error}); the store tries \
             again, and a broker does not serve the messages until then"
        ));
    }
}
