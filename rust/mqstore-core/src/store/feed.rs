//! The feed of an open store: what is appended to compaction topics goes to their compaction files, too.
//!
//! Owns when that happens: in rounds of the background, as far as the commit log is durable, and for what is left when the
//! store is closed. It is never in anybody's way: what cannot be copied stays in the commit log and is said in a note, and
//! a close that finds the disk full is a clean close. A compaction keeps it out while it runs.

use std::sync::atomic::Ordering;

use super::writer::Writer;
use crate::compaction::FeedInput;
use crate::error::StoreError;

/// Bytes that one round copies: a compaction that is asked for meanwhile waits for its end.
const ROUND_BYTES: u64 = 64 << 20;

impl Writer {
    /// Copies what is durable, in one round, unless it is to `stop`; whether there is more.
    pub(super) fn feed(&self, stop: &dyn Fn() -> bool) -> Result<bool, StoreError> {
        if !self.options.compaction_feed {
            return Ok(false);
        }
        let durable = self.log.durable();
        // Every message before has its entry.
        let dispatched = self.dispatcher.position() >= durable;
        if self.fed.load(Ordering::Acquire) == durable {
            return Ok(false);
        }
        let topics = self.topics.compaction_topics();
        if topics.is_empty() {
            return Ok(false);
        }
        // A broker looks at the files of compaction topics that it knows only.
        self.topics.store()?;
        let outcome = self.feed.round(&FeedInput {
            queues: &self.queues,
            topics: &topics,
            log: &self.log,
            list: &self.log.list(),
            durable,
            most_bytes: ROUND_BYTES,
            stop,
        })?;
        if outcome.waits {
            self.note(
                "a compaction job of another process runs; what is appended to compaction topics is copied to their \
                 files when it has ended",
            );
        }
        for reason in outcome.left {
            self.note(&format!(
                "is not copied to its compaction files, where a broker looks for it: {reason}"
            ));
        }
        for queue in outcome.keyless {
            self.note(&format!(
                "{queue} has messages without a key, which go to no compaction file, as in RocketMQ: a broker does not serve \
                 them, and they are gone when the commit log lets them go"
            ));
        }
        if dispatched && !outcome.more && !outcome.waits && !stop() {
            self.fed.store(durable, Ordering::Release);
        }
        Ok(outcome.more)
    }

    /// Copies everything that is durable; what goes wrong is said in a note.
    pub(super) fn feed_all(&self) {
        // Queues that were left alone may go on since a compaction.
        self.fed.store(0, Ordering::Release);
        loop {
            match self.feed(&|| false) {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => return self.note_unfed(&error),
            }
        }
    }

    /// Says that a round failed.
    pub(super) fn note_unfed(&self, error: &StoreError) {
        self.note(&format!(
            "copying what was appended to compaction topics to their files failed ({error}); it is tried again later, and \
             a broker does not serve it until then"
        ));
    }
}
