//! A store that is open for writing.
//!
//! Holds the lock for as long as it lives. Opening: lock, then recovery, then `abort` away only at a
//! clean close. A message is encoded and checked by the caller's thread, placed under the put lock,
//! made durable as the mode says, and dispatched to queues and index behind the append; reads wait
//! until dispatch has passed what was visible when they began.

mod view;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use mqstore_format::UniqueKeyGenerator;
use mqstore_io::switch;
use mqstore_io::sync::Mutex;

use crate::compact::compaction_state::CompactionState;
use crate::read::view::View;
use crate::retention::Cleaner;
use crate::store::lifecycle::Lifecycle;
use crate::store::signals::ServiceSignals;
use crate::store::topics::Topics;
use mqstore_base::error::{IoContext, StoreError};
use mqstore_base::options::{Durability, StoreOptions};
use mqstore_base::store_files::StoreFiles;
use mqstore_log::commit_log::CommitLog;
use mqstore_log::consume_queue::QueueSet;
use mqstore_log::dispatch::{Dispatcher, RUN_BYTES};
use mqstore_log::flush::{Flusher, MAX_SEGMENTS_BEHIND};
use mqstore_log::index::IndexSet;
use mqstore_meta::MetaLog;

/// See the module's text.
pub(crate) struct Writer {
    pub(crate) files: StoreFiles,
    pub(crate) options: StoreOptions,
    pub(crate) log: Arc<CommitLog>,
    pub(crate) queues: Arc<QueueSet>,
    pub(crate) index: Arc<IndexSet>,
    pub(crate) dispatcher: Arc<Dispatcher>,
    pub(crate) flusher: Arc<Flusher>,
    pub(crate) cleaner: Cleaner,
    pub(crate) topics: Topics,
    pub(crate) meta: Arc<MetaLog>,
    pub(crate) ids: UniqueKeyGenerator,
    /// Tells this writer from others in this process.
    pub(crate) token: u64,
    pub(crate) signals: ServiceSignals,
    pub(crate) lifecycle: Lifecycle,
    pub(crate) compaction: CompactionState,
    /// Held while queues and index are made anew.
    pub(crate) rebuilding: Mutex<()>,
}

/// Tells writers of one process apart.
static TOKENS: AtomicU64 = AtomicU64::new(0);

/// A token that no writer of this process had before.
pub(crate) fn next_token() -> u64 {
    TOKENS.fetch_add(1, Ordering::Relaxed)
}

impl Writer {
    /// Whether so much waits for dispatch and flush that appends wait for them.
    pub(crate) fn is_far_behind(&self) -> bool {
        let target = self.log.appended().min(self.dispatcher.limit());
        let behind = target.saturating_sub(self.flusher.dispatched());
        behind > MAX_SEGMENTS_BEHIND * self.log.segment_bytes()
    }

    /// Whether an append of which somebody wants a sync, or not, waits for one.
    pub(crate) fn needs_sync(&self, wants_sync: bool) -> bool {
        wants_sync || self.options.durability == Durability::Sync
    }

    /// Waits for the sync of records that were appended with `ReturnPoint::Placed` and end at `end`.
    pub(crate) fn synced(&self, end: u64) -> Result<(), StoreError> {
        self.log.wait_durable(end)?;
        // Where a sync makes visible, dispatch has to hear of it.
        self.wake_services(end)
    }

    /// Dispatches in this thread, or tells the services what there is to do.
    pub(crate) fn wake_services(&self, end: u64) -> Result<(), StoreError> {
        if self.options.dispatch_threads == Some(0) {
            match self.dispatch() {
                // The message is in the log and stays there; whoever reads is told.
                Ok(_) | Err(StoreError::DiskFull { .. }) => {}
                Err(error) => return Err(error),
            }
        } else if self.dispatcher.position() < self.visible() {
            // Publishing is sequentially consistent; where a sync makes visible, no such store came before.
            if self.options.durable_only() || self.options.durability == Durability::Pooled {
                self.signals.log_grew();
            } else {
                self.signals.log_grew_after_fence();
            }
        }
        if end >= self.flusher.flush_due_offset() {
            self.signals.flush_due();
        }
        if self.commit_is_due() {
            self.signals.pool_filled();
        }
        Ok(())
    }

    /// Whether enough is pooled to be written without waiting for the time.
    pub(crate) fn commit_is_due(&self) -> bool {
        self.options.durability == Durability::Pooled
            && self.log.appended().saturating_sub(self.log.readable()) > self.options.pool_bytes / 8
    }

    /// How far readers may look: what is durable where that was asked for, else what can be read.
    pub(crate) fn visible(&self) -> u64 {
        let end = if self.options.durable_only() { self.log.durable() } else { self.log.readable() };
        end.min(self.dispatcher.limit())
    }

    /// Dispatches everything visible; a failure other than a full disk stops the store.
    pub(crate) fn dispatch(&self) -> Result<u64, StoreError> {
        let visible = self.visible();
        if self.dispatcher.position() >= visible {
            return Ok(visible);
        }
        if visible.saturating_sub(self.dispatcher.position()) > RUN_BYTES {
            self.signals.backlog_grew();
        }
        let reached = self.dispatcher.run_to(&self.log.list(), visible).map_err(|error| match error {
            // The log has everything; the entries follow when there is room again.
            StoreError::DiskFull { .. } => error,
            error => self.log.poison("dispatching", &error.to_string()),
        })?;
        Ok(reached)
    }

    pub(crate) fn has_queue(&self, topic: &str, queue_id: i32) -> bool {
        u32::try_from(queue_id).is_ok_and(|id| id < self.topics.queue_count(topic))
    }

    /// Things that a person should know, each once.
    pub(crate) fn notes(&self) -> Vec<String> {
        self.queues.take_notes().iter().for_each(|note| self.lifecycle.note(note));
        self.lifecycle.notes()
    }

    /// Makes everything appended so far durable, derived files and topics included.
    pub(crate) fn flush(&self) -> Result<(), StoreError> {
        self.check()?;
        self.topics.store()?;
        self.flusher.flush_all(false)?;
        // What is known of messages comes behind them.
        self.meta.sync(self.meta.place())
    }

    /// What is due for the metadata log.
    pub(crate) fn meta_step(&self) -> Result<(), StoreError> {
        self.meta.step(self.files.clock.now_ms())
    }

    /// The last step of a close: everything durable, the mark clean, `abort` away, the lock free.
    pub(crate) fn finish(&self) -> Result<(), StoreError> {
        self.log.stop_preparing();
        self.log.seal();
        // What was held back is in the log and counts from here on.
        let lifted = self.set_visible_limit(u64::MAX);
        let outcome =
            lifted.and_then(|()| self.log.check()).and_then(|()| self.topics.store()).and_then(|()| {
                self.flusher.flush_all(true)?;
                self.drain_compaction_appends();
                self.meta.close()?;
                let abort = self.files.abort();
                self.files.vfs.remove_file(&abort).at(&abort, "removing abort")?;
                switch::step("close.sync_abort_removal", || self.files.vfs.sync_dir(&self.files.root))
                    .at(&self.files.root, "syncing the store's folder")
            });
        // Readers must not trust the page of a writer that is gone.
        let _ = self.files.vfs.remove_file(&self.files.live());
        // Whoever keeps the closed store, or its object, keeps no file open by it.
        self.log.release();
        self.queues.release();
        self.index.release();
        self.lifecycle.release_lock();
        outcome
    }
}
