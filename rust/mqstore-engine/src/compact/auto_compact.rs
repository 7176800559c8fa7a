//! Background compaction: from time to time, compacts the topics that changed enough.
//!
//! Owns the check that runs each `compaction_interval`. It compacts a topic if at least `compaction_dirty_ratio` of the
//! messages of one of its queues are newer than the last compaction of that queue. All such topics are compacted in one
//! job, on one thread. The state of a queue comes from its files and `mqstore/compaction.json`, so nothing else is
//! stored between two opens. A close ends this compaction like any other.
//!
//! Source: `CompactionStore#loadAndGetClog`, `CompactionLog#doCompaction`; the ratio is Kafka's
//! (`min.cleanable.dirty.ratio`), because RocketMQ rewrites a queue whenever one of its files is closed.

use std::sync::Arc;
use std::time::Duration;

use super::compaction_state::Compactions;
use crate::read::view::View;
use mqstore_base::error::StoreError;
use mqstore_compaction::{CompactionOptions, JobControl, dirty_topics};

impl Compactions {
    /// Returns the time until the next background compaction; `None` if it is turned off.
    pub(crate) fn next_delay(&self) -> Option<Duration> {
        let interval = Duration::from_millis(self.engine.options.compaction_interval_ms?);
        let now = self.engine.files.clock.monotonic();
        Some(self.delay(now, interval))
    }

    /// Compacts the due topics, if it is time.
    pub(crate) fn compact_if_due(&self) -> Result<(), StoreError> {
        if self.next_delay() != Some(Duration::ZERO) {
            return Ok(());
        }
        let done = self.compact_dirty();
        self.restart_delay();
        match done {
            // Another compaction runs, or the store is being closed.
            Err(StoreError::Busy { .. } | StoreError::Closed { .. }) => Ok(()),
            done => done,
        }
    }

    fn compact_dirty(&self) -> Result<(), StoreError> {
        if self.engine.lifecycle.is_closed() {
            return Ok(());
        }
        self.engine.topics.store()?;
        self.engine.catch_up()?;
        let topics = dirty_topics(
            &self.engine.files,
            &self.engine.queues,
            self.engine.options.compaction_dirty_ratio,
        )?;
        if topics.is_empty() {
            return Ok(());
        }
        let options = CompactionOptions {
            memory_bytes: self.engine.options.compaction_memory_bytes,
            ..CompactionOptions::default()
        };
        let control = Arc::new(JobControl::default());
        let report =
            self.with_compaction_lock(&control, || self.compact(Some(&topics), &options, 1, &control))?;
        let detail = format!(
            "{}: {} messages read, {} kept",
            topics.join(", "),
            report.messages_before,
            report.messages_after
        );
        self.engine.options.hooks.tell("compacted", None, detail);
        for reason in report.skipped.iter().filter(|reason| !reason.ends_with(": unchanged")) {
            self.engine.files.notes.warn(format!("background compaction skipped {reason}"));
        }
        Ok(())
    }
}
