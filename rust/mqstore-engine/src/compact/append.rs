//! The feed of an open store: what is appended to compaction topics goes to their compaction files, too.
//!
//! Owns when that happens: in rounds of the background, as far as the commit log is durable, and for what is left when the
//! store is closed. It is never in anybody's way: what cannot be copied stays in the commit log and is said in a note, and
//! a close that finds the disk full is a clean close. A compaction keeps it out while it runs.

use std::sync::atomic::{AtomicI64, Ordering};

use crate::write::writer::Writer;
use mqstore_base::error::StoreError;
use mqstore_compaction::{AppenderInput, QueueAheadOfLog, queues_ahead_of_log};

/// Segments of which the rest is left empty, for a log that has lost its end.
const MOST_SKIPPED_SEGMENTS: u64 = 8;

/// Bytes that one round copies: a compaction that is asked for meanwhile waits for its end.
const ROUND_BYTES: u64 = 64 << 20;

impl Writer {
    /// Has new messages of compaction topics get offsets behind those in the topics' files. Where the log has lost its
    /// end, or an older one was put in its place, the files have more than it, and an offset must not stand for two
    /// messages: readers would be given the old one, and no compaction would look at the new one.
    pub(crate) fn advance_past_compacted(&self) -> Result<(), StoreError> {
        let topics = self.topics.compaction_topics();
        let log_end =
            |topic: &str, queue_id| self.next_of(topic, queue_id, |next| next.load(Ordering::Acquire));
        let mut lost = Vec::new();
        for queue in queues_ahead_of_log(&self.files, &topics, log_end)? {
            let QueueAheadOfLog { topic, queue_id, log_end, end } = &queue;
            if let Some(outcome) = self.create_gap(topic, *queue_id, *end)? {
                self.lifecycle.note(&format!(
                    "{topic}/{queue_id}: the log ends at offset {log_end} and its compaction files have messages up to {end}: \
                     the log has lost its end; new messages get offsets from {end} on{outcome}"
                ));
                lost.push(queue);
            } else {
                self.lifecycle.note(&format!(
                    "{topic}/{queue_id}: the log ends at offset {log_end} and its compaction files at {end}, which is more \
                     than a log can have lost; they are not those of this log, and hide what is appended below that"
                ));
            }
        }
        if lost.is_empty() {
            return Ok(());
        }
        // Before the first append: readers go by it.
        self.compaction.appender().log_lost(&lost)?;
        for QueueAheadOfLog { topic, queue_id, end, .. } in lost {
            self.next_of(&topic, queue_id, |next| next.store(end, Ordering::Release));
            self.refresh_quota(&topic);
        }
        Ok(())
    }

    fn next_of<T>(&self, topic: &str, queue_id: i32, on: impl FnOnce(&AtomicI64) -> T) -> Option<T> {
        u16::try_from(queue_id).ok()?;
        Some(on(self.topics.get(topic)?.next_offset(queue_id)))
    }

    /// Makes sure that a queue may go on at `end`: the more offsets have no message, the more of the log has to lie
    /// between, as records of damaged logs are told from good ones by that. What was done for it; `None` when it
    /// takes too much.
    fn create_gap(&self, topic: &str, queue_id: i32, end: i64) -> Result<Option<&'static str>, StoreError> {
        let Some(queue) = self.queues.get(topic, queue_id) else { return Ok(Some("")) };
        let mut place = self.log.appended();
        let most = place.saturating_add(MOST_SKIPPED_SEGMENTS * self.options.segment_bytes);
        if queue.has_no_room_for(end, most as i64) {
            return Ok(None);
        }
        let mut outcome = "";
        while queue.has_no_room_for(end, place as i64) {
            place = self.log.force_roll()?;
            outcome = ", in the log's next segment";
        }
        Ok(Some(outcome))
    }

    /// Copies what is durable, in one round, unless it is to `stop`; whether there is more.
    pub(crate) fn feed(&self, stop: &dyn Fn() -> bool) -> Result<bool, StoreError> {
        if !self.options.compaction_feed {
            return Ok(false);
        }
        let durable = self.log.durable();
        // Every message before has its entry.
        let dispatched = self.dispatcher.position() >= durable;
        if self.compaction.is_copied_to(durable) {
            return Ok(false);
        }
        let topics = self.topics.compaction_topics();
        if topics.is_empty() {
            return Ok(false);
        }
        // A broker looks at the files of compaction topics that it knows only.
        self.topics.store()?;
        let outcome = self.compaction.appender().round(&AppenderInput {
            queues: &self.queues,
            topics: &topics,
            log: &self.log,
            list: &self.log.list(),
            durable,
            most_bytes: ROUND_BYTES,
            stop,
        })?;
        if outcome.waits {
            self.lifecycle.note(
                "a compaction job of another process runs; what is appended to compaction topics is copied to their \
                 files when it has ended",
            );
        }
        for reason in outcome.left {
            self.lifecycle.note(&format!(
                "is not copied to its compaction files, where a broker looks for it: {reason}"
            ));
        }
        for queue in outcome.keyless {
            self.lifecycle.note(&format!(
                "{queue} has messages without a key, which go to no compaction file, as in RocketMQ: a broker does not serve \
                 them, and they are gone when the commit log lets them go"
            ));
        }
        if dispatched && !outcome.more && !outcome.waits && !stop() {
            self.compaction.set_copied_to(durable);
        }
        Ok(outcome.more)
    }

    /// Copies everything that is durable; what goes wrong is said in a note.
    pub(crate) fn drain_compaction_appends(&self) {
        // Queues that were left alone may go on since a compaction.
        self.compaction.set_copied_to(0);
        loop {
            match self.feed(&|| false) {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => return self.warn_append_failed(&error),
            }
        }
    }

    /// Says that a round failed.
    pub(crate) fn warn_append_failed(&self, error: &StoreError) {
        self.lifecycle.note(&format!(
            "copying what was appended to compaction topics to their files failed ({error}); it is tried again later, and \
             a broker does not serve it until then"
        ));
    }
}
