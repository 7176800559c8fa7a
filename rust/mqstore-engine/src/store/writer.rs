//! The side of a store that is open for writing: its engine, the services above it, and background tasks of other
//! crates.
//!
//! It holds the lock for its whole life. The open takes the lock and then recovers; only a clean close removes `abort`.
//! A task is a plain struct. `services` has one thread for each task, which calls its step and lets it rest;
//! [`Writer::step`] calls the steps by hand. The writer holds its tasks weakly, because a task holds the store.

use std::sync::{Arc, Weak};

use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::options::Durability;
use mqstore_io::switch;
use mqstore_io::sync::Mutex;

use super::background_task::BackgroundTask;
use crate::compact::compaction_state::Compactions;
use crate::engine::Engine;
use crate::reclaim::Reclaim;
use crate::retention::{Cleaner, ExpireReport};
use crate::topic_retention::{TopicRetentions, due_messages};

/// See the header of this module.
pub(crate) struct Writer {
    pub(crate) engine: Arc<Engine>,
    pub(crate) cleaner: Arc<Cleaner>,
    pub(crate) topic_retentions: TopicRetentions,
    pub(crate) reclaim: Reclaim,
    pub(crate) compactions: Compactions,
    pub(super) tasks: Mutex<Vec<Weak<dyn BackgroundTask>>>,
}

impl Writer {
    /// Adds a task, weakly.
    pub(super) fn add_task(&self, task: &Arc<dyn BackgroundTask>) {
        self.tasks.lock().push(Arc::downgrade(task));
    }

    /// Returns the tasks that still exist.
    pub(super) fn tasks(&self) -> Vec<Arc<dyn BackgroundTask>> {
        self.tasks.lock().iter().filter_map(Weak::upgrade).collect()
    }

    /// Ends the tasks while the store is still open; returns the first error.
    pub(super) fn end_tasks(&self) -> Result<(), StoreError> {
        self.tasks().iter().map(|task| task.end()).fold(Ok(()), Result::and)
    }

    /// Runs one round of every service and one step of each task in this thread.
    pub(super) fn step(&self) -> Result<(), StoreError> {
        let engine = &self.engine;
        engine.log.prepare()?;
        engine.log.make_readable()?;
        engine.dispatch()?;
        engine.topics.store()?;
        engine.flusher.step(engine.files.clock.now_ms())?;
        engine.meta.step(engine.files.clock.now_ms())?;
        self.cleaner.step()?;
        self.topic_retentions.step()?;
        self.compactions.drain();
        self.compactions.compact_if_due()?;
        self.tasks().iter().map(|task| task.step().map(drop)).fold(Ok(()), Result::and)
    }

    /// See [`crate::Store::expire`].
    pub(super) fn expire(
        &self,
        dry_run: bool,
        carry_on: &mut dyn FnMut() -> Result<(), StoreError>,
    ) -> Result<ExpireReport, StoreError> {
        let options = &self.engine.options;
        // Otherwise groups could not see the records yet.
        if !dry_run && options.durable_only() && options.durability == Durability::Manual {
            self.engine.flush()?;
        }
        let report = self.cleaner.expire(dry_run, carry_on);
        if !self.cleaner.held_files().is_empty() {
            self.engine.signals.want_expiry_round();
        }
        let mut report = report?;
        if dry_run {
            report.topics = due_messages(&*self.engine, &self.topic_retentions.older())?;
        } else {
            self.topic_retentions.expire(&mut report, carry_on)?;
        }
        Ok(report)
    }

    /// Ends the services with `stop_threads`, and makes everything durable.
    pub(super) fn close(&self, stop_threads: impl FnOnce()) -> Result<(), StoreError> {
        self.engine.lifecycle.set_closed();
        self.engine.queues.wake_all();
        self.compactions.stop();
        self.reclaim.stop();
        stop_threads();
        self.finish()
    }

    /// The last step of a close: makes everything durable, marks the store clean, removes `abort`, releases the lock.
    fn finish(&self) -> Result<(), StoreError> {
        self.engine.log.stop_preparing();
        self.engine.log.seal();
        // Records after the confirmed offset are in the log and count from here on.
        let lifted = self.engine.set_visible_limit(u64::MAX);
        let outcome = lifted
            .and_then(|()| self.engine.log.check())
            .and_then(|()| self.engine.topics.store())
            .and_then(|()| {
                self.engine.log.flush_to(self.engine.log.appended())?;
                self.engine.dispatch()?;
                self.compactions.drain();
                self.engine.meta.close()?;
                // The mark names the end of the metadata log.
                self.engine.flusher.flush_all(true)?;
                let abort = self.engine.files.abort();
                self.engine.files.vfs.remove_file(&abort).at(&abort, "removing abort")?;
                switch::step("close.sync_abort_removal", || {
                    self.engine.files.vfs.sync_dir(&self.engine.files.root)
                })
                .at(&self.engine.files.root, "syncing the store's folder")
            });
        // Readers must not trust the page of a writer that has ended.
        let _ = self.engine.files.vfs.remove_file(&self.engine.files.live());
        // The closed store must not keep files open, even if the program keeps the object.
        self.engine.log.release();
        self.engine.queues.release();
        self.engine.index.release();
        self.engine.lifecycle.release_locks();
        outcome
    }
}
